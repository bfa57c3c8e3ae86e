"""What an accelerator costs per hour, over time: constant, from clouds' histories of spot prices, or our own table.

- GCP: constants, the preemptible prices that the old system used.
- AWS: a folder of answers of `describe-spot-price-history`, JSON, one or more files.
- Azure: a folder of CSV files, one per zone; the first column is a day, the others are prices of instance types.
- Our own: CSV with time_s, type, price; a price holds from its time on.

Time 0 is the first entry of an instance type. Where a type has prices in several zones or clouds, the lowest counts;
before a zone's first price, its first price.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import numpy as np
from msgspec import Struct

from dovetail.cluster.inputs.accelerators import ACCELERATORS
from dovetail.cluster.inputs.choices import CLOUDS
from dovetail.cluster.inputs.csv_rows import LEAST, MOST, GivenRows, Source, check_columns, header_of, read_rows
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document

GCP = {"v100": 0.74, "p100": 0.43, "k80": 0.135}
# The instance with one accelerator of a type, and what its price is multiplied with. AWS has none with one P100.
AWS = {"v100": ("p3.2xlarge", 1.0), "p100": ("p2.xlarge", 1.5), "k80": ("p2.xlarge", 1.0)}
AZURE = {"v100": "NC6s v3", "p100": "NC6s v2", "k80": "NC6"}
UNKNOWN = 1.0  # what a type without a price counts as, so that policies can still weigh types
_Steps = list[tuple[float, float]]  # (from this time, this price), in order


@dataclass(slots=True, frozen=True)
class Prices:
    """Prices per accelerator and hour of each type, which change at `times_s`; `missing` are types without any.

    >>> prices = constant(("v100", "tpu"), {})
    >>> prices.price_at(0.0).tolist(), prices.missing, prices.next_change(0.0)
    ([0.74, 1.0], ('tpu',), inf)
    """

    types: tuple[str, ...]
    times_s: tuple[float, ...]  # the first is 0
    values: Floats  # times x types
    missing: tuple[str, ...] = ()

    def price_at(self, now_s: float) -> Floats:
        """The prices of all types at a time; the array is not to be written to."""
        found: Floats = self.values[max(bisect_right(self.times_s, now_s) - 1, 0)]
        return found

    def paid_until(self, end_s: float) -> Floats:
        """What an accelerator of each type costs from the beginning to a time.

        >>> constant(("v100",), {"v100": 3.0}).paid_until(7200.0).tolist()
        [6.0]
        """
        begins = np.minimum(self.times_s, end_s)
        paid: Floats = np.diff([*begins, end_s]) @ self.values / 3600
        return paid

    def of_types(self, at: Sequence[int]) -> Prices:
        """Those of some types, by their places."""
        types = tuple(self.types[i] for i in at)
        return _changes(types, self.times_s, self.values[:, list(at)], tuple(n for n in self.missing if n in types))

    def next_change(self, now_s: float) -> float:
        """When a price changes next, after this time; inf if never."""
        at = bisect_right(self.times_s, now_s)
        return self.times_s[at] if at < len(self.times_s) else inf


def constant(types: Sequence[str], given: Mapping[str, float | None]) -> Prices:
    """Prices that stay: those that are given, else GCP's."""
    found = {name: given.get(name) for name in types}
    found = {name: GCP.get(name.lower()) if price is None else price for name, price in found.items()}
    return _prices(types, {name: [(0.0, price)] for name, price in found.items() if price is not None})


def read_prices(path: Source, types: Sequence[str], clouds: Iterable[str] = CLOUDS) -> Prices:
    """Prices from our table, or from a folder with `aws/logs/<region>/*` and `azure/logs/<zone>.csv`."""
    if isinstance(path, GivenRows) or not path.is_dir():
        return _own(path, types)
    wanted = list(clouds)
    for cloud in wanted:
        if cloud not in CLOUDS:
            raise InputError(f"cloud {cloud!r}: unknown{did_you_mean(cloud, CLOUDS)}")
    looked_for = [cloud for cloud in ("aws", "azure") if cloud in wanted]
    if looked_for and not any((path / cloud / "logs").is_dir() for cloud in looked_for):
        raise InputError(f"{path}: expected {' or '.join(f'{cloud}/logs' for cloud in looked_for)} in it, found none")
    steps: dict[str, list[_Steps]] = {name: [] for name in types}
    if "gcp" in wanted:
        for name in types:
            if name.lower() in GCP:
                steps[name].append([(0.0, GCP[name.lower()])])
    for cloud, read in (("aws", _aws), ("azure", _azure)):
        folder = path / cloud / "logs"
        if cloud in wanted and folder.is_dir():
            for name, found in read(folder, types).items():
                steps[name].append(found)
    merged = {name: _lowest(each) for name, each in steps.items() if each}
    if not merged:
        raise InputError(f"{path}: expected prices of {', '.join(types)} under aws/logs or azure/logs, found none")
    return _prices(types, merged)


