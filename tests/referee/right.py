"""Right outputs by others: the referee may call none of them wrong.

    python tests/referee/right.py 3000 [--seed 0] [--only torch]

Problems are random; implementations are a NumPy model whose every step is stored in some format,
an online softmax in blocks, PyTorch's kernels on the CPU, JAX and ONNX's reference, where they are
installed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from referee.case import posed, stored
from referee.plain import FORMATS, draw, log_sum, rotate, softmax

import attncli

__all__ = ["MAKERS", "Random", "alarm", "first", "kernel_rules", "main", "right"]

Array = np.ndarray


class Random:
    """A random problem: sizes, rules, and inputs of some format."""

    def __init__(self, seed: int) -> None:
        r = self.random = np.random.default_rng(seed)
        self.dtype = str(r.choice(["float64", "float32", "float32", "float16", "bfloat16"]))
        groups, each = int(r.choice([1, 2, 3])), int(r.choice([1, 1, 2, 4]))
        batch, heads = int(r.choice([1, 1, 2, 3])), groups * each
        keys = int(r.choice([1, 5, 16, 33, 64, 130]))
        rows = int(r.choice([1, keys, keys, max(1, keys // 2)]))
        width = int(r.choice([8, 16, 32, 64]))
        shapes = (batch, heads, rows, width), *[(batch, groups, keys, width)] * 2
        size = float(r.choice([0.3, 1, 1, 2, 5]))
        q, k, v = draw(seed, *shapes, dtype="float64")
        self.inputs = [FORMATS[self.dtype](array) for array in (size * q, k, v)]
        self.shape = batch, heads, rows, keys
        self.options = self._rules(r)

    def _rules(self, r: Any) -> dict[str, Any]:
        batch, heads, rows, keys = self.shape
        told: dict[str, Any] = {}
        if r.random() < 0.5:
            told["causal"] = True
            told["causal_align"] = str(r.choice(["top-left", "bottom-right"]))
        if r.random() < 0.2:
            told["window"] = (int(r.integers(0, keys)), int(r.integers(0, keys)))
            told.setdefault("causal_align", "top-left")
        if r.random() < 0.2:
            told["mask"] = (r.random((batch, 1, rows, keys)) < 0.7) | (np.arange(keys) == 0)
        if r.random() < 0.2:
            told["key_padding_mask"] = np.arange(keys) < r.integers(1, keys + 1, (batch, 1))
        if r.random() < 0.2:
            bias = r.normal(size=(heads, rows, keys))
            told["bias"] = FORMATS[self.dtype](bias)
        if r.random() < 0.15:
            told["alibi_slopes"] = 2.0 ** -np.arange(1, heads + 1)
        if r.random() < 0.15:
            told["softcap"] = float(r.choice([2.0, 15.0]))
        if r.random() < 0.15:
            told["sinks"] = FORMATS[self.dtype](r.normal(size=heads))
        if r.random() < 0.2:
            told["rope"] = str(r.choice(["half", "interleaved"]))
        if r.random() < 0.2:
            told["scale"] = float(r.choice([0.1, 0.5, 1.0]))
        return told

    @property
    def offset(self) -> int:
        bottom = self.options.get("causal_align") == "bottom-right"
        return self.shape[3] - self.shape[2] if bottom else 0

    @property
    def scale(self) -> float:
        return self.options.get("scale", self.inputs[0].shape[-1] ** -0.5)

    @property
    def keep(self) -> Array:
        _, _, rows, keys = self.shape
        i, j = np.arange(rows)[:, None] + self.offset, np.arange(keys)
        seen = np.ones((1, 1, rows, keys), bool)
        if "causal" in self.options:
            seen = seen & (j <= i)
        if "window" in self.options:
            left, right = self.options["window"]
            seen = seen & (j >= i - left) & (j <= i + right)
        if "mask" in self.options:
            seen = seen & self.options["mask"]
        if "key_padding_mask" in self.options:
            seen = seen & self.options["key_padding_mask"][:, None, None]
        return seen

    def only(self, *names: str) -> bool:
        """Return whether no other rule is given."""
        return set(self.options) <= {*names, "causal_align"}

    def wide(self) -> list[Array]:
        q, k, v = self.inputs
        times = q.shape[1] // k.shape[1]
        return [q, np.repeat(k, times, 1), np.repeat(v, times, 1)]


def scores_of(p: Random, short: Any) -> Array:
    """Return the scores, each step stored."""
    q, k, _ = p.wide()
    if "rope" in p.options:
        q = short(rotate(q, np.arange(p.shape[2]) + p.offset, p.options["rope"]))
        k = short(rotate(k, np.arange(p.shape[3]), p.options["rope"]))
    scores = short(short(q @ k.swapaxes(-1, -2)) * p.scale)
    if "softcap" in p.options:
        scores = short(short(np.tanh(short(scores / p.options["softcap"]))) * p.options["softcap"])
    if "bias" in p.options:
        scores = short(scores + p.options["bias"])
    if "alibi_slopes" in p.options:
        far = np.abs(np.arange(p.shape[2])[:, None] + p.offset - np.arange(p.shape[3]))
        scores = short(scores - short(p.options["alibi_slopes"][:, None, None] * far))
    return np.where(p.keep, scores, -np.inf)


def with_sinks(p: Random, scores: Array) -> Array:
    if "sinks" not in p.options:
        return scores
    column = np.broadcast_to(p.options["sinks"][:, None, None], (*scores.shape[:3], 1))
    return np.concatenate([scores, column], -1)


def textbook(p: Random) -> dict[str, Array]:
    """Float64 throughout."""
    scores = scores_of(p, FORMATS["float64"])
    return _outputs(p, scores, FORMATS["float64"])


def stepwise(p: Random) -> dict[str, Array]:
    """Each step is stored in the format of the inputs, as eager code does."""
    short = FORMATS[p.dtype]
    return _outputs(p, scores_of(p, short), short)


def in_float32(p: Random) -> dict[str, Array]:
    """Scores and softmax in float32, as eager code does that upcasts; weights are cast back."""
    short = FORMATS["float64" if p.dtype == "float64" else "float32"]
    return _outputs(p, scores_of(p, short), short)


def _outputs(p: Random, scores: Array, short: Any) -> dict[str, Array]:
    whole = with_sinks(p, scores)
    weights = short(np.nan_to_num(softmax(whole)))[..., : p.shape[3]]
    made = {"weights": weights, "context": short(weights @ p.wide()[2])}
    return made | {"lse": short(np.nan_to_num(log_sum(whole), nan=-np.inf, neginf=-np.inf))}


def online(p: Random) -> dict[str, Array] | None:
    """FlashAttention's loop over blocks of keys in float32, its factors in the inputs' format."""
    if not p.keep.any(-1).all():
        return None
    short, wide = FORMATS[p.dtype], FORMATS["float64" if p.dtype == "float64" else "float32"]
    scores, v = scores_of(p, wide), p.wide()[2]
    top, total, held = np.full((*scores.shape[:3], 1), -np.inf), 0.0, 0.0
    if "sinks" in p.options:
        top = np.broadcast_to(p.options["sinks"][:, None, None], top.shape)
        total = 1.0
    for start in range(0, p.shape[3], 16):
        part = scores[..., start : start + 16]
        higher = np.maximum(top, part.max(-1, keepdims=True))
        shift = np.where(np.isneginf(higher), 0, higher)
        powers, factor = wide(np.exp(part - shift)), np.exp(top - shift)
        total = wide(total * factor + powers.sum(-1, keepdims=True))
        held = wide(held * factor + short(powers) @ v[:, :, start : start + 16])
        top = higher
    return {"context": held / total, "lse": (top + np.log(total))[..., 0]}


def _tensors(p: Random) -> Any:
    import torch

    dtype = getattr(torch, p.dtype)
    return torch, [torch.tensor(array).to(dtype) for array in p.wide()]


def kernel_rules(torch: Any, p: Random, bias: Any) -> dict[str, Any]:
    """Return what PyTorch's function is told: our mask, or `is_causal`."""
    told: dict[str, Any] = {"scale": p.scale}
    if p.only("causal", "scale") and (p.offset == 0 or "causal" not in p.options):
        return told | {"is_causal": "causal" in p.options}
    mask = torch.tensor(np.broadcast_to(p.keep, p.shape).copy())
    if bias is not None:
        mask = bias.expand(p.shape).masked_fill(~mask, -torch.inf)
    return told | {"attn_mask": mask}


