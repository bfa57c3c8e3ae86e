"""What a policy of this level sees: what is ready, and the GPUs with what is on them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from dovetail.core.rates import PREFILL, RateTable
from dovetail.core.resources import Pool
from dovetail.workflow.gpus.learning import Learning
from dovetail.workflow.gpus.prefixes import PrefixCaches, saved_s
from dovetail.workflow.gpus.preloads import PreloadUnderWay
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.gpus.sharing import SharedWindow
from dovetail.workflow.inputs.costs import CostRules, ModelCost, room_mib, window_shares
from dovetail.workflow.policies.ready import OpenRequest, Queue, ReadyNode, Window, tokens_of_node


class SharedSlots(SharedWindow):
    """A window with slots of which some are taken: by which model, and how much work it is expected to have done when
    the last of its nodes ends."""

    __slots__ = ("_last_s", "emptied", "model")

    def __init__(self, model: str, shares: Sequence[float], ready_s: float) -> None:
        super().__init__(shares, ready_s)
        self.model = model
        self.emptied = False  # the model has been lost: nobody joins
        self._last_s = 0.0

    def add(self, now: float, run_s: float) -> None:
        """A node joins, whose run is expected to take so long beside the others."""
        self._last_s = max(self._last_s, self.join(now) + run_s * self.shares[self.count - 1])

    def until(self) -> float:
        """When the window is expected to be free, if nobody joins."""
        return max(self.at_s, self.when(self._last_s))


class View:
    """The state that a policy decides on, at one instant.

    `queues` holds one non-empty queue per model; `requests` holds the requests under way; `demand` is the GPU-seconds
    per model of arrived requests that have not started, ready or not; `forecast` the GPU-seconds per model of the
    whole input, where that is known.
    """

    def __init__(
        self,
        pool: Pool,
        models: Mapping[str, ModelCost],
        costs: CostRules,
        rates: RateTable | None = None,
        forecast: Mapping[str, float] | None = None,
    ) -> None:
        self.off: dict[
            int, float
        ] = {}  # GPUs that have gone or go when what they run has ended, and when they are back
        self._gone: set[int] = set()
        self.models = models
        self.costs = costs
        self.shares = any(model.slots for model in models.values())  # whether nodes may share windows
        self.forecast = dict(forecast or {})
        rates = RateTable() if rates is None else rates
        self.residents = Residents(pool, models, costs, rates)
        self.learning: Learning | None = None  # of a live run
        self.now = 0.0
        self.queues: dict[str, Queue] = {}
        self.ready_count = 0  # nodes in all queues
        self.wide_waiting = 0  # queues of models that span several GPUs
        self.requests: dict[str, OpenRequest] = {}  # requests under way, in order of arrival
        self.demand: dict[str, float] = dict.fromkeys(models, 0.0)
        self.free = [True] * len(pool)
        self.free_count = len(pool)
        self.idle_since = [0.0] * len(pool)
        self.executions = [0] * len(pool)
        self.until = [0.0] * len(pool)  # when a busy GPU is expected to be free
        cached = any(model.prefix is not None for model in models.values())
        self.prefixes = PrefixCaches(models, self.residents.held) if cached else None
        self.shared: dict[Window, SharedSlots] = {}  # windows with slots, while any is taken
        self.preparing: dict[Window, PreloadUnderWay] = {}  # windows that get a model before a node needs it
        self.running: dict[tuple[str, str], tuple[ReadyNode, Window]] = {}  # by request and node
        self._with_slots = 0  # GPUs of those that have one left, or get a model
        self._known_shares: dict[tuple[str, ...], list[float]] = {}
        self._free_mask = (1 << len(pool)) - 1  # bit i: GPU i is free
        self._masks: dict[tuple[int | str, bool], list[tuple[Window, int]]] = {}
        self._windows: dict[tuple[int | str, bool], list[Window]] = {}
        self._roomy: dict[tuple[str, bool], frozenset[Window]] = {}
        self._heads: list[tuple[Any, int, Queue]] = []
        self._head_of: dict[str, tuple[Any, int, Queue]] = {}
        self._changed: dict[str, None] = {}  # models whose queue may have another head than in `_heads`
        self._containing: dict[int | str, dict[int, list[Window]]] = {}
        self._know(pool, rates)

    def _know(self, pool: Pool, rates: RateTable) -> None:
        """What follows from the pool and its rates."""
        self.pool, self.rates, costs = pool, rates, self.costs
        self.size = len(pool) - len(self.off)  # those that are off do not count
        self._types, self._speeds = [d.type for d in pool.devices], pool.speeds
        self.total_speed = self._speed_there()
        self.fastest = max([*self._speeds, *[rate.rate for rate in rates.rates.values()]])
        self._reads_apart = any(rate.unit == PREFILL for rate in rates.rates.values())
        plain = self.prefixes is None and not self.shares
        self.even = plain and not rates.rates and set(self._speeds) == {1.0}
        self._one_speed: dict[str, float] = {}  # of models, where it is the same on all windows
        # whether no window is faster for a model than another: in a live run rates are learned, of one type too
        self.level = self.even or (self.learning is not None and plain and len({*self._types}) == 1)
        # whether two GPUs that hold the same model are as good as each other, but for how long they have been idle
        self.alike = len({*self._types}) == 1 and costs.resident == "one" and not costs.dram_gb
        adapters = any(model.adapter_of for model in self.models.values())
        self.alike = self.alike and (costs.adapter_slots == 1 or not adapters) and self.prefixes is None
        self.limited = any(m is not None for m in pool.memories)

    def _speed_there(self) -> float:
        """Of all GPUs that are there; of the fastest one while there is none, so that what waits has a length."""
        there = [speed for gpu, speed in enumerate(self._speeds) if gpu not in self.off]
        return sum(there) if there else max(self._speeds)

    # --- what a policy may ask --------------------------------------------------------------------

    def free_windows(self, model: str, aligned: bool = True) -> list[Window]:
        """The windows of GPUs that are free now and have room for the model, those with a free slot of it, and those
        that get it ahead of need."""
        key = (model if self.limited or self.shares or self.preparing else self.models[model].width, aligned)
        found = self._windows.get(key)
        if found is None:
            masks = self._masks.get(key)
            if masks is None:
                windows = sorted(self.roomy_windows(model, aligned))
                masks = self._masks[key] = [(w, sum(1 << gpu for gpu in w)) for w in windows]
            free = self._free_mask
            found = [w for w, mask in masks if mask & free == mask]
            if self.shares and self.models[model].slots:
                found = sorted({*found, *[window for window in self.shared if self._has_slot(window, model)]})
            if self.preparing:
                found = sorted({*found, *[window for window in self.preparing if self._gets(window, model)]})
            self._windows[key] = found
        return found

    def can_start(self, window: Window, model: str) -> bool:
        """Whether a node of the model can start there now: the window is free, has a free slot, or gets the model."""
        if all(self.free[gpu] for gpu in window):
            return True
        return (self.shares and self._has_slot(window, model)) or self._gets(window, model)

    def preloadable(self, model: str) -> list[Window]:
        """The free windows that have room for the model, and do not hold it."""
        held = self.residents.held
        return [
            window
            for window in self.free_windows(model)
            if all(self.free[gpu] for gpu in window) and any(model not in held[gpu] for gpu in window)
        ]

    def _gets(self, window: Window, model: str) -> bool:
        """Whether the model is being loaded there ahead of need, and not lost again."""
        load = self.preparing.get(window)
        if load is None or load.model != model or not self.off.keys().isdisjoint(window):
            return False
        return all(model in self.residents.held[gpu] for gpu in window)

    def _has_slot(self, window: Window, model: str) -> bool:
        sharing = self.shared.get(window)
        if sharing is None or sharing.model != model or sharing.count == len(sharing.shares) or sharing.emptied:
            return False
        return not self.off or self.off.keys().isdisjoint(window)

    def roomy_windows(self, model: str, aligned: bool = True) -> frozenset[Window]:
        """The windows, free or not, whose GPUs are there and have the memory that the model needs; if no aligned one
        has, any."""
        key = (model, aligned)
        if key not in self._roomy:
            memories, shard = self.pool.memories, room_mib(self.models, model)
            self._roomy[key] = frozenset(
                w
                for w in self.pool.windows(self.models[model].width, aligned)
                if all((m := memories[gpu]) is None or m >= shard for gpu in w) and self.off.keys().isdisjoint(w)
            )
            if aligned and not self._roomy[key]:
                self._roomy[key] = self.roomy_windows(model, aligned=False)
        return self._roomy[key]

    def warm_windows(self, model: str) -> list[Window]:
        """The windows, free or not, that hold the model on all of their GPUs."""
        holders = self.residents.holders.get(model)
        if not holders:
            return []
        key = model if self.limited else self.models[model].width
        containing = self._containing.get(key)
        if containing is None:
            containing = self._containing[key] = {}
            for window in sorted(self.roomy_windows(model)):
                for gpu in window:
                    containing.setdefault(gpu, []).append(window)
        if self.models[model].width == 1:
            return [containing[gpu][0] for gpu in holders if gpu in containing]
        found = {w for gpu in holders for w in containing.get(gpu, ()) if all(other in holders for other in w)}
        return sorted(found)

    def heads(self) -> list[tuple[Any, int, Queue]]:
        """Rank and number of every queue's head, and the queue: the smallest rank first."""
        for model in self._changed:
            queue, known = self.queues.get(model), self._head_of.pop(model, None)
            if known is not None:
                del self._heads[bisect_left(self._heads, known[:2], key=_by_rank)]
            if queue is not None:
                head = queue.head
                entry = self._head_of[model] = (head.rank, head.seq, queue)
                insort(self._heads, entry, key=_by_rank)
        self._changed.clear()
        return self._heads

    def move(self, node: ReadyNode, rank: Any) -> None:
        """Give a ready node another rank: a policy's order may change while nodes wait."""
        self.queues[node.model].move(node, rank)
        self._changed[node.model] = None

    def setup_s(self, window: Window, model: str) -> float:
        """Seconds until the model is resident on a window; 0 where it is warm."""
        if self.shares and self._has_slot(window, model):
            if self.learning is not None:
                return self.learning.loading_s(window, self.now)
            return max(0.0, self.shared[window].ready_s - self.now)
        if self.preparing and self._gets(window, model):
            return self.preparing[window].left_s(self.now, self.learning is not None)
        return self.residents.setup(window, model)

    def run_s(self, node: ReadyNode, window: Window) -> float:
        """Seconds that the node takes on a window: the slowest of its GPUs sets the pace, and those who share it."""
        if self.even or not window:
            return node.size
        speed = self.speed(node.model, window)
        saved_s = self._saved_s(node, window) if self.prefixes is not None else 0.0
        if not self._reads_apart or not node.request.facts or not (read_s := self._read_s(node)):
            alone_s = (node.size - saved_s) / speed
        else:
            alone_s = (read_s - saved_s) / self._reading_speed(node.model, window) + (node.size - read_s) / speed
        return alone_s / self.share(node.model, window) if self.shares else alone_s

    def cached_blocks(self, node: ReadyNode, window: Window) -> int:
        """How many blocks of the node's prefix, from the first on, a window has cached."""
        if self.prefixes is None or not window or not node.prefix:
            return 0
        return self.prefixes.cached(node.model, node.prefix, window)

    def hit_share(self, node: ReadyNode, window: Window) -> float:
        """The share of the node's prefix that a window has cached; 0 if it has none."""
        cached = self.cached_blocks(node, window)
        return cached / len(node.prefix) if cached else 0.0

    def share(self, model: str, window: Window) -> float:
        """How fast a node would be on a window beside those who share it now; 1 alone."""
        return self.shares_of(model, window)[self.shared[window].count] if self._has_slot(window, model) else 1.0

    def shares_of(self, model: str, window: Window) -> Sequence[float]:
        """How fast each is of 1, 2, ... nodes that share a window, one alone 1: as measured there, else by the model's
        curve."""
        types, width, cost = {self._types[gpu] for gpu in window}, len(window), self.models[model]
        key = (model, *sorted(types))
        if key not in self._known_shares:
            self._known_shares[key] = window_shares(
                cost, [self.rates.at_once(model, name, width=width) for name in types]
            )
        return self._known_shares[key]

    def gain(self, model: str, window: Window) -> float:
        """How much more than one at a time a window gets done if its slots are well used; 1 without slots."""
        if not self.shares:
            return 1.0
        shares = self.shares_of(model, window)
        return max([n * share for n, share in enumerate(shares, start=1)], default=1.0)

    def first_s(self, node: ReadyNode, window: Window, slower: float = 1.0) -> float | None:
        """Seconds of the node's run until its first token, which it writes when it has read; None if it is not known to
        write any. `slower`: by so much, in a batch."""
        if not tokens_of_node(node)[1]:
            return None
        read_s = self._read_s(node)
        if self.prefixes is not None and window and read_s:
            read_s -= self._saved_s(node, window)
        read_s *= slower
        if self.shares and window:
            read_s /= self.share(node.model, window)
        return read_s / self._reading_speed(node.model, window) if window else read_s

    def speed(self, model: str, window: Window) -> float:
        if not self.level:
            return self._speed_on(model, window)
        if (known := self._one_speed.get(model)) is None:
            known = self._one_speed[model] = self._speed_on(model, window)
        return known

    def _speed_on(self, model: str, window: Window) -> float:
        rates, types, speeds = self.rates, self._types, self._speeds
        return min(rates.rate(model, types[gpu], len(window)) or speeds[gpu] for gpu in window)

    def _read_s(self, node: ReadyNode) -> float:
        """Seconds at speed 1 that a node reads tokens."""
        return tokens_of_node(node)[0] * self.models[node.model].prefill_s

    def _saved_s(self, node: ReadyNode, window: Window) -> float:
        """Seconds at speed 1 that a node need not read on a window."""
        if not (cached := self.cached_blocks(node, window)):
            return 0.0
        return saved_s(self.models[node.model], node.size, tokens_of_node(node)[0], len(node.prefix), cached)

    def _reading_speed(self, model: str, window: Window) -> float:
        rates, speeds, width = self.rates, self._speeds, len(window)
        types = [(gpu, self._types[gpu]) for gpu in window]
        return min(rates.per_s(model, t, PREFILL, width) or rates.rate(model, t, width) or speeds[g] for g, t in types)

    def free_at(self, window: Window) -> float:
        """When a window is expected to be free."""
        return max([self.now, *[self.until[gpu] for gpu in window if not self.free[gpu]]])

    def ready_at(self, window: Window, model: str) -> float:
        """When a node of the model is expected to begin to run there: window or slot are free, the model is loaded."""
        free_s = self.now if self.can_start(window, model) else self.free_at(window)
        return free_s + self.setup_s(window, model)

    # --- what only the scheduler does -------------------------------------------------------------

    def remember(self, nodes: Iterable[ReadyNode], window: Window) -> None:
        """Nodes have started on a window, which keeps their prefixes from now on."""
        if self.prefixes is not None:
            for node in nodes:
                self.prefixes.use(node.model, node.prefix, window)

    def join(self, node: ReadyNode, window: Window, setup_s: float, run_s: float) -> None:
        """A node takes a slot of a window, which others may share."""
        sharing = self.shared.get(window)
        if sharing is None:
            self.occupy(window, node.model, 0.0)
            shares = self.shares_of(node.model, window)
            sharing = self.shared[window] = SharedSlots(node.model, shares, self.now + setup_s)
        else:
            self.residents.load(window, node.model)
            for gpu in window:
                self.executions[gpu] += 1
        sharing.add(self.now, run_s)
        self._slots_changed(window)

    def leave(self, window: Window) -> None:
        """A slot of a window is free again, or all of it."""
        self.shared[window].leave(self.now)
        if not self.shared[window].count:
            del self.shared[window]
            self.release(window)
        self._slots_changed(window)

    def _slots_changed(self, window: Window = ()) -> None:
        sharing = self.shared.get(window)
        if sharing is not None:
            for gpu in window:
                self.until[gpu] = sharing.until()
        with_slots = sum([len(w) for w, shared in self.shared.items() if self._has_slot(w, shared.model)])
        with_slots += sum([len(w) for w, load in self.preparing.items() if self._gets(w, load.model)])
        self.free_count += with_slots - self._with_slots
        self._with_slots = with_slots
        self._windows.clear()

    def prepare(self, load: PreloadUnderWay) -> None:
        """A free window gets a model ahead of need."""
        self._take(load.window, load.model, load.ready_s)
        self.preparing[load.window] = load
        self._slots_changed()

    def prepared(self, window: Window) -> None:
        """It has it, or a node goes on with that."""
        del self.preparing[window]
        self._slots_changed()
        self.release(window)

    def occupy(self, window: Window, model: str, until: float) -> None:
        self._take(window, model, until)
        for gpu in window:
            self.executions[gpu] += 1

    def _take(self, window: Window, model: str, until: float) -> None:
        self.residents.load(window, model)
        for gpu in window:
            self.free[gpu] = False
            self._free_mask &= ~(1 << gpu)
            self.until[gpu] = until
        self.free_count -= len(window)
        self._windows.clear()

    def release(self, window: Window) -> None:
        if self.off:
            window = self._let_go(window)
        for gpu in window:
            self.free[gpu] = True
            self._free_mask |= 1 << gpu
            self.idle_since[gpu] = self.now
        self.free_count += len(window)
        self._windows.clear()

    def _let_go(self, window: Window) -> Window:
        """Nothing runs on these GPUs any more: those that are off go; gives those that stay."""
        for gpu in window:
            if gpu in self.off:
                self._gone.add(gpu)
                self.residents.clear(gpu)
                self.until[gpu] = self.off[gpu]
        return tuple(gpu for gpu in window if gpu not in self.off)

    def resize(self, opened: Sequence[int], closed: Mapping[int, float]) -> None:
        """GPUs come, empty unless something ran on them all the while; others go, when nothing runs on them."""
        for gpu in opened:
            del self.off[gpu]
        self.release(tuple(gpu for gpu in opened if gpu in self._gone))
        self._gone.difference_update(opened)
        idle = tuple(gpu for gpu in closed if self.free[gpu])
        for gpu in idle:
            self.free[gpu] = False
            self._free_mask &= ~(1 << gpu)
        self.free_count -= len(idle)
        self.off.update(closed)
        self._let_go(idle)
        self.size = len(self.pool) - len(self.off)
        self.total_speed = self._speed_there()
        self._forget_windows()

    def extend(self, pool: Pool) -> None:
        """GPUs have joined: they are free, and hold nothing."""
        first, added = len(self.pool), len(pool) - len(self.pool)
        self.free += [False] * added
        self.idle_since += [0.0] * added
        self.executions += [0] * added
        self.until += [0.0] * added
        self.residents.extend(pool)
        self._know(pool, self.rates)
        if self.learning is not None:
            self.learning.extend(pool)
        self.release(tuple(range(first, len(pool))))
        self._forget_windows()

    def learn_by(self, learning: Learning) -> None:
        """It is a live run: rates are those of `learning.table` from now on, which is this view's own."""
        self.learning = learning
        self._know(self.pool, self.rates)

    def learned(self, model: str) -> None:
        """The model is faster or slower than was known, or its loads are."""
        self.residents.learned(model)
        for key in [key for key in self._known_shares if key[0] == model]:
            del self._known_shares[key]
        self._know(self.pool, self.rates)

    def settled(self, window: Window, run_s: float) -> None:
        """A load is over, sooner or later than was expected: the run begins now."""
        if (sharing := self.shared.get(window)) is not None:
            sharing.ready_s = sharing.at_s = self.now
            self._slots_changed(window)
        for gpu in window if sharing is None else ():
            self.until[gpu] = self.now + run_s

    def look_again(self) -> None:
        """What should have ended by now goes on: nobody may count on it to be over."""
        assert self.learning is not None
        now, ahead = self.now, {gpu: load for window, load in self.preparing.items() for gpu in window}
        for gpu, until in enumerate(self.until):
            if until <= now and not self.free[gpu] and gpu not in self.off:
                late_s = ahead[gpu].left_s(now, live=True) if gpu in ahead else self.learning.overrun_s(gpu, now)
                self.until[gpu] = now + late_s

    def next_free_s(self) -> float:
        """When the first of the busy GPUs should be free."""
        busy = [until for gpu, until in enumerate(self.until) if not self.free[gpu] and gpu not in self.off]
        return min(busy, default=inf)

    def empty(self, gpus: Collection[int]) -> None:
        """GPUs have lost what they held. What runs there is not told to have ended yet, but nobody joins it."""
        for gpu in gpus:
            self.residents.clear(gpu)
        for window, sharing in self.shared.items():
            sharing.emptied = sharing.emptied or not set(window).isdisjoint(gpus)
        self._slots_changed()

    def _forget_windows(self) -> None:
        for known in (self._masks, self._windows, self._roomy, self._containing):
            known.clear()
        self._slots_changed()

    def enqueue(self, node: ReadyNode) -> None:
        queue = self.queues.get(node.model)
        if queue is None:
            queue = self.queues[node.model] = Queue(node.model, node.width)
            self.wide_waiting += node.width > 1
        queue.push(node)
        self.ready_count += 1
        self._changed[node.model] = None
        node.sibling, node.request.queued = node.request.queued, node

    def dequeue(self, node: ReadyNode) -> None:
        queue = self.queues[node.model]
        queue.remove(node)
        self.ready_count -= 1
        self._changed[node.model] = None
        if node.request.queued is node:
            node.request.queued = node.sibling
        if not queue.count:
            del self.queues[node.model]
            self.wide_waiting -= node.width > 1


def _by_rank(entry: tuple[Any, ...]) -> tuple[Any, int]:
    return entry[0], entry[1]
