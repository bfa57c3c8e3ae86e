"""Least slack first: who must start soonest to meet its deadline."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import ListPolicy, Place, Wait
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View


@policy("deadline", level="workflow")
class Deadline(ListPolicy):
    """The node with the earliest latest start goes first: its deadline less the longest path that is left.

    A request without a deadline gets one at `slack` times its longest path after arrival; one that cannot be on time
    any more gets a new one, so much after that is seen, and makes room for those that can. With `admit`, a request that
    cannot meet its deadline any more when a node becomes ready is rejected instead of being finished late.
    """

    turn = 6

    def __init__(self, *, slack: float = 10.0, admit: bool = False, hysteresis: float = 4.0) -> None:
        super().__init__(hysteresis=hysteresis)
        self.slack = slack
        self.admit = admit

    def rank(self, node: ReadyNode, view: View) -> float:
        request = node.request
        if request.due_s is None:
            return self._after(request.arrived_s, node)
        return self._after(view.now, node) if _is_late(node, view) else request.due_s - node.tail_s

    def _after(self, since_s: float, node: ReadyNode) -> float:
        request = node.request
        return since_s + self.slack * request.graph.longest_path(request.sizes) - node.tail_s

    def choose(self, view: View) -> Place | Wait | None:
        for _, _, queue in list(view.heads()):
            while (due_s := queue.head.request.due_s) is not None and _is_late(queue.head, view):
                if queue.head.rank != due_s - queue.head.tail_s:  # it has a new one
                    break
                view.move(queue.head, self._after(view.now, queue.head))
        return super().choose(view)

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        due_s = node.request.due_s
        if not self.admit or due_s is None or not _is_late(node, view):
            return None
        return f"cannot meet its deadline: {node.tail_s:.1f} s of work left, {due_s - view.now:.1f} s of time"


def _is_late(node: ReadyNode, view: View) -> bool:
    """Whether its request cannot be on time any more, even on the fastest GPU there is."""
    due_s = node.request.due_s
    return due_s is not None and view.now + node.tail_s / view.fastest > due_s
