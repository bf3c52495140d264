"""What an explanation says, section by section: equations, notes, and where its table stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncli.errors.text import counted, places
from attncli.explanation.formulas import (
    Call,
    Equation,
    Letters,
    Node,
    Number,
    Power,
    Sum,
    Vector,
    name_of,
    roman,
)
from attncli.numerics.positions import BASE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.explanation.data import Explanation, KeyStep, OutputShare, QueryMade, QueryNorm

__all__ = ["facts", "key_name", "sections", "title"]

# Columns of wide values and of projections whose sums are shown: those of projections are long.
_CONTEXT_COLUMNS, _MADE_COLUMNS = 8, 4
# Components of an encoding of the position that are written out: the others are alike.
_WAVES = 4
_MINUS_INFINITY = Number(-math.inf)


@dataclass
class Section:
    """A part of an explanation: how it is computed in letters, then the numbers put in, and notes.

    The title is empty for the part about a query that was given as it is. The table of the keys
    stands before the equations.
    """

    title: str
    rule: list[Equation | str] = field(default_factory=list)
    parts: list[Equation | str] = field(default_factory=list)
    table: bool = False


def title(e: Explanation) -> str:
    """Return the heading: which query is explained."""
    if e.query_label is None:
        return f"How query {e.query} attends"
    seen = bool(e.query_label.strip(" "))
    label = name_of("q", e.query, e.query_label).text
    return f"How query {e.query} " + (f"“{label}”" if seen or e.query_label else label) + " attends"


def facts(e: Explanation) -> list[str]:
    """Return what is to be known before the numbers: the place, how many keys, the dtype."""
    where = {"batch": e.batch, "head": e.head, "key/value head": e.kv_head}
    return [*places(where), counted(e.keys, "key"), e.dtype]


def sections(e: Explanation) -> Iterator[Section]:
    """Yield an explanation from the query to the output."""
    yield _query(e)
    yield _scores(e)
    yield _weights(e)
    if e.context is not None:
        yield _context(e, e.context)
    if e.output is not None and e.context is not None:
        yield _output(e, e.output, e.context)


def _products(
    pairs: Sequence[tuple[float, float]], letter: str, text: str = "", **more: Any
) -> Sum:
    """Return a sum of products of numbers, each tagged by a letter and its place."""
    tags = [Letters(f"{text or letter}{i}", f"{letter}_{{{i}}}") for i in range(len(pairs))]
    terms = tuple(Number(one) * Number(other) for one, other in pairs)
    return Sum(terms, [one * other for one, other in pairs], tags, **more)


# --- the query -------------------------------------------------------------------------------


def _query(e: Explanation) -> Section:
    section = Section("" if e.made is None else "Query")
    if e.made is not None:
        section.rule += _made_rule(e, e.made)
        section.parts += _made(e, e.made)
    section.parts.append(Equation(roman("q"), (Vector(e.given),)))
    section.parts += _rotated(e)
    if e.kind == "general":
        section.parts.append(Equation(Letters("q W", f"{_q(e).latex} W"), (Vector(e.compared),)))
    if e.own_vector is not None:
        section.parts.append(Equation(roman("v"), (Vector(e.own_vector),)))
    if e.kind == "cosine":
        section.parts.append(Equation(_length(_q(e)), (Number(e.norm),)))
    return section


def _made_rule(e: Explanation, made: QueryMade) -> Iterator[Equation | str]:
    """Yield how the query is made, in letters and words."""
    projected: Node = Letters("x · wq", r"x \, W_q")
    if made.bias is not None:
        projected += Letters("bq", "b_q")
    yield Equation(roman("q" if made.norm is None else "p"), (projected,))
    if made.columns is not None:
        first, last = made.columns
        part = f"column {first}" if first == last else f"columns {first} to {last}"
        yield f"this head is head {e.head or 0}: {part} of the projection"
    placed = "" if made.position is None else " with its position added"
    yield f"x is the embedding of the query{placed}"
    if made.norm is not None:
        scaled = roman("p") / roman("rms") * Letters("q_norm", r"w_q")
        yield Equation(roman("q"), (scaled,))
        joint = ", of all heads together" if made.norm.joint else ""
        yield f"q_norm is a weight, rms the root of the mean square of p plus ε{joint}"
    normed = "; the keys have a norm of their own, k_norm" if made.keys_normed else ""
    yield f"keys {'' if e.context is None else 'and values '}are made likewise{normed}"


def _made(e: Explanation, made: QueryMade) -> Iterator[Equation]:
    """Yield the embedding, and how the first columns of the query follow from it."""
    x = roman("x")
    if made.position is not None:
        yield Equation(x, (Vector(made.given) + Vector(made.position),))
        yield Equation(roman("position"), (_waves(e.query, len(made.position)),))
    yield Equation(x, (Vector(made.embedding),))
    name, result = ("q", e.given) if made.norm is None else ("p", made.norm.projected)
    for column in range(min(len(e.given), _MADE_COLUMNS)):
        pairs = zip(made.embedding.tolist(), made.weight[:, column].tolist(), strict=True)
        sums = _products([*pairs], "x")
        if made.bias is not None:
            sums += Number(float(made.bias[column]))
        yield Equation(roman(name, column), (sums, Number(float(result[column]))))
    if made.norm is not None:
        yield from _normed(e, made.norm)


def _waves(query: int, width: int) -> Letters:
    """Return the first components of a sinusoidal position."""
    text, latex = [], []
    for column in range(0, min(width, _WAVES), 2):
        power = f"{column}/{width}"
        plain = f"{query} / {BASE:g}^({power})" if column else f"{query}"
        angle = rf"\frac{{{query}}}{{{BASE:g}^{{{power}}}}}" if column else f"{query}"
        for wave in ("sin", "cos")[: width - column]:
            text.append(f"{wave}({plain})")
            latex.append(rf"\{wave} {angle}")
    if width > _WAVES:
        text.append("…")
        latex.append(r"\ldots")
    return Letters(f"({', '.join(text)})", f"({', '.join(latex)})")


def _normed(e: Explanation, norm: QueryNorm) -> Iterator[Equation]:
    yield Equation(roman("p"), (Vector(norm.projected),))
    of_all = "all heads" if norm.joint else "p"
    mean = Letters(f"mean square of {of_all}", rf"\text{{mean square of {of_all}}}")
    rms = Number(norm.rms)
    yield Equation(roman("rms"), (Call("sqrt", mean + Number(norm.epsilon)), rms))
    scaled = Number(float(norm.projected[0])) / rms * Number(float(norm.weight[0]))
    yield Equation(roman("q", 0), (scaled, Number(float(e.given[0]))))


def _rotated(e: Explanation) -> Iterator[Equation | str]:
    """Yield the angles of the query's pairs, its first component rotated, and all of it."""
    if e.rope is None or e.rotated is None or e.angles is None:
        return
    frequency: Node = Letters("frequency", r"\mathrm{frequency}_p")
    if e.rope.frequencies is None:
        exponent = Letters(f"-2p/{len(e.given)}", f"-2p/{len(e.given)}")
        frequency = Power(Number(e.rope.base), exponent)
    yield (
        "each pair of components turns by an angle that grows with the position, here "
        f"{e.position}: pair 0 is components 0 and {e.partner}"
    )
    yield Equation(Letters("angle of pair p", r"\theta_p"), (Number(e.position) * frequency,))
    yield Equation(Letters("angles", r"\theta"), (Vector(e.angles),))
    first, second, turn = (Number(float(x)) for x in (e.given[0], e.given[e.partner], e.angles[0]))
    terms = first * Call("cos", turn) - second * Call("sin", turn)
    yield Equation(Letters("rotated[0]", r"\tilde q_0"), (terms, Number(float(e.rotated[0]))))
    yield Equation(Letters("rotated", r"\tilde q"), (Vector(e.rotated),))


