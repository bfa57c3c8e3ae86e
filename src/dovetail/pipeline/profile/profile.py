"""A model's layers, measured or estimated, and the files that the results are added to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path, checked
from dovetail.core.files.output import refuse_overwrite
from dovetail.pipeline.hardware import placed_on
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec, full_dtype, model_spec
from dovetail.pipeline.profile.convert import PlannerFile
from dovetail.pipeline.profile.files import expected_in, merge_into, profile_of, write_profiles
from dovetail.pipeline.profile.measure import Effort, ProfileResult, profile_chain
from dovetail.pipeline.profile.roofline import estimate_chain, given_peak

AnyPath = str | os.PathLike[str]


class _Options(Struct):
    batch_size: int | list[int]
    dtype: str | list[str]
    layers: tuple[int, int] | None
    threads: int | None
    cores: tuple[int, ...]
    share: float | None
    scale_to_whole: bool
    warmup: int
    repeats: int
    seconds: float
    calm_s: float
    efficiency: float
    model_name: str | None
    estimate_for: str | None
    peak_tflops: float | None
    memory_gbps: float | None
    device: str
    device_type: str | None
    memory_mb: float | None
    bandwidth_mbps: float | None
    to: list[str]


def profile(
    model: str | ModelSpec,
    *,
    argument: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    shape: Sequence[Sequence[int]] = (),
    input_dtype: str = "",
    weights: AnyPath | None = None,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    seed: int = 0,
    batch_size: int | Sequence[int] = 8,
    dtype: str | Sequence[str] = "torch.float32",
    layers: tuple[int, int] | None = None,
    device: str = "cpu",
    threads: int | None = None,
    cores: Sequence[int] = (),
    share: float | None = None,
    scale_to_whole: bool = False,
    warmup: int = 3,
    repeats: int = 7,
    seconds: float = 0.5,
    calm_s: float = 5.0,
    estimate_for: str | None = None,
    peak_tflops: float | None = None,
    memory_gbps: float | None = None,
    efficiency: float = 0.5,
    out: AnyPath | None = None,
    to: Sequence[AnyPath] = (),
    device_type: str | None = None,
    memory_mb: float | None = None,
    bandwidth_mbps: float | None = None,
    force: bool = False,
    progress: Callable[[float], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> list[ProfileResult]:
    """Measure a model's layers, or with `estimate_for` estimate them: time, memory and shapes, a result for each batch
    size and dtype.

    The results are added to the profile file `out` and to the planner's files `to`, where these are named. The other
    arguments are those of `dovetail pipeline profile`. `progress` is told how many of the results are done, `notice`
    what a user should know of them.
    """
    asked = dict(locals())  # before there is anything else
    given = checked({name: asked[name] for name in _Options.__struct_fields__}, _Options)
    sizes = given.batch_size if isinstance(given.batch_size, list) else [given.batch_size]
    kinds = given.dtype if isinstance(given.dtype, list) else [given.dtype]
    spec = model_spec(
        model, argument=argument, shape=shape, input_dtype=input_dtype, weights=weights, seed=seed, cut=cut
    )
    files = [as_path(path, "to") for path in given.to]
    place = None if out is None else as_path(out, "out")
    _refuse_overwrite([*([place] if place else []), *files], spec)
    targets = [PlannerFile(path, _device_type(path, device_type), memory_mb, bandwidth_mbps, force) for path in files]
    runs = [(size, full_dtype(name)) for name in kinds for size in sizes]
    if not sizes or min(sizes) < 1:
        raise InputError(f"--batch-size: expected 1 or more, found {min(sizes, default='none')}")
    chain = load(spec)
    chain.name = model_name or chain.name
    part = given.layers or (1, len(chain.layers))
    if not 1 <= part[0] <= part[1] <= len(chain.layers):
        raise InputError(f"--layers {part[0]} {part[1]}: {chain.name} has layers 1 to {len(chain.layers)}")
    expected = expected_in(place, chain.name, len(chain.layers), part, runs, force=force)
    for target in targets:  # an error now, not after the measurement
        target.extend(expected, write=False)
    if estimate_for is not None:
        results = _estimated(chain, runs, given, estimate_for)
    elif peak_tflops is not None or memory_gbps is not None:
        raise InputError("--peak-tflops and --memory-gbps: name the device with --estimate-for")
    else:
        results = _measured(chain, runs, part, given, progress, notice)
    fresh = [profile_of(result) for result in results]
    if place is not None:
        together = merge_into(place, fresh, force=force)
        write_profiles(place, together)
        fresh = [each for each in together if (each.batch_size, each.dtype) in runs]
    for warning in [warning for target in targets for warning in target.extend(fresh)]:
        notice(warning)
    return results


def _refuse_overwrite(outputs: list[Path], spec: ModelSpec) -> None:
    source = Path(spec.source.rpartition(":")[0] or spec.source)
    refuse_overwrite(outputs, [source if source.is_file() else None, Path(spec.weights) if spec.weights else None])


def _device_type(path: Path, device_type: str | None) -> str | None:
    """The device type that a file of the planner is extended by; None for models.yml."""
    if "device" in path.name:
        if device_type is None:
            raise InputError(f"--to {path}: name the device with --device-type")
        return device_type
    if "model" in path.name:
        return None
    raise InputError(f"--to {path}: expected a name with 'models' or 'device_types' in it")


def _estimated(chain: Chain, runs: Sequence[tuple[int, str]], given: _Options, name: str) -> list[ProfileResult]:
    if given.layers is not None or given.share is not None or given.scale_to_whole:
        raise InputError("--layers, --share and --scale-to-whole: an estimate is of all layers on a whole device")
    peak = given_peak(name, [dtype for _, dtype in runs], given.peak_tflops, given.memory_gbps)
    return [estimate_chain(chain, peak, size, dtype, efficiency=given.efficiency) for size, dtype in runs]


def _measured(
    chain: Chain,
    runs: Sequence[tuple[int, str]],
    part: tuple[int, int],
    given: _Options,
    progress: Callable[[float], None],
    notice: Callable[[str], None],
) -> list[ProfileResult]:
    effort = Effort(given.warmup, given.repeats, max(200, given.repeats), seconds=given.seconds, calm_s=given.calm_s)
    results = []
    with placed_on(given.threads, given.cores):
        for number, (size, dtype) in enumerate(runs):

            def tell(done: float, number: int = number) -> None:
                progress(number + min(done, 1.0))

            results.append(
                profile_chain(
                    chain,
                    size,
                    dtype,
                    given.device,
                    first=part[0],
                    last=part[1],
                    effort=effort,
                    share=given.share,
                    scale_to_whole=given.scale_to_whole,
                    done=tell,
                )
            )
            if busy := results[-1].busy:
                notice(
                    f"batch size {size}, {dtype}: other programs took {100 * busy:.0f} % of the time, so times are "
                    "longer than they should be, and the profile is marked busy; --calm-s 60 waits for a calm machine"
                )
    return results
