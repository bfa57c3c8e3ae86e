"""A training job as a user submits it: what to run, how long, and what the policy should know of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dovetail.cluster.inputs.csv_rows import LEAST, LEAST_WEIGHT, MOST, MOST_WEIGHT
from dovetail.cluster.inputs.workload import at_batch
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source, checked

Keeping = Literal["iterator", "own", "pause"]
"""How a job survives the end of its turn: through a `LeaseIterator`; by checkpoints of its own, after SIGTERM; or
stopped and kept in memory."""

_PLACE = re.compile(r"(?:jobs\.(\d+)\.)?([^:]+): (.*)", re.DOTALL)
_LONGEST_NAME = 200
_MOST_WIDTH = 4096


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job: `steps` of training by a `command`, which is run without a shell in a `folder`.

    Jobs of one `model` and `batch` are taken to run alike at the same width: what is learned of one holds for all.
    `width` is how many accelerators it has at once, one process each; with an elastic policy any of `widths`. It may
    run on any type, or on those of `types`; `rates` are steps per second by type at its width, as far as they are known
    before it has run. `deadline_s` is after its submission. `steps_flag` is put before the number of steps at the end
    of the command; `checkpoint` says how it survives the end of its turn.
    """

    command: tuple[str, ...]
    steps: float
    folder: str = ""
    model: str = ""
    batch: int | None = None
    width: int = 1
    widths: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    weight: float = 1.0
    entity: str = ""
    deadline_s: float | None = None
    env: dict[str, str] = {}
    steps_flag: str = ""
    checkpoint: Keeping = "iterator"
    name: str = ""

    @property
    def title(self) -> str:
        """What it is called: by its name, or by what it trains.

        >>> JobSpec(command=("python3", "/x/train.py", "--fast"), steps=5).title
        'train'
        """
        return self.name or self.kind

    @property
    def kind(self) -> str:
        """What its rates are known by, with its width: model and batch, and the types that it is bound to.

        >>> JobSpec(command=("train",), steps=5, model="LM", batch=20, types=("v100", "a100")).kind
        'LM (batch size 20) on a100, v100'
        """
        script = next((word for word in self.command if word.endswith(".py")), self.command[0])
        model = self.model or Path(script).stem
        model = model if self.batch is None else at_batch(model, self.batch)
        return f"{model} on {', '.join(sorted(self.types))}" if self.types else model

    def check(self, types: Iterable[str] = (), entities: Iterable[str] = ()) -> None:
        """Refuse what can never run, on these types if there are any, for these entities if there are any.

        >>> JobSpec(command=("train",), steps=5, width=0).check()
        Traceback (most recent call last):
        dovetail.core.errors.InputError: width: found 0, expected 1 to 4096
        """
        known, owners, due_s = list(types), list(entities), self.deadline_s
        names = (self.name, self.model, self.entity)
        long = next((name for name in names if len(name) > _LONGEST_NAME or not name.isprintable()), None)
        bad_env = next((n for n, v in self.env.items() if not n or "=" in n or "\0" in n + v), None)
        bad_rate = next(((t, rate) for t, rate in self.rates.items() if not LEAST <= rate <= MOST), None)
        bad_width = next((w for w in self.widths if not 1 <= w <= _MOST_WIDTH), None)
        for what, found, fine, expected in (
            ("command", list(self.command), self.command and self.command[0], "a program to run, and its words"),
            ("command", list(self.command), not any("\0" in w for w in self.command), "no null character"),
            ("steps", self.steps, 1 <= self.steps <= MOST, f"1 to {MOST:g}"),
            ("folder", self.folder, not self.folder or os.path.isabs(self.folder), "an absolute path"),
            ("batch", self.batch, self.batch is None or 1 <= self.batch <= MOST, f"1 to {MOST:g}"),
            ("width", self.width, 1 <= self.width <= _MOST_WIDTH, f"1 to {_MOST_WIDTH}"),
            ("widths", bad_width, bad_width is None, f"widths of 1 to {_MOST_WIDTH}"),
            ("widths", list(self.widths), not self.widths or self.width in self.widths, f"width {self.width} in it"),
            ("weight", self.weight, LEAST_WEIGHT <= self.weight <= MOST_WEIGHT, f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"),
            ("deadline_s", due_s, due_s is None or LEAST <= due_s <= MOST, f"{LEAST:g} to {MOST:g} seconds"),
            ("env", bad_env, bad_env is None, "names without =, and no null character"),
            ("rates", bad_rate, bad_rate is None, f"steps per second by type, {LEAST:g} to {MOST:g}"),
            ("steps_flag", self.steps_flag, "\0" not in self.steps_flag, "no null character"),
            ("name, model, entity", long, long is None, f"at most {_LONGEST_NAME} printable characters"),
        ):
            if not fine:
                raise InputError(f"{what}: found {found!r}, expected {expected}")
        for what, named in (("types", self.types), ("rates", tuple(self.rates))):
            for each in named:
                if known and each not in known:
                    raise InputError(
                        f"{what}: found {each!r}, expected a type of the cluster{did_you_mean(each, known)}"
                    )
        if owners and self.entity not in owners:
            raise InputError(
                f"entity: found {self.entity!r}, expected one that has a weight{did_you_mean(self.entity, owners)}"
            )

    def full_command(self) -> tuple[str, ...]:
        """With the number of steps, where the command wants to be told.

        >>> JobSpec(command=("train",), steps=500, steps_flag="--num_steps").full_command()
        ('train', '--num_steps', '500')
        """
        return (*self.command, self.steps_flag, f"{self.steps:.0f}") if self.steps_flag else self.command


def job_spec(given: Any) -> JobSpec:
    """A job as one was given: by its keys, or a `JobSpec`. What is wrong is refused by its key.

    >>> job_spec({"command": ["train"], "step": 5})
    Traceback (most recent call last):
    dovetail.core.errors.InputError: step: unknown key 'step'; did you mean 'steps'?
    """
    spec = given if isinstance(given, JobSpec) else checked(given, JobSpec)
    spec.check()
    return spec


@contextmanager
def of_several(i: int) -> Iterator[None]:
    """What is wrong with one of several jobs is told with its place among them."""
    try:
        yield
    except InputError as error:
        raise InputError(f"jobs.{i}.{error}") from None


class JobsFile:
    """The jobs of a file: one by its keys, or a list of them under `jobs`. A folder that is not absolute is seen from
    the file's, and without one that is where a job runs."""

    def __init__(self, source: Source) -> None:
        self._document = document = Document.of(source, "jobs")
        listed = document.data
        self._at: tuple[str, ...] = ()
        if isinstance(listed, dict) and "jobs" in listed:
            listed, self._at = listed["jobs"], ("jobs",)
            if unknown := next((key for key in document.data if key != "jobs"), None):
                raise document.error((unknown,), "unknown key; expected jobs alone")
            if not isinstance(listed, list) or not listed:
                raise document.error(self._at, "expected a list of jobs")
        self._several = isinstance(listed, list)
        home = document.path.absolute().parent if document.text else Path.cwd()
        self.specs: list[JobSpec] = []
        for i, each in enumerate(listed if self._several else [listed]):
            if isinstance(each, dict) and isinstance(each.get("folder", ""), str):
                each = {**each, "folder": str(home / each.get("folder", ""))}
            spec = document.convert(each, JobSpec, self._place(i))
            try:
                with of_several(i):
                    spec.check()
            except InputError as error:
                raise self.located(error) from None
            self.specs.append(spec)

    def _place(self, i: int) -> list[str | int]:
        return [*self._at, i] if self._several else [*self._at]

    def located(self, error: Exception) -> InputError:
        """What was said of a key of one of these jobs, with its line."""
        found = _PLACE.fullmatch(str(error))
        if found is None:
            return InputError(str(error))
        return self._document.error((*self._place(int(found[1] or 0)), found[2]), found[3])


def read_jobs(source: Source) -> list[JobSpec]:
    """The jobs of a file, or of what stands in its place."""
    return JobsFile(source).specs