def _q(e: Explanation) -> Letters:
    return Letters("q", "q" if e.rope is None else r"\tilde q")


def _k(e: Explanation) -> Letters:
    return Letters("k", "k" if e.rope is None else r"\tilde k")


def _length(of: Letters) -> Letters:
    return Letters(f"‖{of.text}‖", rf"\lVert {of.latex} \rVert")


# --- the scores ------------------------------------------------------------------------------


def key_name(e: Explanation, step: KeyStep) -> Letters:
    """Return what a key is called in formulas; the index goes with labels of several keys."""
    same = sum(other.label == step.label for other in e.steps) > 1
    return name_of("k", step.index, step.label, several=same)


def _scores(e: Explanation) -> Section:
    section = Section("Scores", [Equation(roman("score"), (_rule(e),))])
    if e.rope is not None:
        section.rule.append("q and k are rotated by their position (rope)")
    for step in e.steps:
        section.parts += _scored(e, step)
    if e.rest is not None:
        told = [f"{e.rest.seen:,} more with smaller scores"] if e.rest.seen else []
        told += [f"{e.rest.hidden:,} more hidden: {e.rest.hidden_by}"] if e.rest.hidden else []
        section.parts.append("… " + " and ".join(told))
    return section


def _rule(e: Explanation) -> Node:
    """Return how this problem scores a key, in letters."""
    q, k = _q(e), _k(e)
    rule: Node = q * k
    if e.kind == "cosine":
        rule /= _length(q) * _length(k)
    elif e.kind == "general":
        rule = Letters("(q W)", f"({q.latex} W)") * k
    elif e.kind == "additive":
        rule = Call("sum", roman("v") * Call("tanh", q + k))
    rule = _scaled(e, rule)
    if e.softcap is not None:
        rule = _capped(e.softcap, rule)
    if e.has_bias:
        rule += roman("bias")
    return rule if e.slope is None else rule - roman("slope") * roman("distance")


