"""What is known of the demand for each model: how much comes, who can run only where, and how often strangers come."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from dovetail.workflow.gpus.residents import least_setup
from dovetail.workflow.policies.arrival_rates import ArrivalRate
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View


class Room:
    """GPUs that some models cannot do without: all that they fit on, and fewer than the pool has."""

    def __init__(self, gpus: frozenset[int], models: list[str], view: View) -> None:
        self.gpus = gpus
        self.models = models
        self.speed = sum(view.pool.speeds[gpu] for gpu in gpus)


class DemandPicture:
    """Follows arrivals; a policy keeps one and asks it."""

    def __init__(self, view: View) -> None:
        self.rates: dict[str, ArrivalRate] = {}
        self.deadlines = False  # whether any request had one
        self.resized(view)
        costs = structs.replace(view.costs, overlap=0.0)
        self.least_setup_s = least_setup(view.models, costs, view.rates)
        self._models = len(view.models)
        self._once = 0  # models that were asked for exactly once
        self._began_s = view.now
        self._loaded_s: dict[int, float] = {}  # when a GPU last got another model

    def resized(self, view: View) -> None:
        """The pool is another now."""
        self.rooms = _rooms(view)
        self.room_of = {model: room for room in self.rooms for model in room.models}  # the widest one wins

    def learned(self, model: str, view: View) -> None:
        """A load may take less than was known to be possible."""
        prices = [view.residents.price(gpu, model) for gpu in range(len(view.pool))]
        self.least_setup_s[model] = min([self.least_setup_s[model], *[price for price in prices if price]])

    def add(self, node: ReadyNode, now: float) -> None:
        """A node became ready."""
        rate = self.rates.get(node.model)
        if rate is None:
            rate = self.rates[node.model] = ArrivalRate()
        rate.add(now, node.size)
        self.deadlines = self.deadlines or node.request.due_s is not None
        if rate.seen <= 2:
            self._once += 1 if rate.seen == 1 else -1

    def loaded(self, gpus: Sequence[int], now: float) -> None:
        """These GPUs get another model."""
        for gpu in gpus:
            self._loaded_s[gpu] = now

    def stay_s(self, gpus: Sequence[int], now: float) -> float:
        """How long these GPUs have held their models, in the mean."""
        return now - sum([self._loaded_s.get(gpu, self._began_s) for gpu in gpus]) / len(gpus)

    def strangers(self, now: float, within_s: float) -> float:
        """How many models come in so many seconds that nobody has seen yet: as often as they were seen once so far
        (Good-Turing), and never more than there are."""
        unseen, past_s = self._models - len(self.rates), now - self._began_s
        return min(unseen, self._once / past_s * within_s) if past_s else 0.0

    def needed(self, model: str, now: float) -> float:
        """Windows that a model needs to keep up, at the upper end of the doubt."""
        rate = self.rates.get(model)
        return rate.windows(now) * (1 + rate.doubt) if rate else 0.0

    def room_slack(self, room: Room, view: View) -> float:
        """Windows of a room that those who can run only there leave over."""
        return room.speed - sum(self.needed(model, view.now) * view.models[model].width for model in room.models)


def _rooms(view: View) -> list[Room]:
    """The rooms of a pool whose GPUs have unlike memories, the narrowest last."""
    if not view.limited:
        return []
    gpus_of: dict[frozenset[int], list[str]] = {}
    for model, cost in view.models.items():
        if cost.width:
            gpus = frozenset(gpu for window in view.roomy_windows(model) for gpu in window)
            gpus_of.setdefault(gpus, []).append(model)
    small = sorted((gpus for gpus in gpus_of if 0 < len(gpus) < view.size), key=lambda g: (-len(g), sorted(g)))
    return [Room(g, [m for gpus in gpus_of if gpus and gpus <= g for m in gpus_of[gpus]], view) for g in small]
