"""What tenants have, wait for and hold at every instant of a run, from its events alone: for its checker and its
figures, which trust nothing that the scheduler counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from dovetail.core.events import Added, Arrived, Complete, Decided, Failed, Finished, Grew, Reject, Start
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy, quota_share

_SLACK = 1e-6  # GPUs
PASSED = "passed"  # what is decided about tenants for which the policy starts nothing now

Key = tuple[str, str]


class _OpenJob:
    """A request under way: whose it is, and which of its nodes have finished."""

    def __init__(self, tenant: str, graph: TaskGraph) -> None:
        self.tenant = tenant
        self.graph = graph
        self.done: set[int] = set()


class _Holding:
    def __init__(self, tenant: str, start: Start) -> None:
        self.tenant = tenant
        self.start = start
        self.clock_s = 0.0
        self.expected_s = 0.0


class TenantState:
    """One tenant. `service_s` counts GPU-seconds, `virtual_s` what turns go by: service over weight, as expected where
    a node still runs, and from the level on where the tenant has rested."""

    def __init__(self, name: str, tenancy: Tenancy) -> None:
        rule = tenancy.rule(name)
        self.name = name
        self.weight = rule.weight
        self.quota = inf if rule.quota_gpus is None else rule.quota_gpus
        self.max_queue = inf if rule.max_queue is None else rule.max_queue
        self.ready: dict[Key, float] = {}  # nodes that wait for GPUs, and what they would hold
        self._shares: Counter[float] = Counter()  # how many would hold so much
        self.waiting: dict[str, None] = {}  # requests of which nothing has started
        self.holds: dict[Key | int, float] = {}  # by node or batch
        self.running: dict[Key, int] = {}  # which start they were
        self.batches: Counter[int] = Counter()  # how many of its nodes run in each
        self.beside: Counter[int] = Counter()  # how many of its nodes are on GPUs on which so many are
        self.virtual_s = 0.0
        self.service_s = 0.0

    def add(self, key: Key, share: float) -> None:
        """A node is ready."""
        self.ready[key] = share
        self._shares[share] += 1

    def take(self, key: Key) -> float:
        """A node is ready no more, if it was; gives what it would hold."""
        share = self.ready.pop(key, None)
        if share is None:
            return 0.0
        self._shares[share] -= 1
        if not self._shares[share]:
            del self._shares[share]
        return share

    @property
    def gpus(self) -> float:
        """How many it has now: those on which several nodes are count in parts."""
        return sum((count / nodes for nodes, count in sorted(self.beside.items()) if nodes > 0), 0.0)

    @property
    def held(self) -> float:
        return sum(self.holds.values())

    @property
    def may_start(self) -> bool:
        """Whether something is ready for which its quota has room."""
        if self.quota == inf or not self.ready:
            return bool(self.ready)
        room = self.quota - self.held + _SLACK
        return any(share <= room for share in self._shares)


class TenantLedger:
    """Follows a run step by step."""

    def __init__(self, graphs: Mapping[str, TaskGraph], models: Mapping[str, ModelCost], tenancy: Tenancy) -> None:
        self._graphs = dict(graphs)
        self._shares = {name: quota_share(model) for name, model in models.items()}
        self._tenancy = tenancy
        self.tenants: dict[str, TenantState] = {}
        self.jobs: dict[str, _OpenJob] = {}
        self._holdings: dict[Key, _Holding] = {}
        self._gpus: dict[int, tuple[float, float, int]] = {}  # seconds of each node there, at which instant, nodes
        self._on: defaultdict[int, Counter[str]] = defaultdict(Counter)  # of each GPU: nodes of each tenant
        self._started = 0
        self._at_once: dict[Key, tuple[float, Start]] = {}  # of this step: nodes that need no GPU
        self.level_s = 0.0
        self._largest_s = 0.0
        self.passed: list[str] = []  # tenants that the policy passed before what starts now

    def state(self, name: str) -> TenantState:
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = TenantState(name, self._tenancy)
        return found

    def virtual_s(self, state: TenantState) -> float:
        return max(state.virtual_s, self.level_s - self._largest_s)

    def starts(self, t: float, events: Sequence[Any]) -> Iterator[list[Start]]:
        """Take a step; gives the nodes that start as one, before they are counted."""
        closed = {event.job for event in events if type(event) is Complete or type(event) is Reject}
        self._at_once = {(e.job, e.task): (t, e) for e in events if type(e) is Start and not e.devices}
        for event in _admitted(events):
            if type(event) is Finished or type(event) is Failed:
                self._end(t, event)
            elif type(event) is Arrived:
                self._arrive(event)
            elif type(event) is Grew:
                self._grow(event)
            elif type(event) is Added:
                self._graphs |= {record.name: record.build() for record in event.graphs}
            else:
                continue
            if not isinstance(event, Added) and event.job in closed:
                self._close(event.job)  # at once: whether a tenant has anything else ready matters to its next node
        for job in closed:
            self._close(job)
        batches, passed = _begun(events)
        for members, self.passed in zip(batches, passed, strict=False):
            yield members
            if members[0].devices and self._tenancy.tenants:
                self._raise_level()
            if members[0].devices or (members[0].job, members[0].task) in self._at_once:
                self._start(t, members)

    def served(self) -> dict[str, float]:
        """What those tenants were served that could go now."""
        return {state.name: self.virtual_s(state) for state in self.tenants.values() if state.may_start}

    def _raise_level(self) -> None:
        rest = [served_s for name, served_s in self.served().items() if name not in self.passed]
        self.level_s = max([self.level_s, *([min(rest)] if rest else [])])

    def waits_for(self, job: str) -> str | None:
        """The tenant of a request of which nothing has started, or None."""
        found = self.jobs.get(job)
        return found.tenant if found is not None and job in self.state(found.tenant).waiting else None

    def is_shared(self, gpus: Sequence[int]) -> bool:
        """Whether nodes are on these GPUs already."""
        return any(self._gpus[gpu][2] for gpu in gpus if gpu in self._gpus)

    def rates(self) -> dict[str, float]:
        """How many GPUs each tenant has now, by what of theirs has run longest."""
        running = [state for state in self.tenants.values() if state.running]
        running.sort(key=lambda state: next(iter(state.running.values())))
        return {state.name: state.gpus for state in running}

    # --- requests ---------------------------------------------------------------------------------

    def _arrive(self, event: Arrived) -> None:
        graph = self._graphs.get(event.of)
        if event.fault or graph is None:
            return
        job = self.jobs[event.job] = _OpenJob(event.facts.get("tenant", NOBODY), graph)
        self.state(job.tenant).waiting[event.job] = None
        for i in graph.roots:
            self._ready(event.job, job, i)

    def _grow(self, event: Grew) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        first, job.graph = len(job.graph.tasks), job.graph.grown(event.tasks, event.edges)
        for i in range(first, len(job.graph.tasks)):
            if job.done.issuperset(job.graph.after[i]):
                self._ready(event.job, job, i)

    def _ready(self, name: str, job: _OpenJob, i: int) -> None:
        task = job.graph.tasks[i]
        if not task.width and (at_once := self._at_once.pop((name, task.name), None)) is not None:
            self._start(at_once[0], [at_once[1]])  # before anything else of this step is heard of
        if task.width:
            state = self.state(job.tenant)
            if not state.ready:
                state.virtual_s = max(state.virtual_s, self.level_s)
            state.add((name, task.name), self._shares.get(task.kind, float(task.width)))

    def _close(self, name: str) -> None:
        job = self.jobs.pop(name, None)
        if job is not None:
            state = self.state(job.tenant)
            state.waiting.pop(name, None)
            for task in job.graph.tasks:
                state.take((name, task.name))

    # --- nodes ------------------------------------------------------------------------------------

    def _start(self, t: float, members: Sequence[Start]) -> None:
        gpus = members[0].devices
        shown_s = self._turn_clocks(gpus, t, len(members))
        part = sum(1 / self._gpus[gpu][2] for gpu in gpus)
        for start in members:
            job = self.jobs.get(start.job)
            if job is None:
                continue
            state = self.state(job.tenant)
            state.waiting.pop(start.job, None)
            share = state.take((start.job, start.task))
            holding = self._holdings[start.job, start.task] = _Holding(job.tenant, start)
            holding.clock_s, holding.expected_s = shown_s, part * (start.setup_s + start.run_s)
            charge_s = holding.expected_s / state.weight
            state.virtual_s = self.virtual_s(state) + charge_s
            self._largest_s = max(self._largest_s, charge_s)
            state.holds[start.batch or (start.job, start.task)] = share
            self._started += 1
            state.running[start.job, start.task] = self._started
            if start.batch:
                state.batches[start.batch] += 1
            self._count(state, start.devices, 1)

    def _end(self, t: float, event: Finished | Failed) -> None:
        key = (event.job, event.task)
        holding = self._holdings.pop(key, None)
        if holding is None:
            return
        start, state = holding.start, self.state(holding.tenant)
        del state.running[key]
        self._count(state, start.devices, -1)
        taken_s = self._turn_clocks(start.devices, t, -1) - holding.clock_s
        state.service_s += taken_s
        state.virtual_s += (taken_s - holding.expected_s) / state.weight
        if start.batch:
            state.batches[start.batch] -= 1
        if not state.batches.get(start.batch):
            state.batches.pop(start.batch, None)
            state.holds.pop(start.batch or key, None)
        job = self.jobs.get(event.job)
        if job is None:
            return
        i = job.graph.index.get(event.task)
        if i is None:  # of a journal that lacks what added it
            return
        if type(event) is Failed:
            self._ready(event.job, job, i)
            return
        job.done.add(i)
        for j in job.graph.before[i]:
            if job.done.issuperset(job.graph.after[j]) and j not in job.graph.never:
                self._ready(event.job, job, j)

    def _count(self, state: TenantState, gpus: Sequence[int], nodes: int) -> None:
        """A tenant has one node more or less on these GPUs, whose nodes are counted elsewhere."""
        for gpu in gpus:
            own = self._on[gpu]
            own[state.name] += nodes
            if not own[state.name]:
                del own[state.name]
            state.beside[self._gpus[gpu][2] if gpu in self._gpus else 0] += nodes

    def _turn_clocks(self, gpus: Sequence[int], t: float, nodes: int) -> float:
        """Let the clocks of GPUs run until now, each at one over the nodes that are there, and let nodes come or go;
        gives what they show, summed."""
        shown_s = 0.0
        for gpu in gpus:
            at_s, since, before = self._gpus.get(gpu, (0.0, t, 0))
            at_s += (t - since) / before if before else 0.0
            self._gpus[gpu] = (at_s, t, before + nodes)
            for name, count in self._on[gpu].items():
                beside = self.tenants[name].beside
                beside[before] -= count
                beside[before + nodes] += count
            shown_s += at_s
        return shown_s


def _admitted(events: Sequence[Any]) -> Iterator[Any]:
    """Without those who were turned away when they arrived: nothing of them was ever ready."""
    turned_away = {event.job for event in events if type(event) is Reject and event.queue}
    for event in events:
        if type(event) is not Arrived or event.job not in turned_away:
            yield event


def _begun(events: Sequence[Any]) -> tuple[list[list[Start]], list[list[str]]]:
    """The nodes that start as one, and who was passed before each."""
    batches: dict[int, list[Start]] = {}
    passed: list[list[str]] = [[]]
    for event in events:
        if type(event) is Start:
            members = batches.setdefault(event.batch or -1 - len(batches), [])
            members.append(event)
            if len(members) == 1:
                passed.append([])
        elif type(event) is Decided and event.what == PASSED:
            passed[-1] = event.facts.get("tenants", [])
    return list(batches.values()), passed
