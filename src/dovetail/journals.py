"""What can be done with the journals of all levels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.core.findings import Report
from dovetail.core.journal import is_journal, open_journal
from dovetail.core.results.run import Run, check_run

AnyPath = str | os.PathLike[str]


def read_journal(path: AnyPath) -> Run:
    """A recorded run of any level, whoever recorded it and whether it ended or not."""
    place = as_path(path, "journal")
    open_journal(place)  # what cannot be read is told now
    return Run(place)


def check_journal(path: AnyPath, *, config: AnyPath | None = None, requests: AnyPath | None = None) -> Report:
    """Whether a recorded run is a valid schedule: a journal of any level, or an execution log, also of the older
    workflow schedulers. `config` and `requests` are the files that a workflow run is held against."""
    log = as_path(path, "journal")
    against = {
        name: as_path(file, name) for name, file in (("config", config), ("requests", requests)) if file is not None
    }
    for file in (log, *against.values()):
        if not file.is_file():
            wrong = "is a folder" if file.is_dir() else "is a pipe or a device, which cannot be read twice"
            raise InputError(f"{file}: {wrong + '; expected a file' if file.exists() else 'no such file'}")
    if is_journal(log):
        return check_run(log, **against)
    from dovetail.workflow.compat.check_log import check_log

    return check_log(log, against.get("config"), against.get("requests"))


def write_report(journals: AnyPath | Run | list[Any], path: AnyPath) -> Path:
    """Write one page about a run, or about several side by side: a file that needs no server."""
    from dovetail.report.show import page_of

    given = journals if isinstance(journals, list | tuple) else [journals]
    places = [run.journal if isinstance(run, Run) else as_path(run, "journals") for run in given]
    if not places:
        raise InputError("journals: expected at least one run")
    page = as_path(path, "path")
    refuse_overwrite([page], places)
    atomic_write(page, page_of(places))
    return page
