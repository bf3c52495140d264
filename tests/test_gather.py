"""Files and options become arguments: names, lists, labels, sources, and which one wins."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from attncli import load, solve
from attncli.errors import AttnError, AttnWarning, InputError, UsageError
from attncli.gather import Finished, Gathered, gather

if TYPE_CHECKING:
    from process import Run


@pytest.fixture
def problem(folder: Path) -> Path:
    (folder / "p.yaml").write_text(
        "q: [[1, 0]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2]]\n"
        "causal: true\nscale: 0.5\nkv_lengths: [2]\ntokens: [a, b]\nquery_labels: [only]\n"
    )
    np.save(folder / "q.npy", np.ones((2, 3)))
    np.save(folder / "k.npy", np.ones((4, 3)))
    return folder


def gathered(*files: str, **options: Any) -> Gathered:
    answer = gather(files, options)
    assert isinstance(answer, Gathered)
    return answer


# --- names, and which one wins ----------------------------------------------------------------


def test_query_key_and_value_are_known_in_capitals(folder: Path) -> None:
    np.savez("d.npz", Q=np.ones((2, 3)), Key=np.ones((4, 3)), V=np.ones((4, 1)))
    Path("d.yaml").write_text("Q: [[1]]\nK: [[1]]\nVALUE: [[1]]\n")
    for file in ("d.npz", "d.yaml"):
        assert set(gathered(file).arguments) == {"query", "key", "value"}
    Path("e.yaml").write_text("q: [[1]]\nQ: [[1]]\nk: [[1]]\n")
    with pytest.raises(InputError, match="both q and Q are given"):
        gather(["e.yaml"])


def test_options_win_over_the_file(problem: Path) -> None:
    assert gathered("p.yaml", scale=2.0).arguments["scale"] == 2.0
    assert gathered("p.yaml", plain=True).arguments["scale"] == 1.0
    assert gathered("p.yaml", tokens="x,y").arguments["query_labels"] == ("x", "y")
    replaced = gathered("p.yaml", kv_lengths="1")
    assert replaced.arguments["kv_lengths"] == [1]
    assert "kv_lengths" not in replaced.sources


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        ("bias: nowhere", {"bias": np.ones((2, 2)) / 2}),
        ("plain: maybe", {"scale": 2.0}),
        ("query_labels: nowhere.txt", {"tokens": "a,b"}),
        ("Q: nowhere.csv", {"query": np.eye(2)}),
        ("Query: [[1, 0], [1]]", {"query": np.eye(2)}),
    ],
)
def test_an_entry_that_an_option_overrides_cannot_fail(
    entry: str, options: dict[str, Any], folder: Path
) -> None:
    start = "" if "query" in options else "q: [[1, 0], [0, 1]]\n"
    Path("p.yaml").write_text(f"{start}k: [[1, 0], [0, 1]]\n{entry}\n")
    solve(load("p.yaml", **options))
    with pytest.raises(AttnError):
        solve(load("p.yaml"))


def test_plain_and_a_scale_exclude_each_other(folder: Path) -> None:
    (folder / "p.yaml").write_text("{q: [[1]], k: [[1]], plain: true, scale: 1}")
    with pytest.raises(UsageError, match="both plain and scale"):
        gathered("p.yaml")


def test_the_example_and_a_stream(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.shape(gathered().arguments["value"]) == (3, 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1,2,3\n")))
    piped = gathered("-", "k.npy")
    np.testing.assert_array_equal(piped.arguments["query"], [[1, 2, 3]])
    assert piped.sources["query"] == "standard input"


# --- short lists ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"), [("3", [3]), ("3,5", [3, 5]), (" 1e-3 , -2", [0.001, -2])]
)
def test_a_list_of_numbers_needs_no_file(problem: Path, text: str, expected: list[float]) -> None:
    assert gathered("q.npy", "k.npy", sinks=text).arguments["sinks"] == expected


@pytest.mark.parametrize("text", ["one", "1,two", "1,,2", "1;2"])
def test_what_is_neither_list_nor_file_is_an_error_that_names_the_option(
    problem: Path, text: str
) -> None:
    with pytest.raises(UsageError, match=r"^sinks: expected numbers, as in 3 or 3,5, or a file"):
        gather(["q.npy", "k.npy"], {"sinks": text})


# --- labels -----------------------------------------------------------------------------------


def test_label_files_hold_one_label_a_line(problem: Path) -> None:
    Path("n.txt").write_bytes("\ufeffthe\r\ncat, black\r\n\r\n[pad] \r\n".encode())
    found = gathered("q.npy", "k.npy", key_labels="n.txt").arguments["key_labels"]
    assert found == ("the", "cat, black", "", "[pad] ")
    Path("n.txt").write_bytes(b"a\rb\r")
    assert gathered("q.npy", "k.npy", tokens="n.txt").arguments["query_labels"] == ("a", "b")
    Path("n.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected UTF-8 text; found UTF-16 or UTF-32"):
        gather(["q.npy", "k.npy"], {"tokens": "n.txt"})


@pytest.mark.parametrize("file", ["l.json", "l.csv", "nodir/l.tok", "l.npz#words"])
def test_a_file_of_labels_that_is_not_there_is_no_label(problem: Path, file: str) -> None:
    with pytest.raises(InputError, match=f"{file} does not exist"):
        gathered("q.npy", "k.npy", query_labels=file)
    # A word that names no file is a label.
    for label in ("/", "</s>", "and/or"):
        assert gathered("q.npy", "k.npy", tokens=label).arguments["query_labels"] == (label,)


def test_a_member_of_a_file_holds_labels(problem: Path) -> None:
    np.savez("l.npz", words=["a", "b"], numbers=[3, 4])
    (problem / "l.json").write_text('{"words": ["c", "d"], "scale": 2}')
    for member, labels in [
        ("l.npz#words", ("a", "b")),
        ("l.npz#numbers", ("3", "4")),
        ("l.json#words", ("c", "d")),
    ]:
        found = gathered("q.npy", "k.npy", tokens=member)
        assert found.arguments["query_labels"] == labels
        assert member.partition("#")[0] in found.inputs
    with pytest.raises(InputError, match=r"l.json has no member 'word'"):
        gathered("q.npy", "k.npy", tokens="l.json#word")
    with pytest.raises(InputError, match=r"l.json#scale: expected an array; found the single"):
        gathered("q.npy", "k.npy", tokens="l.json#scale")


@pytest.mark.parametrize(
    ("file", "text", "labels"),
    [
        ("l.json", '["a", 3, 0.50]', ("a", "3", "0.50")),
        ("l.yaml", "- The\n- cat\n", ("The", "cat")),
        ("l.yml", "[yes, 1e3]", ("yes", "1e3")),
        ("l.txt", "[CLS]\n{x}\n", ("[CLS]", "{x}")),
        ("l.txt", '["[CLS]", "caf\\u00e9"]\n', ("[CLS]", "café")),
        ("l.txt", 'sep=;\n"\n","\nThe;\n', ("sep=;", '"', '","', "The;")),
    ],
)
def test_a_list_of_labels_in_a_file(
    problem: Path, file: str, text: str, labels: tuple[str, ...]
) -> None:
    Path(file).write_text(text)
    assert gathered("q.npy", "k.npy", tokens=file).arguments["query_labels"] == labels


@pytest.mark.parametrize("text", ['["a", null]', '["a", ["b"]]', '{"words": ["a", "b"]}'])
def test_a_list_of_labels_holds_nothing_but_words(problem: Path, text: str) -> None:
    Path("l.json").write_text(text)
    with pytest.raises(InputError, match=r"expected a list of (words|labels); found "):
        gathered("q.npy", "k.npy", tokens="l.json")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('The\n","\n""""\n"a ""b"""\n', ("The", ",", '"', 'a "b"')),
        ("The,,\n,,\ncat,,\n", ("The", "", "cat")),
        # Commas do not separate here: rows would differ in length or hold two labels.
        ("The\n,\n;\ncat\n", ("The", ",", ";", "cat")),
        ("a,\nb,c\n", ("a,", "b,c")),
        # Not CSV: each line is a label.
        ('The\n"\n', ("The", '"')),
    ],
)
def test_labels_in_a_table_are_its_column(
    tmp_path: Path, text: str, labels: tuple[str, ...]
) -> None:
    path = tmp_path / "t.csv"
    for newline in ("\n", "\r\n", "\r"):
        path.write_bytes(text.replace("\n", newline).encode())
        found = gathered(query=[[1.0]], key=[[1.0]], tokens=str(path))
        assert found.arguments["query_labels"] == labels


# --- anonymous pipes --------------------------------------------------------------------------

PIPED = {
    "--tokens": "the\ncat\n",
    "--mask": "1,0\n1,1\n",
    "--kv-lengths": "2\n",
    "--wq": "1,2\n3,4\n",
}


@pytest.mark.parametrize("option", PIPED)
def test_a_pipe_of_the_shell_is_a_file(folder: Path, option: str, attncli: Run) -> None:
    Path("q.csv").write_text("1,0\n0,1\n")
    Path("file").write_text(PIPED[option])
    words = ["compute", "q.csv", "q.csv", "--show", "weights", "-f", "json"]
    expected = attncli(*words, option, "file").good().json
    with Piped(PIPED[option]) as pipe:
        assert attncli(*words, option, pipe).good().json == expected


def test_a_problem_its_config_and_its_checkpoint_come_through_pipes(folder, attncli) -> None:
    with Piped("q: [[1, 0]]\nk: [[1, 0], [0, 1]]\n") as pipe:
        assert attncli("compute", pipe, "-f", "json").good().json["weights"]
    np.savez("c.npz", **{f"a.{letter}_proj.weight": np.eye(2) for letter in "qkv"})
    config = '{"model_type": "llama", "num_attention_heads": 1, "hidden_size": 2}'
    words = ["compute", "--show", "weights", "-f", "json"]
    with (
        Piped(b"1,0\n0,1\n") as x,
        Piped(Path("c.npz").read_bytes()) as checkpoint,
        Piped(config) as file,
    ):
        ran = attncli(*words, x, "--checkpoint", checkpoint, "--config", file).good()
    np.testing.assert_allclose(np.ravel(ran.json["weights"])[0], 1)


class Piped:
    """A pipe with a text, under a name as from the shell's <(command)."""

    def __init__(self, text: str | bytes) -> None:
        self._data = text.encode() if isinstance(text, str) else text

    def __enter__(self) -> str:
        self._end, start = os.pipe()
        self._thread = threading.Thread(target=self._write, args=(start,))
        self._thread.start()
        return f"/dev/fd/{self._end}"

    def _write(self, end: int) -> None:
        with os.fdopen(end, "wb") as stream:
            stream.write(self._data)

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        os.close(self._end)


