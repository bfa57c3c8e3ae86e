"""Language models are cut at their blocks; a part runs the model's own code, with or without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

BLOCKS = 3
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 24,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama", "tie_word_embeddings": True},
    "Qwen2ForCausalLM": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "Qwen3MoeForCausalLM": {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [1],
    },
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4, "sliding_window": 8},
    "GemmaForCausalLM": {"model_type": "gemma", "head_dim": 8},
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 32, "n_layer": BLOCKS, "n_head": 4, "n_positions": 24},
    "FalconForCausalLM": {"model_type": "falcon"},  # its blocks give tuples
}


def configuration(folder: Path, name: str, **changes: Any) -> ModelSpec:
    given = SMALL | MODELS[name] | {"architectures": [name]} | changes
    if name == "GPT2LMHeadModel":
        given = {key: value for key, value in given.items() if key not in SMALL or "token" in key or "vocab" in key}
    (folder / "config.json").write_text(json.dumps(given))
    return ModelSpec(source=f"hf:{folder}", seed=3)


def plain(spec: ModelSpec) -> Any:
    from dovetail.pipeline.models.hugging_face import build

    torch.manual_seed(spec.seed)
    return build(spec).model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_cut_anywhere_a_model_gives_its_logits_bit_by_bit(name: str, tmp_path: Path) -> None:
    spec = configuration(tmp_path, name)
    chain, model = load(spec), plain(spec)
    assert type(model.model).__name__ == name
    assert len(chain.layers) == BLOCKS + 2
    assert (chain.names[0], chain.names[-1]) == ("embedding", "head")
    value: Any = chain.inputs(3, "torch.float32", seed=4)
    with torch.inference_mode():
        logits = model(value)
    assert logits.shape == (3, 24, 97)
    last = len(chain.layers)
    for cut in range(1, last):
        hidden: Any = chain.part(1, cut)(value)
        assert hidden.shape == (3, 24, 32)
        assert torch.equal(chain.part(cut + 1, last)(hidden), logits), cut
    for layer in range(1, last + 1):
        value = chain.part(layer, layer)(value)
    assert torch.equal(value, logits)


ODD: dict[str, dict[str, Any]] = {
    "CTRLLMHeadModel": {"model_type": "ctrl", "n_embd": 32, "n_layer": BLOCKS, "n_head": 4, "dff": 48},  # in place
    "BertLMHeadModel": {"model_type": "bert", "is_decoder": True},  # a module without which others are gone
    "ElectraForCausalLM": {"model_type": "electra", "is_decoder": True, "embedding_size": 16},  # projected
    "OPTForCausalLM": {"model_type": "opt", "ffn_dim": 48, "word_embed_proj_dim": 32},  # positions are made of a mask
    "ModernBertDecoderForCausalLM": {"model_type": "modernbert-decoder"},  # its padding may not be nobody's
}


@pytest.mark.parametrize("name", ODD)
def test_whatever_a_model_does_to_its_embedding_a_part_gives_its_logits(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | ODD[name] | {"architectures": [name]}))
    spec = ModelSpec(source=f"hf:{tmp_path}", seed=3)
    chain, model = load(spec), plain(spec)
    assert [chain.names[0], chain.names[-1]] == ["embedding", "head"]
    value: Any = chain.inputs(2, "torch.float32", seed=4)
    with torch.inference_mode():
        logits = model(value)
    for cut in range(1, BLOCKS + 2):
        assert torch.equal(chain.part(cut + 1, BLOCKS + 2)(chain.part(1, cut)(value)), logits), cut


def test_a_model_whose_parts_do_not_run_alone_is_traced(tmp_path: Path) -> None:
    given = SMALL | {"model_type": "prophetnet", "architectures": ["ProphetNetForCausalLM"]}  # has no fewer blocks
    given |= {"num_encoder_layers": 1, "num_decoder_layers": 2, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    del given["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(given | {"is_encoder_decoder": False}))
    with pytest.raises(InputError, match=r"cannot be cut|does not run"):
        load(ModelSpec(source=f"hf:{tmp_path}"))


def test_without_a_limit_on_positions_items_have_a_usual_length(tmp_path: Path) -> None:
    given = {"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"], "d_model": 16, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(given | {"d_inner": 16, "vocab_size": 31}))
    from dovetail.pipeline.models.hugging_face import build

    assert build(ModelSpec(source=f"hf:{tmp_path}")).shapes == ((512,),)  # its configuration says -1


def test_what_a_configuration_refuses_is_told_with_the_file(tmp_path: Path) -> None:
    given = {"model_type": "mamba", "layer_types": ["mamba"], "architectures": ["MambaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(InputError, match=r"config\.json: .*layer_types"):
        load(ModelSpec(source=f"hf:{tmp_path}"))


@pytest.mark.parametrize("name", MODELS)
def test_parts_with_caches_of_their_own_generate_what_the_model_does(name: str, tmp_path: Path) -> None:
    from transformers import DynamicCache

    spec = configuration(tmp_path, name)
    chain, model = load(spec), plain(spec).model
    prompt: Any = chain.inputs(2, "torch.float32", seed=5)[:, :11]  # type: ignore[call-overload]
    expected = model.generate(prompt, max_new_tokens=9, do_sample=False, use_cache=True)
    parts = [chain.layers[0].until(2), chain.layers[2].until(3), chain.layers[3].until(5)]  # type: ignore[attr-defined]
    caches = [DynamicCache(config=part.model.config) for part in parts]
    ids, value = prompt, prompt
    with torch.inference_mode():
        for _ in range(9):
            for part, cache in zip(parts, caches, strict=True):
                value = part(value, cache)
            value = value[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, value], 1)
    assert torch.equal(ids, expected)


def test_a_part_holds_its_own_weights_alone(tmp_path: Path) -> None:
    chain = load(configuration(tmp_path, "LlamaForCausalLM"))
    table, block = 97 * 32, sum(p.numel() for p in chain.layers[1].parameters())  # type: ignore[attr-defined]
    held = [sum(p.numel() for p in layer.parameters()) for layer in chain.layers]  # type: ignore[attr-defined]
    assert held == [table, block, block, block, table + 32]
    together = chain.layers[0].until(5)  # type: ignore[attr-defined]
    assert sum(p.numel() for p in together.parameters()) == table + 3 * block + 32  # tied: once


def test_an_architecture_must_be_known(tmp_path: Path) -> None:
    spec = configuration(tmp_path, "LlamaForCausalLM", architectures=["LlamaForCausalML"])
    with pytest.raises(InputError, match="unknown architecture 'LlamaForCausalML'; did you mean 'LlamaForCausalLM'"):
        load(spec)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[ModelSpec, Any]:
    """A tied model, saved in several files, and the model itself."""
    spec = configuration(tmp_path, "LlamaForCausalLM")
    model = plain(spec).model
    model.save_pretrained(tmp_path / "weights", max_shard_size="20KB")
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) > 2
    return spec, model


@pytest.mark.parametrize("where", ["weights", "weights/model.safetensors.index.json"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_in_pieces_gives_what_the_library_gives(
    saved: Any, tmp_path: Path, where: str, dtype: str
) -> None:
    spec, model = saved
    spec = msgspec.structs.replace(spec, seed=99, weights=str(tmp_path / where))
    chain = load(spec)
    ids: Any = chain.inputs(2, "torch.float32", seed=5)
    model = type(model).from_pretrained(tmp_path / "weights", dtype=getattr(torch, dtype))
    with torch.inference_mode():
        expected = model(ids).logits
    assert all(t.is_meta for layer in chain.layers for t in layer.parameters())  # type: ignore[attr-defined]
    full = f"torch.{dtype}"
    assert torch.equal(chain.part(3, 5, dtype=full)(chain.part(1, 2, dtype=full)(ids)), expected)
    assert all(t.is_meta for layer in chain.layers for t in layer.parameters())  # type: ignore[attr-defined]


def test_a_checkpoint_must_fit(saved: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    spec, model = saved
    file = tmp_path / "one.safetensors"
    state = {name: t.clone() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    for change, message in (
        ({"model.norm.weight": None}, r"no 'model\.norm\.weight'"),
        ({"model.norm.weight": torch.ones(31)}, r"model\.norm\.weight has shape \[31\], expected \[32\]"),
        ({"model.layers.3.mlp.up_proj.weight": torch.ones(2)}, r"has no 'model\.layers\.3\.mlp\.up_proj\.weight'"),
    ):
        save_file({name: t for name, t in (state | change).items() if t is not None}, file)
        with pytest.raises(InputError, match=rf"one\.safetensors: weights that do not fit the model: .*{message}"):
            load(msgspec.structs.replace(spec, weights=str(file)))
    save_file(state, file)
    assert load(msgspec.structs.replace(spec, weights=str(file))).names[0] == "embedding"
    for name, text, message in (
        ("bad.json", "{}", r"bad\.json: expected an index of safetensors files, with a 'weight_map'"),
        ("lost.json", '{"weight_map": {"a": "gone.safetensors"}}', r"gone\.safetensors: no such file"),
        ("none.safetensors", "text", r"none\.safetensors: expected weights"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            load(msgspec.structs.replace(spec, weights=str(tmp_path / name)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: expected model\.safetensors\.index\.json or one"):
        load(msgspec.structs.replace(spec, weights=str(tmp_path / "empty")))


def test_experts_that_are_stored_one_by_one_are_put_together(tmp_path: Path) -> None:
    spec = configuration(tmp_path, "MixtralForCausalLM")
    model = plain(spec)
    model.model.save_pretrained(tmp_path / "saved")
    chain = load(msgspec.structs.replace(spec, seed=9, weights=str(tmp_path / "saved")))
    ids: Any = chain.inputs(2, "torch.float32", seed=5)
    with torch.inference_mode():
        expected = model(ids)
    assert torch.equal(chain.part(3, 5)(chain.part(1, 2)(ids)), expected)
