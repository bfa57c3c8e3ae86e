"""`dovetail cluster generate` and `import`: traces of jobs, written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, WorkFlags
from dovetail.cli.common import Format, Pairs, one_or_named, pairs, print_json
from dovetail.cluster import OnError, TraceKind, Widths
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
    durations_on: str = "",
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
    durations_on
        The type that durations are on; v100 if left out, or of throughputs without it the first that runs most.
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
    _write(work.scenario(flags, RuleFlags(throughputs_file=throughputs_file, durations_on=durations_on)), out, to)


def import_trace(
    trace: Path,
    out: Path,
    /,
    *,
    trace_format: str = "",
    map: Pairs | None = None,
    model: Pairs | None = None,
    on_error: OnError = "fail",
    widths: Widths | None = None,
    cluster_spec: Annotated[str, Parameter(alias="-c")] = "8:8:8",
    num_gpus_per_server: str = "",
    throughputs_file: Path | None = None,
    durations_on: str = "",
    most: int | None = None,
    to: TraceKind = "table",
    format: Format = "table",
) -> int:
    """Read a trace of any known format, and write it as our table.

    Known are what Slurm's sacct prints, Kubernetes' and Kueue's objects and events as JSON, Ray's jobs, the older
    system's traces with 7 and 10 columns, Shockwave's, Philly's, Alibaba's, Helios' and others; docs/cluster-files.md
    has the list. What was assumed or left out is told.

    Example: dovetail cluster import philly.csv jobs.csv --most 1000

    Example: dovetail cluster import sacct.txt jobs.csv -c a100=8 --map entity=Partition --model 'bert*=Transformer'

    Parameters
    ----------
    trace
        The file to read.
    out
        The file to write.
    trace_format
        The trace's format, where it cannot be told from the file.
    map
        Of a scheduler's log, which key holds what: model, steps, width, weight, due_s, entity, name, type, as
        NAME=KEY,...; dots lead inside, a number stands for all, nothing (type=) for none.
    model
        Of a scheduler's log, what was trained: a model or family for all, or NAME=MODEL; * stands for anything.
    on_error
        A row of a scheduler's log that cannot be read: fail stops and writes nothing; skip leaves it out and says so.
    widths
        What is done with widths that the throughputs do not have: error or guess.
    cluster_spec
        The accelerators, whose types the throughputs are for.
    num_gpus_per_server
        Accelerators in one server, as simulate takes it: jobs that no server can hold are told.
    throughputs_file
        Steps per second of every job; without it, the built-in model's estimates.
    durations_on
        The type that durations are on; v100 if left out, or of throughputs without it the first that runs most.
    most
        At most so many jobs, the first ones.
    to
        table: our CSV; gavel: the older system's ten columns.
    format
        table or json.
    """
    from dovetail.cluster import Scenario

    within("--most", most, "1 or more", 1)
    scenario = Scenario(
        trace=trace,
        trace_format=trace_format,
        widths=widths,
        cluster=cluster_spec,
        per_server=num_gpus_per_server,
        throughputs=throughputs_file,
        durations_on=durations_on,
        jobs=most,
        map=pairs("--map", [item for word in map or [] for item in word.split(",")]),
        model=one_or_named("--model", model),
        on_error=on_error,
    )
    return _write(scenario, out, to, format)


def _write(scenario: Scenario, out: Path, to: TraceKind, format: Format = "table") -> int:
    from dovetail.cluster import load, write_trace
    from dovetail.core.files.output import refuse_overwrite

    refuse_overwrite([out], scenario.files())
    loaded = load(scenario)
    jobs = write_trace(loaded.setup.jobs, out, to, str(scenario.trace or ""))
    if format == "json":
        print_json({"format": loaded.trace_format, "jobs": jobs, "out": str(out), "notes": loaded.notes})
        return 0
    if loaded.trace_format and not scenario.trace_format:
        print(f"{scenario.trace}: {loaded.trace_format}")
    print(f"{jobs:,} jobs written to {out}")
    for note in loaded.notes:
        print(f"note: {note}")
    return 0
