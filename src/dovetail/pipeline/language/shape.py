"""The shape of a language model, from its public config.json: weights of every layer and what a token keeps there.

Layers are counted as `hf:` cuts them: the embedding, every block, and the head (the last norm and the logits).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import Document, Source
from dovetail.pipeline.inputs.problem import DTYPE_BYTES
from dovetail.pipeline.language.quantised import Quantisation

DTYPE_BITS = {name: 8 * size for name, size in DTYPE_BYTES.items()}


class DecoderFamily(Struct, frozen=True, kw_only=True):
    """What the configuration of a model type does not say. Norms are counted in vectors of the hidden size."""

    gated: bool = True  # three matrices in an MLP, or two with biases
    qkv_bias: bool = False
    qkvo_bias: bool = False
    all_biases: bool = False  # every matrix has one
    sinks: bool = False  # every head has a number to attend to nothing
    expert_biases: bool = False  # of experts and their router
    norms: int = 2
    head_norms: bool = False  # queries and keys have norms of a head's size
    last_norm: int = 1
    embedding_norm: int = 0
    tied: bool = False  # unless the configuration says otherwise
    windows: bool = False  # `sliding_window` is used wherever it is given
    # What transformers takes where the configuration leaves it out; 0: what follows from other keys.
    heads: int = 0
    head_size: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    window: int = 0
    full_first: int = 0  # blocks before those with windows, where they are switched on


FAMILIES = {
    "llama": DecoderFamily(),
    "mistral": DecoderFamily(windows=True, kv_heads=8, window=4096),
    "mixtral": DecoderFamily(windows=True, kv_heads=8),
    "phi3": DecoderFamily(windows=True),
    "qwen2": DecoderFamily(qkv_bias=True, kv_heads=32, window=4096, full_first=28),
    "qwen2_moe": DecoderFamily(qkv_bias=True, kv_heads=16, window=4096, full_first=28),
    "qwen3": DecoderFamily(head_norms=True, head_size=128, kv_heads=32, window=4096, full_first=28),
    "qwen3_moe": DecoderFamily(head_norms=True, kv_heads=4, window=4096),
    "qwen3_vl_text": DecoderFamily(head_norms=True, head_size=128, kv_heads=32),
    "qwen3_vl_moe_text": DecoderFamily(head_norms=True, kv_heads=16, vocabulary=151_936),
    "gpt_oss": DecoderFamily(
        heads=64, head_size=64, kv_heads=8, window=128, qkvo_bias=True, sinks=True, expert_biases=True
    ),
    "gemma": DecoderFamily(tied=True, head_size=256, kv_heads=16),
    "gemma2": DecoderFamily(norms=4, tied=True, head_size=256, kv_heads=4, window=4096),
    "gemma3_text": DecoderFamily(
        norms=4, head_norms=True, tied=True, heads=8, head_size=256, kv_heads=4, vocabulary=262_208, window=4096
    ),
    "gpt2": DecoderFamily(gated=False, all_biases=True, norms=4, last_norm=2, tied=True),
    "bloom": DecoderFamily(gated=False, all_biases=True, norms=4, last_norm=2, embedding_norm=2, tied=True),
}
_ONLY_TEXT = ("what reads pictures or sound besides text_config is not counted: neither its weights nor its time",)
_ATTENTION = ("full_attention", "sliding_attention")
_OTHER_NAMES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "num_experts": ("num_local_experts",),
}


class Block(Struct, frozen=True, kw_only=True):
    """One block: numbers of weights, and how many positions its attention looks back (0: all of them).

    `weights` are used for every token; of `experts` with `expert_weights` each, `experts_used` are.
    """

    weights: int
    norm_weights: int
    window: int = 0
    experts: int = 0
    experts_used: int = 0
    expert_weights: int = 0
    bits: float = 0  # of `weights`, on average, where the model is quantised; 0: not told block by block
    expert_bits: float = 0

    @property
    def all_weights(self) -> int:
        return self.weights + self.norm_weights + self.experts * self.expert_weights

    def attended(self, new: int, past: int) -> int:
        """Pairs of a new position and one that it looks at, where `past` are there before.

        >>> Block(weights=0, norm_weights=0).attended(3, 0), Block(weights=0, norm_weights=0, window=2).attended(3, 0)
        (6, 5)
        """
        if not self.window or past + new <= self.window:
            return new * past + new * (new + 1) // 2
        rising = max(0, self.window - past)  # these see fewer than a whole window
        return rising * past + rising * (rising + 1) // 2 + (new - rising) * self.window

    def kept(self, context: int) -> int:
        """Positions whose keys and values are kept."""
        return min(context, self.window) if self.window else context


class LanguageModel(Struct, frozen=True, kw_only=True):
    """A decoder-only language model. Heads are those of queries; keys and values may have fewer."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    dtype: str
    blocks: tuple[Block, ...]
    embedding_weights: int
    head_weights: int  # the last norm and the logits' matrix, also where that is the embedding's
    tied: bool
    longest: int = 0  # positions the model was made for, 0 if it does not say
    weight_bits: float = 0  # of a block's weights, where the model is quantised
    cache_dtype: str = ""  # of keys and values, where the configuration says so
    notes: tuple[str, ...] = ()  # what of the configuration could not be read

    @property
    def layers(self) -> int:
        return len(self.blocks) + 2

    @property
    def layer_names(self) -> list[str]:
        return ["embedding", *(f"block {i + 1}" for i in range(len(self.blocks))), "head"]

    @property
    def layer_weights(self) -> list[int]:
        """Weights of each layer, tied ones in both."""
        return [self.embedding_weights, *(block.all_weights for block in self.blocks), self.head_weights]

    @property
    def weights(self) -> int:
        """Weights of the model, tied ones once."""
        return sum(self.layer_weights) - self.tied * self.vocabulary * self.hidden

    def kv_bytes(self, block: int, context: int, dtype: str = "") -> int:
        """What one request of so many positions keeps in a block: its keys and values."""
        positions = self.blocks[block].kept(context)
        return 2 * self.kv_heads * self.head_size * positions * DTYPE_BYTES[dtype or self.dtype]


