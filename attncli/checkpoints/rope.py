"""Rotary embeddings from the configuration of a model, as in Transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from attncli.errors import UsageError
from attncli.numerics.positions import BASE, rope_frequencies
from attncli.problem.arguments import flag, not_negative, positive_int, positive_number, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from attncli.checkpoints.config import Settings

Frequencies: TypeAlias = "npt.NDArray[np.float64]"

# YaRN's defaults for beta_fast and beta_slow, in turns within the trained length: a pair of
# components that turns more often keeps its frequency; one that turns less often is slowed fully.
_FAST, _SLOW = 32.0, 1.0
# A larger factor, or one below its inverse, is a mistake in the file.
_MOST_FACTOR = 1e6


class Rotary(NamedTuple):
    """The settings of a rotary embedding of ``width`` components of a head.

    ``trained`` is the longest text of the training, ``reach`` the longest text allowed, in tokens.
    """

    width: int
    base: float
    parameters: Mapping[str, Any]
    trained: object
    reach: object
    tokens: int | None
    file: str

    @property
    def plain(self) -> Frequencies:
        """The frequencies without scaling."""
        return rope_frequencies(self.width, self.base)

    def number(self, name: str, otherwise: object = None) -> float:
        """Return a positive number among the parameters."""
        value = self.parameters.get(name)
        return positive_number(f"{self.file}: {name}", otherwise if value is None else value)

    def reasonable(self, name: str, factor: float) -> float:
        """Return a factor, if it is near 1."""
        if not 1 / _MOST_FACTOR < factor < _MOST_FACTOR:
            raise UsageError(f"{self.file}: {name}: expected a number near 1; found {factor:g}")
        return factor

    @property
    def original(self) -> float:
        """The longest text of the training, in tokens."""
        return self.number("original_max_position_embeddings", self.trained)

    @property
    def longest(self) -> int:
        """The longest text that the model allows, in tokens."""
        return positive_int(f"{self.file}: max_position_embeddings", self.reach)

    @property
    def length(self) -> int:
        """The number of tokens, which the frequencies depend on."""
        if self.tokens is None:
            raise UsageError(
                f"{self.file}: its rotary embedding depends on the number of tokens; found none"
            )
        return self.tokens


def rope_options(settings: Settings, width: int, scale: float, *, sliding: bool) -> dict[str, Any]:
    """Return the options of a rotary embedding; ``scale`` is the factor of scores without it."""
    parameters = _parameters(settings, sliding=sliding)
    base = _base(settings, parameters, sliding=sliding)
    rotated = _rotated(settings, parameters, width)
    reach, file = settings.value("max_position_embeddings"), settings.file
    trained = settings.value("original_max_position_embeddings") or reach
    rotary = Rotary(rotated, base, parameters, trained, reach, settings.tokens, file)
    frequencies, factor = scaled_frequencies(rotary)
    options: dict[str, Any] = {"rope": settings.model.rotates}
    if factor != 1:
        if rotated < width:
            raise UsageError(
                f"{file}: its rotary embedding multiplies only the rotated part of query and key, "
                f"by {factor:g}, which attncli does not do",
                hint="leave out --config, and give its options one by one",
            )
        options["scale"] = scale * factor**2
    if rotated == width and not parameters.keys() & {"rope_type", "type"}:
        return options | {"rope_base": base}
    return options | {"rope_frequencies": frequencies}


def _parameters(settings: Settings, *, sliding: bool) -> Mapping[str, Any]:
    """Return the parameters of the layer, without nulls and the default type."""
    given = settings.value("rope_parameters", "rope_scaling") or {}
    kind = "sliding_attention" if sliding else "full_attention"
    if isinstance(given, dict) and isinstance(given.get(kind), dict):
        given = given[kind]
    elif sliding and settings.model.windows_unscaled:
        given = {}
    if not isinstance(given, dict):
        raise UsageError(
            f"{settings.file}: rope_parameters: expected a mapping; found {shown(given)}"
        )
    return {
        name: value
        for name, value in given.items()
        if value is not None and (name, value) != ("rope_type", "default")
    }


def _base(settings: Settings, parameters: Mapping[str, Any], *, sliding: bool) -> float:
    base = parameters.get("rope_theta")
    if base is None and sliding:
        base = settings.value("rope_local_base_freq", "local_rope_theta")
    if base is None:
        base = settings.value("global_rope_theta", "rope_theta", "rotary_emb_base")
    return positive_number(f"{settings.file}: rope_theta", BASE if base is None else base)


def _rotated(settings: Settings, parameters: Mapping[str, Any], width: int) -> int:
    """Return the number of components of a head that are rotated."""
    file, share = settings.file, parameters.get("partial_rotary_factor")
    if share is None:
        share = settings.value("partial_rotary_factor", "rotary_pct")
    share = positive_number(f"{file}: partial_rotary_factor", 1.0 if share is None else share)
    rotated = settings.count("rotary_dim") or int(width * min(share, 1.0))
    if rotated % 2 or not 0 < rotated <= width:
        raise UsageError(
            f"{file}: expected an even number of a head's {width} components to be rotated; "
            f"found {rotated}"
        )
    return rotated


def scaled_frequencies(rotary: Rotary) -> tuple[Frequencies, float]:
    """Return the frequency of each pair of components, and the factor of query and key.

    Sources: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation" (linear); Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large
    Language Models", sections 3.2 and 3.4, and 3.3 (dynamic); Ding et al. 2024, "LongRoPE:
    Extending LLM Context Window Beyond 2 Million Tokens", section 3; Llama 3.1's published code.
    """
    kind = rotary.parameters.get("rope_type") or rotary.parameters.get("type") or "default"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UsageError(
            f"{rotary.file}: attncli does not know the rotary embedding {shown(kind)}",
            hint="give inv_freq of the model's rotary module as --rope-frequencies, with --rope",
        )
    frequencies, factor = _KINDS[kind](rotary)
    if kind in _WITH_FACTOR and rotary.parameters.get("attention_factor") is not None:
        factor = rotary.reasonable("attention_factor", rotary.number("attention_factor"))
    return frequencies, factor


def _dynamic(rotary: Rotary) -> tuple[Frequencies, float]:
    """Enlarge the base for texts that are longer than the model allows."""
    factor = rotary.reasonable("factor", rotary.number("factor"))
    larger = factor * max(rotary.length / rotary.longest, 1) - (factor - 1)
    if rotary.width < 4:  # a single pair turns by the same angle with any base
        return rotary.plain, 1.0
    base = rotary.base * larger ** (rotary.width / (rotary.width - 2))
    if not math.isfinite(base):
        raise UsageError(
            f"{rotary.file}: rope_theta: expected a smaller one; found {rotary.base:g}"
        )
    return rope_frequencies(rotary.width, base), 1.0


def _llama3(rotary: Rotary) -> tuple[Frequencies, float]:
    factor, low, high = (
        rotary.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if low >= high:
        raise UsageError(
            f"{rotary.file}: expected low_freq_factor below high_freq_factor; found {low:g} and "
            f"{high:g}"
        )
    turns = rotary.original * rotary.plain / (2 * math.pi)
    return _between(rotary.plain, factor, np.clip((turns - low) / (high - low), 0, 1)), 1.0


def _longrope(rotary: Rotary) -> tuple[Frequencies, float]:
    """Divide each frequency by its own factor; long texts have other factors than short ones."""
    original = rotary.original
    name = "long_factor" if rotary.length > original else "short_factor"
    factors = rotary.parameters.get(name)
    pairs = rotary.width // 2
    if not isinstance(factors, list) or len(factors) != pairs:
        found = len(factors) if isinstance(factors, list) else shown(factors)
        raise UsageError(f"{rotary.file}: {name}: expected {pairs} numbers; found {found}")
    each = [positive_number(f"{rotary.file}: {name}", factor) for factor in factors]
    has_factor = rotary.parameters.get("factor") is not None
    longer = rotary.number("factor") if has_factor else rotary.longest / original
    if longer <= 1 or original <= 1:
        return rotary.plain / each, 1.0
    return rotary.plain / each, math.sqrt(1 + math.log(longer) / math.log(original))


def _yarn(rotary: Rotary) -> tuple[Frequencies, float]:
    factor, length, width = rotary.number("factor"), rotary.original, rotary.width
    if rotary.base == 1:
        raise UsageError(f"{rotary.file}: rope_theta: expected a number above 1; found 1")
    ends = [
        width * (math.log(length / (2 * math.pi)) - math.log(turns)) / (2 * math.log(rotary.base))
        for turns in (rotary.number("beta_fast", _FAST), rotary.number("beta_slow", _SLOW))
    ]
    if flag(f"{rotary.file}: truncate", rotary.parameters.get("truncate", True)):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], width - 1)
    slowed = np.clip((np.arange(width // 2) - first) / max(last - first, 1e-3), 0, 1)
    return _between(rotary.plain, factor, 1 - slowed), _sharpened(rotary, factor)


_KINDS: dict[str, Callable[[Rotary], tuple[Frequencies, float]]] = {
    "default": lambda rotary: (rotary.plain, 1.0),
    "dynamic": _dynamic,
    "linear": lambda rotary: (rotary.plain / rotary.number("factor"), 1.0),
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
    "yarn": _yarn,
}


# With these kinds, a file may give the factor of query and key.
_WITH_FACTOR = ("longrope", "su", "yarn")


def _between(plain: Frequencies, factor: float, kept: Frequencies) -> Frequencies:
    """Mix slowed and plain frequencies; ``kept`` is the share of the plain ones."""
    mixed: Frequencies = plain / factor * (1 - kept) + plain * kept
    return mixed


def _sharpened(rotary: Rotary, factor: float) -> float:
    """Return YaRN's factor of query and key."""
    parameters = rotary.parameters

    def growth(name: str | None) -> float:
        share = 1.0 if name is None else not_negative(f"{rotary.file}: {name}", parameters[name])
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return rotary.reasonable("attention_factor", growth("mscale") / growth("mscale_all_dim"))
    return growth(None)
