"""Greedy on one cost: waiting, switching, what comes next, and balance between GPUs."""

from __future__ import annotations

from heapq import nsmallest

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Policy, ReadyNode, View, Wait, Window


@policy("online", level="workflow")
class Online(Policy):
    """Least cost first: -alpha x waited + beta x switch + gamma x future + delta x balance.

    `future` looks at the `lookahead` oldest ready nodes: those of the same model will find it loaded, the others will
    have to replace it. `balance` is how many more executions the GPUs have had than the average. Only free GPUs are
    given away, so nothing is bound early and every GPU takes what is best for it (work stealing).
    """

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
            task = queue.head
            if task.width > view.free_count:
                continue
            future = self._future(task, [t for t in oldest if t is not task][: self.lookahead], view)
            for window in view.free_windows(task.model):
                cost = self._cost(task, window, mean, view) + self.gamma * future
                key = (cost, task.seq, window)
                if best is None or key < best[0]:
                    best = (key, task)
        if best is None:
            return None
        (_, _, window), task = best
        return Place(task, window, "least cost")

    def _cost(self, task: ReadyNode, window: Window, mean: float, view: View) -> float:
        waited = view.now - task.ready_s
        switch = view.setup_s(window, task.model)
        balance = sum([view.executions[gpu] - mean for gpu in window]) / len(window)
        return -self.alpha * waited + self.beta * switch + self.delta * balance

    @staticmethod
    def _future(task: ReadyNode, coming: list[ReadyNode], view: View) -> float:
        same = sum(t.model == task.model for t in coming)
        other = sum([view.residents.reload_s(task.model, t.model) for t in coming if t.model != task.model])
        return 0.1 * (other - same * view.models[task.model].load_s)
