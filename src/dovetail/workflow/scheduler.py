"""The workflow scheduler: a state machine that follows requests and GPUs and lets a policy choose. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import inf
from typing import Any

from dovetail.core.errors import DovetailError, PolicyError, policy_failed, policy_gave, policy_method
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Complete,
    Failed,
    Finished,
    Grew,
    Instruction,
    Observed,
    PrepareEnded,
    Reject,
    Settled,
    Start,
    Stimulus,
    Stop,
    WakeAt,
)
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.capacity import CapacityFollower, follow
from dovetail.workflow.choices import DEFAULT_LOST_RETRIES
from dovetail.workflow.gpus.learning import Learning
from dovetail.workflow.gpus.sharing import TOKENS
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy, is_wait
from dovetail.workflow.policies.preloading import Preloading
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode, Window, tokens_of_node
from dovetail.workflow.policies.view import View
from dovetail.workflow.tenants.accounts import Tenants, tenant_of
from dovetail.workflow.tenants.lanes import LaneView
from dovetail.workflow.tenants.turns import Turns

_CANCELLED = "it was asked to be cancelled"
_LATE_S = 0.1  # what ends within so much of when it should is not late


class WorkflowScheduler:
    """`retries` is how often a failed node is tried again before its request is rejected, `lost_retries` how often one
    that was lost with the place where it ran; `tenants` admits requests, and where the view has lanes it says whose
    turn it is. With `learning` it is a live run: what was expected is one thing, what is seen another."""

    def __init__(
        self,
        view: View,
        graphs: Mapping[str, TaskGraph],
        policy: WorkflowPolicy,
        retries: int = 0,
        tenants: Tenants | None = None,
        gpus_over_time: GpusOverTime | None = None,
        lost_retries: int = DEFAULT_LOST_RETRIES,
        learning: Learning | None = None,
    ) -> None:
        self.view = view
        self.learning = learning
        if learning is not None:
            view.learn_by(learning)
        self._capacity = CapacityFollower(gpus_over_time, view) if gpus_over_time is not None else None
        self._graphs = graphs
        self._policy, self._choose = policy, policy.choose
        self._retries, self._lost_retries = retries, lost_retries
        self._requests = view.requests
        self._running = view.running
        self._preloading = Preloading(view, policy)
        self._batches: dict[int, int] = {}
        self._batch_of: dict[tuple[str, str], int] = {}
        self._seq = count()
        self._next_batch = count(1)
        self._begun = False
        self._wake_s = -inf  # when it last asked to be woken
        self._refuses = type(policy).refuse is not WorkflowPolicy.refuse
        self._tenants = tenants
        self._turns: Turns | None = None
        if tenants is not None and isinstance(view, LaneView):
            self._turns = Turns(view, tenants, self._ask, self._renew)

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        self.view.now = now
        out: list[Instruction] = []
        if not self._begun:
            self._begun = True
            if self._capacity is not None:
                self._capacity.follow(now, out)
            self._tell("begin", self.view)
        changed = resized = False
        for stimulus in stimuli:
            if isinstance(stimulus, Observed | Settled | Added):  # what is only seen changes nothing
                resized = self._seen(stimulus) or resized
                continue
            changed = True
            if type(stimulus) is Finished:
                self._finished(stimulus, now, out)
            elif type(stimulus) is Arrived:
                self._arrived(stimulus, now, out)
            elif type(stimulus) is Grew:
                self._grew(stimulus, now, out)
            elif type(stimulus) is Failed:
                self._failed(stimulus, now, out)
            elif type(stimulus) is Asked or type(stimulus) is PrepareEnded:
                self._heard(stimulus, out)
        if self._capacity is not None:
            resized = self._capacity.follow(now, out) or resized
        if resized:
            self._tell("resized", self.view)
        if resized or changed:
            if self.learning is not None:
                self.view.look_again()
            self._decide(now, out)
        return out

    def close(self, now: float) -> list[Instruction]:
        """What is left can never be completed: its nodes wait for something that will not come."""
        out: list[Instruction] = []
        for request in self._requests.values():
            never = request.graph.never
            if not never:
                continue
            i, why = next(iter(never.items()))
            out.append(Reject(request.id, f"node {request.graph.tasks[i].name!r} {why}"))
        for order in out:
            assert type(order) is Reject
            del self._requests[order.job]
        return out

    # --- what happened ----------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, out: list[Instruction]) -> None:
        if event.fault:
            out.append(Reject(event.job, event.fault))
            return
        if self._tenants is not None and (full := self._tenants.admit(event)) is not None:
            out.append(full)
            return
        graph = self._graphs[event.of]
        due = None if event.due_s is None else now + event.due_s
        request = OpenRequest(event.job, graph, event.sizes, now, due, event.weight, event.facts)
        self._requests[event.job] = request
        demand = self.view.demand
        for task, size in zip(graph.tasks, event.sizes, strict=True):
            demand[task.kind] += size * task.width
        for i in graph.roots:
            if request.open:  # the policy may have refused it for the root before
                self._ready(ReadyNode(request, i, now, next(self._seq)), now, out)

    def _finished(self, event: Finished, now: float, out: list[Instruction]) -> None:
        node, window = self._running.pop((event.job, event.task))
        if self.learning is not None:
            self._learned(self.learning.ended(now, (event.job, event.task), True))
        self._release((event.job, event.task), window)
        request = node.request
        if event.job not in self._requests:  # rejected while this node ran
            return
        request.left -= 1
        request.gpu_s_left -= node.gpu_s
        if not request.left:
            del self._requests[event.job]
            request.close()
            out.append(Complete(event.job))
            return
        waiting, never = request.waiting, request.graph.never
        for j in request.graph.before[node.index]:
            waiting[j] -= 1
            if not waiting[j] and j not in never and request.open:
                self._ready(ReadyNode(request, j, now, next(self._seq)), now, out)

    def _grew(self, event: Grew, now: float, out: list[Instruction]) -> None:
        """The end of a node, which is told next, adds nodes to its request."""
        request = self._requests.get(event.job)
        if request is None:  # rejected while this node ran
            return
        first, graph = len(request.graph.tasks), request.graph.grown(event.tasks, event.edges)
        request.grow(graph, event.sizes)
        for i, j in graph.added:
            request.waiting[j] += not self._is_done(request, i)
        for task, size in zip(event.tasks, event.sizes, strict=True):
            self.view.demand[task.kind] += size * task.width
        for i in range(first, len(graph.tasks)):
            if not request.waiting[i] and request.open:
                self._ready(ReadyNode(request, i, now, next(self._seq)), now, out)

    def _is_done(self, request: OpenRequest, i: int) -> bool:
        return bool(request.started >> i & 1) and (request.id, request.graph.tasks[i].name) not in self._running

    def _failed(self, event: Failed, now: float, out: list[Instruction]) -> None:
        node, window = self._running.pop((event.job, event.task))
        if self.learning is not None:
            self.learning.ended(now, (event.job, event.task), False)
        self._release((event.job, event.task), window)
        if event.job not in self._requests:
            return
        node.request.started ^= 1 << node.index
        self.view.demand[node.model] += node.gpu_s
        attempt, lost = node.attempt + (not event.lost), node.lost + event.lost
        if attempt <= self._retries + 1 and lost <= self._lost_retries:
            self._ready(ReadyNode(node.request, node.index, now, next(self._seq), attempt, lost), now, out)
            return
        what = f"was lost {lost} times" if event.lost else f"failed {node.attempt} times"
        self._reject(node.request, f"node {event.task!r} {what}: {event.why}", out)

    def _heard(self, event: Asked | PrepareEnded, out: list[Instruction]) -> None:
        if isinstance(event, PrepareEnded):
            self._learned(self._preloading.ended(event, self.view.now))
        else:
            self._asked(event, out)

    def _asked(self, event: Asked, out: list[Instruction]) -> None:
        """Somebody wants a request no more; about one that is closed there is nothing to say."""
        request = self._requests.get(event.job)
        if event.what != "cancel" or request is None:
            return
        names = [task.name for task in request.graph.tasks if (event.job, task.name) in self._running]
        out += [Stop(event.job, name, _CANCELLED) for name in names]
        self._reject(request, _CANCELLED, out, cancelled=True)

    def _seen(self, event: Observed | Settled | Added) -> bool:
        """Whether it is about GPUs, so that a policy must think again."""
        if isinstance(event, Settled):
            self._settled(event)
            return False
        if isinstance(event, Added):
            self._graphs = {**self._graphs, **{record.name: record.build() for record in event.graphs}}
        elif event.what == TOKENS and self.learning is not None:
            key = (str(event.facts["job"]), str(event.facts["task"]))
            if key in self._running and key[0] in self._requests:
                node = self._running[key][0]
                self.learning.counted(key, tokens_of_node(node), event.facts, node.size)
        return follow(event, self.view)

    def _settled(self, event: Settled) -> None:
        key = (event.job, event.task)
        if self.learning is not None and key in self._running:
            self._learned(self.learning.settled(self.view.now, key))
            node, window = self._running[key]
            self.view.settled(window, self.view.run_s(node, window))

    def _learned(self, model: str | None) -> None:
        if model is not None:
            self.view.learned(model)
            self._tell("learned", model, self.view)

    def _release(self, key: tuple[str, str], window: Window) -> None:
        if self._tenants is not None:
            self._tenants.end(key, self.view.now)
        batch = self._batch_of.pop(key, 0)
        if batch:
            self._batches[batch] -= 1
            if self._batches[batch]:
                return
            del self._batches[batch]
        if self.view.shares and window in self.view.shared:
            self.view.leave(window)
        elif window:
            self.view.release(window)

    def _ready(self, node: ReadyNode, now: float, out: list[Instruction]) -> None:
        view = self.view
        if self._refuses and (why := self._tell("refuse", node, view)) is not None:
            if not isinstance(why, str):
                raise policy_gave(self._policy, "refuse", why, "a reason or None", now)
            self._reject(node.request, why, out)
            return
        if self._tenants is not None and (why := self._tenants.too_wide(node, view.models[node.model])) is not None:
            self._reject(node.request, why, out)  # a node that its request was given while it ran
            return
        if not node.width:  # needs no GPU
            self._start(Place(node, (), "needs no GPU"), now, out)
            return
        self._enqueue(node)

    def _enqueue(self, node: ReadyNode) -> None:
        try:
            node.rank = self._policy.rank(node, self.view)
        except (Exception, SystemExit) as error:
            raise policy_failed(self._policy, "rank", error, self.view.now) from error
        self.view.enqueue(node)

    def _renew(self, node: ReadyNode) -> None:
        """A ready node is gone, and another takes its place."""
        self.view.dequeue(node)
        self._enqueue(ReadyNode(node.request, node.index, node.ready_s, next(self._seq), node.attempt, node.lost))

    def _reject(self, request: OpenRequest, why: str, out: list[Instruction], cancelled: bool = False) -> None:
        view = self.view
        del self._requests[request.id]
        out.append(Reject(request.id, why, cancelled))
        if self._tenants is not None:
            self._tenants.leave_queue(request.id)
        node = request.queued
        while node is not None:
            if not node.gone:
                view.dequeue(node)
            node = node.sibling
        request.close()
        for i, task in enumerate(request.graph.tasks):
            if not request.started >> i & 1:
                view.demand[task.kind] -= request.sizes[i] * task.width

    # --- what to do -------------------------------------------------------------------------------

    def _decide(self, now: float, out: list[Instruction]) -> None:
        view, turns = self.view, self._turns
        if now < 0:  # only in files read as the older scheduler did: its GPUs were there from 0 on
            return
        wake_s = inf
        while view.free_count:
            choice = self._ask() if turns is None else turns.choose(out)
            if not isinstance(choice, Place):
                wake_s = choice.until_s if choice is not None else inf
                break
            if choice.node.gone:
                raise PolicyError(f"[{now:.2f}s] the policy chose {choice.node.request.id}/{choice.node.name} twice")
            self._start(choice, now, out)
        wake_s = min(wake_s, self._preloading.decide(now, out))
        if self.learning is not None:
            wake_s = min(wake_s, self._late_s(now))
        if now < wake_s < inf and wake_s != self._wake_s:
            self._wake_s = wake_s
            out.append(WakeAt(wake_s))

    def _late_s(self, now: float) -> float:
        """Where models take their own time: when who waits beside a free GPU may wait in vain for a busy one."""
        view = self.view
        if not view.ready_count or not view.free_count:
            return inf
        next_s = view.next_free_s() + _LATE_S
        return self._wake_s if now < self._wake_s <= next_s else next_s  # what is asked for stays so

    def _ask(self) -> Place | Wait | None:
        """The policy's choice."""
        if not self.view.queues:
            return None
        try:
            choice = self._choose(self.view)
        except (Exception, SystemExit) as error:
            raise policy_failed(self._policy, "choose", error, self.view.now) from error
        if isinstance(choice, Place) and type(choice.node) is ReadyNode:
            return choice
        if choice is None or is_wait(choice):
            return choice
        expected = "Place of a node that is ready, Wait for a time in seconds, or None"
        raise policy_gave(self._policy, "choose", choice, expected, self.view.now)

    def _tell(self, method: str, *given: Any) -> Any:
        """What a policy answers that is asked more rarely."""
        try:
            return getattr(self._policy, method)(*given)
        except DovetailError:
            raise
        except (Exception, SystemExit) as error:
            raise policy_failed(self._policy, method, error, self.view.now) from error

    def _refuse_changed(self, nodes: Sequence[ReadyNode]) -> None:
        for node in nodes:
            if node.changed:
                where = f"{node.request.id}/{node.request.graph.tasks[node.index].name}"
                fault = f"the policy changed {where} itself, which it may read and never change"
                raise PolicyError(f"[{self.view.now:.2f}s] {fault}")

    def _start(self, choice: Place, now: float, out: list[Instruction]) -> None:
        node, window, why = choice
        view = self.view
        if len(window) != node.width or type(why) is not str or not _is_window(window, len(view.free)):
            given = f"Place({node.request.id}/{node.name}, {window!r}, {why!r})"
            expected = f"{node.width} of its {len(view.free)} GPUs as a tuple, and a reason"
            raise PolicyError(f"{policy_method(self._policy, 'choose', now)} gave {given}, expected {expected}")
        if view.off and not view.off.keys().isdisjoint(window):
            where = f"{node.request.id}/{node.name} on GPUs {list(window)}"
            raise PolicyError(f"[{now:.2f}s] the policy started {where}, of which one is off")
        if view.shares and window in view.shared and not view.can_start(window, node.model):
            where = f"was placed on {list(window)}, which has no free slot for {node.model}"
            raise PolicyError(f"[{now:.2f}s] {node.request.id}/{node.name} {where}")
        nodes = self._batch(node) if view.costs.batching else (node,)
        self._refuse_changed(nodes)
        run_s = view.run_s(node, window)
        batch, slower = 0, 1.0
        if len(nodes) > 1:
            batch = next(self._next_batch)
            self._batches[batch] = len(nodes)
            slower = view.models[node.model].batch_curve[len(nodes) - 1]
            run_s = max([view.run_s(member, window) for member in nodes]) * slower
        slots = view.models[node.model].slots if view.shares and window else 0
        share = view.share(node.model, window) if slots else 1.0
        loads = view.residents.load_case(window, node.model) if self.learning is not None else None
        setup_s, replaces = self._setup(node.model, window, run_s)
        for member in nodes:
            request = member.request
            key = (request.id, member.name)
            first_s = view.first_s(member, window, slower) if request.facts else None
            cached = view.cached_blocks(member, window) if view.prefixes is not None else 0
            start = Start(
                *key, member.model, window, member.ready_s, run_s, why, setup_s, replaces, batch, first_s, cached, slots
            )
            out.append(start)
            if self.learning is not None:
                self.learning.started(now, start, share, loads)
            self._running[key] = (member, window)
            if batch:
                self._batch_of[key] = batch
            request.started |= 1 << member.index
            view.demand[member.model] -= member.gpu_s
            if window:
                view.dequeue(member)
        self._preloading.started(node.model)
        if slots:
            view.join(node, window, setup_s, run_s)
        elif window:
            view.occupy(window, node.model, now + setup_s + run_s)
        if self._tenants is not None:
            starts = [order for order in out[-len(nodes) :] if isinstance(order, Start)]
            self._tenants.start([tenant_of(member.request.facts) for member in nodes], starts, now)
        if view.prefixes is not None:
            view.remember(nodes, window)

    def _setup(self, model: str, window: Window, run_s: float) -> tuple[float, str | None]:
        """What a start there must wait for its model, and which one that replaces; a load ahead of need is its own."""
        view = self.view
        ahead = bool(view.preparing) and window in view.preparing and view.can_start(window, model)
        if ahead or (view.shares and window in view.shared):
            setup_s = view.setup_s(window, model)
            if ahead:
                view.prepared(window)
            return setup_s, None
        if not (setup_s := view.residents.setup(window, model)):
            return 0.0, None
        return view.residents.visible(setup_s, run_s), view.residents.replaced(window, model)

    def _batch(self, node: ReadyNode) -> Sequence[ReadyNode]:
        """The node and those that may ride along: the next of its model, as many as the curve allows."""
        most = len(self.view.models[node.model].batch_curve)
        queue = self.view.queues.get(node.model)
        if most < 2 or queue is None or queue.count < 2:
            return [node]
        others = [other for other in queue.first(most) if other is not node]
        return [node, *others[: most - 1]]


def _is_window(window: Window, gpus: int) -> bool:
    """Whether it names GPUs that there are, as the journal must: a tuple of whole numbers."""
    return type(window) is tuple and all(type(gpu) is int and 0 <= gpu < gpus for gpu in window)
