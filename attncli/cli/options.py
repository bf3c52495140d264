"""The options, in groups: what the problem is, what is shown, how the program runs."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from typer import Argument, Option

from attncli.errors import UsageError

__all__ = [
    "MOST_USED",
    "SHOWN",
    "AverageOptions",
    "OutputOptions",
    "PickOptions",
    "ProblemOptions",
    "RunOptions",
]

MOST_USED = "Most used"
RULES = "Which keys a query sees"
SCORES = "Scores"
SELF = "Self-attention: one file of embeddings X (or the three sources)"
SHAPES = "Shapes and numbers"
LABELS = "Labels"
SHOWN = "What is shown"
RUN = "Running"
LIST = "LIST or FILE"


# Nobody compares or prints options, and each method takes half a millisecond to make.
@dataclass(eq=False, repr=False)
class ProblemOptions:
    """The files and the rules of the problem."""

    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILES]...",
            help="Q K V as CSV, TSV, NPY, YAML or JSON; or one problem file; or - for standard "
            "input; FILE#NAME takes one member. With none: what is piped in, else the built-in "
            "example.",
            rich_help_panel="Files",
            show_default=False,
        ),
    ] = None
    plain: Annotated[
        bool, Option("--plain", help="Plain dot product: scale 1.", rich_help_panel=MOST_USED)
    ] = False
    mask: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="True or 1 where the query may attend to the key; broadcasts to the weights.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    causal: Annotated[
        bool,
        Option("--causal", help="A query sees no later key.", rich_help_panel=MOST_USED),
    ] = False
    scale: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            help="Multiplies the product of query and key; 1/√D unless given, and 1 with another "
            "--score than dot.",
            rich_help_panel=SCORES,
        ),
    ] = None
    bias: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Added to the scores; broadcasts to the weights; -inf allowed.",
            rich_help_panel=SCORES,
        ),
    ] = None
    softcap: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            help="Squeeze raw scores into (-softcap, softcap) by tanh, before bias and mask.",
            rich_help_panel=SCORES,
        ),
    ] = None
    alibi: Annotated[
        bool,
        Option("--alibi", help="ALiBi with the slopes of the paper.", rich_help_panel=SCORES),
    ] = False
    alibi_slopes: Annotated[
        str | None,
        Option(metavar=LIST, help="ALiBi slopes, one a head.", rich_help_panel=SCORES),
    ] = None
    sinks: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="One logit a head that counts in the denominator only.",
            rich_help_panel=SCORES,
        ),
    ] = None
    rope: Annotated[
        Literal["half", "interleaved"] | None,
        Option(
            help="Rotate query and key first; the first query stands at the offset.",
            rich_help_panel=SCORES,
        ),
    ] = None
    rope_base: Annotated[
        float | None,
        Option(metavar="NUMBER", help="10000 unless given.", rich_help_panel=SCORES),
    ] = None
    score: Annotated[
        Literal["dot", "cosine", "general", "additive"] | None,
        Option(
            help="q·k, their cosine, q W k, or v·tanh(q + k); dot unless given.",
            rich_help_panel=SCORES,
        ),
    ] = None
    score_weight: Annotated[
        str | None,
        Option(metavar="FILE", help="W (D, D) of general.", rich_help_panel=SCORES),
    ] = None
    score_vector: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="v (D,) of additive; ones unless given.",
            rich_help_panel=SCORES,
        ),
    ] = None
    mask_means: Annotated[
        Literal["keep", "drop"] | None,
        Option(
            help="keep: true may attend (PyTorch SDPA, JAX, Keras, ONNX; the default). "
            "drop: true is hidden (nn.MultiheadAttention).",
            rich_help_panel=RULES,
        ),
    ] = None
    key_padding_mask: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="(B, S) or (S,): true or 1 where the key is a real one.",
            rich_help_panel=RULES,
        ),
    ] = None
    kv_lengths: Annotated[
        str | None,
        Option(metavar=LIST, help="Real keys of each batch entry: 3,5.", rich_help_panel=RULES),
    ] = None
    query_lengths: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="Real queries of each batch entry; the others come back as zeros.",
            rich_help_panel=RULES,
        ),
    ] = None
    causal_align: Annotated[
        Literal["top-left", "bottom-right"] | None,
        Option(
            help="Where query 0 stands: at key 0 (PyTorch, JAX, ONNX; the default), or so that "
            "the last query stands at the last key (FlashAttention, KV-cache decoding).",
            rich_help_panel=RULES,
        ),
    ] = None
    query_offset: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="The key at which query 0 stands, for all or for each batch entry.",
            rich_help_panel=RULES,
        ),
    ] = None
    window: Annotated[
        str | None,
        Option(
            metavar="N or LEFT,RIGHT",
            help="Query i sees keys i - LEFT to i + RIGHT, itself included; -1 or none is "
            "unbounded.",
            rich_help_panel=RULES,
        ),
    ] = None
    wq: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Query = X · W + b; (in, out), the transpose of nn.Linear.",
            rich_help_panel=SELF,
        ),
    ] = None
    wk: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="The same for the key.",
            rich_help_panel=SELF,
        ),
    ] = None
    wv: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="The same for the value.",
            rich_help_panel=SELF,
        ),
    ] = None
    wo: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Context · W + b afterwards.",
            rich_help_panel=SELF,
        ),
    ] = None
    bq: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="Bias of the query.",
            rich_help_panel=SELF,
        ),
    ] = None
    bk: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="Bias of the key.",
            rich_help_panel=SELF,
        ),
    ] = None
    bv: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="Bias of the value.",
            rich_help_panel=SELF,
        ),
    ] = None
    bo: Annotated[
        str | None,
        Option(
            metavar=LIST,
            help="Bias of the output.",
            rich_help_panel=SELF,
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="FILE[#PREFIX]",
            help="In the place of these: a layer of an NPZ or safetensors checkpoint. attncli info "
            "lists them.",
            rich_help_panel=SELF,
        ),
    ] = None
    positions: Annotated[
        Literal["sinusoidal"] | None,
        Option(help="Encoding of positions that is added to X first.", rich_help_panel=SELF),
    ] = None
    heads: Annotated[
        int | None,
        Option(
            metavar="H",
            help="Cut the width of packed 2-D or 3-D inputs into H heads.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    kv_heads: Annotated[
        int | None,
        Option(
            metavar="G",
            help="Heads of key and value where they are fewer than H.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    layout: Annotated[
        str | None,
        Option(
            metavar="AXES",
            help="The axes, s being the sequence: sd; bsd (default), hsd or shd; "
            "bhsd (default) or bshd.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "float64"] | None,
        Option(
            help="What to compute in; the widest input dtype unless given, at least float32.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    dtype: Annotated[
        Literal["bfloat16"] | None,
        Option(help="Read 2-byte elements of NPY files as bfloat16.", rich_help_panel=SHAPES),
    ] = None
    tokens: Annotated[
        str | None,
        Option(
            metavar="LABELS",
            help="Names of queries and keys alike: a file of one a line, or a,b,c.",
            rich_help_panel=LABELS,
        ),
    ] = None
    query_labels: Annotated[
        str | None,
        Option(metavar="LABELS", help="Names of the queries.", rich_help_panel=LABELS),
    ] = None
    key_labels: Annotated[
        str | None, Option(metavar="LABELS", help="Names of the keys.", rich_help_panel=LABELS)
    ] = None

    def given(self) -> dict[str, object]:
        """Return the options that were given, under their Python names."""
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("files", "dtype")
        }
        if values.pop("alibi"):
            if values["alibi_slopes"] is not None:
                raise UsageError("--alibi takes the slopes of the paper: leave out --alibi-slopes")
            values["alibi_slopes"] = True
        if self.plain and self.scale is not None:
            raise UsageError("--plain is scale 1: leave out --scale")
        # By identity: 0 equals False, and a scale of 0 was given.
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


@dataclass(eq=False, repr=False)
class PickOptions:
    """One batch entry, one head."""

    batch: Annotated[
        int | None,
        Option(metavar="B", help="One batch entry, from 0.", rich_help_panel=SHOWN),
    ] = None
    head: Annotated[
        int | None, Option(metavar="H", help="One head, from 0.", rich_help_panel=SHOWN)
    ] = None


@dataclass(eq=False, repr=False)
class AverageOptions:
    """The heads together."""

    average_heads: Annotated[
        bool,
        Option("--average-heads", help="Weights as the mean of the heads.", rich_help_panel=SHOWN),
    ] = False


@dataclass(eq=False, repr=False)
class OutputOptions:
    """What `compute` shows and saves."""

    show: Annotated[
        list[str] | None,
        Option(
            metavar="NAMES",
            help="Some of weights, context, scores, raw, capped, lse, stats, top, with commas; "
            "weights,context unless given; repeatable.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    format: Annotated[
        Literal["table", "json", "yaml", "csv", "tsv", "npy", "npz"],
        Option(
            "--format",
            "-f",
            help="csv, tsv and npy hold one array: context unless --show names another.",
            rich_help_panel=MOST_USED,
        ),
    ] = "table"
    save: Annotated[
        list[str] | None,
        Option(
            metavar="[NAME=]PATH",
            help="Write a file: context=c.csv, weights=w.npy, all.npz; repeatable.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    digits: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            max=17,
            help="Digits after the point in tables; files hold every digit.",
            rich_help_panel=SHOWN,
        ),
    ] = 4
    top: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="How many keys of each query --show top lists; 3.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Rows of a table: 20 in a terminal, 64 in a pipe; 0 is all.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    max_cols: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Columns of a table: what fits a terminal, 64 in a pipe; 0 is all.",
            rich_help_panel=SHOWN,
        ),
    ] = None

    @property
    def top_keys(self) -> int:
        """How many keys of each query are listed."""
        return self.top or 3


@dataclass(eq=False, repr=False)
class RunOptions:
    """How the program runs."""

    threads: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="All cores that the process may use unless given.",
            rich_help_panel=RUN,
        ),
    ] = None
    quiet: Annotated[
        bool,
        Option("--quiet", "-q", help="No notes and no warnings.", rich_help_panel=RUN),
    ] = False
    color: Annotated[
        Literal["auto", "always", "never"],
        Option(help="NO_COLOR is respected.", rich_help_panel=RUN),
    ] = "auto"
