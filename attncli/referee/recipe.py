"""Attention as a recipe whose steps can be exchanged, so that mistakes can be made on purpose.

The engine computes the right answer and nothing else. Here every step is a few lines
on whole arrays (B, H, L, S) and a field of `Recipe`: a convention that somebody may
have followed instead is another recipe. Slices keep the arrays small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.problem.visibility import Visibility
from attncli.referee.replacing import replace
from attncli.referee.rounding import FLOAT64, Precision
from attncli.referee.stages import present, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from attncli.problem.problem import Problem

__all__ = [
    "LEAST_SEEN",
    "USUAL_FILL",
    "Outputs",
    "Part",
    "Recipe",
    "band",
    "distance",
    "recipe_of",
    "vary",
]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# No score of a key that is seen is so low; BERT masks with −10,000, others with this.
LEAST_SEEN, USUAL_FILL = -1000.0, -1e9
Outputs = dict[str, Array]
# A batch entry, a head and a range of queries; None for all.
Part = tuple[int | None, int | None, tuple[int, int] | None]

ORDER = ("scale", "cap", "bias", "alibi", "hide")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A problem and the way in which it is solved.

    Attributes
    ----------
    problem : Problem
        Gives query, key, value, scale, score function, softcap, sinks and rope; its
        visibility only says where the queries stand.
    whole : Problem
        The problem before it was cut to a slice.
    start : int
        The first query of the slice.
    rules : mapping of str to ndarray of bool
        What each rule lets attend; broadcast to (B, H, L, S).
    terms : mapping of str to ndarray
        What the steps of the same name add to the scores (or multiply them with).
    order : tuple of str
        The steps from the product to the scores.
    softmax : callable
        Scores to weights (B, H, L, S) and lse (B, H, L).
    after : tuple of callable
        Changes of the weights before they meet the values.
    mix : callable
        Weights and values to context.
    finish : tuple of callable
        Changes of the outputs.
    behind : tuple of callable
        Changes of the outputs behind the output projection.
    shape : callable
        An output (B, H, …) in the axes of the user.
    fill : float
        The score of a hidden key; −inf unless given.
    largest : float
        What overflows in the format of the file.
    resolution : float
        The absolute tolerance of the files: they show nothing smaller.
    file_fill : float
        The large negative number that the file's own scores hold, where they do.
    file_shapes : mapping of str to tuple of int
        The shapes of the files.
    one_by_one : bool
        Sums are made as a plain loop makes them, a term after the other, not in blocks.
    products : Precision or None
        The format of the factors of products, where it is narrower than that of the files.
    resized : bool
        Another input stands for the query or the value, with other rows or another width, which
        the context has, too; or it is not projected to another width.
    codes : bool
        Inputs were put into few codes, or sums rounded again and again; what lies between two
        numbers may go either way.
    projected : mapping of str to object, or None
        The arguments of `attncli.project` that made query, key and value of the whole problem.
    part : Part
        Which part of the whole problem it is.
    memory : dict
        What several conventions work out of the whole problem or of the part; shared by all
        recipes of one search.
    """

    problem: Problem
    whole: Problem
    rules: Mapping[str, Bools]
    terms: Mapping[str, Array]
    order: tuple[str, ...] = ORDER
    softmax: Callable[[Recipe, Array], tuple[Array, Array]] = softmax_over
    after: tuple[Callable[[Recipe, Array], Array], ...] = ()
    mix: Callable[[Array, Array], Array] = np.matmul
    finish: tuple[Callable[[Recipe, Outputs], Outputs], ...] = ()
    behind: tuple[Callable[[Recipe, Outputs], Outputs], ...] = ()
    shape: Callable[[Problem, str, Array], Array] = present
    start: int = 0
    fill: float = -np.inf
    largest: float = FLOAT64.largest
    resolution: float = 0.0
    file_fill: float = USUAL_FILL
    file_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    one_by_one: bool = False
    products: Precision | None = None
    resized: bool = False
    codes: bool = False
    projected: Mapping[str, Any] | None = None
    part: Part = (None, None, None)
    memory: dict[object, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def seen(self) -> Bools:
        """Which keys each query sees, every rule together; broadcast to (B, H, L, S)."""
        rules = self.rules.values()
        return reduce(np.logical_and, rules) if rules else np.ones((1, 1, 1, 1), np.bool_)


def recipe_of(problem: Problem, whole: Problem | None = None) -> Recipe:
    """Return the right recipe of a problem."""
    terms: dict[str, Array] = {}
    if problem.bias is not None:
        terms["bias"] = widen(problem.bias, np.float64)
    if problem.alibi_slopes is not None:
        terms["alibi"] = -problem.alibi_slopes[:, None, None] * np.abs(distance(problem))
    return Recipe(problem, whole or problem, _rules(problem), terms)


def vary(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with some fields of its problem changed."""
    return replace(recipe, problem=replace(recipe.problem, **changes))


def band(problem: Problem, *, offsets: tuple[int, ...] | None = None, **rules: Any) -> Bools:
    """Return which keys only the given rules let each query attend to, (B or 1, 1, L, S).

    Parameters
    ----------
    problem : Problem
    offsets : tuple of int, optional
        Where the queries stand instead.
    **rules
        Fields of `Visibility`: causal, window, kv_lengths, query_lengths.
    """
    _, _, queries, count = problem.shape
    offsets = problem.visible.offsets if offsets is None else offsets
    alone = Visibility(queries=queries, keys=count, offsets=offsets, **rules)
    per_batch = (offsets, alone.kv_lengths or (), alone.query_lengths or ())
    entries = max(len(numbers) for numbers in per_batch)
    tiles = [alone.tile(b, 0, (0, queries), (0, count)) for b in range(entries)]
    full = [np.ones((queries, count), np.bool_) if tile is None else tile for tile in tiles]
    return np.stack(full)[:, None]


def distance(problem: Problem, offsets: tuple[int, ...] | None = None) -> Array:
    """Return i + offset − j, (B or 1, 1, L, S)."""
    _, _, queries, keys = problem.shape
    offset = np.array(problem.visible.offsets if offsets is None else offsets)
    rows: Array = np.arange(queries)[:, None] + offset[:, None, None, None]
    return rows - np.arange(keys)


def _rules(problem: Problem) -> dict[str, Bools]:
    visible = problem.visible
    rules: dict[str, Bools] = {}
    if visible.mask is not None:
        rules["mask"] = visible.mask
    if visible.key_padding_mask is not None:
        rules["key_padding_mask"] = visible.key_padding_mask[:, None, None, :]
    for name in ("kv_lengths", "query_lengths", "window"):
        given = getattr(visible, name)
        if given is not None:
            rules[name] = band(problem, **{name: given})
    if visible.segment_ids is not None:
        rules["segment_ids"] = visible.segment_ids.seen()[:, None]
    if visible.causal:
        rules["causal"] = band(problem, causal=True)
    return rules
