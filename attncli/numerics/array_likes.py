"""Anything array-like to an ndarray: lists, arrays of other libraries, tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError
from attncli.numerics.dtypes import as_bfloat16

# Modules of libraries whose tensors may be bfloat16; each holds the dtype.
_WITH_BFLOAT16 = {"torch", "mlx.core"}
_NO_ARRAY = "rows of unequal length, or things that are not numbers"


def as_ndarray(name: str, value: object) -> npt.NDArray[Any]:
    """Return an ndarray; bfloat16 of PyTorch and MLX as `attncli.numerics.dtypes.BFLOAT16`.

    Parameters
    ----------
    name : str
        How errors name the argument.
    value : array_like

    Raises
    ------
    DataError
        NumPy cannot make an array of it, or would lose its mask.
    """
    if _is_masked(value):
        raise DataError(
            f"{name}: expected an array of numbers; found a masked array",
            hint="give its data, and say which keys are hidden with mask or key_padding_mask",
        )
    try:
        value = _on_cpu(value)
        bits = _bfloat16_bits(value)
        return np.asarray(value) if bits is None else as_bfloat16(np.asarray(bits))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        if isinstance(value, (list, tuple)) and any(_bfloat16_bits(v) is not None for v in value):
            return np.stack([as_ndarray(name, each) for each in value])
        is_tensor = hasattr(value, "device")
        found = f"a tensor that NumPy does not read: {error}" if is_tensor else _NO_ARRAY
        raise DataError(f"{name}: expected an array of numbers; found {found}") from error


def _on_cpu(value: object) -> Any:
    """Return a PyTorch tensor without its gradient and on the CPU; anything else as it is."""
    if "torch" not in sys.modules or not isinstance(value, sys.modules["torch"].Tensor):
        return value
    tensor: Any = value
    return tensor.detach().cpu()


def _is_masked(value: object) -> bool:
    """Whether something in an array, or in a list of arrays, is masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None:  # who has such an array has imported it
        return False
    arrays = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(a, masked.MaskedArray) and masked.is_masked(a) for a in arrays)


def _bfloat16_bits(value: object) -> Any:
    """Return the bits of a bfloat16 tensor as int16; None for anything else."""
    library, _, dtype = str(getattr(value, "dtype", "")).rpartition(".")
    if dtype != "bfloat16" or library not in _WITH_BFLOAT16:
        return None
    # The library of a tensor is imported already; attncli itself imports none.
    tensor: Any = value
    return tensor.view(sys.modules[library].int16)
