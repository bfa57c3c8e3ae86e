"""What each tenant got: requests, times, GPU-seconds, and how that compares with what its weight entitles it to."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.core.events import Arrived, Complete, Decided, Reject
from dovetail.core.metrics import Spread
from dovetail.core.tasks import TaskGraph
from dovetail.core.words import Claim
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy
from dovetail.workflow.tenants.ledger import PASSED, TenantLedger


class TenantFigures(Struct, frozen=True):
    """One tenant. `full` of the rejected found the queue full; `setup_gpu_s` of its GPU-seconds made models resident;
    `received_gpu_s` is what it got beside others while some tenant wanted more (had something ready for which its
    quota had room), `entitled_gpu_s` what of the same GPUs it would have got by weighted max-min: up to its quota where
    it wanted more, else up to what it had."""

    name: str
    weight: float
    requests: int
    completed: int
    rejected: int
    full: int
    response_s: Spread
    gpu_s: float
    setup_gpu_s: float
    passed: int
    received_gpu_s: float
    entitled_gpu_s: float

    @property
    def fairness(self) -> float:
        """What it got over what it was entitled to; 1 is fair, and who never had to compete was treated fairly."""
        return self.received_gpu_s / self.entitled_gpu_s if self.entitled_gpu_s else 1.0


def jain(tenants: Sequence[TenantFigures]) -> float:
    """Jain's index of what tenants got over what they were entitled to, each counted with that: 1 is fair, 1 over
    their number where one of equals got everything."""
    entitled = sum(tenant.entitled_gpu_s for tenant in tenants)
    uneven = sum(t.received_gpu_s * (t.received_gpu_s / t.entitled_gpu_s) for t in tenants if t.entitled_gpu_s)
    return entitled / uneven if uneven else 1.0


def max_min(gpus: float, weights: Mapping[str, float], most: Mapping[str, float]) -> dict[str, float]:
    """Weighted max-min shares: in proportion to weights, but nobody gets more than it can use, and what is left so goes
    to the others.

    >>> max_min(6, {"ann": 1, "bob": 5, "cy": 1}, {"ann": 9, "bob": 2, "cy": 9})
    {'bob': 2, 'ann': 2.0, 'cy': 2.0}
    """
    shares, left = dict[str, float](), sum(weights.values())
    for name in sorted(weights, key=lambda name: most[name] / weights[name]):  # who has enough first comes first
        shares[name] = min(most[name], gpus * weights[name] / left)
        gpus, left = gpus - shares[name], left - weights[name]
    return shares


class TenantMetrics:
    """Follows a run step by step."""

    def __init__(self, graphs: Mapping[str, TaskGraph], models: Mapping[str, ModelCost], tenancy: Tenancy) -> None:
        self._ledger = TenantLedger(graphs, models, tenancy)
        self._t = 0.0
        self._of: dict[str, tuple[str, float]] = {}  # open requests: whose, and since when
        self._counts: Counter[tuple[str, str]] = Counter()
        self._response: dict[str, array[float]] = {}
        self._setup, self._received, self._entitled = (defaultdict[str, float](float) for _ in range(3))

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        if t > self._t:
            self._pass(t - self._t)
            self._t = t
        for event in events:
            if type(event) is Arrived:
                tenant = event.facts.get("tenant", NOBODY)
                self._ledger.state(tenant)
                self._of[event.job] = (tenant, t)
                self._counts["requests", tenant] += 1
            elif type(event) is Complete or type(event) is Reject:
                self._close(t, event)
            elif type(event) is Decided and event.what == PASSED:
                self._counts.update(("passed", tenant) for tenant in event.facts.get("tenants", ()))
        for members in self._ledger.starts(t, events):
            joins = self._ledger.is_shared(members[0].devices)  # and waits for a load that another caused
            for start in members if members[0].setup_s and not joins else ():
                tenant, _ = self._of.get(start.job, (NOBODY, t))
                self._setup[tenant] += start.setup_s * len(start.devices) / len(members)

    def _close(self, t: float, event: Complete | Reject) -> None:
        tenant, since = self._of.pop(event.job, (NOBODY, t))
        if type(event) is Complete:
            self._response.setdefault(tenant, array("d")).append(t - since)
        elif type(event) is Reject:
            self._counts["rejected", tenant] += 1
            self._counts["full", tenant] += bool(event.queue)

    def _pass(self, seconds: float) -> None:
        """Time passes: where a tenant wants more beside others, what each has is compared with what is fair."""
        wanting = {state.name: None for state in self._ledger.tenants.values() if state.may_start}  # in order
        if not wanting:
            return
        has = self._ledger.rates()
        rules = {name: self._ledger.state(name) for name in {**has, **wanting}}
        if len(rules) < 2:
            return
        most = {name: rule.quota if name in wanting else has[name] for name, rule in rules.items()}
        fair = max_min(sum(has.values()), {name: rule.weight for name, rule in rules.items()}, most)
        for name, gpus in fair.items():
            self._received[name] += seconds * has.get(name, 0.0)
            self._entitled[name] += seconds * gpus

    def figures(self) -> list[TenantFigures]:
        """All tenants that sent something, by name."""
        found = []
        for name, state in sorted(self._ledger.tenants.items()):
            response = self._response.get(name, array("d"))
            counts = {key: self._counts[key, name] for key in ("requests", "rejected", "full", "passed")}
            found.append(
                TenantFigures(
                    name=name,
                    weight=state.weight,
                    completed=len(response),
                    response_s=Spread.of(response),
                    gpu_s=state.service_s,
                    setup_gpu_s=self._setup[name],
                    received_gpu_s=self._received[name],
                    entitled_gpu_s=self._entitled[name],
                    **counts,
                )
            )
        return found


CLAIMS = (
    Claim("jain", "Jain's index of fairness"),
    Claim("tenant_requests", "requests", "count"),
    Claim("tenant_rejected", "rejected", "count"),
    Claim("tenant_mean_s", "mean response", "s"),
    Claim("tenant_p99_s", "P99 response", "s"),
    Claim("tenant_gpu_s", "GPU-seconds"),
    Claim("tenant_share", "share of GPU-seconds", "share"),
    Claim("tenant_weight_share", "share by weight", "share"),
    Claim("tenant_fairness", "got over entitled"),
)


def tenant_summary(tenants: Sequence[TenantFigures]) -> dict[str, Any]:
    """The figures for a journal's end: one number, and for each figure one for each tenant."""
    gpu_s, weights = sum(t.gpu_s for t in tenants), sum(t.weight for t in tenants)
    return {
        "jain": jain(tenants),
        "tenant_requests": {t.name: t.requests for t in tenants},
        "tenant_rejected": {t.name: t.rejected for t in tenants},
        "tenant_full": {t.name: t.full for t in tenants},
        "tenant_passed": {t.name: t.passed for t in tenants},
        "tenant_mean_s": {t.name: t.response_s.mean for t in tenants},
        "tenant_p99_s": {t.name: t.response_s.p99 for t in tenants},
        "tenant_gpu_s": {t.name: t.gpu_s for t in tenants},
        "tenant_setup_gpu_s": {t.name: t.setup_gpu_s for t in tenants},
        "tenant_share": {t.name: t.gpu_s / gpu_s if gpu_s else 0.0 for t in tenants},
        "tenant_weight_share": {t.name: t.weight / weights for t in tenants},
        "tenant_fairness": {t.name: t.fairness for t in tenants},
    }


def tenant_block(summed: Mapping[str, Any]) -> str:
    """The figures as a block of text."""
    names = list(summed["tenant_requests"])
    wide = max([len("tenant"), *map(len, names)])
    lines = ["", f"Tenants (Jain's index {summed['jain']:.3f}, 1 is fair):"]
    lines.append(
        f"  {'tenant':<{wide}} requests rejected      mean       P99  GPU-seconds  share by weight got/entitled"
    )
    for name in names:
        of = {key.removeprefix("tenant_"): row[name] for key, row in summed.items() if key.startswith("tenant_")}
        lines.append(
            f"  {name:<{wide}} {of['requests']:>8} {of['rejected']:>8} {of['mean_s']:>8.2f}s {of['p99_s']:>8.2f}s"
            f" {of['gpu_s']:>12.1f} {of['share']:>6.1%} {of['weight_share']:>9.1%} {of['fairness']:>12.2f}"
        )
    return "\n".join(lines)
