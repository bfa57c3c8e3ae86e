"""A lease, seen from the training process: when it asks, when it stops, what it tells, where it goes on."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cluster import (
    CheckpointRefusedError,
    ElasticBatches,
    LeaseIterator,
    TrainingLease,
    lightning_callback,
    trainer_callback,
)
from dovetail.cluster.live.agent_runs import NodeRun
from dovetail.cluster.live.training import iterator
from dovetail.cluster.live.training import lease as training_lease
from dovetail.cluster.live.training.process_line import AgentLostError, ProcessLine
from dovetail.cluster.live.wire import (
    Commit,
    Done,
    Hello,
    JobComplete,
    Lease,
    NodeLease,
    Renew,
    StepsDone,
    TrainingCommand,
)
from dovetail.core.errors import InputError, MissingExtraError
from tests.cluster.live.agent_double import AgentDouble
from tests.waiting import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals are as they were, afterwards."""
    for name in ("RANK", "WORLD_SIZE", "DOVETAIL_AGENT", "DOVETAIL_WORLD_SIZE", "DOVETAIL_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def train(agent: AgentDouble, clock: Clock, step_s: float = 1.0, most: int = 1000, **rank: int) -> TrainingLease:
    """Steps of one length until the lease ends it."""
    lease = TrainingLease(agent.line(**rank), clock)
    while lease.steps < most and lease.go_on():
        lease.steps += 1
        clock.now += step_s
    return lease


def test_it_asks_at_three_quarters_of_what_is_new(tmp_path: Path) -> None:
    clock = Clock()
    leases = [Lease(8.0), Lease(10.0), Lease(3.0, last=True)]
    with AgentDouble(tmp_path, leases, clock) as agent:
        lease = train(agent, clock)
    asked = [at - 100 for at, request in agent.asked if isinstance(request, Renew)]
    assert asked == [6.0, 14.0]  # the second lease ends at 16: 8 s more, of which three quarters are over at 14
    assert [(ask.steps, ask.seconds) for ask in agent.of(Renew)] == [(6, 6.0), (14, 14.0)]
    assert (lease.steps, lease.done) == (17, True)  # at 14 it got 3 s more


def test_it_asks_again_at_the_end_what_was_undecided_before(tmp_path: Path) -> None:
    clock = Clock()
    undecided, extended, none = Lease(2.0), Lease(8.5), Lease(0.5, last=True)
    with AgentDouble(tmp_path, [Lease(8.0), undecided, extended, none], clock) as agent:
        train(agent, clock)
    assert [at - 100 for at, request in agent.asked if isinstance(request, Renew)] == [6.0, 8.0, 15.0]


@given(step_s=st.floats(0.1, 20), seconds=st.floats(1, 100))
def test_no_step_ends_after_the_lease_but_the_first(step_s: float, seconds: float) -> None:
    class Line:
        rank, beside = 0, None

        def hello(self) -> dict[str, Any]:
            return {"seconds": seconds}

        def ask(self, what: str, *_: Any, **__: Any) -> dict[str, Any] | None:
            return {"seconds": 100 + seconds - clock.now, "last": True} if what == "renew" else {}

        tell = ask

    clock = Clock()
    lease = TrainingLease(Line(), clock)  # type: ignore[arg-type]
    while lease.go_on():
        lease.steps += 1
        clock.now += step_s
    assert lease.steps == pytest.approx(max(1, seconds // step_s), abs=1)
    assert lease.steps * step_s <= max(seconds, step_s) + 1e-6


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_stop_at_the_step_that_was_fixed(tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says: one rank alone cannot stop."""
    monkeypatch.setenv("DOVETAIL_WORLD_SIZE", "2")
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0), Lease(2.0, steps=13, last=True)], clock) as agent:
        lease = train(agent, clock, rank=rank)
    assert lease.steps == 13


def test_what_is_told_and_in_which_order(tmp_path: Path) -> None:
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(90.0, total_steps=30, done=24)], clock) as agent:
        batches = LeaseIterator(
            range(100), tmp_path, load=lambda name: name, save=lambda: 5, lease=TrainingLease(agent.line(), clock)
        )
        assert batches.load_checkpoint("x") == "x"
        for _ in batches:
            clock.now += 2
        assert (batches.done, batches.steps, len(batches)) == (True, 30, 100)
        assert batches.save_checkpoint() == 5
    assert agent.names() == [
        *("hello", "import", "load_begin", "load_end", "first_step"),
        *("save_begin", "save_end", "commit", "complete"),
    ]
    assert agent.of(Commit) == [Commit(steps=30)]
    first, *_, last = [(told.steps, told.seconds) for told in agent.of(StepsDone)]
    assert (first, last) == ((24, 0.0), (30, 12.0))


def test_complete_waits_for_the_checkpoint(tmp_path: Path) -> None:
    with AgentDouble(tmp_path, [Lease(90.0)]) as agent:
        batches = LeaseIterator(range(10), tmp_path, lease=TrainingLease(agent.line()))
        for _ in batches:
            if batches.steps == 4:
                batches.complete()
                break
        assert list(batches) == []  # no pass begins any more
        agent.commits = lambda commit: Done(ok=False, why="the disk is full")
        with pytest.raises(CheckpointRefusedError, match="step 4 was not taken: the disk is full"):
            batches.save_checkpoint()
        assert agent.of(JobComplete) == []
        agent.commits = lambda commit: Done()
        batches.save_checkpoint()
        batches.save_checkpoint()  # one more file of what is done
    assert agent.of(JobComplete) == [JobComplete(steps=4)]
    assert [commit.last for commit in agent.of(Commit)] == [False] * 3


def test_after_the_lease_one_checkpoint_is_taken(tmp_path: Path) -> None:
    with AgentDouble(tmp_path, [Lease(90.0, steps=2, last=True)]) as agent:
        batches = LeaseIterator(range(10), tmp_path, lease=TrainingLease(agent.line()))
        assert list(batches) == [0, 1]
        batches.save_checkpoint()
        with pytest.raises(CheckpointRefusedError, match="one was, after the end of the lease"):
            batches.save_checkpoint()
    assert agent.of(Commit) == [Commit(steps=2, last=True)]


def test_who_waits_for_a_lease_waits_for_the_successor_of_a_killed_agent(tmp_path: Path) -> None:
    with AgentDouble(tmp_path, [Lease(8.0)]) as agent, ThreadPoolExecutor(1) as other:
        agent.silent = True  # its turn has not come
        line = agent.line()
        lease = other.submit(line.hello)
        until(lambda: agent.of(Hello))
        agent.hang_up()
        agent.silent = False
        agent.open_again()
        assert lease.result()["seconds"] == 8.0
        line.close()


def test_a_lease_that_is_no_more_is_refused(tmp_path: Path) -> None:
    with (
        AgentDouble(tmp_path, []) as agent,
        pytest.raises(AgentLostError, match="no lease: there is none of job 7"),
    ):
        TrainingLease(agent.line())


@pytest.mark.parametrize(("ending", "told"), [("", ["complete"]), ("raise SystemError", [])])
def test_a_program_that_saves_nothing_is_complete_when_it_ends_well(
    tmp_path: Path, ending: str, told: list[str]
) -> None:
    program = f"from dovetail.cluster import LeaseIterator\nfor _ in LeaseIterator(range(9)): pass\n{ending}"
    with AgentDouble(tmp_path, [Lease(90.0, total_steps=3)]) as agent:
        environment = {**os.environ, **agent.environment(tmp_path)}
        subprocess.run([sys.executable, "-c", program], env=environment, check=False, stderr=subprocess.DEVNULL)
    assert agent.names() == ["hello", "import", "first_step", *told]


def test_a_mid_lease_checkpoint_is_not_the_last(tmp_path: Path) -> None:
    with AgentDouble(tmp_path, [Lease(90.0)]) as agent:
        batches = LeaseIterator(range(4), tmp_path, lease=TrainingLease(agent.line()))
        for batch in batches:
            if batch == 1:
                batches.save_checkpoint()
    assert agent.of(Commit) == [Commit(steps=2, last=False)]
    assert (batches.steps, batches.done) == (4, False)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_done_is_saved_when_the_lease_goes_on(tmp_path: Path, rank: int) -> None:
    """Three leases of 8 s: it asks after 6 and 14, is given more and saves; not again at 22, when there is none: the
    end is not more than a round after the last time."""
    clock, saved = Clock(), []
    leases = [Lease(8.0), Lease(10.0), Lease(10.0), Lease(2.0, last=True)]
    with AgentDouble(tmp_path, leases, clock) as agent:
        batches = LeaseIterator(
            range(50), tmp_path, save=lambda: saved.append(batches.steps), lease=TrainingLease(agent.line(rank), clock)
        )
        for _ in batches:
            clock.now += 1
        assert batches.steps == 24
        batches.save_checkpoint()
    assert saved == ([6, 14, 24] if rank == 0 else [24])
    assert agent.of(Commit) == [Commit(6), Commit(14), Commit(24, last=True)] * (rank == 0)


@pytest.mark.parametrize("how", ["arguments", "off", "refused"])
def test_saving_in_passing_is_the_programs_choice_and_ends_no_training(tmp_path: Path, how: str) -> None:
    clock, saved = Clock(), []

    def save(*paths: str) -> None:
        saved.append(paths)

    def save_to(path: str) -> None:
        saved.append((path,))

    with AgentDouble(tmp_path, [Lease(8.0), Lease(10.0), Lease(2.0, last=True)], clock) as agent:
        agent.commits = lambda commit: Done(how != "refused", "the disk is full")
        batches = LeaseIterator(
            range(50),
            tmp_path,
            save=save_to if how == "arguments" else save,
            save_each_round=how != "off",
            lease=TrainingLease(agent.line(), clock),
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in batches:
                clock.now += 1
        assert (batches.steps, batches.lease.save_due) == (16, how != "refused")
    tried = [6, 14] if how == "refused" else []  # the second time because nothing was saved for more than a round
    assert [commit.steps for commit in agent.of(Commit)] == tried
    assert len(saved) == len(tried)
    words = "the checkpoint of step {} was not taken: the disk is full; training goes on"
    assert [str(warning.message) for warning in warned] == [words.format(steps) for steps in tried]


@given(
    begins=st.floats(0, 0.9),
    extended=st.integers(0, 6),
    step_s=st.floats(0.001, 0.15),
    save_s=st.floats(0, 0.05),
    heard_s=st.floats(0, 0.3),
)
def test_no_kill_costs_more_than_a_round(
    begins: float, extended: int, step_s: float, save_s: float, heard_s: float
) -> None:
    """Rounds of 1 s; the next is decided at half time, and its agent hears of it some time later. A process that is
    killed has to do again what it did since it last saved."""

    class Line:
        rank, beside = 0, None

        def hello(self) -> dict[str, Any]:
            run.told(self.lease(), clock.now, clock.now, 1.0)
            run.begin()
            return self.builtins(run.offer(clock.now))

        def ask(self, what: str, *_: Any, **asked: Any) -> dict[str, Any] | None:
            if what != "renew":
                return {}
            run.told(self.lease(), clock.now, clock.now, 1.0)
            return self.builtins(run.renew(0, clock.now))

        def tell(self, *_: Any, **__: Any) -> bool:
            return True

        def lease(self) -> NodeLease:
            at_s = clock.now - heard_s
            number = int(at_s) if at_s >= begins else int(begins)  # of the round
            decided = at_s >= number + 0.5
            ends_s = number + 1 + (decided and number < extended)
            last = decided and number >= extended
            return NodeLease(1, 1, (0,), (0,), (-1,), "a", 1, command, go=True, seconds=ends_s - clock.now, last=last)

        @staticmethod
        def builtins(answer: Any) -> dict[str, Any]:
            found: dict[str, Any] = msgspec.to_builtins(answer)
            return found

    command = TrainingCommand(("train",), "folder")
    clock = Clock()
    clock.now = begins
    line = Line()
    run = NodeRun(line.lease(), 1)
    lease = TrainingLease(line, clock)  # type: ignore[arg-type]
    unsaved_s = most_s = 0.0
    while lease.go_on():
        if lease.save_due:
            clock.now += save_s
            lease.commit()
            unsaved_s = 0.0
        clock.now += step_s
        unsaved_s += step_s
        most_s = max(unsaved_s, most_s)
        lease.steps += 1
    assert abs(clock.now - (extended + 1)) <= 2 * step_s + save_s
    assert most_s <= 1.0 + 1e-9


@pytest.mark.parametrize("wanted", [None, True])
def test_no_rank_saves_alone_unasked_where_ranks_talk_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool | None
) -> None:
    class Distributed:
        """As much of it as is asked."""

        is_available = is_initialized = staticmethod(lambda: True)
        barrier = staticmethod(lambda: None)

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)
    monkeypatch.setenv("DOVETAIL_WORLD_SIZE", "2")
    clock, saved = Clock(), []
    leases = [Lease(8.0), Lease(10.0), Lease(2.0, steps=18, last=True)]
    with AgentDouble(tmp_path, leases, clock) as agent:
        batches = LeaseIterator(
            range(50),
            tmp_path,
            save=lambda: saved.append(batches.steps),
            save_each_round=wanted,
            lease=TrainingLease(agent.line(), clock),
        )
        for _ in batches:
            clock.now += 1
    assert batches.steps == 18
    assert saved == ([6] if wanted else [])


def test_company_that_comes_and_goes_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lease, and with the answer to what was told of progress, which is read when it is there."""
    monkeypatch.setenv("DOVETAIL_BESIDE", "lm")
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(1000.0), Lease(1000.0, beside="")], clock) as agent:
        lease = TrainingLease(agent.line(), clock)
        assert lease.beside == "lm"
        agent.done = Done(beside="gan")

        def hears() -> bool:
            clock.now += 10
            return lease.go_on() and lease.beside == "gan"

        until(hears)
        agent.done = Done()
        clock.now += 1000
        assert lease.go_on()
        assert agent.of(Renew)
        assert lease.beside == ""


def test_an_agent_that_starts_anew_is_found_again(tmp_path: Path) -> None:
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0), Lease(8.0), Lease(9.0), Lease(0.0, last=True)], clock) as agent:
        lease = TrainingLease(agent.line(), clock)
        assert lease.go_on()
        agent.hang_up()
        agent.open_again()
        clock.now += 6
        while lease.go_on():
            lease.steps += 1
            clock.now += 1
    assert [name for name in agent.names() if name != "first_step"] == ["hello", "import", "hello", "renew", "renew"]


