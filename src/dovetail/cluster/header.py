"""The journal's first line: what a cluster run says of itself, enough to check every lease."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.cluster.bounds import fastest, least_makespan_s
from dovetail.cluster.goodput.application import Application
from dovetail.cluster.inputs.choices import Clock, JournalMode
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import AdaptiveKinds, ClusterSetup, PriceSource
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.rounding.devices import Devices
from dovetail.cluster.rounding.records import CHOSEN, ROUND, WHY, WHY_IN_PHASES
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.words import WORDS
from dovetail.core.errors import InputError
from dovetail.core.journal import Clock as HeaderClock
from dovetail.core.journal import Header
from dovetail.core.resources import Device, DeviceType, Pool

_LARGEST = 1e15
_MOST_PRICES = 10_000


class ClusterFacts(Struct, kw_only=True):
    """What the header says beyond what all levels share: enough to check every lease."""

    types: list[str]
    counts: list[int]
    per_server: list[int]
    kinds: list[tuple[str, int]]
    alone: list[list[float]]
    spread: list[list[float]]
    pairs: list[list[list[float]]] | None = None
    restart_s: float = 0.0
    why: list[str] = field(default_factory=lambda: list(WHY))  # reasons of leases, by their numbers in the records
    window: tuple[int, int] | None = None
    mode: JournalMode = "changes"
    clock: Clock = "rounds"
    bound_makespan_s: float = 0.0
    from_first_arrival: bool = False  # what is counted over time; else from 0 s, as all was in older journals
    fastest: list[float] | None = None  # by kind: the most steps per second that a job can have
    entities: dict[str, float] = {}  # weights
    believed: list[list[list[float]]] | None = None  # pair rates that the policy went by at first
    restarts: list[list[float]] | None = None  # seconds by kind and type, where they are not all `restart_s`
    restarts_ahead: list[list[float]] | None = None  # of starts that were planned ahead, where they are others
    prices: list[tuple[float, list[float]]] | None = None  # from which second on they hold; None if there are too many
    applications: list[Application] | None = None  # of jobs whose rate depends on batch, placement and progress
    kind_application: list[int] | None = None  # by kind; -1: none
    kind_batch: list[int] | None = None  # total, as asked for
    phased: bool | None = None  # whether jobs come with lists of phases
    tunes: bool | None = None  # whether jobs with an application choose their batch
    wide_as_others: bool | None = None  # whether each may have twice what any of its application had, not it alone

    def adaptive(self) -> AdaptiveKinds | None:
        """Which kinds are applications."""
        if self.applications is None or self.kind_application is None or self.kind_batch is None:
            return None
        return AdaptiveKinds(
            applications=tuple(self.applications),
            application=np.array(self.kind_application),
            batch=np.array(self.kind_batch),
        )

    def own(self) -> ClusterFacts:
        """For whoever follows a live run, in which kinds, rates, costs and accelerators become more."""
        return deepcopy(self) if self.clock == "live" else self

    def learn(self, of: str, columns: Mapping[str, Any]) -> str:
        """Take in rows of what becomes known while a run goes on; what is wrong with them.

        >>> facts = ClusterFacts(types=["a"], counts=[0], per_server=[1], kinds=[], alone=[], spread=[], clock="live")
        >>> facts.learn("kinds", {"model": ["cnn"], "width": [1], "alone": [[3.0]]}), facts.kinds, facts.alone
        ('', [('cnn', 1)], [[3.0]])
        >>> facts.learn("learned", {"kind": [1], "on": [0], "rate": [4.0]})
        'there is no kind 1'
        """
        if of == "kinds":
            return self._add_kinds(columns)
        places = {"kind": len(self.kinds), "beside": len(self.kinds), "on": len(self.types)}
        for name, count in places.items():
            if name in columns and max(columns[name]) >= count:
                return f"there is no {'type' if name == 'on' else 'kind'} {max(columns[name])}"
        if of == "learned":
            spreads = columns.get("spread") or [False] * len(columns["kind"])
            for kind, on, rate, spread in zip(columns["kind"], columns["on"], columns["rate"], spreads, strict=True):
                if spread:
                    self.spread[kind][on] = rate
                if spread == (self.kinds[kind][1] > self.per_server[on]):
                    self.alone[kind][on] = rate
        elif of == "costs":
            self._learn_costs(columns)
        elif of == "joined":
            for on in columns["on"]:
                self.counts[on] += 1
        elif of == "learned_pairs":
            self.pairs = self.pairs or [[[0.0] * len(self.types) for _ in self.kinds] for _ in self.kinds]
            keys = (columns[name] for name in ("kind", "beside", "on", "rate"))
            for kind, beside, on, rate in zip(*keys, strict=True):
                self.pairs[kind][beside][on] = rate
        return ""

    def _learn_costs(self, columns: Mapping[str, Any]) -> None:
        self.restarts = self.restarts or [[self.restart_s] * len(self.types) for _ in self.kinds]
        which = columns.get("ahead") or []
        if which and self.restarts_ahead is None:
            self.restarts_ahead = deepcopy(self.restarts)
        for i, (kind, on) in enumerate(zip(columns["kind"], columns["on"], strict=True)):
            if not which or not which[i]:
                self.restarts[kind][on] = columns["restart_s"][i]
            if self.restarts_ahead is not None and (not which or which[i]):
                self.restarts_ahead[kind][on] = columns["restart_s"][i]

    def start_s(self, kind: int, on: int, ahead: bool) -> float:
        """What it costs to begin a lease."""
        found = self.restarts if self.restarts_ahead is None or not ahead else self.restarts_ahead
        return self.restart_s if found is None else found[kind][on]

    def _add_kinds(self, columns: Mapping[str, Any]) -> str:
        types = len(self.types)
        spreads = columns.get("spread") or columns["alone"]
        known = (columns[name] for name in ("model", "width", "alone"))
        for model, width, alone, spread in zip(*known, spreads, strict=True):
            if len(alone) != types or len(spread) != types:
                return f"kind {model!r} has {len(alone)} and {len(spread)} rates, expected {types}"
            if (model, width) in self.kinds:
                return f"kind {model!r} on {width} is there already"
            wide = [width > size for size in self.per_server]
            self.kinds.append((model, width))
            self.alone.append([s if over else a for over, a, s in zip(wide, alone, spread, strict=True)])
            self.spread.append(list(spread))
            for restarts in (self.restarts, self.restarts_ahead):
                if restarts is not None:
                    restarts.append([self.restart_s] * types)
            if self.pairs is not None:
                for row in self.pairs:
                    row.append([0.0] * types)
                self.pairs.append([[0.0] * types for _ in self.kinds])
        return ""


def facts_of(header: Header, path: Path | None = None) -> ClusterFacts:
    """The facts of a cluster run's header, checked: what they say fits together."""
    where = f"{path}:1: " if path else ""
    if header.level != "cluster":
        raise InputError(f"{where}expected the journal of a cluster run, found one of level {header.level!r}")
    try:
        facts = msgspec.convert(header.facts, ClusterFacts)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}facts: {error}") from None
    if fault := _fault(facts, header):
        raise InputError(f"{where}facts.{fault}")
    return facts


