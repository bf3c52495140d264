"""Every path of the engine gives the formula's answer under every rule, each head by itself.

The truth is the formula in float64. The sizes are those that take each path: everything at once,
many short heads, strips of weights, few queries over many keys, and tiles.
"""

from typing import NamedTuple

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention
from attncli.numerics.dtypes import BFLOAT16

pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")


class Sizes(NamedTuple):
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    outputs: tuple


EVERYTHING = ("raw", "capped", "scores", "weights", "context", "lse")
PATHS = {
    "at once": Sizes(2, 4, 2, 20, 25, EVERYTHING),
    "short heads": Sizes(40, 4, 2, 40, 50, ("context", "lse")),
    "short heads of one group": Sizes(2, 40, 1, 70, 60, ("weights", "context")),
    "strips": Sizes(2, 4, 2, 300, 500, EVERYTHING),
    "few queries": Sizes(2, 8, 2, 3, 5000, ("context", "lse")),
    "tiles": Sizes(2, 8, 2, 300, 500, ("context", "lse")),
    "long tiles": Sizes(1, 2, 2, 700, 1500, ("context",)),
}
WIDTH = 16


def inputs(sizes, dtype="float32"):
    random = np.random.default_rng(11)
    lead = sizes.batch, sizes.groups, sizes.keys
    query = random.standard_normal((sizes.batch, sizes.heads, sizes.queries, WIDTH))
    key, value = random.standard_normal((*lead, WIDTH)), random.standard_normal((*lead, 5))
    return [array.astype(dtype) for array in (query, key, value)]


def rule(name, sizes):
    """Return options, and what they add to the scores of (B, H, L, S)."""
    batch, heads, _, queries, keys, _ = sizes
    random = np.random.default_rng(12)
    behind = np.arange(queries)[:, None] - np.arange(keys)
    lengths = random.integers(1, keys, batch)
    by_entry = np.arange(keys) < lengths[:, None, None, None]
    if name == "causal":
        return {"causal": True, "query_offset": 3}, hidden(behind >= -3)
    if name == "window":
        return {"window": (20, 9), "query_offset": 0}, hidden((behind <= 20) & (behind >= -9))
    if name == "lengths":
        return {"kv_lengths": lengths}, hidden(by_entry)
    if name == "lengths of both":
        rows = np.arange(queries) < random.integers(1, queries + 1, batch)[:, None, None]
        own = {"query_lengths": rows.sum(-1)[:, 0], "kv_lengths": lengths}
        return own, hidden(by_entry & rows[..., None])
    if name == "offsets":
        offsets = np.arange(batch) * 4
        seen = behind + offsets[:, None, None, None] >= 0
        return {"causal": True, "query_offset": offsets}, hidden(seen)
    if name == "padding":
        mask = random.random((batch, keys)) < 0.6
        return {"key_padding_mask": mask}, hidden(mask[:, None, None])
    if name == "segments":
        own, theirs = (np.sort(random.integers(0, 4, (batch, n))) for n in (queries, keys))
        seen = own[:, None, :, None] == theirs[:, None, None]
        return {"segment_ids": own, "kv_segment_ids": theirs}, hidden(seen)
    if name.startswith("mask"):
        mask = random.random(SHAPES[name](sizes)) < 0.6
        return {"mask": mask}, hidden(mask)
    if name.startswith("bias"):
        bias = random.standard_normal(SHAPES[name](sizes))
        bias[..., 0, 3] = -np.inf
        return {"bias": bias}, bias
    slopes = 0.5 ** np.arange(1, heads + 1)
    return {"alibi_slopes": slopes, "query_offset": 0}, -slopes[:, None, None] * np.abs(behind)


SHAPES = {
    "mask": lambda n: (n.queries, n.keys),
    "mask of each": lambda n: (n.batch, n.heads, n.queries, n.keys),
    "mask of entries": lambda n: (n.batch, 1, n.queries, n.keys),
    "bias": lambda n: (n.queries, n.keys),
    "bias of heads": lambda n: (1, n.heads, n.queries, n.keys),
    "bias of keys": lambda n: (1, n.keys),
}
RULES = [
    *("nothing", "causal", "window", "lengths", "lengths of both", "offsets", "padding"),
    *("segments", "slopes", "softcap", "sinks", "hot", *SHAPES),
]


