"""With the config.json of its model, a layer gives the results of Transformers."""

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
from attncli import AttnError
from attncli.checkpoints.config import layer_config, models
from attncli.checkpoints.rope import Rotary, scaled_frequencies
from attncli.loading.documents import read_settings
from attncli.problem.problem import Rope

RECORDED = Path(__file__).parent / "data" / "transformers"
NAMES = sorted(path.stem for path in RECORDED.glob("*.npz"))
# The modules of these models return more or less than the output of the attention.
NOT_THE_OUTPUT = {"bloom", "albert", "bert", "bert-decoder", "roberta", "xlm-roberta", "camembert"}
NOT_THE_OUTPUT |= {"electra"}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}


def recorded(name):
    """Return the recorded arrays of a model, its configuration, and the names of its layers."""
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
    """Before version 5, Transformers wrote other names, and left out entries that follow."""

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
            own["type"] = (
                "su" if kind == "longrope" else kind
            )  # the first name of longrope, in Phi 3
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


# From google/gemma-3-12b-it.
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


class TestWhatIsLeftOut:
    """An inner configuration, as in a model of texts and images, lists only non-default values."""

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

    def test_of_layers_by_turns(self):
        smol = {"model_type": "smollm3"}
        assert ["rope" in self.options(smol, n).options for n in range(5)] == [1, 1, 1, 0, 1]
        neo = {"model_type": "gpt_neo"}
        assert ["window" in self.options(neo, n).options for n in range(4)] == [0, 1, 0, 1]


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
        ({"model_type": "modernbert"}, 3, {"window": None, "rope_base": 160000.0}),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, 3, {"scale": 1 / 32}),
    ],
)
def test_single_entries(config, layer, options):
    found = layer_config(config, f"h.{layer}.attn", "config.json").options
    assert {name: found.get(name) for name in options} == options


class TestFrequencies:
    """Expected values come from loops over the pairs, as in the papers and published code."""

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

    @pytest.mark.parametrize("truncate", [True, False])
    def test_of_yarn(self, truncate):
        expected, trained = [], self.TRAINED
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

    @pytest.mark.parametrize(("tokens", "times"), [(1, 1), (64, 1), (65, 65 / 64), (128, 2)])
    def test_of_dynamic_bases(self, tokens, times):
        base = self.BASE * (3 * times - 2) ** (self.WIDTH / (self.WIDTH - 2))
        expected = [base ** (-2 * p / self.WIDTH) for p in range(self.WIDTH // 2)]
        found, factor = self.scaled(reach=64, tokens=tokens, rope_type="dynamic", factor=3.0)
        assert_near(found, np.array(expected), rtol=1e-12)
        assert factor == 1


LLAMA = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4}
LONG = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "this is not JSON"),
        ({"model_type": "t5"}, "does not know the attention of models of type 't5'"),
        ({"model_type": "falcon", "alibi": True}, "Falcon rounds ALiBi to bfloat16"),
        (LLAMA | {"rope_theta": 0}, "rope_theta: expected a number above 0"),
        ({"model_type": "bart"}, "does not say whether the layer belongs to the encoder or to"),
        (
            {"model_type": "glm4", "rope_scaling": YARN},
            "multiplies only the rotated part of query and key, by 1.13863",
        ),
        (LLAMA | {"rope_scaling": YARN | {"attention_factor": 1e200}}, "expected a number near 1"),
        (LLAMA | {"rope_scaling": [1]}, "rope_parameters: expected a mapping"),
        (LLAMA | {"rope_scaling": {"type": "ntk"}}, "does not know the rotary embedding 'ntk'"),
        (
            LLAMA | {"rope_scaling": LONG | {"short_factor": [1.0]}},
            "short_factor: expected 2 numbers; found 1",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "max_position_embeddings: expected a whole number",
        ),
        (
            LLAMA | {"sliding_window": 3, "layer_types": ["sliding_attention"]},
            "expected a layer below 1; found layer 1",
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


@settings(max_examples=40, deadline=None)
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


class TestWithout:
    """``--without`` leaves out options of a configuration, like entries of a problem file."""

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


def test_without_a_checkpoint_it_says_nothing(config_of):
    with pytest.raises(AttnError, match="the layers of a checkpoint, but no checkpoint is given"):
        attncli.load(x=np.eye(4), wq=np.eye(4), wk=np.eye(4), config=config_of(LLAMA))


def test_frequencies_that_depend_on_the_length_are_those_of_the_tokens(config_of):
    entries, config, layers = recorded("phi3-long")
    x, file = entries[f"{layers[0]}|x"], config_of(config)
    stored = {"checkpoint": checkpoint_of("phi3-long", layers, layers[0]), "config": file}
    long, short = (attncli.load(x=x[:, :count], **stored).rope.frequencies for count in (9, 8))
    np.testing.assert_allclose(np.divide(short, long), [1.5, 6 / 1.25])
