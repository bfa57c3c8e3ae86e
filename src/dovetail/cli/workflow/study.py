"""`dovetail workflow compare` and `plan`: many runs, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import Format, Pairs, atomic_write, interval, pairs, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cli.workflow.flags import INPUTS, InputFlags
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.parallel import CellEngine
from dovetail.workflow import DEFAULT_POLICY

_COLUMNS = {
    "policy": "policy",
    "gpus": "GPUs",
    "makespan_s": "makespan s",
    "gap_makespan": "gap %",
    "avg_request_s": "mean s",
    "p99_request_s": "P99 s",
    "switches": "switches",
    "utilisation": "use %",
    "completed": "completed",
    "rejected": "rejected",
}
_SOMETIMES = {  # shown where there are any
    "skipped": "skipped",
    "prefix_hit_rate": "hits %",
    "avg_ttft_s": "TTFT s",
    "slo_met": "in SLO %",
    "jain": "Jain",
}
_PERCENT = ("gap_makespan", "utilisation", "prefix_hit_rate", "slo_met")


def compare(
    *,
    gpus: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())],
    policy: Annotated[
        tuple[str, ...], policies_of("workflow"), Parameter(alias="--policies", consume_multiple=True, negative=())
    ] = ("baseline", DEFAULT_POLICY),
    seed: Annotated[tuple[int, ...], Parameter(alias="--seeds", consume_multiple=True, negative=())] = (0,),
    inputs: InputFlags = INPUTS,
    jobs: int | None = None,
    engine: CellEngine | None = None,
    address: str | None = None,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Compare policies over pool sizes and seeds, in parallel.

    Example: dovetail workflow compare --gpus 2 4 8 --policy baseline dovetail srpt --mode online --out study

    Parameters
    ----------
    gpus
        One or more pools: 2 4 8, or a100:2,l4:4.
    policy
        One or more policies, with options as dovetail,preload=true; or all.
    seed
        Seeds for noise and for what nodes add (then:); without both they make no difference.
    jobs
        How many runs at a time; by default one per core.
    engine
        local: processes of this machine; ray: the nodes of a cluster, which must see the files.
    address
        Of the Ray cluster, which is then the engine; without one --engine ray starts a private cluster here.
    out
        A folder for the journals of the first seed, compare.json and the page compare.html.
    format
        table or json.
    """
    for flag, given in (("--gpus", gpus), ("--policy", policy), ("--seed", seed)):
        if not given:
            raise InputError(f"{flag}: expected at least one value")
    from dovetail.workflow import compare as run_all

    problem = inputs.load(gpus[0])
    if out is not None:
        refuse_overwrite([out / "compare.json", out / "compare.html"], inputs.files)
    with progress("comparing") as done:
        found = run_all(
            problem,
            "all" if policy == ("all",) else policy,
            gpus=gpus,
            seeds=seed,
            journals=out,
            jobs=jobs,
            engine=engine,
            address=address,
            progress=done,
        )
    rows = found.rows
    if out is not None:
        _page(out, found.journals, rows)
    if format == "json":
        print_json(rows)
    else:
        columns = _COLUMNS | {key: name for key, name in _SOMETIMES.items() if any(row.get(key) for row in rows)}
        print_table(list(columns.values()), [[_cell(row, key) for key in columns] for row in rows])
        if any("paired" in row for row in rows) and len({row["policy"] for row in rows}) > 1:
            print(f"\nRatios to {rows[0]['policy']}, seed by seed, with 95 % intervals; * where they leave 1 out\n")
            keys = {"makespan_s": "makespan", "avg_request_s": "mean", "p99_request_s": "P99"}
            others = [row for row in rows if row["policy"] != rows[0]["policy"]]
            cells = [
                [row["policy"], row["gpus"], *(interval(row["paired"].get(key)) for key in keys)] for row in others
            ]
            print_table(["policy", "GPUs", *keys.values()], cells)
        if out is not None:
            print(f"\nPage written to {out / 'compare.html'}")
    return 3 if any(row["rejected"] for row in rows) else 0


def _cell(row: dict[str, Any], key: str) -> Any:
    value = row.get(key)
    if value is None:
        return None
    if key in _PERCENT:
        return round(100 * value, 2)
    return round(value, 2) if isinstance(value, float) else value


