"""A live run as a simulation has it: its jobs, the rates and costs that it measured, and accelerators as they came.

A rate is what jobs of a kind did between the first and the last report of each stretch in the same place and company;
what is left of their leases is what it cost to begin there: waiting for the one before to save, loading, and the first
step. Where too little was measured it is what the policy was told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from dataclasses import replace as but
from math import exp, inf, isclose, log, sqrt
from operator import itemgetter
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.cluster.header import ClusterFacts, facts_of, rules_of
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.live.measured_leases import CLOSE, LeaseStay, LeaseStretch, Place
from dovetail.cluster.metrics import ClusterResult
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Floats, Policy
from dovetail.cluster.rounding.records import CHANGED, KEPT
from dovetail.cluster.rounding.schema import sound_steps
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.files.document import as_path
from dovetail.core.journal import open_journal

_LEAST = 0.5  # of a round: a rate of less is not measured
_MOST_COST = 0.9  # of a round: a start that takes longer is taken for this
_FACTORS = 0.5, 1.5  # the least and the most that noise makes of a job's work
_ALIKE = 0.05  # a rate that was measured so near to what the policy was told is told to nobody


@dataclass(slots=True, kw_only=True)
class LiveWorkload:
    """What a live run had to do and with what, ready to be simulated. `live_jct_s` are its completion times, by the
    number that a job has here; `noise` is the part by which a job's time on accelerators is off rates and costs;
    `believed` is what pairs were thought to do before they ran; `notes` say what is not as it was."""

    setup: ClusterSetup
    rules: RoundRules
    policy: str
    options: dict[str, Any]
    live_jct_s: dict[int, float]
    noise: float = 0.0
    believed: Floats | None = None
    notes: list[str] = field(default_factory=list)

    def simulate(
        self, policy: str | None = None, journal: Path | None = None, seed: int | None = None
    ) -> ClusterResult:
        """The same by simulation; under another policy if one is named. A step that ends a little later changes who
        goes next, and all that follows: with a `seed`, jobs take more or less, as live ones did, and the mean of
        several seeds is what can be expected."""
        options = self.options if policy is None else {}
        name = policy or self.policy
        decides: Policy = make(name, options)
        if decides.packs and self.believed is not None:
            decides = LearnedRates(decides, self.believed)
        setup = self.setup if seed is None else self._drawn(seed)
        return run(setup, decides, self.rules, name=name, options=options, journal=journal)

    def _drawn(self, seed: int) -> ClusterSetup:
        draw, setup, (least, most) = Random(seed), copy(self.setup), _FACTORS
        factors = (min(max(draw.gauss(1.0, self.noise), least), most) for _ in iter(int, 1))
        setup.jobs = [but(job, steps=job.steps * factor) for job, factor in zip(self.setup.jobs, factors, strict=False)]
        setup.seed += seed
        return setup


def live_workload(journal: Any) -> LiveWorkload:
    """Read a live run's journal as a workload.

    Rates and costs are those that it measured, costs by whether a start was planned ahead; where it did not, the means
    of what was known of them while jobs ran. Jobs that were cancelled or given up have as much to do as they had done
    by then.
    """
    reader = open_journal(as_path(journal, "journal"))
    facts, rules = facts_of(reader.header, reader.path), rules_of(reader.header, reader.path)
    if facts.clock != "live":
        raise InputError(f"{reader.path}: expected the journal of a live run, found a simulated one")
    seen = _Seen(facts.own(), rules.round_s)
    for _, t, events in sound_steps(reader, len(facts.types)):
        seen.step(t, [rows for rows in events if isinstance(rows, Rows)])
    options = {key: value for key, value in reader.header.options.items() if key != "rules"}
    setup, jct_s = seen.setup(reader.header.seed)
    return LiveWorkload(
        setup=setup,
        rules=rules,
        policy=reader.header.policy,
        options=options,
        live_jct_s=jct_s,
        noise=seen.noise,
        believed=seen.table(seen.pairs),
        notes=seen.notes,
    )


class _LiveJobSeen(Struct):
    kind: int
    steps: float
    arrived_s: float
    more: dict[str, Any]
    began: float = 0.0  # what it had done when it came
    done: float = 0.0
    saved: float = 0.0
    closed_s: float | None = None
    completed: bool = False


class _Mean:
    """Means by kind and type. Where all values are the same it is that one, to the last digit: a tie stays a tie."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int], dict[float, float]] = {}  # by value

    def add(self, kind: int, on: int, value: float, weight: float) -> None:
        known = self._weights.setdefault((kind, on), {})
        known[value] = known.get(value, 0.0) + weight

    def over(self, usual: Floats) -> Floats:
        """The means, and what is usual where there is none."""
        found = usual.copy()
        for place, known in self._weights.items():
            total = sum(known.values())
            if len(known) == 1:
                (found[place],) = known
            elif total > 0:
                found[place] = sum(value * weight for value, weight in known.items()) / total
        return found


