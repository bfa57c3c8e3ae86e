"""Studies over many runs: policies compared over pools and seeds, and the fewest GPUs that meet a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.parallel import run_all
from dovetail.core.policy_source import REQUIRED
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.choices import Compat, Mode, OnError, Target
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.simulate import record

_SCANNED = 16  # pool sizes tried one by one
_KEYS: dict[Target, str] = {"makespan": "makespan_s", "mean": "avg_request_s", "p99": "p99_request_s"}


class StudyCell(Struct, frozen=True, kw_only=True):
    """One run of a study."""

    config: Path
    requests: Path
    policy: str
    gpus: str
    seed: int = 0
    options: Mapping[str, Any] = {}
    mode: Mode = "offline"
    on_error: OnError = "fail"
    compat: Compat | None = None
    costs: Mapping[str, Any] = {}
    rates: Path | None = None
    journal: Path | None = None

    def problem(self) -> WorkflowProblem:
        return _read(
            self.config,
            self.requests,
            self.gpus,
            self.mode,
            self.on_error,
            self.compat,
            tuple(self.costs.items()),
            self.rates,
            tuple(_version(path) for path in (self.config, self.requests, self.rates)),
        )


def _version(path: Path | None) -> tuple[int, int] | None:
    if path is None or not path.exists():
        return None
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _read(
    config: Path,
    requests: Path,
    gpus: str,
    mode: Mode,
    on_error: OnError,
    compat: Compat | None,
    costs: tuple[tuple[str, Any], ...],
    rates: Path | None,
    versions: tuple[tuple[int, int] | None, ...],
) -> WorkflowProblem:
    """Cells that differ only in policy or seed share their inputs within a process, until a file changes."""
    return WorkflowProblem.read(
        config, requests, gpus=gpus, mode=mode, on_error=on_error, compat=compat, costs=dict(costs), rates=rates
    )


def run_cell(cell: StudyCell) -> dict[str, Any]:
    """Run one cell, in whatever process; gives the summary's figures."""
    result, figures = record(cell.problem(), cell.policy, cell.options, cell.journal, seed=cell.seed)
    return figures | {"gpus": cell.gpus, "seed": cell.seed, "simulation_s": result.simulation_s}


def policies_for(mode: Mode) -> list[str]:
    """All policies that can work in a mode and need no option."""
    listed = registry.listing("workflow", ["plans_ahead"])
    usable = [policy for policy in listed if REQUIRED not in policy.options.values()]
    return [policy.name for policy in usable if mode == "offline" or not policy.traits["plans_ahead"]]


def grid(
    base: StudyCell, policies: Sequence[str], gpus: Sequence[str], seeds: Sequence[int], journals: Path | None = None
) -> list[StudyCell]:
    """Every policy on every pool with every seed; with a folder, the first seed's runs leave a journal there.

    The inputs are read once for each pool, so that a fault in them shows before any process starts. Seeds make a
    difference only where there is noise; elsewhere the first one stands for all.
    """
    noise = max(replace(base, gpus=pool).problem().costs.noise for pool in gpus)
    return [
        replace(base, gpus=pool, policy=policy, seed=seed, journal=_journal(journals, policy, pool, seed == seeds[0]))
        for pool in gpus
        for policy in policies
        for seed in (seeds if noise else seeds[:1])
    ]


def _journal(folder: Path | None, policy: str, pool: str, first: bool) -> Path | None:
    name = "".join(c if c.isalnum() else "-" for c in pool)
    return folder / f"{policy}_{name}_journal.jsonl" if folder is not None and first else None


def compare(
    cells: Sequence[StudyCell], jobs: int | None = None, progress: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """Run all cells in parallel; one row per (policy, pool), figures averaged over seeds, with their spread."""
    rows = run_all(run_cell, cells, jobs, progress)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["gpus"], row["policy"]), []).append(row)
    return [_average(group) for group in groups.values()]


def _average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    merged["seeds"] = [row["seed"] for row in rows]
    del merged["seed"]
    for key, value in rows[0].items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("seed", "gpus"):
            values = [row[key] for row in rows]
            merged[key] = sum(values) / len(values) if len(values) > 1 else value
            if len(values) > 1 and key in _KEYS.values():
                merged[f"{key}_min"], merged[f"{key}_max"] = min(values), max(values)
    return merged


