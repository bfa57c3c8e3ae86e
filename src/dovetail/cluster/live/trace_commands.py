"""The commands of a trace, made fit to be run: without a shell, inside one folder.

A trace is somebody else's file. What it names, as a folder or as a word of a command, must lie in the folder that the
user gave, or in that of the data. What a program does once it runs is its own business.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, Literal

from dovetail.cluster.inputs.workload import Job, TrainingStart, batch_of
from dovetail.cluster.live.specs import JobSpec, Keeping
from dovetail.core.errors import InputError

CommandFlags = Literal["gavel", "none"]
"""What is added to a command: what Gavel's workers added, or nothing but the steps."""

_OF_A_SHELL = {"&&", "||", ";", "|", "&", ">", ">>", "<", "<<", "2>", "2>&1"}
_GAVEL = ("--local_rank", "${LOCAL_RANK}", "--checkpoint_dir", "${DOVETAIL_CHECKPOINT_DIR}", "--enable_gavel_iterator")
_GAVEL_WIDE = (
    *("--master_addr", "${MASTER_ADDR}", "--master_port", "${MASTER_PORT}"),
    *("--world_size", "${WORLD_SIZE}", "--rank", "${RANK}"),
)


def command_job(job: Job, folder: Path, data_dir: Path, flags: CommandFlags, checkpoint: Keeping) -> JobSpec:
    """A job of a trace with its own command.

    >>> start = TrainingStart("python3 main.py --data_dir=%s/cifar10", ".", "--num_steps", True)
    >>> spec = command_job(Job(id=0, model="ResNet-18 (batch size 16)", steps=7.5, start=start), Path("/tmp"),
    ...                    Path("/tmp/data"), "none", "own")
    >>> spec.full_command()
    ('python3', 'main.py', '--data_dir=/tmp/data/cifar10', '--num_steps', '7')
    """
    if job.start is None or not job.start.command:
        raise InputError(f"job {job.id} ({job.model}): expected a command, found none")
    try:
        words, at = confined(job.start, folder, data_dir)
    except InputError as error:
        raise InputError(f"job {job.id}: {error}") from None
    if flags == "gavel":
        words += [*_GAVEL, *(_GAVEL_WIDE if job.width > 1 else ())]
    return JobSpec(
        command=tuple(words),
        folder=str(at),
        steps_flag=job.start.steps_flag,
        steps=max(int(job.steps), 1),
        checkpoint=checkpoint,
        **about(job),
    )


def about(job: Job) -> dict[str, Any]:
    """What the policy is told of a job, whatever it runs."""
    model, batch = batch_of(job.model) or (job.model, None)
    return {
        "model": model,
        "batch": batch,
        "width": job.width,
        "weight": job.weight,
        "entity": job.entity,
        "deadline_s": job.due_s or None,
        "name": job.name,
    }


def confined(start: TrainingStart, folder: Path, data_dir: Path) -> tuple[list[str], Path]:
    """The words of a command, and where it runs. Raises an InputError for what needs a shell, or leads out.

    >>> confined(TrainingStart("python3 ../x.py", "a"), Path("/tmp"), Path("/tmp/data"))
    Traceback (most recent call last):
    dovetail.core.errors.InputError: folder 'a': expected a folder in /tmp, found none
    """
    folder, data_dir = folder.resolve(), data_dir.resolve()
    try:
        words = shlex.split(start.command)
    except ValueError as error:
        raise InputError(f"command {start.command!r}: {error}") from None
    named = start.folder
    if words[:1] == ["cd"] and words[2:3] == ["&&"]:  # as Gavel's older traces do, with one folder for all
        named, words, data_dir = words[1].replace("%s", "."), words[3:], folder
    if shell := next((word for word in words if word in _OF_A_SHELL), None):
        raise InputError(f"command {start.command!r}: {shell!r} needs a shell, and there is none")
    if not words:
        raise InputError(f"command {start.command!r}: expected a program, found none")
    at = (folder / named).resolve()
    if not at.is_relative_to(folder):
        raise InputError(f"folder {named!r}: leads out of {folder}, where commands are run")
    if not at.is_dir():
        raise InputError(f"folder {named!r}: expected a folder in {folder}, found none")
    words = [word.replace("%s", str(data_dir)) for word in words]
    for word in words:
        if not _stays(word, at, (folder, data_dir)):
            raise InputError(f"command {start.command!r}: {word!r} leads out of {folder}, where commands are run")
    return words, at


def _stays(word: str, at: Path, within: tuple[Path, ...]) -> bool:
    """Whether all that may be a path in a word leads to one of these folders.

    >>> [_stays(word, Path("/tmp/a"), (Path("/tmp"),)) for word in ("x/y.py", "-o=../b", "../..", "~/x", "-I/usr", "5")]
    [True, True, False, False, False, True]
    """
    parts = [word, *word.split("=")[1:]]
    if word.startswith("-") and os.sep in word and "=" not in word:
        parts.append(word[word.index(os.sep) :])  # a flag with its path right behind it
    return all(
        any((at / os.path.expanduser(part)).resolve().is_relative_to(folder) for folder in within)
        for part in parts
        if os.sep in part or part in ("..", "~") or part.startswith("~")
    )
