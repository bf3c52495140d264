"""`explain`: its numbers multiplied out again, its parts against the whole, its reasons."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import attention_oracle
from oracle import rotate as rotated_by_oracle
from strategies import problems

from attncli import AttnError, UsageError, attention, pose
from attncli.errors.names import OUTPUTS
from attncli.explanation.explaining import explain, query_index

pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")

TUTORIAL = {
    "query": [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
    "key": [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]],
    "value": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}
E = math.e


def random_problem(seed=0, queries=3, keys=6, width=4, **options):
    random = np.random.default_rng(seed)
    qkv = [random.uniform(-2, 2, (n, width)) for n in (queries, keys, keys)]
    return pose(*qkv, **options)


def places(problem):
    batch, heads, queries, _ = problem.shape
    return [(b, h, i) for b in range(batch) for h in range(heads) for i in range(queries)]


def check_by_hand(way, tolerance):
    """Multiply everything out again from the vectors, with nothing but Python's floats."""

    def close(found, expected):
        return found == pytest.approx(expected, rel=tolerance, abs=tolerance)

    for step in way.steps:
        q, k = way.compared.tolist(), step.key.tolist()
        if way.kind == "additive":
            v = way.vector.tolist()
            products = [x * math.tanh(a + b) for x, a, b in zip(v, q, k, strict=True)]
        else:
            products = [a * b for a, b in zip(q, k, strict=True)]
        assert close(step.products.tolist(), products)
        assert close(step.dot, sum(products))
        similarity = step.dot
        if way.kind == "cosine":
            lengths = math.dist(q, [0] * len(q)), math.dist(k, [0] * len(k))
            assert close((way.norm, step.norm), lengths)
            similarity /= lengths[0] * lengths[1]
        assert close(step.raw, way.scale * similarity)
        cap = way.softcap
        assert close(step.capped, step.raw if cap is None else cap * math.tanh(step.raw / cap))
        assert step.distance == abs(way.position - step.index)
        assert close(step.penalty, (way.slope or 0) * step.distance)
        shown = step.capped + step.bias - step.penalty
        assert step.score == -math.inf if step.hidden else close(step.score, shown)
        assert close(step.exponential, math.exp(step.score - way.shift))
        total = way.denominator
        assert close(step.weight, step.exponential / total if total else 0)
        if step.value is not None:
            share = [step.weight * x for x in step.value.tolist()]
            assert close(step.contribution.tolist(), [0.0] * len(share) if step.hidden else share)


def check_parts(way, tolerance):
    """Add up the parts: they come to the whole."""
    rest = way.rest
    exponentials = [step.exponential for step in way.steps] + [way.sink_exponential]
    weights = [step.weight for step in way.steps]
    if rest is not None:
        exponentials.append(rest.exponential)
        weights.append(rest.weight)
    same = {"rel": tolerance, "abs": tolerance}
    assert math.fsum(exponentials) == pytest.approx(way.denominator, **same)
    lse = way.shift + math.log(way.denominator) if way.denominator else -math.inf
    assert way.lse == pytest.approx(lse, **same)
    sink = way.sink_exponential / way.denominator if way.denominator else 1.0
    assert math.fsum(weights) == pytest.approx(1 - sink, **same)
    assert len(way.steps) + (0 if rest is None else rest.count) == way.keys
    if way.context is not None:
        total = sum(step.contribution for step in way.steps)
        total = total + (0 if rest is None else rest.contribution)
        assert way.context == pytest.approx(total, **same)


