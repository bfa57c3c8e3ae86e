"""All devices finish at the same time: good sizes while plenty is left, then shares that end together."""

from __future__ import annotations

from math import ceil, inf

from dovetail.core.registry import policy
from dovetail.dispatch.inputs.size_search import UNLIMITED
from dovetail.dispatch.policies.base import DECLINE, PREFIX, WAIT, DeviceState, View, probe

_PLENTY = 1.5  # longest chunks of work ahead, below which the end is planned
_FAR_FROM_END = 0.5  # of the time left, for a chunk that is larger than need be
_STEADY = 0.1  # spread of a device's times, up to which such chunks are given
_PIECES = (2, 3, 4, 8)  # into how many more calls a share may be cut
_CAREFUL = 0.2  # of the time left, for a first chunk that shows whether a curve still holds
_DETOUR = 0.02  # of the time left, which such a chunk may cost
_LARGER = 2  # than the largest that was measured: so far a curve is trusted to go on straight
_LAST = 1.5  # chunks: what is left for the last ones, each half of what is left
_SMALLER = 3  # times smaller than others the first and the last chunk are, where chunks overlap
_CHEAP = 0.75  # of the time of a chunk, which such a one may take
_CLOSE = 1e-3  # of the time left; nearer is below what a chunk's time varies


@policy("finish_together", level="dispatch")
class FinishTogether:
    """Minimises the time when the last device ends, by curves corrected as chunks come in.

    A device takes its best size while plenty is left. Near the end it takes the share that it finishes together with
    the others, who may still be busy, and declines what it would only delay. Sizes that are not known are measured on
    the first chunks. Devices that delay the whole are left out: see `floor`.
    """

    leaves_out = True

    def next(self, device: int, view: View) -> int:
        n = self._next(device, view)
        return n if n <= 0 or not view.devices[device].one_s else _careful(n, view.devices[device], view)

    def _next(self, device: int, view: View) -> int:
        me = view.devices[device]
        if me.out:
            return DECLINE
        if me.whole and view.remaining < inf:
            return int(min(view.remaining, me.limit))
        if not me.settled and not (me.frugal and me.measured) and not me.cuts:
            size = probe(device, view)
            if size != DECLINE:
                return size
        if me.curve is None:
            return WAIT if me.chunks else me.best
        remaining = view.remaining
        if remaining == inf:
            return me.best
        rate, longest_s = _together(view)
        most = _most(me, view.total, rate)
        if me.cuts and sum(state.serves for state in view.devices) == 1:
            return ceil(min(_overlapping(me, most, view.total - remaining, remaining), me.limit))
        if remaining > _PLENTY * rate * longest_s:
            return min(self._early(me, remaining / rate), most)
        end_s = finish_s(view)
        share: float = min(items_until(me, end_s, view.now_s), remaining)
        if share < 1:
            return DECLINE
        size = self._part(me, share)
        if not me.seen and len(view.devices) > 1:
            size = self._first(me, size, end_s - view.now_s)
        return int(min(max(size, me.best) if me.frugal else size, me.limit, most))

    @staticmethod
    def _first(state: DeviceState, size: int, left_s: float) -> int:
        """A small first chunk for a device whose curve nothing has confirmed yet, if the detour costs little."""
        assert state.curve is not None
        small = min(size, state.curve.size_within(_CAREFUL * left_s))
        detour_s = state.seconds(small) + state.seconds(size - small) - state.seconds(size)
        return small if small and detour_s < _DETOUR * left_s else size

    @staticmethod
    def _part(state: DeviceState, share: float) -> int:
        """The size of the calls that do a share best: few, for each costs; small, for the last one's time varies."""
        assert state.curve is not None
        most = max(state.best, _LARGER * state.curve.sizes[-1]) if state.size is None else state.best
        fewest = ceil(share / most)
        best, least_s = share, inf
        for chunks in (fewest, fewest + 1, *(fewest * k for k in _PIECES), max(fewest, round(share / state.best))):
            part = share / chunks
            seconds = state.seconds(part)
            cost_s = chunks * seconds + state.spread * seconds
            if cost_s < least_s:
                best, least_s = part, cost_s
        return ceil(best)

    @staticmethod
    def _early(state: DeviceState, left_s: float) -> int:
        """The best size; a larger one that is as fast, and far from the end, if the device does as it is expected to.

        Every call costs something. Where calls overlap it is hidden already.
        """
        best = state.best
        if state.slots > 1 or not state.seen or state.spread > _STEADY or state.size is not None:
            return best
        assert state.curve is not None
        far = state.curve.size_within(_FAR_FROM_END * left_s / state.factor)
        size = min(far, _LARGER * state.curve.sizes[-1], state.limit)
        return int(size) if size > best and state.curve.seconds(size) * best <= size * state.curve.best_s else best


