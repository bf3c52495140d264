"""Mistakes that are read off the weights: dropout, masks that no rule makes, top-k, lost keys."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

SHAPE = (1, 2, 12, 16)


def scores_of(q, k):
    return q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


# Each reads zeros off the same weights: of the context alone, they have to be found first.
GIVEN = ["weights", "context", "weights and context"]


def outputs(given, weights, v):
    """Give the weights alone, the context alone, or both."""
    both = {"weights": weights, "context": weights @ v.astype("f8")}
    return {name: both[name] for name in given.split(" and ")}


@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float32", "float16"))
@pytest.mark.parametrize("p", long_but([0.1, 0.25, 0.5], 0.1, 0.5))
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("seed", SEEDS)
def test_dropout_is_told_with_its_share(seed, p, dtype, given):
    q, k, v = draw(seed, *[SHAPE] * 3)
    kept = np.random.default_rng(seed).random((1, 2, 12, 12)) >= p
    weights = np.where(kept, softmax(scores_of(q, k)) / (1 - p), 0)
    convention = only(ask((q, k, v), outputs(given, weights, v), dtype))
    assert convention.name == "dropout"
    assert convention.meaning.endswith(f"the others are divided by 1 − {p}")
    assert f"p is about {p}" in convention.fix or "dropout_p=0" in convention.fix


@pytest.mark.usefixtures("small_slices")
def test_dropout_of_a_large_problem_and_beside_a_causal_mask():
    shape = (1, 2, 48, 16)
    q, k, v = draw(0, *[shape] * 3)
    random = np.random.default_rng(0)
    scores = np.where(np.tri(48, dtype=bool), scores_of(q, k), -np.inf)
    weights = np.where(random.random(scores.shape) < 0.3, 0, softmax(scores) / 0.7)
    report = ask((q, k, v), {"weights": weights}, causal=True)
    assert only(report).meaning.endswith("the others are divided by 1 − 0.3")
    # Of the weights that there are, not of those that the mask hides.
    percent = float(only(report).meaning.split(": ")[1].split(" %")[0])
    assert 25 < percent < 35


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("given", long_but(GIVEN, "context"))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mask_that_no_rule_makes(seed, given):
    q, k, v = draw(seed, *[SHAPE] * 3)
    hidden = np.random.default_rng(seed).random((1, 2, 12, 12)) < 0.2
    weights = softmax(np.where(hidden, -np.inf, scores_of(q, k)))
    convention = only(ask((q, k, v), outputs(given, weights, v)))
    assert convention.name == "another_mask"
    assert f"hides what should be seen: {hidden.sum()} of 288 pairs" in convention.meaning
    assert "shows" not in convention.meaning


@pytest.mark.usefixtures("one_mistake")
def test_a_mask_of_one_head_is_told_of_it():
    q, k, v = draw(0, *[(2, 2, 12, 16)] * 3)
    seen = np.ones((2, 2, 12, 12), np.bool_)
    seen[1, 0, 4] = np.isin(np.arange(12), range(2, 9))
    seen[1, 0, 6] = np.isin(np.arange(12), range(1, 11))
    meaning = only(ask((q, k, v), plain(q, k, v, seen))).meaning
    assert "query 4 of batch 1, head 0 sees keys 2 to 8, not keys 0 to 11" in meaning


@pytest.mark.usefixtures("one_mistake")
def test_the_examples_of_a_mask_are_of_several_batch_entries():
    q, k, v = draw(0, *[(2, 2, 12, 16)] * 3)
    seen = np.broadcast_to(np.tri(12, dtype=bool), (2, 2, 12, 12)).copy()
    seen[0, :, 5:, :3] = False
    seen[1, :, 3:] = np.tri(12, k=-1, dtype=bool)[3:]
    meaning = only(ask((q, k, v), plain(q, k, v, seen), causal=True)).meaning
    assert meaning.count("; query ") == 3
    assert "; query 5 of batch 0, head 0 sees keys 3 to 5, not keys 0 to 5" in meaning
    assert meaning.endswith("query 11 of batch 1, head 0 sees keys 0 to 10, not keys 0 to 11")


@pytest.mark.usefixtures("one_mistake")
def test_a_mask_is_told_by_its_keys():
    q, k, v = draw(0, *[(12, 16)] * 3)
    right = np.tri(12, dtype=bool)
    wrong = right.copy()
    wrong[5, 9], wrong[6, 2], wrong[7, 3] = True, False, False
    context = plain(q, k, v, wrong)
    meaning = only(ask((q, k, v), context, causal=True)).meaning
    assert "hides what should be seen: keys 2 and 3, in 2 of 144 pairs" in meaning
    assert "shows what should be hidden: key 9, in 1 of 144 pairs" in meaning


@pytest.mark.parametrize("given", long_but(GIVEN, "weights", "context"))
@pytest.mark.parametrize("count", [1, 3])
def test_only_the_strongest_keys(count, given):
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = scores_of(q, k)
    least = np.sort(scores, axis=-1)[..., -count, None]
    weights = softmax(np.where(scores >= least, scores, -np.inf))
    convention = only(ask((q, k, v), outputs(given, weights, v)))
    assert convention.name == "strongest_keys"
    assert ("only the 3 keys" in convention.meaning) == (count == 3)


@pytest.mark.parametrize("count", [1, 8])
def test_the_strongest_of_more_keys_than_a_context_has_columns(count):
    q, k, v = draw(0, *[(1, 2, 40, 8)] * 3)
    scores = scores_of(q, k)
    least = np.sort(scores, axis=-1)[..., -count, None]
    context = softmax(np.where(scores >= least, scores, -np.inf)) @ v
    assert only(ask((q, k, v), context)).name == "strongest_keys"


def test_one_key_of_few_is_no_matter_of_a_huge_scale():
    for seed in range(2):
        q, k, v = draw(seed, *[(4, 4)] * 3)
        context = v[scores_of(q, k).argmax(-1)]
        names = [told.name for told in ask((q, k, v), context).diagnosis.explanations]
        assert names[:1] == ["strongest_keys"]


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("given", long_but(GIVEN, "weights"))
def test_weights_that_were_lost_behind_the_softmax(given):
    q, k, v = draw(0, *[(12, 16)] * 3)
    weights = softmax(scores_of(q, k))
    weights[..., [3, 7]] = 0
    convention = only(ask((q, k, v), outputs(given, weights, v)))
    assert convention.name == "zeroed_weights"
    assert convention.meaning.startswith("17 % of the weights are 0")


@pytest.mark.usefixtures("one_mistake")
def test_rows_of_one_key_tell_no_mask():
    """A key that is seen alone has the weight 1, whatever it is: any one-hot rows would do."""
    q, k, v = draw(0, *[(12, 16)] * 3)
    random = np.random.default_rng(0)
    one_hot = np.eye(12)[random.integers(0, 12, 12)]
    right = softmax(scores_of(q, k))
    mixed = np.where(random.random((12, 1)) < 0.5, right, one_hot)
    assert named(ask((q, k, v), {"weights": one_hot})) == set()
    assert named(ask((q, k, v), {"context": mixed @ v})) == set()


@pytest.mark.usefixtures("one_mistake")
def test_what_a_context_does_not_show_gets_no_name():
    q, k, v = draw(0, *[(12, 16)] * 3)
    kept = np.random.default_rng(0).random((12, 12)) >= 0.2
    weights = np.where(kept, softmax(scores_of(q, k)) / 0.8, 0)
    # Of 12 keys, a context of 6 columns has many weights that make it; of twins as many.
    for value in (v[..., :6], np.concatenate([v[..., :6, :]] * 2, axis=-2)):
        assert named(ask((q, k, value), weights @ value)) == set()
    # Other weights in the places that are not 0 are no dropout, and no mask.
    noisy = weights * np.random.default_rng(1).uniform(0.8, 1.2, weights.shape)
    assert named(ask((q, k, v), {"weights": noisy})) == set()


@pytest.mark.usefixtures("one_mistake")
def test_queries_and_keys_of_another_mask_have_their_labels():
    q, k, v = draw(0, *[(7, 8)] * 3)
    words = ("the", "cat", "sat", "on", "the", "mat", "")
    labels = {"query_labels": words, "key_labels": words}
    wrong = np.ones((7, 7), np.bool_)
    wrong[2, [1, 5]] = wrong[3, 2:] = False
    report = ask((q, k, v), {"weights": plain(q, k, np.eye(7), wrong)}, **labels)
    meaning = only(report).meaning
    assert "query 2 (sat) does not see keys 1 (cat) and 5 (mat); " in meaning
    assert meaning.endswith('query 3 (on) sees keys 0 (the) to 1 (cat), not keys 0 (the) to 6 ("")')
    wrong[2], wrong[3] = True, wrong[3] | (np.arange(7) != 5)
    meaning = only(ask((q, k, v), {"weights": plain(q, k, np.eye(7), wrong)}, **labels)).meaning
    assert "hides what should be seen: key 5 (mat), in 1 of 49 pairs" in meaning
    assert meaning.endswith("query 3 (on) does not see key 5 (mat)")
    unlabelled = only(ask((q, k, v), {"weights": plain(q, k, np.eye(7), wrong)})).meaning
    assert unlabelled.endswith("query 3 does not see key 5")


@pytest.mark.usefixtures("one_mistake")
def test_a_query_that_sees_some_keys_too_many_and_some_too_few():
    q, k, v = draw(0, *[(12, 8)] * 3)
    wrong = np.tri(12, dtype=bool)
    wrong[8, [1, 10]] = wrong[9, [5, 11]] = False, True
    report = ask((q, k, v), {"weights": plain(q, k, np.eye(12), wrong)}, causal=True)
    assert "query 8 does not see key 1 and sees key 10; query 9 does not" in only(report).meaning
