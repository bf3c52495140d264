"""The formulas of an explanation with the numbers put in, as pieces that may be wrapped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.positions import BASE
from attncli.view.explanation.numbers import (
    CONTEXT_COLUMNS,
    MADE_COLUMNS,
    all_equal,
    context_sum,
    made_query,
    made_sum,
    output_sum,
    score_names,
    seen_steps,
    strongest,
    wave_columns,
    whole_output,
)
from attncli.view.explanation.sums import Rest, sum_pieces, sums_pieces
from attncli.view.labels import text_width
from attncli.view.notation import (
    Notation,
    name_of,
    names_of,
    vector_pieces,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.explanation.data import Explanation, KeyStep, OutputShare, QueryMade, QueryNorm
    from attncli.view.explanation.numbers import Sum

__all__ = [
    "Line",
    "context_lines",
    "made_lines",
    "made_rule",
    "output_lines",
    "output_rule",
    "query_lines",
    "rest_name",
    "rule_text",
    "score_lines",
    "softmax_lines",
    "softmax_rule",
]


@dataclass(frozen=True)
class Line:
    """One formula.

    Attributes
    ----------
    left : str
        What stands before the first equals sign.
    pieces : tuple of str
        What stands after it; a line may break between any two.
    note : bool
        These are words, not numbers.
    """

    left: str
    pieces: tuple[str, ...]
    note: bool = False


def made_rule(explanation: Explanation, made: QueryMade) -> str:
    """Return how the query is made, in letters."""
    name = "q" if made.norm is None else "p"
    projected = "x · wq" + ("" if made.bias is None else " + bq")
    if made.columns is not None:
        first, last = made.columns
        part = f"column {first}" if first == last else f"columns {first} to {last}"
        projected = f"{part} of {projected}, those of head {explanation.head or 0}"
    placed = "" if made.position is None else " with its position added"
    parts = [f"{name} = {projected}; x is the embedding of the query{placed}"]
    if made.norm is not None:
        joint = ", of all heads together" if made.norm.joint else ""
        parts.append(f"q = p / rms · q_norm, rms = √(mean of p² + ε){joint}")
    parts.append(_made_likewise(made, values=explanation.context is not None))
    return "; ".join(parts)


def _made_likewise(made: QueryMade, *, values: bool) -> str:
    """Return what else is made so, and which of it has a norm."""
    if made.norm is not None and made.keys_normed:
        return "likewise keys with k_norm" + ("; values have no norm" if values else "")
    if made.keys_normed:
        return f"likewise {'values, and ' if values else ''}keys, which have a norm, k_norm"
    others = "likewise keys and values" if values else "likewise keys"
    return others if made.norm is None else f"{others}, without a norm"


def _waves(query: int, width: int) -> str:
    """Return the first components of a sinusoidal position as formulas."""
    powers = (
        (column, f"({query} / {BASE:g}^({column}/{width}))") for column in wave_columns(width)
    )
    angles = [power if column else f" {query}" for column, power in powers]
    waves = [f"{wave}{angle}" for angle in angles for wave in ("sin", "cos")][:width]
    return ", ".join(waves + ["…"] * (len(waves) < width))


def made_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the embedding of the query, and how the first query columns follow from it."""
    made = explanation.made
    if made is None:
        return
    name = "x"
    if made.position is not None:
        first, *others = vector_pieces(notation, made.position, room)
        yield Line(name, (*vector_pieces(notation, made.given, room), f"+ {first}", *others))
        yield Line("position", (f"({_waves(explanation.query, len(made.position))})",))
    yield Line(name, vector_pieces(notation, made.embedding, room))
    columns = range(min(len(explanation.given), MADE_COLUMNS))
    told = [made_sum(made, column) for column in columns]
    tags = [f"x{index}" for index in range(len(made.embedding))]
    sums = _products_added(told, None, tags, notation, room)
    for column, pieces in zip(columns, sums, strict=True):
        bias = [] if made.bias is None else [notation.plus(float(made.bias[column]))]
        result = notation.number(float(made_query(explanation, made)[column]))
        name = "q" if made.norm is None else "p"
        yield Line(f"{name}[{column}]", (*pieces, *bias, f"= {result}"))
    if made.norm is not None:
        yield from _norm_lines(explanation, made.norm, notation, room)


