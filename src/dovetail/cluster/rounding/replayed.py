"""A recorded run, decided again: the rounds that its journal came from are gone through anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol

import msgspec
import numpy as np

from dovetail.core.errors import ReplayError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader

AT_ONCE = ("completed", "phase", "failed", "mended")  # what is acted on at once, and does not begin a round


class _Rounds(Protocol):
    """What is needed of the state machine."""

    next_round_s: float

    @property
    def busy(self) -> bool: ...
    @property
    def plan_s(self) -> float: ...
    def handle(self, happened: Sequence[Rows], now: float) -> list[Rows]: ...
    def close(self, now: float) -> list[Rows]: ...
    def pass_over(self, until_s: float) -> None: ...


class ReplayedRounds:
    """Decides a recorded run again.

    Rounds in which nothing was decided are not in the journal: they are gone through on the way to what is.
    """

    hears = decides = (Rows,)

    def __init__(self, rounds: _Rounds, reader: Reader, window: tuple[int, int] | None) -> None:
        self._rounds = rounds
        self._arrivals: deque[float] = deque()
        self._outages: deque[float] = deque()
        for _, t, events in reader.rows():
            for rows in events:
                if isinstance(rows, Rows) and rows.of == "arrived":
                    self._arrivals.append(min(rows.columns["at_s"]))
                elif isinstance(rows, Rows) and rows.of in ("failed", "mended"):
                    self._outages.append(t)
        self._price_until = inf
        self._open = set(range(*window)) if window else None

    def handle(self, happened: Sequence[Any], now: float) -> list[Rows]:
        """What is decided about what was seen."""
        seen = [rows for rows in happened if isinstance(rows, Rows) and not rows.decided]
        if not seen and self._open is not None and not self._open:
            return as_read(self._rounds.close(now))
        self._catch_up(now, any(rows.of in AT_ONCE for rows in seen))
        for rows in seen:
            if rows.of == "arrived":
                self._arrivals.popleft()
            elif rows.of in ("failed", "mended"):
                self._outages.popleft()
            elif rows.of == "prices":
                self._price_until = rows.columns.get("until_s", [inf])[0]
        found = self._rounds.handle(seen, now)
        for rows in found:
            if self._open is not None and rows.of in ("completed", "rejected"):
                self._open.difference_update(np.asarray(rows.columns["id"]).tolist())
        return as_read([rows for rows in found if rows.decided])

    def close(self, now: float) -> list[Rows]:
        return self.handle([], now)

    def _catch_up(self, now: float, inside: bool) -> None:
        """Go through the rounds that come before this instant; one that is due now is not one of them."""
        rounds = self._rounds
        while rounds.busy and (min(rounds.plan_s, rounds.next_round_s) < now or self._due(now, inside)):
            at = rounds.plan_s
            if at == inf:
                coming = (queue[0] for queue in (self._arrivals, self._outages) if queue)
                rounds.pass_over(min(*coming, self._price_until, inf))
                if rounds.next_round_s >= now and not inside:
                    return
                at = rounds.next_round_s
            if unseen := rounds.handle([], at):
                raise ReplayError(f"at {at} s nothing is recorded, and {unseen} is decided now")

    def _due(self, now: float, inside: bool) -> bool:
        return self._rounds.next_round_s == now and not inside


class RecordedRounds:
    """Decides a recorded live run again: whatever was due is in its journal."""

    hears = decides = (Rows,)

    def __init__(self, rounds: _Rounds) -> None:
        self._rounds = rounds

    def handle(self, happened: Sequence[Any], now: float) -> list[Rows]:
        """What is decided about what was seen; where nothing was, the run is over."""
        seen = [rows for rows in happened if isinstance(rows, Rows) and not rows.decided]
        found = self._rounds.handle(seen, now) if seen else self._rounds.close(now)
        return as_read([rows for rows in found if rows.decided])

    def close(self, now: float) -> list[Rows]:
        return self.handle([], now)


def as_read(found: list[Rows]) -> list[Rows]:
    """Rows as they are read from a journal: lists in the place of arrays."""
    return msgspec.json.decode(msgspec.json.encode(found, enc_hook=lambda column: column.tolist()), type=list[Rows])
