"""An explanation as plain lists, mappings and numbers, for JSON."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import SCHEMA

if TYPE_CHECKING:
    from attncli.explanation.data import Explanation, KeyStep

_OF_QUERY = ("angles", "rotated", "compared", "norm")


def as_dict(explanation: Explanation) -> dict[str, object]:
    """Return every number of an explanation without rounding; infinities and NaN are None."""
    e, plain = explanation, _Plain(np.dtype(explanation.dtype))
    rope = e.rope and {
        "pairing": e.rope.pairing,
        "base": plain(e.rope.base) if e.rope.frequencies is None else None,
        "frequencies": plain(e.rope.frequencies),
    }
    return {
        "schema": SCHEMA,
        "query": {
            "index": e.query,
            "label": e.query_label,
            "position": e.position,
            "vector": plain(e.given),
            **{name: plain(getattr(e, name)) for name in _OF_QUERY},
            "made": e.made and {"embedding": plain(e.made.embedding), **plain(e.made)},
        },
        "batch": e.batch,
        "head": e.head,
        "kv_head": e.kv_head,
        "key_count": e.keys,
        "dtype": e.dtype,
        "score": e.kind,
        "score_vector": plain(e.vector),
        "rope": rope,
        "scale": plain(e.scale),
        "softcap": plain(e.softcap),
        "alibi_slope": plain(e.slope),
        "keys": [_key(step, plain) for step in e.steps],
        "rest": e.rest and {**plain(e.rest, "rules"), "hidden_by": e.rest.rules},
        "sink": plain(e.sink),
        "sink_exponential": plain(e.sink_exponential),
        "shift": plain.short(e.shift),
        "denominator": plain(e.denominator),
        "lse": plain.short(e.lse),
        "context": plain(e.context),
        "output": plain(e.output),
    }


class _Plain:
    """Numbers as JSON has them, with no more digits than the computing dtype needs."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def __call__(self, thing: Any, *without: str) -> Any:
        """Return a number, an array or a dataclass as JSON has it, without some fields."""
        if isinstance(thing, float):
            return thing if math.isfinite(thing) else None
        if isinstance(thing, np.ndarray):
            say = self.short if thing.dtype == self._dtype else self
            return [self(row) if thing.ndim > 1 else say(float(row)) for row in thing]
        if isinstance(thing, tuple):
            return [self(each) for each in thing]
        if is_dataclass(thing) and not isinstance(thing, type):
            names = [one.name for one in fields(thing) if one.name not in without]
            return {name: self(getattr(thing, name)) for name in names}
        return thing

    def short(self, number: float) -> float | None:
        """Return a number with the fewest digits that give it back in the computing dtype."""
        if not math.isfinite(number):
            return None
        own = self._dtype.type(number)
        short = float(str(own))
        # In rare cases rounding the short text twice gives a neighbouring number.
        return short if self._dtype.type(short) == own else number


def _key(step: KeyStep, plain: _Plain) -> dict[str, object]:
    data = {"index": step.index, "label": step.label, "given": plain(step.given)}
    data |= {"vector": plain(step.key), **plain(step, *data, "key", "penalty")}
    for name in ("raw", "capped", "bias", "score", "weight"):
        data[name] = plain.short(getattr(step, name))
    hidden = [{"rule": reason.rule, "why": reason.words} for reason in step.hidden]
    return data | {"alibi": plain(-step.penalty + 0.0), "hidden": hidden}