def _norm_lines(
    explanation: Explanation, norm: QueryNorm, notation: Notation, room: int
) -> Iterator[Line]:
    yield Line("p", vector_pieces(notation, norm.projected, room))
    rms = notation.number(norm.rms)
    of_all = "all heads" if norm.joint else "p"
    yield Line("rms", (f"√(mean of squares of {of_all} + {norm.epsilon:g})", f"= {rms}"))
    first, weight = (notation.factor(float(one[0])) for one in (norm.projected, norm.weight))
    whole = notation.number(float(explanation.given[0]))
    yield Line("q[0]", (f"{first} / {rms} · {weight}", f"= {whole}"))


def _products_added(
    told: Sequence[Sum],
    factors: npt.NDArray[Any] | None,
    tags: Sequence[str],
    notation: Notation,
    room: int,
) -> list[tuple[str, ...]]:
    """Return sums of products.

    If they are cut, all keep the terms of the largest factors, or each its largest terms.
    """
    factor = notation.factor
    pieces = sums_pieces(
        [[f"{factor(one)}·{factor(other)}" for one, other in each.pairs] for each in told],
        [np.array(each.sizes) for each in told],
        None if factors is None else np.abs(factors.astype(np.float64)),
        notation,
        room,
        tags=tags,
        rests=[each.rest for each in told],
    )
    return [tuple(each) for each in pieces]


def query_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the query as given, and what was done to it before its products with the keys."""
    yield Line("q", vector_pieces(notation, explanation.given, room))
    yield from _turned_lines(explanation, notation, room)
    if explanation.kind == "general":
        yield Line("q W", vector_pieces(notation, explanation.compared, room))
    if explanation.own_vector is not None:
        yield Line("v", vector_pieces(notation, explanation.own_vector, room))
    if explanation.kind == "cosine":
        yield Line("‖q‖", (notation.number(explanation.norm),))


def _turned_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the angles of the query's pairs, its first component rotated, and all of it."""
    if explanation.rope is None or explanation.rotated is None or explanation.angles is None:
        return
    base, width = notation.number(explanation.rope.base), len(explanation.given)
    frequency = f"{base}^(−2p/{width})" if explanation.rope.frequencies is None else "the frequency"
    pair = f"pair 0 is components 0 and {explanation.partner}"
    rule = f"radians: {explanation.position} · {frequency} for pair p = 0, 1, …; {pair}"
    yield Line("angles", (*vector_pieces(notation, explanation.angles, room), rule))
    first, second = float(explanation.given[0]), float(explanation.given[explanation.partner])
    angle = notation.factor(float(explanation.angles[0]))
    less = f"− {notation.factor(second)}·sin {angle}"
    result = f"= {notation.number(float(explanation.rotated[0]))}"
    yield Line("rotated[0]", (f"{notation.factor(first)}·cos {angle}", less, result))
    yield Line("rotated", vector_pieces(notation, explanation.rotated, room))


def rule_text(explanation: Explanation, notation: Notation) -> str:
    """Return the rule by which this problem scores a key, in letters."""
    product = {
        "dot": "q · k",
        "cosine": "q · k / (‖q‖ ‖k‖)",
        "general": "(q W) · k",
        "additive": "Σ v · tanh(q + k)",
    }[explanation.kind]
    rule = product + _scale_sign(explanation, notation)
    if explanation.softcap is not None:
        cap = notation.number(explanation.softcap)
        rule = f"{cap} · tanh(({rule}) / {cap})"
    rule += " + bias" if explanation.has_bias else ""
    rule += " − slope · distance" if explanation.slope is not None else ""
    turned = ", q and k rotated by position (rope)" if explanation.rope is not None else ""
    return f"score = {rule}{turned}"


