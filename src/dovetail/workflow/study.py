"""Studies over many runs: policies compared over pools and seeds, and the fewest GPUs that meet a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core import registry
from dovetail.core.errors import InputError, check_functions
from dovetail.core.files.document import Source, as_path
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.files.plain import scalar
from dovetail.core.parallel import CellEngine, cell_engine, run_all
from dovetail.core.policy_source import REQUIRED
from dovetail.core.rates import RateTable
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.confidence import paired
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.choices import DEFAULT_POLICY, Compat, Mode, OnError, Target, check_count
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.problem import ProblemSource, WorkflowProblem, checked, source_of
from dovetail.workflow.simulate import Progress, make_policy, run, unplannable

_SCANNED = 16  # pool sizes tried one by one
TARGET_KEYS: dict[Target, str] = {"makespan": "makespan_s", "mean": "avg_request_s", "p99": "p99_request_s"}
_SHOWN = ("policy", "gpus", "makespan_s", "gap_makespan", "avg_request_s", "p99_request_s", "switches", "completed")


class StudyCell(Struct, frozen=True, kw_only=True):
    """One run of a study."""

    source: ProblemSource
    gpus: str | int | None = None
    policy: Any = DEFAULT_POLICY
    name: str = DEFAULT_POLICY
    seed: int = 0
    journal: Path | None = None

    def figures(self, problem: WorkflowProblem) -> dict[str, Any]:
        policy = self.policy if isinstance(self.policy, str) else deepcopy(self.policy)
        # It appears whole: a run that is repeated on another node must not meet what the first one may still write.
        unfinished = self.journal and self.journal.with_name(f".{uuid4().hex}.{self.journal.name}")
        found = run(problem, policy, seed=self.seed, journal=unfinished or False)
        figures = {key: value for key, value in found.metrics.items() if key != "rejections"}
        if self.journal and unfinished:
            unfinished.replace(self.journal)
        pool = figures["gpus"] if self.gpus is None else self.gpus
        told = {"policy": self.name, "gpus": pool, "seed": self.seed, "simulation_s": found.simulation_s}
        return figures | told


@lru_cache(maxsize=4)
def _read(source: ProblemSource, gpus: str | int | None, versions: tuple[Any, ...]) -> WorkflowProblem:
    """Cells that differ only in policy or seed share their inputs within a process, until a file changes."""
    return source.read(gpus)


def run_cell(cell: StudyCell) -> dict[str, Any]:
    """Run one cell whose inputs are files, in whatever process; gives the summary's figures."""
    found = [path.stat() for path in cell.source.files if path.exists()]
    return cell.figures(_read(cell.source, cell.gpus, tuple((file.st_mtime_ns, file.st_size) for file in found)))


def list_policies() -> list[registry.Listed]:
    """All policies: their names, what they promise, and their options with defaults.

    >>> [policy.name for policy in list_policies() if policy.traits["plans_ahead"]]
    ['optimise']
    """
    return registry.listing("workflow", ["plans_ahead"])


def policies_for(problem: WorkflowProblem) -> list[str]:
    """All policies that can work on a problem and need no option."""
    usable = [policy for policy in list_policies() if REQUIRED not in policy.options.values()]
    known = problem.mode == "offline" and unplannable(problem) is None
    return [policy.name for policy in usable if known or not policy.traits["plans_ahead"]]


class WorkflowComparison(Comparison):
    """A row for each policy and pool; `journals` are the runs of the first seed, where a folder was given for them."""

    journals: list[Path]


