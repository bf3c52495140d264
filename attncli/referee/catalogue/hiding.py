"""Mistakes in how keys are hidden, whichever rule hides them."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, moved, with_rule, without
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from attncli.referee.recipe import Recipe


__all__ = ["HIDING", "TOGETHER"]

_RULES = {
    "mask": "the mask",
    "key_padding_mask": "key_padding_mask",
    "kv_lengths": "the mask made of kv_lengths",
    "causal": "the causal mask",
    "window": "the window's mask",
    "segment_ids": "the mask made of segment_ids",
}
# A file that holds 1e-9 apart from 0.
_FINE = 1e-11


def _of_keys(recipe: Recipe) -> Mapping[str, npt.NDArray[np.bool_]]:
    """Return the rules that a program would join into one mask."""
    return {name: rule for name, rule in recipe.rules.items() if name in _RULES}


def _joined(recipe: Recipe) -> Recipe | None:
    """Return the recipe with all its rules on keys as one; None where there are not several."""
    if "joined" in recipe.rules:
        return recipe
    rules = _of_keys(recipe)
    if len(rules) < 2:
        return None
    seen = without(recipe, *(set(recipe.rules) - set(rules))).seen
    return with_rule(without(recipe, *rules), "joined", seen)


def _instead(rule: str, step: str) -> Apply:
    """Make an `apply` in which a rule, as 0 and 1, is a term of the scores and hides nothing."""

    def apply(recipe: Recipe) -> Recipe | None:
        # A rule that hides whole queries is better described by what fills their rows.
        if rule not in recipe.rules or recipe.rules[rule].shape[3] == 1:
            return None
        terms = {**recipe.terms, step: recipe.rules[rule].astype(np.float64)}
        return moved(without(replace(recipe, terms=terms), rule), step, before="hide")

    return apply


def _all_instead(step: str) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        joined = _joined(recipe)
        return joined and _instead("joined", step)(joined)

    return apply


def _all_inverted(recipe: Recipe) -> Recipe | None:
    joined = _joined(recipe)
    return joined and with_rule(joined, "joined", ~joined.rules["joined"])


def _after_softmax(recipe: Recipe) -> Recipe | None:
    if not recipe.rules:
        return None
    seen = recipe.seen
    return replace(recipe, rules={}, after=(*recipe.after, lambda _, weights: weights * seen))


def _filled_after_softmax(recipe: Recipe) -> Recipe | None:
    """Put the large negative number for hidden keys into the weights, not into the scores."""
    if not recipe.rules:
        return None
    kept = recipe.seen
    filled = replace(recipe, rules={})
    return replace(filled, after=(*recipe.after, lambda _, weights: np.where(kept, weights, -1e9)))


def _tiny(recipe: Recipe) -> Recipe | None:
    # In most files it looks like 0, which has its own entries.
    fine = recipe.resolution < _FINE
    return replace(recipe, fill=1e-9) if fine and _of_keys(recipe) else None


def _positive(recipe: Recipe) -> Recipe | None:
    return replace(recipe, fill=-recipe.file_fill) if _of_keys(recipe) else None


_hiding = partial(
    Convention,
    topic=topics.HIDING,
    fix="hide a key by setting its score to −inf, before the softmax",
    shows="any hidden key",
)


def _added(rule: str, what: str, apply: Apply) -> Convention:
    return _hiding(f"{rule}_added", f"{what} is added to the scores as 0 and 1", apply)


def _multiplied(rule: str, what: str, apply: Apply) -> Convention:
    return _hiding(
        f"{rule}_multiplied",
        f"the scores are multiplied by {what} as 0 and 1: hidden keys get the score 0 (or nearly, "
        "as with 1e-9 instead of −1e9), and so weight",
        apply,
    )


def _each() -> Iterator[Convention]:
    for rule, what in _RULES.items():
        # The step of every other term is its name.
        yield _added(rule, what, _instead(rule, "mask"))
        yield _multiplied(rule, what, _instead(rule, "times_mask"))


def _any_shows(recipe: Recipe) -> Recipe | None:
    rules = _of_keys(recipe)
    if len(rules) < 2:
        return None
    seen = reduce(np.logical_or, rules.values())
    return with_rule(without(recipe, *rules), "joined", seen)


TOGETHER = (
    _hiding(
        "rules_joined_by_or",
        "a key is seen where any rule shows it, not where all of them do",
        _any_shows,
        topic=topics.MASK,
        fix="join masks that are true for what is seen with and, those that are true for what is "
        "hidden with or",
        shows="rules that hide different keys",
        # Where one rule hides nothing that the other shows.
        variant_of=(
            "causal_missing",
            *(f"{rule}_ignored" for rule in _RULES if rule != "causal"),
        ),
    ),
    _hiding(
        "all_rules_inverted",
        "the mask that joins all rules is inverted: it hides the keys that it should keep",
        _all_inverted,
        topic=topics.MASK,
        fix="invert the joined mask",
    ),
)

HIDING = (
    *_each(),
    _added("all_rules", "the mask that joins all rules", _all_instead("mask")),
    _multiplied("all_rules", "the mask that joins all rules", _all_instead("times_mask")),
    _hiding(
        "hidden_tiny",
        "hidden scores are 1e-9 instead of −1e9: hidden keys get weight",
        _tiny,
    ),
    _hiding(
        "hidden_positive",
        "hidden scores are a large positive number like 1e9, not −inf: hidden keys get all the "
        "weight",
        _positive,
        # Where one key is hidden, or all are, it comes to the same.
        variant_of=("hidden_finite", *(f"{rule}_inverted" for rule in (*_RULES, "all_rules"))),
    ),
    _hiding(
        "hidden_after_softmax",
        "hidden keys are zeroed after the softmax, and the others are not renormalised",
        _after_softmax,
    ),
    _hiding(
        "filled_after_softmax",
        "−1e9 is written for hidden keys into the weights, after the softmax, instead of the "
        "scores",
        _filled_after_softmax,
    ),
)
