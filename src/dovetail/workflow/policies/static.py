"""Models pinned to GPUs: no switching while the pool is large enough for all of them."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import Window
from dovetail.workflow.policies.view import View


@policy("static", level="workflow")
class Static(WorkflowPolicy):
    """A model runs only where it is pinned, oldest node first; replicas follow the forecast of GPU-seconds.

    Every model gets a window, the widest first, on the GPUs with the least pinned work; GPUs left over become replicas
    of the model with the most work per replica. When the pool is too small, models share a window in time: while nodes
    for its model are ready, it changes only for one that is older than them by `hysteresis` times the price.
    """

    turn = 8

    def __init__(self, *, hysteresis: float = 40.0) -> None:
        self.hysteresis = hysteresis
        self.pins: dict[str, list[Window]] = {}
        self._load: list[float] = []

    def begin(self, view: View) -> None:
        self.pins, self._load = {}, [0.0] * len(view.pool)
        usable = [m for m, model in view.models.items() if model.width and view.roomy_windows(m)]
        wanted = {m: work for m in usable if (work := view.forecast.get(m, 0.0)) > 0}
        for model in sorted(wanted, key=lambda m: (-view.models[m].width, -wanted[m], m)):
            self._pin(model, wanted[model], view)
        while True:
            spare = [
                (wanted[m] / len(self.pins[m]) / view.models[m].width, m, window)
                for m in wanted
                for window in view.roomy_windows(m)
                if not any(self._load[gpu] for gpu in window)
            ]
            if not spare:
                return
            most, model, _ = max(spare, key=lambda s: (s[0], s[1]))
            window = min(w for _, m, w in spare if m == model)
            self.pins[model].append(window)
            for gpu in window:
                self._load[gpu] += most

    def resized(self, view: View) -> None:
        self.begin(view)

    def _pin(self, model: str, work: float, view: View) -> None:
        window = min(view.roomy_windows(model), key=lambda w: (sum(self._load[gpu] for gpu in w), w))
        self.pins[model] = [window]
        for gpu in window:
            self._load[gpu] += work / len(window)

    def choose(self, view: View) -> Place | Wait | None:
        best = None
        for queue in view.queues.values():
            if not view.roomy_windows(queue.model):  # all that it fits on are gone
                continue
            if queue.model not in self.pins:  # not in the forecast
                self._pin(queue.model, view.demand[queue.model] or 1.0, view)
            head = queue.head
            for window in self.pins[queue.model]:
                if view.can_start(window, queue.model):
                    price = view.setup_s(window, queue.model)
                    key = (head.ready_s + self.hysteresis * price, head.seq, window)
                    if best is None or key < best[0]:
                        best = (key, head)
        if best is None:
            return None
        (_, _, window), head = best
        return Place(head, window, "pinned")
