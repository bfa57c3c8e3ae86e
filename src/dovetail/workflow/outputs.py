"""The level's results: the text log, the block of metrics, the execution log and the summary.

The first three keep the lines and keys that people's scripts know, with definitions that hold: a node counts on every
GPU of its window, waiting is from ready to the decision, a response is a duration.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, TextIO

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.files import written_whole
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.bounds import Bounds

_LINES = 4096  # of the text log, written at once
_BYTES = 1 << 20  # of the execution log, written at once
_REASONS = 5
_encode = msgspec.json.Encoder().encode


class TextLog:
    """Writes one line per thing that happened, with its simulated time; the console may get only the first lines.

    >>> import sys
    >>> log = TextLog(sys.stdout)
    >>> log.step(1, 0.0, [Arrived("req_001", "text", (8.5,)), Start("req_001", "a", "llm", (0,), 0.0, 8.5, "", 3.0)])
    >>> log.close()
    [0.00s] Processing request req_001 (workflow: text)
    [0.00s] Scheduling model switch on GPU(s) [0] from None to llm (switch time: 3.00s)
    [0.00s] Scheduled node a of request req_001 on GPU(s) [0] (start: 3.00s, end: 11.50s)
    """

    def __init__(self, file: TextIO, console: TextIO | None = None, console_lines: int | None = None) -> None:
        self._file = file
        self._console = console
        self._left = console_lines
        self._lines: list[str] = []
        self._kept_back = 0
        self._running: dict[tuple[str, str], str] = {}
        self._names: dict[tuple[int, ...], str] = {}

    def begin(self, header: Header, requests: int | None = None) -> None:
        """What runs, on what."""
        count = "" if requests is None else f" with {requests} requests"
        self.say(f"Starting {header.policy} scheduler{count}")
        self.say(f"Mode: {header.mode}, Simulate: {bool(header.facts.get('simulate'))}")
        self.say(f"Available GPUs: {[device.id for device in header.pool.devices]}")
        self.say("Starting discrete event simulation...")

    def end(self, t: float) -> None:
        self.say(f"Simulation completed at time {t:.2f}s")

    def say(self, text: str) -> None:
        """A line of its own."""
        self._lines.append(text)
        if len(self._lines) >= _LINES:
            self.flush()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        lines, batch = self._lines, 0
        for event in events:
            kind = type(event)
            if kind is Start:
                ids = self._ids(event.devices)
                self._running[event.work, event.part] = ids
                start = t + event.setup_s
                if event.setup_s and (not event.batch or event.batch != batch):
                    lines.append(
                        f"[{t:.2f}s] Scheduling model switch on GPU(s) {ids} from {event.replaces} to {event.kind} "
                        f"(switch time: {event.setup_s:.2f}s)"
                    )
                batch = event.batch
                lines.append(
                    f"[{t:.2f}s] Scheduled node {event.part} of request {event.work} on GPU(s) {ids} "
                    f"(start: {start:.2f}s, end: {start + event.run_s:.2f}s)"
                )
            elif kind is Finished:
                ids = self._running.pop((event.work, event.part))
                lines.append(f"[{t:.2f}s] Completed node {event.part} of request {event.work} on GPU(s) {ids}")
            elif kind is Arrived:
                lines.append(f"[{t:.2f}s] Processing request {event.work} (workflow: {event.of})")
            elif kind is Complete:
                lines.append(f"[{t:.2f}s] Request {event.work} completed")
            elif kind is Reject:
                lines.append(f"[{t:.2f}s] Request {event.work} rejected: {event.why}")
            elif kind is Failed:
                ids = self._running.pop((event.work, event.part))
                lines.append(
                    f"[{t:.2f}s] Failed node {event.part} of request {event.work} on GPU(s) {ids}: {event.why}"
                )
        if len(lines) >= _LINES:
            self.flush()

    def _ids(self, devices: tuple[int, ...]) -> str:
        found = self._names.get(devices)
        if found is None:
            found = self._names[devices] = str(list(devices))
        return found

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        self._file.write("\n".join(lines) + "\n")
        if self._console is not None:
            shown = lines if self._left is None else lines[: self._left]
            self._kept_back += len(lines) - len(shown)
            if self._left is not None:
                self._left -= len(shown)
            if shown:
                self._console.write("\n".join(shown) + "\n")

    def close(self) -> None:
        """Write what is left, and tell the console how much it was not shown."""
        self.flush()
        if self._console is not None and self._kept_back:
            self._console.write(f"... {self._kept_back} more lines in {getattr(self._file, 'name', 'the log')}\n")


class Rejections:
    """How many works were rejected for which reason, the first reasons that came up."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Reject and (event.why in self.reasons or len(self.reasons) < _REASONS):
                self.reasons[event.why] = self.reasons.get(event.why, 0) + 1


