"""Rules of a few lines that a reader would think of: rivals that a default policy must not lose to."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.testing.workflow.patience import PatienceRule
from dovetail.workflow.policies.base import ListPolicy, Place, ReadyNode, View, Wait, WorkflowPolicy
from dovetail.workflow.policies.static import Static


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
    "warm wait": WarmWait,
}
