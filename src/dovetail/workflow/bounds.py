"""Certified lower bounds: what no schedule of these requests on this pool can beat.

The problem: rigid nodes that hold a window of GPUs, in the order of their graph, after their arrival, with a setup
wherever a model is not resident. All bounds rest on *measures*. A measure gives every width `g` a weight `w(g)` such
that, whatever windows are held at one instant, the sum of `w(g) * (slowest speed in the window)` is at most 1. A node
of size `s` runs for `s / speed` seconds, so it fills `w(g) * s` of the seconds that the pool has. With the speeds
sorted, `v(1)` the fastest of `G`:

- blocks of `b` GPUs, `w(g) = (g // b) / (v(b) + v(2b) + ... )`: a window of width `g` contains `g // b` disjoint blocks
  at least as fast as itself, and the j-th fastest of disjoint blocks is no faster than `v(jb)`. `b = 1` is the area:
  GPU-seconds over the sum of the speeds. (Adding up `1 / (G // g)` over unlike widths is no measure: widths 3 and 5
  run side by side on 8 GPUs, yet would fill 1/2 + 1.)
- for `k <= G / 2`, `w(g) = 1 / v(g)` if `g > G - k`, 0 if `g < k`, else `g / sum(v)`: beside a window wider than
  `G - k` only widths below `k` find room; without one it is the area.

A setup holds its window as a run does, and each model used is set up at least once.

Loads on the critical path: a model becomes resident only when a node of it starts. A node that finds its model on its
first GPU finds it there because another node of that model was set up there before. So no node of a model runs before
`R + setup`, where `R` is the earliest instant at which any node of it, of whatever request, can be ready. On an empty
GPU that setup is a load; on another GPU a node of another model has run before, and none can before `T`, the earliest
end of any load onto an empty GPU (the first start of a run has only such): it is `min(R + load, max(R, T) + switch)`.
`R` follows from the nodes before, and so from other models' loads: from the first arrival on it is raised until nothing
changes, and each step of that is a bound. An adapter's base is loaded by nodes of all its adapters, and before them.
A model that was loaded ahead of need may have been from the first arrival on.

The figures hold for the sizes given: noise that shortens nodes, or rates above the pool's speeds, void them. They are
exact up to floating-point rounding; compare with a relative tolerance.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import compress
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.events import Arrived, Complete, Failed, Finished, Grew, Prepare, Reject, Start
from dovetail.core.rates import RateTable
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.gpus.prefixes import PossibleSavings
from dovetail.workflow.gpus.residents import least_setups
from dovetail.workflow.inputs.costs import CostRules, ModelCost, window_shares
from dovetail.workflow.inputs.request_entries import SAME_ID

Floats = NDArray[np.float64]

_CHUNK = 1 << 16  # requests handled at once
_FEW = 4096  # requests of a graph that are looked at one by one for when a model can be loaded first
_GRID = 32  # thresholds of heads, and of tails: so many lowest, so many highest, so many between
_ROUNDS = 64  # in which the earliest loads are raised; fewer give a weaker bound
_SHAPES = 1024  # graphs of requests that grew
_WINDOWS = 9  # arrival instants between which responses are bounded


class Bounds(Struct, frozen=True):
    """No schedule that completes all requests has a smaller makespan, mean, median or 99th percentile of response.

    The makespan is the last completion on the clock; a response is completion minus arrival. `area_s` to
    `head_body_tail_s` are what each argument gives for the makespan; `binding` names the simplest that is largest.
    """

    makespan_s: float
    mean_s: float
    median_s: float
    p99_s: float
    area_s: float
    wide_s: float
    path_s: float
    head_body_tail_s: float
    binding: str
    void: str = ""  # why there are no bounds


class BoundsAccumulator:
    """Collects requests and bounds every schedule of them; keeps eight bytes per node and nine per request.

    `setup_min` is the least that making a model resident can cost (or two such: on an empty GPU, on another); `gains`
    is how much less GPU time a model's node may need when it shares a run with others (the run is never shorter than
    the node alone); `savings` what nodes may find cached; `bases` are those of adapters, `later` the models of nodes
    that requests may be given as they run.

    A request with a fault, or one that is too wide for this pool, does not count; of one with a node that never
    becomes ready, what runs all the same counts for the makespan. `void` tells why nothing can be said; then all bounds
    are 0.

    >>> from dovetail.core.tasks import Task
    >>> graphs = {"one": TaskGraph("one", [Task("a", "llm")], [])}
    >>> bounds = BoundsAccumulator(Pool.parse("2", {}), graphs, {"llm": 3.0})
    >>> for name in ("x", "y", "z"):
    ...     bounds.add(0.0, Arrived(name, "one", (10.0,)))
    >>> bounds.result().area_s  # 30 GPU-seconds and one load, on two GPUs
    16.5
    """

    def __init__(
        self,
        pool: Pool,
        graphs: Mapping[str, TaskGraph],
        setup_min: Mapping[str, float | tuple[float, float]],
        gains: Mapping[str, float] = MappingProxyType({}),
        void: str = "",
        savings: PossibleSavings | None = None,
        bases: Mapping[str, str] | None = None,
        later: Iterable[str] = (),
    ) -> None:
        self.void = void
        self._bases = bases or {}
        self._later = frozenset(later)
        self._speeds = sorted(pool.speeds, reverse=True)
        self._prices = {kind: (s, s) if isinstance(s, float) else s for kind, s in setup_min.items()}
        self._setup_min = {kind: min(prices) for kind, prices in self._prices.items()}
        self._gains = gains
        self._stores = [_Store(graph, self._speeds, gains) for graph in graphs.values()]
        self._by_name = dict(zip(graphs, self._stores, strict=True))
        self._by_shape: dict[object, _Store] = {}  # of requests that grew
        self._grown: dict[str, tuple[TaskGraph, float, tuple[float, ...]]] = {}  # what they have become
        self._open: dict[str, tuple[_Store, int]] = {}
        self._first_s = float("inf")
        self._dropped = False  # whether something that could run may not have
        self._savings = savings

    def add(self, arrival_s: float, request: Arrived) -> None:
        """Count a request that will complete."""
        if not request.fault:
            self._keep(arrival_s, request, 1)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Follow a run: a request counts once it is complete, and never if it is rejected or left open."""
        for event in events:
            kind = type(event)
            if kind is Start or kind is Finished:  # most events, and nothing to learn from them
                continue
            if kind is Arrived:
                if not event.fault:
                    self._open[event.job] = self._keep(t, event, 0)
                if SAME_ID in event.facts:
                    self._dropped = True
            elif kind is Complete:
                place = self._open.pop(event.job, None)
                if place is not None:
                    self._count(event.job, *place)
            elif kind is Reject:
                self._reject(event.job)
            elif kind is Grew:
                self._grow(event)
            elif kind is Failed:
                self._dropped = True
            elif kind is Prepare:
                self._prepare(event.kind)

    def _reject(self, request: str) -> None:
        """A request that was waiting for what never comes has run all that it could, unless something was dropped."""
        place = self._open.pop(request, None)
        self._grown.pop(request, None)
        if place is not None and not self._dropped:
            store, row = place
            store.counts[row] = store.partly

    def _grow(self, event: Grew) -> None:
        """What a request has become when it is complete counts: no schedule of that was shorter."""
        if event.job not in self._open:
            return
        if self._setup_min and any(task.kind not in self._setup_min for task in event.tasks):
            self.void = "a request was given nodes of a model that its workflow did not announce"
        store, row = self._open[event.job]
        if self._savings is not None and row in store.prefixed:
            self._savings.add(event.tasks, store.prefixed[row])
        first = row * store.nodes, (row + 1) * store.nodes
        known = store.graph, store.arrivals[row], tuple(store.sizes[slice(*first)])
        graph, arrival_s, sizes = self._grown.get(event.job, known)
        self._grown[event.job] = graph.grown(event.tasks, event.edges), arrival_s, (*sizes, *event.sizes)

    def _prepare(self, model: str) -> None:
        """It was loaded, maybe before any node of it was ready."""
        self._later |= {model}
        if self._setup_min and model not in self._setup_min:
            self.void = "a model was loaded ahead that no workflow uses, and made room for others at another price"

    def _count(self, request: str, store: _Store, row: int) -> None:
        """A request is complete."""
        grown = self._grown.pop(request, None)
        if grown is not None and row not in store.prefixed:
            graph, arrival_s, sizes = grown
            shape = tuple(tuple(sorted(a)) for a in graph.after), tuple((task.kind, task.width) for task in graph.tasks)
            known = self._by_shape.get(shape)
            if known is not None or len(self._by_shape) < _SHAPES:
                if known is None:
                    known = self._by_shape[shape] = _Store(graph, self._speeds, self._gains)
                    self._stores.append(known)
                known.add(arrival_s, sizes, 1)
                return  # beyond so many shapes, or with a prefix, a request counts as it came, which is less
        store.counts[row] = 1

    def _keep(self, arrival_s: float, request: Arrived, counts: int) -> tuple[_Store, int]:
        store = self._by_name[request.of]
        sizes = request.sizes
        if len(sizes) != store.nodes:
            raise ValueError(f"{request.job} has {len(sizes)} sizes, but {request.of} has {store.nodes} nodes")
        if arrival_s < self._first_s:
            self._first_s = arrival_s
        store.add(arrival_s, sizes, counts)
        if self._savings is not None and "prefix" in request.facts:
            self._savings.add(store.graph.tasks, request)
            store.prefixed[len(store.counts) - 1] = request
        return store, len(store.counts) - 1

    def result(self) -> Bounds:
        """The bounds for the requests counted so far; zeros if there are none."""
        counted = [store for store in self._stores if any(store.counts)]
        for store in self._stores:
            if self._savings is not None and store.prefixed:
                store.saved = self._savings.seconds(store.graph, store.prefixed, len(store.counts), self._dropped)
        stores = [store for store in counted if store.completes]
        running = [store for store in counted if store.completes or store.partly]
        if not running or self.void:
            return Bounds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "area", self.void)
        loaded = self._loaded()
        tally = _Tally(running, self._first_s, loaded)
        measures = _measures(self._speeds, tally.widths)
        setups = _setups(tally, measures, self._setup_min, self._speeds[-1])
        filled = measures @ tally.sizes.sum(axis=0)
        whole = self._first_s + filled + setups[:, 0]
        area_s = float(whole[0])
        wide_s = float(whole[1:].max(initial=self._first_s))
        path_s = float((tally.arrivals + tally.responses).max())
        hbt_s = float(_head_body_tail(tally, measures, setups).max(initial=self._first_s))
        named = {"area": area_s, "wide": wide_s, "path": path_s, "head-body-tail": hbt_s}
        makespan_s = max(named.values())
        mean_s, median_s, p99_s = self._responses(stores, loaded, tally if len(stores) == len(running) else None)
        return Bounds(
            makespan_s=makespan_s,
            mean_s=mean_s,
            median_s=median_s,
            p99_s=p99_s,
            area_s=area_s,
            wide_s=wide_s,
            path_s=path_s,
            head_body_tail_s=hbt_s,
            binding=next(name for name, s in named.items() if s >= makespan_s - 1e-12 * abs(makespan_s)),
        )

    def _loaded(self) -> dict[str, float]:
        """Before when no node of a model can run, whatever becomes of the requests: see the module on loads."""
        rows = [(store, *store.earliest()) for store in self._stores if store.counts]
        base, free = self._bases, (0.0, 0.0)
        loaded: dict[str, float] = {}
        for _ in range(_ROUNDS):
            ready = dict.fromkeys(self._later, self._first_s)
            for store, arrivals, sizes in rows:
                store.note_ready(arrivals, sizes, loaded, ready)
            if not ready:
                break
            adapters = [kind for kind in ready if kind in base]
            for kind in adapters:
                ready[base[kind]] = min(ready[kind], ready.get(base[kind], inf))
            prices = {kind: self._prices.get(kind, free) for kind in ready}
            onto_empty = {kind: ready[kind] + prices[kind][0] for kind in ready}
            first = min(onto_empty.values())
            known, loaded = loaded, {}
            for kind, at_s in ready.items():
                loaded[kind] = min(onto_empty[kind], max(at_s, first) + prices[kind][1])
            for kind in adapters:
                loaded[kind] = max(loaded[base[kind]], ready[kind]) + prices[kind][1]
            if loaded == known:
                break
        return loaded

    def _responses(
        self, stores: Sequence[_Store], loaded: Mapping[str, float], tally: _Tally | None
    ) -> tuple[float, float, float]:
        """Bounds of the mean, the median and the P99 of the responses of requests that complete."""
        if not stores:
            return 0.0, 0.0, 0.0
        tally = tally or _Tally(stores, self._first_s, loaded)
        measures = _measures(self._speeds, tally.widths)
        best = int((measures @ tally.sizes.sum(axis=0)).argmax())
        loads = [tally.sizes @ measures[i] for i in ({0, best} if best else {0})]
        ordered = _ordered_responses(tally.arrivals, tally.responses, loads)
        mean_s = max(float(ordered.mean()), *(_srpt_mean(tally.arrivals, load) for load in loads))
        return mean_s, float(np.percentile(ordered, 50)), float(np.percentile(ordered, 99))


