"""How long each layer of a chain takes on this device, what it holds, and how that compares with the whole."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from dovetail.core.errors import InputError
from dovetail.core.results.frames import as_frame, columns_of
from dovetail.pipeline.hardware import BUSY, Disturbance, check_device, device_name
from dovetail.pipeline.inputs.problem import MIB, TiedWeights
from dovetail.pipeline.models.spec import Chain, need_torch, one_line

if TYPE_CHECKING:
    import torch

    from dovetail.pipeline.models.spec import Value


class LayerProfile(Struct, frozen=True, kw_only=True):
    """A layer's median time with its spread (the interquartile range), weights, highest use by activations, shapes.

    Shapes are without the batch dimension, one for each tensor. `memory_mib` is of the weights alone.
    """

    layer: int
    name: str
    time_s: float
    spread_s: float
    repeats: int
    memory_mib: float
    activation_mib: float
    shape_in: tuple[tuple[int, ...], ...]
    shape_out: tuple[tuple[int, ...], ...]


class ProfileResult(Struct, frozen=True, kw_only=True):
    """The layers first..last of a model. `whole_s` is the time of all of them in one go; `share` 0 is no limit; `busy`
    is the part of the time that other programs took, 0 if next to none."""

    model: str
    layers: int
    batch_size: int
    dtype: str
    device: str
    threads: int
    profile: tuple[LayerProfile, ...]
    whole_s: float
    share: float = 0.0
    source: Literal["measured", "estimated"] = "measured"
    busy: float = 0.0
    tied: tuple[TiedWeights, ...] = ()

    @property
    def sum_s(self) -> float:
        """What a planner takes the whole to be: the layers' times, added."""
        return sum(layer.time_s for layer in self.profile)

    def frame(self) -> Any:
        """A row per layer: a frame of pandas or polars where one is installed, else columns."""
        return as_frame(columns_of([asdict(layer) for layer in self.profile]))

    def __repr__(self) -> str:
        of = f"{self.model}: {len(self.profile)} layers, batches of {self.batch_size}, {self.dtype}"
        return f"<ProfileResult {of}, {self.source} for {self.device}: {self.sum_s:.6g} s>"


class Effort(Struct, frozen=True):
    """How long to measure: after the warm-up, rounds until the medians are sure to within `precision`, or a limit."""

    warmup: int = 3
    least: int = 7
    most: int = 200
    precision: float = 0.02
    seconds: float = 0.5  # for each layer, on average
    calm_s: float = 0.0  # how long to wait for a calm machine, if other programs disturbed

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 1 <= self.least <= self.most:
            raise InputError(f"repeats: expected 1 <= least <= most, found {self.least} and {self.most}")
        if not 0 < self.seconds < inf:
            raise InputError(f"seconds: expected more than 0, found {self.seconds:g}")
        if not 0 <= self.calm_s < inf:
            raise InputError(f"calm-s: expected 0 or more, found {self.calm_s:g}")