def compare(
    problem: WorkflowProblem,
    policies: str | WorkflowPolicy | Iterable[Any] = ("baseline", DEFAULT_POLICY),
    *,
    gpus: str | int | Iterable[str | int] | None = None,
    seeds: int | Iterable[int] = (0,),
    journals: str | Path | None = None,
    jobs: int | None = None,
    engine: CellEngine | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> WorkflowComparison:
    """Run every policy on every pool with every seed: one row per policy and pool, figures averaged over seeds.

    `policies` are names, or policies of your own, or `"all"`; `gpus` the pools, by default the problem's own. Seeds
    make a difference only where there is noise, or where nodes add others by chance; elsewhere the first one stands
    for all. With several, `paired` in a row has its makespan, mean and P99 against the first policy's, seed by seed,
    with 95 % confidence intervals. The runs are spread over `jobs` processes, by default one per core, where all inputs
    are files and all policies names. With the ray engine they run on the nodes of the cluster at an address, or of a
    private one; all nodes must see the files. A folder for `journals` gets those of the first seed.

    >>> from dovetail import workflow
    >>> problem = workflow.load("examples/system_config.yaml", "examples/workflow_requests.yaml", gpus=4)
    >>> found = workflow.compare(problem, ["baseline", "dovetail"], jobs=1)
    >>> found.best("makespan_s")["policy"]
    'dovetail'
    """
    checked(problem)
    engine = cell_engine(engine, address)
    jobs = scalar(jobs)
    if jobs is not None:
        check_count("--jobs", jobs)
    every = isinstance(policies, str) and policies == "all"
    chosen = policies_for(problem) if every else _several(policies, "policies")
    names = _names(chosen, problem.mode)
    pools, numbers = [problem.gpus] if gpus is None else _several(gpus, "gpus"), _several(seeds, "seeds")
    for seed in numbers:
        check_count("--seed", seed, -(1 << 63))
    folder = None if journals is None else as_path(journals, "journals")
    noise = max((problem if pool == problem.gpus else problem.on(pool)).costs.noise for pool in pools)
    if not noise and not problem.growth:
        numbers = numbers[:1]
    cells = [
        StudyCell(
            source=problem.source,
            gpus=pool,
            policy=policy,
            name=name,
            seed=seed,
            journal=_journal(folder, name, pool) if seed == numbers[0] else None,
        )
        for pool in pools
        for name, policy in zip(names, chosen, strict=True)
        for seed in numbers
    ]
    written = [cell.journal for cell in cells if cell.journal is not None]
    refuse_overwrite(written, problem.source.files)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made: {error.strerror}") from error
    check_functions(progress=progress)
    told = progress or (lambda done: None)
    if not problem.source.in_memory and all(isinstance(policy, str) for policy in chosen):
        shared = [folder] if folder is not None else []
        rows = run_all(run_cell, cells, jobs, told, engine=engine, address=address, shared=shared)
    elif engine == "ray":
        raise InputError("engine ray: expected inputs in files, and policies as names such as file.py:name")
    else:
        on = lru_cache(maxsize=1)(lambda pool: problem if pool == problem.gpus else problem.on(pool))
        rows = run_all(lambda cell: cell.figures(on(cell.gpus)), cells, 1, told)
    groups = [rows[i : i + len(numbers)] for i in range(0, len(rows), len(numbers))]
    shown = (*_SHOWN, "jain") if problem.tenancy is not None else _SHOWN
    found = WorkflowComparison(_averages(groups, len(chosen)), shown, problem.warnings())
    found.journals = written
    return found


def _several(given: Any, name: str) -> list[Any]:
    """One thing or several, each once."""
    found: list[Any] = []
    for one in map(scalar, [given] if isinstance(given, str) or not isinstance(given, Iterable) else given):
        if not any(one is known or (isinstance(one, str | int) and one == known) for known in found):
            found.append(one)
    if not found:
        raise InputError(f"{name}: expected at least one value")
    return found


def _names(policies: list[Any], mode: Mode) -> list[str]:
    """What policies are called; a second one of the same name gets a number."""
    names: list[str] = []
    for policy in policies:
        name, _ = make_policy(policy, None, mode)
        same = sum(known.partition(" ")[0] == name for known in names)
        names.append(f"{name} {same + 1}" if same else name)
    return names


def _journal(folder: Path | None, policy: str, pool: str | int) -> Path | None:
    plain = ["".join(c if c.isalnum() else "-" for c in str(pool)), "journal.jsonl"]
    return folder / "_".join([*policy.rpartition(":")[2].split(), *plain]) if folder is not None else None


def _averages(groups: list[list[dict[str, Any]]], policies: int) -> list[dict[str, Any]]:
    """A row for each policy and pool; with several seeds, `paired` has it against the first policy on that pool, seed
    by seed: all policies meet the same noise with a seed."""
    rows = [_average(group) for group in groups]
    for at, (row, group) in enumerate(zip(rows, groups, strict=True)):
        first = groups[at - at % policies]
        if len(group) > 1:
            row["paired"] = {}
            for key in TARGET_KEYS.values():
                ones, twos = (
                    {run["seed"]: run[key] for run in runs if run[key] is not None} for runs in (first, group)
                )
                if (apart := paired(ones, twos)) is not None:
                    row["paired"][key] = asdict(apart)
    return rows


def _average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    merged["seeds"] = [row["seed"] for row in rows]
    del merged["seed"]
    for key, value in rows[0].items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("seed", "gpus"):
            values = [row[key] for row in rows]
            merged[key] = sum(values) / len(values) if len(values) > 1 else value
            if len(values) > 1 and key in TARGET_KEYS.values():
                merged[f"{key}_min"], merged[f"{key}_max"] = min(values), max(values)
        elif key.startswith("tenant_"):
            merged[key] = {name: sum(row[key].get(name, 0) for row in rows) / len(rows) for name in value}
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
    config: Source,
    requests: Source,
    *,
    p99: float | None = None,
    mean: float | None = None,
    makespan: float | None = None,
    policy: Any = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    mode: Mode = "offline",
    on_error: OnError = "fail",
    compat: Compat | None = None,
    costs: Mapping[str, Any] | None = None,
    rates: Source | RateTable | None = None,
    seed: int = 0,
    max_gpus: int = 1024,
    progress: Progress | None = None,
) -> Capacity:
    """The fewest GPUs with which P99, mean or makespan stays within a limit, in seconds: give one of them.

    Sizes whose lower bound exceeds the limit are ruled out without a run. More GPUs do not always help a heuristic, so
    the next sizes are tried one by one; beyond them the size is doubled, and then bisected: there the answer is that
    this size meets the limit and the next smaller one does not.

    >>> from dovetail import workflow
    >>> found = workflow.fewest_gpus("examples/system_config.yaml", "examples/workflow_requests.yaml", p99=300)
    >>> found.gpus, found.reason
    (4, 'the widest node needs 4 GPUs')
    """
    target, limit_s = _limit({"p99": scalar(p99), "makespan": scalar(makespan), "mean": scalar(mean)})
    seed, max_gpus = scalar(seed), scalar(max_gpus)
    source = source_of(config, requests, mode=mode, on_error=on_error, compat=compat, costs=costs, rates=rates)
    make_policy(policy, options, mode)
    check_count("--max-gpus", max_gpus)
    tried: dict[int, float] = {}
    ruled_out: dict[int, float] = {}

    def value(gpus: int) -> float:
        if gpus not in tried and gpus not in ruled_out:
            problem = source.read(gpus)
            bound = _bound(problem.lower_bounds(), target)
            if bound > limit_s:
                ruled_out[gpus] = bound
            else:
                chosen = policy if isinstance(policy, str) else deepcopy(policy)
                found = run(problem, chosen, options=options, seed=seed, journal=False)
                if found.figures.rejected:
                    raise InputError(f"{found.figures.rejected} requests were rejected: a target needs them all")
                tried[gpus] = found.metrics[TARGET_KEYS[target]]
            if progress is not None:
                progress(len(tried) + len(ruled_out))
        return tried.get(gpus, ruled_out.get(gpus, 0.0))

    least = widest_node(source)
    if least > max_gpus:
        return Capacity(target, limit_s, None, None, f"the widest node needs {least} GPUs", tried, ruled_out)
    size = first = _first_open(value, ruled_out, least, max_gpus)
    while value(size) > limit_s and size < max_gpus:
        size = size + 1 if size < first + _SCANNED else min(2 * size, max_gpus)
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


def _limit(limits: Mapping[Target, float | None]) -> tuple[Target, float]:
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if len(given) != 1:
        raise InputError("give one limit: --p99, --mean or --makespan SECONDS")
    [(target, limit_s)] = given.items()
    if not isinstance(limit_s, int | float) or not limit_s > 0:
        raise InputError(f"the limit must be positive, found {limit_s}")
    return target, limit_s


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


def widest_node(source: ProblemSource) -> int:
    """The fewest GPUs on which every node of the requests fits."""
    problem = source.read(4096)
    if problem.gpus_over_time is not None:
        raise InputError("gpus_over_time: how many GPUs are needed is what a plan finds; leave it out")
    used = {request.of for _, request in problem.requests.arrivals() if not request.fault}
    nodes = [problem.growth[name].nodes if name in problem.growth else problem.graphs[name].tasks for name in used]
    return max([node.width for each in nodes for node in each], default=1) or 1


def _bound(bounds: Bounds, target: Target) -> float:
    return {"makespan": bounds.makespan_s, "mean": bounds.mean_s, "p99": bounds.p99_s}[target]