def bounds_for(
    pool: Pool,
    graphs: Mapping[str, TaskGraph],
    models: Mapping[str, ModelCost],
    costs: CostRules,
    rates: RateTable,
    free_setups: bool = False,
    later: Iterable[str] = (),
    void: str = "",
) -> BoundsAccumulator:
    """Bounds under rules of price: rates may be faster than the GPUs' own speeds, nodes at once save GPU time.

    Noise makes some run times shorter than those that the bounds count on, so under noise there are none. `later` are
    the models of nodes that requests may be given while they run, `void` says why no bound can hold.
    """
    fastest = {
        name: replace(kind, speed=max([kind.speed, *[r.rate for r in rates.rates.values() if r.device == name]]))
        for name, kind in pool.types.items()
    }
    gains = {name: _gain(name, model, costs, rates, pool) for name, model in models.items()}
    void = void or ("run times are not exact" if costs.noise else "")
    if costs.batching and any(factor < 1 for model in models.values() for factor in model.batch_curve):
        void = "a batch is faster than a single node"
    used = {*later, *(node.kind for graph in graphs.values() for node in graph.tasks)}
    used |= {models[name].adapter_of for name in used if name in models}
    least = {} if free_setups else least_setups({m: c for m, c in models.items() if m in used}, costs, rates)
    savings = PossibleSavings(models) if any(model.prefix is not None for model in models.values()) else None
    bases = {model: cost.adapter_of for model, cost in models.items() if cost.adapter_of}
    return BoundsAccumulator(Pool(pool.devices, fastest), graphs, least, gains, void, savings, bases, later)