def torch_sdpa(p: Random, kernel: str) -> dict[str, Array] | None:
    """PyTorch's scaled_dot_product_attention by one kernel; its mask is ours or `is_causal`."""
    torch, (q, k, v) = _tensors(p)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not p.only("causal", "mask", "window", "key_padding_mask", "scale", "bias"):
        return None
    if not p.keep.any(-1).all():
        return None
    bias = torch.tensor(p.options["bias"]).to(q.dtype) if "bias" in p.options else None
    told = kernel_rules(torch, p, bias)
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, **told)
    return {"context": made.double().numpy()}


def torch_flash(p: Random) -> dict[str, Array] | None:
    """The CPU flash kernel itself, which returns the log-sum-exp, too."""
    torch, (q, k, v) = _tensors(p)
    if not p.only("causal", "scale") or p.offset:
        return None
    made, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, "causal" in p.options, scale=p.scale
    )
    return {"context": made.double().numpy(), "lse as float32": lse.float().numpy()}


def jax_attention(p: Random) -> dict[str, Array] | None:
    """JAX's dot_product_attention, (B, L, H, D)."""
    if not p.only("causal", "scale", "mask", "bias", "key_padding_mask") or p.dtype == "float64":
        return None
    if not p.keep.any(-1).all():
        return None
    import jax.numpy as jnp
    from jax.nn import dot_product_attention

    q, k, v = (jnp.asarray(array.swapaxes(1, 2), dtype=p.dtype) for array in p.inputs)
    mask = jnp.asarray(np.broadcast_to(p.keep, p.shape))
    bias = jnp.asarray(p.options["bias"], dtype=p.dtype)[None] if "bias" in p.options else None
    made = dot_product_attention(q, k, v, bias=bias, mask=mask, scale=p.scale)
    return {"context": np.asarray(made.astype("float32"), "f8").swapaxes(1, 2)}


