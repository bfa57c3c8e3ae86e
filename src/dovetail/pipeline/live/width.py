"""Which width to send with: the widest that keeps up with a target rate, without flapping between two of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

_HEADROOM = 0.85  # a wider width must need no more than this part of the time there is


class LinkSpeed(Struct, frozen=True):
    """What a sender measured over a window: what moved, and for how long the link was busy with it."""

    sent_bytes: float
    busy_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.sent_bytes / self.busy_s if self.busy_s > 0 else float("inf")


def choose_bits(
    now: int, widths: Sequence[int], full_bytes: float, full_bits: int, speed: LinkSpeed, budget_s: float
) -> int:
    """The width to use from now on.

    A microbatch has `full_bytes` at `full_bits` per value, and may take `budget_s` on the link. It narrows when the
    present width is too slow, to the widest that is not (the narrowest if all are), and widens only with room to spare.

    >>> fast = LinkSpeed(sent_bytes=4e6, busy_s=1.0)
    >>> choose_bits(32, (32, 16, 8, 4), full_bytes=4e6, full_bits=32, speed=fast, budget_s=0.3)
    8
    >>> choose_bits(8, (32, 16, 8, 4), full_bytes=4e6, full_bits=32, speed=fast, budget_s=0.55)  # 16 would just do
    8
    >>> choose_bits(8, (32, 16, 8, 4), full_bytes=4e6, full_bits=32, speed=fast, budget_s=0.7)
    16
    """

    def needs_s(bits: int) -> float:
        return full_bytes * min(bits / full_bits, 1.0) / speed.bytes_per_s

    narrowest = min(widths)
    if needs_s(now) > budget_s:
        return max((bits for bits in widths if bits < now and needs_s(bits) <= budget_s), default=min(now, narrowest))
    return max([now, *(bits for bits in widths if needs_s(bits) <= _HEADROOM * budget_s)])
