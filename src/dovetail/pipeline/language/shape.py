"""The shape of a language model, from its public config.json: weights of every layer and what a token keeps there.

Layers are counted as `hf:` cuts them: the embedding, every block, and the head (the last norm and the logits).
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.pipeline.inputs.problem import DTYPE_BYTES
from dovetail.pipeline.language.blocks import Block, blocks_of, groups, heads_of
from dovetail.pipeline.language.config import ModelConfig
from dovetail.pipeline.language.families import FAMILIES, DecoderFamily
from dovetail.pipeline.language.quantised import Quantisation

DTYPE_BITS = {name: 8 * size for name, size in DTYPE_BYTES.items()}


_ONLY_TEXT = ("what reads pictures or sound besides text_config is not counted: neither its weights nor its time",)


class LanguageModel(Struct, frozen=True, kw_only=True):
    """A decoder-only language model. Heads are those of queries; keys and values may have fewer: `kv_heads` is into how
    many parts they can be shared out."""

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
        """What one request of so many positions keeps in a block: its keys and values, or what stands for them."""
        return self.blocks[block].kept_bytes(context, dtype or self.dtype)


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
    given = ModelConfig(doc, doc.data)
    kind = doc.data.get("model_type")
    if kind not in FAMILIES and isinstance(inner := doc.data.get("text_config"), dict):
        given, kind = ModelConfig(doc, doc.data | inner, inside=("text_config",)), inner.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise doc.error(
            (*given.inside, "model_type"),
            f"{kind!r} is not a language model known here; known: {', '.join(FAMILIES)}",
        )
    quantised = Quantisation.read(doc, given.data, weights=not weight_bits)
    made = _model(given, family, name or _name(doc), _dtype(given, dtype), quantised)
    return replace(made, weight_bits=weight_bits) if weight_bits else made


def _name(doc: Document) -> str:
    named = doc.data.get("_name_or_path")
    if isinstance(named, str) and named:
        return named
    return doc.path.parent.name if doc.path.name == "config.json" and doc.path.parent.name else doc.path.stem


def _dtype(given: ModelConfig, asked: str | None) -> str:
    """The dtype that was asked for, or the configuration's, or float16."""
    stated = given.data.get("dtype") or given.data.get("torch_dtype") or "float16"
    name = str(asked or stated)
    full = name if name.startswith("torch.") else f"torch.{name}"
    if full not in DTYPE_BYTES:
        raise InputError(f"unsupported dtype {name!r}{did_you_mean(full, DTYPE_BYTES)}")
    return full


def _model(given: ModelConfig, family: DecoderFamily, name: str, dtype: str, quantised: Quantisation) -> LanguageModel:
    heads = heads_of(given, family)
    vocabulary = given.number("vocab_size", family.vocabulary or None)
    positions = given.number("n_positions", 1024) if given.data["model_type"] == "gpt2" else 0
    blocks = blocks_of(given, family, heads, quantised, DTYPE_BITS[dtype])
    return LanguageModel(
        name=name,
        hidden=heads.hidden,
        heads=heads.queries,
        kv_heads=groups(given, family, heads),
        head_size=heads.size,
        vocabulary=vocabulary,
        dtype=dtype,
        blocks=blocks,
        embedding_weights=(vocabulary + positions + family.embedding_norm) * heads.hidden,
        head_weights=(vocabulary + family.last_norm) * heads.hidden,
        tied=given.flag("tie_word_embeddings", family.tied),
        longest=positions or given.number("max_position_embeddings", 0, least=0),
        weight_bits=quantised.bits,
        cache_dtype=quantised.cache_dtype,
        notes=(*(_ONLY_TEXT if given.inside else ()), *quantised.unknown(len(blocks))),
    )
