"""`dovetail host simulate`: programs on the cores of one machine, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Format, atomic_write, make_folder, print_json, print_table
from dovetail.cli.host.flags import NO_FLAGS, Curves, SchedulingFlags
from dovetail.core.output import refuse_overwrite
from dovetail.host.options import HostOptions

if TYPE_CHECKING:
    from dovetail.host.simulate import HostOutcome


def simulate(
    *,
    requests: Annotated[Path | None, Parameter(alias="-r")] = None,
    parameters: Path | None = None,
    cores: int = 16,
    plan: Annotated[str | None, Parameter(alias="-p")] = None,
    assign: Annotated[str | None, Parameter(alias="-a")] = None,
    rules: SchedulingFlags = NO_FLAGS,
    work: float | None = None,
    curve: Curves | None = None,
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
        The request file; by default the one that the parameters name.
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
    curve
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
    from dovetail.host.curves import curves_by_image
    from dovetail.host.export import run_files
    from dovetail.host.inputs.generate import find_requests
    from dovetail.host.inputs.requests import read_requests
    from dovetail.host.metrics import Programs
    from dovetail.host.simulate import Workload, record

    found, lines = find_requests(requests, parameters, seed)
    options = rules.options(plan or found.policy, assign or found.assignment_policy, found)
    workload = Workload.of(read_requests(lines, delays), cores, work, curves_by_image(curve), found.malleable)
    if journal is not None:
        refuse_overwrite([journal], [lines, parameters])
    programs = Programs(cores)
    outcome = record(workload, options, journal, [programs])
    if out is not None:
        files = run_files(programs, options, cores, found.tf_model, found.tf_version)
        refuse_overwrite([out / name for name in files], [lines, parameters, journal])
        make_folder(out)
        for name, text in files.items():
            atomic_write(out / name, text)
    if format == "json":
        bound = {"bound_makespan_s": outcome.bound_makespan_s, "programs": outcome.rows}
        print_json({"policy": options.title, "cores": cores} | outcome.totals.as_dict() | bound)
    else:
        _show(outcome, options, cores)
    return 3 if outcome.totals.rejected else 0


def _show(outcome: HostOutcome, options: HostOptions, cores: int) -> None:
    columns = ("program", "asked", "priority", "arrived_s", "first_run_s", "waiting_s", "service_s", "turnaround_s")
    counts = ("resizes", "pauses", "status")
    rows = [[getattr(row, name) for name in (*columns, *counts)] for row in outcome.rows]
    print_table([*columns, *counts], rows)
    totals = outcome.totals
    print(
        f"\n{options.title} on {cores} cores: {totals.completed} of {totals.arrived} programs completed in "
        f"{totals.makespan_s:.1f} s (no less than {outcome.bound_makespan_s:.1f} s is possible), "
        f"mean first run after {totals.mean_first_run_s:.1f} s, mean turnaround {totals.mean_turnaround_s:.1f} s, "
        f"core use {100 * totals.core_use:.0f} %, {totals.throughput_per_h:.1f} per hour"
    )
    for row in outcome.rows:
        if row.status == "rejected":
            print(f"rejected: {row.program}: {row.why}")