def gap(value: float, bound: float) -> float | None:
    """How far a figure is above its lower bound, as a share of the bound; None where there is no bound.

    >>> gap(11.0, 10.0)
    0.10000000000000009
    """
    return value / bound - 1 if bound > 0 else None


def switch_overhead(figures: Figures) -> float:
    """The share of all GPUs' time that went into making models resident."""
    total = figures.makespan_s * len(figures.devices)
    return sum(device.setup_s for device in figures.devices) / total if total else 0.0


def metrics_block(
    figures: Figures,
    bounds: Bounds | None = None,
    rejected: Mapping[str, int] | None = None,
    skipped: int = 0,
    simulate: bool = False,
) -> str:
    """The metrics as a block of text; `rejected` counts rejected requests by reason, `simulate` says that models were
    called."""
    rule, response = "=" * 60, figures.response_s
    lines = ["", rule, "EXECUTION METRICS", rule]
    lines.append(f"Total execution time (makespan): {figures.makespan_s:.2f} seconds")
    lines.append(f"Total nodes executed: {figures.parts}")
    lines.append(f"Simulation mode: {'true (models were called)' if simulate else 'false (no model was called)'}")
    counts = f"{figures.completed} completed, {figures.rejected} rejected"
    lines += ["", f"Requests: {counts}" + (f", {skipped} skipped" if skipped else "")]
    lines += [f"  {count} rejected: {why}" for why, count in (rejected or {}).items()]
    if rejected and figures.rejected > sum(rejected.values()):
        lines.append(f"  ... and {figures.rejected - sum(rejected.values())} for other reasons")
    if figures.failures:
        lines.append(f"Failed attempts: {figures.failures}")
    lines += ["", "Request completion times" + (":" if figures.completed else ": none was completed")]
    for name, value in (
        ("Average", response.mean),
        ("Median", response.median),
        ("P99", response.p99),
        ("Min", response.min),
        ("Max", response.max),
    ):
        if figures.completed:
            lines.append(f"  {name}: {value:.2f}s")
    lines += ["", "GPU utilization:"]
    for gpu in figures.devices:
        share = f"({100 * gpu.utilisation:.1f}% utilization)"
        lines.append(f"  GPU {gpu.id}: {gpu.executions} executions, {gpu.busy_s:.2f}s busy time {share}")
    lines += ["", "Model execution counts:"]
    lines += [f"  {model}: {count} executions" for model, count in figures.kinds.items()]
    lines += ["", "Model switching:", f"  Total switches: {figures.switches}"]
    lines.append(f"  Total switch time: {figures.switch_time_s:.2f} seconds")
    lines.append(f"  First loads: {figures.loads} ({figures.load_time_s:.2f} seconds)")
    lines.append(f"  Switch overhead: {100 * switch_overhead(figures):.1f}% of GPU time")
    if bounds is not None and bounds.void:
        lines += ["", f"Lower bounds: none ({bounds.void})"]
    elif bounds is not None:
        lines += ["", f"Lower bounds (no schedule can be shorter; makespan by {bounds.binding}):"]
        for name, value, bound in (
            ("Makespan", figures.makespan_s, bounds.makespan_s),
            ("Average", response.mean, bounds.mean_s),
            ("Median", response.median, bounds.median_s),
            ("P99", response.p99, bounds.p99_s),
        ):
            above = gap(value, bound)
            lines.append(f"  {name}: {bound:.2f}s" + ("" if above is None else f" (gap {100 * above:.2f}%)"))
    return "\n".join(lines)


def summary(header: Header, figures: Figures, bounds: Bounds, skipped: int = 0) -> dict[str, Any]:
    """What a run came to, as flat figures: what `--format json` prints and what a journal ends with."""
    return {
        "policy": header.policy,
        "mode": header.mode,
        "gpus": len(header.pool),
        **recount(figures),
        "skipped": skipped,
        "switch_overhead": switch_overhead(figures),
        "bound_makespan_s": None if bounds.void else bounds.makespan_s,
        "bound_mean_s": None if bounds.void else bounds.mean_s,
        "bound_median_s": None if bounds.void else bounds.median_s,
        "bound_p99_s": None if bounds.void else bounds.p99_s,
        "bound_by": bounds.void or bounds.binding,
        "gap_makespan": gap(figures.makespan_s, bounds.makespan_s),
        "gap_mean": gap(figures.response_s.mean, bounds.mean_s),
        "gap_p99": gap(figures.response_s.p99, bounds.p99_s),
    }


