"""One attention call, and its entries in a problem file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.capture.backward import Watched


@dataclass(eq=False)
class Call:
    """The inputs of one attention call, its output, and the rules that the kernel applied.

    Attributes
    ----------
    query, key, value : Tensor (B, H, L, D), (B, G, S, D), (B, G, S, E)
        Or packed, (B, L, H·D), with the options ``heads`` and ``kv_heads``.
    out : Tensor (B, H, L, E)
        Or packed.
    tensors : mapping of str to Tensor
        Further entries of the problem: ``mask``, ``bias``, ``sinks``, ``wo``, ``bo``.
    options : mapping of str to object
        Options of the problem under their Python names.
    kernel : str
        The name of the kernel: ``sdpa``, ``eager``, ``flex_attention``, ….
    module : torch.nn.Module or None
        The innermost module that made the call.
    watched : Watched or None
        The inputs with hooks for the gradients; None if gradients are not recorded.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = "sdpa"
    module: torch.nn.Module | None = None
    watched: Watched | None = None

    def entries(self) -> dict[str, torch.Tensor]:
        """Return all arrays of the dump by name."""
        found = {"query": self.query, "key": self.key, "value": self.value, "out": self.out}
        return {**found, **self.tensors}


def mask_entries(mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Turn an attention mask into the entries ``mask`` and ``bias``.

    A number hides a key if it is −inf or below half of the dtype's lowest number: it goes into
    ``mask``. All other numbers that are not 0 go into ``bias``. If finite numbers hide all keys of
    a row, they go into ``bias``, because the kernel then gives each of these keys a weight.

    Parameters
    ----------
    mask : Tensor of bool (true = may attend) or of floating point, or None

    Returns
    -------
    dict of str to Tensor
    """
    if mask is None:
        return {}
    if mask.dtype == torch.bool:
        return {"mask": mask}
    mask = mask.detach()
    lowest = torch.finfo(mask.dtype).min
    hidden = mask <= lowest / 2
    finite_rows = (hidden & torch.isfinite(mask)).all(dim=-1, keepdim=True)
    hidden = hidden & ~finite_rows
    bias = mask.masked_fill(hidden, 0.0)
    entries = {"mask": ~hidden} if bool(hidden.any()) else {}
    if bool(bias.any()):
        entries["bias"] = bias
    return entries
