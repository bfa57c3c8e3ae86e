"""`dovetail cluster explain`: what happened to one job, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dovetail.cli.cluster.place import PLACE, ClusterFlags
from dovetail.cli.common import Format, newest, print_json, print_table
from dovetail.cli.complete import JOURNAL_JOBS
from dovetail.core.errors import InputError
from dovetail.core.files.output import printable


def explain(
    job: Annotated[str, JOURNAL_JOBS],
    /,
    *,
    journal: Path | None = None,
    format: Format = "table",
    place: ClusterFlags = PLACE,
) -> int:
    """Tell where and when a job ran, why it waited and who held what it could have used.

    Example: dovetail cluster explain 17 --journal run.jsonl
    Example: dovetail cluster explain 17 --url http://127.0.0.1:8000

    Parameters
    ----------
    job
        The job's number, counted in order of arrival (from 0, of a live cluster from 1), or its name.
    journal
        The run's journal; by default the newest *.jsonl of a cluster here, else a live cluster is asked.
    format
        table for sentences, json for data.
    """
    if (
        place == PLACE
        and journal is None
        and (journal := newest("*.jsonl", level="cluster")) is not None
        and format == "table"
    ):
        print(f"{journal}:")
    if place != PLACE or journal is None:
        if journal is not None:
            raise InputError("--journal and a service: expected one of them")
        if not job.isdecimal():
            raise InputError(f"job {job!r}: expected its number, as `dovetail cluster list` has it")
        try:
            found = place.connect().explain(int(job))
        except InputError as error:
            here = "" if place != PLACE else "no *.jsonl of a cluster in this folder (name one with --journal), and "
            raise InputError(f"{here}{error}") from None
        print_json(found.stories) if format == "json" else print(printable(found.text, keep="\n"))
        return 0
    from dovetail import read_journal

    run = read_journal(journal)
    if run.header.level != "cluster":
        raise InputError(f"{journal}:1: expected the journal of a cluster run, found one of level {run.header.level!r}")
    (story,) = run.explain(job).stories
    if format == "json":
        print_json(story)
        return 0
    print(printable("\n".join(story.opening()), keep="\n") + "\n")
    course = story.course()
    if course:
        open_end = "now" if story.live else ""
        rows = [[f"{a:.2f}", open_end if b is None else f"{b:.2f}", *rest] for a, b, *rest in course]
        print_table(["from s", "to s", "what", "where", "why"], rows)
        print()
    print(printable("\n".join(story.closing()), keep="\n"))
    return 0
