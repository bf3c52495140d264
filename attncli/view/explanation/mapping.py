"""An explanation as plain lists, mappings and numbers, for JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import SCHEMA

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.explanation.data import (
        Explanation,
        KeyStep,
        OutputShare,
        QueryMade,
        QueryNorm,
        Rest,
    )
    from attncli.problem.problem import Rope

__all__ = ["as_dict"]


def as_dict(explanation: Explanation) -> dict[str, object]:
    """Return every number of an explanation, without rounding.

    -inf and NaN are None, because JSON has no word for them. Numbers of the
    computing dtype have the fewest digits that give them back in that dtype.

    Parameters
    ----------
    explanation : Explanation

    Returns
    -------
    dict
        ``json.dumps(…, allow_nan=False)`` takes it.
    """
    exact = _Exact(explanation.dtype)
    return {
        "schema": SCHEMA,
        "query": {
            "index": explanation.query,
            "label": explanation.query_label,
            "position": explanation.position,
            "vector": exact.row(explanation.given),
            "angles": None if explanation.angles is None else explanation.angles.tolist(),
            "rotated": exact.row(explanation.rotated),
            "compared": exact.row(explanation.compared),
            "norm": exact.number(explanation.norm),
            "made": None if explanation.made is None else _made(explanation.made, exact),
        },
        "batch": explanation.batch,
        "head": explanation.head,
        "kv_head": explanation.kv_head,
        "key_count": explanation.keys,
        "dtype": explanation.dtype,
        "score": explanation.kind,
        "score_vector": exact.row(explanation.vector),
        "rope": None if explanation.rope is None else _rope(explanation.rope, exact),
        "scale": exact.number(explanation.scale),
        "softcap": exact.number(explanation.softcap),
        "alibi_slope": exact.number(explanation.slope),
        "keys": [_key(step, exact) for step in explanation.steps],
        "rest": None if explanation.rest is None else _rest(explanation.rest, exact),
        "sink": exact.number(explanation.sink),
        "sink_exponential": exact.number(explanation.sink_exponential),
        "shift": exact.engine(explanation.shift),
        "denominator": exact.number(explanation.denominator),
        "lse": exact.engine(explanation.lse),
        "context": exact.row(explanation.context),
        "output": None if explanation.output is None else _output(explanation.output, exact),
    }


class _Exact:
    """Numbers as JSON can hold them."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def number(self, number: float | None) -> float | None:
        """Return a float64, or None if it is not finite."""
        return number if number is not None and math.isfinite(number) else None

    def engine(self, number: float) -> float | None:
        """Return a number of the computing dtype with its own, fewer digits."""
        if not math.isfinite(number):
            return None
        own = self._dtype.type(number)
        short = float(str(own))
        # In rare cases rounding the short text twice gives a neighbouring number.
        return short if self._dtype.type(short) == own else number

    def row(self, row: npt.NDArray[Any] | None) -> list[float | None] | None:
        """Return the numbers of a row, each with the digits of its dtype."""
        if row is None:
            return None
        say = self.engine if row.dtype == self._dtype else self.number
        return [say(number) for number in row.tolist()]


def _made(made: QueryMade, exact: _Exact) -> dict[str, object]:
    return {
        "embedding": exact.row(made.embedding),
        "given": exact.row(made.given),
        "position": exact.row(made.position),
        "weight": [exact.row(row) for row in made.weight],
        "columns": None if made.columns is None else list(made.columns),
        "bias": exact.row(made.bias),
        "norm": None if made.norm is None else _norm(made.norm, exact),
    }


def _norm(norm: QueryNorm, exact: _Exact) -> dict[str, object]:
    return {
        "projected": exact.row(norm.projected),
        "rms": norm.rms,
        "epsilon": norm.epsilon,
        "weight": exact.row(norm.weight),
        "joint": norm.joint,
    }


def _output(output: OutputShare, exact: _Exact) -> dict[str, object]:
    return {
        "weight": [exact.row(row) for row in output.weight],
        "bias": exact.row(output.bias),
        "heads": output.heads,
        "share": output.share.tolist(),
    }


def _rope(rope: Rope, exact: _Exact) -> dict[str, object]:
    base = exact.number(rope.base) if rope.frequencies is None else None
    frequencies = None if rope.frequencies is None else list(rope.frequencies)
    return {"pairing": rope.pairing, "base": base, "frequencies": frequencies}


def _key(step: KeyStep, exact: _Exact) -> dict[str, object]:
    return {
        "index": step.index,
        "label": step.label,
        "given": exact.row(step.given),
        "vector": exact.row(step.key),
        "products": exact.row(step.products),
        "dot": exact.number(step.dot),
        "norm": exact.number(step.norm),
        "raw": exact.engine(step.raw),
        "capped": exact.engine(step.capped),
        "bias": exact.engine(step.bias),
        "distance": step.distance,
        "alibi": exact.number(-step.penalty + 0.0),
        "hidden": [{"rule": reason.rule, "why": reason.words} for reason in step.hidden],
        "score": exact.engine(step.score),
        "exponent": exact.number(step.exponent),
        "exponential": exact.number(step.exponential),
        "weight": exact.engine(step.weight),
        "value": exact.row(step.value),
        "contribution": exact.row(step.contribution),
    }


def _rest(rest: Rest, exact: _Exact) -> dict[str, object]:
    return {
        "count": rest.count,
        "hidden": rest.hidden,
        "hidden_by": dict(rest.rules),
        "exponential": exact.number(rest.exponential),
        "weight": exact.number(rest.weight),
        "contribution": exact.row(rest.contribution),
    }
