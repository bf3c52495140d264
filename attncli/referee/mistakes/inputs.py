"""Mistakes in which input stands where: exchanged, out of step, read wrongly, unwritten."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import SIZES, Change, Rows
from attncli.referee.pipeline import Pipeline, Run, lengths_of, query_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools, Ints

__all__ = ["INPUTS", "SHARED", "emptied", "own_places"]

_WORDS = {"query": "queries", "key": "keys", "value": "values"}
# Numbers of a product that is made of all batch entries.
_MOST_NUMBERS = 2**24

INPUTS = Rows(stages.INPUTS)


def _in_the_order(letters: str) -> Callable[[Problem], str]:
    """Return how three files are given in another order; embeddings have no such files."""
    words = f"give query, key and value in the order {letters}"
    return lambda problem: "" if problem.made_from is not None else words


def _taken(**sources: str) -> Change:
    """Return the change that takes inputs for others, where they have the same shape."""

    def change(pipe: Pipeline) -> Pipeline | None:
        made = {target: getattr(pipe, source) for target, source in sources.items()}
        fit = all(
            array is not None
            and getattr(pipe, target) is not None
            and array.shape[:3] == getattr(pipe, target).shape[:3]
            # Other values make a context of another width.
            and (target == "value" or array.shape[3] == getattr(pipe, target).shape[3])
            for target, array in made.items()
        )
        same = fit and all(np.array_equal(a, getattr(pipe, target)) for target, a in made.items())
        return None if same or not fit else pipe.but(**made)

    return change


for _one, _other, _order in (
    ("query", "key", "K Q V"),
    ("key", "value", "Q V K"),
    ("query", "value", "V K Q"),
):
    INPUTS.add(
        f"{_one}_{_other}_exchanged",
        _taken(**{_one: _other, _other: _one}),
        option=_in_the_order(_order),
    )
INPUTS.add(
    "inputs_in_the_order_{0}_{1}_{2}",
    lambda order: _taken(query=order[0], key=order[1], value=order[2]),
    values=(("key", "value", "query"), ("value", "query", "key")),
    option=lambda order: _in_the_order(" ".join(name[0].upper() for name in order)),
    variant_of=lambda order: (f"projections_in_the_order_{''.join(name[0] for name in order)}",),
)
for _target, _source, _order in (
    ("value", "key", "Q K K"),
    ("value", "query", "Q K Q"),
    ("key", "query", "Q Q V"),
    ("key", "value", "Q V V"),
    ("query", "key", "K K V"),
    ("query", "value", "V K V"),
):
    INPUTS.add(
        f"{_source}_as_{_target}",
        _taken(**{_target: _source}),
        stage=stages.COPIES,
        option=_in_the_order(_order),
        variant_of=(f"{_WORDS[_target]}_made_with_w{_source[0]}",),
    )


# Rows of an input that are taken from other places.


def _reshaped(name: str) -> Change:
    """Return the change that takes the rows (S, D) of a matrix, one by one, for those of (D, S)."""

    def change(pipe: Pipeline) -> Pipeline | None:
        array = getattr(pipe, name)
        if array is None or (name == "key" and pipe.rope is not None):
            return None
        *lead, keys, width = array.shape
        if keys == 1 or width == 1:
            return None
        return pipe.but(**{name: array.reshape(*lead, width, keys).swapaxes(-1, -2)})

    return change


def _moved(names: Iterable[str], places: Callable[[int], Ints], *, beyond: int = 1) -> Change:
    """Return the change that takes rows of other places, of more than so many."""
    names = tuple(names)

    def change(pipe: Pipeline) -> Pipeline | None:
        arrays = {name: getattr(pipe, name) for name in names}
        if any(array is None or array.shape[2] <= beyond for array in arrays.values()):
            return None
        moved = {n: a[:, :, places(a.shape[2])] for n, a in arrays.items()}
        same = all(np.array_equal(moved[name], arrays[name]) for name in names)
        return None if same else pipe.but(**moved)

    return change


def _tokens_moved(names: Iterable[str], places: Callable[[int], Ints]) -> Change:
    """Return the same where rules ask where tokens stand."""
    move = _moved(names, places, beyond=2)
    return lambda pipe: move(pipe) if pipe.rules or pipe.terms or pipe.rope is not None else None


def _new_first(pipe: Pipeline) -> Pipeline | None:
    """Put the keys and values of the queries' own tokens before those of the cache."""
    new, count = pipe.problem.shape[2:]
    if new >= count:
        return None
    return _tokens_moved(("key", "value"), lambda n: (np.arange(n) - new) % n)(pipe)


