"""What other libraries call an argument, and what serves here."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ELSEWHERE", "Here", "option_of"]


class Here(NamedTuple):
    """What serves here in the place of an argument of another library.

    Attributes
    ----------
    name : str
        Of an argument; empty where nothing serves.
    words : str
        What a hint says behind the name, further names in braces; or in the place of it.
    same : bool
        Whether it takes the same values, if they are those of a file.
    switch : str
        The option for a single value, where it has another name.
    rule : bool
        Whether a dump that holds it means another problem than without it.
    """

    name: str
    words: str = ""
    same: bool = True
    switch: str = ""
    rule: bool = True

    def hint(self, *, as_options: bool = False) -> str:
        """Return the hint, with the names of arguments or those of their options.

        Examples
        --------
        >>> Here("mask", ", or {bias} if its numbers are added").hint(as_options=True)
        'here it is --mask, or --bias if its numbers are added'
        """
        if not self.name:
            return self.words
        named = option_of if as_options else str
        words = re.sub(r"\{(\w+)\}", lambda name: named(name[1]), self.words)
        return f"here it is {named(self.name)}{words}"


def option_of(name: str) -> str:
    """Return the option of an argument."""
    return "--" + name.replace("_", "-")


_OF_ENDS = ": np.repeat(np.arange(n), np.diff("
_SAME_ENDS = "; with causal, if queries and keys have the same"
_NO_DROPOUT = Here("", "attncli drops nothing out")
_OF_TRANSFORMER = Here(
    "mask",
    ", with {mask_means} drop: there, true is hidden; or {bias} if its numbers are added",
    same=False,
)
ELSEWHERE = {
    "attn_mask": Here("mask", ", or {bias} if its numbers are added to the scores"),
    "attention_mask": Here("mask", ", or {key_padding_mask} if it is (B, S)"),
    "src_mask": _OF_TRANSFORMER,
    "tgt_mask": _OF_TRANSFORMER,
    "key_mask": Here("key_padding_mask"),
    "src_key_padding_mask": Here(
        "key_padding_mask", ", with {mask_means} drop: there, true is padding", same=False
    ),
    "attn_bias": Here("bias"),
    "position_bias": Here("bias"),
    "ab": Here("bias", ": ab times sm_scale", same=False),
    "attention_bias": Here("bias"),
    "alibi": Here(
        "alibi_slopes",
        ": true for those of the paper, or a list of them",
        same=False,
        switch="--alibi",
    ),
    "slopes": Here("alibi_slopes"),
    "is_causal": Here("causal"),
    "use_causal_mask": Here("causal"),
    "rope_theta": Here("rope_base"),
    "inv_freq": Here("rope_frequencies"),
    "dropout": _NO_DROPOUT,
    "dropout_p": _NO_DROPOUT,
    "enable_gqa": Here("", "fewer key and value heads are shared as they are"),
    "num_heads": Here("heads"),
    "num_attention_heads": Here("heads"),
    "q_num_heads": Here("heads"),
    "num_kv_heads": Here("kv_heads"),
    "kv_num_heads": Here("kv_heads"),
    "num_key_value_heads": Here("kv_heads"),
    "softmax_scale": Here("scale"),
    "sm_scale": Here("scale"),
    "window_size": Here("window"),
    "local_window_size": Here("window"),
    "left_window_size": Here("window", ", its first number", same=False),
    "right_window_size": Here("window", ", its second number", same=False),
    "window_left": Here("window", ", its first number", same=False),
    "window_right": Here("window", ", its second number", same=False),
    "sliding_window": Here(
        "window", ": W - 1, 0 where a query sees W keys, itself included", same=False
    ),
    "soft_cap": Here("softcap"),
    "attn_logits_soft_cap": Here("softcap"),
    "query_seq_lengths": Here("query_lengths"),
    "key_value_seq_lengths": Here("kv_lengths"),
    "cache_seqlens": Here("kv_lengths"),
    "nonpad_kv_seqlen": Here("kv_lengths", ", with {causal_align} bottom-right"),
    "seqused_k": Here("kv_lengths"),
    "seqlens_k": Here("kv_lengths", ": seqlens_k + 1, of ONNX Runtime", same=False),
    "cu_seqlens": Here("segment_ids", f"{_OF_ENDS}cu_seqlens))", same=False),
    "cu_seqlens_q": Here("segment_ids", f"{_OF_ENDS}cu_seqlens_q)){_SAME_ENDS}", same=False),
    "cu_seqlens_k": Here("kv_segment_ids", f"{_OF_ENDS}cu_seqlens_k)){_SAME_ENDS}", same=False),
    "document_ids": Here("segment_ids"),
    "q_segment_ids": Here("segment_ids"),
    "query_segment_ids": Here("segment_ids"),
    "key_segment_ids": Here("kv_segment_ids"),
    "batch_first": Here(
        "layout",
        " sbd if it is false, and nothing if it is true",
        same=False,
        switch="--layout sbd if it is false",
    ),
    "key_value_lengths": Here("kv_lengths"),
    "logits_soft_cap": Here("softcap"),
    "learnable_sink": Here("sinks"),
    "s_aux": Here("sinks"),
    "head_sink": Here("sinks"),
    "add_zero_attn": Here("sinks", ": 0 for each head", same=False),
    "bias_k": Here("", "put bias_k behind the projected keys, and bias_v behind the values"),
    "bias_v": Here("", "put bias_k behind the projected keys, and bias_v behind the values"),
    "head_mask": Here("", "no head is left out: multiply its context by 0"),
    "query_mask": Here(
        "query_lengths", ": how many queries of each batch entry are real", same=False
    ),
    "position_ids": Here(
        "query_offset", ": the position of query 0 among the keys", same=False, rule=False
    ),
    "average_attn_weights": Here("average_heads"),
}
