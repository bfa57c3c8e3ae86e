"""The level's own rules over a run: prices, residents, durations, memory, bounds, and agreement with the input files.

They apply to journals and, through the same events, to execution logs: ours, and those of the older schedulers, which
leave out much of what a checker needs; a report says what could not be checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, ulp
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from dovetail.core import check as core
from dovetail.core.check import Check, Faults, Report, close, compare, recount
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.files import explain, read_bytes
from dovetail.core.journal import Ended, Header, Observer, Reader, ShapeRecord
from dovetail.core.metrics import Figures
from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.work import Part, Shape
from dovetail.workflow.bounds import Bounds, BoundsAccumulator
from dovetail.workflow.costs import Costs, ModelCost, Residents, least_setup
from dovetail.workflow.inputs import DEFAULT_NODE_S, OnError, System, check_fit, read_system
from dovetail.workflow.outputs import RequestRow, log_summary, summary
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


class _Rates(Struct):
    rates: list[Rate] = []
    switches: list[Switch] = []


class Facts(Struct):
    """What the level knows of a run besides its pool and shapes, as its header keeps it."""

    models: dict[str, ModelCost] = {}
    costs: Costs = Costs()
    compat: bool = False
    simulate: bool = False
    rates: _Rates = field(default_factory=_Rates)
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

    def __init__(self, header: Header, facts: Facts, faults: Faults) -> None:
        self._facts = facts
        self._faults = faults
        self._shapes = header.build_shapes()
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
            for part in shape.parts:
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
                self._arrived[event.work] = event
            elif kind is Complete or kind is Reject:
                self._arrived.pop(event.work, None)
            elif kind is Failed:
                key = (event.work, event.part)
                self._failed[key] = self._failed.get(key, 0) + 1

    def _check(self, members: Sequence[Start]) -> None:
        start = members[0]
        who, model = f"{start.work}/{start.part}", self._facts.models.get(start.kind)
        if model is None:
            self._faults.add("model", who, f"found {start.kind!r}, which is not described")
            return
        if start.devices and start.devices != tuple(range(start.devices[0], start.devices[0] + len(start.devices))):
            self._faults.add("window", who, f"found GPUs {list(start.devices)}, expected neighbours")
        for member in members:
            failed = self._failed.get((member.work, member.part), 0)
            if failed > self._facts.retries:
                message = f"started after {failed} failures, expected at most {self._facts.retries} retries"
                self._faults.add("retry", f"{member.work}/{member.part}", message)
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
        arrived = self._arrived.get(start.work)
        shape = self._shapes.get(arrived.of) if arrived is not None else None
        if arrived is None or shape is None or len(arrived.sizes) != len(shape.parts):
            return None
        i = shape.index.get(start.part)
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

    def __init__(self, header: Header, facts: Facts, faults: Faults, free_setups: bool = False) -> None:
        models, costs, rates = facts.models, facts.costs, facts.table
        curves = [curve for model in models.values() if (curve := model.batch_curve)] if costs.batching else []
        gain = max([(k + 1) / factor for curve in curves for k, factor in enumerate(curve)], default=1.0)
        least = {} if free_setups else least_setup(models, costs, rates)
        self._faults = faults
        self._shapes = header.build_shapes()
        self._bounds = BoundsAccumulator(header.pool, self._shapes, least, gain)
        types = header.pool.types
        self.void = ""
        if not facts.exact:
            self.void = "run times are not exact"
        elif any(rate.device in types and rate.rate > types[rate.device].speed for rate in facts.rates.rates):
            self.void = "rates exceed the speeds of the GPUs"
        elif any(factor < 1 for curve in curves for factor in curve):
            self.void = "a batch is faster than a single node"
        self.claimed: dict[str, Any] | None = None

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._bounds.step(n, t, [event for event in events if type(event) is not Arrived or self._counts(event)])
        for event in events:
            if isinstance(event, Ended):
                self.claimed = event.summary

    def _counts(self, event: Arrived) -> bool:
        shape = self._shapes.get(event.of)
        return shape is not None and len(event.sizes) == len(shape.parts)

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

    def __init__(self, header: Header, facts: Facts, faults: Faults, config: Path, requests: Path | None) -> None:
        self._faults = faults
        self.notes: list[str] = []
        on_error: OnError = "skip" if facts.skipped else "reject"
        system = read_system(config, on_error, facts.compat)
        if facts.costs != system.costs:
            self.notes.append(
                "the costs of the run are not those of the configuration: --cost or --compat changed them"
            )
        check_fit(system, header.pool, config, on_error, facts.compat, facts.table)
        shapes = {name: ShapeRecord.of(shape) for name, shape in system.shapes().items()}
        types = {"gpu": DeviceType("gpu")} | system.gpu_types  # the plain type needs no description
        for what, found, expected in (
            ("models", facts.models, system.model_costs),
            ("workflows", {record.name: record for record in header.shapes}, shapes),
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
        if isinstance(found, ShapeRecord) and isinstance(expected, ShapeRecord):
            same = found.parts == expected.parts and found.never == expected.never
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
        given = self._pending.pop(event.work, None)
        while given is None:
            coming = next(arrivals, None)
            if coming is None:
                self._faults.add("requests", event.work, "is not in the file of requests")
                return
            if coming[1].work == event.work:
                given = coming
            else:
                self._pending[coming[1].work] = coming
        expected_s, expected = given
        if not close(t, expected_s):
            self._faults.add("requests", event.work, f"arrived at {t} s, expected {expected_s} s")
        for name in ("of", "sizes", "due_s", "weight"):
            found, wanted = getattr(event, name), getattr(expected, name)
            if found != wanted and not (name != "of" and event.fault and expected.fault):
                self._faults.add("requests", event.work, f"found {name} {found!r}, expected {wanted!r}")
        if bool(event.fault) != bool(expected.fault):
            message = f"found fault {event.fault!r}, expected {expected.fault or 'none'!r}"
            self._faults.add("requests", event.work, message)

    def finish(self) -> None:
        for work in self._pending:
            self._faults.add("requests", work, "is in the file of requests, but not in the run")
        for _, arrived in self._arrivals or ():
            self._faults.add("requests", arrived.work, "is in the file of requests, but not in the run")


def _brief(value: Any) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."


def check_journal(path: Path, config: Path | None = None, requests: Path | None = None, limit: int = 20) -> Report:
    """Check a journal of this level, and whether it is a run of these files."""
    _need_config(config, requests)
    reader, faults = Reader(path), Faults(limit)
    header = core.check_header(reader.header, path)
    run = _Examined(path, header, faults)
    run.hold_to_rules(config, requests)
    figures, bounds = run.follow(core.read_steps(reader, faults), reader)
    if run.lower.claimed is not None:
        _check_claims(run.lower.claimed, summary(header, figures, bounds, run.facts.skipped), figures, faults)
    return run.report("journal", figures, bounds)


def _check_claims(claimed: Mapping[str, Any], expected: Mapping[str, Any], figures: Figures, faults: Faults) -> None:
    """The keys of the summary that the core does not know, and those that may not be left out."""
    known = recount(figures)
    compare(claimed, {k: v for k, v in expected.items() if isinstance(v, int | float) and k not in known}, faults)
    for key in ("policy", "mode"):
        if key in claimed and claimed[key] != expected[key]:
            faults.add("summary", key, f"found {claimed[key]!r}, expected {expected[key]!r}")
    for key in _CLAIMS:
        if key not in claimed:
            faults.add("summary", key, "is missing")


def _need_config(config: Path | None, requests: Path | None) -> None:
    if requests is not None and config is None:
        raise InputError("--requests needs --config: requests name the workflows of a configuration")


Steps = Iterable[tuple[int, float, list[Any]]]


class _Examined:
    """A run told in events, from whatever file: the core's invariants, its bounds, and what else follows it."""

    def __init__(self, path: Path, header: Header, faults: Faults, free_setups: bool = False) -> None:
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


