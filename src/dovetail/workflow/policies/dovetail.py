"""The default policy: start here, wait for a warm window, or start elsewhere, whichever costs everybody least."""

from __future__ import annotations

from math import inf
from typing import Literal, NamedTuple

from dovetail.core.registry import policy
from dovetail.workflow.policies.base import Place, Preload, Wait, WorkflowPolicy
from dovetail.workflow.policies.coming import PreloadAdvice
from dovetail.workflow.policies.demand_picture import DemandPicture
from dovetail.workflow.policies.ready import Queue, ReadyNode, Window
from dovetail.workflow.policies.view import View
from dovetail.workflow.policies.window_prices import CAP, WindowOption, WindowPrices, backlog_s

Objective = Literal["balanced", "mean", "tail", "makespan"]
# what a request's size counts, as a share of the backlog for one of mean size, and up to which multiple of that size
_NUDGE = {"balanced": (0.5, 1.5), "mean": (1.0, 3.0), "tail": (0.2, 1.5), "makespan": (0.0, 0.0)}
_LATE = 2.0  # backlogs that a request steps back once it cannot be on time
_STARVED = 2.0  # backlogs, with its own size, after which a wide node gets a reservation in any case


class Rank(NamedTuple):
    """A node's place: on the clock; the backlog when it became ready; whether it stepped back for being late."""

    at_s: float
    backlog_s: float
    late: bool = False

    def step_back(self, backlog_s: float) -> Rank:
        return Rank(self.at_s + _LATE * backlog_s, self.backlog_s, late=True)