def _together(view: View) -> tuple[float, float]:
    """Items per second of all devices at their best sizes, and how long the longest of such chunks takes."""
    rate = longest_s = 0.0
    for state in view.devices:
        if state.serves and state.curve is not None:
            seconds = state.seconds(state.best)
            if seconds > longest_s:
                longest_s = seconds
            rate += state.best / seconds if seconds else 0.0
    return rate, longest_s


def _most(state: DeviceState, total: float, rate: float) -> int:
    """The largest chunk that hides enough of the copies behind others, where chunks overlap."""
    if state.slots == 1 or state.size is not None or not rate or total == inf:
        return UNLIMITED
    own = state.best / (state.seconds(state.best) or 1e-9)
    return ceil(state.overlapped(total * min(own / rate, 1.0))[0])


def _overlapping(state: DeviceState, most: int, done: float, remaining: float) -> float:
    """Chunks of one size, but for small ones first and last: nothing hides the first copy in and the last one out."""
    least = most / _SMALLER
    if state.call_s(least) > _CHEAP * state.call_s(most):
        return min(most, remaining)
    if remaining >= _LAST * most:
        return min(most, done + least)
    return remaining if remaining <= _LAST * least else remaining / 2


def _careful(n: int, me: DeviceState, view: View) -> int:
    """Where one call costs least of a CPU: small chunks first, and one call with the rest if they cost too much."""
    if view.too_dear:
        return int(min(view.remaining, me.limit))
    return min(n, me.watched(view.total, len(view.devices), is_new=view.done < PREFIX * view.total))


def items_until(state: DeviceState, end_s: float, now_s: float) -> float:
    """How many further items a device can finish by then."""
    if not state.serves or state.curve is None:
        return 0
    free_s = end_s - state.free_s(now_s)
    if free_s <= 0:
        return 0
    items = state.curve.items_within(free_s / state.factor) if state.factor > 0 else inf
    if state.best < state.curve.best:  # a smaller size was asked for, or is all that fits
        items = min(items, free_s / state.seconds(state.best) * state.best)
    return items


def finish_s(view: View) -> float:
    """The earliest time by which the devices together can finish what is left; a little late rather than early."""
    now, left = view.now_s, view.remaining
    able = [state for state in view.devices if state.serves and state.curve is not None]
    rate = sum(state.curve.rate / (state.factor or 1.0) for state in able if state.curve is not None)
    if rate <= 0 or rate == inf:
        return now

    def spare(end_s: float) -> float:
        return sum(items_until(state, end_s, now) for state in able) - left

    step = left / rate  # nobody is faster than at the best size
    low, high = now, now + step
    below, above = -left, spare(high)
    while above < 0:
        step *= 1.5
        low, below, high = high, above, high + step
        above = spare(high)
    side = 1.0
    while high - low > (close_s := _CLOSE * (high - now)):
        # Almost a straight line: a step past where it meets zero, then one before it, closes in from both sides.
        share = min(max(below / (below - above), 0.1), 0.9)
        middle = low + share * (high - low) + side * 0.4 * close_s
        middle = min(max(middle, low + 0.1 * (high - low)), high - 0.1 * (high - low))
        if not low < middle < high:  # as near as the clock can tell
            break
        found = spare(middle)
        if found < 0:
            low, below, side = middle, found, 1.0
        else:
            high, above, side = middle, found, -1.0
    return high
