"""Measure a function: each device alone until its sizes are known, and all of them together under a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, check_functions
from dovetail.core.files.document import as_path
from dovetail.core.files.output import atomic_write
from dovetail.core.rates import Rate, RateTable
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.run import JournalFile
from dovetail.dispatch.compat.options import KINDS, read_scheduler, scheduler_from, scheduler_from_flags
from dovetail.dispatch.inputs.devices import NodeDevice, resolve, several
from dovetail.dispatch.inputs.target import blamed, function_and_batch
from dovetail.dispatch.live.dispatcher import Dispatcher
from dovetail.dispatch.live.tuning_cache import hardware_name
from dovetail.dispatch.metrics import BatchReport, DispatchRun
from dovetail.dispatch.policies.base import Policy

UNIT = "items/s"
_WARM = 2
_RUNS = 12  # until sizes are settled; more are needed only when the batch is small


class Alone(Struct, frozen=True):
    """One device by itself: its best size, items per second there, and the curve that was measured."""

    device: str
    hardware: str
    size: int
    rate: float
    latency_s: float
    points: list[tuple[float, float]]
    settled: bool


class Together(Struct, frozen=True):
    """All devices together. `efficiency`: items per second over the sum of the devices alone."""

    policy: str
    rate: float
    efficiency: float
    items: dict[str, int]
    report: BatchReport
    recorded: DispatchRun


class Tuning(Comparison):
    """What was measured of each device alone, a row for each; `simulate` takes its `curves`."""

    def __init__(self, measured: Sequence[Alone], kind: str, types: Sequence[str] | None = None) -> None:
        super().__init__(
            [msgspec.structs.asdict(each) for each in measured],
            ["device", "hardware", "size", "rate", "latency_s", "settled"],
        )
        self.measured, self.kind = list(measured), kind
        self.types = list(types or [each.device for each in measured])

    @property
    def curves(self) -> dict[str, Any]:
        """The measured curves as a simulation reads them, also from a file."""
        return {"devices": {each.device: {"points": each.points} for each in self.measured}}

    def save_curves(self, path: str | PathLike[str]) -> Path:
        """Write the curves, for `dovetail dispatch simulate`."""
        place = as_path(path, "path")
        atomic_write(place, msgspec.json.format(msgspec.json.encode(self.curves)) + b"\n")
        return place

    def rates(self) -> RateTable:
        """The table other levels read, under the names of the devices' types: items/s, and relative to the first.

        >>> slow, fast = (Alone(name, "", 8, rate, 0.1, [], True) for name, rate in (("cpu", 10.0), ("cuda:0", 40.0)))
        >>> table = Tuning([slow, fast], "newton").rates()
        >>> table.rate("newton", "cuda:0"), table.per_s("newton", "cuda:0", "items/s")
        (4.0, 40.0)
        """
        rates = []
        for name, each in zip(self.types, self.measured, strict=True):
            rates.append(Rate(self.kind, name, each.rate / self.measured[0].rate, source="measured"))
            rates.append(Rate(self.kind, name, each.rate, source="measured", unit=UNIT))
        return RateTable(rates)


def tune(
    function: Any,
    batch: Any = None,
    *,
    devices: str | NodeDevice | Sequence[str | NodeDevice] = "cpu",
    shape: Sequence[int] | None = None,
    dtype: str = "float32",
    dim: int = 0,
    kind: str | None = None,
    types: str | Sequence[str] | None = None,
    cache: bool | str | Path = True,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Find each device's best sub-batch size and its rate.

    Each device runs the batch by itself, in chunks that grow until larger ones gain nothing. What was found is kept for
    later runs of the same function on batches of the same form.

    >>> import torch
    >>> found = tune(torch.sin, torch.rand(2000), cache=False)
    >>> found[0]["device"], found.rates().rate("sin", "cpu")
    ('cpu', 1.0)

    Parameters
    ----------
    function, batch
        The function or module and its batch, or text that names them as `file.py:name`.
    devices
        Names such as `cuda:0` and `cpu`, or `Device`s.
    shape, dtype
        Instead of a batch: the shape of one of random numbers, and their type.
    dim
        The dimension of the batch.
    kind, types
        What the function and the devices are called in the rate table; by default, as they are.
    cache
        Where curves are kept between programs: True for the user's cache folder, False for nowhere.
    progress
        Called with how many devices are measured, and how many there are.
    """
    check_functions(progress=progress)
    found = resolve(devices)
    called = several("types", types) if types is not None else [device.name for device in found]
    if len(set(called)) != len(found):
        raise InputError(f"types {','.join(called)}: expected {len(found)} different names, one for each device")
    made, given = function_and_batch(function, batch, shape, dtype)
    measured = []
    with blamed(function):
        for device in found:
            measured.append(_alone(made, given, device, dim, cache))
            if progress is not None:
                progress(len(measured), len(found))
    return Tuning(measured, kind or _named(function), called)


