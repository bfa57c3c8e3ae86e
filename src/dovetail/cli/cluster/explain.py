"""`dovetail cluster explain`: what happened to one job, and why."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.common import Format, newest, print_json, print_table
from dovetail.core.errors import InputError


def explain(job: str, /, *, journal: Path | None = None, format: Format = "table") -> int:
    """Tell where and when a job ran, why it waited and who held what it could have used.

    Example: dovetail cluster explain 17 --journal run.jsonl

    Parameters
    ----------
    job
        The job's number, counted from 0 in order of arrival, or its name.
    journal
        The run's journal; by default the newest *.jsonl here.
    format
        table for sentences, json for data.
    """
    from dovetail.cluster import narrate
    from dovetail.cluster.explain import explain as tell
    from dovetail.core.journal import open_journal

    if journal is None:
        journal = newest("*.jsonl")
        if journal is None:
            raise InputError("no *.jsonl in this folder: name one with --journal")
    story = tell(open_journal(journal), job)
    if format == "json":
        print_json(story)
        return 0
    print("\n".join(narrate.opening(story)) + "\n")
    course = narrate.course(story)
    if course:
        rows = [[f"{a:.2f}", "" if b is None else f"{b:.2f}", *rest] for a, b, *rest in course]
        print_table(["from s", "to s", "what", "where", "why"], rows)
        print()
    print("\n".join(narrate.closing(story)))
    return 0
