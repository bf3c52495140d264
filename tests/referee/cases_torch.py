"""Mistakes as people write them in PyTorch, on tensors of float32: an outsider's view.

Each function gets query, key and value (B, H, L, D) and what else its problem states, and is the
code that somebody might write. Nothing here knows how the referee looks for it.
"""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from referee.case import Rows, add, posed, told
from referee.plain import draw

if TYPE_CHECKING:
    from collections.abc import Callable


class _Late:
    """A module that is imported when it is used: it takes seconds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


torch, F = _Late("torch"), _Late("torch.nn.functional")
B, H, L, D = 2, 4, 12, 16
LENGTHS = np.array([7, 12])
PADDING = np.arange(L) < LENGTHS[:, None]


def torches(name: str, shapes: Any = None, **stated: Any) -> Rows:
    """Return a table of cases; each function gets query, key and value as tensors."""
    all_shapes = shapes or [(B, H, L, D)] * 3

    def add_row(row: str, function: Callable[..., Any]) -> None:
        def make(seed: int) -> Any:
            inputs = draw(seed, *all_shapes)
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                made = function(*(torch.from_numpy(array) for array in inputs))
            return posed(inputs, stated), made.float().numpy(), {}

        if find_spec("torch"):
            add(f"torch/{name}/{row}", told(row), make)

    return Rows(add_row)


def eager(q, k, v, *, scale=None, mask=None, dim=-1):
    """The four lines of every tutorial."""
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores, dim=dim), v)


def sdpa(q, k, v, **more):
    return F.scaled_dot_product_attention(q, k, v, **more)


def tril(n=L):
    return torch.tril(torch.ones(n, n))


def pads():
    return torch.from_numpy(PADDING)[:, None, None, :]


def _dropped(q, k, v):
    torch.manual_seed(0)
    return F.dropout(F.softmax(q @ k.mT / math.sqrt(D), -1), 0.25, training=True) @ v


def _heads_attended(q, k, v):
    """Forget that a kernel takes (B, L, H, D)."""
    made = sdpa(*(x.transpose(1, 2) for x in (q, k, v)))
    return made.transpose(1, 2)


cases = torches("scale")
cases["passes"] = sdpa
cases["unscaled"] = lambda q, k, v: F.softmax(q @ k.mT, -1) @ v
cases["one_over_width"] = lambda q, k, v: F.softmax(q @ k.mT / q.shape[-1], -1) @ v
cases["embedding_scale"] = lambda q, k, v: eager(q, k, v, scale=(q.size(1) * q.size(-1)) ** -0.5)
cases["length_scale|scale_of_length"] = lambda q, k, v: eager(q, k, v, scale=q.size(-2) ** -0.5)
cases["one_over_width @ twice"] = lambda q, k, v: sdpa(q * q.size(-1) ** -0.5, k, v)
cases["scale_of_one_side|scale_inverted|another_scale"] = lambda q, k, v: eager(
    q, k, v, scale=q.size(-1) ** -0.25
)
cases["scale_after_softmax"] = lambda q, k, v: F.softmax(q @ k.mT, -1) / math.sqrt(D) @ v
cases["softmax_over_queries"] = lambda q, k, v: eager(q, k, v, dim=-2)
cases["softmax_over_heads"] = lambda q, k, v: eager(q, k, v, dim=1)
cases["softmax_over_batch"] = lambda q, k, v: eager(q, k, v, dim=0)
cases["softmax_base_2"] = lambda q, k, v: _exp2(q @ k.mT / math.sqrt(D)) @ v
cases["log_softmax"] = lambda q, k, v: F.log_softmax(q @ k.mT / math.sqrt(D), -1) @ v
cases["softmax_left_out"] = lambda q, k, v: q @ k.mT / math.sqrt(D) @ v
cases["sigmoid"] = lambda q, k, v: torch.sigmoid(q @ k.mT / math.sqrt(D)) @ v
cases["weights_transposed"] = lambda q, k, v: F.softmax(q @ k.mT / math.sqrt(D), -1).mT @ v
cases["key_as_value"] = lambda q, k, v: sdpa(q, k, k)
cases["query_key_exchanged"] = lambda q, k, v: sdpa(k, q, v)
cases["query_added"] = lambda q, k, v: q + sdpa(q, k, v)
cases["softmax_twice"] = lambda q, k, v: F.softmax(F.softmax(q @ k.mT / math.sqrt(D), -1), -1) @ v
cases["sinks_unasked"] = lambda q, k, v: _softmax_one(q @ k.mT / math.sqrt(D)) @ v
cases["causal_unasked"] = lambda q, k, v: sdpa(q, k, v, is_causal=True)
cases["dropout"] = _dropped
cases["axes_blhx"] = lambda q, k, v: sdpa(q, k, v).transpose(1, 2)
cases["heads_packed"] = lambda q, k, v: sdpa(q, k, v).transpose(1, 2).reshape(B, L, H * D)
cases["heads_packed_untransposed"] = lambda q, k, v: sdpa(q, k, v).reshape(B, L, H * D)
cases["axes_exchanged"] = _heads_attended
cases["unscaled+causal_unasked"] = lambda q, k, v: eager(q, k, v, scale=1.0, mask=tril())
cases["computed_in_half"] = lambda q, k, v: sdpa(
    q.half().float(), k.half().float(), v.half().float()
).half()


def _exp2(scores):
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _softmax_one(scores):
    powers = scores.exp()
    return powers / (1 + powers.sum(-1, keepdim=True))


cases = torches("causal", causal=True)
cases["passes"] = lambda q, k, v: eager(q, k, v, mask=tril())
cases["causal_missing"] = eager
cases["causal_reversed"] = lambda q, k, v: eager(q, k, v, mask=torch.triu(torch.ones(L, L)))
cases["causal_inverted+hidden_finite"] = lambda q, k, v: _filled(q, k, v, tril() == 1, -1e9)
cases["causal_inverted+blind_rows_nan"] = lambda q, k, v: _filled(q, k, v, tril() == 1, -torch.inf)
cases["diagonal_hidden+blind_rows_nan"] = lambda q, k, v: _filled(
    q, k, v, torch.triu(torch.ones(L, L)) == 1, -torch.inf
)
cases["causal_one_late"] = lambda q, k, v: eager(q, k, v, mask=torch.tril(torch.ones(L, L), 1))
cases["causal_added"] = lambda q, k, v: sdpa(q, k, v, attn_mask=tril())
cases["causal_multiplied"] = lambda q, k, v: F.softmax(q @ k.mT / math.sqrt(D) * tril(), -1) @ v
cases["hidden_after_softmax"] = lambda q, k, v: (
    (F.softmax(q @ k.mT / math.sqrt(D), -1) * tril()) @ v
)
cases["hidden_tiny|causal_multiplied"] = lambda q, k, v: _filled(q, k, v, tril() == 0, 1e-9)
cases["hidden_scores_set"] = lambda q, k, v: _filled(q, k, v, tril() == 0, -5.0)
cases["unscaled+causal_missing"] = lambda q, k, v: eager(q, k, v, scale=1.0)
cases["unscaled+hidden_after_softmax"] = lambda q, k, v: (F.softmax(q @ k.mT, -1) * tril()) @ v
cases["softmax_over_queries"] = lambda q, k, v: eager(q, k, v, mask=tril(), dim=-2)
cases["window_unasked"] = lambda q, k, v: eager(q, k, v, mask=torch.triu(tril(), -4))


def _filled(q, k, v, hide, number):
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(hide, number)
    return F.softmax(scores, -1) @ v


cases = torches("padding", key_padding_mask=PADDING)
cases["passes"] = lambda q, k, v: eager(q, k, v, mask=pads())
cases["key_padding_mask_ignored"] = eager
cases["key_padding_mask_inverted"] = lambda q, k, v: _filled(
    q, k, v, pads(), -torch.inf
).nan_to_num()
cases["key_padding_mask_added"] = lambda q, k, v: sdpa(q, k, v, attn_mask=pads().float())
cases["key_padding_mask_on_queries"] = lambda q, k, v: _filled(
    q, k, v, ~pads().transpose(-1, -2), -torch.inf
).nan_to_num()
cases["key_padding_mask_of_first_entry"] = lambda q, k, v: eager(q, k, v, mask=pads()[:1])
cases["key_padding_mask_tiled_over_heads"] = lambda q, k, v: eager(
    q, k, v, mask=torch.from_numpy(PADDING).repeat(H, 1).view(B, H, 1, L)
)
cases["key_padding_mask_ignored+unscaled"] = lambda q, k, v: eager(q, k, v, scale=1.0)

cases = torches(
    "decoding",
    shapes=[(B, H, L, D), (B, H, 20, D), (B, H, 20, D)],
    causal=True,
    causal_align="bottom-right",
)
cases["passes"] = lambda q, k, v: eager(q, k, v, mask=torch.tril(torch.ones(L, 20), 8))
cases["causal_top_left"] = lambda q, k, v: sdpa(q, k, v, is_causal=True)
cases["causal_missing"] = sdpa
cases["diagonal_hidden"] = lambda q, k, v: eager(q, k, v, mask=torch.tril(torch.ones(L, 20), 7))
cases["last_key_lost"] = lambda q, k, v: eager(
    q, k[:, :, :19], v[:, :, :19], mask=torch.tril(torch.ones(L, 19), 8)
)
cases["new_keys_before_the_cache"] = lambda q, k, v: eager(
    q,
    torch.cat([k[:, :, 8:], k[:, :, :8]], 2),
    torch.cat([v[:, :, 8:], v[:, :, :8]], 2),
    mask=torch.tril(torch.ones(L, 20), 8),
)

cases = torches("groups", shapes=[(B, H, L, D), (B, 2, L, D), (B, 2, L, D)])
cases["passes"] = lambda q, k, v: sdpa(q, k, v, enable_gqa=True)
cases["heads_tiled"] = lambda q, k, v: eager(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
cases["heads_of_keys_tiled"] = lambda q, k, v: eager(
    q, k.repeat(1, 2, 1, 1), v.repeat_interleave(2, 1)
)
cases["keys_of_first_head"] = lambda q, k, v: eager(q, k[:, :1], v[:, :1])
cases["heads_tiled+unscaled"] = lambda q, k, v: eager(
    q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), scale=1.0
)


def _split(x):
    return x.view(B, L, H, D).transpose(1, 2)


def _merge(x):
    return x.transpose(1, 2).contiguous().view(B, L, H * D)


def _batch_first(q, k, v):
    """Leave out batch_first=True: the batch is taken for the sequence."""

    def cut(x):
        return x.reshape(B, L * H, D).transpose(0, 1).view(L, H, B, D)

    made = eager(*map(cut, (q, k, v)))
    return made.reshape(L * H, B, D).transpose(0, 1).reshape(B, L, H * D)


cases = torches("heads", shapes=[(B, L, H * D)] * 3, heads=H)
cases["passes"] = lambda q, k, v: _merge(eager(*map(_split, (q, k, v))))
cases["heads_reshaped"] = lambda q, k, v: eager(*(x.view(B, H, L, D) for x in (q, k, v))).view(
    B, L, H * D
)
cases["heads_reshaped_out"] = lambda q, k, v: eager(*map(_split, (q, k, v))).reshape(B, L, H * D)
cases["heads_reshaped_in"] = lambda q, k, v: _merge(eager(*(x.view(B, H, L, D) for x in (q, k, v))))
cases["heads_interleaved"] = lambda q, k, v: (
    eager(*(x.view(B, L, D, H).permute(0, 3, 1, 2) for x in (q, k, v)))
    .permute(0, 2, 3, 1)
    .reshape(B, L, H * D)
)
cases["unscaled"] = lambda q, k, v: _merge(eager(*map(_split, (q, k, v)), scale=1.0))
cases["embedding_scale"] = lambda q, k, v: _merge(
    eager(*map(_split, (q, k, v)), scale=1 / math.sqrt(H * D))
)
cases["heads_not_joined"] = lambda q, k, v: eager(*map(_split, (q, k, v)))
cases["heads_2"] = lambda q, k, v: (
    eager(*(x.view(B, L, 2, 2 * D).transpose(1, 2) for x in (q, k, v)))
    .transpose(1, 2)
    .reshape(B, L, H * D)
)
cases["heads_1"] = eager
cases["batch_attended"] = _batch_first


def _tables(offset, base, n, pairs="half"):
    inv = 1.0 / base ** (torch.arange(0, D, 2).double() / D)
    angles = torch.outer(torch.arange(n).double() + offset, inv)
    both = torch.cat((angles, angles), -1) if pairs == "half" else angles.repeat_interleave(2, -1)
    return both.cos().float(), both.sin().float()


def rotate_half(x):
    one, two = x.chunk(2, -1)
    return torch.cat((-two, one), -1)


def rotate_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rope(x, offset=0, base=10000.0, pairs="half", turn=None):
    cos, sin = _tables(offset, base, x.size(-2), pairs)
    turn = turn or (rotate_half if pairs == "half" else rotate_pairs)
    return x * cos + turn(x) * sin


cases = torches("rope", rope="half", causal=True)
cases["passes"] = lambda q, k, v: eager(rope(q), rope(k), v, mask=tril())
cases["rope_missing"] = lambda q, k, v: eager(q, k, v, mask=tril())
cases["rope_pairing"] = lambda q, k, v: eager(
    rope(q, pairs="two"), rope(k, pairs="two"), v, mask=tril()
)
cases["rope_angles_misplaced"] = lambda q, k, v: eager(
    *(rope(x, pairs="two", turn=rotate_half) for x in (q, k)), v, mask=tril()
)
cases["rope_backwards"] = lambda q, k, v: eager(
    *(rope(x, turn=lambda y: -rotate_half(y)) for x in (q, k)), v, mask=tril()
)
cases["rope_key_only"] = lambda q, k, v: eager(q, rope(k), v, mask=tril())
cases["rope_query_only"] = lambda q, k, v: eager(rope(q), k, v, mask=tril())
cases["rope_on_values"] = lambda q, k, v: eager(rope(q), rope(k), rope(v), mask=tril())
cases["rope_twice"] = lambda q, k, v: eager(rope(rope(q)), rope(rope(k)), v, mask=tril())
cases["rope_base_500000"] = lambda q, k, v: eager(
    rope(q, base=5e5), rope(k, base=5e5), v, mask=tril()
)
cases["rope_query_late"] = lambda q, k, v: eager(rope(q, 1), rope(k), v, mask=tril())
cases["rope_missing+causal_missing"] = eager
cases["rope_missing+unscaled"] = lambda q, k, v: eager(q, k, v, scale=1.0, mask=tril())
cases["causal_missing"] = lambda q, k, v: eager(rope(q), rope(k), v)
cases["unscaled"] = lambda q, k, v: eager(rope(q), rope(k), v, scale=1.0, mask=tril())
