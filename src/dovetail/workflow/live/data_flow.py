"""How data flows through a workflow, as its file says: who may give a node its inputs, what it is asked, what it gives.

An input is the output of that name of the nearest node before, else what the request gives; `node.name` is the output
of that node. What can be wrong about that is found before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from dovetail.core.errors import InputError, did_you_mean
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.inputs.prompts import PromptRule
from dovetail.workflow.inputs.sources import ModelSource
from dovetail.workflow.inputs.system import Edge, Model, Node, System, Workflow
from dovetail.workflow.live.protocol import CALL_OPTIONS

ONE = ((1, 1.0),)  # copies of what is added without copies
_NUMBERED = "expected a name without '#', which is for the numbers of nodes that live runs add"


def data_flows(system: System) -> dict[str, DataFlow]:
    """All workflows, and each model as one of a single node named like it; a workflow of that name wins."""
    for name in system.models:
        if "#" in name:
            raise system.error(("models", name), _NUMBERED)
    workflows = {name: Workflow([Node(name, name)]) for name in system.models} | system.workflows
    return {name: DataFlow(system, name, of) for name, of in workflows.items() if name not in system.faults}


class NodeFlow:
    """What a node is given and asked, and what it gives. `inputs` None: all that there is."""

    def __init__(self, node: Node, model: Model) -> None:
        self.node, self.model = node, model
        self.prompt = None if node.prompt is None else PromptRule(node.prompt)
        self.inputs = tuple(node.inputs) or (None if self.prompt is None else self.prompt.names)
        self.outputs = tuple(node.outputs)
        first = "text" if "text" in node.outputs or not node.outputs else node.outputs[0]
        self.shared_out = {decision.output or first for decision in node.decide.values() if decision.each is True}
        source = model.source if isinstance(model.source, ModelSource) else ModelSource()
        self.is_called_by_us = source.factory is not None
        self.emulated = source.emulated
        ours = source.path is not None or source.emulated is not None  # others know their options themselves
        self.options = {*CALL_OPTIONS, "max_length", "seconds"} if ours and model.type == "llm" else None


class DataFlow:
    """The data of one workflow. `needs` are the inputs that only a request can give; `answer` is the node whose
    outputs are the workflow's, unless it adds others after it: `may_answer` are all that may come last then."""

    def __init__(self, system: System, name: str, workflow: Workflow) -> None:
        self.name = name
        self.implicit = name not in system.workflows
        self.nodes = {node.id: NodeFlow(node, system.models[node.model]) for node in workflow.nodes}
        self.rules: GrowthRules | None = system.growth.get(name) if not self.implicit else None
        self.graph = system.graph(name, workflow=workflow)
        self.answer = self.graph.tasks[self.graph.topological[-1]].name
        self._system, self._places = system, {node.id: i for i, node in enumerate(workflow.nodes)}
        self._fan_outs = frozenset(
            node
            for then in (self.rules.then.values() if self.rules is not None else ())
            for outcome in then.values()
            if outcome.copies != ONE
            for node in outcome.nodes
        )
        after = self._followers(workflow.edges)
        self._direct = {name: [one for one in self.nodes if name in after[one]] for name in self.nodes}
        self._before = _all_before(after)
        added = _reach(self.answer, after)
        self.grows = self.rules is not None and bool(self.rules.then.get(self.answer))
        then_of = {} if self.rules is None else self.rules.then
        outcomes = [outcome for then in then_of.values() for outcome in then.values()]
        followed = {source for outcome in outcomes for source, _ in outcome.edges}
        self.may_answer = frozenset([self.answer, *(added - followed)])
        for name, then in (self.rules.then if self.rules is not None else {}).items():
            after[name] |= then.keys()
        self._ever_before = _all_before(after)
        self._defaults: dict[tuple[str, str], list[object] | None] = {}
        self.needs = frozenset(self._check())

    def node_of(self, task: str) -> NodeFlow:
        """The node that a task is an instance of."""
        return self.nodes[task] if task in self.nodes else self.nodes[task.partition("#")[0]]

    def default(self, task: str, name: str) -> list[object] | None:
        """What stands for an input of nodes that may be added and were not: nothing, or no items."""
        return self._defaults[self.node_of(task).node.id, name]

    def may_lack(self, task: str, name: str) -> bool:
        return (self.node_of(task).node.id, name) in self._defaults

    def referred(self, name: str) -> tuple[str, str] | None:
        """The node and the output that `node.name` means; None if it is a plain name."""
        node, _, output = name.rpartition(".")
        return (node, output) if node in self.nodes else None

    # --- before anything runs ---------------------------------------------------------------------

    def _followers(self, edges: Iterable[Edge]) -> dict[str, set[str]]:
        """What may directly follow each node, but for loops, which go back."""
        after: dict[str, set[str]] = {name: set() for name in self.nodes}
        for edge in edges:
            after[edge.source].add(edge.target)
        then = {} if self.rules is None else self.rules.then
        changed = True
        while changed:  # what is added lies between a node and all that follows it
            changed = False
            for name, outcomes in then.items():
                for target, outcome in outcomes.items():
                    sources = {source for source, _ in outcome.edges}
                    new = [] if outcome.at_most else [(name, {target})]
                    new += [(last, after[name] - {last}) for last in outcome.nodes if last not in sources]
                    for source, targets in new:
                        changed = changed or not targets <= after[source]
                        after[source] |= targets
        return after

    def _check(self) -> set[str]:
        needs: set[str] = set()
        for name, flow in self.nodes.items():
            if "#" in name:
                raise self._error(name, "id", _NUMBERED)
            self._check_prompt(name, flow)
            self._check_decide(name, flow)
            if flow.inputs is None:
                self._check_all(name)
            for given in flow.inputs or ():
                if self.referred(given) is not None:
                    self._check_reference(name, given)
                    continue
                before = self._before[name]
                givers = [one for one in self.nodes if one in before and given in self.nodes[one].outputs]
                self._check_givers(name, given, givers)
                if givers:
                    self._note_default(name, given, givers)
                elif all(self.nodes[one].outputs for one in before):
                    needs.add(given)
        return needs

    def _check_all(self, name: str) -> None:
        direct = self._direct[name]
        for given in {output for one in direct for output in self.nodes[one].outputs}:
            self._check_givers(name, given, [one for one in direct if given in self.nodes[one].outputs])

    def _check_prompt(self, name: str, flow: NodeFlow) -> None:
        if flow.prompt is None or not flow.node.inputs:
            return
        for used in flow.prompt.names:
            if used not in flow.node.inputs:
                hint = did_you_mean(used, flow.node.inputs)
                raise self._error(name, "prompt", f"{{{used}}} is not among its inputs{hint}")

    def _check_decide(self, name: str, flow: NodeFlow) -> None:
        for branch, decision in flow.node.decide.items():
            assert self.rules is not None
            copies = self.rules.then[name][branch].copies
            if len(copies) > 1 and not decision.each:
                raise self._error(name, "decide", f"how many copies of {branch!r}? expected each: true")
            if decision.each and copies == ONE:
                raise self._error(name, "decide", f"each, but then: has no copies of {branch!r}")
            if decision.output and flow.outputs and decision.output not in flow.outputs:
                hint = did_you_mean(decision.output, flow.outputs)
                raise self._error(name, "decide", f"{decision.output!r} is none of its outputs{hint}")

    def _check_reference(self, name: str, given: str) -> None:
        node, output = self.referred(given) or ("", "")
        if node not in self._ever_before[name]:
            raise self._error(name, "inputs", f"{given!r}: {node!r} does not come before it")
        if (outputs := self.nodes[node].outputs) and output not in outputs:
            hint = did_you_mean(output, outputs)
            raise self._error(name, "inputs", f"{given!r}: node {node!r} has no output {output!r}{hint}")
        self._note_default(name, given, [node] if node in self._before[name] else [])

    def _note_default(self, name: str, given: str, givers: list[str]) -> None:
        """Nodes that may be added need not be there."""
        optional = self.rules.optional if self.rules is not None else frozenset()
        if all(one in optional for one in givers):
            plural = any(one in self._fan_outs for one in givers)
            self._defaults[name, given] = [] if plural and name not in self._fan_outs else None

    def _check_givers(self, name: str, given: str, givers: list[str]) -> None:
        """Two nodes side by side must not give the same name: nobody could say whose it is."""
        for one, other in combinations(givers, 2):
            ordered = one in self._before[other] or other in self._before[one]
            if ordered or self._are_alternatives(one, other):
                continue
            nearer = (self._before[third] for third in givers if third in self.graph.index)
            if any(one in before and other in before for before in nearer):
                continue
            message = f"both {one!r} and {other!r} give {given!r}; expected {one}.{given} or {other}.{given}"
            raise self._error(name, "inputs", message)

    def _are_alternatives(self, one: str, other: str) -> bool:
        """Whether two nodes are never both there: different outcomes of one node's end."""
        then = {} if self.rules is None else self.rules.then
        found = [
            {
                (adder, target)
                for adder, outcomes in then.items()
                for target in outcomes
                if name in outcomes[target].nodes
            }
            for name in (one, other)
        ]
        pairs = [(a, b) for a in found[0] for b in found[1]]
        return bool(pairs) and all(a[0] == b[0] and a[1] != b[1] for a, b in pairs)

    def _error(self, node: str, key: str, message: str) -> InputError:
        keys = ("workflows", self.name, "nodes", self._places[node], key)
        return self._system.error(keys, f"node {node!r}: {message}")


def _all_before(after: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """All nodes that may have ended when a node begins."""
    reached = {name: _reach(name, after) for name in after}
    return {name: frozenset(one for one in after if name in reached[one]) for name in after}


def _reach(start: str, after: Mapping[str, Iterable[str]]) -> set[str]:
    """All that follows a node; itself only if it does so by way of others."""
    found: set[str] = set()
    left = [start]
    while left:
        new = set(after[left.pop()]) - found
        found |= new
        left += new
    return found
