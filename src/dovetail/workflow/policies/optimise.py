"""The offline optimiser as a policy: plans once, when everything has arrived, and follows the plan."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.optimise.annealing import NodeKey
from dovetail.workflow.optimise.planner import Objective, PlannedStarts, optimise
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode, Window
from dovetail.workflow.policies.view import View


@policy("optimise", level="workflow")
class Optimise(WorkflowPolicy):
    """The best of all policies' schedules, improved by local search, then followed; never worse than any of them.

    `schedules` are tried (as many as place 300,000 nodes, at least 200); `budget_s` also limits the time, at the price
    of reproducibility. It plans at
    the first decision for what has arrived by then, so it belongs to offline mode; what comes later is placed oldest
    first where the plan leaves room. A node that fails goes first again on its GPUs. The promise holds where
    everything goes as expected: no noise, no failures, and no batches, whose members a plan does not choose.
    """

    plans_ahead = True

    def __init__(
        self,
        *,
        objective: Objective = "makespan",
        schedules: int | None = None,
        budget_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self.objective = objective
        self.schedules = schedules
        self.budget_s = budget_s
        self.seed = seed
        self.plan: PlannedStarts | None = None
        self._requests: dict[str, OpenRequest] = {}
        self._window: dict[NodeKey, Window] = {}  # of every planned node
        self._turn: dict[NodeKey, int] = {}  # simultaneous starts have an order too: host memory is shared
        self._next: list[list[NodeKey]] = []  # planned nodes of each GPU, the next one last
        self._ready: dict[NodeKey, ReadyNode] = {}
        self._unplanned: dict[NodeKey, ReadyNode] = {}

    def rank(self, node: ReadyNode, view: View) -> float:
        key = (node.request.id, node.name)
        if self.plan is None or key in self._window:
            self._ready[key] = node
        else:
            self._unplanned[key] = node
        if node.attempt > 1 and key in self._window:
            for gpu in self._window[key]:
                self._next[gpu].append(key)
        return node.ready_s

    def choose(self, view: View) -> Place | Wait | None:
        if self.plan is None:
            self._make_plan(view)
        for line in self._next:
            while line and self._is_past(line[-1]):
                line.pop()
        due = {line[-1] for gpu, line in enumerate(self._next) if line and view.free[gpu] and line[-1] in self._ready}
        first = min(filter(lambda key: self._may_start(key, view), due), key=self._turn.__getitem__, default=None)
        if first is not None:
            return Place(self._ready[first], self._window[first], "planned")
        return self._place_unplanned(view) if self._unplanned else None

    def _may_start(self, key: NodeKey, view: View) -> bool:
        return all(view.free[gpu] and self._next[gpu][-1:] == [key] for gpu in self._window[key])

    def _is_past(self, key: NodeKey) -> bool:
        """Whether a planned node has started, on its own or in a batch, or its request was rejected."""
        node = self._ready.get(key)
        return not self._requests[key[0]].open or (node is not None and node.gone)

    def _make_plan(self, view: View) -> None:
        self._requests = dict(view.requests)
        self.plan = optimise(
            view, list(self._requests.values()), self.objective, self.schedules, self.budget_s, self.seed
        )
        self._next = [[] for _ in view.pool.devices]
        for turn, (key, window) in reversed(list(enumerate(self.plan.starts))):
            self._window[key], self._turn[key] = window, turn
            for gpu in window:
                self._next[gpu].append(key)

    def _place_unplanned(self, view: View) -> Place | None:
        """Something that is not in the plan, on GPUs that the plan needs no more, or on any once nothing runs."""
        idle = view.free_count == len(view.pool)
        for key, node in list(self._unplanned.items()):
            if node.gone or not node.request.open:
                del self._unplanned[key]
                continue
            windows = view.free_windows(node.model)
            open_windows = [w for w in windows if idle or not any(self._next[gpu] for gpu in w)]
            if open_windows:
                _, window = min((view.setup_s(w, node.model), w) for w in open_windows)
                return Place(node, window, "not in the plan")
        return None
