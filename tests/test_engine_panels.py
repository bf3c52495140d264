"""However queries, heads and keys are laid side by side, the answer is the formula's."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention, pose, solve
from attncli.engine import attend, panels, plan, scratch, sweep
from attncli.threads import blas

BOTH = ("weights", "context", "lse")
pytestmark = pytest.mark.usefixtures("kernels", "in_blocks")


def inputs(heads, queries, keys, width, *, groups=None, value_width=None, batch=1, dtype="float32"):
    random = np.random.default_rng(queries + keys)
    drawn = np.float64 if dtype == "float64" else np.float32
    query = random.standard_normal((batch, heads, queries, width), drawn)
    key = random.standard_normal((batch, groups or heads, keys, width), drawn)
    value = random.standard_normal((batch, groups or heads, keys, value_width or width), drawn)
    return [array.astype(dtype, copy=False) for array in (query, key, value)]


def formula(query, key, value, seen=True, judged=slice(None)):
    """Return the outputs of some heads by the formula, in float64."""
    share = query.shape[1] // key.shape[1]
    repeated = [query, key.repeat(share, axis=1), value.repeat(share, axis=1)]
    wide = [array[:, judged].astype(float) for array in repeated]
    # One array, in place: memory that is new each time takes as long as the exponentials.
    weights = wide[0] @ wide[1].swapaxes(-1, -2)
    weights /= np.sqrt(query.shape[-1])
    if seen is not True:
        np.copyto(weights, -np.inf, where=~seen)
    highest = weights.max(-1, keepdims=True)
    weights -= highest
    np.exp(weights, out=weights)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    lse = (np.log(total) + highest)[..., 0]
    return {"weights": weights, "context": weights @ wide[2], "lse": lse}


def assert_is_the_formula(query, key, value, outputs, seen=True, **options):
    answer = attention(query, key, value, outputs=outputs, **options)
    truth = formula(query, key, value, seen)
    for name in outputs:
        assert_near(getattr(answer, name), truth[name], rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("outputs", [BOTH, ("context", "lse")], ids="-".join)
class TestEqualsTheFormula:
    @pytest.mark.parametrize("queries", [16, 63, 64, 65, 129, 500, 1100])
    def test_for_queries_that_fill_no_whole_panels(self, queries, outputs):
        assert_is_the_formula(*inputs(2, queries, 700, 16), outputs)

    @pytest.mark.parametrize(
        ("heads", "groups", "queries"), [(10, 2, 110), (10, 2, 170), (6, 1, 90)]
    )
    def test_for_heads_whose_stacks_do_not_fill_the_groups(self, heads, groups, queries, outputs):
        assert_is_the_formula(*inputs(heads, queries, queries, 16, groups=groups, batch=2), outputs)

    def test_for_long_rows_of_few_queries(self, outputs):
        assert_is_the_formula(*inputs(1, 64, 70_000, 4), outputs)

    @pytest.mark.parametrize(("width", "value_width"), [(3, 1), (64, 100), (100, 64), (300, 300)])
    def test_for_vectors_of_any_width(self, width, value_width, outputs):
        assert_is_the_formula(*inputs(2, 300, 333, width, value_width=value_width), outputs)

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize(
        ("heads", "groups", "batch"), [(8, 8, 1), (5, 5, 2), (6, 2, 2), (12, 2, 1), (16, 8, 1)]
    )
    @pytest.mark.parametrize("queries", [100, 512])
    def test_for_heads_that_are_computed_at_once(
        self, queries, heads, groups, batch, causal, outputs
    ):
        qkv = inputs(heads, queries, 300, 8, groups=groups, batch=batch)
        options = {"causal": True, "causal_align": "top-left"} if causal else {}
        seen = np.tri(queries, 300, dtype=bool) if causal else True
        assert_is_the_formula(*qkv, outputs, seen, **options)

    @pytest.mark.parametrize("kind", ["float16", "float64"])
    def test_for_heads_of_other_number_formats(self, kind, outputs):
        assert_is_the_formula(*inputs(8, 512, 300, 8, groups=4, dtype=kind), outputs)

    @pytest.mark.parametrize(("left", "right"), [(256, 0), (100, 70), (0, 5), (1000, None)])
    @pytest.mark.parametrize(("offset", "heads"), [(0, 4), (37, 1), (-200, 4), (-200, 1)])
    def test_for_windows_over_many_blocks(self, left, right, offset, heads, outputs):
        length = 1100
        behind = np.arange(length)[:, None] + offset - np.arange(length)
        seen = (behind <= left) & (right is None or behind >= -right)
        query, key, value = inputs(heads, length, length, 4)
        rows = seen.any(1)
        options = {"window": (left, right), "query_offset": offset, "outputs": outputs}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = attention(query, key, value, **options)
        assert any("see no key" in str(warning.message) for warning in caught) is not rows.all()
        assert not answer.context[:, :, ~rows].any()
        assert (answer.lse[:, :, ~rows] == -np.inf).all()
        # Those that see something are judged, in the last head.
        some = query[:, :, rows], key, value
        expected = formula(*some, seen[rows], slice(heads - 1, heads))
        for name in outputs:
            found = getattr(answer, name)[:, heads - 1, rows]
            assert_near(found, expected[name][:, 0], rtol=2e-5, atol=3e-6)


class TestAPanelThatOverhangs:
    """The last panel may have more queries than there are, which no result may show."""

    KEYS = 450

    @pytest.fixture(params=[77, 197, 600], ids="{} queries".format)
    def qkv(self, request):
        return inputs(6, request.param, self.KEYS, 16, groups=3)

    def far(self, qkv, offset=0):
        return np.arange(qkv[0].shape[2])[:, None] + offset - np.arange(self.KEYS)

    def assert_is_the_formula(self, qkv, added, near=3e-6, **options):
        """Compare with the formula, rows without any key included; return how many they are."""
        problem = pose(*qkv, layout="bhsd", **options)
        answer, fully_masked = attend(problem, ("context", "lse"))
        query, key, value = (array.astype(float) for array in qkv)
        powers = query @ key.repeat(2, axis=1).swapaxes(-1, -2)
        powers /= 4
        powers += added
        blind = powers.max(-1) == -np.inf
        with np.errstate(divide="ignore"):
            np.exp(powers, out=powers)
            total = powers.sum(-1)
            lse = np.log(total)
        context = powers @ value.repeat(2, axis=1) / np.where(total == 0, 1, total)[..., None]
        assert_near(answer.context, context, rtol=2e-5, atol=near)
        assert_near(answer.lse, lse, rtol=2e-5, atol=near)
        assert fully_masked == np.count_nonzero(blind)
        return fully_masked

    def test_with_no_rule(self, qkv):
        assert not self.assert_is_the_formula(qkv, 0)

    def test_whatever_was_in_memory_before(self, qkv, monkeypatch):
        made = scratch.Scratch._view

        def soiled(self, *given):
            view = made(self, *given)
            view.fill(np.nan)
            return view

        monkeypatch.setattr(scratch.Scratch, "_view", soiled)
        self.assert_is_the_formula(qkv, 0)

    @pytest.mark.parametrize("offset", [0, -60, 200])
    def test_where_queries_are_causal(self, qkv, offset):
        hidden = np.where(self.far(qkv, offset) >= 0, 0, -np.inf)
        blind = self.assert_is_the_formula(qkv, hidden, causal=True, query_offset=offset)
        assert blind == (6 * 60 if offset < 0 else 0)

    @pytest.mark.parametrize("offset", [0, 350])
    def test_where_the_last_queries_of_a_window_see_no_key(self, qkv, offset):
        behind = self.far(qkv, offset)
        hidden = np.where((behind >= 0) & (behind <= 90), 0, -np.inf)
        self.assert_is_the_formula(qkv, hidden, window=(90, 0), query_offset=offset)

    def test_with_padded_keys(self, qkv):
        keep = np.random.default_rng(1).random(self.KEYS) < 0.6
        self.assert_is_the_formula(qkv, np.where(keep, 0, -np.inf), key_padding_mask=keep)

    def test_with_a_penalty_for_distance(self, qkv):
        slopes = np.array([0.5, 0.1, 0.02, 1, 0.3, 0])
        penalty = slopes[:, None, None] * np.abs(self.far(qkv))
        # Penalties of hundreds leave float32 few digits behind the point.
        options = {"alibi_slopes": slopes, "query_offset": 0}
        self.assert_is_the_formula(qkv, -penalty, near=2e-4, **options)

    def test_with_a_bias_of_each_key(self, qkv):
        bias = np.random.default_rng(1).standard_normal(self.KEYS).astype("f")
        self.assert_is_the_formula(qkv, bias, bias=bias)

    def test_with_a_mask_and_a_bias_of_each_query(self, qkv):
        random = np.random.default_rng(1)
        mask = random.random(self.far(qkv).shape) < 0.8
        bias = random.standard_normal(mask.shape).astype("f")
        self.assert_is_the_formula(qkv, np.where(mask, bias, -np.inf), mask=mask, bias=bias)

    def test_with_scores_that_need_a_shift(self, qkv):
        query, key, value = qkv
        query = query * np.float32(60)
        scores = query.astype(float) @ key.astype(float).repeat(2, axis=1).swapaxes(-1, -2) / 4
        answer = attention(query, key, value, outputs=("context", "lse"))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        expected = weights @ value.astype(float).repeat(2, axis=1)
        assert_near(answer.context, expected, rtol=1e-3, atol=1e-3)

    def test_in_float16_and_with_values_near_the_range(self, qkv):
        half = [array.astype("float16") for array in qkv]
        self.assert_is_the_formula(half, 0)
        large = qkv[2].astype(float) * 5e37
        answer = attention(*qkv[:2], large.astype("f"), outputs=("context",))
        expected = formula(*qkv[:2], large)["context"]
        assert_near(answer.context, expected, rtol=1e-4, atol=1e32)

    def test_spares_a_block_of_its_own(self, planned):
        attention(*inputs(2, 1000, 512, 64), outputs=("context",))
        if plan.multiplies_unpacked():
            assert {block.panel for block in planned} == {64}
            assert sum((block.stop - block.start) % 64 > 0 for block in planned) == 2


class TestWeightsOfManyKeys:
    """They are computed apart from the result: a few panels at a time, the keys in pieces."""

    # Whole pieces of 512 keys, and a rest.
    @pytest.mark.parametrize("keys", [1024, 1025, 1500])
    @pytest.mark.parametrize("queries", [512, 600])
    @pytest.mark.parametrize("outputs", [BOTH, ("weights",)], ids="-".join)
    def test_are_the_formulas(self, queries, keys, outputs):
        assert_is_the_formula(*inputs(2, queries, keys, 16), outputs)

    @pytest.mark.parametrize(
        ("width", "value_width"), [(1, 3), (64, 64), (64, 300), (300, 7), (900, 900)]
    )
    def test_of_any_width(self, width, value_width):
        assert_is_the_formula(*inputs(1, 520, 1100, width, value_width=value_width), BOTH)

    @pytest.mark.parametrize("kind", ["float16", "float64"])
    @pytest.mark.parametrize(("heads", "groups", "batch"), [(4, 2, 2), (4, 1, 1), (3, 3, 1)])
    def test_of_several_heads(self, heads, groups, batch, kind):
        qkv = inputs(heads, 520, 1100, 8, groups=groups, batch=batch, dtype=kind)
        assert_is_the_formula(*qkv, BOTH)

    @pytest.mark.parametrize("cache", [0, 2**20, 2**21, 2**24])
    def test_apart_from_the_result_unless_caches_are_large(self, monkeypatch, cache):
        for module in (plan, sweep):
            monkeypatch.setattr(module, "core_cache", lambda: cache)
        qkv = inputs(2, 600, 1100, 16)
        layouts = [
            part.layout
            for part, _ in plan.plan_blocks(pose(*qkv), {"weights": qkv[0]}, small=False)[0]
        ]
        assert any(layout.chunk for layout in layouts) is (
            plan.multiplies_unpacked() and cache < 2**21
        )
        assert_is_the_formula(*qkv, BOTH)

    @pytest.mark.parametrize("queries", [600, 1300])
    @pytest.mark.parametrize("offset", [0, 400, -100])
    def test_of_causal_heads(self, queries, offset):
        seen = np.tri(queries, 1100, offset, dtype=bool)
        qkv = inputs(2, queries, 1100, 8)
        sighted = slice(max(0, -offset), None)
        options = {"causal": True, "query_offset": offset}
        if offset < 0:
            with pytest.warns(UserWarning, match="see no key"):
                answer = attention(*qkv, outputs=BOTH, **options)
            assert not answer.weights[:, :, :-offset].any()
            assert not answer.context[:, :, :-offset].any()
            assert np.isneginf(answer.lse[:, :, :-offset]).all()
        else:
            answer = attention(*qkv, outputs=BOTH, **options)
        query, key, value = (array[0].astype(float) for array in qkv)
        powers = np.where(seen, np.exp(query @ key.swapaxes(1, 2) / np.sqrt(8)), 0)[:, sighted]
        weights = powers / powers.sum(-1, keepdims=True)
        assert_near(answer.weights[0, :, sighted], weights, rtol=2e-5, atol=3e-6)
        assert_near(answer.context[0, :, sighted], weights @ value, rtol=2e-5, atol=3e-6)

    def test_beside_scores_of_hidden_keys(self):
        query, key, value = inputs(1, 600, 2500, 8)
        outputs = ("raw", "scores", "weights", "context")
        answer = attention(query, key, value, causal=True, query_offset=0, outputs=outputs)
        raw = query.astype(float) @ key.swapaxes(-1, -2) / np.sqrt(8)
        assert_near(answer.raw, raw, rtol=1e-4, atol=1e-5)
        scores = np.where(np.tri(600, 2500, dtype=bool), raw, -np.inf)
        assert_near(answer.scores, scores, rtol=1e-4, atol=1e-5)
        powers = np.exp(scores)
        weights = powers / powers.sum(-1, keepdims=True)
        assert_near(answer.weights, weights, rtol=2e-5, atol=3e-6)

    def test_where_whole_panels_see_no_key(self, monkeypatch):
        # What an earlier problem left is not looked at.
        left = np.full(2**20, np.nan, np.float32).view(np.uint8)
        monkeypatch.setattr(scratch, "_spare", [{"context": left.copy(), "tile": left.copy()}])
        qkv = inputs(1, 1600, 1024, 8)
        with pytest.warns(UserWarning, match="571 of 1600 queries see no key"):
            answer = attention(*qkv, window=(5, 0), query_offset=0, outputs=BOTH, threads=1)
        assert not answer.context[0, 0, 1029:].any()
        assert not answer.weights[0, 0, 1029:].any()

    def test_of_values_at_the_end_of_float32(self):
        # All is done again, under a shift, with smaller values.
        query, key, value = inputs(2, 600, 1100, 8)
        answer = attention(query, key, value * np.float32(5e37))
        plain = attention(query, key, value)
        assert_near(answer.weights, plain.weights, rtol=2e-5, atol=1e-7)
        assert_near(answer.context / 5e37, plain.context, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "options", [{}, {"causal": True, "query_offset": 0}, {"bias": 1}, {"sinks": 1}]
    )
    def test_of_scores_that_need_a_shift(self, options):
        query, key, value = inputs(2, 600, 1100, 8)
        if "bias" in options:
            options = {"bias": np.random.default_rng(0).standard_normal((600, 1100))}
        if "sinks" in options:
            options = {"sinks": np.array([0.5, 60.0])}
        answer = attention(query * 90, key, value, **options)
        scores = (query * 90).astype(float) @ key.swapaxes(-1, -2) / np.sqrt(8)
        scores += options.get("bias", 0)
        if "causal" in options:
            scores = np.where(np.tri(600, 1100, dtype=bool), scores, -np.inf)
        highest = scores.max(-1, keepdims=True)
        powers = np.exp(scores - highest)
        sinks = options.get("sinks", np.full(2, -np.inf))[:, None, None]
        weights = powers / (powers.sum(-1, keepdims=True) + np.exp(sinks - highest))
        assert_near(answer.weights, weights, rtol=2e-4, atol=1e-5)
        assert_near(answer.context, weights @ value, rtol=2e-3, atol=1e-4)

    def test_leave_the_loops_of_numpy_as_they_were(self):
        before = np.setbufsize(4096)
        try:
            attention(*inputs(2, 600, 1100, 8))
            assert np.getbufsize() == 4096
            query, key, value = inputs(2, 600, 1100, 8)
            with pytest.raises(ValueError, match="range of float32"):
                attention(query * 1e30, key * 1e30, value)
            assert np.getbufsize() == 4096
        finally:
            np.setbufsize(before)


@pytest.mark.parametrize("keys", [16384, 16385, 20011])
@pytest.mark.parametrize(("heads", "groups", "width"), [(8, 8, 24), (1, 1, 3), (8, 2, 16)])
def test_one_query_over_keys_that_are_cut(keys, heads, groups, width):
    assert_is_the_formula(*inputs(heads, 1, keys, width, groups=groups), ("context",))


def test_results_need_not_lie_in_one_piece():
    query, key, value = inputs(4, 3, 40, 8, groups=2)
    expected = attention(query, key, value, outputs=("context",)).context
    room = np.full((1, 3, 4, 8), np.nan, np.float32).swapaxes(1, 2)
    solve(pose(query, key, value), ("context",), into={"context": room})
    assert_near(room, expected, rtol=1e-5, atol=1e-6)


class TestTheMiddleOfALongSequence:
    """There the steps of a window are alike, and their keys are views of the same ones."""

    # Steps begin at other places of panels: so many queries apart, all of those are looked at.
    MIDDLE = slice(900, 2200, 5)
    SEEN = slice(700, 2400)

    def judged(self, query, key, value, left, right, score):
        """Return the first head's context of the middle, by the formula."""
        rows = np.arange(query.shape[2])[self.MIDDLE, None]
        behind = rows - np.arange(key.shape[2])[self.SEEN]
        own, keys = query[0, 0, self.MIDDLE].astype(float), key[0, 0, self.SEEN].astype(float)
        if score == "additive":
            scores = np.tanh(own[:, None] + keys).sum(-1)
        else:
            scores = own @ keys.T / np.sqrt(query.shape[3])
        powers = np.where((behind <= left) & (behind >= -right), np.exp(scores), 0)
        return powers / powers.sum(-1, keepdims=True) @ value[0, 0, self.SEEN]

    @pytest.mark.parametrize(
        ("left", "right", "score"),
        [(200, 0, "dot"), (20, 20, "dot"), (0, 150, "dot"), (20, 20, "additive")],
    )
    def test_has_the_context_of_the_formula(self, left, right, score, monkeypatch):
        # Numbers that an earlier problem left could be so large that all is done again.
        monkeypatch.setattr(scratch, "_spare", [])
        qkv = inputs(3, 3072, 3072, 4)
        options = {"window": (left, right), "score": score, "outputs": ("context",)}
        found = attention(*qkv, threads=1, **options).context[0, 0, self.MIDDLE]
        expected = self.judged(*qkv, left, right, score)
        assert_near(found, expected, rtol=1e-4, atol=1e-5)

    def test_at_the_end_of_float32(self):
        # What is scaled down the second time has to be the views.
        query, key, value = inputs(3, 3072, 3072, 4)
        only = ("context",)
        huge = attention(query, key, value * np.float32(5e37), window=(200, 0), outputs=only)
        expected = self.judged(query, key, value, 200, 0, "dot")
        found = huge.context[0, 0, self.MIDDLE] / 5e37
        assert_near(found, expected, rtol=1e-4, atol=1e-5)


