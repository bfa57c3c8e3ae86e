"""How fast every kind of job runs on every type, from a file: the old system's JSON, a table of our own, or rates.

The old JSON maps a type to jobs, written as `('<model>', <width>)`, and each of them to `null` (its rate alone) or
another job (both rates side by side). A type that ends in `_unconsolidated` holds the rates over several servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.cluster.inputs.csv_rows import (
    LEAST,
    MOST,
    GivenRows,
    Source,
    check_columns,
    given_rows,
    header_of,
    read_rows,
)
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document
from dovetail.core.rates import PREFILL, RateTable

Kind = tuple[str, int]
SPREAD = "_unconsolidated"
COLUMNS = ("model", "width", "type", "steps_per_s", "spread", "beside")
_NEEDED = ("model", "type", "steps_per_s")
_KIND = re.compile(r"\('(.*)', (\d+)\)")
_GROWTH = 0.9  # rate over width, in powers: what a model gains if only one of its widths is known
_Old = dict[str, dict[str, dict[str, float | tuple[float, float]]]]


class RateEntry(Struct, forbid_unknown_fields=True):
    """One line of our table: a job's steps per second on a type, alone or `beside` another of the same width."""

    model: str
    type: str
    steps_per_s: float
    width: int = 1
    spread: float | None = None  # with accelerators in several servers; as in one if it is not known
    beside: str = ""


class ThroughputsError(InputError):
    """Entries that do not fit together, wherever they came from."""


def check_rates(found: Throughputs, where: str) -> Throughputs:
    """Refuse rates that no solver would cope with, wherever they came from."""
    for rates in (found.alone, found.spread, np.zeros(0) if found.pairs is None else found.pairs):
        wrong = np.argwhere((rates != 0) & ~((rates >= LEAST) & (rates <= MOST)))
        if len(wrong):
            *kinds, at = wrong[0].tolist()
            names = " beside ".join(f"{model}, width {width}" for model, width in (found.kinds[kind] for kind in kinds))
            wanted = f"expected 0, or {LEAST:g} to {MOST:g} steps per second"
            raise InputError(f"{where}: {names}, on {found.types[at]}: {wanted}, found {rates[tuple(wrong[0])]:g}")
    return found


class _ThroughputsFile(Struct, forbid_unknown_fields=True):
    throughputs: list[RateEntry]


def read_throughputs(path: Path | dict[str, Any] | list[Any]) -> Throughputs:
    """Read a throughput file of any kind, told apart by what is in it; or what stands in its place: rows of our table,
    or a mapping as the other kinds hold one."""
    rows = given_rows("throughputs", path) if isinstance(path, list) else path if isinstance(path, Path) else None
    try:
        if rows is not None and (isinstance(rows, GivenRows) or "steps_per_s" in header_of(rows)):
            return table(_csv_entries(rows))
        return _from_document(Document.of(path, "throughputs"))
    except ThroughputsError as error:
        raise InputError(f"{path}: {error}") from None


def _from_document(doc: Document) -> Throughputs:
    data = doc.data
    if not isinstance(data, dict):
        raise doc.error((), "expected a mapping of types, `throughputs` or `rates`")
    if "throughputs" in data:
        entries = doc.convert(data, _ThroughputsFile).throughputs
        for i, entry in enumerate(entries):
            for key, least in (("width", 1), ("steps_per_s", 0), ("spread", 0)):
                value = getattr(entry, key)
                if value is not None and not least <= value < inf:
                    raise doc.error(("throughputs", i, key), f"expected {least} or more, found {value}")
        return table(entries)
    if "rates" in data:
        return from_rates(RateTable.of(doc))
    return _old(doc, doc.convert(data, _Old))


def _old(doc: Document, data: _Old) -> Throughputs:
    types = [name for name in data if not name.endswith(SPREAD)]
    index: dict[str, int] = {}  # as written in the file
    kinds: list[Kind] = []
    for name in types:
        for key in data[name]:
            if key not in index:
                match = _KIND.fullmatch(key)
                if match is None:
                    raise doc.error((name, key), f"expected ('<model>', <width>), found {key!r}")
                index[key] = len(kinds)
                kinds.append((match.group(1), int(match.group(2))))
    if not kinds:
        raise doc.error((), "expected jobs under a type, found none")
    alone = np.zeros((len(kinds), len(types)))
    pairs = np.zeros((len(kinds), len(kinds), len(types)))
    spread = np.full_like(alone, np.nan)
    paired = False
    for t, name in enumerate(types):
        for key, rates in data[name].items():
            a = index[key]
            for other, rate in rates.items():
                if isinstance(rate, tuple):
                    b = index.get(other, -1)
                    if b < 0 or kinds[a][1] != kinds[b][1]:
                        raise doc.error((name, key, other), "expected a job of the same width that is in the file")
                    pairs[a, b, t], pairs[b, a, t] = rate
                    paired = True
                elif other == "null":
                    alone[a, t] = rate
                else:
                    raise doc.error((name, key, other), f"expected two rates, found {rate}")
        for key, rates in data.get(name + SPREAD, {}).items():
            rate = rates.get("null", np.nan)
            if key in index and isinstance(rate, float):
                spread[index[key], t] = rate
    _refuse_negative(doc, types, kinds, alone, pairs)
    spread = np.where(np.isnan(spread), alone, spread)
    return Throughputs(tuple(types), kinds, alone, spread, pairs if paired else None)


