"""Rate tables: the closest number that is known, files that say where they are wrong, and the way there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.core.errors import InputError
from dovetail.core.rates import Link, Rate, RateTable, Switch

TABLE = RateTable(
    [
        Rate("llm", "l4", 0.4),
        Rate("llm", "l4", 0.7, width=2, source="measured"),
        Rate("llm", "l4", 0.5, width=2, neighbour="sd"),
        Rate("sd", "a100", 2.0, neighbour="llm", source="estimated"),
    ],
    [
        Switch("llm", 3.0, "sd", "l4", source="measured"),
        Switch("llm", 4.0, "sd"),
        Switch("llm", 1.5),
    ],
)


def test_the_closest_rate_that_is_known_is_found() -> None:
    assert TABLE.rate("llm", "l4") == 0.4
    assert TABLE.rate("llm", "l4", 2) == 0.7
    assert TABLE.rate("llm", "l4", 2, "sd") == 0.5
    assert TABLE.rate("llm", "l4", 2, "whisper") == 0.7, "beside an unknown neighbour: that of its width"
    assert TABLE.rate("llm", "l4", 4, "sd") == 0.4, "at an unknown width: that of one device"
    assert TABLE.rate("llm", "l4", 1, "sd") == 0.4


def test_what_is_not_known_is_none() -> None:
    assert TABLE.rate("llm", "a100") is None
    assert TABLE.rate("whisper", "l4") is None
    assert TABLE.rate("sd", "a100") is None, "known only beside a neighbour"
    assert TABLE.rate("sd", "a100", neighbour="llm") == 2.0


def test_the_closest_price_of_a_change_is_found() -> None:
    assert TABLE.switch_s("sd", "llm", "l4") == 3.0
    assert TABLE.switch_s("sd", "llm", "a100") == 4.0, "on any device"
    assert TABLE.switch_s(None, "llm", "a100") == TABLE.switch_s("", "llm", "a100") == 1.5, "onto an empty device"
    assert TABLE.switch_s("whisper", "llm", "l4") is None
    assert TABLE.switch_s("sd", "whisper", "l4") is None


def test_a_price_of_nothing_is_a_price() -> None:
    assert RateTable([], [Switch("llm", 0.0, "sd")]).switch_s("sd", "llm", "l4") == 0.0


def test_a_table_without_numbers_is_empty() -> None:
    assert not RateTable()
    assert TABLE
    assert RateTable([], [Switch("llm", 1.0)])


def test_a_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for table in (TABLE, RateTable()):
        table.write(tmp_path / "new folder" / "rates.json")
        found = RateTable.read(tmp_path / "new folder" / "rates.json")
        assert (found.rates, found.switches) == (table.rates, table.switches)


def test_a_table_can_be_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text("rates:\n- {kind: llm, device: l4, rate: 2}\nswitches:\n- {to: llm, from: sd, seconds: 1}\n")
    table = RateTable.read(path)
    assert table.rate("llm", "l4") == 2.0
    assert table.switch_s("sd", "llm", "l4") == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rates:\n- {kind: a, device: b, rate: 0}\n", "2: rates.0.rate: expected a positive rate, found 0.0"),
        ("rates:\n- {kind: a, device: b, rate: .nan}\n", "2: rates.0.rate: expected a positive rate, found nan"),
        ("rates:\n- {kind: a, device: b, rate: .inf}\n", "2: rates.0.rate: expected a positive rate, found inf"),
        (
            "rates:\n- kind: a\n  device: b\n  rate: 1\n  width: 0\n",
            "5: rates.0.width: expected at least 1 device, found 0",
        ),
        ("switches:\n- to: a\n  seconds: -1\n", "3: switches.0.seconds: expected seconds >= 0, found -1.0"),
        ("switches:\n- to: a\n  seconds: .inf\n", "3: switches.0.seconds: expected seconds >= 0, found inf"),
        ("rates:\n- kind: a\n  device: b\n  rat: 1\n", "4: rates.0.rat: unknown key 'rat'; did you mean 'rate'?"),
        ("rates:\n- kind: a\n  device: b\n", "2: rates.0: missing key `rate`"),
        ("rates:\n- kind: a\n  device: b\n  rate: fast\n", "4: rates.0.rate: expected float, found str"),
        (
            "switches:\n- to: a\n  seconds: 1\n  form: b\n",
            "4: switches.0.form: unknown key 'form'; did you mean 'from'?",
        ),
        (
            "rates:\n- {kind: a, device: b, rate: 1, source: guessed}\n",
            "2: rates.0.source: expected estimated or given or measured, found 'guessed'",
        ),
        (
            "rates:\n- {kind: a, device: b, rate: 1}\n- {kind: a, device: b, rate: 2}\n",
            "3: rates.1: the same as rates.0; expected each once",
        ),
        (
            "switches:\n- {to: a, seconds: 1}\n- {to: b, seconds: 1}\n- {to: a, from: '', seconds: 2}\n",
            "4: switches.2: the same as switches.0; expected each once",
        ),
    ],
)
def test_a_faulty_table_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        RateTable.read(path)
    assert str(caught.value) == f"{path}:{message}"


def test_a_table_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        TABLE.write(tmp_path)


def test_rates_with_a_unit_stand_beside_relative_ones() -> None:
    table = TABLE | RateTable([Rate("llm", "l4", 31.0, unit="items/s"), Rate("llm", "l4", 50.0, 2, unit="items/s")])
    assert table.rate("llm", "l4") == 0.4
    assert table.per_s("llm", "l4", "items/s") == 31.0
    assert table.per_s("llm", "l4", "items/s", 2) == 50.0
    assert table.per_s("llm", "l4", "items/s", 4) == 31.0, "at an unknown width: that of one device"
    assert table.per_s("llm", "l4", "steps/s") is None
    assert table.per_s("sd", "a100", "items/s", neighbour="llm") is None, "a relative rate is none per second"


def test_of_two_tables_the_second_counts_where_both_know(tmp_path: Path) -> None:
    newer = RateTable([Rate("llm", "l4", 0.6)], [Switch("llm", 9.0)], [Link("a", "b", 100.0)])
    both = TABLE | newer
    assert (both.rate("llm", "l4"), both.rate("llm", "l4", 2)) == (0.6, 0.7)
    assert (both.switch_s(None, "llm", "l4"), both.switch_s("sd", "llm", "l4")) == (9.0, 3.0)
    both.write(tmp_path / "rates.json")
    again = RateTable.read(tmp_path / "rates.json")
    assert (again.rates, again.switches, again.links) == (both.rates, both.switches, both.links)
    assert TABLE.rate("llm", "l4") == 0.4, "neither is changed"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ('{"from": "a", "to": "b", "mib_per_s": 0}', r"links.0.mib_per_s: expected a positive rate, found 0"),
        ('{"from": "a", "to": "b", "mib_per_s": 1, "latency_s": -1}', r"latency_s: expected seconds >= 0, found -1"),
        ('{"from": "a", "to": "b", "mib_per_s": 1}, {"from": "a", "to": "b", "mib_per_s": 2}', "the same as links.0"),
    ],
)
def test_a_link_that_makes_no_sense_is_bad_input(tmp_path: Path, link: str, message: str) -> None:
    (tmp_path / "rates.json").write_text('{"links": [' + link + "]}")
    with pytest.raises(InputError, match=message):
        RateTable.read(tmp_path / "rates.json")
