"""One self-contained HTML page of one run, or of several side by side: no server, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import msgspec

from dovetail.core.results.charts import KEY as CHARTS
from dovetail.report import look
from dovetail.report.claims import claims_card
from dovetail.report.comparison import comparison
from dovetail.report.data.bars import FAILED
from dovetail.report.data.collect import MAX_LISTED, Story
from dovetail.report.document import asset, card, document, for_widths
from dovetail.report.payload import payload
from dovetail.report.svg import charts
from dovetail.report.svg.lines import line_charts
from dovetail.report.tables import Raw, TableColumn, table
from dovetail.report.usage import usage_card
from dovetail.report.waiting_card import said, waiting_card
from dovetail.version import __version__

_LOGO = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path fill="var(--accent)" d="M2 2h20v9l-4-1.6V14l-4.2-1.4L14 9.2 '
    '10 8l.2 4.6L6 14V9.4L2 11z"/><path fill="var(--accent-soft)" d="M2 13l2.2-.9V16l7.8-2.6L19.8 16v-3.9L22 13v9H2z"/>'
    "</svg>"
)


def page(stories: Sequence[Story], title: str | None = None, overview: str = "", opened: int | None = None) -> str:
    """The whole page. Several stories get one tab each, of which the one with the shortest mean response is open, or
    the one that is to be `opened`; and those of the first one's level a comparison before them, or an `overview`."""
    names = look.names(stories)
    several = len(stories) > 1
    heading = title or (f"{len(stories)} runs compared" if several else look.title(stories[0]))
    colours = look.colours(stories)
    body = [_head(stories, heading)]
    alike = [i for i, story in enumerate(stories) if story.header.level == stories[0].header.level]
    if overview or len(alike) > 1:
        body.append(overview or comparison([stories[i] for i in alike], [names[i] for i in alike], alike))
    if several:
        body.append(_tabs(names, _winner(stories) if opened is None else opened))
    body += [_run(story, names[i] if several else None, i, colours) for i, story in enumerate(stories)]
    body.append(
        f"<footer>Made by dovetail {__version__} from {'journals' if several else 'a journal'} and nothing else. "
        f"{stories[0].words.response.capitalize()} time: from arrival to the end of the last task. "
        "Percentiles interpolate between neighbours.</footer>"
    )
    drawn = payload(stories, colours)
    script = (
        '<div id="tip" role="status" hidden></div>\n'
        f'<script type="application/json" id="data">{_script_json(drawn.data)}</script>\n{_texts(drawn.whole)}'
        f"<script>{asset('page.js')}</script>\n{_texts(drawn.finest)}"
    )
    return document(heading, "".join(body), script)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever names users gave."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _texts(texts: dict[str, str]) -> str:
    return "".join(f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in texts.items())


# --- the top of the page --------------------------------------------------------------------------


