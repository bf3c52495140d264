"""Wrappers of the functions that compute attention in PyTorch and Transformers.

A wrapper calls the original function, so that a model keeps its kernel, and then reports the call.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812

from attncli.capture.backward import Watched
from attncli.capture.calls import Call, mask_entries
from attncli.capture.modules import running

Report = Callable[[Call], None]
Say = Callable[[str], None]
Wanted = Callable[[], bool]


_NO_GRADIENTS = "gradients: run the model without torch.no_grad, and call backward in the block"


class _Outer(threading.local):
    """Whether a wrapped function runs in this thread, and what it passed to the kernel.

    A wrapped function may call another one: that is the same attention, which is reported once.
    """

    open = False
    causal = False
    mask: torch.Tensor | None = None


_OUTER = _Outer()


@contextmanager
def wrapped_doors(report: Report, say: Say, gradients: Wanted) -> Iterator[None]:
    """Wrap every function that computes attention while the block runs.

    Parameters
    ----------
    report : callable
        Takes each call.
    say : callable
        Takes a sentence that says what cannot be recorded.
    gradients : callable
        Returns whether gradients are recorded, too.
    """
    with ExitStack() as stack:
        stack.enter_context(_function(report, say, gradients))
        stack.enter_context(_multihead(report, say, gradients))
        stack.enter_context(_encoder_layer(say))
        stack.enter_context(_transformers(report, say, gradients))
        yield


@contextmanager
def _inside() -> Iterator[None]:
    _OUTER.open, _OUTER.causal, _OUTER.mask = True, False, None
    try:
        yield
    finally:
        _OUTER.open, _OUTER.mask = False, None


def _unseen(*tensors: torch.Tensor) -> str:
    """Return why a call cannot be recorded, or an empty string."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "a compiled graph: run the model without torch.compile or tracing"
    if any(t.device.type == "meta" or type(t).__name__ == "FakeTensor" for t in tensors):
        return "tensors without numbers (meta device): run the model on a real device"
    return ""


@contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = owner.__dict__[name]
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextmanager
def _function(report: Report, say: Say, gradients: Wanted) -> Iterator[None]:
    """Wrap `torch.nn.functional.scaled_dot_product_attention` under all names that hold it."""
    original = F.scaled_dot_product_attention

    @functools.wraps(original)
    def wrapper(*args: Any, **options: Any) -> Any:
        watched = None
        if gradients() and not _OUTER.open:
            named = [options.pop(name) for name in ("query", "key", "value") if name in options]
            watched = Watched(*args[:3], *named)
            args = (*watched.inputs, *args[3:])
        out = original(*args, **options)
        if watched is not None and not watched.follow(out, _four_axes):
            say(_NO_GRADIENTS)
        _of_function(report, say, watched, out, *args, **options)
        return out

    with ExitStack() as stack:
        for owner, name in [*_holders(original)]:
            stack.enter_context(_replaced(owner, name, wrapper))
        yield


def _holders(function: object) -> Iterator[tuple[Any, str]]:
    """Yield the modules, and the classes in them, that hold a function, each with its name."""
    for module in [*sys.modules.values()]:
        if not isinstance(module, ModuleType) or module.__name__.startswith("attncli."):
            continue
        for name, thing in [*vars(module).items()]:
            if thing is function:
                yield module, name
            elif issubclass(type(thing), type) and thing.__module__ == module.__name__:
                for inner, held in [*vars(thing).items()]:
                    if held is function:
                        yield thing, inner


def _of_function(
    report: Report,
    say: Say,
    watched: Watched | None,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - as the function has it
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> None:
    if _OUTER.open:
        _OUTER.causal, _OUTER.mask = bool(is_causal), attn_mask
        return
    if why := _unseen(query, key, value):
        say(why)
        return
    _say_dropout(say, dropout_p)
    options = _options(scale=scale, causal=is_causal)
    # The function takes any number of axes in front of (L, D); a problem has two at most.
    query, key, value, out = (_four_axes(t) for t in (query, key, value, out))
    masks = mask_entries(attn_mask)
    report(Call(query, key, value, out, masks, options, "sdpa", running(), watched))


def _four_axes(tensor: torch.Tensor) -> torch.Tensor:
    while tensor.dim() < 4:
        tensor = tensor[None]
    return tensor.flatten(0, -4)


def _options(*, scale: float | None = None, causal: bool = False, **others: Any) -> dict[str, Any]:
    """Return the options that were given, as types of JSON."""
    options: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    if causal:
        options["causal"] = True
    return options | {name: value for name, value in others.items() if value is not None}


def _say_dropout(say: Say, probability: float) -> None:
    if probability > 0:
        say(
            "dropout, which changes the output by chance: call model.eval() first, "
            "or check will find the dropped weights"
        )


@contextmanager
def _multihead(report: Report, say: Say, gradients: Wanted) -> Iterator[None]:
    """Wrap `torch.nn.MultiheadAttention`, with all of its kernels."""
    layer = torch.nn.MultiheadAttention
    original = layer.forward

    @functools.wraps(original)
    def wrapper(
        self: torch.nn.MultiheadAttention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002 - as the layer has it
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        rest = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if _OUTER.open:
            return original(self, query, key, value, *rest)
        with _inside():
            results = original(self, query, key, value, *rest)
        if why := _unseen(query, key, value):
            say(why)
        elif self.bias_k is not None:
            say("nn.MultiheadAttention with add_bias_kv: attncli has no such rule")
        else:
            _say_dropout(say, self.dropout if self.training else 0.0)
            if gradients():
                say("the gradients of nn.MultiheadAttention, which hands out no query and key")
            masks = _masks_of_layer(self, key_padding_mask, attn_mask)
            report(_call_of_layer(self, (query, key, value), results[0], masks))
        return results

    with _replaced(layer, "forward", wrapper):
        yield


def _call_of_layer(
    layer: torch.nn.MultiheadAttention,
    inputs: tuple[torch.Tensor, ...],
    out: torch.Tensor,
    masks: dict[str, torch.Tensor],
) -> Call:
    """Return the call of an `nn.MultiheadAttention`, with query, key and value projected anew."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    with torch.no_grad():
        made = [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
    arrays = [_batch_first(layer, array) for array in (*made, out)]
    tensors = {**masks, "wo": layer.out_proj.weight.T}
    if layer.out_proj.bias is not None:
        tensors["bo"] = layer.out_proj.bias
    if layer.add_zero_attn:
        tensors["sinks"] = torch.zeros(layer.num_heads)
    options = {"heads": layer.num_heads}
    query, key, value, out = arrays
    return Call(query, key, value, out, tensors, options, "nn.MultiheadAttention", layer)


def _batch_first(layer: torch.nn.MultiheadAttention, array: torch.Tensor) -> torch.Tensor:
    if array.dim() == 2:
        return array[None]
    return array if layer.batch_first else array.transpose(0, 1)


def _masks_of_layer(
    layer: torch.nn.MultiheadAttention,
    padding: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Return mask and bias. In the masks of this layer, true hides a key."""
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, layer.num_heads))
    if padding is not None:
        padding = padding.reshape(-1, 1, 1, padding.shape[-1])
    parts = [
        mask_entries(~part if part.dtype == torch.bool else part)
        for part in (mask, padding)
        if part is not None
    ]
    kept = [part["mask"] for part in parts if "mask" in part]
    biases = [part["bias"] for part in parts if "bias" in part]
    made = {"mask": functools.reduce(torch.logical_and, kept)} if kept else {}
    return made | ({"bias": functools.reduce(torch.add, biases)} if biases else {})


