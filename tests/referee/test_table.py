"""The table of mistakes: its words, its names, and docs/mistakes.md, which this file writes.

python tests/referee/test_table.py > docs/mistakes.md
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import attncli
from attncli.referee.fits import table as fits
from attncli.referee.gradients.table import ROWS
from attncli.referee.mistakes import TABLE
from attncli.referee.mistakes.table import WORDS

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
HEAD = """\
# Mistakes that `attncli check` names

`check` tries each of these alone and in pairs. `…` stands for the parameter of a family; the words
are those of the first member. Below are the mistakes that it reads off the numbers, and those of
gradients. `python tests/referee/test_table.py` writes this page.

| name | what the other implementation did | fix | shows with |
|---|---|---|---|
"""
FITTED = """
## Read off the numbers

`check` fits these to the file: a scale, a length, a place or a page that no row above has. `…`
stands for what it finds.

| name | what the other implementation did | fix | shows with |
|---|---|---|---|
"""
GRADIENTS = """
## Of gradients

`check` tries these one at a time, on all given gradients together. It also tries the mistakes above
that change scores, mask or sinks, in both passes.

| name | what the backward pass did | fix | shows with |
|---|---|---|---|
"""


def page() -> str:
    return HEAD + rows_of(TABLE) + FITTED + fitted() + GRADIENTS + rows_of(ROWS)


def fitted() -> str:
    rows = sorted(
        (name, re.sub(r"{\d}", "…", row["meaning"]), row["fix"], row["shows"])
        for name, row in fits.WORDS.items()
    )
    return "".join(f"| {cells(*row)} |\n" for row in rows)


def rows_of(mistakes) -> str:
    families = {mistake.family: mistake for mistake in reversed(mistakes)}
    rows = sorted((shown(f), m.meaning, m.fix, m.shows) for f, m in families.items())
    return "".join(f"| {cells(*row)} |\n" for row in rows)


def cells(name: str, *words: str) -> str:
    return " | ".join([f"`{name}`", *(word.replace("|", r"\|") for word in words)])


def shown(family: str) -> str:
    first, *parts = family.split("{")
    return first + "".join("…" + part.partition("}")[2] for part in parts)


def test_the_page_of_mistakes_is_that_of_the_table():
    if not PAGE.exists():
        pytest.skip("a copy without it")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_names_are_of_one_mistake_each():
    names = Counter(m.name for m in (*TABLE, *ROWS))
    assert [name for name, count in names.items() if count > 1] == []


def test_words_are_of_rows_of_the_table():
    assert set(WORDS) <= {mistake.family for mistake in TABLE}
    assert all(m.meaning and m.fix and m.shows for m in TABLE)


def test_a_report_is_true_if_the_outputs_are_right():
    q, k, v = np.random.default_rng(0).normal(size=(3, 5, 4))
    problem = attncli.pose(q, k, v)
    right = np.asarray(attncli.solve(problem).context)
    assert attncli.check(right, problem)
    assert not attncli.check(right + 1, problem, diagnose=False)


def test_identical_calls_give_identical_names():
    q, k, v = np.random.default_rng(1).normal(size=(3, 5, 4))
    problem = attncli.pose(q, k, v, causal=True)
    wrong = np.asarray(attncli.solve(attncli.pose(q, k, v)).context)
    first, second = (attncli.check(wrong, problem).diagnosis for _ in range(2))
    assert first.explanations
    assert first == second


if __name__ == "__main__":
    print(page(), end="")
