"""What users of Python and the commands call: one run, policies side by side, sweeps over loads and seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, get_args

from dovetail.cluster.compat.log import old_log
from dovetail.cluster.export import figures
from dovetail.cluster.inputs.choices import DEFAULT, LONGEST_QUEUE, JournalMode, SweepKind, one_of
from dovetail.cluster.inputs.fits import rejected_note
from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, given, load
from dovetail.cluster.metrics import ClusterFigures, ClusterResult
from dovetail.cluster.policies import make, name_of
from dovetail.cluster.rounds import scheduler_for
from dovetail.cluster.simulate import Checkpointing, run
from dovetail.cluster.sweeps.cell import SweepCell, SweepRow, finished, run_cell
from dovetail.cluster.sweeps.given import (
    Progress,
    mean_rate_notes,
    notes_of,
    numbers_of,
    policies_of,
    scenario_of,
    seeds_of,
    untuned_notes,
)
from dovetail.cluster.sweeps.grid import SweepGrid, run_sweep
from dovetail.cluster.sweeps.groups import FIGURES, SweepGroup, compared_sweeps, differences, groups
from dovetail.cluster.sweeps.late_jobs import impossible_deadlines, late_sentences
from dovetail.cluster.sweeps.rule_options import RuleKeywords, options_of
from dovetail.cluster.sweeps.stability import QueueWatch, StoppedError
from dovetail.cluster.sweeps.table import read_sweep, write_table
from dovetail.cluster.sweeps.varied import reason_of, reasons, varied
from dovetail.core import registry
from dovetail.core.errors import DovetailError, InputError, check_functions, did_you_mean, within
from dovetail.core.files.document import Document, Source, as_path
from dovetail.core.files.output import atomic_write, need_folders, refuse_overwrite
from dovetail.core.files.plain import plain, scalar
from dovetail.core.loop.replay import Agreement, replay_journal
from dovetail.core.parallel import CellEngine, cell_engine, run_all
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.run import JournalFile, JournalPath, Run

AnyPath = str | PathLike[str]
COMPARED = ("makespan_s", "avg_jct_s", "p95_jct_s", "utilization", "total_cost", "rho_mean", "rho_max", "jain")


class ClusterRun(Run):
    """A simulated run of a cluster. `completion_s` are seconds from arrival to completion by the number of the job."""

    def __init__(
        self,
        journal: JournalFile,
        loaded: LoadedScenario,
        policy: Any,
        outcome: ClusterResult,
        metrics: dict[str, Any],
        notes: list[str],
    ) -> None:
        super().__init__(journal, metrics, notes)
        self.loaded, self.outcome, self._policy = loaded, outcome, policy

    @property
    def figures(self) -> ClusterFigures:
        return self.outcome.figures

    @property
    def completion_s(self) -> dict[int, float]:
        return self.outcome.completion_s

    def replay(self) -> Agreement:
        """Decide the run again, from what was seen, and compare with what is recorded."""
        policy = None if isinstance(self._policy, str) else self.loaded.policy(self._policy)
        scheduler: Any = scheduler_for(self._reader, policy)  # one that hears and decides rows
        return replay_journal(self.journal, scheduler)

    def old_log(self) -> str:
        """Completion times and figures as the older simulator printed them."""
        return old_log(self.outcome, self.loaded.setup.window)


def simulate(
    scenario: Scenario | LoadedScenario | None = None,
    policy: Any = DEFAULT,
    *,
    options: Mapping[str, Any] | None = None,
    longest_queue: float = LONGEST_QUEUE,
    journal: JournalPath = None,
    journal_mode: JournalMode = "changes",
    checkpoint_file: AnyPath | None = None,
    checkpoint_every: int = 1000,
    resume: bool = False,
    progress: Progress | None = None,
    **how: Unpack[RuleKeywords],
) -> ClusterRun:
    """Simulate a cluster under a policy: a name, `file.py:name`, or a policy of your own (an object, a class, or a
    function from a `Problem` to an `Allocation`).

    The journal goes to the path that is given, else to a temporary file; with False there is none. A run whose queue
    grows beyond `longest_queue` times all accelerators is stopped as unstable. `progress` is told how many jobs are
    done, and of how many. `how` are `interval` (the seconds of a round, 360), `restart_s`, `allocate_every_s`,
    `enable_global_queue`, `ideal` and `compat`, as on the command line.

    >>> run = simulate(load(cluster="a100=2,l4=4", jobs=6), "max_min_fairness_perf")
    >>> run.figures.completed, run.check().valid, run.gap < 0.5
    (6, True, True)
    """
    rules = options_of(**how)
    checkpoint_every, longest_queue = scalar(checkpoint_every), scalar(longest_queue)
    within("checkpoint_every", checkpoint_every, "rounds, 1 or more", 1, whole=True, optional=False)
    within("longest_queue", longest_queue, "more than 0", 1e-9, inf, optional=False)
    one_of("journal_mode", journal_mode, get_args(JournalMode))
    if not isinstance(options, Mapping | None):
        raise InputError(f"options: expected values by name, found {options!r}")
    if resume and checkpoint_file is None:
        raise InputError("resume needs checkpoint_file")
    make(policy, options)  # an error shows before anything is read
    loaded = scenario if isinstance(scenario, LoadedScenario) else load(given(scenario))
    file, saving = JournalFile(journal), None
    written = [] if file.path is None else [file.path]
    if checkpoint_file is not None:
        saving = Checkpointing(as_path(checkpoint_file, "checkpoint_file"), checkpoint_every, resume)
        if saving.path.is_dir():
            raise InputError(f"{saving.path}: cannot be written: it is a folder")
        written.append(saving.path)
    need_folders(written)
    refuse_overwrite(written, loaded.scenario.files())
    setup = loaded.setup
    known = setup.window[1] if setup.window else len(list(setup.jobs))
    check_functions(progress=progress)
    done = (lambda made: None) if progress is None else lambda made: progress(made, known)
    watch = QueueWatch(setup, long=longest_queue, progress=done)
    try:
        outcome = run(
            setup,
            loaded.policy(policy, options),
            rules.rules,
            name=name_of(policy),
            options=loaded.options(policy, options),
            journal=file.path,
            mode=journal_mode,
            observers=[watch],
            compat=rules.compat,
            ideal=rules.ideal,
            saving=saving,
        )
    except StoppedError as stopped:
        raise DovetailError(f"the load is too heavy: {stopped} (--longest-queue lets it grow longer)") from None
    told = (
        rejected_note(setup, outcome.figures.rejected, rules.compat),
        watch.verdict() and f"unstable: {watch.verdict()}",
        *late_sentences([] if rules.compat else impossible_deadlines(setup, loaded.policy(policy, options))),
    )
    about = [*mean_rate_notes(loaded.scenario, rules), *untuned_notes(loaded.scenario, [policy], options)]
    notes = [*loaded.notes, *about, *filter(None, told)]
    named = {"policy": name_of(policy), "cluster": setup.accelerators(), "seed": setup.seed}
    return ClusterRun(
        file, loaded, policy, outcome, named | figures(outcome) | {"throughputs": setup.throughputs.source}, notes
    )


def compare(
    scenario: Scenario | LoadedScenario | None = None,
    policies: Sequence[Any] = ("max_min_fairness", DEFAULT),
    *,
    seeds: Sequence[int] | None = None,
    longest_queue: float = LONGEST_QUEUE,
    processes: int | None = 1,
    progress: Progress | None = None,
    **how: Unpack[RuleKeywords],
) -> Comparison:
    """Policies side by side on the same jobs: one row of figures each; `ratios` are those to the first policy's.

    With `seeds`, in the place of the scenario's own, figures are means over them, with half of their 95 % confidence
    intervals as `NAME_plus_minus`, and `paired` has every figure against the first policy's, seed by seed: difference
    and ratio with their intervals, and whether it is `sure` that there is a difference.

    A run whose queue grows beyond `longest_queue` times all accelerators is stopped as unstable: its policy has None in
    the place of figures, and a `reason`.

    A policy's options stand behind its name: "sia,power=-1". `processes` is how many run at a time, None for one per
    core; policies of your own run in this process.

    >>> found = compare(load(cluster="a100=2,l4=4", jobs=8), ["fifo", "max_min_fairness_perf"])
    >>> found.best("avg_jct_s")["policy"], len(found)
    ('max_min_fairness_perf', 2)
    """
    processes, longest_queue = scalar(processes), scalar(longest_queue)
    within("longest_queue", longest_queue, "more than 0", 1e-9, inf, optional=False)
    within("processes", processes, "1 or more", 1, whole=True)
    rules, chosen = options_of(**how), policies_of(policies)
    asked = scenario_of(scenario)
    loaded = scenario if isinstance(scenario, LoadedScenario) else load(asked)
    notes = [*loaded.notes, *mean_rate_notes(asked, rules), *untuned_notes(asked, chosen)]
    check_functions(progress=progress)
    if seeds is not None:
        drawn = seeds_of(seeds)
        found = varied(
            {None: (asked, rules)}, chosen, drawn, processes=processes, long=longest_queue, progress=progress
        )
        return Comparison(found, ("policy", *COMPARED), [*notes, *notes_of(asked, drawn), *reasons(found)])
    cells = [SweepCell(scenario=asked, policy=policy, how=rules, long=longest_queue) for policy in chosen]
    own = not all(isinstance(policy, str) for policy in chosen)
    done = (lambda made: None) if progress is None else lambda made: progress(made, len(cells))
    rows = run_all(run_cell, cells, 1 if own else processes, done)
    for row in rows:
        if row["status"] == "failed":
            raise DovetailError(f"{row['policy']}: {row['reason']}")
        row.pop("jct_quantiles_s", None)
        if not finished(row):
            row |= dict.fromkeys(COMPARED)
        row["ratios"] = {
            key: row[key] / rows[0][key] if row[key] is not None and rows[0][key] else None for key in COMPARED
        }
    why = ((row, reason_of(row) or rejected_note(loaded.setup, row.get("rejected", 0), rules.compat)) for row in rows)
    told = [f"{row['policy']}: {reason}" for row, reason in why if reason]
    return Comparison(rows, ("policy", *COMPARED), [*notes, *told])


class Sweep(Comparison):
    """The points of a sweep, a row for each cluster, policy and load: means over seeds, and half of their 95 %
    confidence intervals as `NAME_plus_minus`. `runs` are the rows of single runs."""

    def __init__(self, runs: list[SweepRow]) -> None:
        self.runs = runs
        self.points: list[SweepGroup] = groups(runs)
        notes = [
            f"{point.line} at {point.load:g}: {point.status}: {point.reason}" for point in self.points if point.reason
        ]
        shown = ("cluster", "policy", "load", "seeds", "avg_jct_s", "avg_jct_s_plus_minus", "utilization", "status")
        super().__init__([_point(point) for point in self.points], shown, notes)

    def paired(self, against: str | None = None, figures: Sequence[str] = ("avg_jct_s",)) -> Comparison:
        """Every other policy against one (the first), at the same cluster and load and with the same seeds: the mean
        difference, the ratio, and their 95 % confidence intervals. Means whose bands overlap may still differ for
        certain, because what a seed makes of all policies is not in it."""
        for figure in figures:
            if figure not in FIGURES:
                raise InputError(
                    f"figures: expected {', '.join(FIGURES)}, found {figure!r}{did_you_mean(figure, FIGURES)}"
                )
        rows = differences(self.points, against or self.points[0].line, figures)
        return Comparison(rows, ("cluster", "policy", "load", "figure", "difference", "plus_minus", "ratio", "sure"))

    def report(self, path: AnyPath, title: str = "Sweep") -> Path:
        """Write a page with lines and bands over the loads: one file that needs no server."""
        place = as_path(path, "path")
        atomic_write(place, import_module("dovetail.report.sweep_page").sweep_page(self.points, title))
        return place


def _point(point: SweepGroup) -> dict[str, Any]:
    row: dict[str, Any] = {"cluster": point.cluster, "policy": point.line, "load": point.load}
    row |= {"seeds": len(point.seeds), "status": point.status}
    for name, mean in point.means.items():
        row |= {name: mean.value, f"{name}_plus_minus": mean.half}
    return row


def sweep(
    scenario: Scenario | LoadedScenario | None = None,
    *,
    kind: SweepKind = "continuous",
    loads: Sequence[float] = (),
    policies: Sequence[str] = (),
    clusters: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    profiling_percentages: Sequence[float] = (1.0,),
    num_reference_models: Sequence[int] = (),
    cutoffs: Source | None = None,
    utilization_threshold: float | None = None,
    step: float | None = None,
    most: float = inf,
    timeout: float | None = None,
    longest_queue: float = LONGEST_QUEUE,
    log_dir: AnyPath | None = None,
    processes: int | None = 1,
    engine: CellEngine | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    run: Callable[[SweepCell], SweepRow] = run_cell,
    **how: Unpack[RuleKeywords],
) -> Sweep:
    """Many simulations over clusters, policies, loads and seeds, as means over seeds with confidence intervals.

    `loads` are jobs per hour of a continuous sweep, whose scenario has a `window`; numbers of jobs of a static one.
    With `utilization_threshold` they are raised by `step` until the cluster is used more than that, up to `most`.
    Policies are all of them if left out, clusters the scenario's. What is in `log_dir` is kept, and not run again;
    without one, results are only given back. `processes` run at a time, None for one per core. With the ray engine they
    run on the nodes of the cluster at an address, or of a private one; all nodes must see the files and `log_dir`.

    >>> found = sweep(given(cluster="a100=2"), kind="static", loads=[4, 8], policies=["fifo"], seeds=[0, 1])
    >>> [(row["load"], row["seeds"], row["avg_jct_s_plus_minus"] > 0) for row in found]
    [(4.0, 2, True), (8.0, 2, True)]
    """
    check_functions(progress=progress, run=run)
    rules = options_of(**how)
    processes, timeout, longest_queue = scalar(processes), scalar(timeout), scalar(longest_queue)
    clusters = plain(clusters)
    within("processes", processes, "1 or more", 1, whole=True)
    within("timeout", timeout, "seconds, more than 0", 1e-9)
    within("longest_queue", longest_queue, "more than 0", 1e-9, inf, optional=False)
    within("utilization_threshold", utilization_threshold, "more than 0, up to 1", 1e-9, 1)
    within("step", step, "more than 0", 1e-9)
    within("most", most, "0 or more", 0, inf, optional=False)
    one_of("kind", kind, get_args(SweepKind))
    engine = cell_engine(engine, address)
    if kind == "static" and utilization_threshold is not None:
        raise InputError("utilization_threshold is for continuous sweeps: a static one needs loads")
    profiled = numbers_of("profiling_percentages", profiling_percentages, "0 to 1", 0, 1)
    if not profiled:
        raise InputError("profiling_percentages: expected at least one value, found ()")
    if isinstance(clusters, str | Mapping) or not isinstance(clusters, Sequence):
        raise InputError(f"clusters: expected several, found {clusters!r}")
    base = scenario_of(scenario)
    with tempfile.TemporaryDirectory() as folder:
        grid = SweepGrid(
            kind=kind,
            folder=Path(folder, "sweep") if log_dir is None else as_path(log_dir, "log_dir"),
            base=base,
            how=rules,
            clusters=tuple(given(cluster=each).cluster for each in clusters) or (base.cluster,),
            policies=tuple(policies_of(registry.names("cluster") if policies in (None, (), []) else policies)),
            seeds=seeds_of(seeds),
            loads=tuple(map(float, numbers_of("loads", loads, "more than 0", 1e-9))),
            profiled=profiled,
            references=numbers_of("num_reference_models", num_reference_models, "1 or more", 1, whole=True) or (None,),
            cutoffs=_cutoffs(cutoffs),
            timeout_s=timeout,
            long=longest_queue,
        )
        climb = None if utilization_threshold is None else (utilization_threshold, step, most)
        try:
            run_sweep(grid, climb, processes, progress or (lambda done, of: None), run, engine, address)
        except KeyboardInterrupt:
            _finish(grid.folder, kind)
            raise
        return _finish(grid.folder, kind)


def _cutoffs(source: Source | None) -> dict[str, dict[str, float]]:
    """By cluster and policy: loads from which on nothing is run."""
    if source is None:
        return {}
    doc = Document.of(source, "cutoffs")
    return doc.convert(doc.data, dict[str, dict[str, float]])


def _finish(folder: Path, kind: SweepKind) -> Sweep:
    """The table and the page of all results in the folder."""
    found = read_results(folder)
    if found.runs:
        write_table(found.runs, folder)
        found.report(folder / "sweep.html", f"{kind.capitalize()} sweep {folder.name}")
    return found


def read_results(log_dir: AnyPath) -> Sweep:
    """The results that a sweep kept in a folder, also of one that was interrupted."""
    return Sweep(read_sweep(as_path(log_dir, "log_dir")))


def compare_sweeps(a: AnyPath | Sweep, b: AnyPath | Sweep) -> Comparison:
    """The second sweep's figures over the first one's, for every cluster, policy and load that both have. Where both
    have the same seeds, and so the same jobs, with the mean difference and half its 95 % confidence interval."""
    one, two = (each if isinstance(each, Sweep) else read_results(each) for each in (a, b))
    rows = compared_sweeps(one.points, two.points)
    if not rows:
        raise InputError(f"{a} and {b} have no cluster, policy and load in common")
    return Comparison(rows, ("cluster", "policy", "load", "a", "b"))
