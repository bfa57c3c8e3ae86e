"""WfCommons instances (WfFormat 1.0 to 1.6) as a configuration and requests: recorded workflows with recorded times.

A task becomes a node, what it runs (its category, else its program, else its name without a number) becomes the model.
A program is not a model of many gigabytes: unless `switch_s` says otherwise, changing it costs next to nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document, Key
from dovetail.workflow.choices import check_choice
from dovetail.workflow.inputs.importers.common import Imported, Names, as_paths, find_cycle, request
from dovetail.workflow.inputs.system import MOST

Width = Literal["one", "cores"]
Kind = tuple[str, int]  # what a task runs, and on how many GPUs
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6")
LEAST_S = 0.001  # for tasks that were shorter than the clock that timed them could tell
_NUMBER = re.compile(r"[_.#:-]*(ID)?\d+$")


class _Command(Struct):
    program: str | None = None


class _Task(Struct):
    """What a task is (1.5: `specification.tasks`) and how it ran (1.5: `execution.tasks`; before: the same entry)."""

    name: str = ""
    id: str = ""
    parents: list[str] | None = None
    children: list[str] | None = None
    category: str | None = None
    command: _Command | None = None
    runtime_s: float | None = field(default=None, name="runtimeInSeconds")
    runtime: float | None = None  # its name before 1.4
    memory_bytes: float | None = field(default=None, name="memoryInBytes")
    cores: float | None = None
    core_count: float | None = field(default=None, name="coreCount")


def import_wfcommons(
    paths: Sequence[str | os.PathLike[str]], *, width: Width = "one", switch_s: float = 0.0
) -> Imported:
    """Read instances: one workflow and one request each; equal programs of several files are one model.

    A node takes one GPU, or with `width="cores"` as many as its task had cores. `switch_s` is the time to get a program
    ready, on an empty GPU or in the place of another.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.json"
    >>> _ = file.write_text('''{"schemaVersion": "1.4", "workflow": {"tasks": [
    ...     {"name": "split_ID1", "category": "split", "runtimeInSeconds": 2.5},
    ...     {"name": "merge_ID2", "parents": ["split_ID1"], "runtimeInSeconds": 4}]}}''')
    >>> found = import_wfcommons([file])
    >>> [(node["id"], node["model"]) for node in found.config["workflows"]["two"]["nodes"]]
    [('split_ID1', 'split'), ('merge_ID2', 'merge')]
    >>> found.requests[0]["node_execution_times"]
    {'split_ID1': 2.5, 'merge_ID2': 4.0}
    """
    check_choice("width", width, Width)
    if not (isinstance(switch_s, int | float) and switch_s >= 0 and math.isfinite(switch_s)):
        raise InputError(f"switch_s: expected a number >= 0, found {switch_s}")
    files = [_Instance(path, width) for path in as_paths(paths)]
    names, models = _models(files, switch_s)
    workflows = Names()
    result = Imported({"models": models, "workflows": {}, "costs": {"overhead_s": switch_s}})
    for number, file in enumerate(files, start=1):
        name = workflows.of(number, file.path.stem)
        result.config["workflows"][name] = file.workflow(names)
        result.requests.append(request(number, name, f"run {file.path.stem}", file.times()))
        result.notes += file.notes
    return result


class _Instance:
    """One file: its tasks under unique names, with their order."""

    def __init__(self, path: Path, width: Width) -> None:
        self.path = path
        self.doc = Document.read(path)
        self.notes: list[str] = []
        self._read()
        self.edges = self._edges()
        ring = find_cycle(self.tasks, self.edges)
        if ring:
            at = self._at[ring[-1]]
            raise self.doc.error(at, f"task {ring[-1]!r} waits for itself: {' -> '.join(ring)}")
        self._check()
        self.kinds = {name: (_kind(task), _width(task, width)) for name, task in self.tasks.items()}

    def _read(self) -> None:
        data = self.doc.data
        version = data.get("schemaVersion") if isinstance(data, dict) else None
        if version not in VERSIONS:
            keys = ("schemaVersion",) if version is not None else ()
            expected = f"expected a WfCommons instance of schemaVersion {', '.join(VERSIONS)}"
            raise self.doc.error(keys, f"{expected}, found {version!r}")
        flat = version < "1.5"
        older = flat and isinstance(data.get("workflow"), dict) and "jobs" in data["workflow"]
        at = ("workflow", "jobs" if older else "tasks") if flat else ("workflow", "specification", "tasks")
        tasks = self._list(*at)
        if not tasks:
            raise self.doc.error(("workflow",), "expected at least one task")
        read = [self.doc.convert(raw, _Task, (*at, i)) for i, raw in enumerate(tasks)]
        for task in read:
            task.runtime_s = task.runtime if task.runtime_s is None else task.runtime_s
        names = self._unique(read, at)
        self.tasks = dict(zip(names, read, strict=True))
        self._at = {name: (*at, i) for i, name in enumerate(names)}
        self._ran = dict(self._at)  # where a task's figures stand
        self._known = self._references(names, read)
        if not flat and "execution" in data["workflow"]:
            self._add_execution()

    def _list(self, *keys: str) -> list[Any]:
        found: Any = self.doc.data
        for i, key in enumerate(keys):
            if not isinstance(found, dict) or key not in found:
                raise self.doc.error(keys[:i], f"missing key {key!r}")
            found = found[key]
        if not isinstance(found, list):
            raise self.doc.error(keys, f"expected a list, found {type(found).__name__}")
        return found

    def _unique(self, tasks: Sequence[_Task], at: Sequence[Key]) -> list[str]:
        """Names for nodes: ids if they tell the tasks apart, else names, else both together."""
        ids, names = [task.id for task in tasks], [task.name for task in tasks]
        both = ["_".join(filter(None, (task.name, task.id))) for task in tasks]
        for candidates in (ids, names, both):
            if all(candidates) and len(set(candidates)) == len(tasks):
                return candidates
        first: dict[str, int] = {}
        for i, (one, task) in enumerate(zip(both, tasks, strict=True)):
            if not one:
                raise self.doc.error((*at, i), "expected an id or a name, found neither")
            if one in first:
                raise self.doc.error((*at, i), f"task {task.id or task.name!r} is defined twice, first as {first[one]}")
            first[one] = i
        return both

    @staticmethod
    def _references(names: Sequence[str], tasks: Sequence[_Task]) -> dict[str, list[str]]:
        """What other tasks may call a task: its id, or its name (as those before 1.5 do)."""
        by_id: dict[str, list[str]] = {}
        by_name: dict[str, list[str]] = {}
        for name, task in zip(names, tasks, strict=True):
            by_id.setdefault(task.id, []).append(name)
            by_name.setdefault(task.name, []).append(name)
        unique = {key: found for key, found in by_id.items() if len(found) == 1}
        return by_id | by_name | unique

    def _resolve(self, reference: str, keys: Sequence[Key]) -> str:
        found = self._known.get(reference, [])
        if len(found) == 1:
            return found[0]
        problem = f"{len(found)} tasks are called so" if found else "there is no such task"
        raise self.doc.error(keys, f"{reference!r}: {problem}")

    def _add_execution(self) -> None:
        at = ("workflow", "execution", "tasks")
        seen: set[str] = set()
        for i, raw in enumerate(self._list(*at)):
            ran = self.doc.convert(raw, _Task, (*at, i))
            name = self._resolve(ran.id, (*at, i, "id"))
            if name in seen:
                raise self.doc.error((*at, i, "id"), f"task {ran.id!r} is listed twice")
            seen.add(name)
            task = self.tasks[name]
            task.command, task.runtime_s = ran.command, ran.runtime_s
            task.memory_bytes, task.cores = ran.memory_bytes, ran.core_count
            self._ran[name] = (*at, i)

    def _edges(self) -> list[tuple[str, str]]:
        """Order from parents or children, whichever the file gives; if it gives both, they must agree."""
        down: dict[tuple[str, str], tuple[Key, ...]] = {}
        up: dict[tuple[str, str], tuple[Key, ...]] = {}
        for name, task in self.tasks.items():
            for i, reference in enumerate(task.parents or ()):
                keys = (*self._at[name], "parents", i)
                up[self._resolve(reference, keys), name] = keys
            for i, reference in enumerate(task.children or ()):
                keys = (*self._at[name], "children", i)
                down[name, self._resolve(reference, keys)] = keys
        for (parent, child), keys in up.items() if down else ():
            if (parent, child) not in down and self.tasks[parent].children is not None:
                raise self.doc.error(keys, f"task {child!r} has parent {parent!r}, which does not list it as a child")
        for (parent, child), keys in down.items() if up else ():
            if (parent, child) not in up and self.tasks[child].parents is not None:
                raise self.doc.error(keys, f"task {parent!r} has child {child!r}, which does not list it as a parent")
        return list(up | down)

    def _check(self) -> None:
        short = missing = 0
        for name, task in self.tasks.items():
            runtime = "runtimeInSeconds" if task.runtime is None else "runtime"
            for key, value, most in (
                (runtime, task.runtime_s, MOST),
                ("memoryInBytes", task.memory_bytes, MOST * 2**30),
                ("cores", task.cores, MOST),
            ):
                if value is not None and not 0 <= value <= most:
                    expected = f"expected a number from 0 to {most:g}"
                    raise self.doc.error((*self._ran[name], key), f"task {name!r}: {expected}, found {value}")
            if task.runtime_s is None:
                missing += 1
            elif task.runtime_s < LEAST_S:
                short += 1
                task.runtime_s = LEAST_S
        if short:
            self.notes.append(f"{self.path}: {short} of {len(self.tasks)} tasks ran for less than 1 ms: taken as 1 ms")
        if missing:
            self.notes.append(f"{self.path}: {missing} of {len(self.tasks)} tasks have no runtime: estimated")

    def times(self) -> dict[str, float]:
        return {name: task.runtime_s for name, task in self.tasks.items() if task.runtime_s is not None}

    def workflow(self, models: Mapping[Kind, str]) -> dict[str, Any]:
        nodes = []
        before: dict[str, list[str]] = {name: [] for name in self.tasks}
        for source, target in self.edges:
            before[target].append(source)
        for name in self.tasks:
            inputs = before[name] or ["user_prompt"]
            nodes.append({"id": name, "model": models[self.kinds[name]], "inputs": inputs, "outputs": [name]})
        edges = [{"from": source, "to": target} for source, target in self.edges]
        title = self.doc.data.get("name")
        return {"name": title if isinstance(title, str) else self.path.stem, "nodes": nodes, "edges": edges}


def _kind(task: _Task) -> str:
    """What a task runs. A program that is a whole script (it has spaces) names nothing."""
    program = task.command.program if task.command else None
    if task.category:
        return task.category
    if program and not re.search(r"\s", program):
        return program.rsplit("/", 1)[-1]
    return _NUMBER.sub("", task.name or task.id) or task.name or task.id


def _width(task: _Task, width: Width) -> int:
    return max(1, math.ceil(task.cores)) if width == "cores" and task.cores is not None else 1


def _models(files: Sequence[_Instance], switch_s: float) -> tuple[dict[Kind, str], dict[str, Any]]:
    """A model per kind of task and width, and their names: `blastall`, and `blastall_x4` where it takes four GPUs."""
    groups: dict[Kind, list[_Task]] = {}
    for file in files:
        for name, task in file.tasks.items():
            groups.setdefault(file.kinds[name], []).append(task)
    names: dict[Kind, str] = {}
    made: dict[str, Any] = {}
    for (kind, width), tasks in groups.items():
        name = kind if width == 1 else f"{kind}_x{width}"
        while name in made:
            name += "_"
        names[kind, width] = name
        times = [task.runtime_s for task in tasks if task.runtime_s is not None]
        made[name] = {
            "name": kind,
            "type": "task",
            "memory_gb": max(task.memory_bytes or 0.0 for task in tasks) / 2**30,
            "gpus_required": width,
            "load_time_seconds": switch_s,
        }
        if times:
            made[name] |= {"inference_time_mean": fmean(times), "inference_time_std": pstdev(times)}
    return names, made
