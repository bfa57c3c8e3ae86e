"""The state machine of a pipeline in virtual time, and the one that a journal's decisions were made by."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Instruction, Start, Stimulus
from dovetail.core.journal import Header, Reader
from dovetail.core.loop.engine import Scheduler
from dovetail.pipeline.route import LINK


class PipelineScheduler:
    """First in, first out everywhere; devices of a station take turns: microbatch n is for device n mod their number.

    Each replica of a stage has so many buffers for what it has received, and so many for what it has to send. Nothing
    starts before the buffer that it fills has room.
    """

    def __init__(
        self, names: Sequence[str], lanes: Sequence[Sequence[int]], types: Sequence[str], buffers: int
    ) -> None:
        """Stations by name, the devices that take turns at each, and the type of every device."""
        self._names, self._lanes, self._buffers = names, lanes, buffers
        self._index = {name: i for i, name in enumerate(names)}
        self._sizes: dict[str, tuple[float, ...]] = {}
        self._waiting: list[deque[tuple[str, float]]] = [deque() for _ in names]
        self._busy = [False] * len(types)
        self._began = [0] * len(names)  # how many microbatches have started there
        # The buffers in front of a station belong to the stage before or after it, whichever of the two is no link.
        self._replicas = [len(lanes[i - (types[lane[0]] == LINK)]) for i, lane in enumerate(lanes)]

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stimulus in stimuli:
            if isinstance(stimulus, Arrived):
                self._sizes[stimulus.job] = stimulus.sizes
                self._waiting[0].append((stimulus.job, now))
            elif isinstance(stimulus, Finished):
                out += self._end(stimulus, now)
        for i in reversed(range(len(self._waiting))):  # who takes from a buffer goes before who fills it
            while (device := self._free(i)) is not None:
                job, ready_s = self._waiting[i].popleft()
                self._busy[device] = True
                self._began[i] += 1
                name, run_s = self._names[i], self._sizes[job][i]
                out.append(Start(job, name, name, (device,), ready_s, run_s, "first in, first out"))
        return out

    def _end(self, finished: Finished, now: float) -> list[Instruction]:
        i = self._index[finished.task]
        lanes = self._lanes[i]
        # All take equally long, so the oldest ends.
        number = self._began[i] - sum(self._busy[device] for device in lanes)
        self._busy[lanes[number % len(lanes)]] = False
        if i + 1 == len(self._waiting):
            del self._sizes[finished.job]
            return [Complete(finished.job)]
        self._waiting[i + 1].append((finished.job, now))
        return []

    def _free(self, i: int) -> int | None:
        """The device that takes the next microbatch at a station, if there is one and everything is free."""
        if not self._waiting[i]:
            return None
        device = self._lanes[i][self._began[i] % len(self._lanes[i])]
        if self._busy[device]:
            return None
        if i + 1 == len(self._waiting):
            return device
        # What is on its way to the next station is consecutive: a replica's share of it is every so-manieth.
        on_its_way = self._began[i] - self._began[i + 1]
        return device if on_its_way < self._buffers * self._replicas[i + 1] else None

    def close(self, now: float) -> list[Instruction]:
        return []


def scheduler_for(reader: Reader) -> Scheduler:
    """The state machine that made the decisions of a journal, as it was at the start."""
    header = reader.header
    try:
        if header.mode == "live":
            from dovetail.pipeline.live.turns import supervisor_of

            return supervisor_of(header)
        return _simulated(header)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{reader.path}:1: its scheduler cannot be made again from the header: {error!r}") from None


def _simulated(header: Header) -> PipelineScheduler:
    (graph,) = header.build_graphs().values()
    names = [task.name for task in graph.tasks]
    lanes = [header.facts["lanes"][name] for name in names]
    types = [device.type for device in header.pool.devices]
    return PipelineScheduler(names, lanes, types, int(header.options["buffers"]))
