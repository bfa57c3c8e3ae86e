"""Layer times of a language model on each type of device: from measured profiles, or from the rates it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document
from dovetail.pipeline.inputs.files import DeviceTypeEntry, ProfileEntry, RooflineEntry
from dovetail.pipeline.inputs.problem import check_number
from dovetail.pipeline.language.costs import ALONE, Precision, Reached, Ring, Step, layer_work
from dovetail.pipeline.language.shape import LanguageModel
from dovetail.pipeline.profile.roofline import PEAKS


class LayerTimes(Protocol):
    """Seconds of each layer for a step, on one device or on a group of them, and of a stage besides its layers."""

    def __call__(self, step: Step, ring: Ring = ALONE) -> list[float]: ...

    def stage_s(self, step: Step) -> float: ...


def times_of(
    doc: Document, name: str, entry: DeviceTypeEntry, model: LanguageModel, precision: Precision
) -> LayerTimes | None:
    """How long layers take on a type: as measured where they were, else by the roofline; None if there is neither a
    profile of this model nor a figure of the device."""
    profiles = [
        p for p in (entry.model_profiles or {}).get(model.name, ()) if p.phase is not None or p.tokens is not None
    ]
    if profiles:
        return _Measured(doc, name, model, precision, profiles)
    device = reached(doc, name, entry.roofline, model.dtype)
    return None if device is None else Roofline(model, precision, device)


def reached(doc: Document, name: str, given: RooflineEntry | None, dtype: str) -> Reached | None:
    """The rates of a type: its own or published figures, by its name or the one that it gives, times the shares that
    are reached; None if nothing is said of it."""
    figures = given or RooflineEntry()
    like = figures.device or name
    peak = PEAKS.get(like.lower())
    if given is None and (peak is None or dtype not in peak.tflops):
        return None
    at = (name, "roofline")
    for key in ("tflops", "memory_gbps", "compute_share", "memory_share", "layer_s"):
        value = getattr(figures, key)
        check_number(doc, (*at, key), value or 0.0)
        if value == 0 and key != "layer_s":
            raise doc.error((*at, key), "expected more than 0, found 0")
    if peak is None and (figures.tflops is None or figures.memory_gbps is None):
        raise doc.error((*at, "device"), f"no published figures of {like!r} here{did_you_mean(like.lower(), PEAKS)}")
    tflops = figures.tflops or (peak.tflops.get(dtype) if peak else None)
    memory_gbps = figures.memory_gbps or (peak.memory_gbps if peak else None)
    if tflops is None or memory_gbps is None:
        raise doc.error(at, f"{like} has no figure for {dtype}; give tflops")
    return Reached(
        flops_s=tflops * 1e12 * figures.compute_share,
        bytes_s=memory_gbps * 1e9 * figures.memory_share,
        layer_s=figures.layer_s,
    )


class Roofline:
    """Times by the rates that a device reaches."""

    source = "estimated"

    def __init__(self, model: LanguageModel, precision: Precision, device: Reached) -> None:
        self._model, self._precision, self._device = model, precision, device

    def __call__(self, step: Step, ring: Ring = ALONE) -> list[float]:
        layers = layer_work(self._model, step, self._precision, ring.width)
        return [work.seconds(self._device) + work.exchange_s(ring) for work in layers]

    def stage_s(self, step: Step) -> float:
        return 0.0


class _Measured:
    """Profiles of prefill and decode: between those that were measured times are interpolated, beyond they are not.

    A group of devices takes its share of the time, and what it exchanges.
    """

    source = "measured"

    def __init__(
        self,
        doc: Document,
        name: str,
        model: LanguageModel,
        precision: Precision,
        profiles: Sequence[ProfileEntry],
    ) -> None:
        self._model, self._precision = model, precision
        self._doc, self._at = doc, (name, "model_profiles", model.name)
        self._by_phase: dict[str, dict[int, dict[int, list[float]]]] = {"prefill": {}, "decode": {}}
        for profile in profiles:
            if profile.dtype != model.dtype:
                continue
            if len(profile.time_s) != model.layers:
                raise self._error(f"time_s has {len(profile.time_s)} values, but the model has {model.layers} layers")
            measured = [*profile.time_s, profile.stage_s]
            for value in measured:
                check_number(doc, self._at, value)
            if profile.phase is None or profile.tokens is None or profile.tokens < 1 or profile.batch_size < 1:
                raise self._error("a profile of prefill or decode needs phase, and tokens and batch_size of 1 or more")
            self._by_phase[profile.phase].setdefault(profile.batch_size, {})[profile.tokens] = measured

    def __call__(self, step: Step, ring: Ring = ALONE) -> list[float]:
        works = layer_work(self._model, step, self._precision, ring.width)
        alone = self._measured(step)[:-1]
        return [seconds / ring.width + work.exchange_s(ring) for seconds, work in zip(alone, works, strict=True)]

    def stage_s(self, step: Step) -> float:
        return self._measured(step)[-1]

    def _measured(self, step: Step) -> list[float]:
        """Each layer's time on one device, and what a stage takes besides."""
        phase, tokens = ("decode", step.past + 1) if step.past else ("prefill", step.new)
        by_size = {n: self._between(phase, "tokens", tokens, known) for n, known in self._by_phase[phase].items()}
        return self._between(phase, "requests at once", step.sequences, by_size)

    def _error(self, message: str) -> InputError:
        return self._doc.error(self._at, message)

    def _between(self, phase: str, what: str, wanted: int, known: dict[int, list[float]]) -> list[float]:
        points = sorted(known)
        if not points or not points[0] <= wanted <= points[-1]:
            has = ", ".join(map(str, points)) or "none"
            dtype = self._model.dtype
            raise self._error(f"{phase} with {wanted} {what} ({dtype}) is not among or between the measured: {has}")
        columns = np.array([known[point] for point in points]).T
        return [float(np.interp(wanted, points, column)) for column in columns]
