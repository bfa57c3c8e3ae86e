"""How large the nodes of a request are, as far as can be known when it arrives: tokens, and the seconds they take.

Tokens that a node will read are counted in characters, tokens that it will write expected from what it wrote before.
Only numbers of tokens are learned here; how fast models really are is learned by the scheduler, from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.growth.rules import said_of
from dovetail.workflow.inputs.request_entries import Tokens
from dovetail.workflow.inputs.system import MOST, System
from dovetail.workflow.live.data_flow import DataFlow
from dovetail.workflow.live.run_data import RunData

CHARACTERS = 4.0  # of a token, until some were counted
_UNKNOWN_TOKENS = 1000.0  # that a model writes which says nothing of it, as in files
_MEMORY = 50  # answers after which what was seen before counts little
_TRUST = 4  # answers that weigh as much as what the configuration says
_SMALLEST_S = 1e-6


class Learned(Struct):
    """A mean and its spread, of which what came last counts most.

    >>> seen = Learned()
    >>> for written in (90, 110, 100):
    ...     seen.add(written)
    >>> seen.mean, round(seen.std, 1), round(seen.expected(300.0))
    (100.0, 8.2, 211)
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        share = 1 / min(self.count, _MEMORY)
        off = value - self.mean
        self.mean += share * off
        self.variance = (1 - share) * (self.variance + share * off * off)

    @property
    def std(self) -> float:
        return sqrt(self.variance)

    def expected(self, before: float) -> float:
        """The mean, together with what was expected before anything was seen."""
        seen = min(self.count, _MEMORY)
        weight = _TRUST * (1 - seen / _MEMORY)
        return (seen * self.mean + weight * before) / (seen + weight)


class TokenEstimator:
    """Learns how many tokens nodes read and write. Not for several threads at once."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._written: dict[tuple[str, str], Learned] = {}
        self._read: dict[tuple[str, str], Learned] = {}
        self._characters: dict[str, tuple[float, float]] = {}  # of models: characters, and tokens that they were

    def arrived(self, data: RunData) -> tuple[tuple[float, ...], dict[str, list[int]]]:
        """The size of each node that a request begins with, in seconds at speed 1, and the tokens of those whose model
        counts in tokens: read, written."""
        flow, sizes, tokens = data.flow, list[float](), dict[str, list[int]]()
        for task in flow.graph.tasks:
            expected = self._tokens(data, task.name)
            if expected is not None:
                tokens[task.name] = [expected.input, expected.output]
            sizes.append(self._seconds(data, task.name, task.kind, expected))
        return tuple(sizes), tokens

    def size_s(self, data: RunData, instance: str, node: str) -> float:
        """The size of a node that is added to a request."""
        return self._seconds(data, instance, data.flow.nodes[node].node.model, self._tokens(data, instance))

    def answered(self, data: RunData, task: str, read: int | None, written: int | None) -> None:
        """A call has answered: its tokens, where they were counted."""
        flow = data.flow.node_of(task)
        key = (data.flow.name, flow.node.id)
        if written is not None and not said_of(task, data.options.get("node_tokens")):
            self._written.setdefault(key, Learned()).add(written)
        if read:
            self._read.setdefault(key, Learned()).add(read)
            characters, tokens = self._characters.get(flow.node.model, (0.0, 0.0))
            if asked := data.asked.get(task):
                self._characters[flow.node.model] = (characters + asked, tokens + read)

    def written(self, workflow: str, node: str) -> Learned | None:
        """What a node has written so far; None if that was never counted."""
        return self._written.get((workflow, node))

    def characters_per_token(self, model: str) -> float:
        characters, tokens = self._characters.get(model, (0.0, 0.0))
        return (characters + 200 * CHARACTERS) / (tokens + 200)

    # --- one node -----------------------------------------------------------------------------------

    def _seconds(self, data: RunData, task: str, model: str, tokens: Tokens | None) -> float:
        said = said_of(task, data.options.get("node_execution_times"))
        if said is not None:
            assert isinstance(said, int | float)
            if not 0 < said <= MOST:
                expected = f"expected a positive number up to {MOST:g}, found {said}"
                raise InputError(f"node_execution_times.{task}: {expected}")
            return float(said)
        if tokens is None:
            return self._system.estimate_s(model)[0]
        read_s, write_s = self._system.token_s(model)
        return max(tokens.input * (read_s or 0.0) + tokens.output * (write_s or 0.0), _SMALLEST_S)

    def _tokens(self, data: RunData, task: str) -> Tokens | None:
        """What a node will read and write; None if its model does not count so, or if it says how long it takes."""
        flow = data.flow.node_of(task)
        if (
            self._system.token_s(flow.node.model)[1] is None
            or said_of(task, data.options.get("node_execution_times")) is not None
        ):
            return None
        said = said_of(task, data.options.get("node_tokens"))
        if isinstance(said, Mapping):
            return _said(task, said)
        return Tokens(self._reads(data, task), self._writes(data, task))

    def _writes(self, data: RunData, task: str) -> int:
        flow = data.flow.node_of(task)
        usual = self._system.models[flow.node.model].token_mean or _UNKNOWN_TOKENS
        seen = self._written.get((data.flow.name, flow.node.id), Learned())
        most = data.options_of(task).get("max_tokens")
        expected = max(round(seen.expected(usual)), 1)
        return min(expected, most) if isinstance(most, int) and most > 0 else expected

    def _reads(self, data: RunData, task: str) -> int:
        """What is there already is counted; of a node that waits for others, what it read before is expected."""
        flow = data.flow.node_of(task)
        if data.is_first(task):
            return self.count(flow.node.model, data.characters(task))
        seen = self._read.get((data.flow.name, flow.node.id))
        usual = self._system.models[flow.node.model].input_token_mean
        if usual is None:
            usual = sum(self._writes(data, one) for one in data.before(task) if self._counts(data.flow, one))
            usual += self.count(flow.node.model, 0 if flow.prompt is None else flow.prompt.length)
        return round(seen.expected(usual) if seen is not None else usual)

    def _counts(self, flow: DataFlow, task: str) -> bool:
        return self._system.token_s(flow.node_of(task).node.model)[1] is not None

    def count(self, model: str, characters: int) -> int:
        """Tokens of so many characters, for a model."""
        return round(characters / self.characters_per_token(model))


def _said(task: str, said: Mapping[str, Any]) -> Tokens:
    numbers = [said.get("input", 0), said.get("output", 0)]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if said.keys() - {"input", "output"} or not whole or not all(0 <= number <= MOST for number in numbers):
        raise InputError(f"node_tokens.{task}: expected whole numbers of input and output, found {dict(said)!r}")
    return Tokens(*numbers)
