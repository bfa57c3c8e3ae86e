"""All cores in use, shared in proportion to what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.registry import policy
from dovetail.host.policies.base import Assignment, MachineView, count
from dovetail.host.program import Program


def proportional(weights: Sequence[int], lows: Sequence[int], highs: Sequence[int], total: int) -> list[int]:
    """Whole shares in proportion to weights, each within its bounds, the largest remainders first.

    >>> proportional([12, 12, 4], [1, 1, 1], [16, 16, 16], 16), proportional([1, 1], [1, 9], [16, 16], 12)
    ([7, 7, 2], [3, 9])
    """
    shares: list[float] = [0.0] * len(weights)
    open_ = list(range(len(weights)))
    left = min(total, sum(highs))
    while open_:  # who is out of bounds at the common rate gets its bound, and the others share the rest
        rate = left / sum(weights[i] for i in open_)
        over = [i for i in open_ if weights[i] * rate > highs[i]]
        under = [i for i in open_ if weights[i] * rate < lows[i]]
        excess = sum(weights[i] * rate - highs[i] for i in over)
        shortage = sum(lows[i] - weights[i] * rate for i in under)
        fixed = (over if excess > shortage else under) or over
        for i in fixed or open_:
            shares[i] = highs[i] if i in over else lows[i] if i in under else weights[i] * rate
        if not fixed:
            break
        left -= int(sum(shares[i] for i in fixed))
        open_ = [i for i in open_ if i not in fixed]
    whole = [int(share + 1e-9) for share in shares]
    rest = min(total, sum(highs)) - sum(whole)
    for i in sorted(range(len(shares)), key=lambda i: (round(whole[i] - shares[i], 9), i)):
        if rest > 0 and whole[i] < highs[i]:
            whole[i] += 1
            rest -= 1
    return whole


@policy("max_prop", level="host")
class MaxProp(Assignment):
    """Programs share all cores in proportion to what they ask for; the running ones shrink for those that come."""

    exceeds = shrinks = True

    def most(self, program: Program, view: MachineView) -> int:
        return program.most

    def take(self, program: Program, view: MachineView) -> int:
        return program.least if view.spare >= program.least else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return program.least - view.spare

    def frees(self, program: Program, view: MachineView) -> int:
        return view.low(program)

    def must_start(self, program: Program, view: MachineView) -> bool:
        return program.least <= view.free

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        return {p.id: view.high(p, p.most) for p in view.running}

    def spread(self, view: MachineView) -> Mapping[str, int]:
        members = view.running
        lows = [view.low(p) for p in members]
        highs = [max(view.high(p, p.most), low) for p, low in zip(members, lows, strict=True)]
        shares = proportional([p.asked for p in members], lows, highs, view.cores - view.held)
        return {p.id: share for p, share in zip(members, shares, strict=True)}

    def refusal(self, program: Program, view: MachineView) -> str:
        return f"needs at least {count(program.least)}, the others can spare {max(view.spare, 0)}"

    def reason(self, program: Program, cores: int, view: MachineView) -> str:
        asked = sum(p.asked for p in view.running)
        return f"{cores} of {view.cores} cores for {program.asked} of {asked} asked"