def stacks(blocks):
    """Return how many heads each block takes."""
    return [last - first for first, last in (block.heads for block in blocks)]


def test_short_heads_share_a_call_and_long_ones_do_not(planned):
    attention(*inputs(8, 256, 512, 64), outputs=("context",))
    assert min(stacks(planned)) > 1
    assert sum(stacks(planned)) == 8
    planned.clear()
    attention(*inputs(8, 2048, 512, 64), outputs=("context",))
    assert set(stacks(planned)) == {1}


def by_head(name, heads, queries, keys):
    """Return a rule that differs by head, and what it does to scores (H, L, S)."""
    random = np.random.default_rng(7)
    seen = random.random((heads, queries, keys)) < 0.6
    bias = random.standard_normal((heads, queries, keys)).astype(np.float32)
    slopes = random.uniform(0.01, 0.3, heads)
    distances = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    none = np.zeros((heads, 1, 1))
    return {
        "sinks": ({"sinks": np.linspace(-3, 5, heads)}, none),
        "high sinks": ({"sinks": np.linspace(-3, 90, heads)}, none),
        "slopes": ({"alibi_slopes": slopes, "query_offset": 0}, -slopes[:, None, None] * distances),
        "bias": ({"bias": bias}, bias),
        "mask": ({"mask": seen}, np.where(seen, 0, -np.inf)),
        "row of a mask": ({"mask": seen[:, :1]}, np.where(seen[:, :1], 0, -np.inf)),
    }[name]


