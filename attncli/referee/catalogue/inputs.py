"""Mistakes in which input stands where: query, key and value are exchanged."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES, emptied, of_each_size
from attncli.referee.convention import Apply, Convention, Need
from attncli.referee.recipe import Recipe, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from attncli.problem.problem import Problem

__all__ = ["INPUTS"]

_WORDS = {"query": "queries", "key": "keys", "value": "values"}


def _exchanged(one: str, other: str) -> Apply:
    """Make an `apply` that exchanges two of query, key and value."""

    def apply(recipe: Recipe) -> Recipe | None:
        first, second = getattr(recipe.problem, one), getattr(recipe.problem, other)
        if first is None or second is None or first.shape != second.shape:
            return None
        return vary(recipe, **{one: second, other: first})

    return apply


def _in_turn(order: tuple[str, str, str]) -> Apply:
    """Make an `apply` that takes these for query, key and value."""

    def apply(recipe: Recipe) -> Recipe | None:
        given = [getattr(recipe.problem, name) for name in order]
        if any(array is None or array.shape != given[0].shape for array in given):
            return None
        return vary(recipe, **dict(zip(("query", "key", "value"), given, strict=True)))

    return apply


def _copied(target: str, source: str) -> Apply:
    """Make an `apply` that takes one of query, key and value for another."""

    def apply(recipe: Recipe) -> Recipe | None:
        old, new = getattr(recipe.problem, target), getattr(recipe.problem, source)
        if old is None or new is None or np.array_equal(old, new):
            return None
        if old.shape == new.shape:
            return vary(recipe, **{target: new})
        if not _may_resize(recipe, target, old.shape, new.shape):
            return None
        return replace(vary(recipe, **{target: new}), resized=True)

    return apply


def _may_resize(recipe: Recipe, target: str, old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Return whether values may have another width, or queries be more or fewer."""
    if recipe.problem.output is not None:
        return False
    if target == "value":
        return old[:3] == new[:3]
    ruled = recipe.rules or recipe.terms or recipe.problem.rope is not None
    return target == "query" and not ruled and (*old[:2], old[3]) == (*new[:2], new[3])


def _reshaped(name: str) -> Apply:
    """Make an `apply` that takes the rows (S, D) of a matrix, one by one, for those of (D, S)."""

    def apply(recipe: Recipe) -> Recipe | None:
        array = getattr(recipe.problem, name)
        if array is None or (name == "key" and recipe.problem.rope is not None):
            return None
        *lead, keys, width = array.shape
        if keys == 1 or width == 1:
            return None
        return vary(recipe, **{name: array.reshape(*lead, width, keys).swapaxes(-1, -2)})

    return apply


def _of_first_columns(size: int) -> Apply:
    """Make an `apply` that has the first columns of the values in all blocks of so many."""

    def apply(recipe: Recipe) -> Recipe | None:
        value = recipe.problem.value
        if value is None or value.shape[3] <= size:
            return None
        return vary(recipe, value=value[..., np.arange(value.shape[3]) % size])

    return apply


