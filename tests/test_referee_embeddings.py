"""Mistakes on the way from embeddings to query, key and value, each made by a line of NumPy."""

from pathlib import Path

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, as_bfloat16, draw, named, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import UsageError, load, pose, project, solve
from attncli.referee import check

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 16, 4
FREQUENCIES = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
ANGLES = np.arange(TOKENS)[:, None] * FREQUENCIES
POSITIONS = np.stack([np.sin(ANGLES), np.cos(ANGLES)], axis=-1).reshape(TOKENS, WIDTH)


def layer(seed, width=WIDTH):
    """Return embeddings (B, L, W), and weights and biases by their names."""
    shapes = [(WIDTH, width)] * 3 + [(width,)] * 3
    x, *made = draw(seed, (BATCH, TOKENS, WIDTH), *shapes, dtype="float64")
    return x, dict(zip(("wq", "wk", "wv", "bq", "bk", "bv"), made, strict=True))


def attend(query, key, value, heads=HEADS):
    """Return the context of heads that lie side by side, without attncli."""

    def cut(array):
        return array.reshape(BATCH, -1, heads, array.shape[-1] // heads).transpose(0, 2, 1, 3)

    q, k, v = map(cut, (query, key, value))
    context = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return context.transpose(0, 2, 1, 3).reshape(*query.shape[:2], -1)


def linear(x, given, name, **changes):
    found = given | changes
    return x @ found[f"w{name}"] + found[f"b{name}"]


def judge(context, x, given, heads=HEADS, **options):
    made = project(x, **given, **options)
    problem = pose(made.query, made.key, made.value, heads=heads)
    return check(context.astype("f4"), problem, projected=made, time_limit=100)


def turned(given, *names):
    return {f"w{name}": given[f"w{name}"].T for name in names}


def unbiased(*names):
    return {f"b{name}": 0 for name in names}


# From the embeddings with positions and without, and the layer, to the three that are attended.
MISTAKES = {
    "projections_transposed": lambda x, _, g: [linear(x, g, n, **turned(g, *"qkv")) for n in "qkv"],
    "wq_transposed": lambda x, _, g: [linear(x, g, n, **turned(g, "q")) for n in "qkv"],
    "wk_transposed": lambda x, _, g: [linear(x, g, n, **turned(g, "k")) for n in "qkv"],
    "wv_transposed": lambda x, _, g: [linear(x, g, n, **turned(g, "v")) for n in "qkv"],
    "projection_biases_missing": lambda x, _, g: [x @ g[f"w{n}"] for n in "qkv"],
    "bq_missing": lambda x, _, g: [linear(x, g, n, **unbiased("q")) for n in "qkv"],
    "bv_missing": lambda x, _, g: [linear(x, g, n, **unbiased("v")) for n in "qkv"],
    "positions_missing": lambda _, bare, g: [linear(bare, g, n) for n in "qkv"],
    "positions_not_in_values": lambda x, bare, g: [
        *(linear(x, g, n) for n in "qk"),
        linear(bare, g, "v"),
    ],
    "projections_missing": lambda x, _, __: [x, x, x],
    "wq_unused": lambda x, _, g: [x, linear(x, g, "k"), linear(x, g, "v")],
    "wk_unused": lambda x, _, g: [linear(x, g, "q"), x, linear(x, g, "v")],
    "wv_unused": lambda x, _, g: [linear(x, g, "q"), linear(x, g, "k"), x],
    "queries_made_with_wk": lambda x, _, g: [linear(x, g, n) for n in "kkv"],
    "queries_made_with_wv": lambda x, _, g: [linear(x, g, n) for n in "vkv"],
    "keys_made_with_wq": lambda x, _, g: [linear(x, g, n) for n in "qqv"],
    "keys_made_with_wv": lambda x, _, g: [linear(x, g, n) for n in "qvv"],
    "values_made_with_wq": lambda x, _, g: [linear(x, g, n) for n in "qkq"],
    "values_made_with_wk": lambda x, _, g: [linear(x, g, n) for n in "qkk"],
    "projections_in_the_order_kvq": lambda x, _, g: [linear(x, g, n) for n in "kvq"],
    "projections_in_the_order_vqk": lambda x, _, g: [linear(x, g, n) for n in "vqk"],
    "projections_all_wq": lambda x, _, g: [linear(x, g, n) for n in "qqq"],
    "wq_transposed+wk_transposed": lambda x, _, g: [
        linear(x, g, n, **turned(g, *"qk")) for n in "qkv"
    ],
    "projections_transposed+projection_biases_missing": lambda x, _, g: [
        x @ g[f"w{n}"].T for n in "qkv"
    ],
    "projections_transposed+positions_missing": lambda _, bare, g: [
        linear(bare, g, n, **turned(g, *"qkv")) for n in "qkv"
    ],
}


# Two mistakes together take as long as all others: one pair is enough to see that they meet.
PAIRS = [name for name in MISTAKES if "+" in name]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", long_but(MISTAKES, *set(MISTAKES).difference(PAIRS[1:])))
def test_mistakes_of_self_attention(seed, name):
    x, given = layer(seed)
    placed = x + POSITIONS
    right = attend(*(linear(placed, given, n) for n in "qkv"))
    assert judge(right, x, given, positions="sinusoidal").passed
    wrong = attend(*MISTAKES[name](placed, x, given))
    assert named(judge(wrong, x, given, positions="sinusoidal")) == {name}


def turns(exponents, first=0):
    return np.arange(first, first + TOKENS)[:, None] / 10000.0 ** np.asarray(exponents)


def in_turn(one, other):
    both = np.empty((TOKENS, WIDTH))
    both[:, ::2], both[:, 1::2] = one, other
    return both


PAIRED = np.arange(0, WIDTH, 2) / WIDTH
OWN = np.arange(WIDTH) / WIDTH
ENCODINGS = {
    "positions_concatenated": lambda x: x + np.hstack([np.sin(ANGLES), np.cos(ANGLES)]),
    "positions_cosine_first": lambda x: x + in_turn(np.cos(ANGLES), np.sin(ANGLES)),
    "positions_from_one": lambda x: x + in_turn(np.sin(turns(PAIRED, 1)), np.cos(turns(PAIRED, 1))),
    "positions_own_exponents": lambda x: (
        x + in_turn(np.sin(turns(OWN))[:, ::2], np.cos(turns(OWN))[:, 1::2])
    ),
    "positions_double_exponents": lambda x: (
        x + in_turn(np.sin(turns(2 * PAIRED)), np.cos(turns(2 * PAIRED)))
    ),
    "positions_halved_exponents": lambda x: (
        x + in_turn(np.sin(turns(PAIRED / 2)), np.cos(turns(PAIRED / 2)))
    ),
    "positions_double_own_exponents": lambda x: (
        x + in_turn(np.sin(turns(2 * OWN))[:, ::2], np.cos(turns(2 * OWN))[:, 1::2])
    ),
    "positions_alone": lambda x: 0 * x + POSITIONS,
    "positions_of_first_token": lambda x: x + POSITIONS[0],
    "positions_twice": lambda x: x + POSITIONS + POSITIONS,
    "embeddings_scaled": lambda x: 4 * x + POSITIONS,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_other_encodings_of_positions(seed, name):
    x, given = layer(seed)
    wrong = attend(*(linear(ENCODINGS[name](x), given, n) for n in "qkv"))
    assert named(judge(wrong, x, given, positions="sinusoidal")) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("embeddings_scaled", lambda x: 4 * x),
        ("embeddings_of_unit_length", lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
        ("embeddings_centred", lambda x: x - x.mean(axis=-1, keepdims=True)),
    ],
)
def test_embeddings_that_are_changed_before_they_are_projected(seed, name, change):
    x, given = layer(seed)
    wrong = attend(*(linear(change(x), given, n) for n in "qkv"))
    assert named(judge(wrong, x, given)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_of_batch_entries_instead_of_tokens(seed):
    """``x + pe[:x.size(0)]`` with a table for (L, B, W), and the batch first."""
    x, given = layer(seed)
    moved = x + POSITIONS[: len(x), None]
    wrong = attend(*(linear(moved, given, n) for n in "qkv"))
    report = judge(wrong, x, given, positions="sinusoidal")
    assert named(report) == {"positions_along_the_batch"}


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_that_nobody_asked_for(seed):
    x, given = layer(seed)
    report = judge(attend(*(linear(x + POSITIONS, given, n) for n in "qkv")), x, given)
    assert named(report) == {"positions_unasked"}
    assert report.diagnosis.explanations[0].options == ("--positions sinusoidal",)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_scale_of_the_embeddings_width(seed):
    x, given = layer(seed, width=12)
    q, k, v = (linear(x, given, n) for n in "qkv")
    # The right scale is 1/√3, the scale of all heads together 1/√12.
    assert named(judge(attend(q * np.sqrt(3 / WIDTH), k, v), x, given)) == {"input_width_scale"}


def test_a_bias_of_the_keys_changes_no_weight():
    # It adds the same to all scores of a query.
    x, given = layer(0)
    keys = linear(x, given, "k", **unbiased("k"))
    assert judge(attend(linear(x, given, "q"), keys, linear(x, given, "v")), x, given).passed


def test_but_where_they_are_rotated():
    x, given = layer(0)
    angles = np.arange(TOKENS)[:, None] * 10000.0 ** (-np.arange(2) / 2)

    def rotated(array):
        one, other = np.split(array.reshape(BATCH, TOKENS, HEADS, 4).swapaxes(1, 2), 2, axis=-1)
        cosine, sine = np.cos(angles), np.sin(angles)
        turn = [one * cosine - other * sine, other * cosine + one * sine]
        return np.concatenate(turn, axis=-1).swapaxes(1, 2).reshape(BATCH, TOKENS, WIDTH)

    made = project(x, **given)
    problem = pose(made.query, made.key, made.value, heads=HEADS, rope="half")
    for changed, names in (({}, set()), (unbiased("k"), {"bk_missing"})):
        keys = rotated(linear(x, given, "k", **changed))
        context = attend(rotated(linear(x, given, "q")), keys, linear(x, given, "v"))
        assert named(check(context.astype("f4"), problem, projected=made)) == names


def test_beside_a_mistake_of_attention():
    x, given = layer(1)
    q, k, v = (linear(x, given, n, **turned(given, *"qkv")) for n in "qkv")
    # Two is √D.
    assert named(judge(attend(2 * q, k, v), x, given)) == {"projections_transposed+unscaled"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("sources_exchanged", "yxx"),
        ("queries_from_key_source", "yyy"),
        ("keys_from_x", "xxy"),
        ("values_from_x", "xyx"),
    ],
)
def test_cross_attention_from_the_wrong_sources(name, order, seed):
    x, given = layer(seed)
    sources = {"x": x, "y": draw(seed + 10, x.shape, dtype="float64")[0]}
    made = (linear(sources[one], given, n) for one, n in zip(order, "qkv", strict=True))
    assert named(judge(attend(*made), x, given, key_source=sources["y"])) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("values_from_key_source", "xyy"),
        ("keys_from_value_source", "xzz"),
        ("key_and_value_source_exchanged", "xzy"),
    ],
)
def test_cross_attention_of_three_sources(name, order, seed):
    x, given = layer(seed)
    y, z = draw(seed + 10, x.shape, x.shape, dtype="float64")
    sources = {"x": x, "y": y, "z": z}
    made = (linear(sources[one], given, n) for one, n in zip(order, "qkv", strict=True))
    options = {"key_source": y, "value_source": z}
    assert named(judge(attend(*made), x, given, **options)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_cross_attention_that_looks_at_itself(seed):
    x, given = layer(seed)
    source = draw(seed + 10, x.shape, dtype="float64")[0]
    right = attend(linear(x, given, "q"), *(linear(source, given, n) for n in "kv"))
    assert judge(right, x, given, key_source=source).passed
    wrong = attend(*(linear(x, given, n) for n in "qkv"))
    assert named(judge(wrong, x, given, key_source=source)) == {"key_source_unused"}
    # Of another length.
    longer = np.concatenate([source, source[:, :4]], axis=1)
    assert named(judge(wrong, x, given, key_source=longer)) == {"key_source_unused"}
    # One source for all entries of the batch.
    assert named(judge(wrong, x, given, key_source=source[:1])) == {"key_source_unused"}


def test_one_sequence_looks_at_a_batch_of_others():
    x, given = layer(0)
    (source,) = draw(10, x.shape, dtype="float64")
    query = np.repeat(linear(x[:1], given, "q"), BATCH, axis=0)
    key, value = (linear(source, given, name) for name in "kv")
    assert judge(attend(query, key, value), x[:1], given, key_source=source).passed
    value -= given["bv"]
    wrong = judge(attend(query, key, value), x[:1], given, key_source=source)
    assert named(wrong) == {"bv_missing"}


@pytest.mark.parametrize("heads", long_but([2, 3, 4], 3, 4))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fused_product_that_is_cut_in_another_order(seed, heads):
    x, given = layer(seed, width=12)
    made = [linear(x, given, n) for n in "qkv"]
    apart = [array.reshape(BATCH, TOKENS, heads, -1) for array in made]
    by_kind = np.concatenate(made, axis=-1).reshape(BATCH, TOKENS, heads, 3, -1)
    by_head = np.stack(apart, axis=3).reshape(BATCH, TOKENS, 3, heads, -1)
    packed = BATCH, TOKENS, -1
    wrong = attend(*(by_kind[:, :, :, at].reshape(packed) for at in range(3)), heads)
    assert named(judge(wrong, x, given, heads)) == {"fused_cut_by_head"}
    wrong = attend(*(by_head[:, :, at].reshape(packed) for at in range(3)), heads)
    name = "fused_cut_by_head" if heads == 3 else "fused_cut_by_kind"
    assert named(judge(wrong, x, given, heads)) == {name}
    # It is seen without the embeddings, too.
    assert named(check(wrong.astype("f4"), pose(*made, heads=heads))) == {name}
    side_by_side = np.concatenate(made, axis=-1), np.concatenate(apart, axis=-1)
    names = "fused_cut_by_component", "fused_heads_cut_by_component"
    for fused, name in zip(side_by_side, names, strict=True):
        cut = fused.reshape(BATCH, TOKENS, heads, 12 // heads, 3)
        wrong = attend(*(cut[..., at].reshape(packed) for at in range(3)), heads)
        assert named(judge(wrong, x, given, heads)) == {name}


def test_a_fused_product_of_one_head_that_is_cut_by_component():
    x, given = layer(0, width=12)
    fused = np.concatenate([linear(x, given, n) for n in "qkv"], axis=-1)
    cut = fused.reshape(BATCH, TOKENS, 12, 3)
    wrong = attend(*(cut[..., at] for at in range(3)), 1)
    assert named(judge(wrong, x, given, 1)) == {"fused_cut_by_component"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_short_embeddings_are_projected_in_float64_where_nobody_said_how(dtype):
    """The answer is exact; what was projected in float32 is judged as made in float32."""
    x, given = layer(0)
    short = {name: array.astype(dtype) for name, array in given.items()}
    wide = {name: array.astype(float) for name, array in short.items()}
    x = x.astype(dtype)
    right = attend(*(linear(x.astype(float), wide, n) for n in "qkv"))
    problem = load(x=x, heads=HEADS, **short)
    assert check(right, problem).passed
    assert check(right.astype("f4"), problem).passed
    wrong = attend(*(x.astype(float) @ wide[f"w{n}"] for n in "qkv"))
    assert named(check(wrong, problem)) == {"projection_biases_missing"}
    # An implementation that begins with query, key and value of float32 begins there.
    made = project(x, **short)
    exact = attend(*(array.astype(float) for array in (made.query, made.key, made.value)))
    posed = pose(made.query, made.key, made.value, heads=HEADS)
    assert check(exact, posed, projected=made).passed


def test_values_are_no_matter_of_weights():
    x, given = layer(0)
    short = {name: array.astype("f4") for name, array in given.items()}
    problem = load(x=x.astype("f4"), heads=HEADS, **short)
    weights = solve(problem).weights.astype(float)
    report = check({"weights": weights}, problem, time_limit=2)
    assert named(report) <= {"computed_in_float32"}


def test_what_is_no_projection_is_refused():
    x, given = layer(0)
    made = project(x, **given)
    problem = pose(made.query, made.key, made.value, heads=HEADS)
    for other in ((1, 2), {}, "made", problem):
        with pytest.raises(UsageError, match=r"expected what attncli\.project returns"):
            check(made.query, problem, projected=other)


def test_files_in_another_order_are_no_advice_for_embeddings():
    x, given = layer(0)
    problem = load(x=x, heads=HEADS, **given)
    q, k, v = (linear(x, given, n) for n in "qkv")
    (explanation,) = check(attend(k, q, v), problem).diagnosis.explanations
    assert (explanation.name, explanation.options) == ("query_key_exchanged", ())
    (explanation,) = check(attend(q, k, k), problem).diagnosis.explanations
    assert explanation.name == "values_made_with_wk"


@pytest.mark.usefixtures("one_mistake")
def test_noise_has_no_name():
    x, given = layer(0)
    assert named(judge(draw(1, (BATCH, TOKENS, WIDTH))[0], x, given, heads=1)) == set()


def test_shared_keys_of_a_file_on_the_command_line(folder, attncli):
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(TOKENS, WIDTH)), "wq": random.normal(size=(WIDTH, WIDTH))}
    arrays |= {name: random.normal(size=(WIDTH, 4)) for name in ("wk", "wv")}
    arrays["bv"] = random.normal(size=4)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    x = arrays["x"]
    # One key/value head for four of the query.
    keys, values = (np.tile(x @ arrays[name], HEADS) for name in ("wk", "wv"))
    q, k, v = (
        np.broadcast_to(array, (BATCH, *array.shape)) for array in (x @ arrays["wq"], keys, values)
    )
    np.save("c.npy", attend(q, k, v)[0])
    weights = [f"--{name}={name}.npy" for name in ("wq", "wk", "wv", "bv")]
    words = ["check", "x.npy", *weights, "--heads=4", "--expect=c.npy"]
    told = attncli(*words)
    assert told.code == 1
    assert "the bias bv of the values is missing [bv_missing]" in told.text
    np.save("c.npy", np.load("c.npy") + np.tile(arrays["bv"], HEADS))
    assert attncli(*words).code == 0
    assert Path("c.npy").exists()


@pytest.mark.parametrize(
    "name", long_but(["wk_transposed", "bv_missing", "positions_missing"], "positions_missing")
)
def test_of_a_long_sequence_parts_are_projected_again(name):
    _, given = layer(0)
    x = draw(1, (BATCH, 70, WIDTH), dtype="float64")[0]
    angles = np.arange(70)[:, None] * FREQUENCIES
    placed = x + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(70, WIDTH)
    made = [linear(placed, given, n) for n in "qkv"]
    wrong = MISTAKES[name](placed, x, given)
    context, other = attend(*made), attend(*wrong)
    report = judge(other, x, given, positions="sinusoidal")
    assert (named(report), report.diagnosis.scope) == ({name}, "slices")
    assert report.diagnosis.explanations[0].fails_at == ""
    # Right in the first batch entry.
    context[1] = other[1]
    report = judge(context, x, given, positions="sinusoidal")
    assert named(report) == {name}
    assert report.diagnosis.explanations[0].fails_at.startswith("batch 0")


def as_int8(array, axis=None):
    step = np.abs(array).max(axis, keepdims=True) / 127
    return np.round(array / step) * step


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("projections_in_bfloat16", as_bfloat16),
        ("projections_in_float16", lambda array: array.astype("f2")),
        ("projections_in_int8", as_int8),
        ("projections_in_int8_by_column", lambda array: as_int8(array, 0)),
    ],
)
def test_projections_that_are_stored_in_fewer_bits(seed, name, stored):
    x, given = layer(seed)
    x, given = x.astype("f4") / 4, {n: (a / 2).astype("f4") for n, a in given.items()}
    short = {n: stored(a).astype("f8") if n[0] == "w" else a for n, a in given.items()}
    wrong = attend(*(linear(x.astype("f8"), short, n) for n in "qkv"))
    assert named(judge(wrong, x, given)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("scale_in_wq_not_in_bq", lambda g: {"bq": g["bq"] * 2}),  # the scale is 1/2
        ("scale_in_bq_too", lambda g: {"bq": g["bq"] / 2}),
    ],
)
def test_a_scale_that_is_folded_into_a_part_of_the_projection(seed, name, changes):
    x, given = layer(seed)
    wrong = attend(*(linear(x, given | changes(given), n) for n in "qkv"))
    assert named(judge(wrong, x, given)) == {name}


