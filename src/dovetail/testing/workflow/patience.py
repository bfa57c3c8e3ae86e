"""Oldest first, unless a switch costs more than it is worth to those who wait: the default of old, a rival now."""

from __future__ import annotations

from typing import Any

from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import Queue, ReadyNode, Window
from dovetail.workflow.policies.view import View

_MEMORY_S = 100.0  # a GPU idle for much longer than this is a good place to load another model


class PatienceRule(WorkflowPolicy):
    """Oldest ready node first, but a switch must be worth the wait it costs; a starved wide node gets a reservation.

    A candidate's key is the time it became ready (so that everyone ages alike) plus the GPU-seconds that its switch
    wastes, per GPU, times the number of requests that wait meanwhile (at least `patience`). What a switch wastes is its
    price, and the price of loading the evicted model again if nodes are ready for it. Windows are aligned to their
    width, warm before cold, cheap before dear; among those, a model that arrived requests will still need counts
    `look_ahead` times as dear to evict, and one just used more than one long idle. A wide node that has
    waited `starvation` times as long as the backlog accounts for gets a reservation until it starts: its GPUs are then
    given only to nodes that finish before the last of them is free (backfilling).
    """

    def __init__(self, *, patience: float = 20.0, look_ahead: float = 3.0, starvation: float = 16.0) -> None:
        self.patience = patience
        self.look_ahead = look_ahead
        self.starvation = starvation
        self._reserved: tuple[ReadyNode, Window] | None = None

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.ready_s + 1e-3 * node.request.gpu_s_left  # among those ready together, the one with the least left

    def choose(self, view: View) -> Place | Wait | None:
        requests = len(view.requests)
        waiting = (requests if requests > self.patience else self.patience) / view.size
        kept: Window = ()
        free_s = 0.0
        if view.wide_waiting and (reservation := self._reservation(view)) is not None:
            starved, kept = reservation
            if all(view.free[gpu] for gpu in kept):
                self._reserved = None
                return Place(starved, kept, "reserved after a long wait")
            free_s = view.free_at(kept)
        best: tuple[Any, ...] | None = None
        for queue in view.queues.values():
            if queue.width > view.free_count:
                continue
            node = queue.head
            windows = view.free_windows(queue.model)
            if kept:
                windows = [w for w in windows if self._may_backfill(node, w, kept, free_s, view)]
            if windows:
                wasted, _, window, setup_s = self._cheapest(queue, windows, view)
                key = (node.rank + waiting * wasted, node.seq, window, node, setup_s)
                best = key if best is None or key < best else best
        if best is None:
            return None
        _, _, window, node, setup_s = best
        return Place(node, window, "worth the load" if setup_s else "warm")

    def _cheapest(self, queue: Queue, windows: list[Window], view: View) -> tuple[float, float, Window, float]:
        """The window that wastes least for a queue: GPU-seconds wasted, regret, the window, the switch's price."""
        held, model = view.residents.held, queue.model
        for window in windows:
            if model in held[window[0]] and (queue.width == 1 or all(model in held[gpu] for gpu in window)):
                return 0.0, 0.0, window, 0.0
        if queue.width == 1 and view.alike:
            longest_idle: dict[str | None, Window] = {}
            for window in windows:
                resident = next(iter(held[window[0]]), None)
                known = longest_idle.get(resident)
                if known is None or view.idle_since[window[0]] < view.idle_since[known[0]]:
                    longest_idle[resident] = window
            windows = list(longest_idle.values())
        if len(windows) == 1:
            return self._waste(queue, windows[0], view)
        return min([self._waste(queue, window, view) for window in windows], key=_by_waste)

    def _waste(self, queue: Queue, window: Window, view: View) -> tuple[float, float, Window, float]:
        """What a switch here wastes, and how sorry one would be for what is evicted."""
        residents, model = view.residents, queue.model
        setup_s = residents.setup(window, model)
        wasted, regret = setup_s * queue.width, 0.0
        counted: set[str] = set()
        for gpu in window:
            for other in residents.evicted(gpu, model):
                back_s = residents.reload_s(model, other)
                needed = self.look_ahead if view.demand[other] > 0 else 1.0
                regret += needed * back_s * _MEMORY_S / (_MEMORY_S + view.now - view.idle_since[gpu])
                if other in view.queues and other not in counted:
                    counted.add(other)
                    wasted += back_s * view.models[other].width
        return wasted, regret, window, setup_s

    def _reservation(self, view: View) -> tuple[ReadyNode, Window] | None:
        """The wide node that has waited too long and the GPUs kept for it, from then on until it starts."""
        if self._reserved is not None and (self._reserved[0].gone or not self._reserved[0].request.open):
            self._reserved = None
        if self._reserved is None:
            wide = [queue.head for queue in view.queues.values() if queue.width > 1]
            starved = [t for t in wide if self._is_starved(t, view) and not view.free_windows(t.model)]
            if starved:
                node = min(starved, key=lambda t: (t.rank, t.seq))
                windows = view.roomy_windows(node.model)
                self._reserved = (node, min(windows, key=lambda w: (view.free_at(w), w)))
        return self._reserved

    def _is_starved(self, node: ReadyNode, view: View) -> bool:
        waited_s = view.now - node.ready_s
        if waited_s <= self.starvation * node.size:
            return False
        backlog_s = sum([queue.gpu_s for queue in view.queues.values()]) / len(view.pool)
        return waited_s > self.starvation * (backlog_s + node.size)

    @staticmethod
    def _may_backfill(node: ReadyNode, window: Window, kept: Window, free_s: float, view: View) -> bool:
        ends_s = view.now + view.setup_s(window, node.model) + view.run_s(node, window)
        return ends_s <= free_s or not set(kept).intersection(window)


def _by_waste(option: tuple[float, float, Window, float]) -> tuple[float, Window]:
    return option[0] + option[1], option[2]
