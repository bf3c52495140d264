"""Checks of everything that changes the scores: scale, score function, bias, ALiBi, sinks, rope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError, UsageError, warn
from attncli.errors.names import Pairing, Score
from attncli.errors.text import counted
from attncli.numerics.array_likes import as_ndarray
from attncli.numerics.dtypes import in_float64, parts, readable
from attncli.numerics.positions import BASE
from attncli.numerics.positions import alibi_slopes as paper_slopes
from attncli.problem import arguments
from attncli.problem.arguments import shape_text
from attncli.problem.problem import Rope, default_scale
from attncli.problem.rules import to_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.arguments import Names
    from attncli.problem.layout import Layout
    from attncli.problem.visibility import Visibility

Array = npt.NDArray[Any]
Shape = tuple[int, int, int, int]

# The largest rope frequency, in radians for each position; no model comes near it.
_FASTEST = 1e6
# With fewer numbers than this, a bias of zeros and ones gets no warning.
_FEW_NUMBERS = 4


def scale_of(named: Names, scale: object, score: Score, width: int, dtype: np.dtype[Any]) -> float:
    """Return the scale: 1/√D for the dot product unless given."""
    if scale is None:
        return default_scale(score, width)
    number = arguments.finite_number(named("scale"), scale)
    if number:
        _refuse_size("0, or a size", named("scale"), number, dtype, float(np.finfo(dtype).max))
    return number


def softcap_of(named: Names, softcap: object, dtype: np.dtype[Any]) -> float | None:
    """Return the softcap, or None: scores are divided and multiplied by it."""
    if softcap is None:
        return None
    number = arguments.positive_number(named("softcap"), softcap)
    _refuse_size("a number", named("softcap"), number, dtype, _most(dtype))
    return number


def _refuse_size(
    expected: str, name: str, number: float, dtype: np.dtype[Any], most: float
) -> None:
    """Refuse a factor of the scores that is too small or too large for the computing dtype."""
    least = float(np.finfo(dtype).tiny)
    least = min(least, float(f"{least:g}"))  # as the error shows it
    if not least <= abs(number) <= most:
        raise DataError(
            f"{name}: expected {expected} from {least:g} to {most:g} for {dtype.name}; "
            f"found {number:g}",
            hint=in_float64(dtype),
        )


def score_weight_of(
    named: Names, score: str, weight: object, widths: tuple[int, int]
) -> Array | None:
    """Return W of score general: (width of the query, width of the key)."""
    if score != "general":
        if weight is not None:
            raise UsageError("score_weight is only for score general")
        return None
    if weight is None:
        raise UsageError(
            f"score general needs its matrix W, of shape {shape_text(widths)}: give score_weight "
            "(--score-weight)"
        )
    array = arguments.finite_array(named("score_weight"), weight)
    if array.shape != widths:
        turned = array.shape == widths[::-1]
        raise ShapeError(
            f"{named('score_weight')}: expected shape {shape_text(widths)}, the widths of query "
            f"and key; found {shape_text(array.shape)}",
            hint="its rows belong to the query: give the transposed matrix" if turned else None,
        )
    return array


def score_vector_of(named: Names, score: str, vector: object, width: int) -> Array | None:
    """Return v of score additive, (D,), ones unless given."""
    if score != "additive":
        if vector is not None:
            raise UsageError("score_vector is only for score additive")
        return None
    if vector is None:
        return np.ones(width)
    array = arguments.vector(named("score_vector"), vector)
    if len(array) != width:
        raise ShapeError(
            f"{named('score_vector')}: expected {counted(width, 'number')}, the width of query and "
            f"key; found {len(array)}"
        )
    return arguments.finite_array(named("score_vector"), array)


def rope_of(named: Names, given: Mapping[str, Any], widths: tuple[int, int]) -> Rope | None:
    """Return the checked rotary embedding, or None."""
    rope, base, frequencies = given["rope"], given["rope_base"], given["rope_frequencies"]
    base = BASE if base is None else arguments.positive_number(named("rope_base"), base)
    own_base = None if base == BASE else "rope_base"
    unused = own_base or (None if frequencies is None else "rope_frequencies")
    if rope is None:
        if unused:
            raise UsageError(f"{unused} is only for rope", hint="give rope half or interleaved")
        return None
    pairing = cast("Pairing", arguments.choice(named("rope"), rope, get_args(Pairing)))
    width, key_width = widths
    if width != key_width:
        raise ShapeError(
            f"rope rotates query and key alike: expected one width; found {width} and {key_width}"
        )
    if frequencies is not None:
        if own_base:
            raise UsageError("rope_base and rope_frequencies both set the frequencies: give one")
        turns = _frequencies(named("rope_frequencies"), frequencies, width)
        return Rope(pairing, frequencies=turns)
    if width % 2:
        raise ShapeError(f"rope rotates pairs of components: expected an even width; found {width}")
    return Rope(pairing, base)


def _frequencies(name: str, value: object, width: int) -> tuple[float, ...]:
    """Return the frequencies, at most one for each pair of components."""
    array = arguments.finite_array(name, arguments.vector(name, value))
    far = np.abs(array) > _FASTEST
    if far.any():
        arguments.refuse_first(name, array, far, f"numbers up to {_FASTEST:g}, in radians")
    if not 1 <= len(array) <= width // 2:
        raise ShapeError(
            f"{name}: expected a number for each pair of components, at most {width // 2} for "
            f"width {width}; found {len(array)}"
        )
    return tuple(array.tolist())


def bias_of(
    named: Names, bias: object, form: Layout, shape: Shape, dtype: np.dtype[Any]
) -> Array | None:
    """Return the bias with four axes: −inf, or numbers that leave room for scores in the dtype."""
    if bias is None:
        return None
    name = named("bias")
    given = as_ndarray(name, bias)
    if given.dtype == np.bool_:
        raise DataError(
            f"{name}: expected numbers, which are added to the scores; found booleans",
            hint="booleans that say which keys are seen are a mask (--mask)",
        )
    array = arguments.stored_numbers(name, given)
    _check_bias(name, array, dtype)
    return to_weights(name, array, form, shape)


def _check_bias(name: str, bias: Array, dtype: np.dtype[Any]) -> None:
    """Refuse wrong numbers in a bias, a part at a time: it may be as large as the weights."""
    most, least = _most(dtype), float(np.finfo(dtype).min)
    zeros = ones = 0
    for part in parts(bias) if bias.size else ():
        wide = readable(part)
        lower = wide.dtype.itemsize > dtype.itemsize and ((wide < least) & (wide > -np.inf)).any()
        if lower or not float(np.max(wide)) <= most:  # a maximum is NaN where any element is
            _refuse_bias(name, readable(bias), dtype)
        zeros += int(np.count_nonzero(wide == 0))
        ones += int(np.count_nonzero(wide == 1))
    if zeros and ones and zeros + ones == bias.size >= _FEW_NUMBERS:
        warn(
            f"{name} holds only 0 and 1, which are added to the scores and hide no key: perhaps it "
            "is meant as a mask (--mask)"
        )


def _refuse_bias(name: str, bias: Array, dtype: np.dtype[Any]) -> NoReturn:
    """Raise the error for the first wrong number in a bias."""
    most, least = _most(dtype), float(np.finfo(dtype).min)
    odd = np.isnan(bias) | (bias == np.inf)
    if odd.any():
        arguments.refuse_first(name, bias, odd, "finite numbers or −inf")
    if (bias > most).any():
        arguments.refuse_first(name, bias, bias > most, _up_to(most, dtype))
    expected = f"−inf, or numbers that {dtype.name}, the computing dtype, can hold"
    arguments.refuse_first(name, bias, np.isfinite(bias) & (bias < least), expected)


def slopes_of(named: Names, slopes: object, heads: int) -> Array | None:
    """Return the ALiBi slopes, (H,), or None."""
    if isinstance(slopes, (bool, np.bool_)):
        return np.array(paper_slopes(heads)) if slopes else None
    return None if slopes is None else _one_a_head(named("alibi_slopes"), slopes, heads)


def refuse_steep(
    named: Names, slopes: Array, visible: Visibility, shape: Shape, dtype: np.dtype[Any]
) -> None:
    """Refuse slopes whose penalty for the farthest key leaves no room for scores."""
    ends = [(offset, offset + shape[2] - 1) for offset in visible.offsets]
    far = max(max(abs(first - shape[3] + 1), abs(last)) for first, last in ends)
    steepest, most = float(slopes[np.argmax(np.abs(slopes))]), _most(dtype) / max(1, far)
    if abs(steepest) > most:
        raise DataError(
            f"{named('alibi_slopes')}: expected numbers up to {most:g} in {dtype.name}, because "
            f"keys lie up to {far} away; found {steepest:g}"
        )


def sinks_of(named: Names, sinks: object, heads: int, dtype: np.dtype[Any]) -> Array | None:
    """Return the sinks, (H,), or None."""
    if sinks is None:
        return None
    array, most = _one_a_head(named("sinks"), sinks, heads), _most(dtype)
    if array.max() > most:
        arguments.refuse_first(named("sinks"), array, array > most, _up_to(most, dtype))
    return array


def _most(dtype: np.dtype[Any]) -> float:
    """Return the largest number that may be added to scores, so that their sum stays in range."""
    most = float(np.finfo(dtype).max) / 4
    return max(most, float(f"{most:g}"))  # as errors show it


def _up_to(most: float, dtype: np.dtype[Any]) -> str:
    return f"numbers up to {most:g}, a quarter of the range of {dtype.name}"


def _one_a_head(name: str, value: object, heads: int) -> Array:
    array = arguments.vector(name, value)
    if len(array) != heads:
        raise ShapeError(
            f"{name}: expected one number for each query head ({heads}); found {len(array)}"
        )
    return arguments.finite_array(name, array)