def test_without_its_agent_it_stops_at_the_end_and_saves_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LONGEST_ANSWER_S", "_SHORTEST_ANSWER_S", "_COMMIT_S"):
        monkeypatch.setattr(training_lease, name, 0.01)
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0)], clock) as agent:
        lease = TrainingLease(agent.line(), clock)
        agent.hang_up()
        while lease.go_on():
            lease.steps += 1
            clock.now += 1
        assert (lease.steps, lease.done) == (8, True)
        with pytest.raises(CheckpointRefusedError, match="the agent does not answer"):
            lease.commit()
    with pytest.raises(AgentLostError, match="gave no lease"):
        TrainingLease(ProcessLine(str(tmp_path / "nobody"), 1, 1))


def test_what_is_complete_is_not_trained_again(tmp_path: Path) -> None:
    for steps in (5, 0):
        batches = LeaseIterator(range(3), tmp_path, total_steps=5)
        batches.load_checkpoint()
        made = 0
        while not batches.done:
            made += len(list(batches))
        batches.save_checkpoint()
        assert (made, batches.steps) == (steps, 5)


def test_a_folder_is_there_when_it_is_saved_to(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    batches = LeaseIterator(range(3), folder, save=lambda: (folder / "model").write_text("x"))
    assert list(batches) == [0, 1, 2]
    assert batches.save_checkpoint() == 1


def test_alone_it_is_a_plain_iterator(tmp_path: Path) -> None:
    batches = LeaseIterator([4, 5, 6], tmp_path)
    batches.load_checkpoint()
    assert [*batches, *batches] == [4, 5, 6, 4, 5, 6]
    assert (batches.steps, batches.done) == (6, False)
    with pytest.raises(TypeError, match="expected something to iterate over, found int"):
        LeaseIterator(3, tmp_path)  # type: ignore[arg-type]


def test_told_to_terminate_it_stops_at_the_next_step(tmp_path: Path) -> None:
    batches = LeaseIterator(range(10), tmp_path)
    for batch in batches:
        if batch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    assert (batches.steps, batches.done) == (3, True)


def test_its_pools_can_be_ended_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    program = """
import multiprocessing, os, signal, time
from dovetail.cluster import LeaseIterator
batches = LeaseIterator(range(9))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(*pool.map(abs, [-1, -2]), flush=True)
for _ in batches:
    os.kill(os.getpid(), signal.SIGTERM)
print("saves", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("is not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.returncode) == ("1 2\nsaves\n", -signal.SIGTERM)


def test_a_child_that_is_ended_as_soon_as_it_is_forked_ends(tmp_path: Path) -> None:
    program = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before it can have left its handler
from dovetail.cluster import LeaseIterator
batches = LeaseIterator(range(3))
child = os.fork()
if not child:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
for _ in batches:
    os.kill(os.getpid(), signal.SIGTERM)
print(batches.steps)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.returncode) == (f"{-signal.SIGTERM}\n1\n", 0)


def test_after_a_fork_all_can_be_ended_however_many_iterators_there_were(tmp_path: Path) -> None:
    program = """
import os, signal
from dovetail.cluster import LeaseIterator
for _ in range(3):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    batches = LeaseIterator(range(3))
child = os.fork()
if not child:
    signal.pause()
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60
    )
    assert (done.stdout, done.returncode) == (f"{-signal.SIGTERM}\n", 0)


