"""Mistakes in the inputs: exchanged, out of step, read wrongly, unwritten."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, permutations
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.mistakes.scores import first_of
from attncli.referee.mistakes.table import SIZES, Rows, given, require
from attncli.referee.pipeline import Pipeline, lengths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools, Ints
    from attncli.referee.run import Run

ROWS = Rows()

_INPUTS = ("query", "key", "value")
# At most so many scores of packed entries: more take too long.
_MOST_NUMBERS = 2**24


# Inputs that are taken for others.


def _in_the_order(order: tuple[str, ...], problem: Problem) -> str:
    """Tell the user to give the files in another order; empty if embeddings are given."""
    letters = " ".join(name[0].upper() for name in order)
    return (
        "" if problem.made_from is not None else f"give query, key and value in the order {letters}"
    )


def _taken(pipe: Pipeline, *order: str) -> Pipeline:
    """Take these inputs for query, key and value, if the shapes fit."""
    # If nothing depends on positions, the number of queries may change.
    free = not pipe.rules and not pipe.terms and pipe.rope is None
    made = {}
    for target, source in zip(_INPUTS, order, strict=True):
        if source != target:
            own, made[target] = given(getattr(pipe, target)), given(getattr(pipe, source))
            # The width of the values may change.
            loose = {"value": 3, "query": 2 if free else None}.get(target)
            same = [n == m for n, m in zip(made[target].shape, own.shape, strict=True)]
            require(all(equal or axis == loose for axis, equal in enumerate(same)))
    require(any(not np.array_equal(made[name], getattr(pipe, name)) for name in made))
    return pipe.but(**made)


_ORDERS: dict[str, tuple[str, ...]] = {
    "query_key_exchanged": ("key", "query", "value"),
    "key_value_exchanged": ("query", "value", "key"),
    "query_value_exchanged": ("value", "key", "query"),
}
for _source, _target in permutations(_INPUTS, 2):
    _order = tuple(_source if name == _target else name for name in _INPUTS)
    _ORDERS[f"{_source}_as_{_target}"] = _order
ROWS.family("{}", _taken, _ORDERS, option=lambda name: partial(_in_the_order, _ORDERS[name]))
ROWS.family(
    "inputs_in_the_order_{0}_{1}_{2}",
    _taken,
    (("key", "value", "query"), ("value", "query", "key")),
    option=lambda *order: partial(_in_the_order, order),
)


# Rows of an input that are read from other places.


def _reshaped(pipe: Pipeline, name: str) -> Pipeline:
    array = given(getattr(pipe, name))
    *lead, keys, width = array.shape
    require(name != "key" or pipe.rope is None, keys > 1, width > 1)
    return pipe.but(**{name: array.reshape(*lead, width, keys).swapaxes(-1, -2)})


def _moved(
    pipe: Pipeline, places: Callable[[Ints], Ints], *names: str, beyond: int = 1
) -> Pipeline:
    """Read rows from other places, if there are more than ``beyond`` rows."""
    made = {}
    for name in names:
        array = given(getattr(pipe, name))
        count = array.shape[2]
        require(count > beyond)
        made[name] = array[:, :, places(np.arange(count))]
    require(any(not np.array_equal(made[name], getattr(pipe, name)) for name in names))
    return pipe.but(**made)


def _has_places(pipe: Pipeline) -> bool:
    return bool(pipe.rules or pipe.terms or pipe.rope is not None)


def _new_first(pipe: Pipeline) -> Pipeline:
    new, count = pipe.problem.shape[2:]
    require(new < count)
    return _moved(pipe, lambda at: (at - new) % count, "key", "value", beyond=2)


ROWS.add("key_reshaped", _reshaped, "key")
ROWS.add("value_reshaped", _reshaped, "value")
# From the end of the name and its words to the places that are read.
_STEPS: dict[tuple[str, str], Callable[[Ints], Ints]] = {
    ("late", "before it (the first has that of the last)"): lambda at: (at - 1) % len(at),
    ("late_by_one", "before it (the first has its own)"): lambda at: np.maximum(at - 1, 0),
    ("early", "after it (the last has that of the first)"): lambda at: (at + 1) % len(at),
    ("early_by_one", "after it (the last has its own)"): lambda at: np.minimum(at + 1, at[-1]),
}
for _input in ("value", "key"):
    ROWS.family(
        f"{_input}s_{{}}", _moved, {words: (places, _input) for words, places in _STEPS.items()}
    )
for _tokens, _names in {"tokens": ("key", "value"), "queries": ("query",)}.items():
    ROWS.family(
        f"{_tokens}_{{}}",
        partial(_moved, beyond=2),
        {words: (places, *_names) for words, places in _STEPS.items()},
        when=_has_places,
    )
ROWS.add("new_keys_before_the_cache", _new_first, when=_has_places)


def emptied(pipe: Pipeline, names: Iterable[str], rows: slice) -> Pipeline:
    """Set some rows of key, value or both to zero."""
    made = {}
    for name in names:
        made[name] = getattr(pipe, name).copy()
        made[name][:, :, rows] = 0
    return pipe.but(**made)


ROWS.family(
    "last_{}_unwritten",
    lambda pipe, *names: emptied(pipe, names, slice(-1, None)),
    {"slot": ("key", "value"), "key": "key", "value": "value"},
    when=lambda pipe: "kv_lengths" not in pipe.rules and given(pipe.value).shape[2] > 1,
)
_BLOCK_STEPS: dict[tuple[str, str], Callable[[Ints, int], Ints]] = {
    ("of_first_block_of", "the first block"): lambda at, n: at % n,
    ("late_by_a_block_of", "the block before"): lambda at, n: np.where(at < n, at, at - n),
    ("early_by_a_block_of", "the next block"): lambda at, n: np.where(at + n < len(at), at + n, at),
}
ROWS.family(
    "values_{0}_{1}",
    lambda pipe, step, size: _moved(pipe, lambda at: step(at, size), "value", beyond=size),
    {
        (name, size, whose): (step, size)
        for size in SIZES
        for (name, whose), step in _BLOCK_STEPS.items()
    },
)


def _first_columns(pipe: Pipeline, size: int) -> Pipeline:
    width = given(pipe.value).shape[3]
    require(width > size)
    return pipe.but(value=given(pipe.value)[..., np.arange(width) % size])


ROWS.family("value_columns_of_first_{}", _first_columns, SIZES)


# Strides: all heads or batch entries read the inputs of the first one.


def own_places(pipe: Pipeline, name: str) -> tuple[Ints, Ints]:
    """Return the batch entry and the head from which each head reads an input, (B, H) each."""
    array = getattr(pipe, name)
    entries, heads = np.indices(pipe.shape[:2])
    return entries % len(array), heads // (pipe.shape[1] // array.shape[1])


def _of_first(pipe: Pipeline, axis: int) -> Pipeline:
    value = None if pipe.value is None else np.take(pipe.value, [0], axis=axis)
    return pipe.but(key=first_of(pipe.key, axis), value=value)


ROWS.add("keys_of_first_head", _of_first, 1)
ROWS.add("keys_of_first_batch_entry", _of_first, 0)


def _packed(pipe: Pipeline) -> Pipeline:
    """Let queries see the real keys of all batch entries; causal ones, all earlier keys."""
    lengths = lengths_of(pipe.problem)
    batch, heads, queries, _ = pipe.shape
    require(len(pipe.key) > 1, batch * heads * queries * sum(lengths) <= _MOST_NUMBERS)
    require(not set(pipe.rules) - {"causal", "kv_lengths", "query_lengths"})
    require(not pipe.terms, pipe.score == "dot")
    starts = np.array((0, *accumulate(lengths[:-1])))

    def rows(array: Array) -> Array:
        real = [array[e, :, :length] for e, length in enumerate(lengths)]
        return np.concatenate(real, axis=1)[None]

    def earlier(run: Run) -> Bools:
        return run.j - run.by_entry(starts) <= run.i + run.by_entry(run.pipe.offsets)

    rules = {name: rule for name, rule in pipe.rules.items() if name == "query_lengths"}
    return pipe.but(
        key=rows(pipe.key),
        value=None if pipe.value is None else rows(pipe.value),
        key_positions=np.concatenate([np.arange(n) for n in lengths])[None],
        rules=rules | ({"causal": earlier} if "causal" in pipe.rules else {}),
    )


ROWS.add("packed_without_boundaries", _packed)
