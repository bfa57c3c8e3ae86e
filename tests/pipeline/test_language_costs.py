"""What a layer of a language model costs: by hand, and against what torch counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.language.costs import Precision, Reached, Ring, Step, layer_bytes, layer_work
from dovetail.pipeline.language.problem import load_generation
from dovetail.pipeline.language.shape import LanguageModel, language_model
from tests.pipeline.test_language_shape import CONFIGS, LLAMA3_8B, MIXTRAL, small

PLAIN = Precision()
TYPES: dict[str, Any] = {"a100": {"bw_Mbps": 1000.0, "mem_MB": 81920.0}, "l4": {"bw_Mbps": 1000.0, "mem_MB": 24576.0}}


def test_a_decode_step_by_hand() -> None:
    model = language_model(LLAMA3_8B)
    block = layer_work(model, Step(1, 4095, 8), PLAIN)[1]
    weights = 4096 * (32 + 16) * 128 + 32 * 128 * 4096 + 3 * 4096 * 14336
    assert block.flops == 8 * (2 * weights + 4 * 32 * 128 * 4096)
    assert block.moved == 2 * weights + 8 * 4096 * 4096 + 2 * 8 * 4096 * 2  # weights, 4 KiB a position, in and out
    assert block.summed == (8 * 4096 * 2,) * 2  # after attention and after the MLP
    head = layer_work(model, Step(1, 4095, 8), PLAIN)[-1]
    assert head.flops == 8 * 2 * 4096 * 128256


def test_a_group_shares_the_work_and_pays_two_sums_a_block() -> None:
    model, step = language_model(LLAMA3_8B), Step(512, 0, 1)
    alone, shared = layer_work(model, step, PLAIN)[1], layer_work(model, step, PLAIN, 4)[1]
    assert shared.flops == alone.flops / 4
    ring = Ring(4, 300e9, 5e-6)
    once = 2 * 3 * (512 * 4096 * 2 / 4 / 300e9 + 5e-6)
    assert shared.exchange_s(ring) == pytest.approx(2 * once)
    assert alone.exchange_s(Ring(1, 0.0)) == 0.0
    assert shared.exchange_s(Ring(4, 0.0)) == float("inf")  # a link without bandwidth


def test_time_is_that_of_the_slower_of_arithmetic_and_memory() -> None:
    device = Reached(flops_s=100e12, bytes_s=1e12, layer_s=1e-5)
    model = language_model(LLAMA3_8B)
    prompt, token = layer_work(model, Step(2048, 0, 1), PLAIN)[1], layer_work(model, Step(1, 100, 1), PLAIN)[1]
    assert prompt.seconds(device) == prompt.flops / 100e12 + 1e-5
    assert token.seconds(device) == token.moved / 1e12 + 1e-5


def test_few_tokens_read_few_experts() -> None:
    model = language_model(MIXTRAL)
    one, many = (layer_work(model, Step(1, 10, n), PLAIN)[1] for n in (1, 64))
    assert one.moved == pytest.approx(2 * (model.blocks[0].weights + 2 * 3 * 4096 * 14336), rel=1e-3)
    assert many.moved == pytest.approx(2 * (model.blocks[0].weights + 8 * 3 * 4096 * 14336), rel=1e-2)
    assert many.flops == 64 * one.flops  # each uses two


def test_memory_is_weights_and_the_cache_of_all_requests() -> None:
    model = language_model(LLAMA3_8B)
    memory = layer_bytes(model, Precision(weight_bits=4, cache_dtype="torch.int8"), 8192, 3)
    assert memory[0] == 128256 * 4096 * 2  # only blocks are quantised
    assert memory[1] == model.blocks[0].all_weights / 2 + 3 * 8192 * 2048


@pytest.mark.parametrize(
    ("quantised", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),  # a scale and a zero for each group
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": True}, 8 + 24 / 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.125),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
            },
            4.5,
        ),
    ],
)
def test_a_quantised_model_has_the_bits_that_it_says(quantised: dict[str, Any], bits: float) -> None:
    config = LLAMA3_8B | {"quantization_config": quantised}
    assert language_model(config).weight_bits == bits
    assert language_model(config, weight_bits=6).weight_bits == 6
    with pytest.raises(InputError, match="quantization_config: how many bits"):
        language_model(config | {"quantization_config": {"quant_method": "other"}})


def test_bits_that_are_asked_for_leave_the_cache_as_it_is(tmp_path: Path) -> None:
    unknown = {"quant_method": "of my own", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    model = language_model(LLAMA3_8B | {"quantization_config": unknown}, weight_bits=5)
    assert (model.weight_bits, model.cache_dtype, model.blocks[0].bits) == (5, "torch.int8", 0)
    model = language_model(beside(tmp_path, LLAMA3_8B, quant_algo="FP8", kv_cache_quant_algo="FP8"), weight_bits=5)
    assert (model.weight_bits, model.cache_dtype) == (5, "torch.int8")


def beside(folder: Path, config: dict[str, Any], **quantised: Any) -> Path:
    """A model's folder as NVIDIA ModelOpt writes it."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantised}))
    return folder


