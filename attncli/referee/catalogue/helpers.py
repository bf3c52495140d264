"""What several files of the catalogue need: changes of one rule, of inputs, of the context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import rotated
from attncli.errors import AttnError
from attncli.layers.projection import as_heads, project
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import rotate
from attncli.referee.convention import Apply, Convention, then, with_rule, without
from attncli.referee.options import stated
from attncli.referee.recipe import Outputs, Part, Recipe, vary
from attncli.referee.replacing import replace
from attncli.referee.stages import softmax_over

if TYPE_CHECKING:
    from attncli.problem.problem import Problem, Rope
    from attncli.referee.topics import Topic

__all__ = [
    "SIZES",
    "SOURCES",
    "Given",
    "at_the_end",
    "changed",
    "dropped",
    "emptied",
    "factors_of",
    "groups_of",
    "lengths_of",
    "made_again",
    "of_context",
    "of_each_size",
    "of_embeddings",
    "of_inputs",
    "of_projections",
    "off_by_one",
    "other_pairing",
    "read_as_zeros",
    "scaled_sinks",
    "tops",
    "tops_so_far",
    "transposed",
    "turned_at",
    "with_epsilon",
    "with_zeros",
]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
# The arguments of `attncli.project`, those that are given.
Given = Mapping[str, Any]
# Of blocks of keys.
SIZES = (8, 16, 32, 64, 128)
# The arguments of `attncli.project` that are embeddings.
SOURCES = {"x", "key_source", "value_source"}


def changed(rule: str, change: Callable[[Bools], Bools | None]) -> Apply:
    """Make an `apply` that exchanges one rule for another; None keeps the convention out."""

    def apply(recipe: Recipe) -> Recipe | None:
        if rule not in recipe.rules:
            return None
        new = change(recipe.rules[rule])
        return None if new is None else with_rule(recipe, rule, new)

    return apply


def dropped(rule: str) -> Apply:
    """Make an `apply` that leaves one rule out."""
    return lambda recipe: without(recipe, rule) if rule in recipe.rules else None


def transposed(rule: Array) -> Array | None:
    """Return a square rule (·, ·, L, S) with queries and keys exchanged; None of another."""
    rows, columns = rule.shape[2:]
    return rule.swapaxes(2, 3) if rows == columns and rows > 1 else None


def read_as_zeros(rule: str, then: Apply) -> Apply:
    """Make an `apply` that reads the keys and values which a rule hides as zeros, not as −inf."""

    def apply(recipe: Recipe) -> Recipe | None:
        # A rule that differs from query to query leaves no key hidden from all.
        if rule not in recipe.rules or (recipe.rules[rule] != recipe.rules[rule][:, :, :1]).any():
            return None
        real = recipe.rules[rule][:, :, 0, :, None]
        problem = recipe.problem
        if real.shape[1] not in (1, problem.key.shape[1]):
            return None
        inputs = {"key": problem.key, "value": problem.value}
        read = {n: None if a is None else np.where(real, a, 0.0) for n, a in inputs.items()}
        return then(vary(recipe, **read))

    return apply


def of_inputs(problem: Problem, change: Callable[[Array], Array]) -> dict[str, Array | None]:
    """Return query, key and value, in float64 and changed."""
    given = {"query": problem.query, "key": problem.key, "value": problem.value}
    return {n: None if a is None else change(widen(a, np.float64)) for n, a in given.items()}


def factors_of(problem: Problem) -> dict[str, Array]:
    """Return what is multiplied with something, in float64: query and key are turned already."""
    operands = rotated(problem)
    given = {"query": operands.query, "key": operands.key, "value": problem.value}
    return {name: widen(a, np.float64) for name, a in given.items() if a is not None}


def other_pairing(rope: Rope) -> Rope:
    """Return the rotary embedding with the pairing that it has not."""
    return rope._replace(pairing="half" if rope.pairing == "interleaved" else "interleaved")


def turned_at(
    recipe: Recipe, queries: Sequence[Ints], keys: Sequence[Ints] | None = None
) -> Recipe | None:
    """Return the recipe whose queries and keys are turned as if they stood at other positions.

    Nothing else asks where they stand then, so that rules with a mistake of their own may follow.

    Parameters
    ----------
    recipe : Recipe
    queries : sequence of ndarray (L,)
        The positions of the queries of each batch entry.
    keys : sequence of ndarray (S,), optional
        Those of its keys; without them keys stay where they are.
    """
    problem, rope = recipe.problem, recipe.problem.rope
    if rope is None:
        return None
    frequencies = rope.of_width(problem.query.shape[3])
    turn = partial(rotate, pairing=rope.pairing, frequencies=frequencies)
    query, key = (widen(array, np.float64) for array in (problem.query, problem.key))
    rows, places = (np.arange(array.shape[2]) for array in (query, key))
    changed = [
        turn(query[b], at - rows - problem.visible.offset(b)) for b, at in enumerate(queries)
    ]
    recipe = vary(recipe, query=np.stack(changed))
    if keys is None:
        return recipe
    return vary(
        recipe, key=np.stack([turn(key[b % len(key)], at - places) for b, at in enumerate(keys)])
    )


def groups_of(whole: Problem, head: int | None) -> slice:
    """Return which key/value heads of a problem one head reads, or all of them."""
    if head is None:
        return slice(None)
    group = whole.key_head(head)
    return slice(group, group + 1)


def lengths_of(problem: Problem) -> tuple[int, ...]:
    """Return how many real keys each batch entry has."""
    batch, _, _, keys = problem.shape
    return tuple(np.broadcast_to(problem.visible.kv_lengths or keys, batch).tolist())


def of_context(
    change: Callable[[Recipe, Array], Array],
) -> Callable[[Recipe, Outputs], Outputs]:
    """Make a `finish` that changes only the context."""

    def finish(recipe: Recipe, outputs: Outputs) -> Outputs:
        if "context" not in outputs:
            return outputs
        return {**outputs, "context": change(recipe, outputs["context"])}

    return finish


def at_the_end(
    recipe: Recipe, change: Callable[[Recipe, Outputs], Outputs], *, before_projection: bool
) -> Recipe:
    """Return the recipe with a change of its outputs: before an output projection, or behind it."""
    if before_projection:
        return then(recipe, finish=change)
    return then(recipe, behind=change)


def emptied(recipe: Recipe, names: Iterable[str], rows: slice) -> Recipe:
    """Return the recipe with zeros in some rows of key, value or both."""
    made = {}
    for name in names:
        made[name] = getattr(recipe.problem, name).copy()
        made[name][:, :, rows] = 0
    return vary(recipe, **made)


def with_zeros(recipe: Recipe, count: int) -> Recipe:
    """Return the recipe with so many keys of zeros, which every query sees: sinks, in effect."""
    sinks = recipe.problem.sinks
    known = np.full(recipe.problem.shape[1], -np.inf) if sinks is None else sinks
    return vary(recipe, sinks=np.logaddexp(known, math.log(count)))


def off_by_one() -> Iterator[tuple[str, str, Callable[[Array], Array | None]]]:
    """Yield how a table (…, L, S) is read by one place beside its own: name, words, change."""
    for step, word, way in ((-1, "next", "on"), (1, "previous", "back")):
        across = f"one number {way} in memory, across the ends of rows"
        yield f"of_{word}_key", f"of the {word} key ({across})", partial(_along_memory, step)
        yield f"of_{word}_query", f"of the {word} query", partial(_along_rows, step)


def _along_memory(step: int, table: Array) -> Array | None:
    *lead, rows, columns = table.shape
    flat = table.reshape(*lead, rows * columns)
    return None if columns == 1 else np.roll(flat, step, axis=-1).reshape(table.shape)


def _along_rows(step: int, table: Array) -> Array | None:
    return None if table.shape[2] == 1 else np.roll(table, step, axis=2)


def with_epsilon(epsilon: float) -> Apply:
    """Make an `apply` that adds a number to the sums of exp(score − maximum)."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = softmax_over(recipe, scores)
        top = scores.max(-1, keepdims=True)
        total = np.exp(lse[..., None] - np.where(np.isneginf(top), 0, top))
        return weights * (total / (total + epsilon)), lse

    return lambda recipe: replace(recipe, softmax=softmax)


