"""The options, in groups: what the problem is, what is shown, how the program runs."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from typer import Argument, Option

from attncli.cli.completing import list_of, one_of
from attncli.cli.terminal import note
from attncli.errors import UsageError
from attncli.layout import LAYOUTS
from attncli.names import (
    SHOWABLE,
    Align,
    MaskMeans,
    Pairing,
    PrecisionName,
    Score,
)

__all__ = [
    "JUDGING",
    "MOST_USED",
    "RUN",
    "SHOWN",
    "AverageOptions",
    "Bfloat16",
    "Color",
    "DigitsOptions",
    "OutputOptions",
    "ProblemOptions",
    "Quiet",
    "RunOptions",
]

MOST_USED = "Most used"
RULES = "Which keys a query sees"
SCORES = "Scores"
SELF = "Self-attention: one file of embeddings X (or the three sources)"
SHAPES = "Shapes and numbers"
LABELS = "Labels"
SHOWN = "What is shown"
JUDGING = "How it is judged"
RUN = "Running"
LIST = "LIST or FILE"


def _file(panel: str, words: str) -> Any:
    return Option(metavar="FILE", help=words, rich_help_panel=panel)


def _list(panel: str, words: str) -> Any:
    return Option(metavar=LIST, help=words, rich_help_panel=panel)


Bfloat16 = Annotated[
    Literal["bfloat16"] | None,
    Option(
        help="Read 2-byte elements of NPY and NPZ files as bfloat16, unless they are float16.",
        rich_help_panel=SHAPES,
    ),
]
Quiet = Annotated[
    bool,
    Option(
        "--quiet",
        "-q",
        help="Print no notes and no warnings, but that the example is used.",
        rich_help_panel=RUN,
    ),
]
Color = Annotated[
    Literal["auto", "always", "never"],
    Option(
        help="Colours in terminals; the variable NO_COLOR turns them off, unless always.",
        rich_help_panel=RUN,
    ),
]


# Nobody compares or prints options, and each method takes half a millisecond to make.
@dataclass(eq=False, repr=False)
class ProblemOptions:
    """The files and the rules of the problem."""

    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILES]...",
            help="Q K V, or Q K for the weights alone (CSV, TSV, NPY, YAML, JSON); or one problem "
            "file (YAML, JSON, NPZ, safetensors); or X with --wq --wk --wv or --checkpoint. - is "
            "standard input, FILE#NAME one member of a file. Default: what is piped in, or else a "
            "built-in example.",
            rich_help_panel="Files",
            show_default=False,
        ),
    ] = None
    plain: Annotated[
        bool, Option("--plain", help="Plain dot product: scale 1.", rich_help_panel=MOST_USED)
    ] = False
    mask: Annotated[
        str | None,
        _file(
            MOST_USED,
            "True or 1 where a query may attend to a key; broadcasts to the weights' shape.",
        ),
    ] = None
    causal: Annotated[
        bool,
        Option(
            "--causal",
            help="No query sees a key after its own position (see --causal-align).",
            rich_help_panel=MOST_USED,
        ),
    ] = False
    scale: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            help="Factor of query·key. Default: 1/√D for the dot product, 1 for any other --score.",
            rich_help_panel=SCORES,
        ),
    ] = None
    bias: Annotated[
        str | None,
        _file(SCORES, "Added to the scores; broadcasts to the weights' shape; may hold -inf."),
    ] = None
    softcap: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            help="Squeeze raw scores into (-softcap, softcap) with tanh, before bias and mask.",
            rich_help_panel=SCORES,
        ),
    ] = None
    alibi: Annotated[
        bool,
        Option("--alibi", help="ALiBi, with the slopes of its paper.", rich_help_panel=SCORES),
    ] = False
    alibi_slopes: Annotated[str | None, _list(SCORES, "ALiBi slopes, one for each head.")] = None
    sinks: Annotated[
        str | None, _list(SCORES, "Logits that count in the denominator only, one for each head.")
    ] = None
    rope: Annotated[
        Pairing | None,
        Option(
            help="Apply rotary embeddings to query and key first; queries start at the offset.",
            rich_help_panel=SCORES,
        ),
    ] = None
    rope_base: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            help="Base of the rotary embedding, rope_theta in a config.json. Default: 10000.",
            rich_help_panel=SCORES,
        ),
    ] = None
    rope_frequencies: Annotated[
        str | None,
        _list(
            SCORES,
            "Radians by which each pair turns per position, instead of a base (inv_freq in "
            "Transformers); components without a pair are not rotated.",
        ),
    ] = None
    score: Annotated[
        Score | None,
        Option(
            help="Score function: q·k, their cosine, q W k, or v·tanh(q + k). Default: dot.",
            rich_help_panel=SCORES,
        ),
    ] = None
    score_weight: Annotated[
        str | None, _file(SCORES, "W for score general (width of query, width of key).")
    ] = None
    score_vector: Annotated[
        str | None, _list(SCORES, "v (D,) for score additive. Default: ones.")
    ] = None
    mask_means: Annotated[
        MaskMeans | None,
        Option(
            help="keep: true may attend (PyTorch SDPA, JAX, Keras, ONNX). drop: true is hidden "
            "(nn.MultiheadAttention). Default: keep.",
            rich_help_panel=RULES,
        ),
    ] = None
    key_padding_mask: Annotated[
        str | None, _file(RULES, "(B, S) or (S,): true or 1 where a key is real, not padding.")
    ] = None
    kv_lengths: Annotated[
        str | None, _list(RULES, "Number of real keys in each batch entry: 3,5.")
    ] = None
    query_lengths: Annotated[
        str | None,
        _list(RULES, "Number of real queries in each batch entry; the others give zeros."),
    ] = None
    causal_align: Annotated[
        Align | None,
        Option(
            help="top-left aligns the first query with the first key (PyTorch, JAX, ONNX without a "
            "cache), bottom-right the last query with the last key (FlashAttention, decoding with "
            "a KV cache). Default: top-left.",
            rich_help_panel=RULES,
        ),
    ] = None
    query_offset: Annotated[
        str | None,
        _list(
            RULES, "Position of query 0 among the keys, one for all or one for each batch entry."
        ),
    ] = None
    window: Annotated[
        str | None,
        Option(
            metavar="N or LEFT,RIGHT",
            help="Query i, at position p = i + offset, sees keys p - LEFT to p + RIGHT, both "
            "included; -1 or none is unbounded. N is N,N.",
            rich_help_panel=RULES,
        ),
    ] = None
    segment_ids: Annotated[
        str | None,
        _list(
            RULES,
            "(B, L) or (L,), of packed sequences: which one each token belongs to: 0,0,0,1,1. "
            "A query sees only keys of its own.",
        ),
    ] = None
    kv_segment_ids: Annotated[
        str | None,
        _list(RULES, "The same of the keys, (B, S) or (S,). Default: that of the queries."),
    ] = None
    wq: Annotated[
        str | None,
        _file(SELF, "query = X · W + b, with W (in, out): the transpose of nn.Linear's weight."),
    ] = None
    wk: Annotated[str | None, _file(SELF, "Likewise for the key.")] = None
    wv: Annotated[str | None, _file(SELF, "Likewise for the value.")] = None
    wo: Annotated[str | None, _file(SELF, "Output projection: context · W + b.")] = None
    bq: Annotated[str | None, _list(SELF, "Bias of the query.")] = None
    bk: Annotated[str | None, _list(SELF, "Bias of the key.")] = None
    bv: Annotated[str | None, _list(SELF, "Bias of the value.")] = None
    bo: Annotated[str | None, _list(SELF, "Bias of the output.")] = None
    q_norm: Annotated[
        str | None,
        _list(
            SELF,
            "Weight of the RMS norm of each head's query, or of all heads' together, before it is "
            "rotated (Qwen 3, OLMo 2; of Gemma 3, 1 plus what it stores).",
        ),
    ] = None
    k_norm: Annotated[str | None, _list(SELF, "Likewise for the key.")] = None
    norm_eps: Annotated[
        float | None,
        Option(
            metavar="X",
            help="What these norms add to the mean squares. Default: 1e-6.",
            rich_help_panel=SELF,
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="FILE[#PREFIX]",
            help="Take all of these from a layer of an NPZ or safetensors checkpoint; attncli info "
            "lists its layers.",
            rich_help_panel=SELF,
        ),
    ] = None
    config: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Take heads, scale, rotation and rules of that layer from the config.json that "
            "Transformers keeps beside the checkpoint.",
            rich_help_panel=SELF,
        ),
    ] = None
    positions: Annotated[
        Literal["sinusoidal"] | None,
        Option(help="Positional encoding to add to X first.", rich_help_panel=SELF),
    ] = None
    heads: Annotated[
        int | None,
        Option(
            metavar="H",
            help="Split the width of packed 2-D or 3-D inputs into H heads.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    kv_heads: Annotated[
        int | None,
        Option(
            metavar="G",
            help="Number of key and value heads, if fewer than H.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    layout: Annotated[
        str | None,
        Option(
            metavar="AXES",
            autocompletion=one_of(*LAYOUTS),
            help="Order of the axes (batch, head, sequence, d for width): sd; bsd (default), hsd, "
            "sbd or shd; bhsd (default), bshd or sbhd.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    without: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Leave out entries of the problem file, of what --config says, or wo, bo and "
            "sinks of the checkpoint's layer, as in causal,mask.",
            rich_help_panel=RULES,
        ),
    ] = None
    precision: Annotated[
        PrecisionName | None,
        Option(
            help="Computing dtype. Default: the widest input dtype, at least float32.",
            rich_help_panel=SHAPES,
        ),
    ] = None
    dtype: Bfloat16 = None
    tokens: Annotated[
        str | None,
        Option(
            metavar="LABELS",
            help="Names of both queries and keys: a file with one per line, or a,b,c.",
            rich_help_panel=LABELS,
        ),
    ] = None
    query_labels: Annotated[
        str | None,
        Option(metavar="LABELS", help="Names of the queries only.", rich_help_panel=LABELS),
    ] = None
    key_labels: Annotated[
        str | None, Option(metavar="LABELS", help="Names of the keys only.", rich_help_panel=LABELS)
    ] = None

    def given(self) -> dict[str, object]:
        """Return the options that were given, under their Python names."""
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("files", "without", "dtype")
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
class AverageOptions:
    """The heads together."""

    average_heads: Annotated[
        bool,
        Option(
            "--average-heads", help="Average the weights over the heads.", rich_help_panel=SHOWN
        ),
    ] = False


@dataclass(eq=False, repr=False)
class OutputOptions:
    """What `compute` shows and saves."""

    show: Annotated[
        list[str] | None,
        Option(
            metavar="NAMES",
            autocompletion=list_of(*SHOWABLE),
            help=f"Which of {', '.join(SHOWABLE)}, separated by commas. Default: weights,context. "
            "Repeatable.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    format: Annotated[
        Literal["table", "markdown", "json", "yaml", "csv", "tsv", "npy", "npz"],
        Option(
            "--format",
            "-f",
            help="markdown has the tables of a pipe; csv, tsv and npy hold one array: the context, "
            "unless --show names another; csv and tsv also stats or top.",
            rich_help_panel=MOST_USED,
        ),
    ] = "table"
    save: Annotated[
        list[str] | None,
        Option(
            metavar="[NAME=]PATH",
            help="Write a file: context=c.csv, weights,lse=w.npz, or out.npz with what --show "
            "names. Repeatable.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    top: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Keys that --show top lists for each query. Default: 3.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Rows of a table; 0 shows all. Default: 20 in a terminal, 64 in a pipe.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    max_cols: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Columns of a table; 0 shows all. What does not fit a terminal stands below the "
            "rest. Default: what fits, or 64 in a pipe.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    with_labels: Annotated[
        bool,
        Option(
            "--with-labels",
            help="Write the names of queries and keys into CSV and TSV, too: above and in front of "
            "the numbers.",
            rich_help_panel=SHOWN,
        ),
    ] = False

    @property
    def is_tables(self) -> bool:
        """Whether tables for people are shown, cut and rounded."""
        return self.format in ("table", "markdown")

    @property
    def top_keys(self) -> int:
        """How many keys of each query are listed."""
        return self.top or 3


@dataclass(eq=False, repr=False)
class DigitsOptions:
    """How many digits a person sees."""

    digits: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            max=17,
            help="Decimals in tables, text and markdown; files and other formats hold every digit. "
            "Default: 4; explain takes 1 or more.",
            rich_help_panel=SHOWN,
        ),
    ] = None

    @property
    def decimals(self) -> int:
        """How many decimals a number has."""
        return 4 if self.digits is None else self.digits

    def tell_of_all(self, kind: str, *, quiet: bool) -> None:
        """Say that a format holds every digit, where another number of them was asked for."""
        if self.digits is not None:
            note(
                f"--digits: only for tables, text and markdown; {kind} holds every digit",
                quiet=quiet,
            )


@dataclass(eq=False, repr=False)
class RunOptions:
    """How the program runs."""

    threads: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="The most threads to use. Default: all cores that the process may use.",
            rich_help_panel=RUN,
        ),
    ] = None
    quiet: Quiet = False
    color: Color = "auto"
