"""`dovetail host recommend`: how many copies of a program to run at once."""

from __future__ import annotations

import shlex

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.cli.host.measure import Counts
from dovetail.cli.verbs import check_command


def recommend(
    *command: str,
    cores: Counts | None = None,
    repeats: int = 1,
    name: str = "",
    format: Format = "table",
) -> None:
    """Measure a program on several numbers of cores, alone and side by side, and say how many to run at once.

    Each copy is bound to processors of its own, as the daemon does it, and its thread variables say the same.

    Example: dovetail host recommend --repeats 3 -- python train.py --epochs 1

    Parameters
    ----------
    command
        The program and its words; after `--`, so that its options are not taken for ours.
    cores
        Numbers of cores; by default 1, 2, 4 and so on up to all that there are.
    repeats
        Runs on each; the median counts, of those side by side the best.
    name
        What the program is called; by default as its command.
    format
        table or json.
    """
    from dovetail import host

    check_command(command)
    with progress("measuring", 1) as done:
        found = host.recommend(
            *command, cores=cores, repeats=repeats, name=name, progress=lambda made, of: done(made / of)
        )
    summary, best = found.summary(), found.best
    if format == "json":
        print_json(summary)
        return
    columns = ("cores", "at_once", "alone_s", "together_s", "slowed", "per_h")
    print_table(columns, [[row[column] for column in columns] for row in summary["rows"]])
    copies = f"{best.at_once} at once" if best.at_once > 1 else "one at a time"
    print(f"\n{copies}, {best.cores} core{'' if best.cores == 1 else 's'} each: {best.per_h:.4g} per hour")
    named = f"--name {shlex.quote(name)} " if name else ""
    print(f"dovetail host submit {named}--cores {best.cores} --curve {found.alone.curve} -- {shlex.join(command)}")