def language_model(
    config: Source, *, name: str = "", dtype: str | None = None, weight_bits: float = 0
) -> LanguageModel:
    """The model of a Hugging Face config.json (or its folder, or what it holds), if it is of a type that is known.

    Of a model that takes more than text (`text_config`), it is the language model in it. `weight_bits` are those of its
    blocks' weights; 0: as the configuration says.

    >>> small = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...     "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "float16"}
    >>> model = language_model(small)
    >>> model.layers, model.weights, model.kv_bytes(0, context=10)
    (4, 86848, 1280)
    """
    if isinstance(config, str | Path) and Path(config).is_dir():
        config = Path(config) / "config.json"
    doc = Document.of(config, "config")
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected a model's configuration, found {type(doc.data).__name__}")
    given = _Given(doc, doc.data)
    kind = doc.data.get("model_type")
    if kind not in FAMILIES and isinstance(inner := doc.data.get("text_config"), dict):
        given, kind = _Given(doc, doc.data | inner, inside=("text_config",)), inner.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise doc.error(
            (*given.inside, "model_type"),
            f"{kind!r} is not a language model known here; known: {', '.join(FAMILIES)}",
        )
    quantised = Quantisation() if weight_bits else Quantisation.read(doc, given.data)
    made = _model(given, family, name or _name(doc), _dtype(given, dtype), quantised)
    return replace(made, weight_bits=weight_bits) if weight_bits else made


