"""A softcap, a base of rotation, slopes or a bias of another size than the problem states."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

L = 12
I, J = np.indices((L, L))
SHAPE = (1, 2, L, 8)
SLOPES = np.array([0.5, 0.125])
BIAS = np.random.default_rng(7).standard_normal((2, L, L))


def turned(vectors, base):
    """Rotate the pairs (0, 4), (1, 5), (2, 6), (3, 7) by position / base^(pair / 4), one by one."""
    wide = vectors.astype("f8")
    made = wide.copy()
    for position in range(L):
        for pair in range(4):
            angle = position / base ** (pair / 4)
            x, y = wide[..., position, pair], wide[..., position, pair + 4]
            made[..., position, pair] = x * np.cos(angle) - y * np.sin(angle)
            made[..., position, pair + 4] = x * np.sin(angle) + y * np.cos(angle)
    return made


def told(scores, v, q, k, **options):
    """Return the only explanation of a context that has these scores."""
    report = ask((q, k, v), softmax(scores) @ v, **options)
    (explanation,) = report.diagnosis.explanations
    return explanation, str(report)


# In both directions from what is stated, and far from it.
@pytest.mark.parametrize("cap", long_but([0.7, 3.25, 40], 0.7, 40))
def test_a_softcap(cap):
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = cap * np.tanh(2 * scaled(q, k) / cap)
    found, text = told(scores, v, q, k, softcap=1.5, scale=2 / np.sqrt(8))
    assert found.name == "another_softcap"
    assert float(found.options[0].removeprefix("--softcap ")) == pytest.approx(cap, rel=1e-3)
    assert "where 1.5 is right" in text


@pytest.mark.parametrize("base", long_but([321, 50_000, 5_000_000], 5_000_000))
def test_a_base_of_rotary_embeddings(base):
    q, k, v = draw(0, *[SHAPE] * 3)
    found, text = told(scaled(turned(q, base), turned(k, base)), v, q, k, rope="half")
    assert found.name == "another_rope_base"
    assert float(found.options[0].removeprefix("--rope-base ")) == pytest.approx(base, rel=2e-2)
    assert "where 10000 is right" in text


@pytest.mark.parametrize("left", long_but([5, 7], 7))
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_window(left, symmetric):
    q, k, v = draw(0, *[SHAPE] * 3)
    right = left if symmetric else 0
    seen = (left >= I - J) & (right >= J - I)
    options = {"window": 3} if symmetric else {"window": (3, 0)}
    found, text = told(np.where(seen, scaled(q, k), -np.inf), v, q, k, **options)
    assert found.name == "another_window"
    assert f"reaches {left} keys back, where 3 is right" in text


@pytest.mark.parametrize(
    ("options", "meaning", "asked"),
    [
        ({}, "a window that reaches 0 keys far is applied", ("--window 0",)),
        ({"window": (3, 0)}, "the window reaches 0 keys back", ()),
    ],
)
def test_a_window_of_the_query_alone(options, meaning, asked):
    """No window reaches -1 keys back, which would be all of them."""
    q, k, v = draw(0, *[SHAPE] * 3)
    weights = np.broadcast_to(np.eye(L), (*SHAPE[:2], L, L))
    report = ask((q, k, v), {"weights": weights}, **options)
    (explanation,) = report.diagnosis.explanations
    assert meaning in str(report)
    assert explanation.options == asked


@pytest.mark.parametrize("factor", long_but([0.35, 2.5], 0.35))
def test_slopes(factor):
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = scaled(q, k) - factor * SLOPES[:, None, None] * np.abs(I - J)
    found, text = told(scores, v, q, k, alibi_slopes=SLOPES)
    assert found.name == "another_alibi_factor"
    assert f"about {factor} times" in text


@pytest.mark.parametrize("factor", long_but([0.1, 3], 0.1))
def test_a_bias(factor):
    q, k, v = draw(0, *[SHAPE] * 3)
    found, text = told(scaled(q, k) + factor * BIAS, v, q, k, bias=BIAS)
    assert found.name == "another_bias_factor"
    assert f"about {factor} times" in text


POWERS_OF_TWO = "ln 2: for 2^x the scale is multiplied with log₂ e"


def two_to_the(scores):
    """Scores of which exp(x) is what 2^x is of these."""
    return scores * np.log(2)


def test_what_is_added_or_capped_before_a_power_of_two():
    q, k, v = draw(0, *[SHAPE] * 3)
    powers = scaled(q, k) / np.log(2)
    lower = SLOPES[:, None, None] * np.abs(I - J)
    for scores, options, name in (
        (powers + BIAS, {"bias": BIAS}, "another_bias_factor"),
        (powers - lower, {"alibi_slopes": SLOPES}, "another_alibi_factor"),
        (2 * np.tanh(powers / 2), {"softcap": 2}, "another_softcap"),
    ):
        found, text = told(two_to_the(scores), v, q, k, **options)
        assert found.name == name
        assert POWERS_OF_TWO in " ".join(text.split())
    _, text = told(scaled(q, k) + 0.7 * BIAS, v, q, k, bias=BIAS)
    assert "ln 2" not in text


def test_a_bias_that_hides_keys_hides_them_still():
    q, k, v = draw(0, *[SHAPE] * 3)
    bias = np.where(J <= I, BIAS, -np.inf)
    found, _ = told(scaled(q, k) + 3 * bias, v, q, k, bias=bias)
    assert found.name == "another_bias_factor"


@pytest.mark.parametrize("cap", long_but([0.7, 3.25], 3.25))
def test_a_softcap_that_nobody_asked_for(cap):
    q, k, v = draw(0, *[SHAPE] * 3)
    found, _ = told(cap * np.tanh(scaled(q, k) / cap), v, q, k)
    assert found.name == "softcap_unasked"
    assert float(found.options[0].removeprefix("--softcap ")) == pytest.approx(cap, rel=1e-3)


WINDOWS = [(1, False), (1, True), (4, False), (4, True)]


@pytest.mark.parametrize(("reach", "causal"), long_but(WINDOWS, (1, False), (4, True)))
def test_a_window_that_nobody_asked_for(reach, causal):
    q, k, v = draw(0, *[SHAPE] * 3)
    seen = (reach >= I - J) & ((0 if causal else reach) >= J - I)
    wrong = np.where(seen, scaled(q, k), -np.inf)
    found, text = told(wrong, v, q, k, causal=causal)
    assert found.name == "window_unasked"
    assert f"a window that reaches {reach} keys far" in text
    assert found.options == (f"--window {reach}",)


def test_known_numbers_keep_their_names():
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = scaled(turned(q, 500_000), turned(k, 500_000))
    assert told(scores, v, q, k, rope="half")[0].name == "rope_base_500000"


FEW_NUMBERS = [
    (3, 0.3, {"another_scale"}),
    (3, 0.85, {"another_scale"}),
    (3, 7**-0.5, {"another_scale"}),
    # So many digits can be chosen to make two numbers agree, and of two keys any one number.
    (3, 0.8512347, set()),
    (2, 0.3, set()),
]
BY_DTYPE = [(dtype, *few) for dtype in ("float32", "float64") for few in FEW_NUMBERS]


@pytest.mark.parametrize(
    ("dtype", "keys", "scale", "found"), long_but(BY_DTYPE, *BY_DTYPE[:5], BY_DTYPE[6])
)
def test_of_few_numbers_a_number_of_few_digits_is_told(dtype, keys, scale, found):
    q, k, v = draw(3, (1, 5), (keys, 5), (keys, 2), dtype=dtype)
    context = softmax(scale * (q.astype("f8") @ k.T)) @ v
    assert named(ask((q, k, v), context.astype(dtype))) == found


@pytest.mark.usefixtures("one_mistake")
def test_noise_is_no_number():
    q, k, v = draw(0, *[(1, 1, L, 8)] * 3)
    options = {"softcap": 1.5, "rope": "half", "alibi_slopes": SLOPES[:1], "bias": BIAS[:1]}
    wrong = draw(1, v.shape)[0]
    assert named(ask((q, k, v), wrong, **options)) == set()


def turned_by(x, frequencies, places=None):
    """Rotate halves (GPT-NeoX) by places times frequencies; what is left stays."""
    pairs = len(frequencies)
    places = np.arange(x.shape[-2]) if places is None else places
    angles = np.multiply.outer(places, frequencies)
    a, b, rest = np.split(x.astype("f8"), [pairs, 2 * pairs], axis=-1)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


@pytest.mark.parametrize("factor", long_but([0.25, 0.5, 3], 0.25))
def test_positions_of_rotary_embeddings_that_are_scaled(factor):
    q, k, v = draw(0, *[SHAPE] * 3)
    frequencies = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    places = factor * np.arange(SHAPE[-2])
    q2, k2 = (turned_by(x, frequencies, places) for x in (q, k))
    found, text = told(scaled(q2, k2), v, q, k, rope="half")
    assert found.name == "rope_positions_scaled"
    assert f"multiplied by {factor}" in text


@pytest.mark.parametrize("factor", long_but([8, 32], 8))
def test_frequencies_that_are_scaled_as_in_llama_3(factor):
    """``rope_scaling`` of Llama 3.1 (8) and 3.2 (32), one frequency after the other."""
    q, k, v = draw(0, *[(1, 1, 40, 64)] * 3)
    plain = 500_000.0 ** (-np.arange(0, 64, 2) / 64)
    slowed = []
    for frequency in plain:
        wavelength = 2 * np.pi / frequency
        if wavelength > 8192:
            slowed.append(frequency / factor)
        elif wavelength < 8192 / 4:
            slowed.append(frequency)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            slowed.append((1 - smooth) * frequency / factor + smooth * frequency)
    q2, k2 = (turned_by(x, slowed) for x in (q, k))
    given = {"rope": "half", "rope_base": 500_000.0}
    found, _ = told(scaled(q2, k2), v, q, k, **given)
    assert found.name == f"rope_scaled_as_llama_3_{factor}"
    # And the other way: the scaling that the problem states was left out.
    q2, k2 = (turned_by(x, plain) for x in (q, k))
    scores = scaled(q2, k2)
    found, _ = told(scores, v, q, k, rope="half", rope_frequencies=slowed)
    assert found.name == "rope_base_500000"


def test_numbers_that_look_alike_are_told_in_all_their_digits():
    q, k, v = (array.astype("f8") for array in draw(0, *[(1, 2, 24, 16)] * 3))
    report = ask((q, k, v), plain(q, k, v, scale=0.25 + 1e-8), "float64")
    (explanation,) = report.diagnosis.explanations
    found = explanation.conventions[0].meaning.split("about ")[1].split(",")[0]
    assert float(found) == pytest.approx(0.25 + 1e-8, abs=1e-10)
    assert found != "0.25"
