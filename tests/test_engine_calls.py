"""Calls are made in order, hundreds of them known before the first, but never all of many."""

import numpy as np
import pytest

from attncli import attention
from attncli.engine import calls


def test_are_made_in_order_each_with_its_arguments():
    made = []
    calls.carry_out((made.append, (number,)) for number in range(2000))
    assert made == list(range(2000))


def test_are_known_before_the_first_is_made():
    events = []

    def planned():
        for number in range(100):
            events.append("planned")
            yield events.append, (number,)

    calls.carry_out(planned())
    assert events == ["planned"] * 100 + list(range(100))


def test_are_never_all_known_of_many():
    made, ahead = [], []

    def planned():
        for number in range(10_000):
            ahead.append(number - len(made))
            yield made.append, (number,)

    calls.carry_out(planned())
    assert len(made) == 10_000
    assert max(ahead) < 1000


def test_end_with_the_first_error():
    made = []

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        calls.carry_out([(made.append, (1,)), (fail, ()), (made.append, (2,))])
    assert made == [1]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (700, 0)}], ids=str)
def test_yield_the_same_bits_however_many_are_known(options, monkeypatch):
    random = np.random.default_rng(0)
    qkv = random.standard_normal((3, 2, 1100, 16)).astype("f")
    call = lambda: attention(*qkv, layout="hsd", outputs=("context",), **options).context  # noqa: E731
    expected = call()
    monkeypatch.setattr(calls, "_AHEAD", 1)
    assert np.array_equal(call(), expected)
