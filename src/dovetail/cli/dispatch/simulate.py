"""`dovetail dispatch simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from dovetail.cli.common import Force, Format, Pairs, pairs, print_json, print_table, value
from dovetail.cli.complete import policies_of
from dovetail.cli.dispatch.words import check_outputs
from dovetail.core.errors import InputError


def simulate(
    curves: Path | None = None,
    /,
    *,
    model: str | None = None,
    items: int = 100_000,
    policy: Annotated[str | None, policies_of("dispatch")] = None,
    option: Pairs | None = None,
    slower: Pairs | None = None,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    journal: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Try policies on the curves of devices, without the devices.

    Examples:

    dovetail dispatch simulate --model radret --items 1000000 --slower cpu=3 --noise 0.1

    dovetail dispatch simulate curves.yml --policy guided --journal run.jsonl

    Parameters
    ----------
    curves
        A YAML file: under `devices`, for each name, either `latency_s` and `rate`, or `points`: [size, seconds] pairs.
    model
        Instead of a file: one of NEML2's published models on a CPU and a GPU.
    items
        Items in the batch.
    policy
        One policy; by default all are compared.
    option
        NAME=VALUE of that policy.
    slower
        DEVICE=FACTOR: a device that is really slower than its curve says.
    noise
        How much the time of a chunk varies, as the sigma of a lognormal factor with mean 1.
    seed
        Of the noise.
    backup
        Whether an idle device redoes what the last one is late with.
    journal
        Write the run as a journal here, for `dovetail check` and `dovetail report`; for one policy.
    force
        Replace a journal that is there.
    format
        table or json.
    """
    from dovetail.dispatch import compare
    from dovetail.dispatch import simulate as simulate_one

    if (option or journal) and policy is None:
        raise InputError(f"--{'option' if option else 'journal'} belongs to one policy; give --policy too")
    check_outputs({"--journal": journal}, force, curves)
    factors = {name: value(text) for name, text in pairs("--slower", slower, verbatim=True).items()}
    options = {name: value(text) for name, text in pairs("--option", option).items()}
    given: dict[str, Any] = {"model": model, "items": items, "slower": factors, "noise": noise, "seed": seed}
    if policy is None:
        rows = compare(curves, **given, backup=backup).rows
    else:
        given |= {"policy": policy, "options": options, "journal": False if journal is None else journal}
        rows = [simulate_one(curves, **given, backup=backup).metrics]
    if format == "json":
        print_json({"items": items, "runs": rows})
        return 0
    print_table(
        ["policy", "makespan s", "% of the sum", "chunks"],
        [[row["policy"], row["makespan_s"], round(100 * row["efficiency"], 1), row["chunks"]] for row in rows],
    )
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0
