"""What a user does wrong gets one error line, a hint where one helps, exit code 2, and no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from process import Run, environment, run

if TYPE_CHECKING:
    from pathlib import Path

QKV = "q.csv k.csv v.csv"


@pytest.fixture
def wrong(tutorial: Path) -> Path:
    """Files named by their defect, beside the tutorial's."""
    texts = {
        "ragged.csv": "1,2,3\n1,2\n",
        "nan.csv": "1,0,1\n0,nan,1\n",
        "two.csv": "1,1,0\n0,1,2\n",
        "typo.yaml": "query: [[1]]\nkey: [[1]]\ncuasal: true\n",
        "no_key.yaml": "query: [[1]]\nvalue: [[1]]\n",
        "plain_maybe.yaml": "query: [[1]]\nkey: [[1]]\nplain: maybe\n",
        "words.yaml": "query: [a, b]\nkey: [[1]]\n",
        "scales.yaml": "query: [[1]]\nkey: [[1]]\nscale: [1, 2]\n",
        "formula.yaml": "query: [[1]]\nkey: [[1]]\nscale: 1/sqrt(64)\n",
        "weights.yaml": "weights: [[1]]\n",
        "none.json": "{}",
        "files.yaml": "query: nope.csv\nkey: [[1]]\n",
        "yes.yaml": "query: [[1]]\nkey: [[1], [2]]\nmask: [[yes, no]]\n",
        "sentence.yaml": "query: [[1], [2]]\nkey: [[1], [2]]\ntokens: [The, cat]\n",
    }
    for name, text in texts.items():
        (tutorial / name).write_text(text)
    (tutorial / "folder").mkdir()
    np.save("heads.npy", np.ones((2, 3, 4, 5)))
    np.save("five.npy", np.ones((1, 1, 1, 2, 3)))
    np.save("model.npy", np.full((3, 2, 2, 4, 4), 0.25))
    np.save("scalar.npy", np.float32(1))
    np.savez("none.npz", q=np.ones((0, 3)))
    np.save("seen.npy", np.ones((2, 3), bool))
    np.save("far.npy", np.array([[0, 1e39, 0]] * 2))
    np.save("large.npy", np.full((2, 3), 1e200))
    return tutorial


