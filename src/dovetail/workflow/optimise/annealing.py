"""A plan improved by simulated annealing: the order of its nodes and the window of each, timed without the engine.

Whatever can be planned is such an order with windows, in which every node begins as soon as those before it have ended
and its GPUs have been left by those that the order puts first: of all schedules, one of these is the best. It knows the
rules of price that depend on a GPU alone; what nodes do to each other elsewhere (batches, slots, caches, host memory)
only the engine tells.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode, Window
from dovetail.workflow.policies.view import View

NodeKey = tuple[str, str]
Starts = Sequence[tuple[NodeKey, Window]]

_WARM, _COLD = 0.15, 0.0003  # the share of a plan's value that a change may lose, at first and in the end
_TRIES = 1000  # of each node, below which it begins less warm: there is no time to cool down
_ROUNDS = 4  # times that it warms up again
_JOIN = 0.3  # the share of changes that bring a node beside another of its model
_EARLY = 0.05  # what the mean end counts beside the value: of two alike, the one that ends its nodes earlier


def can_time(view: View) -> bool:
    """Whether what a plan gives can be told without the engine."""
    elsewhere = view.costs.batching or view.costs.dram_gb or view.shares or view.prefixes or view.off
    return not elsewhere and type(view) is View


class PlanTimes:
    """What a plan of some requests, all there at their arrival, gives."""

    def __init__(self, view: View, requests: Sequence[OpenRequest], mean: bool) -> None:
        self._view, self._mean = view, mean
        self._arrivals = [request.arrived_s for request in requests]
        self.keys: list[NodeKey] = []
        self._nodes: list[tuple[int, str, tuple[int, ...]]] = []  # whose it is, its model, and what comes before it
        self.windows: list[list[Window]] = []
        self._runs: list[list[float]] = []
        self.following: list[list[int]] = []
        self.of_model: dict[str, list[int]] = {}
        for owner, request in enumerate(requests):
            at: dict[int, int] = {}
            for i in request.graph.topological:
                node = ReadyNode(request, i, 0.0, 0)
                if i in request.graph.never or any(j not in at for j in request.graph.after[i]):
                    continue  # it waits for ever
                before = tuple(at[j] for j in request.graph.after[i])
                at[i] = len(self.keys)
                for j in before:
                    self.following[j].append(at[i])
                windows: list[Window] = [()]
                if node.width:
                    windows = sorted(view.roomy_windows(node.model, aligned=False))
                self.of_model.setdefault(node.model, []).append(len(self.keys))
                self.keys.append((request.id, node.name))
                self._nodes.append((owner, node.model, before))
                self.windows.append(windows)
                self._runs.append([view.run_s(node, window) for window in windows])
                self.following.append([])

        costs, kinds = view.costs, sorted({model for _, model, _ in self._nodes})
        self._prices: dict[tuple[int, str, str], float] | None = None  # where a GPU holds one model, its last
        if costs.resident == "one" and not any(view.models[kind].adapter_of for kind in kinds):
            self._prices = {}
            for gpu in range(len(view.pool)):
                for old in ("", *kinds):
                    residents = Residents(view.pool, view.models, costs, view.rates)
                    residents.load((gpu,) if old else (), old)
                    self._prices |= {(gpu, old, new): residents.price(gpu, new) for new in kinds}
        self._first_pays = costs.window == "primary"

    def before(self, node: int) -> tuple[int, ...]:
        return self._nodes[node][2]

    def time(self, order: Sequence[int], chosen: Sequence[int]) -> tuple[float, float, list[float]]:
        """What the plan gives, the same with a little for ending nodes early, and when each node begins."""
        view, prices, held = self._view, self._prices, [""] * len(self._view.pool)
        residents = Residents(view.pool, view.models, view.costs, view.rates) if prices is None else view.residents
        hides = view.costs.overlap > 0
        free = [0.0] * len(view.pool)
        begins, ends = [0.0] * len(order), [0.0] * len(order)
        done = self._arrivals.copy()
        for i in order:
            owner, model, before = self._nodes[i]
            window, run_s = self.windows[i][chosen[i]], self._runs[i][chosen[i]]
            begin, setup_s = self._arrivals[owner], 0.0
            for j in before:
                if ends[j] > begin:
                    begin = ends[j]
            for gpu in window:
                if free[gpu] > begin:
                    begin = free[gpu]
            if prices is None:
                setup_s = residents.setup(window, model)
                residents.load(window, model)
            else:
                for gpu in window[:1] if self._first_pays else window:
                    setup_s = max(setup_s, prices[gpu, held[gpu], model])
            if hides:
                setup_s = residents.visible(setup_s, run_s)
            end = begin + setup_s + run_s
            for gpu in window:
                free[gpu], held[gpu] = end, model
            begins[i], ends[i] = begin, end
            if end > done[owner]:
                done[owner] = end
        value = max(done)
        if self._mean:
            value = (sum(done) - sum(self._arrivals)) / len(done)
        return value, value + _EARLY * sum(ends) / len(ends), begins


def anneal(
    times: PlanTimes, starts: Starts, rng: random.Random, most: int, stop: Callable[[], bool], least: float = 0.0
) -> tuple[float, Starts]:
    """The best of `most` plans along the way from this one, and what it gives. It ends where one gives no more than
    `least`: better is not possible."""
    place = {key: i for i, key in enumerate(times.keys)}
    order = [place[key] for key, _ in starts]
    chosen = [0] * len(order)
    for key, window in starts:
        chosen[place[key]] = times.windows[place[key]].index(window)
    value, energy, begins = times.time(order, chosen)
    best = (value, energy, order.copy(), chosen.copy(), begins)
    warm = max(_COLD, _WARM * min(1.0, most / (_TRIES * len(order))))
    alike = [some for some in times.of_model.values() if len(some) > 1]
    movable = [i for i in order if len(times.windows[i]) > 1]
    for n in range(most):
        phase = (n * _ROUNDS / most) % 1.0
        if phase < _ROUNDS / most:
            value, energy, order, chosen = best[0], best[1], best[2].copy(), best[3].copy()
        if best[0] <= least * (1 + 1e-12) or (n % 64 == 0 and stop()):
            break
        heat = best[0] * warm * (_COLD / warm) ** phase
        kind = rng.random()
        new_order, new_chosen = order, chosen
        if kind < _JOIN:
            i, j = rng.sample(rng.choice(alike), 2) if alike else (0, 0)
            new_order, new_chosen = _moved(order, rng, times, i, j), chosen.copy()
            new_chosen[i] = chosen[j]
        elif kind < 0.7 or not movable:
            new_order = _moved(order, rng, times)
        if kind > 0.5 and movable:
            i = rng.choice(movable)
            new_chosen = chosen.copy()
            new_chosen[i] = rng.randrange(len(times.windows[i]))
        new_value, new_energy, begins = times.time(new_order, new_chosen)
        if new_energy <= energy or (heat and rng.random() < math.exp((energy - new_energy) / heat)):
            value, energy, order, chosen = new_value, new_energy, new_order, new_chosen
            if (value, energy) < best[:2]:
                best = (value, energy, order.copy(), chosen.copy(), begins)
    value, _, order, chosen, begins = best
    in_time = sorted(order, key=begins.__getitem__)  # stable: what begins together keeps its order
    return value, [(times.keys[i], times.windows[i][chosen[i]]) for i in in_time]


def _moved(
    order: list[int], rng: random.Random, times: PlanTimes, node: int | None = None, to: int | None = None
) -> list[int]:
    """One node elsewhere in the order, after those before it and before those that follow it; if it can be, next to
    another."""
    at = rng.randrange(len(order)) if node is None else order.index(node)
    node = order[at]
    before, following = times.before(node), times.following[node]
    low, high = at, at
    while low and order[low - 1] not in before:
        low -= 1
    while high + 1 < len(order) and order[high + 1] not in following:
        high += 1
    if low == high:
        return order
    moved = order.copy()
    del moved[at]
    aim = rng.randint(low, high) if to is None else min(max(order.index(to), low), high)
    moved.insert(aim, node)
    return moved
