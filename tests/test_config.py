"""Layers attend as their models do, by the configuration that Transformers keeps beside them."""

import json
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearness import assert_near

import attncli
from attncli import AttnError, AttnWarning
from attncli.checkpoints.config import layer_config, models
from attncli.checkpoints.rope import Rotary, scaled_frequencies
from attncli.loading.json_text import read_settings
from attncli.problem.problem import Rope

RECORDED = Path(__file__).parent / "data" / "transformers"
NAMES = sorted(path.stem for path in RECORDED.glob("*.npz"))
# Their modules give more, or less, than the output of the attention.
NOT_THE_OUTPUT = {"bloom", "albert", "bert", "bert-decoder", "roberta", "xlm-roberta", "camembert"}
NOT_THE_OUTPUT |= {"electra"}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}


def recorded(name):
    """Return what is recorded of a model, its configuration, and the names of its layers."""
    with np.load(RECORDED / f"{name}.npz") as file:
        entries = dict(file)
    config = json.loads(entries.pop("config").tobytes())
    return entries, config, sorted({key.split("|")[0] for key in entries if "|" in key})


@pytest.fixture
def config_of(tmp_path):
    """Write a configuration, and return its file."""

    def write(config):
        file = tmp_path / "config.json"
        file.write_text(config if isinstance(config, str) else json.dumps(config))
        return str(file)

    return write


def checkpoint_of(name, layers, layer):
    # ViT stores its layers under other names than its modules have.
    return f"{RECORDED / name}.npz" + (f"#{layer}" if len(layers) > 1 else "")


def test_every_type_of_model_is_recorded():
    assert {recorded(name)[1]["model_type"] for name in NAMES} == set(models())


@pytest.mark.parametrize("name", NAMES)
def test_layers_attend_as_in_transformers(name, config_of, recwarn):
    entries, config, layers = recorded(name)
    file = config_of(config)
    for layer in layers:
        checkpoint = checkpoint_of(name, layers, layer)
        problem = attncli.load(x=entries[f"{layer}|x"], checkpoint=checkpoint, config=file)
        answer = attncli.solve(problem)
        outputs = ("weights",) if name in NOT_THE_OUTPUT else ("weights", "context")
        for output in outputs:
            recorded_one = entries[f"{layer}|{output}"]
            assert_near(getattr(answer, output), recorded_one, rtol=1e-4, atol=1e-5)
    assert not recwarn


class TestOlderConfigurations:
    """Before version 5, Transformers wrote other names and left out what followed from others."""

    def older(self, config):
        config = {name: value for name, value in config.items() if name != "layer_types"}
        own = dict(config.pop("rope_parameters", ()))
        if not own:
            return config
        if "full_attention" in own:
            bases = {kind: part["rope_theta"] for kind, part in own.items()}
            names = {
                "gemma3_text": ("rope_theta", "rope_local_base_freq"),
                "olmo3": ("rope_theta", "rope_theta"),
                "modernbert": ("global_rope_theta", "local_rope_theta"),
            }[config["model_type"]]
            return config | dict(
                zip(names, (bases["full_attention"], bases["sliding_attention"]), strict=True)
            )
        config["rope_theta"] = own.pop("rope_theta")
        if "partial_rotary_factor" in own:
            config["partial_rotary_factor"] = own.pop("partial_rotary_factor")
        if own["rope_type"] != "default":
            kind = own.pop("rope_type")
            own["type"] = "su" if kind == "longrope" else kind  # as Phi 3 had it at first
            config["rope_scaling"] = own
        return config

    @pytest.mark.parametrize("name", NAMES)
    def test_say_the_same(self, name):
        _, config, layers = recorded(name)
        for layer in layers:
            now = layer_config(config, layer, "config.json", tokens=9)
            before = layer_config(self.older(config), layer, "config.json", tokens=9)
            assert now.options.keys() == before.options.keys()
            for option, value in now.options.items():
                np.testing.assert_array_equal(before.options[option], value, err_msg=option)


# As google/gemma-3-12b-it has it.
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


