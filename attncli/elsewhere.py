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
        What a hint says behind the name, or in the place of it; further names in braces.
    same : bool
        Whether it takes the same values, if they are those of a file.
    switch : str
        The option for a single value, where it has another name.
    rule : bool
        Whether a dump that holds it means another problem than without it.
    idle : tuple of float
        Numbers that change nothing there, beside null and false.
    """

    name: str
    words: str = ""
    same: bool = True
    switch: str = ""
    rule: bool = True
    idle: tuple[float, ...] = ()

    def hint(self, *, as_options: bool = False) -> str:
        """Return the hint, with the names of arguments or those of their options.

        Examples
        --------
        >>> Here("mask", ", or {bias} if its numbers are added").hint(as_options=True)
        'here it is --mask, or --bias if its numbers are added'
        """
        named = option_of if as_options else str
        words = re.sub(r"\{(\w+)\}", lambda name: named(name[1]), self.words)
        return f"here it is {named(self.name)}{words}" if self.name else words


def option_of(name: str) -> str:
    """Return the option of an argument."""
    return "--" + name.replace("_", "-")


_OF_ENDS = ": np.repeat(np.arange(n), np.diff("
_SAME_ENDS = "; with causal, window or ALiBi only if queries and keys have the same"
# Windows that end nowhere.
_OPEN = (-1,)
_NO_DROPOUT = Here("", "attncli drops nothing out", rule=False)
_OF_TRANSFORMER = Here(
    "mask",
    ", with {mask_means} drop: there, true is hidden; or {bias} if its numbers are added",
    same=False,
)
_IF_POSITIONS = "if causal or in a window, with"
_OF_ROTATION = Here(
    "rope",
    ", with the {rope_base} or {rope_frequencies} that the cosines and sines were made with",
    same=False,
)
_OF_BIASES = Here(
    "",
    "put bias_k behind the projected keys, and bias_v behind the values; every query sees them, so "
    "that {causal} becomes a {mask} with a last column of true",
)


def _past(name: str, serves: str) -> Here:
    """Return what serves for the keys or values that a cache holds."""
    words = f": {name}, and what is new behind it; {_IF_POSITIONS} {{query_offset}}, the number of "
    return Here(serves, f"{words}past keys", same=False)


def _paged(name: str) -> Here:
    """Return what serves for the places of the pages of a cache."""
    return Here("", f"put the pages in order first: k_cache[{name}].reshape(B, -1, G, D)")


def _padded_left(name: str) -> Here:
    """Return what serves for the padding in front of the keys of a cache."""
    words = f": false for the first {name} keys of each batch entry"
    return Here("key_padding_mask", words, same=False, idle=(0,))


def _descaled(name: str, serves: str) -> Here:
    """Return what serves for the factor of an input of 8 bits."""
    return Here("", f"multiply {serves} by {name} first", idle=(1,))


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
    "is_causal": Here("causal", idle=(0,)),
    "use_causal_mask": Here("causal", idle=(0,)),
    "unidirectional": Here("causal", idle=(0,)),
    "rope_theta": Here("rope_base"),
    "inv_freq": Here("rope_frequencies"),
    "do_rotary": Here(
        "rope",
        " half, or interleaved if rotary_interleaved is 1; past keys are rotated already",
        same=False,
        idle=(0,),
    ),
    "cos_cache": _OF_ROTATION,
    "sin_cache": _OF_ROTATION,
    "rotary_cos": _OF_ROTATION,
    "rotary_sin": _OF_ROTATION,
    "dropout": _NO_DROPOUT,
    "dropout_p": _NO_DROPOUT,
    "enable_gqa": Here("", "fewer key and value heads are shared as they are", rule=False),
    "num_heads": Here("heads"),
    "num_attention_heads": Here("heads"),
    "q_num_heads": Here("heads"),
    "num_kv_heads": Here("kv_heads"),
    "kv_num_heads": Here("kv_heads"),
    "num_key_value_heads": Here("kv_heads"),
    "softmax_scale": Here("scale"),
    "sm_scale": Here("scale"),
    "logit_scale": Here("scale", ", or its exponential (Swin V2, {score} cosine)", same=False),
    "q_descale": _descaled("q_descale", "query"),
    "k_descale": _descaled("k_descale", "key"),
    "v_descale": _descaled("v_descale", "value"),
    "window_size": Here("window", idle=_OPEN),
    "local_window_size": Here("window", "; of ONNX Runtime, W - 1, 0", idle=_OPEN),
    "left_window_size": Here("window", ", its first number", same=False, idle=_OPEN),
    "right_window_size": Here("window", ", its second number", same=False, idle=_OPEN),
    "window_left": Here("window", ", its first number", same=False, idle=_OPEN),
    "window_right": Here("window", ", its second number", same=False, idle=_OPEN),
    "sliding_window": Here(
        "window", ": W - 1, 0 where a query sees W keys, itself included", same=False
    ),
    "soft_cap": Here("softcap", idle=(0,)),
    "attn_logits_soft_cap": Here("softcap", idle=(0,)),
    "attention_chunk": Here(
        "segment_ids",
        ": the positions divided by attention_chunk, rounded down",
        same=False,
        idle=(0,),
    ),
    "query_seq_lengths": Here("query_lengths"),
    "seqused_q": Here("query_lengths"),
    "key_value_seq_lengths": Here("kv_lengths"),
    "cache_seqlens": Here("kv_lengths"),
    "nonpad_kv_seqlen": Here("kv_lengths", f"; {_IF_POSITIONS} {{causal_align}} bottom-right"),
    "seqused_k": Here("kv_lengths"),
    "seqlens_k": Here(
        "kv_lengths",
        ": seqlens_k + 1, of ONNX Runtime, which is causal: with {causal}, and {causal_align} "
        "bottom-right behind a past",
        same=False,
    ),
    "cu_seqlens": Here("segment_ids", f"{_OF_ENDS}cu_seqlens))", same=False),
    "cu_seqlens_q": Here("segment_ids", f"{_OF_ENDS}cu_seqlens_q)){_SAME_ENDS}", same=False),
    "cu_seqlens_k": Here("kv_segment_ids", f"{_OF_ENDS}cu_seqlens_k)){_SAME_ENDS}", same=False),
    "cu_seq_q": Here("segment_ids", f"{_OF_ENDS}cu_seq_q)){_SAME_ENDS}", same=False),
    "cu_seq_k": Here("kv_segment_ids", f"{_OF_ENDS}cu_seq_k)){_SAME_ENDS}", same=False),
    "past_key": _past("past_key", "key"),
    "past_value": _past("past_value", "value"),
    "k_cache": _past("k_cache", "key"),
    "v_cache": _past("v_cache", "value"),
    "key_cache": _past("key_cache", "key"),
    "value_cache": _past("value_cache", "value"),
    "block_table": _paged("block_table"),
    "page_table": _paged("page_table"),
    "cache_leftpad": _padded_left("cache_leftpad"),
    "leftpad_k": _padded_left("leftpad_k"),
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
    "logits_soft_cap": Here("softcap", idle=(0,)),
    "learnable_sink": Here("sinks"),
    "s_aux": Here("sinks"),
    "head_sink": Here("sinks"),
    "add_zero_attn": Here("sinks", ": 0 for each head", same=False, idle=(0,)),
    "smooth_softmax": Here("sinks", ": 0 for each head", same=False, idle=(0, -1)),
    "bias_k": _OF_BIASES,
    "bias_v": _OF_BIASES,
    "head_mask": Here("", "no head is left out: multiply its context by 0", idle=(1,)),
    "query_mask": Here(
        "query_lengths", ": how many queries of each batch entry are real", same=False
    ),
    "position_ids": Here(
        "query_offset", ": the position of query 0 among the keys", same=False, rule=False
    ),
    "average_attn_weights": Here("average_heads"),
}
