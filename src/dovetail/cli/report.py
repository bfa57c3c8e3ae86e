"""`dovetail report`: pages, pictures and traces from journals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, atomic_write, newest_journal, print_json, print_table
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite, written_whole

if TYPE_CHECKING:
    from dovetail.report.data.collect import Story

_PICTURES = (".png", ".svg")


def report(
    *journals: Path,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    png: Flag = False,
    svg: Flag = False,
    perfetto: Flag = False,
    from_s: Annotated[float | None, Parameter(name="--from")] = None,
    to_s: Annotated[float | None, Parameter(name="--to")] = None,
    format: Format = "table",
) -> int:
    """Draw a run, or several side by side, from their journals.

    The page is one file that needs no server and loads nothing: schedule, response times, utilisation, tables. Several
    journals are compared first. A journal that was interrupted is drawn as far as it goes.

    Examples:

    dovetail report run.jsonl

    dovetail report fifo.jsonl affinity.jsonl --out policies.html

    dovetail report run.jsonl --png --perfetto --from 600 --to 900

    Parameters
    ----------
    journals
        Journals that `dovetail` wrote; by default the newest here (*.jsonl), which is then named.
    out
        The page, or a folder for it. A name that ends in .png or .svg asks for that picture and no page. Folders on
        the way to it are made. Without it: beside the first journal, under its name; comparison.html for several.
    png
        Also write a PNG picture.
    svg
        Also write an SVG picture.
    perfetto
        Also write a trace for ui.perfetto.dev or chrome://tracing, one per journal and of the whole run.
    from_s
        Begin the pictures over time here, in seconds. The figures are of the whole run all the same.
    to_s
        End the pictures over time here, in seconds.
    format
        table for people, json for programs.
    """
    named, journals = bool(journals), journals or (newest_journal(),)
    if png or svg or (out is not None and out.suffix.lower() in _PICTURES):
        from dovetail.report.static import require

        require()  # nothing is written if the pictures cannot be
    from dovetail.report.data.collect import MAX_FINEST, collect

    alone = out is not None and out.suffix.lower() in _PICTURES and not out.is_dir()
    finest = 0 if alone else MAX_FINEST  # which only a page reads
    stories = [collect(path, from_s=from_s, to_s=to_s, max_finest=finest) for path in journals]
    plan = _plan(journals, stories, out, png, svg, perfetto)
    refuse_overwrite([output.path for output in plan], journals)
    for output in plan:
        output.make(output.path)
    if format == "json":
        print_json(_as_json(journals, stories, plan))
    else:
        if not named:
            print(f"journal: {journals[0]}")
        _show(stories, plan)
    return 0


class Output(NamedTuple):
    """A file to write, what it is, and how it is made."""

    path: Path
    what: str
    make: Callable[[Path], None]


def _plan(
    journals: Sequence[Path], stories: Sequence[Story], out: Path | None, png: bool, svg: bool, perfetto: bool
) -> list[Output]:
    several = len(stories) > 1
    default = "comparison.html" if several else f"{stories[0].name}.html"
    if out is None:
        out = journals[0].with_name(default)
    elif out.is_dir():
        out = out / default
    suffix = out.suffix.lower()
    if suffix not in (".html", ".htm", *_PICTURES):
        raise InputError(f"--out {out}: expected a folder, or a name that ends in .html, .png or .svg")
    plan: list[Output] = []
    if suffix not in _PICTURES:
        plan.append(Output(out, "page", lambda path: _write_page(path, stories)))
    wanted = {".png": png or suffix == ".png", ".svg": svg or suffix == ".svg"}
    for picture in (s for s in _PICTURES if wanted[s]):
        plan.append(Output(out.with_suffix(picture), "comparison" if several else "picture", _picture(stories)))
        if several:
            for story, label in zip(stories, _labels(stories), strict=True):
                plan.append(Output(out.with_name(f"{out.stem}.{label}{picture}"), "picture", _picture([story])))
    if perfetto:
        for journal, label in zip(journals, _labels(stories), strict=True):
            name = f"{out.stem}.{label}.trace.json" if several else f"{out.stem}.trace.json"
            plan.append(Output(out.with_name(name), "trace", _trace(journal)))
    return plan


def _labels(stories: Sequence[Story]) -> list[str]:
    """File names that tell the runs apart."""
    from dovetail.report.look import names

    labels = [re.sub(r"[^\w.-]+", "_", name) or "run" for name in names(stories)]
    return [label if labels.count(label) == 1 else f"{label}_{i}" for i, label in enumerate(labels, start=1)]


def _write_page(path: Path, stories: Sequence[Story]) -> None:
    from dovetail.report.html import page

    atomic_write(path, page(stories))


def _picture(stories: Sequence[Story]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from dovetail.report.static import draw

        atomic_write(path, draw(stories, "svg" if path.suffix.lower() == ".svg" else "png"))

    return make


def _trace(journal: Path) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from dovetail.report import perfetto

        with written_whole(path) as file:
            perfetto.write(journal, file)

    return make


def _as_json(journals: Sequence[Path], stories: Sequence[Story], plan: Sequence[Output]) -> dict[str, Any]:
    runs = [
        {
            "journal": str(path),
            "policy": story.header.policy,
            "ended": story.ended,
            **{key: story.claim(key) for key in ("bound_makespan_s", "bound_mean_s", "bound_p99_s")},
            "figures": story.figures,
            "bars": story.bars_seen,
            "bars_drawn": len(story.bars),
            "notes": story.left_out,
        }
        for path, story in zip(journals, stories, strict=True)
    ]
    return {"runs": runs, "written": [{"path": str(output.path), "what": output.what} for output in plan]}


def _show(stories: Sequence[Story], plan: Sequence[Output]) -> None:
    from dovetail.report.look import above, headlines, names

    rows = []
    for name, story in zip(names(stories), stories, strict=True):
        cells = [(value_s, above(value_s, bound_s) or None) for _, value_s, bound_s in headlines(story)]
        rows.append([name, *(cell for pair in cells for cell in pair), story.figures.completed, story.figures.rejected])
    gap = "above bound"
    columns = ["run", "makespan_s", gap, "mean_s", gap, "p99_s", gap, "completed", "rejected"]
    print_table(columns, rows)
    for name, story in zip(names(stories), stories, strict=True):
        for note in story.left_out:
            print(f"{name}: {note}")
    for output in plan:
        print(f"{output.what}: {output.path}")
