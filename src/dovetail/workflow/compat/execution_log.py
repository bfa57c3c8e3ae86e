"""The execution log: one JSON file with a row per node and request, under the keys that people's scripts know."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dovetail.core.events import Arrived, Complete, Failed, Finished, Grew, Observed, Prepare, Reject, Settled, Start
from dovetail.core.files.output import written_whole
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures
from dovetail.version import __version__
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.gpus.sharing import FIRST_TOKEN

_BYTES = 1 << 20  # of the execution log, written at once
_encode = msgspec.json.Encoder().encode


Maybe = float | None | UnsetType


class ExecutionRow(Struct, omit_defaults=True, gc=False):
    """A node's run; older logs leave out what has a default. The GPUs are held from `switch_start` to `end_time`; the
    node itself starts at `start_time`."""

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
    from_model: str | UnsetType | None = UNSET
    decision: int = 0  # the how-manyth start of the run it was: simultaneous starts have an order
    batch: int = 0
    slots: int = 0
    estimated_first: float | None = None  # seconds of the run until the first token, and when that really came
    first_token_time: float | None = None
    reason: str = ""  # why it failed; only among the failures
    cached: int = 0  # blocks of its prefix that were there


class RequestRow(Struct, omit_defaults=True, gc=False):
    """A request. `sizes` are its nodes' seconds at speed 1, in the order of its workflow's nodes; what follows them is
    there if the request has it."""

    request_id: str
    workflow_id: str
    arrival_time: float
    completion_time: float | None
    response_time: float | None
    status: Literal["completed", "rejected"]
    reason: str | None
    sizes: tuple[float, ...]
    deadline_seconds: float | None = None  # after arrival
    priority: float = 1.0
    facts: dict[str, Any] = {}  # tokens, prefixes


def log_summary(header: Header, figures: Figures) -> dict[str, Any]:
    """The summary of an execution log, under the keys it has always had."""
    return {
        "total_requests": figures.arrived,
        "completed_requests": figures.completed,
        "rejected_requests": figures.rejected,
        "total_nodes_executed": figures.tasks,
        "failed_attempts": figures.failures,
        "mode": header.mode,
        "simulate": bool(header.facts.get("simulate") or header.facts.get("live")),
        "gpus": [device.id for device in header.pool.devices],
        "makespan": figures.makespan_s,
        "total_model_switches": figures.switches,
        "total_switch_time": figures.switch_time_s,
        "avg_waiting_time": figures.task_wait_s.mean,
        "p99_waiting_time": figures.task_wait_s.p99,
        "avg_response_time": figures.task_response_s.mean,
        "p99_response_time": figures.task_response_s.p99,
        "avg_request_response_time": figures.response_s.mean,
        "p99_request_response_time": figures.response_s.p99,
    }


class _Spool:
    """Rows on their way into the file: a JSON list on disk."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115
        self._buffer = bytearray()
        self._separator = b"\n"

    def add(self, row: bytes) -> None:
        self._buffer += self._separator
        self._buffer += row
        self._separator = b",\n"
        if len(self._buffer) > _BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()

    def copy_to(self, file: IO[bytes]) -> None:
        self._flush()
        self._file.seek(0)
        file.write(b"[")
        shutil.copyfileobj(self._file, file, _BYTES)
        file.write(b"\n]")

    def close(self) -> None:
        self._file.close()


class _Running:
    __slots__ = ("begun", "decision", "ended", "first_s", "row", "start", "t", "workflow")

    def __init__(self, decision: int, t: float, start: Start, workflow: str, setup_s: float) -> None:
        self.decision = decision
        self.t = t
        self.begun = t + setup_s
        self.start = start
        self.workflow = workflow
        self.ended = 0  # the how-manyth end of the run it was
        self.first_s: float | None = None
        self.row: bytes | None = None  # set once it has ended; empty if it failed


