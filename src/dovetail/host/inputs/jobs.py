"""Job files: programs to run, with a matrix of values for sweeps, as YAML, TOML or JSON; to submit, or to simulate.

defaults: {cores: 2, group: sweep, parallel: 2}
jobs:
  - name: train-{lr}-{seed}
    command: python train.py --lr {lr} --seed {seed}
    matrix: {lr: [0.1, 0.01], seed: [0, 1, 2]}
    exclude: [{lr: 0.1, seed: 2}]
  - name: compare
    command: [python, compare.py]
    after: [train-*]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import date, time
from fnmatch import fnmatchcase
from itertools import product
from os import PathLike
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.host.gpus import parse_mib
from dovetail.host.inputs.program_rules import broken_rule
from dovetail.host.inputs.times import moment, seconds
from dovetail.host.program import Ask, GpuPause

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
Scalar = str | int | float | bool
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
# Words of their own that only a shell understands.
_FOR_A_SHELL = re.compile(r"\|[|&]?|&|&&\S*|&>>?\S*|\S*;\S*|<<?\S*|\d?>>?\S*")
_MOST = 100_000


class ProgramJob(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One entry: the words of `dovetail host submit`, a name, and what it is to be repeated for. `{x}` in its name,
    command, variables, folder and names of others is the value of `x` in the matrix, whose combinations are all taken
    but those that `exclude` matches. `after` and `after_any` are names in the file (`*` is anything) or numbers. With
    `shell` the command is a line for `sh -c`: pipes, redirections, several commands."""

    name: str
    command: str | tuple[str, ...] = ()
    shell: bool = False
    matrix: dict[str, tuple[Scalar, ...]] = {}
    exclude: tuple[dict[str, Scalar], ...] = ()
    image: str = ""
    network: bool = False
    cwd: str | None = None
    env: dict[str, Scalar] = {}
    cores: int = 1
    least: int = 1
    most: int | None = None
    priority: int = 0
    after: tuple[str | int, ...] = ()
    after_any: tuple[str | int, ...] = ()
    begin: str | None = None
    delay: float | str | None = None
    group: str = ""
    parallel: int | None = None
    limit: float | None = None
    grace: float | None = None
    retries: int = 0
    memory_mib: int | None = None
    work: float = 0.0
    curve: str = "linear"
    rigid: bool = False
    gpus: int = 0
    gpu_mem: str | int | None = None
    gpu_type: str = ""
    gpu_pause: GpuPause = "hold"
    cpu_quota: float | None = None
    io_weight: int | None = None
    nice: int | None = None
    hook: str = ""
    stdin: str | None = None
    split_stderr: bool = False
    log_mib: int | None = None

    def ask(self) -> Ask:
        """What a simulated scheduler is asked for."""
        if self.begin is not None:
            raise InputError(f"{self.name}: begin: a simulation has no time of day; expected delay")
        return Ask(
            cores=self.cores,
            least=self.least,
            most=self.most,
            priority=self.priority,
            curve=self.curve,
            memory_mib=self.memory_mib or 0,
            after=tuple(map(str, self.after)),
            limit_s=self.limit,
            retries=self.retries,
            malleable=not self.rigid,
            gpus=self.gpus,
            gpu_mem_mib=None if self.gpu_mem is None else parse_mib(self.gpu_mem),
            gpu_type=self.gpu_type,
            gpu_pause=self.gpu_pause,
            after_any=tuple(map(str, self.after_any)),
            begin_s=seconds(self.delay or 0.0),
            group=self.group,
            parallel=self.parallel,
        )

    def words(self) -> dict[str, Any]:
        """The words of `submit`, the command among them."""
        found: dict[str, Any] = msgspec.structs.asdict(self)
        return {name: value for name, value in found.items() if name not in ("matrix", "exclude", "shell")}


def is_job_file(source: Source) -> bool:
    """Whether it is in the form of a job file; a request file has lines, or rows."""
    if isinstance(source, str | PathLike):
        return str(source).endswith(SUFFIXES)
    return isinstance(source, Mapping) and "jobs" in source