def _unwritten(*names: str) -> Apply:
    """Make an `apply` that has zeros in the last slot of the cache."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if problem.value is None or problem.shape[3] == 1 or "kv_lengths" in recipe.rules:
            return None
        return emptied(recipe, names, slice(-1, None))

    return apply


def _moved(name: str, places: Callable[[int], NDArray[np.intp]], *, beyond: int = 1) -> Apply:
    """Make an `apply` that takes the keys or the values of other places, of more than so many."""

    def apply(recipe: Recipe) -> Recipe | None:
        array = getattr(recipe.problem, name)
        if array is None or array.shape[2] <= beyond:
            return None
        moved = array[:, :, places(array.shape[2])]
        return None if np.array_equal(moved, array) else vary(recipe, **{name: moved})

    return apply


# Where keys and values get out of step.
_STEPS = (
    ("late", "before it, the ends joined", lambda n: (np.arange(n) - 1) % n),
    ("late_by_one", "before it; the first has its own", lambda n: np.maximum(np.arange(n) - 1, 0)),
    ("early", "after it, the ends joined", lambda n: (np.arange(n) + 1) % n),
    (
        "early_by_one",
        "after it; the last has its own",
        lambda n: np.minimum(np.arange(n) + 1, n - 1),
    ),
    ("reversed", "at the same distance from the other end", lambda n: n - 1 - np.arange(n)),
)


def _out_of_step() -> Iterator[Convention]:
    simpler: tuple[str, ...] = ()
    for moved, other in (("value", "key"), ("key", "value")):
        for name, words, places in _STEPS:
            yield Convention(
                name=f"{moved}s_{name}",
                topic=topics.VALUE_BLOCKS,
                meaning=f"keys and values are out of step: each {other} meets the {moved} of the "
                f"token {words}",
                fix="write and read keys and values at the same places",
                shows="more than two keys",
                apply=_moved(moved, places),
                variant_of=simpler,
            )
            simpler = (*simpler, f"{moved}s_{name}")


def _first_block(size: int, count: int) -> NDArray[np.intp]:
    return np.arange(count) % size


def _block_before(size: int, count: int) -> NDArray[np.intp]:
    places = np.arange(count)
    return places - size * (places >= size)


def _block_behind(size: int, count: int) -> NDArray[np.intp]:
    places = np.arange(count)
    return places + size * (places + size < count)


def _blocks_out_of_step() -> Iterator[Convention]:
    """Yield blocks of keys that meet another block of values, or queries another of keys."""
    for size, (moved, meet) in product(
        SIZES,
        (
            ("value", "the weights of each block meet the values"),
            ("key", "the scores of each block are those of the keys"),
        ),
    ):
        for name, whose, places in (
            ("of_first_block_of", "of the first", _first_block),
            ("late_by_a_block_of", "of the one before", _block_before),
            ("early_by_a_block_of", "of the next one", _block_behind),
        ):
            yield Convention(
                name=f"{moved}s_{name}_{size}",
                topic=topics.VALUE_BLOCKS if moved == "value" else topics.KEY_BLOCKS,
                meaning=f"kernels that go over blocks of {size} keys: {meet} {whose}",
                fix="move the pointers of keys and values together, and wait for the tile that is "
                "read",
                shows=f"more than {size} keys",
                apply=_moved(moved, partial(places, size), beyond=size),
            )


def _tokens_moved(names: tuple[str, ...], places: Callable[[int], NDArray[np.intp]]) -> Apply:
    """Make an `apply` that takes the tokens of other places where rules ask where they stand."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        asked = recipe.rules or recipe.terms or problem.rope is not None
        arrays = {name: getattr(problem, name) for name in names}
        count = problem.shape[2 if names == ("query",) else 3]
        if not asked or count < 3 or any(array is None for array in arrays.values()):
            return None
        return vary(recipe, **{name: a[:, :, places(count)] for name, a in arrays.items()})

    return apply


def _moved_tokens() -> Iterator[Convention]:
    for tokens, names, needs in (
        ("keys and values", ("key", "value"), frozenset[Need]()),
        ("queries", ("query",), frozenset[Need]({"rows"})),
    ):
        for name, words, places in _STEPS:
            yield Convention(
                name=f"{'tokens' if len(names) > 1 else 'queries'}_{name}",
                topic=topics.SLOTS,
                meaning=f"at each place the {tokens} are those of the token {words}",
                fix="let queries, keys and values of a token stand at the same place",
                shows="rules that ask where tokens stand",
                apply=_tokens_moved(names, places),
                needs=needs,
                variant_of=(
                    "rows_misplaced",
                    "key_padding_mask_mirrored",
                    "padding_on_the_left",
                    *(f"mask_of_{which}_key" for which in ("next", "previous")),
                ),
            )


def _new_first(recipe: Recipe) -> Recipe | None:
    """Put the keys and values of the queries' own tokens before those of the cache."""
    new, count = recipe.whole.shape[2:]
    if new >= count:
        return None
    return _tokens_moved(("key", "value"), lambda n: (np.arange(n) - new) % n)(recipe)


def _in_the_order(letters: str) -> Callable[[Problem], str]:
    """Return how three files are given in another order; embeddings have no such files."""
    words = f"give query, key and value in the order {letters}"
    return lambda problem: "" if problem.made_from is not None else words


