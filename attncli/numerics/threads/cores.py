"""How many cores this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

__all__ = ["available_cores"]

_GROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return how many cores this process may use, by affinity and by cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, quota(_GROUPS, *_own_groups()) or cores))


@cache
def quota(root: Path, group: str, cpu_group: str = "/") -> int | None:
    """Return the cores that a control group grants, rounded up; None if there is no limit.

    Parameters
    ----------
    root : Path
        Where the groups are mounted.
    group, cpu_group : str
        The paths of the process's groups of version 2, and of version 1 for the processor. Their
        parents' limits apply too.

    References
    ----------
    Linux kernel documentation, "Control Group v2", section "CPU Interface Files"
    (``cpu.max``); version 1: ``cpu.cfs_quota_us``.
    """
    granted = [
        *(_share(folder / "cpu.max") for folder in _within(root, group)),
        *(_share_of_version_1(folder) for folder in _within(root / "cpu", cpu_group)),
    ]
    return min(filter(None, granted), default=None)


def _within(root: Path, group: str) -> list[Path]:
    """Return the folder of a group and those of its parents; a container may not see all."""
    folder = root / group.lstrip("/")
    folders = [folder, *folder.parents]
    return folders[: folders.index(root) + 1]


@cache
def _own_groups() -> tuple[str, str]:
    """Return the paths of this process's control groups: version 2, and 1 for the processor."""
    lines = [line.split(":", 2) for line in _text(Path("/proc/self/cgroup")).splitlines()]
    paths = {name: path for _, names, path in filter(_is_whole, lines) for name in names.split(",")}
    return paths.get("", "/"), paths.get("cpu", "/")


def _is_whole(line: list[str]) -> bool:
    return len(line) == len(("number", "controllers", "path"))


def _share(file: Path) -> int | None:
    words = _text(file).split()
    return _cores(*words) if len(words) == 2 else None


def _share_of_version_1(folder: Path) -> int | None:
    return _cores(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _cores(allowed: str, period: str) -> int | None:
    """Return ⌈allowed / period⌉; None for ``max`` or −1, which mean no limit."""
    allowed, period = allowed.strip(), period.strip()
    if not (allowed.isdigit() and period.isdigit() and int(period)):
        return None
    return -(-int(allowed) // int(period)) or None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