def _named(function: Any) -> str:
    if isinstance(function, str):
        return function.rpartition(":")[2]
    return str(getattr(function, "__name__", type(function).__name__))


def _alone(
    function: Any, batch: Any, device: NodeDevice, dim: int, cache: bool | str | Path = True, backend: str = "thread"
) -> Alone:
    """Run the batch on one device until the best size is known; the chunks are real work."""
    with Dispatcher(function, [device], "finish_together", dim=dim, cache=cache, backend=backend) as dispatcher:
        for _ in range(_RUNS):
            dispatcher.attempt(batch).unwrap()
            (state,) = dispatcher.tuning.latest()
            if state.settled:
                break
        best = max(dispatcher.attempt(batch).report.rate for _ in range(3))
        (state,) = dispatcher.tuning.latest()
        points = state.curve.points if state.curve is not None else []
        latency_s = points[0][1] if points else 0.0
        return Alone(device.name, hardware_name(device), state.best, best, latency_s, points, state.settled)


class Benchmark(Comparison):
    """Each device alone and all together, a row for each run: items per second, and the share of the devices' sum.

    `recorded` is the median run of the last policy.
    """

    def __init__(self, alone: Sequence[Alone], together: Sequence[Together]) -> None:
        self.alone, self.together = list(alone), list(together)
        rows: list[dict[str, Any]] = [
            {"run": f"{each.device} alone", "rate": each.rate, "efficiency": None, "size": each.size} for each in alone
        ]
        rows += [{"run": run.policy, "rate": run.rate, "efficiency": run.efficiency, "size": None} for run in together]
        super().__init__(rows)
        self.recorded = self.together[-1].recorded


class _Contender(NamedTuple):
    """A dispatcher to be measured, what it is called in the table, and its back end."""

    name: str
    dispatcher: Dispatcher
    backend: str = "thread"


