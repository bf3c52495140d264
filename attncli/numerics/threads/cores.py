"""How many cores this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return how many cores this process may use, by affinity and by its control group."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, quota(_GROUPS, _own_group()) or cores))


@cache
def quota(root: Path, group: str) -> int | None:
    """Return the cores that a control group and its parents grant, rounded up; None for no limit.

    Groups are mounted under ``root`` (Linux kernel, "Control Group v2", ``cpu.max``).
    """
    folder = root / group.lstrip("/")
    folders = [folder, *folder.parents]
    limits = [_text(one / "cpu.max").split() for one in folders[: folders.index(root) + 1]]
    # "max 100000" means no limit; otherwise microseconds of processor time in each period.
    granted = [-(-int(each[0]) // int(each[1])) for each in limits if each and each[0].isdigit()]
    return min(granted, default=None)


@cache
def _own_group() -> str:
    """Return the path of this process's control group of version 2."""
    lines = _text(Path("/proc/self/cgroup")).splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "/")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
