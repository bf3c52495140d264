"""The README and docs are true: their commands run, and print what the pages say."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from oracle import attention_2d
from piping import piped
from process import long_but

import docs
from attncli.cli.commands import COMMANDS

PAGES = docs.pages()
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
NAMES = {page: str(page.relative_to(docs.ROOT)) for page in PAGES}
# The pictures of the gallery are large, and the README and the guides draw of every kind.
BLOCKS = [
    pytest.param(
        block,
        id=f"{NAMES[page]}: {block[:40].strip()}",
        marks=[pytest.mark.long] * (page.stem == "gallery" and "$ attncli heatmap" in block),
    )
    for page in PAGES
    for block in docs.console_blocks(TEXTS[page])
]


WORDINGS = docs.console_blocks(docs.WORDING.read_text(encoding="utf-8"))


@pytest.fixture
def folder():
    with docs.workplace() as name:
        yield name


@pytest.fixture
def run(folder, attncli, monkeypatch):
    """Run a command, in this process where it asks little of the shell."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(command, folder=folder, errors=subprocess.PIPE):
        first, _, last = command.rpartition("; ")
        if first and last.startswith("attncli "):
            before, ran = call(first, folder, errors), call(last, folder, errors)
            ran.stdout = before.stdout + ran.stdout
            return ran
        loud = re.sub(r" > ?/dev/null$", "", command)
        if loud != command:
            ran = call(loud, folder)
            ran.stdout = ran.stderr if errors == subprocess.STDOUT else ""
            return ran
        steps = [shlex.split(step) for step in command.split(" | ")]
        if {step[0] for step in steps} != {"attncli"} or re.search(r"[&;<>$*]", command):
            return docs.run(f"set -o pipefail; {command}", folder, errors=errors)
        ran = attncli(*steps[0][1:])
        for step in steps[1:]:
            assert not ran.err
            with piped(ran.good().out):
                ran = attncli(*step[1:])
        out, err = ran.out.decode(), ran.err.decode()
        if errors == subprocess.STDOUT:
            out, err = err + out, None
        return subprocess.CompletedProcess(command, ran.code, out, err)

    return call


@pytest.mark.parametrize("block", BLOCKS)
def test_console_block_prints_what_it_says(block, folder, run):
    assert without_noise(docs.played(block, folder, run)) == without_noise(block)


@pytest.mark.parametrize("block", WORDINGS, ids=lambda block: block[:40].strip())
def test_messages_are_worded_as_recorded(block, folder, run):
    assert without_noise(docs.played(block, folder, run, may_fail=True)) == without_noise(block)


def without_noise(text):
    """Blank out rounding errors, which differ between processors."""
    return re.sub(r"\d(\.\d+)?e-1\d", "…", text)


def shell_blocks(page):
    return re.findall(r"```sh\n(.*?)```", TEXTS[page], re.DOTALL)


def test_the_readme_installs_and_runs_the_main_job(folder):
    install, _, command = shell_blocks(docs.README)[0].strip().rpartition(" && ")
    assert install == "python3 -m venv .venv && . .venv/bin/activate && pip install ."
    assert docs.run(command, folder).stdout.strip() in TEXTS[docs.README]


def test_the_readme_installs_and_passes_the_tests():
    install = "python3 -m venv .venv && . .venv/bin/activate"
    assert shell_blocks(docs.README)[1] == f"{install} && pip install '.[test]' && pytest\n"


def test_the_readme_is_short_and_the_first_result_comes_early():
    lines = TEXTS[docs.README].splitlines()
    assert len(lines) <= 200
    assert lines.index("weights") < 25


def recipes():
    blocks = [block for page in PAGES for block in shell_blocks(page)[2 * (page == docs.README) :]]
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def by_loops(*files, **options):
    matrices = (np.loadtxt(file, delimiter=",").tolist() for file in files)
    return attention_2d(*matrices, **options)[1]