def profile_chain(
    chain: Chain,
    batch_size: int = 8,
    dtype: str = "torch.float32",
    device: str = "cpu",
    *,
    first: int = 1,
    last: int | None = None,
    effort: Effort | None = None,
    seed: int = 0,
    share: float | None = None,
    scale_to_whole: bool = False,
    done: Callable[[float], None] = lambda _: None,
) -> ProfileResult:
    """Measure the layers first..last (all by default), each with what the one before it gives.

    They are run round after round, not each many times over: so a layer finds the caches as it does in a pipeline, and
    a slow moment of the machine is shared by all. `done` is told how much is done, from 0 to 1.

    `scale_to_whole` scales the layers' times so that their sum is that of the whole. `share` implies it: the whole is
    run for a second with so many cores' time, and its mean taken. The layers are timed without that limit: it is kept
    by pauses, which may always hit the same ones of layers that are run in turn.
    """
    torch = need_torch("profiling")
    last = len(chain.layers) if last is None else last
    if batch_size < 1:
        raise InputError(f"batch size: expected 1 or more, found {batch_size}")
    check_device(device)
    effort = effort or Effort()
    if not 1 <= first <= last <= len(chain.layers):
        raise InputError(f"layers {first} to {last}: {chain.name} has layers 1 to {len(chain.layers)}")
    value = chain.inputs(batch_size, dtype, device, seed)
    for layer in range(1, first):  # one at a time: together they may not fit
        value = chain.part(layer, layer, device, dtype)(value)
    runs = {i: chain.part(i, i, device, dtype) for i in range(first, last + 1)}
    values, used = _first_pass(chain, runs, value, device)
    rounds = partial(timed_rounds, list(runs.values()), values, device)
    times, busy = calm_rounds(rounds, effort, done)
    del rounds, runs  # before the whole is placed: a large model fits once, not twice
    with _limited(share):
        whole_s = _whole_s(chain.part(first, last, device, dtype), value, device, effort, share is not None)
    medians = [statistics.median(taken) for taken in times]
    scale = whole_s / sum(medians) if scale_to_whole or share is not None else 1.0
    layers = [
        LayerProfile(
            layer=first + i,
            name=chain.names[first + i - 1],
            time_s=medians[i] * scale,
            spread_s=spread(taken) * scale,
            repeats=len(taken),
            memory_mib=weight_bytes(chain.layers[first + i - 1], dtype) / MIB,
            activation_mib=used[i] / MIB,
            shape_in=shapes(values[i]),
            shape_out=shapes(values[i + 1]),
        )
        for i, taken in enumerate(times)
    ]
    return ProfileResult(
        model=chain.name,
        layers=len(chain.layers),
        batch_size=batch_size,
        dtype=dtype,
        device=device_name(device),
        threads=torch.get_num_threads(),
        profile=tuple(layers),
        whole_s=whole_s,
        share=share or 0.0,
        busy=round(busy, 3) if busy > BUSY else 0.0,
        tied=tied_weights(chain, dtype),
    )


def _first_pass(
    chain: Chain, runs: Mapping[int, Callable[[Value], Value]], value: Value, device: str
) -> tuple[list[Value], list[int]]:
    """What goes into each layer, and what comes out of the last; the most bytes that each of them held."""
    values, used = [value], []
    for i, run in runs.items():
        try:
            out, most_bytes = highest_use(run, values[-1], device)
        except Exception as error:  # a layer raises whatever it finds wrong with its input
            where = f"{chain.name}: layer {i} ({chain.names[i - 1]})"
            raise InputError(f"{where} fails on items of {shapes(values[-1])}: {one_line(error)}") from error
        values.append(out)
        used.append(most_bytes)
    return values, used


@contextmanager
def _limited(share: float | None) -> Iterator[None]:
    """With a share of the processor, if one is given."""
    if share is None:
        yield
        return
    from dovetail.core.cgroups import CpuShare

    limit = CpuShare(os.getpid(), share)
    try:
        yield
    finally:
        limit.release()


def _whole_s(run: Callable[[Value], Value], value: Value, device: str, effort: Effort, paused: bool) -> float:
    """Seconds of all layers in one go."""
    if not paused:
        return statistics.median(timed_rounds([run], [value], device, effort)[0])
    long = replace(effort, most=10**9, precision=0.0, seconds=max(effort.seconds, 1.0))  # many slices
    return statistics.fmean(timed_rounds([run], [value], device, long)[0])


def calm_rounds(
    rounds: Callable[[Effort, Callable[[float], None]], list[list[float]]],
    effort: Effort,
    done: Callable[[float], None],
) -> tuple[list[list[float]], float]:
    """Rounds, once more if other programs disturbed them and the machine is calm before `effort.calm_s` are over; of
    two, the less disturbed, and how much that was."""
    watch = Disturbance()
    times, busy = rounds(effort, done), watch.share()
    limit = monotonic() + effort.calm_s
    while busy > BUSY and monotonic() < limit:
        watch = Disturbance()
        first = rounds(replace(effort, warmup=0, least=1, most=1), lambda _: None)
        if watch.share() > BUSY:
            sleep(min(sum(map(sum, first)), max(limit - monotonic(), 0.0)))  # half of the time is left to the others
            continue
        watch = Disturbance()
        again, share = rounds(effort, lambda _: None), watch.share()
        if share < busy:
            times, busy = again, share
    return times, busy