# --- the execution log ----------------------------------------------------------------------------


class Execution(Struct, omit_defaults=True, gc=False):
    """A node's run. The GPUs are held from `switch_start` to `end_time`; the node itself starts at `start_time`."""

    request_id: str
    workflow_id: str
    node_id: str
    model_name: str
    gpu_id: int | None
    start_time: float
    end_time: float
    execution_time: float
    estimated_time: float
    switch_time: float
    waiting_time: float
    gpu_ids: tuple[int, ...]
    ready_time: float
    switch_start: float
    from_model: str | None
    decision: int  # the how-manyth start of the run it was: simultaneous starts have an order
    batch: int = 0
    reason: str = ""  # why it failed; only among the failures


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


def log_summary(header: Header, figures: Figures) -> dict[str, Any]:
    """The summary of an execution log, under the keys it has always had."""
    return {
        "total_requests": figures.arrived,
        "completed_requests": figures.completed,
        "rejected_requests": figures.rejected,
        "total_nodes_executed": figures.parts,
        "failed_attempts": figures.failures,
        "mode": header.mode,
        "simulate": bool(header.facts.get("simulate")),
        "gpus": [device.id for device in header.pool.devices],
        "makespan": figures.makespan_s,
        "total_model_switches": figures.switches,
        "total_switch_time": figures.switch_time_s,
        "avg_waiting_time": figures.part_wait_s.mean,
        "p99_waiting_time": figures.part_wait_s.p99,
        "avg_response_time": figures.part_response_s.mean,
        "p99_response_time": figures.part_response_s.p99,
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
    __slots__ = ("decision", "row", "start", "t", "workflow")

    def __init__(self, decision: int, t: float, start: Start, workflow: str) -> None:
        self.decision = decision
        self.t = t
        self.start = start
        self.workflow = workflow
        self.row: bytes | None = None  # set once it has ended; empty if it failed


class ExecutionLog:
    """Follows a run and keeps it as an execution log; rows go to disk as they are known, `write` puts it in place.

    Executions are in order of `start_time`: a row waits until nothing that still runs started before it.
    """

    def __init__(self, header: Header, path: Path) -> None:
        self._header = header
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._spools = {name: _Spool(path.parent) for name in ("executions", "requests", "rejected_requests")}
        self._failures: list[Execution] = []
        self._open: dict[str, tuple[float, Arrived]] = {}
        self._running: dict[tuple[str, str], _Running] = {}
        self._started: list[tuple[float, int, _Running]] = []
        self._decisions = 0

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
                running = _Running(self._decisions, t, event, self._open[event.work][1].of)
                self._running[event.work, event.part] = running
                heappush(self._started, (t + event.setup_s, self._decisions, running))
            elif kind is Finished or kind is Failed:
                self._ended(t, event)
            elif kind is Arrived:
                self._open[event.work] = (t, event)
            elif kind is Complete:
                self._closed(t, event.work, None)
            elif kind is Reject:
                self._closed(t, event.work, event.why)
        self._emit(t)

    def _ended(self, t: float, event: Finished | Failed) -> None:
        running = self._running.pop((event.work, event.part))
        start = running.start
        begun = running.t + start.setup_s
        row = Execution(
            start.work,
            running.workflow,
            start.part,
            start.kind,
            start.devices[0] if start.devices else None,
            begun,
            t,
            t - begun,
            start.run_s,
            start.setup_s,
            running.t - start.ready_s,
            start.devices,
            start.ready_s,
            running.t,
            start.replaces,
            running.decision,
            start.batch,
        )
        if isinstance(event, Failed):
            row.reason = event.why
            self._failures.append(row)
            running.row = b""
        else:
            running.row = _encode(row)

    def _emit(self, t: float) -> None:
        started, add = self._started, self._spools["executions"].add
        while started and started[0][2].row is not None and started[0][0] <= t:
            row = heappop(started)[2].row
            if row:
                add(row)

    def _closed(self, t: float, work: str, reason: str | None) -> None:
        arrived_s, arrived = self._open.pop(work)
        done = reason is None
        row = RequestRow(
            work,
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
        self._spools["requests"].add(_encode(row))
        if not done:
            self._spools["rejected_requests"].add(_encode({"request_id": work, "reason": reason}))

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
            "shapes": header.shapes,
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