@contextmanager
def _encoder_layer(say: Say) -> Iterator[None]:
    """Report that the attention in the fused kernel of an encoder layer cannot be recorded."""
    original = cast("Any", torch)._transformer_encoder_layer_fwd  # noqa: SLF001

    def wrapper(*args: Any, **options: Any) -> Any:
        say(
            "nn.TransformerEncoderLayer in its fused kernel: call "
            "torch.backends.mha.set_fastpath_enabled(False) first"
        )
        return original(*args, **options)

    with _replaced(torch, "_transformer_encoder_layer_fwd", wrapper):
        yield


@contextmanager
def _transformers(report: Report, say: Say, gradients: Wanted) -> Iterator[None]:
    """Wrap the attention functions that models of Transformers get from `AttentionInterface`."""
    modeling = sys.modules.get("transformers.modeling_utils")
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is None:
        yield
        return
    original = interface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)
        return _recorded(function, name or "eager", report, say, gradients)

    with _replaced(interface, "get_interface", get_interface):
        yield


def _recorded(
    function: Callable[..., Any], name: str, report: Report, say: Say, gradients: Wanted
) -> Callable[..., Any]:
    """Return an attention function of Transformers that also reports its calls."""

    @functools.wraps(function)
    def wrapper(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        watched = Watched(query, key, value) if gradients() else None
        query, key, value = watched.inputs if watched else (query, key, value)
        with _inside():
            results = function(module, query, key, value, attention_mask, **options)
            causal, inner = _OUTER.causal, _OUTER.mask
        if why := _unseen(query, key, value):
            say(why)
            return results
        _say_dropout(say, options.get("dropout") or 0.0)
        if options.get("position_bias") is not None and inner is not None:
            # This mask holds the position bias and the causal rule.
            attention_mask, options["position_bias"] = inner, None
        tensors, rules = _rules(module, query, key, attention_mask, options)
        if "flash" in name:
            rules |= _flash_rules(module, query, key, options)
        rules |= {"causal": True} if causal else {}
        # Context comes back as (B, L, H, E).
        out = results[0].transpose(1, 2)
        if watched is not None and not watched.follow(results[0], lambda g: g.transpose(1, 2)):
            say(_NO_GRADIENTS)
        report(Call(query, key, value, out, tensors, rules, name, module, watched))
        return results

    return wrapper


def _rules(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: Any,
    options: dict[str, Any],
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the arrays and options of a call in Transformers."""
    if mask is not None and not isinstance(mask, torch.Tensor):
        mask = _dense(mask, query, key)
    if mask is not None and mask.dim() == 2:  # FlashAttention's mask tells which keys are real
        tensors = {"key_padding_mask": mask.bool()}
    else:
        # A static cache has a mask that is longer than the keys.
        tensors = mask_entries(None if mask is None else mask[..., : key.shape[2]])
    position_bias = options.get("position_bias")
    if position_bias is not None:
        tensors["bias"] = tensors.get("bias", 0) + position_bias
    sinks = options.get("s_aux", getattr(module, "sinks", None))
    if isinstance(sinks, torch.Tensor):
        tensors["sinks"] = sinks.flatten()
    return tensors, _options(scale=options.get("scaling"), softcap=options.get("softcap"))


def _dense(mask: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a `BlockMask` of flex attention as booleans."""
    from torch.nn.attention.flex_attention import create_mask  # noqa: PLC0415

    batch, heads = mask.shape[:2]
    return create_mask(
        mask.mask_mod, batch, heads, query.shape[2], key.shape[2], device=str(query.device)
    )


def _flash_rules(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]
) -> dict[str, Any]:
    """Return causal rule and window, which FlashAttention takes instead of a mask."""
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    window = options.get("sliding_window")
    if not causal:
        return {}
    return _options(
        causal=True,
        causal_align="bottom-right" if query.shape[2] != key.shape[2] else None,
        window=None if window is None else [int(window) - 1, 0],
    )