def _fault(facts: ClusterFacts, header: Header) -> str:
    """What is wrong with facts, or with what the rest of the header says beside them."""
    types, kinds = len(facts.types), len(facts.kinds)
    shapes: list[tuple[str, Any, tuple[int, ...]]] = [
        ("counts", facts.counts, (types,)),
        ("per_server", facts.per_server, (types,)),
        ("alone", facts.alone, (kinds, types)),
        ("spread", facts.spread, (kinds, types)),
        ("pairs", facts.pairs, (kinds, kinds, types)),
        ("believed", facts.believed, (kinds, kinds, types)),
        ("fastest", facts.fastest, (kinds,)),
        ("restarts", facts.restarts, (kinds, types)),
        ("restarts_ahead", facts.restarts_ahead, (kinds, types)),
        ("prices", None if facts.prices is None else [price for _, price in facts.prices], (-1, types)),
    ]
    for name, values, shape in shapes:
        if values is not None and (fault := _shape_fault(values, shape)):
            return f"{name}: {fault}"
    live = facts.clock == "live"  # then kinds and accelerators may all come later
    if not types or not (kinds or live):
        return "types, kinds: expected at least one of each"
    if fault := _adaptive_fault(facts):
        return fault
    for name, least, whole in (("counts", 0, facts.counts), ("per_server", 1, facts.per_server)):
        if min(whole) < least:
            return f"{name}: found {min(whole)}, expected {least} or more"
    if min((width for _, width in facts.kinds), default=1) < 1:
        return "kinds: expected widths of 1 or more"
    if not 0 <= facts.restart_s <= _LARGEST or not 0 <= facts.bound_makespan_s <= _LARGEST:
        return "restart_s, bound_makespan_s: expected seconds"
    if facts.window is not None and not 0 <= facts.window[0] < facts.window[1] < _LARGEST:
        return f"window: found {facts.window}, expected ids of a first job and of one after the last"
    if sum(facts.counts) != len(header.pool.devices):
        return f"counts: they add up to {sum(facts.counts)}, but the pool has {len(header.pool.devices)} accelerators"
    if facts.prices is not None and (not facts.prices or sorted(facts.prices) != facts.prices):
        return "prices: expected one or more, in order of time"
    placed = Devices(facts.counts, facts.per_server)
    for device, j, server in zip(header.pool.devices, placed.type_of, placed.server_of, strict=True):
        if (device.type, device.host) != (facts.types[j], server):
            return f"counts: accelerator {device.id} is not of the type and server that the pool says"
    return ""