class TestWhatIsLeftOut:
    """Parts of a configuration within another one have only what differs from the defaults."""

    def options(self, config, layer):
        return layer_config(config, f"model.layers.{layer}.self_attn", "config.json")

    def test_of_gemma_3(self):
        near, far = self.options(GEMMA, 0), self.options(GEMMA, 5)
        assert near.width == far.width == 256
        assert near.options["window"] == (1023, 0)
        assert near.options["rope_base"] == 10000.0
        assert "window" not in far.options
        slow = far.options["rope_frequencies"]
        assert_near(slow, 1e6 ** (-np.arange(0, 256, 2) / 256) / 8, rtol=1e-12)
        assert near.options["scale"] == far.options["scale"] == 1 / 16

    def test_of_olmo_3_with_longer_texts(self):
        config = {"model_type": "olmo3", "hidden_size": 64, "num_attention_heads": 4}
        config |= {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}
        config |= {"original_max_position_embeddings": 64, "sliding_window": 8}
        near, far = (self.options(config, layer).options for layer in (0, 3))
        assert near["rope_base"] == 500000.0
        assert "scale" not in near
        assert far["scale"] == pytest.approx((0.1 * math.log(8) + 1) ** 2 / 4)

    @pytest.mark.parametrize(
        ("window", "layer", "rotates"), [(4, 3, False), (4, 0, True), (None, 3, True)]
    )
    def test_of_exaone_without_windows(self, window, layer, rotates):
        config = {"model_type": "exaone4", "num_attention_heads": 4, "hidden_size": 64}
        found = self.options(config | {"sliding_window": window}, layer)
        assert ("rope" in found.options) == rotates

    def test_of_layers_by_turns(self):
        smol = {"model_type": "smollm3"}
        assert ["rope" in self.options(smol, n).options for n in range(5)] == [1, 1, 1, 0, 1]
        neo = {"model_type": "gpt_neo"}
        assert ["window" in self.options(neo, n).options for n in range(4)] == [0, 1, 0, 1]

    def test_null_is_not_the_default(self):
        config = {"model_type": "mistral", "sliding_window": None}
        assert "window" not in self.options(config, 0).options
        assert self.options({"model_type": "mistral"}, 0).options["window"] == (4095, 0)


@pytest.mark.parametrize(
    ("config", "layer", "options"),
    [
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, 5, {"causal": None}),
        ({"model_type": "bert", "is_decoder": True}, 0, {"causal": True}),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9},
            27,
            {"window": None},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9},
            28,
            {"window": (8, 0)},
        ),
        ({"model_type": "cohere2", "sliding_window_pattern": 2}, 1, {"window": None, "rope": None}),
        ({"model_type": "cohere2", "sliding_window_pattern": 2}, 2, {"window": (4095, 0)}),
        ({"model_type": "mpt", "attn_config": {"softmax_scale": 0.25}}, 0, {"scale": 0.25}),
        ({"model_type": "modernbert", "local_attention": 9}, 1, {"window": (4, 4), "causal": None}),
        ({"model_type": "modernbert"}, 3, {"window": None, "rope_base": 160000.0}),
        (
            {"model_type": "granite", "attention_multiplier": 0.5, "rope_scaling": YARN},
            0,
            {"scale": pytest.approx(0.5 * (0.1 * math.log(4) + 1) ** 2)},
        ),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, 3, {"scale": 1 / 32}),
        (
            {"model_type": "falcon", "num_attention_heads": 4},
            0,
            {"kv_heads": 1, "alibi_slopes": None},
        ),
    ],
)
def test_single_entries(config, layer, options):
    found = layer_config(config, f"h.{layer}.attn", "config.json").options
    assert {name: found.get(name) for name in options} == options


def test_parts_on_text_and_pictures_have_their_own_entries():
    text = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
    picture = {"model_type": "siglip_vision_model", "num_attention_heads": 3}
    config = {"model_type": "llava", "text_config": text, "vision_config": picture}
    assert layer_config(config, "language_model.layers.0", "c").options["heads"] == 2
    assert layer_config(config, "vision_tower.layers.0", "c").options == {"heads": 3}


def test_cross_attention_sees_all_keys():
    config = {"model_type": "bart", "decoder_attention_heads": 2, "encoder_attention_heads": 4}
    assert layer_config(config, "decoder.layers.0.encoder_attn", "c").options == {"heads": 2}
    assert layer_config(config, "decoder.layers.0.self_attn", "c").options["causal"]


