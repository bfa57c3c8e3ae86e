"""Keep, for programs that do not save it, what torch's optimizers and recurrent layers remember from step to step.

Each is known by the order in which they are first used, and takes up what was kept before that first use.
"""

from __future__ import annotations

import sys
from typing import Any


class OptimizerKeeper:
    """Momentum and the like. The settings of an optimizer (learning rate, ...) stay the program's."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._seen: list[Any] = []
        if (optimizer := sys.modules.get("torch.optim.optimizer")) is not None:
            optimizer.register_optimizer_step_pre_hook(self._before_step)

    def states(self) -> list[Any]:
        return [_on_host(optimizer.state_dict()["state"]) for optimizer in self._seen] + self._kept

    def restore(self, states: list[Any], in_pass: bool) -> None:
        self._kept = list(states)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if any(optimizer is seen for seen in self._seen):
            return
        self._seen.append(optimizer)
        if self._kept:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": self._kept.pop(0)})


class HiddenStateKeeper:
    """The hidden state that a recurrent layer is given back from one batch to the next, within a pass over the data.
    A layer of which that was never seen (each batch begins with a state of its own, or there was only one) is left
    alone."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._layers: list[Any] = []
        self._last: list[Any] = []  # what each gave out
        self._carried: list[bool] = []
        self._recurrent: Any = ()
        if (module := sys.modules.get("torch.nn.modules.module")) is not None:
            self._recurrent = sys.modules["torch.nn.modules.rnn"].RNNBase
            module.register_module_forward_pre_hook(self._before)
            module.register_module_forward_hook(self._after)

    def states(self) -> list[Any]:
        found = zip(self._last, self._carried, strict=True)
        return [_on_host(last) if carried else None for last, carried in found] + self._kept

    def restore(self, states: list[Any], in_pass: bool) -> None:
        """A new pass begins with a new state."""
        self._kept = list(states) if in_pass else []

    def _before(self, layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not (isinstance(layer, self._recurrent) and layer.training and len(given) == 2 and given[1] is not None):
            return None
        place = self._place(layer)
        if place is not None:
            self._carried[place] |= _memory(given[1]) == _memory(self._last[place])
            return None
        self._layers.append(layer)
        kept = self._kept.pop(0) if self._kept else None
        self._last.append(kept)
        self._carried.append(kept is not None)
        return None if kept is None else (given[0], _like(kept, given[1]))

    def _after(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        place = self._place(layer) if isinstance(layer, self._recurrent) and layer.training else None
        if place is not None:
            self._last[place] = _detached(output[1])

    def _place(self, layer: Any) -> int | None:
        return next((place for place, seen in enumerate(self._layers) if seen is layer), None)


def _detached(state: Any) -> Any:
    return tuple(map(_detached, state)) if isinstance(state, tuple) else state.detach()


def _memory(state: Any) -> Any:
    """A detached tensor has the memory of its origin; what a layer gave out last is held, so no other can have it."""
    return state[0].data_ptr() if isinstance(state, tuple) else state.data_ptr()


def _like(kept: Any, given: Any) -> Any:
    if isinstance(kept, tuple):
        return tuple(map(_like, kept, given))
    return kept.to(given.device)


def _on_host(state: Any) -> Any:
    """The same with every tensor in the host's memory: the next process may have another device."""
    if isinstance(state, dict):
        return {key: _on_host(value) for key, value in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_on_host, state))
    return state.detach().cpu() if hasattr(state, "detach") else state
