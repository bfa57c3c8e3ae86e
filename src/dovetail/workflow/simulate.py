"""Simulated runs of a problem, recorded in a journal unless none is wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

from dovetail.core import registry
from dovetail.core.errors import InputError, check_functions
from dovetail.core.events import Complete, Reject
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.files.plain import scalar
from dovetail.core.journal import Header, Observer, Reader, Writer
from dovetail.core.loop.agenda import Agenda, TotalOrder
from dovetail.core.loop.engine import simulate
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.loop.guard import Guard
from dovetail.core.loop.replay import Agreement, replay_journal
from dovetail.core.metrics import Figures, Metrics
from dovetail.core.results.run import JournalFile, JournalPath, Run
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.capacity import GpuHours
from dovetail.workflow.choices import DEFAULT_POLICY, DEFAULT_RETRIES, Mode, check_count
from dovetail.workflow.compat.heap_order import HeapOrder, HeapScheduler
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.learning import Learning
from dovetail.workflow.gpus.prefixes import PrefixHits
from dovetail.workflow.gpus.sharing import SharingAgenda, SharingExecutor
from dovetail.workflow.inputs.growth.agenda import GrowingAgenda
from dovetail.workflow.metrics import RejectionReasons, TokenMetrics, metrics_block, summary
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, checked, growth_unknown
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.tenants.accounts import Tenants
from dovetail.workflow.tenants.figures import TenantMetrics, tenant_block, tenant_summary
from dovetail.workflow.tenants.guard import QuotaGuard
from dovetail.workflow.tenants.lanes import LaneView

Progress = Callable[[int], None]


def make_policy(policy: Any, options: Mapping[str, Any] | None, mode: Mode) -> tuple[str, WorkflowPolicy]:
    """A policy by name, or a user's own, for a mode that it can work in; and what it is called."""
    name, chosen = registry.choose("workflow", policy, options)
    if not isinstance(chosen, WorkflowPolicy):
        kind = type(chosen).__name__
        raise InputError(f"policy {name}: expected a WorkflowPolicy (see dovetail.workflow.policies), found {kind}")
    if chosen.plans_ahead and mode == "online":
        raise InputError(f"policy {name} plans ahead: it needs offline mode (--mode offline) of a simulated run")
    return name, chosen


def scheduler_for(reader: Reader, policy: WorkflowPolicy | None = None) -> WorkflowScheduler:
    """The scheduler that decided a recorded run, as its header describes it, unless the policy is given: fed the same
    stimuli, it decides again."""
    return new_scheduler(reader.header, policy, reader.path)


def new_scheduler(
    header: Header, policy: WorkflowPolicy | None = None, path: Path = Path("journal")
) -> WorkflowScheduler:
    """The scheduler of a run that begins with this header, in a journal at this path."""
    facts = WorkflowFacts.of(header, path)
    view_type = LaneView if facts.tenancy is not None and facts.tenancy.tenants else View
    table = facts.table
    view = view_type(header.pool, facts.models, facts.costs, table, facts.forecast)
    chosen: WorkflowPolicy = policy or registry.create("workflow", header.policy, header.options)
    scheduler = HeapScheduler if facts.compat else WorkflowScheduler
    tenants = None if facts.tenancy is None else Tenants(facts.tenancy)
    graphs, over_time = header.build_graphs(), facts.gpus_over_time
    learning = Learning(header.pool, facts.models, facts.costs, table) if facts.live else None
    return scheduler(view, graphs, chosen, facts.retries, tenants, over_time, facts.lost_retries, learning)


