"""The shape of a language model, against hand-worked figures and against the weights of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.language.blocks import Block
from dovetail.pipeline.language.shape import LanguageModel, language_model

LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}


def test_published_parameter_counts() -> None:
    assert language_model(LLAMA3_8B).weights == 8_030_261_248
    mixtral = language_model(MIXTRAL)
    assert mixtral.weights == 46_702_792_704
    block = mixtral.blocks[0]
    used = sum(mixtral.layer_weights) - 32 * (block.experts - block.experts_used) * block.expert_weights
    assert round(used / 1e9, 1) == 12.9  # what its makers say a token uses


def test_keys_and_values_of_a_token_by_hand() -> None:
    model = language_model(LLAMA3_8B)
    assert model.kv_bytes(0, 1) == 2 * 8 * 128 * 2  # two, of 8 heads of 128, in 16 bits: 4 KiB
    assert sum(model.kv_bytes(i, 8192) for i in range(32)) == 2**30
    assert model.kv_bytes(0, 1, "torch.int8") == 2048


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}


def test_a_latent_vector_stands_for_keys_and_values() -> None:
    model = language_model(DEEPSEEK_V3)
    assert round(model.weights / 1e9) == 671  # what its makers say
    assert model.kv_bytes(0, 1) == (512 + 64) * 2
    assert model.kv_heads == 1  # it cannot be shared out by heads
    block = model.blocks[5]
    expanded, kept = 2 * 128 * (128 + 64 + 128), 2 * 128 * (512 + 64 + 512)
    assert (block.attention_flops(2, 0), block.attention_flops(1, 9)) == (3 * expanded, 10 * kept)


def test_an_index_chooses_what_is_looked_at() -> None:
    index = {"index_topk": 4, "index_head_dim": 8, "index_n_heads": 2}
    block = language_model(DEEPSEEK_V3 | index | {"model_type": "deepseek_v32"}).blocks[0]
    assert block.kept_bytes(10, "torch.int8") == 10 * (512 + 64 + 8)
    assert block.read_bytes(10, "torch.int8") == 4 * (512 + 64) + 10 * 8
    assert block.read_bytes(3, "torch.int8") == block.kept_bytes(3, "torch.int8")
    assert block.attention_flops(1, 9) == 4 * block.cached_pair_flops + 10 * 2 * 2 * 8


def test_a_state_is_as_large_however_long_the_context() -> None:
    model = language_model(small("qwen3_5_text", head_dim=12, mamba_ssm_dtype="float32", **LINEAR))
    state, recent = 4 * 6 * 10, (2 * 2 * 6 + 4 * 10) * 3
    assert [model.kv_bytes(0, context) for context in (1, 1000)] == [4 * state + 2 * recent] * 2
    assert model.kv_bytes(1, 1000) == 1000 * 2 * 2 * 12 * 2


@pytest.mark.parametrize("key", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_blocks_that_share_more_than_their_output_are_refused(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: blocks that pass on more than their output are not known here"):
        language_model(small("gemma4_text", **GEMMA4) | {key: 2})


def small(kind: str, **more: object) -> dict[str, object]:
    common: dict[str, object] = {
        "model_type": kind,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 80,
        "vocab_size": 101,
        "tie_word_embeddings": False,
    }
    return common | more


FOUR = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = ROUTED | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 14,
    "q_lora_rank": 18,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
INDEX = {"index_topk": 2, "index_head_dim": 8, "index_n_heads": 4}
LLAMA4: dict[str, Any] = {
    "intermediate_size_mlp": 56,
    "pad_token_id": 0,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 8,
    "attention_chunk_size": 5,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
    "full_attention_interval": 2,
}
GEMMA4: dict[str, Any] = {
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "tie_word_embeddings": True,
}
CONFIGS = [
    small("llama"),
    small("llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16),
    small("mistral", sliding_window=7),
    small("mixtral", num_local_experts=4, num_experts_per_tok=2),
    small("phi3", pad_token_id=0),
    small("qwen2"),
    small("qwen3", head_dim=12),
    small(
        "qwen2_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1],
    ),
    small(
        "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, head_dim=8, decoder_sparse_step=2
    ),
    small("gemma", head_dim=16, tie_word_embeddings=True),
    small("gemma2", head_dim=16, sliding_window=5, tie_word_embeddings=True),
    small("gemma3_text", head_dim=16, sliding_window=5, tie_word_embeddings=True),
    {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 6, "vocab_size": 101, "n_positions": 64},
    {"model_type": "bloom", "hidden_size": 48, "n_layer": 3, "n_head": 6, "vocab_size": 101},
    small("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=5),
    small("glm4", head_dim=8, pad_token_id=0),
    small("glm4_moe", head_dim=8, use_qk_norm=True, attention_bias=True, **ROUTED),
    small("glm4_moe_lite", mlp_layer_types=["dense", "sparse", "dense"], **LATENT),
    small("deepseek_v2", **LATENT | {"q_lora_rank": None, "first_k_dense_replace": 0}),
    small("deepseek_v3", attention_bias=True, **LATENT),
    small("deepseek_v3", **LATENT | {"q_lora_rank": None}),
    small("deepseek_v32", **LATENT | INDEX),
    small("glm_moe_dsa", **LATENT | INDEX, index_topk_freq=2, index_skip_topk_offset=1),
    small("llama4_text", interleave_moe_layer_step=2, **LLAMA4),
    small("llama4_text", moe_layers=[0], no_rope_layers=[1, 0, 1], **LLAMA4),
    small("minimax_m2", head_dim=8, num_local_experts=4, num_experts_per_tok=2),
    small("qwen3_next", head_dim=12, shared_expert_intermediate_size=24, **FOUR | LINEAR),
    small("qwen3_5_text", head_dim=12, **LINEAR),
    small("qwen3_5_moe_text", head_dim=12, shared_expert_intermediate_size=24, **FOUR | LINEAR),
    small("gemma4_text", **GEMMA4),
    small("gemma4_text", enable_moe_block=True, **FOUR | GEMMA4 | {"top_k_experts": 2}),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_weights_are_those_of_the_real_model(config: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    real_config = transformers.AutoConfig.for_model(**config)
    real = transformers.AutoModelForCausalLM.from_config(real_config)
    model = language_model(json.loads(real_config.to_json_string()) | {"model_type": config["model_type"]})
    assert model.weights == sum(weight.numel() for weight in real.parameters())
    assert language_model(config).weights == model.weights  # as people write it, without what is the default


@pytest.mark.parametrize(
    "config",
    [
        small("qwen3_vl_text", head_dim=12),
        small(
            "qwen3_vl_moe_text",
            num_experts=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            head_dim=8,
            decoder_sparse_step=2,
            mlp_only_layers=[],
        ),
    ],
    ids=lambda config: config["model_type"],
)
def test_the_language_model_of_one_that_sees_has_its_weights(config: dict[str, object]) -> None:
    """`AutoModel` gives it without the head, which is a matrix of the vocabulary where it is not tied."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    with torch.device("meta"):
        real = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    outer = {"model_type": str(config["model_type"]).removesuffix("_text"), "text_config": config}
    model = language_model(outer | {"tie_word_embeddings": False})
    assert model.weights == sum(weight.numel() for weight in real.parameters()) + 101 * 48
    assert ["not counted" in note for note in model.notes] == [True]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_the_cache_holds_what_the_real_one_does(config: dict[str, object]) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    real_config = transformers.AutoConfig.for_model(**config)
    real = transformers.AutoModelForCausalLM.from_config(real_config).eval()
    model = language_model(json.loads(real_config.to_json_string()))
    with torch.no_grad():
        cache = real(torch.zeros((2, 4), dtype=torch.long), use_cache=True).past_key_values
    for i, layer in enumerate(cache.layers):
        assert _bytes(layer) == 2 * model.kv_bytes(i, 4, "torch.float32")


