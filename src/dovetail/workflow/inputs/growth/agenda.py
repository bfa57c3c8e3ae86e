"""Simulated growth: what the ends of nodes add is told when they end, whoever says when that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.core.events import Arrived, Complete, Finished, Grew, Reject, Stimulus
from dovetail.core.loop.agenda import Agenda
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.growth.request import Later, draw
from dovetail.workflow.inputs.growth.rules import GrowthRules


class GrowingAgenda:
    """Another agenda, with what each request is given beside the ends that give it. As an observer it learns which
    requests are closed."""

    def __init__(
        self,
        agenda: Agenda,
        rules: Mapping[str, GrowthRules],
        graphs: Mapping[str, TaskGraph],
        later: Callable[[str], Later],
        seed: int,
    ) -> None:
        self._agenda, self._rules, self._graphs, self._later, self._seed = agenda, rules, graphs, later, seed
        self._growth: dict[str, dict[str, Grew]] = {}
        self.push, self.cancel = agenda.push, agenda.cancel

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        batch = self._agenda.pop()
        if batch is None:
            return None
        grown: list[Stimulus] = []
        for stimulus in batch[1]:
            if type(stimulus) is Finished:
                event = self._growth.get(stimulus.job, {}).get(stimulus.task)
                if event is not None:
                    grown.append(event)
            elif type(stimulus) is Arrived and stimulus.of in self._rules and not stimulus.fault:
                rules, graph = self._rules[stimulus.of], self._graphs[stimulus.of]
                self._growth[stimulus.job] = draw(stimulus.job, rules, graph, self._later(stimulus.job), self._seed)
        return batch[0], [*grown, *batch[1]]

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Complete or type(event) is Reject:
                self._growth.pop(event.job, None)
