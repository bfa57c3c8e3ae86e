"""`dovetail cluster simulate`: one run under one policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, WorkFlags
from dovetail.cli.common import Flag, Format, Pairs, atomic_write, pairs, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cluster import DEFAULT, LONGEST_QUEUE, JournalMode
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.cluster import LoadedScenario, Scenario

_WORK, _JOBS, _RULES = WorkFlags(), JobFlags(), RuleFlags()


def simulate(
    *,
    policy: Annotated[str, policies_of("cluster"), Parameter(alias="-p")] = DEFAULT,
    option: Pairs | None = None,
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    longest_queue: float = LONGEST_QUEUE,
    journal: Path | None = None,
    journal_mode: JournalMode = "changes",
    log: Path | None = None,
    output_trace_file_name: Path | None = None,
    checkpoint_file: Path | None = None,
    checkpoint_every: int = 1000,
    resume: Flag = False,
    verbose: Annotated[bool, Parameter(alias="-v", negative=())] = False,
    format: Format = "table",
) -> int:
    """Simulate a cluster under a policy, with jobs from a trace or generated.

    Without any flag: 40 generated jobs, all there at the start, on 8 V100, 8 P100 and 8 K80.

    Exit code 3 if a job was rejected.

    Example: dovetail cluster simulate -p max_min_fairness_perf -c 36:36:36 --jobs-per-hour 4 -s 400 -e 500

    Parameters
    ----------
    policy
        Who decides; `dovetail cluster policies` lists them.
    option
        Options of the policy: --option alpha=0.5.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable.
    journal
        Where to write the run's journal, for `dovetail check` and `dovetail report`.
    journal_mode
        changes: every lease; summary: only arrivals and completions.
    log
        Where to write completion times and figures as the older simulator printed them.
    output_trace_file_name
        Where to write the jobs, up to the last measured one, as a trace with the older system's ten columns.
    checkpoint_file
        Where to keep the state of the run, so that it can go on after an interruption.
    checkpoint_every
        Rounds between two checkpoints.
    resume
        Go on from the checkpoint file, if it is there.
    verbose
        Accepted: results are always shown.
    format
        table or json.
    """
    from dovetail import cluster
    from dovetail.core.files.output import need_folders, refuse_overwrite

    asked, how = work.scenario(jobs, rules), rules.how()
    scenario: Scenario | LoadedScenario = asked
    written = [path for path in (journal, log, output_trace_file_name, checkpoint_file) if path is not None]
    refuse_overwrite(written, asked.files())
    need_folders(written)
    if output_trace_file_name is not None:
        scenario = cluster.load(asked)
        if scenario.setup.phased:
            raise InputError(
                "--output-trace-file-name: jobs change their batch as they go, which its columns cannot say"
            )
    with _told(journal, checkpoint_file), progress("simulating", 1) as done:
        run = cluster.simulate(
            scenario,
            policy,
            options=pairs("--option", option),
            longest_queue=longest_queue,
            journal=journal or False,
            journal_mode=journal_mode,
            checkpoint_file=checkpoint_file,
            checkpoint_every=checkpoint_every,
            resume=resume,
            progress=lambda made, of: done(made / of),
            **how,
        )
    setup = run.loaded.setup
    if output_trace_file_name is not None:
        cluster.write_trace(islice(setup.jobs, setup.window and setup.window[1]), output_trace_file_name, "gavel")
    if log is not None:
        atomic_write(log, run.old_log())
    if format == "json":
        print_json(run.metrics | {"notes": run.notes})
    else:
        _show(run.metrics, run.notes)
    return 3 if run.figures.rejected else 0


@contextmanager
def _told(journal: Path | None, checkpoint: Path | None) -> Iterator[None]:
    """Says what is left of a run that a user ends."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.exists():
            print(f"{checkpoint} has the last checkpoint: --resume goes on from it", file=sys.stderr)
        elif journal is not None:
            print(f"{journal} has the run so far (with --checkpoint-file it could go on)", file=sys.stderr)
        raise


def _hours(value_s: float) -> str:
    return f"{value_s:,.0f} s ({value_s / 3600:,.2f} h)"


def _above(value_s: float, bound_s: float) -> str:
    if not bound_s:
        return "no bound is known"
    return f"{100 * (value_s / bound_s - 1):.1f} % above the bound of {bound_s:,.0f} s"


def _show(row: dict[str, Any], notes: Sequence[str]) -> None:
    cluster = ", ".join(f"{count} {name}" for name, count in row["cluster"].items())
    print(f"{row['policy']} on {cluster}\n")
    makespan = _hours(row["makespan_s"])
    if row["bound_makespan_s"]:
        makespan += ", " + _above(row["makespan_s"], row["bound_makespan_s"])
    use = ", ".join(f"{name} {100 * share:.1f} %" for name, share in row["utilization_by_type"].items())
    shown = [
        ("jobs", f"{row['jobs']:,} measured, {row['completed']:,} completed, {row['rejected']:,} rejected"),
        ("makespan", makespan),
        ("average JCT", f"{_hours(row['avg_jct_s'])}, {_above(row['avg_jct_s'], row['bound_avg_jct_s'])}"),
        ("median, P95 JCT", f"{_hours(row['median_jct_s'])}, {_hours(row['p95_jct_s'])}"),
        ("utilisation", f"{100 * row['utilization']:.1f} % ({use})"),
        ("cost", f"{row['total_cost']:,.2f}"),
        ("finish-time rho", f"mean {row['rho_mean']:.3f}, P95 {row['rho_p95']:.3f}, largest {row['rho_max']:.3f}"),
        ("Jain's index", f"{row['jain']:.4f}"),
        ("envy", "" if row["envy"] is None else f"{100 * row['envy']:.1f} % of pairs of jobs"),
        ("rounds", f"{row['rounds']:,}, {row['allocations']:,} allocations, {row['leases']:,} leases"),
        ("CPU time", f"{row['cpu_s']:.2f} s, of which the policy {row['policy_s']:.2f} s"),
    ]
    if row["avg_jct_high_s"] is not None:
        both = f"{_hours(row['avg_jct_low_s'] or 0.0)}, {_hours(row['avg_jct_high_s'])}"
        shown.insert(4, ("JCT of low, high priority", both))
    if "restarts" in row:
        shown.insert(-1, ("restarts, held", f"{row['restarts']:,}, {row['accelerator_hours']:,.1f} accelerator hours"))
    if row["slo_jobs"]:
        shown.insert(6, ("deadlines", f"{row['slo_violations']:,} of {row['slo_jobs']:,} missed"))
    print_table(["figure", "value"], shown)
    for note in notes:
        print(f"\nnote: {note}")
