"""Rules of a few lines that a reader would think of: rivals that a default policy must not lose to."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.testing.workflow.patience import PatienceRule
from dovetail.workflow.policies.base import ListPolicy, Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode, Window
from dovetail.workflow.policies.static import Static
from dovetail.workflow.policies.view import View


class FirstReady(ListPolicy):
    """First ready, first served, on the cheapest free window."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.ready_s


class RequestAge(PatienceRule):
    """The oldest request first, so that a chain does not queue again at each of its stages."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.request.arrived_s + 1e-3 * node.request.gpu_s_left


class EarliestFinish(WorkflowPolicy):
    """Oldest request first, where it finishes earliest, busy windows included; evicting a model that nodes wait for
    counts as late as loading it again takes."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.request.arrived_s

    def choose(self, view: View) -> Place | Wait | None:
        claimed: set[int] = set()
        for head in sorted((queue.head for queue in view.queues.values()), key=lambda t: (t.rank, t.seq)):
            ends = [(self._end_s(head, w, view), w) for w in view.roomy_windows(head.model) if claimed.isdisjoint(w)]
            if not ends:
                continue
            _, window = min(ends)
            if view.can_start(window, head.model):
                return Place(head, window, "earliest finish")
            claimed.update(window)
        return None

    @staticmethod
    def _end_s(node: ReadyNode, window: tuple[int, ...], view: View) -> float:
        residents = view.residents
        evicted = {other for gpu in window for other in residents.evicted(gpu, node.model)}
        back_s = sum(residents.reload_s(node.model, other) for other in sorted(evicted) if other in view.queues)
        return view.ready_at(window, node.model) + view.run_s(node, window) + back_s


class StaticStealing(Static):
    """Models pinned to GPUs; a window with nothing of its own to do takes the oldest node that has waited longer than
    its switch and the switch back take."""

    def choose(self, view: View) -> Place | Wait | None:
        own = super().choose(view)
        if own is not None:
            return own
        for head in sorted((queue.head for queue in view.queues.values()), key=lambda t: t.seq):
            for price, window in sorted((view.setup_s(w, head.model), w) for w in view.free_windows(head.model)):
                if view.now - head.ready_s >= 2 * price:
                    return Place(head, window, "stolen")
        return None


class SwapWhenDrained(WorkflowPolicy):
    """As llama-swap does from v218 to v250: every model has its GPUs, dealt out in turn, and takes them from another
    one when nobody waits for that any more; the oldest node first."""

    def begin(self, view: View) -> None:
        self._own: dict[str, Window | None] = {}

    def resized(self, view: View) -> None:
        self._own.clear()

    def choose(self, view: View) -> Place | Wait | None:
        best = None
        for queue in view.queues.values():
            window = self._window(queue.model, view)
            if window is not None and view.can_start(window, queue.model):
                key = (view.setup_s(window, queue.model) > 0, queue.head.seq, window)
                if best is None or key < best[0]:
                    best = (key, queue.head)
        return None if best is None else Place(best[1], best[0][2], "its own GPUs")

    def _window(self, model: str, view: View) -> Window | None:
        if model not in self._own:
            windows = sorted(view.roomy_windows(model))
            self._own[model] = windows[list(view.models).index(model) % len(windows)] if windows else None
        return self._own[model]


class WarmWait(PatienceRule):
    """The default of old, but who would find its model loaded sooner than it can be loaded here waits for that."""

    def choose(self, view: View) -> Place | Wait | None:
        choice = super().choose(view)
        if not isinstance(choice, Place) or view.free_count == view.size:
            return choice
        node, window, _ = choice
        ready_s = view.now + view.setup_s(window, node.model)
        held = view.residents.held
        busy = [w for w in view.roomy_windows(node.model) if all(node.model in held[gpu] for gpu in w)]
        return None if any(view.now < view.free_at(w) <= ready_s for w in busy) else choice


class LateLast(ListPolicy):
    """Earliest deadline first, but who can no longer be on time goes last."""

    def rank(self, node: ReadyNode, view: View) -> float:
        due_s = node.request.due_s
        if due_s is None:
            return node.request.arrived_s + 1e4
        return due_s if view.now + node.tail_s / view.fastest <= due_s else due_s + 1e6


RULES: dict[str, Callable[[], WorkflowPolicy]] = {
    "earliest finish": EarliestFinish,
    "fifo": FirstReady,
    "late last": lambda: LateLast(hysteresis=4.0),
    "patience": PatienceRule,
    "request age": RequestAge,
    "static + stealing": StaticStealing,
    "swap when drained": SwapWhenDrained,
    "warm wait": WarmWait,
}
