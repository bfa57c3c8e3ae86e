"""The rates that a device reaches, from times of whole steps that were measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.pipeline.language.costs import Precision, Reached, Ring, Step, layer_work
from dovetail.pipeline.language.shape import LanguageModel
from dovetail.pipeline.profile.roofline import Peak

_FIRST_STEP, _LAST_STEP = 0.7, 0.002  # of the search, as logarithms


class MeasuredStep(Struct, frozen=True):
    """How long a step of a whole model took on so many devices that share its layers."""

    model: LanguageModel
    step: Step
    width: int
    seconds: float


class ReachedShares(Struct, frozen=True, kw_only=True):
    """What a device reaches of its published figures, and what a layer and a hop between devices of a group take
    besides: `roofline` of a device type, and `latency_s` of the link to its like."""

    compute_share: float
    memory_share: float
    layer_s: float
    latency_s: float

    def seconds(self, peak: Peak, link_bytes_s: float, of: MeasuredStep) -> float:
        """What a step takes by these."""
        device = Reached(
            flops_s=peak.tflops[of.model.dtype] * 1e12 * self.compute_share,
            bytes_s=peak.memory_gbps * 1e9 * self.memory_share,
            layer_s=self.layer_s,
        )
        ring = Ring(of.width, link_bytes_s, self.latency_s)
        works = layer_work(of.model, of.step, Precision(), of.width)
        return sum(work.seconds(device) + work.exchange_s(ring) for work in works)

    def error(self, peak: Peak, link_bytes_s: float, measured: Sequence[MeasuredStep]) -> float:
        """The mean factor between what it says and what was measured, less 1."""
        logs = [abs(log(self.seconds(peak, link_bytes_s, of) / of.seconds)) for of in measured]
        return exp(sum(logs) / len(logs)) - 1


def calibrate(peak: Peak, link_bytes_s: float, measured: Sequence[MeasuredStep]) -> ReachedShares:
    """Shares and times with a small mean factor to what was measured: each in turn is moved up and down, by less and
    less, until none makes it smaller. What steps do not tell apart (memory, and the fixed time of a layer) is shared
    out as it comes. `link_bytes_s` are of the link between two devices of a group.

    >>> from dovetail.pipeline.language.shape import language_model
    >>> from dovetail.pipeline.profile.roofline import PEAKS
    >>> small = language_model({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 4,
    ...     "num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 1000, "torch_dtype": "float16"})
    >>> truth = ReachedShares(compute_share=0.4, memory_share=0.8, layer_s=1e-4, latency_s=1e-5)
    >>> steps = [MeasuredStep(small, Step(n, 0, 1), w, 0.0) for n in (1, 64, 2048, 8192) for w in (1, 2, 8)]
    >>> seen = [MeasuredStep(of.model, of.step, of.width, truth.seconds(PEAKS["a100"], 3e11, of)) for of in steps]
    >>> found = calibrate(PEAKS["a100"], 3e11, seen)
    >>> round(found.compute_share, 2), found.error(PEAKS["a100"], 3e11, seen) < 0.01
    (0.4, True)
    """
    if not measured:
        raise InputError("measured: expected at least one step")
    best, least, by = ReachedShares(compute_share=0.5, memory_share=0.5, layer_s=1e-5, latency_s=1e-6), inf, _FIRST_STEP
    while by > _LAST_STEP:
        before = least
        for name in best.__struct_fields__:
            for factor in (exp(by), exp(-by)):
                values = {key: getattr(best, key) for key in best.__struct_fields__}
                moved = ReachedShares(**(values | {name: values[name] * factor}))
                if moved.compute_share <= 1 and moved.memory_share <= 1:
                    error = moved.error(peak, link_bytes_s, measured)
                    if error < least:
                        best, least = moved, error
        if least == before:
            by /= 2
    return best
