"""The README is true: its commands run, and print what it says."""

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
import readme
from oracle import attention_2d
from piping import piped

TEXT = readme.README.read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def folder():
    with readme.workplace() as name:
        yield name


@pytest.fixture
def run(folder, attncli, monkeypatch):
    """Run a command, in this process where it asks no more of the shell than a pipe."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(command, folder=folder, errors=subprocess.PIPE):
        steps = [shlex.split(step) for step in command.split(" | ")]
        if {step[0] for step in steps} != {"attncli"} or re.search(r"[&;<>$*]", command):
            return readme.run(f"set -o pipefail; {command}", folder, errors=errors)
        ran = attncli(*steps[0][1:])
        for step in steps[1:]:
            assert not ran.err
            with piped(ran.good().out):
                ran = attncli(*step[1:])
        out, err = ran.out.decode(), ran.err.decode()
        if errors == subprocess.STDOUT:
            # In a terminal too: test_a_note_stands_before_what_it_is_on.
            out, err = err + out, None
        return subprocess.CompletedProcess(command, ran.code, out, err)

    return call


@pytest.mark.parametrize("block", readme.console_blocks(TEXT), ids=lambda block: block[:40].strip())
def test_console_block_prints_what_it_says(block, folder, run):
    assert without_noise(readme.played(block, folder, run)) == without_noise(block)


def without_noise(text):
    """Blank out rounding errors: they differ from processor to processor."""
    return re.sub(r"\d(\.\d+)?e-1\d", "…", text)


def test_first_block_installs_and_runs_the_main_job(folder):
    install, _, command = SHELL[0].strip().rpartition(" && ")
    assert install == "python3 -m venv .venv && . .venv/bin/activate && pip install ."
    assert readme.run(command, folder).stdout.strip() in TEXT


def test_second_block_installs_and_passes_the_tests():
    install = "python3 -m venv .venv && . .venv/bin/activate"
    assert SHELL[1] == f"{install} && pip install '.[test]' && pytest\n"


def recipes():
    _, _, *blocks = SHELL
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


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_mistakes_of_a_right_output_are_none(place, run):
    (line,) = (line for line in recipes() if "wrong.npy" in line)
    result = run(line.replace("wrong.npy", "out.npy"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_links_lead_to_headings():
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    known = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]*)\)", TEXT)
    assert [*dict.fromkeys(links)] == links
    assert set(links) == known


def test_python_blocks_are_doctests(monkeypatch):
    monkeypatch.chdir(readme.ROOT)
    assert PYTHON
    for block in PYTHON:
        test = doctest.DocTestParser().get_doctest(block, {}, "README", None, 0)
        assert test.examples
        runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
        assert runner.run(test).failed == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_pytorch_dumps_is_judged(folder, run, dtype):
    torch = pytest.importorskip("torch")
    (block,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)
    (command,) = re.findall(r"`(attncli check dump\.safetensors .*?)`", TEXT)
    torch.manual_seed(0)
    # Heads that were split off the width, as a layer has them, and gradients.
    query, key, value = (
        torch.randn(2, 5, 3, 4, dtype=getattr(torch, dtype), requires_grad=True).transpose(1, 2)
        for _ in range(3)
    )
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    exec(block, {"query": query, "key": key, "value": value, "out": out})
    assert f"context: ok ({dtype}, shape (2, 3, 5, 4))" in run(command).stdout
    for name, tensor in {"q": query, "k": key, "v": value, "out": out}.items():
        np.save(f"{name}.npy", tensor.detach().float().cpu().numpy())
    again = run("attncli check q.npy k.npy v.npy --expect out.npy")
    assert f"context: ok ({dtype}" in again.stdout


def test_every_command_is_documented(run):
    listed = run("attncli --help").stdout.partition("Commands:")[2]
    commands = re.findall(r"^  (\w+) ", listed, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        assert f"**`attncli {command}`**" in TEXT


def test_every_option_is_spelled_as_the_program_spells_it(run):
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    listed = run("attncli --help").stdout
    for command in re.findall(r"^  (\w+) ", listed.partition("Commands:")[2], re.MULTILINE):
        listed += run(f"attncli {command} --help").stdout
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", listed))
    assert told - known == set()


def test_the_picture_is_of_the_size_that_its_command_draws(folder, run):
    (command,) = (
        line
        for block in readme.console_blocks(TEXT)
        for line in readme.commands(block)
        if "weights.png" in line
    )
    assert run(command).returncode == 0
    drawn = (Path(folder) / "weights.png").read_bytes()
    shown = (readme.ROOT / "samples/pictures/minilm-head-1.png").read_bytes()
    width, height = np.frombuffer(drawn[16:24], ">u4")
    # Labels are as wide as the version of the library that draws them makes them.
    np.testing.assert_allclose(np.frombuffer(shown[16:24], ">u4"), (width, height), rtol=0.05)


def test_a_note_stands_before_what_it_is_on(folder):
    block = readme.played("$ attncli compute --plain --show raw,weights\n", folder)
    assert block.splitlines()[1] == "note: no files given: this is the built-in example"


def test_no_summary_of_a_command_is_cut(run):
    listed = run("attncli --help").stdout.partition("Commands:")[2]
    assert listed.strip()
    assert "..." not in listed


def test_pictures_of_the_readme_are_there():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", TEXT)
    assert pictures
    for picture in pictures:
        assert (readme.ROOT / picture).read_bytes().startswith(b"\x89PNG")
