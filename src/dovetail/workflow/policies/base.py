"""What a workflow policy is: what it sees (`View`, which it may read and never change), what it answers, and from what
class it derives."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple, TypeGuard

from dovetail.workflow.policies.ready import ReadyNode, Window
from dovetail.workflow.policies.view import View


class Place(NamedTuple):
    """Start this node on these GPUs now, because."""

    node: ReadyNode
    window: Window
    why: str


class Preload(NamedTuple):
    """Load this model on these GPUs now, which are free, because: before any node needs it."""

    model: str
    window: Window
    why: str


class Wait(NamedTuple):
    """Start nothing; look again at `until_s` at the latest."""

    until_s: float


def is_wait(answer: object) -> TypeGuard[Wait]:
    """Whether a policy answered that it waits, and until when.

    >>> is_wait(Wait(3)), is_wait(Wait("soon"))  # type: ignore[arg-type]
    (True, False)
    """
    return isinstance(answer, Wait) and isinstance(answer.until_s, Real)


class WorkflowPolicy:
    """State in, decision with a reason out. Keyword parameters of `__init__` are the policy's options."""

    plans_ahead = False  # whether it must see all requests at its first decision, and so belongs to offline mode
    preloads = False  # whether it may load models ahead of need
    turn = 0  # when a planner tries it among the schedules that it starts from; 0: not at all

    def begin(self, view: View) -> None:
        """Called once, before the first decision."""

    def resized(self, view: View) -> None:
        """GPUs have come or gone (`view.off`), which `roomy_windows` and `size` know: what a policy keeps of the pool
        may be wrong now."""

    def learned(self, model: str, view: View) -> None:
        """In a live run: the model is faster or slower than was known, or its loads are."""

    def rank(self, node: ReadyNode, view: View) -> Any:
        """The order within a model's queue: the smallest goes first. Asked once, when the node becomes ready."""
        return node.seq

    def choose(self, view: View) -> Place | Wait | None:
        """The next node to start, or nothing. Asked again after each start, until it starts nothing."""
        raise NotImplementedError

    def preload(self, view: View) -> Preload | Wait | None:
        """A model to load on GPUs that are idle now, or nothing. Asked when nothing more is started and some GPU is
        free (also while nothing waits), again after each, until it preloads nothing.

        GPUs are held until the load is over, unless a node of the model starts there first: it waits for the rest.
        What could not be loaded is not preloaded again until a node of that model has been started.
        """
        return None

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        """Why a ready node's request should be rejected now, or None (admission control)."""
        return None


class ListPolicy(WorkflowPolicy):
    """Greedy over the queue heads: the smallest `rank` plus `hysteresis` x the price of the switch goes first, on the
    free window where it ends first. Derive from it and give a `rank` in seconds."""

    aligned = True

    def __init__(self, *, hysteresis: float = 0.0) -> None:
        self.hysteresis = hysteresis

    def choose(self, view: View) -> Place | Wait | None:
        best: tuple[Any, ...] | None = None
        size = view.size
        setup = view.setup_s
        for queue in view.queues.values():
            if queue.width > view.free_count:
                continue
            windows = view.free_windows(queue.model, self.aligned)
            if not windows:
                continue
            node = queue.head
            if view.level:
                price, window = min([(setup(w, queue.model), w) for w in windows])
            else:
                _, window = min([(setup(w, queue.model) + view.run_s(node, w), w) for w in windows])
                price = setup(window, queue.model)
            key = (node.rank + self.hysteresis * price * queue.width / size, node.seq, window, node, price)
            if best is None or key < best:
                best = key
        if best is None:
            return None
        _, _, window, node, price = best
        return Place(node, window, "warm" if price == 0 else "ends first here")
