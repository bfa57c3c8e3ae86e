"""How long a program takes on so many cores: it is run on each number of them, and its speed-up curve comes out."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.rates import Rate, RateTable
from dovetail.host.curves import SpeedUp, curve, fit, predicted_s
from dovetail.host.live.specs import Spec, environment
from dovetail.host.program import CORE


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


def rate_table(name: str, found: Sequence[MeasuredRuns]) -> RateTable:
    """What was measured, for other levels: how many runs per second, and how many times as fast as on one core.

    >>> table = rate_table("train", [MeasuredRuns(1, (8.0,)), MeasuredRuns(4, (2.5,))])
    >>> [(rate.width, rate.rate, rate.unit) for rate in table.rates.values()]
    [(1, 1.0, ''), (4, 3.2, ''), (1, 0.125, 'runs/s'), (4, 0.4, 'runs/s')]
    """
    speed_up = curve(table_text(found))
    rates = [Rate(name, CORE, speed_up.speed(each.cores), each.cores, source="measured") for each in found]
    rates += [Rate(name, CORE, 1 / each.median_s, each.cores, source="measured", unit="runs/s") for each in found]
    return RateTable(rates)


def fitted(found: Sequence[MeasuredRuns]) -> tuple[SpeedUp, float]:
    """The curve that seconds = a + b / cores fits best, and its largest relative error."""
    points = [(each.cores, each.median_s) for each in found]
    coefficients = fit(points)
    error = max(abs(predicted_s(coefficients, cores) / seconds - 1) for cores, seconds in points)
    return curve("fit" + table_text(found).removeprefix("table")), error


def summary(found: Sequence[MeasuredRuns], efficiency: float = 0.5) -> dict[str, Any]:
    """The runs, the curves that follow from them, and the most cores that are used at least so well."""
    text = table_text(found)
    fit, error = fitted(found)
    runs = [
        {
            "cores": each.cores,
            "median_s": each.median_s,
            "speed_up": found[0].median_s / each.median_s,
            "core_s": each.cores * each.median_s,
            "seconds": each.seconds,
        }
        for each in found
    ]
    sweet = curve(text).sweet(found[-1].cores, efficiency)
    return {"curve": text, "fit": fit.text, "fit_error": error, "sweet_cores": sweet, "runs": runs}


def variables(cores: int) -> dict[str, str]:
    """Our own environment, with as many threads as cores."""
    return dict(os.environ) | environment(Spec(cores=cores), "", 1, cores, "")
