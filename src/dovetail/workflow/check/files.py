"""Whether a run is one of the files it is said to be of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.events import Arrived, Complete, Finished, Grew, Reject
from dovetail.core.files.document import Source
from dovetail.core.findings import Findings, close
from dovetail.core.journal import Header
from dovetail.core.resources import DeviceType
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.workflow.choices import Mode, OnError
from dovetail.workflow.compat.gswarm_files import reading
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.inputs.growth.request import draw
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.inputs.tenants import Tenancy


class InputFiles:
    """Holds a run against the files it is said to be of."""

    def __init__(
        self, header: Header, facts: WorkflowFacts, faults: Findings, config: Source, requests: Source | None
    ) -> None:
        self._faults = faults
        self.notes: list[str] = []
        on_error: OnError = "skip" if facts.skipped else "reject"
        read = reading(facts.compat)
        system = read.read_system(config, on_error, None)
        if facts.costs != system.costs:
            self.notes.append(
                "the costs of the run are not those of the configuration: --cost or --compat changed them"
            )
        if facts.gpus_over_time is None:  # else it may have been given besides the configuration, and in its place
            self._compare("gpus_over_time", None, system.gpus_over_time)
        elif facts.gpus_over_time != system.gpus_over_time:
            self.notes.append("the GPUs over time are not those of the configuration: --gpus-over-time changed them")
        read.check_fit(system, header.pool, Path("config"))
        if facts.gpus_over_time is not None:
            read.check_fit(system, facts.gpus_over_time.smallest(header.pool), Path("config"))
        system.item_s, system.units, system.prefill_s = facts.item_s, facts.units, facts.prefill_s
        graphs = {name: TaskGraphRecord.of(graph) for name, graph in system.graphs().items()}
        types = {"gpu": DeviceType("gpu")} | system.gpu_types  # the plain type needs no description
        for what, found, expected in (
            ("models", facts.models, system.model_costs),
            ("growth", facts.growth, {name: rules for name, rules in system.growth.items() if name in graphs}),
            ("workflows", {record.name: record for record in header.graphs}, graphs),
            ("tenants", _tenants(facts.tenancy), _tenants(system.tenancy)),
            ("slo", {"limits": facts.slo}, {"limits": system.slo}),
            ("gpu_types", header.pool.types, {name: types.get(name) for name in header.pool.types}),
        ):
            for name in {**found, **expected}:
                self._compare(f"{what}.{name}", found.get(name), expected.get(name))
        self._arrivals: Iterator[tuple[float, Arrived]] | None = None
        self._growth: dict[str, tuple[GrowthRules, TaskGraph]] = {}
        self._grows: dict[str, dict[str, Grew]] = {}  # what open requests are to be given, by the task that ends
        if requests is not None:
            mode: Mode = "online" if header.mode == "online" else "offline"
            given = read.requests(requests, system, mode, on_error)
            self._arrivals = given.arrivals()
            if not facts.simulate:  # else what nodes add was decided by what they gave
                self._growth = {name: (rules, system.graph(name)) for name, rules in system.growth.items()}
                self._later, self._seed = given.later, header.seed
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
            elif type(event) is Grew or type(event) is Finished:
                self._compare_growth(event)
            elif type(event) is Complete or type(event) is Reject:
                self._grows.pop(event.job, None)

    def _compare_growth(self, event: Grew | Finished) -> None:
        if event.job not in self._grows:
            return
        expected, who = self._grows[event.job].pop(event.task, None), f"{event.job}/{event.task}"
        if isinstance(event, Finished):
            if expected is not None:
                self._faults.add("requests", who, f"adds nothing, expected {_brief(expected.tasks)} for this seed")
            return
        for name in ("tasks", "edges", "sizes"):
            found, wanted = getattr(event, name), () if expected is None else getattr(expected, name)
            if found != wanted:
                self._faults.add("requests", who, f"adds {name} {_brief(found)}, expected {_brief(wanted)}")

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
        if expected.of in self._growth and not expected.fault:
            self._grows[event.job] = draw(event.job, *self._growth[expected.of], self._later(event.job), self._seed)
        if not close(t, expected_s):
            self._faults.add("requests", event.job, f"arrived at {t} s, expected {expected_s} s")
        for name in ("of", "sizes", "due_s", "weight", "facts"):
            found, wanted = getattr(event, name), getattr(expected, name)
            if found != wanted and not (name != "of" and event.fault and expected.fault):
                self._faults.add("requests", event.job, f"found {name} {found!r}, expected {wanted!r}")
        if bool(event.fault) != bool(expected.fault):
            message = f"found fault {event.fault!r}, expected {expected.fault or 'none'!r}"
            self._faults.add("requests", event.job, message)

    def finish(self) -> None:
        for request in self._pending:
            self._faults.add("requests", request, "is in the file of requests, but not in the run")
        for _, arrived in self._arrivals or ():
            self._faults.add("requests", arrived.job, "is in the file of requests, but not in the run")


def _tenants(tenancy: Tenancy | None) -> dict[str, Any]:
    return {} if tenancy is None else {**tenancy.tenants, "sharing": tenancy.sharing}


def _brief(value: Any) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."
