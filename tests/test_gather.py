"""Files and options become arguments: names, lists, labels, sources, and who wins."""

from __future__ import annotations

import csv
import io
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.elsewhere import ELSEWHERE
from attncli.errors import AttnError, AttnWarning, InputError, UsageError
from attncli.gather import Finished, Gathered, entries, gather
from attncli.gather.entries import KNOWN
from attncli.gather.lists import label_file


@pytest.fixture
def problem(folder: Path) -> Path:
    (folder / "p.yaml").write_text(
        "q: [[1, 0]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2]]\n"
        "causal: true\nscale: 0.5\nkv_lengths: [2]\ntokens: [a, b]\nquery_labels: [only]\n"
    )
    np.save(folder / "q.npy", np.ones((2, 3)))
    np.save(folder / "k.npy", np.ones((4, 3)))
    return folder


def gathered(*files: str, **options: Any) -> Gathered:
    answer = gather(files, options)
    assert isinstance(answer, Gathered)
    return answer


def test_short_and_long_names_mean_the_same(problem: Path) -> None:
    found = gathered("p.yaml").arguments
    np.testing.assert_array_equal(found["query"], [[1, 0]])
    np.testing.assert_array_equal(found["value"], [[1], [2]])
    assert (found["causal"], found["scale"]) == (True, 0.5)


def test_labels_stand_before_tokens(problem: Path) -> None:
    found = gathered("p.yaml").arguments
    assert found["query_labels"] == ("only",)
    assert found["key_labels"] == ("a", "b")
    assert "tokens" not in found


def test_options_win_over_the_file(problem: Path) -> None:
    assert gathered("p.yaml", scale=2.0).arguments["scale"] == 2.0
    assert gathered("p.yaml", plain=True).arguments["scale"] == 1.0
    replaced = gathered("p.yaml", kv_lengths="1")
    assert replaced.arguments["kv_lengths"] == [1]
    assert "kv_lengths" not in replaced.sources


def test_sources_say_where_each_array_came_from(problem: Path) -> None:
    sources = gathered("p.yaml").sources
    assert sources["query"] == "p.yaml#q"
    assert gathered("q.npy", "k.npy").sources == {"query": "q.npy", "key": "k.npy"}


def test_inputs_are_the_files_without_members(problem: Path) -> None:
    np.savez("d.npz", q=np.ones((2, 3)), k=np.ones((4, 3)), m=np.ones((2, 4)))
    Path("names.txt").write_text("a\nb\n")
    found = gathered("d.npz#q", "d.npz#k", mask="d.npz#m", query_labels="names.txt")
    assert found.inputs == ["d.npz", "d.npz", "d.npz", "names.txt"]


@pytest.mark.parametrize(
    ("text", "expected"), [("3", [3]), ("3,5", [3, 5]), (" 1e-3 , -2", [0.001, -2])]
)
def test_a_list_of_numbers_needs_no_file(problem: Path, text: str, expected: list[float]) -> None:
    assert gathered("q.npy", "k.npy", sinks=text).arguments["sinks"] == expected


def test_a_file_serves_as_a_list(problem: Path) -> None:
    Path("s.csv").write_text("1\n2\n")
    Path("lengths").write_text("[3, 4]")
    found = gathered("q.npy", "k.npy", sinks="s.csv", kv_lengths="lengths").arguments
    np.testing.assert_array_equal(found["sinks"], [[1], [2]])
    np.testing.assert_array_equal(found["kv_lengths"], [3, 4])


@pytest.mark.parametrize("text", ["one", "1,two", "1,,2", "1;2"])
def test_what_is_neither_list_nor_file_is_an_error_that_names_the_option(
    problem: Path, text: str
) -> None:
    with pytest.raises(UsageError, match=r"^sinks: expected numbers, as in 3 or 3,5, or a file"):
        gather(["q.npy", "k.npy"], {"sinks": text})


def test_numbers_beyond_float64_are_an_error_that_names_the_option(problem: Path) -> None:
    with pytest.raises(UsageError) as caught:
        gather(["q.npy", "k.npy"], {"window": "1e400"})
    assert caught.value.message == "window: '1e400' is beyond the range of float64"


def test_label_files_hold_one_label_a_line(problem: Path) -> None:
    Path("n.txt").write_bytes("\ufeffthe\r\ncat, black\r\n\r\n[pad] \r\n".encode())
    found = gathered("q.npy", "k.npy", key_labels="n.txt").arguments["key_labels"]
    assert found == ("the", "cat, black", "", "[pad] ")


