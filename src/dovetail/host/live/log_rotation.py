"""Logs that do not grow without end: what a program has written so far is moved aside when it is too much."""

from __future__ import annotations

import shutil
from pathlib import Path


def rotate(log: Path, most_mib: int) -> bool:
    """Move a log's content to LOG.1, in the place of what is there, if it is more than so much; whether that was so.

    The program goes on writing into the same file, from its beginning: it has it open to append. What it writes in the
    moment between the last look and the cut is lost.
    """
    try:
        if log.stat().st_size <= most_mib << 20:
            return False
        with log.open("r+b") as file:
            aside = log.with_name(f"{log.name}.1")
            with aside.with_name(f"{aside.name}.part").open("wb") as part:
                shutil.copyfileobj(file, part)
                Path(part.name).rename(aside)
                shutil.copyfileobj(file, part)  # what was written meanwhile
                part.flush()
                file.truncate(0)
    except FileNotFoundError:
        return False  # it has written nothing yet, or was cleaned away
    return True
