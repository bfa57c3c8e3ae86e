"""What idle GPUs had better load before it is asked for: the models of nodes that come next."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from dovetail.workflow.policies.base import Preload, Wait
from dovetail.workflow.policies.demand_picture import DemandPicture
from dovetail.workflow.policies.ready import OpenRequest, Queue, ReadyNode, Window
from dovetail.workflow.policies.view import View
from dovetail.workflow.policies.window_prices import WindowOption, WindowPrices

_CALM = 0.5  # share of the pool that is needed in the mean; measured
_SEEN = 20  # nodes before anything is said of that
_HARM = 2.0  # times what a preload saves: what others may lose by it, which they would when the node starts, too


class ComingNode(NamedTuple):
    """A node that becomes ready when what runs of its request ends."""

    at_s: float
    request: OpenRequest
    place: int

    @property
    def model(self) -> str:
        return self.request.graph.tasks[self.place].kind


def coming_nodes(view: View) -> list[ComingNode]:
    """Nodes whose predecessors have all finished or run on GPUs, and when these are expected to end; the first one
    first."""
    found: dict[tuple[str, int], ComingNode] = {}
    for (job, _), (node, _) in view.running.items():
        request = node.request
        for j in request.graph.before[node.index] if request.open else ():
            if (job, j) not in found and request.graph.tasks[j].width and j not in request.graph.never:
                ends = list(_ends(view, request, j))
                if len(ends) == request.waiting[j]:
                    found[job, j] = ComingNode(max(view.now, *ends), request, j)
    return sorted(found.values(), key=lambda node: (node.at_s, node.request.arrived_s, node.request.id, node.place))


def _ends(view: View, request: OpenRequest, j: int) -> Iterator[float]:
    """When the nodes that it waits for and that run on GPUs are expected to end."""
    for i in request.graph.after[j]:
        _, window = view.running.get((request.id, request.graph.tasks[i].name), (None, ()))
        if window:
            yield max([view.until[gpu] for gpu in window])


class PreloadAdvice:
    """Says what idle GPUs are to load, at one decision. `kept` are GPUs that are reserved."""

    def __init__(self, view: View, demand: DemandPicture, kept: Window) -> None:
        self._view, self._demand = view, demand
        self._prices = WindowPrices(view, demand, kept)
        self._kept = set(kept)  # and GPUs that hold, or will get, what somebody asks for soon

    def next(self) -> Preload | Wait | None:
        """The models of coming nodes, each as late as it can be: a GPU is held no longer than the node itself would
        hold it for its load, only earlier."""
        view, wake_s = self._view, inf
        supply: dict[str, list[tuple[float, Window]]] = {}
        for coming in coming_nodes(view) if self._is_calm() else ():
            model = coming.model
            if model not in supply:
                warm = [(view.ready_at(window, model), window) for window in view.warm_windows(model)]
                supply[model] = sorted(warm, reverse=True)
            if supply[model]:
                ready_s, window = supply[model][-1]
                if ready_s <= coming.at_s + self._demand.least_setup_s[model] or window in view.preparing:
                    self._kept.update(supply[model].pop()[1])
                    continue
            if (best := self._window(coming)) is None:
                continue
            if coming.at_s - best.setup_s <= view.now:
                why = f"{coming.request.id} is about to need it, in {coming.at_s - view.now:.3g} s"
                return Preload(model, best.window, why)
            wake_s = min(wake_s, coming.at_s - best.setup_s)
            self._kept.update(best.window)
        return Wait(wake_s) if wake_s < inf else None

    def _is_calm(self) -> bool:
        """Whether the pool is so little used, by what has come so far, that idle GPUs are not about to be needed."""
        view, rates = self._view, self._demand.rates
        needed = sum([self._demand.needed(model, view.now) * view.models[model].width for model in rates])
        return needed < _CALM * view.total_speed and sum([rate.seen for rate in rates.values()]) >= _SEEN

    def _window(self, coming: ComingNode) -> WindowOption | None:
        """Where its model harms others least, if that is not too much. Where GPUs are unlike, the idle one is as a rule
        not the one to wait for."""
        view = self._view
        node = ReadyNode(coming.request, coming.place, view.now, 0)
        queue = Queue(node.model, node.width)
        queue.push(node)
        windows = [w for w in view.preloadable(node.model) if self._kept.isdisjoint(w)]
        if not view.level and len({view.speed(node.model, w) for w in view.roomy_windows(node.model)}) > 1:
            return None
        best = min([self._prices.price(queue, node, w, False) for w in windows], default=None)
        return None if best is None or best.loss > _HARM * best.setup_s else best