def test_label_files_that_are_no_text_are_an_error(problem: Path) -> None:
    Path("n.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        gather(["q.npy", "k.npy"], {"tokens": "n.txt"})
    assert caught.value.message == "n.txt: expected UTF-8 text; found UTF-16 or UTF-32"


@pytest.mark.parametrize("file", ["l.json", "l.csv", "nodir/l.tok", "l.npz#words"])
def test_a_file_of_labels_that_is_not_there_is_no_label(problem: Path, file: str) -> None:
    with pytest.raises(InputError, match=f"{file} does not exist"):
        gathered("q.npy", "k.npy", query_labels=file)
    # What is no file's name is a label.
    for label in ("/", "</s>", "and/or"):
        assert gathered("q.npy", "k.npy", tokens=label).arguments["query_labels"] == (label,)


@pytest.mark.parametrize(
    "text", ["['a', 'b']", "[a, b]", '["a","b"]', "('a', 'b')", "'a','b'", "[a b, c]"]
)
def test_a_list_of_a_program_in_the_place_of_labels_is_warned_of(problem: Path, text: str) -> None:
    with pytest.warns(AttnWarning, match=r"^tokens: .* are part of the labels: write a,b,c"):
        assert (
            gathered("q.npy", "k.npy", tokens=text).arguments["query_labels"][0]
            == (text.split(",", maxsplit=1)[0])
        )


@pytest.mark.parametrize(
    "text", ["[CLS],a,[SEP]", "[CLS],[SEP]", "(,a,)b", "',a,'", "don't,'", "[a"]
)
def test_tokens_of_brackets_and_quotation_marks_are_labels(problem: Path, text: str) -> None:
    assert gathered("q.npy", "k.npy", tokens=text).arguments["key_labels"] == (*text.split(","),)


def test_a_member_of_a_file_holds_labels(problem: Path) -> None:
    np.savez("l.npz", words=["a", "b"], numbers=[3, 4])
    (problem / "l.json").write_text('{"words": ["c", "d"], "scale": 2}')
    for member, labels in [
        ("l.npz#words", ("a", "b")),
        ("l.npz#numbers", ("3", "4")),
        ("l.json#words", ("c", "d")),
    ]:
        found = gathered("q.npy", "k.npy", tokens=member)
        assert found.arguments["query_labels"] == labels
        assert member.partition("#")[0] in found.inputs
    with pytest.raises(InputError, match=r"l.json has no member 'word'"):
        gathered("q.npy", "k.npy", tokens="l.json#word")
    with pytest.raises(InputError, match=r"l.json#scale: expected an array; found the single"):
        gathered("q.npy", "k.npy", tokens="l.json#scale")


@pytest.mark.parametrize(
    ("file", "text", "labels"),
    [
        ("l.json", '["a", 3, 0.50]', ("a", "3", "0.50")),
        ("l.yaml", "- The\n- cat\n", ("The", "cat")),
        ("l.yml", "[yes, 1e3]", ("yes", "1e3")),
        ("l.yaml", "The\ncat\n", ("The", "cat")),
        ("l.txt", "[CLS]\n{x}\n", ("[CLS]", "{x}")),
        ("l.txt", "{\n}\n", ("{", "}")),
    ],
)
def test_a_list_of_labels_in_a_file(
    problem: Path, file: str, text: str, labels: tuple[str, ...]
) -> None:
    Path(file).write_text(text)
    assert gathered("q.npy", "k.npy", tokens=file).arguments["query_labels"] == labels


@pytest.mark.parametrize("nothing", ["null", "true", '["b"]', '{"b": 1}'])
@pytest.mark.parametrize("file", ["l.json", "l.yaml"])
def test_a_list_of_labels_holds_nothing_but_words(problem: Path, file: str, nothing: str) -> None:
    Path(file).write_text(f'["a", {nothing}]')
    if file == "l.json" or nothing[0] in "[{":
        with pytest.raises(InputError, match="expected a list of words; found "):
            gathered("q.npy", "k.npy", tokens=file)
    Path(file).write_text('{"words": ["a", "b"]}')
    with pytest.raises(InputError, match="expected a list of labels; found a mapping") as caught:
        gathered("q.npy", "k.npy", tokens=file)
    assert caught.value.hint == f"name one of its entries, as {file}#words"


def test_a_label_with_nul_is_refused(problem: Path) -> None:
    (problem / "l.json").write_text(r'["a\u0000", "b"]')
    with pytest.raises(InputError, match="label 0 holds the character NUL"):
        gathered("q.npy", "k.npy", tokens="l.json")


@pytest.mark.parametrize(
    ("entries", "scale"),
    [
        ("plain: false, scale: 0.5", 0.5),
        ("plain: true, scale: null", 1.0),
        ("plain: false, scale: null", None),
    ],
)
def test_plain_that_is_off_and_a_scale_that_is_null_say_nothing(
    folder: Path, entries: str, scale: float | None
) -> None:
    (folder / "p.yaml").write_text(f"{{q: [[1]], k: [[1]], {entries}}}")
    assert gathered("p.yaml").arguments.get("scale") == scale


def test_plain_and_a_scale_exclude_each_other(folder: Path) -> None:
    (folder / "p.yaml").write_text("{q: [[1]], k: [[1]], plain: true, scale: 1}")
    with pytest.raises(InputError, match="both plain and scale"):
        gathered("p.yaml")


def test_unknown_entries_are_answered_with_a_known_one(problem: Path) -> None:
    Path("u.yaml").write_text("query: [[1]]\nkey: [[1]]\nsoftcup: 3\n")
    with pytest.raises(UsageError) as caught:
        gather(["u.yaml"])
    assert caught.value.message == "u.yaml: unknown entry 'softcup'"
    assert caught.value.hint == "did you mean softcap?"


def test_what_compute_wrote_beside_a_problem_is_passed_over(problem: Path) -> None:
    Path("r.json").write_text('{"schema": 1, "query": [[1]], "key": [[1]], "weights": [[1]]}')
    with pytest.warns(AttnWarning, match="r.json: its weights are ignored, and computed again"):
        assert set(gathered("r.json").arguments) == {"query", "key"}


def test_one_array_is_finished_weights(problem: Path) -> None:
    Path("w.csv").write_text(",x,y\na,0.25,0.75\nb,0.5,0.5\n")
    found = gather(["w.csv"], {"key_labels": "u,v"})
    assert isinstance(found, Finished)
    np.testing.assert_array_equal(found.values, [[0.25, 0.75], [0.5, 0.5]])
    assert (found.name, found.inputs) == ("w.csv", ("w.csv",))
    assert (found.query_labels, found.key_labels) == (("a", "b"), ("u", "v"))


def test_finished_weights_take_no_options(problem: Path) -> None:
    with pytest.raises(
        UsageError, match="is taken for finished weights: scale has nothing to act on"
    ):
        gather(["q.npy"], {"scale": 2.0})


def test_the_example_and_a_stream(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = gather(())
    assert isinstance(example, Gathered)
    assert np.shape(example.arguments["value"]) == (3, 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1,2,3\n")))
    piped = gather(["-", "k.npy"])
    assert isinstance(piped, Gathered)
    np.testing.assert_array_equal(piped.arguments["query"], [[1, 2, 3]])
    assert piped.sources["query"] == "standard input"


def test_a_problem_with_neither_key_nor_embeddings_says_what_it_holds(problem: Path) -> None:
    Path("m.yaml").write_text("query: [[1]]\nscale: 1\n")
    with pytest.raises(InputError) as caught:
        gather(["m.yaml"])
    assert caught.value.message == (
        "m.yaml: expected query, key and value; key is missing (found query, scale)"
    )


ONES = {"query": np.ones((2, 3)), "key": np.ones((4, 3))}


def save_safetensors(path: str, arrays: dict[str, np.ndarray]) -> None:
    pytest.importorskip("safetensors.numpy").save_file(arrays, path)


def save_npz(path: str, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


SAVERS = {"d.npz": save_npz, "d.safetensors": save_safetensors}


@pytest.mark.parametrize("file", SAVERS)
def test_a_dump_may_hold_outputs_beside_the_inputs(folder: Path, file: str) -> None:
    SAVERS[file](file, {**ONES, "out": np.ones((2, 1)), "attn_probs": np.ones((2, 4))})
    assert set(gathered(file).arguments) == {"query", "key"}


def test_what_a_dump_holds_beside_the_inputs_need_not_be_readable(folder: Path) -> None:
    np.savez("d.npz", **ONES, states=np.ones(2, complex))  # type: ignore[arg-type]
    assert set(gathered("d.npz").arguments) == {"query", "key"}


def test_what_is_nearly_an_option_in_a_dump_is_told(folder: Path) -> None:
    np.savez("d.npz", **ONES, masks=np.ones((2, 4)))  # type: ignore[arg-type]
    with pytest.warns(AttnWarning) as caught:
        gather(["d.npz"])
    assert [str(warning.message) for warning in caught] == [
        "d.npz: the entry 'masks' is ignored; did you mean mask?"
    ]


@pytest.mark.parametrize(
    ("name", "here", "option"),
    [
        ("attn_mask", "mask, or bias if its numbers are added to the scores", "mask"),
        ("slopes", "alibi_slopes", "alibi-slopes"),
    ],
)
def test_a_rule_of_another_name_in_a_dump_is_an_error(
    folder: Path, name: str, here: str, option: str
) -> None:
    """Without it, the numbers would be those of another problem."""
    np.savez("d.npz", **ONES, **{name: np.ones((2, 4))})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"unknown entry '{name}'") as caught:
        gather(["d.npz"])
    assert caught.value.hint == (
        f"here it is {here}; --{option} d.npz#{name} takes it, and --without {name} leaves it out"
    )


@pytest.mark.parametrize(
    ("mask", "option"), [([0.0, -np.inf], "bias"), ([0.0, 0.0], "bias"), ([1.0, 0.0], "mask")]
)
def test_a_mask_whose_numbers_are_added_is_a_bias(
    folder: Path, mask: list[float], option: str
) -> None:
    """As Transformers hands it to its layers; in one without padding all are 0."""
    np.savez("d.npz", **ONES, attention_mask=np.array(mask * 4).reshape(1, 1, 2, 4))
    with pytest.raises(UsageError) as caught:
        gather(["d.npz"])
    assert f"; --{option} d.npz#attention_mask takes it, and" in (caught.value.hint or "")


def test_what_serves_for_a_name_of_another_library_begins_with_an_option() -> None:
    assert {here.name for here in ELSEWHERE.values()} <= {*KNOWN, "average_heads", ""}


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("softmax_scale", [0.5], "here it is scale; give --scale, and --without"),
        ("is_causal", [True], "here it is causal; give --causal, and --without"),
        ("alibi", True, "give --alibi, and --without"),
        ("sliding_window", [2, 2], "here it is window: W - 1, 0 where"),
        ("cu_seqlens_k", [0, 4], "here it is kv_segment_ids: np.repeat(np.arange(n), np.diff("),
        (
            "cache_seqlens",
            [4, 4],
            "here it is kv_lengths; --kv-lengths d.npz#cache_seqlens takes it",
        ),
    ],
)
def test_advice_on_a_name_of_another_library_works(
    name: str, value: object, advice: str, folder: Path
) -> None:
    np.savez("d.npz", **ONES, **{name: np.array(value)})  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        gather(["d.npz"])
    hint = caught.value.hint or ""
    assert advice in hint
    assert ("takes it" in hint) == ("takes it" in advice)
    assert hint.endswith(f"--without {name} leaves it out")


def test_an_array_of_a_dump_is_likely_to_be_only_what_may_be_an_array(folder: Path) -> None:
    """No output is a rope, and an output that is judged is no mistyped option."""
    outputs = {name: np.ones((2, 4)) for name in ("norope", "masks", "two")}
    np.savez("d.npz", **ONES, **outputs)  # type: ignore[arg-type]
    with pytest.warns(AttnWarning) as caught:
        gather(["d.npz"], more=["d.npz#two"])
    assert [str(each.message) for each in caught] == [
        "d.npz: the entry 'masks' is ignored; did you mean mask?"
    ]


def test_a_number_of_a_dump_may_be_an_array_of_one(folder: Path) -> None:
    np.savez("d.npz", **ONES, scale=np.array([0.5]), dropout=False)  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match="'dropout' is ignored; attncli drops nothing out"):
        arguments = gather(["d.npz"]).arguments  # type: ignore[union-attr]
    assert np.ravel(arguments["scale"]) == [0.5]  # type: ignore[call-overload]


