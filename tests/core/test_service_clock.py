"""A service's clock goes on over restarts, whatever the system's clock is set to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dovetail.core.service import clock
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | str]:
    """A machine whose clocks show what they are told to."""
    shows: dict[str, float | str] = {"monotonic": 50.0, "boot": "first", "system": 1e9}
    monkeypatch.setattr(time, "monotonic", lambda: shows["monotonic"])
    monkeypatch.setattr(time, "time", lambda: shows["system"])
    monkeypatch.setattr(clock, "_boot", lambda: shows["boot"])
    return shows


def test_it_goes_on_while_the_process_is_gone(tmp_path: Path, machine: dict[str, float | str]) -> None:
    with Store(tmp_path / "state.db") as store:
        first = LastingClock(store)
        machine["monotonic"] = 60.0
        assert first() == 10.0
    machine |= {"monotonic": 90.0, "system": 1.0}  # the system's clock was set back by decades
    with Store(tmp_path / "state.db") as store:
        assert LastingClock(store)() == 40.0


def test_it_stands_still_while_the_machine_is_off(tmp_path: Path, machine: dict[str, float | str]) -> None:
    with Store(tmp_path / "state.db") as store:
        LastingClock(store)
    machine |= {"monotonic": 3.0, "boot": "second", "system": 9e9}
    with Store(tmp_path / "state.db") as store:
        again = LastingClock(store, least_s=25.0)  # the journal's last step
        assert again() == 25.0
        machine["monotonic"] = 4.5
        assert again() == 26.5


def test_a_machine_that_does_not_tell_its_boots_may_lose_time_but_never_goes_back(
    tmp_path: Path, machine: dict[str, float | str]
) -> None:
    machine["boot"] = ""
    with Store(tmp_path / "state.db") as store:
        LastingClock(store)
    machine["monotonic"] = 500.0
    with Store(tmp_path / "state.db") as store:
        assert LastingClock(store, least_s=7.0)() == 7.0
