"""An explanation as Markdown with LaTeX formulas, for a lecture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.positions import BASE
from attncli.text import counted, label_text, places
from attncli.view.explanation.latex import Latex, aligned, equation, math_name
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
from attncli.view.explanation.rows import headings_of, row_texts, table_rows
from attncli.view.explanation.sums import Rest
from attncli.view.markdown import markdown_table, words
from attncli.view.notation import Notation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.explanation.data import Explanation, KeyStep, QueryMade, QueryNorm
    from attncli.view.explanation.numbers import Sum
    from attncli.view.explanation.rows import Row

__all__ = ["as_markdown"]

# Terms that a page has room for in the numerator of a fraction.
_IN_FRACTION = 2
# What the table of the terminal has shorter words for.
_HEADINGS = {"shifted": r"$\mathrm{score} - \max$", "exp": r"$e^{\mathrm{score} - \max}$"}


def as_markdown(explanation: Explanation, *, digits: int = 4) -> str:
    """Return an explanation as Markdown with formulas in LaTeX.

    Long sums keep their largest terms and wide vectors their first, and say so.

    Parameters
    ----------
    explanation : Explanation
    digits : int
        Digits after the point.
    """
    blocks = [
        *_opening(explanation, Latex(digits)),
        "## Scores",
        *_score_blocks(explanation, Latex(digits)),
        "## Weights",
        *_weight_blocks(explanation, Latex(digits)),
        *_context_blocks(explanation, Latex(digits)),
        *_output_blocks(explanation, Latex(digits)),
    ]
    return "\n\n".join(blocks) + "\n"


def _name_of(label: str | None) -> str:
    """Return a label behind an index: in quotation marks, if there is something to be seen."""
    if label is None:
        return ""
    return f" “{words(label)}”" if label.strip(" ") else f" {words(label_text(label))}"


def _opening(explanation: Explanation, latex: Latex) -> Iterator[str]:
    yield f"# How query {explanation.query}{_name_of(explanation.query_label)} attends"
    where = {
        "batch": explanation.batch,
        "head": explanation.head,
        "key/value head": explanation.kv_head,
    }
    count = counted(explanation.keys, "key")
    decimals = counted(latex.digits, "decimal")
    how = f"computed in {explanation.dtype}, shown with {decimals}"
    yield ", ".join([*places(where), count, how]).capitalize() + "."
    if explanation.made is not None:
        yield from _made_blocks(explanation, explanation.made, latex)
    yield _block(f"q = {latex.vector(explanation.given)}")
    yield from _turned_blocks(explanation, latex)
    if explanation.kind == "general":
        yield _block(f"{_q(explanation)} W = {latex.vector(explanation.compared)}")
    if explanation.own_vector is not None:
        yield _block(f"v = {latex.vector(explanation.own_vector)}")


def _turned_blocks(explanation: Explanation, latex: Latex) -> Iterator[str]:
    if explanation.rope is None or explanation.rotated is None or explanation.angles is None:
        return
    yield (
        "Rotary embedding turns each pair of components of the query by an angle that grows with "
        f"its position, here {explanation.position}, and those of a key with the position of the "
        f"key. Pair 0 is components 0 and {explanation.partner}:"
    )
    base, width = latex.number(explanation.rope.base), len(explanation.given)
    given = explanation.rope.frequencies is not None
    frequency = r"\mathrm{frequency}_p" if given else f"{base}^{{-2p/{width}}}"
    angles = rf"{explanation.position} \cdot {frequency}"
    yield _block(rf"\theta_p = {angles}, \quad \theta = {latex.vector(explanation.angles)}")
    first, second = float(explanation.given[0]), float(explanation.given[explanation.partner])
    angle = latex.factor(float(explanation.angles[0]))
    turned = (
        rf"q_0 \cos \theta_0 - q_{{{explanation.partner}}} \sin \theta_0 = "
        rf"{latex.factor(first)} \cos {angle} - {latex.factor(second)} \sin {angle}"
    )
    yield _block(rf"\tilde q_0 = {turned} = {latex.number(float(explanation.rotated[0]))}")
    yield _block(rf"\tilde q = {latex.vector(explanation.rotated)}")


def _made_blocks(explanation: Explanation, made: QueryMade, latex: Latex) -> Iterator[str]:
    yield (
        "The query is made from its embedding"
        + (":" if made.position is None else ", with its position added:")
    )
    whole = latex.vector(made.embedding)
    if made.position is None:
        yield _block(f"x = {whole}")
    else:
        added = f"x &= {latex.vector(made.given)}", rf"&\quad {{}}+ {latex.vector(made.position)}"
        yield _block(aligned([*added, f"&= {whole}"]))
        waves = _waves(explanation.query, len(made.position))
        yield _block(rf"\mathrm{{position}} = \left({waves}\right)")
    projected = r"x \, W_q" + ("" if made.bias is None else " + b_q")
    name = "q" if made.norm is None else "p"
    if made.columns is not None:
        first, last = made.columns
        part = f"Column {first}" if first == last else f"Columns {first} to {last}"
        yield f"{part} of the projection are head {explanation.head or 0}'s:"
    yield _block(f"{name} = {projected}")
    for column, total in enumerate(made_query(explanation, made)[:MADE_COLUMNS].tolist()):
        told = made_sum(made, column)
        bias = [] if made.bias is None else [latex.plus(float(made.bias[column]))]
        terms = _terms(told, latex)
        pieces = latex.total(terms, told.sizes, tags=_indices("x", terms))
        yield _block(equation(f"{name}_{{{column}}}", [*pieces, *bias], latex.number(total)))
    if made.norm is not None:
        yield from _norm_blocks(explanation, made.norm, latex)


def _waves(query: int, width: int) -> str:
    """Return the first components of a sinusoidal position."""
    angles = [
        rf"\frac{{{query}}}{{{BASE:g}^{{{column}/{width}}}}}" if column else f"{query}"
        for column in wave_columns(width)
    ]
    waves = [rf"\{wave} {angle}" for angle in angles for wave in ("sin", "cos")][:width]
    return ", ".join(waves + [r"\ldots"] * (len(waves) < width))


def _norm_blocks(explanation: Explanation, norm: QueryNorm, latex: Latex) -> Iterator[str]:
    yield "Then it is normalised" + (", all heads together:" if norm.joint else ":")
    yield _block(f"p = {latex.vector(norm.projected)}")
    rms = latex.number(norm.rms)
    mean = rf"\frac{{1}}{{{'HD' if norm.joint else len(norm.projected)}}} \sum_i p_i^2"
    yield _block(rf"\text{{rms}} = \sqrt{{{mean} + {latex.number(norm.epsilon)}}} = {rms}")
    first, weight = (latex.factor(float(one[0])) for one in (norm.projected, norm.weight))
    whole = latex.number(float(explanation.given[0]))
    yield _block(rf"q_0 = \frac{{{first}}}{{{rms}}} \cdot {weight} = {whole}")


def _terms(told: Sum, latex: Latex) -> list[str]:
    return [rf"{latex.factor(one)} \cdot {latex.factor(other)}" for one, other in told.pairs]


def _indices(letter: str, terms: Sequence[str]) -> list[str]:
    return [f"{letter}_{{{index}}}" for index in range(len(terms))]


def _block(formula: str) -> str:
    return f"$$\n{formula}\n$$"


def _q(explanation: Explanation) -> str:
    return "q" if explanation.rope is None else r"\tilde q"


def _rule(explanation: Explanation, latex: Latex) -> str:
    """Return how this problem scores a key, in letters."""
    q, k = (r"\tilde q", r"\tilde k") if explanation.rope is not None else ("q", "k")
    product = {
        "dot": rf"{q} \cdot {k}",
        "cosine": rf"\frac{{{q} \cdot {k}}}{{\lVert {q} \rVert \, \lVert {k} \rVert}}",
        "general": rf"({q} W) \cdot {k}",
        "additive": rf"\sum_d v_d \tanh({q}_d + {k}_d)",
    }[explanation.kind]
    rule = _scaled(explanation, product, latex)
    if explanation.softcap is not None:
        cap = latex.number(explanation.softcap)
        rule = rf"{cap} \tanh\left(\frac{{1}}{{{cap}}} {rule}\right)"
    rule += r" + \mathrm{bias}" if explanation.has_bias else ""
    if explanation.slope is not None:
        rule += rf" - {latex.factor(explanation.slope)} \cdot \mathrm{{distance}}"
    return rule


def _scaled(explanation: Explanation, product: str, latex: Latex) -> str:
    """Return a product with the scale around it."""
    if explanation.scale == 1:
        return product
    if explanation.scale == 1 / math.sqrt(len(explanation.given)):
        return rf"\frac{{{product}}}{{\sqrt{{{len(explanation.given)}}}}}"
    return rf"{latex.factor(explanation.scale)} \left({product}\right)"


def _score_blocks(explanation: Explanation, latex: Latex) -> Iterator[str]:
    yield _block(rf"\mathrm{{score}}(q, k) = {_rule(explanation, latex)}")
    query = math_name("q", explanation.query, explanation.query_label)
    for step in explanation.steps:
        arrow = rf"({query} \to {_key_name(explanation, step)})"
        if step.hidden:
            yield _block(rf"\mathrm{{score}}{arrow} = -\infty")
            yield "Hidden by " + "; ".join(words(f"{r.rule}: {r.words}") for r in step.hidden) + "."
        else:
            yield from map(_block, _seen_key(explanation, step, arrow, latex))
    if explanation.rest is not None:
        rest = explanation.rest
        hidden = f", {rest.hidden} of them hidden: {words(rest.hidden_by)}" if rest.hidden else ""
        verb = "is" if explanation.rest.count == 1 else "are"
        yield f"There {verb} {counted(explanation.rest.count, 'more key')}{hidden}."


def _key_name(explanation: Explanation, step: KeyStep) -> str:
    name = math_name("k", step.index, step.label)
    same = sum(other.label == step.label for other in explanation.steps)
    return rf"{name}_{{{step.index}}}" if step.label is not None and same > 1 else name


def _seen_key(explanation: Explanation, step: KeyStep, arrow: str, latex: Latex) -> Iterator[str]:
    number = latex.number
    added = _added(explanation, step, latex)
    first, second = score_names(explanation)
    if explanation.rope is not None:
        name = _key_name(explanation, step)
        key = name if step.label is None else f"k_{{{name}}}"
        turned = rf"\tilde {key} &= {latex.vector(step.key)}"
        yield aligned([f"{key} &= {latex.vector(step.given)}", turned])
    yield from _raw(explanation, step, rf"\mathrm{{{first}}}{arrow}", latex)
    if explanation.softcap is not None:
        cap = number(explanation.softcap)
        inner = rf"\tanh\left(\frac{{{number(step.raw)}}}{{{cap}}}\right)"
        yield rf"\mathrm{{{second}}}{arrow} = {cap} \, {inner} = {number(step.capped)}"
    if added:
        total = f"{number(step.capped)} {' '.join(added)} = {number(step.score)}"
        yield rf"\mathrm{{score}}{arrow} = {total}"


def _added(explanation: Explanation, step: KeyStep, latex: Latex) -> list[str]:
    added = [latex.plus(step.bias)] if explanation.has_bias else []
    if explanation.slope is not None:
        distance = rf"\lvert {explanation.position} - {step.index} \rvert"
        added.append(rf"- {latex.factor(explanation.slope)} \cdot {distance}")
    return added


def _raw(explanation: Explanation, step: KeyStep, name: str, latex: Latex) -> Iterator[str]:
    """Yield how the products become the first score, whose name is given."""
    pieces, raw = _products(explanation, step, latex), latex.number(step.raw)
    if explanation.scale == 1 and explanation.kind != "cosine":
        yield equation(name, pieces, raw)
        return
    total = latex.number(step.dot)
    scaled = _scaled(explanation, _of_unit_length(explanation, step, total, latex), latex)
    if len(pieces) > _IN_FRACTION:
        yield equation(r"\mathrm{sum}", pieces, total)
        yield f"{name} = {scaled} = {raw}"
    else:
        inner = _of_unit_length(explanation, step, " ".join(pieces), latex)
        yield f"{name} = {_scaled(explanation, inner, latex)} = {scaled} = {raw}"


def _of_unit_length(explanation: Explanation, step: KeyStep, total: str, latex: Latex) -> str:
    """Return a product divided by the lengths of query and key where the score is their cosine."""
    if explanation.kind != "cosine":
        return total
    return rf"\frac{{{total}}}{{{latex.number(explanation.norm)} \cdot {latex.number(step.norm)}}}"


def _products(explanation: Explanation, step: KeyStep, latex: Latex) -> list[str]:
    pairs = list(zip(explanation.compared.tolist(), step.key.tolist(), strict=True))
    if explanation.kind == "additive":
        vector = [] if explanation.vector is None else explanation.vector.tolist()
        terms = [
            rf"{latex.factor(v)} \tanh\left({latex.number(q)} {latex.plus(k)}\right)"
            for v, (q, k) in zip(vector, pairs, strict=True)
        ]
    else:
        terms = [rf"{latex.factor(q)} \cdot {latex.factor(k)}" for q, k in pairs]
    return latex.total(terms, step.products.tolist(), tags=_indices("d", terms))


def _weight_blocks(explanation: Explanation, latex: Latex) -> Iterator[str]:
    if explanation.fully_masked:
        yield "This query sees no key: every weight is 0."
    if explanation.denominator:
        yield "They are the softmax of the scores: " + (
            "all scores are equal, and so are all weights."
            if all_equal(explanation)
            else f"${latex.number(explanation.shift)}$ is the largest, and subtracting it keeps "
            "the exponentials within range and changes no weight."
        )
        power = rf"e^{{\mathrm{{score}} {_less_shift(explanation, latex)}}}"
        yield _block(rf"\mathrm{{weight}} = \frac{{{power}}}{{\mathrm{{denominator}}}}")
        yield _block(_denominator(explanation, latex))
        yield from map(_block, _strongest_weight(explanation, latex))
        lse = rf"{latex.number(explanation.shift)} + \ln {latex.number(explanation.denominator)}"
        summed = rf"\ln \sum e^{{\mathrm{{score}}}} = {lse}"
        yield _block(rf"\mathrm{{lse}} = {summed} = {latex.number(explanation.lse)}")
    yield _table(explanation, Notation(latex.digits))


def _strongest_weight(explanation: Explanation, latex: Latex) -> Iterator[str]:
    """Yield the largest weight with the numbers put in; nothing if there is only a sink."""
    step = strongest(explanation)
    if step is not None:
        share = (
            rf"\frac{{{latex.number(step.exponential)}}}{{{latex.number(explanation.denominator)}}}"
        )
        name = rf"\mathrm{{weight}}({_key_name(explanation, step)})"
        yield f"{name} = {share} = {latex.number(step.weight)}"


def _denominator(explanation: Explanation, latex: Latex) -> str:
    seen = seen_steps(explanation)
    tags: list[str | None] = [_key_name(explanation, step) for step in seen]
    shift = _less_shift(explanation, latex)
    terms = [rf"e^{{{latex.number(step.score)} {shift}}}" for step in seen]
    sizes = [step.exponential for step in seen]
    if explanation.sink is not None:
        mark = rf"\underbrace{{e^{{{latex.number(explanation.sink)} {shift}}}}}_{{\text{{sink}}}}"
        terms, sizes, tags = [*terms, mark], [*sizes, explanation.sink_exponential], [*tags, None]
    rest = explanation.rest and Rest(explanation.rest.seen, explanation.rest.exponential)
    pieces = latex.total(terms, sizes, rest or None, tags=tags)
    return equation(r"\mathrm{denominator}", pieces, latex.number(explanation.denominator))


def _less_shift(explanation: Explanation, latex: Latex) -> str:
    return latex.plus(-explanation.shift) if explanation.shift else "- 0"


def _table(explanation: Explanation, notation: Notation) -> str:
    rows = list(table_rows(explanation))
    texts = row_texts(rows, notation)
    headings = headings_of(texts)
    cells = (
        [_row_name(explanation, row), *_row_cells(row, own, headings)]
        for row, own in zip(rows, texts, strict=True)
    )
    shown = [_HEADINGS.get(heading, heading) for heading in headings]
    return markdown_table(["key", *shown], cells)


def _row_name(explanation: Explanation, row: Row) -> str:
    step = row.step
    if step is None:
        return words(row.name)
    label = words(step.label or "").strip()
    return f"{step.index} {label}" if label else f"${_key_name(explanation, step)}$"


def _row_cells(row: Row, texts: dict[str, str], headings: list[str]) -> list[str]:
    """Return the numbers of a row; a hidden key says why it has no more, and gets nothing."""
    cells = [texts.get(heading, "").replace("−inf", "−∞") for heading in headings]
    if row.words:
        known = headings.index("score") + 1
        cells[known:] = [words(row.words), *["0"] * (len(cells) - known - 1)]
    return cells


def _context_blocks(explanation: Explanation, latex: Latex) -> Iterator[str]:
    if explanation.context is None:
        return
    yield "## Context"
    tags = [_key_name(explanation, step) for step in seen_steps(explanation)]
    for column, total in enumerate(explanation.context[:CONTEXT_COLUMNS].tolist()):
        told = context_sum(explanation, column)
        terms = _terms(told, latex)
        name = rf"\mathrm{{context}}_{{{column}}}"
        if terms:
            pieces = latex.total(terms, told.sizes, told.rest, tags=tags)
            yield _block(equation(name, pieces, latex.number(total)))
        else:
            yield _block(f"{name} = {latex.number(total)}")
    yield from _more_columns(len(explanation.context), CONTEXT_COLUMNS)


def _more_columns(count: int, told: int) -> Iterator[str]:
    if count > told:
        yield f"… and {counted(count - told, 'more column')}."


def _output_blocks(explanation: Explanation, latex: Latex) -> Iterator[str]:
    output = explanation.output
    if output is None:
        return
    yield "## Output"
    bias = "" if output.bias is None else " + b_o"
    head = explanation.head or 0
    if output.heads == 1:
        yield _block(rf"\mathrm{{output}} = \mathrm{{context}} \, W_o{bias}")
    else:
        share, own = (rf"\mathrm{{context}}^{{({h})}} \, W_o^{{({h})}}" for h in ("h", head))
        sum_of_all = rf"\sum_{{h=0}}^{{{output.heads - 1}}} {share}{bias}"
        yield _block(rf"\mathrm{{output}} = {sum_of_all}")
        yield f"The share of this head, ${own}$:"
    name = "output" if output.heads == 1 else "share"
    for column in range(min(len(output.share), MADE_COLUMNS)):
        told = output_sum(explanation, output, column)
        terms = _terms(told, latex)
        pieces = latex.total(terms, told.sizes, tags=_indices("c", terms))
        added, total = whole_output(output, column)
        pieces += [] if added is None else [latex.plus(added)]
        yield _block(equation(rf"\mathrm{{{name}}}_{{{column}}}", pieces, latex.number(total)))
    yield from _more_columns(len(output.share), MADE_COLUMNS)
