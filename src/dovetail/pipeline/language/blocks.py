"""Blocks of a language model from its configuration: weights by module, what a position keeps, what attention costs."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from msgspec import Struct

from dovetail.pipeline.inputs.problem import DTYPE_BYTES
from dovetail.pipeline.language.config import ModelConfig
from dovetail.pipeline.language.families import DecoderFamily
from dovetail.pipeline.language.quantised import Quantisation

_FULL, _SLIDING, _CHUNKED, _LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
_INDEXED = ("indexed_attention", "deepseek_sparse_attention")


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
    kept_values: int = 0  # numbers that a position keeps
    index_values: int = 0  # and those by which positions are chosen
    state_values: int = 0  # numbers that a request keeps, however long it is
    state_bytes: int = 0  # the same where they have a dtype of their own
    pair_flops: int = 0  # for a position and one that it looks at
    cached_pair_flops: int = 0  # where those before are read from what is kept
    index_flops: int = 0  # for a pair, to choose those that are looked at
    chosen: int = 0  # at most so many are looked at, wherever they are; 0: all
    state_flops: int = 0  # for a position, to bring the state up to date

    @property
    def all_weights(self) -> int:
        return self.weights + self.norm_weights + self.experts * self.expert_weights

    def attended(self, new: int, past: int) -> int:
        """Pairs of a new position and one that it looks at, where `past` are there before.

        >>> Block(weights=0, norm_weights=0).attended(3, 0), Block(weights=0, norm_weights=0, window=2).attended(3, 0)
        (6, 5)
        """
        return _pairs(new, past, self.window or self.chosen)

    def attention_flops(self, new: int, past: int) -> float:
        """Operations of attention for new positions of a request, besides its weights'."""
        each = self.cached_pair_flops if past else self.pair_flops
        chosen = self.index_flops * _pairs(new, past, 0) if self.index_flops else 0
        return float(each * self.attended(new, past) + chosen + self.state_flops * new)

    def kept(self, context: int) -> int:
        """Positions whose keys and values are kept."""
        return min(context, self.window) if self.window else context

    def kept_bytes(self, context: int, dtype: str) -> int:
        """What one request of so many positions keeps."""
        values = (self.kept_values + self.index_values) * self.kept(context) + self.state_values
        return values * DTYPE_BYTES[dtype] + self.state_bytes

    def read_bytes(self, context: int, dtype: str) -> int:
        """What of it is read for the next position."""
        unread = self.kept_values * max(0, context - self.chosen) if self.chosen else 0
        return self.kept_bytes(context, dtype) - unread * DTYPE_BYTES[dtype]


def _pairs(new: int, past: int, most: int) -> int:
    if not most or past + new <= most:
        return new * past + new * (new + 1) // 2
    rising = max(0, most - past)  # these see fewer than that
    return rising * past + rising * (rising + 1) // 2 + (new - rising) * most


class Heads(NamedTuple):
    """The hidden size; heads of queries, and of keys and values; and the size of one."""

    hidden: int
    queries: int
    kv: int
    size: int


class _Part(NamedTuple):
    """Weights of a module of a block, by the names that it may have."""

    weights: int
    names: tuple[str, ...]


class _Attention(Struct):
    parts: list[_Part]
    norms: int = 0
    kept: int = 0
    index: int = 0
    pair_flops: int = 0
    cached_pair_flops: int = 0
    index_flops: int = 0
    chosen: int = 0
    state: int = 0
    state_bytes: int = 0
    state_flops: int = 0


class _Mlp(Struct):
    parts: list[_Part]
    norms: int = 0
    experts: int = 0
    used: int = 0
    expert_weights: int = 0


