"""Who has which range of a batch: a state machine without clock or threads, used by the engine and the simulator."""

from __future__ import annotations

from math import inf
from operator import index

from dovetail.core.errors import DovetailError, policy_failed, policy_gave
from dovetail.dispatch.chunk import Chunk, ChunkRow, ResultFormError, gaps
from dovetail.dispatch.inputs.cursor import Cursor
from dovetail.dispatch.policies.base import DECLINE, DeviceState, Policy, View

_PATIENCE = 0.1  # of a chunk's expected time, before it counts as overdue
_WORTH = 0.25  # of the time of a copy: less is not saved by making one, for it keeps its device busy
_OUT_AFTER = 2  # failures on ranges that others could do, after which a device gets no more of this batch


class ChunkScheduler:
    """Hands ranges to devices as the policy says, takes results and failures back, and knows when all is done.

    `take` is asked for a device that is free. None means: not now; ask again when something has changed, at the latest
    at `wake_s`.
    """

    def __init__(
        self,
        cursor: Cursor,
        policy: Policy,
        devices: list[DeviceState],
        *,
        total: float = inf,
        backup: bool = True,
        retries: int = 1,
        on_error: str = "retry",
        copied: float = 1.0,
    ) -> None:
        """`copied`: no chunk with a larger share of the batch is done twice."""
        self.cursor = cursor
        self.policy = policy
        self.view = View(devices, total)
        self.view.remaining = cursor.remaining
        self.backup = backup
        self.retries = retries
        self.on_error = on_error
        self.copied = copied
        self.wake_s = inf
        self.returned: list[Chunk] = []
        self.active: list[Chunk] = []
        self.rows: list[tuple[int, int, int, float, float, int, str]] = []  # as ChunkRow; plain, for there are many
        self.learns = getattr(policy, "learns", True)
        self.failures: list[tuple[Chunk, BaseException]] = []
        self.doubts = [0] * len(devices)  # ranges each one failed on, and nobody has tried since
        self.strikes = [0] * len(devices)  # ranges each one failed on, and another one could do
        self.idle: set[int] = set()  # devices that declined since something last changed
        self.stopped = False  # nothing more is handed out
        self.done_items = 0
        self.copies: set[tuple[int, int, float]] = set()  # device, first item and begin of second attempts at a range

    @property
    def finished(self) -> bool:
        """Nothing is left to do: all ranges are settled, or nothing more is handed out and nothing is under way."""
        if not self.stopped and (self.returned or self.cursor.remaining > 0):
            return False
        return all(chunk.rival is not None and chunk.rival.settled for chunk in self.active)

    def take(self, device: int, now_s: float) -> Chunk | None:
        """The range that a free device should do now."""
        view, state = self.view, self.view.devices[device]
        if self.wake_s <= now_s:
            self.wake_s = inf
        if self.stopped or not state.alive:
            return None
        left = self.cursor.remaining
        blocked = 0
        if self.returned:
            left += sum(map(len, self.returned))
            blocked = sum(len(chunk) for chunk in self.returned if device in chunk.avoid)
        if left <= blocked:
            copy = self._second(device, now_s) if self.backup and self.active else None
            if copy is None and blocked and self._nobody(device):
                self.wake_s = now_s  # one of those who declined must take it
            return copy
        view.now_s = now_s
        view.remaining = left
        # Whether it is the device or the data that is bad must show before it gets anything new.
        doubtful = self.doubts[device] >= _OUT_AFTER and blocked == left - self.cursor.remaining
        n = DECLINE if doubtful else self._ask(device, view)
        if n <= 0:
            self._wake(now_s)
            if not self._nobody(device):
                return None
            n = state.best
        if state.few and state.search is not None and not (state.whole and n >= view.total):
            n = state.search.bucket(n, left)
        return self.give(device, n if n < state.limit else state.limit, now_s)

    def give(self, device: int, n: int, now_s: float) -> Chunk | None:
        """Hand so many items to a device, whatever the policy says."""
        chunk = self._cut(device, n)
        if chunk is not None:
            self._begin(chunk, now_s)
        return chunk

    def _ask(self, device: int, view: View) -> int:
        """What the policy answers; a whole number of another type, such as one of NumPy's, as one of Python's."""
        try:
            n = self.policy.next(device, view)
        except DovetailError:
            raise
        except (Exception, SystemExit) as error:
            raise policy_failed(self.policy, "next", error) from error
        if type(n) is int:
            return n
        try:
            return index(n)
        except TypeError:
            raise policy_gave(self.policy, "next", n, "a whole number of items") from None

    def _nobody(self, device: int) -> bool:
        """Whether, with this device, all have declined and none is at work: then nobody would ever be asked again."""
        self.idle.add(device)
        return not self.active and all(
            i in self.idle for i, state in enumerate(self.view.devices) if state.alive and not state.away
        )

    def _wake(self, now_s: float) -> None:
        """When to ask again at the latest: when something is due, or well overdue."""
        for chunk in self.active:
            at = chunk.due_s if chunk.due_s > now_s else now_s + 0.25 * (now_s - chunk.begun_s)
            if at < self.wake_s:
                self.wake_s = at

    def _cut(self, device: int, n: int) -> Chunk | None:
        for i, chunk in enumerate(self.returned):
            if device in chunk.avoid:
                continue
            if len(chunk) <= n:
                del self.returned[i]
                chunk.device, chunk.again = device, True
                return chunk
            part = Chunk(chunk.start, chunk.start + n, device, chunk.attempt, chunk.avoid)
            part.error, part.again = chunk.error, True
            chunk.start += n
            for other in chunk.avoid:  # two ranges now
                self.doubts[other] += 1
            return part
        start, stop = self.cursor.take(n)
        return Chunk(start, stop, device) if stop > start else None

    def _begin(self, chunk: Chunk, now_s: float) -> None:
        state = self.view.devices[chunk.device]
        begins = state.busy_until_s if state.chunks and state.busy_until_s > now_s else now_s
        chunk.begun_s = now_s
        n = chunk.stop - chunk.start
        if state.curve is not None:
            chunk.due_s = state.busy_until_s = begins + state.seconds(n)
        if not state.chunks:
            state.begun_s = now_s
            state.probing = state.search is not None and state.search.wants(n)
        state.load += n
        state.chunks += 1
        self.active.append(chunk)
        if self.idle:
            self.idle.clear()
            self._wake(now_s)  # those who declined did so without knowing of this one

    def _second(self, device: int, now_s: float) -> Chunk | None:
        """A copy of a range that this idle device would finish before the one that has it."""
        state = self.view.devices[device]
        if state.curve is None or state.chunks or state.out:
            return None
        late: Chunk | None = None
        gain = 0.0
        for chunk in self.active:
            if chunk.device == device or chunk.settled or chunk.rival is not None or device in chunk.avoid:
                continue
            if len(chunk) > min(state.limit, state.size or inf, self.copied * self.view.total):
                continue
            own_s = state.seconds(len(chunk))
            planned_s = (chunk.due_s if chunk.due_s < inf else chunk.begun_s + own_s) - chunk.begun_s
            overdue_s = chunk.begun_s + planned_s * (1 + max(_PATIENCE, 3 * self.view.devices[chunk.device].spread))
            # One that is well overdue is expected to take as long again as it already took.
            expected_s = chunk.begun_s + planned_s if now_s < overdue_s else 2 * now_s - chunk.begun_s
            saved_s = expected_s - now_s - own_s
            if saved_s > gain and saved_s > _WORTH * own_s:
                late, gain = chunk, saved_s
            else:
                wake_s = overdue_s if now_s < overdue_s else chunk.begun_s + (1 + 1.01 * _WORTH) * own_s
                if now_s < wake_s < self.wake_s:
                    self.wake_s = wake_s
        if late is None:
            return None
        copy = Chunk(late.start, late.stop, device, late.attempt, late.avoid)
        copy.rival, late.rival, copy.again = late, copy, True
        self._begin(copy, now_s)
        self.copies.add((device, copy.start, now_s))
        return copy

    def claim(self, chunk: Chunk) -> bool:
        """Whether this is the first result for its range; a later one is thrown away."""
        if chunk.rival is not None and chunk.rival.claimed:
            return False
        chunk.claimed = True
        return True

    def done(self, chunk: Chunk, now_s: float, seconds: float) -> None:
        """A chunk ended well, and its result is stored unless its rival was first."""
        beside = self.view.devices[chunk.device].begun_s > chunk.begun_s  # another one ended since
        state = self._end(chunk, now_s)
        if chunk.avoid:
            self._blame(chunk)
        n = chunk.stop - chunk.start
        if state.one_s:
            self.view.looked(state, n, seconds)
        if self.learns:
            state.observed(n, seconds, beside)
        if chunk.claimed:
            chunk.settled = True
            self.done_items += n
            if chunk.rival is not None and chunk.rival in self.active and self.learns:
                self.view.devices[chunk.rival.device].outrun(n, now_s - chunk.rival.begun_s)
        text = "done" if chunk.claimed else "lost"
        self.rows.append((chunk.device, chunk.start, chunk.stop, chunk.begun_s, now_s, chunk.attempt, text))

    @property
    def log(self) -> list[ChunkRow]:
        """What was done with every range, in the order in which it ended."""
        return [ChunkRow(*row) for row in self.rows]

    def _blame(self, chunk: Chunk) -> None:
        """A range was done on which other devices had failed: it was they, not the range."""
        for device in chunk.avoid:
            self.doubts[device] -= 1
            self.strikes[device] += 1
            if self.strikes[device] >= _OUT_AFTER and not self._alone(device):
                self.view.devices[device].alive = False
                self._orphans(chunk.error or RuntimeError("out of service"))

    def _end(self, chunk: Chunk, now_s: float) -> DeviceState:
        state = self.view.devices[chunk.device]
        self.active.remove(chunk)
        state.load -= chunk.stop - chunk.start
        state.chunks -= 1
        state.begun_s = now_s
        if not state.chunks:
            state.busy_until_s = now_s
        self.wake_s = inf
        if self.idle:
            self.idle.clear()
        return state

    def halved(self, chunk: Chunk, now_s: float, error: BaseException) -> None:
        """The chunk did not fit in the device's memory: its halves come back, and it takes no more than that."""
        n = len(chunk)
        if n == 1:
            self.failed(chunk, now_s, error, lost=not self._alone(chunk.device))
            return
        state = self._end(chunk, now_s)
        state.lower_limit(n // 2)
        self._row(chunk, now_s, error)
        if self._rivalled(chunk):
            return
        middle = chunk.start + n // 2
        for start, stop in ((chunk.start, middle), (middle, chunk.stop)):
            self.returned.append(Chunk(start, stop, -1, chunk.attempt, chunk.avoid))
        for other in chunk.avoid:  # two ranges now
            self.doubts[other] += 1

    def failed(self, chunk: Chunk, now_s: float, error: BaseException, *, lost: bool = False) -> None:
        """The chunk failed: another device tries it, or the failure is final. `lost`: the device is gone."""
        state = self._end(chunk, now_s)
        device = chunk.device
        self._row(chunk, now_s, error)
        for other in chunk.avoid:  # it is the data, then
            self.doubts[other] -= 1
        if isinstance(error, ResultFormError):  # a copy of any other range would be refused as well
            self.backup = False
        if not self._rivalled(chunk):
            attempt = chunk.attempt + (not lost)
            again = Chunk(chunk.start, chunk.stop, device, attempt, chunk.avoid | {device})
            again.error = error
            final = (chunk.claimed and not lost) or isinstance(error, ResultFormError)
            if final or self.on_error == "fail" or attempt > self.retries + 1:
                self._give_up(chunk, error)
            else:
                self.returned.insert(0, again)
                for other in again.avoid:
                    self.doubts[other] += 1
        if lost:
            state.alive = False
        self._orphans(error)

    def lose(self, device: int, error: BaseException) -> None:
        """The device is gone: nothing more goes to it."""
        if self.view.devices[device].alive:
            self.view.devices[device].alive = False
            self._orphans(error)

    def _orphans(self, error: BaseException) -> None:
        """Give up what no live device can do."""
        for each in [each for each in self.returned if not self._able(each)]:
            self.returned.remove(each)
            each.attempt -= 1  # the one that was to come will not
            self._give_up(each, each.error or error)
            for other in each.avoid:
                self.doubts[other] -= 1
        if not any(s.alive for s in self.view.devices) and not self.stopped and self.cursor.remaining > 0:
            self.stopped = True
            if not self.failures:
                self.failures.append((Chunk(self.done_items, self.done_items, 0), error))

    def _able(self, chunk: Chunk) -> bool:
        """Whether a live device has not failed on this range."""
        return any(s.alive and i not in chunk.avoid for i, s in enumerate(self.view.devices))

    def _give_up(self, chunk: Chunk, error: BaseException) -> None:
        self.failures.append((chunk, error))
        if self.on_error != "skip":
            self.stopped = True
        elif hasattr(self.cursor, "give_up"):
            self.cursor.give_up(chunk.start)

    def _alone(self, device: int) -> bool:
        return not any(s.alive for i, s in enumerate(self.view.devices) if i != device)

    def _rivalled(self, chunk: Chunk) -> bool:
        """Whether another device has the result of this range, or is at it."""
        rival = chunk.rival
        if rival is None or chunk.claimed:
            return False
        rival.rival = None
        return rival.claimed or rival in self.active

    def _row(self, chunk: Chunk, now_s: float, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        self.rows.append((chunk.device, chunk.start, chunk.stop, chunk.begun_s, now_s, chunk.attempt, text))

    def stop(self, error: BaseException | None = None) -> None:
        """Hand nothing more out; what is under way may end. `error`: why, unless all is done."""
        if error is not None and not self.finished:
            self.failures.append((Chunk(self.done_items, self.done_items, 0), error))
        self.stopped = True

    def oldest(self, chunk: Chunk) -> int:
        """The item before which nothing will be asked for again, now that this chunk has ended."""
        open_ = [*self.active, *self.returned, *(failed for failed, _ in self.failures)]
        return min((each.start for each in open_), default=chunk.stop)

    def missing(self, items: int) -> list[tuple[int, int]]:
        """The ranges of so many items that have no result.

        >>> from dovetail.dispatch.inputs.cursor import LocalCursor
        >>> from dovetail.dispatch.policies.fixed import Fixed
        >>> scheduler = ChunkScheduler(LocalCursor(0, 10), Fixed(size=4), [DeviceState("cpu", size=4)])
        >>> chunk = scheduler.take(0, 0.0)
        >>> scheduler.claim(chunk), scheduler.done(chunk, 1.0, 1.0)
        (True, None)
        >>> scheduler.missing(10)
        [(4, 10)]
        """
        return gaps([(row.start, row.stop) for row in self.log if row.state == "done"], items)
