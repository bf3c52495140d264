"""Sources of bytes: paths, pipes and members, and errors for everything that is not a file."""

import io
import os
import sys
import threading
import time

import numpy as np
import pytest

from attncli.errors import InputError
from attncli.loading import LoadedMapping, read, read_array, source, split_member


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(name, **options):
    with pytest.raises(InputError) as caught:
        read(name, **options)
    return caught.value


@pytest.mark.parametrize(
    "data",
    [b"1,2\n3,4\n", b"1;2\n3;4", b"[[1, 2], [3, 4]]", b"- [1, 2]\n- [3, 4]", npy([[1, 2], [3, 4]])],
)
def test_standard_input_takes_every_format(data):
    found = read("-", stdin=io.BytesIO(data))
    assert found.values.tolist() == [[1, 2], [3, 4]]
    assert found.name == "standard input"


def test_a_problem_may_come_from_standard_input():
    found = read("-", stdin=io.BytesIO(b"q: [[1]]\nk: k.csv"))
    assert isinstance(found, LoadedMapping)
    assert (found.name, found.folder) == ("standard input", ".")
    assert read("-#q", stdin=io.BytesIO(b"q: [[1]]")).values.tolist() == [[1]]


def test_a_closed_or_empty_standard_input_is_an_error(monkeypatch):
    assert refusal("-", stdin=io.BytesIO()).message == "standard input is empty"
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refusal("-").message