# --- entries that no problem has --------------------------------------------------------------

ONES = {"query": np.ones((2, 3)), "key": np.ones((4, 3))}


def dump(file: str, **arrays: Any) -> None:
    arrays = ONES | {name: np.asarray(array) for name, array in arrays.items()}
    if file.endswith(".npz"):
        np.savez(file, **arrays)
    else:
        pytest.importorskip("safetensors.numpy").save_file(arrays, file)


def test_unknown_entries_are_answered_with_a_known_one(folder: Path) -> None:
    for name, meant in {"softcup": "softcap", "casual": "causal", "is_causal": "causal"}.items():
        Path("u.yaml").write_text(f"query: [[1]]\nkey: [[1]]\n{name}: 3\n")
        with pytest.raises(UsageError, match=f"u.yaml: unknown entry '{name}'") as caught:
            gather(["u.yaml"])
        assert meant in (caught.value.hint or "")


@pytest.mark.parametrize("file", ["d.npz", "d.safetensors"])
def test_a_dump_may_hold_anything_beside_the_inputs_and_a_note_lists_it(
    folder: Path, file: str
) -> None:
    dump(file, out=np.ones((2, 1)), attn_probs=np.ones((2, 4)), weights=np.ones((2, 4)), step=3)
    found = gathered(file)
    assert set(found.arguments) == {"query", "key"}
    (note,) = found.notes
    assert sorted(re.findall(r"\w+", note.split("not used:")[1])) == ["attn_probs", "out", "step"]


