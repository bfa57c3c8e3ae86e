"""What results show of themselves, in a notebook or a file: pages and pictures that stand alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dovetail.core.errors import InputError
from dovetail.core.journal import open_journal
from dovetail.core.results.charts import Chart
from dovetail.report.data.collect import Story, collect
from dovetail.report.document import WIDE, asset
from dovetail.report.html import page
from dovetail.report.svg import charts, jobs
from dovetail.report.svg.gantt import gantt
from dovetail.report.svg.lines import line_chart

_BARS = 3_000  # of a picture inside a notebook


def page_of(journals: Sequence[Path]) -> str:
    """The page of a run, or of several side by side."""
    return page([collect(journal) for journal in journals])


def picture_of(journal: Path, what: str) -> str:
    """A run's schedule, the distribution of its response times, or a row for each job; of a run in rounds, which may
    keep no schedule, its first chart."""
    if what not in ("schedule", "responses", "jobs"):
        raise InputError(f"what {what!r}: expected schedule, responses or jobs")
    if what == "jobs":
        reader = open_journal(journal)
        devices, words = len(reader.header.pool), reader.header.words
        title = f"{reader.header.policy} on {devices} {words.devices}"
        return jobs.picture(jobs.lives(reader.steps()), devices, title, words.devices)
    story = collect(journal, max_bars=_BARS, max_finest=0)
    if what == "responses":
        return _responses(story)
    over_time = story.figures.makespan_s > 0  # else there are charts without a point
    return chart_of(story.charts[0]) if over_time and not story.scheduled else standalone(gantt(story))


def chart_of(chart: Chart) -> str:
    """A line chart."""
    return standalone(line_chart(chart))


def _responses(story: Story) -> str:
    if not story.responses_s:
        raise InputError(f"{story.name}: no {story.header.words.job} was completed: there is nothing to draw")
    return standalone(charts.responses(story, f"{story.words.response} times", WIDE))


def standalone(svg: str) -> str:
    """A chart of a page as a picture of its own: with the page's light colours, on white.

    >>> standalone('<svg viewBox="0 0 9 9" class="chart"></svg>').startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    True
    """
    sheet = asset("page.css")
    colours = dict(re.findall(r"(--[\w-]+): (#\w+)", sheet[: sheet.index("@media")]))
    rules = "".join(line for line in sheet.splitlines() if line.startswith((".chart .", ".chart text")))
    head, rest = svg.removeprefix("<svg").split(">", 1)
    width = head.split('viewBox="', 1)[1].split()[2]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" style="max-width:{width}px"{head}><desc>dovetail</desc>'
        f"<style>.chart text{{font:12px system-ui,sans-serif}}{rules}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{rest}'
    )
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found.group(1)], picture)
