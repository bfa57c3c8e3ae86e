"""`dovetail cluster generate` and `import`: traces of jobs, written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, WorkFlags
from dovetail.cluster import TraceKind, Widths
from dovetail.core.errors import within

if TYPE_CHECKING:
    from dovetail.cluster import Scenario

_JOBS = JobFlags()


def generate(
    out: Path,
    /,
    *,
    lam: Annotated[float | None, Parameter(alias="-l")] = None,
    jobs_per_hour: float | None = None,
    jobs: int | None = None,
    flags: JobFlags = _JOBS,
    cluster_spec: Annotated[str, Parameter(alias="-c")] = "8:8:8",
    throughputs_file: Path | None = None,
    entities: int = 0,
    seed: int = 0,
    to: TraceKind = "table",
) -> None:
    """Generate jobs, and write them as a trace.

    The same flags and seed give `dovetail cluster simulate` the same jobs.

    Example: dovetail cluster generate jobs.csv --jobs-per-hour 4 --jobs 500 --seed 1

    Parameters
    ----------
    out
        The file to write.
    lam
        Mean seconds between arrivals; 0: all jobs are there at the start.
    jobs_per_hour
        The same as a rate.
    jobs
        How many: 40 at the start, or 500 that arrive, if nothing is said.
    cluster_spec
        The accelerators, whose types the throughputs are for.
    throughputs_file
        Steps per second of every job; without it, the built-in model's estimates.
    entities
        Jobs belong to so many entities.
    seed
        The same seed gives the same jobs.
    to
        table: our CSV; gavel: the older system's ten columns.
    """
    work = WorkFlags(
        lam=lam,
        jobs_per_hour=jobs_per_hour,
        jobs=jobs,
        cluster_spec=cluster_spec,
        entities=(str(entities),) if entities else (),
        seed=seed,
    )
    _write(work.scenario(flags, RuleFlags(throughputs_file=throughputs_file)), out, to)


def import_trace(
    trace: Path,
    out: Path,
    /,
    *,
    trace_format: str = "",
    widths: Widths | None = None,
    cluster_spec: Annotated[str, Parameter(alias="-c")] = "8:8:8",
    throughputs_file: Path | None = None,
    most: int | None = None,
    to: TraceKind = "table",
) -> None:
    """Read a trace of any known format, and write it as our table.

    Known are the older system's traces with 7 and 10 columns, Shockwave's, Philly's, Alibaba's, Helios' and others;
    docs/cluster-files.md has the list. What was assumed or left out is told.

    Example: dovetail cluster import philly.csv jobs.csv --most 1000

    Parameters
    ----------
    trace
        The file to read.
    out
        The file to write.
    trace_format
        The trace's format, where it cannot be told from the file.
    widths
        What is done with widths that the throughputs do not have: error or guess.
    cluster_spec
        The accelerators, whose types the throughputs are for.
    throughputs_file
        Steps per second of every job; without it, the built-in model's estimates.
    most
        At most so many jobs, the first ones.
    to
        table: our CSV; gavel: the older system's ten columns.
    """
    from dovetail.cluster import Scenario

    within("--most", most, "1 or more", 1)
    scenario = Scenario(
        trace=trace,
        trace_format=trace_format,
        widths=widths,
        cluster=cluster_spec,
        throughputs=throughputs_file,
        jobs=most,
    )
    _write(scenario, out, to)


def _write(scenario: Scenario, out: Path, to: TraceKind) -> None:
    from dovetail.cluster import load, write_trace
    from dovetail.core.output import refuse_overwrite

    refuse_overwrite([out], scenario.files())
    loaded = load(scenario)
    if loaded.trace_format and not scenario.trace_format:
        print(f"{scenario.trace}: {loaded.trace_format}")
    print(f"{write_trace(loaded.setup.jobs, out, to):,} jobs written to {out}")
    for note in loaded.notes:
        print(f"note: {note}")
