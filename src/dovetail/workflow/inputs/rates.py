"""What rate tables say of a configuration's models on its GPUs: speeds, seconds per item, and prices of switches.

A relative rate scales the seconds of a node. Absolute ones (items/s, tokens/s, ...) also turn a number of items into
seconds: the first GPU type of the pool whose rate is known runs the model as fast as its `speed` says, the other types
by the ratio of their rates. Where a table has both, the absolute one counts. What a model reads before it writes has a
rate of its own, in `prefill tokens/s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.rates import ANY, HOST, PREFILL, Rate, RateTable, Switch
from dovetail.core.resources import Pool
from dovetail.workflow.inputs.system import System


class ModelRates(Struct):
    """Relative rates, and switches, under the configuration's names; seconds per item at speed 1 and the unit of the
    models with an absolute rate, and per token that they read; and what the tables know that the configuration does
    not have."""

    table: RateTable
    item_s: dict[str, float]
    units: dict[str, str]
    prefill_s: dict[str, float]
    ignored: list[str]

    def tell(self, system: System) -> None:
        """Let a configuration know how long items and tokens take."""
        system.item_s, system.units, system.prefill_s = self.item_s, self.units, self.prefill_s


def model_rates(system: System, pool: Pool, table: RateTable) -> ModelRates:
    """A table as a configuration sees it: by the names of its models and GPU types, or what they were `measured_as`."""
    names = _Names(system)
    rates = [own for rate in table.rates.values() if not rate.neighbour for own in names.rates(rate)]
    switches = [own for switch in table.switches.values() for own in names.switches(switch)]
    known = RateTable(rates)
    relative = RateTable([rate for rate in rates if not rate.unit])
    units, item_s, prefill_s = _units(rates), dict[str, float](), dict[str, float]()
    reads = {rate.kind: PREFILL for rate in rates if rate.unit == PREFILL}
    for measured_in, seconds, unit in ((units, item_s, ""), (reads, prefill_s, PREFILL)):
        for model, given in measured_in.items():
            width = max(system.models[model].gpus_required, 1)
            found = {device: known.at_once(model, device, given, width) for device in pool.types}
            measured = {device: _with_one_alone(model, device, rates) for device, rates in found.items() if rates}
            if not measured:
                continue
            first = next(iter(measured))
            seconds[model] = pool.types[first].speed / measured[first][1]
            relative |= RateTable(
                Rate(model, device, rate * seconds[model], width, unit=unit, concurrency=n)
                for device, at_once in measured.items()
                for n, rate in at_once.items()
            )
    for rate in relative.rates.values():
        if rate.concurrency > 1:
            _with_one_alone(rate.kind, rate.device, relative.at_once(rate.kind, rate.device, rate.unit, rate.width))
    return ModelRates(RateTable(relative.rates.values(), switches), item_s, units, prefill_s, list(names.ignored))


def _with_one_alone(model: str, device: str, at_once: dict[int, float]) -> dict[int, float]:
    if 1 not in at_once:
        message = f"at {min(at_once)} at once is known, but not that of one alone (concurrency 1)"
        raise InputError(f"rate table: the rate of {model!r} on {device!r} {message}")
    return at_once


def _units(rates: list[Rate]) -> dict[str, str]:
    units: dict[str, str] = {}
    for rate in rates:
        if rate.unit == PREFILL:
            if rate.concurrency > 1:
                raise InputError(f"rate table: {rate.kind!r} reads {PREFILL} at {rate.concurrency} at once: give one's")
        elif rate.unit and units.setdefault(rate.kind, rate.unit) != rate.unit:
            raise InputError(f"rate table: {rate.kind!r} has rates in {units[rate.kind]} and in {rate.unit}")
    return units


class _Names:
    """The names that rate tables use, and those of the configuration. What it does not have is ignored, unless it is
    nearly the name of something: that is a slip."""

    def __init__(self, system: System) -> None:
        self._models = _by_table({name: model.measured_as for name, model in system.models.items()})
        self._types = _by_table({"gpu": "", **dict.fromkeys(system.gpu_types, ""), **system.measured_as})
        self._base = {name: model.adapter_of for name, model in system.models.items() if model.adapter_of}
        self.ignored: dict[str, None] = {}

    def rates(self, rate: Rate) -> list[Rate]:
        models, types = self._find("kind", rate.kind, self._models), self._find("device", rate.device, self._types)
        return [replace(rate, kind=model, device=device) for model in models for device in types]

    def switches(self, switch: Switch) -> list[Switch]:
        models, types = self._find("to", switch.to, self._models), self._find("device", switch.device, self._types)
        anything = switch.previous in (ANY, HOST)
        before = [switch.previous] if anything else self._find("from", switch.previous, self._models)
        found = [replace(switch, to=model, device=device) for model in models for device in types]
        return [one for to in found for other in before if self._is_paid(one := replace(to, previous=other))]

    def _is_paid(self, switch: Switch) -> bool:
        """Whether a run can ever pay for it: adapters change beside their base, and bases apart from that."""
        base, before = self._base.get(switch.to), self._base.get(switch.previous)
        if switch.previous == ANY:
            return True
        if base == before or (base == switch.previous and before is None):
            return True
        self.ignored[f"switch from {switch.previous!r} to {switch.to!r} (adapters change beside their base)"] = None
        return False

    def _find(self, key: str, name: str, known: Mapping[str, list[str]]) -> list[str]:
        if not name:  # any device, or an empty one
            return [""]
        if name not in known:
            if get_close_matches(name, known, cutoff=0.8):  # cpu is no slip for gpu
                raise InputError(f"rate table: {key} {name!r} is not known{did_you_mean(name, known)}")
            self.ignored[f"{key} {name!r}"] = None
        return known.get(name, [])


def _by_table(measured_as: Mapping[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, other in measured_as.items():
        for called in dict.fromkeys((name, other or name)):
            names.setdefault(called, []).append(name)
    return names
