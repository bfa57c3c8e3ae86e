"""What a trace format is: how it is told from the others, and how its rows become jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Protocol

from dovetail.cluster.inputs.choices import OnError, Widths
from dovetail.cluster.inputs.csv_rows import CsvRow, Source
from dovetail.cluster.inputs.throughputs import Kind
from dovetail.cluster.inputs.traces.mapping import Mapper
from dovetail.cluster.inputs.workload import Job, TrainingStart
from dovetail.core.errors import InputError

START = ("command", "folder", "steps_flag", "needs_data")
_FLAGS = {"": False, "0": False, "false": False, "1": True, "true": True}
_SHOWN = 3  # rows that could not be read, in a note


class TraceEntry(Protocol):
    """What is read now, and where it is in its file."""

    def error(self, column: str, message: str) -> InputError: ...


@dataclass(slots=True)
class TraceReading:
    """A trace that is being read: its file, the mapper of models and steps, and what was left out and why.

    `map` says which key of a log's record holds what, `model` what the names there are."""

    path: Source
    mapper: Mapper
    left_out: list[tuple[str, int]] = field(default_factory=list)  # what, and how many jobs were read before it
    drawn: dict[int, tuple[str, str]] = field(default_factory=dict)  # by job: the trace's model, and ours for it
    count: int = 0
    map: dict[str, str] = field(default_factory=dict)
    model: dict[str, str] = field(default_factory=dict)
    on_error: OnError = "fail"
    skipped: list[str] = field(default_factory=list)  # rows that could not be read
    ended: Counter[str] = field(default_factory=Counter)  # how jobs ended that did not end well
    ran_on: Counter[str] = field(default_factory=Counter)  # types that steps were told from
    timed: int = 0  # jobs whose steps were told from their time on the reference type
    starts: dict[Any, TrainingStart] = field(default_factory=dict)  # by cells
    pick: Callable[[list[str]], Any] | None = None  # the cells that say how a job is started

    def skip(self, why: str) -> None:
        self.skipped.append(why)
        self.leave_out("rows that could not be read")

    def only_on(self, model: str, width: int, types: Iterable[str]) -> str:
        """The model as one that runs on these types alone; as it was, which is noted, if none of them is here."""
        restricted = self.mapper.restrict(model, width, types)
        if not restricted:
            self.leave_out("wishes for GPU types that are not known here")
        return restricted or model

    def leave_out(self, what: str) -> None:
        self.left_out.append((what, self.count))

    def job(
        self,
        row: TraceEntry,
        *,
        model: str,
        width: int,
        arrival_s: float,
        steps: float | None = None,
        duration_s: float | None = None,
        weight: float = 1.0,
        due_s: float | None = None,
        slack: float | None = None,
        entity: str = "",
        name: str = "",
        ran_on: str = "",
        spread: bool = False,
        phases: tuple[tuple[float, str], ...] = (),
        start: TrainingStart | None = None,
    ) -> Job:
        """A job of this row: steps are told from its duration, or the other way round; `slack` is due in durations.

        With `ran_on` the duration is on that type, else on the reference type; with `spread` over several servers."""
        rate, ran_on = 0.0, ran_on or (self.mapper.reference if spread else "")
        if self.mapper.ready or steps is None or slack is not None:
            try:
                rate = self.mapper.rate(model, width)
            except InputError as error:
                raise row.error("", str(error)) from None
            if ran_on and steps is None and duration_s is not None:
                steps, duration_s = duration_s * self.mapper.rate_on(model, width, ran_on, spread), None
                if not steps:
                    raise row.error("", f"{model} at width {width} does not run on {ran_on}")
                self.ran_on[ran_on] += 1
            if not self.mapper.reference and steps is None:
                raise row.error("", "durations beside profiles need the type that they are on (--durations-on TYPE)")
            if rate == 0 and (steps is None or (slack is not None and duration_s is None)):
                raise row.error("", f"{model} at width {width} does not run on {self.mapper.reference}")
        if steps is None:
            if duration_s is None:
                raise row.error("", "expected steps or a duration, found neither")
            steps = duration_s * rate
            self.timed += 1
        if duration_s is None and rate > 0:
            duration_s = steps / rate
        if slack is not None and duration_s is not None:
            due_s = slack * duration_s
        self.count += 1
        return Job(
            id=self.count - 1,
            model=model,
            width=width,
            steps=steps,
            arrival_s=arrival_s,
            weight=weight,
            due_s=due_s,
            duration_s=duration_s,
            entity=entity,
            name=name,
            phases=phases,
            start=start,
        )

    def start(self, row: CsvRow, columns: tuple[str, ...] = START) -> TrainingStart | None:
        """How the row says that its job is started: few commands start many jobs, so each is read and kept once."""
        if self.pick is None:
            self.pick = itemgetter(*(row.columns.index(name) for name in columns if name in row.columns))
        cells = self.pick(row.untouched)
        found = self.starts.get(cells)
        if found is None and any(cells):
            command, folder, steps_flag, needs_data = map(row.verbatim, columns)
            if (flag := needs_data.strip().lower()) not in _FLAGS:
                raise row.error(columns[-1], f"expected 0 or 1, found {needs_data!r}")
            found = self.starts[cells] = TrainingStart(command, folder, steps_flag, _FLAGS[flag])
        return found

    def draw(self, row: TraceEntry, key: str, width: int, like: str = "") -> str:
        """A model for a row that does not name one, or one that is not known."""
        try:
            model = self.mapper.draw(key, width, like)
        except InputError as error:
            raise row.error("", str(error)) from None
        if model != like:
            self.drawn[self.count] = like, model
        return model

    def dropped(self, ids: Collection[int]) -> dict[str, int]:
        """What was left out right before each of these jobs, and how often; if these are all jobs, or none, at all."""
        every = not ids or len(ids) == self.count
        return Counter(what for what, before in self.left_out if every or before in ids)

    def notes(self, ids: Collection[int], kinds: Iterable[Kind]) -> list[str]:
        """What was assumed of these jobs, for people; `kinds` are theirs."""
        drawn = [self.drawn[i] for i in ids if i in self.drawn]
        notes = []
        if drawn:
            rest = [self.mapper.reference] if self.ran_on.total() < self.count else []
            on = ", ".join(dict.fromkeys([*self.ran_on, *rest]))
            notes.append(f"models drawn by hash for {len(drawn)} jobs, steps told from their time on {on}")
        elif self.timed:
            notes.append(f"durations are on {self.mapper.reference} (--durations-on names another type)")
        stood_in = {theirs: ours.partition(" (")[0] for theirs, ours in reversed(drawn) if theirs}
        stood_in = {theirs: ours for theirs, ours in stood_in.items() if theirs != ours}
        if stood_in:
            pairs = ", ".join(f"{theirs} by {ours}" for theirs, ours in sorted(stood_in.items()))
            notes.append(f"models that are not known were stood for: {pairs}")
        guessed = sorted({width for _, width in self.mapper.guessed(kinds)})
        if guessed:
            widths = ", ".join(str(each) for each in guessed)
            needs = "a table of these jobs needs --widths guess"
            notes.append(f"throughputs guessed from other widths for widths {widths} ({needs})")
        if self.ended:
            how = ", ".join(f"{state} {count}" for state, count in self.ended.most_common())
            notes.append(f"the time of jobs counts that did not end well: {how}")
        notes += [f"could not be read: {why}" for why in self.skipped[:_SHOWN]]
        if len(self.skipped) > _SHOWN:
            notes.append(f"could not be read: {len(self.skipped) - _SHOWN} more")
        return notes


@dataclass(slots=True, frozen=True)
class TraceFormat:
    """`columns` are those that a file of this format has; without a header, how many there are is enough."""

    name: str
    what: str
    columns: tuple[str, ...]
    read: Callable[[TraceReading], Iterator[Job]]
    header: bool = True
    widths: Widths = "guess"  # what is done by default with widths that the throughputs do not have
    from_zero: bool = True  # whether the first arrival becomes time 0
    looks: Callable[[str], bool] | None = None  # whether a file begins so, where that is not told by its columns
    mapped: bool = False  # whether a user may say which key holds what


def timestamp_s(row: CsvRow, column: str) -> float:
    """Seconds of a point in time, which is a number of seconds already or written as a date and a time."""
    text = row.text(column)
    if text.replace(".", "", 1).isdecimal():
        return row.number(column)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise row.error(column, f"expected seconds or a time such as 2017-10-09 07:01:55, found {text!r}") from None
    # A time without a zone would else be this machine's, with an hour too many or too few twice a year.
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