def _gain(name: str, model: ModelCost, costs: CostRules, rates: RateTable, pool: Pool) -> float:
    """How many times as much as with one node a window of the model does at best, with several batched or at once."""
    batches = [k / slower for k, slower in enumerate(model.batch_curve, start=1)] if costs.batching else []
    measured = [rates.at_once(name, kind, width=model.width) for kind in pool.types] if model.slots else []
    shares = [window_shares(model, [points]) for points in measured]
    return max([1.0, *batches, *[k * share for each in shares for k, share in enumerate(each, start=1)]])


class _Store:
    """The requests of one graph: arrivals, sizes row after row, and which rows count."""

    __slots__ = (
        "arrivals",
        "counts",
        "gains",
        "graph",
        "nodes",
        "partly",
        "prefixed",
        "runs",
        "saved",
        "sizes",
        "speeds",
        "stuck",
    )

    def __init__(self, graph: TaskGraph, speeds: Sequence[float], gains: Mapping[str, float]) -> None:
        self.graph = graph
        self.nodes = len(graph.tasks)
        stuck = set(graph.never)
        for i in graph.topological:
            if not stuck.isdisjoint(graph.after[i]):
                stuck.add(i)
        fits = all(node.width <= len(speeds) for i, node in enumerate(graph.tasks) if i not in stuck)
        self.stuck = stuck  # nodes that never run
        self.runs = [fits and i not in stuck for i in range(self.nodes)]
        self.partly = not all(self.runs) and any(self.runs)
        fastest = [max(speeds[0], 1.0), *speeds]  # the slowest of g GPUs is no faster than the g-th fastest of all
        self.speeds = [fastest[node.width] if node.width <= len(speeds) else 1.0 for node in graph.tasks]
        self.gains = [gains.get(node.kind, 1.0) for node in graph.tasks]
        self.arrivals = array("d")
        self.sizes = array("d")
        self.counts = bytearray()
        self.prefixed: dict[int, Arrived] = {}  # requests whose nodes may find their prefixes cached, by row
        self.saved: Floats | None = None  # what that may save each node

    @property
    def completes(self) -> bool:
        return all(self.runs)

    def add(self, arrival_s: float, sizes: Sequence[float], counts: int) -> None:
        self.arrivals.append(arrival_s)
        self.sizes.extend(sizes)
        self.counts.append(counts)

    def chunks(self) -> Iterator[tuple[Floats, Floats]]:
        """Arrivals of the requests that count, and their sizes with one row per node."""
        for low in range(0, len(self.counts), _CHUNK):
            high = min(low + _CHUNK, len(self.counts))
            counted = np.frombuffer(bytes(self.counts[low:high]), dtype=np.bool_)
            sizes = np.array(self.sizes[low * self.nodes : high * self.nodes]).reshape(high - low, self.nodes)
            if self.saved is not None:
                sizes -= self.saved[low:high]
            counted_sizes = np.ascontiguousarray(sizes[counted].T) * np.array(self.runs)[:, None]
            yield np.array(self.arrivals[low:high])[counted], counted_sizes

    def earliest(self) -> tuple[Floats, Floats]:
        """All requests, counted or not; of many, one that arrives with the first and has the least of every size."""
        arrivals, sizes = np.array(self.arrivals), np.array(self.sizes).reshape(len(self.counts), self.nodes)
        if self.saved is not None:
            sizes -= self.saved
        if len(arrivals) > _FEW:
            arrivals, sizes = arrivals.min(keepdims=True), sizes.min(axis=0, keepdims=True)
        return arrivals, np.ascontiguousarray(sizes.T)

    def note_ready(self, arrivals: Floats, sizes: Floats, loaded: Mapping[str, float], ready: dict[str, float]) -> None:
        """When a node of each model can be ready at the earliest, if none runs before its model is loaded."""
        heads: dict[int, Floats] = {}
        for i in self.graph.topological:
            if i in self.stuck:
                continue
            kind, at_s = self.graph.tasks[i].kind, arrivals
            for j in self.graph.after[i]:
                at_s = np.maximum(at_s, heads[j] + sizes[j] / self.speeds[j])
            ready[kind] = min(float(at_s.min()), ready.get(kind, inf))
            heads[i] = np.maximum(at_s, loaded.get(kind, -inf))

    def times(
        self, arrivals: Floats, sizes: Floats, loaded: Mapping[str, float]
    ) -> tuple[list[Floats], list[Floats], Floats]:
        """Earliest start of each node, least time from its end to the request's end, and earliest end of the request.

        A node starts after its arrival, after its predecessors, and after the first setup of its model.
        """
        graph = self.graph
        runs = [sizes[i] / speed for i, speed in enumerate(self.speeds)]
        heads, tails = [arrivals] * self.nodes, [np.zeros_like(arrivals)] * self.nodes
        ends = arrivals
        for i in graph.topological:
            if self.runs[i]:
                heads[i] = np.maximum(arrivals, loaded.get(graph.tasks[i].kind, -inf))
            for j in graph.after[i]:
                heads[i] = np.maximum(heads[i], heads[j] + runs[j])
            ends = np.maximum(ends, heads[i] + runs[i])
        for i in reversed(graph.topological):
            for j in graph.before[i]:
                tails[i] = np.maximum(tails[i], tails[j] + runs[j])
        return heads, tails, ends