# --- execution logs -------------------------------------------------------------------------------

Maybe = float | None | UnsetType


class _Row(Struct, gc=False):
    """An execution as any of the formats has it."""

    request_id: str
    workflow_id: str
    node_id: str
    model_name: str
    gpu_id: int | None
    start_time: float
    end_time: float
    execution_time: Maybe = UNSET
    estimated_time: Maybe = UNSET
    switch_time: Maybe = UNSET
    waiting_time: Maybe = UNSET
    gpu_ids: tuple[int, ...] | UnsetType = UNSET
    ready_time: float | UnsetType = UNSET
    switch_start: float | UnsetType = UNSET
    from_model: str | None = None
    decision: int = 0
    batch: int = 0
    reason: str = ""


_OUR_KEYS = _Row.__struct_fields__[7:14]


class _Log(Struct):
    """An execution log; in the older ones only the first two are there."""

    executions: list[_Row]
    summary: dict[str, Any] = {}
    made_by: str = ""
    policy: str = ""
    options: dict[str, Any] = {}
    seed: int = 0
    bounds: dict[str, Any] | None = None
    pool: Pool | None = None
    models: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    compat: bool = False
    facts: dict[str, Any] = {}
    shapes: tuple[ShapeRecord, ...] = ()
    requests: list[RequestRow] = []
    failures: list[_Row] = []
    rejected_requests: list[dict[str, str]] = []
    gpu_assignments: dict[str, dict[str, Any]] = {}


