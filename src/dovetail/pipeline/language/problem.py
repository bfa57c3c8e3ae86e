"""A problem of generation: a language model on a pool, prefill and decode as two ordinary problems over one partition.

Each way to run a stage, a device alone or a tensor-parallel group of alike ones, is a class in both.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source, checked
from dovetail.pipeline.inputs.files import DeviceTypeEntry, load
from dovetail.pipeline.inputs.pool import regroup
from dovetail.pipeline.inputs.problem import (
    BYTES_PER_S,
    DTYPE_BYTES,
    MIB,
    DeviceClass,
    Pipeline,
    TiedWeights,
    range_fault,
)
from dovetail.pipeline.language.costs import ALONE, Precision, Ring, Step, check_width, layer_bytes
from dovetail.pipeline.language.devices import LayerTimes, times_of
from dovetail.pipeline.language.shape import LanguageModel, language_model

_ID_BYTES = 8  # of a token's number
_LOGIT_BYTES = 4


class Load(Struct, frozen=True, kw_only=True):
    """What is asked of a model: prompts of so many tokens, contexts of so many in all, so many requests at once."""

    prompt: int = 512
    context: int = 4096
    concurrency: int = 1

    def check(self) -> None:
        for key in self.__struct_fields__:
            if fault := range_fault(getattr(self, key), 1, 10**9):
                raise InputError(f"--{key}: {fault}")
        if self.prompt >= self.context:
            raise InputError(f"--prompt {self.prompt}: expected less than the context, {self.context}")


class GenerationProblem(Struct, kw_only=True):
    """A language model and a pool of devices, with what it takes to cost every step of it."""

    model: LanguageModel
    pool: Pipeline  # with what devices and links are; its times and sizes are of no account
    times: dict[str, LayerTimes]  # by type of device
    load: Load
    precision: Precision
    widths: tuple[int, ...] = (1,)
    memory_use: float = 0.9
    split_ends: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def options(self) -> list[tuple[int, int]]:
        """The ways to run a stage: a class of the pool and how many of its devices share each layer."""
        return [(k, w) for k, c in enumerate(self.pool.classes) for w in self.widths if w <= len(c.hosts)]

    @property
    def cuts(self) -> set[int]:
        """Layers after which a cut may be made: engines keep the embedding with the first block and the head with the
        last, so stages of their own must be asked for."""
        last = self.model.layers
        return set(range(1, last)) if self.split_ends else set(range(2, last - 1))

    @property
    def source(self) -> Literal["measured", "estimated"]:
        """Estimated if any time is."""
        used = {getattr(self.times[c.type], "source", "estimated") for c in self.pool.classes}
        return "measured" if used == {"measured"} else "estimated"

    def prefill(self) -> Pipeline:
        """One prompt at a time, from its first token to the first that is generated."""
        return self._problem(Step(self.load.prompt, 0, 1), self.load.concurrency)

    def decode(self, sequences: int) -> Pipeline:
        """A token for each of so many requests, in contexts that are full."""
        return self._problem(Step(1, self.load.context - 1, sequences), sequences)

    def _problem(self, step: Step, answered: int) -> Pipeline:
        """An ordinary problem whose classes are the options. Memory is that of the whole load in both."""
        model, asked = self.model, self.load
        hidden = model.hidden * DTYPE_BYTES[model.dtype]
        memory = layer_bytes(model, self.precision, asked.context, asked.concurrency)
        memory[-1] += asked.concurrency * model.vocabulary * _LOGIT_BYTES
        inner = step.tokens * hidden
        held = max(asked.prompt, asked.concurrency) * hidden  # the larger of what prefill and decode pass on
        shared = model.vocabulary * hidden / MIB
        problem = replace(
            self.pool,
            tied=[TiedWeights(layers=[1, model.layers], mib=shared)] if model.tied else [],
            layers=model.layers,
            mem_mib=[size / MIB for size in memory],
            cut_bytes=[step.tokens * _ID_BYTES, *[inner] * (model.layers - 1), step.sequences * _ID_BYTES],
            batch_size=step.sequences,
            dtype=model.dtype,
            buffers_in=0,
            buffers_out=0,
        )
        return regroup(problem, [(k, self._class(k, width, step, held)) for k, width in self.options])

    def _class(self, k: int, width: int, step: Step, held: int) -> DeviceClass:
        """A device, or a group of them as one: together they have their memory, less the copies that each has of what
        passes between stages."""
        device = self.pool.classes[k]
        ring = ALONE
        if width > 1:
            links = self.pool
            mbps = device.bw_mbps if links.link_mbps is None else links.link_mbps[k][k]
            ring = Ring(width, mbps * BYTES_PER_S, links.link_s[k][k] if links.link_s else 0.0)
        # Every device has two copies of what comes in and of what goes out; the planner counts one of each by itself.
        copies = (4 * width - 2) * held / MIB
        hosts = [" + ".join(device.hosts[i : i + width]) for i in range(0, len(device.hosts) - width + 1, width)]
        return replace(
            device,
            name=device.name if width == 1 else f"{width} x {device.name}",
            type=device.type if width == 1 else f"{width} x {device.type}",
            hosts=hosts,
            mem_mib=max(0.0, width * device.mem_mib * self.memory_use - copies),
            time_s=self.times[device.type](step, ring),
            stage_s=self.times[device.type].stage_s(step),
            watts_busy=width * device.watts_busy,
            watts_idle=width * device.watts_idle,
            price_per_hour=width * device.price_per_hour,
        )


class _Options(Struct):
    prompt: int
    context: int
    concurrency: int
    weight_bits: float
    cache_dtype: str | None
    tensor_parallel: tuple[int, ...]
    memory_use: float
    split_ends: bool
    model_name: str


def load_generation(
    config: Source,
    device_types: Source,
    devices: Source,
    *,
    model_name: str = "",
    prompt: int = 512,
    context: int = 4096,
    concurrency: int = 1,
    dtype: str | None = None,
    weight_bits: float = 0,
    cache_dtype: str | None = None,
    tensor_parallel: tuple[int, ...] = (1,),
    memory_use: float = 0.9,
    split_ends: bool = False,
    links: Source | None = None,
) -> GenerationProblem:
    """A language model's config.json and a pool of devices as a problem of generation, read and validated.

    Types have profiles of `phase` prefill and decode under the model's name, or rates (`roofline`, or a name that is
    known). The arguments are those of `dovetail pipeline plan-generation`.
    """
    asked = Load(prompt=prompt, context=context, concurrency=concurrency)
    given: dict[str, Any] = {
        "weight_bits": weight_bits,
        "cache_dtype": cache_dtype,
        "memory_use": memory_use,
        "model_name": model_name,
    }
    widths = [tensor_parallel] if isinstance(tensor_parallel, int) else list(tensor_parallel)
    given |= {
        "split_ends": split_ends,
        "prompt": prompt,
        "context": context,
        "concurrency": concurrency,
        "tensor_parallel": widths,
    }
    checked(given, _Options)
    asked.check()
    if not 0 < memory_use <= 1:
        raise InputError(f"--memory-use: expected more than 0 and at most 1, found {memory_use:g}")
    if weight_bits and not 1 <= weight_bits <= 64:
        raise InputError(f"--weight-bits: expected 1 to 64, found {weight_bits:g}")
    if cache_dtype is not None and (cache_dtype := _full(cache_dtype)) not in DTYPE_BYTES:
        raise InputError(f"--cache-dtype: unsupported {cache_dtype!r}{did_you_mean(cache_dtype, DTYPE_BYTES)}")
    model = language_model(config, name=model_name, dtype=dtype, weight_bits=weight_bits)
    for width in widths:
        check_width(model, width)
    warnings = list(model.notes)
    if model.longest and context > model.longest:
        warnings.append(f"{model.name} was made for {model.longest} positions; the context is {context}")
    precision = Precision(weight_bits=model.weight_bits, cache_dtype=cache_dtype or model.cache_dtype)
    times, types = _types(device_types, model, precision)
    pool = load(_plain(model), types, devices, model=model.name, batch_size=1, dtype=model.dtype, links=links)
    return GenerationProblem(
        model=model,
        pool=pool,
        times=times,
        load=asked,
        precision=precision,
        widths=tuple(sorted({1, *widths})),
        memory_use=memory_use,
        split_ends=split_ends,
        warnings=[*warnings, *pool.warnings],
    )


def _full(dtype: str) -> str:
    return dtype if dtype.startswith("torch.") else f"torch.{dtype}"


def _types(
    device_types: Source, model: LanguageModel, precision: Precision
) -> tuple[dict[str, LayerTimes], dict[str, Any]]:
    """How long layers take on each type, and the types as a file that the planner's reader takes."""
    doc = Document.of(device_types, "device_types")
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected a mapping of device types, found {type(doc.data).__name__}")
    times, plain = {}, {}
    for name, data in doc.data.items():
        entry = doc.convert(data, DeviceTypeEntry, (name,))
        found = times_of(doc, str(name), entry, model, precision)
        busy = max((p.busy for p in (entry.model_profiles or {}).get(model.name, ()) if p.phase), default=0.0)
        profile = {"batch_size": 1, "dtype": model.dtype, "time_s": [0.0] * model.layers, "busy": busy}
        profiles = {} if found is None else {model.name: [profile]}
        plain[name] = {**data, "model_profiles": profiles}
        if found is not None:
            times[name] = found
    return times, plain


def _plain(model: LanguageModel) -> dict[str, Any]:
    """The model as the planner's reader takes it: what it reads of layers is filled in later, step by step."""
    count = model.layers
    return {model.name: {"layers": count, "mem_MB": [0.0] * count, "parameters_in": 0, "parameters_out": [0] * count}}
