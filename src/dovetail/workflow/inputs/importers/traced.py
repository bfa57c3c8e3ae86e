"""What importers of traces share: requests that are read when they are asked for, and the models that they name."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

from dovetail.core.errors import InputError
from dovetail.workflow.choices import check_choice
from dovetail.workflow.inputs.importers.common import Names
from dovetail.workflow.inputs.importers.model_presets import GPU_TYPES, ModelChoice, serving
from dovetail.workflow.inputs.importers.trace_rows import RowFault, TraceRow
from dovetail.workflow.inputs.write import file_format, output_paths, write_config, write_requests

OnRowError = Literal["fail", "skip"]
_SHOWN = 5  # faulty rows that are told of one by one


class ImportedTrace:
    """A recorded trace as requests and the configuration that they need. The rows are read whenever the requests are
    gone through, and never held: `config`, `dropped` and `notes` tell of the last time."""

    def __init__(self, rows: Callable[[Collector], Iterator[dict[str, Any]]], model: Any, on_error: OnRowError) -> None:
        check_choice("on_error", on_error, OnRowError)
        ModelChoice(model)  # what is wrong with it shows before anything is read
        self._rows, self._model, self._on_error = rows, model, on_error
        self._found: Collector | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        found = Collector(ModelChoice(self._model), self._on_error)
        for request in self._rows(found):
            found.requests += 1
            yield request
        found.finish()
        self._found = found

    @property
    def requests(self) -> ImportedTrace:
        """The requests, to go through or to `load`."""
        return self

    def _read(self) -> Collector:
        if self._found is None:
            deque(self, maxlen=0)
        assert self._found is not None
        return self._found

    @property
    def config(self) -> dict[str, Any]:
        found = self._read()
        return {"models": found.models, "workflows": found.workflows, "gpu_types": GPU_TYPES}

    @property
    def dropped(self) -> dict[str, int]:
        """What was left out, and how many of it."""
        return self._read().dropped

    @property
    def notes(self) -> list[str]:
        return self._read().notes

    def counts(self) -> dict[str, int]:
        """What was found, in numbers."""
        found = self._read()
        nodes = sum(len(workflow["nodes"]) for workflow in found.workflows.values())
        counted = {"models": len(found.models), "workflows": len(found.workflows), "nodes": nodes}
        return counted | {"requests": found.requests}

    def __repr__(self) -> str:
        return f"<ImportedTrace {', '.join(f'{count:,} {what}' for what, count in self.counts().items())}>"

    def write(
        self, config: str | os.PathLike[str], requests: str | os.PathLike[str] | None = None, force: bool = False
    ) -> None:
        """Write the configuration and, where a file is named for them, the requests; over files that exist only with
        `force`."""
        out, rows = output_paths(config, requests, force)
        if rows is not None:
            write_requests(self, rows, file_format(rows))
        write_config(out, self.config)


class Collector:
    """What was met while a trace was read."""

    def __init__(self, choice: ModelChoice, on_error: OnRowError) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self.workflows: dict[str, dict[str, Any]] = {}
        self.dropped: dict[str, int] = {}
        self.notes: list[str] = []
        self.requests = 0
        self._choice, self._on_error = choice, on_error
        self._model_names, self._workflow_names = Names(), Names()
        self._called: dict[str, str] = {}  # plain names of the models by those of the trace
        self._asked: dict[str, list[int]] = {}  # of models: calls, tokens read and written, and how many have a prefix
        self._faulty = 0

    def model(self, name: str) -> str:
        """The plain name of a model that a trace calls so."""
        plain = self._called.get(name)
        if plain is None:
            plain = self._called[name] = self._model_names.of(name, name)
            self.models[plain] = self._choice.of(name, plain)
        return plain

    def call(self, model: str, read: int, wrote: int, prefix: bool = False) -> None:
        """Count a call of a model, by its plain name."""
        asked = self._asked.setdefault(model, [0, 0, 0, 0])
        for i, more in enumerate((1, read, wrote, prefix)):
            asked[i] += more

    def plain_model(self, name: str, entry: dict[str, Any]) -> str:
        """A model that the importer itself describes."""
        plain = self._model_names.of((name,), name)
        self.models.setdefault(plain, entry)
        return plain

    def workflow(self, key: Any, name: str, nodes: Callable[[], dict[str, Any]]) -> str:
        """The plain name of a workflow; what it looks like is asked on the first call only."""
        plain = self._workflow_names.of(key, name)
        if plain not in self.workflows:
            self.workflows[plain] = nodes()
        return plain

    def drop(self, what: str) -> None:
        self.dropped[what] = self.dropped.get(what, 0) + 1

    def faulty(self, row: TraceRow, fault: RowFault) -> None:
        """A row that cannot be read: the end of it all, or left out and told."""
        text = f"{row.place}: {fault}"
        if self._on_error == "fail":
            raise InputError(text)
        self._faulty += 1
        if self._faulty <= _SHOWN:
            self.notes.append(f"skipped: {text}")

    def finish(self) -> None:
        self._choice.finish(self._called)
        for name, plain in self._called.items():
            if plain in self._asked and self._choice.is_preset(name, plain):
                calls, read, wrote, prefixes = self._asked[plain]
                self.models[plain] |= serving(self.models[plain]["name"], calls, read, wrote, prefixes > 0)
        if self._faulty > _SHOWN:
            self.notes.append(f"skipped: {self._faulty} rows in all")
        if not self.requests:
            raise InputError("no requests were found: expected at least one row that can be read")
