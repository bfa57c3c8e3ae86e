"""Whose turn it is: a policy is shown the tenants that were served least, and more of them as long as it passes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from dovetail.core.events import Decided, Instruction
from dovetail.workflow.policies.base import Place, Wait
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.tenants.accounts import Tenants
from dovetail.workflow.tenants.lanes import LaneView
from dovetail.workflow.tenants.ledger import PASSED


class Turns:
    """Asks a policy, tenant by tenant. When nothing is started, it has been asked with all that quotas allow: fairness
    alone leaves no GPU idle. A policy that kept a node for which its tenant has no room any more finds it gone, and
    is asked again: `renew` puts another into its place."""

    def __init__(
        self,
        view: LaneView,
        tenants: Tenants,
        ask: Callable[[], Place | Wait | None],
        renew: Callable[[ReadyNode], None],
    ) -> None:
        self._view = view
        self._tenants = tenants
        self._ask = ask
        self._renew = renew
        view.come_back = tenants.come_back

    def choose(self, out: list[Instruction]) -> Place | Wait | None:
        renewed: set[tuple[str, int]] = set()
        while True:
            choice = self._choose(out)
            if not isinstance(choice, Place) or choice.node.gone or self._view.is_offered(choice.node):
                return choice
            node = choice.node
            if (node.request.id, node.index) in renewed:  # it insists
                return None
            renewed.add((node.request.id, node.index))
            self._renew(node)

    def _choose(self, out: list[Instruction]) -> Place | Wait | None:
        view, tenants = self._view, self._tenants
        rooms = {name: tenants.account(name).room for name in view.ready_tenants()}
        offered: dict[str, float] = {}
        passed: list[str] = []
        until_s, choice = inf, None
        for turn in tenants.turns(name for name, room in rooms.items() if view.may_start(name, room)):
            offered |= {name: rooms[name] for name in turn}
            view.offer(offered)
            choice = self._ask()
            if isinstance(choice, Place) and (choice.node.gone or view.is_offered(choice.node)):
                if passed:
                    out.append(Decided(PASSED, "the policy starts nothing of theirs now", {"tenants": passed}))
                tenants.take(turn)
                return choice
            if isinstance(choice, Wait):
                until_s = min(until_s, choice.until_s)
            passed = list(offered)
        if isinstance(choice, Place):
            return choice
        return Wait(until_s) if until_s < inf else None
