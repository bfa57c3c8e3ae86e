"""`dovetail host simulate`: programs on the cores of one machine, in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Format, make_folder, print_json, print_table
from dovetail.cli.complete import host_rules
from dovetail.cli.host.flags import NO_FLAGS, Curves, SchedulingFlags
from dovetail.core.files.output import printable

if TYPE_CHECKING:
    from dovetail.host import HostRun


def simulate(
    *,
    requests: Annotated[Path | None, Parameter(alias="-r")] = None,
    parameters: Path | None = None,
    cores: int = 16,
    plan: Annotated[str | None, host_rules("planning"), Parameter(alias="-p")] = None,
    assign: Annotated[str | None, host_rules("assignment"), Parameter(alias="-a")] = None,
    rules: SchedulingFlags = NO_FLAGS,
    work: float | None = None,
    curves: Curves | None = None,
    delays: Literal["before", "after"] = "before",
    seed: int = 0,
    journal: Path | None = None,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Simulate programs on the cores of a machine.

    Requests are lines `type,id,image,threads,delay,priority`; the last may be missing, and a seventh field may give the
    program's work in core-seconds. With get_requests "create" in the parameters they are generated, and written, unless
    --requests names a file that is there.

    Exit code 3: some programs were rejected.

    Example: dovetail host simulate --requests requests_file.txt --parameters parameters.json --assign max_prop

    Parameters
    ----------
    requests
        The request file; by default the one that the parameters name. Or a job file (.yaml, .toml, .json), as
        `submit-jobs` takes it.
    parameters
        parameters.json; without --requests by default the one in this folder.
    cores
        The cores of the machine.
    plan
        fcfs, priority or rr, or another from `dovetail host policies`; by default as the parameters say.
    assign
        strict, max_prop, always_attend or efficient, likewise.
    work
        Core-seconds of work of every program of which the file says nothing; by default 1000, or what the curve says.
    curves
        The speed-up: linear, amdahl:FRACTION, table:CORES=SECONDS,... or fit:CORES=SECONDS,... (fit+: for programs that
        too many cores slow down); IMAGE@CURVE for the programs of one image.
    delays
        Whether a line's delay passes before it, as in the older scheduler's code, or after it, as its manual says.
    seed
        Of generated requests.
    journal
        Write the journal here; `dovetail check` and `dovetail report` read it.
    out
        Write the older scheduler's files into this folder: gantt_events.txt, scheduler_events.txt and others.
    format
        table or json.
    """
    from dovetail import host

    workload = host.load(
        requests, parameters=parameters, cores=cores, work=work, curves=curves, delays=delays, seed=seed
    )
    kept: Path | Literal[False] | None = journal if journal is not None or out is not None else False
    run = host.simulate(workload, plan, assign, journal=kept, **rules.chosen())
    if out is not None:
        make_folder(out)
        run.export(out, workload.parameters.tf_model, workload.parameters.tf_version)
    if format == "json":
        print_json(run.metrics)
    else:
        _show(run)
    if workload.assumed:
        names = printable(", ".join(workload.assumed[:3])) + (" and others" if workload.assumed[3:] else "")
        print(
            f"note: {len(workload.assumed)} of the jobs say nothing of their work and count as "
            f"{workload.assumed_work:g} core-seconds each ({names}): `work` in the file, or --work",
            file=sys.stderr,
        )
    return 3 if run.metrics["rejected"] else 0


def _show(run: HostRun) -> None:
    columns = ("program", "asked", "priority", "arrived_s", "first_run_s", "waiting_s", "service_s", "turnaround_s")
    counts = ("resizes", "pauses", "status")
    print_table([*columns, *counts], [[row[name] for name in (*columns, *counts)] for row in run.metrics["programs"]])
    print(
        "\n{policy} on {cores} cores: {completed} of {arrived} programs completed in {makespan_s:.1f} s (no less than "
        "{bound_makespan_s:.1f} s is possible), mean first run after {mean_first_run_s:.1f} s, mean turnaround "
        "{mean_turnaround_s:.1f} s, core use {core_use:.0%}, {throughput_per_h:.1f} per hour".format_map(
            run.metrics
        ).replace("%", " %")
    )
    for row in run.metrics["programs"]:
        if row["status"] == "rejected":
            print(printable(f"rejected: {row['program']}: {row['why']}"))