class _Seen:
    """Follows a live run."""

    def __init__(self, facts: ClusterFacts, round_s: float) -> None:
        self._facts, self._round_s = facts, round_s
        self._jobs: dict[int, _LiveJobSeen] = {}
        self._leases: dict[int, tuple[int, int]] = {}  # by job: kind and epoch of its last lease
        self._rates = _Mean()
        self._stays: dict[tuple[int, int], LeaseStay] = {}  # by job and epoch
        self._planned: dict[int, tuple[int, ...]] = {}  # where jobs are to begin
        self._spares: dict[int, tuple[int, ...]] = {}  # and where they would, if others ended
        self._first = list(facts.alone)  # rates of kinds when they came
        self.pairs: dict[Place, float] = {}  # rates as they were told first
        self.noise = 0.0
        self._devices = [on for on, count in enumerate(facts.counts) for _ in range(count)]
        self._server_of: dict[int, int] = {}
        self._out: dict[int, float] = {}
        self._outages: list[tuple[int, float, float]] = []
        self.notes: list[str] = []

    def step(self, t: float, events: Sequence[Rows]) -> None:
        for rows in events:
            self._see(t, rows.of, rows.columns)
        if any(rows.of == "due" and "round" in rows.columns["what"] for rows in events):
            self._planned.clear()

    def _see(self, t: float, of: str, columns: dict[str, Any]) -> None:
        handler = getattr(self, f"_see_{of}", None)
        if handler is not None:
            handler(t, columns)
        elif of in ("kinds", "learned", "learned_pairs", "costs"):
            self._facts.learn(of, columns)
            if of == "kinds":
                self._first += columns["alone"]
            elif of == "learned_pairs":
                keys = (columns[name] for name in ("kind", "on", "beside", "rate"))
                self.pairs = {(k, on, b, False): rate for k, on, b, rate in zip(*keys, strict=True)} | self.pairs

    def _see_arrived(self, t: float, columns: Mapping[str, Any]) -> None:
        for i, (job, kind, steps) in enumerate(zip(columns["id"], columns["kind"], columns["steps"], strict=True)):
            more = {name: columns[name][i] for name in ("weight", "due_s", "name") if columns.get(name)}
            if columns.get("entity"):
                more["entity"] = list(self._facts.entities)[columns["entity"][i]]
            self._jobs[job] = _LiveJobSeen(kind, steps, columns["at_s"][i], more)

    def _see_progress(self, t: float, columns: Mapping[str, Any]) -> None:
        for job, epoch, steps, saved in zip(*(columns[key] for key in ("id", "epoch", "steps", "saved")), strict=True):
            me = self._jobs[job]
            me.done, me.saved = steps, max(me.saved, saved)
            if (stay := self._stays.get((job, epoch))) is not None:
                stay.stretches[-1].reports.append((t, steps))
                newest = self._stays[job, self._leases[job][1]].stretches[-1]
                if epoch < self._leases[job][1] and not newest.reports:
                    newest.steps = steps  # the last word of the lease before comes late
            if me.arrived_s == t and job not in self._leases:
                me.began = steps

    def _see_planned(self, t: float, columns: Mapping[str, Any]) -> None:
        self._planned |= {job: tuple(devices) for job, devices in zip(columns["id"], columns["devices"], strict=True)}

    def _see_spares(self, t: float, columns: Mapping[str, Any]) -> None:
        self._spares = {job: tuple(devices) for job, devices in zip(columns["id"], columns["devices"], strict=True)}

    def _see_started(self, t: float, columns: Mapping[str, Any]) -> None:
        count = len(columns["id"])
        kinds = columns.get("kind") or [self._jobs[job].kind for job in columns["id"]]
        kind_of = dict(zip(columns["id"], kinds, strict=True))
        more = (columns.get("beside") or [-1] * count, columns.get("setup_s") or [self._facts.restart_s] * count)
        keys = (columns[name] for name in ("id", "on", "why", "devices", "epoch"))
        for job, on, why, devices, epoch, beside, price_s in zip(*keys, *more, strict=True):
            kind = kind_of[job]
            company = -1 if beside < 0 else kind_of.get(beside, self._leases.get(beside, (self._jobs[beside].kind,))[0])
            spread = len({self._server_of.get(device, -1) for device in devices}) > 1
            stretch = LeaseStretch((kind, on, company, spread), t, self._jobs[job].done)
            if why in (KEPT, CHANGED) and (job, epoch) in self._stays:
                self._stays[job, epoch].stretches.append(stretch)
            else:
                ahead = tuple(devices) in (self._planned.pop(job, ()), self._spares.pop(job, ()))
                before = self._stays.get((job, self._leases[job][1])) if job in self._leases else None
                self._stays[job, epoch] = LeaseStay(job, (kind, on, ahead), price_s, [stretch], before)
            self._leases[job] = (kind, epoch)

    def _see_stopped(self, t: float, columns: Mapping[str, Any]) -> None:
        keys = (columns[name] for name in ("id", "on", "beside", "from_s", "to_s"))
        for job, on, beside, from_s, to_s in zip(*keys, strict=True):
            kind, epoch = self._leases[job]
            self._stays[job, epoch].stretches[-1].to_s = to_s
            if beside < 0:
                self._rates.add(kind, on, self._facts.alone[kind][on], to_s - from_s)

    def _see_exited(self, t: float, columns: Mapping[str, Any]) -> None:
        self._lose(columns["id"])

    def _lose(self, jobs: Sequence[int]) -> None:
        """Their processes are gone, and what they had not saved."""
        for job in jobs:
            me = self._jobs[job]
            me.done = min(me.done, me.saved)
            if job in self._leases:
                self._stays[job, self._leases[job][1]].failed = True

    def _see_completed(self, t: float, columns: Mapping[str, Any]) -> None:
        self._close(columns["id"], columns["at_s"], True)

    def _see_cancelled(self, t: float, columns: Mapping[str, Any]) -> None:
        self._close(columns["id"], [t] * len(columns["id"]), False)

    _see_given_up = _see_cancelled

    def _close(self, ids: Sequence[int], at_s: Sequence[float], completed: bool) -> None:
        for job, closed_s in zip(ids, at_s, strict=True):
            self._jobs[job].closed_s, self._jobs[job].completed = closed_s, completed

    def _see_joined(self, t: float, columns: Mapping[str, Any]) -> None:
        self._facts.learn("joined", columns)
        self._server_of |= zip(columns["device"], columns["server"], strict=True)
        for on in columns["on"]:
            if t > 0:
                self._outages.append((len(self._devices), -1.0, t))  # before the first job comes
            self._devices.append(on)

    def _see_failed(self, t: float, columns: Mapping[str, Any]) -> None:
        self._out |= {device: t for device in columns["device"] if device not in self._out}
        for jobs in columns.get("jobs") or []:
            self._lose(jobs)

    def _see_mended(self, t: float, columns: Mapping[str, Any]) -> None:
        for device in columns["device"]:
            if device in self._out:
                self._outages.append((device, self._out.pop(device), t))

    def _see_drained(self, t: float, columns: Mapping[str, Any]) -> None:
        self._note("accelerators that were drained are there all the time")

    def _see_policy(self, t: float, columns: Mapping[str, Any]) -> None:
        self._note(f"at {t:g} s the policy became {columns['name'][0]}; here it stays the first one")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def setup(self, seed: int) -> tuple[ClusterSetup, dict[int, float]]:
        facts, types = self._facts, tuple(self._facts.types)
        shape = (len(facts.kinds), len(types))
        alone, spread = (np.array(rates).reshape(shape) for rates in (facts.alone, facts.spread))
        alone = self._rates.over(alone)
        told: dict[Place, float] = {
            (k, j, -1, over): float(of[k, j])
            for k, j in np.ndindex(shape)
            for over, of in ((False, alone), (True, spread))
        }
        rates = self._measured(told | self._told_pairs())
        longer = self._as_told(told, rates)
        for (k, j, beside, over), rate in rates.items():
            if beside < 0 and not isclose(rate, told[k, j, -1, over], rel_tol=_ALIKE):
                (spread if over else alone)[k, j] = rate
        costs = self._costs(rates)
        jobs: list[Job] = []
        jct_s: dict[int, float] = {}
        opened = sum(me.closed_s is None for me in self._jobs.values())
        if opened:
            self._note(f"{opened} jobs were still open: they have what they had done by then")
        for me in sorted(self._jobs.values(), key=lambda me: me.arrived_s):
            steps = (me.steps if me.completed and me.done < me.began + 1 else me.done) - me.began
            if steps <= 0:
                continue
            steps *= longer.get(me.kind, 1.0)
            model, width = facts.kinds[me.kind]
            if me.completed and me.closed_s is not None:
                jct_s[len(jobs)] = me.closed_s - me.arrived_s
            jobs.append(Job(id=len(jobs), model=model, width=width, steps=steps, arrival_s=me.arrived_s, **me.more))
        order = sorted(range(len(self._devices)), key=lambda device: (self._devices[device], device))
        number = {device: place for place, device in enumerate(order)}
        out = sorted([*self._outages, *((device, at_s, inf) for device, at_s in self._out.items())], key=itemgetter(1))
        setup = ClusterSetup(
            counts=np.array(facts.counts),
            per_server=np.array(facts.per_server),
            throughputs=Throughputs(types, facts.kinds, alone, spread, self.table(rates), "learned"),
            prices=constant(types, {}),
            jobs=jobs,
            entities=facts.entities,
            outages=[Outage(at_s, until_s, (number[device],)) for device, at_s, until_s in out],
            restarts=costs[False],
            restarts_ahead=costs[True],
            seed=seed,
        )
        return setup, jct_s

    # --- what was measured ------------------------------------------------------------------------------------

    def _told_pairs(self) -> dict[Place, float]:
        """What the policy knew of pairs in the end."""
        return {
            (k, on, b, False): float(rate) for (k, b, on), rate in np.ndenumerate(np.array(self._facts.pairs or []))
        }

    def table(self, rates: Mapping[Place, float]) -> Floats | None:
        """Rates of pairs by kind, the one beside, and type."""
        if self._facts.pairs is None:
            return None
        found = np.zeros((len(self._facts.kinds), len(self._facts.kinds), len(self._facts.types)))
        for (kind, on, beside, _), rate in rates.items():
            if beside >= 0:
                found[kind, beside, on] = rate
        return found

    def _measured(self, told: dict[Place, float]) -> dict[Place, float]:
        """Steps per second by place: as they were measured, or told where that is the same. Where nothing was, what was
        said when the kind came, faster or slower by as much as the kind, or else all, turned out to be elsewhere."""
        done: dict[Place, list[float]] = {}
        for stay in self._stays.values():
            for stretch in stay.stretches:
                known = done.setdefault(stretch.place, [0.0, 0.0])
                for i, value in enumerate(stretch.worked()):
                    known[i] += value
        found = dict(told)
        for place, (steps, seconds) in done.items():
            if seconds >= _LEAST * self._round_s and not isclose(steps / seconds, told.get(place, 0.0), rel_tol=CLOSE):
                found[place] = steps / seconds
        ratios: dict[Place, float] = {}
        for place, (_, seconds) in done.items():
            if place[2] < 0 and seconds >= _LEAST * self._round_s and (first := self._first[place[0]][place[1]]):
                ratios[place] = log(found[place] / first)
        for place in told.keys() - ratios.keys():
            like = [each for at, each in ratios.items() if at[0] == place[0]] or [*ratios.values()]
            if like and place[2] < 0 and told[place] == self._first[place[0]][place[1]]:
                found[place] *= exp(fmean(like))
        return found

    def _as_told(self, told: Mapping[Place, float], rates: Mapping[Place, float]) -> dict[int, float]:
        """By how much jobs of a kind have more to do, where rates stay as the policy was told because they are almost
        right: another rate, be it by a little, may make it decide otherwise."""
        seconds: dict[int, list[float]] = {}
        for stay in self._stays.values():
            for stretch in stay.stretches:
                rate, known = rates.get(stretch.place, 0.0), told.get(stretch.place, 0.0)
                if rate > 0 and stretch.brought > 0:
                    here = seconds.setdefault(stretch.place[0], [0.0, 0.0])
                    here[0] += stretch.brought / rate
                    here[1] += stretch.brought / (known if isclose(rate, known, rel_tol=_ALIKE) else rate)
        return {kind: really / thought for kind, (really, thought) in seconds.items()}

    def _costs(self, rates: Mapping[Place, float]) -> tuple[Floats, Floats]:
        """Seconds to begin by kind and type, of starts that were not planned ahead and that were; and how far jobs are
        off these means. Where no job began, it is the mean of the kind, or of all."""
        seen = [(stay, cost_s) for stay in self._stays.values() if (cost_s := stay.cost_s(rates)) is not None]
        tables = []
        for ahead in (False, True):
            here = [(stay.begun, cost_s) for stay, cost_s in seen if stay.begun[2] == ahead]
            mean = _Mean()
            for (kind, on, _), cost_s in here:
                mean.add(kind, on, cost_s, 1.0)
            usual = np.full((len(self._facts.kinds), len(self._facts.types)), np.nan)
            if here:
                usual[:] = fmean(cost_s for _, cost_s in here)
            for kind in {begun[0] for begun, _ in here}:
                usual[kind] = fmean(cost_s for begun, cost_s in here if begun[0] == kind)
            tables.append(np.clip(mean.over(usual), 0.0, _MOST_COST * self._round_s))
        off: dict[int, list[float]] = {}
        for stay, cost_s in seen:
            kind, on, ahead = stay.begun
            known = off.setdefault(stay.job, [0.0, 0.0])
            known[0] += cost_s - float(tables[ahead][kind, on])
            known[1] += stay.seconds
        self.noise = sqrt(fmean((beyond / seconds) ** 2 for beyond, seconds in off.values())) if off else 0.0
        return tables[False], tables[True]
