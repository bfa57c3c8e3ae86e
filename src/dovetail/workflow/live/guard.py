"""The guard of live runs: what starts on a GPU that is gone is refused, whatever the scheduler believes."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Added, Instruction, Observed, Prepare, Start, Stimulus
from dovetail.core.journal import Header
from dovetail.workflow.capacity import BACK, EMPTIED, GONE
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.inputs.tenants import Tenancy
from dovetail.workflow.tenants.guard import QuotaGuard


class LiveGuard(QuotaGuard):
    """Knows which GPUs are there. Made from the header of the run that it guards."""

    def __init__(self, header: Header, path: Path = Path("journal")) -> None:
        facts = WorkflowFacts.of(header, path)
        tenancy = facts.tenancy if facts.tenancy is not None else Tenancy()
        kinds = {name: model.width for name, model in facts.models.items()}
        super().__init__(header.pool, header.build_graphs(), tenancy, kinds)
        self._size = len(header.pool)
        self._away: set[int] = set()

    def see(self, stimulus: Stimulus, now: float) -> None:
        super().see(stimulus, now)
        if isinstance(stimulus, Added):
            self._size += len(stimulus.devices)
        elif isinstance(stimulus, Observed) and stimulus.what in (EMPTIED, GONE, BACK):
            gpus = stimulus.facts.get("gpus")
            if not isinstance(gpus, list) or not all(type(gpu) is int and 0 <= gpu < self._size for gpu in gpus):
                expected = f"expected a list of 0 to {self._size - 1}"
                raise InputError(f"[{now:.2f}s] GPUs {gpus} were said to be {stimulus.what}, {expected}")
            if stimulus.what == GONE:
                self._away.update(gpus)
            elif stimulus.what == BACK:
                self._away.difference_update(gpus)

    def allow(self, order: Instruction, now: float) -> None:
        if isinstance(order, Start | Prepare) and (gone := self._away.intersection(order.devices)):
            what = f"start of {order.job}/{order.task}" if isinstance(order, Start) else f"preload of {order.kind}"
            where = f"[{now:.2f}s] {what} on {list(order.devices)} refused: "
            raise PolicyError(f"{where}GPU {min(gone)} is gone")
        super().allow(order, now)
