"""A run's figures as text and as a flat summary, beside their lower bounds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core.events import Arrived, Complete, Finished, Observed, Reject, Start
from dovetail.core.journal import Header
from dovetail.core.metrics import Figures, Spread, recount
from dovetail.core.words import Claim
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.gpus.sharing import FIRST_TOKEN, TOKENS
from dovetail.workflow.inputs.growth.rules import said_of
from dovetail.workflow.inputs.slo import Slo

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
    tokens: Mapping[str, Any] | None = None,
    preloading: bool = False,
) -> str:
    """The metrics as a block of text; `rejected` counts rejected requests by reason, `simulate` says that models were
    called, `hit_rate` is that of prefixes, `tokens` has the figures of those, `preloading` says that models may have
    been loaded ahead of need."""
    rule, response = "=" * 60, figures.response_s
    lines = ["", rule, "EXECUTION METRICS", rule]
    lines.append(f"Total execution time (makespan): {figures.makespan_s:.2f} seconds")
    added = f" ({figures.grown} added while requests ran)" if figures.grown else ""
    lines.append(f"Total nodes executed: {figures.tasks}{added}")
    lines.append("Live: models were called" if simulate else "Simulated: no model was called")
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
    lines += token_lines(tokens or {})
    lines += ["", "GPU utilization:"]
    for gpu in figures.devices:
        share = f"({100 * gpu.utilisation:.1f}% utilization)"
        lines.append(f"  GPU {gpu.id}: {gpu.executions} executions, {gpu.busy_s:.2f}s busy time {share}")
    lines += ["", "Model execution counts:"]
    lines += [f"  {model}: {count} executions" for model, count in figures.kinds.items()]
    lines += ["", "Model switching:", f"  Total switches: {figures.switches}"]
    lines.append(f"  Total switch time: {figures.switch_time_s:.2f} seconds")
    lines.append(f"  First loads: {figures.loads} ({figures.load_time_s:.2f} seconds)")
    if figures.preloads or preloading:
        lines.append(f"  Preloads: {figures.preloads}, of which {figures.preloads_used} were of use")
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
    header: Header, figures: Figures, bounds: Bounds, skipped: int = 0, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a run came to, as flat figures: what `--format json` prints and what a journal ends with."""
    return {
        "policy": header.policy,
        "mode": header.mode,
        "gpus": len(header.pool),
        **recount(figures),
        **({"grown": figures.grown} if figures.grown else {}),
        **({"preloads": figures.preloads, "preloads_used": figures.preloads_used} if figures.preloads else {}),
        "skipped": skipped,
        "switch_overhead": switch_overhead(figures),
        **(more or {}),
        "bound_makespan_s": None if bounds.void else bounds.makespan_s,
        "bound_mean_s": None if bounds.void else bounds.mean_s,
        "bound_median_s": None if bounds.void else bounds.median_s,
        "bound_p99_s": None if bounds.void else bounds.p99_s,
        "bound_by": bounds.void or bounds.binding,
        "gap_makespan": gap(figures.makespan_s, bounds.makespan_s),
        "gap_mean": gap(figures.response_s.mean, bounds.mean_s),
        "gap_p99": gap(figures.response_s.p99, bounds.p99_s),
    }


# --- tokens: what those see who read what models write --------------------------------------------

TOKEN_CLAIMS = (
    *(
        Claim(f"{which}_{key}_s", f"{name}, {told}", "s")
        for key, name in (("ttft", "time to first token"), ("tpot", "time per output token"))
        for which, told in (("avg", "mean"), ("median", "median"), ("p99", "P99"))
    ),
    Claim("output_tokens_per_s", "output tokens per second", "number"),
    Claim("slo_met", "requests within the SLO", "share"),
    Claim("goodput_per_s", "goodput, requests per second", "number"),
)


def tokens_of(arrived: Arrived, node: str) -> tuple[int, int]:
    """How many tokens a node reads and writes, as far as its arrival says so in a way that can be understood."""
    given = said_of(node, arrived.facts.get("tokens"))
    if not isinstance(given, list) or len(given) != 2 or not all(type(n) is int and n >= 0 for n in given):
        return 0, 0
    return given[0], given[1]


