"""What every workflow policy is: a rank for the ready nodes, and a choice among the heads of the queues."""

from __future__ import annotations

from typing import Any, NamedTuple

from dovetail.workflow.view import ReadyNode, View, Window


class Place(NamedTuple):
    """Start this node on these GPUs now, because."""

    task: ReadyNode
    window: Window
    why: str


class Wait(NamedTuple):
    """Start nothing; look again at `until_s` at the latest."""

    until_s: float


class Policy:
    """State in, decision with a reason out. Keyword parameters of `__init__` are the policy's options."""

    plans_ahead = False  # whether it must see all requests at its first decision, and so belongs to offline mode

    def begin(self, view: View) -> None:
        """Called once, before the first decision."""

    def rank(self, task: ReadyNode, view: View) -> Any:
        """The order within a model's queue: the smallest goes first. Asked once, when the node becomes ready."""
        return task.seq

    def choose(self, view: View) -> Place | Wait | None:
        """The next node to start, or nothing. Asked again after each start, until it starts nothing."""
        raise NotImplementedError

    def refuse(self, task: ReadyNode, view: View) -> str | None:
        """Why a ready node's request should be rejected now, or None (admission control)."""
        return None


class ListPolicy(Policy):
    """Greedy over the queue heads: the smallest `rank` plus `hysteresis` x the price of the switch goes first, on its
    cheapest free window. Derive from it and give a `rank` in seconds."""

    aligned = True

    def __init__(self, *, hysteresis: float = 0.0) -> None:
        self.hysteresis = hysteresis

    def choose(self, view: View) -> Place | Wait | None:
        best: tuple[Any, ...] | None = None
        size = len(view.pool)
        setup = view.residents.setup
        for queue in view.queues.values():
            if queue.width > view.free_count:
                continue
            windows = view.free_windows(queue.model, self.aligned)
            if not windows:
                continue
            task = queue.head
            price, window = min([(setup(w, queue.model), w) for w in windows])
            key = (task.rank + self.hysteresis * price * queue.width / size, task.seq, window, task, price)
            if best is None or key < best:
                best = key
        if best is None:
            return None
        _, _, window, task, price = best
        return Place(task, window, "warm" if price == 0 else "cheapest window")
