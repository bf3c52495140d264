"""`pose` checks the arguments, and returns a `Problem` or raises one error.

Every rule on how arguments must fit together is checked here. The engine checks one thing only:
that query, key and value are finite, if they are left unread (`attncli.attention`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

from attncli.errors.calling import by_known_names, completed, showing
from attncli.errors.names import MaskMeans, Score
from attncli.numerics.positions import BASE
from attncli.problem import arguments
from attncli.problem.arguments import names_of
from attncli.problem.inputs import advise_on_axes, inputs, output_projection
from attncli.problem.padding import checked_numbers
from attncli.problem.problem import Problem
from attncli.problem.rules import labels_of, rules_of, standing
from attncli.problem.scores import (
    bias_of,
    refuse_steep,
    rope_of,
    scale_of,
    score_vector_of,
    score_weight_of,
    sinks_of,
    slopes_of,
    softcap_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from attncli.errors.names import Align, Pairing, PrecisionName

_MASK_MEANS, _SCORES = get_args(MaskMeans), get_args(Score)


class Rules(TypedDict, total=False):
    """The rules of a problem beside query, key and value; `attncli.attention` describes each."""

    scale: float | None
    mask: ArrayLike | None
    mask_means: MaskMeans
    bias: ArrayLike | None
    key_padding_mask: ArrayLike | None
    kv_lengths: ArrayLike | None
    query_lengths: ArrayLike | None
    causal: bool
    causal_align: Align | None
    query_offset: ArrayLike | None
    window: int | Sequence[int | None] | None
    segment_ids: ArrayLike | None
    kv_segment_ids: ArrayLike | None
    softcap: float | None
    alibi_slopes: bool | ArrayLike | None
    sinks: ArrayLike | None
    rope: Pairing | None
    rope_base: float
    rope_frequencies: ArrayLike | None
    score: Score
    score_weight: ArrayLike | None
    score_vector: ArrayLike | None
    heads: int | None
    kv_heads: int | None
    layout: str | None
    precision: PrecisionName | None


# The default of each rule, in the order of `Rules`.
RULES: dict[str, object] = dict.fromkeys(Rules.__annotations__)
RULES |= {"mask_means": "keep", "causal": False, "rope_base": BASE, "score": "dot"}


@by_known_names
@showing(Rules, RULES)
def pose(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    wo: ArrayLike | None = None,
    bo: ArrayLike | None = None,
    queries: tuple[int, int | None] | None = None,
    keys: tuple[int, int | None] | None = None,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    sources: Mapping[str, str] | None = None,
    unread: bool = False,
    **rules: Unpack[Rules],
) -> Problem:
    """Check the arguments of `attncli.attention` and return the problem they pose.

    Parameters
    ----------
    query, key, value, scale, …, precision
        As in `attncli.attention`.
    wo : array_like (H·E, out), optional
        The context becomes context · wo + bo, with its heads side by side. Only packed inputs, and
        inputs without a head axis, can have one.
    bo : array_like (out,), optional
    queries, keys : (start, stop), optional
        Pose only these queries or keys, with the rules and positions of the whole problem. An array
        of ``stop`` rows or more holds the whole, and one of ``stop - start`` rows only the part.
        Sinks count only in the part with key 0, so that `attncli.merge` of all parts gives the
        whole.
    query_labels, key_labels : sequence of str, optional
        Names of the L queries and the S keys, for tables and pictures.
    sources : mapping of str to str, optional
        Argument name to the file it came from, for errors.
    unread : bool
        Let the engine notice if query, key or value is not finite: for a single query, checking
        them beforehand would take as long as the answer.
    **rules
        As in `attncli.attention`.

    Returns
    -------
    Problem

    Raises
    ------
    AttnError
        An argument is not what it should be, or two do not fit together. Always one
        of its subclasses, and always a `ValueError`.

    Warns
    -----
    AttnWarning
        The arguments are right but probably not what was meant.
    """
    named = names_of(sources)
    given = completed(RULES, rules)
    # Checked before any comparison with a word: an array would compare item by item.
    arguments.choice(named("mask_means"), given["mask_means"], _MASK_MEANS)
    arguments.choice(named("score"), given["score"], _SCORES)
    score: Score = given["score"]
    shard = None
    if queries is not None or keys is not None:
        from attncli.problem.shards import shard_of  # noqa: PLC0415 - few problems are parts

        labels = {"query_labels": query_labels, "key_labels": key_labels}
        whole: dict[str, Any] = {"query": query, "key": key, "value": value, **labels}
        whole, given, shard = shard_of(whole, given, queries, keys)
        query, key, value, query_labels, key_labels = whole.values()
    q, k, v, form = inputs(named, query, key, value, given)
    shape = (*q.shape[:3], k.shape[2])
    widths = q.shape[3], k.shape[3]
    slopes = slopes_of(named, given["alibi_slopes"], shape[1])
    turn = rope_of(named, given, widths)
    positional = slopes is not None or turn is not None
    visible = rules_of(named, form, shape, given)
    visible = standing(named, visible, given, shape[0], positional=positional)
    advise_on_axes(form, q, k)
    output = output_projection(named, wo, bo, form, shape[1], v)
    widest = q, k, v, None if output is None else output.weight
    dtype = arguments.computing_dtype(named("precision"), given["precision"], *widest)
    look = partial(checked_numbers, named, form, q, k, v, visible, dtype)
    unread = arguments.flag("unread", unread)
    if not unread:
        k, v = look()
    if slopes is not None:
        refuse_steep(named, slopes, visible, shape, dtype)
    return Problem(
        query=q,
        key=k,
        value=v,
        dtype=dtype,
        layout=form,
        visible=visible,
        scale=scale_of(named, given["scale"], score, widths[0], dtype),
        score=score,
        score_weight=score_weight_of(named, score, given["score_weight"], widths),
        score_vector=score_vector_of(named, score, given["score_vector"], widths[0]),
        softcap=softcap_of(named, given["softcap"], dtype),
        bias=bias_of(named, given["bias"], form, shape, dtype),
        alibi_slopes=slopes,
        sinks=sinks_of(named, given["sinks"], shape[1], dtype),
        rope=turn,
        output=output,
        mask_means=given["mask_means"],
        query_labels=labels_of("query", named("query_labels"), query_labels, shape[2]),
        key_labels=labels_of("key", named("key_labels"), key_labels, shape[3]),
        unread=look if unread else None,
        shard=shard,
    )
