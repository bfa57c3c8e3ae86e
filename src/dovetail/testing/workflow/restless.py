"""A policy that loads models ahead of need for no reason at all: whatever it does must be valid."""

from __future__ import annotations

from typing import Any

from dovetail.core import registry
from dovetail.core.loop.executor import chance
from dovetail.workflow.policies.base import Place, Preload, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View

_MOST = 60  # preloads and waits: a run must end


class Restless(WorkflowPolicy):
    """Decides as another policy does, and lets idle GPUs load what they like."""

    def __init__(self, *, of: str = "dovetail", seed: int = 0) -> None:
        self._of: WorkflowPolicy = registry.create("workflow", of)
        self._seed, self._asked = seed, 0

    def begin(self, view: View) -> None:
        self._of.begin(view)

    def resized(self, view: View) -> None:
        self._of.resized(view)

    def learned(self, model: str, view: View) -> None:
        self._of.learned(model, view)

    def rank(self, node: ReadyNode, view: View) -> Any:
        return self._of.rank(node, view)

    def choose(self, view: View) -> Place | Wait | None:
        return self._of.choose(view)

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        return self._of.refuse(node, view)

    def preload(self, view: View) -> Preload | Wait | None:
        self._asked += 1
        drawn = chance(self._seed, "preload", self._asked)
        possible = [(m, w) for m, cost in view.models.items() if cost.width for w in view.preloadable(m)]
        if self._asked > _MOST or drawn < 0.4 or not possible:
            return None
        if drawn < 0.5:
            return Wait(view.now + 20 * drawn)
        model, window = possible[int(chance(self._seed, "which", self._asked) * len(possible))]
        return Preload(model, window, "it likes to")
