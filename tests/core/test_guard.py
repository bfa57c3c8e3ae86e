"""The guard: each kind of instruction that breaks a rule is refused with a clear error, and nothing of its step is
carried out or written."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Decided,
    Finished,
    Instruction,
    Pause,
    Reject,
    Start,
    Stimulus,
    WakeAt,
)
from dovetail.core.journal import Header, Reader, Writer
from dovetail.core.loop.engine import simulate
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.loop.guard import Guard
from dovetail.core.resources import Device, Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord

POOL = Pool.parse("4", {})
GRAPHS = {
    "pair": TaskGraph("pair", [Task("a", "x"), Task("b", "y", 2)], [("a", "b")]),
    "one": TaskGraph("one", [Task("c", "x")], []),
    "other": TaskGraph("other", [Task("d", "y")], []),
    "stuck": TaskGraph("stuck", [Task("e", "x")], [], never={"e": "needs 9 GPUs, the pool has 4"}),
}
ARRIVALS = [
    (0.0, Arrived("p", "pair", (4.0, 6.0))),
    (0.0, Arrived("m", "one", (2.0,))),
    (0.0, Arrived("n", "one", (2.0,))),
    (0.0, Arrived("y", "other", (2.0,))),
    (0.0, Arrived("s", "stuck", (2.0,))),
    (0.0, Arrived("bad", "one", fault="its times are missing")),
    (1.0, Arrived("o", "one", (9.0,))),
]
HEADER = Header(level="any", policy="scripted", pool=POOL, graphs=tuple(map(TaskGraphRecord.of, GRAPHS.values())))

Turn = list[Any]  # also what is not an instruction


class Scripted:
    """Gives prepared instructions, one turn after the other, whatever happens."""

    def __init__(self, turns: Sequence[Turn], closing: Turn) -> None:
        self._turns = list(turns)
        self._closing = closing

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        return self._turns.pop(0) if self._turns else []

    def close(self, now: float) -> list[Instruction]:
        return self._closing


class Carried(SimExecutor):
    """Remembers what it was told to start."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[Start] = []

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]:
        self.starts.append(order)
        return super().start(order, now)


def run(path: Path, turns: Sequence[Turn], closing: Turn | None = None) -> Carried:
    executor = Carried()
    try:
        with Writer(path, HEADER) as journal:
            simulate(Scripted(turns, closing or []), POOL, GRAPHS, ARRIVALS, executor, [journal])
    except PolicyError as error:
        error.add_note(f"{len(executor.starts)} carried out")
        raise
    return executor


def start(
    job: str,
    task: str,
    *devices: int,
    kind: str = "x",
    ready_s: float = 0.0,
    run_s: float = 2.0,
    setup_s: float = 0.0,
    replaces: str | None = None,
    batch: int = 0,
) -> Start:
    return Start(job, task, kind, devices, ready_s, run_s, "by hand", setup_s, replaces, batch)


A, M = start("p", "a", 0, run_s=4.0), start("m", "c", 1)
LONG = start("o", "c", 3, ready_s=1.0, run_s=9.0)
TOGETHER = start("m", "c", 1, setup_s=0.5, replaces="y", batch=7)