class WorkflowRun(Run):
    """A simulated run. `figures` are all its figures, `lower` the lower bounds over the requests that it completed,
    `policy` who decided; `simulation_s` is how long the simulation itself took."""

    called = False  # models

    def __init__(
        self,
        journal: JournalFile,
        metrics: dict[str, Any],
        notes: list[str],
        *,
        policy: WorkflowPolicy,
        unused: WorkflowPolicy | None,
        figures: Figures,
        lower: Bounds,
        simulation_s: float,
    ) -> None:
        super().__init__(journal, metrics, notes)
        self.policy = policy
        self._unused = unused  # a policy of the user's own as it was before the run
        self.figures = figures
        self.lower = lower
        self.simulation_s = simulation_s

    def replay(self) -> Agreement:
        """Decide the run again, from what was seen, and compare with what is recorded."""
        if self._unused is None:
            return super().replay()
        return replay_journal(self.journal, scheduler_for(self._reader, deepcopy(self._unused)))

    def text(self) -> str:
        """The figures as a block of text, beside their lower bounds."""
        told, rate = self.metrics, self.metrics.get("prefix_hit_rate")
        counts = (told["rejections"], told["skipped"], self.called)
        may = self.policy.preloads
        block = metrics_block(self.figures, self.lower, *counts, hit_rate=rate, tokens=told, preloading=may)
        if "gpu_hours" in told:
            block += f"\n\nGPUs that come and go: {told['gpu_hours']:.2f} GPU-hours paid"
        return block + "\n" + tenant_block(told) if "jain" in told else block


def run(
    problem: WorkflowProblem,
    policy: str | WorkflowPolicy | type[WorkflowPolicy] | Callable[[], WorkflowPolicy] = DEFAULT_POLICY,
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = DEFAULT_RETRIES,
    journal: JournalPath = None,
    resume: bool = False,
    progress: Progress | None = None,
    observers: Iterable[Observer] = (),
) -> WorkflowRun:
    """Simulate a problem under a policy: by name, in a file of yours (`"mine.py:Mine"`), or a policy object or class.
    An object decides itself: give a class, or a new object, to run again.

    `seed` is for noise, for what nodes add (`then:`) and for injected failures: an attempt at a node fails with the
    chance `failure_rate`, and is tried again `retries` times. The journal goes to a path, to a temporary file that
    lives as long as the result, or with `journal=False` nowhere. With `resume`, an interrupted run's journal is
    completed, after proving that what it holds is this run. `progress` is told how many requests are done; `observers`
    follow every step.

    >>> from dovetail import workflow
    >>> problem = workflow.load("examples/system_config.yaml", "examples/workflow_requests.yaml", gpus=4)
    >>> found = workflow.run(problem)
    >>> found
    <WorkflowRun dovetail, 20 of 20 completed, makespan 236.575 s (13.6 % above the bound)>
    >>> found.check().valid
    True
    """
    checked(problem)
    check_functions(progress=progress)
    seed, failure_rate, retries = scalar(seed), scalar(failure_rate), scalar(retries)
    if not isinstance(failure_rate, int | float) or not 0 <= failure_rate < 1:
        raise InputError(f"--failure-rate {failure_rate}: expected 0 or more, and less than 1")
    check_count("--retries", retries)
    check_count("--seed", seed, -(1 << 63))
    name, chosen = make_policy(policy, options, problem.mode)
    unused = None if isinstance(policy, str) else deepcopy(chosen)
    if not isinstance(resume, bool):
        raise InputError(f"resume {resume!r}: expected True or False")
    if resume and (journal is None or journal is False):
        raise InputError("--resume goes on with a journal: name it")
    file = JournalFile(journal)
    if file.path is not None:
        refuse_overwrite([file.path], problem.source.files)
    header = problem.header(name, options or {}, seed, retries=retries, failure_rate=failure_rate)
    tenancy, over_time = problem.tenancy, problem.gpus_over_time
    tenants = None if tenancy is None else Tenants(tenancy)
    kind = HeapScheduler if problem.compat else WorkflowScheduler
    scheduler = kind(problem.new_view(), problem.graphs, chosen, retries, tenants, over_time)
    if chosen.plans_ahead and (unknown := unplannable(problem)) is not None:
        raise InputError(f"policy {name} plans ahead{unknown}")
    shares = None if tenancy is None else TenantMetrics(problem.graphs, problem.models, tenancy)
    metrics, bounds, rejections = Metrics(problem.pool), problem.new_bounds(), RejectionReasons()
    hits = PrefixHits(problem.models)
    tokens = TokenMetrics(problem.slo)
    followers: list[Observer] = [
        metrics,
        bounds,
        rejections,
        *([hits] if scheduler.view.prefixes is not None else []),
        *([shares] if shares is not None else []),
        *([tokens] if problem.counts_tokens or problem.slo is not None else []),
        *([_Done(progress)] if progress is not None else []),
        *observers,
    ]
    hours = GpuHours(over_time, len(problem.pool)) if over_time is not None else None
    if hours is not None:
        followers.append(hours)
    executor, agenda = _on_virtual_time(problem, scheduler.view, seed, failure_rate, followers)
    with Writer(file.path, header, resume) if file.path is not None else nullcontext() as writer:
        if writer is not None:
            followers.append(writer)
        began = time.perf_counter()
        pool, graphs = problem.pool, problem.graphs
        kinds = {name: model.width for name, model in problem.models.items()}
        guard = Guard(pool, graphs, kinds) if tenancy is None else QuotaGuard(pool, graphs, tenancy, kinds)
        steps, end_s = simulate(scheduler, pool, graphs, (), executor, followers, agenda, guard)
        took = time.perf_counter() - began
        figures, lower = metrics.figures(), bounds.result()
        more = hits.figures() | tokens.figures(figures.makespan_s)
        summed = summary(header, figures, lower, problem.requests.skipped_count, more)
        if hours is not None:
            summed["gpu_hours"] = hours.total()
        if shares is not None:
            summed |= tenant_summary(shares.figures())
        if writer is not None:
            writer.end(steps + 1, end_s, summed)
    notes = [*problem.warnings(), *[f"skipped: {text}" for text in problem.requests.skipped]]
    told = summed | {"rejections": rejections.reasons}
    return WorkflowRun(file, told, notes, policy=chosen, unused=unused, figures=figures, lower=lower, simulation_s=took)