class Resumed:
    """A loader that draws a seed for each pass, as torch's does, and is told where to go on."""

    def __init__(self) -> None:
        self.batch_sampler = ElasticBatches(20, batch=1)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[float]:
        random.random()
        return (float(index) for (index,) in self.batch_sampler)


class Shuffled:
    """Draws its order and its samples as data loaders do."""

    def __iter__(self) -> Iterator[float]:
        order = random.sample(range(20), 20)
        return (number + random.random() for number in order)


@pytest.mark.parametrize("loader", [Shuffled, Resumed])
@given(seed=st.integers(0, 99), stops=st.lists(st.integers(1, 49), max_size=5, unique=True), between=st.booleans())
def test_interrupted_passes_give_the_same_batches(
    loader: type[Shuffled | Resumed],
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    stops: list[int],
    between: bool,
) -> None:
    """50 steps over passes of 20, in processes that are stopped at any step, or saved between two passes."""
    folder = tmp_path_factory.mktemp("passes")

    def run(until: int, checkpoint: Path) -> list[float]:
        random.seed(seed)  # as a script does at its start
        seen: list[float] = []
        batches = LeaseIterator(loader(), checkpoint)
        batches.load_checkpoint()
        batches.lease.total_steps = until
        while not batches.done:
            seen.extend(batch + random.random() for batch in batches)  # as dropout does
            if between and not batches.done:
                break
        batches.save_checkpoint()
        return seen + run(until, checkpoint) if not batches.done else seen

    whole = run(50, folder / "whole")
    parts = [run(until, folder / "parts") for until in [*sorted(stops), 50]]
    assert [batch for part in parts for batch in part] == whole


