"""One run of a sweep: what it is, how it ends, and the files that keep its result."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.cluster.compat.log import old_log
from dovetail.cluster.export import figures, measured, quantiles
from dovetail.cluster.inputs.choices import LONGEST_QUEUE
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.policies import name_of
from dovetail.cluster.rules import ClusterOptions
from dovetail.cluster.simulate import run
from dovetail.cluster.sweeps.stability import QueueWatch, StoppedError
from dovetail.core.errors import DovetailError
from dovetail.core.files.output import atomic_write
from dovetail.core.files.reading import read_bytes

SweepRow = dict[str, Any]


class SweepCell(Struct, frozen=True, kw_only=True):
    """One run. `path` is that of its files without their suffix; nothing is written without it."""

    scenario: Scenario
    policy: Any  # a name, or a user's own
    how: ClusterOptions = ClusterOptions()
    path: Path | None = None
    timeout_s: float | None = None
    long: float = LONGEST_QUEUE  # the longest queue that may still grow, in times of all accelerators

    def row(self) -> SweepRow:
        """What tells it from others."""
        scenario = self.scenario
        return {
            "cluster": scenario.cluster,
            "policy": name_of(self.policy),
            "profiling_percentage": scenario.profiled,
            "num_reference_models": scenario.references,
            "jobs_per_hour": round(3600 / scenario.lam_s, 9) if scenario.lam_s else None,
            "num_total_jobs": scenario.jobs,
            "seed": scenario.seed,
        }


def run_cell(cell: SweepCell) -> SweepRow:
    """Run one cell, in whatever process, and keep its result. A run that fails is a result too."""
    row = cell.row() | {"status": "done", "reason": "", "timeout_s": cell.timeout_s}
    log = ""
    try:
        loaded = load(cell.scenario)
        watch = QueueWatch(loaded.setup, cell.timeout_s, cell.long)
        outcome = run(
            loaded.setup,
            loaded.policy(cell.policy),
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


def finished(row: SweepRow) -> bool:
    """Whether a run came to its end and has figures."""
    return "makespan_s" in row


def kept_at(path: Path) -> Path:
    return path.with_name(path.name + ".json")  # not with_suffix: the name has a point in it


def kept(cell: SweepCell) -> SweepRow | None:
    """The result of a cell that was run before; one that failed, or had less time than it has now, is run again."""
    if cell.path is None or not kept_at(cell.path).is_file():
        return None
    try:
        row: SweepRow = msgspec.json.decode(read_bytes(kept_at(cell.path)))
        status, had_s = row["status"], row["timeout_s"] or inf
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    if status == "failed" or (status == "timeout" and had_s < (cell.timeout_s or inf)):
        return None
    return row