def _price(text: str) -> float:
    """A price that policies can weigh: 0, or neither next to nothing nor beyond counting."""
    value = float(text)
    if value != 0 and not LEAST <= value <= MOST:
        raise ValueError(text)
    return value


def _own(path: Source, types: Sequence[str]) -> Prices:
    columns = ("time_s", "type", "price")
    check_columns(path, header_of(path), columns, columns)
    steps: dict[str, _Steps] = {}
    unknown: list[InputError] = []
    for row in read_rows(path):
        at_s, name, price = row.number("time_s", least=0), row.text("type"), row.number("price", least=0)
        if 0 < price < LEAST:
            raise row.error("price", f"expected 0, or a number >= {LEAST:g}, found {price:g}")
        if name not in steps and name not in types and name not in ACCELERATORS:
            hint = did_you_mean(name, types)
            unknown.append(row.error("type", f"expected a type of the cluster, found {name!r}{hint}"))
        before = steps.setdefault(name, [])
        if before and before[-1][0] >= at_s:
            raise row.error("time_s", f"expected more than {before[-1][0]:g}, the time before it, found {at_s:g}")
        before.append((at_s, price))
    if not steps:
        raise InputError(f"{path}: expected prices, found none")
    if unknown and not steps.keys() >= set(types):  # with prices of all its types, those of another cluster do no harm
        raise unknown[0]
    return _prices(types, {name: found for name, found in steps.items() if name in types})


class _Spot(Struct):
    InstanceType: str
    AvailabilityZone: str
    SpotPrice: str
    Timestamp: datetime


class _History(Struct):
    SpotPriceHistory: list[_Spot]


def _aws(folder: Path, types: Sequence[str]) -> dict[str, _Steps]:
    zones: dict[str, dict[str, list[tuple[datetime, float]]]] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        doc = Document.read(path)
        for i, spot in enumerate(doc.convert(doc.data, _History).SpotPriceHistory):
            try:
                price = _price(spot.SpotPrice)
            except ValueError:
                place = ("SpotPriceHistory", i, "SpotPrice")
                raise doc.error(place, f"expected a price, found {spot.SpotPrice!r}") from None
            zones.setdefault(spot.InstanceType, {}).setdefault(spot.AvailabilityZone, []).append(
                (spot.Timestamp, price)
            )
    found = {}
    for name in types:
        instance, factor = AWS.get(name.lower(), ("", 1.0))
        if instance in zones:
            found[name] = [(at_s, price * factor) for at_s, price in _lowest(_from_first(zones[instance]))]
    return found


def _azure(folder: Path, types: Sequence[str]) -> dict[str, _Steps]:
    zones: dict[str, dict[str, list[tuple[datetime, float]]]] = {}
    for path in sorted(folder.glob("*.csv")):
        header = header_of(path)
        for row in read_rows(path):
            try:
                day = datetime.strptime(row.text(header[0]), "%m/%d/%Y").replace(tzinfo=UTC)
            except ValueError:
                found = row.text(header[0])
                raise row.error(header[0], f"expected a day as MM/DD/YYYY, found {found!r}") from None
            for column in header[1:]:
                text = row.text(column, "").removeprefix("$")
                if text:
                    try:
                        zones.setdefault(column, {}).setdefault(path.stem, []).append((day, _price(text)))
                    except ValueError:
                        raise row.error(column, f"expected a price such as $0.90, found {text!r}") from None
    by_type = {name: AZURE.get(name.lower(), "") for name in types}
    return {name: _lowest(_from_first(zones[column])) for name, column in by_type.items() if column in zones}


def _from_first(zones: Mapping[str, list[tuple[datetime, float]]]) -> list[_Steps]:
    """Each zone's prices in seconds after the first of all."""
    start = min(at for found in zones.values() for at, _ in found)
    return [[((at - start).total_seconds(), price) for at, price in sorted(found)] for found in zones.values()]


def _lowest(several: Sequence[_Steps]) -> _Steps:
    """The lowest of several prices over time."""
    times = sorted({0.0, *(at for steps in several for at, _ in steps)})
    return [(at, min(_at(steps, at) for steps in several)) for at in times]


def _at(steps: _Steps, now_s: float) -> float:
    return steps[max(bisect_right(steps, (now_s, inf)) - 1, 0)][1]


def _prices(types: Sequence[str], steps: Mapping[str, _Steps]) -> Prices:
    missing = tuple(name for name in types if name not in steps)
    times = sorted({0.0, *(at for found in steps.values() for at, _ in found)})
    values = np.full((len(times), len(types)), UNKNOWN)
    for t, name in enumerate(types):
        if name in steps:
            values[:, t] = [_at(steps[name], at) for at in times]
    return _changes(tuple(types), times, values, missing)


def _changes(types: tuple[str, ...], times_s: Sequence[float], values: Floats, missing: tuple[str, ...]) -> Prices:
    """Prices at the times at which any of them changes."""
    kept = [0, *(1 + np.flatnonzero((values[1:] != values[:-1]).any(axis=1))).tolist()]
    return Prices(types, tuple(times_s[i] for i in kept), values[kept], missing)
