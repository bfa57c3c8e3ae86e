"""A policy for tests that preloads at once the model of whatever comes next."""

from __future__ import annotations

from dovetail.workflow.policies.base import ListPolicy, Preload, Wait
from dovetail.workflow.policies.coming import coming_nodes
from dovetail.workflow.policies.view import View


class Eager(ListPolicy):
    """First come, first served."""

    def preload(self, view: View) -> Preload | Wait | None:
        for node in coming_nodes(view):
            windows = view.preloadable(node.model)
            if windows and not view.warm_windows(node.model):
                return Preload(node.model, windows[0], "it comes next")
        return None
