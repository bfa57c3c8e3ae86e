"""`dovetail host`: programs on the cores of one machine, simulated. The live commands are in `host_live`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from dovetail.cli.common import Format, atomic_write, make_folder, print_json, print_table, progress
from dovetail.cli.host_live import register
from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.files import refuse_overwrite
from dovetail.host import experiment as experiments
from dovetail.host.generate import request_lines
from dovetail.host.inputs import Delays, Parameters, read_parameters, read_requests, requests_path
from dovetail.host.metrics import Programs
from dovetail.host.options import First, Options, Overtaking, Profile, Victim
from dovetail.host.outputs import run_files
from dovetail.host.policy import Assignment, Planning, names
from dovetail.host.simulation import Outcome, Workload, record

app = App(name="host", help="Co-schedule programs on the cores of one machine.")
_PARAMETERS = Path("parameters.json")
_SHARERS = ("max_prop", "efficient")  # whose programs may get more than they ask for


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Rules:
    """How programs are scheduled.

    Parameters
    ----------
    preemptive
        With priorities: pause less urgent programs for a more urgent one.
    victim
        Whom to pause first: longest (accumulated run) or smallest (request).
    quantum
        Round Robin: seconds of a turn.
    age_step
        Seconds of waiting that make a program more urgent by one.
    overtaking
        Who may pass a program that cannot start: none, first-fit (all that fit) or backfill (who does not delay it).
    first
        Who gets free cores first: admission (waiting programs) or growth (running ones).
    shrink
        Whether running programs give cores up for waiting ones; by default as the assignment does.
    min_cores
        The fewest cores of a program, where it asks for as many.
    max_cores
        The most cores of a program. By default max_resources_per_container for max_prop and efficient.
    profile
        clean, or legacy: the older scheduler's decisions exactly.
    """

    preemptive: Annotated[bool, Parameter(negative=())] = False
    victim: Victim = "longest"
    quantum: float = 30.0
    age_step: float | None = None
    overtaking: Overtaking = "none"
    first: First = "admission"
    shrink: bool | None = None
    min_cores: int = 1
    max_cores: int | None = None
    profile: Profile = "clean"

    def options(self, plan: str, assign: str, parameters: Parameters | None) -> Options:
        most = self.max_cores
        if most is None and parameters is not None and assign in _SHARERS:
            most = parameters.max_resources_per_container
        return Options(
            plan=plan,
            assign=assign,
            preemptive=self.preemptive,
            victim=self.victim,
            quantum_s=self.quantum,
            age_step_s=self.age_step,
            overtaking=self.overtaking,
            first=self.first,
            shrink=self.shrink,
            min_cores=self.min_cores,
            max_cores=most,
            profile=self.profile,
        )


_RULES = Rules()
Curves = Annotated[list[str], Parameter(consume_multiple=True, negative=())]


def _curves(given: Sequence[str] | None) -> dict[str, str]:
    """`SPEC` for all programs, `IMAGE@SPEC` for those of an image.

    >>> _curves(["amdahl:0.9", "resnet@table:1=100,2=60"])
    {'': 'amdahl:0.9', 'resnet': 'table:1=100,2=60'}
    """
    from dovetail.host.curves import curve

    found = {}
    for text in given or ():
        image, _, spec = text.rpartition("@")
        found[image] = curve(spec).text
    return found


@app.command
def simulate(
    *,
    requests: Annotated[Path | None, Parameter(alias="-r")] = None,
    parameters: Path | None = None,
    cores: int = 16,
    plan: Annotated[str | None, Parameter(alias="-p")] = None,
    assign: Annotated[str | None, Parameter(alias="-a")] = None,
    rules: Rules = _RULES,
    work: float | None = None,
    curve: Curves | None = None,
    delays: Delays = "before",
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
    found, lines = _inputs(requests, parameters, seed)
    options = rules.options(plan or found.policy, assign or found.assignment_policy, found)
    workload = Workload.of(read_requests(lines, delays), cores, work, _curves(curve), found.malleable)
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
        print_json({"policy": options.title, "cores": cores} | msgspec.to_builtins(outcome.totals) | bound)
    else:
        _show(outcome, options, cores)
    return 3 if outcome.totals.rejected else 0


def _inputs(requests: Path | None, parameters: Path | None, seed: int) -> tuple[Parameters, Path]:
    """The parameters, and the request file, which in create mode is made now."""
    if parameters is None and requests is None and _PARAMETERS.is_file():
        parameters = _PARAMETERS
    found = Parameters() if parameters is None else read_parameters(parameters)
    if found.get_requests == "create" and parameters is not None and not (requests and requests.exists()):
        lines = requests or parameters.parent / (found.requests_file or "requests_file.txt")
        refuse_overwrite([lines], [parameters])
        experiments.keep_or_write(lines, request_lines(found, seed))
        return found, lines
    if requests is None:
        if parameters is None:
            raise InputError("no parameters.json in this folder: name the requests with --requests")
        requests = requests_path(found, parameters)
    return found, requests


def _show(outcome: Outcome, options: Options, cores: int) -> None:
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


@app.command
def experiment(
    runs: int,
    containers: int,
    /,
    *,
    parameters: Path | None = None,
    plans: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    assigns: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    repeats: int = 1,
    cores: int = 16,
    rules: Rules = _RULES,
    work: float | None = None,
    curve: Curves | None = None,
    seed: int = 0,
    name: str = "comparison",
    out: Path = Path("Data/log"),
    format: Format = "table",
) -> int:
    """Compare every planning with every assignment on the same workloads.

    RUNS sizes are simulated, the first with CONTAINERS programs, each with twice as many as the one before. The results
    of a run are in OUT/POLICY/ASSIGNMENT/<n>Contenedores_<version>, the comparison in OUT/NAME.csv, with confidence
    intervals in OUT/NAME_ci95.csv. Interrupted, the same command goes on where it stopped.

    Example: dovetail host experiment 3 8 --repeats 5 --work 1300

    Parameters
    ----------
    runs
        How many sizes.
    containers
        Programs of the first size.
    parameters
        parameters.json: how programs and their arrivals are drawn.
    plans
        The planning policies to compare; by default fcfs, priority and rr (legacy: fcfs and priority).
    assigns
        The assignments; by default strict, max_prop, always_attend and efficient (legacy: without efficient).
    repeats
        Workloads of each size, for means with 95 % confidence intervals.
    cores
        The cores of the machine.
    work
        Core-seconds of work of every program; by default 1000, or what the curve says.
    curve
        As in `dovetail host simulate`.
    seed
        Of the generated workloads.
    name
        Of the comparison.
    out
        The folder of the results.
    format
        table or json.
    """
    if min(runs, containers, repeats) < 1:
        raise InputError(f"expected at least 1, found RUNS {runs}, CONTAINERS {containers}, --repeats {repeats}")
    found = read_parameters(parameters) if parameters is not None else _default_parameters()
    old = rules.profile == "legacy"
    plans = plans or (["fcfs", "priority"] if old else ["fcfs", "priority", "rr"])
    assigns = assigns or ["strict", "max_prop", "always_attend"] + ([] if old else ["efficient"])
    pairs = [rules.options(plan, assign, found) for plan in plans for assign in assigns]
    for options in pairs:
        _check_policies(options)
    sizes = [containers * 2**i for i in range(runs)]
    make_folder(out)
    files = experiments.write_workloads(out, found, sizes, repeats, seed)
    cells = [
        experiments.Cell(
            requests=files[size, repeat],
            containers=size,
            repeat=repeat,
            cores=cores,
            work=work,
            curves=_curves(curve),
            options=options,
            malleable=found.malleable,
            model=found.tf_model,
        )
        for size in sizes
        for options in pairs
        for repeat in range(1, repeats + 1)
    ]
    with progress("simulating", len(cells)) as done:
        results = experiments.run_all(out, cells, done)
    rows = experiments.summarise(results)
    atomic_write(out / f"{name}.csv", experiments.comparison(results))
    atomic_write(out / f"{name}_ci95.csv", experiments.table_csv(rows))
    if format == "json":
        print_json(rows)
        return 0
    _show_experiment(rows)
    print(f"\nComparison written to {out / f'{name}.csv'} and {out / f'{name}_ci95.csv'}")
    return 0


def _default_parameters() -> Parameters:
    return Parameters(
        time_distribution="normal",
        time_gap=(15.0, 5.0),
        resources_distribution="random",
        resources_per_container=(2, 17),
    )


def _check_policies(options: Options) -> None:
    from dovetail.host.simulation import make_scheduler

    make_scheduler(1, {}, options)


def _show_experiment(rows: Sequence[dict[str, Any]]) -> None:
    shown = {"makespan_s": 1, "mean_first_run_s": 1, "mean_turnaround_s": 1, "core_use": 3, "throughput_per_h": 2}

    def cell(row: dict[str, Any], key: str, digits: int) -> str | float:
        half = row[f"{key}_ci95"]
        value = round(row[key], digits)
        return value if half is None else f"{value:.{digits}f} ± {half:.{digits}f}"

    table = [
        [row["containers"], row["plan"], row["assign"], *(cell(row, key, digits) for key, digits in shown.items())]
        for row in rows
    ]
    print_table(["containers", "plan", "assign", *shown], table)


@app.command
def policies(*, format: Format = "table") -> None:
    """List the planning and assignment policies, and what each promises.

    Example: dovetail host policies

    Parameters
    ----------
    format
        table or json.
    """
    kinds = {"planning": names(Planning), "assignment": names(Assignment)}
    rows = [[kind, name, registry.promise("host", name)] for kind, found in kinds.items() for name in found]
    if format == "json":
        print_json([{"kind": kind, "name": name, "promise": promise} for kind, name, promise in rows])
    else:
        print_table(["kind", "policy", "what it promises"], rows)


app.command("dovetail.cli.host_measure:measure", name="measure")
app.command("dovetail.cli.host_gantt:gantt", name="gantt")
register(app)