class Capacity(Struct):
    """The answer to a capacity question. `tried` holds every pool size that was simulated and its figure."""

    target: Target
    limit_s: float
    gpus: int | None
    value_s: float | None
    reason: str
    tried: dict[int, float]
    ruled_out: dict[int, float]


def fewest_gpus(
    cell: StudyCell,
    target: Target,
    limit_s: float,
    most: int = 1024,
    progress: Callable[[int], None] = lambda done: None,
) -> Capacity:
    """The fewest GPUs with which a figure stays within a limit.

    Sizes whose lower bound exceeds the limit are ruled out without a run. More GPUs do not always help a heuristic, so
    the next sizes are tried one by one; beyond them the size is doubled, and then bisected: there the answer is that
    this size meets the limit and the next smaller one does not.
    """
    if not limit_s > 0:
        raise InputError(f"the limit must be positive, found {limit_s}")
    tried: dict[int, float] = {}
    ruled_out: dict[int, float] = {}

    def value(gpus: int) -> float:
        if gpus not in tried and gpus not in ruled_out:
            problem = replace(cell, gpus=str(gpus)).problem()
            bound = _bound(problem.lower_bounds(), target)
            if bound > limit_s:
                ruled_out[gpus] = bound
            else:
                result, figures = record(problem, cell.policy, cell.options, seed=cell.seed)
                if result.figures.rejected:
                    raise InputError(f"{result.figures.rejected} requests were rejected: a target needs them all")
                tried[gpus] = figures[_KEYS[target]]
            progress(len(tried) + len(ruled_out))
        return tried.get(gpus, ruled_out.get(gpus, 0.0))

    least = _widest(cell)
    if least > most:
        return Capacity(target, limit_s, None, None, f"the widest node needs {least} GPUs", tried, ruled_out)
    size = first = _first_open(value, ruled_out, least, most)
    while value(size) > limit_s and size < most:
        size = size + 1 if size < first + _SCANNED else min(2 * size, most)
    if value(size) > limit_s:
        reason = f"{size} GPUs give {value(size):.2f} s"
        if size in ruled_out:
            reason = f"no schedule on {size} GPUs can be below {ruled_out[size]:.2f} s"
        return Capacity(target, limit_s, None, None, reason, tried, ruled_out)
    low = max([least - 1, *[g for g in (*tried, *ruled_out) if g < size]])
    while size - low > 1:
        middle = (low + size) // 2
        if value(middle) <= limit_s:
            size = middle
        else:
            low = middle
    if size == least:
        reason = f"the widest node needs {least} GPUs"
    elif size - 1 in ruled_out:
        reason = f"no schedule on {size - 1} GPUs can be below {ruled_out[size - 1]:.2f} s"
    else:
        reason = f"{size - 1} GPUs give {tried[size - 1]:.2f} s"
    return Capacity(target, limit_s, size, tried[size], reason, tried, ruled_out)


def _first_open(value: Callable[[int], float], ruled_out: Mapping[int, float], least: int, most: int) -> int:
    """The first size that no lower bound rules out (bounds only fall as a pool grows, so bisection finds it)."""
    high = least
    while value(high) and high in ruled_out and high < most:
        high = min(2 * high, most)
    low = max([least - 1, *[g for g in ruled_out if g < high]])
    while high - low > 1:
        middle = (low + high) // 2
        value(middle)
        if middle in ruled_out:
            low = middle
        else:
            high = middle
    return high


def _widest(cell: StudyCell) -> int:
    """The fewest GPUs on which every node of the requests fits."""
    problem = replace(cell, gpus="4096").problem()
    used = {request.of for _, request in problem.requests.arrivals() if not request.fault}
    return max([node.width for name in used for node in problem.graphs[name].tasks], default=1) or 1


def _bound(bounds: Bounds, target: Target) -> float:
    return {"makespan": bounds.makespan_s, "mean": bounds.mean_s, "p99": bounds.p99_s}[target]
