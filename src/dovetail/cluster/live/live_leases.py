"""What is known of a lease on all its nodes, and of a node by what its agent said last."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from dovetail.cluster.live.nodes import ClusterNode
from dovetail.cluster.live.wire import LeaseState, TrainingCommand

Key = tuple[int, int]  # job and epoch


class NodePart(NamedTuple):
    """The ranks of a lease on one node, with their accelerators there."""

    ranks: tuple[int, ...]
    places: tuple[int, ...]
    gpus: tuple[int, ...]


@dataclass
class LiveNode:
    """A node, and what its agent said last."""

    node: ClusterNode
    numbers: range
    heard: float
    met: bool = False  # its agent has been heard of since this service began
    down: bool = False  # which the rounds know of
    trouble: str = ""  # why it is, if its agent says so
    doubted: bool = False  # Ray has lost it
    states: dict[Key, LeaseState] = field(default_factory=dict)
    leases: dict[Key, JobLease] = field(default_factory=dict)
    sent: dict[Key, int] = field(default_factory=dict)  # the first beat whose answer told of a lease
    ports: list[int] = field(default_factory=list)
    beat: int | None = None  # that waits for its answer, and when it came
    beat_at: float = 0.0
    news: bool = False  # that it should hear at once


@dataclass
class JobLease:
    """A lease of a job, from when it is planned until all of its processes are gone."""

    job: int
    epoch: int
    devices: tuple[int, ...]
    type: str
    parts: dict[str, NodePart]
    command: TrainingCommand | None = None  # of a lease that this service knows all about
    beside: int = -1
    spare: bool = False  # it begins if another job ends
    started: bool = False
    wanted: bool = True
    last: bool = False  # it will not be extended
    ends: float | None = None
    granted: float = -inf  # the latest end that an agent may know of
    end: Literal["", "stop", "kill"] = ""
    go: bool = False
    unsure: bool = False  # it is known from the journal alone, and whether it has begun only its agents can tell
    folder: Literal["", "asked", "ready"] = ""
    done: int = 0
    resumes: int = 0
    stop_steps: int | None = None
    port: int = 0
    gone: dict[str, LeaseState] = field(default_factory=dict)
    told: bool = False
    trouble: str = ""

    @property
    def key(self) -> Key:
        return self.job, self.epoch

    @property
    def all_gone(self) -> bool:
        return len(self.gone) == len(self.parts)
