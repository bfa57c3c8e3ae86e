"""The level's own rules over a run: prices, residents, durations, memory, bounds, and agreement with the input files.

They apply to journals and, through the same events, to execution logs: ours, and those of the older schedulers, which
leave out much of what a checker needs; a report says what could not be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core import check as core
from dovetail.core.check import Check
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Reject, Start
from dovetail.core.files import explain
from dovetail.core.findings import Findings, Report, close, compare
from dovetail.core.journal import Ended, Header, Observer, Reader, TaskGraphRecord
from dovetail.core.metrics import Figures, recount
from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.core.resources import DeviceType
from dovetail.workflow.bounds import Bounds, bounds_for
from dovetail.workflow.costs import Costs, ModelCost, Residents
from dovetail.workflow.inputs import OnError, check_fit, read_system
from dovetail.workflow.outputs import summary
from dovetail.workflow.requests import Mode, Requests

CODES = core.CODES | {
    "model": "a model that is not described, or not as wide as the nodes that use it",
    "run": "an expected run time that is not size / speed",
    "price": "a setup that does not cost what the residents of its GPUs make it cost",
    "window": "a node on GPUs that are not neighbours",
    "replaces": "a model said to be replaced that is not the one",
    "memory": "a model on a GPU that is too small for it",
    "retry": "a node tried more often than was allowed",
    "bound": "a figure below its lower bound: no schedule can be that good",
    "config": "a model, a workflow or a GPU type that differs from the configuration file",
    "requests": "a request that differs from the file, is not in it, or is missing from the run",
    "row": "a row of an execution log that contradicts itself",
}
_CLAIMS = ("makespan_s", "switches", "switch_time_s", "avg_request_s", "p99_request_s", "completed", "rejected")


class Rates(Struct):
    rates: list[Rate] = []
    switches: list[Switch] = []


class Facts(Struct):
    """What the level knows of a run besides its pool and shapes, as its header keeps it."""

    models: dict[str, ModelCost] = {}
    costs: Costs = Costs()
    compat: bool = False
    simulate: bool = False
    rates: Rates = field(default_factory=Rates)
    noise: float | None = None
    retries: int = 0
    skipped: int = 0
    requests: dict[str, Any] = {}

    @classmethod
    def of(cls, header: Header, path: Path) -> Facts:
        try:
            return msgspec.convert(header.facts, cls)
        except msgspec.ValidationError as error:
            keys, message = explain(error)
            raise InputError(f"{path}:1: facts.{'.'.join(map(str, keys))}: {message}") from None

    @property
    def table(self) -> RateTable:
        return RateTable(self.rates.rates, self.rates.switches)

    @property
    def exact(self) -> bool:
        """Whether everything took as long as was expected."""
        return not self.simulate and not (self.costs.noise if self.noise is None else self.noise)


class Rules:
    """Recounts what each start must cost and take, from the header's facts and what ran before."""

    def __init__(self, header: Header, facts: Facts, faults: Findings) -> None:
        self._facts = facts
        self._faults = faults
        self._shapes = header.build_graphs()
        self._rates = facts.table
        self._types = [device.type for device in header.pool.devices]
        self._speeds, self._memories = header.pool.speeds, header.pool.memories
        self.residents = Residents(header.pool, facts.models, facts.costs, self._rates)
        self.priced = True  # off where a log does not say what a switch took
        self.names_replaced = True  # off where a log does not say what was replaced
        self.guesses: Callable[[str, float, float], bool] | None = None  # other run times that may stand
        self._arrived: dict[str, Arrived] = {}
        self._failed: dict[tuple[str, str], int] = {}
        for shape in self._shapes.values():
            for part in shape.tasks:
                model = facts.models.get(part.kind)
                if model is None:
                    faults.add("model", f"{shape.name}/{part.name}", f"found {part.kind!r}, which is not described")
                elif model.width != part.width:
                    found = f"found {part.width} GPUs, expected {model.width} for {part.kind!r}"
                    faults.add("model", f"{shape.name}/{part.name}", found)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        batches: dict[int, list[Start]] = {}
        for event in events:
            if isinstance(event, Start) and event.batch:
                batches.setdefault(event.batch, []).append(event)
        for event in events:
            kind = type(event)
            if kind is Start:
                members = batches.get(event.batch, [event])
                if members[0] is event:
                    self._check(members)
            elif kind is Arrived:
                self._arrived[event.job] = event
            elif kind is Complete or kind is Reject:
                self._arrived.pop(event.job, None)
            elif kind is Failed:
                key = (event.job, event.task)
                self._failed[key] = self._failed.get(key, 0) + 1

    def _check(self, members: Sequence[Start]) -> None:
        start = members[0]
        who, model = f"{start.job}/{start.task}", self._facts.models.get(start.kind)
        if model is None:
            self._faults.add("model", who, f"found {start.kind!r}, which is not described")
            return
        if start.devices and start.devices != tuple(range(start.devices[0], start.devices[0] + len(start.devices))):
            self._faults.add("window", who, f"found GPUs {list(start.devices)}, expected neighbours")
        for member in members:
            failed = self._failed.get((member.job, member.task), 0)
            if failed > self._facts.retries:
                message = f"started after {failed} failures, expected at most {self._facts.retries} retries"
                self._faults.add("retry", f"{member.job}/{member.task}", message)
        if len(members) > 1 and (not self._facts.costs.batching or len(members) > len(model.batch_curve)):
            allowed = max(len(model.batch_curve), 1) if self._facts.costs.batching else 1
            self._faults.add("batch", who, f"found {len(members)} nodes in one batch, expected at most {allowed}")
        else:
            self._check_run(members, who, model)
        for gpu in start.devices:
            memory = self._memories[gpu]
            if memory is not None and memory < model.shard_mib:
                found = f"{start.kind!r} needs {model.shard_mib} MiB, GPU {gpu} has {memory}"
                self._faults.add("memory", who, found)
        self._check_setup(start, who)

    def _check_run(self, members: Sequence[Start], who: str, model: ModelCost) -> None:
        sizes = [self._size(start) for start in members]
        if None in sizes:
            return  # of unknown works or parts, which is a fault already
        start, size = members[0], max(size for size in sizes if size is not None)
        expected = size / self._speed(start) if start.devices else size
        if len(members) > 1:
            expected *= model.batch_curve[len(members) - 1]
        if not close(start.run_s, expected) and not (
            self.guesses is not None and self.guesses(start.kind, start.run_s, size)
        ):
            self._faults.add("run", who, f"found run_s {start.run_s}, expected {expected}")

    def _size(self, start: Start) -> float | None:
        arrived = self._arrived.get(start.job)
        shape = self._shapes.get(arrived.of) if arrived is not None else None
        if arrived is None or shape is None or len(arrived.sizes) != len(shape.tasks):
            return None
        i = shape.index.get(start.task)
        return None if i is None else arrived.sizes[i]

    def _speed(self, start: Start) -> float:
        rate, width = self._rates.rate, len(start.devices)
        return min(rate(start.kind, self._types[gpu], width) or self._speeds[gpu] for gpu in start.devices)

    def _check_setup(self, start: Start, who: str) -> None:
        residents, gpus = self.residents, start.devices
        whole = residents.setup(gpus, start.kind) if gpus else 0.0
        replaces = residents.replaced(gpus, start.kind) if whole else None
        expected = residents.visible(whole, start.run_s)
        if self.priced and not close(start.setup_s, expected):
            held = {gpu: list(residents.held[gpu]) for gpu in gpus}
            message = f"found setup_s {start.setup_s}, expected {expected} for {start.kind!r} on GPUs that hold {held}"
            self._faults.add("price", who, message)
        if self.names_replaced and start.replaces != replaces:
            self._faults.add("replaces", who, f"found {start.replaces!r}, expected {replaces!r}")
        residents.load(gpus, start.kind)


