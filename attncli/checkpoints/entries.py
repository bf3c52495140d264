"""The entries of a model's configuration, under the names that models have for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncli.arguments import flag, positive_int, positive_number, shown
from attncli.checkpoints.defaults import DEFAULTS
from attncli.errors import UsageError
from attncli.text import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Entries"]

# More than any model has, of components, of tokens that a window spans.
_MOST = 2**24
_NUMBER = re.compile(r"(?:^|[./])(?:layers?|blocks?|h)[./](\d{1,9})(?:[./]|$)")


@dataclass(frozen=True)
class Entries:
    """What a configuration says, and of which layer it is asked.

    Attributes
    ----------
    config : mapping
        As its JSON has it.
    prefix : str
        Of the layer's members.
    file : str
        How errors name the configuration.
    """

    config: Mapping[str, Any]
    prefix: str
    file: str

    def value(self, *names: str) -> Any:
        """Return the first of some entries that is there, perhaps in the part on attention.

        An entry of null is none; one that is not there is what Transformers takes for it.
        """
        inner = self.config.get("attn_config")
        parts = [self.config, inner if isinstance(inner, dict) else {}]
        for entries in parts:
            for name in names:
                if entries.get(name) is not None:
                    return entries[name]
        if any(name in entries for entries in parts for name in names):
            return None
        defaults = DEFAULTS[self.kind]
        return next((defaults[name] for name in names if name in defaults), None)

    def count(self, *names: str, most: int = _MOST) -> int | None:
        """Return the first of some entries, which is to be a whole number."""
        value = self.value(*names)
        if value is None:
            return None
        name = f"{self.file}: {names[0]}"
        count = positive_int(name, value)
        if count > most:
            raise UsageError(f"{name}: expected at most {most}; found {shown(value)}")
        return count

    def number(self, *names: str) -> float | None:
        """Return the first of some entries, which is to be a positive number."""
        value = self.value(*names)
        return None if value is None else positive_number(f"{self.file}: {names[0]}", value)

    def says(self, name: str, *, otherwise: bool) -> bool:
        """Return an entry that is to be true or false."""
        value = self.value(name)
        return otherwise if value is None else flag(f"{self.file}: {name}", value)

    @property
    def kind(self) -> str:
        """The type of the model."""
        return str(self.config["model_type"])

    @property
    def number_of_layer(self) -> int:
        """Which one the layer is, counted from 0."""
        found = _NUMBER.findall(self.prefix)
        if not found:
            raise UsageError(
                f"{self.file}: layers of this model differ, and {quoted(self.prefix)} does not say "
                "which one it is",
                hint="name it as in model.safetensors#model.layers.3.self_attn",
            )
        return int(found[-1])

    def of_layer(self, entries: list[Any]) -> Any:
        """Return the layer's own of a list of entries for each."""
        number = self.number_of_layer
        if number >= len(entries):
            raise UsageError(f"{self.file}: has {len(entries)} layers; found layer {number}")
        return entries[number]
