"""Fixed sizes: every device takes chunks of its own size while its capacity allows, the highest priority first."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.dispatch.policies.base import WAIT, View


@policy("fixed", level="dispatch")
class Fixed:
    """Chunks of the size given for each device (0: all that is left), as long as load + size <= capacity.

    Without a capacity, a device holds as many chunks as overlap on it: one, or several on CUDA.
    A device leaves the next chunk to another one of strictly higher priority that has room for it too.
    """

    learns = False  # it asks nothing of curves

    def __init__(self, *, size: int = 0) -> None:
        if size < 0:
            raise ValueError(f"expected a size >= 0, found {size}")
        self.size = size

    def next(self, device: int, view: View) -> int:
        me = view.devices[device]
        size = self._size(device, view)
        if me.load and me.load + size > self._capacity(device, view):
            return WAIT
        if len(view.devices) > 1 and view.remaining <= self._claimed_before(device, view):
            return WAIT
        return size

    def _size(self, device: int, view: View) -> int:
        size = view.devices[device].size
        return (self.size if size is None else size) or int(min(view.remaining, 1 << 62)) or 1

    def _capacity(self, device: int, view: View) -> int:
        """What was asked for, else what the device can overlap."""
        state = view.devices[device]
        return state.capacity or self._size(device, view) * state.slots

    def _claimed_before(self, device: int, view: View) -> int:
        """Items that free devices of a strictly higher priority would take first."""
        mine = view.devices[device].priority
        claimed = 0
        for i, state in enumerate(view.devices):
            if i != device and state.alive and state.priority > mine:
                size = self._size(i, view)
                claimed += max(0, self._capacity(i, view) - state.load) // size * size
        return claimed
