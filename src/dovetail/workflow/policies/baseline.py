"""First come, first served over single nodes, as the older scheduler did it."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View


@policy("baseline", level="workflow")
class Baseline(WorkflowPolicy):
    """The node that became ready first goes first, on a warm GPU or the longest idle; what does not fit is overtaken.

    Multi-GPU nodes take the first free run of GPUs, whatever it holds.
    """

    turn = 1

    def choose(self, view: View) -> Place | Wait | None:
        first: ReadyNode | None = None
        for queue in view.queues.values():
            if queue.width > view.free_count:
                continue
            head = queue.head
            if (first is None or head.seq < first.seq) and view.free_windows(queue.model, aligned=False):
                first = head
        if first is None:
            return None
        windows = view.free_windows(first.model, aligned=False)
        if first.width > 1:
            return Place(first, windows[0], "first free window")
        held = view.residents.held
        for window in windows:
            if first.model in held[window[0]]:
                return Place(first, window, "warm")
        idle = view.idle_since
        return Place(first, min(windows, key=lambda w: (idle[w[0]], w)), "longest idle")