class _Given:
    """Numbers of a configuration, by the names they have in one family or another; `inside` is where they stand."""

    def __init__(self, doc: Document, data: Mapping[str, Any], inside: tuple[str, ...] = ()) -> None:
        self.doc = doc
        self.data = data
        self.inside = inside

    def number(self, key: str, default: int | None = None, least: int = 1) -> int:
        for name in (key, *_OTHER_NAMES.get(key, ())):
            value = self.data.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
                    raise self.doc.error(
                        (*self.inside, name), f"expected a whole number from {least} on, found {value!r}"
                    )
                return value
        if default is None:
            raise self.doc.error(self.inside, f"{key} is missing")
        return default

    def left_out(self, key: str, default: int) -> int:
        """A family's default, for a key that is not there; null says that there is no such number."""
        return 0 if key in self.data else default

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.doc.error((*self.inside, key), f"expected true or false, found {value!r}")
        return default if value is None else value


def _name(doc: Document) -> str:
    named = doc.data.get("_name_or_path")
    if isinstance(named, str) and named:
        return named
    return doc.path.parent.name if doc.path.name == "config.json" and doc.path.parent.name else doc.path.stem


def _dtype(given: _Given, asked: str | None) -> str:
    """The dtype that was asked for, or the configuration's, or float16."""
    stated = given.data.get("dtype") or given.data.get("torch_dtype") or "float16"
    name = str(asked or stated)
    full = name if name.startswith("torch.") else f"torch.{name}"
    if full not in DTYPE_BYTES:
        raise InputError(f"unsupported dtype {name!r}{did_you_mean(full, DTYPE_BYTES)}")
    return full