def score_lines(
    explanation: Explanation, step: KeyStep, name: str, notation: Notation, room: int
) -> Iterator[Line]:
    """Yield the formulas from the products to the score of one key, or why it is hidden.

    Parameters
    ----------
    explanation : Explanation
    step : KeyStep
    name : str
        What the key is called.
    notation : Notation
    room : int
        Columns to the right of the equals sign.
    """
    arrow = f"({name_of('q', explanation.query, explanation.query_label)} → {name})"
    if step.hidden:
        why = "; ".join(f"{reason.rule}: {reason.words}" for reason in step.hidden)
        yield Line(f"score{arrow}", (f"−inf, hidden by {why}",), note=True)
        return
    if explanation.rope is not None:
        given, turned = (vector_pieces(notation, v, room // 2) for v in (step.given, step.key))
        key = name if step.label is None else f"k({name})"
        yield Line(key, (*given, "rotated", *turned))
    yield Line(
        score_names(explanation)[0] + arrow, tuple(_raw_pieces(explanation, step, notation, room))
    )
    yield from _later_lines(explanation, step, notation)


def _later_lines(explanation: Explanation, step: KeyStep, notation: Notation) -> Iterator[Line]:
    """Yield softcap, bias and ALiBi, each if there is one."""
    number = notation.number
    if explanation.softcap is not None:
        cap = number(explanation.softcap)
        pieces = (f"{cap} · tanh({number(step.raw)} / {cap})", f"= {number(step.capped)}")
        yield Line(score_names(explanation)[1], pieces)
    added = [notation.plus(step.bias)] if explanation.has_bias else []
    if explanation.slope is not None:
        added.append(
            f"− {notation.factor(explanation.slope)}·|{explanation.position} − {step.index}|"
        )
    if added:
        yield Line("score", (number(step.capped), *added, f"= {number(step.score)}"))


def _raw_pieces(
    explanation: Explanation, step: KeyStep, notation: Notation, room: int
) -> Iterator[str]:
    """Yield (products) / scale = dot / scale = raw, with what the score function adds."""
    factor, number = notation.factor, notation.number
    scale = _scale_sign(explanation, notation)
    after, short = scale, scale
    if explanation.kind == "cosine":
        after = f" / (‖q‖ ‖k‖){scale}"
        short = f" / ({number(explanation.norm)} · {number(step.norm)}){scale}"
    elif scale.startswith(" / √"):
        short = f" / {number(1 / explanation.scale)}"
    terms = _terms(explanation, step, notation)
    room -= text_width(after) + 2
    tags = [f"d{i}" for i in range(len(terms))]
    pieces = sum_pieces(terms, step.products, notation, room, tags=tags)
    if after:
        pieces[0], pieces[-1] = "(" + pieces[0], pieces[-1] + ")" + after
    yield from pieces
    if after:
        yield f"= {factor(step.dot)}{short}"
    yield f"= {number(step.raw)}"


def _scale_sign(explanation: Explanation, notation: Notation) -> str:
    """Return the scale as it is written after a product; empty if it is 1."""
    if explanation.scale == 1:
        return ""
    if explanation.scale == 1 / math.sqrt(len(explanation.given)):
        return f" / √{len(explanation.given)}"
    return f" · {notation.factor(explanation.scale)}"


def _terms(explanation: Explanation, step: KeyStep, notation: Notation) -> list[str]:
    factor, number = notation.factor, notation.number
    pairs = list(zip(explanation.compared.tolist(), step.key.tolist(), strict=True))
    if explanation.kind != "additive":
        return [f"{factor(q)}·{factor(k)}" for q, k in pairs]
    vector = [] if explanation.vector is None else explanation.vector.tolist()
    return [
        ("" if v == 1 else f"{factor(v)}·") + f"tanh({number(q)} {notation.plus(k)})"
        for v, (q, k) in zip(vector, pairs, strict=True)
    ]


def softmax_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the denominator, the strongest weight and lse with the numbers put in."""
    number = notation.number
    if not explanation.denominator:
        yield Line("lse", ("ln 0", "= −inf"))
        return
    seen, tags = seen_steps(explanation), _seen_names(explanation)
    sizes = [step.exponential for step in seen]
    less = less_shift(explanation, notation)
    terms = [f"exp({number(step.score)} {less})" for step in seen]
    if explanation.sink is not None:
        sizes.append(explanation.sink_exponential)
        terms.append(f"exp({number(explanation.sink)} {less}) for the sink")
        tags.append("sink")
    left = (
        None
        if explanation.rest is None
        else Rest(explanation.rest.seen, explanation.rest.exponential)
    )
    pieces = sum_pieces(terms, np.array(sizes), notation, room, tags=tags, rest=left)
    yield Line("denominator", (*pieces, f"= {number(explanation.denominator)}"))
    most = strongest(explanation)
    if most is not None:
        shown = f"{number(most.exponential)} / {number(explanation.denominator)}"
        name = tags[seen.index(most)]
        yield Line(f"weight({name})", (shown, f"= {number(most.weight)}"))
    logarithm = f"{number(explanation.shift)} + ln {number(explanation.denominator)}"
    yield Line("lse", ("ln Σ exp(score)", f"= {logarithm}", f"= {number(explanation.lse)}"))


def softmax_rule(explanation: Explanation, notation: Notation) -> Iterator[str]:
    """Yield how the weights follow from the scores, in words and letters."""
    sink = explanation.sink
    if explanation.fully_masked:
        takes = "" if sink is None else "; the sink takes all the attention"
        yield f"this query sees no key, so every weight is 0{takes}"
        return
    counts = "" if sink is None else "; the sink counts in the denominator only"
    less = less_shift(explanation, notation)
    yield f"softmax: weight = exp(score {less}) / denominator{counts}"
    if all_equal(explanation):
        yield "all scores are equal, and so are all weights"
        return
    largest = "largest score" if sink is None else "largest of scores and sink"
    yield (
        f"{notation.number(explanation.shift)} is the {largest}: subtracting it keeps exp within "
        "range and changes no weight"
    )


def less_shift(explanation: Explanation, notation: Notation) -> str:
    """Return the shift as it is subtracted from a score."""
    return notation.plus(-explanation.shift) if explanation.shift else "− 0"


def _seen_names(explanation: Explanation) -> list[str]:
    """Return the names of the keys that the query sees."""
    named = zip(names_of(explanation.steps), explanation.steps, strict=True)
    return [name for name, step in named if not step.hidden]


def rest_name(count: int, hidden: int) -> str:
    """Return what the row of all other keys is called: hidden ones add nothing to its sums."""
    return f"… {count - hidden:,} more" if count > hidden else f"… {hidden:,} hidden"


def context_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the weighted sum of the values, column by column; only the first few of wide ones.

    If the sums are cut, all keep the terms of the same keys.
    """
    if explanation.context is None:
        return
    totals = explanation.context[:CONTEXT_COLUMNS].tolist()
    told = [context_sum(explanation, column) for column in range(len(totals))]
    weights = np.array([step.weight for step in seen_steps(explanation)])
    sums = _products_added(told, weights, _seen_names(explanation), notation, room)
    for column, (total, pieces) in enumerate(zip(totals, sums, strict=True)):
        result = notation.number(total)
        yield Line(f"context[{column}]", (*pieces, f"= {result}") if pieces else (result,))


def output_rule(output: OutputShare) -> str:
    """Return how the output is made from the context, in letters."""
    bias = "" if output.bias is None else " + bo"
    if output.heads == 1:
        return f"output = context · wo{bias}"
    added = "" if output.bias is None else " and bo"
    return (
        f"share of this head = context · its rows of wo; the shares of {output.heads} heads"
        f"{added} add up to the output"
    )


def output_lines(explanation: Explanation, notation: Notation, room: int) -> Iterator[Line]:
    """Yield the first columns of what the head adds to the output."""
    output = explanation.output
    if output is None or explanation.context is None:
        return
    columns = range(min(len(output.share), MADE_COLUMNS))
    told = [output_sum(explanation, output, column) for column in columns]
    tags = [f"context{index}" for index in range(len(explanation.context))]
    sums = _products_added(told, None, tags, notation, room)
    name = "output" if output.heads == 1 else "share"
    for column, pieces in zip(columns, sums, strict=True):
        added, total = whole_output(output, column)
        bias = [] if added is None else [notation.plus(added)]
        yield Line(f"{name}[{column}]", (*pieces, *bias, f"= {notation.number(total)}"))
