"""The cells of a sweep on the nodes of a Ray cluster: Ray carries them, and repeats those whose node has died.

What a cell is given and gives back is pickled, as it is for a local process. A cell that fails by itself is not
repeated: its error comes back as an answer.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, cannot_write
from dovetail.core.service.ray_messages import CellEnded, NodesChanged, RunCell
from dovetail.core.service.ray_processes import RayChange, RayDown, RayProcesses, RayUp
from dovetail.core.service.ray_start import RayNode, import_ray
from dovetail.version import __version__

Cell = TypeVar("Cell")
Result = TypeVar("Result")
_AWAY_S = 120.0  # how long a cluster may be away before a sweep gives up


class CellErrand(Struct, frozen=True):
    """What a node is sent: a pickled function with its cell, and where it was asked for."""

    call: bytes
    version: str
    folder: str
    path: tuple[str, ...]
    probes: tuple[str, ...]  # files that a node sees if it has the same folders


class CellAnswer(Struct, frozen=True):
    """A pickled result or error, and what was printed meanwhile."""

    value: bytes
    failed: bool = False
    out: str = ""
    err: str = ""


def run_on_ray(
    function: Callable[[Cell], Result],
    cells: Sequence[Cell],
    most: int | None,
    progress: Callable[[int], None],
    address: str | None,
    shared: Sequence[Path] = (),
) -> list[Result]:
    """Apply a function to every cell, on the nodes of a cluster or on a private one of this machine, `most` at a time.
    `shared` are folders that the cells write to."""
    if not cells:
        return []
    pickled = import_ray("the ray engine").cloudpickle.dumps  # also what a user's script defines
    with _probes(shared) as probes:
        path = tuple(os.path.abspath(place) for place in sys.path)
        errands = [CellErrand(pickled((function, cell)), __version__, str(Path.cwd()), path, probes) for cell in cells]
        told: SimpleQueue[RayChange] = SimpleQueue()
        ray = RayProcesses(address, told.put)
        try:
            if not any(node.resources.get("CPU") for node in ray.nodes):
                raise InputError(f"no node of the Ray cluster at {ray.gcs} has a CPU for a run")
            return _Course(ray, errands, most or len(cells), progress).run(told)
        finally:
            ray.close()


class _Course:
    """The cells that wait, run and have ended, while nodes come and go."""

    def __init__(
        self, ray: RayProcesses, errands: Sequence[CellErrand], most: int, progress: Callable[[int], None]
    ) -> None:
        self._ray, self._errands, self._most, self._progress = ray, errands, most, progress
        self._nodes = ray.nodes
        self._waiting = deque(range(len(errands)))
        self._running: set[int] = set()
        self._results: dict[int, Any] = {}
        self._away = ""

    def run(self, told: SimpleQueue[RayChange]) -> list[Any]:
        while len(self._results) < len(self._errands):
            while self._waiting and len(self._running) < self._most and not self._away:
                i = self._waiting.popleft()
                self._running.add(i)
                self._ray.run(RunCell(i, msgspec.msgpack.encode(self._errands[i])))
            try:
                self._take(told.get(timeout=_AWAY_S if self._away else None))
            except Empty:
                raise DovetailError(f"the Ray cluster is gone: {self._away}") from None
        return [self._results[i] for i in range(len(self._errands))]

    def _take(self, change: RayChange) -> None:
        if isinstance(change, CellEnded):
            self._end(change)
        elif isinstance(change, NodesChanged):
            self._compare(change.nodes)
        elif isinstance(change, RayDown):
            _warn(f"the Ray cluster is away: {change.why}; its runs are repeated when it is back")
            self._away, self._nodes = change.why, ()
            self._waiting.extendleft(sorted(self._running, reverse=True))
            self._running.clear()
        elif isinstance(change, RayUp):
            self._away, self._nodes = "", change.nodes

    def _compare(self, nodes: tuple[RayNode, ...]) -> None:
        left = {node.id for node in nodes}
        for gone in (node for node in self._nodes if node.id not in left):
            _warn(f"node {gone.name} of the Ray cluster has gone; its runs are repeated on others")
        self._nodes = nodes

    def _end(self, change: CellEnded) -> None:
        if change.cell not in self._running:
            return
        if change.why:
            raise DovetailError(f"a run's process was ended from outside, again and again: {change.why}")
        answer = msgspec.msgpack.decode(change.answer, type=CellAnswer)
        sys.stdout.write(answer.out)
        sys.stderr.write(answer.err)
        value = pickle.loads(answer.value)
        if answer.failed:
            raise value
        self._running.discard(change.cell)
        self._results[change.cell] = value
        self._progress(len(self._results))


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@contextmanager
def _probes(shared: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """A file in each folder, by which a node sees that it has the same."""
    made: list[Path] = []
    try:
        for folder in dict.fromkeys(map(Path.absolute, shared)):
            probe = folder / f".dovetail-{uuid4().hex}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                probe.touch()
            except OSError as error:
                raise cannot_write(probe, error) from error
            made.append(probe)
        yield tuple(map(str, made))
    finally:
        for probe in made:
            with suppress(OSError):
                probe.unlink()


def work(argument: bytes) -> bytes:
    """On a node: do what was asked for, and say what came of it."""
    errand = msgspec.msgpack.decode(argument, type=CellErrand)
    out, err = io.StringIO(), io.StringIO()
    try:
        _settle(errand)
        function, cell = pickle.loads(errand.call)
        with redirect_stdout(out), redirect_stderr(err):
            answer, failed = pickle.dumps(function(cell)), False
    except Exception as error:
        answer, failed = _pickled(error), True
    return msgspec.msgpack.encode(CellAnswer(answer, failed, out.getvalue(), err.getvalue()))


def _settle(errand: CellErrand) -> None:
    """Be where it was asked for, with the same modules; refuse a node that has other ones, or other files."""
    here = f"node {socket.gethostname()} of the Ray cluster"
    if errand.version != __version__:
        raise DovetailError(f"{here} has dovetail {__version__}; expected {errand.version}, as on this machine")
    try:
        os.chdir(errand.folder)
    except OSError as error:
        raise DovetailError(f"{here} needs the folder {errand.folder} as this machine has it: {error}") from None
    for probe in map(Path, errand.probes):
        if not probe.exists():
            raise DovetailError(f"{here} needs the folder {probe.parent} as this machine has it: it is not the same")
    sys.path += [place for place in errand.path if place not in sys.path]


def _pickled(error: Exception) -> bytes:
    try:
        found = pickle.dumps(error)
        pickle.loads(found)
    except Exception:
        return pickle.dumps(DovetailError(f"{type(error).__name__}: {error}"))
    return found