class Lower:
    """Holds the figures of a run against its lower bounds, and keeps what the run claims of itself."""

    def __init__(self, header: Header, facts: Facts, faults: Findings, free_setups: bool = False) -> None:
        self._faults = faults
        self._shapes = header.build_graphs()
        self._bounds = bounds_for(header.pool, self._shapes, facts.models, facts.costs, facts.table, free_setups)
        self.void = self._bounds.void or ("" if facts.exact else "run times are not exact")
        self.claimed: dict[str, Any] | None = None

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._bounds.step(n, t, [event for event in events if type(event) is not Arrived or self._counts(event)])
        for event in events:
            if isinstance(event, Ended):
                self.claimed = event.summary

    def _counts(self, event: Arrived) -> bool:
        shape = self._shapes.get(event.of)
        return shape is not None and len(event.sizes) == len(shape.tasks)

    def finish(self, figures: Figures, notes: list[str]) -> Bounds:
        bounds = self._bounds.result()
        if self.void:
            notes.append(f"bounds were not checked: {self.void}")
            return bounds
        for name, found, bound in (
            ("makespan", figures.makespan_s, bounds.makespan_s),
            ("mean response", figures.response_s.mean, bounds.mean_s),
            ("median response", figures.response_s.median, bounds.median_s),
            ("P99 response", figures.response_s.p99, bounds.p99_s),
        ):
            if found < bound and not close(found, bound):
                self._faults.add("bound", name, f"found {found} s, but no schedule is below {bound} s")
        return bounds