class TestFrequencies:
    """Against loops over the pairs, as the papers and published code have them."""

    WIDTH, BASE, TRAINED = 16, 10000.0, 64

    def scaled(self, trained=None, reach=None, tokens=None, **parameters):
        return scaled_frequencies(
            Rotary(self.WIDTH, self.BASE, parameters, trained, reach, tokens, "c")
        )

    def plain(self):
        return [self.BASE ** (-2 * p / self.WIDTH) for p in range(self.WIDTH // 2)]

    def test_of_llama_3(self):
        parameters = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": self.TRAINED,
        }
        expected = []
        for frequency in self.plain():
            wavelength = 2 * math.pi / frequency
            if wavelength < self.TRAINED / 4:
                expected.append(frequency)
            elif wavelength > self.TRAINED:
                expected.append(frequency / 8)
            else:
                smooth = (self.TRAINED / wavelength - 1) / (4 - 1)
                expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
        found, factor = self.scaled(**parameters)
        assert_near(found, np.array(expected), rtol=1e-12)
        assert factor == 1

    @pytest.mark.parametrize("trained", [64, 4096])
    @pytest.mark.parametrize("truncate", [True, False])
    def test_of_yarn(self, trained, truncate):
        expected = []
        low, high = (
            self.WIDTH * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(self.BASE))
            for turns in (32, 1)
        )
        if truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.WIDTH - 1)
        for p, frequency in enumerate(self.plain()):
            slow = min(max((p - low) / (high - low), 0), 1)
            expected.append(frequency / 4 * slow + frequency * (1 - slow))
        parameters = {"rope_type": "yarn", "factor": 4.0}
        # Whole pairs unless the configuration says otherwise.
        parameters |= {} if truncate else {"truncate": False}
        found, factor = self.scaled(trained, **parameters)
        assert_near(found, np.array(expected), rtol=1e-12)
        assert factor == pytest.approx(0.1 * math.log(4) + 1)

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ({"attention_factor": 1.5}, 1.5),
            (
                {"mscale": 1.0, "mscale_all_dim": 0.5},
                (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
            ),
            ({"factor": 1.0}, 1.0),
            ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
        ],
    )
    def test_what_yarn_multiplies_query_and_key_with(self, more, expected):
        parameters = {"rope_type": "yarn", "factor": 4.0, **more}
        _, factor = self.scaled(self.TRAINED, **parameters)
        assert factor == pytest.approx(expected)

    @pytest.mark.parametrize(("tokens", "times"), [(1, 1), (64, 1), (65, 65 / 64), (128, 2)])
    def test_of_dynamic_bases(self, tokens, times):
        base = self.BASE * (3 * times - 2) ** (self.WIDTH / (self.WIDTH - 2))
        expected = [base ** (-2 * p / self.WIDTH) for p in range(self.WIDTH // 2)]
        found, factor = self.scaled(reach=64, tokens=tokens, rope_type="dynamic", factor=3.0)
        assert_near(found, np.array(expected), rtol=1e-12)
        assert factor == 1

    @pytest.mark.parametrize(("tokens", "long"), [(1, False), (64, False), (65, True)])
    def test_of_longrope(self, tokens, long):
        short_factor = [1 + p / 8 for p in range(self.WIDTH // 2)]
        long_factor = [2 + p for p in range(self.WIDTH // 2)]
        slowed = long_factor if long else short_factor
        expected = [one / by for one, by in zip(self.plain(), slowed, strict=True)]
        given = {"rope_type": "longrope", "long_factor": long_factor, "short_factor": short_factor}
        found, factor = self.scaled(self.TRAINED, 256, tokens, **given)
        assert_near(found, np.array(expected), rtol=1e-12)
        assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))
        told = self.scaled(self.TRAINED, 256, tokens, **given, attention_factor=1.25)[1]
        assert told == 1.25
        assert self.scaled(self.TRAINED, 32, tokens, **given)[1] == 1
        by_factor = self.scaled(self.TRAINED, 256, tokens, **given, factor=8.0)[1]
        assert by_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(64)))


LLAMA = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4}
LONG = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[1]", "expected the config.json of a model, a mapping in which each key stands once"),
        ("{", "this is not JSON"),
        ({}, "with model_type; found none"),
        ({"model_type": "t5"}, "does not know how models of type 't5' attend"),
        ({"model_type": 3}, "with model_type; found none"),
        ({"model_type": "falcon", "alibi": True}, "Falcon adds ALiBi as a bias of bfloat16"),
        (LLAMA | {"num_attention_heads": "4"}, "num_attention_heads: expected a whole number"),
        (LLAMA | {"num_attention_heads": None}, "expected head_dim, or hidden_size"),
        (LLAMA | {"rope_theta": 0}, "rope_theta: expected a number above 0"),
        ({"model_type": "gpt_bigcode", "multi_query": False}, "c_attn of each head lies by itself"),
        (
            {"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 3},
            "which layers of qwen3_moe have a window does not follow",
        ),
        ({"model_type": "bart"}, "does not say whether the layer is one of the encoder or of the"),
        (
            {"model_type": "glm4", "rope_scaling": YARN},
            "multiplies only the rotated part of query and key, by 1.13863",
        ),
        (LLAMA | {"rope_scaling": YARN | {"attention_factor": 1e200}}, "expected a number near 1"),
        (
            LLAMA | {"rope_scaling": YARN | {"mscale": 1e308, "mscale_all_dim": 1e-308}},
            "attention_factor: expected a number near 1",
        ),
        ({"model_type": "gpt_neo", "attention_types": [3]}, "expected lists of kinds and times"),
        (LLAMA | {"rope_theta": -1}, "rope_theta: expected a number above 0"),
        (LLAMA | {"partial_rotary_factor": -1}, "partial_rotary_factor: expected a number above 0"),
        (LLAMA | {"rope_scaling": [1]}, "rope_parameters: expected a mapping"),
        (LLAMA | {"rope_scaling": {"type": "ntk"}}, "does not know the rotary embedding 'ntk'"),
        (LLAMA | {"rope_scaling": {"type": ["yarn"]}}, "does not know the rotary embedding"),
        (LLAMA | {"rope_scaling": LONG}, "short_factor: expected 2 numbers; found None"),
        (
            LLAMA | {"rope_scaling": LONG | {"short_factor": [1.0]}},
            "short_factor: expected 2 numbers; found 1",
        ),
        (
            LLAMA | {"rope_scaling": LONG | {"short_factor": [1.0, "a"]}},
            "short_factor: expected a finite number",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "max_position_embeddings: expected a whole number",
        ),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "factor: expected a finite number"),
        (LLAMA | {"rope_theta": 1, "rope_scaling": YARN}, "rope_theta: expected a number above 1"),
        (
            LLAMA
            | {
                "rope_scaling": YARN
                | {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}
            },
            "expected low_freq_factor below high_freq_factor; found 4 and 4",
        ),
        (
            LLAMA | {"sliding_window": 3, "layer_types": ["sliding_attention"]},
            "has 1 layers; found layer 1",
        ),
    ],
)
def test_what_is_no_configuration_is_said(config, words, config_of):
    file = config_of(config)
    with pytest.raises(AttnError, match=words) as error:
        layer_config(
            read_settings(file, "the config.json of a model"),
            "model.layers.1.self_attn",
            file,
            tokens=3,
        )
    assert file in str(error.value)


