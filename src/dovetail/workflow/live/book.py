"""The book of runs: requests, outputs of nodes and how runs ended, on disk before anything is made of them.

A run stands here before it arrives, and the outputs of a node before the journal says that it has finished: a process
that is killed in between runs that node once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.events import Grew
from dovetail.core.service.store import Store
from dovetail.workflow.live.runs import Blame, NodeStatus, RunState, UnknownRunError
from dovetail.workflow.live.value_files import ValueFiles
from dovetail.workflow.live.values import MIB
from dovetail.workflow.live.wire import unpack

LARGE = MIB  # bytes of which somebody else should not have to wait for the writing
_RUN, _INPUT, _OUTPUT = "run", "input", "output"


class RunRecord(Struct, kw_only=True, omit_defaults=True):
    """A request as it was accepted. `digest` tells its content, `sizes` and `facts` are those of its arrival, `shape`
    tells the nodes of its workflow; with a `wish` it is to be ended for that reason, as cancelled or failed."""

    id: str
    number: int
    workflow: str
    tenant: str = ""
    weight: float = 1.0
    due_s: float | None = None
    key: str | None = None
    digest: str = ""
    stream: bool = False
    options: dict[str, Any] = {}
    trace_id: str = ""
    created: float
    arrived_s: float
    sizes: tuple[float, ...] = ()
    facts: dict[str, Any] = {}
    shape: str = ""
    wish: tuple[Literal["cancelled", "failed"], str] | None = None
    bytes: int = 0


class NodeOutput(Struct, kw_only=True, omit_defaults=True):
    """What a node gave: values by name, packed, here or in a `file`, and how many bytes of it are `elsewhere`; what
    that added to its run; the `seq`-th of it to come."""

    seq: int
    data: bytes
    file: str = ""
    elsewhere: int = 0
    grew: Grew | None = None
    read: int | None = None
    written: int | None = None
    finish_reason: str = ""

    @property
    def size(self) -> int:
        return len(self.data) + self.elsewhere

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = unpack(self.data)
        return values


class RunEnd(Struct, kw_only=True, omit_defaults=True):
    """How a run ended, with all that is told of it then."""

    state: RunState
    ended_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    nodes: dict[str, NodeStatus] = {}
    error: str = ""
    blame: Blame | None = None
    segment: int = 0
    bytes: int = 0


class PackedInput(Struct, omit_defaults=True):
    """What a request brings along, here or in a file."""

    data: bytes
    file: str = ""


class RunBook:
    """All runs that are known, by id; those that have ended are forgotten after a while. Any thread may ask."""

    def __init__(self, path: Path, synchronous: Literal["full", "normal"] = "normal") -> None:
        self.store = Store(path, synchronous)
        self._files = ValueFiles(path.with_name("values"), sync=synchronous == "full")
        self._lock = threading.Lock()
        self.records: dict[str, RunRecord] = {}
        self.ends: dict[str, RunEnd] = {}  # in the order of ending
        self._keys: dict[tuple[str, str], str] = {}
        self._outputs: dict[str, dict[str, int]] = {}  # of open runs: nodes that have given something, and its bytes
        self._kept_bytes = 0
        self.next_seq = 0  # greater than that of all outputs of open runs
        found = sorted(self.store.things(_RUN, RunRecord, RunEnd), key=lambda thing: thing[1].number)
        for run, record, _ in found:
            self._enter(run, record)
        for run, _, end in sorted((t for t in found if t[2] is not None), key=lambda thing: thing[2].ended_s):
            self.ends[run] = end
            self._kept_bytes += end.bytes
        self._files.keep_only(self.records)
        self._number = max((record.number for record in self.records.values()), default=0)
        for run in self.open():
            self._outputs[run] = self._stored_outputs(run)

    def _enter(self, run: str, record: RunRecord) -> None:
        self.records[run] = record
        if record.key is not None:
            self._keys[record.tenant, record.key] = run

    # --- requests ---------------------------------------------------------------------------------------

    def record(self, run: str) -> RunRecord:
        found = self.records.get(run)
        if found is None:
            raise UnknownRunError(f"there is no run {run!r}, or it ended long ago and was forgotten")
        return found

    def with_key(self, tenant: str, key: str) -> RunRecord | None:
        """The run that was asked for with this idempotency key."""
        run = self._keys.get((tenant, key))
        return None if run is None else self.records[run]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def set_aside(self, run: str, packed: bytes) -> PackedInput:
        """What a request brings along, as it is kept: written already, if it is large."""
        return PackedInput(b"", self._files.write(run, packed)) if len(packed) > LARGE else PackedInput(packed)

    def drop_aside(self, given: PackedInput) -> None:
        """Its request was not taken."""
        if given.file:
            self._files.drop(given.file)

    def add(self, record: RunRecord, given: PackedInput) -> None:
        """Keep a request: it is accepted when this returns."""
        with self.store.together():
            self.store.put(_RUN, record.id, record)
            self.store.put(_INPUT, record.id, given)
        with self._lock:
            self._enter(record.id, record)
            self._outputs[record.id] = {}

    def change(self, record: RunRecord) -> None:
        self.store.put(_RUN, record.id, record)

    def input(self, run: str) -> dict[str, Any]:
        found = self.store.find(_INPUT, run, PackedInput)
        if found is None:
            return {}
        values: dict[str, Any] = unpack(self._files.read(found.file) if found.file else found.data)
        return values

    # --- what comes of them -----------------------------------------------------------------------------

    def open(self) -> list[str]:
        """The runs that have not ended, in the order in which they came."""
        with self._lock:
            return [run for run in self.records if run not in self.ends]

    def keep(self, outputs: Mapping[tuple[str, str], NodeOutput], ends: Mapping[str, RunEnd]) -> None:
        """Outputs of nodes, and ends of runs: all of it, or nothing."""
        if not outputs and not ends:
            return
        kept: dict[tuple[str, str], NodeOutput] = {}
        try:
            for key, output in outputs.items():
                kept[key] = self._aside(key[0], output)
            with self.store.together():
                for (run, node), output in kept.items():
                    self.store.put(_OUTPUT, _name(run, node), output)
                for run, end in ends.items():
                    self.store.note(_RUN, run, end)
        except Exception:  # it will be tried again, with other files
            for output in kept.values():
                if output.file:
                    self._files.drop(output.file)
            raise
        with self._lock:
            for (run, node), output in kept.items():
                self._outputs.setdefault(run, {})[node] = output.size
            for run, end in ends.items():
                self.ends[run] = end
                self._kept_bytes += end.bytes
                self._outputs.pop(run, None)

    def _aside(self, run: str, output: NodeOutput) -> NodeOutput:
        """With what is large in a file."""
        size = len(output.data)
        if size <= LARGE:
            return output
        return replace(output, data=b"", file=self._files.write(run, output.data), elsewhere=output.elsewhere + size)

    def reopen(self, run: str) -> None:
        """An end that the journal does not know has not been."""
        self.store.note(_RUN, run, None)
        with self._lock:
            end = self.ends.pop(run)
            self._kept_bytes -= end.bytes
            self._outputs[run] = self._stored_outputs(run)

    def forget_outputs(self, run: str, nodes: Iterable[str]) -> None:
        """Outputs of nodes that have not finished as far as the journal knows: they will come again."""
        with self.store.together():
            for node in nodes:
                self.store.drop(_OUTPUT, _name(run, node))
                self._outputs[run].pop(node, None)

    def bytes_of(self, run: str) -> int:
        """What the outputs of an open run take."""
        return sum(self._outputs.get(run, {}).values())

    def done(self, run: str) -> list[str]:
        """The nodes of an open run whose outputs are kept."""
        return list(self._outputs.get(run, ()))

    def output(self, run: str, node: str) -> NodeOutput | None:
        found = self.store.find(_OUTPUT, _name(run, node), NodeOutput)
        if found is None or not found.file:
            return found
        data = self._files.read(found.file)
        return replace(found, data=data, file="", elsewhere=found.elsewhere - len(data))

    def outputs(self, run: str) -> dict[str, NodeOutput]:
        """What the nodes of a run have given, in the order in which it came."""
        end = self.ends.get(run)
        nodes = (
            self.done(run) if end is None else [name for name, node in end.nodes.items() if node.state == "completed"]
        )
        found = [(node, output) for node in nodes if (output := self.output(run, node)) is not None]
        return dict(sorted(found, key=lambda pair: pair[1].seq))

    def _stored_outputs(self, run: str) -> dict[str, int]:
        found = {}
        for name, output in self.store.under(_OUTPUT, f"{run}/", NodeOutput):
            found[name.partition("/")[2]] = output.size
            self.next_seq = max(self.next_seq, output.seq + 1)
        return found

    # --- the end ----------------------------------------------------------------------------------------

    def tidy(self, now_s: float, keep_runs: int, keep_mib: float, keep_s: float) -> int:
        """Forget ended runs, the oldest first, beyond what is to be kept; gives how many."""
        with self._lock:
            gone: list[str] = []
            left, size = len(self.ends), self._kept_bytes
            for run, end in self.ends.items():
                if left <= keep_runs and size <= keep_mib * MIB and now_s - end.ended_s <= keep_s:
                    break
                gone.append(run)
                left, size = left - 1, size - end.bytes
        for run in gone:
            self._forget(run)
        return len(gone)

    def _forget(self, run: str) -> None:
        with self._lock:
            end, record = self.ends.pop(run), self.records.pop(run)
            self._kept_bytes -= end.bytes
            self._outputs.pop(run, None)
            if record.key is not None:
                self._keys.pop((record.tenant, record.key), None)
        with self.store.together():
            for node in end.nodes:
                self.store.drop(_OUTPUT, _name(run, node))
            self.store.drop(_INPUT, run)
            self.store.drop(_RUN, run)
        self._files.forget(run)

    def close(self) -> None:
        self.store.close()


def _name(run: str, node: str) -> str:
    return f"{run}/{node}"