def _adaptive_fault(facts: ClusterFacts) -> str:
    """What is wrong with what is said of applications."""
    which, batches = facts.kind_application, facts.kind_batch
    if facts.applications is None:
        return "" if which is None and batches is None else "kind_application, kind_batch: expected applications"
    if which is None or batches is None or not len(which) == len(batches) == len(facts.kinds):
        return f"kind_application, kind_batch: expected {len(facts.kinds)} values each"
    if min(which) < -1 or max(which) >= len(facts.applications):
        return f"kind_application: expected -1 to {len(facts.applications) - 1}"
    for i, each in enumerate(facts.applications):
        if fault := each.fault():
            return f"applications[{i}]: {fault}"
    return ""


def _shape_fault(values: Any, shape: tuple[int, ...]) -> str:
    """Why these are not so many numbers that can be computed with.

    >>> _shape_fault([[1.0, 2.0], [3.0]], (2, 2)), _shape_fault([1.0, -2.0], (2,)), _shape_fault([1.0], (1,))
    ('expected 2 values, found 1', 'found -2.0, expected a number from 0 on', '')
    """
    if shape[0] not in (-1, len(values)):
        return f"expected {shape[0]} values, found {len(values)}"
    if len(shape) > 1:
        return next((fault for inner in values if (fault := _shape_fault(inner, shape[1:]))), "")
    wrong = [value for value in values if not 0 <= value <= _LARGEST]
    return f"found {wrong[0]}, expected a number from 0 on" if wrong else ""


