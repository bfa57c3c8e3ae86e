"""Carrying orders out: whatever the order and the delays, no two programs share a processor, and all get there."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.core.events import Failed, Finished, Pause, Resize, Resume, Start, Stimulus, Stop
from dovetail.core.service.store import Store, StoreError
from dovetail.host.live.book import Ends, ProgramBook
from dovetail.host.live.control import Control
from dovetail.host.live.executors import ExecutorError, Exit, FoundAttempt, NotNowError, ProgramLaunch, Usage
from dovetail.host.live.executors.table import ExecutorTable
from dovetail.host.live.loop_inbox import LoopInbox
from dovetail.host.live.past_keys import KIND, put_aside
from dovetail.host.live.reconciler import Reconciler
from dovetail.host.live.service_state import EndWaiter
from dovetail.host.live.setup import HostSetup
from dovetail.host.live.specs import Spec
from dovetail.host.program import TASK
from tests.host.live import until

CORES = 4


class Memory:
    """An executor of programs that exist in memory only; it refuses what a machine could not do."""

    def __init__(self, rng: random.Random, hiccups: float = 0.0) -> None:
        self.states: dict[str, str] = {}
        self.cpus: dict[str, frozenset[int]] = {}
        self.starts: list[str] = []
        self.shared: list[str] = []
        self.ended: object = None
        self._rng, self._hiccups = rng, hiccups
        self._lock = threading.Lock()

    def _do(self, run: str, state: str | None = None, cpus: Sequence[int] | None = None) -> None:
        time.sleep(self._rng.uniform(0, 0.002))
        with self._lock:
            if self._rng.random() < self._hiccups:
                raise NotNowError("a hiccup")
            if run not in self.states and state != "running":
                raise ExecutorError(f"{run} does not run")
            self.states[run] = state or self.states[run]
            self.cpus[run] = self.cpus[run] if cpus is None else frozenset(cpus)
            busy = [r for r, s in self.states.items() if s == "running"]
            self.shared += [f"{a} {b}" for a in busy for b in busy if a < b and self.cpus[a] & self.cpus[b]]

    def reach(self, image: str = "") -> None:
        pass

    def lacks(self, limits: Collection[str]) -> str:
        return ""

    def start(self, launch: ProgramLaunch) -> None:
        self._do(launch.run, "running", launch.cpus)
        self.starts.append(launch.run)

    def start_soon(self, launch: ProgramLaunch, started: Callable[[bool], None]) -> bool:
        return False

    def replace_stuck(self) -> None:
        pass

    def find(self, launch: ProgramLaunch) -> FoundAttempt:
        state = self.states.get(launch.run, "absent")
        if state == "ended":
            return FoundAttempt("ended", Exit(code=0))
        return FoundAttempt(state, cpus=self.cpus.get(launch.run, frozenset()))  # type: ignore[arg-type]

    def pause(self, run: str) -> None:
        self._do(run, "paused")

    def resume(self, run: str) -> None:
        self._do(run, "running")

    def resize(self, run: str, cpus: Sequence[int]) -> None:
        self._do(run, None, cpus)

    def stop(self, run: str, grace_s: float = 0) -> None:
        self._do(run, "ended")

    def usage(self, run: str) -> Usage | None:
        return None

    def clean(self, launch: ProgramLaunch) -> None:
        pass

    def is_clean(self, launch: ProgramLaunch) -> bool:
        return True

    def tidy(self, keep: Container[str]) -> None:
        pass

    def close(self) -> None:
        pass


class Table(ExecutorTable):
    """One executor for everything."""

    def __init__(self, executor: Memory) -> None:
        super().__init__(HostSetup("test", 0.0, tuple(range(CORES)), {}))
        self._executor = executor

    def get(self, image: str) -> Memory:
        return self._executor


class Bench:
    """A reconciler over such an executor, without a scheduler."""

    def __init__(self, folder: Path, executor: Memory) -> None:
        self.folder, self.executor = folder / "runs", executor
        self.inbox = LoopInbox()
        self.control = Control()
        self.store = Store(folder / "state.db")
        self.book = ProgramBook(folder, self.store)
        self.reconciler = Reconciler(self.inbox, self.book, Table(executor), self.control, range(CORES))

    def start(self, job: str, *cpus: int) -> Start:
        self.book.specs[job], self.book.ends[job] = Spec(command=("true",), grace_s=0.0), Ends()
        return Start(job, TASK, "program", cpus, 0.0, 0.0, "")

    def heard(self) -> list[Stimulus]:
        return self.inbox.take(0.0) or []

    def close(self) -> None:
        self.reconciler.close()
        self.control.close_all()
        self.store.close()
        self.inbox.release()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, Memory(random.Random(0)))
    yield bench
    bench.close()


def _there(bench: Bench, job: str, state: str, *cpus: int) -> bool:
    attempt = bench.reconciler.attempt(job)
    run = f"{job}-1"
    return (
        attempt is not None
        and not attempt.busy
        and attempt.state == state
        and (state != "running" or (attempt.has == set(cpus) == bench.executor.cpus[run]))
    )


def test_whoever_takes_a_core_waits_for_whoever_has_it(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0, 1, 2, 3)], 0.0)
    until(lambda: _there(bench, "a", "running", 0, 1, 2, 3))
    bench.reconciler.carry([Resize("a", TASK, (0,), 0.0, ""), bench.start("b", 1, 2), bench.start("c", 3)], 0.0)
    until(lambda: _there(bench, "b", "running", 1, 2) and _there(bench, "c", "running", 3))
    assert _there(bench, "a", "running", 0)
    assert bench.executor.shared == []


def test_two_programs_can_change_places(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0), bench.start("b", 1)], 0.0)
    bench.reconciler.carry([Resize("a", TASK, (1,), 0.0, ""), Resize("b", TASK, (0,), 0.0, "")], 0.0)
    until(lambda: _there(bench, "a", "running", 1) and _there(bench, "b", "running", 0))
    assert bench.executor.shared == []


def test_an_order_that_comes_before_the_last_is_done_replaces_it(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    for _ in range(20):
        bench.reconciler.carry([Pause("a", TASK, "")], 0.0)
        bench.reconciler.carry([Resume("a", TASK, (1, 2), 0.0, "")], 0.0)
    until(lambda: _there(bench, "a", "running", 1, 2))
    assert bench.executor.starts == ["a-1"]


def test_one_that_is_stopped_before_it_starts_never_does(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0), bench.start("b", 1)], 0.0)
    bench.reconciler.carry([Pause("a", TASK, ""), bench.start("c", 0), Stop("c", TASK, "enough")], 0.0)
    ends: list[Finished | Failed] = []

    def some_end() -> bool:
        ends.extend(event for event in bench.heard() if isinstance(event, Finished | Failed))
        return bool(ends)

    until(some_end)
    assert [(type(end), end.job) for end in ends] == [(Failed, "c")]


def test_what_cannot_start_fails_with_its_reason(bench: Bench) -> None:
    def refuse(launch: ProgramLaunch) -> None:
        raise ExecutorError("no such image")

    bench.executor.start = refuse  # type: ignore[method-assign]
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: bench.heard() == [Failed("a", TASK, "no such image")])


def test_what_the_disk_has_no_room_for_starts_when_there_is(bench: Bench) -> None:
    full = [OSError(errno.ENOSPC, "No space left on device")]

    def start(launch: ProgramLaunch) -> None:
        if full:
            raise full.pop()
        Memory.start(bench.executor, launch)

    bench.executor.start = start  # type: ignore[method-assign]
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: not full and (bench.reconciler.attempt("a") is None or _there(bench, "a", "running", 0)))
    assert not [event for event in bench.heard() if isinstance(event, Failed)]


def test_an_order_for_one_that_has_just_ended_is_late_and_harmless(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: _there(bench, "a", "running", 0))
    bench.reconciler.ended("a-1", Exit(code=0))
    bench.reconciler.carry([Pause("a", TASK, ""), bench.start("b", 0)], 0.0)
    until(lambda: _there(bench, "b", "running", 0))


def test_an_end_told_twice_counts_once(bench: Bench) -> None:
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: _there(bench, "a", "running", 0))
    bench.heard()
    for _ in range(2):
        bench.reconciler.ended("a-1", Exit(code=0))
    assert bench.heard() == [Finished("a", TASK)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), hiccups=st.sampled_from([0.0, 0.02]))
def test_random_orders(tmp_path_factory: pytest.TempPathFactory, seed: int, hiccups: float) -> None:
    """As a scheduler gives them: at every moment the cores that are meant to be attempt are disjoint."""
    rng = random.Random(seed)
    executor = Memory(random.Random(seed), hiccups)
    bench = Bench(tmp_path_factory.mktemp("bench"), executor)
    meant: dict[str, tuple[int, ...]] = {}
    try:
        for _ in range(20):
            jobs = rng.sample("abcdef", rng.randint(1, 3))
            orders: list[Start | Pause | Resume | Resize] = []
            for job in jobs:
                if meant.get(job):
                    orders.append(Pause(job, TASK, ""))
                    meant[job] = ()
            bench.reconciler.carry(orders, 0.0)
            for job in jobs:
                free = [c for c in range(CORES) if not any(c in cpus for cpus in meant.values())]
                if free and rng.random() < 0.8:
                    cpus = tuple(rng.sample(free, rng.randint(1, len(free))))
                    started = job in meant
                    meant[job] = cpus
                    bench.reconciler.carry(
                        [Resume(job, TASK, cpus, 0.0, "") if started else bench.start(job, *cpus)], 0.0
                    )
                elif meant.get(job):
                    bench.reconciler.carry([Resize(job, TASK, meant[job][:1], 0.0, "")], 0.0)
                    meant[job] = meant[job][:1]
        until(lambda: all(_there(bench, w, "running", *c) for w, c in meant.items() if c))
        assert executor.shared == []
        assert len(executor.starts) == len(set(executor.starts))
    finally:
        bench.close()


def test_what_is_left_goes_only_when_the_end_is_kept(bench: Bench) -> None:
    """A daemon that is killed in between must find how it ended, or it would start it again."""
    cleaned: list[str] = []
    bench.executor.clean = lambda launch: cleaned.append(launch.run)  # type: ignore[method-assign]
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: _there(bench, "a", "running", 0))
    bench.reconciler.ended("a-1", Exit(code=0))
    bench.reconciler.kept("b")
    bench.reconciler.carry([bench.start("b", 0)], 0.0)
    until(lambda: _there(bench, "b", "running", 0))
    bench.reconciler.clean()
    assert not cleaned
    assert (bench.folder / "a-1").is_dir()
    bench.reconciler.kept("a")
    bench.reconciler.clean()
    assert not (bench.folder / "a-1").exists()
    assert cleaned == ["a-1"]


def test_who_decides_removes_no_folder(bench: Bench) -> None:
    """One that the next program cannot have is left to who may wait for the disk."""
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: _there(bench, "a", "running", 0))
    (bench.folder / "a-1" / "control" / "its own").write_text("left behind")
    bench.reconciler.ended("a-1", Exit(code=0))
    bench.reconciler.kept("a")
    bench.reconciler.carry([bench.start("b", 0)], 0.0)
    assert len(list(bench.folder.glob("over-*/control/its own"))) == 1
    until(lambda: _there(bench, "b", "running", 0))
    bench.reconciler.clean()
    assert [path.name for path in bench.folder.iterdir()] == ["b-1"]


def test_an_engine_that_does_not_answer_holds_nobody_else_up(bench: Bench) -> None:
    tried: set[str] = set()

    def never(launch: ProgramLaunch) -> None:
        if launch.run.startswith("stuck"):
            tried.add(launch.run)
            raise NotNowError("no answer")
        Memory.start(bench.executor, launch)

    bench.executor.start = never  # type: ignore[method-assign]
    for i in range(200):  # more than there are threads
        bench.reconciler.carry([bench.start(f"stuck{i}")], 0.0)
    until(lambda: len(tried) == 200)
    until(lambda: (stuck := bench.reconciler.attempt("stuck0")) is not None and stuck.trouble == "no answer")
    bench.reconciler.carry([bench.start("a", 0)], 0.0)
    until(lambda: _there(bench, "a", "running", 0))


def test_an_environment_is_kept_though_the_first_try_to_keep_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    spec = Spec(command=("true",), cwd="/", env={"SEED": "7"})
    with Store(tmp_path / "state.db") as store:
        book, put = ProgramBook(tmp_path, store), store.put

        def full(kind: str, name: str, desired: object) -> None:
            if kind == KIND:
                raise StoreError("the disk is full")
            put(kind, name, desired)

        with monkeypatch.context() as patch:
            patch.setattr(store, "put", full)
            with pytest.raises(StoreError):
                book.add([spec])
        assert list(book.add([spec, spec])) == ["1", "2"]
    with Store(tmp_path / "state.db") as store:
        assert {job: found.env for job, found in ProgramBook(tmp_path, store).specs.items()} == {
            "1": spec.env,
            "2": spec.env,
        }


def test_a_key_means_the_same_when_programs_are_put_aside(tmp_path: Path) -> None:
    spec, other = (Spec(command=(word,), key="night", cwd=str(tmp_path)) for word in ("true", "false"))
    with closing(Store(tmp_path / "state.db")) as store:
        ProgramBook(tmp_path, store).add([spec], array=2)
        for _ in range(2):
            put_aside(store)
            book = ProgramBook(tmp_path, store)
            assert (list(book.specs), book.same("night", [spec], 2)) == ([], ["1.0", "1.1"])
            for wrong, array in ((other, 2), (spec, 3)):
                with pytest.raises(InputError, match="key night: "):
                    book.same("night", [wrong], array)
            for number in ("1", "1.0"):
                with pytest.raises(InputError, match=f"program {number} has ended, and was put aside"):
                    book.named(number)
        book.forget_past_keys()
        assert ProgramBook(tmp_path, store).same("night", [other]) == []


def test_a_key_is_gone_with_the_first_of_its_programs_also_after_a_restart(tmp_path: Path) -> None:
    spec = Spec(command=("true",), key="night", cwd=str(tmp_path))
    with closing(Store(tmp_path / "state.db")) as store:
        book = ProgramBook(tmp_path, store)
        book.add([spec], array=2)
        book.forget(["1.0"])
        for known in (book, ProgramBook(tmp_path, store)):
            assert (list(known.specs), known.same("night", [spec], 2)) == (["1.1"], [])


def test_ends_are_found_where_earlier_versions_kept_them(tmp_path: Path) -> None:
    first, second = Exit(code=1), Exit(code=0)
    with closing(Store(tmp_path / "state.db")) as store:
        book = ProgramBook(tmp_path, store)
        book.add([Spec(command=("true",), cwd=str(tmp_path))], array=2)
        store.note("program", "1.0", Ends([first], 2.0))
        book = ProgramBook(tmp_path, store)
        assert (book.run_name("1.0"), book.run_name("1.1")) == ("1.0-2", "1.1-1")
        book.note_end("1.0", second, 3.0)
        book.keep_end("1.0")
        assert ProgramBook(tmp_path, store).ends["1.0"] == Ends([first, second], 5.0)
        book.forget(["1.0"])
        assert list(ProgramBook(tmp_path, store).ends) == ["1.1"]


def test_who_waits_for_ends_is_told_once_by_the_last() -> None:
    waiter = EndWaiter({"1", "2"})
    for job in ("3", "1", "1"):
        waiter.ended(job)
        assert not waiter.none_left.is_set()
    waiter.ended("2")
    assert waiter.none_left.is_set()