def block_mib(model: LanguageModel) -> list[float]:
    precision = Precision(weight_bits=model.weight_bits, cache_dtype=model.cache_dtype)
    return [size / 2**20 for size in layer_bytes(model, precision, 1, 0)[1:-1]]


@pytest.mark.parametrize(
    ("algorithm", "bits"), [("FP8", 8), ("NVFP4", 4.5), ("W4A16_AWQ", 4.125), ("MXFP8", 8.25), ("INT8_SQ", 8)]
)
def test_the_file_of_modelopt_beside_a_configuration_is_read(tmp_path: Path, algorithm: str, bits: float) -> None:
    folder = beside(tmp_path, LLAMA3_8B, quant_algo=algorithm, kv_cache_quant_algo="FP8", exclude_modules=["lm_head"])
    model, plain = language_model(folder), language_model(LLAMA3_8B)
    assert model.notes == ()
    assert (model.weight_bits, model.cache_dtype) == (bits, "torch.int8")
    assert block_mib(model) == pytest.approx([size * bits / 16 for size in block_mib(plain)])
    assert (
        layer_work(model, Step(1, 0, 1), Precision())[1].moved < layer_work(plain, Step(1, 0, 1), Precision())[1].moved
    )
    problem = load_generation(folder, {"l4": {"mem_MB": 24000, "bw_Mbps": 1000}}, {"l4": ["a"]})
    assert (problem.precision.weight_bits, problem.precision.cache_dtype) == (bits, "torch.int8")


def test_modules_that_are_not_quantised_keep_the_dtype(tmp_path: Path) -> None:
    left_out = [
        "lm_head",
        "model.layers.0.self_attn.*",
        "model.layers.1*",
        "model.layers.2.mlp.down_proj",
        "re:.*gone.*",
    ]
    model = language_model(beside(tmp_path, LLAMA3_8B, quant_algo="FP8", exclude_modules=left_out))
    block = language_model(LLAMA3_8B).blocks[0]
    attention, third = 4096 * 4096 * 2 + 2 * 4096 * 1024, 4096 * 14336
    assert model.blocks[0].bits * block.weights == pytest.approx(16 * attention + 8 * 3 * third)
    assert model.blocks[2].bits * block.weights == pytest.approx(8 * block.weights + 8 * third)
    assert model.blocks[1].bits == 16
    assert model.blocks[3].bits == 8


def test_modules_are_quantised_one_by_one(tmp_path: Path) -> None:
    layers = {
        "model.language_model.layers.0.mlp.gate_proj": {"quant_algo": "NVFP4", "group_size": 16},
        "model.language_model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
        "model.language_model.layers.0.mlp.down_proj": {"quant_algo": "FP8"},
    }
    model = language_model(beside(tmp_path, LLAMA3_8B, quant_algo="MIXED_PRECISION", quantized_layers=layers))
    block, third = model.blocks[0], 4096 * 14336
    attention = block.weights - 3 * third
    assert block.bits * block.weights == pytest.approx(16 * attention + (4.5 + 4.5 + 8) * third)
    assert model.blocks[1].bits == 16


def test_what_is_not_listed_of_a_module_is_not_quantised(tmp_path: Path) -> None:
    four = {"quant_algo": "NVFP4", "group_size": 16}
    layers = {"model.layers.0.self_attn.q_proj": four, "model.layers.0.mlp.gate_up_proj": four}
    model = language_model(beside(tmp_path, LLAMA3_8B, quant_algo="MIXED_PRECISION", quantized_layers=layers))
    block, query, third = model.blocks[0], 4096 * 4096, 4096 * 14336
    listed = query + 2 * third
    assert block.bits * block.weights == pytest.approx(4.5 * listed + 16 * (block.weights - listed))


