"""Jobs that change while they run: the guard's account, ends that a change overtakes, figures, and the live loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dovetail.core.errors import DovetailError, PolicyError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Defer,
    Failed,
    Finished,
    Instruction,
    Order,
    Pause,
    Reject,
    Resize,
    Resume,
    Settled,
    Start,
    Stimulus,
    Stop,
    WakeAt,
    Woke,
)
from dovetail.core.explain import explain, sentences
from dovetail.core.journal import Header, Reader, Writer
from dovetail.core.loop.engine import replay, serve, simulate
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.loop.guard import Guard
from dovetail.core.loop.inbox import Inbox
from dovetail.core.metrics import Metrics
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord

POOL = Pool.parse("4", {})
GRAPHS = {"m": TaskGraph("m", [Task("p", "x", 2, 1, 3)], []), "fixed": TaskGraph("fixed", [Task("p", "x", 2)], [])}


def arrived(job: str, of: str = "m", size: float = 12.0) -> Arrived:
    return Arrived(job, of, (size,))


def start(job: str, devices: tuple[int, ...], run_s: float = 12.0, ready_s: float = 0.0) -> Start:
    return Start(job, "p", "x", devices, ready_s, run_s, "free")


# --- the guard -------------------------------------------------------------------------------------


def guard_with(*jobs: str) -> Guard:
    guard = Guard(POOL, GRAPHS)
    for i, job in enumerate(jobs):
        guard.see(arrived(job), 0.0)
        guard.allow(start(job, (2 * i, 2 * i + 1)), 0.0)
    return guard


def test_a_pause_frees_devices_and_a_resume_takes_them() -> None:
    guard = guard_with("a", "b")
    guard.allow(Pause("a", "p", "its turn is over"), 1.0)
    guard.allow(Resize("b", "p", (1, 2, 3), 4.0, "more are free"), 1.0)
    guard.allow(Resume("a", "p", (0,), 9.0, "what is left"), 1.0)
    assert guard.desired == {("b", "p"): (1, 2, 3), ("a", "p"): (0,)}


def test_what_is_paused_is_still_known() -> None:
    guard = guard_with("a")
    guard.allow(Pause("a", "p", "?"), 1.0)
    assert guard.desired == {("a", "p"): ()}
    guard.see(Finished("a", "p"), 2.0)  # it ended before the pause took effect
    guard.allow(Complete("a"), 2.0)
    assert guard.desired == {}


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Resize("a", "p", (0, 2), 1.0, "?"), "device 2 is held by b/p"),
        (Resize("a", "p", (), 1.0, "?"), "needs 1 to 3 devices, found 0"),
        (Resize("a", "p", (0, 0), 1.0, "?"), "named twice"),
        (Resize("a", "p", (0,), -1.0, "?"), "expected seconds"),
        (Resize("c", "p", (0,), 1.0, "?"), "does not run"),
        (Resume("a", "p", (0,), 1.0, "?"), "is not paused"),
        (Pause("a", "p", ""), "no reason"),
        (Defer("c", "p", "?"), "has not arrived"),
        (Defer("a", "p", ""), "without a reason"),
    ],
)
def test_a_wrong_change_is_refused(order: Instruction, said: str) -> None:
    guard = guard_with("a", "b")
    with pytest.raises(PolicyError, match=said):
        guard.allow(order, 1.0)
    assert guard.desired == {("a", "p"): (0, 1), ("b", "p"): (2, 3)}


def test_nothing_changes_twice_or_after_a_stop() -> None:
    guard = guard_with("a")
    guard.allow(Pause("a", "p", "?"), 1.0)
    for order in (Pause("a", "p", "?"), Resize("a", "p", (0,), 1.0, "?")):
        with pytest.raises(PolicyError, match="is paused"):
            guard.allow(order, 1.0)
    guard.allow(Stop("a", "p", "?"), 1.0)
    for again in (Stop("a", "p", "?"), Resume("a", "p", (0,), 1.0, "?")):
        with pytest.raises(PolicyError, match="being stopped"):
            guard.allow(again, 1.0)


def test_a_stopped_part_holds_its_devices_until_it_ends() -> None:
    guard = guard_with("a")
    guard.allow(Stop("a", "p", "cancelled"), 1.0)
    guard.see(arrived("b"), 1.0)
    with pytest.raises(PolicyError, match="held by a/p"):
        guard.allow(start("b", (0, 1), ready_s=1.0), 1.0)
    guard.see(Failed("a", "p", "cancelled"), 1.5)
    guard.allow(start("b", (0, 1), ready_s=1.0), 1.5)


def test_a_fixed_part_keeps_its_width() -> None:
    guard = Guard(POOL, GRAPHS)
    guard.see(arrived("f", "fixed"), 0.0)
    guard.allow(start("f", (0, 1)), 0.0)
    with pytest.raises(PolicyError, match="needs 2 devices, found 3"):
        guard.allow(Resize("f", "p", (0, 1, 2), 1.0, "?"), 1.0)
    guard.allow(Resize("f", "p", (2, 3), 1.0, "moves"), 1.0)


# --- the loop on virtual time ----------------------------------------------------------------------


class Script:
    """Says what it was told to, at each time."""

    def __init__(self, said: Mapping[float, list[Instruction]]) -> None:
        self._said = said
        self.seen: list[tuple[float, list[Stimulus]]] = []

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        self.seen.append((now, list(stimuli)))
        ends = [Complete(s.job) for s in stimuli if isinstance(s, Finished)]
        fails = [Reject(s.job, s.why) for s in stimuli if isinstance(s, Failed)]
        return [*ends, *fails, *(self._said.get(now, []) if not isinstance(stimuli[0], Finished | Failed) else [])]

    def close(self, now: float) -> list[Instruction]:
        return []


SAID: dict[float, list[Instruction]] = {
    0.0: [start("a", (0,)), WakeAt(2.0), WakeAt(3.0), WakeAt(9.0)],
    2.0: [Resize("a", "p", (0, 1), 5.0, "more are free")],
    3.0: [Pause("a", "p", "its turn is over"), Defer("a", "p", "others go first")],
    9.0: [Resume("a", "p", (2,), 8.0, "its turn again")],
}


def test_an_end_that_a_change_overtakes_is_dropped() -> None:
    script = Script(SAID)
    metrics = Metrics(POOL)
    _, end_s = simulate(script, POOL, GRAPHS, [(0.0, arrived("a"))], SimExecutor(), [metrics])
    assert end_s == 17.0
    assert [now for now, _ in script.seen] == [0.0, 2.0, 3.0, 9.0, 17.0]  # none at 7.0 and 12.0
    figures = metrics.figures()
    assert (figures.pauses, figures.resizes, figures.paused_s) == (1, 1, 6.0)
    assert figures.service_s.mean == 11.0
    assert figures.task_wait_s.mean == 6.0
    assert figures.device_s == 2 + 2 * 1 + 8
    assert [device.busy_s for device in figures.devices] == [3.0, 1.0, 8.0, 0.0]


def test_a_stop_ends_a_part_at_once() -> None:
    script = Script({0.0: [start("a", (0,)), WakeAt(5.0)], 5.0: [Stop("a", "p", "cancelled")]})
    simulate(script, POOL, GRAPHS, [(0.0, arrived("a"))], SimExecutor())
    assert script.seen[-1] == (5.0, [Failed("a", "p", "cancelled")])


def test_what_is_asked_for_comes_after_arrivals_of_its_instant() -> None:
    script = Script({0.0: [start("a", (0,), 1.0)]})
    simulate(script, POOL, GRAPHS, [(0.0, arrived("a")), (0.0, Asked("a", "priority", 2))], SimExecutor())
    assert script.seen[0][1] == [arrived("a"), Asked("a", "priority", 2)]


def test_noise_and_failures_follow_a_changed_part() -> None:
    """What is drawn depends on the task, so a longer rest takes longer in proportion, and what fails still fails."""
    noisy = SimExecutor(seed=3, noise=0.5)
    first, _ = noisy.start(start("a", (0,), 10.0), 0.0)
    changed = noisy.change(Resize("a", "p", (0, 1), 5.0, "?"), 0.0)
    assert changed is not None
    assert changed[0] == pytest.approx(first / 2)
    failing = SimExecutor(failure_rate=1.0)
    failing.start(start("a", (0,), 10.0), 0.0)
    assert failing.change(Pause("a", "p", "?"), 1.0) is None
    assert failing.change(Resume("a", "p", (0,), 9.0, "?"), 2.0) == (6.5, Failed("a", "p", "injected failure"))


def test_a_journal_keeps_changes_and_explains_them(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    header = Header(level="any", policy="script", pool=POOL, graphs=tuple(map(TaskGraphRecord.of, GRAPHS.values())))
    with Writer(path, header) as writer:
        steps, end_s = simulate(Script(SAID), POOL, GRAPHS, [(0.0, arrived("a"))], SimExecutor(), [writer])
        writer.end(steps + 1, end_s, {})
    assert all(decided == recorded for _, _, decided, recorded in replay(Script(SAID), Reader(path)))
    text = "\n".join(sentences(explain(Reader(path), "a")[0]))
    assert "needs x on 1 to 3 devices" in text
    assert "At 2.00 s it was resized on [0, 1]: more are free." in text
    assert "At 3.00 s it had to wait: others go first." in text
    assert "At 9.00 s it was resumed on [2]: its turn again." in text
    assert text.endswith("It finished at 17.00 s.")


# --- the loop on wall-clock time -------------------------------------------------------------------


class Hands:
    """A live executor that notes what it is told; what it should report it puts into the inbox itself."""

    def __init__(self, inbox: Inbox, reports: Mapping[str, Sequence[Stimulus]] | None = None) -> None:
        self.inbox = inbox
        self.orders: list[Order] = []
        self.restored: dict[tuple[str, str], tuple[int, ...]] = {}
        self._reports = reports or {}

    def carry(self, orders: Sequence[Order], now: float) -> None:
        self.orders += orders
        for order in orders:
            self.inbox.put(*self._reports.get(type(order).__name__, ()))
        if any(isinstance(order, Stop) for order in orders):
            self.inbox.close()

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        self.restored = dict(desired)


class Ticks:
    """A clock that goes on by one each time it is read."""

    def __init__(self, at: float = -1.0) -> None:
        self.at = at

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


class Keeper:
    """An observer that notes every step, and what had been carried out when it saw it."""

    def __init__(self, hands: Hands) -> None:
        self.steps: list[tuple[int, float, list[Stimulus | Instruction]]] = []
        self.carried: list[int] = []
        self._hands = hands

    def step(self, n: int, t: float, events: Sequence[Stimulus | Instruction]) -> None:
        self.steps.append((n, t, list(events)))
        self.carried.append(len(self._hands.orders))


class Live:
    """Starts what arrives on all devices, pauses it a while later, and stops it when asked to."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stimulus in stimuli:
            match stimulus:
                case Arrived():
                    out += [start(stimulus.job, (0, 1), 0.0, now), WakeAt(now + 3)]
                case Woke():
                    out.append(Pause("a", "p", "long enough"))
                case Asked(what="cancel"):
                    out.append(Stop("a", "p", "cancelled"))
                case Failed():
                    out.append(Reject("a", stimulus.why))
        return out

    def close(self, now: float) -> list[Instruction]:
        return []