def onnx_attention(p: Random) -> dict[str, Array] | None:
    """ONNX's reference of Attention (opset 23)."""
    if p.dtype not in ("float32", "float16") or not p.only("causal", "scale", "softcap", "mask"):
        return None
    if p.offset or not p.keep.any(-1).all():
        return None
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    kind = TensorProto.FLOAT if p.dtype == "float32" else TensorProto.FLOAT16
    told = {"is_causal": int("causal" in p.options), "scale": p.scale}
    if "softcap" in p.options:
        told["softcap"] = p.options["softcap"]
    names = ["q", "k", "v", *(["m"] if "mask" in p.options else [])]
    node = helper.make_node("Attention", names, ["o"], **told)
    types = [kind, kind, kind, TensorProto.BOOL]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=False)],
        [helper.make_tensor_value_info("o", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    given = {n: a.astype(p.dtype) for n, a in zip("qkv", p.inputs, strict=True)}
    given |= {"m": p.options["mask"]} if "mask" in p.options else {}
    return {"context": np.asarray(ReferenceEvaluator(model).run(None, given)[0], "f8")}


MAKERS: dict[str, Any] = {
    "textbook": textbook,
    "stepwise": stepwise,
    "in float32": in_float32,
    "online": online,
}
if find_spec("torch"):
    MAKERS |= {
        "torch math": lambda p: torch_sdpa(p, "MATH"),
        "torch flash": lambda p: torch_sdpa(p, "FLASH_ATTENTION"),
        "torch flash with lse": torch_flash,
    }
if find_spec("jax"):
    MAKERS["jax"] = jax_attention
if find_spec("onnx"):
    MAKERS["onnx"] = onnx_attention


def first(makers: list[Any], seed: int, make: Any) -> Any:
    """Return the first problem from a seed on that a maker can do, the maker, and what it made."""
    maker = makers[seed % len(makers)]
    for attempt in range(1000):
        problem = Random(seed + 100_000 * attempt)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                made = make(maker, problem)
        except RuntimeError as error:  # a kernel that does not take these arguments
            if "kernel" not in str(error) and "upport" not in str(error):
                raise
            made = None
        if made is not None:
            return problem, maker, made
    raise ValueError(f"no problem for {maker}")


def right(seed: int, only: str = "") -> tuple[Random, str, dict[str, Array]]:
    """Return the first problem from a seed on that its implementation can do, and its outputs."""
    names = [name for name in MAKERS if only in name]
    found: tuple[Random, str, dict[str, Array]] = first(names, seed, lambda n, p: MAKERS[n](p))
    return found


def alarm(seed: int, only: str = "", **options: Any) -> tuple[str, str]:
    """Return who made it, and what the referee says against it; nothing where it passes."""
    problem, name, made = right(seed, only)
    inputs = [stored(array, problem.dtype) for array in problem.inputs]
    posing = posed(inputs, problem.options)
    told = []
    for words, array in made.items():
        output, _, dtype = words.partition(" as ")
        file = {output: stored(array, dtype or problem.dtype)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = attncli.check(file, posing, diagnose=False, **options)
        if not report.passed:
            verdict = report.verdicts[0]
            rules = ", ".join(problem.options)
            told.append(f"{output} {problem.dtype} {problem.shape} ({rules}): {verdict.largest}")
    return name, "; ".join(told)


def main(words: str, alarm: Any) -> int:
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("count", type=int, nargs="?", default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    started, runs, alarms = time.perf_counter(), Counter(), Counter()
    for seed in range(options.seed, options.seed + options.count):
        name, told = alarm(seed, options.only)
        runs[name] += 1
        if told:
            alarms[name] += 1
            print(f"ALARM {seed} {name}: {told}", flush=True)
    for name in runs:
        print(f"{name:36}{runs[name]:6} right, {alarms[name]:4} called wrong")
    print(f"{time.perf_counter() - started:.1f} s")
    return bool(alarms)


if __name__ == "__main__":
    raise SystemExit(main(__doc__.splitlines()[0], alarm))
