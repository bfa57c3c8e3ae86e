"""One run of a sweep: what it is, how it ends, and the files that keep its result."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.cluster.outputs import figures, measured, old_log, quantiles
from dovetail.cluster.recording import run
from dovetail.cluster.rules import Rules
from dovetail.cluster.scenario import Scenario, load
from dovetail.cluster.stability import LONG, StoppedError, Watch
from dovetail.core.errors import DovetailError
from dovetail.core.files import atomic_write, read_bytes

Row = dict[str, Any]


class How(Struct, frozen=True, kw_only=True):
    """By which rules a scenario is run."""

    rules: Rules = Rules()
    compat: bool = False
    ideal: bool = False


class Cell(Struct, frozen=True, kw_only=True):
    """One run. `path` is that of its files without their suffix; nothing is written without it."""

    scenario: Scenario
    policy: str
    options: Mapping[str, str] = {}
    how: How = How()
    path: Path | None = None
    timeout_s: float | None = None
    long: float = LONG  # the longest queue that may still grow, in times of all accelerators

    def row(self) -> Row:
        """What tells it from others."""
        scenario = self.scenario
        return {
            "cluster": scenario.cluster,
            "policy": self.policy,
            "profiling_percentage": scenario.profiled,
            "num_reference_models": scenario.references,
            "jobs_per_hour": round(3600 / scenario.lam_s, 9) if scenario.lam_s else None,
            "num_total_jobs": scenario.jobs,
            "seed": scenario.seed,
        }


def run_cell(cell: Cell) -> Row:
    """Run one cell, in whatever process, and keep its result. A run that fails is a result too."""
    row = cell.row() | {"status": "done", "reason": "", "timeout_s": cell.timeout_s}
    log = ""
    try:
        loaded = load(cell.scenario)
        watch = Watch(loaded.setup, cell.timeout_s, cell.long)
        policy = loaded.policy(cell.policy, dict(cell.options))
        outcome = run(
            loaded.setup,
            policy,
            cell.how.rules,
            observers=[watch],
            compat=cell.how.compat,
            ideal=cell.how.ideal,
        )
        row |= figures(outcome)
        row["jct_quantiles_s"] = quantiles(measured(outcome, cell.scenario.window).values())
        log = old_log(outcome, cell.scenario.window)
        if watch.verdict():
            row |= {"status": "unstable", "reason": watch.verdict()}
    except StoppedError as stopped:
        row |= {"status": stopped.status, "reason": str(stopped)}
    except DovetailError as error:
        row |= {"status": "failed", "reason": str(error)}
    except Exception as error:  # a fault in one policy must not end a sweep of hours
        row |= {"status": "failed", "reason": f"internal error: {type(error).__name__}: {error}"}
    if cell.path is not None:
        if log:
            atomic_write(cell.path.with_name(cell.path.name + ".log"), log.encode())
        atomic_write(kept_at(cell.path), msgspec.json.format(msgspec.json.encode(row)) + b"\n")
    return row


def kept_at(path: Path) -> Path:
    return path.with_name(path.name + ".json")  # not with_suffix: the name has a point in it


def kept(cell: Cell) -> Row | None:
    """The result of a cell that was run before; one that failed, or had less time than it has now, is run again."""
    if cell.path is None or not kept_at(cell.path).is_file():
        return None
    try:
        row: Row = msgspec.json.decode(read_bytes(kept_at(cell.path)))
        status, had_s = row["status"], row["timeout_s"] or inf
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    if status == "failed" or (status == "timeout" and had_s < (cell.timeout_s or inf)):
        return None
    return row
