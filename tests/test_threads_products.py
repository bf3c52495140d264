"""Large products with one matrix: exact, and the same bits on any number of threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from nearness import assert_near
from process import environment, long_but
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import UsageError, project
from attncli.numerics.threads import products
from attncli.numerics.threads.products import multiply_rows
from attncli.problem.output import OutputProjection

# Rows, in, out: each of them large, none a multiple of the pieces.
LARGE = [(2500, 70, 800), (700, 90, 2300), (9, 4100, 4100)]


def drawn(rows, width, out, dtype="float32"):
    random = np.random.default_rng(rows)
    return [random.standard_normal(s, dtype) for s in ((rows, width), (width, out))]


def blas_threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def threads_that_multiplied(monkeypatch):
    """Return what fills with the threads that multiply a piece, and its BLAS threads then."""
    seen = []
    together = threading.Barrier(2, timeout=20)

    def matmul(*arrays, **options):
        if not seen or threading.get_ident() not in dict(seen):
            seen.append((threading.get_ident(), blas_threads()))
            together.wait()
        return np.matmul(*arrays, **options)

    monkeypatch.setattr(products, "np", _Numpy(matmul))
    return seen


class _Numpy:
    """NumPy with another product."""

    def __init__(self, matmul):
        self.matmul = matmul

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.mark.parametrize(
    ("rows", "width", "out", "dtype"),
    long_but(
        [(*shape, dtype) for shape in LARGE for dtype in ("float32", "float64")],
        *((*shape, "float32") for shape in LARGE),
        (*LARGE[0], "float64"),
    ),
)
def test_is_the_sum_of_products(rows, width, out, dtype):
    x, matrix = drawn(rows, width, out, dtype)
    made = multiply_rows(x, matrix)
    assert made.dtype == dtype
    assert made.shape == (rows, out)
    # Sums of products by einsum, which asks no BLAS.
    some = x[::7].astype(float), matrix[:, ::3].astype(float)
    exact = np.einsum("ri,io->ro", *some)
    size = np.einsum("ri,io->ro", *map(abs, some))
    assert np.all(abs(made[::7, ::3] - exact) <= np.finfo(dtype).eps * np.sqrt(width) * size)


@pytest.mark.parametrize(("rows", "width", "out"), LARGE)
def test_has_the_same_bits_on_1_2_3_and_7_threads(rows, width, out):
    x, matrix = drawn(rows, width, out)
    one, *others = [multiply_rows(x, matrix, threads=threads) for threads in (1, 2, 3, 7)]
    for limit in (1, 2):
        with threadpool_limits(limit):
            others.append(multiply_rows(x, matrix))
    for other in others:
        assert np.array_equal(one, other)


def test_any_axes_before_the_last_stay():
    x, matrix = drawn(*LARGE[1])
    x = x.reshape(7, 2, 50, 90)
    # A batch that is not laid row after row, too.
    for given in (x, x.swapaxes(0, 1)):
        assert_near(multiply_rows(given, matrix), given @ matrix, rtol=1e-4, atol=1e-4)
    assert multiply_rows(x[:, :, :0], matrix).shape == (7, 2, 0, 2300)


def test_takes_as_many_threads_as_asked_for(threads_that_multiplied):
    x, matrix = drawn(*LARGE[0])
    with threadpool_limits(2, user_api="blas"):
        multiply_rows(x, matrix, threads=2)
        assert blas_threads() == {2}
    assert len(threads_that_multiplied) == 2
    # With one BLAS thread each.
    assert [blas for _, blas in threads_that_multiplied] == [{1}, {1}]


def test_warns_as_its_caller_wants():
    x, matrix = drawn(*LARGE[0])
    x[:, 0], matrix[0] = 3e38, 3e38
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        multiply_rows(x, matrix, threads=2)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        assert np.isinf(multiply_rows(x, matrix, threads=2)).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_projections_take_the_threads_of_their_caller(threads, monkeypatch):
    given = []

    def multiply(x, matrix, *, threads):
        given.append(threads)
        return x @ matrix

    monkeypatch.setattr("attncli.problem.output.multiply_rows", multiply)
    x = np.ones((3, 2))
    project(x, wq=np.eye(2), wk=np.eye(2), threads=threads)
    OutputProjection(np.eye(2), None)(x, threads=threads)
    assert given == [threads] * 3


COMMAND = """
import sys
import attncli.problem.output
from attncli.cli import main
made = attncli.problem.output.multiply_rows
def multiply(x, matrix, *, threads):
    print("threads:", threads, file=sys.stderr, flush=True)
    return made(x, matrix, threads=threads)
attncli.problem.output.multiply_rows = multiply
main()
"""


@pytest.mark.parametrize("command", ["compute", "check"])
def test_commands_give_theirs_to_every_projection(command, folder, attncli):
    np.save("x.npy", np.eye(3, dtype=np.float32))
    weights = [word for letter in "qkvo" for word in (f"--w{letter}", "x.npy")]
    words = [command, "x.npy", *weights, "--threads", "3"]
    if command == "check":
        attncli("compute", *words[1:], "--save", "answer.npz", "-q").good()
        words += ["--expect", "answer.npz"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("threads")]
    assert len(said) >= 4
    assert set(said) == {"threads: 3"}


def test_threads_of_a_projection_are_a_number():
    with pytest.raises(UsageError, match="threads"):
        project(np.ones((3, 2)), wq=np.eye(2), wk=np.eye(2), threads=0)