def _model(given: _Given, family: DecoderFamily, name: str, dtype: str, quantised: Quantisation) -> LanguageModel:
    hidden, count = given.number("hidden_size"), given.number("num_hidden_layers")
    heads = given.number("num_attention_heads", family.heads or None)
    kv_heads = given.number("num_key_value_heads", given.left_out("num_key_value_heads", family.kv_heads) or heads)
    usual = given.left_out("head_dim", family.head_size)
    if given.data.get("head_dim") is None and not usual and hidden % heads:
        raise given.doc.error((), f"num_attention_heads {heads} does not divide hidden_size {hidden}")
    head_size = given.number("head_dim", usual or hidden // heads)
    if heads % kv_heads:
        raise given.doc.error((), f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    vocabulary = given.number("vocab_size", family.vocabulary or None)
    positions = 0
    if given.data["model_type"] == "gpt2":
        positions = given.number("n_positions", 1024)
    windows = _windows(given, family, count)
    sizes = hidden, heads, kv_heads, head_size
    blocks = tuple(
        _quantised(_block(given, family, i, sizes, windows[i]), i, sizes, quantised, DTYPE_BITS[dtype])
        for i in range(count)
    )
    return LanguageModel(
        name=name,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=vocabulary,
        dtype=dtype,
        blocks=blocks,
        embedding_weights=(vocabulary + positions + family.embedding_norm) * hidden,
        head_weights=(vocabulary + family.last_norm) * hidden,
        tied=given.flag("tie_word_embeddings", family.tied),
        longest=positions or given.number("max_position_embeddings", 0, least=0),
        weight_bits=quantised.bits,
        cache_dtype=quantised.cache_dtype,
        notes=(*(_ONLY_TEXT if given.inside else ()), *quantised.unknown(count)),
    )


def _quantised(block: Block, i: int, sizes: tuple[int, int, int, int], by: Quantisation, full: int) -> Block:
    """The block with the bits of its weights: each projection by itself, what is beside them as the MLP."""
    if not by.given:
        return block
    hidden, heads, kv_heads, head_size = sizes
    at, query, key = f"layers.{i}", hidden * heads * head_size, hidden * kv_heads * head_size
    parts = {"q_proj": query, "k_proj": key, "v_proj": key, "o_proj": query}
    bits = {name: by.module_bits(f"{at}.self_attn.{name}", *_fused(at, name)) or full for name in parts}
    if block.experts:
        bits["router"] = by.module_bits(f"{at}.mlp.gate", f"{at}.mlp.router", f"{at}.block_sparse_moe.gate") or full
        parts["router"] = block.experts * hidden
        rest = by.module_bits(f"{at}.mlp.shared_expert", f"{at}.mlp.shared_experts") or full
    else:
        names = ("gate_proj", "up_proj", "down_proj")
        rest = sum(by.module_bits(f"{at}.mlp.{name}", *_fused(at, name)) or full for name in names) / 3
    told = sum(bits[name] * count for name, count in parts.items()) + rest * (block.weights - sum(parts.values()))
    experts = by.module_bits(f"{at}.mlp.experts", f"{at}.block_sparse_moe.experts") or full
    return replace(block, bits=told / block.weights, expert_bits=experts if block.experts else 0)


def _fused(at: str, name: str) -> tuple[str, ...]:
    """The module that some files have in the place of several projections."""
    together = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}
    return tuple(f"{at}.{module}" for module, names in together.items() if name in names)


def _windows(given: _Given, family: DecoderFamily, count: int) -> list[int]:
    """How far each block looks back: by its kind where blocks are named one by one, else alike."""
    window = given.number("sliding_window", given.left_out("sliding_window", family.window), least=0)
    kinds = given.data.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count:
            raise given.doc.error(("layer_types",), f"expected {count} kinds of attention")
        for i, kind in enumerate(kinds):
            if kind not in _ATTENTION:
                raise given.doc.error(("layer_types", i), f"expected {' or '.join(_ATTENTION)}, found {kind!r}")
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    if given.data["model_type"] == "gpt_oss":
        return [0 if i % 2 else window for i in range(count)]
    if given.data["model_type"] == "gemma2":
        return [0 if i % 2 else window for i in range(count)]
    if given.data["model_type"] == "gemma3_text":
        pattern = given.number("sliding_window_pattern", 6)
        return [window if (i + 1) % pattern else 0 for i in range(count)]
    if given.flag("use_sliding_window", family.windows):
        first = 0 if family.windows else given.number("max_window_layers", family.full_first, least=0)
        return [window if i >= first else 0 for i in range(count)]
    return [0] * count


def _block(given: _Given, family: DecoderFamily, i: int, sizes: tuple[int, int, int, int], window: int) -> Block:
    hidden, heads, kv_heads, head_size = sizes
    across, back = (heads + 2 * kv_heads) * head_size, heads * head_size
    attention = hidden * across + back * hidden
    if family.all_biases or given.flag("attention_bias", family.qkvo_bias):
        attention += across + hidden
    elif family.qkv_bias:
        attention += across
    attention += heads * family.sinks
    norms = family.norms * hidden + 2 * head_size * family.head_norms
    moe = _experts(given, i)
    if moe is None:
        wide = given.number("intermediate_size", None if family.gated else 4 * hidden)
        biases = wide + hidden if not family.gated else (2 * wide + hidden) * given.flag("mlp_bias", False)
        return Block(
            weights=attention + (3 if family.gated else 2) * hidden * wide + biases, norm_weights=norms, window=window
        )
    count, used, inside = moe
    alone = None if given.data["model_type"] == "qwen2_moe" else 0
    shared = given.number("shared_expert_intermediate_size", alone, least=0)
    always = count * (hidden + family.expert_biases) + (3 * hidden * shared + hidden if shared else 0)
    return Block(
        weights=attention + always,
        norm_weights=norms,
        window=window,
        experts=count,
        experts_used=used,
        expert_weights=3 * hidden * inside + (2 * inside + hidden) * family.expert_biases,
    )


def _experts(given: _Given, i: int) -> tuple[int, int, int] | None:
    """How many experts a block has, how many a token uses, and how wide one is; None for a dense block."""
    if not given.data["model_type"].endswith(("moe", "moe_text", "mixtral", "gpt_oss")):
        return None
    count = given.number("num_experts", least=0)
    if not count:
        return None
    dense = given.data.get("mlp_only_layers") or []
    if i in dense or (i + 1) % given.number("decoder_sparse_step", 1):
        return None
    used = given.number("num_experts_per_tok", 2 if given.data["model_type"] == "mixtral" else None)
    if used > count:
        raise given.doc.error(("num_experts_per_tok",), f"expected at most {count} experts, found {used}")
    return count, used, given.number("moe_intermediate_size", given.number("intermediate_size"))
