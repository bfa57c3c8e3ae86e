"""The text log: a line per thing that happened, as people's scripts know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from dovetail.core.events import Arrived, Complete, Failed, Finished, Grew, Prepare, PrepareEnded, Reject, Start
from dovetail.core.journal import Ended, Header
from dovetail.core.journal.preloads import Preloads

_LINES = 4096  # of the text log, written at once


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
        self._live = False
        self._ahead: Preloads[Prepare] = Preloads()

    def begin(self, header: Header, requests: int) -> None:
        """What runs, on what."""
        self.say(f"Starting {header.policy} scheduler with {requests} requests")
        self._live = live = bool(header.facts.get("live"))
        mode = header.facts.get("asked_mode", header.mode)  # live runs decide as they go, whatever came when
        called = live or bool(header.facts.get("simulate"))
        plain = not called and not header.facts.get("compat")
        self.say(f"Mode: {mode}, {'simulated: no model is called' if plain else f'Simulate: {called}'}")
        self.say(f"Available GPUs: {[device.id for device in header.pool.devices]}")
        self.say("Calling models..." if live else "Starting discrete event simulation...")

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
                self._start(t, event, batch)
                batch = event.batch
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
            elif kind is Grew:
                names = ", ".join(task.name for task in event.tasks)
                lines.append(f"[{t:.2f}s] Node {event.task} of request {event.job} {event.why or 'goes on'}: {names}")
            elif kind is Prepare or kind is PrepareEnded:
                self._preload(t, event)
            elif kind is Ended:
                lines.append(f"{'Run' if self._live else 'Simulation'} completed at time {t:.2f}s")
        if len(lines) >= _LINES:
            self.flush()

    def _start(self, t: float, event: Start, batch: int) -> None:
        """`batch` is that of the start before it: all of one switch together."""
        ids = self._running[event.job, event.task] = self._ids(event.devices)
        found = self._ahead.find(event) if self._ahead else None
        if found is not None and found.under_way:
            node = f"node {event.task} of request {event.job}"
            self._lines.append(
                f"[{t:.2f}s] Loading of {event.kind} on GPU(s) {ids} goes on for {node} ({event.setup_s:.2f}s left)"
            )
        elif event.setup_s and (not event.batch or event.batch != batch):
            self._lines.append(
                f"[{t:.2f}s] Scheduling model switch on GPU(s) {ids} from {event.replaces} to {event.kind} "
                f"(switch time: {event.setup_s:.2f}s)"
            )
        start = t + event.setup_s
        self._lines.append(
            f"[{t:.2f}s] Scheduled node {event.task} of request {event.job} on GPU(s) {ids} "
            f"(start: {start:.2f}s, end: {start + event.run_s:.2f}s)"
        )

    def _preload(self, t: float, event: Prepare | PrepareEnded) -> None:
        if isinstance(event, Prepare):
            self._ahead.begin(event, event)
            where = self._ids(event.devices)
            where += "" if event.replaces is None else f" in the place of {event.replaces}"
            self._lines.append(f"[{t:.2f}s] Loading {event.kind} ahead of need on GPU(s) {where} ({event.why})")
        elif (ended := self._ahead.end(event)) is not None and event.why:
            self._lines.append(f"[{t:.2f}s] Loading of {ended[0].kind} ahead of need failed: {event.why}")

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
