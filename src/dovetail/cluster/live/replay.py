"""Submits the jobs of a trace to a running service at their times, and tells what became of them.

A trace rarely comes with what its jobs ran: then stand-ins are submitted, whose steps take as long as the throughputs
say. Its own commands are run only if the user says so, and in which folder.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from dovetail.cluster.inputs.choices import Widths
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.csv_rows import given_rows
from dovetail.cluster.inputs.scenario import given, load
from dovetail.cluster.inputs.traces import read_trace
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.live.client import ClusterClient, connect
from dovetail.cluster.live.jobs import JobStatus
from dovetail.cluster.live.specs import JobSpec, Keeping
from dovetail.cluster.live.trace_commands import CommandFlags, about, command_job
from dovetail.core.errors import DovetailError, InputError, check_functions, within
from dovetail.core.files.document import as_path
from dovetail.core.files.plain import plain
from dovetail.core.metrics import Spread
from dovetail.core.service.interrupts import interrupts

AnyPath = str | PathLike[str]
_LOOK_S = 0.5  # how often it is looked whether somebody has had enough
_CANCEL_S = 30.0  # for jobs to stop that are cancelled
_ERRORS = 5  # that are told, the commonest first
_MOST_PAIRS = 40  # kinds whose pairs a stand-in is told of
_OLD = ("gavel", "gavel-7", "shockwave")  # formats whose commands want Gavel's flags


class ClusterReplay:
    """What a service made of a trace: `metrics`, the `jobs` at their ends, and `notes` on what was assumed."""

    def __init__(self, metrics: dict[str, Any], jobs: list[JobStatus], notes: list[str], interrupted: bool) -> None:
        self.metrics, self.jobs, self.notes, self.interrupted = metrics, jobs, notes, interrupted

    def __repr__(self) -> str:
        told = self.metrics
        return f"<ClusterReplay {told['completed']} of {told['submitted']} jobs completed>"


def replay_trace(
    trace: AnyPath | Sequence[Mapping[str, Any]],
    url: AnyPath | ClusterClient | None = None,
    *,
    token_file: AnyPath | None = None,
    trace_format: str = "",
    widths: Widths | None = None,
    throughputs: Any = None,
    speed: float = 1.0,
    jobs: int | None = None,
    run_commands: bool = False,
    folder: AnyPath | None = None,
    data_dir: AnyPath | None = None,
    flags: CommandFlags | None = None,
    checkpoint: Keeping | None = None,
    wait: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ClusterReplay:
    """Submit the jobs of a trace to the service at a URL (or of a state folder), at their times, `speed` times as fast.

    `trace` is a file of any known format, or rows of our table; only the first so many `jobs` are submitted. Stand-ins
    train without computing, at the rates of `throughputs` (or of the built-in model) on the service's types; they have
    `speed` times fewer steps, and less time for deadlines, so that the load is the trace's. Those that are wider than
    all that the service has are left out, which is noted. With `run_commands` the trace's own commands are run, with
    all their steps and no shell, inside a `folder`; `%s` in them is `data_dir` (by default `data` there), and `flags`
    says what is added to them: by default, to those of Gavel's formats, what its workers added. `checkpoint` says how
    they survive the end of a turn: as Gavel's, by an iterator, others by checkpoints of their own. With `wait`, until
    all have ended; the first Ctrl-C submits no more, the second cancels what is open.
    """
    check_functions(progress=progress)

    @cache
    def client() -> ClusterClient:
        return url if isinstance(url, ClusterClient) else connect(url, token_file)

    timed, notes, left_out = trace_jobs(
        trace,
        lambda: [node.types for node in client().nodes() if node.here],
        trace_format=trace_format,
        widths=widths,
        throughputs=throughputs,
        speed=speed,
        jobs=jobs,
        run_commands=run_commands,
        folder=folder,
        data_dir=data_dir,
        flags=flags,
        checkpoint=checkpoint,
    )
    found = _Submitter(client(), speed, wait, progress or (lambda done: None)).run(timed, notes)
    found.metrics["left_out"] = left_out
    return found


# --- what is submitted ----------------------------------------------------------------------------------------


def check_replay(trace: Any, types: str, **how: Any) -> None:
    """Raise what is wrong with a trace, or with how it is to be replayed on these accelerators."""
    spec = parse_cluster(types)
    trace_jobs(trace, lambda: [dict(zip(spec.types, spec.counts, strict=True))], **how)


def trace_jobs(
    trace: Any,
    there: Callable[[], Sequence[Mapping[str, int]]],
    *,
    speed: float,
    run_commands: bool,
    folder: AnyPath | None,
    data_dir: AnyPath | None,
    flags: CommandFlags | None,
    checkpoint: Keeping | None,
    **reading: Any,
) -> tuple[list[tuple[float, JobSpec]], list[str], int]:
    """The jobs of a trace and their times, notes, and how many were left out; `there` tells what each node has."""
    within("speed", speed, "a positive number", 1e-9, inf, optional=False)
    within("jobs", reading["jobs"], "1 or more", 1, whole=True)
    for name, chosen, known in (("flags", flags, CommandFlags), ("checkpoint", checkpoint, Keeping)):
        if chosen is not None and chosen not in get_args(known):
            raise InputError(f"{name}: found {chosen!r}, expected {' or '.join(get_args(known))}")
    if not run_commands and any(each is not None for each in (folder, data_dir, flags, checkpoint)):
        raise InputError("folder, data_dir, flags, checkpoint: are for run_commands, without which stand-ins are run")
    if run_commands and folder is None:
        raise InputError("run_commands: expected a folder in which the commands are run, found none")
    if folder is None:
        return _stand_ins(trace, there(), speed, **reading)
    place = as_path(folder, "folder")
    data = place / "data" if data_dir is None else as_path(data_dir, "data_dir")
    return *_commands(trace, place, data, flags, checkpoint, **reading), 0


def _commands(
    trace: Any,
    folder: Path,
    data_dir: Path,
    flags: CommandFlags | None,
    checkpoint: Keeping | None,
    *,
    trace_format: str,
    widths: Widths | None,
    throughputs: Any,
    jobs: int | None,
) -> tuple[list[tuple[float, JobSpec]], list[str]]:
    """Jobs with the trace's commands. Rates are the service's to learn."""
    if throughputs is not None or widths is not None:
        raise InputError("throughputs, widths: are for stand-ins; how fast commands are is learned")
    if not folder.is_dir():
        raise InputError(f"folder {folder}: expected a folder, found none")
    named = Path(trace) if isinstance(trace, str | PathLike) else given_rows("trace", plain(trace))
    found = read_trace(named, format=trace_format, most=jobs)
    added = flags or ("gavel" if found.format in _OLD else "none")
    kept = checkpoint or ("iterator" if added == "gavel" else "own")
    try:
        return [(job.arrival_s, command_job(job, folder, data_dir, added, kept)) for job in found], found.notes
    except InputError as error:
        raise InputError(f"{named}: {error}") from None


def _stand_ins(
    trace: Any, there: Sequence[Mapping[str, int]], speed: float, **reading: Any
) -> tuple[list[tuple[float, JobSpec]], list[str], int]:
    """Jobs that only take the time, on the types that the service has now; and how many were left out."""
    counts = sum(map(Counter, there), Counter[str]())
    if not counts:
        raise InputError("the service has no accelerator now: what a stand-in would do there is not known")
    per_server = {name: max(types.get(name, 0) for types in there) for name in counts}
    loaded = load(given(trace=trace, cluster=dict(counts), per_server=per_server, **reading))
    rates, timed, wide = loaded.setup.throughputs, [], list[Job]()
    index, kinds = rates.index(), list(dict.fromkeys((job.model, job.width) for job in loaded.setup.jobs))
    for job in loaded.setup.jobs:
        at = index[job.model, job.width]
        on = {name: float(rate) for name, rate in zip(rates.types, rates.alone[at], strict=True) if rate > 0}
        room = max((counts[name] for name in on), default=0)
        if room < job.width:
            wide.append(job)
            continue
        bound = tuple(on) if len(on) < len(rates.types) else ()
        timed.append((job.arrival_s, _stand_in(job, on, bound, _packed(rates, at, kinds, index), speed)))
    if wide:
        first = f"job {wide[0].id}, {wide[0].model}, width {wide[0].width}"
        told = f"{len(wide)} jobs are wider than any type that they run on has accelerators here; the first: {first}"
        if not timed:
            raise InputError(f"{trace}: {told}")
        loaded.notes.append(f"left out: {told}")
    return timed, loaded.notes, len(wide)


def _stand_in(
    job: Job, rates: Mapping[str, float], types: tuple[str, ...], packed: Mapping[str, float], speed: float
) -> JobSpec:
    steps = max(round(job.steps / speed), 1)
    words = [sys.executable, "-m", "dovetail.testing.cluster.paced", "--steps", str(steps)]
    words += ["--rates", ",".join(f"{name}={rate:.9g}" for name, rate in rates.items())]
    if packed:
        words += ["--packed", ",".join(f"{name}={rate:.9g}" for name, rate in packed.items())]
    told = about(job)
    if told["deadline_s"] is not None:
        told["deadline_s"] /= speed
    return JobSpec(command=tuple(words), steps=steps, rates=dict(rates), types=types, **told)


def _packed(
    rates: Throughputs, at: int, kinds: Sequence[tuple[str, int]], index: Mapping[tuple[str, int], int]
) -> dict[str, float]:
    """Rates beside others of the same width, as far as they are known and a command line can hold them."""
    if rates.pairs is None or len(kinds) > _MOST_PAIRS:
        return {}
    pairs, width = rates.pairs[at], rates.kinds[at][1]
    return {
        f"{name}/{model}": float(pairs[index[model, wide], k])
        for model, wide in kinds
        if wide == width and not set(",=") & set(model)
        for k, name in enumerate(rates.types)
        if pairs[index[model, wide], k] > 0
    }


# --- submitting -----------------------------------------------------------------------------------------------


class _Submitter:
    """Submits each job when it is due, and waits for all."""

    def __init__(self, client: ClusterClient, speed: float, wait: bool, progress: Callable[[int], None]) -> None:
        self._client, self._speed, self._wait, self._progress = client, speed, wait, progress
        self._stop, self._give_up = threading.Event(), threading.Event()
        self._jobs: list[int] = []
        self._late: list[float] = []
        self._errors: Counter[str] = Counter()

    def run(self, timed: Sequence[tuple[float, JobSpec]], notes: list[str]) -> ClusterReplay:
        began = time.monotonic()
        with interrupts(self._interrupted):
            for at_s, spec in timed:
                due = began + at_s / self._speed
                if self._stop.wait(max(due - time.monotonic(), 0.0)):
                    break
                self._late.append(time.monotonic() - due)
                self._submit(spec)
            ended = self._follow() if self._wait else [self._client.status(job) for job in self._jobs]
        took_s = time.monotonic() - began
        return ClusterReplay(self._figures(ended, len(timed), took_s), ended, notes, self._stop.is_set())

    def _submit(self, spec: JobSpec) -> None:
        try:
            self._jobs.append(self._client.submit(spec))
        except DovetailError as error:
            self._errors[str(error)] += 1

    def _follow(self) -> list[JobStatus]:
        """All jobs at their ends, unless nobody wants to wait any more."""
        ended: list[JobStatus] = []
        for job in self._jobs:
            while (status := self._client.status(job)).open and not self._give_up.wait(_LOOK_S):
                pass
            if status.open:
                return ended + self._cancel(self._jobs[len(ended) :])
            ended.append(status)
            self._progress(len(ended))
        return ended

    def _cancel(self, jobs: Sequence[int]) -> list[JobStatus]:
        for job in jobs:
            self._client.cancel(job)
        until = time.monotonic() + _CANCEL_S
        for job in jobs:
            with suppress(DovetailError):  # it is told as it is then
                self._client.wait(job, max(until - time.monotonic(), 0.0))
        return [self._client.status(job) for job in jobs]

    def _interrupted(self) -> None:
        if self._stop.is_set():
            self._give_up.set()
        self._stop.set()

    def _figures(self, ended: Sequence[JobStatus], wanted: int, took_s: float) -> dict[str, Any]:
        states = Counter(status.state for status in ended)
        figures: dict[str, Any] = {
            "speed": self._speed,
            "submitted": len(self._jobs),
            "not_submitted": wanted - len(self._jobs),
            **{state: states[state] for state in ("completed", "cancelled", "given_up", "running", "waiting")},
            "took_s": took_s,
        }
        done = [each for each in ended if each.state == "completed" and each.ended_s is not None]
        times = [each.ended_s - each.arrived_s for each in done if each.ended_s and each.arrived_s is not None]
        for name, values in (("jct_s", times), ("late_s", self._late)):
            if values:
                spread = Spread.of(values)
                figures |= {f"{name}_{which}": getattr(spread, which) for which in ("mean", "median", "p99", "max")}
        return figures | ({"errors": dict(self._errors.most_common(_ERRORS))} if self._errors else {})
