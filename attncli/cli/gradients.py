"""``--grad``: the gradients that a backward pass begins with, for `compute` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.declaring import SHOWN, by_name, option
from attncli.cli.options import QuestionOptions
from attncli.errors import UsageError
from attncli.errors.names import GRADIENTS, UPSTREAM

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import numpy.typing as npt

    from attncli.cli.question import Asked

__all__ = ["GradientOptions", "gradients", "upstream_of"]

# Stands for the gradient of the sum of all numbers of the context.
_ONES = "ones"


class GradientOptions(QuestionOptions):
    """The gradients that a backward pass begins with."""

    grad: list[str] | None = option(
        SHOWN,
        "[NAME=]FILE",
        "The gradient of the context, from which dquery, dkey, dvalue, dbias and dsinks follow; "
        "ones is that of the context's sum. dlse=FILE is that of the lse. Default: dcontext and "
        "dlse of the problem file. Repeatable.",
    )

    @property
    def upstream(self) -> dict[str, str]:
        """The file of each gradient, or the word ``ones``."""
        return by_name("--grad", self.grad, UPSTREAM, "dcontext")

    @property
    def grad_files(self) -> list[str]:
        """The files that are given."""
        return [file for file in self.upstream.values() if file != _ONES]


def upstream_of(options: GradientOptions, asked: Asked) -> dict[str, npt.NDArray[Any]]:
    """Return dcontext, and dlse where it is given, from ``--grad`` or the problem file."""
    import numpy as np

    from attncli.loading import LoadedArray, read_array

    if asked.whole is not asked.problem:
        raise UsageError("gradients are of the whole problem: leave out --batch and --head")
    files, shapes = options.upstream, asked.problem.output_shapes
    found: dict[str, npt.NDArray[Any]] = {}
    for name, of in UPSTREAM.items():
        held: object = None
        if files.get(name) == _ONES:
            found[name] = np.ones(shapes[of])
        elif name in files:
            held = read_array(files[name], dtype=options.dtype, header=options.header, entry=name)
        elif name in asked.found.upstream:
            held = asked.found.upstream[name]()
        if isinstance(held, LoadedArray):
            found[name] = _in_shape(held, shapes[of])
    if "dcontext" not in found:
        raise UsageError(
            "a gradient follows from that of the context, which is not given",
            hint="--grad do.npy, or --grad ones for that of out.sum(), or dcontext in the problem "
            "file",
        )
    return found


def _in_shape(array: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the numbers of a file; a table has no room for axes of length 1."""
    values: npt.NDArray[Any] = array.values
    alike = [n for n in values.shape if n > 1] == [n for n in shape if n > 1]
    return values.reshape(shape) if array.is_table and alike else values


def gradients(
    names: Iterable[str], options: GradientOptions, asked: Asked
) -> dict[str, npt.NDArray[Any]]:
    """Compute the gradients among the outputs that are asked for."""
    wanted = [name for name in names if name in GRADIENTS]
    if not wanted:
        options.refuse(
            "grad",
            "has nothing to act on: no gradient is asked for",
            hint=f"--show or --save {', '.join(GRADIENTS)}",
        )
        return {}
    from attncli.engine.gradients import gradients_of

    given = upstream_of(options, asked)
    made = gradients_of(asked.problem, **given, outputs=wanted, threads=options.threads)
    if "dbias" in made:
        shape = getattr(asked.found.arguments["bias"], "shape", ())
        made["dbias"] = made["dbias"].reshape(shape)
    return made
