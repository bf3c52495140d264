"""Mistakes as rows of a table, their stages, and common changes of a pipeline.

A row has a name, a meaning, a fix, the option that reproduces it, and a change of one stage of the
pipeline. A family has one row for each value of a parameter, which stands in its words as {}.

A change takes a pipeline and parameters, and returns another pipeline. If the mistake makes no
sense for the pipeline, `require` and `given` end the change, and the search skips the row.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attncli.referee.pipeline import Pipeline

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools
    from attncli.referee.run import Outputs, Run

    Softmax = Callable[[Run, Array, Array, Array], tuple[Array, Array]]

T = TypeVar("T")

# From the right pipeline to the wrong one; None if the mistake makes no sense for it.
Change = Callable[[Pipeline], Pipeline | None]
Option = Callable[["Problem"], str]
# The sizes of blocks of keys that are tried.
SIZES = (8, 16, 32, 64, 128)
_EVERY = "almost any input"


def words_beside(module: str) -> dict[str, dict[str, str]]:
    """Return the rows of ``words.csv`` beside a module."""
    with Path(module).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("family"): row for row in csv.DictReader(file)}


WORDS = words_beside(__file__)
_CONTEXT = frozenset({"context"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A stage of attention that mistakes change, and how the search treats these mistakes."""

    part_of: Stage | None = None  # two mistakes of one stage exclude each other
    outputs: frozenset[str] | None = None  # the outputs that its mistakes change; None for all
    alone: bool = False  # its mistakes are never tried together with another mistake
    like_a_scale: bool = False  # two such mistakes together may look like one other scale
    # Its mistakes change only roundings: one is named with another mistake only if far less error
    # is left.
    only_rounds: bool = False
    late: bool = False  # its mistakes are many or slow, and tried after those of all other stages
    # Only kernels that go over the keys block by block make its mistakes: among equally good
    # explanations, they come last.
    of_kernels: bool = False
    # Whether a problem lacks this stage.
    absent: Callable[[Problem], bool] = lambda _: False

    def excludes(self, other: Stage) -> bool:
        """Return whether mistakes of both stages change the same step."""
        return self in other.lineage or other in self.lineage

    @property
    def lineage(self) -> tuple[Stage, ...]:
        """The stage, and the stages that it is a part of."""
        return (self, *(() if self.part_of is None else self.part_of.lineage))


# Stages that make query, key and value.
EMBEDDING_NORM = Stage(alone=True)
PROJECTION = Stage()
QUERY_PROJECTION = Stage(part_of=PROJECTION)
KEY_PROJECTION = Stage(part_of=PROJECTION)
VALUE_PROJECTION = Stage(part_of=PROJECTION)
FUSED_PROJECTION = Stage()
FUSED_PARTS = Stage(part_of=FUSED_PROJECTION, alone=True)
INPUTS = Stage()
COPIES = Stage(part_of=INPUTS, alone=True)
SLOTS = Stage(part_of=INPUTS, alone=True)
VALUE_BLOCKS = Stage(part_of=INPUTS, outputs=_CONTEXT, alone=True)
HEADS = Stage()
# Only some inputs are misread: a second mistake would not be evident.
MISREAD_HEADS = Stage(part_of=HEADS, alone=True)
# Many numbers of heads are tried, so no second mistake is.
NUMBER_OF_HEADS = Stage(outputs=_CONTEXT, alone=True)
STRIDES = Stage(alone=True)

# Stages from the product to the scores.
SCALE = Stage(like_a_scale=True)
SCORE_FUNCTION = Stage(part_of=SCALE)
PRODUCTS = Stage(only_rounds=True)
STORED_SCORES = Stage(part_of=PRODUCTS, alone=True)
STORED_INPUTS = Stage(part_of=PRODUCTS, alone=True)
STORED_EXPONENTIALS = Stage(part_of=PRODUCTS, outputs=_CONTEXT, alone=True)
QUANTIZED = Stage(part_of=PRODUCTS, alone=True, late=True)
SHORT_WEIGHTS = Stage(part_of=PRODUCTS, outputs=_CONTEXT, alone=True, late=True)
ROPE = Stage()
# Mistakes in two of these stages count as two mistakes.
ROPE_PAIRING = Stage(part_of=ROPE)
ROPE_FREQUENCIES = Stage(part_of=ROPE)
ROPE_PLACE = Stage(part_of=ROPE)
ROPE_ORDER = Stage(part_of=ROPE, alone=True)
ROPE_TABLE = Stage(part_of=ROPE, alone=True)
ROPE_UNASKED = Stage(part_of=ROPE, alone=True)
NEW_POSITIONS = Stage(part_of=ROPE_PLACE, alone=True)
BIAS = Stage(absent=lambda problem: problem.bias is None)
BIAS_PLACES = Stage(part_of=BIAS, alone=True)