@given(st.data())
def test_the_samples_of_a_step_do_not_depend_on_the_width(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([1, 2, 3, 4]))
    batch = width * data.draw(st.integers(1, 4)) * 12 // width
    samples = data.draw(st.integers(batch, 200))
    step = data.draw(st.integers(0, 50))
    alone = ElasticBatches(samples, batch, seed=3)
    alone.resume_at(step)
    ranks = [ElasticBatches(samples, batch, seed=3, rank=rank, width=width) for rank in range(width)]
    for rank in ranks:
        rank.resume_at(step)
    for _ in range(2):  # the rest of this epoch, and the next one
        for whole, *parts in zip(alone, *ranks, strict=True):
            assert sorted(whole) == sorted(index for part in parts for index in part)
            assert len({len(part) for part in parts}) == 1


def test_each_epoch_has_its_own_order() -> None:
    batches = ElasticBatches(12, batch=4)
    first, second = list(batches), list(batches)
    assert first != second
    assert [sorted(index for batch in epoch for index in batch) for epoch in (first, second)] == [list(range(12))] * 2
    with pytest.raises(InputError, match="found 5, expected a multiple of the 2 ranks, at most the 12 samples"):
        ElasticBatches(12, batch=5, width=2)


def test_a_rank_whose_folder_rank_0_has_taken_away_stops_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(folder: Path, rank: int, position: Any) -> None:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(iterator, "write_position", taken)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(LeaseIterator(range(3), tmp_path, total_steps=2)) == [0, 1]


