"""What changes about a cluster while a run goes on: accelerators, what is known of kinds of jobs, the policy."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.cluster.rounding.leases import Leases
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.core.events import Rows


class Changes:
    """Tells mechanism and leases of rows about the cluster."""

    def __init__(self, mechanism: Mechanism, leases: Leases, per_server: Sequence[int]) -> None:
        self._mechanism, self._leases, self._per_server = mechanism, leases, np.array(per_server)

    def see(self, rows: Rows, now: float) -> Rows | None:
        """Take rows in, and give what is new about them."""
        found: Rows | None = getattr(self, f"_see_{rows.of}")(rows, rows.columns, now)
        return found

    # --- accelerators ---------------------------------------------------------------------------------------

    def _see_mended(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows | None:
        return self._use(rows, self._leases.devices.down, self._leases.devices.mend)

    def _see_undrained(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows | None:
        leases = self._leases
        return self._use(
            rows, leases.devices.drained, lambda device: leases.devices.undrain(device, bool(leases.holders(device)))
        )

    def _see_drained(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows | None:
        devices = self._leases.devices
        new = [device for device in columns["device"] if device not in devices.drained]
        for device in new:
            self._count(device, -devices.usable(device))
            devices.drain(device)
        return Rows(rows.of, {"device": new}) if new else None

    def _use(self, rows: Rows, out: set[int], back: Any) -> Rows | None:
        """Devices that were out can be used again, unless something else speaks against it."""
        new = [device for device in rows.columns["device"] if device in out]
        for device in new:
            back(device)
            self._count(device, self._leases.devices.usable(device))
        return Rows(rows.of, {"device": new}) if new else None

    def _count(self, device: int, by: int) -> None:
        if by:
            self._mechanism.add_accelerators(self._leases.devices.type_of[device], int(by))

    def _see_joined(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        self._leases.devices.join(columns["device"], columns["on"], columns["server"])
        for device in columns["device"]:
            self._count(device, 1)
        return rows

    # --- what is known ----------------------------------------------------------------------------------------

    def _see_kinds(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        alone = np.array(columns["alone"], dtype=np.float64)
        spread = np.array(columns.get("spread") or columns["alone"], dtype=np.float64)
        wide = np.array(columns["width"])[:, None] > self._per_server
        new = list(zip(columns["model"], columns["width"], strict=True))
        self._mechanism.add_kinds(new, np.where(wide, spread, alone))
        self._leases.add_kinds(spread)
        return rows

    def _see_learned(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        kinds, on, rates = _columns(columns, "rate")
        spread = np.array(columns.get("spread") or np.zeros(len(kinds)), dtype=np.bool_)
        if spread.any():
            self._leases.learn_spread(kinds[spread], on[spread], rates[spread])
        usual = spread == (self._mechanism.kind_width[kinds] > self._per_server[on])
        if usual.any():
            self._mechanism.learn(kinds[usual], on[usual], rates[usual])
        return rows

    def _see_learned_pairs(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        kinds, on, rates = _columns(columns, "rate")
        self._mechanism.learn_pairs(kinds, np.array(columns["beside"]), on, rates)
        return rows

    def _see_costs(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        kinds, on, seconds = _columns(columns, "restart_s")
        self._leases.price(kinds, on, seconds, columns.get("ahead"))
        return rows

    def _see_policy(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        self._mechanism.change_policy(make(columns["name"][0], columns["options"][0]), now)
        return rows

    def _see_saved(self, rows: Rows, columns: Mapping[str, Any], now: float) -> Rows:
        """The machine is saved: its policy goes on as if it had been loaded from there, for a program that starts cold
        may break a tie otherwise than a warm one. One that cannot be saved goes on as it is."""
        with suppress(Exception):
            self._mechanism.policy = pickle.loads(pickle.dumps(self._mechanism.policy, protocol=5))
        return rows


def _columns(columns: Mapping[str, Any], value: str) -> tuple[Ints, Ints, Floats]:
    return np.array(columns["kind"]), np.array(columns["on"]), np.array(columns[value], dtype=np.float64)
