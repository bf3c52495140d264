"""An NPY file filled tile by tile: whole, exact, and with its space on the disk reserved."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from attncli import attention
from attncli.errors import OutputError
from attncli.save.binary import open_npy

SHAPE = (3, 50, 70)


def values(dtype=np.float32):
    return np.random.default_rng(4).standard_normal(SHAPE).astype(dtype)


def fill(array, data):
    for head in range(SHAPE[0]):
        for start in range(0, SHAPE[1], 16):
            array[head, start : start + 16] = data[head, start : start + 16]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tiles_become_the_file_that_numpy_would_save(tmp_path, dtype):
    with open_npy(str(tmp_path / "w.npy"), SHAPE, dtype) as array:
        assert (array.shape, array.dtype, type(array)) == (SHAPE, dtype, np.ndarray)
        assert not array.any()
        fill(array, values(dtype))
        assert not (tmp_path / "w.npy").exists()
    np.save(tmp_path / "expected.npy", values(dtype))
    assert (tmp_path / "w.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "w.npy"
    target.write_bytes(b"old")

    def fail():
        with open_npy(str(target), SHAPE, np.float32) as array:
            array[0] = 1
            raise error

    with pytest.raises(error):
        fail()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def refused(target, shape):
    begun = []
    with pytest.raises(OutputError) as caught, open_npy(str(target), shape, np.float64):
        begun.append(True)
    assert not begun
    assert list(target.parent.iterdir()) == []
    return caught.value


def test_a_disk_without_room_is_known_before_the_work(tmp_path):
    error = refused(tmp_path / "w.npy", (2**28, 2**28))
    assert "5.76e+08 GB" in error.message
    assert "disk" in error.hint


def test_a_limit_on_files_is_known_before_the_work(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        error = refused(tmp_path / "w.npy", (1000, 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "file too large" in error.message


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no reservation on this system")
def test_the_room_is_taken_and_not_only_named(tmp_path):
    with open_npy(str(tmp_path / "w.npy"), (1000, 1000), np.float64):
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_blocks * 512 >= 8_000_000


def test_a_named_pipe_gets_the_same_bytes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with open_npy(str(pipe), SHAPE, np.float32) as array:
        fill(array, values())
    reader.join(10)
    np.save(tmp_path / "expected.npy", values())
    assert read == [(tmp_path / "expected.npy").read_bytes()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_told():
    with (
        pytest.raises(OutputError, match="no space left"),
        open_npy("/dev/full", SHAPE, np.float32) as array,
    ):
        array[0] = 1


LARGER_THAN_MEMORY = """
import resource, sys
import numpy as np
from attncli.save.binary import open_npy
def private():
    # What the process holds itself, apart from pages of the file that the system can drop.
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
before = private()
with open_npy(sys.argv[1], (1024, 8192), np.float64) as array:
    for start in range(0, 1024, 128):
        array[start : start + 128] = start
    print(private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_array_takes_no_memory_of_its_own(tmp_path):
    command = [sys.executable, "-c", LARGER_THAN_MEMORY, str(tmp_path / "w.npy")]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert int(ran.stdout) < 20_000, "kB, for a file of 65,536 kB"
    assert np.load(tmp_path / "w.npy", mmap_mode="r")[1023, 8191] == 896


def test_a_large_output_that_is_saved_twice_is_whole_in_both_files(folder, attncli):
    query, key = np.random.default_rng(0).standard_normal((2, 4200, 4), np.float32)
    np.save("q.npy", query)
    np.save("k.npy", key)
    saves = ["--save", "weights=a.npy", "--save", "weights=b.npy"]
    attncli("compute", "q.npy", "k.npy", "--show", "lse", *saves).good()
    right = attention(query[::100], key).weights
    for file in ("a.npy", "b.npy"):
        np.testing.assert_allclose(np.load(file)[::100], right, rtol=1e-4)
