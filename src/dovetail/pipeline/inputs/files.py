"""The level's three files, models, device types and devices, read and validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source, checked
from dovetail.pipeline.inputs.links import apply_links
from dovetail.pipeline.inputs.problem import (
    DTYPE_BYTES,
    DeviceClass,
    Pipeline,
    TiedWeights,
    check_host,
    check_names,
    check_number,
    check_tied,
    range_fault,
)


class ModelEntry(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A model of models.yml. Parameters are numbers of values per item. Tied weights are our addition."""

    layers: int
    mem_MB: list[float]  # noqa: N815
    parameters_in: int
    parameters_out: list[int]
    tied: list[TiedWeights] = []


class ProfileEntry(Struct, forbid_unknown_fields=True):
    batch_size: int
    dtype: str
    time_s: list[float]
    source: Literal["measured", "estimated"] = "measured"
    device: str = ""  # what was measured, as it calls itself
    phase: Literal["prefill", "decode"] | None = None  # of a language model; such a profile is for plan-generation
    tokens: int | None = None  # of a prompt, or of the context that a token is decoded in
    busy: float = 0.0  # of the time of the measurement, what other programs took
    stage_s: float = 0.0  # what a stage takes besides its layers: a call of the model, and handing over


class RooflineEntry(Struct, forbid_unknown_fields=True):
    """Rates of a device type for language models: those of a published device or its own, and the shares reached."""

    device: str = ""
    tflops: float | None = None
    memory_gbps: float | None = None
    compute_share: float = 0.5
    memory_share: float = 0.5
    layer_s: float = 0.0  # what a layer takes besides


class DeviceTypeEntry(Struct, forbid_unknown_fields=True):
    """A device type. What follows the profiles is ours; watts and price are for objectives that use them."""

    bw_Mbps: float  # noqa: N815
    mem_MB: float  # noqa: N815
    model_profiles: dict[str, list[ProfileEntry]] | None = None
    watts_busy: float = 0.0
    watts_idle: float = 0.0
    price_per_hour: float = 0.0
    roofline: RooflineEntry | None = None


class _Options(Struct):
    model: str | None
    batch_size: int
    dtype: str
    buffers_in: int
    buffers_out: int


def load(
    models: Source,
    device_types: Source,
    devices: Source,
    *,
    model: str | None = None,
    batch_size: int = 8,
    dtype: str = "torch.float32",
    buffers_in: int = 2,
    buffers_out: int = 2,
    links: Source | None = None,
) -> Pipeline:
    """The problem of placing a model's layers on devices, read and validated.

    Each file is a path, or what it would hold as dicts. The model must be named if there are several. Types without
    hosts are left out, and with a warning (`warnings`) those without a profile of this batch size and dtype.

    >>> from dovetail import pipeline
    >>> profile = {"batch_size": 8, "dtype": "torch.float32", "time_s": [0.1, 0.2]}
    >>> pipeline.load(
    ...     {"m": {"layers": 2, "mem_MB": [1, 1], "parameters_in": 10, "parameters_out": [10, 10]}},
    ...     {"l4": {"bw_Mbps": 1000, "mem_MB": 64, "model_profiles": {"m": [profile]}}},
    ...     {"l4": ["gpu-0", "gpu-1"]},
    ... )
    <Pipeline m: 2 layers, batches of 8, torch.float32, on 2 l4>
    """
    asked = {"model": model, "batch_size": batch_size, "dtype": dtype}
    checked(asked | {"buffers_in": buffers_in, "buffers_out": buffers_out}, _Options)
    if dtype not in DTYPE_BYTES:
        raise InputError(f"unsupported dtype {dtype!r}{did_you_mean(dtype, DTYPE_BYTES)}")
    for name, value, least in (
        ("batch size", batch_size, 1),
        ("buffers in", buffers_in, 0),
        ("buffers out", buffers_out, 0),
    ):
        if fault := range_fault(value, least):
            raise InputError(f"{name}: {fault}")
    model, entry, warnings = _read_model(models, model)
    bytes_each = DTYPE_BYTES[dtype] * batch_size
    counts = [entry.parameters_in, *_repeated(entry.parameters_out, entry.layers)]
    classes, listed = _read_classes(device_types, devices, model, entry, batch_size, dtype, warnings)
    pipeline = Pipeline(
        model=model,
        layers=entry.layers,
        mem_mib=entry.mem_MB,
        cut_bytes=[bytes_each * count for count in counts],
        classes=classes,
        batch_size=batch_size,
        dtype=dtype,
        buffers_in=buffers_in,
        buffers_out=buffers_out,
        warnings=warnings,
        tied=entry.tied,
    )
    if links is not None:
        return apply_links(pipeline, links, listed)
    return pipeline


def _mapping(source: Source, name: str, what: str) -> tuple[Document, dict[str, Any]]:
    doc = Document.of(source, name)
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected a mapping of {what}, found {type(doc.data).__name__}")
    check_names(doc, doc.data)
    return doc, doc.data


