"""The door: arguments come in, a checked `Problem` goes out or one error.

Every rule on how arguments must fit together is here. Where query, key and value are left unread
(`attncli.attention`), the engine finds what is not finite; nothing else is checked behind it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, get_args

from attncli import arguments
from attncli.arguments import names_of
from attncli.calling import by_known_names
from attncli.names import MaskMeans, Score
from attncli.posing.inputs import advise_on_axes, inputs, output_projection
from attncli.posing.padding import checked_numbers
from attncli.posing.rules import labels_of, rules_of, standing
from attncli.posing.scores import (
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
from attncli.positions import BASE
from attncli.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from attncli.names import Align, Pairing, PrecisionName

__all__ = ["pose"]

_MASK_MEANS, _SCORES = get_args(MaskMeans), get_args(Score)


@by_known_names
def pose(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    mask_means: MaskMeans = "keep",
    bias: ArrayLike | None = None,
    key_padding_mask: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    query_lengths: ArrayLike | None = None,
    causal: bool = False,
    causal_align: Align | None = None,
    query_offset: ArrayLike | None = None,
    window: int | Sequence[int | None] | None = None,
    segment_ids: ArrayLike | None = None,
    kv_segment_ids: ArrayLike | None = None,
    softcap: float | None = None,
    alibi_slopes: bool | ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    rope: Pairing | None = None,
    rope_base: float = BASE,
    rope_frequencies: ArrayLike | None = None,
    score: Score = "dot",
    score_weight: ArrayLike | None = None,
    score_vector: ArrayLike | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    layout: str | None = None,
    precision: PrecisionName | None = None,
    wo: ArrayLike | None = None,
    bo: ArrayLike | None = None,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    sources: Mapping[str, str] | None = None,
    unread: bool = False,
) -> Problem:
    """Check the arguments of `attncli.attention` and return the problem they pose.

    Parameters
    ----------
    query, key, value, scale, …, precision
        As in `attncli.attention`.
    wo : array_like (H·E, out), optional
        The context becomes context · wo + bo, its heads side by side: of packed inputs, or of
        inputs without an axis of heads.
    bo : array_like (out,), optional
    query_labels, key_labels : sequence of str, optional
        Names of the L queries and the S keys, for tables and pictures.
    sources : mapping of str to str, optional
        Argument name to the file it came from, for errors.
    unread : bool
        Leave it to the engine to notice if query, key or value is not finite: for a single query,
        looking at them beforehand would take as long as the answer.

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
    # Before they are compared with words: an array compares item by item.
    arguments.choice(named("mask_means"), mask_means, _MASK_MEANS)
    arguments.choice(named("score"), score, _SCORES)
    q, k, v, form = inputs(
        named,
        query,
        key,
        value,
        heads=heads,
        kv_heads=kv_heads,
        layout=layout,
        # W of the general score leads from the width of the query to that of the key.
        any_width=score == "general",
    )
    shape = (*q.shape[:3], k.shape[2])
    visible = rules_of(
        named,
        form,
        shape,
        mask=mask,
        mask_means=mask_means,
        key_padding_mask=key_padding_mask,
        kv_lengths=kv_lengths,
        query_lengths=query_lengths,
        causal=causal,
        window=window,
        segment_ids=segment_ids,
        kv_segment_ids=kv_segment_ids,
    )
    slopes = slopes_of(named, alibi_slopes, shape[1])
    turn = rope_of(named, rope, rope_base, rope_frequencies, q.shape[3], k.shape[3])
    positional = slopes is not None or turn is not None
    visible = standing(named, visible, causal_align, query_offset, shape[0], positional=positional)
    advise_on_axes(form, q, k)
    output = output_projection(named, wo, bo, form, shape[1], v)
    widest = q, k, v, None if output is None else output.weight
    dtype = arguments.computing_dtype(named("precision"), precision, *widest)
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
        scale=scale_of(named, scale, score, q.shape[3], dtype),
        score=score,
        score_weight=score_weight_of(named, score, score_weight, (q.shape[3], k.shape[3])),
        score_vector=score_vector_of(named, score, score_vector, q.shape[3]),
        softcap=softcap_of(named, softcap, dtype),
        bias=bias_of(named, bias, form, shape, dtype),
        alibi_slopes=slopes,
        sinks=sinks_of(named, sinks, shape[1], dtype),
        rope=turn,
        output=output,
        mask_means=mask_means,
        query_labels=labels_of("query", named("query_labels"), query_labels, shape),
        key_labels=labels_of("key", named("key_labels"), key_labels, shape),
        unread=look if unread else None,
    )