class _Tally:
    """What one pass over the requests leaves: figures per request, and sizes by width, head and tail.

    `heads` and `tails` are thresholds, the first of which all nodes reach; any choice of them gives valid bounds, and
    few enough distinct values are all taken. `body[w, h, q]` is the size of the nodes of a width that reach both.
    """

    def __init__(self, stores: Sequence[_Store], first_s: float, loaded: Mapping[str, float]) -> None:
        self.widths = sorted({node.width for store in stores for node in compress(store.graph.tasks, store.runs)})
        self.kinds: dict[str, tuple[int, float]] = {}  # the least width, and the longest tail
        self._choose_thresholds(stores, first_s, loaded)
        cells = len(self.heads) * len(self.tails)
        body = np.zeros((len(self.widths), cells))
        arrivals, responses, sizes = [], [], []
        for store in stores:
            nodes = compress(enumerate(store.graph.tasks), store.runs)
            columns = [(i, self.widths.index(node.width)) for i, node in nodes]
            for chunk_arrivals, chunk in store.chunks():
                heads, tails, ends = store.times(chunk_arrivals, chunk, loaded)
                by_width = np.zeros((len(ends), len(self.widths)))
                for i, column in columns:
                    filled = chunk[i] / store.gains[i]
                    by_width[:, column] += filled
                    head = np.searchsorted(self.heads, heads[i], side="right") - 1
                    cell = head * len(self.tails) + np.searchsorted(self.tails, tails[i], side="right") - 1
                    body[column] += np.bincount(cell, weights=filled, minlength=cells)
                    self._use(store.graph.tasks[i].kind, self.widths[column], tails[i])
                arrivals.append(chunk_arrivals)
                responses.append(ends - chunk_arrivals)
                sizes.append(by_width)
        self.arrivals, self.responses = np.concatenate(arrivals), np.concatenate(responses)
        self.sizes = np.concatenate(sizes)
        grid = body.reshape(len(self.widths), len(self.heads), len(self.tails))
        self.body = grid[:, ::-1, ::-1].cumsum(axis=1).cumsum(axis=2)[:, ::-1, ::-1]

    def _choose_thresholds(self, stores: Sequence[_Store], first_s: float, loaded: Mapping[str, float]) -> None:
        heads, tails = [np.array([first_s])], [np.zeros(1)]
        for store in stores:
            stride = 1 + len(store.counts) * store.nodes // (1 << 14)
            for arrivals, sizes in store.chunks():
                for some in (slice(0, _GRID), slice(None, None, stride)):
                    some_heads, some_tails, _ = store.times(arrivals[some], sizes[:, some], loaded)
                    heads += some_heads
                    tails += some_tails
        self.heads, self.tails = _thin(np.concatenate(heads)), _thin(np.concatenate(tails))

    def _use(self, kind: str, width: int, tails: Floats) -> None:
        if len(tails):
            least, longest = self.kinds.get(kind, (width, 0.0))
            self.kinds[kind] = (min(least, width), max(longest, float(tails.max())))


