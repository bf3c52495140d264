"""Files appear whole or not at all; permissions and links are as with ordinary tools."""

import os
import resource
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from attncli.errors import OutputError
from attncli.save.files import whole_file

OLD = b"old" * 1000
NEW = bytes(range(256)) * 8192


def write(path, data=NEW):
    with whole_file(str(path)) as stream:
        stream.write(data)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def run_python(code, *arguments, **options):
    """Run Python code in a new process of the interpreter that runs the tests."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


@pytest.fixture
def umask():
    old = os.umask(0o027)
    yield 0o027
    os.umask(old)


def test_a_new_file_holds_the_bytes_and_nothing_else_is_left(tmp_path):
    write(tmp_path / "w.bin")
    assert (tmp_path / "w.bin").read_bytes() == NEW
    assert names_in(tmp_path) == ["w.bin"]


def test_the_target_is_untouched_until_the_block_ends(tmp_path):
    target = tmp_path / "w.bin"
    target.write_bytes(OLD)
    with whole_file(str(target)) as stream:
        stream.write(NEW)
        stream.flush()
        assert target.read_bytes() == OLD
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("exists", [True, False])
def test_an_exception_leaves_everything_as_it_was(tmp_path, error, exists):
    target = tmp_path / "w.bin"
    if exists:
        target.write_bytes(OLD)

    def fail():
        with whole_file(str(target)) as stream:
            stream.write(NEW)
            raise error

    with pytest.raises(error):
        fail()
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([OLD] if exists else [])


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o755, 0o222])
def test_an_old_file_keeps_its_permissions(tmp_path, mode, umask):
    target = tmp_path / "w.bin"
    target.write_bytes(OLD)
    target.chmod(mode)
    write(target)
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_gets_its_permissions_from_the_umask(tmp_path, umask):
    write(tmp_path / "w.bin")
    assert stat.S_IMODE((tmp_path / "w.bin").stat().st_mode) == 0o666 & ~umask


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_old_file_keeps_its_owner(tmp_path):
    target = tmp_path / "w.bin"
    target.write_bytes(OLD)
    os.chown(target, 12345, 23456)
    write(target)
    assert (target.stat().st_uid, target.stat().st_gid) == (12345, 23456)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, exists):
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "w.bin"
    if exists:
        target.write_bytes(OLD)
    (tmp_path / "second").symlink_to("data/w.bin")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    write(tmp_path / "first")
    assert (tmp_path / "second").readlink() == Path("data/w.bin")
    assert target.read_bytes() == NEW
    assert names_in(tmp_path / "data") == ["w.bin"]


def test_the_bytes_are_on_the_disk_before_the_move(tmp_path, monkeypatch):
    done = []
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(Path, "replace", lambda *a: (done.append("move"), replace(*a))[1])
    write(tmp_path / "w.bin")
    assert done == [len(NEW), "move"]


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("missing/w.csv", "the folder .*missing does not exist", "mkdir -p"),
        ("file/w.csv", "not a directory", "folder"),
        ("folder", "found a folder", "folder/NAME"),
        ("new/", "found a folder", "new/NAME"),
        ("loop", "too many levels of symbolic links", None),
        ("n" * 256, "file name too long", None),
        ("nul\0.csv", "cannot be a file name", None),
        ("sur\ud800.csv", "cannot be a file name", None),
    ],
)
def test_a_name_that_cannot_be_written_is_refused(tmp_path, name, words, hint):
    (tmp_path / "file").write_bytes(OLD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = names_in(tmp_path)
    with pytest.raises(OutputError, match=words) as caught:
        write(f"{tmp_path}/{name}")
    assert hint is None or hint in caught.value.hint
    assert names_in(tmp_path) == before


AS_ORDINARY_USER = """
import os, sys
from attncli.errors import OutputError
from attncli.save.files import whole_file
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with whole_file(sys.argv[1]) as stream:
        stream.write(b"new")
except OutputError as error:
    print(error)
"""


@pytest.fixture
def shared_folder(tmp_path):
    """A folder that belongs to the user of AS_ORDINARY_USER."""
    top = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if top in folder.parents:
            folder.chmod(folder.stat().st_mode | 0o055)
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    yield tmp_path
    tmp_path.chmod(0o755)


def test_a_write_protected_file_is_refused(shared_folder):
    target = shared_folder / "w.bin"
    target.write_bytes(OLD)
    target.chmod(0o444)
    ran = run_python(AS_ORDINARY_USER, target)
    assert b"permission denied" in ran.stdout, ran
    assert (target.read_bytes(), names_in(shared_folder)) == (OLD, ["w.bin"])


def test_a_full_disk_leaves_the_old_file(tmp_path):
    target = tmp_path / "w.bin"
    target.write_bytes(OLD)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(OutputError, match="file too large") as caught:
            write(target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "ulimit" in caught.value.hint
    assert (target.read_bytes(), names_in(tmp_path)) == (OLD, ["w.bin"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_told(tmp_path):
    (tmp_path / "link").symlink_to("/dev/full")
    for path in ("/dev/full", tmp_path / "link"):
        with pytest.raises(OutputError, match="no space left"):
            write(path)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_named_pipe_is_written_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join(10)
    assert read == [NEW]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names_in(tmp_path) == ["pipe"]


TO_DESCRIPTOR = """
import os, sys
from attncli.save.files import whole_file
os.write(1, b"before;")
with whole_file(sys.argv[1]) as stream:
    stream.write(b"new;")
os.write(1, b"after")
"""


@pytest.mark.parametrize(
    ("name", "redirected"), [("/dev/stdout", True), ("/dev/fd/1", False), ("link", False)]
)
def test_standard_output_is_written_in_turn(tmp_path, name, redirected):
    if name == "link":
        name = tmp_path / "link"
        name.symlink_to("/dev/stdout")
    command = [sys.executable, "-c", TO_DESCRIPTOR, str(name)]
    if redirected:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run(command, stdout=out, check=True, timeout=60)
        found = (tmp_path / "out").read_bytes()
    else:
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout
    assert found == b"before;new;after"


def test_a_closed_descriptor_is_told():
    with pytest.raises(OutputError, match="bad file descriptor"):
        write("/dev/fd/987")


def test_a_reader_that_goes_away_is_a_broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(BrokenPipeError):
            write(f"/dev/fd/{writing}")
    finally:
        os.close(writing)
