"""Follow one query through the computation, and keep every number along the way.

Scores, weights, lse and context are the engine's own numbers. What lies between them is computed
here in float64 from the same inputs, so it agrees with them up to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.calling import by_known_names
from attncli.explanation.data import Explanation, KeyStep, OutputShare, Rest
from attncli.explanation.row import QueryRow, made_query, why
from attncli.numerics.dtypes import dtype_name, widen
from attncli.numerics.indices import index_of, indices_of
from attncli.problem.arguments import positive_int, thread_count
from attncli.problem.labels import named_index, named_range
from attncli.problem.problem import posed_problem

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
# Rows of values that are widened at a time.
_TILE = 4096


@by_known_names
def explain(
    problem: Problem,
    *,
    query: int | str,
    batch: int = 0,
    head: int = 0,
    keys: int | None = 12,
    threads: int | None = None,
) -> Explanation:
    """Return every number that leads from one query to its weights and context.

    A query that sees no key raises no warning: the explanation says so.

    ``print`` shows it as ``attncli explain`` does.

    Parameters
    ----------
    problem : Problem
        From `attncli.pose` or `attncli.load`.
    query : int or str
        An index, or a text as `query_index` takes it: an index or a label.
    batch, head : int
        Negative indices count from the end, as in NumPy; so does a query given as an int.
    keys : int, optional
        List at most this many keys, the strongest first, and sum up the others; at least 1.
        None lists all.
    threads : int, optional
        As in `attncli.attention`.

    Returns
    -------
    Explanation

    Raises
    ------
    UsageError
        An index is out of range, no query has this label, ``keys`` or ``threads`` is no whole
        number of at least 1, or ``problem`` is no `Problem`.
    DataError
        The scores, or a projected context, exceed the range of the computing dtype.

    Warns
    -----
    AttnWarning
        A text is the index of one query and the label of another.

    Examples
    --------
    >>> from attncli import pose
    >>> problem = pose([[1.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]], scale=1)
    >>> explanation = explain(problem, query=0)
    >>> [step.products.tolist() for step in explanation.steps]
    [[3.0, 8.0], [0.0, 2.0]]
    >>> [step.raw for step in explanation.steps]
    [11.0, 2.0]
    """
    posed_problem(problem)
    batches, heads, queries, _ = problem.shape
    if isinstance(query, str):
        query = query_index(problem, query)
    query = index_of("query", query, queries)
    batch = index_of("batch", batch, batches)
    head = index_of("head", head, heads)
    if keys is not None:
        keys = positive_int("keys", keys)
    threads = thread_count(threads)
    with np.errstate(all="ignore"):  # exponentials may underflow to 0
        return _explained(problem, batch, head, query, keys=keys, threads=threads)


def _explained(
    problem: Problem, batch: int, head: int, query: int, *, keys: int | None, threads: int | None
) -> Explanation:
    row = QueryRow(problem, batch, head, query, threads=threads)
    selected = row.problem
    told, others = _told(row.scores, keys)
    own_batch, own_head = problem.layout.place(batch, head)
    vector = problem.score_vector
    return Explanation(
        query=query,
        query_label=None if problem.query_labels is None else problem.query_labels[query],
        batch=own_batch,
        head=own_head,
        kv_head=problem.key_head(head) if problem.key.shape[1] < problem.shape[1] else None,
        keys=problem.shape[3],
        position=selected.visible.offset(0),
        dtype=dtype_name(problem.dtype),
        kind=problem.score,
        rope=problem.rope,
        scale=problem.scale,
        softcap=problem.softcap,
        slope=row.slope,
        sink=row.sink,
        has_bias=problem.bias is not None,
        made=made_query(problem, batch=batch, head=head, query=query),
        given=widen(selected.query[0, 0, 0], problem.dtype),
        rotated=None if problem.rope is None else row.rotated,
        compared=row.compared,
        norm=_length(row.compared),
        vector=None if vector is None else widen(vector, problem.dtype),
        steps=tuple(_step(row, int(j)) for j in told),
        rest=_rest(row, others) if others.any() else None,
        shift=row.shift,
        sink_exponential=row.sink_exponential,
        denominator=float(row.exponentials.sum()) + row.sink_exponential,
        lse=row.lse,
        context=row.context,
        output=_output_share(problem, head, row.context),
    )


def _output_share(problem: Problem, head: int, context: Array | None) -> OutputShare | None:
    if problem.output is None or context is None:
        return None
    width = len(context)
    weight = widen(problem.output.weight[head * width : (head + 1) * width], problem.dtype)
    bias = problem.output.bias
    return OutputShare(
        weight=weight,
        bias=None if bias is None else widen(bias, problem.dtype),
        heads=problem.shape[1],
        share=context.astype(np.float64) @ weight.astype(np.float64),
    )


def query_index(problem: Problem, text: str) -> int:
    """Return the index of a query that a user named by its index or label."""
    return named_index("query", text, problem.shape[2], problem.query_labels, of="query")


def query_indices(problem: Problem, text: str) -> tuple[int, ...]:
    """Return the indices of the queries that ``--query`` names.

    These are indices and labels with commas, ranges as in Python (``0:3``), and ranges from a label
    up to another (``cat:mat``).
    """
    name, labels, count = "--query", problem.query_labels, problem.shape[2]
    found: list[int] = []
    for part in [text] if text in (labels or ()) else map(str.strip, text.split(",")):
        if ":" in part and part not in (labels or ()):
            found += range(*named_range(name, part, count, labels, of="query"))
        else:
            found.append(named_index(name, part, count, labels, of="query"))
    return indices_of(name, found, count)


def _told(scores: Array, keys: int | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the keys to list, visible ones first, and a mask of the other keys."""
    others = np.ones(len(scores), np.bool_)
    if keys is None or len(scores) <= keys:
        told = np.arange(len(scores))
    else:
        seen = int(np.count_nonzero(scores > -np.inf))
        told = np.argsort(-scores, kind="stable")[: min(keys, seen or keys)]
    others[told] = False
    return told, others


