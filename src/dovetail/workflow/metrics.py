"""A run's figures as text and as a flat summary, beside their lower bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core.events import Reject
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.bounds import Bounds

_REASONS = 5


class RejectionReasons:
    """How many requests were rejected for which reason, the first reasons that came up."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Reject and (event.why in self.reasons or len(self.reasons) < _REASONS):
                self.reasons[event.why] = self.reasons.get(event.why, 0) + 1


def gap(value: float, bound: float) -> float | None:
    """How far a figure is above its lower bound, as a share of the bound; None where there is no bound.

    >>> gap(11.0, 10.0)
    0.10000000000000009
    """
    return value / bound - 1 if bound > 0 else None


def switch_overhead(figures: Figures) -> float:
    """The share of all GPUs' time that went into making models resident."""
    total = figures.makespan_s * len(figures.devices)
    return sum(device.setup_s for device in figures.devices) / total if total else 0.0


def metrics_block(
    figures: Figures,
    bounds: Bounds | None = None,
    rejected: Mapping[str, int] | None = None,
    skipped: int = 0,
    simulate: bool = False,
    hit_rate: float | None = None,
) -> str:
    """The metrics as a block of text; `rejected` counts rejected requests by reason, `simulate` says that models were
    called, `hit_rate` is that of prefixes."""
    rule, response = "=" * 60, figures.response_s
    lines = ["", rule, "EXECUTION METRICS", rule]
    lines.append(f"Total execution time (makespan): {figures.makespan_s:.2f} seconds")
    added = f" ({figures.grown} added while requests ran)" if figures.grown else ""
    lines.append(f"Total nodes executed: {figures.tasks}{added}")
    lines.append(f"Simulation mode: {'true (models were called)' if simulate else 'false (no model was called)'}")
    counts = f"{figures.completed} completed, {figures.rejected} rejected"
    lines += ["", f"Requests: {counts}" + (f", {skipped} skipped" if skipped else "")]
    lines += [f"  {count} rejected: {why}" for why, count in (rejected or {}).items()]
    if rejected and figures.rejected > sum(rejected.values()):
        lines.append(f"  ... and {figures.rejected - sum(rejected.values())} for other reasons")
    if figures.failures:
        lines.append(f"Failed attempts: {figures.failures}")
    lines += ["", "Request completion times" + (":" if figures.completed else ": none was completed")]
    for name, value in (
        ("Average", response.mean),
        ("Median", response.median),
        ("P99", response.p99),
        ("Min", response.min),
        ("Max", response.max),
    ):
        if figures.completed:
            lines.append(f"  {name}: {value:.2f}s")
    lines += ["", "GPU utilization:"]
    for gpu in figures.devices:
        share = f"({100 * gpu.utilisation:.1f}% utilization)"
        lines.append(f"  GPU {gpu.id}: {gpu.executions} executions, {gpu.busy_s:.2f}s busy time {share}")
    lines += ["", "Model execution counts:"]
    lines += [f"  {model}: {count} executions" for model, count in figures.kinds.items()]
    lines += ["", "Model switching:", f"  Total switches: {figures.switches}"]
    lines.append(f"  Total switch time: {figures.switch_time_s:.2f} seconds")
    lines.append(f"  First loads: {figures.loads} ({figures.load_time_s:.2f} seconds)")
    lines.append(f"  Switch overhead: {100 * switch_overhead(figures):.1f}% of GPU time")
    if hit_rate is not None:
        lines += ["", f"Prefix blocks found cached: {100 * hit_rate:.1f}%"]
    if bounds is not None and bounds.void:
        lines += ["", f"Lower bounds: none ({bounds.void})"]
    elif bounds is not None:
        lines += ["", f"Lower bounds (no schedule can be shorter; makespan by {bounds.binding}):"]
        for name, value, bound in (
            ("Makespan", figures.makespan_s, bounds.makespan_s),
            ("Average", response.mean, bounds.mean_s),
            ("Median", response.median, bounds.median_s),
            ("P99", response.p99, bounds.p99_s),
        ):
            above = gap(value, bound)
            lines.append(f"  {name}: {bound:.2f}s" + ("" if above is None else f" (gap {100 * above:.2f}%)"))
    return "\n".join(lines)


def summary(
    header: Header, figures: Figures, bounds: Bounds, skipped: int = 0, hits: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a run came to, as flat figures: what `--format json` prints and what a journal ends with."""
    return {
        "policy": header.policy,
        "mode": header.mode,
        "gpus": len(header.pool),
        **recount(figures),
        **({"grown": figures.grown} if figures.grown else {}),
        "skipped": skipped,
        "switch_overhead": switch_overhead(figures),
        **(hits or {}),
        "bound_makespan_s": None if bounds.void else bounds.makespan_s,
        "bound_mean_s": None if bounds.void else bounds.mean_s,
        "bound_median_s": None if bounds.void else bounds.median_s,
        "bound_p99_s": None if bounds.void else bounds.p99_s,
        "bound_by": bounds.void or bounds.binding,
        "gap_makespan": gap(figures.makespan_s, bounds.makespan_s),
        "gap_mean": gap(figures.response_s.mean, bounds.mean_s),
        "gap_p99": gap(figures.response_s.p99, bounds.p99_s),
    }
