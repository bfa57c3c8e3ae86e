"""Many simulations over clusters, policies, loads and seeds, in a folder, so that a sweep can go on later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cluster.inputs.choices import LONGEST_QUEUE, SweepKind
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.policies import name_of
from dovetail.cluster.rules import ClusterOptions
from dovetail.cluster.sweeps.cell import SweepCell, SweepRow, kept, run_cell
from dovetail.core.errors import InputError
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.core.files.reading import read_bytes
from dovetail.core.parallel import CellEngine, run_all

_VARIED = ("cluster", "seed", "lam_s", "jobs", "profiled", "references")  # what a sweep has several of
RESULTS = ("results.csv", "results.parquet", "sweep.html")  # what is made of all results
_MEAN_DURATION_S = 60_362.0  # of generated jobs on the reference type


class SweepGrid(Struct, frozen=True, kw_only=True):
    """The cells of a sweep. `loads` are jobs per hour of a continuous sweep, numbers of jobs of a static one."""

    kind: SweepKind
    folder: Path
    base: Scenario
    how: ClusterOptions = ClusterOptions()
    clusters: tuple[str | dict[str, Any], ...]
    policies: tuple[Any, ...]
    seeds: tuple[int, ...]
    loads: tuple[float, ...]
    profiled: tuple[float, ...] = (1.0,)
    references: tuple[int | None, ...] = (None,)
    cutoffs: Mapping[str, Mapping[str, float]] = {}  # by cluster and policy: loads from here on are left out
    timeout_s: float | None = None
    long: float = LONGEST_QUEUE

    def cells(self) -> list[SweepCell]:
        """All cells, light loads first: they are done soonest."""
        found = []
        every = product(self.loads, self.clusters, self.policies, self.profiled, self.references, self.seeds)
        for load_, cluster, policy, profiled, references, seed in every:
            if load_ < self.cutoffs.get(str(cluster), {}).get(name_of(policy), inf):
                found.append(self.cell(cluster, policy, profiled, references, seed, load_))
        return found

    def cell(
        self,
        cluster: str | dict[str, Any],
        policy: Any,
        profiled: float,
        references: int | None,
        seed: int,
        load_: float,
    ) -> SweepCell:
        scenario = replace(self.base, cluster=cluster, seed=seed, profiled=profiled, references=references)
        folder = self.folder / "raw_logs" / _folder_of(cluster) / name_of(policy).replace("/", "_")
        if self.profiled != (1.0,) or self.references != (None,):
            folder /= f"profiling_percentage={profiled:f}"
            folder /= f"num_reference_models={references if references is not None else 'all'}"
        if self.kind == "continuous":
            scenario = replace(scenario, lam_s=3600.0 / load_)
            name = f"lambda={3600.0 / load_:f}"
        else:
            scenario = replace(scenario, lam_s=0.0, jobs=int(load_))
            name = f"num_total_jobs={int(load_)}"
        return SweepCell(
            scenario=scenario,
            policy=policy,
            how=self.how,
            path=folder / f"seed={seed}" / name,
            timeout_s=self.timeout_s,
            long=self.long,
        )

    def common(self) -> dict[str, Any]:
        """What all cells share, and what the files held: if any of it changes, old results mean something else."""
        shared = _builtins(self.base)
        for name in _VARIED:
            del shared[name]
        files = {str(path): sha256(path.read_bytes()).hexdigest() for path in self.base.files()}
        named = [name for name in self.clusters if isinstance(name, str) and Path(name).is_file()]
        files |= {name: sha256(Path(name).read_bytes()).hexdigest() for name in named}
        return {"kind": self.kind, "scenario": shared, "how": _builtins(self.how), "longest": self.long, "files": files}


def _builtins(found: Struct) -> dict[str, Any]:
    """As it is read again from a file."""
    as_dict: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found, enc_hook=str))
    return as_dict


def _folder_of(cluster: str | dict[str, Any]) -> str:
    """As the older sweeps named it: v100=36.p100=36.k80=36; with the name of the file if it comes from one."""
    spec = parse_cluster(cluster)
    counts = ".".join(f"{name}={count}" for name, count in zip(spec.types, spec.counts, strict=True))
    return f"{Path(cluster).stem}.{counts}" if isinstance(cluster, str) and Path(cluster).is_file() else counts


def loads_between(low: float, high: float, points: int, whole: bool = False) -> tuple[float, ...]:
    """Evenly spaced loads, without 0.

    >>> loads_between(0.0, 1.0, 5)
    (0.25, 0.5, 0.75, 1.0)
    >>> loads_between(0, 40, 3, whole=True)
    (20.0, 40.0)
    """
    if not (0 <= low <= high < inf and points >= 1):
        raise InputError(
            f"loads from {low} to {high} in {points} points: expected 0 <= lower <= upper, 1 point or more"
        )
    found = np.linspace(low, high, points)
    if whole:
        found = np.floor(found)
    return tuple(dict.fromkeys(float(load_) for load_ in found if load_ > 0))


def claim(grid: SweepGrid) -> None:
    """Make the folder this sweep's own: refuse one that holds results of another configuration."""
    path, common = grid.folder / "sweep.json", grid.common()
    if path.is_file():
        try:
            before = msgspec.json.decode(read_bytes(path))["common"]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise InputError(f"{path}: not what a sweep wrote; name another folder") from None
        changed = _first_difference(before, common)
        if changed:
            raise InputError(
                f"{grid.folder}: holds a sweep of another configuration: {changed}; name another folder, or remove it"
            )
        return
    foreign = [name for name in ("raw_logs", *RESULTS) if (grid.folder / name).exists()]
    if foreign:
        raise InputError(f"{grid.folder}: holds {foreign[0]}, but no sweep.json of ours; name another folder")
    atomic_write(path, msgspec.json.format(msgspec.json.encode({"format": 1, "common": common})) + b"\n")


