"""One request of a file: read, checked and made an arrival; what is wrong with it, and a count of what was found."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import did_you_mean
from dovetail.core.events import Arrived
from dovetail.core.files.document import Document, Key, explain, name_entries
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.growing_entries import EntryFault as EntryFault
from dovetail.workflow.inputs.growing_entries import GrowingEntries
from dovetail.workflow.inputs.growth.request import FixedOutcome, Later
from dovetail.workflow.inputs.system import MOST, System
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy

UNKNOWN_TIME = -(1 << 62)  # of a request whose timestamp cannot be read: it counts as the earliest
SAME_ID = "same_id"  # the fact of a request whose id is another's too: that id (only with --compat gswarm)
_SHOWN = 20  # faults shown at once
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Tokens(Struct, forbid_unknown_fields=True):
    """What a node of a language model reads and writes."""

    input: int = 0
    output: int = 0


class RequestEntry(Struct, forbid_unknown_fields=True):
    """One request as it stands in a file; `node_items` (what a node works through, where rates are known
    per second), `node_tokens`, `node_prefix`, `deadline_seconds` (after arrival), `priority`, `tenant` and `outcomes`
    (of nodes that may add others) are our additions."""

    request_id: str
    workflow_id: str
    timestamp: Any = None
    node_execution_times: dict[str, float] = field(default_factory=dict)
    node_items: dict[str, float] = field(default_factory=dict)
    node_tokens: dict[str, Tokens] = field(default_factory=dict)
    node_prefix: dict[str, str | list[int | str]] = field(default_factory=dict)
    input_data: Any = None
    node_configs: Any = None
    metadata: Any = None
    deadline_seconds: float | None = None
    priority: float = 1.0
    tenant: str = ""
    outcomes: dict[str, list[FixedOutcome]] = field(default_factory=dict)


class _Name(Struct):
    """What a request is called, whatever else is wrong with it."""

    request_id: str = ""
    workflow_id: str = ""


class EntryReader:
    """Reads the requests of one file, one after the other, and keeps count.

    `forecast` is GPU-seconds per model, `estimates` how many durations came from where. A subclass may have other
    rules.
    """

    entry_type: type[RequestEntry] = RequestEntry
    above_s = 0.0  # what every run time must be

    def __init__(self, path: Path, system: System, online: bool, on_error: OnError) -> None:
        self.doc: Document | None = None  # where a small file's lines are looked up
        self.at: tuple[str, ...] = ("requests",)  # where in it they are
        self._path = path
        self._system = system
        self._graphs = system.graphs(whole=True)
        growing = [graph for name, graph in self._graphs.items() if name in system.growth]
        self._growing = {graph.name: GrowingEntries(system, graph) for graph in growing}
        self._tenancy, self._models = system.tenancy, system.model_costs
        self._online = online
        self._on_error = on_error
        self._hints = {name: [self.guess(task.kind) for task in graph.tasks] for name, graph in self._graphs.items()}
        self.begin(None)

    def begin(self, suspects: frozenset[int] | None) -> None:
        """Nothing has been read. `suspects` are the hashes of the ids that may occur twice; None: any may."""
        self.skipped: list[str] = []
        self.skipped_count = 0
        self.forecast: dict[str, float] = dict.fromkeys(self._system.models, 0.0)
        self.estimates: Counter[str] = Counter()
        self.tenants: Counter[str] = Counter()  # requests of each, where the configuration has tenants
        self.warnings: dict[str, int] = {}
        self.hashes = array("q")  # of all ids: 8 bytes each, where the ids themselves would be too much
        self._fault_counts: dict[str, int] = {}
        self._fault_lines: list[tuple[str, str]] = []
        self._suspects = suspects
        self._seen: set[str] = set()
        self._doubles: set[int] = set()  # which requests have an id that was used before
        self.later: dict[str, Later] = {}  # what is known of nodes that requests may be given
        self._clock: tuple[str, str] | None = None  # the first timestamp's kind, and whose it was

    def finish(self) -> None:
        """All requests have been read once: what served only to compare them is let go."""
        self.doc = None
        self._seen.clear()

    def arrival(
        self, decode: Callable[[Any], RequestEntry], raw: Any, i: int, line: int = 0, count: bool = True
    ) -> tuple[Arrived | None, int]:
        """The i-th request as an arrival and its time; None if it is to be left out."""
        name, of, kind, stamp = "", "", "", UNKNOWN_TIME
        try:
            entry = decode(raw)
            name, of = entry.request_id, entry.workflow_id
            kind, stamp = self._timestamp(entry)
            if self._is_double(name, i, count):
                raise EntryFault("request_id", f"{name!r} is used twice")
            if not name:
                raise EntryFault("request_id", "expected a name, found nothing")
            graph, sizes = self._sizes(entry)
            due = entry.deadline_seconds
            if due is not None and not 0 < due <= MOST:
                raise EntryFault("deadline_seconds", f"expected a positive number up to {MOST:g}, found {due}")
            if not 0 < entry.priority <= MOST:
                raise EntryFault("priority", f"expected a positive number up to {MOST:g}, found {entry.priority}")
            first = self._first_sizes(entry, graph, sizes, count) if self._growing or entry.outcomes else sizes
            self.check_clock(kind, entry)
            if self._tenancy is not None or entry.tenant:
                self.check_tenant(entry, graph)
            if count:
                self._count(entry, graph, sizes)
            return Arrived(name, of, first, due, entry.priority, facts=self.facts(entry)), stamp
        except EntryFault as error:
            fault = error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            keys: list[Key] = []
            message = str(error)
            if isinstance(error, msgspec.ValidationError):
                keys, message = explain(error, RequestEntry)
                with suppress(msgspec.DecodeError):  # a number too large for any
                    data = msgspec.json.decode(raw) if isinstance(raw, bytes | msgspec.Raw) else raw
                    keys = name_entries(data, self.entry_type, keys, str(error))
            fault = EntryFault(".".join(map(str, keys)), message)
            known = _name_of(raw)
            name, of = known.request_id, known.workflow_id
            self._is_double(name, i, count)
        if self._clock is None or kind != self._clock[0]:
            stamp = UNKNOWN_TIME  # a faulty request does not set the clock
        return self._faulty(fault, name, of, i, line, count), stamp

    def _faulty(self, fault: EntryFault, name: str, of: str, i: int, line: int, count: bool) -> Arrived | None:
        """What becomes of a request that cannot run."""
        why = f"{fault.key}: {fault}" if fault.key else str(fault)
        if self._on_error == "reject":
            if not name or i in self._doubles:
                name = f"{name or 'request'}#{i + 1}"
                if count:
                    self._is_double(name, i, count)
            return Arrived(name, of, fault=why)
        if self._on_error == "skip" and count:
            self.skipped_count += 1
            if len(self.skipped) < _SHOWN:
                self.skipped.append(self._describe(fault, name, i, line))
        elif count:
            self._fault_counts[why] = self._fault_counts.get(why, 0) + 1
            if len(self._fault_lines) < _SHOWN and self._fault_counts[why] == 1:
                self._fault_lines.append((why, self._describe(fault, name, i, line)))
        return None

    def _is_double(self, name: str, i: int, count: bool) -> bool:
        """Whether an earlier request of the file has this id."""
        if not count or not name:
            return i in self._doubles
        if self._suspects is not None:
            self.hashes.append(hash(name))
            if self.hashes[-1] not in self._suspects:
                return False
        if name in self._seen:
            if self._on_error == "reject":  # the others are not looked at again
                self._doubles.add(i)
            return True
        self._seen.add(name)
        return False

    def _describe(self, fault: EntryFault, name: str, i: int, line: int) -> str:
        who = f"request {name!r}: " if name else ""
        key = f"{fault.key}: " if fault.key else ""
        if line:
            return f"{self._path}:{line}: {who}{key}{fault}"
        if self.doc is None:
            return f"{self._path}: {'.'.join([*self.at, str(i)])}: {who}{key}{fault}"
        keys: list[str | int] = [*self.at, i, *(fault.key.split(".") if fault.key else [])]
        return str(self.doc.error(keys, f"{who}{fault}"))

    def faults(self) -> str:
        """The first faults, each with its place; those that are alike are counted."""
        lines = []
        for why, text in self._fault_lines:
            others = self._fault_counts[why] - 1
            lines.append(f"{text} (and {others} more like it)" if others else text)
        rest = sum(self._fault_counts.values()) - sum(self._fault_counts[why] for why, _ in self._fault_lines)
        return "\n".join(lines) + (f"\n... and {rest} more" if rest else "")

    def _timestamp(self, entry: RequestEntry) -> tuple[str, int]:
        """What kind of time a request gives, and which, in microseconds."""
        if entry.timestamp is None:
            if self._online:
                raise EntryFault("timestamp", "missing; online mode needs the time of arrival")
            return "", 0
        return time_us(entry.timestamp)

    def check_clock(self, kind: str, entry: RequestEntry) -> None:
        """All timestamps of a file must be of one kind."""
        if not kind:
            return
        if self._clock is None:
            self._clock = (kind, entry.request_id)
        elif kind != self._clock[0]:
            first, who = self._clock
            raise EntryFault(
                "timestamp", f"{entry.timestamp!r} is {kind}, but that of {who!r} is {first}: do not mix them"
            )

    def guess(self, model: str) -> tuple[float, str]:
        """How long a node takes when its request does not say: seconds, and which rule gave them."""
        return self._system.estimate_s(model)

    def _sizes(self, entry: RequestEntry) -> tuple[TaskGraph, tuple[float, ...]]:
        """Durations that the request gives, and the model's estimate for those it does not."""
        graph = self._graphs.get(entry.workflow_id)
        if graph is None:
            fault = self._system.faults.get(entry.workflow_id)
            if fault:
                raise EntryFault("workflow_id", f"workflow {entry.workflow_id!r} cannot run: {fault}")
            hint = did_you_mean(entry.workflow_id, self._system.workflows)
            if entry.workflow_id in self._system.models:
                hint = "; it is a model, and files ask for workflows: give it one of a single node"
            raise EntryFault("workflow_id", f"unknown workflow {entry.workflow_id!r}{hint}")
        times = entry.node_execution_times
        given = [times.get(node.name) for node in graph.tasks]
        if None in given:
            self.check_names(entry, graph)
        if entry.node_items or entry.node_tokens:
            given = self._seconds(entry, graph)
        sizes = tuple([g[0] if s is None else s for g, s in zip(self._hints[graph.name], given, strict=True)])
        for size, node in zip(sizes, graph.tasks, strict=True):
            if not self.above_s < size <= MOST:
                found = f"expected a positive number up to {MOST:g}, found {size}"
                raise EntryFault(f"node_execution_times.{node.name}", found)
        return graph, sizes

    def facts(self, entry: RequestEntry) -> dict[str, Any]:
        """What a request says beyond sizes, weight and deadline, as plain data: only what is given."""
        facts: dict[str, Any] = {}
        if entry.node_tokens:
            facts["tokens"] = {name: [tokens.input, tokens.output] for name, tokens in entry.node_tokens.items()}
        if entry.node_prefix and (prefixes := self._prefixes(entry)):
            facts["prefix"] = prefixes
        if entry.tenant:
            facts["tenant"] = entry.tenant
        return facts

    def _prefixes(self, entry: RequestEntry) -> dict[str, list[int | str]]:
        """The blocks that nodes begin with, of models that keep any."""
        graph, found = self._graphs[entry.workflow_id], dict[str, list[int | str]]()
        for name, blocks in entry.node_prefix.items():
            if name not in graph.index:
                hint = did_you_mean(name, graph.index)
                raise EntryFault(f"node_prefix.{name}", f"not a node of workflow {graph.name!r}{hint}")
            if not blocks:
                raise EntryFault(f"node_prefix.{name}", "expected at least one block, or a name, found none")
            if self._system.models[graph.tasks[graph.index[name]].kind].prefix is not None:
                found[name] = [blocks] if isinstance(blocks, str) else blocks
        return found

    def check_tenant(self, entry: RequestEntry, graph: TaskGraph) -> None:
        """A tenant must be known, and have a quota that is wide enough for its nodes."""
        tenancy = self._tenancy or Tenancy()
        if (problem := tenancy.why_not(entry.tenant or NOBODY, graph, self._models)) is not None:
            raise EntryFault("tenant", problem)

    def _seconds(self, entry: RequestEntry, graph: TaskGraph) -> list[float | None]:
        """Durations that the request gives, or the rate table for its numbers of items."""
        times, items = entry.node_execution_times, entry.node_items
        for name, count in items.items():
            if name not in graph.index:
                hint = did_you_mean(name, graph.index)
                raise EntryFault(f"node_items.{name}", f"not a node of workflow {graph.name!r}{hint}")
            if name in times:
                raise EntryFault(f"node_items.{name}", "has a time as well; expected items or seconds")
            if not 0 < count <= MOST:
                raise EntryFault(f"node_items.{name}", f"expected a positive number up to {MOST:g}, found {count}")
            model = graph.tasks[graph.index[name]].kind
            if model not in self._system.item_s:
                message = f"no rate table knows how many items of {model!r} a GPU of this pool does in a second"
                raise EntryFault(f"node_items.{name}", message)
        kind_of = {node.name: node.kind for node in graph.tasks}
        known = {name: count * self._system.item_s[kind_of[name]] for name, count in items.items()}
        known |= {name: self._tokens_s(entry, graph, name) for name in entry.node_tokens}
        return [known.get(node.name, times.get(node.name)) for node in graph.tasks]

    def _tokens_s(self, entry: RequestEntry, graph: TaskGraph, name: str) -> float:
        """How long a node of so many tokens takes."""
        key, tokens = f"node_tokens.{name}", entry.node_tokens[name]
        if name not in graph.index:
            raise EntryFault(key, f"not a node of workflow {graph.name!r}{did_you_mean(name, graph.index)}")
        if name in entry.node_execution_times or name in entry.node_items:
            raise EntryFault(key, "has a time or items as well; expected one of them")
        model, seconds = graph.tasks[graph.index[name]].kind, 0.0
        input_s, output_s = self._system.token_s(model)
        for which, count, token_s, rate in (
            ("input", tokens.input, input_s, "prefill_tokens_per_second"),
            ("output", tokens.output, output_s, "tokens_per_second"),
        ):
            if not 0 <= count <= MOST:
                raise EntryFault(f"{key}.{which}", f"expected a number from 0 to {MOST:g}, found {count}")
            if count and token_s is None:
                raise EntryFault(f"{key}.{which}", f"model {model!r} has no {rate}, nor has a rate table")
            seconds += count * (token_s or 0.0)
        if not seconds:
            raise EntryFault(key, "expected input or output tokens, found none")
        return seconds

    def _first_sizes(
        self, entry: RequestEntry, graph: TaskGraph, sizes: tuple[float, ...], count: bool
    ) -> tuple[float, ...]:
        """The durations of the nodes that are there at the start; what is said of others is kept apart."""
        growing = self._growing.get(graph.name)
        if growing is None:
            if entry.outcomes:
                raise EntryFault("outcomes", f"no node of workflow {graph.name!r} adds others (then:)")
            return sizes
        given = {*entry.node_execution_times, *entry.node_items, *entry.node_tokens}
        known = growing.later(sizes, given, entry.node_execution_times, entry.node_tokens, entry.outcomes)
        if self._suspects is None or not count:  # a file that is streamed tells it again
            self.later[entry.request_id] = known
        return growing.first(sizes)

    def _is_node(self, name: str, graph: TaskGraph) -> bool:
        return name in graph.index or (graph.name in self._growing and name.partition("#")[0] in graph.index)

    def check_names(self, entry: RequestEntry, graph: TaskGraph) -> None:
        """A time for a name that is not a node, while a node has no time, is a slip."""
        times = entry.node_execution_times
        unknown = [name for name in times if not self._is_node(name, graph)]
        if unknown:
            lacking = [
                node.name
                for node in graph.tasks
                if not (node.name in times or node.name in entry.node_items or node.name in entry.node_tokens)
            ]
            hint = did_you_mean(unknown[0], lacking)
            raise EntryFault(f"node_execution_times.{unknown[0]}", f"not a node of workflow {graph.name!r}{hint}")

    def _count(self, entry: RequestEntry, graph: TaskGraph, sizes: Sequence[float]) -> None:
        times, given = entry.node_execution_times, 0
        growing = self._growing.get(graph.name)
        if self._tenancy is not None:
            self.tenants[entry.tenant or NOBODY] += 1
        for node, size, (_, rule) in zip(graph.tasks, sizes, self._hints[graph.name], strict=True):
            self.forecast[node.kind] += size * node.width * (1 if growing is None else growing.expected[node.name])
            if node.name in times:
                given += 1
            else:
                counted = "items" if node.name in entry.node_items else rule
                self.estimates["given tokens" if node.name in entry.node_tokens else counted] += 1
        self.estimates["given"] += given
        if given < len(times) and (unknown := [name for name in times if not self._is_node(name, graph)]):
            name = unknown[0]
            text = f"node_execution_times names {name!r}, which is not a node of workflow {graph.name!r}: ignored"
            self.warnings[text] = self.warnings.get(text, 0) + 1


def time_us(given: Any) -> tuple[str, int]:
    """What kind of time this is, and which, in microseconds."""
    when = given
    try:
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if isinstance(when, date):  # as YAML reads an unquoted one
            when = when if isinstance(when, datetime) else datetime.combine(when, time())
            aware = when.tzinfo is not None
            stamp = (when - (_EPOCH_UTC if aware else _EPOCH)) // _MICROSECOND
            return "a time with zone" if aware else "a time without zone", stamp
        if isinstance(when, int | float) and not isinstance(when, bool) and abs(when) < 1e12:
            whole = int(when)  # a large number of seconds has no room for microseconds
            return "a number of seconds", 10**6 * whole + round(1e6 * (when - whole))
    except ValueError:
        pass
    raise EntryFault("timestamp", f"{given!r} is not an ISO 8601 time or a number of seconds")


def _name_of(raw: Any) -> _Name:
    """The names in a request that could not be read."""
    try:
        return (
            msgspec.json.decode(raw, type=_Name)
            if isinstance(raw, bytes | msgspec.Raw)
            else msgspec.convert(raw, _Name)
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Name()