def test_names_that_say_no_input_come_last() -> None:
    names = ["zeta", "attn_q", "my_v", "k2"]
    assert entries._in_order(names) == ["attn_q", "k2", "my_v", "zeta"]


CACHES = ("key_cache", "value_cache")
OF_TRANSFORMER = (
    "mask, with mask_means drop: there, true is hidden; or bias if its numbers are added"
)
HINTS = {
    "attn_mask": "mask, or bias if its numbers are added to the scores",
    "causal_mask": "mask, or bias if its numbers are added to the scores",
    **dict.fromkeys(
        ("attention_mask", "encoder_attention_mask", "decoder_attention_mask"),
        "mask, or key_padding_mask if it is (B, S), or bias if its numbers are added",
    ),
    "mask_index": "key_padding_mask, or kv_lengths if it is (B,)",
    **dict.fromkeys(("src_mask", "tgt_mask", "memory_mask"), OF_TRANSFORMER),
    "key_mask": "key_padding_mask",
    **dict.fromkeys(
        ("src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask"),
        "key_padding_mask, with mask_means drop: there, true is padding",
    ),
    **dict.fromkeys(
        ("padding_mask", "encoder_padding_mask"),
        "key_padding_mask, with mask_means drop if true is padding there",
    ),
    **dict.fromkeys(
        (
            *("attn_bias", "attention_bias", "core_attention_bias", "position_bias"),
            *("relative_position_bias", "rel_pos_bias", "alibi_bias"),
        ),
        "bias",
    ),
    "relative_position_bias_table": "bias: its rows at relative_position_index, heads first",
    "ab": "bias: ab times sm_scale",
    "alibi": "alibi_slopes: true for those of the paper, or a list of them",
    "slopes": "alibi_slopes",
    "is_causal": "causal",
    "use_causal_mask": "causal",
    "unidirectional": "causal",
    "rope_theta": "rope_base",
    "inv_freq": "rope_frequencies",
    "do_rotary": "rope half, or interleaved if rotary_interleaved is 1; past keys are rotated "
    "already",
    **dict.fromkeys(
        (
            *("cos", "sin", "cos_cache", "sin_cache", "cos_sin_cache", "rotary_cos", "rotary_sin"),
            *("rotary_pos_emb", "freqs_cis", "freqs_cos", "freqs_sin"),
        ),
        "rope, with the rope_base or rope_frequencies that the cosines and sines were made with, "
        "unless query and key are rotated already",
    ),
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "q_num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "kv_num_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    **dict.fromkeys(
        ("softmax_scale", "sm_scale", "attn_scale", "scaling", "attention_multiplier"), "scale"
    ),
    "query_pre_attn_scalar": "scale: query_pre_attn_scalar ** -0.5",
    "temperature": "scale: 1 / temperature, or 1 / (temperature · √D) if the scores are divided by "
    "√D, too",
    "logit_scale": "scale, or its exponential (Swin V2, score cosine)",
    "window_size": "window",
    "local_window_size": "window; of ONNX Runtime, W - 1, 0",
    "left_window_size": "window, its first number",
    "right_window_size": "window, its second number",
    "window_left": "window, its first number",
    "window_right": "window, its second number",
    "sliding_window": "window: W - 1, 0 where a query sees W keys, itself included",
    "attn_logit_softcapping": "softcap",
    "soft_cap": "softcap",
    "attn_logits_soft_cap": "softcap",
    "logits_soft_cap": "softcap",
    "attention_chunk": "segment_ids: the positions divided by attention_chunk, rounded down",
    **dict.fromkeys(("query_seq_lengths", "seqused_q", "seq_len_q", "q_seqlen"), "query_lengths"),
    **dict.fromkeys(
        (
            *("key_value_seq_lengths", "key_value_lengths", "cache_seqlens", "seqused_k"),
            *("seq_len_kv", "kv_seqlen", "seq_lens", "context_lens"),
        ),
        "kv_lengths",
    ),
    "nonpad_kv_seqlen": "kv_lengths; if causal or in a window, with causal_align bottom-right",
    "seqlens_k": "kv_lengths: seqlens_k + 1, of ONNX Runtime, which is causal: with causal, and "
    "causal_align bottom-right behind a past",
    "cu_seqlens": "segment_ids: np.repeat(np.arange(n), np.diff(cu_seqlens))",
    **{
        name: f"{ids}: np.repeat(np.arange(n), np.diff({name})); with causal, window or ALiBi only "
        "if queries and keys have the same"
        for ids, names in {
            "segment_ids": (
                *("cu_seqlens_q", "cu_seq_q", "cum_seq_q", "seqstart_q"),
                *("query_start_loc", "qo_indptr"),
            ),
            "kv_segment_ids": (
                *("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_k", "cum_seq_k", "seqstart_k"),
            ),
        }.items()
        for name in names
    },
    **dict.fromkeys(
        ("past", "layer_past"),
        "key and value: the two halves of it, each with what is new behind it; if causal or in a "
        "window, with query_offset, the number of past keys",
    ),
    "past_sequence_length": "query_offset",
    **{
        name: f"{of}: {name}, and what is new behind it; if causal or in a window, with "
        "query_offset, the number of past keys"
        for key, value in (("past_key", "past_value"), ("k_cache", "v_cache"), CACHES)
        for name, of in ((key, "key"), (value, "value"))
    },
    **{
        name: f"key_padding_mask: false for the first {name} keys of each batch entry"
        for name in ("cache_leftpad", "leftpad_k")
    },
    **dict.fromkeys(
        (
            *("q_segment_ids", "query_segment_ids", "decoder_segment_ids", "inputs_segmentation"),
            *("document_ids", "document_id", "doc_ids", "doc_id", "sequence_id", "seq_idx"),
        ),
        "segment_ids",
    ),
    "key_segment_ids": "kv_segment_ids",
    "batch_first": "layout sbd if it is false, and nothing if it is true",
    **dict.fromkeys(
        (
            *("learnable_sink", "s_aux", "head_sink", "sink", "attn_sink", "attn_sinks"),
            "softmax_offset",
        ),
        "sinks",
    ),
    "add_zero_attn": "sinks: 0 for each head",
    "smooth_softmax": "sinks: 0 for each head",
    "query_mask": "query_lengths: how many queries of each batch entry are real",
    "position_ids": "query_offset: the position of query 0 among the keys",
    "cache_position": "query_offset: its first number, the position of query 0 among the keys",
    "average_attn_weights": "average_heads",
}
NOTHING_SERVES = {
    "dropout": "attncli drops nothing out",
    "dropout_p": "attncli drops nothing out",
    "enable_gqa": "fewer key and value heads are shared as they are",
    **dict.fromkeys(
        ("bias_k", "bias_v"),
        "put bias_k behind the projected keys, and bias_v behind the values; every query sees "
        "them, so that causal becomes a mask with a last column of true",
    ),
    **dict.fromkeys(
        ("head_mask", "layer_head_mask"), "no head is left out: multiply its context by 0"
    ),
    **{
        name: f"put the pages in order first: k_cache[{name}].reshape(B, -1, G, D)"
        for name in ("block_table", "block_tables", "page_table")
    },
    **{
        name: f"multiply {of} by {name} first"
        for of in ("query", "key", "value")
        for name in (f"{of[0]}_descale", f"{of[0]}_scale", f"descale_{of[0]}")
    },
}


