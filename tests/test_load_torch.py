"""PyTorch files: only tensors are read, and nothing in a file is run."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from process import measured

from attncli.errors import InputError
from attncli.loading import LoadedArray, LoadedMapping, describe, read, read_array
from attncli.numerics.dtypes import BFLOAT16, widen

EXPECTED = np.array([[1.0, 0.5], [-2.0, 3.140625]])


@pytest.fixture
def torch(folder):
    return pytest.importorskip("torch")


def values(array):
    return widen(array.values, np.float64).tolist()


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_tensor_is_an_array(torch, name, suffix):
    tensor = torch.tensor(EXPECTED).to(getattr(torch, name))
    torch.save(torch.nn.Parameter(tensor), f"x{suffix}")
    found = read(f"x{suffix}")
    assert isinstance(found, LoadedArray)
    assert found.values.dtype == (BFLOAT16 if name == "bfloat16" else np.dtype(name))
    assert values(found) == EXPECTED.tolist()


def test_a_dict_is_a_problem_that_is_computed(torch, attncli):
    x = torch.tensor(EXPECTED, requires_grad=True)
    torch.save({"query": x, "key": x, "value": x.T, "causal": True}, "p.pt")
    found = read("p.pt")
    assert isinstance(found, LoadedMapping)
    assert found.dump
    assert found.entries["causal"] is True
    np.testing.assert_array_equal(found.entries["value"].values, EXPECTED.T)
    np.savez("p.npz", query=EXPECTED, key=EXPECTED, value=EXPECTED.T, causal=True)
    same = attncli("compute", "p.npz", "-f", "json").good().out
    assert attncli("compute", "p.pt", "-f", "json").good().out == same


def test_tensors_of_a_tuple_and_of_dicts_inside_have_names(torch):
    x = torch.tensor(EXPECTED)
    torch.save((x, [2 * x], {"a": {"b": 3 * x}, "step": 7}), "t.pt")
    found = read("t.pt").entries
    assert list(found) == ["0", "1.0", "2.a.b", "2.step"]
    assert values(found["2.a.b"]) == (3 * EXPECTED).tolist()
    assert values(read_array("t.pt#1.0")) == (2 * EXPECTED).tolist()
    assert found["2.step"] == 7
    assert [member.shape for member in describe("t.pt")] == [(2, 2), (2, 2), (2, 2), ()]


class Explosive:
    exploded = False

    def __reduce__(self):
        return (setattr, (Explosive, "exploded", True))


def test_nothing_in_it_is_run(torch):
    torch.save({"q": torch.ones(2, 2), "bomb": Explosive()}, "x.pt")
    torch.save(torch.nn.Linear(2, 2), "model.pt")
    torch.save(torch.ones(2), "old.pt", _use_new_zipfile_serialization=False)
    Path("bare.pt").write_bytes(pickle.dumps(Explosive(), 2))
    for name in ("x.pt", "model.pt", "old.pt", "bare.pt"):
        with pytest.raises(InputError, match=r"holds more than tensors|is a pickle file") as caught:
            read(name)
        assert caught.value.hint
    assert not Explosive.exploded


@pytest.mark.parametrize("made", ["complex64", "sparse", "words"])
def test_other_tensors_are_named(torch, made):
    held = {
        "complex64": torch.ones(2, dtype=torch.complex64),
        "sparse": torch.eye(2).to_sparse(),
        "words": {"a": "b"},
    }[made]
    torch.save(held, "x.pt")
    with pytest.raises(InputError, match=r"x\.pt: expected .*; found "):
        read("x.pt")


def damaged(data):
    yield data[: len(data) // 2]
    yield data.replace(b"data.pkl", b"data.pkx")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100 * 2**20))
    yield packed.getvalue()
    yield packed.getvalue()[:60]


def test_what_is_damaged_or_packed_is_refused_soon_and_small(torch):
    torch.save(torch.tensor(EXPECTED), "x.pt")
    for at, data in enumerate(damaged(Path("x.pt").read_bytes())):
        Path(f"{at}.pt").write_bytes(data)
        ran = measured("info", f"{at}.pt")
        assert ran.code == 2, at
        assert f"{at}.pt " in ran.messages[0]
