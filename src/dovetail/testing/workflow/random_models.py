"""Models with random weights, of any shape, in folders as transformers writes them: config, safetensors, tokenizer.

Large ones are written as fast as the disk takes them: all weights are cut out of one block of random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_BLOCK = 8 << 20  # random numbers that all weights are made of
_SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
_CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
_TEXT = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps on; whoever waits long enough gets a turn.",
    "models come and go, requests stay until they are answered: a schedule says which of them goes first and where.",
    "numbers 0 1 2 3 4 5 6 7 8 9 and names like naïve café, straße, 東京, Київ and a smile 😀 in between.",
]
_LLAMA = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
)
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dict(zip(_LLAMA, (512, 64, 128, 3, 4, 2, 512, True), strict=True)),
    "0.5b": dict(zip(_LLAMA, (151_936, 896, 4864, 24, 14, 2, 8192, True), strict=True)),
    "1.5b": dict(zip(_LLAMA, (151_936, 1536, 8960, 28, 12, 2, 8192, True), strict=True)),
    "3b": dict(zip(_LLAMA, (151_936, 2048, 11_008, 36, 16, 2, 8192, True), strict=True)),
    "8b": dict(zip(_LLAMA, (128_256, 4096, 14_336, 32, 32, 8, 8192, False), strict=True)),
}
_GPT2 = {"vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}
_BERT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def write_model(
    folder: Path,
    shape: str = "tiny",
    *,
    kind: str = "llama",
    head: str = "CausalLM",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    spread: float = 0.02,
    shards: int = 1,
    chat: bool = True,
    **changes: Any,
) -> Path:
    """Write a model: `kind` is a model type of transformers (`llama`, `gpt2`, `bert`, ...), `head` what its class ends
    with (`CausalLM`, `SequenceClassification`, empty for the model alone), `changes` go into its configuration. The
    weights of a seed are always the same; with a small `spread` a model repeats itself."""
    import transformers

    given = {"llama": SHAPES.get(shape, {}), "gpt2": _GPT2, "bert": _BERT}.get(kind, {}) | changes
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    config: Any = transformers.AutoConfig.for_model(kind, **(special | given), dtype=dtype)
    auto: Any = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    with torch.device("meta"):
        model = auto.from_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    size = min(_BLOCK, 2 * max(tensor.numel() for tensor in weights.values()))
    block = torch.randn(size, generator=torch.Generator().manual_seed(seed)).mul_(spread).to(dtype)
    _write_weights(folder, weights, block, shards)
    write_tokenizer(folder, chat=chat)
    return folder


def write_tokenizer(folder: Path, *, chat: bool = True) -> None:
    """A small byte-level tokenizer, learned from three sentences: it knows any text, characters of several bytes are
    several tokens, and what a model writes at random is often half a character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about | ({"chat_template": _CHAT} if chat else {})))


def _write_weights(folder: Path, weights: dict[str, Any], block: torch.Tensor, shards: int) -> None:
    names = list(weights)
    if shards == 1:
        _write_file(folder / "model.safetensors", weights, block)
        return
    size = -(-len(names) // shards)
    index: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[i * size : (i + 1) * size]}
        _write_file(folder / file, part, block)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _write_file(path: Path, weights: dict[str, Any], block: torch.Tensor) -> None:
    code = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[block.dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in weights.items():
        size = tensor.numel() * block.element_size()
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, (name, tensor) in enumerate(weights.items()):
            for piece in _random(name, number, tensor.numel(), block):
                file.write(piece.view(torch.uint8).numpy().data)


def _random(name: str, number: int, count: int, block: torch.Tensor) -> Iterator[torch.Tensor]:
    if "norm" in name.lower() or ".ln_" in name:  # as a trained one begins
        yield (torch.zeros if name.endswith("bias") else torch.ones)(count, dtype=block.dtype)
        return
    start = number * 7919 % (len(block) // 2)
    while count:
        piece = block[start : start + count]
        yield piece
        count -= len(piece)
        start = 0