def test_experts_and_their_router_have_bits_of_their_own() -> None:
    given = {"quant_method": "fp8", "modules_to_not_convert": ["gate", "model.layers.1.block_sparse_moe.experts"]}
    model = language_model(MIXTRAL | {"quantization_config": given})
    router = 8 * 4096
    assert model.blocks[0].bits * model.blocks[0].weights == pytest.approx(8 * model.blocks[0].weights + 8 * router)
    assert [block.expert_bits for block in model.blocks[:3]] == [8, 16, 8]


def test_what_is_not_understood_of_a_quantised_model_is_said(tmp_path: Path) -> None:
    given = {"quant_algo": "FP3", "kv_cache_quant_algo": "NVFP4"}
    model = language_model(beside(tmp_path, LLAMA3_8B, **given))
    assert [note.split(" are ")[0] for note in model.notes] == [
        "weights quantised by 'FP3'",
        "keys and values quantised by NVFP4",
    ]
    assert model.weight_bits == 0
    model = language_model(
        beside(tmp_path, LLAMA3_8B, quant_algo="FP8", exclude_modules=["model.layers.3.linear_attn"])
    )
    assert "model.layers.3.linear_attn" in model.notes[0]
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(InputError, match="hf_quant_config"):
        language_model(tmp_path)


def test_of_a_model_with_pictures_the_language_model_counts() -> None:
    text = next(config for config in CONFIGS if config["model_type"] == "gemma3_text")
    inside = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    found = language_model(inside, name="m")
    assert replace(found, notes=()) == language_model(text, name="m")
    assert "not counted" in found.notes[0]
    with pytest.raises(InputError, match=r"text_config.hidden_size: expected a whole number"):
        language_model(inside | {"text_config": text | {"hidden_size": "wide"}})
    with pytest.raises(
        InputError, match=r"text_config.model_type: 'other' is not a language model known here; known: "
    ):
        language_model(inside | {"text_config": {"model_type": "other"}})


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[9], CONFIGS[12]], ids=lambda config: config["model_type"])
def test_operations_are_those_that_torch_counts(config: dict[str, Any]) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    real_config = transformers.AutoConfig.for_model(**config, attn_implementation="eager")
    real = transformers.AutoModelForCausalLM.from_config(real_config).eval()
    model = language_model(json.loads(real_config.to_json_string()))
    n, sequences = 7, 2
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        real(torch.zeros((sequences, n), dtype=torch.long), logits_to_keep=1)
    ours = sum(work.flops for work in layer_work(model, Step(n, 0, sequences), PLAIN))
    unseen = n * n - n * (n + 1) // 2  # it also multiplies what the mask then takes away
    ours += len(model.blocks) * sequences * 4 * model.heads * model.head_size * unseen
    biases = 9 * model.hidden if config["model_type"] == "gpt2" else 0  # which it does not count
    assert counter.get_total_flops() == ours - len(model.blocks) * 2 * n * sequences * biases


def test_measured_profiles_go_before_rates_and_are_interpolated() -> None:
    layers = [0.001, 0.01, 0.01, 0.01, 0.002]
    profile = [
        {"batch_size": 1, "dtype": "torch.float16", "phase": "prefill", "tokens": 100, "time_s": layers},
        {
            "batch_size": 1,
            "dtype": "torch.float16",
            "phase": "prefill",
            "tokens": 200,
            "time_s": [3 * t for t in layers],
        },
        {"batch_size": 1, "dtype": "torch.float16", "phase": "decode", "tokens": 300, "time_s": layers},
        {
            "batch_size": 3,
            "dtype": "torch.float16",
            "phase": "decode",
            "tokens": 300,
            "time_s": [2 * t for t in layers],
        },
    ]
    types = {"a100": TYPES["a100"] | {"model_profiles": {"config": profile}}}
    problem = load_generation(small("llama"), types, {"a100": ["a"]}, prompt=150, context=300, concurrency=3)
    assert problem.prefill().classes[0].time_s == pytest.approx([2 * t for t in layers])
    assert problem.decode(2).classes[0].time_s == pytest.approx([1.5 * t for t in layers])
    assert problem.source == "measured"
    with pytest.raises(
        InputError, match=r"decode with 4 requests at once \(torch.float16\) is not among or between .*1, 3"
    ):
        problem.decode(4)


