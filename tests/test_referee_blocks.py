"""Kernels that go over the keys block by block, written out as loops, and their mistakes."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, softmax

from attncli.referee import topics
from attncli.referee.registry import CONVENTIONS

SIZES = [8, 16, 32, 64, 128]
ONLINE_SIZES = [1, 4, *SIZES]
KEYS = 300


def inputs(seed, keys=KEYS, dtype="float32"):
    return draw(seed, (1, 2, 6, 16), (1, 2, keys, 16), (1, 2, keys, 16), dtype=dtype)


def kernel(
    q,
    k,
    v,
    size,
    *,
    rescale_context=True,
    rescale_total=True,
    own=False,
    divide=False,
    last=False,
    inverse=False,
    power=1.0,
    late="",
    late_from=0,
):
    """Return context and lse of one query after the other, one block of keys after the other."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    context, lse = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
    for b, h, i in np.ndindex(q.shape[:3]):
        top, total, added = -np.inf, 0.0, 0.0
        for start in range(0, k.shape[2], size):
            part = slice(start, start + size)
            scores = k[b, h, part] @ q[b, h, i] / np.sqrt(q.shape[3])
            higher = max(top, scores.max())
            powers = np.exp(scores - (scores.max() if own else higher))
            # Before the first block there is nothing to be rescaled.
            factor = np.exp(higher - top if inverse and start else power * (top - higher))
            at_once = rescale_total and late not in ("sums", "denominator")
            total = 0 if last else total * (factor if at_once else 1)
            total += powers.sum()
            at_once = rescale_context and late not in ("sums", "context")
            added = added * (factor if at_once else 1) + powers @ v[b, h, part]
            if late and start >= late_from:
                total *= factor if late != "context" else 1
                added = added * (factor if late != "denominator" else 1)
            added /= total if divide else 1
            top = higher
        context[b, h, i] = added / (1 if divide else total)
        lse[b, h, i] = np.log(total) + top
    return context, lse


@pytest.mark.parametrize("size", long_but(SIZES, 8, 64))
def test_an_online_softmax_is_right(size):
    q, k, v = inputs(0)
    context, lse = kernel(q, k, v, size)
    assert ask((q, k, v), {"context": context, "lse": lse}).passed


@pytest.mark.parametrize("size", long_but(SIZES, 16))
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("sums", {"rescale_context": False, "rescale_total": False}),
        ("context", {"rescale_context": False}),
        ("denominator", {"rescale_total": False}),
    ],
)
def test_sums_that_are_not_rescaled(name, mistake, size):
    q, k, v = inputs(size, keys=4 * size + 3)
    context, lse = kernel(q, k, v, size, **mistake)
    alone = ask((q, k, v), context)
    assert named(alone) == {f"online_{name}_stale_{size}"}
    assert named(ask((q, k, v), {"context": context, "lse": lse})) == named(alone)


@pytest.mark.parametrize("size", long_but(ONLINE_SIZES, 1, 16))
@pytest.mark.parametrize(
    ("name", "mistake"),
    [("own_maxima", "own"), ("divided_each_time", "divide"), ("last_denominator", "last")],
)
def test_maxima_and_denominators_of_an_online_softmax(name, mistake, size):
    # Of two sizes that leave as many keys, the last block is the same.
    q, k, v = inputs(size, keys=4 * size + 3 if size > 4 else 30)
    context, _ = kernel(q, k, v, size, **{mistake: True})
    assert f"online_{name}_{size}" in named(ask((q, k, v), context))


@pytest.mark.parametrize("size", long_but(ONLINE_SIZES, 1, 32))
def test_values_of_the_last_block_alone(size):
    q, k, v = inputs(size, keys=3 * size + 2 if size > 1 else 30)
    start = (k.shape[2] - 1) // size * size
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[3])
    context = softmax(scores)[..., start:] @ v[:, :, start:]
    assert named(ask((q, k, v), context)) == {f"online_last_context_{size}"}


@pytest.mark.parametrize("size", long_but([4, 8, 64], 8))
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        (
            "own_maxima_not_rescaled",
            {"own": True, "rescale_context": False, "rescale_total": False},
        ),
        ("rescaled_inversely", {"inverse": True}),
        ("rescaled_twice", {"power": 2.0}),
        ("rescaled_in_base_2", {"power": np.log(2)}),
    ],
)
def test_blocks_that_are_rescaled_wrongly(name, mistake, size):
    q, k, v = inputs(size, keys=4 * size + 3 if size > 4 else 30)
    context, _ = kernel(q, k, v, size, **mistake)
    assert named(ask((q, k, v), context)) == {f"online_{name}_{size}"}


@pytest.mark.parametrize("size", long_but([1, 16, 64], 16))
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("late", ["sums", "context", "denominator"])
def test_blocks_that_are_rescaled_with_what_was_before_them(late, first, size):
    q, k, v = inputs(size, keys=4 * size + 3)
    context, lse = kernel(q, k, v, size, late=late, late_from=first)
    name = f"online_{late}_rescaled_late{'_from_second' * first}_{size}"
    assert named(ask((q, k, v), context)) == {name}
    if first:
        assert name in named(ask((q, k, v), {"context": context, "lse": lse}))


