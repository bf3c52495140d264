"""The gradients of a recorded call, which hooks get in the backward pass of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_NAMES = ("query", "key", "value")


class Watched:
    """The inputs of one call, and their gradients.

    Other calls may use the same tensors. So this call gets views of them: the gradient of a view
    comes from this call alone.

    Parameters
    ----------
    *inputs : Tensor
        Query, key and value.
    """

    def __init__(self, *inputs: torch.Tensor) -> None:
        self.inputs = [each.view_as(each) if each.requires_grad else each for each in inputs]
        self._found: dict[str, torch.Tensor] = {}
        self._waiting: set[str] = set()
        self._ready: list[Callable[[dict[str, torch.Tensor]], None]] = []

    def follow(self, out: torch.Tensor, turned: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        """Set hooks for the gradients, and return whether there will be any.

        Parameters
        ----------
        out : Tensor
            The output of the call.
        turned : callable
            Returns the gradient of the output in the axes of the dump.
        """
        if not out.requires_grad:
            return False
        self._watch("dcontext", out, turned)
        for name, tensor in zip(_NAMES, self.inputs, strict=True):
            if tensor.requires_grad:
                self._watch(f"d{name}", tensor, lambda grad: grad)
        return True

    def then(self, ready: Callable[[dict[str, torch.Tensor]], None]) -> None:
        """Call a function with all gradients when the backward pass has computed the last one."""
        self._ready.append(ready)

    def _watch(
        self, name: str, tensor: torch.Tensor, turned: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        def come(grad: torch.Tensor) -> None:
            self._found[name] = turned(grad.detach())
            if self._waiting == self._found.keys():
                for ready in self._ready:
                    ready(dict(self._found))

        self._waiting.add(name)
        tensor.register_hook(come)
