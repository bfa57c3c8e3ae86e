"""A simulated run with its journal and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dovetail.core.journal import Writer
from dovetail.workflow.outputs import summary
from dovetail.workflow.simulation import Outcome, Problem, run


def record(
    problem: Problem,
    policy: str,
    options: Mapping[str, Any],
    journal: Path | None,
    *,
    seed: int = 0,
    **luck: Any,
) -> tuple[Outcome, dict[str, Any]]:
    """Run a policy on a problem, write its journal if a path is given, and sum it up.

    `luck` is the failure rate and the retries.
    """
    header = problem.header(policy, options, seed, **luck)
    with Writer(journal, header) if journal is not None else nullcontext() as writer:
        outcome = run(problem, policy, options, seed=seed, observers=[writer] if writer else [], **luck)
        figures = summary(header, outcome.figures, outcome.bounds, problem.requests.skipped_count)
        if writer is not None:
            writer.end(outcome.steps + 1, outcome.end_s, figures)
    return outcome, figures