def fused(x, given, shards):
    """Return x · W of the matrix that holds each shard's queries, keys and values."""
    parts = [
        np.split(given[f"w{n}"], shards, axis=1) + np.split(given[f"b{n}"], shards) for n in "qkv"
    ]
    weight = np.hstack([parts[n][shard] for shard in range(shards) for n in range(3)])
    bias = np.hstack([parts[n][shards + shard] for shard in range(shards) for n in range(3)])
    return x @ weight + bias


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fused_product_that_is_viewed_as_heads(seed):
    x, given = layer(seed)
    viewed = fused(x, given, 1).reshape(3, BATCH, HEADS, TOKENS, WIDTH // HEADS)
    wrong = attend(*(one.swapaxes(1, 2).reshape(BATCH, TOKENS, WIDTH) for one in viewed))
    assert named(judge(wrong, x, given)) == {"fused_viewed_as_heads"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_that_are_cut_as_one_product(seed, shards):
    random = np.random.default_rng(seed)
    x = random.normal(size=(BATCH, TOKENS, 64))
    given = {f"w{n}": random.normal(size=(64, 64)) / 8 for n in "qkv"}
    given |= {f"b{n}": random.normal(size=64) for n in "qkv"}
    wrong = attend(*np.split(fused(x, given, shards), 3, axis=-1), heads=16)
    assert named(judge(wrong, x, given, heads=16)) == {f"fused_shards_of_{shards}_cut_by_kind"}


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_that_are_cut_as_one_product(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(BATCH, TOKENS, WIDTH))
    given = {"wq": random.normal(size=(WIDTH, 16)) / 4}
    given |= {f"w{n}": random.normal(size=(WIDTH, 8)) / 4 for n in "kv"}
    q, k, v = (np.split(given[f"w{n}"], 2, axis=1) for n in "qkv")
    made = x @ np.hstack([q[0], k[0], v[0], q[1], k[1], v[1]])
    query, key, value = np.split(made, [16, 24], axis=-1)
    wide = [one.reshape(BATCH, TOKENS, 2, 4).repeat(2, axis=2) for one in (key, value)]
    wrong = attend(query, *(one.reshape(BATCH, TOKENS, 16) for one in wide))
    made = project(x, **given)
    problem = pose(made.query, made.key, made.value, heads=4, kv_heads=2)
    report = check(wrong.astype("f4"), problem, projected=made, time_limit=100)
    assert named(report) == {"fused_groups_cut_by_kind"}


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_whose_axes_are_flattened_in_another_order(seed):
    x, given = layer(seed, width=24)
    given = {n: a for n, a in given.items() if n[0] == "w"}
    heads, width = 4, 6

    def by_columns(weight):
        return weight.reshape(WIDTH, heads, width).swapaxes(1, 2).reshape(WIDTH, -1)

    wrong = attend(*(x @ by_columns(given[f"w{n}"]) for n in "qkv"))
    assert named(judge(wrong, x, given)) == {"kernels_by_columns_in"}
    wo = np.random.default_rng(seed).normal(size=(24, 16)) / 5
    right = attend(*(x @ given[f"w{n}"] for n in "qkv"))
    wrong = right @ wo.reshape(heads, width, 16).swapaxes(0, 1).reshape(24, 16)
    made = project(x, **given)
    problem = pose(made.query, made.key, made.value, heads=heads, wo=wo)
    report = check(wrong.astype("f4"), problem, projected=made, time_limit=100)
    assert named(report) == {"kernels_by_columns_out"}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_output_that_is_added_up_twice_with_its_bias(seed):
    x, given = layer(seed)
    wo, bo = draw(seed + 50, (WIDTH, WIDTH), (WIDTH,), dtype="float64")
    wrong = 2 * (attend(*(linear(x, given, n) for n in "qkv")) @ wo + bo)
    made = project(x, **given)
    problem = pose(made.query, made.key, made.value, heads=HEADS, wo=wo, bo=bo)
    report = check(wrong.astype("f4"), problem, projected=made, time_limit=100)
    assert named(report) == {"another_factor"}
    assert "about 2 times" in str(report)


def test_a_column_of_zeros_has_no_step_of_int8():
    x, given = layer(0)
    x, given = x.astype("f4") / 4, {n: (a / 2).astype("f4") for n, a in given.items()}
    given["wk"][:, 3] = 0
    short = {n: a.astype("f8") for n, a in given.items()}
    for n in ("wq", "wk", "wv"):
        step = np.abs(short[n]).max(0, keepdims=True) / 127
        short[n] = np.round(short[n] / np.where(step, step, 1)) * step
    wrong = attend(*(linear(x.astype("f8"), short, n) for n in "qkv"))
    assert named(judge(wrong, x, given)) == {"projections_in_int8_by_column"}
