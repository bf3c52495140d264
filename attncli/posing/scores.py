"""What bears on the scores themselves: scale, score function, bias, ALiBi, sinks, rope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.arguments import shape_text
from attncli.array_likes import as_ndarray
from attncli.dtypes import in_float64, parts, readable
from attncli.errors import DataError, ShapeError, UsageError
from attncli.names import Pairing, Score
from attncli.polarity import looks_like_mask
from attncli.posing.rules import to_weights
from attncli.positions import BASE
from attncli.positions import alibi_slopes as paper_slopes
from attncli.problem import Rope, default_scale
from attncli.text import counted
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.arguments import Names
    from attncli.layout import Layout
    from attncli.visibility import Visibility

__all__ = [
    "bias_of",
    "refuse_steep",
    "rope_of",
    "scale_of",
    "score_vector_of",
    "score_weight_of",
    "sinks_of",
    "slopes_of",
    "softcap_of",
]

Array = npt.NDArray[Any]
Shape = tuple[int, int, int, int]

# By more radians nothing turns at each position.
_FASTEST = 1e6


def scale_of(named: Names, scale: object, score: Score, width: int, dtype: np.dtype[Any]) -> float:
    """Return the scale: 1/√D for the dot product unless given."""
    if scale is None:
        return default_scale(score, width)
    number = arguments.finite_number(named("scale"), scale)
    least, most = _least(dtype), float(np.finfo(dtype).max)
    if number and not least <= abs(number) <= most:
        raise DataError(
            f"{named('scale')}: expected 0, or a size from {least:g} to {most:g} for {dtype.name}; "
            f"found {number:g}",
            hint=in_float64(dtype),
        )
    return number


def score_weight_of(
    named: Names, score: str, weight: object, widths: tuple[int, int]
) -> Array | None:
    """Return W of score general: (width of the query, width of the key)."""
    if score != "general":
        _refuse_without("score general", score_weight=weight)
        return None
    if weight is None:
        raise UsageError(
            "score general needs its matrix W, of shape "
            f"{shape_text(widths)}: give score_weight (--score-weight)"
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
        _refuse_without("score additive", score_vector=vector)
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


def _refuse_without(needed: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is only for {needed}")


def rope_of(
    named: Names, rope: object, base: object, frequencies: object, width: int, key_width: int
) -> Rope | None:
    """Return the checked rotary embedding, or None."""
    base = BASE if base is None else arguments.positive_number(named("rope_base"), base)
    if rope is None:
        if base != BASE:
            raise _only_for_rope("rope_base")
        if frequencies is not None:
            raise _only_for_rope("rope_frequencies")
        return None
    pairing = cast("Pairing", arguments.choice(named("rope"), rope, get_args(Pairing)))
    if width != key_width:
        raise ShapeError(
            f"rope turns query and key alike: expected one width; found {width} and {key_width}"
        )
    if frequencies is not None:
        if base != BASE:
            raise UsageError(
                "rope_base and rope_frequencies both say how fast pairs turn: give one"
            )
        given = _frequencies(named("rope_frequencies"), frequencies, width)
        return Rope(pairing, frequencies=given)
    if width % 2:
        raise ShapeError(f"rope turns pairs of components: expected an even width; found {width}")
    return Rope(pairing, base)


def _only_for_rope(name: str) -> UsageError:
    return UsageError(f"{name} is only for rope", hint="give rope half or interleaved")


def _frequencies(name: str, value: object, width: int) -> tuple[float, ...]:
    """Return the frequencies of as many pairs of components as there are, or fewer."""
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
    """Return the bias in four axes: −inf, and numbers that leave room for scores in the dtype."""
    if bias is None:
        return None
    given = as_ndarray(named("bias"), bias)
    if given.dtype == np.bool_:
        raise DataError(
            f"{named('bias')}: expected numbers, which are added to the scores; found booleans",
            hint="what says which keys are seen are a mask (--mask)",
        )
    array = arguments.stored_numbers(named("bias"), given)
    highest = _checked_bias(named("bias"), array, dtype)
    if highest == 1 and looks_like_mask(readable(array)):
        warn(
            f"{named('bias')} holds only 0 and 1, which are added to the scores and hide no key: "
            "what says which keys are seen is a mask (--mask)"
        )
    return to_weights(named("bias"), array, form, shape, added=True)


def _checked_bias(name: str, bias: Array, dtype: np.dtype[Any]) -> float:
    """Refuse what a bias may not hold, a part at a time, and return the highest of its numbers.

    It may be as large as the weights, so it stays as it is stored.
    """
    most, least = _most(dtype), float(np.finfo(dtype).min)
    highest = -np.inf
    for part in parts(bias) if bias.size else ():
        wide = readable(part)
        own = float(np.max(wide))
        highest = max(highest, own)
        if not own <= most:  # a maximum is NaN where any element is
            _refuse_bias(name, readable(bias), dtype)
        if wide.dtype.itemsize > dtype.itemsize and bool(((wide < least) & (wide > -np.inf)).any()):
            _refuse_bias(name, readable(bias), dtype)
    return highest


def _refuse_bias(name: str, bias: Array, dtype: np.dtype[Any]) -> NoReturn:
    """Say which number of a bias is the first that it may not hold."""
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
    if slopes is None:
        return None
    return _one_a_head(named("alibi_slopes"), slopes, heads)


def refuse_steep(
    named: Names, slopes: Array, visible: Visibility, shape: Shape, dtype: np.dtype[Any]
) -> None:
    """Refuse slopes that leave no room for scores, far from the query."""
    ends = [(offset, offset + shape[2] - 1) for offset in visible.offsets]
    far = max(max(abs(first - shape[3] + 1), abs(last)) for first, last in ends)
    steepest, most = float(slopes[np.argmax(np.abs(slopes))]), _most(dtype) / max(1, far)
    if abs(steepest) > most:
        why = f", because keys lie up to {far} away" if far > 1 else ""
        raise DataError(
            f"{named('alibi_slopes')}: expected numbers up to {most:g} in {dtype.name}{why}; "
            f"found {steepest:g}"
        )


def sinks_of(named: Names, sinks: object, heads: int, dtype: np.dtype[Any]) -> Array | None:
    """Return the sinks, (H,), or None."""
    if sinks is None:
        return None
    array, most = _one_a_head(named("sinks"), sinks, heads), _most(dtype)
    if array.max() > most:
        arguments.refuse_first(named("sinks"), array, array > most, _up_to(most, dtype))
    return array


def softcap_of(named: Names, softcap: object, dtype: np.dtype[Any]) -> float | None:
    """Return the softcap, or None: scores are divided and multiplied by it."""
    if softcap is None:
        return None
    number = arguments.positive_number(named("softcap"), softcap)
    least, most = _least(dtype), _most(dtype)
    if not least <= number <= most:
        raise DataError(
            f"{named('softcap')}: expected a number from {least:g} to {most:g} for {dtype.name}; "
            f"found {number:g}"
        )
    return number


def _most(dtype: np.dtype[Any]) -> float:
    """Return how large a number may be that is added to scores, so that there is room for both."""
    most = float(np.finfo(dtype).max) / 4
    return max(most, float(f"{most:g}"))  # as errors name it


def _least(dtype: np.dtype[Any]) -> float:
    """Return how small the size of a factor of scores may be, but for 0."""
    least = float(np.finfo(dtype).tiny)
    return min(least, float(f"{least:g}"))


def _up_to(most: float, dtype: np.dtype[Any]) -> str:
    return f"numbers up to {most:g}, a quarter of the range of {dtype.name}"


def _one_a_head(name: str, value: object, heads: int) -> Array:
    array = arguments.vector(name, value)
    if len(array) != heads:
        raise ShapeError(
            f"{name}: expected one number for each query head ({heads}); found {len(array)}"
        )
    return arguments.finite_array(name, array)