NUMBERS = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.lists(st.integers(), max_size=2)
) | st.sampled_from([0, 1, 2, 3, -1, 10**30, 0.5, 1e308, float("nan"), {}, {"rope_type": "yarn"}])
READ = (
    *("head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads", "multi_query"),
    *("rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_dim", "sliding_window"),
    *("use_sliding_window", "max_window_layers", "layer_types", "no_rope_layers", "attn_config"),
    *("sliding_window_pattern", "attn_logit_softcapping", "query_pre_attn_scalar", "alibi"),
    *("is_decoder", "scale_attn_by_inverse_layer_idx", "rms_norm_eps", "text_config"),
)
SCALED = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
SCALED += ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor")
SCALED += ("short_factor", "long_factor")


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(models())),
    entries=st.dictionaries(st.sampled_from(READ), NUMBERS, max_size=4),
    scaled=st.dictionaries(st.sampled_from(SCALED), NUMBERS, max_size=4),
    scaling=st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic", "longrope", 3]),
)
@pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
def test_any_entries_give_options_or_an_error(kind, entries, scaled, scaling):
    config = LLAMA | {"model_type": kind, "factor": 2.0, "max_position_embeddings": 8}
    config["rope_parameters"] = {"rope_type": scaling, "rope_theta": 10.0, "factor": 2.0, **scaled}
    with suppress(AttnError):
        options = layer_config(config | entries, "layers.1.attn", "config.json", tokens=9).options
        assert all(value is not None for value in options.values())


