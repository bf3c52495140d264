"""``--grad``: the gradients that a backward pass begins with, for `compute` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.errors.names import GRADIENTS, UPSTREAM, gradient_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import numpy.typing as npt

    from attncli.cli.options import GradientOptions, ProblemOptions
    from attncli.cli.question import Asked

__all__ = ["computed", "grad_files", "upstream_of"]

# Stands for the gradient of the sum of all numbers of the context.
_ONES = "ones"


def grad_files(options: GradientOptions) -> list[str]:
    """Return the files that ``--grad`` names."""
    return [file for file in _named(options).values() if file != _ONES]


def _named(options: GradientOptions) -> dict[str, str]:
    """Return the file of each gradient, or the word ``ones``."""
    files: dict[str, str] = {}
    for word in options.grad or []:
        name, separator, file = word.partition("=")
        full = gradient_name(name) if separator else "dcontext"
        if separator and full not in UPSTREAM:
            if name.isidentifier():
                raise UsageError(
                    f"--grad {word}: expected FILE, dcontext=FILE or dlse=FILE; found {name!r}"
                )
            full, file = "dcontext", word
        if full in files:
            raise UsageError(f"--grad gives {full} twice: {files[str(full)]} and {file}")
        files[str(full)] = file if separator else word
    return files


def upstream_of(
    options: GradientOptions, asked: Asked, problem: ProblemOptions
) -> dict[str, npt.NDArray[Any]]:
    """Return dcontext, and dlse where it is given, from ``--grad`` or the problem file.

    Raises
    ------
    UsageError
        There is no dcontext, or only a part of the problem was picked.
    """
    import numpy as np

    from attncli.loading import LoadedArray, read_array

    if asked.whole is not asked.problem:
        raise UsageError("gradients are of the whole problem: leave out --batch and --head")
    files, shapes = _named(options), asked.problem.output_shapes
    found: dict[str, npt.NDArray[Any]] = {}
    for name, of in UPSTREAM.items():
        held: object = None
        if files.get(name) == _ONES:
            found[name] = np.ones(shapes[of])
        elif name in files:
            held = read_array(files[name], dtype=problem.dtype, header=problem.header, entry=name)
        elif name in asked.upstream:
            held = asked.upstream[name]()
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


def computed(
    names: Iterable[str],
    options: GradientOptions,
    asked: Asked,
    problem: ProblemOptions,
    threads: int | None,
) -> dict[str, npt.NDArray[Any]]:
    """Return those of some outputs that are gradients."""
    wanted = [name for name in names if name in GRADIENTS]
    if not wanted:
        if options.grad:
            raise UsageError(
                "--grad has nothing to act on: no gradient is asked for",
                hint=f"--show or --save {', '.join(GRADIENTS)}",
            )
        return {}
    from attncli.engine.gradients import gradients_of

    given = upstream_of(options, asked, problem)
    made = gradients_of(asked.problem, **given, outputs=wanted, threads=threads)
    if "dbias" in made:
        made["dbias"] = made["dbias"].reshape(asked.bias_shape)
    return made
