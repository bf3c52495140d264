"""What other libraries call an argument, and what serves here."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ELSEWHERE", "option_of"]


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


# Windows that end nowhere.
_OPEN = (-1,)
_SAME_ENDS = "; with causal, window or ALiBi only if queries and keys have the same"
_NO_DROPOUT = Here("", "attncli drops nothing out", rule=False)
_OF_TRANSFORMER = Here(
    "mask",
    ", with {mask_means} drop: there, true is hidden; or {bias} if its numbers are added",
    same=False,
)
_OF_PADDING = Here(
    "key_padding_mask", ", with {mask_means} drop: there, true is padding", same=False
)
_EITHER_PADDING = Here(
    "key_padding_mask", ", with {mask_means} drop if true is padding there", same=False
)
_MASK_OR_BIAS = Here("mask", ", or {bias} if its numbers are added to the scores")
_MASK_OR_PADDING = Here(
    "mask", ", or {key_padding_mask} if it is (B, S), or {bias} if its numbers are added"
)
_OF_HEADS = Here("", "no head is left out: multiply its context by 0", idle=(1,))
_IF_POSITIONS = "if causal or in a window, with"
_OF_ROTATION = Here(
    "rope",
    ", with the {rope_base} or {rope_frequencies} that the cosines and sines were made with, "
    "unless query and key are rotated already",
    same=False,
)
_OF_PASTS = Here(
    "key",
    " and value: the two halves of it, each with what is new behind it; "
    f"{_IF_POSITIONS} {{query_offset}}, the number of past keys",
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


def _sequences(ends: str) -> str:
    """Return how places where packed sequences begin and end become their numbers."""
    return f": np.repeat(np.arange(n), np.diff({ends}))"


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


# Names of other libraries that mean what an argument here means.
_ALIKE = {
    "key_padding_mask": ("key_mask",),
    "bias": (
        *("attn_bias", "attention_bias", "core_attention_bias", "position_bias"),
        *("relative_position_bias", "rel_pos_bias", "alibi_bias"),
    ),
    "alibi_slopes": ("slopes",),
    "rope_base": ("rope_theta",),
    "rope_frequencies": ("inv_freq",),
    "heads": ("num_heads", "num_attention_heads", "q_num_heads"),
    "kv_heads": ("num_kv_heads", "kv_num_heads", "num_key_value_heads"),
    "scale": ("softmax_scale", "sm_scale", "attn_scale", "scaling", "attention_multiplier"),
    "query_lengths": ("query_seq_lengths", "seqused_q", "seq_len_q", "q_seqlen"),
    "kv_lengths": (
        *("key_value_seq_lengths", "key_value_lengths", "cache_seqlens", "seqused_k"),
        *("seq_len_kv", "kv_seqlen", "seq_lens", "context_lens"),
    ),
    "segment_ids": (
        *("q_segment_ids", "query_segment_ids", "decoder_segment_ids", "inputs_segmentation"),
        *("document_ids", "document_id", "doc_ids", "doc_id", "sequence_id", "seq_idx"),
    ),
    "kv_segment_ids": ("key_segment_ids",),
    "sinks": (
        *("learnable_sink", "s_aux", "head_sink", "sink", "attn_sink", "attn_sinks"),
        "softmax_offset",
    ),
    "average_heads": ("average_attn_weights",),
}
# Where the packed sequences of queries, and those of keys, begin and end.
_ENDS = {
    "segment_ids": (
        *("cu_seqlens_q", "cu_seq_q", "cum_seq_q", "seqstart_q", "query_start_loc", "qo_indptr"),
    ),
    "kv_segment_ids": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_k", "cum_seq_k", "seqstart_k"),
}
_ROTATIONS = (
    *("cos", "sin", "cos_cache", "sin_cache", "cos_sin_cache", "rotary_cos", "rotary_sin"),
    *("rotary_pos_emb", "freqs_cis", "freqs_cos", "freqs_sin"),
)
ELSEWHERE = {
    **{name: Here(ours) for ours, names in _ALIKE.items() for name in names},
    "attn_mask": _MASK_OR_BIAS,
    "causal_mask": _MASK_OR_BIAS,
    "attention_mask": _MASK_OR_PADDING,
    "encoder_attention_mask": _MASK_OR_PADDING,
    "decoder_attention_mask": _MASK_OR_PADDING,
    "mask_index": Here("key_padding_mask", ", or {kv_lengths} if it is (B,)"),
    "src_mask": _OF_TRANSFORMER,
    "tgt_mask": _OF_TRANSFORMER,
    "memory_mask": _OF_TRANSFORMER,
    "padding_mask": _EITHER_PADDING,
    "encoder_padding_mask": _EITHER_PADDING,
    "src_key_padding_mask": _OF_PADDING,
    "tgt_key_padding_mask": _OF_PADDING,
    "memory_key_padding_mask": _OF_PADDING,
    "relative_position_bias_table": Here(
        "bias", ": its rows at relative_position_index, heads first", same=False
    ),
    "ab": Here("bias", ": ab times sm_scale", same=False),
    "alibi": Here(
        "alibi_slopes",
        ": true for those of the paper, or a list of them",
        same=False,
        switch="--alibi",
    ),
    "is_causal": Here("causal", idle=(0,)),
    "use_causal_mask": Here("causal", idle=(0,)),
    "unidirectional": Here("causal", idle=(0,)),
    "do_rotary": Here(
        "rope",
        " half, or interleaved if rotary_interleaved is 1; past keys are rotated already",
        same=False,
        idle=(0,),
    ),
    **dict.fromkeys(_ROTATIONS, _OF_ROTATION),
    "dropout": _NO_DROPOUT,
    "dropout_p": _NO_DROPOUT,
    "enable_gqa": Here("", "fewer key and value heads are shared as they are", rule=False),
    "query_pre_attn_scalar": Here("scale", ": query_pre_attn_scalar ** -0.5", same=False),
    "temperature": Here(
        "scale",
        ": 1 / temperature, or 1 / (temperature · √D) if the scores are divided by √D, too",
        same=False,
    ),
    "logit_scale": Here("scale", ", or its exponential (Swin V2, {score} cosine)", same=False),
    **{
        name: _descaled(name, serves)
        for serves in ("query", "key", "value")
        for name in (f"{serves[0]}_descale", f"{serves[0]}_scale", f"descale_{serves[0]}")
    },
    "window_size": Here("window", idle=_OPEN),
    "local_window_size": Here("window", "; of ONNX Runtime, W - 1, 0", idle=_OPEN),
    "left_window_size": Here("window", ", its first number", same=False, idle=_OPEN),
    "right_window_size": Here("window", ", its second number", same=False, idle=_OPEN),
    "window_left": Here("window", ", its first number", same=False, idle=_OPEN),
    "window_right": Here("window", ", its second number", same=False, idle=_OPEN),
    "sliding_window": Here(
        "window", ": W - 1, 0 where a query sees W keys, itself included", same=False
    ),
    "attn_logit_softcapping": Here("softcap", idle=(0,)),
    "soft_cap": Here("softcap", idle=(0,)),
    "attn_logits_soft_cap": Here("softcap", idle=(0,)),
    "attention_chunk": Here(
        "segment_ids",
        ": the positions divided by attention_chunk, rounded down",
        same=False,
        idle=(0,),
    ),
    "nonpad_kv_seqlen": Here("kv_lengths", f"; {_IF_POSITIONS} {{causal_align}} bottom-right"),
    "seqlens_k": Here(
        "kv_lengths",
        ": seqlens_k + 1, of ONNX Runtime, which is causal: with {causal}, and {causal_align} "
        "bottom-right behind a past",
        same=False,
    ),
    "cu_seqlens": Here("segment_ids", _sequences("cu_seqlens"), same=False),
    **{
        name: Here(ids, f"{_sequences(name)}{_SAME_ENDS}", same=False)
        for ids, names in _ENDS.items()
        for name in names
    },
    "past": _OF_PASTS,
    "layer_past": _OF_PASTS,
    "past_key": _past("past_key", "key"),
    "past_value": _past("past_value", "value"),
    "k_cache": _past("k_cache", "key"),
    "v_cache": _past("v_cache", "value"),
    "key_cache": _past("key_cache", "key"),
    "value_cache": _past("value_cache", "value"),
    "past_sequence_length": Here("query_offset", idle=(0,)),
    "block_table": _paged("block_table"),
    "block_tables": _paged("block_tables"),
    "page_table": _paged("page_table"),
    "cache_leftpad": _padded_left("cache_leftpad"),
    "leftpad_k": _padded_left("leftpad_k"),
    "batch_first": Here(
        "layout",
        " sbd if it is false, and nothing if it is true",
        same=False,
        switch="--layout sbd if it is false",
    ),
    "logits_soft_cap": Here("softcap", idle=(0,)),
    "add_zero_attn": Here("sinks", ": 0 for each head", same=False, idle=(0,)),
    "smooth_softmax": Here("sinks", ": 0 for each head", same=False, idle=(0, -1)),
    "bias_k": _OF_BIASES,
    "bias_v": _OF_BIASES,
    "head_mask": _OF_HEADS,
    "layer_head_mask": _OF_HEADS,
    "query_mask": Here(
        "query_lengths", ": how many queries of each batch entry are real", same=False
    ),
    "position_ids": Here(
        "query_offset", ": the position of query 0 among the keys", same=False, rule=False
    ),
    "cache_position": Here(
        "query_offset", ": its first number, the position of query 0 among the keys", rule=False
    ),
}
