"""The live executor under random faults, on workers that hold it to what is physically possible: nothing is loaded
where something else still is, nothing is called that is not there, and every request ends once, in a valid journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import journals, workflow
from dovetail.core.events import Arrived, Asked, Complete, Reject, Settled, Stimulus
from dovetail.core.journal import Reader, Writer
from dovetail.core.loop.engine import serve
from dovetail.testing.workflow import restless
from dovetail.workflow.live.executor import LiveExecutor
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.loop import NumberedInbox
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    CallFailed,
    GpuPlace,
    Loaded,
    LoadFailed,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerLost,
    WorkerReady,
)
from dovetail.workflow.live.references import NOTHING, Brought
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.simulate import new_scheduler

GPUS = 4
NEVER = LiveLimits(load_floor_s=1e6, call_floor_s=1e6, stop_grace_s=1e6)
POLICIES = ("dovetail", "baseline", "online", "srpt", "hybrid", f"{restless.__file__}:Restless")


def problem(rng: Random) -> WorkflowProblem:
    """Options are drawn from their product: what a GPU holds, host memory, slots, batches, widths, adapters."""
    resident = rng.choice(["one", "memory"])
    costs = {"resident": resident, "dram_gb": rng.choice([0, 20]), "batching": rng.random() < 0.3, "overhead_s": 0.1}
    models: dict[str, Any] = {}
    for name in "abcd":
        models[name] = {"memory_gb": rng.choice([4, 8]), "load_time_seconds": 1, "inference_time_mean": 1}
        models[name]["gpus_required"] = rng.choice([1, 1, 1, 2, 4])
        if rng.random() < 0.3:
            models[name] |= {"max_concurrency": 3, "concurrency_curve": [1.0, 0.9, 0.8]}
        elif costs["batching"]:
            models[name]["batch_curve"] = [1.0, 1.1, 1.2]
    nodes = [{"id": f"n{i}", "model": rng.choice("abcd")} for i in range(3)]
    shapes = {"chain": [(0, 1), (1, 2)], "fork": [(0, 1), (0, 2)], "join": [(0, 2), (1, 2)], "apart": []}
    edges = [{"from": f"n{i}", "to": f"n{j}"} for i, j in shapes[rng.choice(list(shapes))]]
    config = {
        "models": models,
        "workflows": {"w": {"nodes": nodes, "edges": edges}, "one": {"nodes": nodes[:1]}},
        "gpu_types": {"gpu": {"memory_gb": 12}},
        "costs": costs,
    }
    return workflow.load(config, [], gpus=f"gpu:{GPUS}", mode="online")


class Workers:
    """Workers that do one thing at a time, whichever comes to mind, and look whether that can be done."""

    def __init__(self, rng: Random, problem: WorkflowProblem, faults: float) -> None:
        self.places: Sequence[GpuPlace] = [GpuPlace("gpu", "here", memory_mib=12 * 1024)] * GPUS
        self._rng, self._problem, self.faults = rng, problem, faults
        self._commands: list[list[tuple[str, str, Any]]] = [[] for _ in self.places]
        self._loaded: list[dict[str, tuple[int, ...]]] = [{} for _ in self.places]
        self._calls: list[dict[str, bool]] = [{} for _ in self.places]  # by id, and whether it is to end
        self._down: dict[int, str] = {}  # about to be lost, and why
        self._coming: set[int] = set()  # lost, and about to come back
        self._report: Callable[[Report], None]

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        self._report = report

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None:
        self._command(worker, ("load", model, window))

    def unload(self, worker: int, model: str, keep: bool) -> None:
        self._command(worker, ("unload", model, keep))

    def _command(self, worker: int, command: tuple[str, str, Any]) -> None:
        assert worker not in self._coming, "nothing is asked of a worker that was lost"
        if worker not in self._down:
            self._commands[worker].append(command)

    def call(self, worker: int, call: ModelCall) -> None:
        assert worker not in self._coming
        if worker not in self._down:
            assert call.model in self._loaded[worker], f"{call.id}: {call.model} is not loaded on {worker}"
            self._calls[worker][call.id] = False

    def cancel(self, worker: int, call: str) -> None:
        if call in self._calls[worker]:
            self._calls[worker][call] = True

    def restart(self, worker: int, why: str) -> None:
        if worker not in self._coming:
            self._down[worker] = why

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None:
        raise NotImplementedError

    def drop(self, references: Sequence[Reference]) -> None:
        raise NotImplementedError

    def status(self) -> list[dict[str, Any]]:
        return [{"worker": i, "state": "up", "models": {}} for i in range(GPUS)]

    def close(self) -> None:
        pass

    def next(self) -> bool:
        """Something happens, if there is anything that can."""
        possible: list[Callable[[], None]] = []
        for worker in range(GPUS):
            if worker in self._coming:
                possible.append(lambda worker=worker: self._up(worker))  # type: ignore[misc]
                continue
            if worker in self._down or self._rng.random() < self.faults / 4:
                possible.append(lambda worker=worker: self._lose(worker))  # type: ignore[misc]
            if self._commands[worker] and not (self._waits(worker) and self._calls[worker]):
                possible.append(lambda worker=worker: self._obey(worker))  # type: ignore[misc]
            if self._calls[worker]:
                possible.append(lambda worker=worker: self._end_call(worker))  # type: ignore[misc]
        if possible:
            self._rng.choice(possible)()
        return bool(possible)

    def _waits(self, worker: int) -> bool:
        return self._commands[worker][0][0] == "unload"

    def _up(self, worker: int) -> None:
        self._coming.discard(worker)
        self._report(WorkerReady(worker))

    def _lose(self, worker: int) -> None:
        self._commands[worker].clear()
        self._loaded[worker].clear()
        self._calls[worker].clear()
        why = self._down.pop(worker, "it was killed")
        self._coming.add(worker)
        self._report(WorkerLost(worker, why))

    def _obey(self, worker: int) -> None:
        what, model, how = self._commands[worker].pop(0)
        if what == "unload":
            self._loaded[worker].pop(model, None)
            self._report(Unloaded(worker, model))
            return
        if self._rng.random() < self.faults:
            self._report(LoadFailed(worker, model, "no", self._rng.random() < 0.5))
            return
        assert model not in self._loaded[worker], f"{model} is loaded on {worker} already"
        self._loaded[worker][model] = how
        self._must_fit()
        self._report(Loaded(worker, model))

    def _must_fit(self) -> None:
        models, one = self._problem.models, self._problem.costs.resident == "one"
        for gpu in range(GPUS):
            there = [name for loaded in self._loaded for name, window in loaded.items() if gpu in window]
            assert sum(models[name].shard_mib for name in there) <= 12 * 1024, f"GPU {gpu} holds {there}"
            assert len(there) <= 1 or not one, f"GPU {gpu} holds {there}"

    def _end_call(self, worker: int) -> None:
        call = self._rng.choice(list(self._calls[worker]))
        draw = self._rng.random()
        if not self._calls[worker][call] and draw < 0.2:
            self._report(AnswerPiece(call, "x"))
            return
        del self._calls[worker][call]
        if draw > 1 - self.faults:
            self._report(CallFailed(call, "no", "place" if draw > 1 - self.faults / 2 else "call"))
        else:
            self._report(Answer(call, {}, read=1, written=2))
        if self._rng.random() < self.faults / 8 and self._loaded[worker]:
            self._report(Unhealthy(worker, self._rng.choice(list(self._loaded[worker])), "it is ill"))


class NoRuns:
    def call(self, job: str, task: str, model: str, id: str, brought: Brought = NOTHING) -> ModelCall:
        return ModelCall(id=id, model=model, inputs={})

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        pass

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> None:
        return None


class DrivenInbox(NumberedInbox):
    """What happens next happens when the loop waits for it: a request comes, is cancelled, or a worker does a thing."""

    def __init__(self, rng: Random, workers: Workers, arrivals: Iterator[Stimulus]) -> None:
        super().__init__()
        self.now, self._rng, self._workers, self._arrivals = 0.0, rng, workers, arrivals

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        self.now += self._rng.random()
        waiting: list[Stimulus] = []
        while not (waiting := self._waiting):
            arrives = next(self._arrivals, None) if self._rng.random() < 0.3 else None
            if arrives is not None:
                self.put(arrives)
            elif not self._workers.next():
                if timeout_s is not None:
                    self.now += timeout_s
                    return []
                rest = [*self._arrivals]
                if not rest:
                    return None
                self.put(*rest)
            if self._rng.random() < 0.5:  # several things may be heard at once
                self._workers.next()
        self._waiting = []
        return [self._numbered(stimulus) for stimulus in waiting]


def arrivals(rng: Random, problem: WorkflowProblem, count: int) -> Iterator[Stimulus]:
    for i in range(count):
        of = rng.choice(["w", "one"])
        sizes = tuple(1.0 for _ in problem.graphs[of].tasks)
        yield Arrived(f"r{i}", of, sizes)
        if rng.random() < 0.15:
            yield Asked(f"r{rng.randint(0, i)}", "cancel")


@pytest.mark.parametrize("faults", [0.0, 0.05, 0.25])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_whatever_happens_every_request_ends_once(faults: float, seed: int, tmp_path_factory: Any) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / f"random-{faults}.jsonl"
    requests = run(path, Random(seed), faults)
    steps = [events for _, _, events in Reader(path).steps()]
    ends = [event.job for events in steps for event in events if isinstance(event, Complete | Reject)]
    assert sorted(ends) == sorted(r.job for r in requests if isinstance(r, Arrived))
    told = [event for events in steps for event in events]
    if not faults:
        cancelled = {request.job for request in requests if isinstance(request, Asked)}
        done = {event.job for event in told if isinstance(event, Complete)}
        assert done | cancelled == set(ends)
        assert any(isinstance(event, Settled) for event in told) or not done
    report = journals.check_journal(path)
    assert report.valid, report
    assert journals.read_journal(path).replay().difference is None


def test_what_was_seen_is_missed_when_it_is_taken_out(tmp_path: Path) -> None:
    path, damaged = tmp_path / "whole.jsonl", tmp_path / "damaged.jsonl"
    run(path, Random(7), 0.15)
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line) for line in lines]
    seen = [i for i, told in enumerate(kinds) if told.get("k") in ("observed", "settled")]
    last = max(i for i in seen if kinds[i]["k"] == "observed" and kinds[i]["n"] < kinds[-1]["n"])
    names = {kinds[i].get("what", "settled") for i in seen}
    assert names == {"settled", "emptied", "gone", "back", "first token", "tokens"}
    for i in (i for i in seen if i < last):  # the last step may not be whole yet, and is not judged
        damaged.write_bytes(b"".join(lines[:i] + lines[i + 1 :]))
        assert not journals.check_journal(damaged).valid, lines[i]


def run(path: Path, rng: Random, faults: float) -> list[Stimulus]:
    """Write a journal of a random run; gives what was asked for in it."""
    given = problem(rng)
    header = given.header(rng.choice(POLICIES), {}, 0, live=True, retries=2, lost_retries=20)
    workers = Workers(rng, given, faults)
    requests = list(arrivals(rng, given, 12))
    inbox = DrivenInbox(rng, workers, iter(requests))
    served = {name: ServedModel(name=name, source={}) for name in given.models}
    executor = LiveExecutor(workers, inbox, NoRuns(), served, given.models, given.pool, given.costs, NEVER)
    executor.start()
    scheduler = new_scheduler(header)
    try:
        with Writer(path, header) as writer:
            serve(
                scheduler, given.pool, given.graphs, inbox, executor, lambda: inbox.now, [writer], (), LiveGuard(header)
            )
    finally:
        executor.close()
    return requests
