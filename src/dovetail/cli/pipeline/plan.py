"""`dovetail pipeline plan`: where to cut a model, and which device gets which layers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import inf
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Numbers, Pairs, pairs, print_json, print_table, progress
from dovetail.cli.complete import PIPELINE_MODELS, policies_of
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.core.results.charts import Chart
    from dovetail.pipeline import Front, InfeasibleError, Plan, Stage

_Objective = Literal["throughput", "latency", "batch", "devices", "energy", "money", "pareto"]
_VALUE_COLUMNS = {
    "throughput": "bottleneck s",
    "latency": "latency s",
    "batch": "batch s",
    "devices": "devices",
    "energy": "J/item",
    "money": "money/item",
}


def plan(
    *,
    model_name: Annotated[str, PIPELINE_MODELS, Parameter(alias="-m")] = "google/vit-base-patch16-224",
    models_file: Annotated[Path, Parameter(alias="-M")] = Path("models.yml"),
    dev_types_file: Annotated[Path, Parameter(alias="-T")] = Path("device_types.yml"),
    dev_file: Annotated[Path, Parameter(alias="-D")] = Path("devices.yml"),
    batch_size: Annotated[Numbers, Parameter(alias="-b")] = (8,),
    dtype: Annotated[str, Parameter(alias="-d")] = "torch.float32",
    buffers_in: Annotated[int, Parameter(alias="-i")] = 2,
    buffers_out: Annotated[int, Parameter(alias="-o")] = 2,
    links: Path | None = None,
    objective: _Objective = "throughput",
    microbatches: int = 8,
    slack: float = 0.0,
    latency_cap_s: float | None = None,
    first: str | None = None,
    last: str | None = None,
    max_stages: int | None = None,
    cuts: Numbers = (),
    data_mbps: float | None = None,
    replicas: int = 1,
    link_bits: Numbers = (32,),
    throughput_floor_items_s: float | None = None,
    time_limit_s: Annotated[float, Parameter(alias="--time-limit")] = 10.0,
    method: Annotated[str, policies_of("pipeline")] = "exact",
    option: Pairs | None = None,
    points: int = 20,
    what_ifs: Annotated[bool, Parameter(name="--what-if", negative=())] = False,
    curves: Flag = False,
    rates_out: Path | None = None,
    format: Literal["table", "json", "yaml"] = "table",
) -> int:
    """Plan where to cut a model and which device gets which layers.

    Exit code 1 if there is no plan; the reasons are told.

    Example: dovetail pipeline plan -m google/vit-base-patch16-224 --what-if

    Parameters
    ----------
    model_name
        A model of the models file.
    models_file
        Models: layers, memory and cut sizes.
    dev_types_file
        Device types: bandwidth, memory and profiles.
    dev_file
        The hosts of each type.
    batch_size
        Microbatch size; of several the best for the objective, in items.
    dtype
        Data type of the profile and of what is sent.
    buffers_in
        Buffers for what a stage receives.
    buffers_out
        Buffers for what a stage sends.
    links
        Bandwidth and latency between hosts or types, or the map of every host's neighbours; without it a link is as
        fast as its slower end.
    objective
        throughput, latency (of one microbatch), batch (of so many), devices (fewest), energy or money (per item), or
        pareto: every plan that no other beats in bottleneck, latency and number of devices.
    microbatches
        How many, for objective batch; with several batch sizes, how many of the largest.
    slack
        For objective devices: how far above the least bottleneck it may be, 0.05 for 5 %.
    latency_cap_s
        The longest that one microbatch may take.
    first
        Host that must hold the first stage.
    last
        Host that must hold the last stage.
    max_stages
        At most so many devices.
    cuts
        Layers after which a cut is allowed; all if left out.
    data_mbps
        Bandwidth of the host that sends the input and takes the output; without it those transfers are free.
    replicas
        Up to so many devices of a type may take turns at one stage.
    link_bits
        Widths that values may have on a link, 2 to 16, or 32 for as they are: the widest that makes nothing worse is
        chosen.
    throughput_floor_items_s
        The fewest items per second that a plan may have.
    time_limit_s
        After so long the best plan found is given, with how far it can be from the best. Ctrl-C does the same.
    method
        exact, or for comparison auction, equal, speed-proportional, memory-proportional, parameter-proportional.
    option
        Options of the method: --method auction --option mode=latency data_host=mb-0.
    points
        For objective pareto: show at most so many plans.
    what_ifs
        Also what one device more or fewer of each type would change, looked for as long again.
    curves
        Also the throughput of the best plan by number of devices, and by speed of the links.
    rates_out
        Add the plan's rate to this table of rates, where other levels read it.
    format
        table, json, or yaml: the schedule that a pipeline runtime reads.
    """
    from dovetail.pipeline import InfeasibleError, front, load, what_if
    from dovetail.pipeline import curves as draw_curves
    from dovetail.pipeline import plan as make_plan

    if not batch_size:
        raise InputError("--batch-size: expected at least one value")
    problems = [
        load(
            models_file,
            dev_types_file,
            dev_file,
            model=model_name,
            batch_size=size,
            dtype=dtype,
            buffers_in=buffers_in,
            buffers_out=buffers_out,
            links=links,
        )
        for size in batch_size
    ]
    for warning in dict.fromkeys(warning for problem in problems for warning in problem.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    limits: dict[str, Any] = {"latency_cap_s": latency_cap_s, "first": first, "last": last, "max_stages": max_stages}
    limits |= {"cuts": cuts, "data_mbps": data_mbps, "replicas": replicas, "link_bits": link_bits or (32,)}
    limits["throughput_floor_items_s"] = throughput_floor_items_s
    if format == "yaml":
        _refuse("has no place in a schedule; expected --format table or json", what_if=what_ifs, curves=curves)
    try:
        if objective == "pareto":
            _check_pareto(batch_size, method, format)
            why = "is for one plan; expected another objective than pareto"
            _refuse(why, what_if=what_ifs, curves=curves, rates_out=rates_out is not None)
            with progress("looking for plans that no other beats", total=1.0) as done:
                found = front(problems[0], points=points, time_limit_s=time_limit_s, progress=done, **limits)
            _show_front(found, format)
            return 0
        with _best_and_bound() as tell:
            best = make_plan(
                problems,
                objective=objective,
                microbatches=microbatches,
                slack=slack,
                time_limit_s=time_limit_s,
                method=method,
                option=pairs("--option", option),
                progress=tell,
                **limits,
            )
    except InfeasibleError as error:
        return infeasible(error, format)
    if not best.stages:
        raise InputError(f"{best.model} has no layers: there is nothing to plan")
    if rates_out is not None and best.rates:
        best.rates.add_to(rates_out)
    changes = what_if(best, time_limit_s=time_limit_s).rows if what_ifs else []
    _show(best, changes, draw_curves(best) if curves else [], format)
    return 0


@contextmanager
def _best_and_bound() -> Iterator[Callable[[float, float], bool]]:
    """A line on a terminal that tells the best value found so far, and what no plan can beat. The first interrupt ends
    the search, a second one the command."""
    from rich.console import Console

    from dovetail.pipeline import InfeasibleError

    interrupted = Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with Console(stderr=True).status("planning") if sys.stderr.isatty() else nullcontext() as status:

            def tell(best: float, bound: float) -> bool:
                if status is not None and best < inf:
                    status.update(f"planning: best {best:.6g}, no plan below {max(bound, 0.0):.6g}")
                return interrupted.is_set()

            yield tell
    except InfeasibleError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _check_pareto(batch_size: tuple[int, ...], method: str, format: str) -> None:
    if method != "exact":
        raise InputError(f"--objective pareto: expected method exact, found {method}")
    if len(batch_size) > 1:
        raise InputError("--objective pareto: expected one batch size")
    if format == "yaml":
        raise InputError("--format yaml is for one plan; expected table or json")


def _refuse(why: str, **asked: bool) -> None:
    """Refuse flags for what cannot be told."""
    for name, given in asked.items():
        if given:
            raise InputError(f"--{name.replace('_', '-')} {why}")


def _show_front(found: Front, format: str) -> None:
    if format == "json":
        print_json(found)
        return
    titles = {"bottleneck_s": "bottleneck s", "throughput_items_s": "items/s", "latency_s": "latency s"}
    titles |= {"energy_j_per_item": "J/item", "money_per_item": "money/item"}
    digits = {"bottleneck_s": 6, "throughput_items_s": 3, "latency_s": 6}
    rows = [
        [round(value, digits[key]) if key in digits else value for key, value in row.items()] for row in found.table
    ]
    print_table([titles.get(key, key) for key in found.table[0]], rows)
    shown = f"{len(found.points)} of {found.found} plans" if len(found.points) < found.found else f"{found.found} plans"
    print(f"\n{shown} that no other beats in bottleneck, latency and devices")
    print(found.proof())
    print("Plan for one of them with --max-stages DEVICES --latency-cap-s LATENCY (rounded up).")


def infeasible(error: InfeasibleError, format: str) -> int:
    """Say why there is no plan, and give the exit code."""
    if format == "json":
        print_json({"feasible": False, "reasons": error.reasons})
    elif format == "yaml":
        print("[]")
    for reason in error.reasons:
        print(f"no plan: {reason}", file=sys.stderr)
    return error.exit_code


def _show(best: Plan, changes: list[dict[str, Any]], charts: Sequence[Chart], format: str) -> None:
    if format == "yaml":
        print(best.schedule(), end="")
        if best.method.startswith("exact") and not best.optimal:
            print(f"warning: the schedule is not proven to be the best: {best.proof()}", file=sys.stderr)
        return
    if format == "json":
        rows = {key: getattr(best, key) for key in best.__struct_fields__}
        print_json(rows | ({"what_if": changes} if changes else {}) | ({"curves": list(charts)} if charts else {}))
        return
    columns = ["host", "type", "layers", "compute s", "send s", "slack s", "memory MiB", "left MiB", "use %"]
    print_table(columns, [_row(stage) for stage in best.stages])
    print(f"\nbottleneck {best.bottleneck_s:.6f} s per microbatch of {best.batch_size} ({best.proof()})")
    print(f"throughput {best.throughput_items_s:.3f} items/s, latency of one microbatch {best.latency_s:.6f} s")
    print(f"binding: {best.binding}")
    if changes:
        print()
        shown = [  # with 0.0 added, -0.0 is 0.0
            [f"{c['change']:+d} {c['type']}", c["value"], c["ratio"] and round(100 * (c["ratio"] - 1), 2) + 0.0]
            for c in changes
        ]
        print_table(["what if", _VALUE_COLUMNS[best.objective], "change %"], shown)
    for chart in charts:
        print(f"\n{chart.title}\n")
        print_table([chart.x, chart.y], [[x, round(y, 3)] for series in chart.series for x, y in series.points])


def _row(stage: Stage) -> list[object]:
    return [
        " + ".join(stage.hosts),
        stage.type,
        f"{stage.layers[0]} to {stage.layers[1]}",
        round(stage.compute_s, 6),
        round(stage.send_s, 6),
        round(stage.slack_s, 6),
        round(stage.mem_mib, 1),
        round(stage.mem_slack_mib, 1),
        round(100 * stage.utilisation, 1),
    ]
