"""Loads that were asked for before any node needs them."""

from __future__ import annotations

from dovetail.workflow.gpus.learning import USUAL_SPREAD, LoadCase

Window = tuple[int, ...]


class PreloadUnderWay:
    """A model that is being loaded on a window, for whoever comes. The scheduler plans with it, the checker recounts
    with it.

    >>> load = PreloadUnderWay(1, "llm", (0,), began_s=10.0, setup_s=4.0)
    >>> load.left_s(13.0, live=True), load.left_s(16.0, live=False), load.left_s(16.0, live=True)
    (1.0, 0.0, 3.0)
    """

    __slots__ = ("began_s", "case", "id", "model", "ready_s", "window")

    def __init__(
        self, id: int, model: str, window: Window, began_s: float, setup_s: float, case: LoadCase | None = None
    ) -> None:
        self.id, self.model, self.window = id, model, window
        self.began_s, self.ready_s = began_s, began_s + setup_s
        self.case = case  # what a live run learns from it

    def left_s(self, now: float, live: bool) -> float:
        """What is left of it; one that really takes longer than expected goes on for a share of what it has had."""
        late_s = USUAL_SPREAD * (now - self.began_s) if live and now > self.ready_s else 0.0
        return max(0.0, self.ready_s - now, late_s)