def unplannable(problem: WorkflowProblem) -> str | None:
    """What no plan knows of; None if there is a plan for all of it."""
    if problem.growth:
        return growth_unknown(problem)
    if problem.tenancy is not None and problem.tenancy.tenants:
        return ": it cannot keep to turns and quotas of tenants; take another one"
    if problem.gpus_over_time is not None:
        return " for the whole pool: it knows no gpus_over_time"
    shares = problem.new_view().shares
    return ": it cannot plan nodes that share their GPUs (max_concurrency)" if shares else None


def _on_virtual_time(
    problem: WorkflowProblem, view: View, seed: int, failure_rate: float, followers: list[Observer]
) -> tuple[SimExecutor, Agenda]:
    """Who says when nodes end, and what comes when."""
    executor, arrivals = SimExecutor(seed, problem.costs.noise, failure_rate), problem.requests.arrivals()
    if problem.compat:
        return executor, HeapOrder(arrivals)
    agenda: Agenda
    if view.shares or problem.counts_tokens:
        executor = sharing = SharingExecutor(view.shares_of, seed, problem.costs.noise, failure_rate)
        agenda = SharingAgenda(arrivals, sharing)
    else:
        agenda = TotalOrder(arrivals)
    if problem.growth:
        growing = GrowingAgenda(agenda, problem.growth, problem.graphs, problem.requests.later, seed)
        followers.append(growing)
        agenda = growing
    return executor, agenda


class _Done:
    """Counts finished requests."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._count = 0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        before = self._count
        self._count += sum([isinstance(event, Complete | Reject) for event in events])
        if self._count // _TOLD > before // _TOLD:
            self._progress(self._count)


_TOLD = 64  # finished requests from one call of `progress` to the next
