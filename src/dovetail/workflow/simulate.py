"""Simulated runs of a problem, with or without a journal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core import registry
from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.executor import SimExecutor
from dovetail.core.journal import Observer, Writer
from dovetail.core.metrics import Figures, Metrics
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.choices import DEFAULT_POLICY, Mode
from dovetail.workflow.compat.heap_order import HeapOrder
from dovetail.workflow.metrics import summary
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler


def make_policy(name: str, options: Mapping[str, Any] | None, mode: Mode) -> WorkflowPolicy:
    """A policy by name, for a mode that it can work in."""
    chosen: WorkflowPolicy = registry.create("workflow", name, options)
    if chosen.plans_ahead and mode == "online":
        raise InputError(f"policy {name} plans ahead: it needs offline mode (--mode offline)")
    return chosen


class WorkflowResult(Struct, frozen=True):
    """What a run came to. `bounds` are over the requests that were completed."""

    figures: Figures
    bounds: Bounds
    steps: int
    end_s: float
    simulation_s: float  # how long the simulation itself took


def run(
    problem: WorkflowProblem,
    policy: str | WorkflowPolicy = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = 0,
    observers: Sequence[Observer] = (),
) -> WorkflowResult:
    """Simulate a problem under a policy; observers follow every step."""
    chosen = make_policy(policy, options, problem.mode) if isinstance(policy, str) else policy
    scheduler = WorkflowScheduler(problem.new_view(), problem.graphs, chosen, retries)
    metrics, bounds = Metrics(problem.pool), problem.new_bounds()
    executor = SimExecutor(seed, problem.costs.noise, failure_rate)
    arrivals = problem.requests.arrivals()
    began = time.perf_counter()
    steps, end_s = simulate(
        scheduler,
        problem.pool,
        problem.graphs,
        () if problem.compat else arrivals,
        executor,
        [metrics, bounds, *observers],
        HeapOrder(arrivals) if problem.compat else None,
    )
    took = time.perf_counter() - began
    return WorkflowResult(metrics.figures(), bounds.result(), steps, end_s, took)


def record(
    problem: WorkflowProblem,
    policy: str = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    journal: Path | None = None,
    *,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = 0,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> tuple[WorkflowResult, dict[str, Any]]:
    """Run a policy on a problem, write its journal if a path is given, and sum it up.

    With `resume`, an interrupted run's journal is completed, after proving that what it holds is this run.
    """
    options = options or {}
    header = problem.header(policy, options, seed, retries=retries, failure_rate=failure_rate)
    with Writer(journal, header, resume) if journal is not None else nullcontext() as writer:
        result = run(
            problem,
            policy,
            options,
            seed=seed,
            failure_rate=failure_rate,
            retries=retries,
            observers=[*observers, writer] if writer is not None else observers,
        )
        figures = summary(header, result.figures, result.bounds, problem.requests.skipped_count)
        if writer is not None:
            writer.end(result.steps + 1, result.end_s, figures)
    return result, figures