def bench(
    function: Any,
    batch: Any = None,
    *,
    devices: str | NodeDevice | Sequence[str | NodeDevice] | None = None,
    shape: Sequence[int] | None = None,
    dtype: str = "float32",
    dim: int | None = None,
    policies: str | Policy | type[Policy] | Sequence[str | Policy | type[Policy]] | None = None,
    options: Mapping[str, Any] | None = None,
    scheduler: str | PathLike[str] | None = None,
    name: str | None = None,
    repeats: int = 5,
    journal: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Benchmark:
    """Run a function on each device alone and on all together, under one or several policies or as a scheduler says.

    >>> import torch
    >>> found = bench(torch.sin, torch.rand(2000), repeats=1)
    >>> [row["run"] for row in found], found.together[0].items
    (['cpu alone', 'finish_together'], {'cpu': 2000})

    Parameters
    ----------
    function, batch, shape, dtype, dim
        As `tune` takes them.
    devices
        Names such as `cuda:0` and `cpu`, or `Device`s; the CPU by default.
    policies
        Names or policies of your own; finish_together by default.
    scheduler, name
        Instead of devices and policies: a YAML or JSON file of schedulers and which of them, or the type of one, such
        as SimpleScheduler.
    options
        Of the one policy, or of the scheduler of that type.
    repeats
        Runs of each; the median counts.
    journal
        Where the median run is recorded; for one policy or scheduler.
    progress
        Called with how many are measured, and how many there are.
    """
    check_functions(progress=progress)
    if not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats {repeats!r}: expected a whole number of at least 1")
    chosen = several("policies", "finish_together" if policies is None else policies)
    if len(chosen) != 1 and (journal is not None or options):
        what = "journal: is of one run" if journal is not None else "options: belongs to one policy"
        raise InputError(f"{what}; found {len(chosen)} policies")
    place = None if journal is None else as_path(journal, "journal")
    if scheduler is not None and (devices is not None or policies is not None):
        raise InputError("scheduler: says which devices and policy; leave devices and policies out")
    if scheduler is None and name is not None:
        raise InputError("name: is of a scheduler; give scheduler too")
    made, given = function_and_batch(function, batch, shape, dtype)
    with ExitStack() as stack, blamed(function):
        if scheduler is not None:
            contenders = [_by_scheduler(made, scheduler, name, options, dim, stack)]
        else:
            on = "cpu" if devices is None else devices
            each = [Dispatcher(made, on, policy, options=options, dim=dim or 0) for policy in chosen]
            contenders = [_Contender(d.policy_name, stack.enter_context(d)) for d in each]
        return _measured(made, given, contenders, repeats, place, progress or _silent)


def _silent(done: int, total: int) -> None:
    pass


def _by_scheduler(
    function: Any,
    source: str | PathLike[str],
    name: str | None,
    options: Mapping[str, Any] | None,
    dim: int | None,
    stack: ExitStack,
) -> _Contender:
    if source in KINDS:
        if name is not None:
            raise InputError(f"name {name}: is of a file; scheduler {source} is a type")
        words = all(isinstance(value, str) for value in (options or {}).values())
        read = scheduler_from_flags(str(source), options or {}) if words else None
        chosen = read or scheduler_from({"type": source, **(options or {})})
    elif options:
        raise InputError("options: belong to a type of scheduler, or to one policy; a file has its options in itself")
    elif Path(source).suffix:
        chosen = read_scheduler(Path(source), name)
    else:
        raise InputError(f"scheduler {source}: expected a .yml, .yaml or .json file, or one of {', '.join(KINDS)}")
    if hasattr(chosen.scheduler, "close"):
        stack.callback(chosen.scheduler.close)
    given = {} if dim is None else {"dim": dim}
    backend = chosen.run_options.get("backend", "thread")
    return _Contender(name or chosen.type, stack.enter_context(chosen.dispatcher(function, **given)), backend)


def _measured(
    function: Any,
    batch: Any,
    contenders: Sequence[_Contender],
    repeats: int,
    journal: Path | None,
    progress: Callable[[int, int], None],
) -> Benchmark:
    """Each device of the first contender alone, then every contender."""
    _, first, backend = contenders[0]
    total = len(first.devices) + len(contenders)
    alone, runs = [], []
    for device in first.devices:
        plain = msgspec.structs.replace(device, size=None, capacity=None, priority=1.0)
        alone.append(_alone(function, batch, plain, first.dim, backend=backend))
        progress(len(alone), total)
    for name, dispatcher, _ in contenders:
        runs.append(_together(dispatcher, batch, name, alone, repeats, journal))
        progress(len(alone) + len(runs), total)
    return Benchmark(alone, runs)


def _together(
    dispatcher: Dispatcher, batch: Any, name: str, alone: Sequence[Alone], repeats: int, journal: Path | None
) -> Together:
    """Run the batch on all devices of a dispatcher: twice to warm up, then the median of some runs and its journal."""
    for _ in range(_WARM):
        dispatcher.attempt(batch).unwrap()
    outcomes = []
    with TemporaryDirectory(dir=journal.parent if journal is not None else None) as folder:
        for i in range(repeats):
            if journal is not None:
                dispatcher.journal = Path(folder) / str(i)
            outcomes.append(dispatcher.attempt(batch))
            outcomes[-1].unwrap()
        median = sorted(range(repeats), key=lambda i: outcomes[i].report.rate)[repeats // 2]
        if journal is not None:
            (Path(folder) / str(median)).replace(journal)
    report, recorded = outcomes[median].report, outcomes[median].recorded
    if journal is not None:
        recorded = DispatchRun(JournalFile(journal), recorded.metrics)
    items = {device.name: device.items for device in report.devices}
    return Together(name, report.rate, report.rate / sum(each.rate for each in alone), items, report, recorded)
