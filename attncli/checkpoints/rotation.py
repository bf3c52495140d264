"""How a model rotates query and key, by its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncli.arguments import positive_number, shown
from attncli.checkpoints.rope_scaling import Rotary, scaled_frequencies
from attncli.errors import UsageError
from attncli.positions import BASE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.checkpoints.entries import Entries
    from attncli.checkpoints.models import Model

__all__ = ["SLIDING", "Rotation"]

Options = dict[str, Any]

SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Rotation:
    """The rotary embedding of a layer.

    Attributes
    ----------
    entries : Entries
    model : Model
    slides : bool
        Whether the layer sees only keys that are near.
    """

    entries: Entries
    model: Model
    slides: bool

    @property
    def is_applied(self) -> bool:
        """Whether the layer's query and key are rotated."""
        far = self.model.far_rotates
        if not self.slides and far != "always":
            return far == "without others" and self.entries.value("sliding_window") is None
        rotated, interval = (
            self.entries.value("no_rope_layers"),
            self.entries.count("no_rope_layer_interval"),
        )
        if isinstance(rotated, list):
            return bool(self.entries.of_layer(rotated))
        return interval is None or (self.entries.number_of_layer + 1) % interval != 0

    def options(self, width: int, scale: float, tokens: int | None) -> Options:
        """Return the options that rotate as the model does.

        Parameters
        ----------
        width : int
            Of a head.
        scale : float
            Of the scores.
        tokens : int or None
            How many there are, on which the frequencies of some models depend.

        Raises
        ------
        UsageError
            An entry is not what it should be, or attncli does not rotate so.
        """
        parameters = self._parameters
        base, rotated = self._base(parameters), self._rotated(parameters, width)
        reach = self.entries.value("max_position_embeddings")
        trained = self.entries.value("original_max_position_embeddings") or reach
        frequencies, factor = scaled_frequencies(
            Rotary(rotated, base, parameters, trained, reach, tokens, self.entries.file)
        )
        options: Options = {"rope": self.model.rotates}
        if factor != 1:
            if rotated < width:
                raise _partly_sharpened(factor, self.entries.file)
            options["scale"] = scale * factor**2
        if rotated == width and not parameters.keys() & {"rope_type", "type"}:
            return options | {"rope_base": base}
        return options | {"rope_frequencies": frequencies}

    def _rotated(self, parameters: Mapping[str, Any], width: int) -> int:
        """Return how many components of a head are rotated."""
        file, share = self.entries.file, parameters.get("partial_rotary_factor")
        if share is None:
            share = self.entries.value("partial_rotary_factor", "rotary_pct")
        share = positive_number(f"{file}: partial_rotary_factor", 1.0 if share is None else share)
        rotated = self.entries.count("rotary_dim") or int(width * min(share, 1.0))
        if rotated % 2 or not 0 < rotated <= width:
            raise UsageError(
                f"{file}: expected an even number of a head's {width} components to be rotated; "
                f"found {rotated}"
            )
        return rotated

    def _base(self, parameters: Mapping[str, Any]) -> float:
        base = parameters.get("rope_theta")
        if base is None and self.slides:
            base = self.entries.value("rope_local_base_freq", "local_rope_theta")
        if base is None:
            base = self.entries.value("global_rope_theta", "rope_theta", "rotary_emb_base")
        return positive_number(f"{self.entries.file}: rope_theta", BASE if base is None else base)

    @property
    def _parameters(self) -> Mapping[str, Any]:
        """The parameters of the layer, without what says that they are the plain ones."""
        given = self.entries.value("rope_parameters", "rope_scaling") or {}
        kind = SLIDING if self.slides else "full_attention"
        if isinstance(given, dict) and isinstance(given.get(kind), dict):
            given = given[kind]
        elif self.slides and self.model.near_unscaled:
            given = {}
        if not isinstance(given, dict):
            raise UsageError(
                f"{self.entries.file}: rope_parameters: expected a mapping; found {shown(given)}"
            )
        return {
            name: value
            for name, value in given.items()
            if value is not None and (name, value) != ("rope_type", "default")
        }


def _partly_sharpened(factor: float, file: str) -> UsageError:
    return UsageError(
        f"{file}: its rotary embedding multiplies only the rotated part of query and key, by "
        f"{factor:g}, which attncli does not do",
        hint="leave out --config, and give its options one by one",
    )
