"""`dovetail host measure`: how a program's speed depends on its cores."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.core.errors import InputError

Counts = Annotated[list[int], Parameter(consume_multiple=True, negative=())]


def measure(
    *command: str,
    cores: Counts | None = None,
    repeats: int = 1,
    efficiency: float = 0.5,
    format: Format = "table",
) -> None:
    """Run a program on several numbers of cores and tell how long it takes on each.

    It is bound to that many processors, and its thread variables say the same (OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS
    and the like). The curve that comes out is what --curve takes, in `simulate` and in `submit`.

    Example: dovetail host measure --cores 1 2 4 --repeats 3 -- python train.py --epochs 1

    Parameters
    ----------
    command
        The program and its words; after `--`, so that its options are not taken for ours.
    cores
        Numbers of cores; by default 1, 2, 4 and so on up to all that there are.
    repeats
        Runs on each; the median counts.
    efficiency
        The share of its best use of a core that a further core must still bring; as the policy `efficient` has it.
    format
        table or json.
    """
    from dovetail.host.curves import curve
    from dovetail.host.inputs import measure as measuring
    from dovetail.host.live.specs import Spec, environment

    if not 0 < efficiency <= 1:
        raise InputError(f"--efficiency: found {efficiency}, expected a share, up to 1")
    counts = cores or measuring.powers(len(os.sched_getaffinity(0)))

    def variables(n: int) -> dict[str, str]:
        return dict(os.environ) | environment(Spec(cores=n), "", 1, n, "")

    with progress("measuring", repeats * len(counts)) as done:
        found = measuring.measure(command, counts, repeats, variables, done)
    text = measuring.table_text(found)
    fit, error = measuring.fitted(found)
    first, most = found[0], found[-1].cores
    sweet = curve(text).sweet(most, efficiency)
    rows = [
        {
            "cores": each.cores,
            "median_s": each.median_s,
            "speed_up": first.median_s / each.median_s,
            "core_s": each.cores * each.median_s,
            "seconds": each.seconds,
        }
        for each in found
    ]
    if format == "json":
        print_json({"curve": text, "fit": fit.text, "fit_error": error, "sweet_cores": sweet, "runs": rows})
        return
    columns = ("cores", "median_s", "speed_up", "core_s")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    print(f"\n--curve {text}\n--curve {fit.text}  (at most {100 * error:.0f} % off)")
    print(f"sweet spot: {sweet} of {most} cores")
