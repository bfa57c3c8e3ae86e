"""Greedy on one cost: waiting, switching, what comes next, and balance between GPUs."""

from __future__ import annotations

from heapq import nsmallest

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode, Window
from dovetail.workflow.policies.view import View


@policy("online", level="workflow")
class Online(WorkflowPolicy):
    """Least cost first: -alpha x waited + beta x switch + gamma x future + delta x balance.

    `future` looks at the `lookahead` oldest ready nodes: those of the same model will find it loaded, the others will
    have to replace it. `balance` is how many more executions the GPUs have had than the average. Only free GPUs are
    given away, so nothing is bound early and every GPU takes what is best for it (work stealing).
    """

    turn = 4

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 1.5,
        gamma: float = 0.3,
        delta: float = 0.5,
        lookahead: int = 3,
    ) -> None:
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.delta = delta
        self.lookahead = lookahead

    def choose(self, view: View) -> Place | Wait | None:
        few = self.lookahead + 1  # a node does not look at itself
        oldest = nsmallest(few, [t for q in view.queues.values() for t in q.first(few)], key=lambda t: t.seq)
        mean = sum(view.executions) / len(view.pool)
        best = None
        for queue in view.queues.values():
            node = queue.head
            if node.width > view.free_count:
                continue
            future = self._future(node, [t for t in oldest if t is not node][: self.lookahead], view)
            for window in view.free_windows(node.model):
                cost = self._cost(node, window, mean, view) + self.gamma * future
                key = (cost, node.seq, window)
                if best is None or key < best[0]:
                    best = (key, node)
        if best is None:
            return None
        (_, _, window), node = best
        return Place(node, window, "least cost")

    def _cost(self, node: ReadyNode, window: Window, mean: float, view: View) -> float:
        waited = view.now - node.ready_s
        switch = view.setup_s(window, node.model)
        balance = sum([view.executions[gpu] - mean for gpu in window]) / len(window)
        return -self.alpha * waited + self.beta * switch + self.delta * balance

    @staticmethod
    def _future(node: ReadyNode, coming: list[ReadyNode], view: View) -> float:
        same = sum(t.model == node.model for t in coming)
        other = sum([view.residents.reload_s(node.model, t.model) for t in coming if t.model != node.model])
        return 0.1 * (other - same * view.models[node.model].load_s)
