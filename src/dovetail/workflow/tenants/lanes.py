"""Queues with a lane for each tenant: a policy sees the lanes that are offered, as if there were no other."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from dovetail.workflow.inputs.tenants import quota_share
from dovetail.workflow.policies.ready import Queue, ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.tenants.accounts import tenant_of

_NOTHING = -1.0  # room of a tenant that is not offered


class LaneQueue(Queue):
    """The ready nodes of one model in the lanes that are offered, in the policy's order."""

    __slots__ = ("_first", "lanes")

    def __init__(self, model: str, width: int) -> None:
        super().__init__(model, width)
        self.lanes: dict[str, Queue] = {}
        self._first: ReadyNode | None = None  # the head, where it is known

    def open(self, tenant: str, lane: Queue) -> None:
        self.lanes[tenant] = lane
        self.count += lane.count
        self.gpu_s += lane.gpu_s
        self.ready_s += lane.ready_s
        self._first = None

    def close(self, tenant: str) -> None:
        lane = self.lanes.pop(tenant)
        self.count -= lane.count
        self.gpu_s -= lane.gpu_s
        self.ready_s -= lane.ready_s
        self._first = None

    def push(self, node: ReadyNode) -> None:
        self.lanes[tenant_of(node.request.facts)].push(node)
        self.count += 1
        self.gpu_s += node.gpu_s
        self.ready_s += node.ready_s
        self._first = None

    def remove(self, node: ReadyNode) -> None:
        self.lanes[tenant_of(node.request.facts)].remove(node)
        self.count -= 1
        self.gpu_s -= node.gpu_s
        self.ready_s -= node.ready_s
        self._first = None

    def move(self, node: ReadyNode, rank: Any) -> None:
        self.lanes[tenant_of(node.request.facts)].move(node, rank)
        self._first = None

    @property
    def head(self) -> ReadyNode:
        if self._first is None:
            self._first = min([lane.head for lane in self.lanes.values()], key=_order)
        return self._first

    def first(self, count: int) -> list[ReadyNode]:
        return heapq.nsmallest(count, [node for lane in self.lanes.values() for node in lane.first(count)], _order)

    def nodes(self) -> list[ReadyNode]:
        return sorted([node for lane in self.lanes.values() for node in lane.nodes()], key=_order)


def _order(node: ReadyNode) -> tuple[Any, int]:
    return node.rank, node.seq


class LaneView(View):
    """Keeps the ready nodes of each tenant apart, and shows those of tenants whose turn it is and who have room."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lanes: dict[str, dict[str, Queue]] = {}  # by tenant and model: the ready nodes, offered or not
        self._rooms: dict[str, float] = {}  # who is offered, and how many GPUs may be taken
        self._shares = {name: quota_share(model) for name, model in self.models.items()}
        self.come_back: Callable[[str], None] = lambda tenant: None  # told of tenants that had nothing ready

    def ready_tenants(self) -> Iterable[str]:
        return self._lanes

    def may_start(self, tenant: str, room: float) -> bool:
        """Whether a ready node of a tenant needs no more GPUs than that."""
        return room == inf or any(self._shares[model] <= room for model in self._lanes[tenant])

    def is_offered(self, node: ReadyNode) -> bool:
        return self._is_open(tenant_of(node.request.facts), node.model)

    def offer(self, rooms: Mapping[str, float]) -> None:
        """Show the ready nodes of these tenants, and of no other, that need no more GPUs than each has room for."""
        shown, self._rooms = self._rooms, dict(rooms)
        changed = [name for name in {**shown, **rooms} if shown.get(name) != rooms.get(name)]
        for tenant in changed:
            for model, lane in self._lanes.get(tenant, {}).items():
                was = self._shares[model] <= shown.get(tenant, _NOTHING)
                if self._is_open(tenant, model) and not was:
                    self._open(tenant, model, lane)
                elif was and not self._is_open(tenant, model):
                    self._close(tenant, model, lane)

    def _is_open(self, tenant: str, model: str) -> bool:
        return self._shares[model] <= self._rooms.get(tenant, _NOTHING)

    def enqueue(self, node: ReadyNode) -> None:
        tenant = tenant_of(node.request.facts)
        if tenant not in self._lanes:
            self.come_back(tenant)
        lanes = self._lanes.setdefault(tenant, {})
        if node.model not in lanes:
            lanes[node.model] = Queue(node.model, node.width)
            if self._is_open(tenant, node.model):
                self._open(tenant, node.model, lanes[node.model])
        if self._is_open(tenant, node.model):
            self.queues[node.model].push(node)
            self.ready_count += 1
            self._changed[node.model] = None
        else:
            lanes[node.model].push(node)
        node.sibling, node.request.queued = node.request.queued, node

    def dequeue(self, node: ReadyNode) -> None:
        tenant, model = tenant_of(node.request.facts), node.model
        lane = self._lanes[tenant][model]
        if self._is_open(tenant, model):
            self.queues[model].remove(node)
            self.ready_count -= 1
            self._changed[model] = None
            if not lane.count:
                self._close(tenant, model, lane)
        else:
            lane.remove(node)
        if not lane.count:
            del self._lanes[tenant][model]
            if not self._lanes[tenant]:
                del self._lanes[tenant]
        if node.request.queued is node:
            node.request.queued = node.sibling

    def _open(self, tenant: str, model: str, lane: Queue) -> None:
        queue = self.queues.get(model)
        if queue is None:
            queue = self.queues[model] = LaneQueue(model, lane.width)
            self.wide_waiting += lane.width > 1
        assert isinstance(queue, LaneQueue)
        queue.open(tenant, lane)
        self.ready_count += lane.count
        self._changed[model] = None

    def _close(self, tenant: str, model: str, lane: Queue) -> None:
        queue = self.queues[model]
        assert isinstance(queue, LaneQueue)
        queue.close(tenant)
        self.ready_count -= lane.count
        self._changed[model] = None
        if not queue.lanes:
            del self.queues[model]
            self.wide_waiting -= lane.width > 1
