"""What a layer of a language model costs on a device or a group of devices: prefill and decode by the same formula.

A step handles `new` positions of each of `sequences` requests that have `past` positions behind them. It takes as long
as the slower of arithmetic and memory at the rates that the device reaches, and a fixed time. In a tensor-parallel
group every device has its share of the heads, the MLP and the vocabulary, and sums go around in a ring.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.problem import DTYPE_BYTES
from dovetail.pipeline.language.blocks import Block
from dovetail.pipeline.language.shape import DTYPE_BITS, LanguageModel


class Step(Struct, frozen=True):
    """New positions of each of several sequences; a prefill has nothing behind it, a decode one new position."""

    new: int
    past: int
    sequences: int

    @property
    def tokens(self) -> int:
        return self.new * self.sequences


class Reached(Struct, frozen=True, kw_only=True):
    """The rates that a device reaches, and what a layer takes besides."""

    flops_s: float
    bytes_s: float
    layer_s: float = 0.0


class Ring(Struct, frozen=True):
    """Devices of a group, each with a link to the next: bytes per second, and seconds for the first of them.

    >>> Ring(1, 100.0, 1.0).sum_s(10.0), Ring(4, 100.0, 1.0).sum_s(200.0), Ring(4, 100.0, 1.0).gather_s(200.0)
    (0.0, 9.0, 4.5)
    """

    width: int
    bytes_s: float
    latency_s: float = 0.0

    def sum_s(self, size: float) -> float:
        """Sum up so many bytes of each: every part goes around twice, from neighbour to neighbour."""
        if self.width == 1:
            return 0.0
        if not self.bytes_s:
            return inf
        return 2 * (self.width - 1) * (size / self.width / self.bytes_s + self.latency_s)

    def gather_s(self, size: float) -> float:
        """Bring the parts of so many bytes together: once around."""
        return self.sum_s(size) / 2


ALONE = Ring(1, inf)


class Precision(Struct, frozen=True, kw_only=True):
    """Bits of a block's weight (0: of the dtype) and the dtype of keys and values ("": the model's). Embedding and
    head are in the model's dtype: what quantises models leaves them so."""

    weight_bits: float = 0
    cache_dtype: str = ""

    def block_bytes(self, model: LanguageModel, block: Block, experts: float, norms: int = 0) -> float:
        """Of the weights that every token uses, of so many experts, and of norms."""
        bits = self.weight_bits or DTYPE_BITS[model.dtype]
        always = (block.weights + norms) * (block.bits or bits)
        return (always + experts * block.expert_weights * (block.expert_bits or bits)) / 8


class Work(Struct, frozen=True):
    """What one device of a group does for a layer: operations, bytes it reads and writes, and what the group sums up or
    brings together."""

    flops: float
    moved: float
    summed: tuple[float, ...] = ()
    gathered: float = 0.0

    def seconds(self, device: Reached) -> float:
        """Without what the group exchanges."""
        return max(self.flops / device.flops_s, self.moved / device.bytes_s) + device.layer_s

    def exchange_s(self, ring: Ring) -> float:
        return sum(map(ring.sum_s, self.summed)) + (ring.gather_s(self.gathered) if self.gathered else 0.0)


def check_width(model: LanguageModel, width: int) -> None:
    """A group shares out whole heads, of queries and of keys and values."""
    if width < 1 or model.kv_heads % width:
        raise InputError(
            f"--tensor-parallel {width}: expected a divisor of the {model.kv_heads} heads that have keys and values"
        )


def layer_work(model: LanguageModel, step: Step, precision: Precision, width: int = 1) -> list[Work]:
    """The work of each layer, from the embedding to the head, for one device of a group of this width."""
    hidden_bytes = model.hidden * DTYPE_BYTES[model.dtype]
    passed = 2.0 * step.tokens * hidden_bytes  # what comes in and goes out
    embedding = Work(0.0, passed, (step.tokens * hidden_bytes,))
    head_bytes = model.head_weights * DTYPE_BYTES[model.dtype]
    logits = step.sequences * model.vocabulary  # only of the last position
    head = Work(
        2.0 * logits * model.hidden / width,
        head_bytes / width + passed,
        gathered=logits * DTYPE_BYTES[model.dtype],
    )
    return [embedding, *(_block(model, i, step, precision, width) for i in range(len(model.blocks))), head]


def _block(model: LanguageModel, i: int, step: Step, precision: Precision, width: int) -> Work:
    block = model.blocks[i]
    used = block.weights + block.experts_used * block.expert_weights
    flops = 2.0 * used * step.tokens + step.sequences * block.attention_flops(step.new, step.past)
    read = precision.block_bytes(model, block, touched(block.experts, block.experts_used, step.tokens))
    kept = step.sequences * block.read_bytes(step.past + step.new, precision.cache_dtype or model.dtype)
    hidden_bytes = step.tokens * model.hidden * DTYPE_BYTES[model.dtype]
    moved = (read + kept) / width + 2.0 * hidden_bytes
    return Work(flops / width, moved, (hidden_bytes, hidden_bytes))


def touched(experts: int, used: int, tokens: int) -> float:
    """How many experts have their weights read, on average, when each token takes `used` of them at random.

    >>> touched(8, 2, 1), round(touched(8, 2, 4), 3), round(touched(8, 2, 1000), 3)
    (2.0, 5.469, 8.0)
    """
    if not experts:
        return 0.0
    return experts * (1 - (1 - used / experts) ** tokens)


def layer_bytes(model: LanguageModel, precision: Precision, context: int, concurrency: int) -> list[float]:
    """What each layer occupies on a device that has all of it: its weights, and the keys and values of so many requests
    of so many positions."""
    ends = [count * float(DTYPE_BYTES[model.dtype]) for count in (model.embedding_weights, model.head_weights)]
    blocks = [
        precision.block_bytes(model, block, block.experts, block.norm_weights)
        + concurrency * model.kv_bytes(i, context, precision.cache_dtype)
        for i, block in enumerate(model.blocks)
    ]
    return [ends[0], *blocks, ends[1]]
