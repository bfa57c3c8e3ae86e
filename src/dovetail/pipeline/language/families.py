"""What the configurations of language models do not say: the families that are known, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace


class DecoderFamily(Struct, frozen=True, kw_only=True):
    """What the configuration of a model type does not say. Norms are counted in vectors of the hidden size."""

    gated: bool = True  # three matrices in an MLP, or two with biases
    qkv_bias: bool = False
    attention_bias: bool = False  # where the configuration has no such key
    output_bias: bool = True  # where attention has biases, its output has one too
    all_biases: bool = False  # every matrix has one
    sinks: bool = False  # every head has a number to attend to nothing
    norms: int = 2
    head_norms: bool = False  # queries and keys have norms of a head's size
    head_norms_key: str = ""  # or if this key says so
    wide_norms: bool = False  # or of the size of all heads
    last_norm: int = 1
    embedding_norm: int = 0
    tied: bool = False  # unless the configuration says otherwise

    # Attention: which blocks look back how far, and what they keep.
    windows: bool = False  # `sliding_window` is used wherever it is given
    full_every: int = 0  # every so many blocks one looks at all positions
    full_every_key: str = ""
    others: str = "sliding_attention"  # what is between those
    last_full: bool = False
    latent: bool = False  # keys and values are kept as one short vector (MLA)
    indexed: bool = False  # an index chooses the positions that are attended to
    gated_query: bool = False  # the query's matrix has a gate beside it
    other_when_full: bool = False  # blocks that look at all positions have heads of their own

    # Experts.
    experts: bool = False
    experts_used: int = 0
    expert_biases: bool = False  # of experts and their router
    shared: Literal["", "gated", "counted", "one"] = ""  # how an expert that every token uses is told
    first_dense: int = 0  # blocks without experts at the beginning
    dense_beside: bool = False  # experts are beside an MLP, not in its place
    dense_width: str = "intermediate_size"

    # What transformers takes where the configuration leaves it out; 0: what follows from other keys.
    heads: int = 0
    head_size: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    window: int = 0
    full_first: int = 0  # blocks before those with windows, where they are switched on


_LATENT = DecoderFamily(latent=True, experts=True, shared="counted")
_SPARSE = replace(_LATENT, indexed=True, first_dense=3)
_QWEN_LINEAR = DecoderFamily(
    head_norms=True,
    gated_query=True,
    full_every=4,
    full_every_key="full_attention_interval",
    others="linear_attention",
    head_size=256,
    kv_heads=2,
    experts=True,
    shared="gated",
)

FAMILIES = {
    "llama": DecoderFamily(),
    "mistral": DecoderFamily(windows=True, kv_heads=8, window=4096),
    "mixtral": DecoderFamily(windows=True, kv_heads=8, experts=True, experts_used=2),
    "phi3": DecoderFamily(windows=True),
    "qwen2": DecoderFamily(qkv_bias=True, kv_heads=32, window=4096, full_first=28),
    "qwen2_moe": DecoderFamily(qkv_bias=True, kv_heads=16, window=4096, full_first=28, experts=True, shared="gated"),
    "qwen3": DecoderFamily(head_norms=True, head_size=128, kv_heads=32, window=4096, full_first=28),
    "qwen3_moe": DecoderFamily(head_norms=True, kv_heads=4, window=4096, experts=True),
    "qwen3_vl_text": DecoderFamily(head_norms=True, head_size=128, kv_heads=32),
    "qwen3_vl_moe_text": DecoderFamily(head_norms=True, kv_heads=16, vocabulary=151_936, experts=True),
    "qwen3_next": _QWEN_LINEAR,
    "qwen3_5_text": replace(_QWEN_LINEAR, experts=False, kv_heads=4, vocabulary=248_320),
    "qwen3_5_moe_text": replace(_QWEN_LINEAR, vocabulary=248_320),
    "gpt_oss": DecoderFamily(
        heads=64,
        head_size=64,
        kv_heads=8,
        window=128,
        full_every=2,
        attention_bias=True,
        sinks=True,
        experts=True,
        expert_biases=True,
    ),
    "gemma": DecoderFamily(tied=True, head_size=256, kv_heads=16),
    "gemma2": DecoderFamily(norms=4, tied=True, head_size=256, kv_heads=4, window=4096, full_every=2),
    "gemma3_text": DecoderFamily(
        norms=4,
        head_norms=True,
        tied=True,
        heads=8,
        head_size=256,
        kv_heads=4,
        vocabulary=262_208,
        window=4096,
        full_every=6,
        full_every_key="sliding_window_pattern",
    ),
    "gemma4_text": DecoderFamily(
        norms=4,
        head_norms=True,
        tied=True,
        heads=8,
        head_size=256,
        kv_heads=4,
        vocabulary=262_144,
        window=512,
        full_every=6,
        last_full=True,
        other_when_full=True,
        experts=True,
        dense_beside=True,
    ),
    "gpt2": DecoderFamily(gated=False, all_biases=True, norms=4, last_norm=2, tied=True),
    "bloom": DecoderFamily(gated=False, all_biases=True, norms=4, last_norm=2, embedding_norm=2, tied=True),
    "glm4": DecoderFamily(norms=4, attention_bias=True, output_bias=False, head_size=128, kv_heads=2),
    "glm4_moe": DecoderFamily(
        output_bias=False, head_norms_key="use_qk_norm", kv_heads=8, experts=True, shared="counted", first_dense=1
    ),
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _SPARSE,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _SPARSE,
    "kimi_k2": _LATENT,
    "llama4_text": DecoderFamily(
        kv_heads=8,
        head_size=128,
        vocabulary=202_048,
        full_every=4,
        full_every_key="no_rope_layer_interval",
        others="chunked_attention",
        experts=True,
        shared="one",
        dense_width="intermediate_size_mlp",
    ),
    "minimax_m2": DecoderFamily(kv_heads=8, wide_norms=True, experts=True),
}