class _Span(Struct, gc=False):
    """From the decision to the end; `failed` is why it failed."""

    n: int
    t: float
    end: float
    start: Start
    failed: str = ""
    decision: int = 0  # orders simultaneous starts


def check_log(path: Path, config: Path | None = None, requests: Path | None = None, limit: int = 20) -> Report:
    """Check an execution log, ours or an older scheduler's, and whether it is a run of these files."""
    _need_config(config, requests)
    text = read_bytes(path)
    try:
        log = msgspec.json.decode(text, type=_Log)
    except msgspec.ValidationError as error:
        keys, message = explain(error)
        raise InputError(f"{path}: {'.'.join(map(str, keys)) or 'execution log'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: neither a journal nor an execution log: {error}") from None
    executed = len(log.executions)

    def place(n: int, t: float) -> str:
        if n < 0:
            return f"requests[{-1 - n}]" if log.requests or requests is not None else ""
        return f"executions[{n}]" if n < executed else f"failures[{n - executed}]"

    faults = Faults(limit, place)
    if log.made_by:
        return _check_ours(path, log, faults, config, requests)
    return _OldLog(path, log, faults, config, requests).check(limit, place)


def _tell(
    spans: Sequence[_Span],
    arrivals: Sequence[tuple[float, Arrived]],
    closings: Sequence[tuple[float, Complete | Reject]],
) -> Steps:
    """The events of a log in an order in which they can have happened: at one instant ends come before starts."""
    entries: list[tuple[float, int, int, int]] = []
    batches: dict[tuple[int, float], list[Start]] = {}
    for i, span in enumerate(spans):
        batch = (span.start.batch, span.t)
        if span.end == span.t:
            entries.append((span.t, 2, span.decision, i))
            continue
        entries.append((span.end, 0, i, i))
        if batch in batches:
            batches[batch].append(span.start)
            continue
        if span.start.batch:
            batches[batch] = [span.start]
        entries.append((span.t, 3, span.decision, i))
    entries += [(t, 1, i, i) for i, (t, _) in enumerate(arrivals)]
    entries += [(t, 4, i, i) for i, (t, _) in enumerate(closings)]
    entries.sort()
    last = max([t for t, _, _, _ in entries if t < inf], default=0.0)
    for t, kind, _, i in entries:
        if kind == 1:
            yield -1 - i, t, [arrivals[i][1]]
        elif kind == 4:
            yield -1 - i, min(t, last), [closings[i][1]]
        else:
            span = spans[i]
            start = span.start
            done = Failed(start.work, start.part, span.failed) if span.failed else Finished(start.work, start.part)
            if kind == 3:
                yield span.n, t, list(batches.get((start.batch, t), [start]))
            else:
                yield span.n, t, [start, done] if kind == 2 else [done]
    yield 0, last, [Ended()]


