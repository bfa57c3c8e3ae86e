"""The level's own rules over a run: order, buffers, turns of replicas, and every microbatch delivered once.

They hold for simulations and for real runs. In a real run times are measured, and a microbatch that a broken layout
lost is sent again as another work: its number counts, not its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Reject, Start
from dovetail.core.files import explain
from dovetail.core.findings import Findings, Report, check_bounds, close
from dovetail.core.journal import Header, Reader
from dovetail.core.metrics import recount

CODES = core.CODES | {
    "microbatch": "a work that is not called `microbatch` and a number",
    "fifo": "a microbatch that overtook another",
    "turn": "a microbatch on a device whose turn it was not",
    "buffer": "more microbatches waiting than there are buffers",
    "seconds": "a stage or link that was to take another time than the plan says",
    "delivery": "a microbatch that came out twice, or before an earlier one",
    "lost": "a microbatch that never came out",
    "bound": "a makespan below what is possible, or below what the run claims to be",
}
LIVE = "live"
_NAME = re.compile(r"microbatch (\d+)(?: \(.*\))?")


class PipelineFacts(Struct):
    """What the level adds to a header: the names of devices, and those that take turns at each stage and link."""

    model: str = ""
    devices: list[str] = []
    ended: str = ""  # why a real run ended early
    lanes: dict[str, list[int]] = {}
    bound_makespan_s: float | None = None


class _Microbatch(Struct):
    """A microbatch on its way."""

    number: int
    of: str
    sizes: tuple[float, ...]


class PipelineRules:
    """Follows a run that the core's checker finds possible."""

    def __init__(self, header: Header, facts: PipelineFacts, faults: Findings) -> None:
        self._faults = faults
        self._live = header.mode == LIVE
        self._lanes = {} if self._live else facts.lanes
        self._shapes = header.build_graphs()
        self._types = [device.type for device in header.pool.devices]
        buffers = header.options.get("buffers")
        self._buffers = buffers if isinstance(buffers, int) and not self._live else None
        self._open: dict[str, _Microbatch] = {}
        self._sizes: tuple[float, ...] = ()
        self._last: dict[tuple[str, str, int], int] = {}  # number that started last, by type, part and device
        self._waiting: dict[tuple[str, int], int] = {}  # how many wait, by type and part
        self._sent: set[int] = set()
        self._delivered: set[int] = set()
        self._latest = 0
        self._ended_early = self._live and bool(facts.ended)
        self._rejected: set[int] = set()  # numbers that were given up last

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is Arrived:
                self._arrived(event)
            elif kind is Start:
                self._started(event)
            elif kind is Finished:
                self._finished(event)
            elif kind is Complete:
                self._completed(event)
            elif kind is Reject:
                sent = self._open.pop(event.job, None)
                if sent is not None:
                    self._rejected.add(sent.number)
        if self._buffers is not None:
            self._check_buffers(self._buffers)

    def _arrived(self, event: Arrived) -> None:
        found = _NAME.fullmatch(event.job)
        if found is None:
            self._faults.add("microbatch", event.job, "expected `microbatch` and a number")
        elif event.of in self._shapes:
            number = int(found.group(1))
            self._sent.add(number)
            self._rejected.discard(number)
            self._sizes = event.sizes
            self._open[event.job] = _Microbatch(number, event.of, event.sizes)

    def _started(self, start: Start) -> None:
        sent = self._open.get(start.job)
        i = None if sent is None else self._shapes[sent.of].index.get(start.task)
        if sent is None or i is None:
            return  # the core has said so
        who = f"{start.job}/{start.task}"
        # Real replicas of a stage begin when they can; each of them keeps the order.
        key = (sent.of, start.task, start.devices[0] if self._live and start.devices else -1)
        before = self._last.get(key, 0)
        if sent.number <= before:
            self._faults.add("fifo", who, f"started after microbatch {before}")
        self._last[key] = max(sent.number, before)
        if i:
            self._waiting[sent.of, i] = self._waiting.get((sent.of, i), 0) - 1
        lanes = self._lanes.get(start.task)
        if lanes and start.devices != (lanes[(sent.number - 1) % len(lanes)],):
            expected = lanes[(sent.number - 1) % len(lanes)]
            self._faults.add("turn", who, f"found device {list(start.devices)}, expected {expected}")
        if not self._live and i < len(sent.sizes) and not close(start.run_s, sent.sizes[i]):
            self._faults.add("seconds", who, f"found {start.run_s} s, expected {sent.sizes[i]} s")

    def _finished(self, event: Finished) -> None:
        sent = self._open.get(event.job)
        i = None if sent is None else self._shapes[sent.of].index.get(event.task)
        if sent is not None and i is not None:
            self._waiting[sent.of, i + 1] = self._waiting.get((sent.of, i + 1), 0) + 1

    def _check_buffers(self, buffers: int) -> None:
        for (of, i), waiting in self._waiting.items():
            parts = self._shapes[of].tasks
            if i >= len(parts) or waiting <= buffers:
                continue
            owner = parts[i] if self._is_stage(parts[i].name) else parts[i - 1]  # buffers belong to stages
            limit = buffers * max(len(self._lanes.get(owner.name, ())), 1)
            if waiting > limit:
                self._faults.add("buffer", parts[i].name, f"{waiting} microbatches wait, expected at most {limit}")

    def _is_stage(self, part: str) -> bool:
        lanes = self._lanes.get(part, ())
        return any(0 <= device < len(self._types) and self._types[device] != "link" for device in lanes)

    def _completed(self, event: Complete) -> None:
        sent = self._open.pop(event.job, None)
        if sent is None:
            return
        if sent.number in self._delivered:
            self._faults.add("delivery", event.job, "came out before")
        elif sent.number < self._latest:
            self._faults.add("delivery", event.job, f"came out after microbatch {self._latest}")
        self._delivered.add(sent.number)
        self._latest = max(self._latest, sent.number)

    def least_s(self) -> float | None:
        """No makespan of a simulation is below this.

        All pass the busiest stage or link one by one; the first one comes through all places before it, and the last
        one goes through all behind it.
        """
        if self._live or not self._sizes or len(self._shapes) != 1:
            return None
        (shape,) = self._shapes.values()
        rounds = [ceil(len(self._sent) / max(1, len(self._lanes.get(part.name, ())))) for part in shape.tasks]
        latency_s = sum(self._sizes)
        return max(latency_s + (n - 1) * size for n, size in zip(rounds, self._sizes, strict=False))

    def finish(self, makespan_s: float) -> None:
        """What only the end can tell."""
        self._faults.nowhere()
        check_bounds({"bound_makespan_s": self.least_s()}, {"makespan_s": makespan_s}, self._faults)
        given_up = self._rejected if self._ended_early else set()
        for number in sorted(self._sent - self._delivered - given_up):
            self._faults.add("lost", f"microbatch {number}", "was sent, but never came out")


def check_journal(path: Path) -> Report:
    """Check a journal of this level."""
    reader, faults = Reader(path), Findings()
    header = core.check_header(reader.header, path)
    try:
        facts = msgspec.convert(header.facts, PipelineFacts)
    except msgspec.ValidationError as error:
        keys, message = explain(error)
        raise InputError(f"{path}:1: facts.{'.'.join(map(str, keys))}: {message}") from None
    rules, live = PipelineRules(header, facts, faults), header.mode == LIVE
    figures = core.check_journal(reader, faults, [rules], exact=not live)
    if not faults.interrupted:
        rules.finish(figures.makespan_s)
    counted = recount(figures)
    if (least_s := facts.bound_makespan_s or rules.least_s()) is not None:
        counted["bound_makespan_s"] = least_s
    notes = ["times were measured: they were not compared with the plan"] if live else []
    if live and facts.ended:
        notes.append(f"the run ended early: {facts.ended}")
    return Report.of(str(path), "journal", faults, notes, counted)