def _scaled(e: Explanation, product: Node, *, letters: bool = True) -> Node:
    """Return a product with the scale; √D as a root, or as the number that it is."""
    width = len(e.given)
    if e.scale == 1:
        return product
    if e.scale == 1 / math.sqrt(width):
        root = Call("sqrt", Number(width)) if letters else Number(math.sqrt(width))
        return product / root
    return product * Number(e.scale)


def _capped(cap: float, inner: Node) -> Node:
    return Number(cap) * Call("tanh", inner / Number(cap))


def _scored(e: Explanation, step: KeyStep) -> Iterator[Equation]:
    """Yield the equations from the products to the score of one key, or why it is hidden."""
    query, key = name_of("q", e.query, e.query_label), key_name(e, step)

    def of(word: str) -> Letters:
        latex = rf"\mathrm{{{word}}}({query.latex} \to {key.latex})"
        return Letters(f"{word}({query.text} → {key.text})", latex)

    if step.hidden:
        why = "; ".join(f"{reason.rule}: {reason.words}" for reason in step.hidden)
        yield Equation(of("score"), (_MINUS_INFINITY,), f"hidden by {why}")
        return
    added = e.has_bias or e.slope is not None
    first = "raw" if added or e.softcap is not None else "score"
    if e.rope is not None:
        yield Equation(Letters(f"k({key.text})", f"k({key.latex})"), (Vector(step.given),))
        turned = Letters(f"rotated k({key.text})", rf"\tilde k({key.latex})")
        yield Equation(turned, (Vector(step.key),))
    whole: list[Node] = [_scaled(e, _of_unit_length(e, step, _terms(e, step)))]
    if e.scale != 1 or e.kind == "cosine":
        dot = _of_unit_length(e, step, Number(step.dot))
        whole.append(_scaled(e, dot, letters=False))
    yield Equation(of(first), (*whole, Number(step.raw)))
    if e.softcap is not None:
        capped = _capped(e.softcap, Number(step.raw)), Number(step.capped)
        yield Equation(of("capped" if added else "score"), capped)
    if added:
        total: Node = Number(step.capped)
        if e.has_bias:
            total += Number(step.bias)
        if e.slope is not None:
            apart = Call("abs", Number(e.position) - Number(step.index))
            total -= Number(e.slope) * apart
        yield Equation(of("score"), (total, Number(step.score)))


def _of_unit_length(e: Explanation, step: KeyStep, product: Node) -> Node:
    """Return a product divided by the lengths of query and key where the score is their cosine."""
    return product / (Number(e.norm) * Number(step.norm)) if e.kind == "cosine" else product


def _terms(e: Explanation, step: KeyStep) -> Sum:
    """Return the products of query and key, component by component."""
    pairs = list(zip(e.compared.tolist(), step.key.tolist(), strict=True))
    products = _products(pairs, "d")
    if e.kind != "additive" or e.vector is None:
        return products
    waves = [Call("tanh", Number(q) + Number(k)) for q, k in pairs]
    factors = zip(e.vector.tolist(), waves, strict=True)
    terms = tuple(wave if v == 1 else Number(v) * wave for v, wave in factors)
    return Sum(terms, step.products.tolist(), products.tags)


# --- the weights, the context and the output -------------------------------------------------


