"""The shortest way: one call with the whole batch on the thread of the caller, for batches that are best done so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.dispatch.inputs.batch import Slices, Source, WholeBatch
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.devices import NodeDevice, of_one_cpu
from dovetail.dispatch.live.batch_run import BatchRun, home_of
from dovetail.dispatch.metrics import BatchReport, report_of
from dovetail.dispatch.policies.base import DeviceState
from dovetail.dispatch.policies.fixed import Fixed
from dovetail.dispatch.policies.floor import Floor, Way, charged_s
from dovetail.dispatch.scheduler import ChunkScheduler

_SHORT_S = 2e-3  # a call that takes less is not shared: to wake other threads and their caches costs a quarter of it
_LONG = 4  # times that: such a call is not short
_TIMES = 3  # so often: it is not short any more
_LOOK_AGAIN = 64  # calls, after which other ways are compared again
_UNSEEN = 63  # short calls after one that was looked at, of which only their time is
LAST = 3  # calls before the next comparison, which count in it
_MET = 64  # shapes of tensors that are remembered
_NONE = (-1, 0.0)
_LARGER = 4  # times the largest chunk that a device has done: so large a batch may fit it as well
ONE_CPU: Mapping[torch.device | None, int] = MappingProxyType({None: 0, torch.device("cpu"): 0})


class DirectCallError(Exception):
    """The function failed; `error` says why."""

    def __init__(self, begun_s: float, error: Exception) -> None:
        self.begun_s, self.error = begun_s, error


@dataclass(slots=True)
class CallsLeft:
    """How many calls are left until other ways are compared again, for all batches of about one size.

    No books are kept of those before the `LAST`, if a batch like theirs came before, unless one takes longer than
    `most_s`; `unseen` are those that the floor was not told of yet. A call of a few milliseconds empties the caches,
    and what is done around it then costs several times as much.
    """

    calls: int = 0
    unseen: int = 0
    most_s: float = inf


@dataclass(slots=True)
class OneCall:
    """What must be known of a batch to do it with one call on the device `at`."""

    form: Any
    at: int
    items: int
    way: Way
    left: CallsLeft = field(default_factory=CallsLeft)


class DirectCalls:
    """Which batches go straight to the function. `most`: up to so many items, whatever they are.

    >>> calls = DirectCalls()
    >>> calls.short("rows of 3", 100)
    >>> calls.take("rows of 3", 100), calls.take("rows of 3", 101), calls.take("rows of 4", 1)
    (True, False, False)
    """

    def __init__(
        self, most: float = -1, exact: bool = False, places: Mapping[torch.device | None, int] = ONE_CPU
    ) -> None:
        """`exact`: what is known of one size does not hold for others; `places`: which device has what is there."""
        self.most, self._exact, self._places = most, exact, places
        self.is_timed = places is ONE_CPU  # an accelerator is only told what to do: how long that takes is not seen
        self._short: dict[Any, tuple[int, float]] = {}  # by form: items, and more seconds than they should take
        self._sure: dict[tuple[Any, int], CallsLeft] = {}  # by form and items (about)
        self._slow: Counter[Any] = Counter()
        self._met: dict[Any, OneCall] = {}  # tensors and arrays like one that came before

    def met(self, batch: Any) -> OneCall | None:
        """What is known of a tensor or array because one like it came before."""
        return self._met.get(_likeness(batch))

    def meet(self, source: Source, form: Any, at: int) -> OneCall:
        """The call of a batch; if that is a tensor or array, those like it are known from now on."""
        once = OneCall(form, at, source.total or 0, Way((at,), whole=True))
        if (alike := _likeness(getattr(source, "tensor", getattr(source, "tree", None)))) is not None:
            if len(self._met) >= _MET:
                self._met.clear()
            self._met[alike] = once
        return once

    def device_of(self, source: Source) -> int | None:
        """The device that has a batch, all of it, so that the caller can call the function with it."""
        return self._places.get(home_of(source)) if isinstance(source, WholeBatch) else None

    def take(self, form: Any, items: int) -> bool:
        """Whether this batch is one of them; it is counted."""
        if self.is_short(form, items):
            return True
        left = self._sure.get(self._place(form, items))
        if left is None or left.calls <= 0:
            return False
        left.calls -= 1
        return True

    def _place(self, form: Any, items: int) -> tuple[Any, int]:
        return form, items if self._exact else items.bit_length()

    def is_short(self, form: Any, items: int) -> bool:
        """Whether there is nothing to compare one call with."""
        return items <= self.most or items <= self._short.get(form, _NONE)[0]

    def short(self, form: Any, items: int, seconds: float = 0.0) -> None:
        """Up to so many items are best done with one call; the most take about so long."""
        if not self._exact and self._slow[form] < _TIMES and items > self._short.get(form, _NONE)[0]:
            self._short[form] = items, _LONG * max(seconds, _SHORT_S)

    def sure(self, form: Any, items: int) -> None:
        """One call has shown to be the best way for about so many items."""
        self._sure.setdefault(self._place(form, items), CallsLeft()).calls = _LOOK_AGAIN

    def call(
        self,
        function: Callable[..., Any],
        once: OneCall,
        floor: Floor,
        source: Source | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, float, float]:
        """The result, and when the call began and ended."""
        form, items = once.form, once.items
        if isinstance(source, Slices):
            args = (source.slice(0, items),)
        is_short = self.is_short(form, items)
        begun_s, cpu_s = perf_counter(), process_time()
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            raise DirectCallError(begun_s, error) from error
        ended_s = perf_counter()
        self._leave_out(once, floor, is_short)
        if not self.is_timed:
            return result, begun_s, ended_s
        cpu_s = process_time() - cpu_s
        seconds = charged_s(cpu_s, ended_s - begun_s)
        if is_short:
            self._check_short(form, seconds)
        elif seconds < _SHORT_S:
            self.short(form, items)
        else:
            floor.ended(once.way, items, ended_s - begun_s, cpu_s)
        return result, begun_s, ended_s

    def _leave_out(self, once: OneCall, floor: Floor, is_short: bool) -> None:
        """Of how many calls like this one no books are kept; the floor is told of those that were made."""
        left = self._sure.get(self._place(once.form, once.items))
        if left is not None and left.unseen:
            floor.passed(left.unseen)
            left.unseen = 0
        if is_short:
            most_s = inf if once.items <= self.most else self._short.get(once.form, _NONE)[1]
            once.left = CallsLeft(_UNSEEN + LAST, most_s=most_s)
        elif left is not None:
            once.left = left

    def _check_short(self, form: Any, seconds: float) -> None:
        """One that is long again and again is none of the short ones."""
        if (known := self._short.get(form)) is not None and seconds > known[1]:
            self._slow[form] += 1
            if self._slow[form] >= _TIMES:
                self._short.pop(form, None)

    def learn(self, form: Any, run: BatchRun) -> None:
        """A batch that the engine did, but is best done with one call, needs no engine next time."""
        states, items, at = run.scheduler.view.devices, run.source.total, self.device_of(run.source)
        if not items or at is None or (curve := states[at].curve) is None or states[at].size is not None:
            return
        if len(states) == 1 and states[0].settled and curve.tail >= items:  # the engine would make one call of it
            items = min(curve.tail, states[0].limit)
        elif min(states[at].hoped_s(items), run.ended_s - run.begun_s) > _SHORT_S:
            return
        self.short(form, items, states[at].hoped_s(items))


def direct_calls(own: Any, given: Any) -> DirectCalls | None:
    """Of a dispatcher that works in this process, if nobody wants to know of single chunks.

    On the CPU that the caller runs on, and on accelerators for batches that are there.
    """
    hooks = (own.preprocess, own.postprocess, own.reduce, own.join, own.progress, own.pool.init, own.pool.teardown)
    if not own._own_pool or own._backend != "thread" or own._written or any(hooks):
        return None
    devices, fixed, few = own.devices, isinstance(own.policy, Fixed), own.tuning.few
    if not of_one_cpu(devices):
        places: dict[torch.device | None, int] = {}
        places |= {torch.device(device.place): i for i, device in enumerate(devices) if device.kind == "cuda"}
        sized = fixed or any(device.size is not None for device in devices)
        return DirectCalls(exact=few, places=places) if places and not sized else None
    if len(devices) > 1:
        return None if fixed or hasattr(given, "on") else DirectCalls(exact=few)
    size = own.policy.size if fixed and devices[0].size is None else devices[0].size
    return DirectCalls(-1 if size is None else size or inf, few)


def _likeness(batch: Any) -> Any:
    """Equal for tensors, and for arrays, that are the same to a dispatcher but for their numbers; None for the rest."""
    if type(batch) is Tensor:
        return None if batch.is_nested else (batch.shape, batch.dtype, batch.device, batch.layout)
    return (batch.shape, batch.dtype) if type(batch) is np.ndarray else None


def report_once(own: Any, once: OneCall, begun_s: float, ended_s: float) -> BatchReport:
    """The report of a batch that a dispatcher did so."""
    scheduler = ChunkScheduler(LocalCursor(0, 0), own.policy, own.tuning.states(once.form), total=once.items)
    scheduler.rows.append((once.at, 0, once.items, begun_s, ended_s, 1, "done"))
    return report_of(scheduler, own.names, begun_s, ended_s, way=once.way.told(own.names))


def once_on(devices: list[NodeDevice], states: list[DeviceState], source: Source) -> list[int]:
    """The devices that may do a batch with one call: what is not there yet must be likely to fit."""
    home = home_of(source)

    def may(state: DeviceState, device: NodeDevice) -> bool:
        near = state.curve is not None and (source.total or 0) <= _LARGER * state.curve.sizes[-1]
        return state.slots == 1 or near or is_at(home, device)

    return [i for i, state in enumerate(states) if may(state, devices[i])]


def is_at(home: torch.device | None, device: NodeDevice) -> bool:
    """Whether something is where a device works."""
    return home is not None and (home.type == "cpu" == device.kind or home == torch.device(device.place))