def test_another_width_goes_on_where_the_loader_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        def __init__(self) -> None:
            self.batch_sampler = ElasticBatches(8, batch=2)

        def __iter__(self) -> Iterator[list[int]]:
            return iter(self.batch_sampler)

    first = LeaseIterator(Loader(), tmp_path)
    whole = list(Loader())
    assert [next(iter(first)), next(first)] == whole[:2]
    first.save_checkpoint()
    monkeypatch.setenv("WORLD_SIZE", "2")
    second, plain = LeaseIterator(Loader(), tmp_path), LeaseIterator(range(3), tmp_path)
    second.load_checkpoint()
    assert second.steps == 2
    assert list(second) == [indices[:1] for indices in whole[2:]]
    with pytest.warns(UserWarning, match="cannot go on at step 2 with 2 in place of 1 ranks: its pass begins anew"):
        plain.load_checkpoint()
    assert list(plain) == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [(trainer_callback, "transformers", "models"), (lightning_callback, "lightning", "lightning")],
)
def test_a_callback_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs {package}, which is not installed: .*\[{extra}\]"):
        make()


def test_it_imports_next_to_nothing() -> None:
    program = "import sys; from dovetail.cluster import LeaseIterator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "msgspec", "yaml"} & set(loaded)


def test_a_generator_that_this_process_has_not_imported_yet_goes_on(tmp_path: Path) -> None:
    states = tmp_path / "states"
    saves = f"""
import pickle, random
from dovetail.cluster.live.training.resume import random_states
random.seed(7)
open({str(states)!r}, "wb").write(pickle.dumps(random_states()))
print(random.random())
"""
    resumes = f"""
import pickle, sys
from dovetail.cluster.live.training.resume import set_random_states
sys.modules.pop("random", None)
set_random_states(pickle.loads(open({str(states)!r}, "rb").read()))
import random
print(random.random())
"""
    told = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for code in (saves, resumes)
    ]
    assert told[0] == told[1] != ""


def test_a_copy_is_one_of_its_own() -> None:
    """As of a loader that is handed to a process which is not forked."""
    batches = LeaseIterator(range(3))
    for again in (pickle.loads(pickle.dumps(batches)), copy.deepcopy(batches)):
        assert list(again) == [0, 1, 2]
    assert batches.steps == 0