@given(problem=problems(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_number_multiplies_out_again_and_is_the_oracles(problem, data):
    *qkv, options = problem
    posed = pose(*qkv, **options)
    b, h, i = data.draw(st.sampled_from(places(posed)))
    way = explain(posed, query=i, batch=b, head=h, keys=data.draw(st.integers(1, 6) | st.none()))
    tolerance = 1e-4 if way.dtype == "float32" else 1e-9
    check_by_hand(way, tolerance)
    check_parts(way, tolerance)
    expected = attention_oracle(*qkv, **options)
    for name in ("raw", "capped", "scores", "weights", "lse"):
        row = expected[name].reshape(*posed.shape[:2], posed.shape[2], -1)[b, h, i]
        field = {"scores": "score", "weights": "weight"}.get(name, name)
        found = way.lse if name == "lse" else [getattr(step, field) for step in way.steps]
        row = row[0] if name == "lse" else row[[step.index for step in way.steps]]
        assert found == pytest.approx(row, rel=tolerance, abs=tolerance)


def test_the_tutorial_by_hand():
    way = explain(pose(**TUTORIAL, scale=1), query=0)
    # Dot products (2, 1, 1): weights e/(e + 2), 1/(e + 2), 1/(e + 2) with the shift of 2.
    assert [step.dot for step in way.steps] == [2, 1, 1]
    assert [step.products.tolist() for step in way.steps] == [[1, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert way.shift == 2
    assert [step.exponent for step in way.steps] == [0, -1, -1]
    assert way.denominator == pytest.approx(1 + 2 / E)
    assert [s.weight for s in way.steps] == pytest.approx([E / (E + 2), 1 / (E + 2), 1 / (E + 2)])
    assert way.context == pytest.approx([(E + 8) / (E + 2), (2 * E + 10) / (E + 2)])
    assert way.rest is None
    assert (way.batch, way.head) == (None, None)


@pytest.mark.parametrize(
    ("options", "query", "key", "rule", "words"),
    [
        ({"mask": np.eye(3, 6)}, 0, 4, "mask", "it does not let query 0 attend to key 4"),
        ({"key_padding_mask": [1, 1, 1, 1, 0, 1]}, 1, 4, "key_padding_mask", "marks key 4 as"),
        ({"kv_lengths": 2}, 1, 3, "kv_lengths", "key 3 is padding: only the first 2"),
        ({"query_lengths": 1}, 2, 0, "query_lengths", "query 2 is padding"),
        (
            {"segment_ids": [0, 0, 5], "kv_segment_ids": [0, 0, 3, 5, 5, 5]},
            2,
            2,
            "segment_ids",
            "query 2 belongs to segment 5, and key 2 to segment 3",
        ),
        (
            {"causal": True, "causal_align": "top-left"},
            1,
            2,
            "causal",
            "key 2 comes after position 1",
        ),
        (
            {"causal": True, "causal_align": "bottom-right"},
            1,
            5,
            "causal",
            "key 5 comes after position 4 (query 1 + offset 3)",
        ),
        (
            {"window": (1, 1), "query_offset": 0},
            0,
            3,
            "window",
            "key 3 is 3 to the right of position 0, at most 1",
        ),
        (
            {"window": (1, -1), "query_offset": 3},
            0,
            0,
            "window",
            "key 0 is 3 to the left of position 3 (query 0 + offset 3), at most 1",
        ),
        ({"bias": [0, 0, 0, -np.inf, 0, 0]}, 1, 3, "bias", "-inf is added to the score"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_rule_says_why_it_hides(options, query, key, rule, words):
    way = explain(random_problem(**options), query=query)
    step = way.steps[key]
    assert [reason.rule for reason in step.hidden] == [rule]
    assert words in step.hidden[0].words
    assert (step.score, step.weight, step.exponential) == (-math.inf, 0, 0)
    assert not step.contribution.any() if step.contribution is not None else True


def test_a_key_that_several_rules_hide_names_all_and_counts_for_all():
    options = {"mask": np.arange(6) < 4, "kv_lengths": 4, "causal": True, "query_offset": 1}
    problem = random_problem(**options)
    step = explain(problem, query=0).steps[5]
    assert [reason.rule for reason in step.hidden] == ["mask", "kv_lengths", "causal"]
    rest = explain(problem, query=0, keys=1).rest
    assert (rest.count, rest.hidden) == (5, 4)
    assert rest.rules == {"mask": 2, "kv_lengths": 2, "causal": 4}


@given(problem=problems(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_tally_of_the_rest_agrees_with_the_reasons_one_by_one(problem, data):
    *qkv, options = problem
    posed = pose(*qkv, **options)
    b, h, i = data.draw(st.sampled_from(places(posed)))
    rest = explain(posed, query=i, batch=b, head=h, keys=1).rest
    if rest is None:
        return
    told = {step.index for step in explain(posed, query=i, batch=b, head=h, keys=1).steps}
    others = [
        step
        for step in explain(posed, query=i, batch=b, head=h, keys=None).steps
        if step.index not in told
    ]
    rules = [reason.rule for step in others for reason in step.hidden]
    assert rest.rules == {rule: rules.count(rule) for rule in rules}
    assert rest.hidden == sum(bool(step.hidden) for step in others)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_shows_the_query_before_and_after_it_is_turned(pairing):
    problem = random_problem(rope=pairing, query_offset=2)
    way = explain(problem, query=1)
    given_query = problem.query[0, 0, 1].tolist()
    assert way.position == 3
    assert way.given.tolist() == given_query
    assert way.rotated == pytest.approx(rotated_by_oracle(given_query, 3, pairing, 10000.0))
    assert way.angles == pytest.approx([3 / 10000 ** (2 * p / 4) for p in range(2)])
    first, second = given_query[0], given_query[{"half": 2, "interleaved": 1}[pairing]]
    assert way.rotated[0] == pytest.approx(first * math.cos(3) - second * math.sin(3))
    assert way.partner == given_query.index(second)
    key = problem.key[0, 0, 5].tolist()
    assert way.steps[5].key == pytest.approx(rotated_by_oracle(key, 5, pairing, 10000.0))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2)])
def test_numbers_are_those_of_the_whole_answer_to_the_last_bit(heads, kv_heads):
    # Few decimals, as by hand: one bit of a score such as 1.195 decides what it is rounded to.
    random = np.random.default_rng(4)
    for _ in range(20):
        query = random.integers(1, 30, (2, heads * 3)) / 10
        key, value = random.integers(1, 300, (2, 4, kv_heads * 3)) / 100
        problem = pose(query, key, value, heads=heads, kv_heads=kv_heads, scale=1)
        whole = attention(
            query, key, value, heads=heads, kv_heads=kv_heads, scale=1, outputs=OUTPUTS
        )
        weights, scores = (
            np.reshape(array, (heads, 2, 4)) for array in (whole.weights, whole.scores)
        )
        for head, i in itertools.product(range(heads), range(2)):
            way = explain(problem, query=i, head=head)
            assert [step.score for step in way.steps] == scores[head, i].tolist()
            assert [step.weight for step in way.steps] == weights[head, i].tolist()
            assert way.lse == whole.lse.reshape(heads, 2)[head, i]
            assert way.context.tolist() == whole.context[i, 3 * head : 3 * head + 3].tolist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query": 2}, "query: expected an index from -2 to 1; found 2"),
        ({"query": 0, "head": 1}, "head: expected an index from -1 to 0; found 1"),
        ({"query": 0.5}, "query: expected a whole number; found 0.5"),
        ({"query": 0, "keys": 0}, "keys: expected a whole number of at least 1; found 0"),
    ],
)
def test_indices_out_of_range_are_refused(arguments, words):
    with pytest.raises(UsageError) as caught:
        explain(pose(**TUTORIAL), **arguments)
    assert caught.value.message == words


def test_a_query_is_found_by_index_or_label():
    labels = ["cat", "1", "cat", "2020"]
    problem = pose(np.eye(4), np.eye(4), query_labels=labels)
    assert query_index(problem, "3") == 3
    # A number within range is an index even where it is a label too; others are labels.
    assert query_index(problem, "1") == 1
    assert query_index(problem, "2020") == 3
    assert query_index(problem, "-1") == 3
    assert query_index(pose(np.eye(2), np.eye(2), query_labels=["-1", "a"]), "-1") == 0
    with pytest.raises(AttnError, match="'cat' is the label of 2 queries: 0, 2") as caught:
        query_index(problem, "cat")
    assert caught.value.hint == "name one by its index, or as 'cat (0)'"
    # As tables and messages name it.
    assert query_index(problem, "cat (2)") == 2
    for wrong in ("cat (1)", "cat (9)", "cat ()", "dog (0)"):
        with pytest.raises(AttnError, match="found"):
            query_index(problem, wrong)
    with pytest.raises(AttnError, match=r"-4 to 3 or one of the labels .*; found 'dog'"):
        query_index(problem, "dog")
    with pytest.raises(AttnError, match="from -2 to 1; found '9'"):
        query_index(pose(**TUTORIAL), "9")
