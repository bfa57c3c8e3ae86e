"""Least slack first: who must start soonest to meet its deadline."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import ListPolicy, ReadyNode, View


@policy("deadline", level="workflow")
class Deadline(ListPolicy):
    """The node with the earliest latest start goes first: its deadline less the longest path that is left.

    A request without a deadline gets one at `slack` times its longest path after arrival. With `admit`, a request that
    cannot meet its deadline any more is rejected at once instead of being finished late.
    """

    turn = 6

    def __init__(self, *, slack: float = 10.0, admit: bool = False, hysteresis: float = 4.0) -> None:
        super().__init__(hysteresis=hysteresis)
        self.slack = slack
        self.admit = admit

    def rank(self, node: ReadyNode, view: View) -> float:
        request = node.request
        due_s = request.due_s
        if due_s is None:
            due_s = request.arrived_s + self.slack * request.graph.longest_path(request.sizes)
        return due_s - node.tail_s

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        due_s = node.request.due_s
        if not self.admit or due_s is None or view.now + node.tail_s / view.fastest <= due_s:
            return None
        return f"cannot meet its deadline: {node.tail_s:.1f} s of work left, {due_s - view.now:.1f} s of time"
