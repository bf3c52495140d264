"""The sections of an explanation: equations, notes, and the place of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncli.errors.text import counted, places
from attncli.explanation.formulas import Equation, Formula, added, call, name_of, named, roman

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.explanation.data import Explanation, KeyStep, OutputShare, QueryMade, QueryNorm
    from attncli.explanation.formulas import Numbers

# Columns whose sums are shown: of the context, and of projections, whose sums are longer.
_CONTEXT_COLUMNS, _MADE_COLUMNS = 8, 4


@dataclass
class Section:
    """A part of an explanation: its rule, perhaps the table of the keys, equations and notes."""

    title: str
    rule: list[Equation | str] = field(default_factory=list)
    parts: list[Equation | str] = field(default_factory=list)
    table: bool = False


def title(e: Explanation) -> str:
    """Return the heading: which query is explained."""
    if e.query_label is None:
        return f"How query {e.query} attends"
    seen = bool(e.query_label.strip(" "))
    label = name_of("q", e.query, e.query_label).line
    return f"How query {e.query} " + (f"“{label}”" if seen or e.query_label else label) + " attends"


def facts(e: Explanation) -> list[str]:
    """Return the facts below the title: the place, the number of keys, the dtype."""
    where = {"batch": e.batch, "head": e.head, "key/value head": e.kv_head}
    return [*places(where), counted(e.keys, "key"), e.dtype]


def sections(e: Explanation, number: Numbers) -> Iterator[Section]:
    """Yield an explanation from the query to the output."""
    yield _query(e, number)
    yield _scores(e, number)
    yield _weights(e, number)
    if e.context is not None:
        yield _context(e, number, e.context)
    if e.output is not None and e.context is not None:
        yield _output(e, number, e.output, e.context)


def _products(
    number: Numbers, some: Sequence[float], others: Sequence[float], letter: str, text: str = ""
) -> Formula:
    """Return a sum of products of numbers, each tagged by a letter and its place."""
    tags = [named(f"{text or letter}{i}", f"{letter}_{{{i}}}") for i in range(len(some))]
    pairs = list(zip(some, others, strict=True))
    terms = [number(one) * number(other) for one, other in pairs]
    return added(number.total(terms, [one * other for one, other in pairs], tags))


# --- the query -------------------------------------------------------------------------------


def _query(e: Explanation, number: Numbers) -> Section:
    section = Section("" if e.made is None else "Query")
    if e.made is not None:
        section.rule += _made_rule(e, e.made)
        section.parts += _made(e, number, e.made)
    section.parts.append(Equation(roman("q"), (number.row(e.given),)))
    section.parts += _rotated(e, number)
    if e.kind == "general":
        section.parts.append(Equation(named("q W", f"{_q(e).tex} W"), (number.row(e.compared),)))
    if e.own_vector is not None:
        section.parts.append(Equation(roman("v"), (number.row(e.own_vector),)))
    if e.kind == "cosine":
        section.parts.append(Equation(_length(_q(e)), (number(e.norm),)))
    return section


def _made_rule(e: Explanation, made: QueryMade) -> Iterator[Equation | str]:
    projected = named("x · wq", r"x \, W_q")
    if made.bias is not None:
        projected += named("bq", "b_q")
    yield Equation(roman("q" if made.norm is None else "p"), (projected,))
    if made.columns is not None:
        first, last = made.columns
        part = f"column {first}" if first == last else f"columns {first} to {last}"
        yield f"this head is head {e.head or 0}: {part} of the projection"
    placed = "" if made.position is None else " with its sinusoidal position added"
    yield f"x is the embedding of the query{placed}"
    if made.norm is not None:
        scaled = roman("p") / roman("rms") * named("q_norm", r"w_q")
        yield Equation(roman("q"), (scaled,))
        joint = ", of all heads together" if made.norm.joint else ""
        yield f"q_norm is a weight, rms the root of the mean square of p plus ε{joint}"
    yield f"keys {'' if e.context is None else 'and values '}are made likewise"


def _made(e: Explanation, number: Numbers, made: QueryMade) -> Iterator[Equation]:
    x = roman("x")
    if made.position is not None:
        yield Equation(x, (number.row(made.given) + number.row(made.position),))
    yield Equation(x, (number.row(made.embedding),))
    name, result = ("q", e.given) if made.norm is None else ("p", made.norm.projected)
    for column in range(min(len(e.given), _MADE_COLUMNS)):
        weights = made.weight[:, column].tolist()
        sums = _products(number, made.embedding.tolist(), weights, "x")
        if made.bias is not None:
            sums += number(made.bias[column])
        yield Equation(roman(name, column), (sums, number(result[column])))
    if made.norm is not None:
        yield from _normed(e, number, made.norm)


def _normed(e: Explanation, number: Numbers, norm: QueryNorm) -> Iterator[Equation]:
    yield Equation(roman("p"), (number.row(norm.projected),))
    of_all = "all heads" if norm.joint else "p"
    mean = named(f"mean square of {of_all}", rf"\text{{mean square of {of_all}}}")
    rms = number(norm.rms)
    yield Equation(roman("rms"), (call("sqrt", mean + number(norm.epsilon)), rms))
    scaled = number(norm.projected[0]) / rms * number(norm.weight[0])
    yield Equation(roman("q", 0), (scaled, number(e.given[0])))


def _rotated(e: Explanation, number: Numbers) -> Iterator[Equation | str]:
    """Yield the rotation of the query: the angles, its first component, and all components."""
    if e.rope is None or e.rotated is None or e.angles is None:
        return
    frequency = named("frequency", r"\mathrm{frequency}_p")
    if e.rope.frequencies is None:
        base, exponent = number(e.rope.base), f"-2p/{len(e.given)}"
        frequency = named(f"{base.line}^({exponent})", f"{base.tex}^{{{exponent}}}")
    yield (
        "each pair of components turns by an angle that grows with the position, here "
        f"{e.position}: pair 0 is components 0 and {e.partner}"
    )
    yield Equation(named("angle of pair p", r"\theta_p"), (number(e.position) * frequency,))
    yield Equation(named("angles", r"\theta"), (number.row(e.angles),))
    first, second, turn = map(number, (e.given[0], e.given[e.partner], e.angles[0]))
    terms = first * call("cos", turn) - second * call("sin", turn)
    yield Equation(named("rotated[0]", r"\tilde q_0"), (terms, number(e.rotated[0])))
    yield Equation(named("rotated", r"\tilde q"), (number.row(e.rotated),))


def _q(e: Explanation) -> Formula:
    return named("q", "q" if e.rope is None else r"\tilde q")


def _length(of: Formula) -> Formula:
    return named(f"‖{of.line}‖", rf"\lVert {of.tex} \rVert")


# --- the scores ------------------------------------------------------------------------------


def _key_name(e: Explanation, step: KeyStep) -> Formula:
    """Return the name of a key in formulas; a label that several keys share gets the index."""
    same = sum(other.label == step.label for other in e.steps) > 1
    return name_of("k", step.index, step.label, several=same)


def _scores(e: Explanation, number: Numbers) -> Section:
    section = Section("Scores", [Equation(roman("score"), (_rule(e, number),))])
    if e.rope is not None:
        section.rule.append("q and k are rotated by their position (rope)")
    for step in e.steps:
        section.parts += _scored(e, number, step)
    if e.rest is not None:
        told = [f"{e.rest.seen:,} more with smaller scores"] if e.rest.seen else []
        told += [f"{e.rest.hidden:,} more hidden: {e.rest.hidden_by}"] if e.rest.hidden else []
        section.parts.append("… " + " and ".join(told))
    return section


def _rule(e: Explanation, number: Numbers) -> Formula:
    q, k = _q(e), named("k", "k" if e.rope is None else r"\tilde k")
    rule = q * k
    if e.kind == "cosine":
        rule /= _length(q) * _length(k)
    elif e.kind == "general":
        rule = named("(q W)", f"({q.tex} W)") * k
    elif e.kind == "additive":
        rule = call("sum", roman("v") * call("tanh", q + k))
    rule = _scaled(e, number, rule, call("sqrt", number(len(e.given))))
    if e.softcap is not None:
        rule = _capped(number(e.softcap), rule)
    return _biased(e, rule, roman("bias"), roman("slope") * roman("distance"))


def _biased(e: Explanation, score: Formula, bias: Formula, penalty: Formula) -> Formula:
    """Return a score with what is added to it: the bias, and the penalty of ALiBi."""
    if e.has_bias:
        score += bias
    return score if e.slope is None else score - penalty


def _scaled(e: Explanation, number: Numbers, product: Formula, root: Formula) -> Formula:
    """Return a product with the scale, which is often 1 / √D."""
    if e.scale == 1:
        return product
    usual = e.scale == 1 / math.sqrt(len(e.given))
    return product / root if usual else product * number(e.scale)


def _capped(cap: Formula, inner: Formula) -> Formula:
    return cap * call("tanh", inner / cap)


def _scored(e: Explanation, number: Numbers, step: KeyStep) -> Iterator[Equation]:
    """Yield the equations from the products to the score of one key, or why it is hidden."""
    query, key = name_of("q", e.query, e.query_label), _key_name(e, step)

    def of(word: str) -> Formula:
        latex = rf"\mathrm{{{word}}}({query.tex} \to {key.tex})"
        return named(f"{word}({query.line} → {key.line})", latex)

    if step.hidden:
        why = "; ".join(f"{reason.rule}: {reason.words}" for reason in step.hidden)
        yield Equation(of("score"), (number(-math.inf),), f"hidden by {why}")
        return
    added_later = e.has_bias or e.slope is not None
    if e.rope is not None:
        yield Equation(named(f"k({key.line})", f"k({key.tex})"), (number.row(step.given),))
        turned = named(f"rotated k({key.line})", rf"\tilde k({key.tex})")
        yield Equation(turned, (number.row(step.key),))
    sides = [*_products_scaled(e, number, step), number(step.raw)]
    yield Equation(of("raw" if added_later or e.softcap is not None else "score"), tuple(sides))
    if e.softcap is not None:
        capped = _capped(number(e.softcap), number(step.raw)), number(step.capped)
        yield Equation(of("capped" if added_later else "score"), capped)
    if added_later:
        apart = call("abs", number(e.position) - number(step.index))
        penalty = number(e.slope or 0.0) * apart
        total = _biased(e, number(step.capped), number(step.bias), penalty)
        yield Equation(of("score"), (total, number(step.score)))


def _products_scaled(e: Explanation, number: Numbers, step: KeyStep) -> Iterator[Formula]:
    """Yield the scaled products of query and key one by one, then their scaled sum."""
    width = len(e.given)
    for terms, root in (
        (_terms(e, number, step), call("sqrt", number(width))),
        (number(step.dot), number(math.sqrt(width))),
    ):
        lengths = number(e.norm) * number(step.norm)
        yield _scaled(e, number, terms / lengths if e.kind == "cosine" else terms, root)
        if e.scale == 1 and e.kind != "cosine":
            return


def _terms(e: Explanation, number: Numbers, step: KeyStep) -> Formula:
    query, key = e.compared.tolist(), step.key.tolist()
    if e.kind != "additive" or e.vector is None:
        return _products(number, query, key, "d")
    terms = [call("tanh", number(q) + number(k)) for q, k in zip(query, key, strict=True)]
    if e.own_vector is not None:
        terms = [number(v) * wave for v, wave in zip(e.own_vector, terms, strict=True)]
    tags = [named(f"d{i}", f"d_{{{i}}}") for i in range(len(terms))]
    return added(number.total(terms, step.products.tolist(), tags))


# --- the weights, the context and the output -------------------------------------------------


def _weights(e: Explanation, number: Numbers) -> Section:
    section = Section("Weights", table=True)
    sink = "" if e.sink is None else "; the sink takes all the attention"
    if e.fully_masked:
        section.rule.append(f"this query sees no key, so every weight is 0{sink}")
    else:
        shifted = call("exp", roman("score") - number(e.shift))
        section.rule.append(Equation(roman("weight"), (shifted / roman("denominator"),)))
        section.rule += _softmax_words(e)
    if not e.denominator:
        sides = call("ln", number(0)), number(-math.inf)
        section.parts.append(Equation(roman("lse"), sides))
        return section
    total = number(e.denominator)
    section.parts.append(Equation(roman("denominator"), (_exponentials(e, number), total)))
    if (most := max(_seen(e), key=lambda step: step.weight, default=None)) is not None:
        key = _key_name(e, most)
        name = named(f"weight({key.line})", rf"\mathrm{{weight}}({key.tex})")
        share = number(most.exponential) / total, number(most.weight)
        section.parts.append(Equation(name, share))
    summed = call("ln", call("sum", call("exp", roman("score"))))
    logarithm = number(e.shift) + call("ln", total)
    section.parts.append(Equation(roman("lse"), (summed, logarithm, number(e.lse))))
    return section


def _softmax_words(e: Explanation) -> Iterator[str]:
    largest = "largest score" if e.sink is None else "largest of scores and sink"
    yield (
        f"the softmax of the scores; the {largest} is subtracted first, which keeps exp within "
        "range and changes no weight"
    )
    if e.sink is not None:
        yield "the sink counts in the denominator only"


def _seen(e: Explanation) -> list[KeyStep]:
    return [step for step in e.steps if not step.hidden]


def _exponentials(e: Explanation, number: Numbers) -> Formula:
    """Return the sum of all exponentials; the sink's is never left out."""
    seen = _seen(e)
    terms = [call("exp", number(step.score) - number(e.shift)) for step in seen]
    rest = (0, 0.0) if e.rest is None else (e.rest.seen, e.rest.exponential)
    tags = [_key_name(e, step) for step in seen]
    total = number.total(terms, [step.exponential for step in seen], tags, rest=rest)
    if e.sink is not None:
        exponential = call("exp", number(e.sink) - number(e.shift))
        total.append(exponential * named("[sink]", r"[\mathrm{sink}]"))
    return added(total)


