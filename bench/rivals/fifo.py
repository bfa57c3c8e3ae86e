"""A rival: models swapped in the order in which requests come, by the rules of llama-swap's default scheduler.

From llama-swap at v250 (`internal/router/scheduler/fifo.go`, `internal/router/group.go`), for groups with `swap: true`
and `exclusive: false`, one group for each GPU, every model in one of them:

- a request for the model that runs is served at once, also past those that wait;
- one for the model that is being started joins those who wait for it;
- any other waits while its group is starting a model, or while the model that would have to go is still answering;
  else that one is stopped, and the new one is started;
- when a start is over, or the last answer of a model, the queue is walked once in the order of arrival by these rules.

With `in_order` by those that it had up to v217 (`proxy/processgroup.go`, a lock): a group's requests are taken strictly
in the order of arrival, and the one that changes the model keeps the others out until it is answered.

Left out: its limit of 10 requests for each model (they would get 429 here), priorities, idle times (`ttl`). A model's
server works on as many requests at once as the model has slots; the others wait there, as in llama.cpp's server.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    CallFailed,
    Engine,
    Loaded,
    LoadFailed,
    ModelCall,
    Report,
    ServedModel,
    Unloaded,
    WorkerLost,
    WorkerReady,
)

Told = Callable[[AnswerPiece | Answer | CallFailed], None]


class FifoSwapping:
    """Serves calls of models on the workers of an engine. `ask` from any thread; `switches` counts starts of models."""

    def __init__(
        self,
        engine: Engine,
        served: Mapping[str, ServedModel],
        groups: Sequence[Sequence[str]],
        in_order: bool = False,
    ) -> None:
        self._engine, self._served, self._in_order = engine, served, in_order
        self._first: dict[int, str] = {}  # group to the call that has its model started, until that is answered
        self._group = {model: number for number, models in enumerate(groups) for model in models}
        self._running: dict[int, str] = {}  # group to the model that runs
        self._starting: dict[int, str] = {}
        self._joined: dict[str, list[ModelCall]] = {}  # by the model that is being started
        self._queue: list[ModelCall] = []
        self._in_flight: Counter[str] = Counter()
        self._at_server: dict[str, deque[ModelCall]] = {model: deque() for model in served}
        self._busy: Counter[str] = Counter()  # slots in use
        self._told: dict[str, tuple[str, Told]] = {}
        self._ready: set[int] = set()
        self._changed = threading.Condition(threading.RLock())
        self.switches = 0

    def start(self) -> None:
        self._engine.start(self._served, self._heard)
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) == len(self._engine.places))

    def ask(self, call: ModelCall, told: Told) -> None:
        """Have a call made; what comes of it is told, pieces first if it is streamed."""
        with self._changed:
            self._told[call.id] = (call.model, told)
            waits = self._in_order and any(self._group[o.model] == self._group[call.model] for o in self._queue)
            if waits or not self._try(call):
                self._queue.append(call)

    def _try(self, call: ModelCall) -> bool:
        """Serve it, join, or start its model; False if it has to wait."""
        model, group = call.model, self._group[call.model]
        if self._in_order and group in self._first:
            return False
        if self._starting.get(group) == model:
            self._joined[model].append(call)
            return True
        running = self._running.get(group)
        if group in self._starting or (running not in (None, model) and self._in_flight[str(running)]):
            return False
        if running == model:
            self._serve(call)
            return True
        self._joined[model] = [call]
        self._starting[group] = model
        if self._in_order:
            self._first[group] = call.id
        self.switches += 1
        if running is None:
            self._engine.load(group, model, (group,))
        else:
            del self._running[group]
            self._engine.unload(group, running, False)  # and then the new one is loaded
        return True

    def _serve(self, call: ModelCall) -> None:
        self._in_flight[call.model] += 1
        self._at_server[call.model].append(call)
        self._fill(call.model)

    def _fill(self, model: str) -> None:
        waiting = self._at_server[model]
        while waiting and self._busy[model] < self._served[model].slots:
            self._busy[model] += 1
            self._engine.call(self._group[model], waiting.popleft())

    def _drain(self) -> None:
        left: list[ModelCall] = []
        blocked: set[int] = set()
        for call in self._queue:
            if self._group[call.model] in blocked or not self._try(call):
                left.append(call)
                if self._in_order:
                    blocked.add(self._group[call.model])
        self._queue = left

    def _heard(self, report: Report) -> None:
        with self._changed:
            match report:
                case WorkerReady(worker):
                    self._ready.add(worker)
                    self._changed.notify_all()
                case Unloaded(worker) if worker in self._starting:
                    self._engine.load(worker, self._starting[worker], (worker,))
                case Loaded(worker, model):
                    self._running[worker] = self._starting.pop(worker)
                    for call in self._joined.pop(model):
                        self._serve(call)
                    self._drain()
                case LoadFailed(worker, model, why):
                    del self._starting[worker]
                    for call in self._joined.pop(model):
                        self._told.pop(call.id)[1](CallFailed(call.id, why))
                    self._drain()
                case Answer(call=id) | CallFailed(call=id):
                    self._ended(id, report)
                case AnswerPiece(call=id) if id in self._told:
                    self._told[id][1](report)
                case WorkerLost(worker, why):
                    raise RuntimeError(f"worker {worker} of the rival was lost: {why}")

    def _ended(self, id: str, report: Answer | CallFailed) -> None:
        model, told = self._told.pop(id)
        if self._first.get(self._group[model]) == id:
            del self._first[self._group[model]]
        self._busy[model] -= 1
        self._in_flight[model] -= 1
        self._fill(model)
        told(report)
        if self._in_order or not self._in_flight[model]:
            self._drain()


@contextmanager
def fifo_swapping(
    engine: Engine,
    served: Mapping[str, ServedModel],
    groups: Sequence[Sequence[str]] | None = None,
    in_order: bool = False,
) -> Iterator[FifoSwapping]:
    """Models swapped by llama-swap's rules on an engine's workers, until the end of the block. `groups`: the models of
    each worker; by default they are dealt out in turn. `in_order`: by its older rules."""
    count = len(engine.places)
    dealt = groups or [list(served)[number::count] for number in range(count)]
    rival = FifoSwapping(engine, served, dealt, in_order)
    try:
        rival.start()
        yield rival
    finally:
        engine.close()
