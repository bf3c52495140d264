"""The arithmetic of one query as data, from its products with the keys to its context.

`attncli.explanation.explaining.explain` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted, labelled
from attncli.numerics.positions import rotation_angles

if TYPE_CHECKING:
    from attncli.errors.names import Score
    from attncli.explanation.reasons import Reason
    from attncli.problem.problem import Rope

__all__ = ["Explanation", "KeyStep", "OutputShare", "QueryMade", "QueryNorm", "Rest"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryNorm:
    """How the query is normalised: q = p / rms · w, of p = x · W + b.

    Attributes
    ----------
    projected, weight : ndarray (D,)
        p and w.
    rms, epsilon : float
        √(mean of squares + ε) of p, or of those of all heads together; and ε.
    joint : bool
        Whether it is one norm of all heads together.
    """

    projected: Array
    rms: float
    epsilon: float
    weight: Array
    joint: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryMade:
    """How the query was made from its embedding: q = x · W + b.

    Attributes
    ----------
    given : ndarray (W,)
        The row of X as it is.
    position : ndarray (W,), or None
        The encoding that is added to it.
    weight : ndarray (W, D)
        The columns of W_q that make this head.
    columns : (first, last), or None
        Which these are, of more than one head.
    bias : ndarray (D,), or None
    norm : QueryNorm or None
        What is done to x · W + b.
    keys_normed : bool
        Whether keys are normalised, too; values never are.
    """

    given: Array
    position: Array | None
    weight: Array
    columns: tuple[int, int] | None
    bias: Array | None
    norm: QueryNorm | None
    keys_normed: bool

    @property
    def embedding(self) -> Array:
        """The row of X, with its position where one is added, (W,)."""
        return self.given if self.position is None else self.given + self.position

    def products(self, column: int) -> npt.NDArray[np.float64]:
        """Return x_w · W_wd for one column d of the query, (W,)."""
        return self.embedding.astype(np.float64) * self.weight[:, column]


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputShare:
    """What the head adds to the output of the layer: context · W; all heads together add b.

    Attributes
    ----------
    weight : ndarray (E, out)
        The rows of W_o of this head.
    bias : ndarray (out,), or None
    heads : int
        How many heads' shares, together with the bias, make the output.
    share : ndarray (out,) of float64
        context · weight.
    """

    weight: Array
    bias: Array | None
    heads: int
    share: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyStep:
    """What happens between the query and one key.

    Attributes
    ----------
    index : int
    label : str or None
    given, key : ndarray (D,)
        The key as stored, and as it is compared: rotated if there is rope.
    products : ndarray (D,) of float64
        q_d · k_d; v_d · tanh(q_d + k_d) for the additive score.
    dot : float
        Their sum.
    norm : float
        Length of the key, for the cosine score.
    raw, capped, score, weight : float
        The engine's; the score of a hidden key is -inf.
    bias : float
        0 where there is none.
    distance : int
        |i + offset - j|, in tokens.
    penalty : float
        slope · distance; 0 without ALiBi.
    hidden : tuple of Reason
        Empty where the query sees the key.
    exponent, exponential : float
        score - shift, and exp(score - shift).
    value, contribution : ndarray (E,), or None without values
        The contribution is weight · value, in float64; 0 for a hidden key.
    """

    index: int
    label: str | None
    given: Array
    key: Array
    products: Array
    dot: float
    norm: float
    raw: float
    capped: float
    bias: float
    distance: int
    penalty: float
    hidden: tuple[Reason, ...]
    score: float
    exponent: float
    exponential: float
    weight: float
    value: Array | None
    contribution: Array | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Rest:
    """The keys that are not listed one by one, summed up.

    Attributes
    ----------
    count, hidden : int
        How many there are, and how many of them the query does not see.
    rules : dict of str to int
        How many of them each rule hides; several rules may hide the same key.
    exponential, weight : float
        Sums over them.
    contribution : ndarray (E,), or None without values
    """

    count: int
    hidden: int
    rules: dict[str, int]
    exponential: float
    weight: float
    contribution: Array | None

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
        The query as it came.
    rotated : ndarray (D,), or None without rope
    compared : ndarray (D,)
        The query as it meets the keys: rotated, and multiplied by W for ``general``.
    norm : float
        Its length, for the cosine score.
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
        Where the context goes, if there is an output projection.
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
        """V of the additive score where it is not all ones, which stand in its place unsaid."""
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
        rest = self.rest
        return all(step.hidden for step in self.steps) and (
            rest is None or rest.hidden == rest.count
        )

    def __repr__(self) -> str:
        query = labelled(self.query, self.query_label)
        return f"<Explanation: query {query}, {counted(self.keys, 'key')}>"

    def __str__(self) -> str:
        """Return what ``attncli explain`` prints."""
        from attncli.explanation.terminal import as_text  # noqa: PLC0415 - it imports Rich

        return as_text(self)

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows: the explanation with formulas in LaTeX."""
        from attncli.explanation.markdown import as_markdown  # noqa: PLC0415 - as above

        return as_markdown(self)
