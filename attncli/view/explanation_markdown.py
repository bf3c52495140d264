"""An explanation as Markdown with LaTeX formulas, for a lecture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.text import counted
from attncli.view.explanation_lines import rest_name
from attncli.view.explanation_sums import (
    CONTEXT_COLUMNS,
    MADE_COLUMNS,
    context_sum,
    made_sum,
    output_sum,
    score_names,
    seen_steps,
    strongest,
    whole_output,
)
from attncli.view.latex import Latex, math_name, words
from attncli.view.notation import Notation
from attncli.view.sums import Rest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.explanation.data import Explanation, KeyStep, QueryMade
    from attncli.view.explanation_sums import Sum

__all__ = ["as_markdown"]


def as_markdown(way: Explanation, *, digits: int = 4) -> str:
    """Return an explanation as Markdown with formulas in LaTeX.

    Long sums and wide vectors are cut to their largest or first terms, and say so.

    Parameters
    ----------
    way : Explanation
    digits : int
        Digits after the point.
    """
    blocks = [
        *_opening(way, Latex(digits)),
        "## Scores",
        *_score_blocks(way, Latex(digits)),
        "## Weights",
        *_weight_blocks(way, Latex(digits)),
        *_context_blocks(way, Latex(digits)),
        *_output_blocks(way, Latex(digits)),
    ]
    return "\n\n".join(blocks) + "\n"


def _opening(way: Explanation, latex: Latex) -> Iterator[str]:
    label = "" if way.query_label is None else f" “{words(way.query_label)}”"
    yield f"# How query {way.query}{label} attends"
    where = [("batch", way.batch), ("head", way.head), ("key/value head", way.kv_head)]
    places = [f"{axis} {index}" for axis, index in where if index is not None]
    counts = f"{way.keys} keys" if way.keys != 1 else "1 key"
    yield ", ".join([*places, counts, f"computed in {way.dtype}"]).capitalize() + "."
    if way.made is not None:
        yield from _made_blocks(way, way.made, latex)
    yield _block(f"q = {latex.vector(way.given)}")
    yield from _turned_blocks(way, latex)
    if way.kind == "general":
        yield _block(f"{_q(way)} W = {latex.vector(way.compared)}")
    if way.kind == "additive" and way.vector is not None:
        yield _block(f"v = {latex.vector(way.vector)}")


def _turned_blocks(way: Explanation, latex: Latex) -> Iterator[str]:
    if way.rope is None or way.rotated is None or way.angles is None:
        return
    yield (
        f"Rotary embedding turns each pair of its components by an angle that grows with its "
        f"position, {way.position}, and each key by its own:"
    )
    base, width = latex.number(way.rope.base), len(way.given)
    angles = rf"{way.position} \cdot {base}^{{-2p/{width}}}"
    yield _block(rf"\theta_p = {angles}, \quad \theta = {latex.vector(way.angles)}")
    first, second = float(way.given[0]), float(way.given[way.partner])
    angle = latex.factor(float(way.angles[0]))
    turned = (
        rf"q_0 \cos \theta_0 - q_{{{way.partner}}} \sin \theta_0 = "
        rf"{latex.factor(first)} \cos {angle} - {latex.factor(second)} \sin {angle}"
    )
    yield _block(rf"\tilde q_0 = {turned} = {latex.number(float(way.rotated[0]))}")
    yield _block(rf"\tilde q = {latex.vector(way.rotated)}")


def _made_blocks(way: Explanation, made: QueryMade, latex: Latex) -> Iterator[str]:
    yield (
        "The query is made from its embedding"
        + (", with its position added:" if made.placed else ":")
    )
    yield _block(f"x = {latex.vector(made.embedding)}")
    bias = "" if made.bias is None else " + b_q"
    yield _block(f"q = x \\, W_q{bias}")
    for column, total in enumerate(way.given[:MADE_COLUMNS].tolist()):
        told = made_sum(made, column)
        added = "" if made.bias is None else f" {latex.plus(float(made.bias[column]))}"
        terms = _terms(told, latex)
        whole = latex.total(terms, told.sizes, tags=_indices("x", terms))
        yield _block(f"q_{{{column}}} = {whole}{added} = {latex.number(total)}")


def _terms(told: Sum, latex: Latex) -> list[str]:
    return [rf"{latex.factor(one)} \cdot {latex.factor(other)}" for one, other in told.pairs]


def _indices(letter: str, terms: Sequence[str]) -> list[str]:
    return [f"{letter}_{{{index}}}" for index in range(len(terms))]


def _block(formula: str) -> str:
    return f"$$\n{formula}\n$$"


def _q(way: Explanation) -> str:
    return "q" if way.rope is None else r"\tilde q"


def _rule(way: Explanation, latex: Latex) -> str:
    """Return how this problem scores a key, in letters."""
    q, k = (r"\tilde q", r"\tilde k") if way.rope is not None else ("q", "k")
    product = {
        "dot": rf"{q} \cdot {k}",
        "cosine": rf"\frac{{{q} \cdot {k}}}{{\lVert {q} \rVert \, \lVert {k} \rVert}}",
        "general": rf"({q} W) \cdot {k}",
        "additive": rf"\sum_d v_d \tanh({q}_d + {k}_d)",
    }[way.kind]
    rule = _scaled(way, product, latex)
    if way.softcap is not None:
        cap = latex.number(way.softcap)
        rule = rf"{cap} \tanh\left(\frac{{1}}{{{cap}}} {rule}\right)"
    rule += r" + \mathrm{bias}" if way.has_bias else ""
    if way.slope is not None:
        rule += rf" - {latex.number(way.slope)} \, \lvert i + \mathrm{{offset}} - j \rvert"
    return rule


def _scaled(way: Explanation, product: str, latex: Latex) -> str:
    """Return a product with the scale around it."""
    if way.scale == 1:
        return product
    if way.scale == 1 / math.sqrt(len(way.given)):
        return rf"\frac{{{product}}}{{\sqrt{{{len(way.given)}}}}}"
    return rf"{latex.factor(way.scale)} \left({product}\right)"


def _score_blocks(way: Explanation, latex: Latex) -> Iterator[str]:
    yield _block(rf"\mathrm{{score}}(q, k) = {_rule(way, latex)}")
    query = math_name("q", way.query, way.query_label)
    for step in way.steps:
        arrow = rf"({query} \to {_key_name(way, step)})"
        if step.hidden:
            yield _block(rf"\mathrm{{score}}{arrow} = -\infty")
            yield "Hidden by " + "; ".join(words(f"{r.rule}: {r.words}") for r in step.hidden) + "."
        else:
            yield from map(_block, _seen_key(way, step, arrow, latex))
    if way.rest is not None:
        rules = ", ".join(f"{count} by {words(rule)}" for rule, count in way.rest.rules.items())
        hidden = f", {way.rest.hidden} of them hidden: {rules}" if way.rest.hidden else ""
        there_are = (
            "There is 1 more key"
            if way.rest.count == 1
            else f"There are {way.rest.count} more keys"
        )
        yield f"{there_are}{hidden}."


def _key_name(way: Explanation, step: KeyStep) -> str:
    name = math_name("k", step.index, step.label)
    same = sum(other.label == step.label for other in way.steps)
    return rf"{name}_{{{step.index}}}" if step.label is not None and same > 1 else name


def _seen_key(way: Explanation, step: KeyStep, arrow: str, latex: Latex) -> Iterator[str]:
    number = latex.number
    added = _added(way, step, latex)
    first, second = score_names(way)
    raw = _scaled(way, _products(way, step, latex), latex)
    yield rf"\mathrm{{{first}}}{arrow} = {raw} = {number(step.raw)}"
    if way.softcap is not None:
        cap = number(way.softcap)
        inner = rf"\tanh\left(\frac{{{number(step.raw)}}}{{{cap}}}\right)"
        yield rf"\mathrm{{{second}}}{arrow} = {cap} \, {inner} = {number(step.capped)}"
    if added:
        total = f"{number(step.capped)} {' '.join(added)} = {number(step.score)}"
        yield rf"\mathrm{{score}}{arrow} = {total}"


def _added(way: Explanation, step: KeyStep, latex: Latex) -> list[str]:
    added = [latex.plus(step.bias)] if way.has_bias else []
    if way.slope is not None:
        distance = rf"\lvert {way.position} - {step.index} \rvert"
        added.append(rf"- {latex.factor(way.slope)} \cdot {distance}")
    return added


def _products(way: Explanation, step: KeyStep, latex: Latex) -> str:
    pairs = list(zip(way.compared.tolist(), step.key.tolist(), strict=True))
    if way.kind == "additive":
        vector = [] if way.vector is None else way.vector.tolist()
        terms = [
            rf"{latex.factor(v)} \tanh\left({latex.number(q)} {latex.plus(k)}\right)"
            for v, (q, k) in zip(vector, pairs, strict=True)
        ]
    else:
        terms = [rf"{latex.factor(q)} \cdot {latex.factor(k)}" for q, k in pairs]
    total = latex.total(terms, step.products.tolist(), tags=_indices("d", terms))
    if way.kind != "cosine":
        return total
    return rf"\frac{{{total}}}{{{latex.number(way.norm)} \cdot {latex.number(step.norm)}}}"


def _weight_blocks(way: Explanation, latex: Latex) -> Iterator[str]:
    if way.blind:
        yield "This query sees no key: every weight is 0."
    if way.denominator:
        power = rf"e^{{\mathrm{{score}} {latex.plus(-way.shift)}}}"
        yield _block(rf"\mathrm{{weight}} = \frac{{{power}}}{{\mathrm{{denominator}}}}")
        yield _block(_denominator(way, latex))
        yield from map(_block, _strongest_weight(way, latex))
        lse = rf"{latex.number(way.shift)} + \ln {latex.number(way.denominator)}"
        yield _block(rf"\mathrm{{lse}} = {lse} = {latex.number(way.lse)}")
    yield "\n".join(_table(way, Notation(latex.digits)))


def _strongest_weight(way: Explanation, latex: Latex) -> Iterator[str]:
    """Yield the largest weight with the numbers put in; nothing where a sink is all there is."""
    step = strongest(way)
    if step is not None:
        share = rf"\frac{{{latex.number(step.exponential)}}}{{{latex.number(way.denominator)}}}"
        name = rf"\mathrm{{weight}}({_key_name(way, step)})"
        yield f"{name} = {share} = {latex.number(step.weight)}"


def _denominator(way: Explanation, latex: Latex) -> str:
    seen = seen_steps(way)
    tags: list[str | None] = [_key_name(way, step) for step in seen]
    shift = latex.plus(-way.shift)
    terms = [rf"e^{{{latex.number(step.score)} {shift}}}" for step in seen]
    sizes = [step.exponential for step in seen]
    if way.sink is not None:
        mark = rf"\underbrace{{e^{{{latex.number(way.sink)} {shift}}}}}_{{\text{{sink}}}}"
        terms, sizes, tags = [*terms, mark], [*sizes, way.sink_exponential], [*tags, None]
    rest = way.rest and Rest(way.rest.seen, way.rest.exponential)
    total = latex.total(terms, sizes, rest or None, tags=tags)
    return rf"\mathrm{{denominator}} = {total} = {latex.number(way.denominator)}"


def _table(way: Explanation, notation: Notation) -> Iterator[str]:
    yield r"| key | score | $\mathrm{score} - \max$ | $e^{\mathrm{score} - \max}$ | weight |"
    yield "|---|---:|---:|---:|---:|"
    cell = notation.cell
    for step in way.steps:
        label = words(step.label or "").strip()
        name = f"{step.index} {label}" if label else f"${_key_name(way, step)}$"
        if step.hidden:
            rules = words(", ".join(reason.rule for reason in step.hidden))
            yield f"| {name} | −∞ | hidden by {rules} | 0 | 0 |"
        else:
            cells = (step.score, step.exponent, step.exponential, step.weight)
            yield f"| {name} | {' | '.join(map(cell, cells))} |"
    if way.sink is not None:
        share = way.sink_exponential / way.denominator
        cells = (way.sink, way.sink - way.shift, way.sink_exponential, share)
        yield f"| sink | {' | '.join(map(cell, cells))} |"
    if way.rest is not None:
        sums = f"{cell(way.rest.exponential)} | {cell(way.rest.weight)}"
        yield f"| {rest_name(way.rest.count, way.rest.hidden)} | | | {sums} |"


def _context_blocks(way: Explanation, latex: Latex) -> Iterator[str]:
    if way.context is None:
        return
    yield "## Context"
    tags = [_key_name(way, step) for step in seen_steps(way)]
    for column, total in enumerate(way.context[:CONTEXT_COLUMNS].tolist()):
        told = context_sum(way, column)
        terms = _terms(told, latex)
        whole = f"{latex.total(terms, told.sizes, told.rest, tags=tags)} = " if terms else ""
        yield _block(rf"\mathrm{{context}}_{{{column}}} = {whole}{latex.number(total)}")
    yield from _more_columns(len(way.context), CONTEXT_COLUMNS)


def _more_columns(count: int, told: int) -> Iterator[str]:
    if count > told:
        yield f"… and {counted(count - told, 'more column')}."


def _output_blocks(way: Explanation, latex: Latex) -> Iterator[str]:
    output = way.output
    if output is None:
        return
    yield "## Output"
    bias = "" if output.bias is None else " + b_o"
    if output.heads == 1:
        yield _block(rf"\mathrm{{output}} = \mathrm{{context}} \, W_o{bias}")
    else:
        sum_of_all = rf"\sum_{{h=1}}^{{{output.heads}}} \mathrm{{context}}_h \, W_o^{{(h)}}{bias}"
        yield _block(rf"\mathrm{{output}} = {sum_of_all}")
        yield "The share of this head:"
    name = "output" if output.heads == 1 else "share"
    for column in range(min(len(output.share), MADE_COLUMNS)):
        told = output_sum(way, output, column)
        terms = _terms(told, latex)
        whole = latex.total(terms, told.sizes, tags=_indices("c", terms))
        added, total = whole_output(output, column)
        plus = "" if added is None else f" {latex.plus(added)}"
        yield _block(rf"\mathrm{{{name}}}_{{{column}}} = {whole}{plus} = {latex.number(total)}")
    yield from _more_columns(len(output.share), MADE_COLUMNS)