def header(
    setup: ClusterSetup,
    policy: Policy,
    name: str,
    options: dict[str, Any],
    rules: RoundRules,
    mode: JournalMode,
    clock: Clock = "rounds",
) -> Header:
    """The first line of the journal. Without rounds there are no leases, so that is a summary."""
    anywhere, live = clock == "gavel", clock == "live"
    found, restarts_s = setup.throughputs, setup.restarts_s(rules.restart_s)
    facts = ClusterFacts(
        types=list(setup.types),
        counts=setup.counts.tolist(),
        per_server=setup.per_server.tolist(),
        kinds=found.kinds,
        alone=setup.rates().tolist(),
        spread=found.spread.tolist(),
        pairs=found.pairs.tolist() if (policy.packs or live) and found.pairs is not None else None,
        restart_s=rules.restart_s,
        window=setup.window,
        mode=mode if clock == "rounds" or live else "summary",
        clock=clock,
        from_first_arrival=clock != "gavel",
        bound_makespan_s=0.0 if live else least_makespan_s(setup, policy, anywhere=anywhere),
        fastest=None if live else fastest(setup, policy, anywhere=anywhere)[0].tolist(),
        entities=setup.entities,
        believed=policy.pairs.tolist() if isinstance(policy, LearnedRates) else None,
        restarts=None if restarts_s is None else restarts_s[0].tolist(),
        restarts_ahead=None if restarts_s is None or setup.restarts_ahead is None else restarts_s[1].tolist(),
        prices=None if live else _price_list(setup.prices),
    )
    if setup.in_phases:
        facts.why = list(WHY_IN_PHASES)
    if getattr(policy, "every_round", False):
        facts.why[ROUND] = CHOSEN
    if setup.phased:
        facts.phased = True
    if (adaptive := setup.adaptive) is not None:
        facts.applications = list(adaptive.applications)
        facts.kind_application, facts.kind_batch = adaptive.application.tolist(), adaptive.batch.tolist()
        facts.tunes = bool(getattr(policy, "elastic", False))
        facts.wide_as_others = getattr(policy, "wide_as_others", False) or None
    placed = Devices(setup.counts.tolist(), setup.per_server.tolist())
    places = zip(placed.type_of, placed.server_of, strict=True)
    pool = Pool(
        tuple(Device(i, setup.types[j], server) for i, (j, server) in enumerate(places)),
        {kind: DeviceType(kind) for kind in setup.types},
    )
    return Header(
        level="cluster",
        words=WORDS,
        policy=name,
        options=options | {"rules": _rules(rules)},
        seed=setup.seed,
        pool=pool,
        facts={name: value for name, value in msgspec.to_builtins(facts).items() if _told(name, value)},
        order="written" if clock == "gavel" else "step",  # its rounds are told when they are over
        clock=HeaderClock("monotonic") if live else HeaderClock(),
    )


def _rules(rules: RoundRules) -> dict[str, Any]:
    """Rules as a header has them: those that came later only where they are not the usual ones."""
    later, usual = ("on_grid", "free_moves", "decide_at", "spares", "failures"), msgspec.to_builtins(RoundRules())
    found = msgspec.to_builtins(rules)
    return {name: value for name, value in found.items() if name not in later or value != usual[name]}


def _told(name: str, value: Any) -> bool:
    """Whether a header says something: of phases, and of starts that cost less, only if there are some."""
    seldom = ("applications", "kind_application", "kind_batch", "phased", "tunes", "wide_as_others", "restarts_ahead")
    return value is not None or name not in seldom


def _price_list(prices: PriceSource) -> list[tuple[float, list[float]]] | None:
    """From when on which prices hold."""
    found: list[tuple[float, list[float]]] = []
    at_s = 0.0
    while at_s < inf:
        if len(found) == _MOST_PRICES:
            return None
        found.append((at_s, prices.price_at(at_s).tolist()))
        at_s = prices.next_change(at_s)
    return found


def setup_of(header: Header) -> ClusterSetup:
    """The cluster of a recorded run; jobs, prices and outages are in its records."""
    facts = facts_of(header)
    types, kinds = tuple(facts.types), len(facts.kinds)
    pairs = None if facts.pairs is None else np.array(facts.pairs).reshape(kinds, kinds, len(types))
    alone, spread = (np.array(rates).reshape(kinds, len(types)) for rates in (facts.alone, facts.spread))
    return ClusterSetup(
        counts=np.array(facts.counts),
        per_server=np.array(facts.per_server),
        throughputs=Throughputs(types, facts.kinds, alone, spread, pairs),
        prices=constant(types, {}),
        jobs=(),
        window=facts.window,
        entities=facts.entities,
        restarts=None if facts.restarts is None else np.array(facts.restarts),
        restarts_ahead=None if facts.restarts_ahead is None else np.array(facts.restarts_ahead),
        adaptive=facts.adaptive(),
        phased=bool(facts.phased),
        seed=header.seed,
    )


def policy_of(header: Header) -> Policy:
    """The policy of a recorded run, as it was when the run began."""
    facts = facts_of(header)
    policy = make(header.policy, {key: value for key, value in header.options.items() if key != "rules"})
    return policy if facts.believed is None else LearnedRates(policy, np.array(facts.believed))


def rules_of(header: Header, path: Path | None = None) -> RoundRules:
    try:
        return msgspec.convert(header.options.get("rules", {}), RoundRules)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{path}:1: options.rules: {error}" if path else f"options.rules: {error}") from None