def hidden(seen):
    return np.where(seen, 0, -np.inf)


def formula(query, key, value, added=0, softcap=None, sinks=None):
    """Return every output in float64."""
    share = query.shape[1] // key.shape[1]
    key, value = (array.astype(float).repeat(share, axis=1) for array in (key, value))
    raw = query.astype(float) @ key.swapaxes(-1, -2) / np.sqrt(WIDTH)
    capped = raw if softcap is None else softcap * np.tanh(raw / softcap)
    scores = capped + added
    sinks = -np.inf if sinks is None else np.array(sinks)[:, None, None]
    highest = np.maximum(scores.max(-1, keepdims=True), sinks)
    highest = np.where(np.isneginf(highest), 0, highest)
    powers = np.exp(scores - highest)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks - highest)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + highest)[..., 0]
    weights = powers / np.where(total == 0, 1, total)
    every = raw, capped, scores, weights, weights @ value, lse
    return dict(zip(EVERYTHING, every, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_the_formula_under_every_rule(path, name, dtype):
    sizes = PATHS[path]
    query, key, value = inputs(sizes, dtype)
    more, options, added = {}, {}, 0
    if name == "softcap":
        more = {"softcap": 2.0}
    elif name == "sinks":
        more = {"sinks": np.linspace(-3, 9, sizes.heads)}
    elif name == "hot":
        query *= 40
    elif name != "nothing":
        options, added = rule(name, sizes)
    answer = attention(query, key, value, outputs=sizes.outputs, threads=2, **options, **more)
    truth = formula(query, key, value, added, **more)
    near = 1e-10 if dtype == "float64" else 1e-3 if name == "hot" else 2e-5
    for output in sizes.outputs:
        found = getattr(answer, output)
        assert_near(found, truth[output], rtol=near, atol=near, err_msg=output)


@pytest.mark.parametrize("name", ["nothing", "mask", "bias", "slopes", "causal"])
@pytest.mark.parametrize("path", PATHS)
def test_a_head_does_not_change_a_bit_of_another(path, name):
    """Whatever its numbers are: high scores, large values, products beyond the range."""
    sizes = PATHS[path]
    options = {} if name == "nothing" else rule(name, sizes)[0]
    query, key, value = inputs(sizes)
    before = attention(query, key, value, outputs=sizes.outputs, threads=1, **options)
    share = sizes.heads // sizes.groups
    for times_query, times_key, times_value in (
        (50, 1, 1),
        (1, 1, 1e37),
        (1e12, 1e-9, 1),
        (0, 1, 1),
    ):
        changed = [array.copy() for array in (query, key, value)]
        for array, factor in zip(changed, (times_query, times_key, times_value), strict=True):
            array[0, 0] *= np.float32(factor)
        after = attention(*changed, outputs=sizes.outputs, threads=1, **options)
        others = np.ones((sizes.batch, sizes.heads), bool)
        others[0, :share] = False
        for output in sizes.outputs:
            old, new = getattr(before, output)[others], getattr(after, output)[others]
            np.testing.assert_array_equal(old, new, err_msg=output)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "shared"])