def heads_of(given: ModelConfig, family: DecoderFamily) -> Heads:
    hidden, heads = given.number("hidden_size"), given.number("num_attention_heads", family.heads or None)
    if family.latent:  # one vector stands for the keys and values of all heads
        return Heads(hidden, heads, 1, given.number("kv_lora_rank") + given.number("qk_rope_head_dim"))
    kv_heads = given.number("num_key_value_heads", given.left_out("num_key_value_heads", family.kv_heads) or heads)
    usual = given.left_out("head_dim", family.head_size)
    if given.data.get("head_dim") is None and not usual and hidden % heads:
        raise given.doc.error((), f"num_attention_heads {heads} does not divide hidden_size {hidden}")
    if heads % kv_heads:
        raise given.doc.error((), f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    return Heads(hidden, heads, kv_heads, given.number("head_dim", usual or hidden // heads))


def groups(given: ModelConfig, family: DecoderFamily, heads: Heads) -> int:
    """Into how many parts keys and values can be shared out, of all kinds of blocks."""
    found = heads.kv
    if family.other_when_full:
        found = gcd(found, *(_when_full(given, heads, i).kv for i in range(given.number("num_hidden_layers"))))
    if family.others == _LINEAR:
        found = gcd(found, given.number("linear_num_key_heads"))
    return found


def blocks_of(
    given: ModelConfig, family: DecoderFamily, heads: Heads, by: Quantisation, full_bits: int
) -> tuple[Block, ...]:
    """All blocks; where weights are quantised, with their bits."""
    count = given.number("num_hidden_layers")
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if given.number(key, 0, least=0):
            raise given.doc.error((*given.inside, key), "blocks that pass on more than their output are not known here")
    return tuple(
        _block(given, family, heads, i, count, window, kind, by, full_bits)
        for i, (kind, window) in enumerate(_kinds(given, family, count))
    )


def _block(
    given: ModelConfig,
    family: DecoderFamily,
    heads: Heads,
    i: int,
    count: int,
    window: int,
    kind: str,
    by: Quantisation,
    full_bits: int,
) -> Block:
    if kind == _LINEAR:
        attention = _linear(given, heads)
    elif family.latent:
        attention = _latent(given, family, heads, i, count)
    else:
        attention = _plain(given, family, heads, kind, i)
    mlp = _mlp(given, family, heads.hidden, i, count)
    parts = [*attention.parts, *mlp.parts]
    weights = sum(part.weights for part in parts)
    bits = expert_bits = 0.0
    if by.given:
        at = f"layers.{i}"
        told = sum(part.weights * (by.module_bits(*(f"{at}.{n}" for n in part.names)) or full_bits) for part in parts)
        bits = told / weights
        if mlp.experts:
            within = ("",) if family.dense_beside else ("mlp.", "block_sparse_moe.")
            expert_bits = by.module_bits(*(f"{at}.{module}experts" for module in within)) or full_bits
    return Block(
        weights=weights,
        norm_weights=family.norms * heads.hidden + attention.norms + mlp.norms,
        window=window,
        experts=mlp.experts,
        experts_used=mlp.used,
        expert_weights=mlp.expert_weights,
        bits=bits,
        expert_bits=expert_bits,
        kept_values=attention.kept,
        index_values=attention.index,
        state_values=attention.state,
        state_bytes=attention.state_bytes,
        pair_flops=attention.pair_flops,
        cached_pair_flops=attention.cached_pair_flops or attention.pair_flops,
        index_flops=attention.index_flops,
        chosen=attention.chosen,
        state_flops=attention.state_flops,
    )


def _kinds(given: ModelConfig, family: DecoderFamily, count: int) -> list[tuple[str, int]]:
    """What attention each block has and how far it looks back: block by block where they are named, else by family."""
    window = given.number("sliding_window", given.left_out("sliding_window", family.window), least=0)
    reach = {_SLIDING: window}
    if family.others == _CHUNKED:  # a position sees those of its chunk: at most as many as in a window of that size
        reach[_CHUNKED] = given.number("attention_chunk_size", 8192)
    known = _INDEXED if family.indexed else tuple(dict.fromkeys((_FULL, _SLIDING, family.others)))
    kinds = given.kinds("layer_types", count, known, "attention")
    roped = given.numbers("no_rope_layers") if family.others == _CHUNKED else None
    if kinds is None and roped and len(roped) >= count:
        kinds = [_CHUNKED if roped[i] else _FULL for i in range(count)]
    if kinds is None and family.full_every:
        every = given.number(family.full_every_key or "", family.full_every)
        kinds = [family.others if (i + 1) % every else _FULL for i in range(count)]
    if kinds is not None:
        if family.last_full:
            kinds = [*kinds[:-1], _FULL]
        return [(kind, reach.get(kind, 0)) for kind in kinds]
    if given.flag("use_sliding_window", family.windows):
        first = 0 if family.windows else given.number("max_window_layers", family.full_first, least=0)
        return [(_SLIDING, window) if i >= first else (_FULL, 0) for i in range(count)]
    return [(_FULL, 0)] * count


def _when_full(given: ModelConfig, heads: Heads, i: int) -> Heads:
    """The heads of a block that looks at all positions, where those have their own: block by block, or all alike."""
    each = given.data.get("per_layer_config")
    if isinstance(each, dict):
        own = each.get(str(i))
        block = ModelConfig(given.doc, own if isinstance(own, dict) else {}, (*given.inside, "per_layer_config"))
        return heads._replace(
            size=block.number("head_dim", heads.size), kv=block.number("num_key_value_heads", heads.kv)
        )
    same = given.flag("attention_k_eq_v", False)
    kv = given.number("num_global_key_value_heads", heads.kv) if same else heads.kv
    return heads._replace(size=given.number("global_head_dim", 512), kv=kv)


def _plain(given: ModelConfig, family: DecoderFamily, heads: Heads, kind: str, i: int) -> _Attention:
    one_matrix = False
    if family.other_when_full and kind == _FULL:
        heads, one_matrix = _when_full(given, heads, i), given.flag("attention_k_eq_v", False)
    query, key = heads.queries * heads.size, heads.kv * heads.size
    biased = family.all_biases or given.flag("attention_bias", family.attention_bias)
    out_bias = heads.hidden if biased and family.output_bias else 0
    in_rows = heads.hidden + (biased or family.qkv_bias)
    parts = [
        _Part(query * in_rows * (1 + family.gated_query) + heads.queries * family.sinks, _named("q_proj")),
        _Part(key * in_rows, _named("k_proj")),
        _Part(0 if one_matrix else key * in_rows, _named("v_proj")),
        _Part(query * heads.hidden + out_bias, ("self_attn.o_proj",)),
    ]
    norms = 0
    if family.head_norms or (family.head_norms_key and given.flag(family.head_norms_key, False)):
        norms = 2 * heads.size
    elif family.wide_norms:
        norms = query + key
    return _Attention(parts, norms, kept=2 * key, pair_flops=4 * query)


def _latent(given: ModelConfig, family: DecoderFamily, heads: Heads, i: int, count: int) -> _Attention:
    """Keys and values as one short vector per position and a part with its place, from which heads get theirs. Over
    what is kept, queries are brought to that vector instead, which is what engines do."""
    hidden, rank, place = heads.hidden, given.number("kv_lora_rank"), given.number("qk_rope_head_dim")
    bare, value = given.number("qk_nope_head_dim"), given.number("v_head_dim")
    biased = given.flag("attention_bias", False)
    query = heads.queries * (bare + place)
    if "q_lora_rank" not in given.data:
        raise given.doc.error(given.inside, "q_lora_rank is missing")
    short = given.number("q_lora_rank", 0)
    queries = [_Part(hidden * query, ("self_attn.q_proj",))]
    if short:
        queries = [
            _Part((hidden + biased) * short, ("self_attn.q_a_proj",)),
            _Part(short * query, ("self_attn.q_b_proj",)),
        ]
    made = _Attention(
        [
            *queries,
            _Part((hidden + biased) * (rank + place), ("self_attn.kv_a_proj_with_mqa",)),
            _Part(rank * heads.queries * (bare + value), ("self_attn.kv_b_proj",)),
            _Part((heads.queries * value + biased) * hidden, ("self_attn.o_proj",)),
        ],
        norms=short + rank,
        kept=rank + place,
        pair_flops=2 * heads.queries * (bare + place + value),
        cached_pair_flops=2 * heads.queries * (2 * rank + place),
    )
    if family.indexed:
        made.chosen = given.number("index_topk")
        if _own_index(given, i, count):
            index, size = given.number("index_n_heads"), given.number("index_head_dim")
            made.parts.append(_Part(short * index * size, ("self_attn.indexer.wq_b",)))
            made.parts.append(_Part(hidden * size, ("self_attn.indexer.wk",)))
            made.parts.append(_Part(hidden * index, ("self_attn.indexer.weights_proj",)))
            made.norms += 2 * size
            made.index = size
            made.index_flops = 2 * index * size
    return made


def _own_index(given: ModelConfig, i: int, count: int) -> bool:
    """Whether a block chooses positions itself, or looks at those that one before it chose."""
    kinds = given.kinds("indexer_types", count, ("full", "shared"), "index")
    if kinds is not None:
        return kinds[i] == "full"
    offset = given.number("index_skip_topk_offset", 2, least=0)
    return max(i - offset + 1, 0) % given.number("index_topk_freq", 1) == 0


def _linear(given: ModelConfig, heads: Heads) -> _Attention:
    """A state that every position changes, in the place of keys and values (gated delta rule)."""
    keys, values = given.number("linear_num_key_heads"), given.number("linear_num_value_heads")
    key, value = given.number("linear_key_head_dim"), given.number("linear_value_head_dim")
    hidden, mixed, reach = heads.hidden, 2 * keys * key + values * value, given.number("linear_conv_kernel_dim")
    at = "linear_attn"
    state = values * key * value
    whole = given.data.get("mamba_ssm_dtype") in ("float32", "torch.float32")
    return _Attention(
        [
            _Part(hidden * mixed, (f"{at}.in_proj_qkv", f"{at}.in_proj_qkvz")),
            _Part(hidden * values * value, (f"{at}.in_proj_z", f"{at}.in_proj_qkvz")),
            _Part(hidden * values, (f"{at}.in_proj_a", f"{at}.in_proj_ba")),
            _Part(hidden * values, (f"{at}.in_proj_b", f"{at}.in_proj_ba")),
            _Part(values * value * hidden, (f"{at}.out_proj",)),
            _Part(mixed * reach, (f"{at}.conv1d",)),
        ],
        norms=value + 2 * values,
        state=mixed * reach + (0 if whole else state),
        state_bytes=4 * state if whole else 0,
        state_flops=8 * state,  # it fades, is read with the key, changed, and read with the query
    )


def _mlp(given: ModelConfig, family: DecoderFamily, hidden: int, i: int, count: int) -> _Mlp:
    moe = _experts(given, family, i, count)
    dense = [] if moe and not family.dense_beside else _dense(given, family, hidden)
    if moe is None:
        return _Mlp(dense)
    number, used, inside = moe
    names = ("router.proj",) if family.dense_beside else ("mlp.gate", "mlp.router", "block_sparse_moe.gate")
    router = _Part(number * (hidden + family.expert_biases), names)
    shared = 0
    if family.shared == "counted":
        shared = given.number("n_shared_experts", 0, least=0) * inside
    elif family.shared:
        shared = given.number("shared_expert_intermediate_size", least=0) if family.shared == "gated" else inside
    always = [_Part(3 * hidden * shared, ("mlp.shared_expert", "mlp.shared_experts"))]
    if shared and family.shared == "gated":
        always.append(_Part(hidden, ("mlp.shared_expert_gate",)))
    return _Mlp(
        [*dense, router, *always],
        norms=(4 * hidden + number) * family.dense_beside,  # three norms and two scales of the router
        experts=number,
        used=used,
        expert_weights=3 * hidden * inside + (2 * inside + hidden) * family.expert_biases,
    )


def _dense(given: ModelConfig, family: DecoderFamily, hidden: int) -> list[_Part]:
    wide = given.number(family.dense_width, None if family.gated else 4 * hidden)
    if not family.gated:
        return [_Part(2 * hidden * wide + wide + hidden, ("mlp",))]
    biased = given.flag("mlp_bias", False)
    return [
        _Part((hidden + biased) * wide, ("mlp.gate_proj", "mlp.gate_up_proj")),
        _Part((hidden + biased) * wide, ("mlp.up_proj", "mlp.gate_up_proj")),
        _Part((wide + biased) * hidden, ("mlp.down_proj",)),
    ]


def _named(projection: str) -> tuple[str, str]:
    """A projection of attention, and the module that some files have in the place of three."""
    return f"self_attn.{projection}", "self_attn.qkv_proj"


def _experts(given: ModelConfig, family: DecoderFamily, i: int, count: int) -> tuple[int, int, int] | None:
    """How many experts a block has, how many a token uses, and how wide one is; None for a dense block."""
    if not family.experts or (family.dense_beside and not given.flag("enable_moe_block", False)):
        return None
    number = given.number("num_experts", least=0)
    if not number or not _sparse(given, family, i, count):
        return None
    used = given.number("num_experts_per_tok", family.experts_used or None)
    if used > number:
        raise given.doc.error(("num_experts_per_tok",), f"expected at most {number} experts, found {used}")
    inside = given.data.get("moe_intermediate_size")
    return number, used, given.number("intermediate_size" if inside is None else "moe_intermediate_size")


def _sparse(given: ModelConfig, family: DecoderFamily, i: int, count: int) -> bool:
    """Whether a block has experts: by a list, by every so many, or behind the first ones."""
    kinds = given.kinds("mlp_layer_types", count, ("dense", "sparse"), "MLP")
    if kinds is not None:
        return kinds[i] == "sparse"
    listed = given.numbers("moe_layers")
    if listed is not None:
        return i in listed
    step = given.number("decoder_sparse_step", given.number("interleave_moe_layer_step", 1))
    first = given.number("first_k_dense_replace", family.first_dense, least=0)
    return i >= first and i not in (given.numbers("mlp_only_layers") or ()) and (i + 1) % step == 0