def _weights(e: Explanation) -> Section:
    section = Section("Weights", table=True)
    sink = "" if e.sink is None else "; the sink takes all the attention"
    if e.fully_masked:
        section.rule.append(f"this query sees no key, so every weight is 0{sink}")
    else:
        shifted = Call("exp", roman("score") - Number(e.shift))
        section.rule.append(Equation(roman("weight"), (shifted / roman("denominator"),)))
        section.rule += _softmax_words(e)
    if not e.denominator:
        sides = Call("ln", Number(0)), _MINUS_INFINITY
        section.parts.append(Equation(roman("lse"), sides))
        return section
    total = Number(e.denominator)
    section.parts.append(Equation(roman("denominator"), (_exponentials(e), total)))
    if (most := max(_seen(e), key=lambda step: step.weight, default=None)) is not None:
        key = key_name(e, most)
        name = Letters(f"weight({key.text})", rf"\mathrm{{weight}}({key.latex})")
        share = Number(most.exponential) / total, Number(most.weight)
        section.parts.append(Equation(name, share))
    summed = Call("ln", Call("sum", Call("exp", roman("score"))))
    logarithm = Number(e.shift) + Call("ln", total)
    section.parts.append(Equation(roman("lse"), (summed, logarithm, Number(e.lse))))
    return section


def _softmax_words(e: Explanation) -> Iterator[str]:
    seen, sink = _seen(e), e.sink is not None
    listed = e.rest is None or not e.rest.seen
    if listed and not sink and len({step.score for step in seen}) == 1 < len(seen):
        yield "the softmax of the scores; all scores are equal, and so are all weights"
        return
    largest = "largest of scores and sink" if sink else "largest score"
    yield (
        f"the softmax of the scores; the {largest} is subtracted first, which keeps exp within "
        "range and changes no weight"
    )
    if sink:
        yield "the sink counts in the denominator only"


def _seen(e: Explanation) -> list[KeyStep]:
    return [step for step in e.steps if not step.hidden]


def _exponentials(e: Explanation) -> Sum:
    """Return the sum of all exponentials; that of the sink always stays."""

    def exponential(score: float) -> Node:
        return Call("exp", Number(score) - Number(e.shift))

    seen = _seen(e)
    terms = [exponential(step.score) for step in seen]
    if e.sink is not None:
        terms.append(exponential(e.sink) * Letters("[sink]", r"[\mathrm{sink}]"))
    rest = (0, 0.0) if e.rest is None else (e.rest.seen, e.rest.exponential)
    tags = [key_name(e, step) for step in seen]
    return Sum(tuple(terms), [step.exponential for step in seen], tags, rest)


def _context(e: Explanation, context: npt.NDArray[Any]) -> Section:
    section = Section("Context", ["the values, each times its weight"])
    seen = _seen(e)
    tags, weights = [key_name(e, step) for step in seen], [step.weight for step in seen]
    for column, total in enumerate(context[:_CONTEXT_COLUMNS].tolist()):
        values = [float(step.value[column]) for step in seen if step.value is not None]
        pairs = zip(weights, values, strict=True)
        terms = tuple(Number(weight) * Number(value) for weight, value in pairs)
        sizes = [float(s.contribution[column]) for s in seen if s.contribution is not None]
        rest = 0, 0.0
        if e.rest is not None and e.rest.contribution is not None:
            rest = e.rest.seen, float(e.rest.contribution[column])
        sums = (Sum(terms, sizes, tags, rest, weights),) if terms else ()
        section.parts.append(Equation(roman("context", column), (*sums, Number(total))))
    section.parts += _more_columns(len(context), _CONTEXT_COLUMNS)
    return section


def _output(e: Explanation, output: OutputShare, context: npt.NDArray[Any]) -> Section:
    section = Section("Output")
    alone = output.heads == 1
    projected: Node = Letters("context · wo", r"\mathrm{context} \, W_o")
    if alone and output.bias is not None:
        projected += Letters("bo", "b_o")
    name = "output" if alone else "share"
    section.rule.append(Equation(roman(name), (projected,)))
    if not alone:
        added = "" if output.bias is None else " and bo"
        section.rule.append(
            f"this is the share of head {e.head or 0}, with its rows of wo; the shares of "
            f"{output.heads} heads{added} add up to the output"
        )
    for column in range(min(len(output.share), _MADE_COLUMNS)):
        pairs = zip(context.tolist(), output.weight[:, column].tolist(), strict=True)
        sums, total = _products([*pairs], "c", "context"), float(output.share[column])
        if alone and output.bias is not None:
            bias = float(output.bias[column])
            sums, total = sums + Number(bias), total + bias
        section.parts.append(Equation(roman(name, column), (sums, Number(total))))
    section.parts += _more_columns(len(output.share), _MADE_COLUMNS)
    return section


def _more_columns(count: int, told: int) -> list[str]:
    more = counted(count - told, "more column")
    return [f"… {more} (--format json has all)"] if count > told else []