class ExecutionLog:
    """Follows a run and keeps it as an execution log; rows go to disk as they are known, `write` puts it in place.

    Executions are in order of `start_time`, then of their decisions, or with `--compat gswarm` of their ends: a row
    waits until nothing that still runs started before it.
    """

    def __init__(self, header: Header, path: Path) -> None:
        self._header = header
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._spools = {name: _Spool(path.parent) for name in ("executions", "requests", "rejected_requests")}
        self._failures: list[ExecutionRow] = []
        self._grown: list[Grew] = []
        self._preloads = 0
        self._open: dict[str, tuple[float, Arrived]] = {}
        self._running: dict[tuple[str, str], _Running] = {}
        self._started: list[tuple[float, int, _Running]] = []
        self._decisions, self._ends = 0, 0
        self._by_end, self._live = bool(header.facts.get("compat")), bool(header.facts.get("live"))

    def __enter__(self) -> ExecutionLog:
        return self

    def __exit__(self, *_: object) -> None:
        for spool in self._spools.values():
            spool.close()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is Start:
                self._decisions += 1
                setup_s = 0.0 if self._live else event.setup_s  # a live run tells when that is over
                running = _Running(self._decisions, t, event, self._open[event.job][1].of, setup_s)
                self._running[event.job, event.task] = running
                heappush(self._started, (running.begun, self._decisions, running))
            elif kind is Finished or kind is Failed:
                self._ended(t, event)
            elif kind is Arrived:
                self._open[event.job] = (t, event)
            elif kind is Complete:
                self._closed(t, event.job, None)
            elif kind is Reject:
                self._closed(t, event.job, event.why)
            elif kind is Grew:
                self._grown.append(event)
            elif kind is Prepare:
                self._preloads += 1
            elif kind is Settled and (event.job, event.task) in self._running:
                self._running[event.job, event.task].begun = t
            elif kind is Observed and event.what == FIRST_TOKEN:
                self._running[event.facts["job"], event.facts["task"]].first_s = t
        self._emit(t)

    def _ended(self, t: float, event: Finished | Failed) -> None:
        running = self._running.pop((event.job, event.task))
        self._ends += 1
        start, running.ended = running.start, self._ends
        begun = running.begun
        row = ExecutionRow(
            start.job,
            running.workflow,
            start.task,
            start.kind,
            start.devices[0] if start.devices else None,
            begun,
            t,
            t - begun,
            start.run_s,
            begun - running.t if self._live else start.setup_s,
            running.t - start.ready_s,
            start.devices,
            start.ready_s,
            running.t,
            start.replaces,
            running.decision,
            start.batch,
            start.slots,
            start.first_s,
            running.first_s,
            cached=start.cached,
        )
        if isinstance(event, Failed):
            row.reason = event.why
            self._failures.append(row)
            running.row = b""
        else:
            running.row = _encode(row)

    def _emit(self, t: float) -> None:
        started, add = self._started, self._spools["executions"].add
        if self._by_end:
            self._emit_by_end(t)
            return
        while started and started[0][2].row is not None and started[0][0] <= t:
            row = heappop(started)[2].row
            if row:
                add(row)

    def _emit_by_end(self, t: float) -> None:
        """Those that started together, once all have ended."""
        started = self._started
        while started and started[0][0] < t:
            together = [heappop(started)]
            while started and started[0][0] == together[0][0]:
                together.append(heappop(started))
            if any(running.row is None for *_, running in together):
                for entry in together:
                    heappush(started, entry)
                return
            for running in sorted([running for *_, running in together], key=attrgetter("ended")):
                if running.row:
                    self._spools["executions"].add(running.row)

    def _closed(self, t: float, request: str, reason: str | None) -> None:
        arrived_s, arrived = self._open.pop(request)
        done = reason is None
        row = RequestRow(
            request,
            arrived.of,
            arrived_s,
            t if done else None,
            t - arrived_s if done else None,
            "completed" if done else "rejected",
            reason,
            arrived.sizes,
            arrived.due_s,
        )
        if arrived.weight != 1.0:
            row.priority = arrived.weight
        if arrived.facts:
            row.facts = arrived.facts
        self._spools["requests"].add(_encode(row))
        if not done:
            self._spools["rejected_requests"].add(_encode({"request_id": request, "reason": reason}))

    def write(self, figures: Figures, bounds: Bounds | None = None) -> None:
        """Put the log in its place, whole or not at all."""
        header = self._header
        facts = dict(header.facts)
        head = {
            "summary": log_summary(header, figures),
            "made_by": f"dovetail {__version__}",
            "policy": header.policy,
            "options": header.options,
            "seed": header.seed,
            "bounds": bounds,
            "pool": header.pool,
            "models": facts.pop("models", {}),
            "costs": facts.pop("costs", {}),
            "compat": facts.pop("compat", False),
            "facts": facts,
            "graphs": header.graphs,
            **({"grown": self._grown} if self._grown else {}),
            **({"preloads": self._preloads} if self._preloads else {}),
        }
        self._emit(float("inf"))
        with written_whole(self._path) as file:
            file.write(b"{\n")
            for key, value in head.items():
                file.write(_encode(key) + b": " + _encode(value) + b",\n")
            for key, spool in self._spools.items():
                file.write(_encode(key) + b": ")
                spool.copy_to(file)
                file.write(b",\n")
            file.write(b'"failures": ' + _encode(self._failures) + b"\n}\n")