@pytest.mark.parametrize("size", long_but([1, 4], 1))
def test_an_online_softmax_of_single_keys(size):
    q, k, v = inputs(size, keys=30)
    context, _ = kernel(q, k, v, size, rescale_context=False)
    assert named(ask((q, k, v), context)) == {f"online_context_stale_{size}"}


def test_sinks_take_part_in_an_online_softmax():
    q, k, v = inputs(3)
    sinks = np.array([0.5, 3.0])
    context, lse = kernel(q, k, v, 64, rescale_context=False)
    share = 1 / (1 + np.exp(sinks[:, None] - lse))
    wrong = context * share[..., None]
    assert named(ask((q, k, v), wrong, sinks=sinks)) == {"online_context_stale_64"}


@pytest.mark.parametrize("size", long_but(SIZES, 8, 128))
def test_the_first_block_is_lost(size):
    q, k, v = inputs(size)
    wrong = plain(q, k[:, :, size:], v[:, :, size:])
    assert named(ask((q, k, v), wrong)) == {f"first_block_of_{size}_lost"}


@pytest.mark.parametrize("size", long_but(SIZES, 16, 64))
def test_the_last_block_is_lost_though_it_is_whole(size):
    q, k, v = inputs(size, keys=256)
    wrong = plain(q, k[:, :, :-size], v[:, :, :-size])
    assert named(ask((q, k, v), wrong)) == {f"last_block_of_{size}_lost"}


@pytest.mark.parametrize(("name", "kept"), [("last", slice(0, -1)), ("first", slice(1, None))])
@pytest.mark.parametrize("dtype", long_but(["float16", "float32", "float64"], "float16"))
def test_one_key_is_lost(name, kept, dtype):
    q, k, v = inputs(0, dtype=dtype)
    wrong = plain(q, k[:, :, kept], v[:, :, kept])
    report = ask((q, k, v), wrong, dtype)
    assert named(report) == {f"{name}_key_lost"}
    assert ("overwritten in the cache" in str(report)) is (name == "first")


@pytest.mark.parametrize("sinks", [None, np.array([0.5, -1.0])])
@pytest.mark.parametrize(
    ("keys", "size"), long_but([(30, 16), (40, 32), (70, 64), (300, 128)], (40, 32), (300, 128))
)
def test_keys_of_zeros_that_count(keys, size, sinks):
    q, k, v = inputs(size, keys)
    more = [(0, 0), (0, 0), (0, -keys % size), (0, 0)]
    padded = [np.pad(array, more).astype(np.float64) for array in (k, v)]
    scores = q @ padded[0].swapaxes(-1, -2) / 4
    if sinks is None:
        weights = softmax(scores)
    else:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        weights = softmax(np.concatenate([scores, column], -1))[..., :-1]
    # Two sizes may need the same number of zeros.
    same = {f"zeros_to_{n}_counted" for n in SIZES if -keys % n == -keys % size}
    assert named(ask((q, k, v), weights @ padded[1], sinks=sinks)) == same
    assert f"zeros_to_{size}_counted" in same


def test_every_size_has_its_names():
    names = {c.name for c in CONVENTIONS if c.topic in (topics.BLOCKS, topics.ONLINE_SOFTMAX)}
    kinds = ["last_block_of_{}_lost", "first_block_of_{}_lost", "zeros_to_{}_counted"]
    sized = {kind.format(size) for kind in kinds for size in SIZES}
    online = [f"online_{what}_stale_{{}}" for what in ("sums", "context", "denominator")]
    online += ["online_own_maxima_{}", "online_divided_each_time_{}", "online_last_denominator_{}"]
    online += [
        "online_last_context_{}",
        "online_own_maxima_not_rescaled_{}",
        "online_rescaled_inversely_{}",
        "online_rescaled_twice_{}",
        "online_rescaled_in_base_2_{}",
    ]
    late = [f"{what}_rescaled_late" for what in ("sums", "context", "denominator")]
    online += [f"online_{what}{end}_{{}}" for what in late for end in ("", "_from_second")]
    sized |= {kind.format(size) for kind in online for size in ONLINE_SIZES}
    # A key beside its own maximum is 1: there is nothing to tell. Or it is another scale's.
    sized -= {"online_own_maxima_not_rescaled_1", "online_rescaled_twice_1"}
    assert names == sized | {"last_key_lost", "first_key_lost"}


@pytest.mark.parametrize("output", ["weights", "scores"])
@pytest.mark.parametrize("given", [2, 3])
def test_tiles_of_keys_that_are_read_late_show_without_a_context(output, given):
    inputs = q, k, _ = draw(0, (1, 2, 7, 16), *[(1, 2, 28, 16)] * 2)
    at = np.arange(28)
    scores = q.astype("f8") @ k[:, :, np.where(at < 8, at, at - 8)].swapaxes(-1, -2) / 4
    made = scores if output == "scores" else softmax(scores)
    assert named(ask(inputs[:given], {output: made})) == {"keys_late_by_a_block_of_8"}