def test_layers_that_differ_need_their_number():
    config = LLAMA | {"model_type": "gemma2", "sliding_window": 3}
    with pytest.raises(AttnError, match="'attn' does not say which one it is"):
        layer_config(config, "attn", "config.json")


@pytest.mark.parametrize("name", ["clip_qkv", "qk_ln", "position_embedding_type"])
def test_what_is_not_applied_is_warned_of(name):
    config = {"model_type": "mpt", "n_heads": 4, "attn_config": {name: "relative_key"}}
    with pytest.warns(AttnWarning, match=f"{name} is set, which attncli does not apply"):
        layer_config(config, "blocks.0", "config.json")


class TestBesideOptions:
    """What an option says is not taken from the configuration."""

    def problem(self, name, config_of, **options):
        entries, config, layers = recorded(name)
        return attncli.load(
            x=entries[f"{layers[0]}|x"],
            checkpoint=checkpoint_of(name, layers, layers[0]),
            config=config_of(config),
            **options,
        )

    def test_numbers_and_rules(self, config_of):
        problem = self.problem(
            "gemma2", config_of, scale=1, softcap=9, window="none", heads=2, kv_heads=1
        )
        assert (problem.scale, problem.softcap) == (1, 9)
        assert problem.visible.window == (None, None)
        assert problem.shape[1] == 2
        assert problem.visible.causal

    @pytest.mark.parametrize(
        "options", [{"rope_base": 7.0, "rope": "half"}, {"alibi_slopes": True}]
    )
    def test_positions_are_of_one_kind(self, options, config_of):
        problem = self.problem("llama-yarn", config_of, **options)
        assert (problem.alibi_slopes is None) == ("rope" in options)
        assert problem.rope is None or (problem.rope.base, problem.rope.frequencies) == (7.0, None)

    def test_a_base_goes_with_the_pairs_of_the_model(self, config_of):
        problem = self.problem("cohere", config_of, rope_base=300.0)
        assert problem.rope == Rope("interleaved", 300.0)
        problem = self.problem("llama", config_of, rope_frequencies=[1.0])
        assert problem.rope == Rope("half", frequencies=(1.0,))
        problem = self.problem("llama-linear", config_of, rope_base=300.0)
        assert problem.rope == Rope("half", 300.0)


class TestWithout:
    """What a configuration says may be left out, as entries of a problem file may."""

    def files(self, name, config_of):
        entries, config, layers = recorded(name)
        np.save("x.npy", entries[f"{layers[0]}|x"])
        return {
            "checkpoint": checkpoint_of(name, layers, layers[0]),
            "config": config_of(config),
        }

    def test_a_rule(self, config_of, folder):
        files = self.files("mistral", config_of)
        problem = attncli.load("x.npy", without="causal", **files)
        assert not problem.visible.causal
        assert problem.visible.window == (2, 0)
        assert problem.rope == Rope("half", 10000.0)
        assert attncli.load("x.npy", without="causal", causal=True, **files).visible.causal

    def test_norms(self, config_of, folder):
        files = self.files("qwen3", config_of)
        left = ("q_norm", "k_norm", "rope", "rope_base")
        with pytest.warns(AttnWarning, match=r"\.k_norm\.weight, \S+\.q_norm\.weight, which"):
            problem = attncli.load("x.npy", without=left, **files)
        entries = np.load(files["checkpoint"].split("#")[0])
        weight = next(entries[name] for name in entries if name.endswith("q_proj.weight"))
        projected = np.load("x.npy")[0] @ weight.T
        assert_near(problem.query[0, 0], projected[:, : problem.query.shape[-1]], rtol=1e-5)

    @pytest.mark.parametrize("inside", [True, False])
    def test_what_a_problem_file_and_its_configuration_say(self, inside, config_of, folder):
        files = self.files("mistral", config_of)
        entries = {"x": "x.npy", "softcap": 5, "window": [1, 0]} | (files if inside else {})
        (folder / "p.json").write_text(json.dumps(entries))
        options = {} if inside else files
        problem = attncli.load("p.json", without="softcap,window,causal", **options)
        assert (problem.softcap, problem.visible.window) == (None, None)
        assert not problem.visible.causal
        with pytest.raises(AttnError, match="no 'bias' to leave out"):
            attncli.load("p.json", without="softcap,bias", **options)

    @pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
    def test_a_configuration_that_is_left_out_says_nothing(self, config_of, folder):
        entries = {"x": "x.npy", "heads": 4} | self.files("mistral", config_of)
        (folder / "p.json").write_text(json.dumps(entries))
        with pytest.raises(AttnError, match="no 'causal' to leave out"):
            attncli.load("p.json", without="config,causal")

    @pytest.mark.parametrize(
        ("left", "hint"), [("softcap", "heads"), ("causl", "causal"), ("q_norm", "heads")]
    )
    def test_what_it_does_not_say(self, left, hint, config_of, folder):
        with pytest.raises(AttnError, match=f"no '{left}' to leave out") as caught:
            attncli.load("x.npy", without=left, **self.files("mistral", config_of))
        assert hint in caught.value.hint


