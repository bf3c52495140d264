"""From the options of a command to its problem, or to finished weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.cli.options import ONES
from attncli.cli.terminal import note, piped_in
from attncli.errors import ShapeError, UsageError
from attncli.errors.names import GRADIENTS, UPSTREAM
from attncli.numerics.indices import EVERYTHING, Picked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.cli.options import GradientOptions, MergeOptions, QuestionOptions
    from attncli.gather import Finished, Gathered
    from attncli.problem.problem import Problem
    from attncli.summaries.maps import Computed, Given
    from attncli.summaries.words import Words

_OF_WORDS = "subwords joined (summed over keys, averaged over queries)"


class Asked(NamedTuple):
    """The picked part of a problem, the whole problem, and the gathered files."""

    problem: Problem
    whole: Problem
    picked: Picked
    found: Gathered
    # `attncli.gather.Finished` has the same two fields.
    name: str = "the weights computed here"
    remark: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that were read."""
        return tuple(self.found.inputs)

    @property
    def bfloat16(self) -> bool:
        """Whether an array in the files is bfloat16."""
        return self.found.bfloat16

    @property
    def value_columns(self) -> tuple[str, ...] | None:
        """The column names of the context: those in the file of value, if it has any."""
        made = self.found.projected is not None or self.whole.output is not None
        return None if made else self.found.value_columns

    def warn_unprojected(self) -> None:
        """Warn if picking heads left out the output projection."""
        if self.whole.output is not None and self.problem.output is None:
            from attncli.errors import warn
            from attncli.problem.advice import UNPROJECTED

            warn(UNPROJECTED)


def ask(options: QuestionOptions) -> Asked:
    """Return the problem that the options pose; finished weights are an error."""
    answer = _ask_or_read(options)
    if not isinstance(answer, Asked):
        raise finished_only(answer)
    return answer


def finished_only(answer: Finished) -> UsageError:
    """Return the error for finished weights where a problem is needed."""
    return answer.refusal(
        "give three files, or one problem file; embeddings are given three times, or with "
        "--wq, --wk and --wv, or --checkpoint; of finished weights, heatmap draws a picture and "
        "compute --show weights,stats,top shows them and what they come to",
    )


def _ask_or_read(options: QuestionOptions, *, saved: bool = False) -> Asked | Finished:
    """Return the problem that the options pose, or the finished weights or scores in the files.

    With ``saved``, weights or scores in a dump are used as they were saved.
    """
    from attncli.gather import Finished

    found = gathered(options, saved=saved)
    if isinstance(found, Finished):
        return found
    whole = found.posed()
    picked = options.among(whole.shape[:2], whole.layout.weight_axes)
    problem = whole if picked == EVERYTHING else whole.select(**picked._asdict())
    return Asked(problem, whole, picked, found)


def gathered(options: QuestionOptions, *, saved: bool = False) -> Gathered | Finished:
    """Read files and options into unchecked arguments, or finished weights."""
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.loading import is_stream

    given, more = options.arguments(), options.also_read
    files = options.files or []
    if not files and piped_in() and not any(map(is_stream, (*given.values(), *more))):
        files = ["-"]
    if not files and not options.takes_example:
        raise UsageError(
            "no files given: the built-in example is only for tables, explanations and heatmaps",
            hint="name one problem file, or the files Q K V (is a variable of the shell empty?)",
        )
    found = gather(
        files,
        given,
        without=options.without,
        dtype=options.dtype,
        layer=options.layer,
        header=options.header,
        call=options.call,
        kind=options.what,
        saved=saved,
        more=more,
        threads=options.threads,
    )
    if not files:
        # Even with --quiet: an unset variable of the shell may have dropped the files.
        note("no files given: this is the built-in example", quiet=False)
    if not more:
        advise_on_dtype(options.dtype, bfloat16=found.bfloat16)
    for words in () if isinstance(found, Finished) else found.notes:
        note(words, quiet=options.quiet)
    return found


def given_maps(finished: Finished, options: QuestionOptions) -> tuple[Given, Picked]:
    """Return the picked part of finished weights or scores, and what is picked."""
    from attncli.summaries.maps import Given

    picked = options.among(finished.counts, finished.axes)
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    values = finished.checked(options.what, picked)
    labels = finished.query_labels, finished.key_labels
    return Given(values, axes, labels, finished.hidden_cells(picked)), picked


def maps_of(asked: Asked | Finished, options: QuestionOptions) -> tuple[Computed | Given, Picked]:
    """Return the picked weights or scores, and what is picked."""
    from attncli.summaries.maps import Computed

    if not isinstance(asked, Asked):
        return given_maps(asked, options)
    scores = options.what == "scores"
    return Computed(asked.problem, scores=scores, threads=options.threads), asked.picked


def ask_or_join(options: MergeOptions, *, saved: bool = False) -> Asked | Finished:
    """Return the problem or the finished weights, after --rollout and --merge."""
    if options.rollout is not None:
        return _joined(_rolled(options), options)
    return _joined(_ask_or_read(_unpicked(options), saved=saved), options)


