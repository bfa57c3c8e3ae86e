"""Heterogeneous earliest finish time: longest remaining path first, where it finishes first."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View


@policy("heft", level="workflow")
class Heft(WorkflowPolicy):
    """The node with the longest path behind it goes first, to the window where it would finish earliest.

    If that window is still busy, the node waits for it, and others may use only what it does not need.
    """

    turn = 7

    def rank(self, node: ReadyNode, view: View) -> float:
        return -node.tail_s

    def choose(self, view: View) -> Place | Wait | None:
        claimed: set[int] = set()
        for head in sorted((queue.head for queue in view.queues.values()), key=lambda t: (t.rank, t.seq)):
            open_windows = [w for w in view.roomy_windows(head.model) if claimed.isdisjoint(w)]
            if not open_windows:
                continue
            _, window = min((view.ready_at(w, head.model) + view.run_s(head, w), w) for w in open_windows)
            if view.can_start(window, head.model):
                return Place(head, window, "earliest finish")
            claimed.update(window)
        return None