def _first_difference(before: Any, now: Any, at: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            found = _first_difference(before.get(key), now.get(key), f"{at}.{key}" if at else key)
            if found:
                return found
        return ""
    return "" if before == now else f"{at} was {before}, and is {now}"


class LoadClimb(Struct, frozen=True, kw_only=True):
    """Ever heavier loads for one policy, until the cluster is used more than a threshold or does not bear it."""

    grid: SweepGrid
    at: tuple[Any, Any, float, int | None, int]  # cluster, policy, profiled, references, seed
    step: float
    most: float
    threshold: float


def climb(task: LoadClimb, run: Callable[[SweepCell], SweepRow] = run_cell) -> list[SweepRow]:
    """Climb, in whatever process; steps that have a result are not run again."""
    rows: list[SweepRow] = []
    load_ = task.step
    while load_ <= task.most:
        cell = task.grid.cell(*task.at, load_)
        row = kept(cell) or run(cell)
        rows.append(row)
        if row["status"] != "done" or row["utilization"] > task.threshold:
            break
        load_ = round(load_ + task.step, 9)
    return rows


def climbs(grid: SweepGrid, threshold: float, step: float | None = None, most: float = inf) -> list[LoadClimb]:
    """One climb for every cluster, policy and seed. Without a step, one that would use about a tenth of the cluster."""
    found = []
    for at in product(grid.clusters, grid.policies, grid.profiled, grid.references, grid.seeds):
        tenth = parse_cluster(at[0]).total / 10 / (_MEAN_DURATION_S / 3600)
        size = float(f"{tenth:.1g}") if step is None else step
        cutoff = grid.cutoffs.get(str(at[0]), {}).get(name_of(at[1]), inf)
        found.append(LoadClimb(grid=grid, at=at, step=size, most=min(most, cutoff), threshold=threshold))
    return found


def run_sweep(
    grid: SweepGrid,
    climb_to: tuple[float, float | None, float] | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    run: Callable[[SweepCell], SweepRow] = run_cell,
    engine: CellEngine = "local",
    address: str | None = None,
) -> None:
    """Run all cells that have no result yet, or climb to a threshold, in steps, up to a load. Errors of what is given
    show before anything is written."""
    for cluster in grid.clusters:
        load(replace(grid.base, cluster=cluster, jobs=1, window=None))
    cells: Sequence[Any] = climbs(grid, *climb_to) if climb_to else grid.cells()
    if not cells:
        raise InputError("no load is left to run: every one is cut off, or 0")
    refuse_overwrite([grid.folder / name for name in ("sweep.json", *RESULTS)], grid.base.files())
    claim(grid)
    tasks = cells if climb_to else [cell for cell in cells if kept(cell) is None]
    there = len(cells) - len(tasks)
    progress(there, len(cells))
    own = not all(isinstance(policy, str) for policy in grid.policies)
    if own and engine == "ray":
        raise InputError("policies: the ray engine takes names, such as file.py:name, found one of your own")
    each: Callable[[Any], Any] = partial(climb, run=run) if climb_to else run
    done = lambda made: progress(there + made, len(cells))  # noqa: E731
    run_all(each, tasks, 1 if own else processes, done, engine=engine, address=address, shared=[grid.folder])