def _head(stories: Sequence[Story], heading: str) -> str:
    first = stories[0]
    if len(stories) == 1:
        facts, notes = _facts(first), first.left_out
    else:
        levels = dict.fromkeys(story.header.level for story in stories)
        pools = sorted({look.pool_text(s.header.pool) for s in stories}) if len(levels) == 1 else []
        facts = " · ".join([f"<b>{escape(', '.join(levels))}</b>", *([escape(" | ".join(pools))] if pools else [])])
        notes = [f"{name}: {note}" for name, s in zip(look.names(stories), stories, strict=True) for note in s.left_out]
    return (
        f'<header><div class="brand">{_LOGO}<span>Dovetail report</span></div><h1>{escape(heading)}</h1>'
        f'<p class="facts">{facts}</p>{_notes(notes)}'
        '<div class="notes noscript"><p>The schedule is drawn with JavaScript, which is off here. '
        "The figures, distributions and tables below are complete without it.</p></div></header>"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return '<div class="notes" role="note">' + "".join(f"<p>{escape(note)}</p>" for note in notes) + "</div>"


def _facts(story: Story) -> str:
    header = story.header
    policy = " ".join([header.policy, *look.options(header)])
    items = [f"<b>{escape(header.level)}</b>", f"policy <b>{escape(policy)}</b>"]
    items.append(f"<b>{escape(look.pool_text(header.pool))}</b>")
    if header.mode:
        items.append(escape(header.mode))
    items += [escape(line) for line in look.ran_on(header)]
    items += [f"seed {header.seed}", f"recorded by {escape(header.made_by)}"]
    return " · ".join(items)


def _figures(story: Story) -> str:
    """The key figures, each beside its lower bound where the journal gives one."""
    figures, words = story.figures, story.words
    cards = [_bounded(headline) for headline in look.counted(story)]
    cards += _use(story) if story.scheduled else []
    more = [f"of {figures.arrived:,}", f"{figures.rejected:,} {words.rejected}"]
    if figures.late:
        more.append(f"{figures.late:,} late")
    if figures.failures:
        more.append(f"{figures.failures:,} {'failure' if figures.failures == 1 else 'failures'}")
    if story.unfinished:
        more.append(f"{story.unfinished:,} unfinished")
    cards.append(_figure(f"{words.jobs.capitalize()} completed", f"{figures.completed:,}", ", ".join(more)))
    return f'<div class="figures">{"".join(cards)}</div>'


def _use(story: Story) -> list[str]:
    """How much of the devices was used, and what it gave or what set-ups took of it."""
    figures, words = story.figures, story.words
    used = look.percent(look.running(story))
    if not words.setup:
        busiest = max(figures.devices, key=lambda device: device.busy_s, default=None)
        told = f"{look.device_names(story)[busiest.id]}: {look.percent(busiest.utilisation)}, most" if busiest else ""
        return [_figure("Utilisation", used, told), _figure("Throughput", *look.pace(story))]
    set_up = look.percent(figures.utilisation - look.running(story))
    share = f"and {set_up} set up: utilisation {look.percent(figures.utilisation)}"
    loads = f"{look.seconds(figures.switch_time_s)} spent; {figures.loads:,} first loads"
    if story.by_round:
        begun = sum(kind.starts for kind in story.kinds)
        paid = sum(kind.setups for kind in story.kinds)
        told = f"{paid:,} of them with a start or {words.setup}"
        return [_figure("Running", used, share), _figure(words.tasks.capitalize(), f"{begun:,}", told)]
    return [_figure("Running", used, share), _figure(words.setups.capitalize(), f"{figures.switches:,}", loads)]


def _figure(name: str, value: str, beside: str, meter: str = "") -> str:
    return (
        f'<div class="figure"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div>{meter}'
        f'<div class="beside">{look.unbroken(escape(beside))}</div></div>'
    )


def _bounded(headline: look.Headline) -> str:
    name, value_s, bound_s = headline
    value = look.seconds(value_s)
    if not bound_s or not value_s:
        return _figure(name, value, "no lower bound recorded")
    bound = f"the bound, {look.seconds(bound_s, value_s)}"
    if value_s < bound_s * (1 - 1e-6):
        return _figure(name, value, f"below {bound}: one of them is wrong")
    meter = f'<div class="meter" aria-hidden="true"><i style="width:{bound_s / value_s * 100:.1f}%"></i></div>'
    above = look.above(value_s, bound_s)
    return _figure(name, value, f"{above} {bound}" if above.endswith("times") else f"{above} above {bound}", meter)


# --- several runs ---------------------------------------------------------------------------------


def _winner(stories: Sequence[Story]) -> int:
    """Of the runs of the first one's level that ended, the one that answered soonest in the mean, or was done first."""
    level = stories[0].header.level
    best = [i for i, story in enumerate(stories) if story.ended and story.header.level == level]
    return min(best, key=lambda i: look.counted(stories[i])[:2][-1].value_s, default=0)


def _tabs(names: Sequence[str], opened: int) -> str:
    buttons = "".join(
        f'<button type="button" role="tab" id="tab-{i}" aria-controls="run-{i}" '
        f'aria-selected="{str(i == opened).lower()}">'
        f"{escape(name)}</button>"
        for i, name in enumerate(names)
    )
    return f'<div class="tabs" role="tablist" aria-label="Runs">{buttons}</div>'


# --- one run --------------------------------------------------------------------------------------


def _run(story: Story, name: str | None, index: int, colours: dict[str, str]) -> str:
    intro = ""
    if name is not None:
        intro = f'<h2>{escape(name)}</h2><p class="facts">{_facts(story)}</p>{_notes(story.left_out)}'
    sections = [
        intro,
        _figures(story),
        _said(story),
        _schedule(story, colours) if story.scheduled else "",
        _beside(story),
        _kinds(story, colours) if story.scheduled else "",
        waiting_card(story),
        line_charts(story.charts),
        _incidents(story),
        _all_facts(story),
    ]
    role = "" if name is None else f' role="tabpanel" aria-labelledby="tab-{index}"'
    return f'<article class="run" id="run-{index}"{role}>{"".join(sections)}</article>'


def _said(story: Story) -> str:
    """What happened, in words."""
    words, figures, sentences = story.words, story.figures, []
    if words.setup and figures.switches and not story.by_round:
        word = words.setup if figures.switches == 1 else words.setups
        sentences.append(f"{figures.switches:,} {word} cost {look.seconds(figures.switch_time_s)}.")
    sentences.append(said(story.waits, words))
    text = " ".join(filter(None, sentences))
    return f'<p class="said">{look.unbroken(escape(text))}</p>' if text else ""


def _schedule(story: Story, colours: dict[str, str]) -> str:
    words = story.words
    order = list(colours)
    keys = "".join(
        f'<li><button type="button" class="key" data-kind="{order.index(kind.kind)}" aria-pressed="false">'
        f'<i class="swatch" style="--c:{colours[kind.kind]}"></i><span>{escape(kind.kind)}</span></button></li>'
        for kind in story.kinds
    )
    if words.setup:
        keys += f'<li class="key"><i class="swatch setup"></i><span>{words.setup}</span></li>'
    if any(bar.state == FAILED for bar in story.bars):
        keys += '<li class="key"><i class="swatch failed"></i><span>failed</span></li>'
    keys += '<li class="key"><i class="swatch idle"></i><span>idle</span></li>'
    label = (
        f"Schedule: {len(story.bars):,} bars on {len(story.header.pool):,} {words.devices} "
        f"from {look.seconds(story.from_s)} to {look.seconds(story.to_s)}. Arrow keys move, plus and minus zoom."
    )
    return (
        '<section class="card schedule"><h2>Schedule</h2>'
        f'<p class="lead noscript">{escape(label)}</p>'
        '<div class="tools"><button type="button" data-do="+" aria-label="zoom in">+</button>'
        '<button type="button" data-do="-" aria-label="zoom out">&minus;</button>'
        '<button type="button" data-do="0">Whole run</button>'
        f'<input type="search" placeholder="Find a {words.job}" aria-label="Find a {words.job} by name">'
        '<span class="status hint" role="status"></span>'
        f'<span class="hint push">wheel: zoom · drag: move · shift-drag: zoom in · click: follow a {words.job}</span>'
        f'</div><div class="gantt"><canvas tabindex="0" role="img" aria-label="{escape(label)}"></canvas></div>'
        f'<ul class="keys" aria-label="Colours">{keys}</ul></section>'
    )


def _beside(story: Story) -> str:
    """Times on the left, devices and figures on the right; side by side where there are no times."""
    left = _responses(story) + _types(story)
    right = (usage_card(story) if story.scheduled else "") + claims_card([story], [story.name])
    return f'<div class="two"><div>{left}</div><div>{right}</div></div>' if left else f'<div class="two">{right}</div>'


def _responses(story: Story) -> str:
    words, spread = story.words, story.figures.response_s
    if words.parts and story.responses_s:
        return ""
    title = f"{words.response.capitalize()} times"
    if not story.responses_s:
        return card(title, "", f"No {words.job} was completed.")
    if max(story.responses_s) - min(story.responses_s) <= 1e-9 * max(story.responses_s):
        many = len(story.responses_s)
        told = f"for each of {many:,} {words.jobs}" if many > 1 else f"for the only {words.job}"
        return card(title, "", f"{look.seconds(spread.max)} {told}.")
    if story.evenly:
        told = f"{look.seconds(min(story.responses_s))} to {look.seconds(spread.max)}"
        return card(
            title, "", f"{told} for {len(story.responses_s):,} {words.jobs}, one after the other at an even pace."
        )
    mean, median, p99 = (look.seconds(v, spread.max) for v in (spread.mean, spread.median, spread.p99))
    what = (
        f"{title} of {len(story.responses_s):,} {words.jobs}: mean {mean}, median {median}, P99 {p99}, "
        f"longest {look.seconds(spread.max)}."
    )
    lead = f"{escape(what)} Bars count {words.jobs}; the line is the share completed within that time."
    return card(title, for_widths(lambda width: charts.responses(story, what, width)), lead)


def _kinds(story: Story, colours: dict[str, str]) -> str:
    """What each kind took; left out where there is one, of which the figures say as much."""
    words = story.words
    top = max((kind.run_device_s + kind.setup_device_s for kind in story.kinds), default=0.0) or 1.0
    longest = max((kind.longest_wait_s for kind in story.kinds), default=0.0)
    if len(story.kinds) < 2 and not words.setup and not longest:
        return ""
    rows = [
        [
            Raw(f'<i class="swatch" style="--c:{colours[kind.kind]}"></i> {escape(kind.kind)}'),
            Raw(
                f'<div class="stack plain"><i style="width:{kind.run_device_s / top * 100:.2f}%;'
                f'background:{colours[kind.kind]}"></i>'
                f'<i class="setup" style="width:{kind.setup_device_s / top * 100:.2f}%"></i></div>'
            ),
            look.seconds(kind.run_device_s, top),
            *([look.seconds(kind.setup_device_s), f"{kind.setups:,}"] if words.setup else []),
            f"{kind.tasks:,}",
            *(look.seconds(wait_s, longest) for wait_s in (kind.wait_s / kind.starts, kind.longest_wait_s) if longest),
        ]
        for kind in story.kinds
    ]
    counted = words.setups if story.by_round else f"{words.setups} and first loads"
    setups = [words.setup, counted] if words.setup else []
    heads = ["running", *setups, words.tasks, *(["mean wait", "longest wait"] if longest else [])]
    columns = [TableColumn(words.kind, style="name"), TableColumn("", style="bar")]
    columns += [TableColumn(name, number=True) for name in heads]
    each = ", each of a group counted," if words.setup else ""
    lead = (
        f"Time on {words.devices}{each.rstrip(',')}."
        if not longest
        else (f"Time on {words.devices}{each} and the time from ready to start.")
    )
    return card(words.kinds.capitalize(), table(columns, rows), lead)


def _types(story: Story) -> str:
    """How each type of job fared; left out where there is one, of which the figures say as much, and of mere parts."""
    words = story.words
    if len(story.types) < 2 or words.parts:
        return ""
    rows, top = [], max((type_.response_s.max for type_ in story.types if type_.completed), default=0.0)
    for type_ in story.types:
        spread = type_.response_s
        times = [look.seconds(v, top) for v in (spread.mean, spread.median, spread.p99, spread.max)]
        rows.append(
            [type_.type, f"{type_.arrived:,}", f"{type_.completed:,}", *(times if type_.completed else [""] * 4)]
        )
    columns = [TableColumn(words.type, style="name")]
    columns += [TableColumn(name, number=True) for name in ("arrived", "completed", "mean", "P50", "P99", "longest")]
    lead = f"{words.response.capitalize()} times, from arrival to completion."
    return card(f"{words.jobs.capitalize()} by {words.type}", table(columns, rows), lead)


def _incidents(story: Story) -> str:
    words, out = story.words, ""
    begin_s = story.first_arrivals_s[0] if story.header.from_first_arrival and story.first_arrivals_s else 0.0
    when = "after first arrival" if begin_s else "time"
    for title, what, listed, total in (
        (f"{words.jobs.capitalize()} {words.rejected}", words.type, story.rejected, story.figures.rejected),
        (f"Failed {words.tasks}", words.task, story.failed, story.figures.failures),
    ):
        if listed:
            note = f"The first {MAX_LISTED} of {total:,}." if total > len(listed) else f"All {total:,}."
            columns = [TableColumn(when, number=True, style="time"), TableColumn(words.job, style="name")]
            columns += [TableColumn(what, style="name"), TableColumn("why")]
            times = look.instants([i.t_s - begin_s for i in listed])
            rows = [[time, i.job, i.what, i.why] for time, i in zip(times, listed, strict=True)]
            out += card(title, table(columns, rows), note)
    return out


def _all_facts(story: Story) -> str:
    """What the journal's header and closing summary say, as it is."""
    items = [
        f"<dt>{escape(str(key))}</dt><dd>{escape(value if isinstance(value, str) else _compact(value))}</dd>"
        for group in (story.header.options, story.header.facts, story.summary)
        for key, value in group.items()
        if key != CHARTS
    ]
    if not items:
        return ""
    return (
        '<section class="card"><details><summary>Everything else the journal says of this run</summary>'
        f'<dl class="facts-list">{"".join(items)}</dl></details></section>'
    )


def _compact(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 2000 else text[:2000] + " …"
