"""The book of runs, held to a plain model of it: whatever is done, what is read back is what was kept."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dovetail.core.service.store import Store, StoreError
from dovetail.workflow.live.book import NodeOutput, PackedInput, RunBook, RunEnd, RunRecord
from dovetail.workflow.live.runs import NodeStatus, UnknownRunError
from dovetail.workflow.live.value_files import ValueFiles
from dovetail.workflow.live.wire import pack

NODES = st.sampled_from(["a", "b", "b#2"])
VALUES = st.dictionaries(st.text(max_size=5), st.binary(max_size=40) | st.text(max_size=40) | st.integers(0, 9))


class BookMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("dovetail.workflow.live.book.LARGE", 30)  # larger values have a file of their own
        self.folder = Path(tempfile.mkdtemp(prefix="book"))
        self.book = RunBook(self.folder / "runs.db")
        self.open: dict[str, dict[str, dict[str, Any]]] = {}
        self.ended: dict[str, dict[str, dict[str, Any]]] = {}  # in the order of ending
        self.inputs: dict[str, dict[str, Any]] = {}
        self.now = 0.0

    def teardown(self) -> None:
        self.book.close()
        self.patch.undo()
        shutil.rmtree(self.folder)

    @rule(given=VALUES, with_key=st.booleans())
    def add(self, given: dict[str, Any], with_key: bool) -> None:
        number = self.book.next_number()
        run = f"r{number}"
        key = f"k{number}" if with_key else None
        packed = pack(given)
        record = RunRecord(id=run, number=number, workflow="w", key=key, created=0, arrived_s=0, bytes=len(packed))
        self.book.add(record, self.book.set_aside(run, packed))
        self.open[run], self.inputs[run] = {}, given

    @precondition(lambda self: self.open)
    @rule(data=st.data(), node=NODES, values=VALUES)
    def keep(self, data: st.DataObject, node: str, values: dict[str, Any]) -> None:
        run = data.draw(st.sampled_from(sorted(self.open)))
        self.book.next_seq += 1
        self.book.keep({(run, node): NodeOutput(seq=self.book.next_seq, data=pack(values))}, {})
        self.open[run].pop(node, None)
        self.open[run][node] = values

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.open)))
        self.now += 1
        nodes = {node: NodeStatus(model="m", state="completed") for node in self.open[run]}
        size = self.book.records[run].bytes + self.book.bytes_of(run)
        self.book.keep({}, {run: RunEnd(state="completed", ended_s=self.now, nodes=nodes, bytes=size)})
        self.ended[run] = self.open.pop(run)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.ended)))
        self.book.reopen(run)
        self.open[run] = self.ended.pop(run)

    @precondition(lambda self: any(self.open.values()))
    @rule(data=st.data())
    def forget_output(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(run for run, nodes in self.open.items() if nodes)))
        node = data.draw(st.sampled_from(sorted(self.open[run])))
        self.book.forget_outputs(run, [node])
        del self.open[run][node]

    @rule(most=st.integers(1, 4))
    def tidy(self, most: int) -> None:
        gone = list(self.ended)[: max(len(self.ended) - most, 0)]
        assert self.book.tidy(self.now, most, 1024.0, 1e9) == len(gone)
        for run in gone:
            del self.ended[run], self.inputs[run]

    @rule()
    def restart(self) -> None:
        self.book.close()
        self.book = RunBook(self.folder / "runs.db")

    @invariant()
    def files_are_of_runs_that_are_known(self) -> None:
        folders = list((self.folder / "values").glob("*"))
        assert len(folders) <= len(self.open) + len(self.ended)

    @invariant()
    def what_is_kept_is_read(self) -> None:
        assert self.book.open() == sorted(self.open, key=lambda run: int(run[1:]))
        assert list(self.book.ends) == list(self.ended)
        for run, given in self.inputs.items():
            assert self.book.input(run) == given
        for run, outputs in (self.open | self.ended).items():
            assert {node: output.values for node, output in self.book.outputs(run).items()} == outputs
            assert list(self.book.outputs(run)) == list(outputs)
            record = self.book.record(run)
            assert record.key is None or self.book.with_key("", record.key) is record


BookMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestBook = BookMachine.TestCase


def test_bytes_and_age_bound_what_is_kept(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "runs.db")
    for i in range(4):
        record = RunRecord(id=f"r{i}", number=i, workflow="w", key="k" if i == 0 else None, created=0, arrived_s=0)
        book.add(record, PackedInput(b""))
        book.keep({}, {f"r{i}": RunEnd(state="failed", ended_s=float(i), bytes=1 << 20)})
    assert book.tidy(4.0, 10, 2.5, 1e9) == 2
    assert list(book.ends) == ["r2", "r3"]
    assert book.with_key("", "k") is None
    assert book.tidy(4.0, 10, 10.0, 1.5) == 1
    with pytest.raises(UnknownRunError, match="'r2'"):
        book.record("r2")
    book.close()


@pytest.mark.parametrize("fault", ["second file", "store"])
def test_what_could_not_be_kept_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    book, write = RunBook(tmp_path / "runs.db"), ValueFiles.write
    book.add(RunRecord(id="r", number=1, workflow="w", created=0, arrived_s=0), PackedInput(b""))
    outputs = {("r", node): NodeOutput(seq=i, data=b"x" * (2 << 20)) for i, node in enumerate("ab")}
    written: list[str] = []

    def full(files: ValueFiles, run: str, data: bytes) -> str:
        if written and fault == "second file":
            raise StoreError("the disk is full")
        written.append(write(files, run, data))
        return written[-1]

    def nothing_goes_in(*thing: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ValueFiles, "write", full)
        if fault == "store":
            patch.setattr(Store, "put", nothing_goes_in)
        with pytest.raises(StoreError, match="the disk is full"):
            book.keep(outputs, {})
    assert written
    assert not any(path.is_file() for path in (tmp_path / "values").rglob("*"))
    book.keep(outputs, {})
    assert list(book.outputs("r")) == ["a", "b"]
    book.close()


def test_a_disk_that_lets_nothing_be_written_nor_go_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*path: Any, **more: Any) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, read_only)
    with pytest.raises(StoreError, match="cannot keep a value: Read-only file system"):
        ValueFiles(tmp_path / "values").write("r", b"x")


def test_a_file_s_name_is_on_the_disk_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    values = tmp_path.resolve() / "values"
    name = ValueFiles(values, sync=True).write("r", b"x")
    assert synced == [values / name, (values / name).parent, values, values.parent]