def _check_ours(path: Path, log: _Log, faults: Faults, config: Path | None, requests: Path | None) -> Report:
    if log.pool is None:
        raise InputError(f"{path}: missing key `pool`")
    header = Header(
        level="workflow",
        policy=log.policy,
        options=log.options,
        mode=str(log.summary.get("mode", "")),
        seed=log.seed,
        pool=log.pool,
        shapes=log.shapes,
        facts=log.facts | {"models": log.models, "costs": log.costs, "compat": log.compat},
    )
    run = _Examined(path, core.check_header(header, path), faults)
    run.hold_to_rules(config, requests)
    spans = [_our_span(i, row, faults) for i, row in enumerate([*log.executions, *log.failures])]
    arrivals, closings = _our_requests(log.requests, faults)
    _check_workflows([*log.executions, *log.failures], {event.work: event.of for _, event in arrivals}, faults)
    log.executions, log.requests = [], []
    decided = sorted(spans, key=attrgetter("decision"))
    for one, two in pairwise(decided):
        if one.decision == two.decision or one.t > two.t:
            faults.at(two.n, two.t)
            found = f"found decision {two.decision} at {two.t} s after {one.decision} at {one.t} s"
            faults.add("row", f"{two.start.work}/{two.start.part}", found)
    figures, bounds = run.follow(_tell(spans, arrivals, closings))
    rejected = sorted(event.work for _, event in closings if isinstance(event, Reject))
    if rejected != sorted(row.get("request_id", "") for row in log.rejected_requests):
        faults.add("row", "rejected_requests", f"found {len(log.rejected_requests)}, expected {len(rejected)} of these")
    if header.mode not in ("offline", "online"):
        faults.add("summary", "mode", f"found {header.mode!r}, expected 'offline' or 'online'")
    expected = log_summary(header, figures)
    for key, value in expected.items():
        if key not in log.summary:
            faults.add("summary", key, "is missing")
        elif type(value) not in (int, float) and log.summary[key] != value:
            faults.add("summary", key, f"found {log.summary[key]}, expected {value}")
    compare(log.summary, {k: v for k, v in expected.items() if type(v) in (int, float)}, faults)
    if log.bounds is not None:
        compare(log.bounds, {k: v for k, v in msgspec.to_builtins(bounds).items() if k != "binding"}, faults)
    return run.report("execution log", figures, bounds)


def _our_requests(
    rows: Sequence[RequestRow], faults: Faults
) -> tuple[list[tuple[float, Arrived]], list[tuple[float, Complete | Reject]]]:
    arrivals: list[tuple[float, Arrived]] = []
    closings: list[tuple[float, Complete | Reject]] = []
    for i, row in enumerate(rows):
        faults.at(-1 - i, row.arrival_time)
        end, took = row.completion_time, row.response_time
        fault = "" if row.sizes or row.status == "completed" else row.reason or "unusable"
        arrivals.append((row.arrival_time, Arrived(row.request_id, row.workflow_id, row.sizes, fault=fault)))
        if row.status == "rejected":
            if end is not None or took is not None:
                faults.add("row", row.request_id, f"was rejected, but has completion_time {end}, response_time {took}")
            closings.append((inf, Reject(row.request_id, row.reason or "")))
            continue
        if end is None or took is None or not close(took, end - row.arrival_time):
            faults.add("row", row.request_id, f"found response_time {took} from {row.arrival_time} s to {end} s")
        closings.append((inf if end is None else end, Complete(row.request_id)))
    return arrivals, closings


def _check_workflows(rows: Sequence[_Row], of: Mapping[str, str], faults: Faults) -> None:
    for i, row in enumerate(rows):
        if row.workflow_id != of.get(row.request_id, row.workflow_id):
            faults.at(i, row.start_time)
            message = f"found workflow_id {row.workflow_id!r}, expected {of[row.request_id]!r} as its request says"
            faults.add("row", f"{row.request_id}/{row.node_id}", message)


