"""What starting a queue's head on a free window costs everybody, and whether it had better wait for a busy one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import inf, sqrt
from typing import NamedTuple

from dovetail.workflow.policies.demand_picture import DemandPicture
from dovetail.workflow.policies.losses import away_loss, copy_gain, elsewhere_loss
from dovetail.workflow.policies.ready import Queue, ReadyNode, Window
from dovetail.workflow.policies.view import View

_LOT = 3.0  # times the square root of lot sizes; measured
_COLD = 0.4  # times as much, where nobody finds its model loaded and so a switch is due in any case; measured
_PAID = 5.0  # times what a switch costs all who wait; measured
CAP = 10.0  # set-ups by which a cold head must at most be older than the backlog says
_AGED = 2.0  # times that cap: who has waited so long need not be older at all; measured
_ROUNDING = 1e-6  # seconds; the lower bound must not be above what it bounds
_FEW = 4  # free GPUs that are looked at to leave out queues
_MEMORY_S = 100.0  # how long a model that is loaded is thought to be of use
_CHEAP = 0.25  # of a run: a model that is loaded again in less takes any GPU that is free next; measured
_USED = 30.0  # the same for a second copy that evicts nothing of use, in set-ups; measured


class WindowOption(NamedTuple):
    """A free window for a queue's head and its price in request-seconds."""

    cost: float
    window: Window
    setup_s: float
    loss: float
    return_s: float  # set-ups of evicted models for which nodes are ready, GPU-seconds over the queue's width


def backlog_s(view: View) -> float:
    """How long the pool would need for all that has arrived and not started, ready or not."""
    if not view.shares:
        return max(0.0, sum(view.demand.values())) / view.total_speed
    demand = [gpu_s / _usual_gain(view, model) for model, gpu_s in view.demand.items() if gpu_s > 0]
    return sum(demand) / view.total_speed


def _usual_gain(view: View, model: str) -> float:
    """Of a model's slots, on the first window that it fits on."""
    windows = view.roomy_windows(model)
    return view.gain(model, min(windows)) if windows and view.models[model].width else 1.0


class ModelState(NamedTuple):
    """What a loss is counted from: nodes that wait, arrivals per second, mean size, windows needed and held."""

    waiting: int
    per_s: float
    size_s: float
    needed: float
    windows: float


