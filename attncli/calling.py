"""How a function of attncli says what is wrong with a call: the names of other libraries, too."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from attncli.elsewhere import ELSEWHERE, Here
from attncli.errors import UnknownArgumentError
from attncli.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["by_known_names", "unchecked"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LSE, _WEIGHTS = (Here("outputs", f": '{name}' is one of them") for name in ("lse", "weights"))
_RULE = Here("mask", ", causal or window: what the function lets see, as booleans or a rule")
_MEAN = Here("", "the mean of the weights over their heads is weights.mean(axis=-3)")
# What serves in Python for an argument of another library, or for an option of the command line.
_OF_FUNCTIONS = {
    **ELSEWHERE,
    "need_weights": Here("outputs"),
    "average_heads": _MEAN,
    "average_attn_weights": _MEAN,
    "tokens": Here("query_labels", " and key_labels, of pose"),
    "threads": Here("", "attention, solve, explain, check and project take it"),
    "outputs": Here("", "attention and solve take it"),
    "return_lse": _LSE,
    "return_softmax_lse": _LSE,
    "return_weights": _WEIGHTS,
    "return_attention_scores": Here("outputs", f"{_WEIGHTS.words}, as Keras calls them scores"),
    "return_attn_probs": _WEIGHTS,
    "score_mod": Here(
        "bias", ", softcap or alibi_slopes: what the function adds or bends, as numbers"
    ),
    "block_mask": _RULE,
    "mask_mod": _RULE,
    "q": Here("query"),
    "k": Here("key"),
    "v": Here("value"),
}


def by_known_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function say how it is called, where it is called otherwise."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            _refuse_call(function, args, kwargs)
            raise

    return checked


def unchecked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function without the look of `by_known_names`, for calls from inside."""
    bare: Callable[_P, _R] = vars(function)["__wrapped__"]
    return bare


def _refuse_call(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Raise where a function has not the arguments that it was called with."""
    import inspect  # noqa: PLC0415 - only an error pays for it

    name, signature = function.__name__, inspect.signature(function)
    unknown = next((each for each in kwargs if each not in signature.parameters), None)
    if unknown is not None:
        raise UnknownArgumentError(
            f"{name}() got an unexpected keyword argument {unknown!r}",
            hint=_OF_FUNCTIONS[unknown.lower()].hint()
            if unknown.lower() in _OF_FUNCTIONS
            else did_you_mean(unknown, signature.parameters),
        ) from None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        by_place = [
            each.name for each in signature.parameters.values() if each.kind != each.KEYWORD_ONLY
        ]
        raise UnknownArgumentError(
            f"{name}(): {error}", hint=f"by place it takes {', '.join(by_place)}, all else by name"
        ) from None