def _our_span(i: int, row: _Row, faults: Faults) -> _Span:
    faults.at(i, row.start_time)
    who = f"{row.request_id}/{row.node_id}"
    needed = (
        "execution_time",
        "estimated_time",
        "switch_time",
        "waiting_time",
        "gpu_ids",
        "ready_time",
        "switch_start",
    )
    lacking = [key for key in needed if getattr(row, key) in (None, UNSET)]
    if lacking:
        faults.add("row", who, f"has no {', '.join(lacking)}")
    t = _number(row.switch_start, row.start_time - _number(row.switch_time))
    gpus = row.gpu_ids if row.gpu_ids is not UNSET else () if row.gpu_id is None else (row.gpu_id,)
    for key, found, expected in (
        ("gpu_id", row.gpu_id, gpus[0] if gpus else None),
        ("start_time", row.start_time, t + _number(row.switch_time)),
        ("execution_time", _number(row.execution_time), row.end_time - row.start_time),
        ("waiting_time", _number(row.waiting_time), t - _number(row.ready_time)),
    ):
        if found != expected and not (found is not None and expected is not None and close(found, expected)):
            faults.add("row", who, f"found {key} {found}, expected {expected} from the rest of the row")
    start = Start(
        row.request_id,
        row.node_id,
        row.model_name,
        gpus,
        _number(row.ready_time),
        _number(row.estimated_time),
        "",
        _number(row.switch_time),
        row.from_model,
        row.batch,
    )
    return _Span(i, t, _end(row, t, faults), start, row.reason, row.decision)


def _number(value: Maybe, default: float = 0.0) -> float:
    return value if isinstance(value, int | float) else default


def _end(row: _Row, t: float, faults: Faults) -> float:
    """When a row ends; one that ends before it begins is a fault and takes no time."""
    if row.end_time >= row.start_time and row.end_time >= t:
        return row.end_time
    who = f"{row.request_id}/{row.node_id}"
    faults.add("duration", who, f"ends at {row.end_time} s, before it starts at {row.start_time} s")
    return t