def test_the_configuration_of_another_model_is_refused(config_of):
    entries, config, layers = recorded("llama")
    config["head_dim"] = 8
    with pytest.raises(
        AttnError, match=r"4 heads of width 8 make 32; the queries of .* are 16 wide"
    ):
        attncli.load(
            x=entries[f"{layers[0]}|x"],
            checkpoint=checkpoint_of("llama", layers, layers[0]),
            config=config_of(config),
        )


NORMED = ", and norms of query and key"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "qwen3",
            "--heads 4 --kv-heads 2 --causal --rope half --rope-base 10000" + NORMED,
        ),
        ("bert", "--heads 4"),
        ("mistral", "--heads 4 --kv-heads 2 --causal --window 2,0 --rope half --rope-base 10000"),
        ("bloom", "--heads 4 --causal --alibi"),
    ],
)
def test_a_note_says_what_was_taken(name, said, config_of, attncli, folder):
    entries, config, layers = recorded(name)
    np.save("x.npy", entries[f"{layers[0]}|x"])
    words = ["--checkpoint", checkpoint_of(name, layers, layers[0]), "--config", config_of(config)]
    ran = attncli("compute", "x.npy", *words, "--show", "weights").good()
    assert ran.messages == [f"note: {config_of(config)} says {said}"]
    assert attncli("compute", "x.npy", *words, "--show", "weights", "-q").good().err == b""


def test_an_entry_that_an_option_overrides_cannot_fail(config_of):
    entries, config, layers = recorded("mistral")
    wrong = {"num_attention_heads": "four", "sliding_window": "wide"}
    wrong |= {"use_bidirectional_attention": 3}
    file = config_of(config | wrong | {"rope_parameters": 7, "attn_logit_softcapping": "no"})
    given = {"x": entries[f"{layers[0]}|x"], "checkpoint": checkpoint_of("mistral", layers, None)}
    options = {"heads": 4, "window": "2,0", "causal": True, "rope": "half", "softcap": 9}
    assert attncli.load(**given, **options, config=file).visible.window == (2, 0)
    for name in options:
        less = {option: value for option, value in options.items() if option != name}
        with pytest.raises(AttnError, match="config"):
            attncli.load(**given, **less, config=file)


def test_without_a_checkpoint_it_says_nothing(config_of):
    with pytest.raises(AttnError, match="how the layers of a checkpoint attend, but there is none"):
        attncli.load(x=np.eye(4), wq=np.eye(4), wk=np.eye(4), config=config_of(LLAMA))


def test_frequencies_that_depend_on_the_length_are_those_of_the_tokens(config_of):
    entries, config, layers = recorded("phi3-long")
    x, file = entries[f"{layers[0]}|x"], config_of(config)
    stored = {"checkpoint": checkpoint_of("phi3-long", layers, layers[0]), "config": file}
    long, short = (attncli.load(x=x[:, :count], **stored).rope.frequencies for count in (9, 8))
    np.testing.assert_allclose(np.divide(short, long), [1.5, 6 / 1.25])
    # Where (L, B, W) is given, L counts; and of three sources, the keys'.
    turned = attncli.load(x=x.swapaxes(0, 1), layout="sbd", **stored)
    assert turned.rope.frequencies == long
    crossed = attncli.load(query=x[:, :2], key=x, value=x, causal_align="bottom-right", **stored)
    assert crossed.rope.frequencies == long
