"""What can be said of a program, whatever the machine: the same bounds for `submit` and for job files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from dovetail.core.errors import InputError
from dovetail.host.curves import curve as speed_up
from dovetail.host.inputs.times import LONGEST_S

Words = Mapping[str, Any]  # those of `submit`, with memory in MiB and times in seconds
_MOST = 1 << 53  # of any number: more are not the same to everybody who reads them


def _whole(least: int, expected: str) -> tuple[Callable[[Any, Words], object], str]:
    return lambda value, words: value is None or value >= least, expected


def _seconds(expected: str = "seconds") -> tuple[Callable[[Any, Words], object], str]:
    return lambda value, words: 0 <= value < inf, expected


def _beside_gpus(default: Any = None) -> tuple[Callable[[Any, Words], object], str]:
    return lambda value, words: value == default or words["gpus"], "--gpus beside it"


_RULES: tuple[tuple[str, Callable[[Any, Words], object], str], ...] = (
    ("cores", *_whole(1, "1 or more")),
    ("least", lambda value, words: 1 <= value <= words["cores"], "1 to the cores asked for"),
    ("most", lambda value, words: value is None or value >= words["cores"], "at least the cores asked for"),
    ("priority", *_whole(0, "0 (most urgent) or more")),
    ("limit", lambda value, words: value is None or value > 0, "seconds"),
    ("grace", lambda value, words: value is None or 0 <= value < 3600, "seconds"),
    ("retries", *_whole(0, "0 or more")),
    ("memory_mib", *_whole(1, "MiB")),
    ("work", *_seconds("core-seconds")),
    ("delay", lambda value, words: 0 <= value <= LONGEST_S, f"seconds, up to {LONGEST_S:g}"),
    ("gpus", *_whole(0, "0 or more")),
    ("gpu_mem", *_whole(1, "memory, as 20g")),
    ("gpu_mem", *_beside_gpus()),
    ("gpu_type", *_beside_gpus("")),
    ("gpu_pause", *_beside_gpus("hold")),
    ("cpu_quota", lambda value, words: value is None or 0.05 <= value <= 4096, "cores, 0.05 to 4096"),
    ("io_weight", lambda value, words: value is None or 1 <= value <= 10_000, "1 to 10000"),
    ("nice", lambda value, words: value is None or -20 <= value <= 19, "-20 to 19"),
    ("network", lambda value, words: words["image"] or not value, "an image: a process has the machine's network"),
    ("parallel", *_whole(1, "1 or more")),
    ("parallel", lambda value, words: value is None or words["group"], "a group"),
    ("log_mib", *_whole(0, "MiB, or 0 for no limit")),
    ("stdin", lambda value, words: not (value and words["image"]), "a process: a container reads nothing"),
    ("split_stderr", lambda value, words: not (value and words["image"]), "a process: a container has one"),
    ("log_mib", lambda value, words: not (value and words["image"]), "a process: the engine keeps a container's"),
)


def broken_rule(words: Words) -> tuple[str, str] | None:
    """The first word that cannot be so, and what was found and expected; None if all can.

    >>> broken_rule({"cores": 0})
    ('cores', 'found 0, expected 1 or more')
    """
    for word, value in words.items():
        if isinstance(value, int) and abs(value) > _MOST:
            return word, f"found {value}, expected a number up to {_MOST}"
    for word, fine, expected in _RULES:
        if not fine(words[word], words):
            return word, f"found {words[word]!r}, expected {expected}"
    try:
        speed_up(words["curve"])
    except InputError as error:
        return "curve", str(error)
    return None
