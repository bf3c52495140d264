"""Causal masks made of the places that tokens have on ranks, not in the sequence."""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention, then, with_rule
from attncli.referee.fitted.other_causal import (
    causal_output,
    errors_of_rules,
    some_of,
    wrong_rows,
)
from attncli.referee.fitted.rank_orders import RankOrder, rank_orders
from attncli.referee.fitted.spans import SLACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["rank_causal"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
# In which the rules that are left are tried.
_ROWS = 8


class _Rule(NamedTuple):
    """What a causal rule compares.

    Attributes
    ----------
    words : str
    query, key : callable
        The order to what stands for the positions of the tokens, (L,): a key is seen where its
        own is no larger than that of the query.
    """

    words: str
    query: Callable[[RankOrder], Indices]
    key: Callable[[RankOrder], Indices]


def _own(order: RankOrder) -> Indices:
    return np.arange(len(order.tokens))


def _at_the_end(order: RankOrder) -> Indices:
    """Align the last query of a rank with the last key."""
    count = len(order.tokens)
    return order.local + count - count // order.ranks


_ON_THE_RANK = _Rule("compares places within a rank's tokens", lambda o: o.local, lambda o: o.local)
_RULES = (
    _Rule("goes by the places that tokens have there", lambda o: o.places, lambda o: o.places),
    _ON_THE_RANK,
    _Rule(
        "compares the place of a query there with the place of a key in the sequence",
        lambda o: o.places,
        _own,
    ),
    _Rule(
        "compares the place of a query on its rank with the place of a key in the sequence",
        lambda o: o.local,
        _own,
    ),
    _Rule(
        "aligns the last query of each rank with the last key of the sequence", _at_the_end, _own
    ),
)


class _Way(NamedTuple):
    """A wrong causal rule, and whether the rows of the outputs stay in the order of the ranks."""

    order: RankOrder
    rule: _Rule
    left: bool

    @property
    def words(self) -> str:
        """What the causal mask does, as the end of a sentence."""
        if self.order.kind == "striped" and self.rule is _ON_THE_RANK:
            return f"{self.rule.words}: it goes by whole groups of {self.order.ranks} tokens"
        return self.rule.words

    def query(self, row: int) -> int:
        """Return the query that stands in a row."""
        return int(self.order.tokens[row]) if self.left else row

    def seen(self, queries: Indices) -> Bools:
        """Return which keys some queries see, (L, S)."""
        return np.asarray(
            self.rule.key(self.order) <= self.rule.query(self.order)[queries][:, None]
        )


def rank_causal(case: Case) -> Convention | None:
    """Return the convention that a causal mask goes by where ranks hold the tokens."""
    name, (_, _, queries, keys) = causal_output(case), case.recipe.problem.shape
    if name is None or queries != keys:
        return None
    orders = rank_orders(queries)
    ways = [_Way(*way) for way in product(orders, _RULES, (False, True))]
    wrong = wrong_rows(case, name) & np.isfinite(case.canonical(name)[0]).all(axis=(0, 2))
    total = np.zeros(len(ways))
    for row in some_of(wrong, _ROWS):
        if not ways or time.monotonic() > case.deadline:
            return None
        errors = _errors(case, name, row, ways)
        near = errors <= SLACK * case.recipe.resolution
        total = (total + errors)[near]
        ways = [way for way, is_near in zip(ways, near, strict=True) if is_near]
    return _convention(ways[int(np.argmin(total))]) if ways and wrong.any() else None


def _errors(case: Case, name: str, row: int, ways: Sequence[_Way]) -> Array:
    """Return how far a row of an output is from what each way makes, (n,)."""
    queries = np.array([way.query(row) for way in ways])
    errors = np.empty(len(ways))
    for query in np.unique(queries):
        those = np.flatnonzero(queries == query)
        rules = np.concatenate([ways[way].seen(np.array([query])) for way in those.tolist()])
        errors[those] = errors_of_rules(case, name, row, rules, query=int(query))
    return errors


def _convention(way: _Way) -> Convention:
    order, left = way.order, way.left
    rows = "; the rows of the outputs stay in that order" if left else ""
    return Convention(
        "causal_in_order_of_ranks",
        f"tokens stand in {order.words}, and the causal mask {way.words}{rows}",
        lambda recipe: _followed(recipe, way),
        topic=topics.CAUSAL_BLOCKS,
        fix="compare the positions that query and key have in the sequence, not on their ranks"
        + (", and put the rows of the outputs back into its order" if left else ""),
        shows="as many tokens",
        needs=frozenset({"rows"}) if left else frozenset(),
        variant_of=("chunks_unasked",),
    )


def _followed(recipe: Recipe, way: _Way) -> Recipe:
    queries = recipe.start + np.arange(recipe.problem.shape[2])
    changed = with_rule(recipe, "causal", way.seen(queries)[None, None])

    def behind(_: Recipe, outputs: Outputs) -> Outputs:
        return {name: array[:, :, way.order.tokens] for name, array in outputs.items()}

    return then(changed, behind=behind) if way.left else changed
