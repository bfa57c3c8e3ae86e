"""From profiles to the planner's files: models.yml, device_types.yml, and a table of rates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, as_path
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.rates import Rate, RateTable
from dovetail.pipeline.inputs.files import DeviceTypeEntry, ModelEntry
from dovetail.pipeline.inputs.problem import DTYPE_BYTES, LARGEST
from dovetail.pipeline.profile.files import ModelProfile, dump_yaml, parameters, read_profiles

AnyPath = str | os.PathLike[str]
_OWN = ("dtype", "batch_size", "phase", "tokens")  # by which profiles are told apart


class Conversion(Struct, frozen=True):
    """The file that was extended, warnings about it, and the rates that were written, if that was asked for."""

    path: Path
    warnings: list[str]
    rates: list[Rate]


def convert(
    device_type: str | None = None,
    *,
    input: AnyPath = "profiler_results.yml",
    output: AnyPath | None = None,
    memory_mb: float | None = None,
    bandwidth_mbps: float | None = None,
    rates: AnyPath | None = None,
    reference: str | None = None,
    force: bool = False,
) -> Conversion:
    """Turn a profile file into the planner's files: models.yml is extended by the model, or, if a device type is named,
    device_types.yml by the layers' times on it. The arguments are those of `dovetail pipeline convert`."""
    path = as_path(output or ("models.yml" if device_type is None else "device_types.yml"), "output")
    source, table = as_path(input, "input"), None if rates is None else as_path(rates, "rates")
    refuse_overwrite([path, *([table] if table is not None else [])], [source])
    if device_type is None and (memory_mb is not None or bandwidth_mbps is not None or rates is not None):
        raise InputError("memory, bandwidth and rates belong to a device type: name one")
    if (rates is None) != (reference is None):
        raise InputError("--rates and --reference belong together")
    profiles = read_profiles(source)
    model = profiles[0].model_name
    if reference is not None and reference != device_type:
        check_reference(path, model, reference)
    warnings = PlannerFile(path, device_type, memory_mb, bandwidth_mbps, force).extend(profiles)
    made = to_rates(path, model, reference, table) if table is not None and reference is not None else []
    return Conversion(path, warnings, made)


class PlannerFile(Struct, frozen=True):
    """A file of the planner to extend: device_types.yml if there is a device type, else models.yml."""

    path: Path
    device_type: str | None = None
    memory_mb: float | None = None
    bandwidth_mbps: float | None = None
    force: bool = False

    def extend(self, profiles: Sequence[ModelProfile], write: bool = True) -> list[str]:
        """Write, or only find out whether that can be done. Gives warnings."""
        if self.device_type is None:
            return to_models(profiles, self.path, force=self.force, write=write)
        return to_device_types(
            profiles,
            self.path,
            self.device_type,
            mem_mb=self.memory_mb,
            bw_mbps=self.bandwidth_mbps,
            force=self.force,
            write=write,
        )


def to_models(profiles: Sequence[ModelProfile], path: Path, *, force: bool = False, write: bool = True) -> list[str]:
    """Add the model to models.yml, or with `force` replace it; other entries stay. Gives warnings.

    Without `write` it only finds out whether that can be done.
    """
    entries = []
    for profile in profiles:
        _complete(profile)
        rows = sorted(profile.profile_data, key=lambda row: row.layer)
        counts = [parameters(row.shape_out) for row in rows]
        memory, into = [row.memory for row in rows], parameters(rows[0].shape_in)
        entries.append(ModelEntry(profile.layers, memory, into, counts, profile.tied))
    warnings = []
    for key in ("parameters_in", "parameters_out"):
        if any(getattr(entry, key) != getattr(entries[0], key) for entry in entries):
            raise InputError(f"{profiles[0].model_name}: {key} differs between the profiles; convert one at a time")
    if any(entry.mem_MB != entries[0].mem_MB for entry in entries):
        warnings.append("memory differs between the profiles; the one that needs most is taken")
    name = profiles[0].model_name
    doc, data = _existing(path, ModelEntry)
    if doc is not None and name in data and not force:
        raise doc.error((name,), "is there already; -f replaces it")
    data[name] = msgspec.to_builtins(max(entries, key=lambda entry: sum(entry.mem_MB)))
    if write:
        dump_yaml(path, data)
    return warnings


def to_device_types(
    profiles: Sequence[ModelProfile],
    path: Path,
    device_type: str,
    *,
    mem_mb: float | None = None,
    bw_mbps: float | None = None,
    force: bool = False,
    write: bool = True,
) -> list[str]:
    """Add the profiles to a device type of device_types.yml (`extend_device_type`). Gives warnings."""
    warnings: list[str] = []
    entries: dict[str, list[dict[str, Any]]] = {}
    for profile in profiles:
        _complete(profile)
        dtype = _float_dtype(profile, warnings)
        made = {"dtype": dtype, "batch_size": profile.batch_size, "time_s": _times(profile)}
        if profile.source != "measured":
            made["source"] = profile.source
        elif profile.device:
            made["device"] = profile.device
        if profile.busy:
            made["busy"] = profile.busy
        entries.setdefault(profile.model_name, []).append(made)
    extend_device_type(path, device_type, entries, mem_mb=mem_mb, bw_mbps=bw_mbps, force=force, write=write)
    return warnings