def _read_model(models: Source, model: str | None) -> tuple[str, ModelEntry, list[str]]:
    doc, data = _mapping(models, "models", "model names")
    if model is None and len(data) == 1:
        (model,) = data
    if model is None:
        raise InputError(f"{doc.path}: has {len(data)} models: name one{did_you_mean('', data)}")
    if model not in data:
        raise InputError(f"{doc.path}: model not found: {model}{did_you_mean(model, map(str, data))}")
    entry = doc.convert(data[model], ModelEntry, (model,))
    if entry.layers < 0:
        raise doc.error((model, "layers"), f"expected 0 or more, found {entry.layers}")
    if len(entry.mem_MB) != entry.layers:
        raise doc.error((model, "mem_MB"), f"has {len(entry.mem_MB)} values, but layers is {entry.layers}")
    if len(entry.parameters_out) > entry.layers:
        message = f"has {len(entry.parameters_out)} values, but layers is {entry.layers}"
        raise doc.error((model, "parameters_out"), message)
    if not entry.parameters_out and entry.layers:
        raise doc.error((model, "parameters_out"), f"is empty, but layers is {entry.layers}")
    for key, values in (("mem_MB", entry.mem_MB), ("parameters_out", entry.parameters_out)):
        for i, value in enumerate(values):
            check_number(doc, (model, key, i), value)
    check_number(doc, (model, "parameters_in"), entry.parameters_in)
    check_tied(doc, (model, "tied"), entry.tied, entry.mem_MB)
    warnings = []
    if len(entry.parameters_out) < entry.layers:
        warnings.append(
            f"Model parameters_out length {len(entry.parameters_out)} < {entry.layers}: block will be repeated"
        )
    return model, entry, warnings


def _repeated(values: list[int], length: int) -> list[int]:
    return [values[i % len(values)] for i in range(length)]


def _read_classes(
    device_types: Source,
    devices: Source,
    model: str,
    entry: ModelEntry,
    batch_size: int,
    dtype: str,
    warnings: list[str],
) -> tuple[list[DeviceClass], set[str]]:
    """Classes of devices that have a profile; and every name of a type or host, also of those that have none."""
    doc, data = _mapping(device_types, "device_types", "device types")
    place, hosts = _read_hosts(devices, data, warnings)
    classes = []
    for name in sorted(data):
        given = doc.convert(data[name], DeviceTypeEntry, (name,))
        for key in ("bw_Mbps", "mem_MB", "watts_busy", "watts_idle", "price_per_hour"):
            check_number(doc, (name, key), getattr(given, key))
        profiles = (given.model_profiles or {}).get(model)
        if profiles is None:
            warnings.append(f"Device type {name} doesn't support model: type will be skipped")
            continue
        wanted = (dtype, batch_size, None)
        matching = [(i, p) for i, p in enumerate(profiles) if (p.dtype, p.batch_size, p.phase) == wanted]
        if not matching:
            has = ", ".join(f"{p.dtype} with batch size {p.batch_size}" for p in profiles) or "none"
            warnings.append(f"Device type {name} doesn't have matching profile (it has: {has}): type will be skipped")
            continue
        i, profile = matching[-1]
        keys = (name, "model_profiles", model, i, "time_s")
        if len(profile.time_s) != entry.layers:
            raise doc.error(keys, f"has {len(profile.time_s)} values, but layers is {entry.layers}")
        for j, seconds in enumerate(profile.time_s):
            check_number(doc, (*keys, j), seconds)
        check_number(doc, (*keys[:-1], "stage_s"), profile.stage_s)
        if not 0 <= profile.busy <= 1:
            raise doc.error((*keys[:-1], "busy"), f"expected a part from 0 to 1, found {profile.busy}")
        if hosts.get(name) and profile.busy:
            taken = f"other programs took {100 * profile.busy:.0f} % of the time"
            warnings.append(f"The profile of {name} was taken on a busy machine ({taken}): measure it again")
        if hosts.get(name):
            classes.append(
                DeviceClass(
                    name,
                    name,
                    hosts[name],
                    given.bw_Mbps,
                    given.mem_MB,
                    profile.time_s,
                    given.watts_busy,
                    given.watts_idle,
                    given.price_per_hour,
                    profile.device,
                    profile.busy,
                    profile.stage_s,
                )
            )
    if not any(hosts.values()):
        warnings.append(f"{place} lists no hosts")
    return classes, {*data, *(host for names in hosts.values() for host in names)}


def _read_hosts(devices: Source, types: dict[str, Any], warnings: list[str]) -> tuple[Path, dict[str, list[str]]]:
    """Where they stand, and the hosts of each type."""
    doc, data = _mapping(devices, "devices", "device types to hosts")
    hosts: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for name, given in data.items():
        hosts[name] = doc.convert(given if given is not None else [], list[str], (name,))
        if name not in types and hosts[name]:
            hint = did_you_mean(str(name), map(str, types))
            warnings.append(f"Hosts of {name} will be skipped: it is not a device type{hint}")
        for i, host in enumerate(hosts[name]):
            if not host:
                raise doc.error((name, i), "expected the name of a host, found an empty one")
            check_host(doc, (name, i), host, joined=False)
            if host in seen:
                raise doc.error((name, i), f"host {host!r} is listed twice (before under {seen[host]})")
            seen[host] = name
    return doc.path, hosts
