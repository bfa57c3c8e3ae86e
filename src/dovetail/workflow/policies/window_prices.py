"""What starting a queue's head on a free window costs everybody, and whether it had better wait for a busy one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import sqrt
from typing import NamedTuple

from dovetail.workflow.policies.base import Queue, ReadyNode, View, Window
from dovetail.workflow.policies.demand_picture import DemandPicture
from dovetail.workflow.policies.losses import away_loss, copy_gain, elsewhere_loss

_LOT = 4.0  # times the square root of lot sizes; measured
CAP = 10.0  # set-ups by which a cold head must at most be older than the backlog says
_MEMORY_S = 100.0  # how long a model that is loaded is thought to be of use


class WindowOption(NamedTuple):
    """A free window for a queue's head and its price in request-seconds."""

    cost: float
    window: Window
    setup_s: float
    loss: float
    return_s: float  # set-ups of evicted models for which nodes are ready


def backlog_s(view: View) -> float:
    """How long the pool would need for all that has arrived and not started, ready or not."""
    return max(0.0, sum(view.demand.values())) / view.total_speed


class WindowPrices:
    """The prices at one decision. `kept` are GPUs that are reserved: only nodes that end in time may use them."""

    def __init__(self, view: View, demand: DemandPicture, kept: Window) -> None:
        self._view = view
        self._demand = demand
        self._kept = kept
        self._kept_s = view.free_at(kept) if kept else 0.0
        self._lot = _lot(backlog_s(view), view.ready_count, view.size)
        self._spare: list[int] | None = None

    # --- between queues ---------------------------------------------------------------------------

    def surcharge(self, queue: Queue, backlog_s: float, setup_s: float) -> float:
        """How much older the head of a cold queue must be, for a set-up of so many seconds (with the way back).

        Lots as large as their set-ups are worth (the square root), but never more than the backlog when the head became
        ready and ten set-ups: constants of the node, so that it is not passed for ever.
        """
        if not setup_s:
            return 0.0
        setup_s *= queue.width
        return min(self._lot_of(queue.model) * sqrt(setup_s / queue.count), backlog_s + CAP * setup_s)

    def least_surcharge(self, queue: Queue, backlog_s: float) -> float:
        """A lower bound of the surcharge, before any window is looked at."""
        if self._view.residents.holders.get(queue.model):
            return 0.0
        return self.surcharge(queue, backlog_s, self._demand.least_setup_s[queue.model])

    def _lot_of(self, model: str) -> float:
        room = self._demand.room_of.get(model)
        if room is None:
            return self._lot
        view = self._view
        backlog_s = max(0.0, sum(view.demand[m] for m in room.models)) / room.speed
        ready = sum(view.queues[m].count for m in room.models if m in view.queues)
        return max(self._lot, _lot(backlog_s, ready, len(room.gpus)))

    # --- where ------------------------------------------------------------------------------------

    def option(self, queue: Queue, node: ReadyNode) -> WindowOption | None:
        """The free window of least loss, or None if the queue had better wait."""
        view, free = self._view, self._view.free
        warm = view.warm_windows(queue.model)
        ready = [w for w in warm if all(free[gpu] for gpu in w) and self._may_use(node, w)]
        if ready and view.even and not self._demand.rooms:
            return WindowOption(0.0, min(ready), 0.0, 0.0, 0.0)
        options = [self._price(queue, node, w, bool(ready)) for w in self._candidates(queue, node)]
        if not options:
            return None
        best = min(options)
        if best.setup_s and warm and not ready and not self._is_worth_a_copy(queue, warm, best):
            return None
        return None if not view.even and self._is_faster_soon(queue, node, best, len(warm)) else best

    def _may_use(self, node: ReadyNode, window: Window) -> bool:
        """Whether a reservation allows it: nodes that end in time may backfill."""
        if not self._kept or not set(self._kept).intersection(window):
            return True
        view = self._view
        return view.now + view.setup_s(window, node.model) + view.run_s(node, window) <= self._kept_s

    def _candidates(self, queue: Queue, node: ReadyNode) -> list[Window]:
        """Free windows, one of each kind: those with the same models cost the same if GPUs are alike."""
        view = self._view
        windows = view.free_windows(queue.model)
        if self._kept:
            windows = [w for w in windows if self._may_use(node, w)]
        if len(windows) < 2 or not view.alike:
            return windows
        held = view.residents.held
        kinds: dict[Hashable, Window] = {}
        for window in windows:
            kinds.setdefault(tuple([next(iter(held[gpu]), None) for gpu in window]), window)
        return list(kinds.values())

    def _price(self, queue: Queue, node: ReadyNode, window: Window, warm: bool) -> WindowOption:
        """What starting here costs everybody; `warm`: another free window holds the model, so only the head waits."""
        view, model = self._view, queue.model
        setup_s, run_s = view.setup_s(window, model), view.run_s(node, window)
        crowd = self._crowd_loss(model, window, setup_s + run_s) if self._demand.rooms else 0.0
        if not setup_s:
            return WindowOption(run_s + crowd, window, 0.0, 0.0, 0.0)
        loss = return_s = 0.0
        away_s = setup_s + queue.gpu_s / queue.width / self._speed(model, window)
        broken = self._broken(window, model)
        for other, windows in broken.items():
            back_s = view.residents.reload_s(model, other)
            if other in view.queues:
                return_s += back_s
            loss += self._loss(other, windows, away_s + back_s, back_s, window)
        if not broken and view.residents.holders.get(model):
            loss = self._stranger_loss(window, away_s)
        waiting = 1 if warm else queue.count
        return WindowOption(waiting * setup_s + run_s + loss + crowd, window, setup_s, loss, return_s)

    def _broken(self, window: Window, model: str) -> dict[str, list[Window]]:
        """Which complete windows of other models this one would break. What is left of a broken one counts as empty."""
        view = self._view
        found: dict[str, list[Window]] = {}
        for gpu in window:
            for other in view.residents.evicted(gpu, model):
                lost = [w for w in view.warm_windows(other) if gpu in w] if view.models[other].width > 1 else [(gpu,)]
                if lost:
                    known = found.setdefault(other, [])
                    known += [w for w in lost if w not in known]
        return found

    def _loss(self, other: str, broken: list[Window], away_s: float, back_s: float, window: Window) -> float:
        """What an evicted model loses."""
        view, rate = self._view, self._demand.rates.get(other)
        if rate is None:
            return 0.0
        waiting = view.queues[other].count if other in view.queues else 0
        windows = sum(self._speed(other, w) for w in view.warm_windows(other))
        kept = windows - sum(self._speed(other, w) for w in broken)
        per_s, needed = rate.per_s(view.now), self._demand.needed(other, view.now)
        room = self._demand.room_of.get(other)
        if room is not None:  # its queue drains only as fast as its room has time
            needed = max(needed, windows - self._demand.room_slack(room, view))
        loss = away_loss(waiting, per_s, rate.size_s, needed, windows, kept, away_s)
        if kept <= needed and self._has_room_elsewhere(other, window):
            horizon_s = max(_MEMORY_S, away_s)
            loss = min(loss, elsewhere_loss(waiting, per_s, rate.size_s, needed, windows, back_s, horizon_s))
        return loss

    def _speed(self, model: str, window: Window) -> float:
        return 1.0 if self._view.even else self._view.speed(model, window)

    def _has_room_elsewhere(self, model: str, window: Window) -> bool:
        """Whether the model could be loaded on GPUs that are empty, or hold one copy more than is needed."""
        view = self._view
        if self._spare is None:
            self._spare = [gpu for gpu, held in enumerate(view.residents.held) if not held]
            self._spare += self._spare_copies()
        if view.models[model].width == 1 and not view.limited:
            return any(gpu not in window for gpu in self._spare)
        spare = set(self._spare).difference(window)
        return any(spare.issuperset(w) for w in view.roomy_windows(model))

    def _spare_copies(self) -> Iterator[int]:
        view = self._view
        for model, gpus in view.residents.holders.items():
            if len(gpus) > 1 and view.models[model].width == 1 and model not in view.queues:
                speeds = [self._speed(model, (gpu,)) for gpu in gpus]
                if sum(speeds) - max(speeds) > self._demand.needed(model, view.now):
                    yield from gpus

    def _stranger_loss(self, window: Window, away_s: float) -> float:
        """What models that nobody has seen yet lose if the last empty GPUs are gone when they come."""
        strangers = self._demand.strangers_per_s(self._view.now) * away_s
        if not strangers:
            return 0.0
        empty = sum(not models for models in self._view.residents.held) - len(window)
        return max(0.0, strangers - max(0, empty)) * away_s / 2

    def _crowd_loss(self, model: str, window: Window, busy_s: float) -> float:
        """What those lose who can run only here."""
        view, rates = self._view, self._demand.rates
        here = {m for room in self._demand.rooms if room.gpus.intersection(window) for m in room.models}
        own = self._demand.room_of.get(model)
        others = here.difference(own.models if own else (model,))
        return sum(rates[m].per_s(view.now) for m in sorted(others) if m in rates) * busy_s**2 / 2

    # --- or wait ----------------------------------------------------------------------------------

    def _is_worth_a_copy(self, queue: Queue, warm: list[Window], best: WindowOption) -> bool:
        """Whether a second copy saves more than it costs, doubt counted against it.

        Where it costs nobody anything, those who will come count as well as those who wait.
        """
        view, rate = self._view, self._demand.rates[queue.model]
        windows, speed = sum(self._speed(queue.model, w) for w in warm), self._speed(queue.model, best.window)
        needed = rate.windows(view.now)
        if best.loss:
            needed *= max(0.0, 1 - rate.doubt)
        free_s = min(view.free_at(w) for w in warm) - view.now
        size_s = queue.gpu_s / queue.width / queue.count
        gain = copy_gain(queue.count, size_s, needed, windows, free_s, best.setup_s, speed)
        if not best.loss:
            per_s = rate.per_s(view.now)
            gain += away_loss(0, per_s, rate.size_s, needed, windows + speed, windows, _MEMORY_S)
        return gain > best.loss

    def _is_faster_soon(self, queue: Queue, node: ReadyNode, best: WindowOption, warm: int) -> bool:
        """Whether a busy window is fast enough to wait for, counting what taking it costs the others."""
        view = self._view
        if view.free_count == view.size:
            return False
        here_s = best.setup_s + view.run_s(node, best.window)
        others = 1 + (view.ready_count - 1) / max(warm, 1)
        for window in view.roomy_windows(queue.model):
            run_s = view.run_s(node, window)
            if run_s >= here_s:
                continue
            wait_s = view.free_at(window) - view.now
            if wait_s > 0 and wait_s + view.setup_s(window, queue.model) + run_s * others < here_s:
                return True
        return False


def _lot(backlog_s: float, ready: int, gpus: int) -> float:
    """Switching every B seconds loses set-up / B of the backlog and makes others wait B: least at a square root."""
    return _LOT * sqrt(2 * backlog_s * ready / gpus)
