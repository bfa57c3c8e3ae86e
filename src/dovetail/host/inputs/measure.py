"""How long a program takes on so many cores: it is run on each number of them, and its speed-up curve comes out."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.host.curves import SpeedUp, curve, fit, predicted_s


class MeasuredRuns(Struct, frozen=True):
    """The runs of a program on one number of cores."""

    cores: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def run_s(command: Sequence[str], cpus: Sequence[int], env: Mapping[str, str]) -> float:
    """Run a program on these processors alone, to its end. It stays in our process group, so that Ctrl-C ends it and
    all that it has started."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=dict(env),
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )
        except OSError as error:
            raise InputError(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            code = program.wait()
        except BaseException:
            program.kill()
            program.wait()
            raise
        took_s = time.perf_counter() - began
        if code:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise DovetailError(f"{command[0]}: exit code {code} on {len(cpus)} cores{': ' + last[0] if last else ''}")
    return took_s


def measure(
    command: Sequence[str],
    counts: Sequence[int],
    repeats: int,
    environment: Callable[[int], Mapping[str, str]],
    progress: Callable[[int], None] = lambda done: None,
) -> list[MeasuredRuns]:
    """Run a program on each number of cores; the rounds take turns, so that what disturbs a while disturbs all."""
    cpus = sorted(os.sched_getaffinity(0))
    if not command:
        raise InputError("expected a program to run")
    for cores in counts:
        if not 1 <= cores <= len(cpus):
            raise InputError(f"--cores: found {cores}, expected 1 to {len(cpus)}, which is what there is")
    if repeats < 1 or not counts or len(set(counts)) != len(counts):
        found = f"found {list(counts)} and {repeats}"
        raise InputError(f"expected numbers of cores, each once, and at least 1 repeat, {found}")
    seconds: dict[int, list[float]] = {cores: [] for cores in counts}
    for done in range(repeats * len(counts)):
        cores = counts[done % len(counts)]
        seconds[cores].append(run_s(command, cpus[:cores], environment(cores)))
        progress(done + 1)
    return [MeasuredRuns(cores, tuple(found)) for cores, found in sorted(seconds.items())]


def powers(cores: int) -> list[int]:
    """
    >>> powers(12), powers(1)
    ([1, 2, 4, 8, 12], [1])
    """
    return [*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores]


def table_text(found: Sequence[MeasuredRuns]) -> str:
    """The curve, as `--curve` takes it.

    >>> table_text([MeasuredRuns(1, (10.0, 12.0, 11.0)), MeasuredRuns(2, (6.5,))])
    'table:1=11,2=6.5'
    """
    return "table:" + ",".join(f"{each.cores}={each.median_s:.6g}" for each in found)


def fitted(found: Sequence[MeasuredRuns]) -> tuple[SpeedUp, float]:
    """The curve that seconds = a + b / cores fits best, and its largest relative error."""
    points = [(each.cores, each.median_s) for each in found]
    coefficients = fit(points)
    error = max(abs(predicted_s(coefficients, cores) / seconds - 1) for cores, seconds in points)
    return curve("fit" + table_text(found).removeprefix("table")), error
