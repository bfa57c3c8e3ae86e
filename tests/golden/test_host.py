"""The worked examples: every line of every timeline, of the older scheduler's decisions and of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.events import Arrived, Asked, Finished, Pause, Resize, Resume, Start
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import run

CORES = 16
WORKS = {"E1": [960] * 3, "E2": [800] * 4, "E3": [1200, 1200, 200, 200], "E4": [1600, 800, 400, 400]}
WORKS["E5"] = [1200, 1200, 600]
_LINE = re.compile(r"  t= *([\d.]+)  (\w+) J(\d+)(.*?)  \[(.*)\] free=(\d+)")
Line = tuple[str, str, int, int, dict[int, int], int]  # time, what, whom, to how many cores, who has how many, free


class Example:
    def __init__(self, title: str, lines: list[str]) -> None:
        self.title = title
        self.lines = [line for text in lines if (line := self._line(text)) is not None]
        self.arrivals = [self._arrival(text) for text in lines if " arrive " in text]
        self.rows = [re.findall(r"[\d.]+", line) for line in lines if re.match(r"  J\d+:", line)]
        self.summary = re.findall(r"[\d.]+", lines[-1])

    def _line(self, text: str) -> Line | None:
        found = _LINE.fullmatch(text)
        if found is None:
            return None
        time, what, job, _, holders, free = found.groups()
        has = {int(j): int(n) for j, n in re.findall(r"J(\d+):(\d+)", holders)}
        return time, what, int(job), has.get(int(job), 0), has, int(free)

    def _arrival(self, text: str) -> tuple[float, int, int]:
        found = _LINE.fullmatch(text)
        assert found is not None
        asked = re.search(r"req (\d+)", text)
        priority = re.search(r"prio (\d+)", text)
        assert asked is not None
        return float(found.group(1)), int(asked.group(1)), int(priority.group(1)) if priority else 0

    @property
    def workload(self) -> Workload:
        arrivals: list[tuple[float, Arrived | Asked]] = []
        for i, (at_s, asked, priority) in enumerate(self.arrivals):
            facts = msgspec.to_builtins(Ask(asked, priority=priority))
            arrivals.append((at_s, Arrived(f"J{i}", "program", (float(WORKS[self.title[:2]][i]),), facts=facts)))
        return Workload(CORES, tuple(arrivals), {"program": program_graph("program", CORES)})

    @property
    def options(self) -> HostOptions:
        title = self.title
        assign = next((name for name in ("always", "max_prop") if name in title), "strict")
        return HostOptions(
            plan="rr" if "Round Robin" in title else "priority" if title.startswith("E4") else "fcfs",
            assign="always_attend" if assign == "always" else assign,
            preemptive="Priority preemptive" in title,
            overtaking="backfill" if "backfill" in title else "none",
            profile="legacy" if "ORIGINAL" in title else "clean",
        )


def examples(path: Path) -> list[Example]:
    blocks = path.read_text().strip().split("\n\n")
    return [Example(block.split("\n")[0], block.split("\n")[1:]) for block in blocks]


class Teller:
    """Tells a run in the lines of the examples."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._has: dict[int, int] = {}
        self._started: set[int] = set()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._tell(t, "arrive", event.job)
            elif isinstance(event, Finished | Pause):
                self._has.pop(int(event.job[1:]))
                self._tell(t, "finish" if isinstance(event, Finished) else "pause", event.job)
            elif isinstance(event, Start | Resume | Resize):
                before = self._has.get(int(event.job[1:]), 0)
                self._has[int(event.job[1:])] = len(event.devices)
                what = {Start: "start", Resume: "unpause"}.get(type(event), "grow")
                self._tell(t, "shrink" if len(event.devices) < before else what, event.job)

    def _tell(self, t: float, what: str, work: str) -> None:
        job = int(work[1:])
        free = CORES - sum(self._has.values())
        self.lines.append((f"{t:.2f}", what, job, self._has.get(job, 0), dict(self._has), free))


def test_every_timeline_is_exact(golden: Path) -> None:
    found = examples(golden / "host/worked-examples.txt")
    assert len(found) == 24
    assert sum("ORIGINAL" in example.title for example in found) == 9
    for example in found:
        teller = Teller()
        outcome = run(example.workload, example.options, [teller])
        assert teller.lines == example.lines, example.title
        rows = [[row.program[1:], row.first_run_s, row.turnaround_s, row.ended_s] for row in outcome.rows]
        assert [[f"{float(x or 0):.1f}" for x in row[1:]] for row in rows] == [r[1:] for r in example.rows]
        totals = outcome.totals
        assert [
            f"{totals.makespan_s:.1f}",
            f"{totals.mean_first_run_s:.1f}",
            f"{totals.mean_turnaround_s:.1f}",
            f"{100 * totals.core_use:.0f}",
            f"{totals.throughput_per_h:.1f}",
        ] == example.summary, example.title


def test_a_wrong_rule_is_noticed(golden: Path) -> None:
    example = next(e for e in examples(golden / "host/worked-examples.txt") if "CLEAN FCFS + always" in e.title)
    teller = Teller()
    run(example.workload, HostOptions(assign="always_attend", first="growth"), [teller])
    assert teller.lines != example.lines