def test_every_name_of_another_library_has_its_words() -> None:
    hints = {name: f"here it is {words}" for name, words in HINTS.items()} | NOTHING_SERVES
    assert {name: here.hint() for name, here in ELSEWHERE.items()} == hints


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("attn_mask", "--mask"),
        ("src_mask", None),
        ("cache_seqlens", "--kv-lengths"),
        ("document_ids", "--segment-ids"),
        ("window_size", "--window"),
        ("nonpad_kv_seqlen", "--kv-lengths"),
        *(
            (name, "--bias")
            for name in (
                *("rel_pos_bias", "relative_position_bias", "alibi_bias", "position_bias"),
                "core_attention_bias",
            )
        ),
        *((name, "--segment-ids") for name in ("doc_ids", "sequence_id", "inputs_segmentation")),
        *((name, "--sinks") for name in ("sink", "attn_sink", "softmax_offset")),
        ("seq_lens", "--kv-lengths"),
        ("seq_len_q", "--query-lengths"),
        ("causal_mask", "--mask"),
        ("mask_index", "--key-padding-mask"),
        *(
            (name, None)
            for name in (
                *("left_window_size", "right_window_size", "sliding_window", "seqlens_k", "ab"),
                *("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "batch_first", "alibi"),
                *("add_zero_attn", "query_mask", "src_key_padding_mask", "num_heads", "sm_scale"),
                *("past_key", "past_value", "k_cache", "v_cache", "block_table", "page_table"),
                *("bias_k", "cos_cache", "smooth_softmax", "logit_scale", "attention_chunk"),
                *("cos", "sin", "freqs_cos", "temperature", "scaling", "query_pre_attn_scalar"),
                *("relative_position_bias_table", "past", "block_tables", "padding_mask"),
                *("query_start_loc", "seqstart_q", "memory_mask"),
            )
        ),
    ],
)
def test_only_what_means_the_same_is_taken_out_of_a_dump(
    name: str, taken: str | None, folder: Path
) -> None:
    np.savez("d.npz", **ONES, **{name: np.ones((2, 4))})  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        gather(["d.npz"])
    hint = caught.value.hint or ""
    assert (f"{taken} d.npz#{name} takes it" in hint) == (taken is not None)
    assert ("takes it" in hint) == (taken is not None)


