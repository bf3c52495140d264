"""What a shell completes where an option takes words, and not the name of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["list_of", "one_of"]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Complete one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def list_of(*words: str) -> Callable[[str], list[str]]:
    """Complete the last word of a list with commas, in which each stands once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        left = [word for word in words if word not in before.split(",")]
        return [before + comma + word for word in one_of(*left)(last)]

    return complete
