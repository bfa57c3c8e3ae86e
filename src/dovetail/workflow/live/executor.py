"""Carries the workflow scheduler's orders out: what is to leave leaves, what is to be loaded is, and calls are made.

Which models leave a GPU is decided as the scheduler plans with it: by the same `Residents`, fed with the same starts.
What really is loaded is kept beside that: a start whose model is not there loads it, whatever was expected. Every
attempt at a node has an id of its own and ends once; what comes later of it is nobody's business any more.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.events import (
    Added,
    Failed,
    Finished,
    Observed,
    Order,
    Prepare,
    PrepareEnded,
    Settled,
    Start,
    Stimulus,
    Stop,
)
from dovetail.core.loop.inbox import Inbox
from dovetail.core.resources import Device, Pool
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.gpus.sharing import FIRST_TOKEN
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.live.engines.local import LocalGpuEngine
from dovetail.workflow.live.limits import Alarm, Alarms, LiveLimits
from dovetail.workflow.live.places import host_numbers, types_of
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    BackEndError,
    CallFailed,
    Engine,
    GpuPlace,
    Loaded,
    LoadFailed,
    Reference,
    Report,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerLost,
    WorkerReady,
    WorkersJoined,
    unloadable,
)
from dovetail.workflow.live.references import NOTHING, Brought, ElsewhereError, EngineReferences, references_in
from dovetail.workflow.live.runs import Runs

_NO_GPU = -1  # the number of the worker that runs nodes without a GPU


class _Instance(Struct, eq=False):
    """A model on a window, at the worker of its first GPU: loaded, or about to be."""

    model: str
    window: tuple[int, ...]
    worker: int
    limit_s: float
    loaded: bool = False
    alone: bool = True  # nothing else was on its window when it was loaded
    attempts: dict[str, _Attempt] = {}
    preloads: list[int] = []  # that have not ended
    failures: int = 0  # of calls in a row, by the fault of the place
    waits_for: list[_Instance] = []  # what is still to leave its window, at other workers


class _Attempt(Struct, eq=False):
    """One attempt at a node."""

    id: str
    start: Start
    instance: _Instance
    begun: bool = False  # its first token has come
    stop: str = ""  # why it is to end before its time
    lost: bool = False  # and whether that is its place's fault
    alarm: Alarm | None = None  # of its call, once that is made


class LiveExecutor:
    """Reports go to the inbox; `runs` says what nodes are called with, and takes the answers. GPUs of the pool are the
    engine's workers, by number; nodes without a GPU run in a process of this executor's own."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        runs: Runs,
        served: Mapping[str, ServedModel],
        models: Mapping[str, ModelCost],
        pool: Pool,
        costs: CostRules,
        limits: LiveLimits | None = None,
    ) -> None:
        self._engine, self._inbox, self._runs, self._served = engine, inbox, runs, served
        self._references = EngineReferences(engine)
        self._pool, self._models, self._limits = pool, models, limits or LiveLimits()
        self._residents = Residents(pool, models, costs)
        self._without_gpu = {name: model for name, model in served.items() if not models[name].width}
        place = GpuPlace("cpu", "localhost")
        self._side = LocalGpuEngine([place], self._limits.silence_s) if self._without_gpu else None
        self._lock = threading.RLock()
        self._alarms = Alarms()
        self._ids = count(1)
        self._attempts: dict[str, _Attempt] = {}  # those that have not ended
        self._by_node: dict[tuple[str, str], _Attempt] = {}
        self._instances: dict[tuple[int, str], _Instance] = {}
        self._kept: set[tuple[int, str]] = set()  # not loaded, but in the host memory of a worker
        self._loads = Counter[tuple[int, str]]()  # that are under way
        self._leaving: list[_Instance] = []  # whose unload is under way
        self._failed_loads = Counter[str]()  # in a row
        self._away: dict[int, str] = {}  # workers that are not there, and why

    def start(self) -> None:
        self._alarms.start()
        self._engine.start(self._served, self._report)
        if self._side is not None:
            self._side.start(self._without_gpu, self._report_side)
            with self._lock:
                for name in self._without_gpu:
                    self._load(_Instance(name, (), _NO_GPU, self._limits.load_s(self._models[name].load_s)))

    def close(self) -> None:
        self._alarms.close()
        self._engine.close()
        if self._side is not None:
            self._side.close()

    def status(self) -> list[dict[str, Any]]:
        """Of each GPU what its worker said, and what is there. Takes no lock: whoever asks may hold one."""
        told = self._engine.status()
        for row in told:
            row |= {"models": [], "said": row.get("models", {}), "running": []}
            if (why := self._away.get(row["worker"])) is not None:
                row["state"], row["why"] = "gone", why
        for instance in list(self._instances.values()):
            running = [f"{attempt.start.job}/{attempt.start.task}" for attempt in list(instance.attempts.values())]
            running += [f"preload/{id}" for id in list(instance.preloads)]
            for gpu in instance.window:
                told[gpu]["models"] += [instance.model] * instance.loaded
                told[gpu]["running"] += running
        for row, device in zip(told, self._pool.devices, strict=False):
            row["type"] = device.type
        return told

    # --- orders -----------------------------------------------------------------------------------------

    def carry(self, orders: Sequence[Order], now: float) -> None:
        with self._lock:
            for order in orders:
                if isinstance(order, Start):
                    self._start(order)
                elif isinstance(order, Prepare):
                    self._prepare(order)
                elif isinstance(order, Stop) and (order.job, order.task) in self._by_node:
                    self._stop(self._by_node[order.job, order.task], order.why)

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """Nothing outlives a service: its workers are new, and have nothing loaded."""
        why, gpus = "the service was restarted", list(range(len(self._pool)))
        lost = [Failed(job, task, why, lost=True) for job, task in desired]
        with self._lock:
            back = [gpu for gpu in gpus if gpu not in self._away]
            self._inbox.put(Observed("emptied", {"gpus": gpus, "why": why}), Observed("back", {"gpus": back}), *lost)

    def _prepare(self, order: Prepare) -> None:
        if (worker := order.devices[0]) in self._away:
            self._inbox.put(PrepareEnded(order.id, f"the worker of GPU {worker} is gone: {self._away[worker]}"))
            return
        instance = self._instance(order.kind, order.devices, order.setup_s)
        instance.preloads.append(order.id)
        if instance.loaded:
            self._end_preloads(instance)

    def _start(self, order: Start) -> None:
        window, model = order.devices, order.kind
        worker = window[0] if window else _NO_GPU
        if worker in self._away and window:
            why = f"the worker of GPU {worker} is gone: {self._away[worker]}"
            self._inbox.put(Failed(order.job, order.task, why, lost=True))
            return
        instance = self._instance(model, window, order.setup_s)
        attempt = _Attempt(f"{order.job}/{order.task}/{next(self._ids)}", order, instance)
        self._attempts[attempt.id] = self._by_node[order.job, order.task] = instance.attempts[attempt.id] = attempt
        if instance.loaded:
            self._call(attempt)

    def _instance(self, model: str, window: tuple[int, ...], setup_s: float) -> _Instance:
        """The model there; if it is not, it is about to be."""
        worker = window[0] if window else _NO_GPU
        instance = self._instances.get((worker, model))
        held = all(model in self._residents.held[gpu] for gpu in window)
        if instance is None or instance.window != window or not held:
            instance = _Instance(model, window, worker, self._limits.load_s(setup_s))
            self._make_room(instance)
            self._load(instance)
        else:
            self._residents.load(window, model)  # the last used there
        return instance

    def _make_room(self, instance: _Instance) -> None:
        """What its GPUs are no longer held to have leaves; so does the model itself where it was loaded otherwise."""
        window, model, residents = instance.window, instance.model, self._residents
        residents.load(window, model)
        for other in self._on(window):
            if other.model == model or any(other.model not in residents.held[gpu] for gpu in other.window):
                self._unload(other)
        for worker, name in list(self._kept):
            if not residents.in_host_memory(worker, name):
                self._kept.discard((worker, name))
                self._leave(_Instance(name, (), worker, 0.0), keep=False)
        instance.alone = not self._on(window)

    def _on(self, window: Iterable[int]) -> list[_Instance]:
        gpus = set(window)
        return [instance for instance in self._instances.values() if not gpus.isdisjoint(instance.window)]

    def _load(self, instance: _Instance) -> None:
        worker, gpus = instance.worker, set(instance.window)
        self._instances[worker, instance.model] = instance
        self._kept.discard((worker, instance.model))
        instance.waits_for = [o for o in self._leaving if o.worker != worker and not gpus.isdisjoint(o.window)]
        if not instance.waits_for and worker not in self._away:
            self._load_now(instance)

    def _load_now(self, instance: _Instance) -> None:
        base = self._models[instance.model].adapter_of
        if base and (instance.worker, base) not in self._instances:
            self._load(_Instance(base, instance.window, instance.worker, instance.limit_s))
        self._loads[instance.worker, instance.model] += 1
        self._alarms.after(instance.limit_s, lambda: self._load_is_late(instance))
        engine, worker = self._at(instance.worker)
        engine.load(worker, instance.model, instance.window or (0,))

    def _unload(self, instance: _Instance) -> None:
        del self._instances[instance.worker, instance.model]
        self._end_preloads(instance, "its GPUs were given to another model")
        if instance.waits_for:
            return  # it was never told to load
        keep = self._residents.in_host_memory(instance.worker, instance.model)
        if keep:
            self._kept.add((instance.worker, instance.model))
        self._leave(instance, keep)

    def _leave(self, instance: _Instance, keep: bool) -> None:
        self._leaving.append(instance)
        self._engine.unload(instance.worker, instance.model, keep)
        self._alarms.after(self._limits.load_s(0.0), lambda: self._unload_is_late(instance))

    def _at(self, worker: int) -> tuple[Engine, int]:
        """Who carries a worker, and by which number."""
        if worker != _NO_GPU:
            return self._engine, worker
        assert self._side is not None
        return self._side, 0

    def _call(self, attempt: _Attempt, brought: Brought = NOTHING) -> None:
        order, (engine, worker) = attempt.start, self._at(attempt.instance.worker)
        try:
            engine.call(worker, self._runs.call(order.job, order.task, order.kind, attempt.id, brought))
        except ElsewhereError as wanted:
            self._bring(wanted.reference, brought, lambda more: self._call_later(attempt, more))
            return
        except BackEndError as error:
            self._end(attempt, str(error), error.blame == "place")
            return
        except Exception as error:  # of the service: a disk that cannot be read
            self._end(attempt, f"it cannot be called: {type(error).__name__}: {error}", True)
            return
        limit_s = self._limits.call_s(order.run_s)
        attempt.alarm = self._alarms.after(limit_s, lambda: self._call_is_late(attempt, limit_s))

    def _call_later(self, attempt: _Attempt, brought: Brought) -> None:
        with self._lock:
            if attempt.id in self._attempts:
                self._call(attempt, brought)

    def _bring(self, wanted: Reference, brought: Brought, go_on: Callable[[Brought], None]) -> None:
        """Wait for a value that stays elsewhere, in a thread of its own: without a lock, and nobody else with it."""
        waits = threading.Thread(
            target=lambda: go_on(self._references.bring(wanted, brought)), name="brings a value", daemon=True
        )
        waits.start()

    def _stop(self, attempt: _Attempt, why: str, lost: bool = False) -> None:
        if attempt.stop:
            return
        attempt.stop, attempt.lost = why, lost
        if attempt.alarm is None:  # not called yet; a load goes on, and the model stays
            self._end(attempt, why, lost)
            return
        engine, worker = self._at(attempt.instance.worker)
        engine.cancel(worker, attempt.id)
        self._alarms.after(self._limits.stop_grace_s, lambda: self._stop_is_late(attempt))

    def _restart(self, worker: int, why: str) -> None:
        """End a worker by force. What is there counts as lost at once, so that nothing is started there meanwhile."""
        if worker not in self._away:
            engine, number = self._at(worker)
            engine.restart(number, why)
            self._lost(worker, why)

    # --- limits -----------------------------------------------------------------------------------------

    def _load_is_late(self, instance: _Instance) -> None:
        with self._lock:
            if self._instances.get((instance.worker, instance.model)) is instance and not instance.loaded:
                self._failed_loads[instance.model] += 1
                self._restart(instance.worker, f"{instance.model} was not loaded within {instance.limit_s:g} s")

    def _unload_is_late(self, instance: _Instance) -> None:
        with self._lock:
            if instance in self._leaving:
                self._restart(
                    instance.worker, f"{instance.model} was not unloaded within {self._limits.load_s(0.0):g} s"
                )

    def _call_is_late(self, attempt: _Attempt, limit_s: float) -> None:
        with self._lock:
            if attempt.id in self._attempts:
                expected = f"{attempt.start.run_s:g} s were expected"
                self._stop(attempt, f"it did not end within {limit_s:g} s ({expected})", lost=True)

    def _stop_is_late(self, attempt: _Attempt) -> None:
        with self._lock:
            if attempt.id in self._attempts:
                grace = f"{self._limits.stop_grace_s:g} s"
                self._restart(attempt.instance.worker, f"{attempt.id} did not end within {grace} of being stopped")

    # --- reports ----------------------------------------------------------------------------------------

    def _report(self, report: Report) -> None:
        if isinstance(report, AnswerPiece):
            self._piece(report)
        elif isinstance(report, Answer):
            self._answered(report)
        elif isinstance(report, CallFailed):
            self._call_failed(report)
        else:
            with self._lock:
                self._changed(report)

    def _report_side(self, report: Report) -> None:
        self._report(replace(report, worker=_NO_GPU) if hasattr(report, "worker") else report)

    def _changed(
        self, report: WorkerReady | Loaded | Unloaded | LoadFailed | Unhealthy | WorkerLost | WorkersJoined
    ) -> None:
        if isinstance(report, WorkersJoined):
            self._joined(report.places)
        elif isinstance(report, WorkerReady):
            if self._away.pop(report.worker, None) is not None:
                self._back(report.worker)
        elif isinstance(report, WorkerLost):
            if report.worker not in self._away:  # else it was given up before
                self._lost(report.worker, report.why)
            for left in [left for left in self._leaving if left.worker == report.worker]:
                self._unloaded(left)
        elif report.worker in self._away:
            pass  # the last words of a worker that was given up
        elif isinstance(report, Loaded):
            self._loaded(report)
        elif isinstance(report, LoadFailed):
            self._load_failed(report)
        elif isinstance(report, Unloaded):
            this = (report.worker, report.model)
            self._unloaded(next(left for left in self._leaving if (left.worker, left.model) == this))
        else:
            self._restart(report.worker, f"{report.model}: {report.why}")

    def _piece(self, piece: AnswerPiece) -> None:
        attempt = self._attempts.get(piece.call)
        if attempt is None or attempt.stop:
            return
        key = (attempt.start.job, attempt.start.task)
        if not attempt.begun:
            attempt.begun = True
            self._inbox.put(Observed(FIRST_TOKEN, {"job": key[0], "task": key[1]}))
        self._runs.piece(*key, piece)

    def _call_failed(self, report: CallFailed) -> None:
        with self._lock:
            attempt = self._attempts.get(report.call)
            if attempt is None:
                return
            self._end(attempt, report.why, report.blame == "place")
            if attempt.stop and not attempt.lost:
                return  # it ended as it was told to
            instance = attempt.instance
            instance.failures = instance.failures + 1 if report.blame == "place" else 0
            if instance.failures >= self._limits.call_tries:
                again = f"{instance.model} failed {instance.failures} calls in a row: {report.why}"
                self._restart(instance.worker, again)

    def _answered(self, answer: Answer) -> None:
        with self._lock:
            attempt = self._attempts.get(answer.call)
            if attempt is None or attempt.stop:  # nobody takes it any more
                if kept := list(references_in(answer.outputs)):
                    self._engine.drop(kept)
                if attempt is not None:
                    self._end(attempt, attempt.stop, attempt.lost)
                return
            self._forget(attempt)
            attempt.instance.failures = 0
        self._take(attempt, answer)

    def _take(self, attempt: _Attempt, answer: Answer, brought: Brought = NOTHING) -> None:
        key = (attempt.start.job, attempt.start.task)
        stimuli: list[Stimulus] = []
        if answer.written is not None:
            tokens = {"input": answer.read or 0, "output": answer.written}
            stimuli.append(Observed("tokens", {"job": key[0], "task": key[1], **tokens}))
        try:
            grew = self._runs.answered(*key, answer, brought)
        except ElsewhereError as wanted:
            self._bring(wanted.reference, brought, lambda more: self._take(attempt, answer, more))
            return
        except BackEndError as error:
            self._inbox.put(Failed(*key, str(error), error.blame == "place"))
            return
        except Exception as error:
            self._inbox.put(Failed(*key, f"its answer cannot be kept: {type(error).__name__}: {error}", lost=True))
            return
        self._inbox.put(*stimuli, *([grew] if grew is not None else []), Finished(*key))

    def _loaded(self, report: Loaded) -> None:
        instance = self._settled_load(report)
        if instance is None:
            return
        instance.loaded = True
        del self._failed_loads[instance.model]
        self._end_preloads(instance)
        for attempt in list(instance.attempts.values()):
            if instance.window:
                self._inbox.put(Settled(attempt.start.job, attempt.start.task, instance.window))
            self._call(attempt)

    def _load_failed(self, report: LoadFailed) -> None:
        instance = self._settled_load(report)
        if instance is None:
            return
        if instance.alone or not report.out_of_memory:
            self._failed_loads[instance.model] += 1
        del self._instances[report.worker, report.model]
        if not instance.attempts and not instance.preloads:
            return  # all were stopped, and others may be at work there: who asks for it next loads it
        for other in self._on(instance.window):  # so that what is said of these GPUs is true
            self._unload(other)
        why = f"{unloadable(report.model)}: {report.why}"
        self._emptied(instance.window, why)
        self._give_up(instance, why)

    def _settled_load(self, report: Loaded | LoadFailed) -> _Instance | None:
        """What a load was for, unless nobody waits for it any more, or for a later one of the same model."""
        key = (report.worker, report.model)
        self._loads[key] -= 1
        instance = self._instances.get(key)
        return None if self._loads[key] or instance is None or instance.waits_for else instance

    def _give_up(self, instance: _Instance, why: str) -> None:
        """All that waits for a load, or was called, where that is gone."""
        hopeless = not instance.loaded and self._failed_loads[instance.model] >= self._limits.load_tries
        self._end_preloads(instance, why)
        for attempt in list(instance.attempts.values()):
            self._end(attempt, why, lost=not hopeless)

    def _end_preloads(self, instance: _Instance, why: str = "") -> None:
        ended, instance.preloads = instance.preloads, []
        self._inbox.put(*(PrepareEnded(id, why) for id in ended))

    def _emptied(self, gpus: Iterable[int], why: str) -> None:
        emptied = sorted(set(gpus))
        for gpu in emptied:
            self._residents.clear(gpu)
        if emptied:
            self._inbox.put(Observed("emptied", {"gpus": emptied, "why": why}))

    def _unloaded(self, left: _Instance) -> None:
        self._leaving.remove(left)
        for instance in [instance for instance in self._instances.values() if left in instance.waits_for]:
            instance.waits_for.remove(left)
            if not instance.waits_for:
                self._load_now(instance)

    def _lost(self, worker: int, because: str) -> None:
        what = "nodes without a GPU" if worker == _NO_GPU else f"GPU {worker}"
        why = f"the worker of {what} was lost: {because}"
        self._away[worker] = because
        gone = [instance for instance in self._instances.values() if instance.worker == worker]
        for instance in gone:
            del self._instances[worker, instance.model]
        self._leaving += [instance for instance in gone if not instance.waits_for]  # until the worker is really gone
        self._kept = {key for key in self._kept if key[0] != worker}
        for key in [key for key in self._loads if key[0] == worker]:
            del self._loads[key]
        if worker != _NO_GPU:
            self._inbox.put(Observed("gone", {"gpus": [worker], "why": because}))
            self._emptied({worker, *(gpu for instance in gone for gpu in instance.window)}, why)
        for instance in gone:
            self._give_up(instance, why)

    def _back(self, worker: int) -> None:
        if worker != _NO_GPU:
            self._inbox.put(Observed("back", {"gpus": [worker]}))
        for instance in [instance for instance in self._instances.values() if instance.worker == worker]:
            self._load_now(instance)  # which was asked for meanwhile

    def _joined(self, places: Sequence[GpuPlace]) -> None:
        first = len(self._pool)
        hosts, types = host_numbers(self._engine.places), types_of(places, self._pool.types)
        devices = tuple(Device(first + i, place.type, hosts[place.host]) for i, place in enumerate(places))
        self._pool = self._pool.joined(devices, types)
        self._residents.extend(self._pool)
        self._inbox.put(Added(f"{len(places)} GPUs joined", devices=devices, types=types))

    # --- ends -------------------------------------------------------------------------------------------

    def _end(self, attempt: _Attempt, why: str, lost: bool) -> None:
        """Without an answer. Why it was stopped goes before what came of that."""
        self._forget(attempt)
        order = attempt.start
        if attempt.stop:
            why, lost = attempt.stop, attempt.lost
        self._inbox.put(Failed(order.job, order.task, why, lost))

    def _forget(self, attempt: _Attempt) -> None:
        if attempt.alarm is not None:
            attempt.alarm.cancel()
        del self._attempts[attempt.id], attempt.instance.attempts[attempt.id]
        del self._by_node[attempt.start.job, attempt.start.task]
