"""The works that are timed, and the ways to do each: ours, torch's, and by hand in NumPy.

A way takes a `Work` and returns a function without arguments that does it once. All
ways of a work do the same arithmetic on the same numbers with the same number of threads.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

THREADS = int(os.environ.get("BENCH_THREADS", "2"))


@dataclass(frozen=True)
class Work:
    """One row of the table: the rival and the floor are names of `WAYS`."""

    title: str
    rival: str
    heads: int
    queries: int
    keys: int
    width: int
    dtype: str = "float32"
    groups: int = 0
    causal: bool = False
    window: int | None = None  # keys that a query sees before itself
    weights: bool = False  # beside the context
    rule: str = ""  # mask, bias or ALiBi; torch gets it as a mask
    heat: float = 1.0  # multiplies the queries
    goal: float | None = None  # what ours / rival should not exceed
    floor: str = "products"

    @property
    def sizes(self):
        heads = f"{self.heads}/{self.groups}" if self.groups else str(self.heads)
        return f"({heads}, {self.queries}, {self.keys}, {self.width})"

    @property
    def outputs(self):
        return ("weights", "context") if self.weights else ("context",)


CONTEXT = [
    Work("context", "sdpa", 8, 512, 512, 64, goal=1.15),
    Work("context", "sdpa", 8, 2048, 2048, 64, goal=1.15),
    Work("context", "sdpa", 1, 8192, 8192, 128, goal=1.15),
    Work("context, GQA", "sdpa", 8, 2048, 2048, 64, groups=2, goal=1.15),
    Work("decoding", "sdpa", 8, 1, 16384, 64, goal=1.15),
]
# Of the backward pass, whose inputs, output and upstream gradient are there already.
GRADIENTS = [
    Work("gradients", "sdpa backward", 8, 512, 512, 64, floor="five products", goal=1.2),
    Work("gradients", "sdpa backward", 8, 2048, 2048, 64, floor="five products", goal=1.2),
    Work(
        "gradients, causal",
        "sdpa backward",
        *(8, 2048, 2048, 64),
        causal=True,
        floor="five products",
        goal=1.2,
    ),
    Work("gradients", "sdpa backward", 1, 8192, 8192, 64, floor="five products", goal=1.2),
]
WORKS = [
    *CONTEXT,
    *GRADIENTS,
    Work("context, float64", "sdpa", 4, 2048, 2048, 64, "float64", goal=0.9),
    Work("causal", "sdpa", 8, 2048, 2048, 64, causal=True, goal=1.0),
    Work("causal", "sdpa", 1, 8192, 8192, 64, causal=True, goal=1.0),
    Work("window 256, causal", "sdpa", 1, 8192, 8192, 64, causal=True, window=256, goal=0.1),
    Work("weights", "torch formula", 8, 512, 512, 64, weights=True, goal=0.5),
    Work("weights", "torch formula", 8, 2048, 2048, 64, weights=True, goal=0.5),
    Work("weights, float64", "torch formula", 4, 2048, 2048, 64, "float64", weights=True, goal=0.5),
    Work("weights", "numpy formula", 8, 2048, 2048, 64, weights=True, goal=0.25),
    Work("mask", "sdpa", 8, 2048, 2048, 64, rule="mask"),
    Work("bias", "sdpa", 8, 2048, 2048, 64, rule="bias"),
    Work("ALiBi", "sdpa", 8, 2048, 2048, 64, rule="ALiBi"),
    Work("queries times 4", "sdpa", 8, 2048, 2048, 64, heat=4.0),
    Work("queries times 30", "sdpa", 8, 2048, 2048, 64, heat=30.0),
    Work("times 30, weights", "torch formula", 8, 2048, 2048, 64, weights=True, heat=30.0),
]


def arrays(work):
    """Return query (H, L, D), key and value (G, S, D): normal numbers, always the same."""
    random = np.random.default_rng(0)
    groups = work.groups or work.heads
    query = random.standard_normal((work.heads, work.queries, work.width), np.float32) * work.heat
    key, value = random.standard_normal((2, groups, work.keys, work.width), np.float32)
    return [array.astype(work.dtype) for array in (query, key, value)]


def rule(work):
    """Return the argument of ours that is the work's rule, and what torch takes for it."""
    random = np.random.default_rng(1)
    if work.rule == "mask":
        seen = random.random((work.queries, work.keys)) < 0.7
        return {"mask": seen}, seen
    if work.rule == "bias":
        bias = random.standard_normal((work.heads, work.queries, work.keys), np.float32)
        return {"bias": bias}, bias
    slopes = 2.0 ** -np.arange(1, work.heads + 1)
    distance = np.abs(np.arange(work.queries)[:, None] - np.arange(work.keys))
    bias = -slopes[:, None, None] * distance
    return {"alibi_slopes": slopes}, bias.astype(work.dtype)


def ours(work):
    from attncli import attention

    inputs = arrays(work)
    options = {"layout": "hsd", "outputs": work.outputs, "threads": THREADS}
    if work.causal:
        options |= {"causal": True}
    if work.window is not None:
        options |= {"window": (work.window, 0)}
    if work.rule:
        options |= rule(work)[0]
    return lambda: attention(*inputs, **options)


