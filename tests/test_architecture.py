"""The imports of the package, held to the table of who may know whom.

A room is a package (``loading``, ``view``) or a module of its own (``api``) in attncli.
Imports for type checkers alone do not count; those inside functions do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from process import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = sorted((ROOT / "attncli").rglob("*.py"))
MOST_ROOMS, MOST_FLOORS = 18, 9

DEPENDENCIES = {"numpy", "typer", "rich", "matplotlib", "PIL", "yaml", "threadpoolctl", "orjson"}
# Of extras: imported where the user has them.
OPTIONAL = {"torch", "transformers", "safetensors", "dask", "distributed", "zarr"}
# Who may import it; rooms and packages that are not named here may be imported by anybody.
IMPORTED_BY = {
    "cli": {"__main__"},
    "save": {"cli", "capture"},
    "view": {"cli", "explanation"},
    "loading": {"cli", "gather"},
    "typer": {"cli"},
    "rich": {"cli", "view", "explanation"},
    "matplotlib": {"view"},
    "PIL": {"loading", "view"},
    "yaml": {"loading"},
    "threadpoolctl": {"numerics"},
    "orjson": {"loading", "save"},
}
# What a room must do without, itself and through whatever it imports.
NEVER = {
    "errors": {"numpy", "numerics", "problem"},
    "numerics": {"problem", "engine", "typer", "rich", "loading", "save", "view"},
    "problem": {"engine", "typer", "rich", "loading", "save", "view", "gather"},
    "engine": {"tempfile", "typer", "rich", "loading", "save", "view", "gather"},
    "loading": {"problem", "engine", "rich", "typer", "save", "view"},
    "save": {"engine", "rich", "typer", "loading", "view"},
    "summaries": {"typer", "rich", "loading", "save", "view", "gather"},
    "referee": {"typer", "rich", "loading", "save", "view", "gather"},
    "view": {"typer", "loading", "save", "gather"},
}
# Imported inside functions only, so that what does not need them starts without.
LAZY = {"PIL", "yaml", "threadpoolctl", "orjson", *OPTIONAL}


class Import(NamedTuple):
    name: str
    lazy: bool

    @property
    def room(self) -> str:
        names = self.name.split(".")
        return names[1] if names[0] == "attncli" and len(names) > 1 else names[0]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "attncli").with_suffix("").parts[0]


ROOMS = {room_of(path) for path in FILES}


def imports(node: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            names = [alias.name for alias in child.names if alias.name in ROOMS]
            # `from attncli import __version__` is of the package itself.
            whole = "attncli.__init__" if child.module == "attncli" else str(child.module)
            yield from (Import(f"attncli.{n}" if names else whole, lazy) for n in names or [""])
        else:
            yield from imports(child, lazy=lazy or isinstance(child, ast.FunctionDef))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[Import]:
    return frozenset(imports(tree(path)))


@cache
def known_by(room: str) -> frozenset[str]:
    """Return what a room imports, directly."""
    found = {one.room for path in FILES if room_of(path) == room for one in imported(path)}
    return frozenset(found - {room})


# `__init__` hands out what others make, when it is asked for; its constants are for anybody.
@cache
def graph() -> dict[str, frozenset[str]]:
    return {room: known_by(room) & ROOMS - {"__init__"} for room in ROOMS - {"__init__"}}


def test_rooms_and_floors_are_few_and_nothing_flows_back() -> None:
    floors: dict[str, int] = {}
    for room in TopologicalSorter(graph()).static_order():  # raises on a circle
        floors[room] = 1 + max((floors[other] for other in graph()[room]), default=0)
    assert len(ROOMS) <= MOST_ROOMS, sorted(ROOMS)
    assert max(floors.values()) <= MOST_FLOORS, floors


@pytest.mark.parametrize("name", IMPORTED_BY)
def test_only_these_import(name: str) -> None:
    assert {room for room in ROOMS if name in known_by(room)} <= IMPORTED_BY[name]


@pytest.mark.parametrize("room", NEVER)
def test_a_room_does_without(room: str) -> None:
    assert room in ROOMS
    reached, new = set(), {room}
    while new:
        reached |= new
        new = {name for one in new & graph().keys() for name in known_by(one)} - reached
    assert not reached & NEVER[room]


def test_what_is_not_ours_is_what_the_project_depends_on() -> None:
    outside = {one.room for found in map(imported, FILES) for one in found} - ROOMS
    assert outside - set(sys.stdlib_module_names) <= DEPENDENCIES | OPTIONAL


def test_every_module_keeps_the_habits() -> None:
    for path in FILES:
        see_habits(path)


def see_habits(path: Path) -> None:
    room, nodes = room_of(path), [*ast.walk(tree(path))]
    early = {one.room for one in imported(path) if not one.lazy}
    assert not early & LAZY or room in {"capture", "dask"}, "imported at the top, needed seldom"
    assert not {one.name for one in imported(path)} & {"click", "pickle", "attncli"}
    calls = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert "print" not in calls or room == "cli"
    assert not calls & {"eval", "exec", "input"}
    assert "open" not in calls or room not in {"engine", "problem", "numerics"}
    assert not any(isinstance(node, ast.Assert) for node in nodes)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert "stdout" not in attributes or room in {"cli", "save"}


# --- what a module defines ---------------------------------------------------------------------

MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def defined(path: Path) -> set[str]:
    """Return the names that a module defines, or that a package hands out in ``__all__``."""
    names, body = set(), tree(path).body
    guarded = [node for test in body if isinstance(test, ast.If) for node in test.body]
    for node in (*body, *guarded):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            names |= {name.id for name in stored if isinstance(name.ctx, ast.Store)}
            if any(name.id == "__all__" for name in stored):
                names |= set(ast.literal_eval(node.value))
    return names


def test_what_is_imported_is_defined_there_and_public() -> None:
    found = {
        f"{node.module}.{alias.name}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if re.match("_(?!_)", alias.name) or alias.name not in defined(MODULES[node.module])
    }
    assert found - set(MODULES) == set()


def test_every_function_is_used() -> None:
    """The name of each function and class that no decorator registers stands somewhere else."""
    files = [*FILES, *(ROOT / "tests").rglob("*.py")]
    words = Counter(w for p in files for w in re.findall(r"\w+", p.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.ClassDef)
    nodes = [node for path in FILES for node in tree(path).body if isinstance(node, kinds)]
    lazy = {"__getattr__", "__dir__"}  # called by Python
    plain = {node.name for node in nodes if not node.decorator_list} - lazy
    assert {name for name in plain if words[name] < 2} == set()


def test_the_map_for_contributors_names_every_room() -> None:
    guide = ROOT / "CONTRIBUTING.md"
    if not guide.exists():
        pytest.skip("a copy without it")
    rows = re.findall(r"^\| (`.*?) \|", guide.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(ROOMS - {"__init__", "__main__"})
