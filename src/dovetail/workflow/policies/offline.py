"""Batches by model: stay with a model while it has work, then turn to the largest group that waits."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.view import View


@policy("offline", level="workflow")
class Offline(WorkflowPolicy):
    """No switch while a ready node finds its model on free GPUs; then one to the largest waiting group of a model."""

    turn = 2

    def choose(self, view: View) -> Place | Wait | None:
        best = None
        for queue in view.queues.values():
            if queue.width > view.free_count:
                continue
            for window in view.free_windows(queue.model):
                price = view.setup_s(window, queue.model)
                key = (price > 0, -queue.gpu_s if price else 0.0, price, queue.head.seq, window)
                if best is None or key < best[0]:
                    best = (key, queue)
        if best is None:
            return None
        (cold, _, _, _, window), queue = best
        return Place(queue.head, window, "largest group" if cold else "same model")