# Stages that decide which keys a query sees.
MASK = Stage(absent=lambda problem: problem.visible.mask is None)
MASK_PLACES = Stage(part_of=MASK, alone=True)
PADDING = Stage()
PADDING_INVERTED = Stage(part_of=PADDING)
PADDING_ON_QUERIES = Stage(part_of=PADDING)
ROUNDED_LENGTHS = Stage(part_of=PADDING, alone=True)
SEGMENTS = Stage(absent=lambda problem: problem.visible.segment_ids is None)
CAUSAL = Stage()
CAUSAL_BLOCKS = Stage(part_of=CAUSAL, alone=True, of_kernels=True)
WINDOW = Stage()
BLOCKS = Stage(of_kernels=True)

# The softmax, and the stages after it.
SOFTMAX = Stage()
LOST_AXES = Stage(part_of=SOFTMAX, alone=True)
EPSILON = Stage(part_of=SOFTMAX, alone=True)
# A letter or a bracket in the wrong place.
MISTYPED = Stage(alone=True)
SOFTMAX_BASE = Stage(like_a_scale=True)
ONLINE_SOFTMAX = Stage(alone=True, of_kernels=True)
SPLITS = Stage(alone=True, of_kernels=True)
PRECISION = Stage(outputs=_CONTEXT, alone=True)
# Adding up in 16 bits, one key at a time, takes longer than all other mistakes together.
SHORT_SUMS = Stage(part_of=PRECISION, outputs=_CONTEXT, alone=True, late=True)
ADDED = Stage(outputs=_CONTEXT)
OUTPUT_PROJECTION = Stage(outputs=_CONTEXT)
OUTPUT_BIAS = Stage(outputs=_CONTEXT)
RESIDUAL = Stage()
OUTPUT_NORM = Stage(part_of=RESIDUAL, outputs=_CONTEXT, alone=True)

# Stages that write the outputs.
GIVEN = Stage(outputs=_CONTEXT, alone=True)
LSE = Stage(outputs=frozenset({"lse"}))
LSE_OF_BLIND_ROWS = Stage(outputs=frozenset({"lse"}))
WEIGHTS = Stage(outputs=frozenset({"weights"}))
SCORES = Stage(outputs=frozenset({"scores", "raw", "capped"}))

# Gradients.
BACKWARD = Stage(alone=True)

# Stages without special treatment.
_PLAIN = (
    *("projected_bias", "query_key_norm", "positions", "key_source", "shared_heads", "softcap"),
    *("alibi", "query_padding", "hiding", "blind_rows", "sinks", "dropout"),
    *("factor", "unwritten", "axes"),
)
_STAGES = {name: Stage() for name in _PLAIN}
_STAGES |= {name.lower(): each for name, each in globals().items() if isinstance(each, Stage)}


@dataclass(frozen=True, eq=False)
class Mistake:
    """One row of the table."""

    name: str  # for machines: ``unscaled``
    meaning: str  # what the other implementation did, as a sentence without its full stop
    change: Change
    stage: Stage
    fix: str  # what to change in its code
    shows: str = _EVERY  # inputs on which its numbers differ from the right ones
    option: Option = lambda _: ""  # the option that reproduces it with attncli; empty if none
    needs: frozenset[str] = frozenset()  # axes that must be whole: ``batch``, ``heads``, ``rows``
    # It only changes how results are written, so it can be tried on results that are too large to
    # compute again.
    writes: bool = False
    reshapes: bool = False  # it explains only files whose shape differs from the answer's
    projects: bool = False  # it projects query, key and value again from the embeddings
    variant_of: tuple[str, ...] = ()  # if one of these mistakes fits as well, only that is named
    pattern: bool = False  # it says only which weights are 0, so many rules may be the cause
    # Its exact roundings are not known: the error that it leaves is as large as they are.
    roughly: bool = False
    choice: float | None = None  # of a fitted number: the bits that were free to choose
    free: int = 0  # how many numbers were fitted: the output must show more numbers than that
    family: str = ""  # the name with {} for its parameter; the name itself if it has none


