"""`dovetail workflow explain` and `export`: what a journal tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dovetail.cli.common import Force, Format, newest, newest_journal, print_json
from dovetail.cli.complete import JOURNAL_JOBS
from dovetail.cli.workflow.place import PLACE, PlaceFlags
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite
from dovetail.workflow import REQUEST_LINES

if TYPE_CHECKING:
    from dovetail.core.results.run import Account


def explain(
    request: Annotated[str, JOURNAL_JOBS],
    node: str | None = None,
    /,
    *,
    journal: Path | None = None,
    format: Format = "table",
    place: PlaceFlags = PLACE,
) -> int:
    """Tell why a node waited and why it went where it went: by a journal, or of a running service's run.

    Example: dovetail workflow explain req_001 generate --journal dovetail_journal.jsonl
    Example: dovetail workflow explain run-0123456789abcdef --url http://127.0.0.1:8000

    Parameters
    ----------
    request
        The request's id.
    node
        One of its nodes; all of them if left out.
    journal
        The run's journal; by default the newest *_journal.jsonl here, or if there is none, the running service.
    format
        table for sentences, json for data.
    """
    from dovetail import read_journal

    asked = place != PLACE
    if asked and journal is not None:
        raise InputError("--journal and --state or --url: expected one of them")
    path = None if asked else journal or newest("*_journal.jsonl", level="workflow")
    found = _by_service(request, node, place) if path is None else read_journal(path).explain(request, node)
    if format == "json":
        print_json(found.stories)
    else:
        print(found)
    return 0


def export(
    journal: Path | None = None,
    /,
    *,
    log: Path | None = None,
    executions: Path | None = None,
    requests: Path | None = None,
    rates: Path | None = None,
    force: Force = False,
) -> int:
    """Write a recorded run's text log, execution log, its requests with what nodes added, or what a live run measured.

    Example: dovetail workflow export dovetail_journal.jsonl --executions dovetail_execution_log.json

    Parameters
    ----------
    journal
        The run's journal; by default the newest *_journal.jsonl here.
    log
        The text log to write: a line per thing that happened.
    executions
        The execution log to write: JSON, a row per node and per request.
    requests
        A file of requests to write: with the same configuration they run again as they did, on any pool,
        but for tokens and prefixes: those are left out, nodes have their times.
    rates
        A rate table to write, of a live run: with it, its requests are simulated as they ran.
    force
        Write over files that exist.
    """
    from dovetail import read_journal
    from dovetail.workflow import measurements, write_logs

    journal = journal or newest_journal("*_journal.jsonl")
    read_journal(journal)  # what is wrong with it is said first
    outputs = [path for path in (log, executions, requests, rates) if path is not None]
    if not outputs:
        raise InputError("nothing to write: give --log FILE, --executions FILE, --requests FILE or --rates FILE")
    refuse_overwrite(outputs, [journal], REQUEST_LINES)
    for path in outputs:
        if path.is_file() and not force:
            raise InputError(f"{path}: exists already; --force writes over it")
    write_logs(journal, log=log, executions=executions, requests=requests, rates=rates)
    for path in outputs:
        print(f"written: {path}")
    for note in measurements(journal).left_out if rates is not None else ():
        print(note)
    return 0


def _by_service(run: str, node: str | None, place: PlaceFlags) -> Account:
    try:
        service = place.connect()
    except InputError as error:
        if place != PLACE:
            raise
        known = "name one with --journal, or a service with --state or --url"
        raise InputError(f"no *_journal.jsonl in this folder, and {error}: {known}") from None
    if node is not None:
        raise InputError(f"{node}: a service tells of all nodes of a run at once; leave it out, or name a --journal")
    return service.explain(run)
