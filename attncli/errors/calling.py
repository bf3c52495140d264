"""The signatures of attncli's functions, and the errors for a wrong call."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from attncli.errors import UnknownArgumentError
from attncli.errors.elsewhere import ELSEWHERE
from attncli.errors.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_P = ParamSpec("_P")
_R = TypeVar("_R")


def showing(keywords: type, defaults: Mapping[str, Any]) -> Callable[[_R], _R]:
    """Show the keys of a typed dict as parameters in the place of ``**keywords``.

    `help` and `inspect.signature` then see what a type checker sees.
    """
    types = inspect.get_annotations(keywords)
    rules = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=types[name].__forward_arg__,
        )
        for name, default in defaults.items()
    ]

    def shown(function: _R) -> _R:
        whole = inspect.signature(function)  # type: ignore[arg-type]
        own = [p for p in whole.parameters.values() if p.kind != p.VAR_KEYWORD]
        first = [p for p in own if p.kind != p.KEYWORD_ONLY]
        merged = whole.replace(parameters=[*first, *rules, *own[len(first) :]])
        function.__signature__ = merged  # type: ignore[attr-defined]
        return function

    return shown


def completed(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with their defaults; `by_known_names` reports unknown ones."""
    whole = {**defaults, **given}
    if len(whole) > len(defaults):
        raise TypeError
    return whole


def by_known_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function explain a wrong call."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            _refuse_call(function, args, kwargs)
            raise

    return checked


def unchecked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function without the checks of `by_known_names`, for internal calls."""
    bare: Callable[_P, _R] = vars(function)["__wrapped__"]
    return bare


def _refuse_call(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Raise an error if a call does not fit the signature of a function."""
    name, signature = function.__name__, inspect.signature(function)
    unknown = next((each for each in kwargs if each not in signature.parameters), None)
    if unknown is not None:
        here = ELSEWHERE.get(unknown.lower())
        raise UnknownArgumentError(
            f"{name}() got an unexpected keyword argument {unknown!r}",
            hint=here.hint() if here else did_you_mean(unknown, signature.parameters),
        ) from None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        by_place = [p.name for p in signature.parameters.values() if p.kind != p.KEYWORD_ONLY]
        raise UnknownArgumentError(
            f"{name}(): {error}", hint=f"by place it takes {', '.join(by_place)}, all else by name"
        ) from None
