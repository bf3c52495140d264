"""`attention` and `solve`: the computation as a function, of arrays or of a posed problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from attncli.engine import Progress, attend, result_shapes
from attncli.engine.averaging import average_weights, refuse_without_heads
from attncli.errors import UsageError, warn
from attncli.errors.calling import by_known_names, completed, showing, unchecked
from attncli.errors.names import OUTPUTS
from attncli.errors.text import did_you_mean
from attncli.problem import arguments
from attncli.problem.advice import advise, fully_masked_advice
from attncli.problem.posing import RULES, Rules, pose
from attncli.problem.problem import posed_problem
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from attncli.problem.problem import Problem

__all__ = ["attention", "solve", "solve_averaged"]


@by_known_names
@showing(Rules, RULES)
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike | None = None,
    *,
    threads: int | None = None,
    outputs: str | Collection[str] | None = None,
    **rules: Unpack[Rules],
) -> Attention:
    r"""Compute softmax(scale · QKᵀ) V with every rule the field uses, in this order.

    .. code-block:: text

        raw     = scale · Q Kᵀ                    (after rope; or another score function)
        capped  = softcap · tanh(raw / softcap)
        scores  = capped + bias − slope · |i + offset − j|, and −inf where hidden
        weights = softmax(scores) over the keys, sinks in the denominator
        context = weights · V

    Letters: B batch, H query heads, G key/value heads, L queries, S keys, D and E the
    widths of key and value.

    Parameters
    ----------
    query : array_like (…, L, D)
        2-D, 3-D or 4-D, see ``layout``. float16, bfloat16, float32 or float64;
        integers are computed in float64.
    key : array_like (…, S, D)
        With G heads where query has H: query head h reads key/value head h // (H/G). A batch of
        1, of the query or of key and value, stands for all batch entries of the others.
    value : array_like (…, S, E), optional
        Needed for the context only; without it only the weights are computed.
    scale : float, optional
        1/√D unless given (1 for ``score`` other than ``"dot"``). 1 is the plain dot
        product.
    mask : array_like of bool, optional
        True where the query may attend to the key; broadcasts to the weights.
    mask_means : {"keep", "drop"}
        ``"drop"``: true in ``mask`` and ``key_padding_mask`` hides instead
        (`torch.nn.MultiheadAttention`).
    bias : array_like, optional
        Added to the scores; broadcasts to the weights. Numbers up to a quarter of the range of
        the computing dtype, 8.5e37 in float32, and −inf.
    key_padding_mask : array_like of bool (B, S) or (S,), optional
        True where the key is a real one.
    kv_lengths, query_lengths : int or array_like (B,), optional
        How many keys and queries are real. Padded queries see no key: their weights and context
        are 0.
    causal : bool
        Query i sees key j only if j ≤ i + offset.
    causal_align : {"top-left", "bottom-right"}, optional
        offset = 0 (PyTorch, JAX, ONNX; the default), or S − L, or kv_length − L
        (FlashAttention, KV-cache decoding).
    query_offset : int or array_like (B,), optional
        The offset itself.
    window : int or (left, right), optional
        Query i sees keys i + offset − left to i + offset + right; −1 or None is
        unbounded; n is (n, n).
    segment_ids, kv_segment_ids : array_like of int (B, L) or (L,), (B, S) or (S,), optional
        For packed sequences: the number of the sequence that each query and key belongs to. A
        query sees only keys of its own sequence. Without ``kv_segment_ids``, keys have the numbers
        of the queries.
    softcap : float, optional
        Scores are squeezed into ±softcap by softcap · tanh(raw / softcap), before bias and rules.
    alibi_slopes : True or array_like (H,), optional
        True takes the slopes of the paper.
    sinks : array_like (H,), optional
        One logit per head that counts in the denominator only (gpt-oss).
    rope : {"half", "interleaved"}, optional
        Rotate query and key first; the first query stands at the offset.
    rope_base : float
        Pair p turns by base^(−2p/D) radians for each position.
    rope_frequencies : array_like (n,), optional
        The radians that pair p turns for each position, instead of the base (``inv_freq`` in
        Transformers); components beyond the first 2n are not rotated.
    score : {"dot", "cosine", "general", "additive"}
        q · k, their cosine, q W k, or v · tanh(q + k).
    score_weight : array_like (D, D), optional
        W of ``"general"``: its rows belong to the query, its columns to the key, whose width
        may differ.
    score_vector : array_like (D,), optional
        v of ``"additive"``; ones unless given.
    heads, kv_heads : int, optional
        Split the width of 2-D or 3-D inputs into this many heads. Without ``kv_heads``, key and
        value have as many as the query.
    layout : {"sd", "bsd", "hsd", "sbd", "shd", "bhsd", "bshd", "sbhd"}, optional
        The axes, s being the sequence; ``"bsd"`` and ``"bhsd"`` unless given.
    precision : {"float32", "float64"}, optional
        The computing dtype; the widest input dtype unless given, at least float32.
    threads : int, optional
        The most threads to use; by default one for each core that the process may use. Small
        problems use only the calling thread.
    outputs : str or collection of str, optional
        What to compute: any of weights, context, scores, raw, capped and lse. By default the
        weights and, with a value, the context. Without an L × S output, no L × S array above
        1 MB is held, except the booleans made from a mask of numbers or of the other polarity.

    Returns
    -------
    Attention
        In the computing dtype; outputs not asked for are None. Weights below twice the smallest
        normal number of the dtype, 2.4e−38 in float32, may be 0.

    Raises
    ------
    AttnError
        An argument is wrong, by itself or together with another. It is a `ValueError`, too.

    Warns
    -----
    AttnWarning
        The result is right but probably not what was meant.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Examples
    --------
    >>> from attncli import attention
    >>> answer = attention([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [2.0]], scale=1)
    >>> answer.weights.round(4)
    array([[0.7311, 0.2689]])
    >>> answer.context.round(4)
    array([[1.2689]])
    """
    problem = _posed(query, key, value, unread=True, **completed(RULES, rules))
    return _solved(problem, outputs, threads=threads)


@by_known_names
def solve(
    problem: Problem,
    outputs: str | Collection[str] | None = None,
    *,
    threads: int | None = None,
    into: Mapping[str, npt.NDArray[Any]] | None = None,
    progress: Progress | None = None,
) -> Attention:
    """Compute the outputs of a problem that was posed before.

    Parameters
    ----------
    problem : Problem
        From `attncli.pose` or `attncli.load`.
    outputs, threads
        As in `attention`.
    into : mapping of str to ndarray, optional
        Arrays to compute outputs into, such as memory-mapped files: (B, H, L, S), for context
        (B, H, L, E), for lse (B, H, L), in the computing dtype. None may share memory with an
        input, which later blocks still read.
    progress : callable, optional
        Called from any thread with blocks done and blocks in all.

    Returns
    -------
    Attention
        Its arrays are views of the arrays of ``into``; the context of packed heads is a copy.

    Raises
    ------
    UsageError
        An output is unknown, or context is asked for without a value; an array of ``into`` is not
        as above; or ``problem``, ``threads`` or ``progress`` is not what it should be.
    DataError
        A score, or the context after its projection, exceeds the range of the computing dtype; or
        query, key or value, where the problem was posed unread, is not finite.

    Warns
    -----
    AttnWarning
        Some queries see no key, or float16 inputs have products beyond float16.
    """
    posed_problem(problem)
    outputs = _outputs_of(problem, outputs)
    if into is not None:
        _check_room(problem, outputs, into)
    if progress is not None and not callable(progress):
        raise UsageError(f"progress: expected a function; found {arguments.shown(progress)}")
    threads = arguments.thread_count(threads)
    advise(problem)
    answer, fully_masked = attend(problem, outputs, threads=threads, into=into, progress=progress)
    if fully_masked:
        warn(fully_masked_advice(problem, fully_masked))
    if problem.output is None or answer.context is None:
        return answer
    return replace(answer, context=problem.projected(answer.context, threads=threads))


def solve_averaged(
    problem: Problem,
    outputs: Collection[str],
    *,
    threads: int | None,
    progress: Progress | None = None,
    into: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Attention:
    """Return the same as `solve`, but with weights averaged over the heads.

    Raises
    ------
    UsageError
        There is no head axis.
    """
    refuse_without_heads(problem.layout.weight_axes)
    others = [name for name in outputs if name != "weights"]
    rooms = dict(into or {})
    mean = rooms.pop("weights", None)
    if "weights" not in outputs:  # `solve` still warns of queries that see no key
        return solve(problem, others, threads=threads, into=rooms)
    answer = solve(problem, others, threads=threads, into=rooms) if others else Attention()
    if not others:
        advise(problem)
    weights, fully_masked = average_weights(problem, threads=threads, progress=progress, into=mean)
    if fully_masked and not others:
        warn(fully_masked_advice(problem, fully_masked))
    return replace(answer, weights=weights)


_posed, _solved = unchecked(pose), unchecked(solve)


def _check_room(
    problem: Problem, outputs: Collection[str], into: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Refuse arrays that the outputs cannot be computed into."""
    if not isinstance(into, Mapping):
        raise UsageError(f"into: expected a mapping of arrays; found {arguments.shown(into)}")
    shapes = result_shapes(problem, outputs)
    inputs = problem.arrays
    for name, array in into.items():
        if name not in shapes:
            raise UsageError(f"into: expected outputs that are asked for; found {name!r}")
        if name == "context" and problem.output is not None:
            raise UsageError("into: the context is projected (wo), and not computed into an array")
        found = getattr(array, "shape", None), getattr(array, "dtype", None)
        if found != (shapes[name], problem.dtype) or not array.flags.writeable:
            raise UsageError(
                f"into: expected a writable array of {problem.dtype.name} and of shape "
                f"{arguments.shape_text(shapes[name])} for {name}"
            )
        if any(np.may_share_memory(array, given) for given in inputs):
            raise UsageError(f"into: the array for {name} shares memory with an input")
    for one, other in combinations(into, 2):
        if np.may_share_memory(into[one], into[other]):
            raise UsageError(f"into: the arrays for {one} and {other} share memory")


def _outputs_of(problem: Problem, outputs: object) -> Collection[str]:
    """Return the outputs asked for; by default the weights and, with a value, the context."""
    if outputs is None:
        return ("weights",) if problem.value is None else ("weights", "context")
    asked = (outputs,) if isinstance(outputs, str) else outputs
    if not isinstance(asked, (tuple, Sequence, AbstractSet)):
        raise UsageError(_no_output(asked))
    for name in asked:
        if not isinstance(name, str) or name not in OUTPUTS:
            hint = did_you_mean(name, OUTPUTS) if isinstance(name, str) else None
            raise UsageError(_no_output(name), hint=hint)
    if "context" in asked and problem.value is None:
        raise UsageError(
            "the context needs a value",
            hint="give value, or ask for weights only (outputs, --show)",
        )
    return asked


def _no_output(found: object) -> str:
    return f"outputs: expected names of {', '.join(OUTPUTS)}; found {arguments.shown(found)}"
