"""`attncli merge`: files of parts of the keys become the file of the whole."""

from __future__ import annotations

import numpy as np
import pytest

QUERY, KEY, VALUE = (np.random.default_rng(5).normal(size=(2, 3, n, 4)) for n in (5, 12, 12))
SINKS = np.array([0.5, -1.0, 2.0])


def softmax(stretch, sinks=None):
    """Return the plain context (B, H, L, E) and lse (B, H, L) over a stretch of the keys."""
    powers = np.exp(QUERY @ KEY[:, :, stretch].swapaxes(2, 3) / 2)
    total = powers.sum(-1) + (0 if sinks is None else np.exp(sinks)[:, None])
    return powers @ VALUE[:, :, stretch] / total[..., None], np.log(total)


@pytest.fixture
def parts(folder):
    """Files of three parts, in the forms that kernels write."""

    def write(base=np.e, turn=np.asarray, sinks=None):
        for number, stretch in enumerate((slice(0, 3), slice(3, 4), slice(4, 12))):
            context, lse = softmax(stretch, sinks)
            np.savez(f"part{number}.npz", out=turn(context), lse=lse / np.log(base))
        return ["part2.npz", "part0.npz", "part1.npz"]

    return write


def whole(name="whole.npz"):
    with np.load(name) as file:
        return file["context"], file["lse"]


def test_parts_give_the_whole(parts, attncli):
    attncli("merge", *parts(), "--save", "whole.npz", "--save", "lse=lse.npy").good()
    for made, right in zip(whole(), softmax(slice(0, 12)), strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-12)
    assert (np.load("lse.npy") == whole()[1]).all()


@pytest.mark.parametrize("every", [False, True])
def test_sinks_count_once(every, parts, attncli):
    words = ["--sinks", ",".join(map(str, SINKS)), *(["--sinks-in", "every"] if every else [])]
    files = parts(sinks=SINKS if every else None)
    attncli("merge", *files, *words, "--save", "whole.npz").good()
    for made, right in zip(whole(), softmax(slice(0, 12), SINKS), strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-10)


def test_what_cannot_be_merged_is_told_by_its_file(parts, attncli):
    files = parts()
    np.savez("other.npz", context=np.ones((2, 3, 4, 4)), lse=np.ones((2, 3, 4)))
    np.savez("nan.npz", context=np.ones((2, 3, 5, 4)), lse=np.full((2, 3, 5), np.nan))
    np.savez("turned.npz", context=np.ones((2, 5, 3, 4)), lse=np.ones((2, 3, 5)))
    np.savez("none.npz", context=np.ones((2, 3, 5, 4)))
    save = ["--save", "whole.npz"]
    for words, name in (
        ([*files, "other.npz", *save], "other.npz"),
        ([*files, "nan.npz", *save], "nan.npz"),
        ([*files, "turned.npz", *save], "turned.npz"),
        ([*files, "none.npz", *save], "lse"),
        ([*files, files[0], *save], files[0]),
        ([*files, "--save", "weights=w.npy"], "weights"),
        ([*files, "--sinks", "1,2", *save], "sinks"),
        ([*files, "--sinks-in", "every", *save], "sinks"),
        (files, "--save"),
        (save, "files"),
    ):
        ran = attncli("merge", *words)
        assert (ran.code, ran.messages[0][:7]) == (2, "error: "), words
        assert name in ran.messages[0], ran.messages
