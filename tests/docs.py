"""The README and docs/: their commands, what these print, and the pictures that they draw.

    python tests/docs.py          writes outputs, pictures, option pages and wording.md anew

A ``console`` block holds commands after ``$``. What they print follows them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# The one file that holds the wording of messages; its commands may fail.
WORDING = ROOT / "tests/wording.md"
COMMANDS = ("compute", "heatmap", "explain", "check", "merge", "info", "capture")
# Pixels of a page's picture.
SCREEN = {"width": 1100, "height": 700}
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]*)\)")


def pages() -> list[Path]:
    """Return the README and every page of docs."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def console_blocks(text: str) -> list[str]:
    """Return the inside of each console block."""
    return _CONSOLE.findall(text)


def commands(block: str) -> list[str]:
    """Return the commands of a block."""
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def pictures(page: Path) -> list[Path]:
    """Return the pictures that a page shows."""
    return [page.parent / name for name in _PICTURE.findall(page.read_text(encoding="utf-8"))]


def run(
    command: str, folder: str, *, errors: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run a shell command of a page with the samples at hand."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def played(
    block: str,
    folder: str,
    run: Callable[..., subprocess.CompletedProcess[str]] = run,
    *,
    may_fail: bool = False,
) -> str:
    """Return the block with what its commands print now."""
    lines = []
    for command in commands(block):
        # One stream, as in a terminal: what is said first stands first.
        result = run(command, folder, errors=subprocess.STDOUT)
        if result.returncode == 2 and not may_fail:
            raise AssertionError(f"{command}: {result.stdout}")
        shown = result.stdout.replace(f"{os.path.realpath(folder)}/", "…/")
        lines.append(f"$ {command}\n{shown}")
    text = "".join(part if part.endswith("\n") else part + "\n" for part in lines)
    text = re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n\n+(\$|$(?![\r\n]))", r"\n\1", text)


def workplace() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that holds the samples and the data of the tests, and nothing else."""
    folder = tempfile.TemporaryDirectory()
    for data in ("samples", "tests/data"):
        place = Path(folder.name) / data
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(ROOT / data)
    return folder


def option_page(command: str, run: Callable[..., subprocess.CompletedProcess[str]] = run) -> str:
    """Return the page of a command: its complete help."""
    shown = run(f"attncli {command} --help", str(ROOT)).stdout.rstrip()
    return f"# attncli {command}\n\n```text\n{shown}\n```\n"


def screenshot(page: Path, link: str, picture: Path) -> None:
    """Take a picture of a page that `heatmap` wrote, as Chromium shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport=SCREEN)
        tab.goto(f"file://{page}{link}")
        tab.wait_for_selector("#row tbody tr", state="attached")
        tab.wait_for_timeout(500)  # until everything is drawn
        tab.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Write outputs into all pages, the pictures of docs, and the pages of options."""
    for command in COMMANDS:
        (DOCS / f"reference/{command}.md").write_text(option_page(command), encoding="utf-8")
    for page in [*pages(), WORDING]:
        with workplace() as folder:
            text = page.read_text(encoding="utf-8")
            again = partial(played, folder=folder, may_fail=page == WORDING)
            text = _CONSOLE.sub(lambda found: f"```console\n{again(found[1])}```", text)  # noqa: B023
            page.write_text(text, encoding="utf-8")
            for picture in pictures(page):
                drawn = Path(folder) / picture.name
                if drawn.exists():
                    shutil.copyfile(drawn, picture)
                elif drawn.with_suffix(".html").exists():
                    link = re.search(rf"{drawn.stem}\.html(#[\w=&]+)", text)
                    screenshot(drawn.with_suffix(".html"), link[1] if link else "", picture)


if __name__ == "__main__":
    main()