def _refuse_negative(doc: Document, types: list[str], kinds: list[Kind], alone: Floats, pairs: Floats) -> None:
    for found in (alone, pairs):
        wrong = np.argwhere(~((found >= 0) & (found < inf)))
        if len(wrong):
            at = wrong[0]
            keys = [f"('{model}', {width})" for model, width in (kinds[i] for i in at[:-1])]
            raise doc.error((types[at[-1]], *keys), f"expected a rate >= 0, found {found[tuple(at)]}")


def _csv_entries(path: Source) -> Iterable[RateEntry]:
    check_columns(path, header_of(path), _NEEDED, COLUMNS)
    for row in read_rows(path):
        spread = row.number("spread", least=0) if "spread" in row else None
        rate = row.number("steps_per_s", least=0)
        yield RateEntry(
            row.text("model"), row.text("type"), rate, row.whole("width", 1), spread, row.text("beside", "")
        )


def table(entries: Iterable[RateEntry]) -> Throughputs:
    """Throughputs from entries; what is not given is 0, which means that it does not run there.

    >>> found = table([RateEntry("LM", "l4", 2.0), RateEntry("LM", "l4", 7.0, width=4, spread=5.0)])
    >>> found.kinds, found.alone.tolist(), found.spread.tolist()
    ([('LM', 1), ('LM', 4)], [[2.0], [7.0]], [[2.0], [5.0]])
    """
    given = list(entries)
    kinds = list(dict.fromkeys((entry.model, entry.width) for entry in given))
    types = list(dict.fromkeys(entry.type for entry in given))
    if not kinds:
        raise ThroughputsError("expected at least one entry, found none")
    index = {kind: i for i, kind in enumerate(kinds)}
    alone = np.full((len(kinds), len(types)), np.nan)
    spread = np.full_like(alone, np.nan)
    pairs = np.full((len(kinds), len(kinds), len(types)), np.nan)
    for entry in given:
        kind, t = index[entry.model, entry.width], types.index(entry.type)
        if entry.beside:
            other = index.get((entry.beside, entry.width))
            if other is None:
                hint = did_you_mean(entry.beside, {model for model, _ in kinds})
                raise ThroughputsError(f"{entry.model} beside {entry.beside!r}: no such model{hint}")
            place: Any = pairs[kind, other]
        else:
            place = alone[kind]
            spread[kind, t] = np.nan if entry.spread is None else entry.spread
        if not np.isnan(place[t]):
            where = f" beside {entry.beside}" if entry.beside else ""
            raise ThroughputsError(f"{entry.model}, width {entry.width}, {entry.type}{where}: is given twice")
        place[t] = entry.steps_per_s
    alone = np.nan_to_num(alone)
    spread = np.where(np.isnan(spread), alone, spread)
    paired = None if np.isnan(pairs).all() else np.nan_to_num(pairs)
    return Throughputs(tuple(types), kinds, alone, spread, paired)


def from_rates(rates: RateTable, steps_per_s: Mapping[str, float] | None = None) -> Throughputs:
    """Throughputs from the table in which levels meet.

    Rates with a unit are as they are: a step is one of it (steps/s before all others). Others are relative to a
    reference device; `steps_per_s` are the kinds' rates on that. Without it a step is what that does in a second.

    >>> from dovetail.core.rates import Rate
    >>> from_rates(RateTable([Rate("LM", "l4", 8.0, unit="steps/s"), Rate("LM", "l4", 0.5)])).alone.tolist()
    [[8.0]]
    """
    on_reference, units = steps_per_s or {}, _units(rates)
    used = [rate for rate in rates.rates.values() if rate.unit == units.get(rate.kind) and rate.concurrency == 1]
    entries = []
    for rate in used:
        per_s = rate.rate if rate.unit else rate.rate * on_reference.get(rate.kind, 1.0)
        entries.append(RateEntry(rate.kind, rate.device, per_s, rate.width, None, rate.neighbour))
    found = table(entries)
    sources = {rate.source for rate in used}
    found.source = "estimated" if "estimated" in sources else "given" if "given" in sources else "measured"
    return found


