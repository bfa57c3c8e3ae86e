"""Figures as Prometheus reads them: the text format 0.0.4, written by hand because it is so small."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeVar

T = TypeVar("T", bound="CounterFamily | HistogramFamily")
Labels = tuple[tuple[str, str], ...]


class CounterFamily:
    """A number that grows, for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, told: str) -> None:
        self.name, self.told = name, told
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(labels.items())
        self._values[key] = self._values.get(key, 0.0) + amount

    def value(self, **labels: str) -> float:
        return self._values.get(tuple(labels.items()), 0.0)

    def lines(self) -> Iterable[str]:
        for labels, value in tuple(self._values.items()):
            yield _line(self.name, labels, value)


class GaugeFamily(CounterFamily):
    """A number that is what it is now."""

    kind = "gauge"

    def set(self, label: str, values: Mapping[str, float], counted: Iterable[str] = ()) -> None:
        """All of them anew, by one label; those that are counted are added to the values."""
        counts = Counter(counted)
        self.put({((label, name),): values.get(name, 0) + counts[name] for name in {**values, **counts}})

    def put(self, values: Mapping[Labels, float]) -> None:
        """All of them anew: what is not among them is no more."""
        self._values = dict(values)


class HistogramFamily:
    """How many measurements were at most so much, their number and their sum, for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, told: str, bounds: Iterable[float]) -> None:
        self.name, self.told = name, told
        self.bounds = (*sorted(bounds), inf)
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, **labels: str) -> None:
        counts, total = self._values.setdefault(tuple(labels.items()), ([0] * len(self.bounds), [0.0]))
        counts[bisect_left(self.bounds, value)] += 1
        total[0] += value

    def count(self, **labels: str) -> int:
        return sum(self._values.get(tuple(labels.items()), ([], []))[0])

    def lines(self) -> Iterable[str]:
        for labels, (counts, total) in tuple(self._values.items()):
            so_far = 0
            for bound, count in zip(self.bounds, tuple(counts), strict=True):
                so_far += count
                yield _line(f"{self.name}_bucket", (*labels, ("le", _number(bound))), so_far)
            yield _line(f"{self.name}_sum", labels, total[0])
            yield _line(f"{self.name}_count", labels, so_far)


class PrometheusText:
    """All figures of a service.

    >>> figures = PrometheusText("dovetail_")
    >>> figures.counter("runs_total", "Runs that ended.").add(state="completed")
    >>> print(figures.text(), end="")
    # HELP dovetail_runs_total Runs that ended.
    # TYPE dovetail_runs_total counter
    dovetail_runs_total{state="completed"} 1
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._all: list[CounterFamily | HistogramFamily] = []

    def counter(self, name: str, told: str) -> CounterFamily:
        return self._keep(CounterFamily(self._prefix + name, told))

    def gauge(self, name: str, told: str) -> GaugeFamily:
        return self._keep(GaugeFamily(self._prefix + name, told))

    def histogram(self, name: str, told: str, bounds: Iterable[float]) -> HistogramFamily:
        return self._keep(HistogramFamily(self._prefix + name, told, bounds))

    def _keep(self, figure: T) -> T:
        self._all.append(figure)
        return figure

    def text(self) -> str:
        lines: list[str] = []
        for figure in self._all:
            lines += [f"# HELP {figure.name} {figure.told}", f"# TYPE {figure.name} {figure.kind}", *figure.lines()]
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{told}}} {_number(value)}" if told else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == inf:
        return "+Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
