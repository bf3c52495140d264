"""The same problems given to other packages, where those are installed.

Each test says in which terms of the peer an option of ours is spoken. Rows that see no
key are left out except where the peer, too, promises zeros for them.
"""

import importlib.util
import os
import warnings
from unittest import mock

import numpy as np
import pytest

from attncli import attention

pytestmark = [
    pytest.mark.peer,
    pytest.mark.usefixtures("every_path"),
    pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning"),
    # What a peer says about its own future is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def peer(name):
    """Import a package or skip; what it warns of while it is imported is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.fixture(scope="module")
def torch():
    return peer("torch")


@pytest.fixture(scope="module")
def jax():
    jax = peer("jax")
    # JAX asks at its start to warn of every later fork: tests that start commands in a
    # pseudo-terminal would fail for it, though all their children do is exec.
    with mock.patch.object(os, "register_at_fork", create=True):
        jax.devices()
    return jax


def normal(*shape, seed, dtype="float64"):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def mask_that_shows(*shape, seed=7):
    """Draw a mask in which every query sees at least the first key."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def assert_close(ours, theirs, dtype=None):
    tolerance = 1e-5 if str(dtype or ours.dtype) == "float32" else 1e-12
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=tolerance, atol=tolerance)


class TestPyTorchScaledDotProductAttention:
    """(B, H, L, D), keep-masks, a float ``attn_mask`` is our bias, causal is top-left."""

    @staticmethod
    def compare(torch, dtype, ours, theirs, groups=4, keys=7):
        q = normal(2, 4, 5, 6, seed=1, dtype=dtype)
        k = normal(2, groups, keys, 6, seed=2, dtype=dtype)
        v = normal(2, groups, keys, 3, seed=3, dtype=dtype)
        if isinstance(theirs.get("attn_mask"), np.ndarray):
            theirs = theirs | {"attn_mask": torch.from_numpy(theirs["attn_mask"])}
        sdpa = torch.nn.functional.scaled_dot_product_attention
        expected = sdpa(*map(torch.from_numpy, (q, k, v)), **theirs)
        for outputs in (("context",), ("weights", "context")):
            assert_close(attention(q, k, v, **ours, outputs=outputs).context, expected)

    @both_dtypes
    @pytest.mark.parametrize("shape", [(5, 7), (4, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7)], ids=str)
    def test_bool_mask(self, torch, dtype, shape):
        mask = mask_that_shows(*shape)
        self.compare(torch, dtype, {"mask": mask}, {"attn_mask": mask})

    @both_dtypes
    def test_rows_that_see_nothing_are_zeros(self, torch, dtype):
        mask = mask_that_shows(5, 7)
        mask[2] = False
        self.compare(torch, dtype, {"mask": mask}, {"attn_mask": mask})

    @both_dtypes
    @pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (1, 4, 1, 7)], ids=str)
    def test_float_mask_is_a_bias(self, torch, dtype, shape):
        bias = normal(*shape, seed=4, dtype=dtype)
        bias[~mask_that_shows(*shape)] = -np.inf
        self.compare(torch, dtype, {"bias": bias}, {"attn_mask": bias})

    @both_dtypes
    @pytest.mark.parametrize("keys", [5, 3, 7])
    def test_is_causal(self, torch, dtype, keys):
        self.compare(torch, dtype, {"causal": True}, {"is_causal": True}, keys=keys)

    @both_dtypes
    @pytest.mark.parametrize("groups", [1, 2])
    def test_enable_gqa(self, torch, dtype, groups):
        mask = mask_that_shows(5, 7)
        theirs = {"attn_mask": mask, "enable_gqa": True}
        self.compare(torch, dtype, {"mask": mask}, theirs, groups=groups)


class TestJaxDotProductAttention:
    """(B, L, H, D), keep-masks, causal is top-left; its softmax is always float32."""

    @staticmethod
    def compare(jax, ours, theirs, groups=4, keys=7, rows=slice(None)):
        q = normal(2, 5, 4, 6, seed=1, dtype="float32")
        k, v = (normal(2, keys, groups, 6, seed=seed, dtype="float32") for seed in (2, 3))
        with jax.default_matmul_precision("highest"):
            expected = jax.nn.dot_product_attention(q, k, v, **theirs, implementation="xla")
        context = attention(q, k, v, layout="bshd", **ours).context
        assert_close(context[:, rows], expected[:, rows])

    @pytest.mark.parametrize("keys", [4, 7])
    def test_is_causal(self, jax, keys):
        self.compare(jax, {"causal": True}, {"is_causal": True}, keys=keys)

    @pytest.mark.parametrize("window", [2, (1, 3)], ids=str)
    def test_local_window_size(self, jax, window):
        self.compare(jax, {"window": window}, {"local_window_size": window})

    def test_mask_and_bias(self, jax):
        mask, bias = mask_that_shows(2, 1, 5, 7), normal(1, 4, 5, 7, seed=9, dtype="float32")
        self.compare(jax, {"mask": mask, "bias": bias}, {"mask": mask, "bias": bias}, groups=2)