def _units(rates: RateTable) -> dict[str, str]:
    """The unit of every kind's rates that counts; nothing where they are relative."""
    found: dict[str, set[str]] = {}
    for rate in rates.rates.values():
        if rate.unit != PREFILL:  # how fast a model reads says nothing of steps
            found.setdefault(rate.kind, set()).add(rate.unit)
    for kind, units in found.items():
        units.discard("" if len(units) > 1 else " ")
        if len(units) > 1 and "steps/s" not in units:
            raise ThroughputsError(f"{kind}: rates in {' and in '.join(sorted(units))}; expected one unit, or steps/s")
    return {kind: "steps/s" if "steps/s" in units else min(units) for kind, units in found.items()}


def overlaid(base: Throughputs, other: Throughputs) -> Throughputs:
    """Both; where both know a rate, the other's."""
    types = tuple(dict.fromkeys(base.types + other.types))
    kinds = list(dict.fromkeys(base.kinds + other.kinds))
    index = {kind: i for i, kind in enumerate(kinds)}
    alone, spread = np.zeros((2, len(kinds), len(types)))
    pairs = np.zeros((len(kinds), len(kinds), len(types)))
    for found in (base, other):
        rows, columns = [index[kind] for kind in found.kinds], [types.index(name) for name in found.types]
        at = np.ix_(rows, columns)
        known = found.alone > 0
        alone[at] = np.where(known, found.alone, alone[at])
        spread[at] = np.where(known, found.spread, spread[at])
        if found.pairs is not None:
            both = np.ix_(rows, rows, columns)
            pairs[both] = np.where(found.pairs > 0, found.pairs, pairs[both])
    paired = base.pairs is not None or other.pairs is not None
    return Throughputs(types, kinds, alone, spread, pairs if paired else None, base.source)


def restart_prices(rates: RateTable, kinds: Sequence[Kind], types: Sequence[str]) -> Floats | None:
    """Seconds until a kind works on a type where it was not before: the table's cold starts. nan where it has none, and
    nothing if it has none at all."""
    cold = [[rates.switch_s(None, model, name) for name in types] for model, _ in kinds]
    found = np.array(cold, dtype=np.float64).reshape(len(kinds), len(types))
    return None if np.isnan(found).all() else found


REFERENCE = "v100"  # what Gavel's durations are on


def reference_type(found: Throughputs) -> str:
    """The type that durations refer to: v100 if it is known, else the first that runs every kind, else most of them."""
    if REFERENCE in found.types:
        return REFERENCE
    return found.types[int((found.alone > 0).sum(axis=0).argmax())]


def with_widths(found: Throughputs, kinds: Iterable[Kind]) -> Throughputs:
    """The same with kinds whose widths are not known, guessed from the same model's nearest known widths.

    Between two known widths, and beyond them, the rate is a power of the width, between constant and proportional. New
    kinds never share accelerators.
    """
    index = found.index()
    new = [kind for kind in dict.fromkeys(kinds) if kind not in index]
    if not new:
        return found
    guessed = [rates_at(found, model, width) for model, width in new]
    pairs = found.pairs
    if pairs is not None:
        total = len(found.kinds) + len(new)
        wider = np.zeros((total, total, len(found.types)))
        wider[: len(found.kinds), : len(found.kinds)] = pairs
        pairs = wider
    alone = np.concatenate([found.alone, *(alone[None, :] for alone, _ in guessed)])
    spread = np.concatenate([found.spread, *(spread[None, :] for _, spread in guessed)])
    return Throughputs(found.types, [*found.kinds, *new], alone, spread, pairs, found.source)


def rates_at(found: Throughputs, model: str, width: int) -> tuple[Floats, Floats]:
    """A model's rate at a width on every type, in one server and spread, guessed if that width is not known."""
    rows = {w: k for k, (name, w) in enumerate(found.kinds) if name == model}
    if not rows:
        raise InputError(f"no throughputs for {model!r}{did_you_mean(model, {name for name, _ in found.kinds})}")
    if width in rows:
        return found.alone[rows[width]], found.spread[rows[width]]
    alone, spread = (_at_width({w: rates[k] for w, k in rows.items()}, width) for rates in (found.alone, found.spread))
    return alone, spread


def _at_width(rates: Mapping[int, Floats], width: int) -> Floats:
    """A model's rate on every type at a width, from those at other widths."""
    widths = sorted(rates)
    below = max((w for w in widths if w < width), default=widths[0])
    others = [w for w in widths if w != below]
    growth = np.full_like(rates[below], _GROWTH)
    if others:
        after = [w for w in others if w > below]
        other = after[0] if after else others[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.log(rates[other] / rates[below]) / log(other / below)
        growth = np.clip(np.nan_to_num(growth, nan=_GROWTH, posinf=1.0, neginf=0.0), 0.0, 1.0)
    return rates[below] * (width / below) ** growth
