"""The level's results: the text log, the block of metrics and the summary.

The first two keep the lines that people's scripts know, with definitions that hold: a node counts on every
GPU of its window, waiting is from ready to the decision, a response is a duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.bounds import Bounds

_LINES = 4096  # of the text log, written at once
_REASONS = 5


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
                self._running[event.job, event.task] = ids
                start = t + event.setup_s
                if event.setup_s and (not event.batch or event.batch != batch):
                    lines.append(
                        f"[{t:.2f}s] Scheduling model switch on GPU(s) {ids} from {event.replaces} to {event.kind} "
                        f"(switch time: {event.setup_s:.2f}s)"
                    )
                batch = event.batch
                lines.append(
                    f"[{t:.2f}s] Scheduled node {event.task} of request {event.job} on GPU(s) {ids} "
                    f"(start: {start:.2f}s, end: {start + event.run_s:.2f}s)"
                )
            elif kind is Finished:
                ids = self._running.pop((event.job, event.task))
                lines.append(f"[{t:.2f}s] Completed node {event.task} of request {event.job} on GPU(s) {ids}")
            elif kind is Arrived:
                lines.append(f"[{t:.2f}s] Processing request {event.job} (workflow: {event.of})")
            elif kind is Complete:
                lines.append(f"[{t:.2f}s] Request {event.job} completed")
            elif kind is Reject:
                lines.append(f"[{t:.2f}s] Request {event.job} rejected: {event.why}")
            elif kind is Failed:
                ids = self._running.pop((event.job, event.task))
                lines.append(f"[{t:.2f}s] Failed node {event.task} of request {event.job} on GPU(s) {ids}: {event.why}")
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
    lines.append(f"Total nodes executed: {figures.tasks}")
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
