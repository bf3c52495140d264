"""The one declaration of options: what each means, how it is read, and its heading in the help.

A command takes the dataclasses that it needs as parameters (`attncli.cli.commands.grouped`), so
that options of several commands are written once.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

from attncli.cli.declaring import (
    JUDGING,
    LABELS,
    LIST,
    MOST_USED,
    RULES,
    RUN,
    SCORES,
    SELF,
    SHAPES,
    SHOWN,
    count,
    file_argument,
    list_of,
    number_option,
    one_of,
    option,
    positive,
    switch,
)
from attncli.cli.terminal import note
from attncli.errors import UsageError
from attncli.errors.names import SHOWABLE, Align, MaskMeans, Pairing, PrecisionName, Score
from attncli.errors.text import quoted, whole_number
from attncli.numerics.indices import Indices, Picked, indices_in
from attncli.problem.layout import LAYOUTS

__all__ = [
    "AverageOptions",
    "CheckOptions",
    "DigitsOptions",
    "ExplainOptions",
    "Formatted",
    "GradientOptions",
    "MergeOptions",
    "OutputOptions",
    "PickOneOptions",
    "PickOptions",
    "ProblemOptions",
    "RunOptions",
    "ScreenOptions",
    "ShardOptions",
    "json_switch",
]


# Nobody compares or prints options, and each method takes half a millisecond to make.
@dataclass(eq=False, repr=False)
class ProblemOptions:
    """The files and the rules of the problem."""

    files: list[str] | None = file_argument(
        "Q K V, or Q K for the weights alone (CSV, TSV, NPY, YAML, JSON); or one problem file "
        "(YAML, JSON, NPZ, safetensors); or X with --wq --wk --wv or --checkpoint. - is standard "
        "input, FILE#NAME one member of a file. Default: what is piped in, or else a built-in "
        "example."
    )
    plain: bool = switch(MOST_USED, "Plain dot product: scale 1.")
    mask: str | None = option(
        MOST_USED, "FILE", "True or 1 where a query may attend to a key; broadcasts to the weights."
    )
    causal: bool = switch(
        MOST_USED, "No query sees a key after its own position (see --causal-align)."
    )
    scale: float | None = number_option(
        SCORES, "Factor of query·key. Default: 1/√D for the dot product, 1 for any other --score."
    )
    bias: str | None = option(SCORES, "FILE", "Added to the scores; broadcasts to the weights.")
    softcap: float | None = number_option(
        SCORES, "Squeeze raw scores into (-softcap, softcap) with tanh, before bias and mask."
    )
    alibi: bool = switch(SCORES, "ALiBi, with the slopes of its paper.")
    alibi_slopes: str | None = option(SCORES, LIST, "ALiBi slopes, one for each head.")
    sinks: str | None = option(
        SCORES, LIST, "Logits that count in the denominator only, one for each head."
    )
    rope: Pairing | None = option(
        SCORES, None, "Apply rotary embeddings to query and key first; queries start at the offset."
    )
    rope_base: float | None = number_option(
        SCORES, "Base of the rotary embedding, rope_theta in a config.json. Default: 10000."
    )
    rope_frequencies: str | None = option(
        SCORES, LIST, "Radians by which each pair turns per position, instead of a base (inv_freq)."
    )
    score: Score | None = option(
        SCORES, None, "Score function: q·k, their cosine, q W k, or v·tanh(q + k). Default: dot."
    )
    score_weight: str | None = option(
        SCORES, "FILE", "W for score general (width of query, width of key)."
    )
    score_vector: str | None = option(SCORES, LIST, "v (D,) for score additive. Default: ones.")
    mask_means: MaskMeans | None = option(
        RULES,
        None,
        "keep: true may attend (PyTorch SDPA, JAX, Keras, ONNX). drop: true is hidden "
        "(nn.MultiheadAttention). Default: keep.",
    )
    key_padding_mask: str | None = option(
        RULES, "FILE", "(B, S) or (S,): true or 1 where a key is real, not padding."
    )
    kv_lengths: str | None = option(RULES, LIST, "Number of real keys in each batch entry: 3,5.")
    query_lengths: str | None = option(
        RULES, LIST, "Number of real queries in each batch entry; the others give zeros."
    )
    causal_align: Align | None = option(
        RULES,
        None,
        "top-left aligns the first query with the first key (PyTorch, JAX, ONNX without a cache), "
        "bottom-right the last query with the last key (FlashAttention, decoding with a KV "
        "cache). Default: top-left.",
    )
    query_offset: str | None = option(
        RULES, LIST, "Position of query 0 among the keys, one for all or one for each batch entry."
    )
    window: str | None = option(
        RULES,
        "N or LEFT,RIGHT",
        "Query i, at position p = i + offset, sees keys p - LEFT to p + RIGHT, both included; -1 "
        "or none is unbounded. N is N,N.",
    )
    segment_ids: str | None = option(
        RULES,
        LIST,
        "(B, L) or (L,), of packed sequences: which one each token belongs to: 0,0,0,1,1. A query "
        "sees only keys of its own.",
    )
    kv_segment_ids: str | None = option(
        RULES, LIST, "The same of the keys, (B, S) or (S,). Default: that of the queries."
    )
    wq: str | None = option(SELF, "FILE", "query = X · W + b, with W (in, out); see --transposed.")
    wk: str | None = option(SELF, "FILE", "Likewise for the key.")
    wv: str | None = option(SELF, "FILE", "Likewise for the value.")
    wo: str | None = option(SELF, "FILE", "Output projection: context · W + b.")
    bq: str | None = option(SELF, LIST, "Bias of the query.")
    bk: str | None = option(SELF, LIST, "Bias of the key.")
    bv: str | None = option(SELF, LIST, "Bias of the value.")
    bo: str | None = option(SELF, LIST, "Bias of the output.")
    q_norm: str | None = option(
        SELF,
        LIST,
        "Weight of the RMS norm of each head's query, or of all heads' together, before it is "
        "rotated (Qwen 3, OLMo 2; of Gemma 3, 1 plus what it stores).",
    )
    k_norm: str | None = option(SELF, LIST, "Likewise for the key.")
    norm_eps: float | None = number_option(
        SELF, "What these norms add to the mean squares. Default: 1e-6."
    )
    transposed: bool = switch(
        SELF, "W of --wq, --wk, --wv and --wo is (out, in), as nn.Linear stores it."
    )
    checkpoint: str | None = option(
        SELF,
        "FILE[#PREFIX]",
        "Take all of these from a layer of an NPZ or safetensors checkpoint; attncli info lists "
        "its layers.",
    )
    config: str | None = option(
        SELF,
        "FILE",
        "Take heads, scale, rotation and rules of that layer from the config.json that "
        "Transformers keeps beside the checkpoint.",
    )
    positions: Literal["sinusoidal"] | None = option(
        SELF, None, "Positional encoding to add to X first."
    )
    heads: int | None = count(
        SHAPES, "H", "Split the width of packed 2-D or 3-D inputs into H heads."
    )
    kv_heads: int | None = count(SHAPES, "G", "Number of key and value heads, if fewer than H.")
    layout: str | None = option(
        SHAPES,
        "AXES",
        "Order of the axes (batch, head, sequence, d for width): sd; bsd (default), hsd, sbd or "
        "shd; bhsd (default), bshd or sbhd.",
        autocompletion=one_of(*LAYOUTS),
    )
    layer: int | None = count(
        SHAPES, "N", "Take one of several layers, (layers, …), or of recorded calls, from 0 on."
    )
    call: int | None = count(SHAPES, "N", "Which recorded call of that layer. Default: 0.")
    without: str | None = option(
        RULES,
        "NAMES",
        "Leave out entries of the problem file, of what --config says, or wo, bo and sinks of the "
        "checkpoint's layer, as in causal,mask.",
    )
    precision: PrecisionName | None = option(
        SHAPES, None, "Computing dtype. Default: the widest input dtype, at least float32."
    )
    dtype: Literal["bfloat16"] | None = option(
        SHAPES,
        None,
        "Read 2-byte elements of NPY and NPZ files as bfloat16, unless they are float16.",
    )
    header: Literal["auto", "yes", "no"] = option(
        SHAPES, None, "Whether the first row of a table names its columns.", default="auto"
    )
    tokens: str | None = option(
        LABELS, "LABELS", "Names of both queries and keys: a file with one per line, or a,b,c."
    )
    query_labels: str | None = option(LABELS, "LABELS", "Names of the queries only.")
    key_labels: str | None = option(LABELS, "LABELS", "Names of the keys only.")

    def of_part(self, shard: "ShardOptions") -> "ProblemOptions":
        """Return the same options with the ranges of a part among them."""
        made = copy(self)
        vars(made).update(shard.given())
        return made

    def given(self) -> dict[str, object]:
        """Return the options that were given, under their Python names."""
        values = {
            name: value
            for name, value in vars(self).items()
            if name not in ("files", "without", "dtype", "header", "layer", "call")
        }
        if values.pop("alibi"):
            if values["alibi_slopes"] is not None:
                raise UsageError("--alibi takes the slopes of the paper: leave out --alibi-slopes")
            values["alibi_slopes"] = True
        # By identity: 0 equals False, and a scale of 0 was given.
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


@dataclass(eq=False, repr=False)
class ShardOptions:
    """A part of the queries or of the keys, in its place."""

    keys: str | None = option(
        SHAPES,
        "A:B",
        "Only keys A to B - 1, in their place: causal, window, ALiBi, rope, masks, bias and "
        "segments are those of the whole. A file of B rows or more holds the whole, one of B - A "
        "rows the part alone. Sinks count in the part with key 0. attncli merge joins parts.",
    )
    queries: str | None = option(SHAPES, "A:B", "Only queries A to B - 1, in the same way.")

    def given(self) -> dict[str, object]:
        """Return the ranges that were given, under their Python names."""
        return {
            name: _part(f"--{name}", words)
            for name, words in (("queries", self.queries), ("keys", self.keys))
            if words is not None
        }


def _part(name: str, words: str) -> tuple[int, int | None]:
    first, colon, last = (part.strip() for part in words.partition(":"))
    start = whole_number(first) if first else 0
    stop = whole_number(last) if last else None
    if not colon or start is None or start < 0 or (last and (stop is None or stop <= start)):
        raise UsageError(f"{name}: expected a range A:B, as 8192:16384; found {quoted(words)}")
    return start, stop


@dataclass(eq=False, repr=False)
class PickOptions:
    """Some batch entries, some heads."""

    batch: str | None = option(
        SHOWN,
        "B",
        "Only these batch entries, counted from 0: one (-1 is the last one), several (0,3) or a "
        "range (4:8, without 8).",
    )
    head: str | None = option(
        SHOWN,
        "H",
        "Only these heads, in the same way. A terminal shows the first 4 tables or 16 pictures, a "
        "pipe the first 16 tables.",
    )

    def among(self, counts: tuple[int, int], axes: str) -> Picked:
        """Return what is picked of so many batch entries and heads; there may be no such axis."""
        batch, head = (
            self._of_axis(name, count, exists=name[0] in axes)
            for name, count in zip(("batch", "head"), counts, strict=True)
        )
        return Picked(batch, head)

    def _of_axis(self, name: str, count: int, *, exists: bool) -> Indices | None:
        words = getattr(self, name)
        if words is None:
            return None
        if not exists:
            raise UsageError(
                f"--{name} {words}: the inputs have no such axis", hint="see --layout and --heads"
            )
        return indices_in(f"--{name}", words, count)


@dataclass(eq=False, repr=False)
class PickOneOptions(PickOptions):
    """One batch entry, one head."""

    batch: str | None = option(
        SHOWN, "B", "Only one batch entry, counted from 0 (-1 is the last one)."
    )
    head: str | None = option(SHOWN, "H", "Only one head, counted from 0 (-1 is the last one).")

    def _of_axis(self, name: str, count: int, *, exists: bool) -> Indices | None:
        found = super()._of_axis(name, count, exists=exists)
        if isinstance(found, tuple):
            raise UsageError(f"--{name}: expected one index; found {getattr(self, name)}")
        return found


@dataclass(eq=False, repr=False)
class AverageOptions:
    """The heads together."""

    average_heads: bool = switch(SHOWN, "Average the weights over the heads.")


@dataclass(eq=False, repr=False)
class MergeOptions:
    """Subwords together."""

    merge: str | None = option(
        SHOWN,
        "words or FILE",
        "Join subwords (##ing, Ġ, ▁): weights are summed over keys and averaged over queries. A "
        "file has a group for each token: neighbours of one group are joined.",
    )


class Formatted:
    """What all commands have in common that print JSON."""

    format: str
    json: bool

    def __post_init__(self) -> None:
        if self.json and self.format not in (type(self).format, "json"):
            raise UsageError(f"--json and --format {self.format}: leave one of the two out")
        self.format = "json" if self.json else self.format


def json_switch(panel: str = SHOWN) -> Any:
    """Return the field of --json."""
    return switch(panel, "The same as --format json.")


@dataclass(eq=False, repr=False)
class OutputOptions(Formatted):
    """What `compute` shows and saves."""

    show: list[str] | None = option(
        MOST_USED,
        "NAMES",
        f"Which of {', '.join(SHOWABLE)}, separated by commas. Default: weights,context. "
        "Repeatable.",
        autocompletion=list_of(*SHOWABLE),
    )
    format: Literal["table", "markdown", "json", "yaml", "csv", "tsv", "npy", "npz"] = option(
        MOST_USED,
        None,
        "markdown has the tables of a pipe; csv, tsv and npy hold one array: the context, unless "
        "--show names another; csv and tsv also stats or top.",
        "--format",
        "-f",
        default="table",
    )
    save: list[str] | None = option(
        MOST_USED,
        "[NAME=]PATH",
        "Write a file: context=c.csv, weights,lse=w.npz, or out.npz with what --show names. "
        "Repeatable.",
    )
    json: bool = json_switch()
    top: int | None = count(
        SHOWN, "N", "Keys that --show top lists for each query. Default: 3.", least=1
    )
    max_rows: int | None = count(
        SHOWN, "N", "Rows of a table; 0 shows all. Default: 20, or 64 in a pipe.", least=0
    )
    max_cols: int | None = count(
        SHOWN,
        "N",
        "Columns of a table; 0 shows all. What does not fit a terminal stands below the rest. "
        "Default: what fits, or 64 in a pipe.",
        least=0,
    )
    with_labels: bool = switch(SHOWN, "Write the names of queries and keys into CSV and TSV, too.")

    @property
    def is_tables(self) -> bool:
        """Whether tables for people are shown, cut and rounded."""
        return self.format in ("table", "markdown")

    def asks_for(self, name: str) -> bool:
        """Return whether an output of this name is to be shown or saved."""
        saved = (text.partition("=")[0] for text in self.save or () if "=" in text)
        return any(name in map(str.strip, text.split(",")) for text in (*(self.show or ()), *saved))

    @property
    def top_keys(self) -> int:
        """How many keys of each query are listed."""
        return self.top or 3


@dataclass(eq=False, repr=False)
class GradientOptions:
    """What a backward pass begins with."""

    grad: list[str] | None = option(
        SHOWN,
        "[NAME=]FILE",
        "The gradient of the context, from which dquery, dkey, dvalue, dbias and dsinks follow; "
        "ones is that of the context's sum. dlse=FILE is that of the lse. Default: dcontext and "
        "dlse of the problem file. Repeatable.",
    )


@dataclass(eq=False, repr=False)
class ExplainOptions(Formatted):
    """Which queries are explained, and how."""

    query: str = option(
        MOST_USED,
        "I or LABEL",
        "The query, counted from 0 (-1 is the last one), or its label; several with commas (0,2 "
        "or cat,sat) or a range (0:3, without 3).",
        default="0",
    )
    format: Literal["text", "markdown", "json"] = option(
        MOST_USED,
        None,
        "Format of the explanation; markdown has LaTeX formulas.",
        "--format",
        "-f",
        default="text",
    )
    json: bool = json_switch()
    keys: int | None = count(
        SHOWN,
        "N",
        "Show the N strongest keys one by one and sum up the rest; 0 shows all. Default: 12, or "
        "all if there are at most 13; in JSON all if there are at most 1,000.",
        least=0,
    )


@dataclass(eq=False, repr=False)
class CheckOptions(Formatted):
    """What is judged, how strictly, and how it is told."""

    expect: list[str] | None = option(
        MOST_USED,
        "[NAME=]FILE",
        "Required: the output of the other implementation, its context, or NAME=FILE with "
        "weights, lse, scores, raw, capped or a gradient (--grad). Repeatable. Of many files, and "
        "of a folder, #NAME is a member of each; default: #out and the gradients.",
    )
    diagnose: bool = option(
        MOST_USED,
        None,
        "Look for the mistake that explains a mismatch.",
        "--diagnose/--no-diagnose",
        default=True,
    )
    diff: str | None = option(
        MOST_USED, "PATH", "Draw the signed difference into a .png, .svg or .pdf file."
    )
    format: Literal["text", "json"] = option(
        MOST_USED, None, "Format of the report; json is for CI.", "--format", "-f", default="text"
    )
    json: bool = json_switch()
    rtol: list[str] | None = option(
        JUDGING,
        "[NAME=]X",
        "Relative tolerance, in place of the earned one, which follows from the rounding errors "
        "of the textbook formula in the file's own dtype; --atol is then 0 unless given. "
        "NAME=X is for one output. Repeatable.",
    )
    atol: list[str] | None = option(
        JUDGING,
        "[NAME=]X",
        "Absolute tolerance, in place of the earned one; --rtol is then 0 unless given. "
        "NAME=X is for one output. Repeatable.",
    )
    beside: str | None = option(
        JUDGING,
        "FILE",
        "A second output of the same kind: which of the two errs less, and by how much.",
    )
    junit: str | None = option(
        JUDGING, "PATH", "Of many files, write the verdicts for a CI server: report.xml."
    )
    time_limit: float | None = option(
        JUDGING, "SECONDS", "Time limit of the diagnosis. Default: 10.", parser=positive
    )


@dataclass(eq=False, repr=False)
class DigitsOptions:
    """How many digits a person sees."""

    digits: int | None = count(
        SHOWN,
        "N",
        "Decimals in tables, text and markdown; files and other formats hold every digit. "
        "Default: 4; explain takes 1 or more.",
        least=0,
        most=17,
    )

    @property
    def decimals(self) -> int:
        """How many decimals a number has."""
        return 4 if self.digits is None else self.digits

    def tell_of_all(self, kind: str, *, quiet: bool) -> None:
        """Say that a format holds every digit, where another number of them was asked for."""
        if self.digits is not None:
            words = f"--digits: only for tables, text and markdown; {kind} holds every digit"
            note(words, quiet=quiet)


@dataclass(eq=False, repr=False)
class ScreenOptions:
    """What the program says, and in which colours."""

    quiet: bool = switch(
        RUN, "Print no notes and no warnings, but that the example is used.", "--quiet", "-q"
    )
    color: Literal["auto", "always", "never"] = option(
        RUN,
        None,
        "Colours in terminals; the variable NO_COLOR turns them off, unless always.",
        default="auto",
    )
    no_color: bool = switch(RUN, "The same as --color never.")

    def __post_init__(self) -> None:
        if self.no_color:
            self.color = "never"


@dataclass(eq=False, repr=False)
class RunOptions(ScreenOptions):
    """How the program runs."""

    threads: int | None = count(
        RUN, "N", "The most threads to use. Default: all cores that the process may use.", least=1
    )
