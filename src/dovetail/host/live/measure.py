"""How long a program takes on so many cores: it is run on each number of them, and its speed-up curve comes out."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files.document import checked
from dovetail.core.rates import Rate, RateTable
from dovetail.host.curves import curve, fit, predicted_s
from dovetail.host.live.specs import Spec, environment
from dovetail.host.options import Count
from dovetail.host.program import CORE


class MeasuredRuns(Struct, frozen=True):
    """The runs of a program on one number of cores."""

    cores: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def run_s(command: Sequence[str], cpus: Sequence[int], env: Mapping[str, str]) -> float:
    """Run a program on these processors alone, to its end."""
    return run_together_s(command, [cpus], env)


def run_together_s(command: Sequence[str], places: Sequence[Sequence[int]], env: Mapping[str, str]) -> float:
    """Run copies of a program, each on processors of its own, until all have ended. They stay in our process group, so
    that Ctrl-C ends them and all that they have started."""
    began = time.perf_counter()
    with ExitStack() as stack:
        copies = [_Copy(stack, command, cpus, env) for cpus in places]
        for copy in copies:
            copy.wait()
        return time.perf_counter() - began


class _Copy:
    """One of them: killed if it is left before its end."""

    def __init__(self, stack: ExitStack, command: Sequence[str], cpus: Sequence[int], env: Mapping[str, str]) -> None:
        self._name, self._cores = command[0], len(cpus)
        self._said = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env=dict(env),
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )
        except OSError as error:
            raise InputError(f"cannot run {self._name}: {error.strerror}") from error
        stack.callback(self._end)

    def wait(self) -> None:
        if code := self._process.wait():
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
            said = f": {last[0]}" if last else ""
            raise DovetailError(f"{self._name}: exit code {code} on {self._cores} cores{said}")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class Measurement(Struct, frozen=True):
    """How long a program took on so many cores, and the share of its best use of a core that pays."""

    name: str
    runs: list[MeasuredRuns]
    efficiency: float = 0.5

    @property
    def curve(self) -> str:
        """The speed-up curve, as `load`, `submit` and `--curve` take it.

        >>> Measurement("train", [MeasuredRuns(1, (10.0, 12.0, 11.0)), MeasuredRuns(2, (6.5,))]).curve
        'table:1=11,2=6.5'
        """
        return "table:" + ",".join(f"{each.cores}={each.median_s:.6g}" for each in self.runs)

    @property
    def fit(self) -> str:
        """The same as seconds = a + b / cores."""
        return "fit" + self.curve.removeprefix("table")

    @property
    def fit_error(self) -> float:
        """The largest relative error of that."""
        points = [(each.cores, each.median_s) for each in self.runs]
        coefficients = fit(points)
        return max(abs(predicted_s(coefficients, cores) / seconds - 1) for cores, seconds in points)

    @property
    def sweet_cores(self) -> int:
        """The most cores that still pay."""
        return curve(self.curve).sweet(self.runs[-1].cores, self.efficiency)

    def summary(self) -> dict[str, Any]:
        """All of it as plain data."""
        runs = [
            {
                "cores": each.cores,
                "median_s": each.median_s,
                "speed_up": self.runs[0].median_s / each.median_s,
                "core_s": each.cores * each.median_s,
                "seconds": each.seconds,
            }
            for each in self.runs
        ]
        found = {"curve": self.curve, "fit": self.fit, "fit_error": self.fit_error, "sweet_cores": self.sweet_cores}
        return {**found, "runs": runs}

    def rates(self) -> RateTable:
        """For other levels: how many runs per second, and how many times as fast as on one core.

        >>> table = Measurement("train", [MeasuredRuns(1, (8.0,)), MeasuredRuns(4, (2.5,))]).rates()
        >>> [(rate.width, rate.rate, rate.unit) for rate in table.rates.values()]
        [(1, 1.0, ''), (4, 3.2, ''), (1, 0.125, 'runs/s'), (4, 0.4, 'runs/s')]
        """
        speed_up = curve(self.curve)
        rates = [Rate(self.name, CORE, speed_up.speed(n.cores), n.cores, source="measured") for n in self.runs]
        rates += [Rate(self.name, CORE, 1 / n.median_s, n.cores, source="measured", unit="runs/s") for n in self.runs]
        return RateTable(rates)


def measure(
    *command: str,
    cores: Sequence[int] | None = None,
    repeats: int = 1,
    efficiency: float = 0.5,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Run a program on several numbers of cores and tell how long it takes on each.

    It is bound to that many processors, and its thread variables say the same. The rounds take turns, so that what
    disturbs a while disturbs all.

    Parameters
    ----------
    cores
        Numbers of cores; by default 1, 2, 4 and so on up to all that there are.
    repeats
        Runs on each; the median counts.
    efficiency
        The share of its best use of a core that a further core must still bring, for `sweet_cores`.
    name
        What the program is called in a table of rates; by default as its command.
    progress
        Is told how many runs are done, and of how many.
    """
    cpus, words = processors(), checked(command, tuple[str, ...], "command")
    counts = powers(len(cpus)) if cores is None else checked(cores, list[int], "cores")
    repeats, efficiency = checked(repeats, Count, "repeats"), checked(efficiency, float, "efficiency")
    if not words:
        raise InputError("expected a program to run")
    if not 0 < efficiency <= 1:
        raise InputError(f"efficiency: found {efficiency}, expected a share, up to 1")
    if not counts or len(set(counts)) != len(counts) or not set(counts) <= set(range(1, len(cpus) + 1)):
        raise InputError(f"cores: found {counts}, expected some of 1 to {len(cpus)}, which is what there is, each once")
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for done in range(repeats * len(counts)):
        count = counts[done % len(counts)]
        seconds[count].append(run_s(words, cpus[:count], variables(count)))
        if progress is not None:
            progress(done + 1, repeats * len(counts))
    runs = [MeasuredRuns(count, tuple(found)) for count, found in sorted(seconds.items())]
    return Measurement(checked(name, str, "name") or os.path.basename(words[0]), runs, efficiency)


def processors() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


def powers(cores: int) -> list[int]:
    """
    >>> powers(12), powers(1)
    ([1, 2, 4, 8, 12], [1])
    """
    return [*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores]


def variables(cores: int) -> dict[str, str]:
    """Our own environment, with as many threads as cores."""
    return dict(os.environ) | environment(Spec(cores=cores), "", 1, cores, "")
