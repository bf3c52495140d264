"""Right gradients by others: the referee may call none of them wrong.

    python tests/referee/right_gradients.py 1000 [--seed 0] [--only torch]

The problems are those of `right.py`. Autograd goes through PyTorch's kernels on the CPU, through
the formula in PyTorch with every rule, and through JAX; and ours is one of them.
"""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from referee.case import posed, stored
from referee.right import Random, first, kernel_rules, main

import attncli

__all__ = ["MAKERS", "alarm", "right"]

INPUTS = ("query", "key", "value")


def upstream(p: Random) -> Any:
    """Return the gradient of the context, in the format of the inputs."""
    made = p.random.normal(size=(*p.shape[:3], p.inputs[2].shape[3]))
    return np.asarray(stored(made, p.dtype)) if p.dtype != "bfloat16" else stored(made, p.dtype)


def ours(p: Random, grad: Any) -> dict[str, Any]:
    inputs = [stored(array, p.dtype) for array in p.inputs]
    outputs = [f"d{name}" for name in (*INPUTS, *[n for n in ("bias", "sinks") if n in p.options])]
    options = {name: rule for name, rule in p.options.items() if name != "causal_align"}
    told = {"query_offset": p.offset} if "causal_align" in p.options else {}
    made = attncli.gradients(*inputs, grad, outputs=outputs, **options, **told)
    return {name: getattr(made, name[1:]) for name in outputs}


def _leaves(p: Random) -> Any:
    import torch

    dtype = getattr(torch, p.dtype)
    named = dict(zip(INPUTS, p.inputs, strict=True))
    named |= {name: p.options[name] for name in ("bias", "sinks") if name in p.options}
    leaves = {
        name: torch.tensor(np.asarray(array, "f8")).to(dtype).requires_grad_()
        for name, array in named.items()
    }
    share = p.shape[1] // p.inputs[1].shape[1]
    wide = [leaves[name].repeat_interleave(share, 1) for name in INPUTS[1:]]
    return torch, leaves, (leaves["query"], *wide)


def _backward(torch: Any, leaves: Any, made: Any, grad: Any) -> dict[str, Any]:
    plain = torch.tensor(attncli_float(grad)).to(made.dtype)
    made.backward(plain)
    return {f"d{name}": leaf.grad.double().numpy() for name, leaf in leaves.items()}


def attncli_float(array: Any) -> Any:
    from attncli.numerics.dtypes import widen

    return widen(np.asarray(array), np.float64)


def torch_kernel(p: Random, grad: Any, kernel: str) -> dict[str, Any] | None:
    """PyTorch's function by one kernel; its mask is ours, or `is_causal`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not p.only("causal", "mask", "window", "key_padding_mask", "scale", "bias"):
        return None
    if not p.keep.any(-1).all():
        return None
    torch, leaves, (q, k, v) = _leaves(p)
    told = kernel_rules(torch, p, leaves.get("bias"))
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, **told)
        return _backward(torch, leaves, made, grad)


def torch_formula(p: Random, grad: Any, *, upcast: bool) -> dict[str, Any] | None:
    """Autograd through the formula, operation by operation, with every rule but rope."""
    if "rope" in p.options or not p.keep.any(-1).all():
        return None
    torch, leaves, (q, k, v) = _leaves(p)
    scores = (q @ k.transpose(-1, -2)) * p.scale
    if upcast:
        scores = scores.to(torch.float64 if p.dtype == "float64" else torch.float32)
    if "softcap" in p.options:
        scores = torch.tanh(scores / p.options["softcap"]) * p.options["softcap"]
    if "bias" in leaves:
        scores = scores + leaves["bias"]
    if "alibi_slopes" in p.options:
        far = np.abs(np.arange(p.shape[2])[:, None] + p.offset - np.arange(p.shape[3]))
        bias = np.asarray(p.options["alibi_slopes"])[:, None, None] * far
        scores = scores - torch.tensor(bias).to(scores.dtype)
    hidden = ~torch.tensor(np.broadcast_to(p.keep, p.shape).copy())
    scores = scores.masked_fill(hidden, -torch.inf)
    if "sinks" in leaves:
        sink = leaves["sinks"][:, None, None].expand(*p.shape[:3], 1).to(scores.dtype)
        scores = torch.cat([scores, sink], -1)
    weights = torch.softmax(scores, -1).to(q.dtype)[..., : p.shape[3]]
    return _backward(torch, leaves, weights @ v, grad)


def jax_attention(p: Random, grad: Any) -> dict[str, Any] | None:
    """JAX's dot_product_attention, (B, L, H, D)."""
    if not p.only("causal", "scale", "mask", "key_padding_mask") or p.dtype == "float64":
        return None
    if not p.keep.any(-1).all():
        return None
    import jax
    import jax.numpy as jnp

    q, k, v = (jnp.asarray(array.swapaxes(1, 2), dtype=p.dtype) for array in p.inputs)
    mask = jnp.asarray(np.broadcast_to(p.keep, p.shape))

    def made(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=p.scale)

    plain = jnp.asarray(attncli_float(grad).swapaxes(1, 2), dtype=p.dtype)
    found = jax.vjp(made, q, k, v)[1](plain)
    return {
        f"d{name}": np.asarray(array.astype("float32"), "f8").swapaxes(1, 2)
        for name, array in zip(INPUTS, found, strict=True)
    }


MAKERS: dict[str, Any] = {"ours": ours}
if find_spec("torch"):
    MAKERS |= {
        "torch math": lambda p, grad: torch_kernel(p, grad, "MATH"),
        "torch flash": lambda p, grad: torch_kernel(p, grad, "FLASH_ATTENTION"),
        "torch formula": lambda p, grad: torch_formula(p, grad, upcast=False),
        "torch formula, softmax in float32": lambda p, grad: torch_formula(p, grad, upcast=True),
    }
if find_spec("jax"):
    MAKERS["jax"] = jax_attention


def right(seed: int, only: str = "") -> tuple[Random, str, Any, dict[str, Any]]:
    """Return the first problem from a seed on that its maker can do, and its gradients."""
    # JAX compiles each problem anew, which takes seconds.
    quick = [name for name in MAKERS if name != "jax"]
    names = [name for name in (*quick, *MAKERS, *quick, *quick) if only in name]

    def make(name: str, p: Random) -> Any:
        grad = upstream(p)
        made = MAKERS[name](p, grad)
        return None if made is None else (grad, made)

    problem, name, (grad, made) = first(names, seed, make)
    return problem, name, grad, made


def alarm(seed: int, only: str = "", **options: Any) -> tuple[str, str]:
    """Return who made them, and what the referee says against them; nothing where they pass."""
    problem, name, grad, made = right(seed, only)
    inputs = [stored(array, problem.dtype) for array in problem.inputs]
    posing = posed(inputs, problem.options)
    files = {n: stored(attncli_float(array), problem.dtype) for n, array in made.items()}
    finite = {n for n, array in files.items() if np.isfinite(attncli_float(array)).all()}
    files = {n: array for n, array in files.items() if n in finite}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = attncli.check(files, posing, dcontext=grad, diagnose=False, **options)
    rules = ", ".join(problem.options)
    told = [
        f"{one.name} {problem.dtype} {problem.shape} ({rules}): {one.largest} rms {one.rms:.3g} "
        f"of {one.tolerance}"
        for one in report.verdicts
        if not one.passed
    ]
    return name, "; ".join(told)


if __name__ == "__main__":
    raise SystemExit(main(__doc__.splitlines()[0], alarm))