def test_rates_by_name_or_given() -> None:
    own = {"device": "h100", "tflops": 100.0, "compute_share": 1.0, "memory_share": 0.5}
    types = {"a100": TYPES["a100"], "mine": TYPES["l4"] | {"roofline": own}, "unknown": TYPES["l4"]}
    hosts = {"a100": ["a"], "mine": ["m"], "unknown": ["u"]}
    problem = load_generation(LLAMA3_8B, types, hosts, prompt=512, context=1024)
    assert [c.type for c in problem.pool.classes] == ["a100", "mine"]
    assert any("unknown" in warning for warning in problem.warnings)
    flops = layer_work(problem.model, Step(512, 0, 1), PLAIN)[1].flops
    moved = layer_work(problem.model, Step(1, 1023, 1), PLAIN)[1].moved
    assert problem.prefill().classes[1].time_s[1] == pytest.approx(flops / 100e12)
    assert problem.decode(1).classes[1].time_s[1] == pytest.approx(moved / (0.5 * 3350e9))


@pytest.mark.parametrize(
    ("roofline", "message"),
    [
        ({"device": "h1000"}, "no published figures of 'h1000' here; did you mean 'h100'"),
        ({"device": "a100", "memory_share": 0}, "memory_share: expected more than 0, found 0"),
        ({"device": "a100", "layer_s": -1}, "layer_s: expected a number from 0"),
        ({"device": "a100", "share": 1}, "unknown key"),
        ({"tflops": 5}, "no published figures of 'x' here"),
    ],
)
def test_wrong_rates_are_refused(tmp_path: Path, roofline: dict[str, Any], message: str) -> None:
    place = tmp_path / "device_types.yml"
    place.write_text(json.dumps({"x": TYPES["l4"] | {"roofline": roofline}}))
    with pytest.raises(InputError, match=message) as error:
        load_generation(LLAMA3_8B, place, {"x": ["a"]})
    assert str(place) in str(error.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prompt": 0}, "--prompt: expected 1 or more, found 0"),
        ({"prompt": 4096}, "--prompt 4096: expected less than the context, 4096"),
        ({"tensor_parallel": (3,)}, "--tensor-parallel 3: expected a divisor of the 8 heads"),
        ({"memory_use": 0.0}, "--memory-use: expected more than 0 and at most 1"),
        ({"weight_bits": 65}, "--weight-bits: expected 1 to 64, found 65"),
        ({"weight_bits": 0.5}, "--weight-bits: expected 1 to 64, found 0.5"),
        ({"cache_dtype": "float17"}, "--cache-dtype: unsupported 'torch.float17'"),
        ({"concurrency": "many"}, "concurrency: expected int, found str"),
    ],
)
def test_what_is_asked_is_checked(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_generation(LLAMA3_8B, TYPES, {"a100": ["a"]}, **asked)


@pytest.mark.parametrize("wrong", [{"tokens": None}, {"tokens": 0}, {"phase": None}, {"batch_size": 0}])
def test_a_profile_of_a_phase_that_says_too_little_is_refused(wrong: dict[str, Any]) -> None:
    profile = {"batch_size": 1, "dtype": "torch.float16", "phase": "decode", "tokens": 9, "time_s": [0.1] * 5} | wrong
    types = {"a100": TYPES["a100"] | {"model_profiles": {"config": [profile]}}}
    with pytest.raises(InputError, match=r"a100.model_profiles.config: a profile of prefill or decode needs phase"):
        load_generation(small("llama"), types, {"a100": ["a"]})


def test_profiles_of_phases_are_left_alone_by_others(tmp_path: Path) -> None:
    from dovetail import pipeline
    from dovetail.pipeline.profile.convert import to_device_types
    from dovetail.pipeline.profile.files import LayerRow, ModelProfile

    phase = {"batch_size": 1, "dtype": "torch.float32", "phase": "decode", "tokens": 9, "time_s": [0.1]}
    place = tmp_path / "device_types.yml"
    place.write_text(json.dumps({"t": {"bw_Mbps": 1, "mem_MB": 9, "model_profiles": {"m": [phase]}}}))
    model = {"m": {"layers": 1, "mem_MB": [1.0], "parameters_in": 1, "parameters_out": [1]}}
    assert pipeline.load(model, place, {"t": ["a"]}, batch_size=1).classes == []
    measured = ModelProfile(
        batch_size=1, dtype="torch.float32", layers=1, model_name="m", profile_data=[LayerRow(1, 1.0, [1], [1], 0.5)]
    )
    to_device_types([measured], place, "t")
    assert pipeline.load(model, place, {"t": ["a"]}, batch_size=1).classes[0].time_s == [0.5]