class Rows(list[Mistake]):
    """Rows of the table, in the order in which they were added."""

    def __init__(self, words: Mapping[str, Mapping[str, str]] = WORDS) -> None:
        self.words = words

    def add(
        self,
        name: str,
        change: Callable[..., Any],
        *parameters: Any,
        option: str | Option = "",
        when: Callable[[Pipeline], object] = lambda _: True,
        family: str = "",
        words: tuple[Any, ...] = (),
        variant_of: tuple[str, ...] = (),
    ) -> None:
        """Add a row: a name and a change with its parameters.

        The words of the row stand in ``words.csv``, under its name or the name of its family.
        An option may depend on the problem; ``when`` tells whether the mistake makes sense.
        """
        family = name if name in self.words else family or name
        made = fields_of(self.words[family], words)
        variants = (*made.pop("variant_of"), *variant_of)
        if made.pop("ordered", False):
            variants += tuple(row.name for row in self if row.family == family)
        self.append(
            Mistake(
                name,
                change=where_it_applies(change, parameters, when),
                option=option if callable(option) else lambda _: option,
                family=family,
                variant_of=tuple(other for other in variants if other != name),
                **made,
            )
        )

    def family(
        self,
        name: str,
        change: Callable[..., Any],
        values: Iterable[Any],
        *,
        option: Any = "",
        **more: Any,
    ) -> None:
        """Add a row for each value, or tuple of values, of a parameter that stands in the name.

        The keys of a mapping are the words for names and sentences, its values the parameters. An
        option may be a function of the words.
        """
        pairs = values.items() if isinstance(values, Mapping) else ((v, v) for v in values)
        for own, parameters in pairs:
            words = tuple_of(own)
            self.add(
                name.format(*words),
                change,
                *tuple_of(parameters),
                family=name,
                words=words,
                option=option(*words) if callable(option) else option,
                **more,
            )


def fields_of(row: Mapping[str, str], words: tuple[Any, ...]) -> dict[str, Any]:
    """Return the fields of `Mistake` from a row of ``words.csv``."""
    texts = {text: row[text].format(*words) for text in ("meaning", "fix", "shows")}
    return {
        "stage": _STAGES[row["stage"]],
        "needs": frozenset(row["needs"].split()),
        "variant_of": tuple(row["variants"].format(*words).split()),
        **dict.fromkeys(row["flags"].split(), True),
        **texts,
    }


def tuple_of(value: Any) -> tuple[Any, ...]:
    """Return a tuple as it is, and any other value as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def where_it_applies(
    change: Callable[..., Pipeline | None],
    parameters: tuple[Any, ...] = (),
    when: Callable[[Pipeline], object] = lambda _: True,
) -> Change:
    """Return the change as a function of the pipeline: None if the mistake makes no sense."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        try:
            return change(pipe, *parameters) if when(pipe) else None
        except DoesNotApplyError:
            return None

    return changed


# Changes of one stage of the pipeline.


class DoesNotApplyError(Exception):
    """A mistake makes no sense for a pipeline."""


def require(*conditions: object) -> None:
    """End the change unless all conditions are true."""
    if not all(conditions):
        raise DoesNotApplyError


def given(value: T | None) -> T:
    """Return the value; end the change if it is None."""
    if value is None:
        raise DoesNotApplyError
    return value


def altered(pipe: Pipeline, stage: str, make: Callable[[Any], Any]) -> Pipeline:
    """Change a stage of the pipeline; end the change if there is none, or if it stays the same."""
    own = given(getattr(pipe, stage))
    made = given(make(own))
    require(not np.array_equal(made, own) if isinstance(made, np.ndarray) else made != own)
    return pipe.but(**{stage: made})


def without(pipe: Pipeline, name: str) -> Pipeline:
    """Leave out a rule or a stage."""
    if name in pipe.rules:
        return pipe.with_rule(name, None)
    require(getattr(pipe, name, None) is not None)
    return pipe.but(**{name: None})


def ruled(pipe: Pipeline, name: str, seen: Callable[[Run, Bools], Bools]) -> Pipeline:
    """Replace a rule by a function of the run and the old rule."""
    own = given(pipe.rules.get(name))
    return pipe.with_rule(name, lambda run: seen(run, run.called(own)))


def softmaxed(pipe: Pipeline, change: Softmax) -> Pipeline:
    """Replace weights and lse by a function of scores, right weights and right lse."""
    own = pipe.softmax
    return pipe.but(softmax=lambda run, scores: change(run, scores, *own(run, scores)))


def after(pipe: Pipeline, change: Callable[[Array], Array]) -> Pipeline:
    """Change the weights before they multiply the values."""
    return pipe.then("after", lambda _, weights: change(weights))


def written(
    pipe: Pipeline, name: str, make: Callable[[Run, Outputs], Array], stage: str = "finish"
) -> Pipeline:
    """Replace an output, before the output projection or behind it."""

    def finish(run: Run, made: Outputs) -> Outputs:
        return {**made, name: make(run, made)} if name in made else made

    return pipe.then(stage, finish)
