"""Execution logs of the older schedulers: what they leave out is read from the input files, or said to be unchecked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import inf, ulp
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, structs

from dovetail.core.events import Arrived, Complete, Reject, Start
from dovetail.core.findings import Findings, Report, close, compare
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures
from dovetail.core.rates import Switch
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord
from dovetail.workflow.check.examination import Examination
from dovetail.workflow.check.starts import StartRules
from dovetail.workflow.choices import Mode
from dovetail.workflow.compat.execution_log import ExecutionRow
from dovetail.workflow.compat.gswarm_files import GSWARM
from dovetail.workflow.compat.log_rows import (
    LoggedRun,
    LogSpan,
    check_workflows,
    end_of,
    events_of,
    number,
)
from dovetail.workflow.facts import RateRecords
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.inputs.system import DEFAULT_NODE_S, System


class OldLog:
    """A log of an older scheduler: no windows, no request rows, no arrivals. The input files fill in what they can.

    Two rules of price were in use: `old + new` over PCIe plus an overhead, or `old` over PCIe plus the load time. A log
    must keep to one of them, with the first GPU of a window setting the price.
    """

    def __init__(
        self, path: Path, log: LoggedRun, faults: Findings, config: Path | None, requests: Path | None
    ) -> None:
        self._path, self._log, self._faults = path, log, faults
        self._mode: Mode = "online" if log.summary.get("mode") == "online" else "offline"
        self._notes: list[str] = []
        self._pool = self._find_pool()
        self._rows: dict[str, dict[str, ExecutionRow]] = {}  # of each request, the first of each node
        for row in log.executions:
            self._rows.setdefault(row.request_id, {}).setdefault(row.node_id, row)
        self._system: System | None = None
        if config is None:
            self._graphs = _guess_graphs(log.executions)
            self._notes.append("without --config, all but the first GPU of a window, order and prices were not checked")
        else:
            self._system = GSWARM.read_system(config, "reject", None)
            GSWARM.check_fit(self._system, self._pool, config)
            self._graphs = self._system.graphs()
        if requests is None or self._system is None:
            self._known = self._mode == "offline"
            unknown = "run times" if self._known else "arrivals, run times"
            self._notes.append(f"without --requests, {unknown} and requests without any execution were not checked")
            self._arrivals = self._guess_arrivals()
        else:
            self._known = True
            given = GSWARM.requests(requests, self._system, self._mode, "reject").arrivals()
            self._arrivals = [(t, self._as_guessed(event, self._system)) for t, event in given]
        self._arrived = {event.job: (t, event) for t, event in self._arrivals}
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
        arrivals = []
        for request, nodes in self._rows.items():
            of = next(iter(nodes.values())).workflow_id
            graph = self._graphs.get(of)
            names = [node.name for node in graph.tasks] if graph is not None else []
            sizes = tuple([max(_run_s(nodes[name]), 0.0) if name in nodes else 0.0 for name in names])
            first = min(row.start_time - number(row.switch_time) for row in nodes.values())
            arrivals.append((0.0 if self._known else first, Arrived(request, of, sizes)))
        return arrivals

    def _as_guessed(self, event: Arrived, system: System) -> Arrived:
        """A run time that a request does not give: each of the older schedulers had a rule, and the log shows which."""
        rows = self._rows.get(event.job, {})

        def guess(size: float, node: Task) -> float:
            if size != DEFAULT_NODE_S or node.name not in rows:
                return size
            given, found = system.models[node.kind], _run_s(rows[node.name])
            rules = (1000 / (given.tokens_per_second or 100), given.inference_time_mean or 5.0)
            return found if any(close(found, seconds) for seconds in rules) else size

        graph = self._graphs.get(event.of)
        sizes = tuple(map(guess, event.sizes, graph.tasks)) if graph is not None and not event.fault else event.sizes
        return structs.replace(event, sizes=sizes)

    def check(self, limit: int, place: Callable[[int, float], str]) -> Report:
        facts: dict[str, Any] = {"costs": {"window": "primary"}, "compat": True}
        if self._system is not None:
            facts["models"] = msgspec.to_builtins(self._system.model_costs)
        records = tuple(map(TaskGraphRecord.of, self._graphs.values()))
        header = Header(level="workflow", policy="", mode=self._mode, pool=self._pool, graphs=records, facts=facts)
        run = Examination(self._path, header, self._faults, free_setups=bool(self._log.gpu_assignments))
        run.notes += self._notes
        tries = [Findings(limit, place), Findings(limit, place)]
        if self._system is not None:
            run.followers += self._both_rules(run, tries)
        spans = self._spans()
        check_workflows(self._log.executions, {event.job: event.of for _, event in self._arrivals}, self._faults)
        figures, bounds = run.follow(events_of(spans, self._arrivals, self._closings()))
        first, second = tries
        baseline = sum(first.counts.values()) <= sum(second.counts.values())
        self._faults.take(first if baseline else second)
        self._check_summary(figures, spans, baseline)
        return run.report("execution log of an older scheduler", figures, bounds)

    def _both_rules(self, run: Examination, tries: Sequence[Findings]) -> list[StartRules]:
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
            facts = structs.replace(run.facts, rates=RateRecords(switches=switches))
            rules = StartRules(run.header, facts, faults)
            rules.priced, rules.names_replaced = priced, False
            self._preload(rules.residents)
            both.append(rules)
        return both

    def _preload(self, residents: Residents) -> None:
        """A scheduler that pins models writes which, and charges no load."""
        for gpu, given in self._log.gpu_assignments.items():
            for model in given.get("assigned_models") or ():
                if gpu.isdigit() and int(gpu) < len(self._pool):
                    residents.load([int(gpu)], str(model))

    def _spans(self) -> list[LogSpan]:
        """The executions as spans, in the order of their decisions."""
        instants = sorted({*self._ends.values(), *(t for t, _ in self._arrivals)})
        begun = []
        for i, row in enumerate(self._log.executions):
            t = row.start_time - number(row.switch_time)
            # Decisions fall on ends and arrivals; subtracting the switch misses them by a rounding error.
            error = 4 * ulp(row.start_time)
            at = bisect_right(instants, t + error) - 1
            if at >= 0 and instants[at] >= t - error:
                t = instants[at]
            begun.append((t, i, row))
        residents = Residents(self._pool, {}, CostRules(window="primary"))
        self._preload(residents)
        spans = []
        for t, i, row in sorted(begun, key=itemgetter(0, 1)):
            self._faults.at(i, t)
            self._check_row(row)
            window = self._window(row)
            gpus = [gpu for gpu in window if 0 <= gpu < len(self._pool)]
            replaces = residents.replaced(gpus, row.model_name)
            residents.load(gpus, row.model_name)
            setup_s = number(row.switch_time)
            name, node, model = row.request_id, row.node_id, row.model_name
            start = Start(name, node, model, window, self._ready(row), _run_s(row), "", setup_s, replaces)
            spans.append(LogSpan(i, t, end_of(row, t, self._faults), start, decision=i))
        return spans

    def _check_row(self, row: ExecutionRow) -> None:
        found, took = row.execution_time, row.end_time - row.start_time
        if found is None and row.start_time == 0:
            return  # they wrote nothing for a start at 0
        if found is None or (found is not UNSET and not close(found, took)):
            who = f"{row.request_id}/{row.node_id}"
            self._faults.add("row", who, f"found execution_time {found}, expected {took} from start_time to end_time")

    def _window(self, row: ExecutionRow) -> tuple[int, ...]:
        if row.gpu_id is None:
            return ()
        model = self._system.models.get(row.model_name) if self._system is not None else None
        return tuple(range(row.gpu_id, row.gpu_id + (1 if model is None else model.gpus_required)))

    def _ready(self, row: ExecutionRow) -> float:
        t, event = self._arrived.get(row.request_id, (0.0, None))
        graph = self._graphs.get(event.of) if event is not None else None
        i = graph.index.get(row.node_id) if graph is not None else None
        if graph is None or i is None:
            return t
        before = [self._ends.get((row.request_id, graph.tasks[j].name), t) for j in graph.after[i]]
        return max([t, *before])

    def _closings(self) -> list[tuple[float, Complete | Reject]]:
        """Every request must have ended with its last node; the log has no word for one that did not."""
        last: dict[str, float] = {}
        for (request, _), end in self._ends.items():
            last[request] = max(end, last.get(request, end))
        closings: list[tuple[float, Complete | Reject]] = []
        for _, event in self._arrivals:
            request = event.job
            closings.append(
                (inf, Reject(request, event.fault)) if event.fault else (last.get(request, inf), Complete(request))
            )
        return closings

    def _check_summary(self, figures: Figures, spans: Sequence[LogSpan], baseline: bool) -> None:
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
        total, shown = claimed.get("total_requests"), {span.start.job for span in spans}
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


def _run_s(row: ExecutionRow) -> float:
    return number(row.estimated_time, row.end_time - row.start_time)


def _guess_graphs(rows: Iterable[ExecutionRow]) -> dict[str, TaskGraph]:
    """Workflows as the executions show them: the nodes that occur, in no order, each on its first GPU."""
    nodes: dict[str, dict[str, Task]] = {}
    for row in rows:
        node = Task(row.node_id, row.model_name, 0 if row.gpu_id is None else 1)
        nodes.setdefault(row.workflow_id, {}).setdefault(row.node_id, node)
    return {name: TaskGraph(name, nodes.values(), ()) for name, nodes in nodes.items()}