def _thin(values: Floats) -> Floats:
    """Some of the distinct values: the lowest, the highest, and evenly by rank between."""
    distinct = np.unique(values)
    if len(distinct) <= 3 * _GRID:
        return distinct
    between = np.linspace(_GRID, len(distinct) - _GRID, _GRID, endpoint=False).astype(np.intp)
    return np.concatenate([distinct[:_GRID], distinct[between], distinct[-_GRID:]])


def _measures(speeds: Sequence[float], widths: Sequence[int]) -> Floats:
    """One row per measure with the weight of each width: first the area, then the wide ones (see the module)."""
    gpus, g = len(speeds), np.array(widths, dtype=np.intp)
    sorted_speeds = np.array(speeds)
    total = float(sorted_speeds.sum())
    area = g / total
    rows = [g // b / sorted_speeds[b - 1 :: b].sum() for b in range(2, gpus + 1)]
    rows += [
        np.where(g > gpus - k, 1 / sorted_speeds[g - 1], np.where(g < k, 0.0, area)) for k in range(1, gpus // 2 + 1)
    ]
    wide = np.unique(np.array(rows).reshape(len(rows), len(g)), axis=0)
    kept = [row for i, row in enumerate(wide) if not (np.delete(wide, i, axis=0) >= row).all(axis=1).any()]
    return np.array([area, *kept])


def _setups(tally: _Tally, measures: Floats, setup_min: Mapping[str, float], slowest: float) -> Floats:
    """What setups fill, for each measure and each tail: a model needed by a node with that tail is set up before it."""
    filled = np.zeros((len(measures), len(tally.tails)))
    for kind, (width, tail) in tally.kinds.items():
        weight = measures[:, tally.widths.index(width)] * slowest * setup_min.get(kind, 0.0)
        filled += weight[:, None] * (tally.tails <= tail)
    return filled


def _head_body_tail(tally: _Tally, measures: Floats, setups: Floats) -> Floats:
    """Nodes that start at `h` or later and leave `q` or more to run after them fill the time between: `h + body + q`.

    Setups may be over before a later head, so they count from the first arrival only.
    """
    body = np.tensordot(measures, tally.body, axes=1)
    body[:, 0, :] += setups
    bound: Floats = np.where(body > 0, tally.heads[:, None] + body + tally.tails, -np.inf)
    return bound


def _ordered_responses(arrivals: Floats, responses: Floats, loads: Sequence[Floats]) -> Floats:
    """A bound for the smallest response, the second smallest, and so on.

    No response is shorter than its own longest path. And if `k` of `n` requests respond within `x`, then at least
    `j = m - (n - k)` of the `m` requests that arrive from `a` to `b` are done between `a` and `b + x`: `x` is at least
    the sum of the `j` smallest loads among them, less `b - a`. With all arrivals at once this says that the k-th
    completion waits for the k smallest loads.
    """
    bound = np.sort(responses)
    cuts = np.unique(np.quantile(arrivals, np.linspace(0, 1, _WINDOWS), method="inverted_cdf"))
    for load in loads:
        order = load.argsort()
        ascending, arrived = load[order], arrivals[order]
        for i, low in enumerate(cuts):
            for high in cuts[i:]:
                needed = ascending[(arrived >= low) & (arrived <= high)].cumsum() - (high - low)
                last = bound[len(bound) - len(needed) :]
                np.maximum(last, needed, out=last)
    return bound


def _srpt_mean(arrivals: Floats, loads: Floats) -> float:
    """Mean response of the shortest-remaining-first order on one machine that any part of a request may fill.

    Every schedule is one for that machine too, and there no order has a smaller mean.

    >>> _srpt_mean(np.array([0.0, 1.0]), np.array([4.0, 1.0]))  # the second overtakes: ends at 5 and 2
    3.0
    """
    order = arrivals.argsort(kind="stable")
    left: list[float] = []
    now = ended = 0.0
    for arrival, load in zip(arrivals[order].tolist(), loads[order].tolist(), strict=True):
        while left and now + left[0] <= arrival:
            now += heappop(left)
            ended += now
        if left:
            left[0] -= arrival - now
        now = arrival
        heappush(left, load)
    ended += float((now + np.sort(left).cumsum()).sum())
    return (ended - float(arrivals.sum())) / len(arrivals)