class WindowPrices:
    """The prices at one decision. `kept` are GPUs that are reserved: only nodes that end in time may use them."""

    def __init__(self, view: View, demand: DemandPicture, kept: Window) -> None:
        self._view = view
        self._demand = demand
        self._kept = kept
        self._kept_s = view.free_at(kept) if kept else 0.0
        self._lot = _lot(backlog_s(view), view.ready_count, view.size)
        if not view.wide_waiting and not demand.deadlines and not self._is_any_warm():
            self._lot *= _COLD
        self._few: list[tuple[int, str]] | None = None
        self._may_go_anywhere = view.costs.resident == "one" and not view.wide_waiting
        self._spare: list[int] | None = None
        self._empty: frozenset[int] | None = None
        self._nowhere: list[Queue] = []  # whose model is loaded nowhere, and would have room there
        self._nowhere_loss: dict[tuple[str, int], float] = {}
        self._next_s: float | None = None  # until a busy GPU should be free
        self._states: dict[str, ModelState] = {}

    def _is_any_warm(self) -> bool:
        """Whether anybody who waits finds its model loaded on a free GPU."""
        view = self._view
        queues, held = view.queues, view.residents.held
        return any(free and not queues.keys().isdisjoint(held[gpu]) for gpu, free in enumerate(view.free))

    # --- between queues ---------------------------------------------------------------------------

    def surcharge(self, queue: Queue, backlog_s: float, setup_s: float) -> float:
        """How much older the head of a cold queue must be, for a set-up of so many seconds (with the way back).

        Lots as large as their set-ups are worth (the square root), but never more than the backlog when the head became
        ready and ten set-ups: constants of the node, so that it is not passed for ever. Who has waited for that long,
        and is not late, need be less and less older; where wide ones wait, their reservations come before that.
        """
        if not setup_s:
            return 0.0
        setup_s *= queue.width
        lot = self._lot if queue.model not in self._demand.room_of else self._lot_of(queue.model)
        lot_s, cap_s = lot * sqrt(setup_s / queue.count), backlog_s + CAP * setup_s
        waited_s = self._view.now - queue.head.ready_s
        if waited_s > cap_s and not self._view.wide_waiting and not queue.head.rank.late:
            cap_s = max(0.0, _AGED * cap_s - waited_s)
        return lot_s if lot_s < cap_s else cap_s

    def is_paid(self, queue: Queue, backlog_s: float, setup_s: float, window: Window) -> bool:
        """Whether the queue has lost as much, since the window last got another model, as the switch costs all who
        wait: lots in the order of ranks may be far smaller, where the next stage of a chain has a much lower rank.

        A head that has waited for the backlog when it became ready and ten set-ups is not asked.
        """
        view = self._view
        setup_s *= queue.width
        if not setup_s or view.now - queue.head.ready_s >= backlog_s + CAP * setup_s:
            return True
        waited_s = view.now - queue.ready_s / queue.count
        lost_s = queue.count * min(waited_s, self._demand.stay_s(window, view.now))
        return lost_s >= _PAID * setup_s * view.ready_count / view.size

    def _may_be_paid(self, queue: Queue, backlog_s: float, least_s: float) -> bool:
        """The same for the cheapest set-up that there is and the window that has held its model longest."""
        view = self._view
        if view.now - queue.head.ready_s >= backlog_s + CAP * least_s:
            return True
        return queue.count * view.now - queue.ready_s >= _PAID * least_s * view.ready_count / view.size - _ROUNDING

    def is_beaten(self, queue: Queue, backlog_s: float, by_s: float, paid: bool) -> bool:
        """Whether its surcharge is sure to be at least so much, and its switch not paid for if the best one's is not
        either; seen before any window is priced."""
        view, model = self._view, queue.model
        if view.residents.holders.get(model):
            return False
        least_s = self._demand.least_setup_s[model]
        if not paid and self._may_be_paid(queue, backlog_s, least_s * queue.width):
            return False
        if self.surcharge(queue, backlog_s, least_s) >= by_s:
            return True
        if self._few is None:
            self._few = self._free_kinds()
        if not self._few or queue.width > 1:
            return False
        setups = [view.residents.price(gpu, model) + self._return_s(model, other) for gpu, other in self._few]
        return self.surcharge(queue, backlog_s, min(setups)) >= by_s

    def _return_s(self, model: str, other: str) -> float:
        """GPU-seconds that it takes to load an evicted model again, if nodes wait for it."""
        view = self._view
        return view.residents.reload_s(model, other) * view.models[other].width if other in view.queues else 0.0

    def _free_kinds(self) -> list[tuple[int, str]]:
        """One free GPU for each model that free GPUs hold, if those are few, alike and none is empty; else nothing."""
        view, kinds = self._view, dict[str, int]()
        if not view.alike or view.free_count > _FEW:
            return []
        for gpu, free in enumerate(view.free):
            if free:
                if not (held := view.residents.held[gpu]):
                    return []
                kinds.setdefault(next(iter(held)), gpu)
        return [(gpu, model) for model, gpu in kinds.items()]

    def _lot_of(self, model: str) -> float:
        """For a model that does not fit everywhere: in its room."""
        view, room = self._view, self._demand.room_of[model]
        backlog_s = max(0.0, sum(view.demand[m] for m in room.models)) / room.speed
        ready = sum(view.queues[m].count for m in room.models if m in view.queues)
        return max(self._lot, _lot(backlog_s, ready, len(room.gpus)))

    # --- where ------------------------------------------------------------------------------------

    def option(self, queue: Queue, node: ReadyNode) -> WindowOption | None:
        """The free window of least loss, or None if the queue had better wait."""
        view, free = self._view, self._view.free
        warm = view.warm_windows(queue.model)
        if view.shares:
            ready = [w for w in warm if view.can_start(w, queue.model) and _gets_more_done(w, view)]
        elif queue.width == 1:
            ready = [w for w in warm if free[w[0]]]
        else:
            ready = [w for w in warm if all(free[gpu] for gpu in w)]
        if self._kept:
            ready = [w for w in ready if self._may_use(node, w)]
        if ready and view.level and not self._demand.rooms:
            return WindowOption(0.0, min(ready), 0.0, 0.0, 0.0)
        options = [self.price(queue, node, w, bool(ready)) for w in self._candidates(queue, node)]
        if not options:
            return None
        best = min(options)
        is_load = best.setup_s or self._is_cold(queue.model, best.window)
        if is_load and warm and not ready and not self._is_worth_a_copy(queue, warm, best):
            return None
        return None if not view.level and self._is_faster_soon(queue, node, best, len(warm)) else best

    def _may_use(self, node: ReadyNode, window: Window) -> bool:
        """Whether a reservation allows it: nodes that end in time may backfill."""
        if not set(self._kept).intersection(window):
            return True
        view = self._view
        return view.now + view.setup_s(window, node.model) + view.run_s(node, window) <= self._kept_s

    def _candidates(self, queue: Queue, node: ReadyNode) -> list[Window]:
        """Free windows, one of each kind: those with the same models cost the same if GPUs are alike."""
        view = self._view
        windows = view.free_windows(queue.model)
        if view.shares:
            windows = [w for w in windows if _gets_more_done(w, view)]
        if self._kept:
            windows = [w for w in windows if self._may_use(node, w)]
        if len(windows) < 2 or not view.alike:
            return windows
        held = view.residents.held
        kinds: dict[Hashable, Window] = {}
        for window in windows:
            kind: list[Hashable] = [next(iter(held[gpu]), None) for gpu in window]
            if view.shares and window in view.shared:
                kind.append(view.shared[window].count)
            kinds.setdefault(tuple(kind), window)
        return list(kinds.values())

    def price(self, queue: Queue, node: ReadyNode, window: Window, warm: bool) -> WindowOption:
        """What starting here costs everybody; `warm`: another free window holds the model, so only the head waits."""
        view, model = self._view, queue.model
        setup_s, run_s = view.setup_s(window, model), view.run_s(node, window)
        crowd = self._crowd_loss(model, window, setup_s + run_s) if self._demand.rooms else 0.0
        if not setup_s and not self._is_cold(model, window):
            return WindowOption(run_s + crowd, window, 0.0, 0.0, 0.0)
        loss = return_s = 0.0
        away_s = setup_s + queue.gpu_s / queue.width / self._speed(model, window)
        broken = self._broken(window, model)
        for other, windows in broken.items():
            back_s = view.residents.reload_s(model, other)
            return_s += self._return_s(model, other) / queue.width
            loss += self._loss(other, windows, away_s + back_s, back_s, window)
        if not broken and view.residents.holders.get(model):
            loss = self._empty_loss(model, window, away_s)
        waiting = 1 if warm else queue.count
        return WindowOption(waiting * setup_s + run_s + loss + crowd, window, setup_s, loss, return_s)

    def _is_cold(self, model: str, window: Window) -> bool:
        """Whether it must be loaded there, be it in no time."""
        held = self._view.residents.held
        return any(model not in held[gpu] for gpu in window)

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
        state = self._states.get(other) or self._state(other)
        kept = state.windows - sum([self._speed(other, w) for w in broken])
        loss = away_loss(*state, kept, away_s)
        if loss and kept <= state.needed and self._has_room_elsewhere(other, window):
            loss = min(loss, elsewhere_loss(*state, back_s, max(_MEMORY_S, away_s)))
        if loss and back_s <= _CHEAP * state.size_s and self._may_go_anywhere:
            turn_s = min(away_s, self._turn_s(state) + back_s)
            loss = min(loss, (state.waiting + state.per_s * turn_s / 2) * turn_s)
        return loss

    def _turn_s(self, state: ModelState) -> float:
        """How long a model waits for any GPU that is free next, behind all others who wait, were they as long."""
        view = self._view
        if self._next_s is None:
            next_s = view.next_free_s()
            self._next_s = max(0.0, next_s - view.now) if next_s < inf else 0.0
        return self._next_s + (view.ready_count - state.waiting) * state.size_s / view.size

    def _state(self, model: str) -> ModelState:
        view, rate = self._view, self._demand.rates.get(model)
        windows = self._speeds(model, view.warm_windows(model))
        waiting = view.queues[model].count if model in view.queues else 0
        if rate is None:  # loaded before anybody asked for it
            state = ModelState(waiting, 0.0, 0.0, 0.0, windows)
        else:
            needed = self._demand.needed(model, view.now)
            room = self._demand.room_of.get(model)
            if room is not None:  # its queue drains only as fast as its room has time
                needed = max(needed, windows - self._demand.room_slack(room, view))
            state = ModelState(waiting, rate.per_s(view.now), rate.size_s, needed, windows)
        self._states[model] = state
        return state

    def _speeds(self, model: str, windows: list[Window]) -> float:
        """Of all of these together."""
        return float(len(windows)) if self._view.even else sum([self._speed(model, w) for w in windows])

    def _speed(self, model: str, window: Window) -> float:
        """How much a window gets done, with all of its slots."""
        view = self._view
        return 1.0 if view.even else view.speed(model, window) * view.gain(model, window)

    def _has_room_elsewhere(self, model: str, window: Window) -> bool:
        """Whether the model could be loaded on GPUs that are empty, or hold one copy more than is needed."""
        view = self._view
        if self._spare is None:
            self._spare = [gpu for gpu, held in enumerate(view.residents.held) if not held and gpu not in view.off]
            self._spare += self._spare_copies()
        if view.models[model].width == 1 and not view.limited:
            return any(gpu not in window for gpu in self._spare)
        spare = set(self._spare).difference(window)
        return any(spare.issuperset(w) for w in view.roomy_windows(model))

    def _spare_copies(self) -> Iterator[int]:
        view = self._view
        for gpu, held in enumerate(view.residents.held):
            for model in held:
                if view.models[model].width == 1 and model not in view.queues:
                    state = self._states.get(model) or self._state(model)
                    if state.windows - self._speed(model, (gpu,)) > state.needed:
                        yield gpu

    def _empty_loss(self, model: str, window: Window, away_s: float) -> float:
        """What those lose for whom no empty GPU is left: models that nobody has seen yet, and those that nodes wait for
        and that are loaded nowhere, where a load onto an empty GPU is cheaper than a switch."""
        view = self._view
        if self._empty is None:
            self._empty = frozenset(g for g, held in enumerate(view.residents.held) if not held and g not in view.off)
            self._nowhere = [queue for queue in view.queues.values() if self._would_load(queue.model, self._empty)]
        strangers, left = self._demand.strangers(view.now, away_s), len(self._empty) - len(window)
        key = model, left
        if key not in self._nowhere_loss:
            self._nowhere_loss[key] = self._loss_of_waiting(model, left)
        return max(0.0, strangers - max(0, left)) * away_s / 2 + self._nowhere_loss[key]

    def _would_load(self, model: str, empty: frozenset[int]) -> bool:
        """Whether a model that is loaded nowhere has room on empty GPUs."""
        view = self._view
        if view.residents.holders.get(model):
            return False
        return any(empty.issuperset(window) for window in view.roomy_windows(model))

    def _loss_of_waiting(self, model: str, left: int) -> float:
        """What those lose who wait for a model that is loaded nowhere, if so many GPUs are left empty for them."""
        loss = 0.0
        for queue in self._nowhere:
            left -= queue.width
            if left < 0:
                dearer_s = self._view.residents.reload_s(model, queue.model) - self._demand.least_setup_s[queue.model]
                loss += queue.count * max(0.0, dearer_s)
        return loss

    def _crowd_loss(self, model: str, window: Window, busy_s: float) -> float:
        """What those lose who can run only here."""
        view, rates = self._view, self._demand.rates
        here = {m for room in self._demand.rooms if room.gpus.intersection(window) for m in room.models}
        own = self._demand.room_of.get(model)
        others = here.difference(own.models if own else (model,))
        return sum(rates[m].per_s(view.now) for m in sorted(others) if m in rates) * busy_s**2 / 2

    # --- or wait ----------------------------------------------------------------------------------

    def _is_worth_a_copy(self, queue: Queue, warm: list[Window], best: WindowOption) -> bool:
        """Whether a second copy saves more than it costs, doubt counted against it: what is evicted, and all others who
        wait while it is loaded.

        Where it evicts nothing of use, those who will come count as well as those who wait; the load may take longer
        than the queue elsewhere.
        """
        view, rate = self._view, self._demand.rates[queue.model]
        windows, speed = self._speeds(queue.model, warm), self._speed(queue.model, best.window)
        needed = rate.windows(view.now)
        if best.loss:
            needed *= max(0.0, 1 - rate.doubt)
        free_s = min([view.free_at(w) for w in warm]) - view.now
        size_s = queue.gpu_s / queue.width / queue.count
        gain = copy_gain(queue.count, size_s, needed, windows, free_s, best.setup_s, speed)
        if not best.loss:
            per_s = rate.per_s(view.now)
            used_s = max(_MEMORY_S, _USED * best.setup_s)
            gain += away_loss(0, per_s, rate.size_s, needed, windows + speed, windows, used_s)
        narrow = not view.wide_waiting and not self._demand.deadlines  # wide ones wait for several GPUs
        others = view.ready_count - queue.count if narrow else 0
        return gain > best.loss + best.setup_s * queue.width * others / view.size

    def _is_faster_soon(self, queue: Queue, node: ReadyNode, best: WindowOption, warm: int) -> bool:
        """Whether a busy window is fast enough to wait for, counting what taking it costs the others."""
        view = self._view
        if view.free_count == view.size:
            return False
        here_s = best.setup_s + view.run_s(node, best.window)
        others = 1 + (view.ready_count - 1) / max(warm, 1)
        for window in view.roomy_windows(queue.model):
            run_s = view.run_s(node, window)
            if run_s >= here_s or (view.shares and window in view.shared):
                continue
            wait_s = view.free_at(window) - view.now
            if wait_s > 0 and wait_s + view.setup_s(window, queue.model) + run_s * others < here_s:
                return True
        return False


def _gets_more_done(window: Window, view: View) -> bool:
    """Whether one more node on a window that others use makes it get more done in all: else everybody but the one who
    joins only waits longer."""
    beside = view.shared.get(window)
    if beside is None:
        return True
    before, after = beside.count * beside.shares[beside.count - 1], (beside.count + 1) * beside.shares[beside.count]
    return after > before * (1 + 1e-9)


def _lot(backlog_s: float, ready: int, gpus: int) -> float:
    """Switching every B seconds loses set-up / B of the backlog and makes others wait B: least at a square root."""
    return _LOT * sqrt(2 * backlog_s * ready / gpus)
