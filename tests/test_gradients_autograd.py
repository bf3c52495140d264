"""Gradients of random combinations of rules beside PyTorch's autograd in float64, and memory."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from test_engine_memory import grown

import attncli

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def rules_of(random, sizes):
    """Return some rules: by name, what `attncli.gradients` takes."""
    batch, heads, queries, keys, width = sizes
    offset = random.integers(0, 4, batch) + (keys - queries if random.random() < 0.5 else 0)
    mask = random.random((batch, 1, queries, keys)) < 0.7
    shape = [n if random.random() < 0.6 else 1 for n in (batch, heads, queries, keys)]
    every = {
        "causal": {"causal": True, "query_offset": offset.tolist()},
        "window": {"window": (int(random.integers(0, keys)), 2), "query_offset": offset.tolist()},
        "mask": {"mask": mask},
        "padding": {"key_padding_mask": random.random((batch, keys)) < 0.8},
        "lengths": {
            "kv_lengths": random.integers(1, keys + 1, batch).tolist(),
            "query_lengths": random.integers(1, queries + 1, batch).tolist(),
        },
        "bias": {"bias": random.normal(size=shape)},
        "softcap": {"softcap": float(random.choice([1.0, 4.0]))},
        "alibi": {"alibi_slopes": random.random(heads), "query_offset": offset.tolist()},
        "sinks": {"sinks": random.normal(size=heads)},
        "rope": {"rope": str(random.choice(["half", "interleaved"]))},
        "scale": {"scale": float(random.choice([0.2, 1.0]))},
        "score": {"score": str(random.choice(["cosine", "general"]))},
        "segments": {
            "segment_ids": np.sort(random.integers(0, 3, (batch, queries))),
            "kv_segment_ids": np.sort(random.integers(0, 3, (batch, keys))),
        },
    }
    chosen = [rule for rule in every if random.random() < 0.3]
    rules = {name: value for rule in chosen for name, value in every[rule].items()}
    if "rope" in chosen:
        rules.setdefault("query_offset", offset.tolist())
    if rules.get("score") == "general":
        rules["score_weight"] = random.normal(size=(width, width))
    return rules


def turned(rows, positions, pairing):
    """Rotate rows (B, H, n, D) by positions (B, 1, n)."""
    half = rows.shape[-1] // 2
    pairs = torch.arange(half, dtype=torch.float64)
    angles = positions[..., None] * 10000.0 ** (-pairs / half)
    if pairing == "half":
        one, other = rows[..., :half], rows[..., half:]
    else:
        one, other = rows[..., ::2], rows[..., 1::2]
    made = one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()
    if pairing == "half":
        return torch.cat(made, -1)
    return torch.stack(made, -1).flatten(-2)


def seen_by(rules, sizes, offset):
    """Return which keys each query sees, (B, 1, L, S)."""
    batch, _, queries, keys, _ = sizes
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    behind = i + offset - j
    seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if "causal" in rules:
        seen = seen & (behind >= 0)
    if "window" in rules:
        left, right = rules["window"]
        seen = seen & (behind <= left) & (-behind <= right)
    if "mask" in rules:
        seen = seen & torch.tensor(rules["mask"])
    if "key_padding_mask" in rules:
        seen = seen & torch.tensor(rules["key_padding_mask"])[:, None, None]
    if "kv_lengths" in rules:
        seen = seen & (j < torch.tensor(rules["kv_lengths"])[:, None, None, None])
        seen = seen & (i < torch.tensor(rules["query_lengths"])[:, None, None, None])
    if "segment_ids" in rules:
        own, others = (torch.tensor(rules[n]) for n in ("segment_ids", "kv_segment_ids"))
        seen = seen & (own[:, None, :, None] == others[:, None, None, :])
    return seen


def by_autograd(inputs, dcontext, dlse, rules, sizes):
    """Return the gradients of every input, from the formula in PyTorch."""
    _batch, heads, queries, keys, width = sizes
    learned = {name: rules[name] for name in ("bias", "sinks") if name in rules}
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in {**inputs, **learned}.items()}
    offset = torch.tensor(rules.get("query_offset", [0]), dtype=torch.float64)[:, None, None, None]
    q, k = leaves["query"], leaves["key"].repeat_interleave(heads // inputs["key"].shape[1], 1)
    v = leaves["value"].repeat_interleave(heads // inputs["key"].shape[1], 1)
    if "rope" in rules:
        q = turned(q, torch.arange(queries) + offset[..., 0], rules["rope"])
        k = turned(k, torch.arange(keys)[None, None].double(), rules["rope"])
    scale = rules.get("scale", 1.0 if "score" in rules else width**-0.5)
    if rules.get("score") == "cosine":
        q, k = torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1)
    if rules.get("score") == "general":
        q = q @ torch.tensor(rules["score_weight"])
    scores = scale * q @ k.transpose(-1, -2)
    if "softcap" in rules:
        scores = rules["softcap"] * torch.tanh(scores / rules["softcap"])
    if "bias" in leaves:
        scores = scores + leaves["bias"]
    if "alibi_slopes" in rules:
        far = (torch.arange(queries)[:, None] + offset - torch.arange(keys)).abs()
        scores = scores - torch.tensor(rules["alibi_slopes"])[:, None, None] * far
    seen = seen_by(rules, sizes, offset)
    # A number so low that it counts as nothing, and gives no NaN to rows without keys.
    scores = torch.where(seen, scores, -1e30)
    columns = [scores]
    if "sinks" in leaves:
        columns.append(leaves["sinks"][:, None, None].expand(*scores.shape[:3], 1))
    whole = torch.cat(columns, -1)
    weights = torch.softmax(whole, -1)[..., :keys] * seen
    lse = torch.logsumexp(whole, -1)
    any_key = seen.any(-1) | ("sinks" in leaves)
    loss = (weights @ v * torch.tensor(dcontext)).sum()
    loss = loss + torch.where(any_key, lse * torch.tensor(dlse), 0.0).sum()
    loss.backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items()}


def combination(seed):
    random = np.random.default_rng(seed)
    batch, groups, share = (int(random.choice(n)) for n in ([1, 2, 3], [1, 2], [1, 2, 3]))
    keys = int(random.choice([1, 5, 17, 40]))
    queries = int(random.choice([1, keys, max(1, keys // 2)]))
    width, value_width = int(random.choice([2, 4, 16])), int(random.choice([1, 4, 8]))
    heads = groups * share
    sizes = batch, heads, queries, keys, width
    inputs = {
        "query": random.normal(size=(batch, heads, queries, width)),
        "key": random.normal(size=(batch, groups, keys, width)),
        "value": random.normal(size=(batch, groups, keys, value_width)),
    }
    dcontext = random.normal(size=(batch, heads, queries, value_width))
    dlse = random.normal(size=(batch, heads, queries)) * (random.random() < 0.5)
    rules = rules_of(random, sizes)
    return inputs, dcontext, dlse, rules, sizes


@pytest.mark.parametrize(
    "seed", [s if s < 20 else pytest.param(s, marks=pytest.mark.long) for s in range(400)]
)
def test_random_rules_agree_with_autograd(seed):
    inputs, dcontext, dlse, rules, sizes = combination(seed)
    expected = by_autograd(inputs, dcontext, dlse, rules, sizes)
    outputs = [f"d{name}" for name in expected]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = attncli.gradients(**inputs, dcontext=dcontext, dlse=dlse, outputs=outputs, **rules)
    for name, right in expected.items():
        found = getattr(made, name)
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-11, err_msg=f"{name} {rules}")


@pytest.mark.parametrize("seed", range(12))
def test_right_gradients_of_others_pass(seed):
    from referee.right_gradients import alarm

    assert alarm(seed)[1] == ""


@pytest.mark.long
def test_a_context_of_32768_is_differentiated_within_400_megabytes():
    setup = "from attncli import gradients\nq = normal(1, 32768, 64)\ng = normal(1, 32768, 64)"
    assert grown(setup, "gradients(q, q, q, g, layout='hsd', threads=2)")[0] < 400
