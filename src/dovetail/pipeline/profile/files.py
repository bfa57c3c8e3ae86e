"""Profile files (`profiler_results.yml`), old and new: read, merge and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document
from dovetail.core.files.output import written_whole
from dovetail.core.files.reading import yaml_text
from dovetail.pipeline.inputs.problem import TiedWeights, check_tied

if TYPE_CHECKING:
    from dovetail.pipeline.profile.measure import ProfileResult


class LayerRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A layer: weights in MiB, shapes of its tensors without the batch dimension, seconds. What follows is ours."""

    layer: int
    memory: float
    shape_in: list[Any]
    shape_out: list[Any]
    time: float
    name: str = ""
    spread_s: float = 0.0
    repeats: int = 0
    activation_mib: float = 0.0


class ModelProfile(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A model's layers, or some of them, with one batch size and dtype on one device. From `device` on it is ours."""

    batch_size: int
    dtype: str
    layers: int
    model_name: str
    profile_data: list[LayerRow]
    device: str = ""
    threads: int = 0
    share: float = 0.0
    source: Literal["measured", "estimated"] = "measured"
    whole_s: float = 0.0
    tied: list[TiedWeights] = []
    busy: float = 0.0  # of the time, what other programs took


def profile_of(result: ProfileResult) -> ModelProfile:
    """A measurement as it is written."""
    rows = [
        LayerRow(
            layer=layer.layer,
            memory=_rounded(layer.memory_mib),
            shape_in=[list(shape) for shape in layer.shape_in],
            shape_out=[list(shape) for shape in layer.shape_out],
            time=_rounded(layer.time_s),
            name=layer.name,
            spread_s=_rounded(layer.spread_s),
            repeats=layer.repeats,
            activation_mib=_rounded(layer.activation_mib),
        )
        for layer in result.profile
    ]
    return ModelProfile(
        batch_size=result.batch_size,
        dtype=result.dtype,
        layers=result.layers,
        model_name=result.model,
        profile_data=rows,
        device=result.device,
        threads=result.threads,
        share=result.share,
        source=result.source,
        whole_s=_rounded(result.whole_s),
        tied=[TiedWeights(group.layers, _rounded(group.mib)) for group in result.tied],
        busy=result.busy,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")  # nothing measured is known better


def parameters(shapes: Sequence[Any]) -> int:
    """The number of values of an item; a single tensor's shape may stand without a list around it.

    >>> parameters([[197, 768], [197, 768]]), parameters([3, 224, 224]), parameters([[]])
    (302592, 150528, 1)
    """
    if shapes and all(isinstance(dim, int) for dim in shapes):
        return prod(shapes)
    return sum(prod(shape) for shape in shapes)


def read_profiles(path: Path) -> list[ModelProfile]:
    """All profiles of a file: it holds one as the older profiler writes it, or a list of them."""
    doc = Document.read(path)
    many = isinstance(doc.data, list)
    profiles = []
    for i, data in enumerate(doc.data if many else [doc.data]):
        at: tuple[Any, ...] = (i,) if many else ()
        if not isinstance(data, dict):
            raise doc.error(at, f"expected a profile, found {type(data).__name__}")
        profile = doc.convert(data, ModelProfile, at)
        _check(doc, at, profile)
        profiles.append(profile)
    if not profiles:
        raise doc.error((), "expected at least one profile")
    return profiles


def _check(doc: Document, at: tuple[Any, ...], profile: ModelProfile) -> None:
    for key in ("batch_size", "layers"):
        if getattr(profile, key) < 1:
            raise doc.error((*at, key), f"expected 1 or more, found {getattr(profile, key)}")
    if not 0 <= profile.busy <= 1:
        raise doc.error((*at, "busy"), f"expected a part from 0 to 1, found {profile.busy}")
    if len(profile.profile_data) == profile.layers:
        rows = sorted(profile.profile_data, key=lambda row: row.layer)
        check_tied(doc, (*at, "tied"), profile.tied, [row.memory for row in rows])
    seen: set[int] = set()
    for i, row in enumerate(profile.profile_data):
        place = (*at, "profile_data", i)
        if not 1 <= row.layer <= profile.layers:
            raise doc.error((*place, "layer"), f"expected 1 to {profile.layers}, found {row.layer}")
        if row.layer in seen:
            raise doc.error((*place, "layer"), f"layer {row.layer} is given twice")
        seen.add(row.layer)
        for key in ("memory", "time", "spread_s", "activation_mib"):
            value = getattr(row, key)
            if value < 0 or not isfinite(value):
                raise doc.error((*place, key), f"expected a number >= 0, found {value}")
        for key in ("shape_in", "shape_out"):
            if not _is_shape(getattr(row, key)):
                raise doc.error((*place, key), "expected shapes: lists of whole numbers >= 0")


def _is_shape(shapes: Sequence[Any]) -> bool:
    flat = [dim for item in shapes for dim in (item if isinstance(item, list) else [item])]
    mixed = len({isinstance(item, list) for item in shapes}) > 1
    return not mixed and all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in flat)


def check_room(old: Iterable[ModelProfile], new: ModelProfile, *, force: bool = False) -> None:
    """Refuse a profile that does not belong to those of a file: of another model, or with layers that are there.

    With `force` layers may be there; they are replaced.
    """
    for other in old:
        if other.model_name != new.model_name:
            raise InputError(f"the file is about {other.model_name}, not {new.model_name}; name another file")
        if other.layers != new.layers:
            raise InputError(f"{other.model_name} has {other.layers} layers in the file, but {new.layers} now")
        if _key(other) == _key(new) and not force:
            there = {row.layer for row in other.profile_data}
            twice = [row.layer for row in new.profile_data if row.layer in there]
            if twice:
                raise InputError(f"{_what(new)}: layer {twice[0]} is in the file already; -f replaces it")


def merged(old: Iterable[ModelProfile], new: Iterable[ModelProfile], *, force: bool = False) -> list[ModelProfile]:
    """Profiles of one model, put together: layers join those of the same batch size and dtype."""
    together = list(old)
    for profile in new:
        check_room(together, profile, force=force)
        for i, other in enumerate(together):
            if _key(other) == _key(profile):
                together[i] = _joined(other, profile)
                break
        else:
            together.append(profile)
    return together


def merge_into(path: Path, new: Iterable[ModelProfile], *, force: bool = False) -> list[ModelProfile]:
    """What a file would hold with new profiles in it; an error names the file."""
    old = read_profiles(path) if path.exists() else []
    try:
        return merged(old, new, force=force)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def expected_in(
    path: Path | None,
    model: str,
    layers: int,
    part: tuple[int, int],
    runs: Iterable[tuple[int, str]],
    *,
    force: bool = False,
) -> list[ModelProfile]:
    """Which layers a file would have of each batch size and dtype once some more are measured; an error if there is no
    room for them. To be asked before anything is measured: the times are empty."""
    old = read_profiles(path) if path is not None and path.exists() else []
    found = []
    for size, dtype in runs:
        rows = [LayerRow(layer, 0, [], [], 0) for layer in range(part[0], part[1] + 1)]
        new = ModelProfile(batch_size=size, dtype=dtype, layers=layers, model_name=model, profile_data=rows)
        try:
            check_room(old, new, force=force)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        there = [row for each in old if _key(each) == _key(new) for row in each.profile_data]
        new.profile_data += [row for row in there if not part[0] <= row.layer <= part[1]]
        found.append(new)
    return found


def _joined(old: ModelProfile, new: ModelProfile) -> ModelProfile:
    rows = {row.layer: row for row in (*old.profile_data, *new.profile_data)}
    kept = len(rows) > len(new.profile_data)
    before = (old.source, old.device or new.device, old.threads or new.threads, old.share)  # an old file does not say
    if kept and before != (new.source, new.device, new.threads, new.share):
        share = f" and a share of {old.share:g} cores" if old.share else ""
        where = f"{old.source} on {old.device} with {old.threads} threads{share}"
        raise InputError(f"{_what(new)}: other layers in the file are {where}; name another file")
    values = {key: getattr(new, key) for key in new.__struct_fields__}
    values |= {"profile_data": [rows[layer] for layer in sorted(rows)]}
    values |= {"whole_s": 0.0, "busy": max(old.busy, new.busy)} if kept else {}
    return ModelProfile(**values)


def _key(profile: ModelProfile) -> tuple[str, int]:
    return profile.dtype, profile.batch_size


def _what(profile: ModelProfile) -> str:
    return f"{profile.model_name}, batch size {profile.batch_size}, {profile.dtype}"


def write_profiles(path: Path, profiles: Sequence[ModelProfile]) -> None:
    """Write profiles; a single one in the shape that the older tools read."""
    plain = msgspec.to_builtins(profiles[0] if len(profiles) == 1 else list(profiles))
    dump_yaml(path, plain)


def dump_yaml(path: Path, data: Any) -> None:
    """Write a YAML file as the older tools do: keys sorted, innermost lists in one line."""
    with written_whole(path) as file:
        file.write(yaml_text(data, default_flow_style=None, sort_keys=True).encode())
