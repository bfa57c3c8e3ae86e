"""The accounts of tenants: what each may have, has, waits for and was served. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from dovetail.core.events import Arrived, Reject, Start
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.inputs.tenants import EVERYBODY, NOBODY, Tenancy, quota_share
from dovetail.workflow.policies.ready import ReadyNode

EPS = 1e-9  # GPUs: where nodes share one, quotas are sums of fractions


def tenant_of(facts: Mapping[str, Any]) -> str:
    """Whose request it is; all that do not say are of one tenant."""
    name: str = facts.get("tenant", NOBODY)
    return name


def held_share(start: Start) -> float:
    """The GPUs that a started node holds, as quotas count them."""
    return len(start.devices) / (start.slots or 1)


class TenantAccount:
    """What a tenant may have and what it has."""

    __slots__ = ("held", "max_queue", "name", "quota", "served_s", "waiting", "weight")

    def __init__(self, name: str, tenancy: Tenancy) -> None:
        rule = tenancy.rule(name)
        self.name = name
        self.weight = rule.weight
        self.max_queue = inf if rule.max_queue is None else rule.max_queue
        self.quota = inf if rule.quota_gpus is None else rule.quota_gpus
        self.held = 0.0
        self.waiting = 0  # requests of which nothing has started
        self.served_s = 0.0  # GPU-seconds over weight

    @property
    def room(self) -> float:
        """GPUs that it may take now."""
        return self.quota - self.held + EPS


class _Run:
    """A node that runs: whose it is, what it was charged, and what the clocks of its GPUs showed when it started."""

    __slots__ = ("account", "began_s", "charged_s", "start")

    def __init__(self, account: TenantAccount, start: Start) -> None:
        self.account, self.start = account, start
        self.began_s = self.charged_s = 0.0


class SharedClocks:
    """A clock for each GPU that runs at one over the number of nodes on it: what passes is the part of each of them."""

    def __init__(self) -> None:
        self._clocks: dict[int, tuple[float, float, int]] = {}  # what it shows, since when, nodes

    def read(self, gpus: Iterable[int], now: float) -> float:
        """What the clocks of these GPUs show, summed."""
        return sum([self._move(gpu, now, 0) for gpu in gpus])

    def enter(self, gpus: Iterable[int], now: float, nodes: int = 1) -> None:
        for gpu in gpus:
            self._move(gpu, now, nodes)

    def leave(self, gpus: Iterable[int], now: float) -> None:
        self.enter(gpus, now, -1)

    def part(self, gpus: Iterable[int]) -> float:
        """GPUs that each of the nodes has that are on these."""
        return sum([1 / self._clocks[gpu][2] for gpu in gpus])

    def _move(self, gpu: int, now: float, nodes: int) -> float:
        at_s, since, before = self._clocks.get(gpu, (0.0, now, 0))
        if before:
            at_s += (now - since) / before
        self._clocks[gpu] = (at_s, now, before + nodes)
        return at_s


class Tenants:
    """The accounts of all tenants.

    Turns are those of start-time fair queueing. A tenant's service is the GPU-seconds of its nodes, set-ups included,
    over its weight: charged as expected when a node starts, corrected when it ends. Nodes that are on a GPU together
    share its seconds equally. The level is the least service of those who could have been served at the last start.
    Who comes back from a rest begins there; who was held back by its quota, or passed, is owed the largest charge of
    anybody at most.
    """

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._accounts: dict[str, TenantAccount] = {}
        self._waiting: dict[str, TenantAccount] = {}  # requests of which nothing has started
        self._running: dict[tuple[str, str], _Run] = {}
        self._batches: dict[tuple[int, str], int] = {}  # a batch counts once against the quota of each of its tenants
        self._clocks = SharedClocks()
        self._level_s = 0.0
        self._largest_s = 0.0  # charge of a start, over its tenant's weight

    def account(self, name: str) -> TenantAccount:
        found = self._accounts.get(name)
        if found is None:
            found = self._accounts[name] = TenantAccount(name, self._tenancy)
        return found

    # --- admission --------------------------------------------------------------------------------

    def admit(self, event: Arrived) -> Reject | None:
        """Take a request into its queue, or turn it away because that is full."""
        account, limit = self.account(tenant_of(event.facts)), self._tenancy.sharing.max_queue
        if account.waiting >= account.max_queue:
            whose, waiting, most, queue = f"tenant {account.name!r}", account.waiting, account.max_queue, account.name
        elif limit is not None and len(self._waiting) >= limit:
            whose, waiting, most, queue = "all tenants", len(self._waiting), limit, EVERYBODY
        else:
            self._waiting[event.job] = account
            account.waiting += 1
            return None
        return Reject(event.job, f"{waiting} requests of {whose} wait, and max_queue is {most}", queue=queue)

    def leave_queue(self, request: str) -> None:
        """Something of a request has started, or it was rejected."""
        account = self._waiting.pop(request, None)
        if account is not None:
            account.waiting -= 1

    def too_wide(self, node: ReadyNode, model: ModelCost) -> str | None:
        """Why a node can never run, or None."""
        name = tenant_of(node.request.facts)
        if quota_share(model) <= self.account(name).quota:
            return None
        return f"tenant {self._tenancy.too_wide(name, node.name, model)}"

    # --- service ----------------------------------------------------------------------------------

    def start(self, names: Sequence[str], starts: Sequence[Start], now: float) -> None:
        """Nodes of these tenants start as one."""
        gpus = starts[0].devices
        self._clocks.enter(gpus, now, len(starts))
        part, began_s = self._clocks.part(gpus), self._clocks.read(gpus, now)
        for name, start in zip(names, starts, strict=True):
            self.leave_queue(start.job)
            account = self.account(name)
            run = self._running[start.job, start.task] = _Run(account, start)
            run.began_s, run.charged_s = began_s, part * (start.setup_s + start.run_s)
            charge_s = run.charged_s / account.weight
            account.served_s = self._served_s(name) + charge_s
            self._largest_s = max(self._largest_s, charge_s)
            if start.batch:
                inside = self._batches.get((start.batch, name), 0)
                self._batches[start.batch, name] = inside + 1
                if inside:
                    continue
            account.held += held_share(start)

    def end(self, key: tuple[str, str], now: float) -> None:
        """A node has ended, well or not: what it took counts, not what was expected."""
        run = self._running.pop(key)
        account, start = run.account, run.start
        taken_s = self._clocks.read(start.devices, now) - run.began_s
        self._clocks.leave(start.devices, now)
        account.served_s += (taken_s - run.charged_s) / account.weight
        if start.batch:
            inside = self._batches.pop((start.batch, account.name)) - 1
            if inside:
                self._batches[start.batch, account.name] = inside
                return
        account.held -= held_share(start)

    # --- turns ------------------------------------------------------------------------------------

    def turns(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Those of these tenants that were served least, and no more than the tolerance apart; then the next ones."""
        order = sorted((self._served_s(name), name) for name in names)
        tolerance_s, at = self._tenancy.sharing.tolerance_s, 0
        while at < len(order):
            most_s, first = order[at][0] + tolerance_s, at
            while at < len(order) and order[at][0] <= most_s:
                at += 1
            yield [name for _, name in order[first:at]]

    def _served_s(self, name: str) -> float:
        return max(self.account(name).served_s, self._level_s - self._largest_s)

    def come_back(self, name: str) -> None:
        """A tenant that had nothing ready has something again."""
        account = self.account(name)
        account.served_s = max(account.served_s, self._level_s)

    def take(self, turn: Sequence[str]) -> None:
        """Something is started in this turn: those before it passed."""
        self._level_s = max(self._level_s, self._served_s(turn[0]))
