"""Who shares the pool: tenants with a weight, a quota of GPUs and a bounded queue, as the configuration names them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import did_you_mean
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.costs import ModelCost

OTHERS = EVERYBODY = "*"  # stands for each tenant that is not named, and in a rejection for all together
NOBODY = "-"  # whose the requests are that do not say
_LEAST = 1e-6
_MOST = 1e12


class Tenant(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one tenant may have: a share by its weight, so many GPUs at once, so many requests that wait."""

    weight: float = 1.0
    quota_gpus: float | None = None
    max_queue: int | None = None

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        for name, value in (("weight", self.weight), ("quota_gpus", self.quota_gpus)):
            if value is not None and not _LEAST <= value <= _MOST:
                return f"{name}: expected a positive number from {_LEAST:g} to {_MOST:g}, found {value}"
        return _queue_problem(self.max_queue)


class Sharing(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tenants share: by how many seconds of service per weight one may be ahead of another before it must wait
    for its turn (0: strict turns; more: fewer switches), and how many requests of all tenants may wait."""

    tolerance_s: float = 60.0
    max_queue: int | None = None

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        if not 0 <= self.tolerance_s <= _MOST:
            return f"tolerance_s: expected a number from 0 to {_MOST:g}, found {self.tolerance_s}"
        return _queue_problem(self.max_queue)


def _queue_problem(most: int | None) -> str | None:
    return None if most is None or most >= 1 else f"max_queue: expected 1 or more requests, found {most}"


class Tenancy(Struct, frozen=True, omit_defaults=True):
    """The tenants of a configuration and how they share. With nobody named, everything belongs to one."""

    tenants: dict[str, Tenant] = {}
    sharing: Sharing = Sharing()

    def problem(self) -> str | None:
        """What is wrong, with its key, or None."""
        for name, tenant in self.tenants.items():
            if (wrong := tenant.problem()) is not None:
                return f"tenants.{name}.{wrong}"
        wrong = self.sharing.problem()
        return None if wrong is None else f"sharing.{wrong}"

    def without_queues(self) -> Tenancy:
        """The same for who admits requests by other means."""
        tenants = {name: replace(tenant, max_queue=None) for name, tenant in self.tenants.items()}
        return Tenancy(tenants, replace(self.sharing, max_queue=None))

    def rule(self, name: str) -> Tenant:
        """What a tenant may have; one that is not named has what the others have, or with nobody named anything."""
        found = self.tenants.get(name) or self.tenants.get(OTHERS)
        return found or Tenant()

    def why_not(
        self, name: str, graph: TaskGraph | None = None, models: Mapping[str, ModelCost] | None = None
    ) -> str | None:
        """Why a tenant is none, or why its request for a graph can never run; or None."""
        if name == EVERYBODY:
            return f"{name!r} stands for all who are not named; expected a name"
        if self.tenants and name not in self.tenants and OTHERS not in self.tenants:
            if name == NOBODY:
                return f"missing; expected one of the configuration's: {', '.join(self.tenants)}"
            return f"unknown tenant {name!r}{did_you_mean(name, self.tenants)}"
        if graph is None or models is None:
            return None
        return next(filter(None, (self.too_wide(name, task.name, models[task.kind]) for task in graph.tasks)), None)

    def too_wide(self, name: str, node: str, model: ModelCost) -> str | None:
        """Why a tenant's quota has no room for a node of a model, or None."""
        quota, needs = self.rule(name).quota_gpus, quota_share(model)
        if quota is None or needs <= quota:
            return None
        return f"{name!r} may hold {quota:g} GPUs at once (quota_gpus), but node {node!r} needs {needs:g}"


def quota_share(model: ModelCost) -> float:
    """GPUs that a node counts against its tenant's quota: its width, or its slot's part of that."""
    return model.width / (model.slots or 1)
