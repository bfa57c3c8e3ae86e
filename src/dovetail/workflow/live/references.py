"""Values that stay in an engine's object store: brought when somebody looks at them, let go when their run is."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from dovetail.workflow.live.protocol import BackEndError, Engine, Reference
from dovetail.workflow.live.values import inside

_PATIENCE_S = 60.0
Brought = Mapping[Reference, Any]  # values that were fetched, or the errors that came in their place
NOTHING: Brought = {}


class ElsewhereError(Exception):
    """A value is needed that stays elsewhere: whoever asked fetches it, while nobody waits, and asks again with it."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(f"{reference} is not here")
        self.reference = reference


def found_in(brought: Brought, reference: Reference) -> Any:
    if reference not in brought:
        raise ElsewhereError(reference)
    value = brought[reference]
    if isinstance(value, BackEndError):
        raise value
    return value


def references_in(values: Any) -> Iterator[Reference]:
    return (part for part in inside(values) if isinstance(part, Reference))


class EngineReferences:
    """The values of runs that an engine keeps."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._held: dict[str, list[Reference]] = {}

    def bring(self, reference: Reference, brought: Brought) -> Brought:
        """This value too, here."""
        try:
            return {**brought, reference: self.fetch(reference)}
        except BackEndError as error:
            return {**brought, reference: error}

    def fetch(self, reference: Reference) -> Any:
        """The value, here."""
        come: SimpleQueue[Any] = SimpleQueue()
        self._engine.fetch(reference, come.put)
        try:
            value = come.get(timeout=_PATIENCE_S)
        except Empty:
            raise BackEndError(f"{reference} did not come within {_PATIENCE_S:g} s") from None
        if isinstance(value, BackEndError):
            raise value
        return value

    def hold(self, run: str, references: Iterable[Reference]) -> None:
        if found := list(references):
            with self._lock:
                self._held.setdefault(run, []).extend(found)

    def let_go(self, known: Container[str]) -> None:
        """Nobody needs the values of runs that are not known any more."""
        with self._lock:
            gone = [run for run in self._held if run not in known]
            references = [reference for run in gone for reference in self._held.pop(run)]
        if references:
            self._engine.drop(references)
