"""The arithmetic of one query as data, from its products with the keys to its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted, labelled
from attncli.numerics.positions import rotation_angles

if TYPE_CHECKING:
    from attncli.errors.names import Score
    from attncli.problem.problem import Rope

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryNorm:
    """How the query is normalised: q = p / rms · w, where p = x · W + b."""

    projected: Array  # (D,): p
    rms: float  # √(mean of squares + ε) of p, or of all heads together
    epsilon: float
    weight: Array  # (D,): w
    joint: bool  # whether it is one norm of all heads together


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryMade:
    """How the query was made from its embedding: q = x · W + b."""

    given: Array  # (W,): the row of X as it is
    position: Array | None  # (W,): the encoding that is added to it
    weight: Array  # (W, D): the columns of W_q that make this head
    columns: tuple[int, int] | None  # the first and the last of these; None with one head
    bias: Array | None  # (D,)
    norm: QueryNorm | None  # the norm of x · W + b

    @property
    def embedding(self) -> Array:
        """The row of X plus its position, if any, (W,)."""
        return self.given if self.position is None else self.given + self.position


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputShare:
    """What the head adds to the output of the layer: context · W; all heads together add b."""

    weight: Array  # (E, out): the rows of W_o of this head
    bias: Array | None  # (out,)
    heads: int  # the number of heads; their shares and the bias add up to the output
    share: npt.NDArray[np.float64]  # (out,)


@dataclass(frozen=True)
class Reason:
    """A rule that hides a key (an option's name, or ``bias`` where -inf is added), and why."""

    rule: str
    words: str


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyStep:
    """What happens between the query and one key; a hidden key has a score of -inf."""

    index: int
    label: str | None
    given: Array  # (D,): the key as stored
    key: Array  # (D,): as it is compared, rotated if there is rope
    products: Array  # (D,): q_d · k_d; v_d · tanh(q_d + k_d) for the additive score
    dot: float  # their sum
    norm: float  # length of the key, for the cosine score
    raw: float  # from the engine, as are capped, score and weight
    capped: float
    bias: float  # 0 where there is none
    distance: int  # |i + offset - j|, in tokens
    penalty: float  # slope · distance; 0 without ALiBi
    hidden: tuple[Reason, ...]  # empty where the query sees the key
    score: float
    exponent: float  # score - shift
    exponential: float
    weight: float
    value: Array | None  # (E,)
    contribution: Array | None  # (E,): weight · value in float64; 0 for a hidden key


@dataclass(frozen=True, eq=False, kw_only=True)
class Rest:
    """The sums over the keys that are not listed one by one."""

    count: int
    hidden: int  # how many of them the query does not see
    rules: dict[str, int]  # how many each rule hides; several rules may hide the same key
    exponential: float
    weight: float
    contribution: Array | None  # (E,)

    @property
    def seen(self) -> int:
        """How many of them the query sees."""
        return self.count - self.hidden

    @property
    def hidden_by(self) -> str:
        """How many of them each rule hides, in words."""
        counts = ", ".join(f"{count:,} by {rule}" for rule, count in self.rules.items())
        shared = sum(self.rules.values()) > self.hidden
        return f"{counts} (some by several rules)" if shared else counts


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Every number in the computation of one query.

    Attributes
    ----------
    query : int
    query_label : str or None
    batch, head : int, or None where the inputs have no such axis
    kv_head : int, or None where each head has keys and values of its own
        The key/value head that the head reads.
    keys : int
        S, whether listed or not.
    position : int
        Where the query stands among the keys: i + offset.
    dtype : str
        What the engine computed in.
    kind : {"dot", "cosine", "general", "additive"}
    rope : Rope or None
    scale : float
    softcap, slope, sink : float or None
    has_bias : bool
    made : QueryMade or None
        Where the query came from, if it was projected.
    given : ndarray (D,)
        The query before any rotation.
    rotated : ndarray (D,), or None without rope
    compared : ndarray (D,)
        The query that is compared with the keys: rotated, and times W for ``general``.
    norm : float
        The length of ``compared``, for the cosine score.
    vector : ndarray (D,), or None
        v of the additive score.
    steps : tuple of KeyStep
        Every key in its order, or the strongest first where there are too many.
    rest : Rest or None
    shift : float
        The largest of scores and sink, subtracted before exp; 0 if the row is fully masked.
    sink_exponential : float
        exp(sink - shift); 0 without a sink.
    denominator : float
        Sum of all exponentials, sink included.
    lse : float
        The engine's logarithm of the softmax's denominator, in nats.
    context : ndarray (E,), or None without values
    output : OutputShare or None
        The head's share of the output, if there is an output projection.
    """

    query: int
    query_label: str | None
    batch: int | None
    head: int | None
    kv_head: int | None
    keys: int
    position: int
    dtype: str
    kind: Score
    rope: Rope | None
    scale: float
    softcap: float | None
    slope: float | None
    sink: float | None
    has_bias: bool
    made: QueryMade | None
    given: Array
    rotated: Array | None
    compared: Array
    norm: float
    vector: Array | None
    steps: tuple[KeyStep, ...]
    rest: Rest | None
    shift: float
    sink_exponential: float
    denominator: float
    lse: float
    context: Array | None
    output: OutputShare | None

    @property
    def angles(self) -> Array | None:
        """Angle by which each pair of query components turns, (n,), radians, or None."""
        if self.rope is None:
            return None
        frequencies = self.rope.of_width(len(self.given))
        angles: Array = rotation_angles(np.array([self.position]), frequencies)[0]
        return angles

    @property
    def own_vector(self) -> Array | None:
        """V of the additive score; None where it is all ones."""
        return None if self.vector is None or (self.vector == 1).all() else self.vector

    @property
    def partner(self) -> int:
        """Which component is paired with component 0."""
        if self.rope is None or self.rope.pairing != "half":
            return 1
        return len(self.rope.of_width(len(self.given)))

    @property
    def fully_masked(self) -> bool:
        """Whether the query sees no key."""
        return all(step.hidden for step in self.steps) and not (self.rest and self.rest.seen)

    def __repr__(self) -> str:
        query = labelled(self.query, self.query_label)
        return f"<Explanation: query {query}, {counted(self.keys, 'key')}>"

    def __str__(self) -> str:
        """Return what ``attncli explain`` prints."""
        from attncli.explanation.printing import as_text  # noqa: PLC0415 - it imports Rich

        return as_text(self)

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows: the explanation with formulas in LaTeX."""
        from attncli.explanation.printing import as_markdown  # noqa: PLC0415 - as above

        return as_markdown(self)
