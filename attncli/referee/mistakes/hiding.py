"""Mistakes in how hidden keys are hidden, and in queries that see no key."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes.masks import RULES
from attncli.referee.mistakes.table import Rows, given, require, softmaxed

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.formats import Array, Bools
    from attncli.referee.pipeline import Pipeline, Rule
    from attncli.referee.run import Run

ROWS = Rows()

# With a tolerance up to this, a file tells 1e-9 from 0.
_FINE = 1e-11


def _of_keys(pipe: Pipeline) -> list[str]:
    return [name for name in pipe.rules if name in RULES]


def _all(run: Run, rules: list[Rule]) -> Bools:
    return np.asarray(reduce(np.logical_and, map(run.called, rules)))


def _joined(pipe: Pipeline, join: Callable[[Bools, Bools], Bools]) -> Pipeline:
    """Join all rules on keys by another operation, if there are several rules."""
    names = _of_keys(pipe)
    require(len(names) > 1)
    rules = [pipe.rules[name] for name in names]
    rest = {name: rule for name, rule in pipe.rules.items() if name not in names}
    return pipe.but(rules={**rest, "joined": lambda run: reduce(join, map(run.called, rules))})


def _meets_scores(pipe: Pipeline, rule: str, *, how: Any) -> Pipeline:
    """Add a rule as 0 and 1 to the scores, or multiply the scores by it, and hide nothing."""
    if rule == "all_rules":
        pipe, rule = _joined(pipe, np.logical_and), "joined"
    own = given(pipe.rules.get(rule))

    def step(run: Run, scores: Array) -> Array:
        return np.asarray(how(scores, run.called(own).astype(scores.dtype)))

    return pipe.with_rule(rule, None).with_step(f"{how.__name__} mask", step, before="hide")


def _after_softmax(pipe: Pipeline, fill: float) -> Pipeline:
    require(pipe.rules)
    rules = list(pipe.rules.values())
    return pipe.but(rules={}).then(
        "after", lambda run, weights: np.where(_all(run, rules), weights, fill)
    )


def _filled(pipe: Pipeline, sign: float) -> Pipeline:
    """Give hidden keys the file's large negative number (sign 1), its opposite (−1), or 1e-9."""
    require(pipe.rules, sign > 0 or _of_keys(pipe), sign or pipe.file.resolution < _FINE)
    return pipe.but(fill=sign * pipe.file.fill or 1e-9)


ROWS.add("rules_joined_by_or", _joined, np.logical_or)
ROWS.family("{}_added", partial(_meets_scores, how=np.add), (*RULES, "all_rules"))
ROWS.family("{}_multiplied", partial(_meets_scores, how=np.multiply), (*RULES, "all_rules"))
ROWS.add("hidden_tiny", _filled, 0)
ROWS.add("hidden_positive", _filled, -1)
ROWS.add("hidden_finite", _filled, 1)
ROWS.add("hidden_after_softmax", _after_softmax, 0.0)
ROWS.add("filled_after_softmax", _after_softmax, -1e9)


# Queries that see no key.


def _nan(run: Run, _: Array, weights: Array, lse: Array) -> tuple[Array, Array]:
    return np.where(run.seen.any(axis=-1, keepdims=True), weights, np.nan), lse


def _unmasked(pipe: Pipeline) -> Pipeline:
    """Show every key to queries that see none; padded queries stay hidden."""
    hiding = {name: rule for name, rule in pipe.rules.items() if name != "query_lengths"}
    require(hiding)
    rules = list(hiding.values())

    def shown(own: Rule) -> Rule:
        return lambda run: run.called(own) | ~_all(run, rules).any(axis=-1, keepdims=True)

    return pipe.but(rules={**pipe.rules, **{name: shown(own) for name, own in hiding.items()}})


ROWS.add("blind_rows_nan", softmaxed, _nan, when=lambda pipe: pipe.sinks is None and pipe.rules)
ROWS.add("blind_rows_unmasked", _unmasked)
