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
    from dovetail import read_journal

    if journal is None:
        journal = newest("*.jsonl")
        if journal is None:
            raise InputError("no *.jsonl in this folder: name one with --journal")
    run = read_journal(journal)
    if run.header.level != "cluster":
        raise InputError(f"{journal}:1: expected the journal of a cluster run, found one of level {run.header.level!r}")
    (story,) = run.explain(job).stories
    if format == "json":
        print_json(story)
        return 0
    print("\n".join(story.opening()) + "\n")
    course = story.course()
    if course:
        rows = [[f"{a:.2f}", "" if b is None else f"{b:.2f}", *rest] for a, b, *rest in course]
        print_table(["from s", "to s", "what", "where", "why"], rows)
        print()
    print("\n".join(story.closing()))
    return 0
