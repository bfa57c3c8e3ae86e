"""What users say of a program, in the words of `submit` and of job files, as what the daemon is told."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite, isnan
from pathlib import Path
from typing import Any, TypedDict

from dovetail.core.errors import InputError
from dovetail.core.files.document import checked
from dovetail.core.service.access import AnyPath
from dovetail.host.gpus import parse_mib
from dovetail.host.inputs.times import moment, seconds
from dovetail.host.live.specs import Spec, without_given

_RENAMED = {"limit": "limit_s", "grace": "grace_s", "work": "work_s"}
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})
_CAN_BE_NONE = ("name", "group", "hook")  # of which a program that had one can be rid


class EditWords(TypedDict, total=False):
    """What can be changed of a program that waits, in the words of `submit`."""

    cores: int | None
    least: int | None
    most: int | None
    name: str | None
    cwd: AnyPath | None
    env: Mapping[str, str] | None
    priority: int | None
    limit: float | None
    grace: float | None
    retries: int | None
    memory_mib: int | None
    begin: str | datetime | None
    delay: float | str | None
    group: str | None
    parallel: int | None
    hook: str | None
    log_mib: int | None


def program_spec(
    command: Sequence[str],
    *,
    image: str = "",
    cwd: AnyPath | None = None,
    env: Mapping[str, str] | None = None,
    rigid: bool = False,
    **words: Any,
) -> Spec:
    """A program with these words of `submit`: by default in this folder, with our environment variables."""
    variables = checked(env or {}, dict[str, str], "env")
    ours = {} if image else _as_text(without_given(os.environ))
    values = changed_words(words) | {
        "command": command,
        "image": image,
        "cwd": "" if image and cwd is None else _folder(cwd),
        "env": ours | variables,
        "malleable": not rigid,
    }
    return checked(values, Spec)


def _as_text(env: Mapping[str, str]) -> dict[str, str]:
    """Variables but for those that hold bytes which are no text: what is kept of a program is text."""
    found = {name: value for name, value in env.items() if _is_text(name + value)}
    if lost := sorted(ascii(name)[1:-1] for name in env.keys() - found.keys()):
        words = f"{', '.join(lost[:3])}{' and others' if lost[3:] else ''}"
        warnings.warn(f"left out, as they are no text in UTF-8: variables {words}", stacklevel=3)
    return found


def _is_text(words: str) -> bool:
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True


def _folder(cwd: AnyPath | None) -> str:
    """Where to run: by default here."""
    try:
        return str(Path("" if cwd is None else cwd).absolute())
    except FileNotFoundError:
        raise InputError("cwd: the folder that this is run in is gone; expected another") from None


def changed_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words that say something, by the daemon's names and in its units."""
    said = {name: v for name, v in words.items() if v not in _EMPTY or (v == "" and name in _CAN_BE_NONE)}
    for name, value in said.items():
        if name != "cpu_quota" and isinstance(value, float) and isnan(value):
            raise InputError(f"{name}: found {value}, expected a number")
    found = {_RENAMED.get(name, name): value for name, value in said.items()}
    for name in ("after", "after_any"):
        if name in found:
            found[name] = [str(each) for each in checked(found[name], list[str | int], name)]
    if "begin" in found and "delay" in found:
        raise InputError("begin, delay: expected one of them")
    if "begin" in found:
        found["begin"] = moment(found["begin"])
    quota = found.get("cpu_quota")
    if isinstance(quota, float) and not isfinite(quota):  # which no line of JSON can tell
        raise InputError(f"cpu_quota: found {quota}, expected cores, 0.05 to 4096")
    if "gpu_mem" in found:
        found["gpu_mem_mib"] = parse_mib(found.pop("gpu_mem"))
    if "delay" in found:
        found["delay_s"] = seconds(found.pop("delay"))
    for name in ("stdin", "cwd"):
        if name in found:
            found[name] = _folder(found[name])
    return found
