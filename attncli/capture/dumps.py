"""Writing a call as a safetensors file whose metadata holds its options."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import torch

from attncli.save.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping

# The key of the metadata under which a dump holds JSON: options, layer, call, module, tokens.
_METADATA = "attncli"
# The format's names of the dtypes, from its documentation.
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense copy of a tensor in the memory of the CPU."""
    tensor = tensor.detach().to("cpu", copy=True)
    if tensor.dtype not in _DTYPES:  # float8 and the like
        tensor = tensor.to(torch.float32)
    return tensor.contiguous()


def size_of(entries: Mapping[str, torch.Tensor]) -> int:
    """Return how many bytes the arrays take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in entries.values())


def write(path: str, entries: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Write a dump, whole or not at all.

    Parameters
    ----------
    path : str
    entries : mapping of str to Tensor
        On the CPU, contiguous.
    facts : mapping of str to object
        Kept as JSON in the metadata.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", _METADATA: json.dumps(facts, ensure_ascii=False)}
    }
    start = 0
    for name, tensor in entries.items():
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in entries.values():
            stream.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