@pytest.mark.parametrize("name", ["labels", "position_ids", "cache_position"])
def test_what_is_no_rule_stands_by_in_a_dump(name: str, folder: Path) -> None:
    np.savez("d.npz", **ONES, **{name: np.arange(8).reshape(2, 4)})  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(gathered("d.npz").arguments) == {"query", "key"}


def test_an_array_in_the_place_of_a_number_may_be_left_out(folder: Path) -> None:
    np.savez("d.npz", **ONES, softcap=np.ones((2, 4)))  # type: ignore[arg-type]
    message = r"^d.npz#softcap: expected a single value; found an array"
    with pytest.raises(InputError, match=message) as caught:
        gather(["d.npz"])
    assert caught.value.hint == "--without softcap leaves it out"


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("past_key", np.ones((2, 4)), "the number of past keys; --without"),
        ("cache_leftpad", [0, 1], "false for the first cache_leftpad keys of each batch entry;"),
        ("q_descale", 2.0, "multiply query by q_descale first; --without"),
        ("block_table", [[1, 0]], "k_cache[block_table].reshape(B, -1, G, D); --without"),
        ("smooth_softmax", 1, "sinks: 0 for each head; give --sinks, and --without"),
        ("do_rotary", 1, "past keys are rotated already; give --rope, and --without"),
        ("temperature", 2.0, "here it is scale: 1 / temperature, or 1 / (temperature · √D)"),
        # A model that divides by the temperature alone may have one of 1.
        ("temperature", 1.0, "give --scale, and --without"),
        ("scaling", 0.5, "here it is scale; give --scale, and --without"),
        ("attn_logit_softcapping", 50.0, "here it is softcap; give --softcap, and --without"),
        ("past_sequence_length", 3, "here it is query_offset; give --query-offset, and"),
        ("k_scale", 0.5, "multiply key by k_scale first; --without"),
        ("freqs_cis", np.ones((4, 2), complex), "unless query and key are rotated already; --"),
        ("head_mask", [1, 0], "multiply its context by 0; --without"),
    ],
)
def test_what_changes_the_result_elsewhere_is_not_passed_over(
    name: str, value: object, advice: str, folder: Path
) -> None:
    np.savez("d.npz", **ONES, **{name: np.array(value)})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^d.npz: unknown entry '{name}'") as caught:
        gather(["d.npz"])
    assert advice in (caught.value.hint or "")
    assert set(gather(["d.npz"], without=name).arguments) == {"query", "key"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("unidirectional", 0, "0 changes nothing here"),
        ("is_causal", np.int64(0), "0 changes nothing here"),
        # So ONNX Runtime writes what is not given.
        ("smooth_softmax", -1, "-1 changes nothing here"),
        ("local_window_size", -1, "-1 changes nothing here"),
        ("window_size", [-1, -1], "-1 changes nothing here"),
        ("soft_cap", 0.0, "0 changes nothing here"),
        ("cache_leftpad", [0, 0], "0 changes nothing here"),
        ("k_descale", np.ones((2, 2), np.float32), "1 changes nothing here"),
        ("v_scale", 1.0, "1 changes nothing here"),
        ("attn_logit_softcapping", 0.0, "0 changes nothing here"),
        ("past_sequence_length", 0, "0 changes nothing here"),
        ("past_key", np.ones((2, 0)), "an empty array changes nothing here"),
    ],
)
def test_what_changes_nothing_elsewhere_is_passed_over(
    name: str, value: object, words: str, folder: Path
) -> None:
    np.savez("d.npz", **ONES, **{name: np.array(value)})  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match=f"^d.npz: the entry '{name}' is ignored; {words}$"):
        assert set(gathered("d.npz").arguments) == {"query", "key"}


