"""The data of one request while it runs: what each node is called with, what it gave, and what that adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Grew
from dovetail.workflow.inputs.decisions import json_in
from dovetail.workflow.inputs.growth.rules import said_of
from dovetail.workflow.inputs.request_entries import RequestEntry
from dovetail.workflow.live.branches import THEN, Branches, is_fan_out
from dovetail.workflow.live.data_flow import DataFlow, NodeFlow
from dovetail.workflow.live.protocol import Reference
from dovetail.workflow.live.values import MIB, Fetch, ValueFaultError, fetched, size_of, text_of

MOST_MIB = 256.0  # of all values of one request
_ASKED = ("messages", "prompt", "text", "input")  # what back ends look for
_KINDS: dict[str, Any] = {"node_configs": Mapping, "node_execution_times": (int, float), "node_tokens": Mapping}
_KINDS |= {"outcomes": list}  # keys of a request among its options
_EXPECTED = {"node_configs": "options", "node_execution_times": "seconds", "outcomes": "a list"}
_EXPECTED |= {"node_tokens": "input and output"}
_MISSING = object()


class _Copy(NamedTuple):
    """Which of several copies an instance belongs to: those that this task's end has added."""

    of: str
    place: int
    copies: int
    outer: _Copy | None


class RunData:
    """What is known of one request's values. `size` estimates an instance of a node that is added; `fetch` brings
    values that stay in an object store. Not for several threads at once."""

    def __init__(
        self,
        job: str,
        flow: DataFlow,
        given: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        *,
        size: Callable[[RunData, str, str], float] = lambda data, instance, node: 1.0,
        fetch: Fetch | None = None,
        most_mib: float = MOST_MIB,
    ) -> None:
        self.flow, self.outputs = flow, dict[str, dict[str, Any]]()
        self.options = dict(options or {})
        self.asked: dict[str, int] = {}  # characters that nodes were asked with
        self._given = _complete(flow, given)
        self._check_options()
        self._branches = Branches(job, flow, lambda *names: size(self, *names), self.options.get("outcomes"))
        self._fetch, self._most = fetch, most_mib * MIB
        try:
            self._bytes = size_of(self._given)
        except ValueFaultError as error:
            raise InputError(f"input: {error}") from None
        if self._bytes > self._most:
            found = f"the request brings {self._bytes / MIB:.1f} MiB"
            raise InputError(f"workflow {flow.name!r}: {found}; expected at most {most_mib:g} MiB")
        names = [task.name for task in flow.graph.tasks]
        self._before = {name: [names[j] for j in flow.graph.after[i]] for i, name in enumerate(names)}
        self._order = {name: i for i, name in enumerate(names)}
        self._copy: dict[str, _Copy | None] = {}

    # --- what goes in -----------------------------------------------------------------------------

    def call(self, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and options of a node's call."""
        flow = self.flow.node_of(task)
        names = self._all_names(task) if flow.inputs is None else flow.inputs
        inputs = {name.rpartition(".")[2] if self.flow.referred(name) else name: name for name in names}
        if len(inputs) < len(names):  # a.text and b.text
            inputs = {name: name for name in names}
        values = {name: self._find(task, source) for name, source in inputs.items()}
        try:
            values = self._asked(flow, values, {source: name for name, source in inputs.items()})
        except ValueFaultError as error:
            raise ValueFaultError(f"node {task!r}: {error}") from None
        self.asked[task] = _characters(values)
        return values, self.options_of(task)

    def is_first(self, task: str) -> bool:
        """Whether a node waits for no other."""
        return not self._before.get(task, True)

    def before(self, task: str) -> Sequence[str]:
        """The nodes directly before one, as far as they are there yet."""
        return self._before.get(task, ())

    def characters(self, task: str) -> int:
        """How much text a node will be asked with, of which all inputs are there."""
        return _characters(self.call(task)[0])

    def _asked(self, flow: NodeFlow, values: dict[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
        """The inputs with the prompt that is made of them: what it takes is in there, the rest goes beside it."""
        if flow.prompt is not None:
            asked = flow.prompt.ask(
                lambda name: text_of(values[called[name]], self._fetch),
                lambda name: _messages(name, fetched(values[called[name]], self._fetch)),
            )
            taken = {called[name] for name in flow.prompt.names}
            return {name: value for name, value in values.items() if name not in taken} | asked
        if flow.is_called_by_us or any(name in values for name in _ASKED):
            return values
        found = [value for value in values.values() if isinstance(value, str)]
        if flow.model.type == "embedding":
            lists = [value for value in values.values() if isinstance(value, list)]
            found += [text for value in lists for text in value if isinstance(text, str)]
            return values | {"input": found} if found else values
        if not found:  # a list of hits, say
            shown = (value for value in values.values() if isinstance(value, list | dict | Reference))
            found = [text_of(value, self._fetch) for value in shown]
        return values | {"prompt": "\n\n".join(found)} if found else values

    def options_of(self, task: str) -> dict[str, Any]:
        """The options of a node's call."""
        flow = self.flow.node_of(task)
        answers = flow.node.id in self.flow.may_answer
        own = {k: v for k, v in self.options.items() if answers and k not in _KINDS}
        said = said_of(task, self.options.get("node_configs"))
        own |= said if isinstance(said, dict) else {}
        seconds = said_of(task, self.options.get("node_execution_times"))
        if flow.emulated is not None and isinstance(seconds, int | float):  # it takes as long as the file says
            own.setdefault("seconds", seconds / flow.emulated.speed)
        if not flow.is_called_by_us and "max_length" in own:  # its name in older files
            own.setdefault("max_tokens", own.pop("max_length"))
        return own

    def _all_names(self, task: str) -> Sequence[str]:
        """All that the nodes directly before give; a first node has all that the request gives."""
        before = self._before[task]
        names = (name for one in before for name in self.outputs.get(one, ()))
        return tuple(dict.fromkeys(names)) if before else tuple(self._given)

    def _find(self, task: str, name: str) -> Any:
        """An input: of the nearest node before that gives it, else of the request."""
        node, output = self.flow.referred(name) or ("", name)
        found = self._givers(task, node, output)
        if found:
            return self._taken(task, found, output)
        if not node and name in self._given:
            return self._given[name]
        if self.flow.may_lack(task, name):
            return self.flow.default(task, name)
        told = ", ".join(self._given) or "nothing"
        raise ValueFaultError(f"node {task!r}: nobody gives {name!r}; the request gives {told}")

    def _givers(self, task: str, node: str, output: str) -> list[str]:
        level, seen = self._before[task], set[str]()
        while level:
            found = [one for one in level if self._gives(one, node, output)]
            if found:
                earlier = self._all_before(found) if len(found) > 1 else ()
                return sorted((one for one in found if one not in earlier), key=self._order.__getitem__)
            seen.update(level)
            level = list(dict.fromkeys(one for later in level for one in self._before[later] if one not in seen))
        return []

    def _gives(self, task: str, node: str, output: str) -> bool:
        return output in self.outputs.get(task, ()) and (not node or self.flow.node_of(task).node.id == node)

    def _all_before(self, tasks: Iterable[str]) -> set[str]:
        found, left = set[str](), list(tasks)
        while left:
            new = [one for one in self._before[left.pop()] if one not in found]
            found.update(new)
            left += new
        return found

    def _taken(self, task: str, givers: list[str], output: str) -> Any:
        """What these give: the list of what copies gave, seen from outside; an item of a list, for a copy."""
        own = [*_chain(self._copy.get(task))]
        places = {(copy.of, copy.place) for copy in own}
        beside = [
            one for one in givers if any((copy.of, copy.place) not in places for copy in _chain(self._copy.get(one)))
        ]
        if beside:
            return [self.outputs[one][output] for one in beside]
        value, giver = self.outputs[givers[-1]][output], self.flow.node_of(givers[-1])
        for copy in own:
            if copy.of == givers[-1] and isinstance(value, list | tuple):
                cut = output in giver.shared_out and len(value) > copy.copies
                return value[copy.place] if cut or len(value) == copy.copies else value
        return value

    # --- what comes out ---------------------------------------------------------------------------

    def ended(self, task: str, answered: Mapping[str, Any]) -> tuple[dict[str, Any], Grew | None]:
        """A call has answered: its outputs by the names that the node declares, and what they add to the request."""
        flow = self.flow.node_of(task)
        named = _named(task, flow, answered, self._fetch)
        try:
            size = size_of(named)
        except ValueFaultError as error:
            raise ValueFaultError(f"node {task!r} gives {error}") from None
        if self._bytes + size > self._most:
            found = f"node {task!r} gives {size / MIB:.1f} MiB, {(self._bytes + size) / MIB:.1f} MiB with all before"
            raise ValueFaultError(f"{found}; expected at most {self._most / MIB:g} MiB for a request")
        looked_at = {name: fetched(value, self._fetch) for name, value in named.items()} if flow.node.then else named
        said = {THEN: answered[THEN]} if THEN in answered else {}
        event = self._branches.grow(task, looked_at | said)
        self._bytes += size
        self.outputs[task] = named
        if event is not None:
            self._grew(event)
        return named, event

    def recall(self, task: str, outputs: Mapping[str, Any], event: Grew | None) -> None:
        """What was known before a restart: the outputs of a task that had ended, and what they had added."""
        self._bytes += size_of(outputs)
        self.outputs[task] = dict(outputs)
        self._branches.again(task, outputs, event)
        if event is not None:
            self._grew(event)

    def answer(self) -> dict[str, Any]:
        """The outputs of the node that answers: the last one that nothing follows."""
        followed = {one for before in self._before.values() for one in before}
        last = [task for task in self.outputs if task not in followed]
        if self.flow.answer in last or not last:
            return self.outputs.get(self.flow.answer, {})
        return self.outputs[last[-1]]

    def _grew(self, event: Grew) -> None:
        outcome = self._branches.outcome_of(event)
        for i, task in enumerate(event.tasks):
            self._before[task.name] = []
            self._order[task.name] = len(self._order)
            self._copy[task.name] = outer = self._copy.get(event.task)
            if is_fan_out(outcome):
                count = len(event.tasks) // len(outcome.nodes)
                self._copy[task.name] = _Copy(event.task, i // len(outcome.nodes), count, outer)
        for source, target in event.edges:
            self._before[target].append(source)

    def _check_options(self) -> None:
        for name, value in self.options.items():
            node, _, key = name.partition(".")
            if node in self.flow.nodes and name not in _KINDS and (key or isinstance(value, Mapping)):
                way = {node: {key: value} if key else value}
                raise InputError(f"options.{name}: options of one node are given as node_configs: {way!r}")
        asked = {name: value for name, value in self.options.items() if name not in _KINDS}
        for node in self.flow.may_answer:
            self._check_known("options", node, asked)
        for key in _KINDS:
            named = self.options.get(key) or {}
            if not isinstance(named, Mapping):
                raise InputError(f"{key}: expected names of nodes, found {named!r}")
            for name, value in named.items():
                if name not in self.flow.nodes and name.partition("#")[0] not in self.flow.nodes:
                    hint = did_you_mean(name, self.flow.nodes)
                    raise InputError(f"{key}.{name}: not a node of workflow {self.flow.name!r}{hint}")
                kind = _KINDS[key]
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise InputError(f"{key}.{name}: expected {_EXPECTED[key]}, found {value!r}")
                if key == "node_configs":
                    self._check_known(f"{key}.{name}", name.partition("#")[0], value)

    def _check_known(self, where: str, node: str, options: Mapping[str, Any]) -> None:
        flow = self.flow.nodes[node]
        for name in options:
            if flow.options is not None and name not in flow.options:
                hint = did_you_mean(name, flow.options)
                raise InputError(f"{where}.{name}: calls of model {flow.node.model!r} have no such option{hint}")


def call_options(entry: RequestEntry) -> dict[str, Any]:
    """What a file says of a request's calls, as the options of a live one."""
    given = {
        "node_configs": entry.node_configs,
        "node_execution_times": entry.node_execution_times,
        "node_tokens": {name: msgspec.to_builtins(tokens) for name, tokens in entry.node_tokens.items()},
        "outcomes": entry.outcomes,
    }
    return {name: value for name, value in given.items() if value}


def _complete(flow: DataFlow, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a request gives, if that is all that its workflow needs. A prompt is the one thing that it lacks."""
    if not isinstance(given, Mapping):
        raise InputError(f"input: expected names and values, found {type(given).__name__}")
    lacking = sorted(flow.needs - given.keys())
    if len(lacking) == 1 and "prompt" in given:
        return {**given, lacking[0]: given["prompt"]}
    if lacking:
        names, found = " and ".join(map(repr, lacking)), ", ".join(given) or "nothing"
        hints = (did_you_mean(name, lacking) for name in given if name not in flow.needs)
        hint = next((hint for hint in hints if "did you" in hint), "")
        raise InputError(f"workflow {flow.name!r} needs {names}; the request gives {found}{hint}")
    return dict(given)


def _characters(values: Mapping[str, Any]) -> int:
    """Of what a language model reads: messages, a prompt, or text."""
    if isinstance(messages := values.get("messages"), list):
        texts = (message.get("content") for message in messages if isinstance(message, dict))
        return sum(len(text) for text in texts if isinstance(text, str))
    for name in ("prompt", "text"):
        if isinstance(values.get(name), str):
            return len(values[name])
    lists = (value for value in values.values() if isinstance(value, list))
    return sum(len(text) for value in (values.values(), *lists) for text in value if isinstance(text, str))


def _messages(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(one, dict) and "role" in one for one in value):
        raise ValueFaultError(f"{{{name}}}: expected messages with role and content, found {type(value).__name__}")
    return value


def _named(task: str, flow: NodeFlow, answered: Mapping[str, Any], fetch: Fetch | None) -> dict[str, Any]:
    """What a back end answered, by the names that the node declares."""
    declared = flow.outputs
    if not declared or all(name in answered for name in declared):
        return {name: answered[name] for name in declared or answered if name != THEN or name in declared}
    plain = {name: value for name, value in answered.items() if name != THEN}
    if len(declared) == 1 and ("text" in plain or len(plain) == 1):
        return {declared[0]: plain["text"] if "text" in plain else next(iter(plain.values()))}
    text = fetched(answered.get("text"), fetch)
    parsed = json_in(text) if isinstance(text, str | bytes) else None
    found = {**answered, **parsed} if isinstance(parsed, dict) else answered
    lacking = [name for name in declared if name not in found]
    if lacking:
        names = " and ".join(map(repr, lacking))
        told = f"the text {text[:200]!r}" if isinstance(text, str) else ", ".join(answered) or "nothing"
        raise ValueFaultError(f"node {task!r} is to give {', '.join(declared)}, but its answer has no {names}: {told}")
    return {name: found[name] for name in declared}


def _chain(copy: _Copy | None) -> Iterable[_Copy]:
    while copy is not None:
        yield copy
        copy = copy.outer
