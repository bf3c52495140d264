"""Figures of heads and strongest keys, against plain loops over the oracle's weights."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import attention_oracle
from rich.cells import cell_len
from strategies import problems

from attncli import pose
from attncli.summaries import maps, stats, strongest
from attncli.view.limits import Limits
from attncli.view.stats import stats_parts, top_parts


def statistics(problem, **options):
    return stats.statistics(maps.Computed(problem, threads=1), **options)


def top(problem, *count, **options):
    return strongest.top(maps.Computed(problem, threads=1), *count, **options)


pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")

FIGURES = (
    "entropy",
    "effective_keys",
    "largest",
    "first_key",
    "diagonal",
    "distance",
    "negligible",
)


def figures_by_hand(weights, scores, offset):
    """Return the figures of one head from its rows, one weight at a time."""
    entropies, firsts, diagonals, cells = [], [], [], []
    mass = moved = 0.0
    for i, (row, logits) in enumerate(zip(weights, scores, strict=True)):
        if all(s == -math.inf for s in logits):
            continue
        total = math.fsum(row)
        entropies.append(-math.fsum(w / total * math.log(w / total) for w in row if w > 0))
        firsts.append(row[0])
        diagonals.append(row[i + offset] if 0 <= i + offset < len(row) else 0.0)
        moved += math.fsum(w * abs(i + offset - j) for j, w in enumerate(row))
        mass += math.fsum(row)
        cells += [w for w, s in zip(row, logits, strict=True) if s > -math.inf]
    count = len(entropies)
    if not count:
        return dict.fromkeys(FIGURES)
    return {
        "entropy": sum(entropies) / count,
        "effective_keys": math.exp(sum(entropies) / count),
        "largest": max(cells),
        "first_key": sum(firsts) / count,
        "diagonal": sum(diagonals) / count,
        "distance": moved / mass if mass else None,
        "negligible": sum(w < 1e-3 for w in cells) / len(cells),
    }


@given(problem=problems(dtypes=("float64",)))
@settings(max_examples=15, deadline=None)
def test_figures_are_those_of_plain_loops(problem):
    *qkv, options = problem
    posed = pose(*qkv, **options)
    expected = attention_oracle(*qkv, **options)
    weights, scores = (expected[n].reshape(posed.shape).tolist() for n in ("weights", "scores"))
    found = statistics(posed)
    assert len(found) == posed.shape[0] * posed.shape[1]
    for number, head in enumerate(found):
        b, h = divmod(number, posed.shape[1])
        by_hand = figures_by_hand(weights[b][h], scores[b][h], posed.visible.offset(b))
        seen = sum(any(s > -math.inf for s in row) for row in scores[b][h])
        assert (head.queries, head.left_out) == (seen, posed.shape[2] - seen)
        for name in FIGURES:
            expected_figure = by_hand[name]
            if expected_figure is not None:
                expected_figure = pytest.approx(expected_figure, rel=1e-9, abs=1e-9)
            assert getattr(head, name) == expected_figure, name


def test_even_attention_has_as_many_effective_keys_as_keys():
    (head,) = statistics(pose(np.zeros((3, 2)), np.ones((8, 2))))
    assert head.entropy == pytest.approx(math.log(8))
    assert head.effective_keys == pytest.approx(8)
    assert head.first_key == head.diagonal == head.largest == pytest.approx(1 / 8)
    # Distances of query 0: 0 … 7; of 1: 1, 0, 1 … 6; of 2: 2, 1, 0, 1 … 5.
    assert head.distance == pytest.approx((28 + 22 + 18) / 24)
    assert head.negligible == 0
    assert (head.batch, head.head) == (None, None)


@pytest.mark.parametrize("sink", [-3.0, 1.25, 6.0, 1e4])
def test_a_sink_does_not_change_among_how_many_keys_attention_is_spread(sink):
    for keys in (1, 2, 5):
        (head,) = statistics(pose(np.zeros((3, 2)), np.ones((keys, 2)), sinks=[sink]))
        # Where the sink takes all, no key gets anything.
        assert head.effective_keys == pytest.approx(keys if sink < 1e3 else 1)


def test_rows_that_see_nothing_are_left_out_and_nothing_warns(recwarn):
    mask = [[1, 1], [0, 0], [1, 0]]
    (head,) = statistics(pose(np.ones((3, 2)), np.ones((2, 2)), mask=mask))
    assert (head.queries, head.left_out) == (2, 1)
    assert head.first_key == pytest.approx(0.75)
    (nothing,) = statistics(pose(np.ones((3, 2)), np.ones((2, 2)), mask=np.zeros((3, 2))))
    assert [getattr(nothing, name) for name in FIGURES] == [None] * len(FIGURES)
    assert not list(recwarn)


def test_long_inputs_never_hold_all_weights(monkeypatch):
    most = 0
    whole = maps.attend

    def watched(problem, *args, **options):
        nonlocal most
        most = max(most, problem.shape[2] * problem.shape[3])
        return whole(problem, *args, **options)

    monkeypatch.setattr(maps, "attend", watched)
    random = np.random.default_rng(0)
    q, k = (random.normal(size=(3000, 2)).astype(np.float32) for _ in range(2))
    done = []
    (head,) = statistics(pose(q, k), progress=lambda *now: done.append(now))
    assert most <= 1 << 21 < 3000**2
    assert len(done) > 3
    assert done[-1] == (3000, 3000)
    # The rows are counted once each, however they were cut.
    powers = np.exp(q @ k.T / np.sqrt(2))
    weights = powers / powers.sum(axis=1, keepdims=True)
    assert head.entropy == pytest.approx(-(weights * np.log(weights)).sum(axis=1).mean(), rel=1e-4)
    assert head.first_key == pytest.approx(weights[:, 0].mean(), rel=1e-4)


def strongest_by_hand(weights, scores, count):
    seen = [j for j, s in enumerate(scores) if s > -math.inf]
    return sorted(seen, key=lambda j: (-weights[j], j))[:count]


@given(problem=problems(dtypes=("float64",)), count=st.sampled_from([1, 2, 3, 17]))
@settings(max_examples=15, deadline=None)
def test_top_finds_the_largest_weights_of_seen_keys(problem, count):
    *qkv, options = problem
    posed = pose(*qkv, **options)
    expected = attention_oracle(*qkv, **options)
    flat = (-1, posed.shape[3])
    weights, scores = (expected[n].reshape(flat).tolist() for n in ("weights", "scores"))
    found = list(top(posed, count))
    assert len(found) == len(weights)
    for row, weight, score in zip(found, weights, scores, strict=True):
        picked = [weight[key.index] for key in row.keys]
        by_hand = [weight[j] for j in strongest_by_hand(weight, score, count)]
        assert picked == pytest.approx(by_hand, rel=1e-9)
        assert [key.weight for key in row.keys] == pytest.approx(picked, rel=1e-9)
        assert len({key.index for key in row.keys}) == len(row.keys)
        assert all(score[key.index] > -math.inf for key in row.keys)


def test_weights_that_underflow_still_have_an_order():
    (row,) = top(pose([[1.0]], [[-900.0], [-800.0], [0.0]], scale=1), 3)
    assert [k.index for k in row.keys] == [2, 1, 0]


def test_top_of_some_rows_keeps_indices_and_labels():
    problem = pose(np.eye(4), np.eye(4), query_labels=list("abcd"), key_labels=list("wxyz"))
    rows = list(top(problem, 1))[2:]
    assert len(list(top(problem, 1, queries=2))) == 2
    assert [(row.query, row.label, row.keys[0].label) for row in rows] == [
        (2, "c", "y"),
        (3, "d", "z"),
    ]


# --- tables --------------------------------------------------------------------------------

LABELS = ["the", "[/INST]", "a label of many words that goes on", "中文字符" * 3, "\x1b[31m"]


def lines_of(parts, rows, **limits):
    """Return the lines of the tables of some figures or strongest keys."""
    given = Limits()._replace(**limits)
    return [line for part in parts([*rows], given) for line in part.plain.split("\n")]


def labelled(heads=True):
    random = np.random.default_rng(1)
    lead = (2, 3) if heads else ()
    q, k = (random.normal(size=(*lead, 5, 4)) for _ in range(2))
    mask = np.tril(np.ones((5, 5)))
    mask[0] = 0
    return pose(q, k, mask=mask, query_labels=LABELS, key_labels=LABELS)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_terminal(width, unicode):
    problem = labelled()
    limits = {"width": width, "unicode": unicode}
    lines = lines_of(stats_parts, statistics(problem), **limits)[:-1]  # Rich wraps the legend
    lines += lines_of(top_parts, top(problem, 4), **limits)
    assert all(cell_len(line) <= width for line in lines)
    assert all("\x1b" not in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert unicode or all(map(str.isascii, lines))


@pytest.mark.parametrize("width", [60, 200, None])
def test_the_table_of_figures_holds_every_figure(width):
    stats = statistics(labelled())
    words = " ".join(lines_of(stats_parts, stats, width=width)).split()
    for head in stats:
        for name in FIGURES:
            assert f"{getattr(head, name):.4f}" in words
    assert "left" in words


def test_in_json_they_are_lists(folder, attncli):
    np.save("x.npy", np.random.default_rng(0).normal(size=(2, 3, 4)))
    words = ["compute", "x.npy", "x.npy", "--causal", "--layout", "hsd", "--show", "stats,top"]
    found = attncli(*words, "--json").good().json
    assert [set(FIGURES) <= set(head) for head in found["stats"]] == [True] * 2
    assert [len(row["keys"]) for row in found["top"]] == [1, 2, 3] * 2
    picked = attncli(*words, "--head", "1", "--json").good().json
    assert [row["head"] for row in picked["top"]] == [1] * 3
    assert picked["stats"] == found["stats"][1:]