@pytest.mark.parametrize("name", ["cache_seqlens", "softmax_scale", "logit_scale"])
def test_a_zero_may_be_a_number_as_any_other(name: str, folder: Path) -> None:
    np.savez("d.npz", **ONES, **{name: np.array([0])})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"unknown entry '{name}'"):
        gather(["d.npz"])


def test_one_false_of_another_library_changes_nothing(folder: Path) -> None:
    np.savez("d.npz", **ONES, is_causal=np.array([False]))  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match="'is_causal' is ignored; null or false changes nothing"):
        gather(["d.npz"])


def test_a_rule_of_another_name_is_taken_by_an_option_or_left_out(folder: Path) -> None:
    np.savez("d.npz", **ONES, attn_mask=np.zeros((2, 4)), is_causal=True)  # type: ignore[arg-type]
    taken = gather(["d.npz"], {"bias": "d.npz#attn_mask"}, without="is_causal")
    assert isinstance(taken, Gathered)
    assert "bias" in taken.arguments
    left = gather(["d.npz"], without="is_causal,attn_mask")
    assert isinstance(left, Gathered)
    assert set(left.arguments) == {"query", "key"}
    with pytest.raises(UsageError, match="unknown entry 'attn_mask'"):
        gather(["d.npz"], without="is_causal")


def test_an_unknown_single_value_in_a_dump_is_an_error(folder: Path) -> None:
    np.savez("d.npz", **ONES, softcup=3.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown entry 'softcup'") as caught:
        gather(["d.npz"])
    assert caught.value.hint == "did you mean softcap?"


def test_query_key_and_value_are_known_in_capitals(folder: Path) -> None:
    np.savez("d.npz", Q=np.ones((2, 3)), Key=np.ones((4, 3)), V=np.ones((4, 1)))
    Path("d.yaml").write_text("Q: [[1]]\nK: [[1]]\nVALUE: [[1]]\n")
    for file in ("d.npz", "d.yaml"):
        assert set(gathered(file).arguments) == {"query", "key", "value"}
    Path("e.yaml").write_text("q: [[1]]\nQ: [[1]]\nk: [[1]]\n")
    with pytest.raises(InputError, match="both q and Q are given"):
        gather(["e.yaml"])


def test_embeddings_and_weights_too(folder: Path) -> None:
    names = ("X", "Wq", "WK", "wv", "Bq", "Wo")
    np.savez("d.npz", **{name: np.eye(2) if name != "Bq" else np.ones(2) for name in names})
    assert set(gathered("d.npz").arguments) == {"query", "key", "value", "wo"}


def test_arrays_without_names_are_to_be_named(folder: Path) -> None:
    np.savez("d.npz", *[np.ones((2, 2))] * 3)
    with pytest.raises(InputError, match=r"query is missing \(found arr_0, arr_1, arr_2") as caught:
        gather(["d.npz"])
    assert caught.value.hint == "say which they are: d.npz#arr_0 d.npz#arr_1 d.npz#arr_2"


def test_one_array_alone_may_be_finished_weights(folder: Path) -> None:
    np.savez("d.npz", np.ones((2, 2)))
    with pytest.raises(InputError, match="query is missing") as caught:
        gather(["d.npz"])
    hint = "if it holds finished weights, name them: attncli heatmap d.npz#arr_0"
    assert caught.value.hint == hint
    assert isinstance(gather(["d.npz#arr_0"]), Finished)


@pytest.mark.parametrize(
    "names",
    ["arr_0 arr_1 arr_2", "attentions_0 attentions_1", "weights_0 logits", "logits layer_0"],
)
def test_several_arrays_of_finished_weights_are_no_queries_and_keys(
    names: str, folder: Path
) -> None:
    weights = np.full((2, 4, 4), 0.25)
    scores = np.arange(32.0).reshape(2, 4, 4)
    arrays = {name: scores if name == "logits" else weights for name in names.split()}
    np.savez("d.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="query is missing") as caught:
        gather(["d.npz"])
    first = names.split()[names.startswith("logits")]
    hint = f"if it holds finished weights, name them: attncli heatmap d.npz#{first}"
    assert caught.value.hint == hint


def test_arrays_that_cannot_be_read_are_not_taken_for_finished_weights(folder: Path) -> None:
    np.savez("d.npz", a=np.ones((2, 2), dtype=complex), b=np.ones((2, 2)))
    with pytest.raises(InputError) as caught:
        gather(["d.npz"])
    assert caught.value.hint == "say which they are: d.npz#a d.npz#b"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("is_causal", "here it is causal"),
        ("enable_gqa", "fewer key and value heads are shared as they are"),
        ("Softcap", "did you mean softcap?"),
        (
            "zzz",
            (
                "a problem holds query, key, value, and options of attncli.attention by their "
                "names: mask, causal, scale, …"
            ),
        ),
        ("alibi", "here it is alibi_slopes: true for those of the paper, or a list of them"),
        ("threads", "--threads is given on the command line"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(
    folder: Path, name: str, hint: str
) -> None:
    Path("u.yaml").write_text(f"query: [[1]]\nkey: [[1]]\n{name}: true\n")
    with pytest.raises(UsageError) as caught:
        gather(["u.yaml"])
    assert caught.value.message == f"u.yaml: unknown entry {name!r}"
    assert caught.value.hint == hint


def test_a_long_list_of_entries_is_cut(folder: Path) -> None:
    np.savez("d.npz", **{f"layer{at}": np.ones(2) for at in range(46)})  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        gather(["d.npz"])
    assert caught.value.message.endswith("layer6, layer7, …)")


def test_a_missing_file_of_labels_is_answered_with_the_one_there(problem: Path) -> None:
    Path("tokens.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"^toknes.txt does not exist") as caught:
        gather(["q.npy", "k.npy"], {"tokens": "toknes.txt"})
    assert caught.value.hint == "did you mean tokens.txt?"


def test_names_that_are_close_to_query_key_and_value_are_told_in_this_order(folder: Path) -> None:
    names = ["attn.k_proj_out", "attn.q_proj_out", "attn.v_proj_out"]
    np.savez("d.npz", **{name: np.ones((2, 4)) for name in names})  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        gather(["d.npz"])
    asked = " ".join(f"d.npz#{names[at]}" for at in (1, 0, 2))
    assert caught.value.hint == f"say which they are: {asked}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dropout_p", "attncli drops nothing out"),
        ("enable_gqa", "fewer key and value heads are shared as they are"),
        ("threads", "--threads is given on the command line"),
        ("average_heads", "--average-heads is given on the command line"),
    ],
)
def test_what_changes_nothing_here_is_left_out_of_a_dump_and_told(
    folder: Path, name: str, words: str
) -> None:
    np.savez("d.npz", **ONES, **{name: np.array(0.0)})  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match=f"'{name}' is ignored; {words}"):
        assert name not in gather(["d.npz"]).arguments  # type: ignore[union-attr]


