"""Padding, and another diagonal, that nobody stated are read off a context."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

B, H, L, D = SHAPE = (2, 4, 24, 16)
I, J = np.arange(L)[:, None], np.arange(L)
CAUSAL = J <= I
ENTRY = np.array([20, 17])[:, None, None, None]


def told(report):
    (explanation,) = report.diagnosis.explanations
    (convention,) = explanation.conventions
    return convention, *(explanation.options or [None])


@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float16"))
@pytest.mark.parametrize("causal", [False, True])
def test_padding_that_nobody_stated(dtype, causal):
    inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[SHAPE] * 3)]
    wrong = plain(*inputs, (J < ENTRY) & (CAUSAL | (not causal)))
    report = ask(inputs, wrong, dtype, causal=causal)
    convention, option = told(report)
    assert convention.name == "padding_unasked"
    assert "batch entry 0 has 20 of 24 keys; batch entry 1 has 17 of 24 keys" in convention.meaning
    assert option == "--kv-lengths 20,17"
    assert ask(inputs, wrong, dtype, causal=causal, kv_lengths=[20, 17]).passed


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("lengths", long_but([[20, 17], [24, 9], [19, 19], [1, 24]], [24, 9]))
def test_padding_and_a_causal_mask_that_nobody_stated(lengths, projected):
    q, k, v = inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(q, k, v, (np.array(lengths)[:, None, None, None] > J) & CAUSAL)
    given = {}
    if projected:
        (weight,) = draw(1, (H * D, 80), dtype="float64")
        inputs = [array.swapaxes(1, 2).reshape(B, L, H * D) for array in inputs]
        wrong = wrong.swapaxes(1, 2).reshape(B, L, H * D) @ weight
        given = {"heads": H, "wo": weight}
    convention, option = told(ask(inputs, wrong, **given))
    assert convention.name == "causal_and_padding_unasked"
    assert option == f"--causal --kv-lengths {','.join(map(str, dict.fromkeys(lengths)))}"
    assert ask(inputs, wrong, causal=True, kv_lengths=lengths, **given).passed


def test_padding_and_a_causal_mask_of_fewer_queries():
    q, k, v = draw(0, (B, H, 8, D), SHAPE, SHAPE)
    wrong = plain(q, k, v, (np.array([5, 24])[:, None, None, None] > J) & CAUSAL[:8])
    convention, option = told(ask((q, k, v), wrong))
    assert convention.name == "causal_and_padding_unasked"
    assert option == "--causal --causal-align top-left --kv-lengths 5,24"


def test_the_same_length_is_said_once():
    inputs = draw(0, *[SHAPE] * 3)
    convention, option = told(ask(inputs, plain(*inputs, J < 19)))
    assert "only the first 19 of 24 count" in convention.meaning
    assert option == "--kv-lengths 19"


def test_no_option_where_lengths_would_move_the_queries():
    q, k, v = draw(0, (B, H, 8, D), SHAPE, SHAPE)
    keep = (J < ENTRY) & (np.arange(8)[:, None] + 16 >= J)
    convention, option = told(ask((q, k, v), plain(q, k, v, keep), causal=True, query_offset=16))
    assert convention.name == "padding_unasked"
    assert option is None


@pytest.mark.parametrize("seed", SEEDS)
def test_other_lengths_than_those_stated(seed):
    inputs = draw(seed, *[SHAPE] * 3)
    report = ask(inputs, plain(*inputs, J < ENTRY), kv_lengths=[20, 22])
    convention, option = told(report)
    assert convention.name == "other_lengths"
    assert convention.meaning.endswith("batch entry 1 takes 17 keys where 22 are right")
    assert option == "--kv-lengths 20,17"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("change", [-2, 1])
@pytest.mark.parametrize("side", ["first", "last"])
def test_padding_that_is_longer_or_shorter_than_the_mask_says(side, change, causal, seed):
    inputs = draw(seed, *[SHAPE] * 3)
    places = J if side == "first" else L - 1 - J
    padding, other = (places < np.array([[L], [15 + more]]) for more in (0, change))
    keep = other[:, None, None] & np.tri(L, k=0 if causal else L, dtype=bool)
    report = ask(inputs, plain(*inputs, keep), key_padding_mask=padding, causal=causal)
    convention, _ = told(report)
    assert convention.name == "other_padding"
    seen = f"batch entry 1 sees its {side} {15 + change} keys where 15 are right"
    assert convention.meaning == f"another key_padding_mask: {seen}"


@pytest.mark.parametrize("lengths", long_but([[20, 24, 9], [9, 20, 14], [24] * 3], [24] * 3))
@pytest.mark.parametrize("queries", [1, 5])
def test_other_lengths_that_move_the_queries(lengths, queries):
    q, k, v = draw(0, (3, 4, queries, D), *[(3, 2, L, D)] * 2)
    given = {"kv_lengths": [20, 14, 9], "causal": True, "causal_align": "bottom-right"}
    end = np.array(lengths)[:, None, None, None]
    keep = (end > J) & (np.arange(queries)[:, None] + end - queries >= J)
    wrong = plain(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), keep)
    convention, option = told(ask((q, k, v), wrong, **given))
    assert convention.name == "other_lengths"
    listed = ",".join(map(str, dict.fromkeys(lengths) if len(set(lengths)) == 1 else lengths))
    assert option == f"--kv-lengths {listed} (with --causal-align bottom-right)"
    assert ask((q, k, v), wrong, **{**given, "kv_lengths": lengths}).passed


@pytest.mark.parametrize("lengths", long_but([[9] * 3, [20, 20, 9], [14, 9, 20]], [9] * 3))
def test_other_lengths_of_one_query(lengths):
    q, k, v = draw(0, (3, 4, 1, D), *[(3, 4, L, D)] * 2)
    wrong = plain(q, k, v, np.array(lengths)[:, None, None, None] > J)
    name = "kv_lengths_of_next_entry" if lengths == [14, 9, 20] else "other_lengths"
    assert told(ask((q, k, v), wrong, kv_lengths=[20, 14, 9]))[0].name == name


@pytest.mark.parametrize("queries", [1, 8])
def test_entries_that_were_not_written_have_no_length(queries):
    q, k, v = draw(0, (3, 4, queries, D), *[(3, 4, 64, D)] * 2)
    lengths = np.array([64, 40, 31])
    wrong = plain(q, k, v, np.arange(64) < lengths[:, None, None, None])
    wrong[1:] = 0
    assert named(ask((q, k, v), wrong, kv_lengths=lengths.tolist())) == {"rows_not_written"}


@pytest.mark.parametrize("prefix", long_but([8, 16, 11, [5, 9]], 8, [5, 9]))
def test_a_prefix_that_every_query_sees(prefix):
    inputs = draw(0, *[SHAPE] * 3)
    end = np.broadcast_to(prefix, B)[:, None, None, None]
    convention, _ = told(ask(inputs, plain(*inputs, (end > J) | CAUSAL), causal=True))
    assert convention.name == "prefix_unasked"
    words = f"the first {prefix} keys" if isinstance(prefix, int) else "batch entry 1 has 9 keys"
    assert words in convention.meaning


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_on_the_left(seed):
    inputs = draw(seed, *[SHAPE] * 3)
    convention, _ = told(ask(inputs, plain(*inputs, (J >= ENTRY - 15) & CAUSAL), causal=True))
    assert convention.name == "padding_on_the_left_unasked"
    assert "batch entry 0 loses its first 5; batch entry 1 loses its first 2" in convention.meaning


@pytest.mark.parametrize("name", ["padding_unasked", "padding_on_the_left_unasked"])
def test_behind_an_output_projection(name):
    keep = J < ENTRY if name == "padding_unasked" else J >= ENTRY - 15
    q, k, v = draw(0, *[SHAPE] * 3)
    (weight,) = draw(1, (H * D, 80), dtype="float64")
    packed = [array.swapaxes(1, 2).reshape(B, L, H * D) for array in (q, k, v)]
    joined = plain(q, k, v, keep).swapaxes(1, 2).reshape(B, L, H * D)
    assert named(ask(packed, joined @ weight, heads=H, wo=weight)) == {name}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("name", ["padding_unasked", "another_offset"])
def test_of_a_problem_that_is_tried_in_slices(name):
    q, k, v = draw(0, *[(2, 2, 48, 16)] * 3)
    i, j = np.arange(48)[:, None], np.arange(48)
    length = np.array([43, 19])[:, None, None, None]
    keep = j <= i + 7 if name == "another_offset" else (j <= i) & (j < length)
    assert named(ask((q, k, v), plain(q, k, v, keep), causal=True)) == {name}


OFFSETS = {
    "i + 3": (3, {"causal": True}, "--query-offset 3"),
    "i − 5": (-5, {"causal": True}, "--query-offset=-5"),
    "i + 4": (4, {"causal": True, "window": (6, 0)}, "--query-offset 4"),
    "i + 2": (2, {"causal": True, "query_offset": 7}, "--query-offset 2 (without --causal-align)"),
    "i − 2": (-2, {"window": (3, 4)}, "--query-offset=-2"),
    "i + 6": (6, {"causal": True, "alibi_slopes": [0.0] * H}, None),
}


@pytest.mark.parametrize("words", long_but(OFFSETS, "i + 3", "i − 2", "i + 6"))
def test_another_diagonal(words):
    offset, options, shown = OFFSETS[words]
    inputs = draw(0, *[SHAPE] * 3)
    place = I + offset
    left, right = options.get("window", (2 * L, 0))
    keep = (place - left <= J) & (place + right >= J)
    wrong = plain(*inputs, keep)
    convention, option = told(ask(inputs, wrong, **options))
    assert convention.name == "another_offset"
    assert f"than the problem states: query i at key {words}" in convention.meaning
    assert option == shown
    assert ask(inputs, wrong, **{**options, "query_offset": offset}).passed


def test_each_batch_entry_at_its_own_place():
    inputs = draw(0, *[SHAPE] * 3)
    convention, option = told(ask(inputs, plain(*inputs, J <= I + ENTRY - 14), causal=True))
    assert (
        "query i of batch entry 0 at key i + 6; query i of batch entry 1 at key i + 3"
        in convention.meaning
    )
    assert option == "--query-offset 6,3"


@pytest.mark.parametrize(
    ("stated", "there", "words"),
    [
        ([18, 23], [20, 23], "query i of batch entry 0 at key i + 20"),
        ([18, 22], [18, 20], "query i of batch entry 1 at key i + 20"),
    ],
)
def test_only_the_batch_entries_that_stand_elsewhere_are_told(stated, there, words):
    q, k, v = draw(0, (B, H, 1, D), SHAPE, SHAPE)
    place = np.array(there)[:, None, None, None]
    wrong = plain(q, k, v, (place - 5 <= J) & (place >= J))
    convention, _ = told(ask((q, k, v), wrong, window=(5, 0), query_offset=stated))
    assert convention.name == "another_offset"
    assert convention.meaning.endswith(f"states: {words}")


def test_options_say_what_has_to_go():
    q, k, v = draw(0, (B, H, 8, D), SHAPE, SHAPE)
    wrong = plain(q, k, v, np.arange(8)[:, None] + 3 >= J)
    _, option = told(ask((q, k, v), wrong, causal=True, causal_align="top-left"))
    assert option == "--query-offset 3 (without --causal-align, where it is given)"
    lengths = {"kv_lengths": [20, 24], "causal": True, "causal_align": "bottom-right"}
    end = np.array([18, 24])[:, None, None, None]
    keep = (end > J) & (np.arange(8)[:, None] + end - 8 >= J)
    assert "other_lengths" in named(ask((q, k, v), plain(q, k, v, keep), **lengths))
    slopes = {**lengths, "alibi_slopes": [0.0] * H}  # they would be moved by the option
    assert "other_lengths" not in named(ask((q, k, v), plain(q, k, v, keep), **slopes))


@pytest.mark.parametrize("rule", ["kv_lengths", "key_padding_mask"])
def test_one_key_is_said_to_be_one(rule):
    inputs = draw(0, *[SHAPE] * 3)
    real = np.ones((B, L), np.bool_)
    real[0, 11] = False
    options = {rule: [24, 20] if rule == "kv_lengths" else real}
    seen = J < ENTRY if rule == "kv_lengths" else real[:, None, None]
    wrong = plain(*inputs, (np.array([1, 17])[:, None, None, None] > J) & seen)
    convention, _ = told(ask(inputs, wrong, **options))
    if rule == "kv_lengths":
        assert "batch entry 0 takes 1 key where 24 are right" in convention.meaning
    else:
        assert "beside that which the problem states: batch entry 0 has 1 of" in convention.meaning


def test_a_causal_rule_that_nobody_stated_at_another_diagonal():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(*inputs, J <= I + 3)
    convention, option = told(ask(inputs, wrong))
    assert convention.name == "causal_unasked_at_another_offset"
    assert option == "--causal --query-offset 3"
    assert ask(inputs, wrong, causal=True, query_offset=3).passed


@pytest.mark.usefixtures("one_mistake")
def test_a_mask_with_holes_is_neither():
    inputs = draw(0, *[SHAPE] * 3)
    holes = np.random.default_rng(0).random((L, L)) < 0.7
    names = named(ask(inputs, plain(*inputs, holes & CAUSAL), causal=True))
    assert not names & {"padding_unasked", "padding_on_the_left_unasked", "another_offset"}


def in_bfloat16(array):
    """Return float32 numbers rounded to the upper 16 bits, ties away from zero."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("count", long_but([369, 300, 218], 369))