def test_half_precision_and_keys_that_all_entries_share(path, kind):
    sizes = PATHS[path]
    arrays = inputs(sizes)
    if kind == "shared":
        arrays[1], arrays[2] = arrays[1][:1], arrays[2][:1]
        given = [arrays[0], *(np.broadcast_to(a, (sizes.batch, *a.shape[1:])) for a in arrays[1:])]
    else:
        arrays = [array.astype(np.float16).astype(np.float32) for array in arrays]
        given = arrays
    if kind == "bfloat16":
        for array in arrays:
            array.view(np.uint32)[...] &= 0xFFFF0000
        given = [(a.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16) for a in arrays]
    elif kind == "float16":
        given = [array.astype(np.float16) for array in arrays]
    answer = attention(*given, outputs=sizes.outputs, threads=2)
    truth = formula(
        arrays[0],
        *(np.broadcast_to(a, g.shape) for a, g in zip(arrays[1:], given[1:], strict=True)),
    )
    for output in sizes.outputs:
        assert_near(getattr(answer, output), truth[output], rtol=2e-5, atol=2e-5, err_msg=output)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("score", ["additive", "cosine", "general"])
def test_other_scores(path, score):
    sizes = PATHS[path]._replace(batch=1)
    if score == "additive":  # a score takes D times as long
        sizes = sizes._replace(queries=min(sizes.queries, 30), keys=min(sizes.keys, 400))
    query, key, value = inputs(sizes, "float64")
    more = {"score_weight": np.eye(WIDTH)[::-1].copy()} if score == "general" else {}
    outputs = set(sizes.outputs) - {"raw", "capped"}
    answer = attention(query, key, value, score=score, outputs=tuple(outputs), causal=True,
                       causal_align="top-left", **more)  # fmt: skip
    seen = np.tri(sizes.queries, sizes.keys, dtype=bool)
    wide = key.repeat(sizes.heads // sizes.groups, axis=1)
    if score == "additive":
        raw = np.tanh(query[..., :, None, :] + wide[..., None, :, :]).sum(-1)
    elif score == "cosine":
        raw = np.einsum("bhid,bhjd->bhij", *(a / np.linalg.norm(a, axis=-1, keepdims=True)
                                             for a in (query, wide)))  # fmt: skip
    else:
        raw = query[..., ::-1] @ wide.swapaxes(-1, -2)
    scores = np.where(seen, raw, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    lse = np.log(np.exp(scores).sum(-1))
    context = weights @ value.repeat(sizes.heads // sizes.groups, axis=1)
    truth = {"scores": scores, "weights": weights, "context": context, "lse": lse}
    for output in outputs:
        assert_near(getattr(answer, output), truth[output], rtol=1e-9, atol=1e-9, err_msg=output)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rules", [{}, {"kv_lengths": True}, {"window": (40, 0)}], ids=str)
def test_a_group_alone_has_the_bits_that_it_has_beside_others(path, rules):
    sizes = PATHS[path]
    query, key, value = inputs(sizes)
    share = sizes.heads // sizes.groups
    lengths = np.arange(sizes.keys - 5, sizes.keys - 5 - sizes.batch, -1)
    if "kv_lengths" in rules:
        rules = {"kv_lengths": lengths}
    whole = attention(query, key, value, outputs=sizes.outputs, **rules)
    for entry, group in {(0, 0), (sizes.batch - 1, sizes.groups - 1)}:
        own = slice(entry, entry + 1)
        heads, keys = slice(group * share, (group + 1) * share), slice(group, group + 1)
        if "kv_lengths" in rules:
            rules = {"kv_lengths": lengths[own]}
        alone = attention(
            query[own, heads], key[own, keys], value[own, keys], outputs=sizes.outputs, **rules
        )
        for output in sizes.outputs:
            expected = getattr(whole, output)[own, heads]
            np.testing.assert_array_equal(getattr(alone, output), expected, output)


@pytest.mark.parametrize("path", PATHS)
def test_queries_without_a_key_are_counted_and_give_zeros(path):
    sizes = PATHS[path]
    count = sizes.batch * sizes.heads
    few = min(5, sizes.queries - 1)
    with pytest.warns(UserWarning, match=rf"{count * few} of {count * sizes.queries} queries"):
        answer = attention(*inputs(sizes), causal=True, query_offset=-few, outputs=sizes.outputs)
    assert not answer.context[:, :, :few].any()
    assert answer.context[:, :, few:].any(axis=-1).all()
    if "lse" in sizes.outputs:
        assert np.isneginf(answer.lse[:, :, :few]).all()