@pytest.fixture
def place(folder):
    """The folder with the files that the recipes name."""
    place = Path(folder)
    for name in ("q.csv", "k.csv", "v.csv"):
        shutil.copy(place / "samples/tutorial" / name, place / name)
        np.save(place / f"{name[0]}.npy", np.loadtxt(place / name, delimiter=","))
    files = [place / name for name in ("q.csv", "k.csv", "v.csv")]
    np.save(place / "out.npy", np.array(by_loops(*files)))
    np.save(place / "wrong.npy", np.array(by_loops(*files, scale=1)))
    (place / "problems").mkdir()
    shutil.copy(place / "samples/sentence.yaml", place / "problems/one.yaml")
    return place


@pytest.mark.parametrize("line", recipes())
def test_recipe_runs(line, place, run):
    if "jq" in line and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    result = run(line)
    if "wrong.npy" in line:
        assert (result.returncode, result.stderr) == (1, "")
        assert result.stdout.split() == ["unscaled"]
        return
    assert (result.returncode, result.stderr) == (0, "")
    if "report.json" in line:
        assert json.loads((place / "report.json").read_text(encoding="utf-8"))["passed"] is True
    for made in re.findall(r"--out (\w+\.png)|context=(\w+\.npy)", line):
        assert (place / "".join(made)).stat().st_size > 100
    if "problems/" in line:
        assert (place / "problems/one.png").exists()
    if "weights.npy" in line:
        assert np.load(place / "weights.npy")[0] == pytest.approx(
            [0.4711, 0.2645, 0.2645], abs=1e-4
        )
    if "jq" in line:
        assert float(result.stdout) == pytest.approx(0.2645, abs=1e-4)


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", TEXTS[page]):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in TEXTS[page]], ids=NAMES.get
)
def test_python_blocks_are_doctests(page, monkeypatch):
    monkeypatch.chdir(docs.ROOT)
    for block in re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL):
        test = doctest.DocTestParser().get_doctest(block, {}, page.name, None, 0)
        assert test.examples
        runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
        assert runner.run(test).failed == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_pytorch_dumps_is_judged(folder, run, dtype):
    torch = pytest.importorskip("torch")
    text = TEXTS[docs.DOCS / "guides/inputs.md"]
    (block,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"`(attncli check dump\.safetensors .*?)`", text)
    torch.manual_seed(0)
    # Heads that were split off the width, as a layer has them, and gradients.
    query, key, value = (
        torch.randn(2, 5, 3, 4, dtype=getattr(torch, dtype), requires_grad=True).transpose(1, 2)
        for _ in range(3)
    )
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    exec(block, {"query": query, "key": key, "value": value, "out": out})
    assert run(command).returncode == 0


@pytest.mark.parametrize("command", docs.COMMANDS)
def test_the_page_of_a_command_is_its_help(command, run):
    page = docs.DOCS / f"reference/{command}.md"
    assert TEXTS[page] == docs.option_page(command, run)


def test_every_command_has_a_page():
    assert {*COMMANDS} == {*docs.COMMANDS}


def test_every_option_is_spelled_as_the_program_spells_it():
    helps = [text for page, text in TEXTS.items() if page.stem in docs.COMMANDS]
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "".join(helps)))
    for page, text in TEXTS.items():
        told = {
            option
            for line in text.splitlines()
            if "attncli" in line or line.startswith("|")
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)
        }
        assert told - known - {"--strict", "--version"} == set(), NAMES[page]


@pytest.mark.parametrize("page", long_but(PAGES, docs.README), ids=NAMES.get)
def test_pictures_are_of_the_size_that_their_commands_draw(page, folder, run):
    drawing = [
        command
        for block in docs.console_blocks(TEXTS[page])
        if re.search(r"--out \S+\.(png|html)", block)
        for command in docs.commands(block)
    ]
    for command in drawing:
        assert run(command).returncode == 0
    for shown in docs.pictures(page):
        drawn = Path(folder) / shown.name
        if page == docs.README:
            drawn = Path(folder) / "weights.png"
        # A browser is needed for a page, and a model for what capture records.
        if drawn.with_suffix(".html").exists():
            assert shown.stat().st_size > 20_000
        elif not shown.name.startswith("captured"):
            sizes = [np.frombuffer(file.read_bytes()[16:24], ">u4") for file in (drawn, shown)]
            # Labels are as wide as the version of the library that draws them makes them.
            np.testing.assert_allclose(*sizes, rtol=0.05)