def scaled_sinks(recipe: Recipe, factor: float) -> Recipe:
    """Return the recipe with every sink multiplied."""
    sinks = recipe.problem.sinks
    return recipe if sinks is None else vary(recipe, sinks=sinks * factor)


def tops(weights: Array) -> Array:
    """Return the largest weight of each row: divided by it, weights are exp(score − maximum)."""
    top = weights.max(axis=-1, keepdims=True)
    return np.where(top == 0, 1, top)


def tops_so_far(weights: Array, block: int, *, backwards: bool = False) -> Array:
    """Return the largest weight of the blocks seen so far, for each key that of its block.

    Parameters
    ----------
    weights : ndarray (..., S)
    block : int
        How many keys it has.
    backwards : bool
        The last block is seen first.
    """
    keys = weights.shape[-1]
    starts = np.arange(0, keys, block)
    largest = np.maximum.reduceat(weights, starts, axis=-1)
    way = slice(None, None, -1 if backwards else 1)
    so_far = np.maximum.accumulate(largest[..., way], axis=-1)[..., way]
    spread = np.repeat(so_far, np.diff(starts, append=keys), axis=-1)
    return np.where(spread == 0, 1, spread)


def of_each_size(
    name: str,
    meaning: str,
    make: Callable[[int], Apply],
    *,
    topic: Topic,
    fix: str,
    shows: str,
    option: Callable[[int], Callable[[Problem], str]] = lambda _: stated(""),
    **more: Any,
) -> tuple[Convention, ...]:
    """Return a mistake with blocks of each usual size, which stands in its words as {}."""
    return tuple(
        Convention(
            name.format(size),
            meaning.format(size),
            make(size),
            topic=topic,
            fix=fix.format(size),
            shows=shows.format(size, size),
            option=option(size),
            **more,
        )
        for size in SIZES
    )