def our_gradients(work):
    from attncli import gradients

    inputs = arrays(work)
    upstream = np.ones_like(inputs[0])
    options = {"causal": True} if work.causal else {}
    return lambda: gradients(*inputs, upstream, layout="hsd", threads=THREADS, **options)


def sdpa_backward(work):
    """PyTorch's backward pass; its forward pass is done before, and is not timed.

    Ours makes the context and the lse again, as it is handed neither.
    """
    import torch

    torch.set_num_threads(THREADS)
    inputs = [torch.from_numpy(array)[None].requires_grad_() for array in arrays(work)]
    call = torch.nn.functional.scaled_dot_product_attention
    made = call(*inputs, is_causal=work.causal)
    upstream = torch.ones_like(made)
    return lambda: torch.autograd.grad(made, inputs, upstream, retain_graph=True)


def five_products(work):
    """The floor of a backward pass: five products and one exponential, in tiles."""
    from threadpoolctl import threadpool_limits

    query, key, value = arrays(work)
    size = min(512, work.queries)

    def block(item):
        head, start = item
        rows = query[head, start : start + size]
        first, last = seen_span(work, start, start + size)
        sums = np.zeros_like(rows)
        for column in range(first, last, size):
            part = slice(column, min(column + size, last))
            weights = rows @ key[head, part].T
            np.exp(weights, out=weights)
            dscores = rows @ value[head, part].T
            weights.T @ rows
            sums += dscores @ key[head, part]
            dscores.T @ rows

    items = [(h, start) for h in range(work.heads) for start in range(0, work.queries, size)]

    def run():
        with (
            np.errstate(all="ignore"),
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(THREADS) as pool,
        ):
            list(pool.map(block, items))

    return run


def sdpa(work):
    """PyTorch's fused kernel; where it knows no rule, with a mask."""
    import torch

    torch.set_num_threads(THREADS)
    inputs = [torch.from_numpy(array)[None] for array in arrays(work)]
    options = {"enable_gqa": True} if work.groups else {}
    if work.window is not None:
        row, column = torch.arange(work.queries)[:, None], torch.arange(work.keys)
        options["attn_mask"] = (column <= row) & (column >= row - work.window)
    elif work.causal:
        options["is_causal"] = True
    elif work.rule:
        # With a mask of three axes torch does not use its kernel.
        given = torch.from_numpy(rule(work)[1])
        options["attn_mask"] = given[None] if given.ndim == 3 else given
    call = torch.nn.functional.scaled_dot_product_attention
    return lambda: call(*inputs, **options)


def torch_formula(work):
    """softmax(QKᵀ/√D)V in torch: its kernel gives no weights."""
    import torch

    torch.set_num_threads(THREADS)
    query, key, value = (torch.from_numpy(array) for array in arrays(work))
    scale = 1 / math.sqrt(work.width)

    def run():
        weights = torch.softmax(query @ key.transpose(-1, -2) * scale, dim=-1)
        return weights, weights @ value

    return run


def numpy_formula(work):
    """The formula as tutorials write it."""
    query, key, value = arrays(work)

    def run():
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(work.width)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights, weights @ value

    return run


def products(work):
    """The floor: the two matrix products alone, in tiles that stay in cache.

    In panels of 64 queries with AVX-512, where BLAS multiplies them without packing; in blocks
    of 512 elsewhere.
    """
    from threadpoolctl import threadpool_limits

    query, key, value = arrays(work)
    share = work.heads // key.shape[0]
    few = work.queries < 64
    panel = min(work.queries, 64 if has_avx512() else 512)
    rows, columns = min(1024, work.queries), 8192 if few else min(512, 15_000 // work.width)

    def block(item):
        head, start = item
        part = query[head, start : start + rows].reshape(-1, panel, work.width)
        part = np.ascontiguousarray(part.swapaxes(1, 2))
        tile = np.empty((len(part), columns, panel), work.dtype)
        context = np.empty(part.shape, work.dtype)
        first, last = seen_span(work, start, start + rows)
        for column in range(first, last, columns):
            stop = min(column + columns, last)
            out = tile[:, : stop - column]
            np.matmul(key[head // share, column:stop], part, out=out)
            np.matmul(value[head // share, column:stop].T, out, out=context)

    items = [(h, start) for h in range(work.heads) for start in range(0, work.queries, rows)]

    def run():
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(block, items))

    return run


def has_avx512():
    kernels = np.lib.introspect.opt_func_info("^exp2$", "^float32$").get("exp2", {})
    return any("X86_V4" in one["current"] or "AVX512" in one["current"] for one in kernels.values())


def seen_span(work, start, stop):
    """Return the keys that a block of queries needs."""
    if not work.causal:
        return 0, work.keys
    return 0 if work.window is None else max(0, start - work.window), min(work.keys, stop)


WAYS = {
    "ours": ours,
    "sdpa": sdpa,
    "torch formula": torch_formula,
    "numpy formula": numpy_formula,
    "products": products,
    "our gradients": our_gradients,
    "sdpa backward": sdpa_backward,
    "five products": five_products,
}
