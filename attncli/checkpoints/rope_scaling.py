"""Rotary frequencies of models that were trained on short texts and read longer ones.

As Transformers has them, under ``rope_type``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.arguments import flag, not_negative, positive_number, shown
from attncli.errors import UsageError
from attncli.positions import rope_frequencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = ["scaled_frequencies"]

# A pair that turns at least so often within the trained length keeps its frequency; one that turns
# at most so often is slowed down by the whole factor.
_FAST, _SLOW = 32.0, 1.0
_MOST_FACTOR = 1e6


def scaled_frequencies(
    width: int, base: float, parameters: Mapping[str, Any], trained: object, file: str
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the frequency of each pair of components, and what query and key are multiplied by.

    Parameters
    ----------
    width : int
        How many components are rotated.
    base : float
    parameters : mapping
        ``rope_type`` (or ``type``) and its numbers, as the configuration has them.
    trained : int or None
        The length of texts that the model was trained with, where the parameters have none.
    file : str
        How errors name the configuration.

    Returns
    -------
    ndarray (width/2,) of float64, float

    Raises
    ------
    UsageError
        The kind is none of ``default``, ``linear``, ``llama3`` and ``yarn``, or a number of it is
        missing or wrong.

    References
    ----------
    Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation" (linear); Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large
    Language Models", sections 3.2 and 3.4; Llama 3.1's published code (llama3).
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UsageError(
            f"{file}: attncli does not know the rotary embedding {shown(kind)}, or it depends on "
            "the length",
            hint="give what the model's rotary module has as inv_freq, with --rope and "
            "--rope-frequencies",
        )

    def number(name: str, otherwise: object = None) -> float:
        value = parameters.get(name)
        return positive_number(f"{file}: {name}", otherwise if value is None else value)

    plain = rope_frequencies(width, base)
    if kind == "default":
        return plain, 1.0
    factor = number("factor")
    if kind == "linear":
        return plain / factor, 1.0
    length = number("original_max_position_embeddings", trained)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise UsageError(
                f"{file}: expected low_freq_factor below high_freq_factor; found {low:g} and "
                f"{high:g}"
            )
        turns = length * plain / (2 * math.pi)
        return _between(plain, factor, np.clip((turns - low) / (high - low), 0, 1)), 1.0
    if base == 1:
        raise UsageError(f"{file}: rope_theta: expected a number above 1; found 1")
    ends = [
        width * (math.log(length / (2 * math.pi)) - math.log(turns)) / (2 * math.log(base))
        for turns in (number("beta_fast", _FAST), number("beta_slow", _SLOW))
    ]
    if flag(f"{file}: truncate", parameters.get("truncate", True)):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    slowed = _slowed(width, ends)
    return _between(plain, factor, 1 - slowed), _sharpened(parameters, factor, file)


def _slowed(width: int, ends: list[float]) -> npt.NDArray[np.float64]:
    """Return by how much of YaRN's factor each pair is slowed down, between two pairs."""
    first, last = max(ends[0], 0), min(ends[1], width - 1)
    slowed: npt.NDArray[np.float64] = np.clip(
        (np.arange(width // 2) - first) / max(last - first, 1e-3), 0, 1
    )
    return slowed


def _between(
    plain: npt.NDArray[np.float64], factor: float, kept: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return frequencies between those of a longer text and the plain ones."""
    mixed: npt.NDArray[np.float64] = plain / factor * (1 - kept) + plain * kept
    return mixed


def _sharpened(parameters: Mapping[str, Any], factor: float, file: str) -> float:
    """Return what YaRN multiplies query and key with, so that longer texts blur nothing."""
    given = parameters.get("attention_factor")
    factor_of = f"{file}: attention_factor"
    if given is not None:
        return _reasonable(factor_of, positive_number(factor_of, given))

    def growth(name: str | None) -> float:
        share = 1.0 if name is None else not_negative(f"{file}: {name}", parameters[name])
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return _reasonable(factor_of, growth("mscale") / growth("mscale_all_dim"))
    return growth(None)


def _reasonable(name: str, factor: float) -> float:
    if not 1 / _MOST_FACTOR < factor < _MOST_FACTOR:
        raise UsageError(f"{name}: expected a number near 1; found {factor:g}")
    return factor