def extend_device_type(
    path: Path,
    device_type: str,
    entries: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    mem_mb: float | None = None,
    bw_mbps: float | None = None,
    force: bool = False,
    write: bool = True,
) -> None:
    """Add profiles by model to a device type of device_types.yml; memory and bandwidth are needed for a new type only.

    They are told apart by dtype, batch size, phase and tokens; with `force` one that is there is replaced in its place.
    Without `write` it only finds out whether that can be done.
    """
    doc, data = _existing(path, DeviceTypeEntry)
    given = {"mem_MB": mem_mb, "bw_Mbps": bw_mbps}
    for key, value in given.items():
        if value is not None and not 0 <= value <= LARGEST:
            raise InputError(f"{device_type}: {key}: expected a number from 0 to {LARGEST:g}, found {value:g}")
    if doc is not None and device_type in data:
        known = msgspec.convert(data[device_type], DeviceTypeEntry)
        for key, value in given.items():
            if value is not None and value != getattr(known, key):
                raise doc.error((device_type, key), f"is {getattr(known, key):g}, not {value:g}; leave it out")
    else:
        missing = [key for key, value in given.items() if value is None]
        if missing:
            raise InputError(f"{path}: {device_type} is a new device type: give its {' and '.join(missing)}")
        data[device_type] = {key: _plain(value) for key, value in given.items()}
    held = dict(data[device_type].get("model_profiles") or {})
    for model, profiles in entries.items():
        listed = list(held.get(model) or [])
        for made in profiles:
            same = [i for i, other in enumerate(listed) if all(other.get(key) == made.get(key) for key in _OWN)]
            if same and not force:
                phase = f", {made['phase']} of {made['tokens']} tokens" if made.get("phase") else ""
                message = f"has a profile of {model} with {made['dtype']} and batch size {made['batch_size']}{phase}"
                raise InputError(f"{path}: {device_type} {message} already; -f replaces it")
            listed[same[-1] if same else len(listed) : (same[-1] + 1) if same else len(listed)] = [dict(made)]
        held[model] = listed
    data[device_type] = data[device_type] | {"model_profiles": held}
    if write:
        dump_yaml(path, data)


def check_reference(device_types: Path, model: str, reference: str) -> None:
    """Refuse a reference without a profile of the model."""
    doc, data = _existing(device_types, DeviceTypeEntry)
    if doc is None or reference not in data:
        raise InputError(f"{device_types}: no device type {reference!r}{did_you_mean(reference, data)}")
    if not (data[reference].get("model_profiles") or {}).get(model):
        raise doc.error((reference,), f"has no profile of {model}")


def to_rates(device_types: Path, model: str, reference: str, rates: Path) -> list[Rate]:
    """Items per second of a whole model on each type, relative to a reference type, added to a table of rates.

    Of several batch sizes the fastest counts; dtypes are not mixed: it is the one of the reference's first profile.
    """
    check_reference(device_types, model, reference)
    doc, data = _existing(device_types, DeviceTypeEntry)
    assert doc is not None
    dtype = ""
    speeds: dict[str, tuple[float, str]] = {}
    for name in [reference, *(name for name in sorted(data) if name != reference)]:
        entry = doc.convert(data[name], DeviceTypeEntry, (name,))
        profiles = [p for p in (entry.model_profiles or {}).get(model) or [] if p.phase is None]
        dtype = dtype or (profiles[0].dtype if profiles else "")
        found = [(p.batch_size / sum(p.time_s), p.source) for p in profiles if p.dtype == dtype and sum(p.time_s) > 0]
        if found:
            speeds[name] = max(found)
    if reference not in speeds:
        raise doc.error((reference,), f"has no profile of {model}")
    base = speeds[reference][0]
    made = [
        Rate(model, name, speed / base, source="estimated" if source == "estimated" else "measured")
        for name, (speed, source) in speeds.items()
    ]
    RateTable(made).add_to(rates)
    return made


def _complete(profile: ModelProfile) -> None:
    if not profile.profile_data:
        raise InputError(f"{profile.model_name}: the profile is empty")
    if len(profile.profile_data) != profile.layers:
        have = {row.layer for row in profile.profile_data}
        missing = next(layer for layer in range(1, profile.layers + 1) if layer not in have)
        count = f"{len(have)} of {profile.layers} layers"
        raise InputError(f"{profile.model_name}: the profile has {count}; layer {missing} is missing")


def _times(profile: ModelProfile) -> list[float]:
    return [row.time for row in sorted(profile.profile_data, key=lambda row: row.layer)]


def _float_dtype(profile: ModelProfile, warnings: list[str]) -> str:
    """The dtype of what travels between layers. The older profiler gave that of the token ids to language models."""
    if profile.dtype in DTYPE_BYTES:
        return profile.dtype
    warnings.append(f"{profile.model_name}: {profile.dtype} is the dtype of its inputs; taken as torch.float32")
    return "torch.float32"


def _existing(path: Path, entries: type[ModelEntry | DeviceTypeEntry]) -> tuple[Document | None, dict[str, Any]]:
    """What a file that is extended holds: nothing if it is not there or empty, and nothing but such entries."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return None, {}
    doc = Document.read(path)
    if doc.data is not None and not isinstance(doc.data, dict):
        raise doc.error((), f"expected a mapping, found {type(doc.data).__name__}")
    for name, entry in (doc.data or {}).items():
        doc.convert(entry, entries, (name,))
    return doc, dict(doc.data or {})


def _plain(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value
