"""Self-attention and cross-attention: embeddings and weights become query, key and value."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attncli.errors import ShapeError, UsageError
from attncli.gather.entries import NORMS, PROJECTIONS
from attncli.numerics.array_likes import as_ndarray
from attncli.problem.arguments import flag, layout_axes, names_of
from attncli.problem.projection import project

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from attncli.gather.reader import Gathered
    from attncli.problem.projection import Projected

Arguments = dict[str, object]
_WEIGHTS = ("wq", "wk", "wv", "wo")
_ROLES = {"query": "x", "key": "key_source", "value": "value_source"}


def project_arguments(gathered: Gathered, *, threads: int | None) -> None:
    """Replace embeddings and weights by query, key and value."""
    arguments, sources = gathered.arguments, gathered.sources
    _transpose(arguments, sources)
    given = {name: arguments.pop(name) for name in PROJECTIONS if name in arguments}
    beside = {name: arguments.pop(name) for name in (*NORMS, "positions") if name in arguments}
    if "x" in arguments and "query" in arguments:
        raise UsageError(
            "x and query are both given, but x is for making query",
            hint="--without x leaves it out of a problem file",
        )
    if not given:
        _refuse_without_weights(arguments, beside)
        return
    were = {*arguments}
    embeddings = {own: arguments.pop(name) for name, own in _ROLES.items() if name in arguments}
    embeddings |= {"x": arguments.pop("x")} if "x" in arguments else {}
    if "x" not in embeddings:
        raise UsageError("x is missing: wq, wk and wv make query, key and value from it")
    gathered.notes += _unprojected(given, embeddings)
    turned = _turned(arguments.get("layout"))
    # In cross-attention, users know the sources under the names query, key and value.
    roles = {own: name for name, own in _ROLES.items() if own in embeddings and name in were}
    names = sources | {own: sources.get(name, name) for own, name in roles.items()}
    batch_first = {name: turned(array) for name, array in embeddings.items()}
    options: dict[str, Any] = batch_first | given | beside
    precision, output = cast("Any", arguments.get("precision")), arguments.get("wo")
    if precision is None and output is not None and as_ndarray("wo", output).dtype == np.float64:
        precision = "float64"  # with an output projection in float64, all is computed in float64
    made = project(**options, precision=precision, sources=names, threads=threads)
    arguments |= {"query": turned(made.query), "key": turned(made.key)}
    if made.value is not None:
        arguments["value"] = turned(made.value)
    # Errors about query, key and value name the files that these are made from.
    query = names.get("x")
    key = names.get("key_source", query)
    made_from = {"query": query, "key": key, "value": names.get("value_source", key)}
    sources |= {name: f"projected from {file}" for name, file in made_from.items() if file}
    # With the general score, query and key may have different widths.
    if arguments.get("score") != "general":
        count_heads(arguments, made.query.shape[-1], made.key.shape[-1])
    _refuse_norms_across_heads(arguments, made, sources)
    gathered.projected = replace(made, norm_before=gathered.norm_before)


def _transpose(arguments: Arguments, sources: dict[str, str]) -> None:
    """Transpose weights from (out, in) to (in, out) if ``transposed`` says so."""
    if not flag("transposed", arguments.pop("transposed", False)):
        return
    names = [name for name in _WEIGHTS if name in arguments]
    if not names:
        raise UsageError("transposed is for wq, wk, wv and wo, and none of them is given")
    for name in names:
        arguments[name] = as_ndarray(name, arguments[name]).T
        sources[name] = f"{sources.get(name, name)}, transposed"


def _unprojected(given: Collection[str], embeddings: Collection[str]) -> list[str]:
    """Return the note about inputs without a projection, if there are any."""
    stay = [name for name in ("query", "key") if f"w{name[0]}" not in given]
    # Without a value, only scores and weights are computed.
    stay += ["value"] if "wv" not in given and "value_source" in embeddings else []
    options = " and ".join(f"--w{name[0]}" for name in stay)
    verb = "stays" if len(stay) == 1 else "stay"
    return [f"without {options}, {' and '.join(stay)} {verb} as given"] if stay else []


def _turned(layout: object) -> Callable[[Any], Any]:
    """Return a function that brings embeddings to (B, L, W), and back."""
    # Checked before it is compared: a problem file may hold an array as the layout.
    axes = "bsd" if layout is None else layout_axes("layout", layout)
    if axes not in ("sd", "bsd", "sbd"):
        raise UsageError(
            f"layout {axes!r} does not fit embeddings, which are (L, W), (B, L, W) or, with layout "
            "sbd, (L, B, W)",
            hint="leave layout out",
        )

    def turned(array: Any) -> Any:
        given = as_ndarray("x", array) if axes == "sbd" else array
        return given.swapaxes(0, 1) if axes == "sbd" and given.ndim == 3 else given

    return turned


def _refuse_without_weights(arguments: Arguments, beside: Collection[str]) -> None:
    for name in ("x", *beside):
        if name in beside or name in arguments:
            raise UsageError(
                f"{name} belongs to embeddings that are projected, but wq, wk and wv are missing",
                hint="give --wq, --wk and --wv, or --checkpoint; or give query, key and value",
            )


def count_tokens(arguments: Arguments) -> int | None:
    """Return the number of tokens of the keys; None without embeddings."""
    source = arguments.get("key", arguments.get("x"))
    if source is None:
        return None
    given = as_ndarray("x", source)
    if given.ndim < 2:
        return None
    return int(given.shape[0 if arguments.get("layout") == "sbd" else -2])


def count_heads(arguments: Arguments, query_width: int, key_width: int) -> None:
    """Add a missing head count: heads of queries and keys have the same width."""
    heads, kv_heads = arguments.get("heads"), arguments.get("kv_heads")
    sinks = as_ndarray("sinks", arguments.get("sinks", ()))
    if heads is None and kv_heads is None and sinks.size > 1:
        heads = arguments["heads"] = sinks.size
    # Wrong counts are refused later.
    if kv_heads is None and isinstance(heads, int) and heads > 0 and query_width != key_width:
        shared, rest = divmod(heads * key_width, query_width)
        if shared and not rest:
            arguments["kv_heads"] = shared
    elif heads is None and isinstance(kv_heads, int) and kv_heads > 0:
        count, rest = divmod(kv_heads * query_width, key_width)
        if count and not rest:
            arguments["heads"] = count


def _refuse_norms_across_heads(
    arguments: Arguments, made: Projected, sources: dict[str, str]
) -> None:
    """Refuse norms that have neither the width of a head nor that of all heads."""
    heads = arguments.get("heads")
    counts = {"q_norm": heads, "k_norm": arguments.get("kv_heads", heads)}
    for name, packed in (("q_norm", made.query), ("k_norm", made.key)):
        weight, count = made.arguments[name], counts[name]
        if weight is None or not (count is None or isinstance(count, Integral)):
            continue
        width = packed.shape[-1]
        if len(weight) not in (width, width // (count or 1)):
            raise ShapeError(
                f"{names_of(sources)(name)}: expected {width // (count or 1)} numbers, the width "
                f"of a head, or {width}, of all heads; found {len(weight)}",
                hint=None if count else "give heads (--heads)",
            )
