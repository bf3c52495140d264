"""Wrong caps, biases, ALiBi, rotary embeddings, softmaxes and sinks are named."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, as_bfloat16, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import pose
from attncli.referee import check

L = 6
I, J = np.indices((L, L))
CAUSAL = J <= I


def hide(scores, keep=CAUSAL):
    return np.where(keep, scores, -np.inf)


CAP = 0.8


def beside(table, step):
    """Return the numbers so many places away in memory."""
    return np.roll(table.ravel(), step).reshape(table.shape)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("softcap_missing", lambda s, b: hide(s + b)),
        ("softcap_after_mask", lambda s, b: CAP * np.tanh(hide(s + b) / CAP)),
        ("softcap_after_bias", lambda s, b: hide(CAP * np.tanh((s + b) / CAP))),
        (
            "softcap_before_scale",
            lambda s, b: hide(CAP * np.tanh(s * np.sqrt(8) / CAP) / np.sqrt(8) + b),
        ),
        ("softcap_undivided", lambda s, b: hide(CAP * np.tanh(s) + b)),
        ("softcap_unmultiplied", lambda s, b: hide(np.tanh(s / CAP) + b)),
        ("softcap_clipped", lambda s, b: hide(np.clip(s, -CAP, CAP) + b)),
        ("bias_ignored", lambda s, b: hide(CAP * np.tanh(s / CAP))),
        ("bias_subtracted", lambda s, b: hide(CAP * np.tanh(s / CAP) - b)),
        ("bias_twice", lambda s, b: hide(CAP * np.tanh(s / CAP) + 2 * b)),
        ("bias_multiplied", lambda s, b: hide(CAP * np.tanh(s / CAP) * b)),
        ("bias_transposed", lambda s, b: hide(CAP * np.tanh(s / CAP) + b.T)),
        ("bias_of_next_key", lambda s, b: hide(CAP * np.tanh(s / CAP) + beside(b, -1))),
        ("bias_of_previous_key", lambda s, b: hide(CAP * np.tanh(s / CAP) + beside(b, 1))),
        ("bias_of_next_query", lambda s, b: hide(CAP * np.tanh(s / CAP) + np.roll(b, -1, 0))),
        ("bias_of_previous_query", lambda s, b: hide(CAP * np.tanh(s / CAP) + np.roll(b, 1, 0))),
        ("bias_of_first_query", lambda s, b: hide(CAP * np.tanh(s / CAP) + b[:1])),
    ],
)
def test_softcap_and_bias(seed, name, wrong):
    q, k, v = draw(seed)
    bias = draw(seed + 10, (L, L))[0]
    weights = softmax(wrong(scaled(q, k), bias))
    report = ask((q, k, v), weights @ v, softcap=CAP, bias=bias, causal=True)
    same = {"softcap_after_bias", "bias_before_softcap"}
    assert named(report) == (same if name in same else {name})


def test_a_bias_that_is_added_to_the_weights():
    q, k, v = draw(0)
    bias = draw(10, (L, L))[0]
    wrong = (softmax(hide(scaled(q, k))) + bias) @ v
    assert named(ask((q, k, v), wrong, bias=bias, causal=True)) == {"bias_after_softmax"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_softcap_of_all_where_nothing_is_hidden(seed):
    q, k, v = draw(seed)
    bias = draw(seed + 10, (L, L))[0]
    wrong = softmax(CAP * np.tanh((scaled(q, k) + bias) / CAP)) @ v
    same = {"softcap_after_bias", "bias_before_softcap"}
    assert named(ask((q, k, v), wrong, softcap=CAP, bias=bias)) == same


UNPERMUTED = {
    "bias_viewed_heads_first": lambda b: b.transpose(0, 2, 3, 1).reshape(b.shape),
    "bias_viewed_heads_last": lambda b: b.reshape(-1, *b.shape[2:], b.shape[1]).transpose(
        0, 3, 1, 2
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", UNPERMUTED)
@pytest.mark.parametrize(("entries", "length"), [(1, 6), (2, 6), (1, 100)])
def test_a_bias_whose_heads_stand_last_in_memory(seed, name, entries, length):
    """Of a hundred queries, slices are tried."""
    shape = (2, 4, length, 8)
    q, k, v, bias = draw(seed, shape, shape, shape, (entries, 4, length, length))
    weights = softmax(scaled(q, k) + UNPERMUTED[name](bias))
    report = ask((q, k, v), weights @ v, bias=bias)
    assert report.diagnosis.scope == ("all" if length == 6 else "slices")
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_bias_that_is_scaled(seed):
    q, k, v = draw(seed)
    bias = draw(seed + 10, (L, L))[0]
    wrong = softmax((q @ k.swapaxes(-1, -2) + bias) / np.sqrt(8)) @ v
    assert named(ask((q, k, v), wrong, bias=bias)) == {"bias_scaled"}


SLOPES = np.array([0.5, 0.25, 0.125, 1.0])[:, None, None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("names", "term"),
    [
        ({"alibi_ignored"}, 0 * SLOPES),
        ({"alibi_signed", "alibi_positional"}, SLOPES * (J - I)),
        ({"alibi_signed", "alibi_positional"}, SLOPES * J),
        ({"alibi_added"}, SLOPES * abs(I - J)),
        ({"alibi_slopes_reversed"}, -SLOPES[::-1] * abs(I - J)),
        ({"alibi_scaled"}, -SLOPES * abs(I - J) / np.sqrt(8)),
        ({"alibi_without_offset"}, -SLOPES * abs(I - J)),
    ],
)
def test_alibi(seed, names, term):
    q, k, v = draw(seed)
    options = {"query_offset": 2} if "alibi_without_offset" in names else {}
    wrong = softmax(scaled(q, k) + term) @ v
    report = ask((q, k, v), wrong, alibi_slopes=SLOPES.ravel(), **options)
    assert named(report) == names


def test_alibi_signed_and_positional_differ_in_the_lse():
    q, k, v = draw(0)
    scores = scaled(q, k) + SLOPES * J
    context = softmax(scores) @ v
    assert "lse" in ask((q, k, v), context, alibi_slopes=SLOPES.ravel()).diagnosis.apart
    both = {"context": context, "lse": np.log(np.exp(scores).sum(-1))}
    report = ask((q, k, v), both, alibi_slopes=SLOPES.ravel())
    assert named(report) == {"alibi_positional"}


@pytest.mark.parametrize("seed", SEEDS)
def test_alibi_slopes_of_other_head_counts(seed):
    q, k, v = draw(seed, *[(1, 6, L, 8)] * 3)
    slopes = 2.0 ** (-8 / 6 * np.arange(1, 7))[:, None, None]
    wrong = softmax(scaled(q, k) - slopes * abs(I - J)) @ v
    assert named(ask((q, k, v), wrong, alibi_slopes=True)) == {"alibi_slopes_plain"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("asked", "offset", "names"),
    [
        ("top-left", 3, {"positions_bottom_right"}),
        # Under a causal mask ALiBi at an offset is ALiBi but for a number that all scores share.
        ("bottom-right", 0, {"positions_top_left", "causal_top_left"}),
    ],
)
def test_alibi_and_causal_rule_at_another_corner(seed, asked, offset, names):
    q, k, v = draw(seed, (2, 4, 4, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    i, j = np.indices((4, 7))
    scores = np.where(j <= i + offset, scaled(q, k) - SLOPES * abs(i + offset - j), -np.inf)
    given = {"causal": True, "causal_align": asked, "alibi_slopes": SLOPES.ravel()}
    assert named(ask((q, k, v), softmax(scores) @ v, **given)) == names


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("asked", ["top-left", "bottom-right"])
def test_rope_and_causal_rule_at_another_corner(seed, asked):
    q, k, v = draw(seed, (2, 4, 4, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    i, j = np.indices((4, 7))
    offset, name = (3, "bottom_right") if asked == "top-left" else (0, "top_left")
    scores = turned(q, offset, "half") @ turned(k, 0, "half").swapaxes(-1, -2) / np.sqrt(8)
    wrong = softmax(np.where(j <= i + offset, scores, -np.inf)) @ v
    given = {"causal": True, "causal_align": asked, "rope": "half"}
    assert named(ask((q, k, v), wrong, **given)) == {f"positions_{name}"}


def turned(x, start, pairing, base=10000.0, sign=1):
    """Rotate as complex numbers."""
    x = x.astype("f8")
    pairs = x.shape[-1] // 2
    halves = x[..., :pairs], x[..., pairs:]
    first, second = halves if pairing == "half" else (x[..., ::2], x[..., 1::2])
    angle = np.outer(start + np.arange(x.shape[-2]), base ** (-np.arange(pairs) / pairs))
    z = (first + 1j * second) * np.exp(1j * sign * angle)
    if pairing == "half":
        return np.concatenate([z.real, z.imag], axis=-1)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "query", "key"),
    [
        ("rope_pairing", lambda q: turned(q, 3, "half"), lambda k: turned(k, 0, "half")),
        ("rope_missing", lambda q: q, lambda k: k),
        ("rope_without_offset", lambda q: turned(q, 0, PAIR), lambda k: turned(k, 0, PAIR)),
        ("rope_query_only", lambda q: turned(q, 3, PAIR), lambda k: k),
        ("rope_key_only", lambda q: q, lambda k: turned(k, 0, PAIR)),
        (
            "rope_backwards",
            lambda q: turned(q, 3, PAIR, sign=-1),
            lambda k: turned(k, 0, PAIR, sign=-1),
        ),
        (
            "rope_key_backwards",
            lambda q: turned(q, 3, PAIR),
            lambda k: turned(k, 0, PAIR, sign=-1),
        ),
        (
            "rope_query_backwards",
            lambda q: turned(q, 3, PAIR, sign=-1),
            lambda k: turned(k, 0, PAIR),
        ),
    ],
)
def test_rope(seed, name, query, key):
    q, k, v = draw(seed)
    wrong = plain(query(q), key(k), v)
    assert named(ask((q, k, v), wrong, rope="interleaved", query_offset=3)) == {name}


PAIR = "interleaved"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "pairing"),
    [("rope_unasked_half", "half"), ("rope_unasked_interleaved", "interleaved")],
)
def test_rope_that_the_problem_does_not_state(seed, name, pairing):
    q, k, v = draw(seed)
    wrong = plain(turned(q, 0, pairing), turned(k, 0, pairing), v)
    report = ask((q, k, v), wrong)
    assert named(report) == {name}
    assert report.diagnosis.explanations[0].options == (f"--rope {pairing}",)
    assert ask((q, k, v), wrong, rope=pairing).passed


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("base", long_but([150_000, 500_000, 1_000_000, 8_000_000], 500_000))
def test_rope_of_a_model_that_the_problem_does_not_state(base, pairing):
    q, k, v = draw(0)
    wrong = plain(turned(q, 0, pairing, base), turned(k, 0, pairing, base), v)
    report = ask((q, k, v), wrong)
    assert named(report) == {f"rope_unasked_{pairing}_{base}"}
    (explanation,) = report.diagnosis.explanations
    assert explanation.options == (f"--rope {pairing} --rope-base {base}",)


@pytest.mark.usefixtures("one_mistake")
def test_rope_of_no_model_that_the_problem_does_not_state():
    q, k, v = draw(0)
    wrong = plain(turned(q, 0, "half", 3000.0), turned(k, 0, "half", 3000.0), v)
    assert named(ask((q, k, v), wrong)) == set()


def test_two_components_make_one_pair():
    q, k, v = draw(0, *[(1, 2, 6, 2)] * 3)
    wrong = plain(turned(q, 0, "half"), turned(k, 0, "half"), v)
    assert named(ask((q, k, v), wrong)) == {"rope_unasked_half"}


def test_rope_base():
    q, k, v = draw(0)
    wrong = plain(turned(q, 0, "half"), turned(k, 0, "half"), v)
    assert named(ask((q, k, v), wrong, rope="half", rope_base=500.0)) == {"rope_base"}


@pytest.mark.parametrize("base", [10000, 100_000, 500_000, 1_000_000])
def test_bases_of_other_models(base):
    q, k, v = draw(0)
    wrong = plain(turned(q, 0, "half", base), turned(k, 0, "half", base), v)
    report = ask((q, k, v), wrong, rope="half", rope_base=2000.0)
    assert named(report) == {"rope_base" if base == 10000 else f"rope_base_{base}"}
    assert report.diagnosis.explanations[0].options == (f"--rope-base {base}",)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    ("name", "query", "key", "value"),
    [
        ("rope_query_late", lambda q, n: turned(q, n + 1, PAIR), None, None),
        ("rope_query_early", lambda q, n: turned(q, n - 1, PAIR), None, None),
        (
            "rope_twice",
            lambda q, n: turned(turned(q, n, PAIR), n, PAIR),
            lambda k: turned(turned(k, 0, PAIR), 0, PAIR),
            None,
        ),
        ("rope_keys_twice", None, lambda k: turned(turned(k, 0, PAIR), 0, PAIR), None),
        ("rope_on_values", None, None, lambda v: turned(v, 0, PAIR)),
    ],
)
def test_rope_of_caches(seed, offset, name, query, key, value):
    q, k, v = draw(seed)
    wrong = plain(
        query(q, offset) if query else turned(q, offset, PAIR),
        key(k) if key else turned(k, 0, PAIR),
        value(v) if value else v,
    )
    report = ask((q, k, v), wrong, rope=PAIR, query_offset=offset)
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("name", ["rope_cache_unrotated", "rope_new_keys_unrotated"])
def test_keys_of_a_cache_or_after_it_that_are_not_rotated(seed, queries, name):
    q, k, v = draw(seed, (2, 4, queries, 8), (2, 4, 9, 8), (2, 4, 9, 8))
    first = 9 - queries
    after = np.arange(9)[:, None] >= first
    left = after if "new" in name else ~after
    keep = np.arange(9) <= first + np.arange(queries)[:, None]
    wrong = plain(turned(q, first, PAIR), np.where(left, k, turned(k, 0, PAIR)), v, keep)
    report = ask((q, k, v), wrong, rope=PAIR, causal=True, causal_align="bottom-right")
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "slopes"),
    [
        ("alibi_slopes_from_zero", 2.0 ** (-2 * np.arange(4))),
        ("alibi_slopes_halved", 2.0 ** -np.arange(1, 5)),
    ],
)
def test_slopes_that_are_counted_otherwise(seed, name, slopes):
    q, k, v = draw(seed)
    wrong = softmax(scaled(q, k) - slopes[:, None, None] * abs(I - J)) @ v
    assert named(ask((q, k, v), wrong, alibi_slopes=True)) == {name}


@pytest.mark.parametrize(
    ("dtype", "last", "name"),
    [
        ("float32", False, "softmax_without_maximum"),
        ("float32", True, "softmax_without_maximum_divided_last"),
        ("float16", False, "softmax_without_maximum_in_float32"),
        ("float16", True, "softmax_without_maximum_in_float32_divided_last"),
    ],
)
def test_exponentials_of_float32_without_the_maximum(dtype, last, name):
    random = np.random.default_rng(1)
    q, k = (random.normal(0, 6, (1, 2, 40, 8)).astype(dtype) for _ in "qk")
    v = random.normal(0, 30, (1, 2, 40, 8)).astype(dtype)
    scores = scaled(q, k).astype("f4")
    with np.errstate(all="ignore"):
        powers = np.exp(scores)
        total = powers.sum(-1, keepdims=True)
        wrong = (powers @ v.astype("f4")) / total if last else (powers / total) @ v.astype("f4")
    assert 0 < np.isnan(wrong).sum() < wrong.size
    assert named(ask((q, k, v), wrong, dtype)) == {name}


def test_nothing_but_overflow():
    q, k, v = draw(0, *[(1, 1, 6, 8)] * 3)
    q *= 1000
    k[:, :, 0] = np.abs(k[:, :, 0]) * np.sign(q[0, 0, 0])
    k[:, :, 1:] = -k[:, :, :1]
    with np.errstate(all="ignore"):
        powers = np.exp(scaled(q, k).astype("f4"))
        wrong = (powers / powers.sum(-1, keepdims=True)) @ v
    assert np.isnan(wrong).all()
    assert "softmax_without_maximum" in named(ask((q, k, v), wrong))


def exp2(s):
    return 2**s / (2**s).sum(-1, keepdims=True)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("softmax_over_queries", lambda s: softmax(s, axis=-2)),
        ("softmax_over_heads", lambda s: softmax(s, axis=1)),
        ("softmax_over_batch", lambda s: softmax(s, axis=0)),
        ("softmax_base_2", exp2),
        ("softmax_twice", lambda s: softmax(softmax(s))),
        ("softmax_left_out", lambda s: s),
        ("softmax_over_all", lambda s: np.exp(s) / np.exp(s).sum((-2, -1), keepdims=True)),
        ("softmax_exponentials", np.exp),
        ("scores_divided_by_their_sum", lambda s: s / s.sum(-1, keepdims=True)),
        ("sigmoid", lambda s: np.exp(s) / (1 + np.exp(s))),
        ("softmax_not_normalised", lambda s: np.exp(s - s.max(-1, keepdims=True))),
    ],
)
def test_softmax(seed, name, wrong):
    q, k, v = draw(seed)
    assert named(ask((q, k, v), wrong(scaled(q, k)) @ v)) == {name}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax_without_maximum_overflows(dtype):
    q, k, v = draw(0)
    q = q * (60 if dtype == "float32" else 8)
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(scaled(q, k).astype(dtype))
        total = e.sum(-1, keepdims=True)
        wrong = (e / total).astype("f4") @ v
    assert np.isnan(wrong).any()
    assert np.isfinite(wrong).any()
    report = ask((q, k, v), wrong, dtype=dtype)
    assert named(report) == {"softmax_without_maximum"}
    assert report.verdicts[0].rms == np.inf


SINKS = np.array([0.5, 1.5, -0.7, 2.5])[:, None, None]


def with_column(scores, where, sinks=SINKS):
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    return np.concatenate([column, scores] if where == "front" else [scores, column], axis=-1)


def first_key(scores, value):
    changed = scores.copy()
    changed[..., :1] = value
    return softmax(changed)


def denominators(scores, added):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + added)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sinks_ignored", softmax),
        ("sinks_as_first_key", lambda s: first_key(s, SINKS)),
        ("sinks_added_to_first_key", lambda s: first_key(s, s[..., :1] + SINKS)),
        ("sinks_in_wrong_column", lambda s: softmax(with_column(s, "front"))[..., :-1]),
        ("sinks_negated", lambda s: softmax(with_column(s, "back", -SINKS))[..., :-1]),
        ("sinks_without_exp", lambda s: denominators(s, SINKS)),
        ("sinks_unshifted", lambda s: denominators(s, np.exp(SINKS))),
    ],
)
def test_sinks(seed, name, wrong):
    q, k, v = draw(seed)
    report = ask((q, k, v), wrong(scaled(q, k)) @ v, sinks=SINKS.ravel())
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_sinks_that_are_scaled(seed):
    q, k, v = draw(seed)
    scores = np.concatenate(
        [q @ k.swapaxes(-1, -2), np.broadcast_to(SINKS, (2, 4, L, 1))], axis=-1
    ) / np.sqrt(8)
    wrong = softmax(scores)[..., :-1] @ v
    assert named(ask((q, k, v), wrong, sinks=SINKS.ravel())) == {"sinks_scaled"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_bias_of_positions_that_needs_more_digits_than_it_has(dtype):
    """As in BLOOM: + slope · j, which a softmax does not tell from − slope · (i − j)."""
    keys = 700 if dtype == "bfloat16" else 4200
    q, k, v = draw(0, (1, 8, 3, 16), *[(1, 8, keys, 16)] * 2)
    slopes = 2.0 ** -np.arange(1, 9)
    exact = slopes[:, None] * np.arange(keys)
    term = as_bfloat16(exact) if dtype == "bfloat16" else exact.astype("f2").astype("f8")
    seen = np.arange(keys) <= np.arange(3)[:, None] + keys - 3
    scores = np.where(seen, scaled(q, k) + term[:, None], -np.inf)
    rules = {"causal": True, "causal_align": "bottom-right", "alibi_slopes": True}
    report = ask((q, k, v), softmax(scores) @ v, **rules)
    assert named(report) == {f"alibi_positional_in_{dtype}"}


IN_SHORT = {"bfloat16": as_bfloat16, "float16": lambda array: array.astype("f2").astype("f4")}


def biased_by_positions(dtype, stored, queries, keys):
    """Return inputs and context of 16 bits, the scores stored in float32, once or twice."""
    short = IN_SHORT[dtype]
    q, k, v = map(short, draw(0, (1, 8, queries, 16), *[(1, 8, keys, 16)] * 2))
    term = short(np.multiply.outer(2.0 ** -np.arange(1, 9), np.arange(keys)))[:, None]
    product = short(scaled(q, k)) if stored == "twice" else scaled(q, k)
    scores = product + term
    seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    weights = softmax(np.where(seen, short(scores) if stored else scores, -np.inf))
    return (q, k, v), short((short(weights) if stored else weights) @ v)


@pytest.mark.parametrize(
    ("dtype", "stored", "keys", "name"),
    [
        ("bfloat16", "", 600, "alibi_positional_in_bfloat16"),
        ("bfloat16", "once", 300, "alibi_positional_in_scores_of_bfloat16"),
        ("float16", "once", 300, "alibi_positional_in_scores_of_float16"),
        ("bfloat16", "twice", 60, "alibi_positional_in_scores_of_bfloat16_stored_twice"),
        ("float16", "twice", 60, "alibi_positional_in_scores_of_float16_stored_twice"),
    ],
)
def test_a_bias_of_positions_in_a_model_of_sixteen_bits(dtype, stored, keys, name):
    """As in BLOOM, whose scores have few digits beside slope · j."""
    inputs, wrong = biased_by_positions(dtype, stored, min(keys, 40), keys)
    problem = pose(*inputs, causal=True, causal_align="bottom-right", alibi_slopes=True)
    report = check(wrong, problem, time_limit=100)
    assert f"({dtype}, " in str(report)
    assert named(report) == {name}
