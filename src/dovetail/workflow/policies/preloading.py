"""Asks a policy what idle GPUs are to load ahead of need, and follows that to its end."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any

from dovetail.core.errors import policy_failed, policy_gave
from dovetail.core.events import Instruction, Prepare, PrepareEnded
from dovetail.workflow.gpus.preloads import PreloadUnderWay
from dovetail.workflow.policies.base import Preload, WorkflowPolicy, is_wait
from dovetail.workflow.policies.view import View


class Preloading:
    """The scheduler's side of preloads: one instruction for each, and one end."""

    def __init__(self, view: View, policy: WorkflowPolicy) -> None:
        self._view, self._policy = view, policy
        self._asks = type(policy).preload is not WorkflowPolicy.preload
        self._ids = count(1)
        self._under_way: dict[int, PreloadUnderWay] = {}
        self._failed: set[str] = set()  # models that could not be loaded

    def decide(self, now: float, out: list[Instruction]) -> float:
        """What idle GPUs load; gives when the policy wants to look again."""
        while self._asks and any(self._view.free):
            try:
                choice: Any = self._policy.preload(self._view)
            except (Exception, SystemExit) as error:
                raise policy_failed(self._policy, "preload", error, now) from error
            if is_wait(choice):
                return choice.until_s
            if choice is None or (isinstance(choice, Preload) and choice.model in self._failed):
                break
            if wrong := self._wrong(choice):
                raise policy_gave(self._policy, "preload", choice, wrong, now)
            out.append(self._prepare(choice, now))
        return inf

    def _wrong(self, choice: Preload) -> str:
        """What was expected, if it cannot be."""
        view = self._view
        if not isinstance(choice, Preload) or type(choice.why) is not str or not choice.why:
            return "Preload with a reason, Wait or None"
        model, window, _ = choice
        if model not in view.models or not view.models[model].width:
            return "a model that needs GPUs"
        if type(window) is not tuple or window not in view.roomy_windows(model, aligned=False):
            return "GPUs side by side that are there, as many as the model needs, with room for it"
        if not all(view.free[gpu] for gpu in window):
            return "GPUs that are free"
        return "GPUs that do not hold it" if all(model in view.residents.held[gpu] for gpu in window) else ""

    def _prepare(self, choice: Preload, now: float) -> Prepare:
        (model, window, why), view = choice, self._view
        setup_s = view.residents.setup(window, model)
        replaces = view.residents.replaced(window, model) if setup_s else None
        case = view.residents.load_case(window, model) if view.learning is not None else None
        load = PreloadUnderWay(next(self._ids), model, window, now, setup_s, case)
        self._under_way[load.id] = load
        view.prepare(load)
        return Prepare(load.id, model, window, setup_s, why, replaces)

    def started(self, model: str) -> None:
        """A node has been started: whether its model can be loaded will be seen."""
        self._failed.discard(model)

    def ended(self, event: PrepareEnded, now: float) -> str | None:
        """A load is over, or failed: the model, if what its load takes is another number now."""
        load, view = self._under_way.pop(event.id), self._view
        if view.preparing.get(load.window) is load:
            view.prepared(load.window)
        if event.why:
            self._failed.add(load.model)
            return None
        if view.learning is None:
            return None
        return view.learning.prepared(load.model, load.window, now - load.began_s, load.case)
