"""Large products with one matrix: exact, and the same bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from process import long_but
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import UsageError, project
from attncli.numerics.threads.products import multiply_rows

# Rows, in, out: each of them large, none a multiple of the pieces.
LARGE = [(2500, 70, 800), (700, 90, 2300), (9, 4100, 4100)]


def drawn(rows, width, out, dtype="float32"):
    random = np.random.default_rng(rows)
    return [random.standard_normal(s, dtype) for s in ((rows, width), (width, out))]


def blas_threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


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


def test_threads_of_a_projection_are_a_number():
    with pytest.raises(UsageError, match="threads"):
        project(np.ones((3, 2)), wq=np.eye(2), wk=np.eye(2), threads=0)