def test_single_values_that_are_no_option_are_left_out_of_a_dump(folder: Path) -> None:
    np.savez("d.npz", **ONES, step=1200, loss=np.float32(2.3), done=True)  # type: ignore[arg-type]
    assert set(gathered("d.npz").arguments) == {"query", "key"}


def test_an_option_under_another_name_in_a_dump_is_an_error(folder: Path) -> None:
    np.savez("d.npz", **ONES, softmax_scale=0.1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown entry 'softmax_scale'") as caught:
        gather(["d.npz"])
    assert caught.value.hint == (
        "here it is scale; give --scale, and --without softmax_scale leaves it out"
    )


@pytest.mark.parametrize("name", ["is_causal", "softmax_scale"])
def test_an_option_under_another_name_that_is_off_is_passed_over(folder: Path, name: str) -> None:
    np.savez("d.npz", **ONES, **{name: False})  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match=f"the entry '{name}' is ignored"):
        gather(["d.npz"])


def test_projections_under_another_name_are_no_rules(folder: Path) -> None:
    np.savez("d.npz", **ONES, w_q=np.eye(2))  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match="'w_q' is ignored; here it is wq"):
        gather(["d.npz"])
    Path("s.yaml").write_text("x: [[1, 0]]\nw_query: [[1], [0]]\nwk: [[1], [0]]\n")
    with pytest.raises(UsageError, match="unknown entry 'w_query'") as caught:
        gather(["s.yaml"])
    assert caught.value.hint == "here it is wq"


def test_a_misspelt_option_beside_embeddings_is_no_checkpoint(folder: Path) -> None:
    words = "x: [[1, 0]]\nwq: [[1], [0]]\nwk: [[1], [0]]\nwv: [[1], [0]]\n"
    Path("s.yaml").write_text(words + "casual: true\n")
    with pytest.raises(UsageError, match=r"s\.yaml: unknown entry 'casual'") as caught:
        gather(["s.yaml"])
    assert caught.value.hint == "did you mean causal?"


def test_an_input_that_is_null_is_called_so(folder: Path) -> None:
    Path("p.yaml").write_text("query: [[1, 0]]\nkey:\nvalue: [[1]]\n")
    with pytest.raises(InputError, match=r"p\.yaml#key: expected numbers; found nothing \(null\)"):
        gather(["p.yaml"])


def test_what_a_dump_names_as_a_mask_is_not_left_out_in_silence(folder: Path) -> None:
    np.savez("d.npz", **ONES, loss=np.ones(3), my_special_mask=np.eye(2))  # type: ignore[arg-type]
    with pytest.warns(AttnWarning, match="the entry 'my_special_mask' is ignored") as caught:
        gather(["d.npz"])
    assert len(caught) == 1


def test_options_of_a_dump_may_be_words(folder: Path) -> None:
    np.savez("d.npz", q=np.ones((2, 2)), k=np.ones((2, 2)), rope="half", causal=True)
    found = gather(["d.npz"])
    assert isinstance(found, Gathered)
    assert (found.arguments["rope"], found.arguments["causal"]) == ("half", True)


@pytest.mark.parametrize("name", ["k", "mask", "sinks", "tokens", "checkpoint"])
def test_a_dump_names_no_files(folder: Path, name: str) -> None:
    np.save("k.npy", np.ones((2, 2)))
    np.savez("d.npz", **{"q": np.ones((2, 2)), "k": np.ones((2, 2)), name: "k.npy"})
    with pytest.raises(InputError, match=f"d.npz#{name}: expected real numbers; found text"):
        gather(["d.npz"])


def test_labels_are_lines_of_a_file_or_a_list_in_json(tmp_path):
    path = tmp_path / "tokens.txt"
    for text, labels in {
        "The\ncat\n": ("The", "cat"),
        '["[CLS]", "caf\\u00e9"]\n': ("[CLS]", "café"),
        "[CLS]\ncat\n": ("[CLS]", "cat"),
        "[1, 2]\n": ("[1, 2]",),
        "[" * 100_000: ("[" * 100_000,),
    }.items():
        path.write_text(text, encoding="utf-8")
        assert label_file(str(path)) == labels


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('The\n","\n""""\n"a ""b"""\n', ("The", ",", '"', 'a "b"')),
        ('"The"\n"cat"\n', ("The", "cat")),
        ('sep=;\nThe\n","\n";"\n', ("The", ",", ";")),
        ('"sep=,"\nThe,\n",",\n', ("The", ",")),
        ('The;\n";";\n', ("The", ";")),
        ("The,,\n,,\ncat,,\n", ("The", "", "cat")),
        ('"The"\t""\n"cat"\t""\n', ("The", "cat")),
        # No separators, where rows would not be as long or hold more.
        ("The\n,\n;\ncat\n", ("The", ",", ";", "cat")),
        ("a,\nb,c\n", ("a,", "b,c")),
        ('The\n\n""\n', ("The", "", "")),
        # No CSV: the lines as they are.
        ('The\n"\n', ("The", '"')),
        ('"The" cat\nsat\n', ('"The" cat', "sat")),
    ],
)
def test_labels_in_a_table_are_its_column(tmp_path, newline, suffix, text, labels):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(text.replace("\n", newline).encode())
    assert label_file(str(path)) == labels


