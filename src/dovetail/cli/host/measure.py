"""`dovetail host measure`: how a program's speed depends on its cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.cli.verbs import check_command

Counts = Annotated[list[int], Parameter(consume_multiple=True, negative=())]


def measure(
    *command: str,
    cores: Counts | None = None,
    repeats: int = 1,
    efficiency: float = 0.5,
    name: str = "",
    rates_out: Path | None = None,
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
    name
        What the program is called in the table of rates; by default as its command.
    rates_out
        Write what was measured as a table of rates, which other levels read.
    format
        table or json.
    """
    from dovetail import host

    check_command(command)
    with progress("measuring", 1) as done:
        found = host.measure(
            *command,
            cores=cores,
            repeats=repeats,
            efficiency=efficiency,
            name=name,
            progress=lambda made, of: done(made / of),
        )
    if rates_out is not None:
        found.rates().write(rates_out)
    summary = found.summary()
    if format == "json":
        print_json(summary)
        return
    columns = ("cores", "median_s", "speed_up", "core_s")
    print_table(columns, [[row[column] for column in columns] for row in summary["runs"]])
    print(f"\n--curve {found.curve}\n--curve {found.fit}  (at most {100 * found.fit_error:.0f} % off)")
    print(f"sweet spot: {found.sweet_cores} of {found.runs[-1].cores} cores")
