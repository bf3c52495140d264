"""The options that several commands share; those of one command stand beside it."""

from typing import Any, Literal

from attncli.cli.declaring import (
    LABELS,
    LIST,
    MOST_USED,
    RULES,
    RUN,
    SCORES,
    SELF,
    SHAPES,
    SHOWN,
    Options,
    Rule,
    argument,
    by_name,
    count,
    number_option,
    one_of,
    option,
    switch,
)
from attncli.cli.terminal import note
from attncli.errors import UsageError
from attncli.errors.names import UPSTREAM, Align, MaskMeans, Pairing, PrecisionName, Score
from attncli.errors.text import quoted, whole_number
from attncli.numerics.indices import Indices, Picked, indices_in
from attncli.problem.layout import LAYOUTS

# ``--grad ones``: the gradient of the sum of the context, 1 everywhere.
ONES = "ones"


class ProblemOptions(Options):
    """The files and the rules of the problem."""

    COMBINATIONS: tuple[Rule, ...] = (
        Rule("alibi", "it uses the slopes of the paper", excludes="alibi_slopes"),
    )

    files: list[str] | None = argument(
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

    def arguments(self) -> dict[str, object]:
        """Return the given options that describe the problem."""
        elsewhere = {"files", "without", "dtype", "header", "layer", "call"}
        names = ProblemOptions.declared().keys() - elsewhere
        found = {name: value for name, value in self.given().items() if name in names}
        return found | ({"alibi_slopes": True} if found.pop("alibi", False) else {})


class ShardOptions(ProblemOptions):
    """A problem, or the part of it with only some queries or keys."""

    keys: str | None = option(
        SHAPES,
        "A:B",
        "Only keys A to B - 1, in their place: causal, window, ALiBi, rope, masks, bias and "
        "segments are those of the whole. A file of B rows or more holds the whole, one of B - A "
        "rows the part alone. Sinks count in the part with key 0. attncli merge joins parts.",
    )
    queries: str | None = option(SHAPES, "A:B", "Only queries A to B - 1, in the same way.")

    def arguments(self) -> dict[str, object]:
        """Return these, and the ranges of queries and keys."""
        ranges = {"queries": self.queries, "keys": self.keys}
        parts = {n: _part(f"--{n}", words) for n, words in ranges.items() if words is not None}
        return super().arguments() | parts


def _part(name: str, words: str) -> tuple[int, int | None]:
    first, colon, last = (part.strip() for part in words.partition(":"))
    start = whole_number(first) if first else 0
    stop = whole_number(last) if last else None
    if not colon or start is None or start < 0 or (last and (stop is None or stop <= start)):
        raise UsageError(f"{name}: expected a range A:B, as 8192:16384; found {quoted(words)}")
    return start, stop


class PickOptions(Options):
    """Which batch entries and heads are picked."""

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

    # Whether --batch and --head may pick several.
    SEVERAL = True

    def among(self, counts: tuple[int, int], axes: str) -> Picked:
        """Return the batch entries and heads that are picked; an axis may be missing."""
        return Picked(
            self._of_axis("batch", self.batch, counts[0], exists="b" in axes),
            self._of_axis("head", self.head, counts[1], exists="h" in axes),
        )

    def _of_axis(self, name: str, words: str | None, size: int, *, exists: bool) -> Indices | None:
        if words is None:
            return None
        if not exists:
            raise UsageError(
                f"--{name} {words}: the inputs have no such axis", hint="see --layout and --heads"
            )
        found = indices_in(f"--{name}", words, size)
        if isinstance(found, tuple) and not self.SEVERAL:
            raise UsageError(f"--{name}: expected one index; found {words}")
        return found


class PickOneOptions(PickOptions):
    """One batch entry, one head."""

    batch: str | None = option(
        SHOWN, "B", "Only one batch entry, counted from 0 (-1 is the last one)."
    )
    head: str | None = option(SHOWN, "H", "Only one head, counted from 0 (-1 is the last one).")
    SEVERAL = False


class AverageOptions(PickOptions):
    """Whether heads are averaged."""

    average_heads: bool = switch(SHOWN, "Average the weights over the heads.")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.average_heads and self.head is not None and not {*",:"} & {*self.head}:
            raise UsageError(
                f"--average-heads averages the heads, and --head {self.head} picks one",
                hint="leave one of the two out",
            )


class Formatted(Options):
    """The format of commands that print JSON."""

    format: str
    json: bool = switch(SHOWN, "The same as --format json.")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.json:
            if self.given().get("format", "json") != "json":
                raise UsageError(f"--json and --format {self.format}: leave one of the two out")
            self.format = "json"


class ScreenOptions(Options):
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

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.no_color:
            self.color = "never"


class RunOptions(ScreenOptions):
    """How the program runs."""

    threads: int | None = count(
        RUN, "N", "The most threads to use. Default: all cores that the process may use.", least=1
    )


class QuestionOptions(PickOptions, ProblemOptions, RunOptions):
    """A problem, and which of its batch entries and heads are picked."""

    what: Literal["weights", "scores"] = "weights"

    @property
    def takes_example(self) -> bool:
        """Whether the built-in example may stand for files, because a person sees the answer."""
        return True

    @property
    def also_read(self) -> list[str]:
        """The files that are read beside the problem; one may be standard input."""
        return []


class MergeOptions(QuestionOptions):
    """Whether subwords are joined."""

    merge: str | None = option(
        SHOWN,
        "words or FILE",
        "Join subwords (##ing, Ġ, ▁): weights are summed over keys and averaged over queries. A "
        "file has a group for each token: neighbours of one group are joined.",
    )

    @property
    def rollout(self) -> str | None:
        """``half`` multiplies all layers with the residual, ``raw`` without; None does not."""
        return None


class DigitsOptions(RunOptions):
    """How many digits a person sees."""

    digits: int = count(
        SHOWN,
        "N",
        "Decimals in tables, text and markdown; files and other formats hold every digit; explain "
        "takes 1 or more.",
        least=0,
        most=17,
        default=4,
    )

    def tell_of_all(self, kind: str) -> None:
        """Note that --digits changes nothing in a format that holds every digit."""
        if "digits" in self.given():
            words = f"--digits: only for tables, text and markdown; {kind} holds every digit"
            note(words, quiet=self.quiet)


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
        """The files of --grad."""
        return [file for file in self.upstream.values() if file != ONES]
