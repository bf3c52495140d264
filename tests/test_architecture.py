"""The imports of the package, held to the table of who may know whom.

A part is a package (``loading``, ``view``) or a module of its own (``gather``) in attncli.
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

from attncli.cli.commands import COMMANDS
from attncli.referee import topics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = sorted((ROOT / "attncli").rglob("*.py"))

DEPENDENCIES = {"numpy", "typer", "rich", "matplotlib", "yaml", "threadpoolctl", "orjson"}
# What only an extra installs.
EXTRAS = {"torch", "transformers"}
# Who may import it; parts and packages that are not named here may be imported by anybody.
IMPORTED_BY = {
    "cli": {"__main__"},
    "api": {"cli"},
    "save": {"capture", "cli"},
    "torch": {"capture", "loading"},
    "transformers": {"capture"},
    "view": {"cli", "explanation"},
    "loading": {"cli", "gather"},
    "gather": {"cli", "loaded"},
    "typer": {"cli"},
    "rich": {"cli", "view"},
    "matplotlib": {"view"},
    "yaml": {"loading"},
    "threadpoolctl": {"threads"},
    "orjson": {"loading", "save"},
}
# What a part must do without, itself and through whatever it imports.
NEVER = {
    "errors": {"numpy"},
    "text": {"numpy"},
    "problem": {"pathlib", "typer", "rich", "loading", "save", "view", "engine"},
    "visibility": {"pathlib", "typer", "rich", "loading", "save", "view", "engine", "errors"},
    "positions": {"pathlib", "typer", "rich", "loading", "save", "view", "engine"},
    "engine": {"tempfile", "typer", "rich", "loading", "save", "view", "posing", "gather"},
    "threads": {"tempfile", "typer", "rich", "problem", "arguments", "errors", "engine"},
    "loading": {"arguments", "problem", "engine", "posing", "rich", "typer", "save", "view"},
    "save": {"engine", "posing", "rich", "typer", "loading", "view"},
    "posing": {"engine", "typer", "rich", "loading", "save", "view", "gather"},
    "summaries": {"typer", "rich", "loading", "save", "view", "gather", "api"},
    "referee": {"typer", "rich", "loading", "save", "view", "gather"},
    "view": {"typer", "loading", "save", "gather"},
}
# Imported inside functions only, so that what does not need them starts without.
LAZY = {"yaml", "threadpoolctl", "safetensors", "orjson"}


class Import(NamedTuple):
    name: str
    lazy: bool

    @property
    def part(self) -> str:
        names = self.name.split(".")
        return names[1] if names[0] == "attncli" and len(names) > 1 else names[0]


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "attncli").with_suffix("").parts[0]


def imports(node: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            # `from attncli import arguments` names a module.
            whole = child.module == "attncli"
            yield from (
                Import(f"attncli.{alias.name}" if whole else str(child.module), lazy)
                for alias in child.names
            )
        else:
            yield from imports(child, lazy=lazy or isinstance(child, ast.FunctionDef))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def imported(path: Path) -> frozenset[Import]:
    return frozenset(imports(tree(path)))


PARTS = {part_of(path) for path in FILES}


@cache
def known_by(part: str) -> frozenset[str]:
    """Return what a part imports, directly."""
    found = {one.part for path in FILES if part_of(path) == part for one in imported(path)}
    return frozenset(found - {part})


def test_the_table_names_what_there_is() -> None:
    named = set(IMPORTED_BY).union(NEVER, *IMPORTED_BY.values(), *NEVER.values())
    assert named - PARTS <= DEPENDENCIES | EXTRAS | {"pathlib", "tempfile"}


@pytest.mark.parametrize("name", IMPORTED_BY)
def test_only_these_import(name: str) -> None:
    assert {part for part in PARTS if name in known_by(part)} <= IMPORTED_BY[name]


@pytest.mark.parametrize("part", NEVER)
def test_a_part_does_without(part: str) -> None:
    assert part in PARTS
    reached, new = set(), {part}
    while new:
        reached |= new
        new = {name for one in new & PARTS for name in known_by(one)} - reached
    assert not reached & NEVER[part]


def test_the_engine_reads_no_file_but_to_count_cores() -> None:
    parts = {"engine", "threads"}
    engine = [path for path in FILES if part_of(path) in parts and path.stem != "cores"]
    assert engine
    assert not {one.part for path in engine for one in imported(path)} & {"pathlib", "io"}
    calls = [n.func.id for path in engine for n in nodes(path) if is_plain_call(n)]
    assert "open" not in calls


def test_errors_import_nothing() -> None:
    assert known_by("errors") == {"__future__"}


def test_nothing_flows_back() -> None:
    graph = {part: known_by(part) & PARTS for part in PARTS}
    assert len(list(TopologicalSorter(graph).static_order())) == len(PARTS)


@pytest.mark.parametrize("part", sorted({p.parent.parent.name for p in FILES} & PARTS))
def test_nothing_flows_back_between_the_folders_of_a_part(part: str) -> None:
    """Modules beside the folders of a part may be above some of them and below others."""
    folders = {p.parent for p in FILES if p.parent.parent == ROOT / "attncli" / part}
    graph: dict[str, set[str]] = {}
    for folder in folders:
        names = {one.name for path in folder.glob("*.py") for one in imported(path)}
        known = {other.name for other in folders for name in names if f".{other.name}." in name}
        graph[folder.name] = known - {folder.name}
    assert len(list(TopologicalSorter(graph).static_order())) == len(folders)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_keeps_the_habits(path: Path) -> None:
    late = {one.part for one in imported(path) if not one.lazy}
    assert not late & LAZY, "imported at the top, needed seldom"
    assert not {one.name for one in imported(path)} & {"click", "pickle", "attncli"}
    calls = {node.func.id for node in nodes(path) if is_plain_call(node)}
    assert "print" not in calls or part_of(path) == "cli"
    assert not calls & {"eval", "exec", "input"}
    assert not any(isinstance(node, ast.Assert) for node in nodes(path))
    assert "stdout" not in {
        node.attr for node in nodes(path) if isinstance(node, ast.Attribute)
    } or part_of(path) in {"cli", "save"}


def is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_matplotlib_is_where_files_are_drawn_alone() -> None:
    users = {p.parent.name for p in FILES if any(one.part == "matplotlib" for one in imported(p))}
    assert users == {"figure"}


def test_what_is_not_ours_is_what_the_project_depends_on() -> None:
    outside = {one.part for found in map(imported, FILES) for one in found} - PARTS
    assert outside - set(sys.stdlib_module_names) <= DEPENDENCIES | EXTRAS


@cache
def handed_out(path: Path) -> set[str]:
    """Return the names in a module's ``__all__``."""
    lists = [
        node.value
        for node in tree(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return set(ast.literal_eval(lists[0])) if lists else set()


MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES}
MODULES |= {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def test_what_is_imported_is_handed_out() -> None:
    missing = {
        f"{node.module}.{alias.name}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if alias.name not in handed_out(MODULES[node.module])
    }
    assert missing - set(MODULES) == set()


def dotted(node: ast.AST) -> list[str]:
    """Return the names in `a.b.c`; none where anything else stands before a dot."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def taken(path: Path) -> set[tuple[str, str]]:
    """Return the names of modules that a file imports, or takes out of modules it imports."""
    found, known = set(), {}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.add((node.module, alias.name))
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.Call) and dotted(node.func) == ["late"]:
            found.add(tuple(map(ast.literal_eval, node.args)))
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and (names := dotted(node)) and names[0] in known:
            names[:1] = known[names[0]].split(".")
            found |= {(".".join(names[:at]), names[at]) for at in range(1, len(names))}
    return found


def test_what_is_handed_out_is_taken() -> None:
    idle = {
        (module, name)
        for module, path in MODULES.items()
        # Users take what the package hands out.
        if module != "attncli" and not module.endswith(".__init__")
        for name in handed_out(path)
    }
    # Commands are imported by their names.
    idle -= {(f"attncli.cli.{name}", name) for name in COMMANDS}
    for path in [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        # Most files need not be looked at: what is looked for is soon found.
        if any(name in text for _, name in idle):
            idle -= taken(path)
    assert idle == set()


def test_every_topic_of_mistakes_is_used() -> None:
    used = {
        node.attr
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "topics"
    }
    assert {name for name, value in vars(topics).items() if isinstance(value, topics.Topic)} <= used


def test_the_map_for_contributors_names_every_part():
    guide = ROOT / ".github/CONTRIBUTING.md"
    if not guide.exists():
        pytest.skip("a copy without it")
    text = guide.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = Counter(name for row in rows for name in re.findall(r"`(\w+)`", row))
    parts = {part_of(path) for path in FILES} - {"__init__", "__main__", "_version"}
    assert set(named) == parts
    assert max(named.values()) == 1