def of_projections(
    name: str,
    topic: Topic,
    meaning: str,
    fix: str,
    apply: Apply,
    option: str = "",
    shows: str = "projections that are not the identity",
    **more: Any,
) -> Convention:
    """Return a convention that shows with almost all projections."""
    return Convention(
        name=name,
        topic=topic,
        meaning=meaning,
        fix=fix,
        shows=shows,
        apply=apply,
        option=lambda _: option,
        **more,
    )


of_embeddings = partial(of_projections, projects=True)


def made_again(change: Callable[[Given], Given | None]) -> Apply:
    """Make an `apply` that projects the embeddings anew, by other arguments."""

    def apply(recipe: Recipe) -> Recipe | None:
        changed = None if recipe.projected is None else change(recipe.projected)
        if changed is None:
            return None
        try:
            made = project(**_of_part(changed, recipe.whole, recipe.part))
        except AttnError:  # it does not fit, so nobody can have done it
            return None
        problem = recipe.problem
        rows = slice(None) if recipe.part[2] is None else slice(*recipe.part[2])
        arrays = {
            "query": _finite(as_heads(made.query[..., rows, :], problem.query)),
            "key": _finite(as_heads(made.key, _of_length(recipe, problem.key, made.key))),
            "value": _finite(as_heads(made.value, _of_length(recipe, problem.value, made.value))),
        }
        there = all((arrays[n] is None) is (getattr(problem, n) is None) for n in arrays)
        lengths = {a.shape[2] for n, a in arrays.items() if n != "query" and a is not None}
        fit = there and len(lengths) == 1
        # Another convention begins with what this one leaves.
        return replace(vary(recipe, **arrays), projected=changed) if fit else None

    return apply


def _of_length(recipe: Recipe, own: Array | None, packed: Array | None) -> Array | None:
    """Return an array with as many keys as packed heads have, where no rule counts them."""
    if own is None or packed is None or recipe.rules or recipe.terms:
        return own
    return np.broadcast_to(own[:, :, :1], (*own.shape[:2], packed.shape[-2], own.shape[3]))


def _of_part(given: Given, whole: Problem, part: Part) -> Given:
    """Return the arguments that make one batch entry or one head, and nothing else."""
    batch, head, _ = part
    found = dict(given)
    for name in SOURCES & set(given):
        source = given[name]
        if batch is not None and source.ndim == 3 and len(source) > 1:
            found[name] = source[batch : batch + 1]
    if head is None:
        return found
    group = whole.key_head(head)
    for letter, array, at in (
        ("q", whole.query, head),
        ("k", whole.key, group),
        ("v", whole.value, group),
    ):
        if array is None:
            continue
        columns = slice(at * array.shape[3], (at + 1) * array.shape[3])
        if f"w{letter}" in given:
            found[f"w{letter}"] = given[f"w{letter}"][:, columns]
        if f"b{letter}" in given:
            found[f"b{letter}"] = np.ravel(given[f"b{letter}"])[columns]
    return found


def _finite(array: Array | None) -> Array | None:
    """Return numbers in float64; padding may hold anything, and must have no effect."""
    if array is None:
        return None
    finite: Array = np.nan_to_num(widen(array, np.float64), posinf=0.0, neginf=0.0)
    return finite