def test_what_csv_writes_are_the_labels(tmp_path):
    labels = ("The", "", '"', ",", ";", "\t", '""', "a b", "\n", "sep=;")
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([label] for label in labels)
    assert label_file(str(tmp_path / "t.csv")) == labels


def test_labels_in_other_text_are_its_lines(tmp_path):
    (tmp_path / "t.txt").write_text('sep=;\n"\n","\nThe;\n')
    assert label_file(str(tmp_path / "t.txt")) == ("sep=;", '"', '","', "The;")


def test_more_than_a_column_of_labels_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("sep=;\nThe;1\ncat;2\n")
    with pytest.raises(InputError, match=r"expected one label in each row; found '1' behind 'The'"):
        label_file(str(tmp_path / "t.csv"))


# --- finished weights -------------------------------------------------------------------------


@pytest.fixture
def finished(folder: Path) -> Path:
    """Weights of three queries and keys; a document in a folder of its own."""
    (folder / "w.csv").write_text("1,0,0\n0.5,0.5,0\n0.2,0.3,0.5\n")
    (folder / "sub").mkdir()
    (folder / "sub/w.yaml").write_text("weights: [[0.5, 0.5], [0, 1]]\ntokens: t.txt\n")
    (folder / "sub/t.txt").write_text("cat\nsat\n")
    (folder / "t.txt").write_text("X\nY\n")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "a,b,c,d,e"}, "query_labels (tokens): expected 3 labels, one for each query"),
        ({"key_labels": "a,b"}, "key_labels: expected 3 labels, one for each key; found 2"),
    ],
)
def test_finished_weights_have_as_many_labels_as_queries_and_keys(
    finished: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AttnError, match=re.escape(message)):
        gather(["w.csv"], options)


def test_labels_in_a_document_of_weights_stand_beside_it(finished: Path) -> None:
    found = gather(["sub/w.yaml"])
    assert isinstance(found, Finished)
    assert found.query_labels == found.key_labels == ("cat", "sat")
    assert gather(["sub/w.yaml"], {"tokens": "t.txt"}).query_labels == ("X", "Y")


def test_a_dump_of_weights_names_no_files(finished: Path) -> None:
    np.savez("w.npz", weights=np.eye(2), query_labels=np.array("t.txt"))
    with pytest.raises(InputError, match=r"w\.npz#query_labels: expected a list"):
        gather(["w.npz"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("kye: [[1, 0]]\nquery: [[1, 0]]", "w.yaml: unknown entry 'kye' (hint: did you mean key?)"),
        ("causal: true", "query or key is missing: causal has nothing to act on"),
        ("foo: 1", "unknown entry 'foo'"),
    ],
)
def test_what_stands_beside_weights_and_has_no_effect_is_refused(
    folder: Path, entry: str, message: str
) -> None:
    Path("w.yaml").write_text("weights: [[0.5, 0.5]]\n" + entry)
    with pytest.raises(AttnError, match=re.escape(message)):
        gather(["w.yaml"])


def test_a_member_of_standard_input_in_a_problem_of_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/p.yaml").write_text("query: '-#q'\nkey: [[1, 0]]\n")
    pipe = io.TextIOWrapper(io.BytesIO(b'{"q": [[1, 2]]}'))
    monkeypatch.setattr(sys, "stdin", pipe)
    np.testing.assert_array_equal(gathered("sub/p.yaml").arguments["query"], [[1, 2]])


def test_lines_of_labels_may_end_as_on_old_machines(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes(b"a\rb\r")
    assert label_file(str(tmp_path / "l.txt")) == ("a", "b")


def test_sinks_that_are_given_win_over_those_of_a_checkpoint(folder: Path) -> None:
    np.savez("c.npz", wq=np.eye(2), wk=np.eye(2), wv=np.eye(2), sinks=np.array([5.0]))
    np.save("x.npy", np.eye(2))
    given = gather(["x.npy"], {"checkpoint": "c.npz", "sinks": "0"})
    own = gather(["x.npy"], {"checkpoint": "c.npz"})
    assert isinstance(given, Gathered)
    assert isinstance(own, Gathered)
    assert np.ravel(given.arguments["sinks"]) == [0]
    assert np.ravel(own.arguments["sinks"]) == [5]


def test_what_can_be_left_out_begins_with_the_inputs(folder: Path) -> None:
    others = {f"o{n:02}": np.eye(2) for n in range(20)}
    np.savez("d.npz", **others, query=np.eye(2), key=np.eye(2))
    with pytest.raises(UsageError) as caught:
        gather(["d.npz"], {}, without="mask")
    assert (caught.value.hint or "").startswith("it has query, key,")


@pytest.mark.parametrize("text", ["q: [1 0 1]", "q:\n  - 1 0 1\n  - 0 1 1\n"])
def test_numbers_with_spaces_between_are_no_words(text: str, folder: Path) -> None:
    (folder / "p.yaml").write_text(f"{text}\nk: [[1, 0, 1]]\n")
    with pytest.raises(InputError) as caught:
        gather(["p.yaml"])
    assert caught.value.hint == "separate the numbers by commas: [1, 0, 1]"
    assert "p.yaml#q: expected numbers; found the text '1 0 1'" in caught.value.message


def test_context_alone_is_nothing_to_draw(folder: Path) -> None:
    (folder / "p.json").write_text('{"schema": 1, "context": [[1, 2]]}')
    with pytest.raises(InputError) as caught:
        gather(["p.json"])
    assert caught.value.hint == "compute --show weights -f json writes what heatmap draws"