def timed_rounds(
    runs: Sequence[Callable[[Value], Value]],
    values: Sequence[Value],
    device: str,
    effort: Effort,
    done: Callable[[float], None] = lambda _: None,
) -> list[list[float]]:
    """Seconds of each call of each of these; the median of every one is sure, or the time is over."""
    import torch

    is_cuda = torch.device(device).type == "cuda"

    def once() -> list[float]:
        found = []
        for run, value in zip(runs, values, strict=False):
            if is_cuda:
                torch.cuda.synchronize(device)
            start = perf_counter()
            run(value)
            if is_cuda:
                torch.cuda.synchronize(device)
            found.append(perf_counter() - start)
        return found

    return rounds_of(once, effort, done)


def rounds_of(
    once: Callable[[], Sequence[float]], effort: Effort, done: Callable[[float], None] = lambda _: None
) -> list[list[float]]:
    """Seconds of each part of what is done again and again; the median of every one is sure, or the time is over."""
    for _ in range(effort.warmup):
        once()
    times: list[list[float]] = []
    begin = perf_counter()
    for count in range(1, effort.most + 1):
        found = once()
        times = times or [[] for _ in found]
        for taken, seconds in zip(times, found, strict=True):
            taken.append(seconds)
        passed, limit = perf_counter() - begin, effort.seconds * len(found)
        done(min(max(count / effort.most, passed / limit if count >= effort.least else 0.0), 1.0))
        if count >= effort.least and (passed > limit or _sure(times, effort.precision)):
            break
    return times


def _sure(times: Sequence[Sequence[float]], precision: float) -> bool:
    """Whether the error of every median is small beside an average layer (a tiny layer's own does not matter).

    A median's standard error is about 0.93 of the interquartile range over the root of the count.
    """
    average = statistics.fmean(map(statistics.median, times))
    return all(
        0.93 * spread(taken) / len(taken) ** 0.5 <= precision * max(average, statistics.median(taken))
        for taken in times
    )


def spread(times: Sequence[float]) -> float:
    """The interquartile range.

    >>> spread([1.0, 2.0, 3.0, 4.0, 100.0]), spread([1.0])
    (2.0, 0.0)
    """
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def shapes(value: Value) -> tuple[tuple[int, ...], ...]:
    """The shapes of a value's tensors without the batch dimension."""
    tensors = value if isinstance(value, tuple) else (value,)
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors)


def weight_bytes(layer: Any, dtype: str) -> int:
    """Bytes of a layer's parameters and buffers in a dtype; those that are shared within it count once."""
    if hasattr(layer, "weight_bytes"):
        return int(layer.weight_bytes)
    tensors = {id(t): t for t in (*layer.parameters(), *layer.buffers())}.values()
    return sum(_bytes(tensor, dtype) for tensor in tensors)


def tied_weights(chain: Chain, dtype: str) -> tuple[TiedWeights, ...]:
    """What layers share: by which of them, the MiB of the tensors that all these hold."""
    holders: dict[int, list[int]] = {}
    tensors = {}
    layer: Any
    for number, layer in enumerate(chain.layers, 1):
        if not hasattr(layer, "weight_bytes"):
            for key, tensor in {id(t): t for t in layer.parameters()}.items():
                holders.setdefault(key, []).append(number)
                tensors[key] = tensor
    shared: dict[tuple[int, ...], int] = {}
    for key, layers in holders.items():
        if len(layers) > 1:
            shared[tuple(layers)] = shared.get(tuple(layers), 0) + _bytes(tensors[key], dtype)
    return tuple(TiedWeights(list(layers), size / MIB) for layers, size in shared.items())


def _bytes(tensor: torch.Tensor, dtype: str) -> int:
    from dovetail.pipeline.models.spec import torch_dtype

    return tensor.numel() * (torch_dtype(dtype).itemsize if tensor.is_floating_point() else tensor.element_size())


def highest_use(run: Callable[[Value], Value], value: Value, device: str) -> tuple[Value, int]:
    """The result of a call, and the most bytes that tensors made by it held at one time (its result included)."""
    import torch

    if torch.device(device).type == "cuda":
        run(value)  # libraries allocate their workspace on the first call
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = run(value)
        torch.cuda.synchronize(device)
        return out, max(0, torch.cuda.max_memory_allocated(device) - before)
    from dovetail.pipeline.profile.live_bytes import LiveBytes

    with LiveBytes() as live:
        out = run(value)
    return out, max(live.highest, tensor_bytes(out))


def tensor_bytes(value: Value) -> int:
    """Bytes of a value's tensors."""
    return sum(t.numel() * t.element_size() for t in (value if isinstance(value, tuple) else (value,)))