INPUTS.add("key_reshaped", _reshaped("key"), stage=stages.SLOTS)
INPUTS.add("value_reshaped", _reshaped("value"), stage=stages.VALUE_BLOCKS)
# Where keys and values get out of step.
_STEPS: tuple[tuple[str, str, Any], ...] = (
    ("late", "before it, the ends joined", lambda n: (np.arange(n) - 1) % n),
    ("late_by_one", "before it; the first has its own", lambda n: np.maximum(np.arange(n) - 1, 0)),
    ("early", "after it, the ends joined", lambda n: (np.arange(n) + 1) % n),
    (
        "early_by_one",
        "after it; the last has its own",
        lambda n: np.minimum(np.arange(n) + 1, n - 1),
    ),
)
for _moving in ("value", "key"):
    INPUTS.add(
        f"{_moving}s_{{}}",
        lambda step, name=_moving: _moved((name,), step[2]),
        values=_STEPS,
        stage=stages.VALUE_BLOCKS,
        variant_of=lambda step, name=_moving: (
            *(f"values_{each[0]}" for each in _STEPS if name == "key"),
            *(f"{name}s_{each[0]}" for each in _STEPS[: _STEPS.index(step)]),
        ),
    )
for _tokens, _names in (("tokens", ("key", "value")), ("queries", ("query",))):
    INPUTS.add(
        f"{_tokens}_{{}}",
        lambda step, names=_names: _tokens_moved(names, step[2]),
        values=_STEPS,
        stage=stages.SLOTS,
        variant_of=(
            "rows_misplaced",
            "key_padding_mask_mirrored",
            "padding_on_the_left",
            "mask_of_next_key",
            "mask_of_previous_key",
        ),
    )
INPUTS.add("new_keys_before_the_cache", _new_first, stage=stages.SLOTS)


def emptied(pipe: Pipeline, names: Iterable[str], rows: slice) -> Pipeline:
    """Return the pipeline with zeros in some rows of key, value or both."""
    made = {}
    for name in names:
        made[name] = getattr(pipe, name).copy()
        made[name][:, :, rows] = 0
    return pipe.but(**made)


def _unwritten(names: tuple[str, ...]) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.value is None or pipe.shape[3] == 1 or "kv_lengths" in pipe.rules:
            return None
        return emptied(pipe, names, slice(-1, None))

    return change


INPUTS.add(
    "last_{}_unwritten",
    lambda value: _unwritten(value[3]),
    values=(
        ("slot", "key and value", "are", ("key", "value")),
        ("key", "the key", "is", ("key",)),
        ("value", "the value", "is", ("value",)),
    ),
    stage=stages.SLOTS,
)
_BLOCK_STEPS: tuple[tuple[str, str, Any], ...] = (
    ("of_first_block_of", "of the first", lambda size, n: np.arange(n) % size),
    (
        "late_by_a_block_of",
        "of the one before",
        lambda size, n: np.arange(n) - size * (np.arange(n) >= size),
    ),
    (
        "early_by_a_block_of",
        "of the next one",
        lambda size, n: np.arange(n) + size * (np.arange(n) + size < n),
    ),
)
for _moving in (
    "value",
    "key",
):
    INPUTS.add(
        f"{_moving}s_{{0}}_{{1}}",
        lambda value, name=_moving: _moved(
            (name,), lambda n: value[3](value[1], n), beyond=value[1]
        ),
        values=[(name, size, whose, step) for size in SIZES for name, whose, step in _BLOCK_STEPS],
        stage=(stages.VALUE_BLOCKS if _moving == "value" else stages.KEY_BLOCKS),
    )