def _step(row: QueryRow, index: int) -> KeyStep:
    problem, bias, weight = row.problem, float(row.bias[index]), float(row.weights[index])
    key = widen(row.key[index], problem.dtype)
    products = _products(row, key)
    distance = abs(problem.visible.offset(0) - index)
    score = float(row.scores[index])
    value = None if problem.value is None else widen(problem.value[0, 0, index], problem.dtype)
    return KeyStep(
        index=index,
        label=None if problem.key_labels is None else problem.key_labels[index],
        given=widen(problem.key[0, 0, index], problem.dtype),
        key=key,
        products=products,
        dot=_sum(products),
        norm=_length(key),
        raw=float(row.raw[index]),
        capped=float(row.capped[index]),
        bias=bias,
        distance=distance,
        penalty=(row.slope or 0.0) * distance,
        hidden=tuple(
            why(rule, problem.visible, row.query, index)
            for rule, hides in row.hidden_by.items()
            if hides[index]
        ),
        score=score,
        exponent=score - row.shift,
        exponential=float(row.exponentials[index]),
        weight=weight,
        value=value,
        contribution=None if value is None else _share(value, weight),
    )


def _products(row: QueryRow, key: Array) -> Floats:
    query, key = row.compared.astype(np.float64), key.astype(np.float64)
    # Only hidden keys overflow here: the engine refuses that for visible ones.
    with np.errstate(over="ignore"):
        if row.problem.is_product:
            return query * key
        vector = widen(np.asarray(row.problem.score_vector), row.problem.dtype)
        return vector.astype(np.float64) * np.tanh(query + key)


def _sum(products: Floats) -> float:
    """Return the sum, rounded once; it may exceed float64."""
    if len({product for product in products.tolist() if math.isinf(product)}) > 1:
        return math.nan
    # Reduced, because `math.fsum` refuses finite numbers whose sum, or part of it, is infinite.
    reduced = 2.0**-64 if np.abs(products).max() > 2.0**900 else 1.0
    return math.fsum(products * reduced) / reduced


def _length(vector: Array) -> float:
    return math.hypot(*vector.astype(np.float64).tolist())


def _share(value: Array, weight: float) -> Floats:
    share = value.astype(np.float64)
    return share * weight if weight else np.zeros_like(share)


def _rest(row: QueryRow, others: npt.NDArray[np.bool_]) -> Rest:
    weights = np.where(others, row.weights, 0)
    counts = {rule: int((hides & others).sum()) for rule, hides in row.hidden_by.items()}
    return Rest(
        count=int(np.count_nonzero(others)),
        hidden=int(np.count_nonzero(others & (row.scores == -np.inf))),
        rules={rule: count for rule, count in counts.items() if count},
        exponential=float(row.exponentials[others].sum()),
        weight=float(weights.sum(dtype=np.float64)),
        contribution=_weighted_sum(row.problem, weights),
    )


def _weighted_sum(problem: Problem, weights: Array) -> Floats | None:
    if problem.value is None:
        return None
    value = problem.value[0, 0]
    total = np.zeros(value.shape[1])
    for start in range(0, len(weights), _TILE):
        part = slice(start, start + _TILE)
        total += weights[part].astype(np.float64) @ widen(value[part], np.float64)
    return total
