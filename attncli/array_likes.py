"""Anything array-like to an ndarray: lists, arrays of other libraries, tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import as_bfloat16
from attncli.errors import DataError

__all__ = ["as_ndarray"]

# What they call their module, in which the dtype is.
_WITH_BFLOAT16 = {"torch", "mlx.core"}


def as_ndarray(name: str, value: object) -> npt.NDArray[Any]:
    """Return an ndarray; bfloat16 of PyTorch and MLX as `attncli.dtypes.BFLOAT16`.

    Parameters
    ----------
    name : str
        How errors name the argument.
    value : array_like

    Raises
    ------
    DataError
        NumPy cannot make an array of it.
    """
    if _is_masked(value):
        raise DataError(
            f"{name}: expected an array of numbers; found a masked array",
            hint="give its data, and say which keys are hidden with mask or key_padding_mask",
        )
    try:
        bits = _bfloat16_bits(value)
        return np.asarray(value) if bits is None else as_bfloat16(np.asarray(bits))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise _refusal(name, value, str(error)) from error


def _is_masked(value: object) -> bool:
    """Whether something in an array, or in a list of arrays, is masked."""
    masked = sys.modules.get("numpy.ma")
    if masked is None:  # who has such an array has imported it
        return False
    arrays = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(a, masked.MaskedArray) and masked.is_masked(a) for a in arrays)


def _bfloat16_bits(value: object) -> Any:
    """Return a bfloat16 tensor as one of int16, and None for anything else."""
    library, _, dtype = str(getattr(value, "dtype", "")).rpartition(".")
    if dtype != "bfloat16" or library not in _WITH_BFLOAT16:
        return None
    # Who has a tensor has imported its library: attncli itself does without.
    tensor: Any = value
    # One that requires a gradient is refused as others are.
    unreadable = getattr(tensor, "requires_grad", False)
    return tensor if unreadable else tensor.view(sys.modules[library].int16)


def _refusal(name: str, value: object, reason: str) -> DataError:
    if getattr(value, "requires_grad", False):
        return DataError(
            f"{name}: expected an array of numbers; found a tensor that requires a gradient",
            hint="give it without: tensor.detach()",
        )
    if hasattr(value, "layout") and hasattr(value, "device"):
        return DataError(
            f"{name}: expected an array of numbers; found a tensor that NumPy does not read: "
            f"{reason}",
            hint="move it to the host: tensor.cpu()" if str(value.device) != "cpu" else None,
        )
    if isinstance(value, (list, tuple)) and any(_bfloat16_bits(each) is not None for each in value):
        return DataError(
            f"{name}: expected an array of numbers; found a list of bfloat16 tensors",
            hint="make one tensor of them: torch.stack(tensors)",
        )
    return DataError(
        f"{name}: expected an array of numbers; found rows of unequal length "
        "or things that are no numbers"
    )
