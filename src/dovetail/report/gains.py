"""What another rule gained on the same work: two schedules over the same time, one above the other, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import NamedTuple

from dovetail.report import look
from dovetail.report.data.collect import Story
from dovetail.report.document import for_widths
from dovetail.report.html import page
from dovetail.report.show import standalone
from dovetail.report.svg.charts import label
from dovetail.report.svg.gantt import WIDTH, gantt


class Gain(NamedTuple):
    """The same work under a rule and under another one. `rule_s` and `ours_s` are the figure that is compared, for
    which less is better; the sentence says what was gained, and why."""

    title: str
    sentence: str
    figure: str
    rule: Story
    rule_name: str
    rule_s: float
    ours: Story
    ours_name: str
    ours_s: float

    @property
    def saved(self) -> float:
        """Which share of the figure is gone.

        >>> Gain("", "", "", None, "", 4.0, None, "", 3.0).saved
        0.25
        """
        return 1 - self.ours_s / self.rule_s if self.rule_s else 0.0


def gains_page(gains: Sequence[Gain], title: str, lead: str, opened: int = 0) -> str:
    """A page of several gains: a picture of each, then every run in full, the better one of the gain that is `opened`
    in view."""
    stories = [story for gain in gains for story in (gain.rule, gain.ours)]
    colours = look.colours(stories)
    cards = "".join(_card(gain, 2 * i, colours) for i, gain in enumerate(gains))
    overview = f'<section class="gains"><p class="lead">{escape(lead)}</p>{cards}</section>'
    return page(stories, title, overview, opened=2 * opened + (gains[opened].saved >= 0))


def _card(gain: Gain, first: int, colours: dict[str, str]) -> str:
    told = look.unbroken(escape(gain.sentence))
    head = f'<h2>{escape(gain.title)} <b class="gain">{escape(gained(gain))}</b></h2><p>{told}</p>'
    return f'<section class="card">{head}<div class="scroll">{_pair(gain, first, colours)}</div></section>'


def gained(gain: Gain) -> str:
    """
    >>> gained(Gain("", "", "mean response", None, "", 4.0, None, "", 3.0))
    'mean response 25 % shorter'
    """
    return f"{gain.figure} {look.percent(abs(gain.saved))} {'shorter' if gain.saved >= 0 else 'longer'}"


def picture(gain: Gain) -> str:
    """Both schedules as one picture that stands alone, with the gain written on it."""
    runs = ((gain.rule, gain.rule_name, gain.rule_s), (gain.ours, gain.ours_name, gain.ours_s))
    to_s, colours = max(gain.rule.to_s, gain.ours.to_s), look.colours([gain.rule, gain.ours])
    y, out = 8.0, []
    for i, (story, name, value_s) in enumerate(runs):
        head = f"{name}: {gain.figure} {look.seconds(value_s)}" + (
            "," + gained(gain).removeprefix(gain.figure) if i else ""
        )
        chart = gantt(story, to_s, colours)
        width, height = chart.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()
        out.append(label(12, y + 14, head, "start", "heading"))
        out.append(chart.replace("<svg", f'<svg y="{y + 14:g}" width="{width}" height="{height}"', 1))
        y += float(height) + 22
    title = f"<title>{escape(f'{gain.title}: {gained(gain)}')}</title>"
    return standalone(f'<svg viewBox="0 0 {width} {y:g}" role="img" class="chart">{title}{"".join(out)}</svg>')


def _pair(gain: Gain, first: int, colours: dict[str, str]) -> str:
    """Both schedules as pictures on one scale, which lead to their runs, of which the rule's is `first`."""
    runs = ((gain.rule, gain.rule_name, gain.rule_s), (gain.ours, gain.ours_name, gain.ours_s))
    to_s = max(gain.rule.to_s, gain.ours.to_s)
    out = []
    for i, (story, name, value_s) in enumerate(runs):
        head = look.unbroken(escape(f"{name}: {gain.figure} {look.seconds(value_s)}"))
        drawn = for_widths(partial(gantt, story, to_s, colours), WIDTH)
        out.append(f'<h3><a href="#run-{first + i}">{head}</a></h3>{drawn}')
    return "".join(out)