class _Writing:
    """A node that writes tokens: how many, since when it has been ready, and when its first one came."""

    __slots__ = ("first_s", "ready_s", "tokens")

    def __init__(self, tokens: int, ready_s: float) -> None:
        self.tokens = tokens
        self.ready_s = ready_s
        self.first_s: float | None = None


class TokenMetrics:
    """Follows a run, and counts of every node whose tokens are known the last attempt, from when it was first ready. In
    a live run that is any node of which they are told, and those that were told count."""

    def __init__(self, slo: Slo | None = None, live: bool = False) -> None:
        self._slo, self._live = slo or Slo(), live
        self._asked = slo is not None
        self._open: dict[str, tuple[float, Arrived]] = {}
        self._late: set[str] = set()  # requests of which a node was too slow
        self._writing: dict[tuple[str, str], _Writing] = {}
        self._first, self._each = array("d"), array("d")
        self._arrived = self._good = self._tokens = 0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is Start:
                self._start(event)
            elif kind is Finished:
                self._finish(t, event)
            elif kind is Arrived:
                self._arrived += 1
                self._open[event.job] = (t, event)
            elif kind is Complete:
                self._complete(t, event.job)
            elif kind is Observed:
                node = self._writing.get((str(event.facts.get("job")), str(event.facts.get("task"))))
                if event.what == FIRST_TOKEN and node is not None:
                    node.first_s = t
                elif event.what == TOKENS and node is not None and type(told := event.facts.get("output")) is int:
                    node.tokens = max(0, told)
            elif kind is Reject:
                self._open.pop(event.job, None)
                self._late.discard(event.job)

    def _complete(self, t: float, job: str) -> None:
        if (opened := self._open.pop(job, None)) is not None:
            self._good += job not in self._late and t - opened[0] <= self._slo.response_s
            self._late.discard(job)

    def _start(self, start: Start) -> None:
        if (start.first_s is not None or self._live) and start.job in self._open:
            key = (start.job, start.task)
            again = self._writing.get(key)
            writes = tokens_of(self._open[start.job][1], start.task)[1]
            self._writing[key] = _Writing(writes, start.ready_s if again is None else again.ready_s)

    def _finish(self, t: float, event: Finished) -> None:
        node = self._writing.pop((event.job, event.task), None)
        if node is None or not node.tokens:
            return
        self._tokens += node.tokens
        if node.first_s is None:
            return
        first_s, each_s = node.first_s - node.ready_s, (t - node.first_s) / node.tokens
        self._first.append(first_s)
        self._each.append(each_s)
        if (first_s > self._slo.ttft_s or each_s > self._slo.tpot_s) and event.job in self._open:
            self._late.add(event.job)

    def figures(self, span: float) -> dict[str, Any]:
        """Over a run of so many seconds; nothing, if nobody counts tokens and nothing is asked of service."""
        found = dict[str, Any]()
        if self._first:
            for name, spread in (("ttft", Spread.of(self._first)), ("tpot", Spread.of(self._each))):
                found |= {f"avg_{name}_s": spread.mean, f"median_{name}_s": spread.median, f"p99_{name}_s": spread.p99}
        if self._tokens:
            found["output_tokens_per_s"] = self._tokens / span if span else 0.0
        if self._asked:
            found["slo_met"] = self._good / self._arrived if self._arrived else 0.0
            found["goodput_per_s"] = self._good / span if span else 0.0
        return found


def token_lines(figures: Mapping[str, Any]) -> list[str]:
    """What of it is to be told, as lines of text."""
    lines = []
    if "avg_ttft_s" in figures:
        lines += ["", "Tokens:"]
        for name, key in (("Time to first token", "ttft"), ("Time per output token", "tpot")):
            mean, median, p99 = (figures[f"{which}_{key}_s"] for which in ("avg", "median", "p99"))
            lines.append(f"  {name}: mean {mean:.4g}s, median {median:.4g}s, P99 {p99:.4g}s")
    if "output_tokens_per_s" in figures:
        lines += [] if "avg_ttft_s" in figures else ["", "Tokens:"]
        lines.append(f"  Written: {figures['output_tokens_per_s']:.4g} tokens/s")
    if "slo_met" in figures:
        lines += ["", f"Requests within the SLO: {100 * figures['slo_met']:.1f}%"]
        lines.append(f"  Goodput: {figures['goodput_per_s']:.4g} requests/s")
    return lines