@pytest.mark.parametrize("rule", ["sinks", "high sinks", "slopes", "bias", "mask", "row of a mask"])
@pytest.mark.parametrize("size", [1, 30])
@pytest.mark.parametrize("outputs", [("context", "lse"), BOTH, ("scores", *BOTH)], ids="-".join)
@pytest.mark.parametrize(("queries", "keys"), [(200, 300), (77, 77), (5, 40)])
def test_heads_share_a_call_though_rules_differ(rule, queries, keys, outputs, size, planned):
    query, key, value = inputs(8, queries, keys, 16, groups=4)
    query *= np.float32(size)
    options, added = by_head(rule, 8, queries, keys)
    answer = attention(query, key, value, scale=1, **options, outputs=outputs, threads=1)
    assert max(stacks(planned)) > 1
    wide = key.astype(float).repeat(2, axis=1), value.astype(float).repeat(2, axis=1)
    scores = query.astype(float) @ wide[0].swapaxes(-1, -2) + added
    sinks = options.get("sinks", np.full(8, -np.inf))[:, None, None]
    highest = np.maximum(scores.max(-1, keepdims=True), sinks)
    powers = np.exp(scores - highest)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks - highest)
    expected = {
        "scores": scores,
        "weights": powers / total,
        "context": powers @ wide[1] / total,
        "lse": (np.log(total) + highest)[..., 0],
    }
    for name in outputs:
        found = getattr(answer, name)
        assert_near(found, expected[name], rtol=3e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("outputs", [("context", "lse"), BOTH], ids="-".join)
@pytest.mark.parametrize("queries", [300, 1000, 1090])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sorted_ids", [False, True])
def test_packed_sequences(sorted_ids, causal, queries, outputs):
    ids = np.random.default_rng(queries).integers(0, 5, queries)
    ids = np.sort(ids) if sorted_ids else ids
    seen = (ids[:, None] == ids) & (np.tri(queries, dtype=bool) if causal else True)
    qkv = inputs(3, queries, queries, 16)
    assert_is_the_formula(*qkv, outputs, seen, segment_ids=ids, causal=causal)


@pytest.mark.parametrize("rules", [{}, {"causal": True}], ids=str)
@pytest.mark.parametrize("few_cores", [True, False])
def test_blocks_are_about_equally_long(few_cores, rules, planned, monkeypatch):
    monkeypatch.setattr(plan, "_has_few_cores", lambda: few_cores)
    attention(*inputs(1, 3000, 3000, 16), outputs=("context",), **rules)
    counts = [block.stop - block.start for block in planned]
    # Panels, or blocks where panels skip keys, are not cut.
    step = 256 if rules and not plan.multiplies_unpacked() else 64
    assert sum(counts) == 3000
    assert max(counts) - min(counts) < step * len(counts)
    if few_cores and step == 64:
        assert max(counts) < 1700


def test_the_steps_of_a_window_share_a_call(monkeypatch):
    calls = []
    score_calls = sweep.score_calls
    monkeypatch.setattr(
        sweep, "score_calls", lambda *given: calls.append(given) or score_calls(*given)
    )
    attention(*inputs(1, 8192, 8192, 4), window=(256, 0), outputs=("context",), threads=1)
    # Strips of 128 queries would be 64.
    assert len(calls) < 40


@pytest.mark.parametrize("columns", [1, 7, 16, 40, 100])
@pytest.mark.parametrize("turned", [False, True])
def test_the_highest_score_of_each_query(columns, turned):
    tile = np.random.default_rng(columns).standard_normal((2, 3, 5, columns)).swapaxes(2, 3)
    tile = tile.copy() if turned else tile
    tile[1, 2, columns // 2, 4] = -np.inf
    found = panels.row_max(tile)
    assert panels.is_key_major(tile) is (turned or columns == 1)
    for place in np.ndindex(2, 3, 5):
        assert found[place] == max(
            tile[(*place[:2], column, place[2])] for column in range(columns)
        )


class TestARuleThatLiesInAnyWay:
    """What is read by the column is copied first where its rows lie far apart."""

    QUERIES, KEYS = 600, 700

    @staticmethod
    def ways(array):
        yield np.asfortranarray(array)
        yield array[::-1, ::-1].copy()[::-1, ::-1]
        yield array.repeat(2, axis=1)[:, ::2]
        wide = np.empty((len(array), 4096), array.dtype)
        wide[:, 5 : 5 + array.shape[1]] = array
        yield wide[:, 5 : 5 + array.shape[1]]

    def answers(self, rule, array, **options):
        qkv = inputs(2, self.QUERIES, self.KEYS, 16)
        for given in (array, *self.ways(array)):
            yield attention(*qkv, **{rule: given}, **options)

    @pytest.mark.parametrize("outputs", [("context",), ("weights", "context")], ids="-".join)
    @pytest.mark.parametrize("options", [{}, {"causal": True, "causal_align": "top-left"}])
    def test_a_mask(self, outputs, options):
        mask = np.random.default_rng(0).random((self.QUERIES, self.KEYS)) < 0.5
        mask[:, 0] = True
        first, *others = self.answers("mask", mask, outputs=outputs, **options)
        for other in others:
            np.testing.assert_array_equal(other.context, first.context)
        seen = mask & np.tri(*mask.shape, dtype=bool) if options else mask
        qkv = inputs(2, self.QUERIES, self.KEYS, 16)
        assert_is_the_formula(*qkv, outputs, seen, mask=mask, **options)

    @pytest.mark.parametrize("outputs", [("context",), ("weights", "context")], ids="-".join)
    @pytest.mark.parametrize("shape", [(8, 1, 300), (8, 512, 300), (1, 512, 300), (1, 512, 1)])
    @pytest.mark.parametrize("rule", ["mask", "bias"])
    @pytest.mark.filterwarnings("ignore:.* see no key")
    def test_of_each_head_or_of_all(self, rule, shape, outputs):
        qkv = inputs(8, 512, 300, 16, groups=4)
        bias = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        given = bias > -1 if rule == "mask" else bias
        answer = attention(
            *(array[0] for array in qkv), layout="hsd", outputs=outputs, **{rule: given}
        )
        query, key, value = (array[0].astype(float) for array in qkv)
        key, value = key.repeat(2, axis=0), value.repeat(2, axis=0)
        added = np.where(given, 0, -np.inf) if rule == "mask" else bias
        powers = np.exp(query @ key.swapaxes(1, 2) / 4 + added)
        totals = powers.sum(-1, keepdims=True)
        weights = np.divide(powers, totals, where=totals > 0, out=np.zeros_like(powers))
        assert_near(answer.context, weights @ value, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("heat", [1, 100])
    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_a_bias(self, dtype, heat):
        bias = np.random.default_rng(0).standard_normal((self.QUERIES, self.KEYS)) * heat
        bias = np.where(bias > 2 * heat, -np.inf, bias).astype(dtype)
        first, *others = self.answers("bias", bias, outputs=("context",))
        for other in others:
            np.testing.assert_array_equal(other.context, first.context)
        query, key, value = (
            array[0].astype(float) for array in inputs(2, self.QUERIES, self.KEYS, 16)
        )
        scores = query @ key.swapaxes(1, 2) / 4 + bias.astype(float)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        truth = powers / powers.sum(-1, keepdims=True) @ value
        assert_near(first.context[0], truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("names", "unpacked"),
    [
        (["SkylakeX"], True),
        (["Haswell", "Sapphirerapids"], True),
        (["Zen"], False),
        ([None], False),
    ],
)
def test_the_kind_of_blas_is_read_from_the_library(names, unpacked, monkeypatch):
    libraries = [SimpleNamespace(architecture=name) for name in names]
    blas.multiplies_unpacked.cache_clear()
    monkeypatch.setattr(blas, "_libraries", lambda: libraries)
    try:
        assert blas.multiplies_unpacked() is unpacked
    finally:
        blas.multiplies_unpacked.cache_clear()
