"""The default policy: oldest first, unless a switch costs more than it is worth to those who wait."""

from __future__ import annotations

from typing import Any

from dovetail.core.registry import policy
from dovetail.workflow.policy import Place, Policy, Wait
from dovetail.workflow.view import Queue, Task, View, Window

_MEMORY_S = 100.0  # a GPU idle for much longer than this is a good place to load another model


@policy("dovetail", level="workflow")
class Dovetail(Policy):
    """Oldest ready node first, but a switch must be worth the wait it costs; wide nodes are never starved.

    A candidate's key is the time it became ready (so that everyone ages alike) plus the GPU-seconds that its switch
    wastes, per GPU, times the number of requests that wait meanwhile (at least `patience`). What a switch wastes is its
    price, and the price of loading the evicted model again if nodes are ready for it. Windows are aligned to their
    width, warm before cold, cheap before dear; among those, a model that arrived requests will still need counts
    `look_ahead` times as dear to evict, and one just used more than one long idle. A wide node that has
    waited `starvation` times as long as the backlog accounts for gets a reservation: its GPUs are then given only to
    nodes that finish before the last of them is free (backfilling).
    """

    def __init__(self, *, patience: float = 20.0, look_ahead: float = 3.0, starvation: float = 16.0) -> None:
        self.patience = patience
        self.look_ahead = look_ahead
        self.starvation = starvation

    def rank(self, task: Task, view: View) -> float:
        return task.ready_s + 1e-3 * task.run.gpu_s_left  # among those ready together, the one with the least left

    def choose(self, view: View) -> Place | Wait | None:
        waiting = max(self.patience, view.open_requests) / len(view.pool)
        candidates: list[tuple[Any, ...]] = []
        starved: Task | None = None
        for queue in view.queues.values():
            task = queue.head
            windows = view.free_windows(queue.model) if queue.width <= view.free_count else ()
            for window in windows:
                setup_s, wasted, regret = self._waste(queue, window, view)
                key = task.rank + waiting * wasted
                candidates.append((key, wasted + regret, task.seq, window, task, setup_s))
            if not windows and queue.width > 1 and self._is_starved(task, view):
                starved = task if starved is None or task.rank < starved.rank else starved
        if starved is not None and candidates:
            candidates = self._backfill(starved, candidates, view)
        if not candidates:
            return None
        _, _, _, window, task, setup_s = min(candidates)
        return Place(task, window, self._reason(setup_s, starved))

    def _waste(self, queue: Queue, window: Window, view: View) -> tuple[float, float, float]:
        """The switch's price, the GPU-seconds it wastes, and how sorry one would be for what is evicted."""
        residents, model = view.residents, queue.model
        setup_s = residents.setup(window, model)
        if not setup_s:
            return 0.0, 0.0, 0.0
        wasted, regret = setup_s * queue.width, 0.0
        evicted: dict[str, float] = {}
        for gpu in window:
            for other in residents.evicted(gpu, model):
                back_s = evicted.get(other)
                if back_s is None:
                    back_s = evicted[other] = residents.reload_s(model, other)
                needed = self.look_ahead if view.demand[other] > 0 else 1.0
                regret += needed * back_s * _MEMORY_S / (_MEMORY_S + view.now - view.idle_since[gpu])
        for other, back_s in evicted.items():
            if other in view.queues:
                wasted += back_s * view.models[other].width
        return setup_s, wasted, regret

    def _is_starved(self, task: Task, view: View) -> bool:
        backlog_s = sum([queue.gpu_s for queue in view.queues.values()]) / len(view.pool)
        return view.now - task.ready_s > self.starvation * (backlog_s + task.size)

    def _backfill(self, starved: Task, candidates: list[tuple[Any, ...]], view: View) -> list[tuple[Any, ...]]:
        free_s, window = min((view.free_at(w), w) for w in view.roomy_windows(starved.model))
        kept = set(window)
        return [c for c in candidates if kept.isdisjoint(c[3]) or view.now + c[5] + view.run_s(c[4], c[3]) <= free_s]

    @staticmethod
    def _reason(setup_s: float, starved: Task | None) -> str:
        why = "warm" if not setup_s else "worth the switch"
        return why if starved is None else f"{why}; GPUs are reserved for {starved.run.id}/{starved.name}"
