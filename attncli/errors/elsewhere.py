"""The argument names of other libraries, and the argument of attncli for each."""

from __future__ import annotations

from typing import NamedTuple


class Here(NamedTuple):
    """The argument of attncli that replaces one of another library.

    Attributes
    ----------
    name : str
        The argument, or several; empty if attncli has none.
    rule : bool
        Whether a dump that holds it poses another problem than one without it.
    """

    name: str
    rule: bool = True

    def hint(self) -> str:
        """Return the hint for somebody who used the other name."""
        return f"here it is {self.name}" if self.name else "attncli has nothing like it"


def option_of(name: str) -> str:
    """Return the command-line option of an argument."""
    return "--" + name.replace("_", "-")


# The names of each argument in PyTorch, Transformers, FlashAttention, JAX, Keras, ONNX, xFormers.
_NAMES = {
    "mask": "attn_mask causal_mask src_mask tgt_mask memory_mask block_mask mask_mod",
    "mask, or key_padding_mask": "attention_mask encoder_attention_mask padding_mask",
    "key_padding_mask": "key_mask src_key_padding_mask memory_key_padding_mask",
    "bias": "attn_bias attention_bias position_bias relative_position_bias alibi_bias score_mod",
    "alibi_slopes": "slopes alibi",
    "causal": "is_causal use_causal_mask unidirectional",
    "scale": "softmax_scale sm_scale attn_scale scaling temperature logit_scale "
    "query_pre_attn_scalar",
    "softcap": "soft_cap logits_soft_cap attn_logit_softcapping",
    "window": "window_size local_window_size sliding_window left_window_size right_window_size "
    "window_left window_right",
    "rope": "do_rotary cos sin rotary_cos rotary_sin freqs_cis",
    "rope_base": "rope_theta",
    "rope_frequencies": "inv_freq",
    "heads": "num_heads num_attention_heads q_num_heads",
    "kv_heads": "num_kv_heads kv_num_heads num_key_value_heads",
    "query_lengths": "query_seq_lengths seqused_q q_seqlen query_mask",
    "kv_lengths": "key_value_seq_lengths cache_seqlens seqused_k kv_seqlen seq_lens context_lens "
    "nonpad_kv_seqlen seqlens_k",
    "segment_ids": "q_segment_ids document_ids document_id doc_ids sequence_id seq_idx "
    "attention_chunk cu_seqlens cu_seqlens_q",
    "kv_segment_ids": "key_segment_ids cu_seqlens_k cu_seqlens_kv",
    "sinks": "learnable_sink s_aux head_sink sink attn_sink attn_sinks smooth_softmax "
    "add_zero_attn",
    "query_offset": "past_sequence_length",
    "key and value, the past in front": "past layer_past past_key past_value k_cache v_cache "
    "key_cache value_cache",
    "": "bias_k bias_v head_mask block_table block_tables page_table",
}
# Arguments that do not change the problem.
_NO_RULES = {
    "outputs": "need_weights return_lse return_softmax_lse return_weights return_attn_probs "
    "return_attention_scores",
    "weights.mean(axis=-3), or check(…, average_heads=True)": "average_attn_weights average_heads",
    "query_offset": "position_ids cache_position",
    "layout": "batch_first",
    "": "dropout dropout_p enable_gqa",
}
ELSEWHERE = {
    other: Here(name, rule)
    for names, rule in ((_NAMES, True), (_NO_RULES, False))
    for name, others in names.items()
    for other in others.split()
}
