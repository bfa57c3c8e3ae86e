"""How GSwarm read its files, faulty ones included: what `--compat gswarm` lets pass, and what it makes of it.

Unknown keys are ignored; a node that waits for a name that is not a node, or for itself along a cycle, or that fits
nowhere, waits for ever; a node without a time takes 10 s; time begins with the first request of the file; a request
whose id was used before has the times of the first with that id (and a name of its own, with its place in the file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from dovetail.core.events import Arrived
from dovetail.core.files.document import Source
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph, TaskGraphError
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.configuration import ConfigurationFile, SystemReader
from dovetail.workflow.inputs.fit import misfits
from dovetail.workflow.inputs.reading import Reading
from dovetail.workflow.inputs.request_entries import SAME_ID, EntryFault, EntryReader, RequestEntry
from dovetail.workflow.inputs.requests import JsonRequestDocument, RequestDocument, Requests
from dovetail.workflow.inputs.system import DEFAULT_NODE_S, Edge, Model, Node, System, Workflow


def read_gswarm_system(
    config: Source, on_error: OnError = "fail", cost_options: Mapping[str, Any] | None = None
) -> System:
    """A configuration as GSwarm read it; the first GPU of a window sets the price of a switch."""
    return _SystemReader(config, on_error).read({"window": "primary", **(cost_options or {})})


class _SystemReader(SystemReader):
    def tidy(self, data: dict[str, Any]) -> dict[str, Any]:
        for key in ("tenants", "sharing"):
            if data.get(key):
                raise self._doc.error((key,), "GSwarm knew no such thing: leave it out, or --compat gswarm")
        data = {key: value for key, value in data.items() if key in ConfigurationFile.__struct_fields__}
        if "gpus_over_time" in data:
            raise self._doc.error(("gpus_over_time",), "--compat gswarm knows no GPUs that come and go")
        for key, to in (("models", Model), ("workflows", Workflow)):
            if isinstance(data.get(key), dict):
                data[key] = {name: _known(item, to) for name, item in data[key].items()}
        self._refuse_growth(data.get("workflows"))
        models: Any = data.get("models")
        for name, model in models.items() if isinstance(models, dict) else ():
            if isinstance(model, dict) and "adapter_of" in model:
                raise self._doc.error(("models", name, "adapter_of"), "--compat gswarm knows no adapters")
            if isinstance(model, dict) and "max_concurrency" in model:
                message = "--compat gswarm runs one node on a GPU at a time"
                raise self._doc.error(("models", name, "max_concurrency"), message)
            if isinstance(model, dict) and isinstance(base := model.get("base_model"), str) and base not in models:
                del model["base_model"]
        return data

    def _refuse_growth(self, workflows: Any) -> None:
        for name, workflow in workflows.items() if isinstance(workflows, dict) else ():
            nodes = workflow.get("nodes") if isinstance(workflow, dict) else None
            for i, node in enumerate(nodes if isinstance(nodes, list) else ()):
                if isinstance(node, dict) and "then" in node:
                    keys = ("workflows", name, "nodes", i, "then")
                    raise self._doc.error(keys, "--compat gswarm knows no nodes that are added while a request runs")

    def settle(self, system: System, name: str) -> None:
        workflow = system.workflows[name]
        names, edges = {node.id: None for node in workflow.nodes}, workflow.edges
        lost = {edge.target: edge.source for edge in edges if edge.target in names and edge.source not in names}
        never = {target: f"waits for {source!r}, which is not a node" for target, source in lost.items()}
        workflow.edges = [edge for edge in edges if edge.source in names and edge.target in names]
        system.never[name] = never
        try:
            system.graph(name)
        except TaskGraphError as error:
            why = str(error).removeprefix(f"{name}: ")
            stuck = _stuck(workflow, names)
            never |= {node: f"waits for ever: {why}" for node in names if node in stuck}


_PARTS: dict[tuple[type[Struct], str], type[Struct]] = {(Workflow, "nodes"): Node, (Workflow, "edges"): Edge}


def _known(raw: Any, to: type[Struct]) -> Any:
    """Without the keys that it does not have; what is no mapping, or no list where one belongs, is left as it is."""
    if isinstance(raw, list):
        return [_known(item, to) for item in raw]
    if not isinstance(raw, dict):
        return raw
    known = {key: value for key, value in raw.items() if key in to.__struct_encode_fields__}
    return {key: _known(value, _PARTS[to, key]) if (to, key) in _PARTS else value for key, value in known.items()}


def _stuck(workflow: Workflow, names: Iterable[str]) -> set[str]:
    """The nodes on a cycle, and those behind one."""
    stuck = set(names)
    while free := stuck - {edge.target for edge in workflow.edges if edge.source in stuck}:
        stuck -= free
    return stuck


def let_wait(system: System, pool: Pool, config: Path) -> None:
    """What fits nowhere waits for ever."""
    for name, node, problem in misfits(system, pool):
        system.never.setdefault(name, {})[node.id] = problem


class _Entry(RequestEntry, forbid_unknown_fields=False):
    pass


class _File(RequestDocument, forbid_unknown_fields=False):
    pass


class _JsonFile(JsonRequestDocument, forbid_unknown_fields=False):
    pass


class _EntryReader(EntryReader):
    entry_type = _Entry
    above_s = -1e-300  # nothing at all was a time too

    def guess(self, model: str) -> tuple[float, str]:
        return DEFAULT_NODE_S, "default"

    def check_clock(self, kind: str, entry: RequestEntry) -> None:
        if self._online:
            super().check_clock(kind, entry)

    def facts(self, entry: RequestEntry) -> dict[str, Any]:
        if facts := super().facts(entry):
            key = next(iter(facts))
            raise EntryFault(
                key if key in RequestEntry.__struct_fields__ else f"node_{key}",
                "GSwarm knew no such thing: leave it out, or --compat gswarm",
            )
        return facts

    def check_names(self, entry: RequestEntry, graph: TaskGraph) -> None:
        pass

    def begin(self, suspects: frozenset[int] | None) -> None:
        super().begin(suspects)
        self._first: dict[str, Arrived] = {}  # of each id that may be used again
        self._numbered: set[str] = set()  # ids that may look like names that are made up
        self._made: set[str] = set()  # names that are made up
        self._taken: set[int] = set()  # which requests have such a name for an id
        self._collides: set[int] = set()  # which would be given a name that is an id

    def _is_double(self, name: str, i: int, count: bool) -> bool:
        if super()._is_double(name, i, count):
            self._doubles.add(i)
        if count and "#" in name:
            if name in self._made:
                self._taken.add(i)
                self._doubles.add(i)
            self._numbered.add(name)
        return False

    def arrival(
        self, decode: Callable[[Any], RequestEntry], raw: Any, i: int, line: int = 0, count: bool = True
    ) -> tuple[Arrived | None, int]:
        request, stamp = super().arrival(decode, raw, i, line, count)
        if request is None or request.fault:
            return request, stamp
        if i in self._taken:
            fault = EntryFault(
                "request_id", f"{request.job!r} is what another request is called whose id is used twice"
            )
            return self._faulty(fault, request.job, request.of, i, line, count), stamp
        if i not in self._doubles:
            if self._suspects is None or hash(request.job) in self._suspects:
                self._first[request.job] = request
            return request, stamp
        first = self._first.setdefault(request.job, request)  # that one may have been faulty
        if first.of != request.of:
            fault = EntryFault("request_id", f"{request.job!r} is used twice, and for {first.of!r} before")
            return self._faulty(fault, request.job, request.of, i, line, count), stamp
        facts, made = request.facts | {SAME_ID: request.job}, f"{request.job}#{i + 1}"
        if count and made in self._numbered:
            self._collides.add(i)
        if i in self._collides:
            fault = EntryFault("request_id", f"{request.job!r} is used twice, and {made!r}, as it is called here, too")
            name = made if self._on_error == "reject" else request.job
            return self._faulty(fault, name, request.of, i, line, count), stamp
        self._made.add(made)
        return structs.replace(request, job=made, sizes=first.sizes, facts=facts), stamp


class GswarmRequests(Requests):
    """Requests in the order of their file, whatever their times."""

    file_type, json_type, reader_type = _File, _JsonFile, _EntryReader

    def first_us(self, known: np.ndarray) -> int:
        return int(known[0])

    def order(self, when: np.ndarray) -> np.ndarray:
        return np.arange(len(when))


GSWARM = Reading(read_gswarm_system, let_wait, GswarmRequests)


def reading(compat: bool) -> Reading:
    """How files are read in a run."""
    return GSWARM if compat else Reading()