def layers_of(options: MergeOptions) -> Iterator[tuple[int, str, Asked | Finished]]:
    """Yield number, module and `ask_or_join` of each layer; --rollout makes all layers one."""
    if options.rollout is not None:
        yield 0, "", ask_or_join(options)
        return
    for number, name, asked in _each_layer(_unpicked(options)):
        yield number, name, _joined(asked, options)


def _unpicked(options: MergeOptions) -> MergeOptions:
    # Heads are picked after subwords are joined.
    return options.but(batch=None, head=None) if options.merge else options


def _joined(asked: Asked | Finished, options: MergeOptions) -> Asked | Finished:
    return asked if options.merge is None else _merged(asked, options)


def _merged(asked: Asked | Finished, options: MergeOptions) -> Finished:
    """Return the weights between words, after --merge, as finished weights."""
    from attncli.summaries.words import merged_hidden, merged_weights

    asked = computed(asked, options)
    weights, hidden = asked.checked("weights", EVERYTHING), asked.hidden_cells(EVERYTHING)
    groups, file = _groups(options), [] if options.merge == "words" else [str(options.merge)]
    queries = _words("queries", asked.query_labels, weights.shape[-2], groups)
    keys = _words("keys", asked.key_labels, weights.shape[-1], groups)
    shape = *asked.values.shape[:-2], len(queries.names), len(keys.names)
    gone = None if hidden is None else merged_hidden(hidden, queries, keys).reshape(shape)
    return asked._replace(
        values=merged_weights(weights, queries, keys).reshape(shape),
        name=f"{asked.name}, by words",
        inputs=(*asked.inputs, *file),
        query_labels=queries.names,
        key_labels=keys.names,
        hidden=gone,
        remark=", ".join(filter(None, (asked.remark, _OF_WORDS))),
    )


def _groups(options: MergeOptions) -> Sequence[str] | None:
    """Return the groups of ``--merge FILE``; None for ``--merge words``."""
    from attncli.loading.source import open_source
    from attncli.loading.words import read_words

    if options.merge == "words":
        return None
    return read_words(open_source(str(options.merge)))


def _words(
    what: str, labels: Sequence[str] | None, count: int, groups: Sequence[str] | None
) -> Words:
    from attncli.summaries.words import words_of

    if groups is not None and len(groups) != count:
        raise ShapeError(f"--merge: expected {count} groups, one a token; found {len(groups)}")
    if labels is None:
        raise UsageError(
            f"--merge: the {what} have no names", hint="give --tokens, one subword for each"
        )
    return words_of(labels, groups)


def _each_layer(options: QuestionOptions) -> Iterator[tuple[int, str, Asked | Finished]]:
    from attncli.gather import layers_in

    files = options.files or []
    found = layers_in(files[0]) if len(files) == 1 and options.layer is None else {}
    for number, name in found.items() or [(options.layer, "")]:
        yield number or 0, name, _ask_or_read(options.but(layer=number), saved=True)


def _rolled(options: MergeOptions) -> Finished:
    import numpy as np

    from attncli.summaries.rollout import rollout

    layers: list[Finished] = []

    def each() -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
        # Several files hold a layer each.
        for files in [[file] for file in options.files or ()] or [[]]:
            for _, _, asked in _each_layer(options.but(files=files, batch=None, head=None)):
                layer = computed(asked, options)
                layers.append(layer._replace(values=np.empty(0), hidden=None))
                yield layer.name, layer.checked("weights", EVERYTHING)

    residual = options.rollout == "half"
    values, count = rollout(each(), residual=residual)
    remark = f"rollout of {count} layers" + ("" if residual else " without the residual")
    return layers[0]._replace(
        values=values,
        name=remark,
        inputs=tuple(dict.fromkeys(file for layer in layers for file in layer.inputs)),
        batched=True,
        hidden=values == 0,
        remark=remark,
    )


def computed(asked: Asked | Finished, options: QuestionOptions) -> Finished:
    """Return the weights of a problem as finished weights."""
    import numpy as np

    from attncli.api import solve
    from attncli.gather.finished import Finished

    if not isinstance(asked, Asked):
        return asked
    problem = asked.problem
    answer = solve(problem, ("weights", "scores"), threads=options.threads)
    return Finished(
        np.asarray(answer.weights),
        " ".join(asked.inputs) or "the example",
        asked.inputs,
        problem.query_labels,
        problem.key_labels,
        asked.bfloat16,
        problem.layout.weight_axes == "b",
        np.isneginf(np.asarray(answer.scores)),
    )


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
        if files.get(name) == ONES:
            found[name] = np.ones(shapes[of])
        elif name in files:
            held = read_array(files[name], dtype=options.dtype, header=options.header, entry=name)
        elif name in asked.found.upstream:
            held = asked.found.upstream[name]()
        if isinstance(held, LoadedArray):
            found[name] = _in_shape(held, shapes[of])
    if "dcontext" not in found:
        raise UsageError(
            "gradients need the gradient of the context, but none is given",
            hint="--grad do.npy, or --grad ones for that of out.sum(), or dcontext in the problem "
            "file",
        )
    return found


def _in_shape(array: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the numbers of a file; a table gets the axes of length 1 that it cannot hold."""
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
