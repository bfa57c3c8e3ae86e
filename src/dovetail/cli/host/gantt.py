"""`dovetail host gantt`: a picture with a row for each program, from a journal."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.common import atomic_write
from dovetail.core.files.output import refuse_overwrite


def gantt(journal: Path, /, *, out: Path | None = None) -> None:
    """Draw a run with a row for each program: its cores over time, resizes, pauses and failures, as SVG.

    Example: dovetail host gantt run.jsonl --out run.svg

    Parameters
    ----------
    journal
        The journal of a run, simulated or live (`dovetail host journal`).
    out
        The picture; by default beside the journal, under its name.
    """
    from dovetail.host import HostRun

    out = journal.with_suffix(".svg") if out is None else out
    refuse_overwrite([out], [journal])
    run = HostRun.read(journal)
    atomic_write(out, run.plot("jobs").svg)
    print(f"{len(run.programs)} programs drawn: {out}")
