"""Shortest remaining work first, with ageing."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import ListPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View


@policy("srpt", level="workflow")
class Srpt(ListPolicy):
    """The request with the fewest GPU-seconds left goes first; each second of waiting counts as `ageing` of them.

    They are counted when its node becomes ready, and divided by the request's weight.
    """

    turn = 5

    def __init__(self, *, ageing: float = 0.1, hysteresis: float = 40.0) -> None:
        super().__init__(hysteresis=hysteresis)
        self.ageing = ageing

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.request.gpu_s_left / node.request.weight + self.ageing * node.ready_s
