"""The journal's first line: what a cluster run says of itself, enough to check every lease."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.cluster.bounds import fastest, least_makespan_s
from dovetail.cluster.inputs.choices import JournalMode
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.rounding.devices import Devices
from dovetail.cluster.rounding.records import WHY
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.words import WORDS
from dovetail.core.errors import InputError
from dovetail.core.journal import Header
from dovetail.core.resources import Device, DeviceType, Pool


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
    bound_makespan_s: float = 0.0
    fastest: list[float] | None = None  # by kind: the most steps per second that a job can have
    entities: dict[str, float] = {}  # weights
    believed: list[list[list[float]]] | None = None  # pair rates that the policy went by at first


def facts_of(header: Header) -> ClusterFacts:
    if header.level != "cluster":
        raise InputError(f"expected the journal of a cluster run, found one of level {header.level!r}")
    return msgspec.convert(header.facts, ClusterFacts)


def header(
    setup: ClusterSetup, policy: Policy, name: str, options: dict[str, Any], rules: RoundRules, mode: JournalMode
) -> Header:
    """The first line of the journal."""
    found = setup.throughputs
    facts = ClusterFacts(
        types=list(setup.types),
        counts=setup.counts.tolist(),
        per_server=setup.per_server.tolist(),
        kinds=found.kinds,
        alone=setup.rates().tolist(),
        spread=found.spread.tolist(),
        pairs=found.pairs.tolist() if policy.packs and found.pairs is not None else None,
        restart_s=rules.restart_s,
        window=setup.window,
        mode=mode,
        bound_makespan_s=least_makespan_s(setup, policy),
        fastest=fastest(setup, policy)[0].tolist(),
        entities=setup.entities,
        believed=policy.pairs.tolist() if isinstance(policy, LearnedRates) else None,
    )
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
        options=options | {"rules": msgspec.to_builtins(rules)},
        seed=setup.seed,
        pool=pool,
        facts=msgspec.to_builtins(facts),
    )


def setup_of(header: Header) -> ClusterSetup:
    """The cluster of a recorded run; jobs, prices and outages are in its records."""
    facts = facts_of(header)
    types = tuple(facts.types)
    pairs = None if facts.pairs is None else np.array(facts.pairs)
    return ClusterSetup(
        counts=np.array(facts.counts),
        per_server=np.array(facts.per_server),
        throughputs=Throughputs(types, facts.kinds, np.array(facts.alone), np.array(facts.spread), pairs),
        prices=constant(types, {}),
        jobs=(),
        window=facts.window,
        entities=facts.entities,
        seed=header.seed,
    )


def policy_of(header: Header) -> Policy:
    """The policy of a recorded run, as it was when the run began."""
    facts = facts_of(header)
    policy = make(header.policy, {key: value for key, value in header.options.items() if key != "rules"})
    return policy if facts.believed is None else LearnedRates(policy, np.array(facts.believed))


def rules_of(header: Header) -> RoundRules:
    return msgspec.convert(header.options.get("rules", {}), RoundRules)