@pytest.mark.parametrize("name", ["attn_mask", "is_causal", "softmax_scale", "window_size"])
def test_a_rule_of_another_name_in_a_dump_is_an_error(folder: Path, name: str) -> None:
    """Without the rule, the results would be those of another problem."""
    dump("d.npz", **{name: np.ones((2, 4))})
    with pytest.raises(UsageError, match=f"unknown entry '{name}'") as caught:
        gather(["d.npz"])
    assert f"--without {name} leaves it out" in (caught.value.hint or "")
    left = gather(["d.npz"], without=name)
    assert isinstance(left, Gathered)
    assert (set(left.arguments), left.notes) == ({"query", "key"}, [])


@pytest.mark.parametrize("name", ["key", "mask", "sinks", "tokens", "checkpoint"])
def test_a_dump_names_no_files(folder: Path, name: str) -> None:
    np.save("k.npy", np.ones((2, 3)))
    dump("d.npz", **{name: "k.npy"})
    with pytest.raises(InputError, match=f"d.npz#{name}: expected real numbers; found text"):
        gather(["d.npz"])


def test_a_problem_with_neither_key_nor_embeddings_says_what_it_holds(folder: Path) -> None:
    Path("m.yaml").write_text("query: [[1]]\nscale: 1\n")
    with pytest.raises(InputError, match=r"m.yaml: .*key is missing \(found query, scale\)"):
        gather(["m.yaml"])