@pytest.mark.parametrize("rule", ["length", "offset"])
def test_many_keys_are_counted_to_the_last_one_in_bfloat16(rule, count):
    shapes = (1, 2, 1, 64), (1, 2, 512, 64), (1, 2, 512, 64)
    q, k, v = map(in_bfloat16, draw(count, *shapes))
    wrong = in_bfloat16(plain(q, k, v, np.arange(512) < count))
    causal = rule == "offset"
    _, option = told(ask((q, k, v), wrong, causal=causal))
    shown = f"--query-offset {count - 1} (without" if causal else f"--kv-lengths {count}"
    assert option.startswith(shown)


@pytest.mark.parametrize(
    "factor", [1.01 * np.log2(np.e), pytest.param(1.04 * np.log(2), marks=pytest.mark.long)]
)
def test_a_scale_near_a_known_one_is_not_taken_for_it_in_bfloat16(factor):
    q, k, v = map(in_bfloat16, draw(1, *[(1, 2, 64, 64)] * 3))
    wrong = in_bfloat16(plain(q, k, v, scale=factor / 8))
    convention, option = told(ask((q, k, v), wrong))
    assert convention.name == "another_scale"
    assert float(option.split()[1]) == pytest.approx(factor / 8, rel=2e-3)


@pytest.mark.parametrize("seed", range(4))
def test_one_number_that_is_free_is_no_evidence_for_one_of_thousands(seed):
    """A context of two keys: a scale a bit off is not told as keys in few codes."""
    q, k, v = draw(seed, (1, 1, 1, 8), (1, 1, 2, 8), (1, 1, 2, 64))
    names = named(ask((q, k, v), plain(q, k, v, scale=1.18 / 8**0.5)))
    assert not any("int" in name or "float8" in name for name in names)