def _bytes(layer: Any) -> int:
    """Keys and values, what positions are chosen by, or a state in their place."""
    names = ("keys", "values", "indexer_keys", "conv_states", "recurrent_states")
    held = [getattr(layer, name, None) for name in names]
    tensors = [t for each in held for t in (each.values() if isinstance(each, dict) else [each]) if t is not None]
    return sum(int(t.nbytes) for t in tensors)


def test_windows_by_block() -> None:
    def windows(model: LanguageModel) -> list[int]:
        return [block.window for block in model.blocks]

    assert windows(language_model(small("mistral", sliding_window=7))) == [7, 7, 7]
    assert windows(language_model(small("qwen2", sliding_window=7))) == [0, 0, 0]
    qwen = small("qwen2", sliding_window=7, use_sliding_window=True, max_window_layers=2)
    assert windows(language_model(qwen)) == [0, 0, 7]
    assert windows(language_model(small("gemma2", sliding_window=5))) == [5, 0, 5]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(language_model(small("gemma3_text", sliding_window=5, layer_types=kinds))) == [0, 5, 0]
    assert language_model(small("mistral", sliding_window=7)).kv_bytes(0, 100) == 2 * 2 * 8 * 7 * 2


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"])
def test_what_a_configuration_leaves_out_is_what_its_family_has(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    left_out = ("num_key_value_heads", "tie_word_embeddings")
    given = small(kind, num_attention_heads=32, hidden_size=64)
    config = {key: value for key, value in given.items() if key not in left_out}
    real_config = transformers.AutoConfig.for_model(**config)
    real = transformers.AutoModelForCausalLM.from_config(real_config)
    model = language_model(config)
    assert model.weights == sum(weight.numel() for weight in real.parameters())
    assert model.kv_heads == real_config.num_key_value_heads
    kinds = getattr(real_config, "layer_types", None) or ["sliding_attention"] * 3
    reach = getattr(real_config, "sliding_window", None) or 0
    assert [block.window for block in model.blocks] == [reach * (kind == "sliding_attention") for kind in kinds]


@pytest.mark.parametrize(("new", "past", "window"), [(5, 0, 3), (5, 2, 3), (1, 9, 4), (4, 4, 0), (3, 1, 9), (6, 3, 3)])
def test_attended_pairs_are_counted(new: int, past: int, window: int) -> None:
    block = Block(weights=0, norm_weights=0, window=window)
    assert block.attended(new, past) == sum(min(past + t, window or 10**9) for t in range(1, new + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "model_type: 'lama' is not a language model known here; known: llama"),
        ({"hidden_size": 0}, "hidden_size: expected a whole number from 1 on, found 0"),
        ({"num_attention_heads": "six"}, "num_attention_heads: expected a whole number from 1 on, found 'six'"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 does not divide num_attention_heads 6"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, found 1"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 3 kinds of attention"),
        ({"layer_types": ["full_attention"] * 2 + ["linear"]}, "expected full_attention or sliding_attention, found"),
        ({"model_type": "qwen2_moe"}, "num_experts is missing"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 4, "qk_rope_head_dim": 2}, "qk_nope_head_dim is missing"),
        ({"model_type": "qwen2_moe", **FOUR}, "shared_expert_intermediate_size is missing"),
        ({"model_type": "glm4_moe", **ROUTED, "mlp_layer_types": ["dense"]}, "expected 3 kinds of MLP"),
        ({"model_type": "llama4_text", **LLAMA4, "moe_layers": 3}, "moe_layers: expected numbers of blocks, found 3"),
        ({"torch_dtype": "float17"}, "unsupported dtype 'float17'"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    place = tmp_path / "config.json"
    place.write_text(json.dumps(small("llama") | change))
    with pytest.raises(InputError) as error:
        language_model(tmp_path)
    assert message in str(error.value)


def test_missing_keys_are_named() -> None:
    with pytest.raises(InputError, match="config: vocab_size is missing"):
        language_model({key: value for key, value in small("llama").items() if key != "vocab_size"})
