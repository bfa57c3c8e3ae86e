"""The guard of runs with tenants: what starts beyond a quota is refused, whatever the scheduler believes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.core.errors import PolicyError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Instruction, Reject, Start, Stimulus
from dovetail.core.loop.guard import Guard
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.tenants import Tenancy
from dovetail.workflow.tenants.accounts import EPS, held_share, tenant_of


class QuotaGuard(Guard):
    """Counts the GPUs that each tenant holds."""

    def __init__(
        self,
        pool: Pool,
        graphs: Mapping[str, TaskGraph],
        tenancy: Tenancy,
        kinds: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(pool, graphs, kinds)
        self._tenancy = tenancy
        self._tenant: dict[str, str] = {}  # of each open request
        self._holds: dict[tuple[str, str], tuple[str, int, float]] = {}  # tenant, batch, GPUs
        self._in_batches: dict[tuple[str, int], int] = {}
        self._held_by: dict[str, float] = {}

    def see(self, stimulus: Stimulus, now: float) -> None:
        super().see(stimulus, now)
        if type(stimulus) is Arrived:
            self._tenant[stimulus.job] = tenant_of(stimulus.facts)
        elif type(stimulus) is Finished or type(stimulus) is Failed:
            tenant, batch, gpus = self._holds.pop((stimulus.job, stimulus.task))
            if not batch or self._leave_batch(tenant, batch):
                self._held_by[tenant] -= gpus

    def _leave_batch(self, tenant: str, batch: int) -> bool:
        """Whether nothing of the tenant is in the batch any more."""
        inside = self._in_batches.pop((tenant, batch)) - 1
        if inside:
            self._in_batches[tenant, batch] = inside
        return not inside

    def allow(self, order: Instruction, now: float) -> None:
        super().allow(order, now)
        if type(order) is Start:
            self._hold(order, now)
        elif type(order) is Complete or type(order) is Reject:
            del self._tenant[order.job]

    def _hold(self, order: Start, now: float) -> None:
        tenant, gpus = self._tenant[order.job], held_share(order)
        quota = self._tenancy.rule(tenant).quota_gpus
        inside = self._in_batches.get((tenant, order.batch), 0) if order.batch else 0
        held = self._held_by.get(tenant, 0.0) + (0.0 if inside else gpus)  # a batch counts once
        if quota is not None and held > quota + EPS:
            where = f"[{now:.2f}s] start of {order.job}/{order.task} on {list(order.devices)} refused: "
            raise PolicyError(f"{where}tenant {tenant!r} would hold {held:g} GPUs, and its quota is {quota:g}")
        self._held_by[tenant] = held
        self._holds[order.job, order.task] = (tenant, order.batch, gpus)
        if order.batch:
            self._in_batches[tenant, order.batch] = inside + 1