def test_what_compute_wrote_beside_a_problem_is_computed_again(folder: Path) -> None:
    Path("r.json").write_text('{"schema": 1, "query": [[1]], "key": [[1]], "weights": [[1]]}')
    with pytest.warns(AttnWarning, match="r.json: its weights are ignored"):
        assert set(gathered("r.json").arguments) == {"query", "key"}


# --- several layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 2, 2, 4), (3, 2, 2, 2, 4)])
def test_one_layer_of_several(folder: Path, shape: tuple[int, ...], attncli: Run) -> None:
    random = np.random.default_rng(len(shape))
    arrays = {name: random.normal(size=shape) for name in ("q", "k", "v")}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.savez("all.npz", **arrays)
    for layer in (0, 2, -1):
        q, k, v = (array[layer] for array in arrays.values())
        own = solve(load(query=q, key=k, value=v))
        words = ["compute", "--layer", str(layer), "-f", "json"]
        for files in (["q.npy", "k.npy", "v.npy"], ["all.npz"]):
            found = attncli(*words, *files).good().json
            np.testing.assert_array_equal(found["weights"], own.weights)
            np.testing.assert_array_equal(found["context"], own.context)
    np.save("out.npy", np.stack([own.context] * 3))
    words = ["check", "all.npz", "--expect", "out.npy", "--layer"]
    assert (attncli(*words, "2").code, attncli(*words, "0", "--no-diagnose").code) == (0, 1)


@pytest.mark.parametrize("shape", [(3, 2, 2, 4, 5), (3, 2, 4, 5), (3, 4, 5)])
def test_one_layer_of_finished_weights(folder: Path, shape: tuple[int, ...], attncli: Run) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), shape[:-1])
    np.save("w.npy", weights)
    found = gather(["w.npy"], {}, layer=1)
    assert isinstance(found, Finished)
    np.testing.assert_array_equal(found.values, weights[1])
    ran = attncli("compute", "w.npy", "--layer", "1", "--show", "weights", "-f", "json").good()
    np.testing.assert_array_equal(ran.json["weights"], weights[1])
    same = ["heatmap", "w.npy", "--minus", "w.npy", "--layer", "1", "--out", "d.png"]
    attncli(*same).good()


