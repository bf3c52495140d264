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
    fields = kind.__dataclass_fields__
    made = object.__new__(kind)
    held = vars(made)
    held.update(vars(instance))
    if len(held) != len(fields):
        # What has been worked out of the fields, which cached properties keep beside them.
        for name in held.keys() - fields.keys():
            del held[name]
    held.update(changes)
    if len(held) != len(fields):
        unknown = ", ".join(sorted(changes.keys() - fields.keys()))
        raise TypeError(f"{kind.__name__} has no field {unknown}")
    return made