INPUTS = (
    Convention(
        name="query_key_exchanged",
        topic=topics.INPUTS,
        meaning="query and key are exchanged: the softmax runs over K·Qᵀ",
        fix="compute query · keyᵀ, a row for each query",
        shows="query ≠ key",
        apply=_exchanged("query", "key"),
        option=_in_the_order("K Q V"),
        needs=frozenset({"rows"}),
    ),
    Convention(
        name="key_value_exchanged",
        topic=topics.INPUTS,
        meaning="key and value are exchanged",
        fix="score with the keys and sum the values",
        shows="key ≠ value",
        apply=_exchanged("key", "value"),
        option=_in_the_order("Q V K"),
    ),
    Convention(
        name="query_value_exchanged",
        topic=topics.INPUTS,
        meaning="query and value are exchanged",
        fix="score query against key and sum the values",
        shows="query ≠ value",
        apply=_exchanged("query", "value"),
        option=_in_the_order("V K Q"),
        needs=frozenset({"rows"}),
    ),
    Convention(
        name="key_reshaped",
        topic=topics.SLOTS,
        meaning="the keys (S, D) are reshaped to (D, S), not transposed",
        fix="transpose the last two axes: key.swapaxes(-1, -2), key.transpose(-2, -1)",
        shows="more than one key",
        apply=_reshaped("key"),
    ),
    Convention(
        name="value_reshaped",
        topic=topics.VALUE_BLOCKS,
        meaning="the values (S, E) are read as (E, S) and transposed: the strides of their rows "
        "and columns are exchanged",
        fix="go by the strides of the values: a row for each key",
        shows="more than one key, and values of more than one column",
        apply=_reshaped("value"),
    ),
    *_out_of_step(),
    *_moved_tokens(),
    Convention(
        name="new_keys_before_the_cache",
        topic=topics.SLOTS,
        meaning="the new keys and values stand before those of the cache, not behind them",
        fix="join them in the order of the tokens: cat([past, new])",
        shows="a cache, and rules that ask where tokens stand",
        apply=_new_first,
    ),
    *(
        Convention(
            name=f"last_{name}_unwritten",
            topic=topics.SLOTS,
            meaning=f"{words} of the last token {are} zero, as in a cache that is not yet written",
            fix="write the cache before it is read",
            shows="almost any input",
            apply=_unwritten(*names),
            variant_of=("last_key_lost",),
        )
        for name, words, are, names in (
            ("slot", "key and value", "are", ("key", "value")),
            ("key", "the key", "is", ("key",)),
            ("value", "the value", "is", ("value",)),
        )
    ),
    *_blocks_out_of_step(),
    *of_each_size(
        "value_columns_of_first_{}",
        "every block of {} columns of the context is the first: the values of the others are not "
        "read",
        _of_first_columns,
        topic=topics.VALUE_BLOCKS,
        fix="add where a block of columns begins to the pointer of the values",
        shows="values of more than {} columns",
    ),
    *(
        Convention(
            name=f"inputs_in_the_order_{'_'.join(order)}",
            topic=topics.INPUTS,
            meaning=f"{', '.join(order[:2])} and {order[2]} are taken for query, key and value, in "
            "this order",
            fix="score query against key and sum the values",
            shows="query, key and value that differ",
            apply=_in_turn(order),
            option=_in_the_order(" ".join(name[0].upper() for name in order)),
            needs=frozenset({"rows"}),
            variant_of=(f"projections_in_the_order_{''.join(name[0] for name in order)}",),
        )
        for order in (("key", "value", "query"), ("value", "query", "key"))
    ),
    *(
        Convention(
            name=f"{source}_as_{target}",
            topic=topics.COPIES,
            meaning=f"the {_WORDS[source]} are {what} instead of the {_WORDS[target]}",
            fix=f"{fix} the {_WORDS[target]}",
            shows=f"{target} ≠ {source}",
            apply=_copied(target, source),
            option=_in_the_order(order),
            needs=frozenset({"rows"}) if "query" in (target, source) else frozenset(),
            variant_of=(f"{_WORDS[target]}_made_with_w{source[0]}",),
        )
        for target, source, what, fix, order in (
            ("value", "key", "summed", "multiply the weights with", "Q K K"),
            ("value", "query", "summed", "multiply the weights with", "Q K Q"),
            ("key", "query", "scored against the queries", "score the queries against", "Q Q V"),
            ("key", "value", "scored against the queries", "score the queries against", "Q V V"),
            ("query", "key", "scored against the keys", "score the keys against", "K K V"),
            ("query", "value", "scored against the keys", "score the keys against", "V K V"),
        )
    ),
)