class _JobFile(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: tuple[dict[str, Any], ...]
    defaults: dict[str, Any] = {}


def read_jobs(source: Source) -> dict[str, ProgramJob]:
    """The jobs of a file, or of a dict in its form, by name, each combination of a matrix for itself; those that one
    waits for come before it.

    >>> jobs = read_jobs({"jobs": [{"name": "t{n}", "command": "train {n}", "matrix": {"n": [1, 2]}},
    ...                            {"name": "end", "command": "true", "after": ["t*"]}]})
    >>> {name: (job.command, job.after) for name, job in jobs.items()}
    {'t1': (('train', '1'), ()), 't2': (('train', '2'), ()), 'end': (('true',), ('t1', 't2'))}
    """
    doc = Document.of(source, "jobs")
    file = doc.convert(doc.data, _JobFile)
    found: dict[str, ProgramJob] = {}
    places: dict[str, int] = {}
    for i, entry in enumerate(file.jobs):
        job = doc.convert(_times_as_text(file.defaults | entry), ProgramJob, ("jobs", i))
        _check(doc, i, job)
        for each in _combinations(doc, i, job):
            if each.name in found:
                hint = "; name its matrix in it, as {x}" if job.matrix else ""
                raise doc.error(("jobs", i, "name"), f"{each.name} is there twice{hint}")
            found[each.name], places[each.name] = each, i
    if not found:
        raise doc.error(("jobs",), "expected at least one job")
    resolved = {name: _resolved(doc, places[name], job, found) for name, job in found.items()}
    return _in_order(doc, places, resolved)


def _times_as_text(value: Any, deep: int = 3) -> Any:
    """Dates and times, which some formats know, as the text that they are everywhere else. No deeper than an entry:
    a file may refer to itself again and again."""
    if deep and isinstance(value, dict):
        return {key: _times_as_text(each, deep - 1) for key, each in value.items()}
    if deep and isinstance(value, list | tuple):
        return [_times_as_text(each, deep - 1) for each in value]
    return str(value) if isinstance(value, date | time) else value  # a date and time is a date too


def _check(doc: Document, i: int, job: ProgramJob) -> None:
    """Refuse what no machine could run."""
    if job.begin is not None and job.delay is not None:
        raise doc.error(("jobs", i, "delay"), f"found {job.delay!r} beside begin, expected one of them")
    try:
        delay_s, memory = seconds(job.delay or 0.0), None if job.gpu_mem is None else parse_mib(job.gpu_mem)
        if job.begin is not None:
            moment(job.begin)
    except InputError as error:
        raise doc.error(("jobs", i), str(error)) from None
    if broken := broken_rule(job.words() | {"delay": delay_s, "gpu_mem": memory}):
        word, what = broken
        raise doc.error(("jobs", i, word), what)


def _combinations(doc: Document, i: int, job: ProgramJob) -> list[ProgramJob]:
    where = ("jobs", i, "matrix")
    count = 1
    for name, values in job.matrix.items():
        if not values:
            raise doc.error((*where, name), "expected at least one value")
        count *= len(values)
    if count > _MOST:
        raise doc.error(where, f"found {count} combinations, expected up to {_MOST}")
    for place, excluded in enumerate(job.exclude):
        if unknown := excluded.keys() - job.matrix.keys():
            name = min(unknown)
            raise doc.error(
                ("jobs", i, "exclude", place), f"{name} is not in the matrix{did_you_mean(name, job.matrix)}"
            )
    words = _command(doc, i, job)
    made = []
    for values in product(*job.matrix.values()):
        chosen = dict(zip(job.matrix, values, strict=True))
        if not any(out.items() <= chosen.items() for out in job.exclude):
            made.append(_filled(job, words, chosen))
    return made


def _command(doc: Document, i: int, job: ProgramJob) -> Sequence[str]:
    """What is to be run; a line that only a shell would run as it is meant is not taken for words."""
    where, found = ("jobs", i, "command"), job.command
    if not isinstance(found, str):
        if job.shell:
            raise doc.error(where, f"found {list(found)!r}, expected one line beside shell: true")
        return found
    if job.shell:
        return ("sh", "-c", found)
    try:
        words = shlex.split(found)
    except ValueError as error:
        raise doc.error(where, f"found {found!r}, expected words as a shell reads them: {error}") from None
    for word in _QUOTED.sub("_", found).split():
        if _FOR_A_SHELL.fullmatch(word):
            raise doc.error(
                where,
                f"found {word} in {found!r}, which is not read by a shell: expected shell: true beside it, "
                f"or '{word}' in quotes if the program is to have it, as it may a URL",
            )
    return words


def _filled(job: ProgramJob, words: Sequence[str], chosen: Mapping[str, Scalar]) -> ProgramJob:
    """A job with the values of one combination in the places that name them; other braces stay."""

    def fill(text: str) -> str:
        return _PLACE.sub(lambda m: _text(chosen[m[1]]) if m[1] in chosen else m[0], text)

    return msgspec.structs.replace(
        job,
        name=fill(job.name),
        command=tuple(fill(word) for word in words),
        cwd=None if job.cwd is None else fill(job.cwd),
        env={name: fill(_text(value)) for name, value in job.env.items()},
        stdin=None if job.stdin is None else fill(job.stdin),
        after=tuple(fill(str(each)) for each in job.after),
        after_any=tuple(fill(str(each)) for each in job.after_any),
    )


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _resolved(doc: Document, i: int, job: ProgramJob, found: Mapping[str, ProgramJob]) -> ProgramJob:
    """A job with the full names of those that it waits for; what is a number stays one."""

    def named(each: str | int) -> Sequence[str]:
        text = str(each)
        if text in found or re.fullmatch(r"\d+(\.\d+)?", text):
            return [text]
        if "*" in text and (matching := [name for name in found if fnmatchcase(name, text) and name != job.name]):
            return matching
        raise doc.error(("jobs", i), f"{job.name}: after: there is no job {text}{did_you_mean(text, found)}")

    after, after_any = (tuple(name for each in a for name in named(each)) for a in (job.after, job.after_any))
    return msgspec.structs.replace(job, after=after, after_any=after_any)


def _in_order(doc: Document, places: Mapping[str, int], jobs: Mapping[str, ProgramJob]) -> dict[str, ProgramJob]:
    """Each after all that it waits for; a circle of them is an error."""
    done: dict[str, ProgramJob] = {}
    while len(done) < len(jobs):
        left = {name: job for name, job in jobs.items() if name not in done}
        free = [name for name, job in left.items() if not left.keys() & {*job.after, *job.after_any}]
        if not free:
            first = list(left)[:3]
            raise doc.error(("jobs", places[first[0]]), f"{', '.join(first)} wait for each other")
        done |= {name: jobs[name] for name in free}
    return done