# The command line, and words of the error: what is wrong, where, and what was found.
CASES = {
    # files
    "compute nope.csv k.csv v.csv": "nope.csv exist",
    "compute files.yaml": "files.yaml#query nope.csv",
    "compute yes.yaml": "yes.yaml line 3 column 9 'yes'",
    "compute q.csv k.csv v.csv --mask --causal": "--mask: --causal exist",
    "compute folder k.csv v.csv": "folder",
    "compute five.npy k.csv v.csv": "five.npy 5 axes (1, 1, 1, 2, 3)",
    "compute model.npy": "model.npy 5 axes",
    "compute q.csv k.csv v.csv --bias scalar.npy": "--bias scalar.npy",
    "compute none.npz#q k.csv v.csv": "none.npz#q (0, 3)",
    "compute ragged.csv k.csv v.csv": "ragged.csv line 2 column 3 found 2",
    "compute --mask": "--mask",
    f"compute {QKV} --causal true": "4 files",
    f"compute {QKV} --mask causal": "--mask causal",
    "compute q.csv": "q.csv query key value",
    f"compute {QKV} --positions sinusoidal": "--positions",
    "heatmap q.csv k.csv w.png": "w.png",
    "compute none.json k.csv": "none.json array",
    "heatmap nan.csv": "nan.csv nan 1",
    # shapes
    "compute v.csv k.csv q.csv": "v.csv (3, 2) k.csv (3, 3) width",
    "compute q.csv k.csv q.csv": "k.csv (3, 3) q.csv (2, 3) 3 keys 2 values",
    f"compute {QKV} --mask k.csv": "--mask k.csv (2, 3) found (3, 3)",
    "compute heads.npy heads.npy heads.npy -f csv": "context (2, 3, 4, 5)",
    # values
    "compute nan.csv k.csv v.csv": "query nan.csv nan (1, 1)",
    f"compute {QKV} --mask two.csv": "--mask two.csv 2 (1, 2)",
    "compute large.npy large.npy": "scores range float64",
    f"compute {QKV} --bias seen.npy": "--bias seen.npy booleans",
    f"compute {QKV} --bias far.npy --precision float32": "--bias far.npy 1e+39 (0, 1)",
    # problem files
    "compute typo.yaml": "typo.yaml cuasal",
    "compute no_key.yaml": "no_key.yaml key missing",
    "compute plain_maybe.yaml": "plain_maybe.yaml#plain 'maybe'",
    "compute words.yaml": "words.yaml",
    "compute scales.yaml": "scales.yaml#scale single",
    "compute formula.yaml": "formula.yaml#scale '1/sqrt(64)'",
    "compute weights.yaml": "weights.yaml",
    # options: each is named first
    f"compute {QKV} --scale 0,5": "--scale: '0,5'",
    f"compute {QKV} --scale 1_0": "--scale: '1_0'",
    f"compute {QKV} --scale 1e400": "--scale: 1e400 float64",
    f"compute {QKV} --softcap ٢": "--softcap: ٢",
    f"compute {QKV} --max-rows -4": "--max-rows: -4",
    f"compute {QKV} --digits 18": "--digits: 0 17 18",
    f"compute {QKV} --window x": "--window: x",
    "heatmap --dpi 5": "--dpi: 10 2400",
    f"compute {QKV} --format jsn": "--format: 'jsn'",
    f"explain {QKV} --query 0 -f latex": "--format: 'latex' 'markdown'",
    f"compute {QKV} --json --format csv": "--json --format csv",
    f"compute {QKV} --key-padding-mask 1,1,0": "--key-padding-mask: 1,1,0 exist",
    f"compute {QKV} --key-labels names.txt": "--key-labels: names.txt",
    f"compute {QKV} --tokens a,b": "--tokens: 3 2",
    f"compute {QKV} --causal --query-offset 1e99": "--query-offset: 1e+99",
    f"compute {QKV} --causal-align top-left": "--causal-align rule",
    f"compute {QKV} --mask-means drop": "--mask-means mask",
    f"compute {QKV} --head 0": "--head axis",
    "compute heads.npy heads.npy --head 3": "--head: -3 2 3",
    f"explain {QKV} --query -3": "--query: -2 1 '-3'",
    f"explain {QKV} --query 1:9": "--query: 0:2 9",
    f"explain q.csv k.csv v.csv --query {'9' * 5000}": "--query: 9",
    "explain sentence.yaml --query Cat": "--query: 'The' 'cat' 'Cat'",
    f"explain {QKV} --digits 0": "--digits: 0",
    f"compute {QKV} --mask m.csv --mask m.csv": "--mask twice",
    f"compute {QKV} --scale 1 --scale 2": "--scale twice",
    f"compute {QKV} --alibi --alibi-slopes 1": "--alibi-slopes does not go with --alibi:",
    # options, commands and outputs that do not exist
    f"compute {QKV} --cuasal": "--cuasal --causal",
    f"compute {QKV} --out w.png": "--out",
    f"compute {QKV} --attn-mask m.csv": "--attn-mask --mask",
    "comptue": "comptue compute",
    "help plot": "plot",
    QKV: "q.csv",
    f"compute {QKV} --show Weight": "--show: weights context 'Weight'",
    f"compute {QKV} --save weigths=w.csv": "--save weights 'weigths'",
    # outputs
    "compute q.csv k.csv --show context": "context value",
    f"compute {QKV} --show weights,lse -f csv": "csv weights lse",
    "compute q.csv k.csv --top 3": "--top --show",
    "compute heads.npy heads.npy --average-heads --head 1": "--average-heads --head 1",
    f"compute {QKV} --save q.csv": "q.csv input",
    f"compute {QKV} --save x.csv --save ./x.csv": "x.csv ./x.csv same",
    f"compute {QKV} --save missing/x.csv": "missing/x.csv",
    f"compute {QKV} --save=": "--save path",
    f"compute {QKV} --save =w.csv": "--save =w.csv name",
    "heatmap q.csv k.csv --out x.gif": "--out: .png .svg .pdf 'x.gif'",
    "heatmap q.csv k.csv --rows 0:3": "--rows: 0:2 3",
    "heatmap q.csv k.csv --vmax x": "--vmax: auto 'x'",
    "heatmap q.csv k.csv --dpi 50": "--dpi --out",
    "heatmap q.csv k.csv --blocks": "--blocks --grid",
    "heatmap q.csv k.csv --grid 1x3 --rows 0": "--rows --grid",
    "heatmap q.csv k.csv --what scores --average-heads": "--average-heads --what scores",
    "heatmap q.csv k.csv --rollout --workers 2": "--workers --rollout",
    "heatmap v.csv --causal": "v.csv causal",
    "heatmap q.csv k.csv --minus sentence.yaml": "--minus: sentence.yaml problem",
}


@pytest.mark.parametrize("line", CASES)
def test_one_error_line_a_hint_and_exit_code_2(line: str, wrong: Path, attncli: Run) -> None:
    before = sorted(path.name for path in wrong.iterdir())
    ran = attncli(*line.split(" "))
    assert (ran.code, ran.out) == (2, b"")
    told = [words.partition(": ") for words in ran.messages if not words.startswith("warning")]
    assert [kind for kind, _, _ in told] in (["error"], ["error", "hint"])
    first, *others = CASES[line].split(" ")
    error = told[0][2]
    assert [word for word in (first, *others) if word not in error] == []
    assert error.startswith(first) or not first.endswith(":")
    assert sorted(path.name for path in wrong.iterdir()) == before


def test_a_defect_takes_one_line_that_says_where_to_report_it(
    tutorial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that fails as none should, in a process of its own."""
    (tutorial / "sitecustomize.py").write_text(
        "import attncli.gather\ndef broken(*_, **__): raise KeyError('a\\nb')\n"
        "attncli.gather.gather = broken\n"
    )
    paths = f"{tutorial}:{environment()['PYTHONPATH']}"
    for debug, traced in (("", False), ("1", True)):
        env = environment(PYTHONPATH=paths, **({"ATTNCLI_DEBUG": debug} if debug else {}))
        ran = run("compute", "q.csv", "k.csv", env=env)
        assert (ran.code, ran.out) == (2, b"")
        assert "KeyError" in ran.messages[-1]
        assert "https://github.com/attncli/attncli/issues" in ran.messages[-1]
        assert ("Traceback" in ran.err.decode()) == traced
        assert len(ran.messages) == 1 or traced


@pytest.mark.parametrize(
    "words",
    [
        "--color never --color never",
        "--no-color --color always",
        "--threads 1 --threads 2",
        "--causal --causal",
        "--show weights --show context",
        "--save a.npy --save b.npy",
    ],
)
def test_what_may_be_given_twice(words: str, tutorial: Path, attncli: Run) -> None:
    attncli("compute", "q.csv", "k.csv", "v.csv", *words.split()).good()