class Files:
    """Holds a run against the files it is said to be of."""

    def __init__(self, header: Header, facts: Facts, faults: Findings, config: Path, requests: Path | None) -> None:
        self._faults = faults
        self.notes: list[str] = []
        on_error: OnError = "skip" if facts.skipped else "reject"
        system = read_system(config, on_error, facts.compat)
        if facts.costs != system.costs:
            self.notes.append(
                "the costs of the run are not those of the configuration: --cost or --compat changed them"
            )
        check_fit(system, header.pool, config, on_error, facts.compat, facts.table)
        shapes = {name: TaskGraphRecord.of(shape) for name, shape in system.shapes().items()}
        types = {"gpu": DeviceType("gpu")} | system.gpu_types  # the plain type needs no description
        for what, found, expected in (
            ("models", facts.models, system.model_costs),
            ("workflows", {record.name: record for record in header.graphs}, shapes),
            ("gpu_types", header.pool.types, {name: types.get(name) for name in header.pool.types}),
        ):
            for name in {**found, **expected}:
                self._compare(f"{what}.{name}", found.get(name), expected.get(name))
        self._arrivals: Iterator[tuple[float, Arrived]] | None = None
        if requests is not None:
            mode: Mode = "online" if header.mode == "online" else "offline"
            self._arrivals = Requests(requests, system, mode, on_error, facts.compat).arrivals()
        self._pending: dict[str, tuple[float, Arrived]] = {}

    def _compare(self, what: str, found: Any, expected: Any) -> None:
        if isinstance(found, TaskGraphRecord) and isinstance(expected, TaskGraphRecord):
            same = found.tasks == expected.tasks and found.never == expected.never
            if same and set(found.edges) == set(expected.edges):
                return
        if found != expected:
            message = f"found {_brief(found)}, expected {_brief(expected)} as in the configuration"
            self._faults.add("config", what, message)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Arrived and self._arrivals is not None:
                self._compare_arrival(t, event, self._arrivals)

    def _compare_arrival(self, t: float, event: Arrived, arrivals: Iterator[tuple[float, Arrived]]) -> None:
        given = self._pending.pop(event.job, None)
        while given is None:
            coming = next(arrivals, None)
            if coming is None:
                self._faults.add("requests", event.job, "is not in the file of requests")
                return
            if coming[1].job == event.job:
                given = coming
            else:
                self._pending[coming[1].job] = coming
        expected_s, expected = given
        if not close(t, expected_s):
            self._faults.add("requests", event.job, f"arrived at {t} s, expected {expected_s} s")
        for name in ("of", "sizes", "due_s", "weight"):
            found, wanted = getattr(event, name), getattr(expected, name)
            if found != wanted and not (name != "of" and event.fault and expected.fault):
                self._faults.add("requests", event.job, f"found {name} {found!r}, expected {wanted!r}")
        if bool(event.fault) != bool(expected.fault):
            message = f"found fault {event.fault!r}, expected {expected.fault or 'none'!r}"
            self._faults.add("requests", event.job, message)

    def finish(self) -> None:
        for work in self._pending:
            self._faults.add("requests", work, "is in the file of requests, but not in the run")
        for _, arrived in self._arrivals or ():
            self._faults.add("requests", arrived.job, "is in the file of requests, but not in the run")


