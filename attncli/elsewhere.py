"""What other libraries call an argument, and what serves here."""

from __future__ import annotations

__all__ = ["NOTHING", "called_here", "option_here", "takes_values_of"]

NOTHING = "nothing"
# Each begins with a name of ours.
_ELSEWHERE = {
    "attn_mask": "mask, or bias if its numbers are added to the scores",
    "attention_mask": "mask, or key_padding_mask if it is (B, S)",
    "src_mask": "mask",
    "tgt_mask": "mask",
    "key_mask": "key_padding_mask",
    "src_key_padding_mask": "key_padding_mask",
    "attn_bias": "bias",
    "attention_bias": "bias",
    "alibi": "alibi_slopes: true for those of the paper, or a list of them",
    "slopes": "alibi_slopes",
    "is_causal": "causal",
    "use_causal_mask": "causal",
    "rope_theta": "rope_base",
    "inv_freq": "rope_frequencies",
    "dropout": f"{NOTHING}: attncli drops nothing out",
    "dropout_p": f"{NOTHING}: attncli drops nothing out",
    "enable_gqa": f"{NOTHING}: fewer key and value heads are shared as they are",
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "q_num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "kv_num_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "window_size": "window",
    "local_window_size": "window",
    "left_window_size": "window, its first number",
    "right_window_size": "window, its second number",
    "window_left": "window, its first number",
    "window_right": "window, its second number",
    "sliding_window": "window: W - 1, 0 where a query sees W keys, itself included",
    "soft_cap": "softcap",
    "query_seq_lengths": "query_lengths",
    "key_value_seq_lengths": "kv_lengths",
    "cache_seqlens": "kv_lengths",
    "nonpad_kv_seqlen": "kv_lengths, with causal_align bottom-right",
    "seqused_k": "kv_lengths",
    "cu_seqlens": "segment_ids: np.repeat(np.arange(n), np.diff(cu_seqlens))",
    "cu_seqlens_q": "segment_ids: np.repeat(np.arange(n), np.diff(cu_seqlens_q))",
    "cu_seqlens_k": "kv_segment_ids: np.repeat(np.arange(n), np.diff(cu_seqlens_k))",
    "document_ids": "segment_ids",
    "q_segment_ids": "segment_ids",
    "query_segment_ids": "segment_ids",
    "key_segment_ids": "kv_segment_ids",
    "batch_first": "layout: sbd where it is false",
    "key_value_lengths": "kv_lengths",
    "logits_soft_cap": "softcap",
    "learnable_sink": "sinks",
    "s_aux": "sinks",
}
# What is given as a file, or as a list.
_OF_FILES = {
    *("mask", "bias", "key_padding_mask", "window"),
    *("kv_lengths", "query_lengths", "alibi_slopes", "sinks", "rope_frequencies"),
    *("segment_ids", "kv_segment_ids"),
}


def called_here(name: str, **more: str) -> str | None:
    """Return what an argument of another library is called here, as a hint; None if unknown.

    Parameters
    ----------
    name : str
    **more : str
        What serves for further names.

    Examples
    --------
    >>> called_here("is_causal")
    'here it is causal'
    """
    here = {**_ELSEWHERE, **more}.get(name.lower())
    return None if here is None else f"here it is {here}"


def option_here(name: str) -> str:
    """Return the option that first comes into question for a known argument of another library.

    Examples
    --------
    >>> option_here("attn_mask"), option_here("slopes")
    ('--mask', '--alibi-slopes')
    """
    if name.lower() == "alibi":  # true there, and a switch here
        return "--alibi"
    first = _ELSEWHERE[name.lower()].split()[0].strip(",:")
    return "--" + first.replace("_", "-")


def takes_values_of(name: str) -> bool:
    """Return whether an option here takes a file of what another library means by a known name.

    Examples
    --------
    >>> takes_values_of("attn_mask"), takes_values_of("sm_scale"), takes_values_of("cu_seqlens_k")
    (True, False, False)
    >>> takes_values_of("document_ids")
    True
    """
    first, _, rest = _ELSEWHERE[name.lower()].partition(", ")
    return first in _OF_FILES and (not rest or rest.startswith(("or ", "with ")))
