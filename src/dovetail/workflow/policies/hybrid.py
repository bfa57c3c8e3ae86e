"""Batches by model with a priority, each node on the GPU that has been free longest."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.view import View


@policy("hybrid", level="workflow")
class Hybrid(WorkflowPolicy):
    """The batch with the highest priority (many nodes, much work, short load) goes first, on the earliest free GPUs."""

    turn = 3

    def __init__(self, *, per_node: float = 1000.0, per_second: float = 1.0, per_load_second: float = 10.0) -> None:
        self.per_node = per_node
        self.per_second = per_second
        self.per_load_second = per_load_second

    def choose(self, view: View) -> Place | Wait | None:
        best = None
        for queue in view.queues.values():
            windows = view.free_windows(queue.model) if queue.width <= view.free_count else ()
            if not windows:
                continue
            work_s = queue.gpu_s / queue.width
            load_s = view.models[queue.model].load_s
            priority = self.per_node * queue.count + self.per_second * work_s - self.per_load_second * load_s
            key = (-priority, queue.head.seq)
            if best is None or key < best[0]:
                best = (key, queue, windows)
        if best is None:
            return None
        _, queue, windows = best
        idle = view.idle_since
        window = min(windows, key=lambda w: (max(idle[gpu] for gpu in w), w))
        return Place(queue.head, window, "highest batch priority")