def _brief(value: Any) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."


def check_journal(path: Path, config: Path | None = None, requests: Path | None = None, limit: int = 20) -> Report:
    """Check a journal of this level, and whether it is a run of these files."""
    need_config(config, requests)
    reader, faults = Reader(path), Findings(limit)
    header = core.check_header(reader.header, path)
    run = Examined(path, header, faults)
    run.hold_to_rules(config, requests)
    figures, bounds = run.follow(core.read_steps(reader, faults), reader)
    if run.lower.claimed is not None:
        check_claims(run.lower.claimed, summary(header, figures, bounds, run.facts.skipped), figures, faults)
    return run.report("journal", figures, bounds)


def check_claims(claimed: Mapping[str, Any], expected: Mapping[str, Any], figures: Figures, faults: Findings) -> None:
    """The keys of the summary that the core does not know, and those that may not be left out."""
    known = recount(figures)
    compare(claimed, {k: v for k, v in expected.items() if isinstance(v, int | float) and k not in known}, faults)
    for key in ("policy", "mode"):
        if key in claimed and claimed[key] != expected[key]:
            faults.add("summary", key, f"found {claimed[key]!r}, expected {expected[key]!r}")
    for key in _CLAIMS:
        if key not in claimed:
            faults.add("summary", key, "is missing")


def need_config(config: Path | None, requests: Path | None) -> None:
    if requests is not None and config is None:
        raise InputError("--requests needs --config: requests name the workflows of a configuration")


Steps = Iterable[tuple[int, float, list[Any]]]


class Examined:
    """A run told in events, from whatever file: the core's invariants, its bounds, and what else follows it."""

    def __init__(self, path: Path, header: Header, faults: Findings, free_setups: bool = False) -> None:
        self.path = path
        self.header = header
        self.faults = faults
        self.facts = Facts.of(header, path)
        self.notes: list[str] = []
        self.lower = Lower(header, self.facts, faults, free_setups)
        self.followers: list[Observer] = [self.lower]
        self._files: Files | None = None

    def hold_to_rules(self, config: Path | None, requests: Path | None) -> None:
        """The level's rules, and the files that the run is said to be of."""
        if self.facts.simulate:
            self.notes.append("prices and run times were not checked: they were measured, not computed")
        else:
            self.followers.append(Rules(self.header, self.facts, self.faults))
        if config is not None:
            self._files = Files(self.header, self.facts, self.faults, config, requests)
            self.followers.append(self._files)

    def follow(self, steps: Steps, reader: Reader | None = None) -> tuple[Figures, Bounds]:
        check = Check(self.header, self.faults, self.followers, self.facts.exact)
        for n, t, events in steps:
            check.step(n, t, events)
        figures = check.finish(reader is not None and reader.torn)
        total = self.facts.requests.get("total")
        if total is not None and total != figures.arrived + self.facts.skipped:
            found = f"found {figures.arrived} arrivals and {self.facts.skipped} skipped, expected {total}"
            self.faults.add("requests", "", found)
        if self._files is not None:
            self._files.finish()
            self.notes += self._files.notes
        return figures, self.lower.finish(figures, self.notes)

    def report(self, kind: str, figures: Figures, bounds: Bounds) -> Report:
        below = {"bound_makespan_s": bounds.makespan_s, "bound_mean_s": bounds.mean_s, "bound_p99_s": bounds.p99_s}
        return Report.of(str(self.path), kind, self.faults, self.notes, recount(figures) | below)
