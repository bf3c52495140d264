"""Frozen dataclasses with some fields replaced, which a search makes by the hundred thousand."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

__all__ = ["replace"]


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Instance = TypeVar("Instance", bound=_Dataclass)


def replace(instance: Instance, **changes: Any) -> Instance:
    """Do as `dataclasses.replace`, in a fifth of the time.

    Of dataclasses whose fields are all arguments and lie in ``__dict__``, and without
    ``__post_init__``.

    Raises
    ------
    TypeError
        A name is not that of a field.
    """
    kind = type(instance)
    # Not what has been worked out of the fields, which cached properties keep beside them.
    fields = kind.__dataclass_fields__
    held = {name: value for name, value in vars(instance).items() if name in fields}
    held.update(changes)
    if len(held) != len(fields):
        unknown = ", ".join(sorted(changes.keys() - fields.keys()))
        raise TypeError(f"{kind.__name__} has no field {unknown}")
    made = object.__new__(kind)
    vars(made).update(held)
    return made