def _page(out: Path, journals: list[Path], rows: list[dict[str, Any]]) -> None:
    import msgspec

    from dovetail.report.data.collect import collect
    from dovetail.report.html import page

    atomic_write(out / "compare.json", msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    seeds = rows[0]["seeds"]
    title = None if len(seeds) == 1 else f"Seed {seeds[0]} of {len(seeds)} (compare.json has the means over all)"
    atomic_write(out / "compare.html", page([collect(path) for path in journals], title))


def plan(
    *,
    p99: float | None = None,
    makespan: float | None = None,
    mean: float | None = None,
    policy: Annotated[str, policies_of("workflow")] = DEFAULT_POLICY,
    option: Pairs | None = None,
    inputs: InputFlags = INPUTS,
    max_gpus: int = 1024,
    every_s: float | None = None,
    scale_up_s: float = 120.0,
    max_runs: int = 100,
    out: Path | None = None,
    seed: int = 0,
    format: Format = "table",
) -> int:
    """Find the fewest GPUs that keep P99, mean or makespan under a limit; with --every-s the fewest GPU-hours.

    Exit code 1 if no pool up to --max-gpus does.

    Example: dovetail workflow plan --p99 600 --mode online --requests workflow_requests.yaml

    Parameters
    ----------
    p99
        The 99th percentile of the requests' completion times, in seconds.
    makespan
        The time until everything is done, in seconds.
    mean
        The mean completion time, in seconds.
    policy
        Who decides.
    option
        Options of the policy.
    max_gpus
        Where to give up.
    every_s
        How often the number of GPUs may change, in seconds: the answer is a number for each interval. Needs --mode
        online.
    scale_up_s
        With --every-s: how long it takes until a GPU that is asked for can be used.
    max_runs
        With --every-s: how many simulations to search with.
    out
        With --every-s: write the answer here, for run --gpus-over-time.
    seed
        For noise, and for what nodes add (then:).
    format
        table or json.
    """
    from dovetail.workflow import fewest_gpus

    how = inputs.how()
    if how.pop("gpus_over_time") is not None:
        raise InputError("--gpus-over-time: how many GPUs are needed is what a plan finds; leave it out")
    limits = {"p99": p99, "mean": mean, "makespan": makespan}
    how |= limits | {"policy": policy, "options": pairs("--option", option), "seed": seed, "max_gpus": max_gpus}
    if every_s is not None:
        return _plan_over_time(inputs, how | {"every_s": every_s, "scale_up_s": scale_up_s}, max_runs, out, format)
    if out is not None:
        raise InputError("--out: needs --every-s; without it the answer is one number")
    with progress("planning") as done:
        answer = fewest_gpus(inputs.config, inputs.requests, progress=done, **how)
    target, limit = answer.target, answer.limit_s
    if format == "json":
        print_json(answer)
    else:
        sizes = [(n, value, "simulated") for n, value in answer.tried.items()]
        sizes += [(n, value, "lower bound") for n, value in answer.ruled_out.items()]
        print_table(["GPUs", f"{target} s", "by", "meets it"], [[*row, row[1] <= limit] for row in sorted(sizes)])
        found = f"{answer.gpus} GPUs" if answer.gpus is not None else f"no pool of up to {max_gpus} GPUs"
        print(f"\n{target} <= {limit} s: {found} ({answer.reason})")
        if answer.gpus is not None:
            come = "by their timestamps" if inputs.mode == "online" else "all at once"
            shown = f"workflow run --mode {inputs.mode} --gpus {answer.gpus} shows it"
            print(f"Requests come {come} ({inputs.mode}); {shown}")
    return 0 if answer.gpus is not None else 1


def _plan_over_time(inputs: InputFlags, how: dict[str, Any], max_runs: int, out: Path | None, format: Format) -> int:
    from dovetail.workflow import fewest_gpus_over_time, write_config

    if how.pop("mode") != "online" or how.pop("compat") is not None:
        raise InputError("--every-s: needs --mode online, and no --compat")
    if out is not None:
        refuse_overwrite([out], inputs.files)
    with progress("planning", max_runs) as done:
        answer = fewest_gpus_over_time(inputs.config, inputs.requests, max_runs=max_runs, progress=done, **how)
    found = answer.gpus_over_time
    if out is not None and found is not None:
        write_config(out, {"gpus_over_time": {"steps": found.steps, "scale_up_s": found.scale_up_s}})
    if format == "json":
        print_json({"saving": answer.saving} | {name: getattr(answer, name) for name in answer.__struct_fields__})
    elif found is None:
        print(f"{answer.target} <= {answer.limit_s} s: no pool of up to {how['max_gpus']} GPUs ({answer.reason})")
    else:
        begins = [i * answer.every_s for i in range(len(answer.gpus))]
        print_table(["from s", "GPUs"], list(zip(begins, answer.gpus, strict=True)))
        print(f"\n{answer.target} <= {answer.limit_s} s: reached {answer.value_s:.2f} s ({answer.reason})")
        constant = f"{answer.constant_gpus} GPUs all the time take {answer.constant_gpu_hours:.2f}"
        print(f"GPU-hours: {answer.gpu_hours:.2f}; {constant} ({100 * (answer.saving or 0.0):.1f} % saved)")
        if out is not None:
            print(f"Written to {out}")
    return 0 if found is not None else 1