@policy("dovetail", level="workflow")
class Dovetail(WorkflowPolicy):
    """Whatever costs everybody the least waiting: start here now, wait for a warm window, or start elsewhere.

    Oldest request first, nudged by what is left of it: a small one may pass a large one by a share of the backlog;
    weights move a request within the backlog; who can no longer be on time steps back by two backlogs. A node goes to
    the free window of least harm, counting what the evicted model loses while it is away; it waits for a busy window
    that holds its model, or is faster, where that loses less. A node that must load its model has to be older by a
    surcharge, the square root of lot sizes, with a cap that is fixed when it becomes ready, and that, unless it is
    late or wide ones wait, shrinks to nothing while it waits from once to twice as long; and while others can use the
    window, it waits until its queue has lost, since the window last got another model, what the switch costs all.

    Promise, for alike GPUs, equal weights and requests that are not late: on a window that is free for it, a node whose
    model is loaded nowhere is passed only by requests that arrived at most 1.75 D + 10 s after its own, or D + 10 s
    after it became ready, where D is the backlog when it became ready (work that had arrived and not started, over the
    speed of the pool) and s the GPU-seconds of its set-up and of those of evicted models that are waited for: at any
    load, in a run of any length. A wide node without a free window, and where nodes share GPUs also one whose model
    is loaded nowhere, gets a reservation when it is its turn, at the latest when it has waited 3 D + 10 s + twice its
    size, one node at a time: its GPUs are then given only to nodes that end before the last of them is free
    (backfilling).

    `objective` is what to favour: `mean` small requests, `tail` old ones, `makespan` long paths; `balanced` is between.
    With `preload`, while nothing waits and the pool is calm, an idle GPU loads the model of a node that comes next, so
    that it is there when the node before it ends.
    """

    def __init__(self, *, objective: Objective = "balanced", preload: bool = False) -> None:
        self.objective = objective
        self.preloads = preload
        self._reserved: tuple[ReadyNode, Window] | None = None

    def begin(self, view: View) -> None:
        self._demand = DemandPicture(view)

    def resized(self, view: View) -> None:
        self._reserved = None  # its GPUs may have gone
        self._demand.resized(view)

    def learned(self, model: str, view: View) -> None:
        self._demand.learned(model, view)

    # --- order ------------------------------------------------------------------------------------

    def rank(self, node: ReadyNode, view: View) -> Rank:
        self._demand.add(node, view.now)
        request, now_s = node.request, backlog_s(view)
        beta, top = _NUDGE[self.objective]
        # over the mean request, times the backlog: left / (backlog / requests) * backlog
        size_s = len(view.requests) * request.gpu_s_left / (view.total_speed * request.weight)
        at_s = request.arrived_s + beta * min(size_s, top * now_s) + now_s * (1 / request.weight - 1)
        if self.objective == "makespan":
            at_s -= node.tail_s
        rank = Rank(at_s, now_s)
        if request.due_s is None:
            return rank
        return rank.step_back(now_s) if _is_late(node, view) else rank

    def choose(self, view: View) -> Place | Wait | None:
        kept: Window = ()
        if (view.wide_waiting or view.shares) and (reservation := self._reservation(view)) is not None:
            node, kept = reservation
            if all(view.free[gpu] for gpu in kept):
                self._reserved = None
                return self._place(node, kept, "reserved until its GPUs were free", view)
        prices = WindowPrices(view, self._demand, kept)
        best: tuple[ReadyNode, WindowOption] | None = None
        best_s, paid, free, is_beaten = inf, False, view.free_count, prices.is_beaten
        for (at_s, then_s, _), _, queue in self._heads(view):  # of equal keys the first stays
            if paid and at_s >= best_s:
                break
            if queue.width > free or (best and is_beaten(queue, then_s, best_s - at_s, paid)):
                continue
            option = prices.option(queue, queue.head)
            if option is not None:
                setup_s = option.setup_s and option.setup_s + option.return_s
                key_s = at_s + prices.surcharge(queue, then_s, setup_s)
                is_paid = prices.is_paid(queue, then_s, setup_s, option.window)
                if is_paid > paid or (is_paid == paid and key_s < best_s):
                    best_s, paid, best = key_s, is_paid, (queue.head, option)
        if best is None:
            return None
        node, option = best
        if option.window in view.shared:
            return Place(node, option.window, "gets more done beside others")
        return self._place(node, option.window, "worth the load" if option.setup_s else "warm", view)

    def preload(self, view: View) -> Preload | Wait | None:
        if not self.preloads or view.ready_count:
            return None
        choice = PreloadAdvice(view, self._demand, self._reserved[1] if self._reserved else ()).next()
        if isinstance(choice, Preload):
            self._demand.loaded(choice.window, view.now)
        return choice

    def _place(self, node: ReadyNode, window: Window, why: str, view: View) -> Place:
        if view.setup_s(window, node.model):
            self._demand.loaded(window, view.now)
        return Place(node, window, why)

    def _heads(self, view: View) -> list[tuple[Rank, int, Queue]]:
        """The heads in order, after those that have become late stepped back: each does so once."""
        if self._demand.deadlines:
            for _, _, queue in view.heads():
                while not (head := queue.head).rank.late and _is_late(head, view):
                    view.move(head, head.rank.step_back(backlog_s(view)))
        return view.heads()

    # --- nodes that find no free window -----------------------------------------------------------

    def _reservation(self, view: View) -> tuple[ReadyNode, Window] | None:
        """The node whose turn it is and the GPUs kept for it, from then on until it starts: a wide one, or one of a
        model that is loaded nowhere, where others share GPUs and would join them for ever."""
        if self._reserved is not None and (self._reserved[0].gone or not self._reserved[0].request.open):
            self._reserved = None
        if self._reserved is None:
            blocked = [
                queue
                for _, _, queue in view.heads()
                if (queue.width > 1 or (view.shares and not view.residents.holders.get(queue.model)))
                and not view.free_windows(queue.model)
                and view.roomy_windows(queue.model)
            ]
            due = [queue.head for queue in blocked if self._is_due(queue, view)]
            if due:
                node = min(due, key=lambda t: (t.rank, t.seq))
                self._reserved = (node, _earliest_window(node, view))
        return self._reserved

    def _is_due(self, queue: Queue, view: View) -> bool:
        """Whether it is a node's turn, even with a surcharge for its set-up and for GPUs that idle until its window is
        collected; or whether it has waited too long to be asked that."""
        node = queue.head
        rank: Rank = node.rank
        next_s = min([other.at_s for other, _, of in view.heads()[:2] if of is not queue], default=inf)
        waited_s, limit_s = view.now - node.ready_s, rank.backlog_s + _STARVED * (rank.backlog_s + node.size)
        if rank.at_s >= next_s and waited_s <= limit_s:
            return False
        window = _earliest_window(node, view)
        setup_s, free_s = view.setup_s(window, node.model), view.free_at(window)
        if waited_s > limit_s + CAP * setup_s * node.width:
            return True
        idle_s = sum(free_s - view.free_at((gpu,)) for gpu in window) / node.width
        prices = WindowPrices(view, self._demand, ())
        if not prices.is_paid(queue, rank.backlog_s, setup_s + idle_s, window):
            return False
        return rank.at_s + prices.surcharge(queue, rank.backlog_s, setup_s + idle_s) < next_s


def _earliest_window(node: ReadyNode, view: View) -> Window:
    return min(view.roomy_windows(node.model), key=lambda w: (view.free_at(w), w))


def _is_late(node: ReadyNode, view: View) -> bool:
    """Whether its request cannot be on time any more, even on the fastest GPU there is."""
    due_s = node.request.due_s
    return due_s is not None and view.now + node.tail_s / view.fastest > due_s
