"""Models of the families that people cut: wherever the cut, they give what the plain model gives, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
PAIR = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": {"model_type": "vit", "image_size": 32, "patch_size": 8} | WIDTHS,
    "BertForSequenceClassification": {"model_type": "bert", "vocab_size": 97, "max_position_embeddings": 24} | WIDTHS,
    "T5ForConditionalGeneration": {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 97,
        "max_position_embeddings": 12,
        "decoder_start_token_id": 0,
    },
    "WhisperForConditionalGeneration": {
        "model_type": "whisper",
        "d_model": 32,
        "vocab_size": 97,
        "num_mel_bins": 8,
        "max_source_positions": 20,
        "max_target_positions": 12,
        "decoder_start_token_id": 3,
        "pad_token_id": 0,
    }
    | PAIR,
    "ResNetForImageClassification": {  # the depths of ResNet-50
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [16, 24, 32, 40],
        "depths": [3, 4, 6, 3],
        "layer_type": "bottleneck",
        "image_size": 32,
    },
}
MODULES = '''
import torch
from torch import nn
from torch.nn import functional as F


class Lstm(nn.Module):
    """Three recurrent layers one after another, and two in one module."""
    input_shapes, input_dtype = ((9,),), "torch.int64"

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.recurrent = nn.ModuleList(nn.LSTM(16, 16, count, batch_first=True) for count in (1, 1, 1, 2))
        self.out = nn.Linear(16, 50)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.recurrent:
            x, _ = layer(x)
        return self.out(x)


def convolutions(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


class UNet(nn.Module):
    """What goes down is kept for the way up: at the bottom one tensor for each level crosses a cut."""
    input_shapes = ((3, 16, 16),)

    def __init__(self, depth=3):
        super().__init__()
        widths = [8 * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(map(convolutions, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1])
        self.join = nn.ModuleList(convolutions(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        kept = []
        for layer in self.down[:-1]:
            kept.append(layer(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


class DenseNet(nn.Module):
    """Each layer's input is all that came before it in the block, joined."""
    input_shapes = ((3, 16, 16),)

    def __init__(self, blocks=(3, 3), growth=8):
        super().__init__()
        self.stem, width = nn.Conv2d(3, 16, 3, padding=1), 16
        self.blocks, self.between = nn.ModuleList(), nn.ModuleList()
        for count in blocks:
            widths = [width + growth * i for i in range(count)]
            self.blocks.append(nn.ModuleList(convolutions(w, growth) for w in widths))
            self.between.append(nn.Conv2d(widths[-1] + growth, widths[-1] // 2, 1))
            width = widths[-1] // 2
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for block, between in zip(self.blocks, self.between):
            for layer in block:
                x = torch.cat([x, layer(x)], 1)
            x = F.avg_pool2d(between(x), 2)
        return self.head(x.mean((2, 3)))
'''
OWN = ["Lstm", "UNet", "DenseNet"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def described(name: str, folder: Path) -> tuple[ModelSpec, Any]:
    """Where a model comes from, and the model itself."""
    build: Callable[[ModelSpec], Any]
    if name in OWN:
        from dovetail.pipeline.models.factory import build

        (folder / "models.py").write_text(MODULES)
        spec = ModelSpec(source=f"{folder / 'models.py'}:{name}", seed=3)
    else:
        pytest.importorskip("transformers")
        from dovetail.pipeline.models.hugging_face import build

        (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[name] | {"architectures": [name]}))
        spec = ModelSpec(source=f"hf:{folder}", seed=3)
    torch.manual_seed(spec.seed)
    return spec, build(spec).model.eval()


def results(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def assert_equal_at_every_cut(chain: Chain, model: Any) -> None:
    value = chain.inputs(3, "torch.float32", seed=4)
    with torch.inference_mode():
        expected = results(model(*results(value)))
    last = len(chain.layers)
    for layer in range(1, last + 1):
        value = chain.part(layer, layer)(value)
        found = results(chain.part(layer + 1, last)(value) if layer < last else value)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected)), f"cut after {layer}, {chain.names[layer - 1]}"


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *OWN])
def test_cut_anywhere_a_model_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    spec, model = described(name, tmp_path)
    chain = load(spec)
    assert len(chain.layers) >= 5, chain.names
    assert_equal_at_every_cut(chain, model)


@pytest.mark.parametrize("name", ["ViTForImageClassification", "WhisperForConditionalGeneration", "UNet"])
def test_weights_from_a_checkpoint_are_read_by_the_part_that_needs_them(name: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    spec, model = described(name, tmp_path)
    file = tmp_path / "weights.safetensors"
    if name in OWN:
        save_file(model.state_dict(), file)
    else:
        model.model.save_pretrained(tmp_path / "saved")
        file = tmp_path / "saved"
    chain = load(msgspec.structs.replace(spec, seed=8, weights=str(file)))
    assert all(t.is_meta for layer in chain.layers for t in layer.parameters())  # type: ignore[attr-defined]
    assert_equal_at_every_cut(chain, model)


def test_a_model_of_two_inputs_says_how_many_shapes_it_takes(tmp_path: Path) -> None:
    spec, _ = described("WhisperForConditionalGeneration", tmp_path)
    with pytest.raises(InputError, match="takes 2 inputs, found 1 shapes"):
        load(msgspec.structs.replace(spec, shapes=((8, 40),)))