def test_a_layer_that_is_not_there_and_layers_that_nobody_chose(folder: Path) -> None:
    np.save("five.npy", np.ones((3, 1, 2, 2, 2)))
    np.save("two.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match=r"found 5 \(shape") as caught:
        gather(["five.npy", "five.npy"])
    assert "--layer" in (caught.value.hint or "")
    with pytest.raises(InputError, match="--layer 3 is out of range for 3 layers"):
        gather(["five.npy", "five.npy"], layer=3)
    with pytest.raises(InputError, match=r"two.npy: --layer 0 needs .*\(2, 2\)"):
        gather(["two.npy", "two.npy"], layer=0)


# --- folders of recorded calls ----------------------------------------------------------------


@pytest.fixture
def calls(folder: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Two layers, the second with two calls, as `attncli.capture` writes them."""
    save = pytest.importorskip("safetensors.numpy").save_file
    (folder / "dumps").mkdir()
    made: dict[tuple[int, int], dict[str, Any]] = {}
    for layer, call in ((0, 0), (3, 0), (3, 1)):
        random = np.random.default_rng((layer, call))
        arrays = {n: random.normal(size=(1, 2, 3, 4)) for n in ("query", "key", "value")}
        options = {"scale": 0.1 + layer, "causal": bool(call)}
        out = solve(load(**arrays, **options)).context
        facts = {"schema": 1, "options": options, "layer": layer, "call": call}
        facts |= {"query_labels": ["a", "b", "c"], "key_labels": ["a", "b", "c"]}
        path = f"dumps/layer-{layer:03d}-call-{call:04d}.safetensors"
        save(arrays | {"out": out}, path, {"attncli": json.dumps(facts)})
        made[layer, call] = {**arrays, **options}
    return made


@pytest.mark.parametrize(("layer", "call"), [(0, None), (3, None), (3, 1)])
def test_a_folder_stands_for_its_layers_and_their_calls(
    calls: Any, layer: int, call: int | None, attncli: Run
) -> None:
    own = load(**calls[layer, call or 0])
    words = ["dumps", "--layer", str(layer)] + ([] if call is None else ["--call", str(call)])
    ran = attncli("compute", *words, "-f", "json").good()
    np.testing.assert_allclose(ran.json["weights"], solve(own).weights, rtol=1e-12)
    assert ran.json["query_labels"] == ["a", "b", "c"]
    assert ran.messages == []
    attncli("heatmap", *words, "--out", "w.png").good()
    attncli("explain", *words, "--query", "b").good()
    # The file also holds the output of the recorded kernel.
    attncli("check", *words).good()
    assert attncli("check", *words, "--scale", "9", "--no-diagnose").code == 1
    assert load("dumps", layer=layer, call=call).scale == own.scale


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dumps", "dumps holds 2 layers: choose one with --layer"),
        ("dumps --layer 1", "dumps has no layer 1"),
        ("dumps --layer 3 --call 2", "has no call 2"),
        (". --layer 0", "without recorded calls"),
        ("q.npy q.npy --call 1", "--call 1 is for a folder"),
    ],
)
@pytest.mark.parametrize("command", ["compute", "heatmap"])
def test_what_a_folder_does_not_hold(
    calls: Any, command: str, words: str, message: str, attncli: Run
) -> None:
    np.save("q.npy", np.eye(2))
    ran = attncli(command, *words.split())
    assert (ran.code, ran.out) == (2, b"")
    assert message in ran.messages[0]


# --- finished weights -------------------------------------------------------------------------


def test_one_array_is_finished_weights(folder: Path) -> None:
    Path("w.csv").write_text(",x,y\na,0.25,0.75\nb,0.5,0.5\n")
    found = gather(["w.csv"], {"key_labels": "u,v"})
    assert isinstance(found, Finished)
    np.testing.assert_array_equal(found.values, [[0.25, 0.75], [0.5, 0.5]])
    assert (found.name, found.inputs) == ("w.csv", ("w.csv",))
    assert (found.query_labels, found.key_labels) == (("a", "b"), ("u", "v"))
    with pytest.raises(UsageError, match="without query and key: scale has no effect on these"):
        gather(["w.csv"], {"scale": 2.0})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("kye: [[1, 0]]\nquery: [[1, 0]]", "w.yaml: unknown entry 'kye'"),
        ("causal: true", "without query and key: causal has no effect on these"),
        ("foo: 1", "unknown entry 'foo'"),
    ],
)
def test_what_stands_beside_weights_and_has_no_effect_is_refused(
    folder: Path, entry: str, message: str
) -> None:
    Path("w.yaml").write_text("weights: [[0.5, 0.5]]\n" + entry)
    with pytest.raises(AttnError, match=re.escape(message)):
        gather(["w.yaml"])


# --- entries that are left out ----------------------------------------------------------------

LEFT_OUT = (
    "q: [[1, 0], [0, 1]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2]]\ncausal: true\nplain: true\n"
    "mask: missing.csv\n"
)


@pytest.mark.parametrize("without", ["causal,mask", "mask, causal", ("mask", "causal")])
def test_the_rules_left_out_do_not_act_and_the_others_do(folder: Path, without: Any) -> None:
    Path("p.yaml").write_text(LEFT_OUT)
    weights = solve(load("p.yaml", without=without)).weights
    e = np.e
    np.testing.assert_allclose(weights, np.array([[e, 1], [1, e]]) / (e + 1), rtol=1e-15)
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        load("p.yaml")
    Path("p.yaml").write_text(LEFT_OUT.replace("missing.csv", "[[1, 0], [1]]"))
    np.testing.assert_array_equal(solve(load("p.yaml", without=without)).weights, weights)


def test_an_array_of_a_dump_is_left_out(folder: Path) -> None:
    np.savez("p.npz", q=np.eye(2), k=np.eye(2), v=np.eye(2), mask=np.eye(2, dtype=bool))
    assert np.all(solve(load("p.npz", without="mask")).weights > 0)
    assert load("p.npz", without="v").value is None


@pytest.mark.parametrize(
    ("without", "message", "hint"),
    [
        ("casual", "there is no 'casual'", "did you mean causal?"),
        ("causal,", "found ''", None),
        ((1,), "found '1'", None),
        (3, "found '3'", None),
        ("bias", "there is no 'bias'", "there are q, k, v, causal, plain, mask"),
    ],
)
def test_no_such_entry(folder: Path, without: Any, message: str, hint: str | None) -> None:
    Path("p.yaml").write_text(LEFT_OUT.replace("missing.csv", "[[1, 1]]"))
    with pytest.raises(UsageError, match=r"^without: ") as caught:
        load("p.yaml", without=without)
    assert message in caught.value.message