class TestKerasAdditiveAttention:
    """Bahdanau's score with a vector of ones; masks keep; value stands before key."""

    @pytest.fixture
    def keras(self, monkeypatch):
        # The default, TensorFlow, is the least likely to be installed.
        if importlib.util.find_spec("torch"):
            monkeypatch.setenv("KERAS_BACKEND", "torch")
        return peer("keras")

    @pytest.mark.parametrize("vector", [None, [0.5, -1, 2, 0.25]], ids=["ones", "vector"])
    def test_context_and_weights(self, keras, vector):
        q = normal(2, 3, 4, seed=1, dtype="float32")
        k, v = (normal(2, 5, 4, seed=seed, dtype="float32") for seed in (2, 3))
        keep = np.array([[True] * 5, [True, True, False, True, False]])
        layer = keras.layers.AdditiveAttention(use_scale=vector is not None)
        layer.build([q.shape, v.shape, k.shape])
        if vector is not None:
            layer.set_weights([np.array(vector, "float32")])
        expected, weights = layer([q, v, k], mask=[None, keep], return_attention_scores=True)
        answer = attention(q, k, v, score="additive", score_vector=vector, key_padding_mask=keep)
        to_numpy = keras.ops.convert_to_numpy
        assert_close(answer.context, to_numpy(expected))
        assert_close(answer.weights, to_numpy(weights))


class TestOnnxRuntimeGroupQueryAttention:
    """Always causal: from the first key on, and behind a past to the last one."""

    @staticmethod
    def packed(array):
        return array.transpose(0, 2, 1, 3).reshape(len(array), array.shape[2], -1)

    def theirs(self, query, key, value, lengths, past=(), sink=None, **attributes):
        helper, runtime = peer("onnx").helper, peer("onnxruntime")
        names = ("query", "key", "value", "past_key", "past_value", "seqlens_k")
        names += ("total_sequence_length", "", "", "", "", "head_sink")
        given = dict(zip(names, [*map(self.packed, (query, key, value)), *past], strict=False))
        given["seqlens_k"] = np.array(lengths, np.int32) - 1
        given["total_sequence_length"] = np.array(max(lengths), np.int32)
        if sink is not None:
            given["head_sink"] = sink
        node = helper.make_node(
            "GroupQueryAttention",
            [name if name in given else "" for name in names],
            ["output", "present_key", "present_value"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
            **attributes,
        )
        float32, int32 = 1, 6
        graph = helper.make_graph(
            [node],
            "attention",
            [
                helper.make_tensor_value_info(
                    name, int32 if array.dtype == np.int32 else float32, array.shape
                )
                for name, array in given.items()
            ],
            [helper.make_tensor_value_info(name, float32, None) for name in node.output],
        )
        versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        session = runtime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, given)[0]

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ({}, {}),
            ({"local_window_size": 2}, {"window": (1, 0)}),
            ({"smooth_softmax": 1}, {"sinks": [0.0] * 4}),
            ({"sink": np.arange(4, dtype="float32")}, {"sinks": np.arange(4)}),
        ],
        ids=["plain", "window", "smooth_softmax", "head_sink"],
    )
    def test_of_a_prompt(self, theirs, ours):
        query = normal(2, 4, 6, 8, seed=1, dtype="float32")
        key, value = (normal(2, 2, 6, 8, seed=seed, dtype="float32") for seed in (2, 3))
        expected = self.theirs(query, key, value, (6, 4), **theirs)
        answer = attention(query, key, value, kv_lengths=(6, 4), causal=True, **ours)
        context = self.packed(answer.context)
        for entry, real in enumerate((6, 4)):
            assert_close(context[entry, :real], expected[entry, :real])

    @pytest.mark.parametrize("new", [1, 3])
    def test_behind_a_past(self, new):
        query = normal(1, 4, new, 8, seed=1, dtype="float32")
        key, value = (normal(1, 2, 4 + new, 8, seed=seed, dtype="float32") for seed in (2, 3))
        past, behind = zip(*(np.split(array, [4], axis=2) for array in (key, value)), strict=True)
        expected = self.theirs(query, *behind, [4 + new], past, local_window_size=3)
        answer = attention(
            query,
            key,
            value,
            kv_lengths=[4 + new],
            causal=True,
            causal_align="bottom-right",
            window=(2, 0),
        )
        assert_close(self.packed(answer.context), expected)