def _first_columns(size: int) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.value is None or pipe.value.shape[3] <= size:
            return None
        return pipe.but(value=pipe.value[..., np.arange(pipe.value.shape[3]) % size])

    return change


INPUTS.add("value_columns_of_first_{}", _first_columns, values=SIZES, stage=stages.VALUE_BLOCKS)


# Strides: all heads or batch entries read what belongs to others.

SHARED = Rows(stages.STRIDES)


def own_places(pipe: Pipeline, name: str) -> tuple[Ints, Ints]:
    """Return the batch entry and the head of an input that each head reads, (B, H) each."""
    array = getattr(pipe, name)
    entries, heads = np.indices(pipe.shape[:2])
    return entries % len(array), heads // (pipe.shape[1] // array.shape[1])


def _of_first(axis: int) -> Change:
    """Return the change in which all read the keys and values of the first along an axis."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.key.shape[axis] == 1:
            return None
        first = [np.take(a, [0], axis=axis) for a in (pipe.key, pipe.value) if a is not None]
        return pipe.but(key=first[0], value=None if pipe.value is None else first[1])

    return change


def _strides_of_query(pipe: Pipeline) -> Pipeline | None:
    """Let the keys and values of a head begin where its queries would."""
    batch, heads, queries, keys = pipe.shape
    inputs = {n: getattr(pipe, n) for n in ("key", "value") if getattr(pipe, n) is not None}
    alike = len({array.shape[3] for array in inputs.values()}) == 1
    if pipe.key.shape[:2] != (batch, heads) or queries >= keys or not alike or batch * heads == 1:
        return None
    rows = np.arange(batch * heads)[:, None] * queries + np.arange(keys)
    return pipe.but(
        **{n: a.reshape(-1, a.shape[3])[rows].reshape(a.shape) for n, a in inputs.items()}
    )


def _packed(pipe: Pipeline) -> Pipeline | None:
    """Let the queries of an entry see all real keys, or under the causal rule all earlier ones."""
    lengths = lengths_of(pipe.problem)
    others = set(pipe.rules) - {"causal", "kv_lengths", "query_lengths"}
    batch, heads, queries, _ = pipe.shape
    few = batch * heads * queries * sum(lengths) <= _MOST_NUMBERS
    if len(pipe.key) == 1 or not few or others or pipe.terms or pipe.score != "dot":
        return None
    starts = np.array((0, *accumulate(lengths)))

    def rows(array: Array) -> Array:
        real = [array[e, :, :length] for e, length in enumerate(lengths)]
        return np.concatenate(real, axis=1)[None]

    def earlier(run: Run) -> Bools:
        key = run.j - run.by_entry(starts[:-1])
        return key <= run.i + run.by_entry(run.pipe.offsets)

    rules: dict[str, Any] = {"causal": earlier} if "causal" in pipe.rules else {}
    if "query_lengths" in pipe.rules:
        rules["query_lengths"] = query_rows(pipe.problem.visible.query_lengths or ())
    positions = np.concatenate([np.arange(n) for n in lengths])[None]
    value = None if pipe.value is None else rows(pipe.value)
    return pipe.but(key=rows(pipe.key), value=value, key_positions=positions, rules=rules)


SHARED.add("keys_of_first_head", _of_first(1))
SHARED.add("keys_of_first_batch_entry", _of_first(0))
SHARED.add("strides_of_query", _strides_of_query)
SHARED.add("packed_without_boundaries", _packed)