# Turns come at 0 s (six arrivals), 1 s (one), and then when something ends. The last instruction of the last turn is
# the wrong one; those before it are good.
WRONG: dict[str, tuple[list[Turn], str]] = {
    "a device that is held": ([[A], [M, start("o", "c", 0, ready_s=1.0)]], "device 0 is held by p/a"),
    "a device taken in the same step": ([[M, start("n", "c", 1)]], "device 1 is held by m/c"),
    "one device of a window is held": (
        [[A], [LONG], [start("p", "b", 2, 3, kind="y", ready_s=4.0)]],
        "device 3 is held by o/c",
    ),
    "a device that does not exist": ([[M, start("n", "c", 4)]], r"device 4 does not exist \(pool of 4\)"),
    "a negative device": ([[M, start("n", "c", -1)]], "device -1 does not exist"),
    "a device named twice": ([[A], [], [start("p", "b", 2, 2, kind="y", ready_s=4.0)]], r"named twice in \[2, 2\]"),
    "before its predecessor": ([[M, start("p", "b", 2, 3, kind="y")]], "p/b .* must wait for a"),
    "while its predecessor runs": ([[A], [LONG, start("p", "b", 1, 2, kind="y")]], "it must wait for a"),
    "while it runs": ([[A], [LONG, start("p", "a", 1)]], "it was started before"),
    "after it finished": ([[M], [], [start("m", "c", 1)]], "it was started before"),
    "a task that can never run": ([[M, start("s", "e", 3)]], "can never run: it needs 9 GPUs, the pool has 4"),
    "another kind": ([[A, start("m", "c", 1, kind="y")]], "needs x on 1 devices, found y on 1"),
    "too many devices": ([[A, start("m", "c", 1, 2)]], "needs x on 1 devices, found x on 2"),
    "too few devices": ([[A], [], [start("p", "b", 1, kind="y", ready_s=4.0)]], "needs y on 2 devices, found y on 1"),
    "no device": ([[A, start("m", "c")]], "needs x on 1 devices, found x on 0"),
    "a job that has not arrived": ([[M, LONG]], "o/c .* the job has not arrived or is closed"),
    "a job that is completed": ([[M], [], [Complete("m"), start("m", "c", 1)]], "not arrived or is closed"),
    "a job that is rejected": ([[Reject("m", "too long"), start("m", "c", 1)]], "not arrived or is closed"),
    "a job that cannot run": ([[M, start("bad", "c", 2)]], "the job cannot run: its times are missing"),
    "a task that does not exist": ([[M, start("n", "z", 2)]], "one has no such task"),
    "ready earlier than it was": ([[M], [start("o", "c", 3)]], r"ready since 1\.0 s, found 0\.0 s"),
    "ready later than it was": ([[M], [start("n", "c", 2, ready_s=1.0)]], r"ready since 0\.0 s, found 1\.0 s"),
    "a negative run": ([[A, start("m", "c", 1, run_s=-1.0)]], r"a run of -1\.0 s"),
    "an endless run": ([[A, start("m", "c", 1, run_s=inf)]], "a run of inf s"),
    "a run of no number": ([[A, start("m", "c", 1, run_s=nan)]], "a run of nan s"),
    "a negative setup": ([[A, start("m", "c", 1, setup_s=-1.0)]], r"a setup of -1\.0 s"),
    "a batch on other devices": ([[TOGETHER, start("n", "c", 2, batch=7)]], r"started on \[1\], found \[2\]"),
    "a batch of two kinds": ([[TOGETHER, start("y", "d", 1, kind="y", batch=7)]], "started as x, found y"),
    "a batch joined later": (
        [[TOGETHER], [start("o", "c", 1, ready_s=1.0, setup_s=0.5, replaces="y", batch=7)]],
        r"started at 0\.0, found 1\.0",
    ),
    "a batch with two prices": ([[TOGETHER, start("n", "c", 1, replaces="y", batch=7)]], r"setup of 0\.5, found 0\.0"),
    "a batch that replaces two": ([[TOGETHER, start("n", "c", 1, setup_s=0.5, batch=7)]], "replacing y, found None"),
    "a batch of two lengths": (
        [[TOGETHER, start("n", "c", 1, setup_s=0.5, replaces="y", run_s=3.0, batch=7)]],
        r"run of 2\.0, found 3\.0",
    ),
    "a batch that ended": ([[TOGETHER], [], [start("n", "c", 1, batch=7)]], "batch 7 ended before"),
    "a batch on a held device": ([[A, start("m", "c", 0, batch=7)]], "device 0 is held by p/a"),
    "complete before it ran": ([[A, Complete("p")]], "p was called complete, but it lacks a, b"),
    "complete while it runs": ([[M], [Complete("m")]], "m was called complete, but it lacks c"),
    "complete although a task is left": ([[A], [], [Complete("p")]], "p was called complete, but it lacks b"),
    "complete too late": ([[M, A], [], [], [Complete("m")]], r"its last task ended at 2\.0 s"),
    "complete although it cannot run": ([[M, Complete("bad")]], "it cannot run: its times are missing"),
    "complete what is unknown": ([[M, Complete("nobody")]], "nobody was called complete, but it has not arrived"),
    "complete twice": ([[M], [], [Complete("m"), Complete("m")]], "m was called complete, but it .* is closed"),
    "reject what is unknown": ([[M, Reject("nobody", "full")]], "rejected nobody, which has not arrived or is closed"),
    "reject twice": ([[Reject("m", "full"), Reject("m", "full")]], "rejected m, which has not arrived or is closed"),
    "reject without a reason": ([[M, Reject("n", "")]], "rejected n without a reason"),
    "wake in the past": ([[M], [WakeAt(0.5)]], r"woken at 0\.5 s, which is not in the future"),
    "wake at once": ([[M], [WakeAt(1.0)]], "which is not in the future"),
    "wake at no time": ([[M, WakeAt(nan)]], "woken at nan s"),
    "wake at the end of time": ([[M, WakeAt(inf)]], "woken at inf s"),
    "what is no instruction": ([[M, Finished("m", "c")]], "is not an instruction"),
    "nothing for an instruction": ([[M, None]], "None is not an instruction"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_a_rule_is_refused_and_leaves_no_trace(name: str, tmp_path: Path) -> None:
    turns, message = WRONG[name]
    path = tmp_path / "journal.jsonl"
    with pytest.raises(PolicyError, match=message) as caught:
        run(path, turns)
    good = turns[:-1]
    recorded = [[e for e in events if isinstance(e, Instruction)] for _, _, events in Reader(path).steps()]
    assert recorded == good
    started = sum(isinstance(order, Start) for turn in good for order in turn)
    assert caught.value.__notes__ == [f"{started} carried out"]
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("closing", "message"),
    [
        ([WakeAt(99.0)], "only rejections may close a run, not WakeAt"),
        ([start("p", "a", 0)], "only rejections may close a run, not Start"),
        ([Reject("nobody", "stuck")], "rejected nobody"),
        ([Reject("s", "stuck")], "stopped deciding with 3 jobs unfinished, first p; nothing runs"),
    ],
)
def test_a_run_closes_with_rejections_of_all_that_is_left(closing: Turn, message: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with pytest.raises(PolicyError, match=message):
        run(path, [[Reject("bad", "faulty"), Reject("y", "not wanted")], [Reject("o", "not wanted")]], closing)
    written = [event for _, _, event in Reader(path) if isinstance(event, Reject)]
    assert [event.job for event in written[:3]] == ["bad", "y", "o"]
    assert [event.job for event in written[3:]] == (["s"] if "unfinished" in message else [])


def test_a_batch_holds_its_devices_until_its_last_part_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    companion = start("n", "c", 1, setup_s=0.5, replaces="y", batch=7)
    late = start("o", "c", 1, ready_s=1.0)
    rest = [Reject(name, "not wanted") for name in ("p", "y", "s", "bad")]
    run(path, [[TOGETHER, companion, *rest], [], [Complete("m"), Complete("n"), late], [Complete("o")]])
    assert [(t, e.job) for _, t, e in Reader(path) if isinstance(e, Start | Complete)] == [
        (0.0, "m"),
        (0.0, "n"),
        (2.5, "m"),
        (2.5, "n"),
        (2.5, "o"),
        (4.5, "o"),
    ]


def test_what_was_rejected_while_it_ran_frees_its_device_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    rest = [Reject(name, "not wanted") for name in ("p", "n", "y", "s", "bad")]
    turns: list[Turn] = [[M, *rest], [Reject("m", "given up")], [start("o", "c", 1, ready_s=1.0)], [Complete("o")]]
    run(path, turns)
    assert [t for _, t, e in Reader(path) if isinstance(e, Start)] == [0.0, 2.0]
    with pytest.raises(PolicyError, match="device 1 is held by m/c"):
        run(path, [[M, *rest], [Reject("m", "given up"), start("o", "c", 1, ready_s=1.0)]])


def test_what_was_rejected_cannot_arrive_again_while_it_runs() -> None:
    """Two of one name would share one entry of the guard: the end of one would free the device of the other."""
    guard = Guard(POOL, GRAPHS)
    guard.see(Arrived("w", "one", (9.0,)), 0.0)
    guard.allow(Start("w", "c", "x", (0,), 0.0, 9.0, ""), 0.0)
    guard.allow(Reject("w", "too late"), 1.0)
    with pytest.raises(InputError, match="runs still"):
        guard.see(Arrived("w", "one", (9.0,)), 2.0)
    guard.see(Finished("w", "c"), 9.0)
    guard.see(Arrived("w", "one", (9.0,)), 9.0)
    assert guard.open_jobs == ["w"]


def test_devices_and_graphs_that_join_are_used_like_the_others() -> None:
    guard = Guard(Pool.parse("1", {}), {})
    guard.see(Added("a host joined", (Device(1, "gpu"),), {}, (TaskGraphRecord("late", (Task("p", "x"),)),)), 1.0)
    guard.see(Arrived("job", "late", (1.0,)), 2.0)
    guard.allow(Start("job", "p", "x", (1,), 2.0, 1.0, "free"), 2.0)
    guard.see(Arrived("other", "late", (1.0,)), 2.0)
    with pytest.raises(PolicyError, match="device 1 is held by job/p"):
        guard.allow(Start("other", "p", "x", (1,), 2.0, 1.0, "free"), 2.0)


def test_what_a_level_decides_needs_a_reason() -> None:
    guard = Guard(Pool.parse("1", {}), {})
    guard.allow(Decided("replan", "a host fell silent"), 0.0)
    with pytest.raises(PolicyError, match="replan was decided without a reason"):
        guard.allow(Decided("replan", ""), 0.0)


def slot(job: str, task: str = "c", kind: str = "x", devices: tuple[int, ...] = (0,), slots: int = 2) -> Start:
    return Start(job, task, kind, devices, 0.0, 2.0, "now", slots=slots)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (slot("n", slots=3), r"they are shared by x in 2 slots, found x in 3"),
        (slot("y", "d", "y"), r"they are shared by x in 2 slots, found y in 2"),
        (Start("n", "c", "x", (0,), 0.0, 2.0, "now"), r"device 0 is held by m/c"),
        (Start("n", "c", "x", (0,), 0.0, 2.0, "now", batch=1), r"device 0 is held by m/c"),
        (Start("n", "c", "x", (1,), 0.0, 2.0, "now", batch=1, slots=2), r"expected slots or a batch"),
        (slot("n", devices=(1,), slots=-1), r"expected slots or a batch, found -1 slots"),
    ],
)
def test_devices_with_slots_are_shared_by_one_kind_alone(order: Start, message: str) -> None:
    guard = Guard(POOL, GRAPHS)
    for t, arrival in ARRIVALS[:4]:
        guard.see(arrival, t)
    guard.allow(slot("m"), 0.0)
    with pytest.raises(PolicyError, match=message):
        guard.allow(order, 0.0)


def test_slots_are_filled_and_given_back_one_by_one() -> None:
    guard = Guard(POOL, GRAPHS)
    for t, arrival in ARRIVALS:
        guard.see(arrival, t)
    guard.allow(slot("m"), 0.0)
    guard.allow(slot("n"), 0.0)
    third = Start("o", "c", "x", (0,), 1.0, 2.0, "now", slots=2)
    with pytest.raises(PolicyError, match="all 2 slots are taken"):
        guard.allow(third, 1.0)
    guard.see(Finished("m", "c"), 1.0)
    guard.allow(third, 1.0)
    guard.see(Finished("n", "c"), 2.0)
    with pytest.raises(PolicyError, match="device 0 is held"):
        guard.allow(Start("y", "d", "y", (0,), 0.0, 2.0, "now"), 2.0)
    with pytest.raises(PolicyError, match="it shares its devices"):
        guard.allow(Pause("o", "c", "to see"), 2.0)
    guard.see(Finished("o", "c"), 3.0)
    guard.allow(Start("y", "d", "y", (0,), 0.0, 2.0, "now"), 3.0)
