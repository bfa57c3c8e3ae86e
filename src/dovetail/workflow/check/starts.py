"""What each start and each preload must cost and take: prices, residents, durations, memory, retries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Failed,
    Finished,
    Grew,
    Observed,
    Prepare,
    PrepareEnded,
    Reject,
    Settled,
    Start,
)
from dovetail.core.findings import Findings, close
from dovetail.core.journal import Header
from dovetail.core.journal.preloads import Preloads
from dovetail.core.rates import PREFILL
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task
from dovetail.workflow.check.prefixes import PrefixRecount
from dovetail.workflow.check.sharing import SharingRules
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.learning import Learning
from dovetail.workflow.gpus.preloads import PreloadUnderWay
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.gpus.sharing import TOKENS
from dovetail.workflow.inputs.costs import ModelCost, room_mib
from dovetail.workflow.metrics import tokens_of


class StartRules:
    """Recounts what each start must cost and take, from the header's facts and what ran before."""

    def __init__(
        self, header: Header, facts: WorkflowFacts, faults: Findings, learning: type[Learning] = Learning
    ) -> None:
        self._facts = facts
        self._faults = faults
        self._graphs = header.build_graphs()
        self._rates = facts.table
        self._know(header.pool)
        self.residents = Residents(header.pool, facts.models, facts.costs, self._rates)
        self._prefixes = PrefixRecount(facts.models)
        self._caches = any(model.prefix is not None for model in facts.models.values())
        self.priced = True  # off where a log does not say what a switch took
        self.names_replaced = True  # off where a log does not say what was replaced
        self._arrived: dict[str, Arrived] = {}
        self._added: dict[str, dict[str, float]] = {}  # sizes of nodes that requests got while they ran
        self._failed: dict[tuple[str, str, bool], int] = {}  # by whether it was lost with its place
        self.learning: Learning | None = None
        if facts.live:
            self.learning = learning(header.pool, facts.models, facts.costs, self._rates)
        self._sharing = SharingRules(header, facts, faults, self._rates, self.learning)
        self._ahead: Preloads[PreloadUnderWay] = Preloads()
        self._t = 0.0
        for graph in self._graphs.values():
            self._check_models(graph.name, graph.tasks)

    def _know(self, pool: Pool) -> None:
        self.pool, self._types = pool, [device.type for device in pool.devices]
        self._speeds, self._memories = pool.speeds, pool.memories

    def extend(self, event: Added) -> None:
        """GPUs have joined."""
        self._know(self.pool.joined(event.devices, event.types))
        self.residents.extend(self.pool)
        if self.learning is not None:
            self.learning.extend(self.pool)
        self._sharing.extend(event.devices)

    def empty(self, gpu: int) -> None:
        """Another GPU has come in its place, or it has lost what it held."""
        self.residents.clear(gpu)
        self._prefixes.forget(gpu)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._t = t
        batches: dict[int, list[Start]] = {}
        for event in events:
            if isinstance(event, Start) and event.batch:
                batches.setdefault(event.batch, []).append(event)
        for event in events:
            kind = type(event)
            if kind is Start:
                members = batches.get(event.batch, [event])
                if members[0] is event:
                    self._check(members)
            elif kind is Finished or kind is Failed:
                self._end(t, event)
            elif kind is Arrived:
                self._arrived[event.job] = event
            elif kind is Complete or kind is Reject:
                self._arrived.pop(event.job, None)
                self._added.pop(event.job, None)
            elif kind is Grew:
                self._check_models(event.job, event.tasks)
                sizes = {task.name: size for task, size in zip(event.tasks, event.sizes, strict=True)}
                self._added.setdefault(event.job, {}).update(sizes)
            elif kind is Observed:
                self._sharing.observed(t, event)
                if event.what == TOKENS:
                    self._count(event)
            elif kind is Settled and self.learning is not None:
                self._learn(self.learning.settled(t, (event.job, event.task)))
            elif kind is Prepare or kind is PrepareEnded:
                self._ahead_of_need(t, event)

    def _ahead_of_need(self, t: float, event: Prepare | PrepareEnded) -> None:
        if isinstance(event, Prepare):
            self._prepare(t, event)
        elif (ended := self._ahead.end(event)) is not None:
            load, _ = ended
            if self.learning is not None and not event.why:
                self._learn(self.learning.prepared(load.model, load.window, t - load.began_s, load.case))

    def _prepare(self, t: float, event: Prepare) -> None:
        gpus, who, model = event.devices, f"preload {event.id}", self._facts.models.get(event.kind)
        if model is None:
            self._faults.add("model", who, f"found {event.kind!r}, which is not described")
            return
        if not model.width or gpus != tuple(range(gpus[0], gpus[0] + model.width)):
            self._faults.add("window", who, f"found GPUs {list(gpus)}, expected {model.width} side by side")
        self._check_memory(event.kind, gpus, who)
        case = self.residents.load_case(gpus, event.kind) if self.learning is not None else None
        whole_s = self.residents.setup(gpus, event.kind)
        replaces = self.residents.replaced(gpus, event.kind) if whole_s else None
        self._check_price(event, who, whole_s, replaces)
        self._prefixes.evict(gpus, self.residents.held)
        self._ahead.begin(event, PreloadUnderWay(event.id, event.kind, gpus, t, event.setup_s, case))

    def _end(self, t: float, event: Finished | Failed) -> None:
        self._sharing.end(t, event)
        good = isinstance(event, Finished)
        if self.learning is not None:
            self._learn(self.learning.ended(t, (event.job, event.task), good))
        if isinstance(event, Failed):
            key = (event.job, event.task, event.lost)
            self._failed[key] = self._failed.get(key, 0) + 1

    def _learn(self, model: str | None) -> None:
        if model is not None:
            self.residents.learned(model)

    def _count(self, event: Observed) -> None:
        """Tokens of a call that runs: what it was worth."""
        job, task = str(event.facts.get("job")), str(event.facts.get("task"))
        arrived = self._arrived.get(job)
        size = self._size(job, task)
        if self.learning is not None and arrived is not None and size is not None:
            self.learning.counted((job, task), tokens_of(arrived, task), event.facts, size)

    def _check_models(self, who: str, nodes: Iterable[Task]) -> None:
        for node in nodes:
            model = self._facts.models.get(node.kind)
            if model is None:
                self._faults.add("model", f"{who}/{node.name}", f"found {node.kind!r}, which is not described")
            elif model.width != node.width:
                found = f"found {node.width} GPUs, expected {model.width} for {node.kind!r}"
                self._faults.add("model", f"{who}/{node.name}", found)

    def _check(self, members: Sequence[Start]) -> None:
        start = members[0]
        who, model = f"{start.job}/{start.task}", self._facts.models.get(start.kind)
        if model is None:
            self._faults.add("model", who, f"found {start.kind!r}, which is not described")
            return
        if start.devices and start.devices != tuple(range(start.devices[0], start.devices[0] + len(start.devices))):
            self._faults.add("window", who, f"found GPUs {list(start.devices)}, expected neighbours")
        for member in members:
            for lost, most in ((False, self._facts.retries), (True, self._facts.lost_retries)):
                failed = self._failed.get((member.job, member.task, lost), 0)
                if failed > most:
                    what = "losses of its place" if lost else "failures"
                    message = f"started after {failed} {what}, expected at most {most} retries"
                    self._faults.add("retry", f"{member.job}/{member.task}", message)
        if len(members) > 1 and (not self._facts.costs.batching or len(members) > len(model.batch_curve)):
            allowed = max(len(model.batch_curve), 1) if self._facts.costs.batching else 1
            self._faults.add("batch", who, f"found {len(members)} nodes in one batch, expected at most {allowed}")
        else:
            self._check_run(members, who, model)
        self._check_memory(start.kind, start.devices, who)
        loads = self.residents.load_case(start.devices, start.kind) if self.learning is not None else None
        beside = self._sharing.beside(self._t, start)
        self._check_setup(start, who)
        if self._caches or any(member.cached for member in members):
            self._check_prefixes(members)
        for member in members:
            if self.learning is not None:
                self.learning.started(self._t, member, 1.0 if beside is None else beside[1], loads)
            self._sharing.start(self._t, member)

    def _check_memory(self, model: str, gpus: Sequence[int], who: str) -> None:
        for gpu in gpus:
            memory = self._memories[gpu]
            if memory is not None and memory < (room := room_mib(self._facts.models, model)):
                self._faults.add("memory", who, f"{model!r} needs {room} MiB, GPU {gpu} has {memory}")

    def _check_prefixes(self, members: Sequence[Start]) -> None:
        """Those of a batch find what was there before it."""
        for start in members:
            arrived = self._arrived.get(start.job)
            expected = self._prefixes.cached(start, arrived) if arrived is not None else 0
            if start.cached != expected:
                message = f"found {start.cached} cached blocks, expected {expected}"
                self._faults.add("prefix", f"{start.job}/{start.task}", message)
        for start in members:
            self._prefixes.start(start, self._arrived.get(start.job), self.residents.held)

    def _check_run(self, members: Sequence[Start], who: str, model: ModelCost) -> None:
        sizes = [self._size(start.job, start.task) for start in members]
        if None in sizes or any(member.kind != members[0].kind for member in members):
            return  # of unknown requests or nodes, or no batch: which is a fault already
        expected = max([self._alone_s(start, size or 0.0) for start, size in zip(members, sizes, strict=True)])
        slower = model.batch_curve[len(members) - 1] if len(members) > 1 else 1.0
        if (beside := self._sharing.beside(self._t, members[0])) is not None:
            slower /= beside[1]
        if not close(members[0].run_s, expected * slower):
            self._faults.add("run", who, f"found run_s {members[0].run_s}, expected {expected * slower}")
        for start, size in zip(members, sizes, strict=True):
            self._check_first(start, size or 0.0, slower)

    def _check_first(self, start: Start, size: float, slower: float) -> None:
        """When its first token is expected: when it has read."""
        arrived, found, expected = self._arrived[start.job], start.first_s, None
        reads, writes = tokens_of(arrived, start.task)
        if writes:
            expected = reads * self._facts.models[start.kind].prefill_s * slower
            if start.devices and reads:
                saved_s = self._prefixes.saved_s(start, arrived, size) if self._caches else 0.0
                expected = (expected - saved_s * slower) / self._reading_speed(start)
        if found != expected and (found is None or expected is None or not close(found, expected)):
            message = f"found its first token expected after {found} s of its run, not {expected}"
            self._faults.add("token", f"{start.job}/{start.task}", message)

    def _alone_s(self, start: Start, size: float) -> float:
        """How long a node takes on its GPUs; it reads at a rate of its own where that is known."""
        if not start.devices:
            return size
        arrived = self._arrived[start.job]
        read_s = tokens_of(arrived, start.task)[0] * self._facts.models[start.kind].prefill_s
        saved_s = self._prefixes.saved_s(start, arrived, size) if self._caches else 0.0
        if not read_s:
            return (size - saved_s) / self._speed(start)
        return (read_s - saved_s) / self._reading_speed(start) + (size - read_s) / self._speed(start)

    def _reading_speed(self, start: Start) -> float:
        rates, width = self._rates, len(start.devices)
        types = [(gpu, self._types[gpu]) for gpu in start.devices]
        own = {gpu: rates.per_s(start.kind, name, PREFILL, width) for gpu, name in types}
        return min(own[gpu] or rates.rate(start.kind, name, width) or self._speeds[gpu] for gpu, name in types)

    def _size(self, job: str, task: str) -> float | None:
        arrived = self._arrived.get(job)
        graph = self._graphs.get(arrived.of) if arrived is not None else None
        if arrived is None or graph is None or len(arrived.sizes) != len(graph.tasks):
            return None
        i = graph.index.get(task)
        return self._added.get(job, {}).get(task) if i is None else arrived.sizes[i]

    def _speed(self, start: Start) -> float:
        rate, width = self._rates.rate, len(start.devices)
        return min(rate(start.kind, self._types[gpu], width) or self._speeds[gpu] for gpu in start.devices)

    def _check_setup(self, start: Start, who: str) -> None:
        residents, gpus = self.residents, start.devices
        whole = residents.setup(gpus, start.kind) if gpus else 0.0
        replaces = residents.replaced(gpus, start.kind) if whole else None
        expected = residents.visible(whole, start.run_s)
        if (beside := self._sharing.beside(self._t, start)) is not None:
            expected = beside[0]
        ahead = self._ahead.find(start)
        if ahead is not None and ahead.under_way and not whole:
            expected = ahead.kept.left_s(self._t, self.learning is not None)
        self._check_price(start, who, expected, replaces)

    def _check_price(self, order: Start | Prepare, who: str, expected: float, replaces: str | None) -> None:
        """And let the model be resident from here on."""
        residents, gpus = self.residents, order.devices
        if self.priced and not close(order.setup_s, expected):
            held = {gpu: list(residents.held[gpu]) for gpu in gpus}
            message = f"found setup_s {order.setup_s}, expected {expected} for {order.kind!r} on GPUs that hold {held}"
            self._faults.add("price", who, message)
        if self.names_replaced and order.replaces != replaces:
            self._faults.add("replaces", who, f"found {order.replaces!r}, expected {replaces!r}")
        residents.load(gpus, order.kind)
