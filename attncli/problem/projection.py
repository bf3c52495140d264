"""From embeddings to query, key and value: X · W + b, and the norms behind it.

Letters: W the width of the embeddings; the others as in `attncli.attention`. Weights are
in the mathematics' orientation, (in, out).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError, UsageError
from attncli.errors.calling import by_known_names
from attncli.numerics.dtypes import in_float64, readable, widen
from attncli.numerics.finite import all_finite
from attncli.numerics.positions import sinusoidal
from attncli.problem import arguments
from attncli.problem.arguments import Names, names_of, shape_text
from attncli.problem.layout import Layout
from attncli.problem.norms import NORM_EPSILON, rms_norm
from attncli.problem.output import linear, matrix_of, offset_of, refuse_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.errors.names import PrecisionName

Array = npt.NDArray[Any]
ArrayLike = npt.ArrayLike


@dataclass(frozen=True, eq=False)
class Projected:
    """Query, key and value that were made from embeddings.

    Attributes
    ----------
    query : ndarray (…, L, H·D)
    key : ndarray (…, S, G·D)
    value : ndarray (…, S, G·E), or None where there is no ``wv``
        All three in the computing dtype, heads side by side in the width.
    arguments : mapping of str to object
        The arguments of `project` that made them, with arrays as used in the computation.
    norm_before : mapping of str to ndarray (W,)
        ``weight`` and, if there is one, ``bias`` of the norm that should have made ``x``; empty if
        no norm is known.
    """

    query: Array
    key: Array
    value: Array | None
    arguments: Mapping[str, Any] = field(repr=False)
    norm_before: Mapping[str, Array] = field(default_factory=dict, repr=False)


@by_known_names
def project(
    x: ArrayLike,
    *,
    wq: ArrayLike | None = None,
    wk: ArrayLike | None = None,
    wv: ArrayLike | None = None,
    bq: ArrayLike | None = None,
    bk: ArrayLike | None = None,
    bv: ArrayLike | None = None,
    q_norm: ArrayLike | None = None,
    k_norm: ArrayLike | None = None,
    norm_eps: float | None = None,
    key_source: ArrayLike | None = None,
    value_source: ArrayLike | None = None,
    positions: Literal["sinusoidal"] | None = None,
    precision: PrecisionName | None = None,
    sources: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> Projected:
    """Compute query = X·W_q + b_q, key = X·W_k + b_k and value = X·W_v + b_v.

    With ``q_norm`` and ``k_norm``, query and key are then normalised (Qwen 3, Gemma 3, OLMo 2).
    A projection without its weight leaves its source as it is: Bahdanau's attention, say, has
    ``wq`` and ``wk`` but averages the ``value_source`` itself.

    Parameters
    ----------
    x : array_like (L, W) or (B, L, W)
        Embeddings; each row is one token.
    wq, wk, wv : array_like (W, out), optional
        (in, out): the transpose of what `torch.nn.Linear` stores. Without ``wv`` and
        ``value_source`` there is no value.
    bq, bk, bv : array_like (out,), optional
    q_norm, k_norm : array_like (D,) or (out,), optional
        Weight of the RMS norm of query and key: for each head, or for all heads together.
    norm_eps : float, optional
        Added to the mean squares of both; 1e-6 unless given.
    key_source : array_like (S, W) or (B, S, W), optional
        What the keys are made from; ``x`` unless given (self-attention).
    value_source : array_like, optional
        What the values are made from; ``key_source`` unless given.
    positions : {"sinusoidal"}, optional
        Added to every source first; see `attncli.numerics.positions.sinusoidal`.
    precision : {"float32", "float64"}, optional
        The computing dtype; by default the widest of sources and weights, at least float32.
    sources : mapping of str to str, optional
        Argument name to the file it came from, for errors.
    threads : int, optional
        As in `attncli.attention`, for large products.

    Returns
    -------
    Projected

    Raises
    ------
    ShapeError
        A weight does not fit its source, or a bias or a norm its weight.
    DataError
        A number is not real, ``x``, a weight or a bias is not finite, or a product is beyond the
        range of the computing dtype.
    UsageError
        ``positions`` or ``precision`` is unknown, no weight is given, a bias or a norm lacks its
        weight, ``norm_eps`` lacks a norm, or ``threads`` is no whole number of at least 1.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; for the norms, Henry et al.
    2020, "Query-Key Normalization for Transformers", with the RMS norm of `attncli.problem.norms`.

    Examples
    --------
    >>> made = project([[1.0, 2.0]], wq=[[1.0], [0.0]], wk=[[0.0], [1.0]], bk=[0.5])
    >>> made.query, made.key
    (array([[1.]]), array([[2.5]]))
    """
    named = names_of(sources)
    threads = arguments.thread_count(threads)
    if positions is not None:
        arguments.choice(named("positions"), positions, ("sinusoidal",))
    _refuse_unused({"q": wq, "k": wk, "v": wv}, bq=bq, bk=bk, bv=bv, q_norm=q_norm, k_norm=k_norm)
    embeddings = arguments.finite_array(named("x"), _embeddings(named("x"), x))
    # Padding in keys and values may hold anything; a later check covers what queries see.
    keys = embeddings if key_source is None else _embeddings(named("key_source"), key_source)
    values = keys if value_source is None else _embeddings(named("value_source"), value_source)
    weights = {name: matrix_of(named(name), w) for name, w in (("wq", wq), ("wk", wk), ("wv", wv))}
    dtype = arguments.computing_dtype(
        named("precision"), precision, embeddings, keys, values, *weights.values()
    )
    given: dict[str, Any] = {"x": embeddings, **weights, "bq": None, "bk": None, "bv": None}

    def made(role: str, source: Array, letter: str, bias: ArrayLike | None) -> Array:
        ready, matrix = _placed(source, positions, dtype), weights[f"w{letter}"]
        if matrix is None:
            return ready
        weight = named(f"w{letter}")
        width = source.shape[-1]
        rows = f"{width} rows, as {named(role)} has shape {shape_text(source.shape)}"
        refuse_rows(weight, matrix, width, rows)
        offset = given[f"b{letter}"] = offset_of(named, f"b{letter}", bias, matrix)
        projected = linear(ready, matrix, offset, threads)
        _refuse_overflow(f"{named(role)} · {weight}", source, projected)
        return projected

    of_keys = "x" if key_source is None else "key_source"
    of_values = of_keys if value_source is None else "value_source"
    query, key = made("x", embeddings, "q", bq), made(of_keys, keys, "k", bk)
    epsilon = given["norm_eps"] = _epsilon(named, norm_eps, q_norm, k_norm)
    given["q_norm"] = _norm(named("q_norm"), q_norm, query)
    given["k_norm"] = _norm(named("k_norm"), k_norm, key)
    if epsilon is not None:
        query, key = (
            rows if weight is None else rms_norm(rows, weight, epsilon)
            for rows, weight in ((query, given["q_norm"]), (key, given["k_norm"]))
        )
    value = None if wv is None and value_source is None else made(of_values, values, "v", bv)
    given["key_source"] = None if key_source is None else keys
    given["value_source"] = None if value_source is None else values
    given |= {"positions": positions, "precision": precision}
    return Projected(query, key, value, given)


def as_heads(packed: Array | None, own: Array | None) -> Array | None:
    """Return packed heads with the axes of ``own``.

    Parameters
    ----------
    packed : ndarray (…, S, G·D), or None
    own : ndarray (B, G, S, D), or None

    Returns
    -------
    ndarray (B or more, G, S, D), or None where either is missing or they do not fit
    """
    if own is None or packed is None:
        return None
    batch, heads, rows, width = own.shape
    entries = len(packed) if packed.ndim == 3 else 1
    # One entry may stand for the whole batch on either side.
    fits = batch == entries or 1 in (batch, entries)
    if packed.shape[-2:] != (rows, heads * width) or not fits:
        return None
    form = Layout("sd" if packed.ndim == 2 else "bsd", packed=True)
    made = form.split(packed, heads, "heads")
    return made if entries >= batch else np.broadcast_to(made, own.shape)


def _refuse_unused(weights: Mapping[str, object], **given: object) -> None:
    """Refuse a bias or a norm whose weight is missing, and a call without any weight.

    ``bq`` and ``q_norm`` belong to ``wq``, and so on.
    """
    if all(weight is None for weight in weights.values()):
        raise UsageError("x is projected by wq, wk and wv, but none of them is given")
    for name, value in given.items():
        letter = name.removeprefix("b")[0]
        if value is not None and weights[letter] is None:
            raise UsageError(f"{name} is for x · w{letter}, but w{letter} is missing")


def _embeddings(name: str, value: object) -> Array:
    array = arguments.real_array(name, value)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ShapeError(
            f"{name}: expected embeddings (tokens, width) or (batch, tokens, width); "
            f"found shape {shape_text(array.shape)}"
        )
    return array


def _refuse_overflow(product: str, source: Array, made: Array) -> None:
    """Refuse a product that is not finite though its embeddings are; other rows are padding."""
    if all_finite(made):
        return
    padding = ~np.isfinite(readable(source)).all(axis=-1)
    if not np.isfinite(made[~padding]).all():
        raise DataError(
            f"{product} exceeds the range of {made.dtype.name}", hint=in_float64(made.dtype)
        )


def _epsilon(named: Names, given: object, *norms: object) -> float | None:
    if all(norm is None for norm in norms):
        if given is None:
            return None
        raise UsageError(f"{named('norm_eps')} is for q_norm and k_norm, but both are missing")
    return NORM_EPSILON if given is None else arguments.positive_number(named("norm_eps"), given)


def _norm(name: str, value: object, made: Array) -> Array | None:
    if value is None:
        return None
    weight = arguments.finite_array(name, value)
    width = made.shape[-1]
    if not weight.size or weight.size != max(weight.shape, default=1) or width % weight.size:
        raise ShapeError(
            f"{name}: expected a number for each component of a head, or of all heads ({width}); "
            f"found shape {shape_text(weight.shape)}"
        )
    return weight.reshape(-1)


def _placed(x: Array, positions: str | None, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # a later error names what was multiplied
        wide = widen(x, dtype)
    if positions is None:
        return wide
    placed: Array = wide + sinusoidal(*x.shape[-2:]).astype(dtype)
    return placed
