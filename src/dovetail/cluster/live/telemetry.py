"""What operators see of a live cluster: figures for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dovetail.cluster.live.jobs import JobStatus, JobTable
from dovetail.core.events import Rows
from dovetail.core.service.prometheus import PrometheusText

_SECONDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 100_000)


class ClusterTelemetry:
    """Counts what steps tell."""

    def __init__(self) -> None:
        self._figures = figures = PrometheusText("dovetail_cluster_")
        self.submitted = figures.counter("submitted_total", "Jobs that were accepted.")
        self._jobs = figures.gauge("jobs", "Jobs that are remembered, by state.")
        self._ended = figures.counter("ended_total", "Jobs that ended, by state.")
        self._completion = figures.histogram("completion_seconds", "From submission to completion.", _SECONDS)
        self._rounds = figures.counter("rounds_total", "Rounds that began.")
        self._leases = figures.counter("leases_total", "Leases that began, by type.")
        self._failures = figures.counter("failures_total", "Processes that ended as they should not.")
        self._accelerators = figures.gauge("accelerators", "Accelerators by type and state: held, free, out.")

    def step(self, rows: Sequence[Any], ended: Sequence[JobStatus], types: Sequence[str]) -> None:
        for each in rows:
            if not isinstance(each, Rows):
                continue
            if each.of == "due" and "round" in each.columns["what"]:
                self._rounds.add()
            elif each.of == "started":
                for j in each.columns["on"]:
                    self._leases.add(type=types[int(j)])
            elif each.of == "exited":
                self._failures.add(len(each.columns["id"]))
        for status in ended:
            self._ended.add(state=status.state)
            if status.state == "completed" and status.ended_s is not None and status.arrived_s is not None:
                self._completion.observe(status.ended_s - status.arrived_s)

    def text(self, jobs: JobTable, accelerators: Sequence[tuple[str, bool]]) -> str:
        """All figures; accelerators as their type and whether they can be used, by number."""
        self._jobs.put({(("state", state),): count for state, count in jobs.states().items()})
        held = {device for status in jobs.open() for device in status.devices}
        states = Counter(
            (kind, "held" if number in held else "free" if usable else "out")
            for number, (kind, usable) in enumerate(accelerators)
        )
        self._accelerators.put({(("type", kind), ("state", state)): n for (kind, state), n in states.items()})
        return self._figures.text()
