"""Nodes that share windows, and first tokens: recounted step by step, each node's work for itself."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.events import Failed, Finished, Observed, Start
from dovetail.core.findings import Findings, close
from dovetail.core.journal import Header
from dovetail.core.rates import RateTable
from dovetail.core.resources import Device
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.learning import Learning
from dovetail.workflow.gpus.sharing import FIRST_TOKEN
from dovetail.workflow.inputs.costs import window_shares

Key = tuple[str, str]


class _Node:
    """Work that is left until the end and until the first token (none: it was told, or there is none), in seconds of
    one alone."""

    __slots__ = ("first_s", "left_s")

    def __init__(self, left_s: float, first_s: float | None) -> None:
        self.left_s = left_s
        self.first_s = first_s


class _Window:
    """Nodes of one model that share GPUs, or one that has them for itself."""

    def __init__(self, model: str, shares: Sequence[float], ready_s: float) -> None:
        self.model = model
        self.shares = shares
        self.ready_s = self.at_s = ready_s
        self.nodes: dict[Key, _Node] = {}

    @property
    def share(self) -> float:
        return self.shares[min(len(self.nodes), len(self.shares)) - 1]

    def go_on(self, t: float) -> None:
        if t > self.at_s:
            done_s = (t - self.at_s) * self.share if self.nodes else 0.0
            for node in self.nodes.values():
                node.left_s -= done_s
                if node.first_s is not None:
                    node.first_s -= done_s
            self.at_s = t


class SharingRules:
    """Follows what starts and ends, and says what is wrong with when it ends and when first tokens come."""

    def __init__(
        self, header: Header, facts: WorkflowFacts, faults: Findings, rates: RateTable, learning: Learning | None
    ) -> None:
        self._facts, self._faults, self._learning = facts, faults, learning
        self._types, self._rates = [device.type for device in header.pool.devices], rates
        self._windows: dict[tuple[int, ...] | Key, _Window] = {}
        self._where: dict[Key, tuple[int, ...] | Key] = {}

    def extend(self, devices: Sequence[Device]) -> None:
        """GPUs have joined."""
        self._types += [device.type for device in devices]

    def beside(self, t: float, start: Start) -> tuple[float, float] | None:
        """What is left of the load, and the share of each, if a node joins others of its model; None if nobody is
        there."""
        window = self._windows.get(start.devices) if start.slots else None
        if window is None or window.model != start.kind:
            return None
        left_s, shares = max(0.0, window.ready_s - t), window.shares
        if self._learning is not None:
            left_s, shares = self._learning.loading_s(start.devices, t), self._shares(start)
        return left_s, shares[min(len(window.nodes), len(shares) - 1)]

    def start(self, t: float, start: Start) -> None:
        """A start that may be followed, whatever was wrong with it."""
        slots = self._facts.models[start.kind].slots if start.devices else 0
        if start.slots != slots:
            message = f"found {start.slots} slots, expected {slots} as the model has"
            self._faults.add("slots", f"{start.job}/{start.task}", message)
        if not slots and start.first_s is None:
            return
        key = (start.job, start.task)
        place = start.devices if slots else key
        window = self._windows.get(place)
        if window is None:
            window = self._windows[place] = _Window(start.kind, self._shares(start), t + start.setup_s)
        if window.model == start.kind:
            self._where[key] = place
            window.go_on(t)
            window.nodes[key] = _Node(0.0, None)
            share = window.share
            first_s = None if start.first_s is None else start.first_s * share
            window.nodes[key] = _Node(start.run_s * share, first_s)

    def _shares(self, start: Start) -> Sequence[float]:
        if not start.slots:
            return (1.0,)
        types, width = {self._types[gpu] for gpu in start.devices}, len(start.devices)
        measured = [self._rates.at_once(start.kind, name, width=width) for name in types]
        return window_shares(self._facts.models[start.kind], measured) or (1.0,)

    def end(self, t: float, event: Finished | Failed) -> None:
        place = self._where.pop((event.job, event.task), None)
        if place is None:
            return
        window, who = self._windows[place], f"{event.job}/{event.task}"
        window.go_on(t)
        node = window.nodes[event.job, event.task]
        expected = t + node.left_s / window.share
        late, failed = not close(t, expected), type(event) is Failed
        if self._facts.exact and late and isinstance(place[0], int) and not (failed and t < expected):
            message = f"ended at {t} s, expected {expected} s of a node among {len(window.nodes)} on {list(place)}"
            self._faults.add("duration", who, message)
        if node.first_s is not None and not failed and not self._facts.live:
            self._faults.add("token", who, "ended, but its first token was not told")
        del window.nodes[event.job, event.task]
        if not window.nodes:
            del self._windows[place]

    def observed(self, t: float, event: Observed) -> None:
        if event.what != FIRST_TOKEN or self._facts.live:  # of a live run it comes when it comes, if it does
            return
        key = (str(event.facts.get("job")), str(event.facts.get("task")))
        who, place = "/".join(key), self._where.get(key)
        window = self._windows[place] if place is not None else None
        if window is None or window.nodes[key].first_s is None:
            self._faults.add("token", who, "told a first token, but it does not run, or told it before, or writes none")
            return
        window.go_on(t)
        left_s, window.nodes[key].first_s = window.nodes[key].first_s or 0.0, None
        expected = max(t, window.ready_s) + left_s / window.share
        if t < window.ready_s and not close(t, window.ready_s):
            self._faults.add("token", who, f"told its first token at {t} s, but it is loaded at {window.ready_s} s")
        elif self._facts.exact and not close(t, expected):
            self._faults.add("token", who, f"told its first token at {t} s, expected {expected} s")
