"""The offline optimiser as a policy: plans once, when everything has arrived, and follows the plan."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.planner import Key, Objective, Plan, optimise
from dovetail.workflow.policy import ListPolicy, Place, Wait
from dovetail.workflow.view import Task, View, Window


@policy("optimise", level="workflow")
class Optimise(ListPolicy):
    """The best of several list schedules, improved by local search, then followed; never worse than the default policy.

    `schedules` candidates are simulated; `budget_s` also limits the time, at the price of reproducibility. It plans at
    the first decision for what has arrived by then, so it belongs to offline mode; what comes later, or comes back
    after a failure, is placed oldest first where the plan leaves room.
    """

    def __init__(
        self,
        *,
        objective: Objective = "makespan",
        schedules: int = 200,
        budget_s: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(hysteresis=40.0)
        self.objective = objective
        self.schedules = schedules
        self.budget_s = budget_s
        self.seed = seed
        self.plan: Plan | None = None
        self._next: list[list[Key]] = []
        self._window: dict[Key, Window] = {}
        self._ready: dict[Key, Task] = {}

    def rank(self, task: Task, view: View) -> float:
        self._ready[task.run.id, task.name] = task
        return task.ready_s

    def choose(self, view: View) -> Place | Wait | None:
        if self.plan is None:
            self._make_plan(view)
        for gpu, line in enumerate(self._next):
            if not line or not view.free[gpu]:
                continue
            key = line[-1]
            window = self._window[key]
            task = self._ready.get(key)
            if task is not None and all(view.free[g] and self._next[g][-1:] == [key] for g in window):
                for g in window:
                    self._next[g].pop()
                del self._window[key], self._ready[key]
                return Place(task, window, "planned")
        return self._unplanned(view) if self._ready.keys() - self._window.keys() else None

    def _make_plan(self, view: View) -> None:
        runs = {t.run.id: t.run for queue in view.queues.values() for t in queue.tasks()}
        self.plan = optimise(view, list(runs.values()), self.objective, self.schedules, self.budget_s, self.seed)
        self._next = [[] for _ in view.pool.devices]
        for key, window in reversed(self.plan.starts):
            self._window[key] = window
            for gpu in window:
                self._next[gpu].append(key)

    def _unplanned(self, view: View) -> Place | Wait | None:
        """Something that is not in the plan, on GPUs that the plan needs no more, or on any once nothing runs."""
        choice = super().choose(view)
        if isinstance(choice, Place) and (key := (choice.task.run.id, choice.task.name)) not in self._window:
            finished = all(not self._next[gpu] for gpu in choice.window)
            if finished or view.free_count == len(view.pool):
                del self._ready[key]
                return choice
        return None