def serve_once(
    inbox: Inbox, hands: Hands, at: float = -1.0, history: Sequence[tuple[int, float, list[object]]] = ()
) -> Keeper:
    keeper = Keeper(hands)
    serve(Live(), POOL, GRAPHS, inbox, hands, Ticks(at), [keeper], history)  # type: ignore[arg-type]
    return keeper


def test_a_live_step_is_written_before_it_is_carried_out() -> None:
    inbox = Inbox()
    hands = Hands(inbox, {"Pause": [Settled("a", "p"), Asked("a", "cancel")], "Stop": [Failed("a", "p", "killed")]})
    inbox.put(arrived("a"))
    keeper = serve_once(inbox, hands)
    assert [type(order) for order in hands.orders] == [Start, Pause, Stop]
    assert keeper.carried == [0, 1, 2, 3]
    assert [n for n, _, _ in keeper.steps] == [1, 2, 3, 4]
    times = [t for _, t, _ in keeper.steps]
    assert times == sorted(times)
    assert keeper.steps[1][2][0] == Woke()
    assert keeper.steps[-1][2] == [Failed("a", "p", "killed"), Reject("a", "killed")]


def test_a_live_run_goes_on_after_a_restart() -> None:
    """The recorded steps are replayed, wakes that have not come are waited for, and what should run is found again."""
    first = Inbox()
    first.put(arrived("a"))
    first.close()
    kept = serve_once(first, Hands(first)).steps
    assert len(kept) == 1
    inbox = Inbox()
    hands = Hands(inbox, {"Pause": [Asked("a", "cancel")], "Stop": [Failed("a", "p", "killed")]})
    keeper = serve_once(inbox, hands, at=10.0, history=kept)  # type: ignore[arg-type]
    assert hands.restored == {("a", "p"): (0, 1)}
    assert [type(order) for order in hands.orders] == [Pause, Stop]
    assert keeper.steps[0][0] == 2