def _context(e: Explanation, number: Numbers, context: npt.NDArray[Any]) -> Section:
    section = Section("Context", ["the values, each times its weight"])
    seen = _seen(e)
    tags, weights = [_key_name(e, step) for step in seen], [step.weight for step in seen]
    for column, result in enumerate(context[:_CONTEXT_COLUMNS]):
        terms = [number(s.weight) * number(s.value[column]) for s in seen if s.value is not None]
        sizes = [float(s.contribution[column]) for s in seen if s.contribution is not None]
        rest = 0, 0.0
        if e.rest is not None and e.rest.contribution is not None:
            rest = e.rest.seen, float(e.rest.contribution[column])
        total = number.total(terms, sizes, tags, rest=rest, order=weights)
        sums = (added(total),) if total else ()
        section.parts.append(Equation(roman("context", column), (*sums, number(result))))
    section.parts += _more_columns(len(context), _CONTEXT_COLUMNS)
    return section


def _output(
    e: Explanation, number: Numbers, output: OutputShare, context: npt.NDArray[Any]
) -> Section:
    section, alone = Section("Output"), output.heads == 1
    bias = output.bias if alone else None
    projected = named("context · wo", r"\mathrm{context} \, W_o")
    if bias is not None:
        projected += named("bo", "b_o")
    name = "output" if alone else "share"
    section.rule.append(Equation(roman(name), (projected,)))
    if not alone:
        shares = "" if output.bias is None else " and bo"
        section.rule.append(
            f"this is the share of head {e.head or 0}, with its rows of wo; the shares of "
            f"{output.heads} heads{shares} add up to the output"
        )
    for column, total in enumerate(output.share[:_MADE_COLUMNS].tolist()):
        weights = output.weight[:, column].tolist()
        sums = _products(number, context.tolist(), weights, "c", "context")
        if bias is not None:
            sums, total = sums + number(bias[column]), total + float(bias[column])  # noqa: PLW2901
        section.parts.append(Equation(roman(name, column), (sums, number(total))))
    section.parts += _more_columns(len(output.share), _MADE_COLUMNS)
    return section


def _more_columns(count: int, told: int) -> list[str]:
    more = counted(count - told, "more column")
    return [f"… {more} (--format json has all)"] if count > told else []