class Endless(io.RawIOBase):
    given = 0

    def readable(self):
        return True

    def readinto(self, room):
        room[:] = (b"1,2\n" * (len(room) // 4 + 1))[: len(room)]
        self.given += len(room)
        return len(room)


def test_a_stream_without_end_is_left(monkeypatch):
    monkeypatch.setattr(source, "STREAM_LIMIT", 3 * 2**20)
    endless = Endless()
    assert "longer than 3 MiB" in refusal("-", stdin=io.BufferedReader(endless)).message
    assert endless.given < 5 * 2**20


def test_named_pipes_and_descriptors_are_streams(here):
    os.mkfifo("pipe.csv")
    writer = threading.Thread(target=(here / "pipe.csv").write_text, args=("1,2\n",))
    writer.start()
    assert read("pipe.csv").values.tolist() == [[1, 2]]
    writer.join()
    out, into = os.pipe()
    os.write(into, npy([[1.0, 2.0]]))
    os.close(into)
    assert read(f"/dev/fd/{out}").values.tolist() == [[1, 2]]
    os.close(out)


def test_a_missing_file_names_its_neighbour(here):
    (here / "query.csv").write_text("1,2\n")
    error = refusal("qery.csv")
    assert error.message == "qery.csv does not exist"
    assert error.hint == "did you mean query.csv?"
    assert refusal("nowhere/q.csv").hint == "there is no folder nowhere"
    assert refusal("zzz").hint is None


def test_what_is_not_a_file_is_refused(here):
    (here / "dangling.csv").symlink_to("gone.csv")
    (here / "circle.csv").symlink_to("circle.csv")
    (here / "empty.csv").touch()
    (here / "folder.csv").mkdir()
    assert refusal("dangling.csv").message.endswith("a link to gone.csv, which does not exist")
    assert refusal("circle.csv").message.startswith("circle.csv cannot be read: ")
    assert refusal("empty.csv").message == "empty.csv is empty"
    assert refusal("folder.csv").message == "folder.csv: expected a file; found a folder"
    for device in ("/dev/null", "/dev/zero"):
        assert refusal(device).message == f"{device}: expected a file; found a device"
    assert refusal("").message == "'' is not a file name"
    assert refusal("a\0b").message == r"'a\x00b' is not a file name"
    assert "cannot be read: " in refusal("x" * 5000).message
    assert refusal("\ud800.csv").message.startswith(r"\ud800.csv ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(here):
    (here / "q.csv").write_text("1,2\n")
    (here / "q.csv").chmod(0)
    assert refusal("q.csv").message == "q.csv cannot be read: Permission denied"


def test_names_are_shown_with_their_control_characters_escaped(here):
    (here / "a\x1b[31m.csv").write_text("1,x\n")
    assert refusal("a\x1b[31m.csv").message.startswith(r"a\x1b[31m.csv: line 1, column 2")
    (here / "b\n.npz").write_bytes(b"PK\3\4")
    assert refusal("b\n.npz").message.startswith(r"b\x0a.npz is a damaged")
    assert refusal("b\n.npz#\x1b").message.startswith(r"b\x0a.npz is a damaged")


def test_files_of_known_other_kinds_are_named(here):
    for data, kind in [
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"MATLAB 5.0 MAT-file, Platform", "MATLAB"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "Git LFS pointer"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "spreadsheet"),
        (b"\x89PNG\r\n", "PNG"),
        (b"%PDF-1.7", "PDF"),
        (b"\x80\x04K\x01.", "pickle"),
    ]:
        (here / "q.npy").write_bytes(data)
        assert refusal("q.npy").message == f"q.npy is a {kind} file, which is not read"


def test_numpy_opens_no_archive_and_no_address_by_its_name(here):
    """NumPy's own reader for texts would unpack ``q.csv.gz`` and fetch ``http://…``."""
    (here / "q.csv.gz").write_text("1,2\n")
    assert read("q.csv.gz").values.tolist() == [[1, 2]]
    assert refusal("http://localhost/q.csv").message.endswith("q.csv does not exist")


def test_members_are_named_behind_a_hash(here):
    (here / "p.yaml").write_text("q: [[1, 2]]\n'a#b': [3]\ntokens: [x]\nheads: 4\n")
    assert read("p.yaml#q").values.tolist() == [[1, 2]]
    assert read("p.yaml#a#b").values.tolist() == [3]
    assert read("p.yaml#q").name == "p.yaml#q"
    assert (
        refusal("p.yaml#tokens").message
        == "p.yaml#tokens: expected an array; found a list of words"
    )
    assert refusal("p.yaml#heads").message == (
        "p.yaml#heads: expected an array; found the single value 4"
    )
    error = refusal("p.yaml#k")
    assert error.message == "p.yaml has no member 'k'"
    assert error.hint == "it holds p.yaml#q, p.yaml#a#b, p.yaml#tokens, p.yaml#heads"
    (here / "q.csv").write_text("1,2\n")
    assert refusal("q.csv#k").message == "q.csv is one array; it has no member 'k'"
    assert refusal("gone.npz#q").message == "gone.npz does not exist"


def test_a_file_whose_own_name_holds_a_hash_comes_first(here):
    (here / "a#b.csv").write_text("1,2\n")
    (here / "a#b.yaml").write_text("q: [3]\n")
    (here / "a").write_text("b.csv: [4]\n")
    assert read("a#b.csv").values.tolist() == [[1, 2]]
    assert read("a#b.yaml#q").values.tolist() == [3]
    assert split_member("a#b.csv") == ("a#b.csv", None)
    assert split_member("a#c#d") == ("a", "c#d")
    assert split_member("none#c#d") == ("none", "c#d")


def test_an_array_is_asked_for_by_its_member(here):
    (here / "p.yaml").write_text("q: [1]\nk: [2]\n")
    with pytest.raises(InputError, match=r"p\.yaml: expected one array; found 2 entries") as caught:
        read_array("p.yaml")
    assert caught.value.hint == "choose one: p.yaml#q, p.yaml#k"
    np.savez("one.npz", out=[[1.0]])
    with pytest.raises(InputError, match=r"one\.npz: .* found an entry with a name, out") as caught:
        read_array("one.npz")
    assert caught.value.hint == "choose one: one.npz#out"


def test_streams_are_read_in_bounded_time(here):
    began = time.process_time()
    refusal("-", stdin=io.BytesIO(bytes(50 * 2**20)))
    assert time.process_time() - began < 2