def test_a_history_that_was_decided_otherwise_is_refused() -> None:
    inbox = Inbox()
    inbox.close()
    wrong: list[tuple[int, float, list[object]]] = [(1, 0.0, [arrived("a"), start("a", (2, 3), 0.0)])]
    with pytest.raises(DovetailError, match=r"step 1 at 0\.0 s"):
        serve_once(inbox, Hands(inbox), history=wrong)


def test_a_clock_that_goes_back_does_not_take_the_run_with_it() -> None:
    def backwards() -> Iterator[float]:
        yield from (5.0, 5.0, 4.0, 4.0, 3.0)
        while True:
            yield 3.0

    inbox, ticks = Inbox(), backwards()
    hands = Hands(inbox, {"Start": [Asked("a", "cancel")], "Stop": [Failed("a", "p", "?")]})
    inbox.put(arrived("a"))
    keeper = Keeper(hands)
    serve(Live(), POOL, GRAPHS, inbox, hands, lambda: next(ticks), [keeper])
    assert [t for _, t, _ in keeper.steps][:2] == [5.0, 5.0]


def test_time_goes_on_when_the_clock_is_set_back() -> None:
    """What is to happen three seconds from now does, although the clock says that it is an hour ago."""
    ticks = iter([100.0, 100.0, -3500.0, -3496.0, -3495.0, -3494.0])
    inbox = Inbox()
    hands = Hands(inbox, {"Start": [Settled("a", "p", (0, 1))]})
    inbox.put(arrived("a"))
    inbox.close()
    keeper = Keeper(hands)
    serve(Live(), POOL, GRAPHS, inbox, hands, lambda: next(ticks), [keeper])
    assert [(t, Woke() in events) for _, t, events in keeper.steps] == [(100.0, False), (104.0, True)]


def test_an_inbox_wakes_whoever_waits_on_it() -> None:
    inbox, taken = Inbox(), []
    thread = threading.Thread(target=lambda: taken.append(inbox.take()))
    thread.start()
    inbox.put(Woke(), Woke())
    thread.join(60)
    assert taken == [[Woke(), Woke()]]
    assert inbox.take(0.0) == []
    inbox.close()
    assert inbox.take() is None