class _OldLog:
    """A log of an older scheduler: no windows, no request rows, no arrivals. The input files fill in what they can.

    Two rules of price were in use: `old + new` over PCIe plus an overhead, or `old` over PCIe plus the load time. A log
    must keep to one of them, with the first GPU of a window setting the price.
    """

    def __init__(self, path: Path, log: _Log, faults: Faults, config: Path | None, requests: Path | None) -> None:
        self._path, self._log, self._faults = path, log, faults
        self._mode: Mode = "online" if log.summary.get("mode") == "online" else "offline"
        self._notes: list[str] = []
        self._pool = self._find_pool()
        self._system: System | None = None
        if config is None:
            self._shapes = _guess_shapes(log.executions)
            self._notes.append("without --config, all but the first GPU of a window, order and prices were not checked")
        else:
            self._system = read_system(config, "reject", compat=True)
            check_fit(self._system, self._pool, config, "reject", True, RateTable())
            self._shapes = self._system.shapes()
        if requests is None or self._system is None:
            self._known = self._mode == "offline"
            unknown = "run times" if self._known else "arrivals, run times"
            self._notes.append(f"without --requests, {unknown} and requests without any execution were not checked")
            self._arrivals = self._guess_arrivals()
        else:
            self._known = True
            self._arrivals = list(Requests(requests, self._system, self._mode, "reject", True).arrivals())
        self._arrived = {event.work: (t, event) for t, event in self._arrivals}
        self._ends: dict[tuple[str, str], float] = {}
        for row in log.executions:
            key = (row.request_id, row.node_id)
            self._ends[key] = max(row.end_time, self._ends.get(key, row.end_time))

    def _find_pool(self) -> Pool:
        gpus = self._log.summary.get("gpus")
        if isinstance(gpus, list) and gpus and all(type(gpu) is int and gpu >= 0 for gpu in gpus):
            return Pool.parse(str(max(gpus) + 1), {})
        self._notes.append("the log does not say which GPUs there were: taken to be those it uses")
        return Pool.parse(str(max([row.gpu_id or 0 for row in self._log.executions], default=0) + 1), {})

    def _guess_arrivals(self) -> list[tuple[float, Arrived]]:
        """Requests as the executions show them: offline all at 0, online no later than their first decision."""
        rows: dict[str, dict[str, _Row]] = {}
        for row in self._log.executions:
            rows.setdefault(row.request_id, {}).setdefault(row.node_id, row)
        arrivals = []
        for work, nodes in rows.items():
            of = next(iter(nodes.values())).workflow_id
            shape = self._shapes.get(of)
            names = [part.name for part in shape.parts] if shape is not None else []
            sizes = tuple([max(_run_s(nodes[name]), 0.0) if name in nodes else 0.0 for name in names])
            first = min(row.start_time - _number(row.switch_time) for row in nodes.values())
            arrivals.append((0.0 if self._known else first, Arrived(work, of, sizes)))
        return arrivals

    def check(self, limit: int, place: Callable[[int, float], str]) -> Report:
        facts: dict[str, Any] = {"costs": {"window": "primary"}, "compat": True}
        if self._system is not None:
            facts["models"] = msgspec.to_builtins(self._system.model_costs)
        records = tuple(map(ShapeRecord.of, self._shapes.values()))
        header = Header(level="workflow", policy="", mode=self._mode, pool=self._pool, shapes=records, facts=facts)
        run = _Examined(self._path, header, self._faults, free_setups=bool(self._log.gpu_assignments))
        run.notes += self._notes
        tries = [Faults(limit, place), Faults(limit, place)]
        if self._system is not None:
            run.followers += self._both_rules(run, self._system, tries)
        spans = self._spans()
        _check_workflows(self._log.executions, {event.work: event.of for _, event in self._arrivals}, self._faults)
        figures, bounds = run.follow(_tell(spans, self._arrivals, self._closings()))
        first, second = tries
        baseline = sum(first.counts.values()) <= sum(second.counts.values())
        self._faults.take(first if baseline else second)
        self._check_summary(figures, spans, baseline)
        return run.report("execution log of an older scheduler", figures, bounds)

    def _both_rules(self, run: _Examined, system: System, tries: Sequence[Faults]) -> list[Rules]:
        models = run.facts.models
        load_always = [
            Switch(new, models[old].memory_gb / run.facts.costs.pcie_gb_s + models[new].load_s, old)
            for new in models
            for old in models
            if old != new
        ]
        priced = any(row.switch_time is not UNSET for row in self._log.executions)
        if not priced:
            run.notes.append("the log does not say what switches took: prices were not checked")
        both = []
        for faults, switches in zip(tries, ([], load_always), strict=True):
            facts = msgspec.structs.replace(run.facts, rates=_Rates(switches=switches))
            rules = Rules(run.header, facts, faults)
            rules.priced, rules.names_replaced = priced, False
            rules.guesses = _Guesses(system)
            self._preload(rules.residents)
            both.append(rules)
        return both

    def _preload(self, residents: Residents) -> None:
        """A scheduler that pins models writes which, and charges no load."""
        for gpu, given in self._log.gpu_assignments.items():
            for model in given.get("assigned_models") or ():
                if gpu.isdigit() and int(gpu) < len(self._pool):
                    residents.load([int(gpu)], str(model))

    def _spans(self) -> list[_Span]:
        """The executions as spans, in the order of their decisions."""
        instants = sorted({*self._ends.values(), *(t for t, _ in self._arrivals)})
        begun = []
        for i, row in enumerate(self._log.executions):
            t = row.start_time - _number(row.switch_time)
            # Decisions fall on ends and arrivals; subtracting the switch misses them by a rounding error.
            error = 4 * ulp(row.start_time)
            at = bisect_right(instants, t + error) - 1
            if at >= 0 and instants[at] >= t - error:
                t = instants[at]
            begun.append((t, i, row))
        residents = Residents(self._pool, {}, Costs(window="primary"))
        self._preload(residents)
        spans = []
        for t, i, row in sorted(begun, key=itemgetter(0, 1)):
            self._faults.at(i, t)
            self._check_row(row)
            window = self._window(row)
            gpus = [gpu for gpu in window if 0 <= gpu < len(self._pool)]
            replaces = residents.replaced(gpus, row.model_name)
            residents.load(gpus, row.model_name)
            setup_s = _number(row.switch_time)
            name, node, model = row.request_id, row.node_id, row.model_name
            start = Start(name, node, model, window, self._ready(row), _run_s(row), "", setup_s, replaces)
            spans.append(_Span(i, t, _end(row, t, self._faults), start, decision=i))
        return spans

    def _check_row(self, row: _Row) -> None:
        found, took = row.execution_time, row.end_time - row.start_time
        if found is None and row.start_time == 0:
            return  # they wrote nothing for a start at 0
        if found is None or (found is not UNSET and not close(found, took)):
            who = f"{row.request_id}/{row.node_id}"
            self._faults.add("row", who, f"found execution_time {found}, expected {took} from start_time to end_time")

    def _window(self, row: _Row) -> tuple[int, ...]:
        if row.gpu_id is None:
            return ()
        model = self._system.models.get(row.model_name) if self._system is not None else None
        return tuple(range(row.gpu_id, row.gpu_id + (1 if model is None else model.gpus_required)))

    def _ready(self, row: _Row) -> float:
        t, event = self._arrived.get(row.request_id, (0.0, None))
        shape = self._shapes.get(event.of) if event is not None else None
        i = shape.index.get(row.node_id) if shape is not None else None
        if shape is None or i is None:
            return t
        before = [self._ends.get((row.request_id, shape.parts[j].name), t) for j in shape.after[i]]
        return max([t, *before])

    def _closings(self) -> list[tuple[float, Complete | Reject]]:
        """Every request must have ended with its last node; the log has no word for one that did not."""
        last: dict[str, float] = {}
        for (work, _), end in self._ends.items():
            last[work] = max(end, last.get(work, end))
        closings: list[tuple[float, Complete | Reject]] = []
        for _, event in self._arrivals:
            work = event.work
            closings.append((inf, Reject(work, event.fault)) if event.fault else (last.get(work, inf), Complete(work)))
        return closings

    def _check_summary(self, figures: Figures, spans: Sequence[_Span], baseline: bool) -> None:
        """By the older definitions, where they are definitions."""
        claimed, faults = self._log.summary, self._faults
        faults.nowhere()
        counted = {
            "makespan": figures.makespan_s,
            "total_nodes_executed": len(spans),
        }
        if self._system is not None:
            counted["total_model_switches"] = figures.switches
            counted["completed_requests"] = figures.completed
            if baseline and self._known and not self._log.gpu_assignments:
                counted["avg_request_response_time"] = figures.response_s.mean
                counted["p99_request_response_time"] = figures.response_s.p99
        compare(claimed, counted, faults)
        total, shown = claimed.get("total_requests"), {span.start.work for span in spans}
        if isinstance(total, int) and total not in (len(self._arrivals), len(shown)):
            code = "missing" if total > len(self._arrivals) else "summary"
            faults.add(code, "total_requests", f"found {total}, expected {len(self._arrivals)} as the rows show")
        done = claimed.get("completed_requests")
        if self._system is None and isinstance(total, int) and isinstance(done, int) and done < total:
            faults.add("missing", "completed_requests", f"found {done} of {total}: the others just vanished")
        took = claimed.get("total_switch_time")
        every = figures.switch_time_s + figures.load_time_s  # some counted first loads as well
        if self._system is not None and not (isinstance(took, int | float) and close(took, every)):
            compare(claimed, {"total_switch_time": figures.switch_time_s}, faults)


class _Guesses:
    """The run times that the older schedulers took where a request gives none: each had a rule of its own."""

    def __init__(self, system: System) -> None:
        self._system = system

    def __call__(self, model: str, found: float, size: float) -> bool:
        if size != DEFAULT_NODE_S:
            return False
        given = self._system.models[model]
        return close(found, 1000 / (given.tokens_per_second or 100)) or close(found, given.inference_time_mean or 5.0)


def _run_s(row: _Row) -> float:
    return _number(row.estimated_time, row.end_time - row.start_time)


def _guess_shapes(rows: Iterable[_Row]) -> dict[str, Shape]:
    """Workflows as the executions show them: the nodes that occur, in no order, each on its first GPU."""
    parts: dict[str, dict[str, Part]] = {}
    for row in rows:
        part = Part(row.node_id, row.model_name, 0 if row.gpu_id is None else 1)
        parts.setdefault(row.workflow_id, {}).setdefault(row.node_id, part)
    return {name: Shape(name, nodes.values(), ()) for name, nodes in parts.items()}
