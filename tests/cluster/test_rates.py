"""The rate table as a cluster reads it: absolute rates are throughputs, cold starts are restarts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dovetail.cli import main
from dovetail.cluster.check import check_journal
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.inputs.throughputs import ThroughputsError, from_rates, restart_prices
from dovetail.cluster.rounds import scheduler_for
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.core.rates import Rate, RateTable, Switch

RATES = [
    Rate("llm", "a100", 8.0, unit="steps/s"),
    Rate("llm", "l4", 2.0, unit="steps/s"),
    Rate("llm", "a100", 14.0, width=2, unit="steps/s"),
    Rate("llm", "l4", 0.25),  # relative: for others
    Rate("cnn", "a100", 120.0, unit="items/s"),
    Rate("cnn", "l4", 60.0, unit="items/s"),
]
SWITCHES = [
    Switch("llm", 30.0, device="a100"),
    Switch("llm", 45.0),
    Switch("cnn", 3.0, previous="llm"),  # not a cold start
]
JOBS = """arrival_s,model,width,steps
0,llm,1,4000
0,llm,2,7000
100,cnn,1,60000
100,llm,1,4000
200,cnn,1,60000
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    RateTable(RATES, SWITCHES).write(tmp_path / "rates.json")
    (tmp_path / "jobs.csv").write_text(JOBS)
    return Scenario(cluster="a100=2,l4=1", rates=tmp_path / "rates.json", trace=tmp_path / "jobs.csv")


def test_absolute_rates_are_throughputs_and_cold_starts_are_restarts(scenario: Scenario) -> None:
    setup = load(scenario).setup
    kinds = {kind: i for i, kind in enumerate(setup.throughputs.kinds)}
    assert setup.throughputs.alone[kinds["llm", 1]].tolist() == [8.0, 2.0]
    assert setup.throughputs.alone[kinds["llm", 2]].tolist() == [14.0, 0.0]
    assert setup.throughputs.alone[kinds["cnn", 1]].tolist() == [120.0, 60.0]
    restarts_s = setup.restarts_s(10.0)
    assert restarts_s is not None
    for each in restarts_s:  # planned ahead or not
        assert each[kinds["llm", 1]].tolist() == [30.0, 45.0]
        assert each[kinds["cnn", 1]].tolist() == [10.0, 10.0]


def test_leases_pay_the_restart_of_their_kind_and_type(scenario: Scenario, tmp_path: Path) -> None:
    loaded, path = load(scenario), tmp_path / "run.jsonl"
    run(loaded.setup, loaded.policy("max_min_fairness_perf"), name="max_min_fairness_perf", journal=path)
    report = check_journal(path)
    assert report.faults == []
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kind_of = {job: kind for r in records if r.get("of") == "arrived" for job, kind in _rows(r, "id", "kind")}
    paid = {
        (records[0]["facts"]["kinds"][kind_of[job]][0], on, price_s)
        for r in records
        if r.get("of") == "started"
        for job, on, price_s in _rows(r, "id", "on", "setup_s")
    }
    assert paid >= {("llm", 0, 30.0), ("cnn", 1, 10.0)}
    assert paid <= {("llm", 0, 30.0), ("llm", 1, 45.0), ("cnn", 0, 10.0), ("cnn", 1, 10.0)}
    assert all(found == recorded for _, _, found, recorded in replay(scheduler_for(Reader(path)), Reader(path)))
    started = next(r for r in records if r.get("of") == "started")
    started["columns"]["setup_s"][0] /= 2
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "restart" in check_journal(path).faults_by_code


def _rows(record: dict[str, dict[str, list[float]]], *names: str) -> list[tuple[float, ...]]:
    return list(zip(*(record["columns"][name] for name in names), strict=True))


def test_a_rate_table_goes_over_a_file_of_throughputs(scenario: Scenario, tmp_path: Path) -> None:
    base = tmp_path / "base.csv"
    base.write_text(
        "model,type,steps_per_s,width,beside\nllm,a100,1.0,,\ngan,a100,5.0,,\ngan,l4,2.5,,\ngan,l4,2.0,,gan\n"
    )
    both = load(Scenario(cluster="a100=2,l4=1", rates=scenario.rates, throughputs=base, jobs=3)).setup.throughputs
    at = both.index()
    assert both.alone[at["llm", 1]].tolist() == [8.0, 2.0]
    assert both.alone[at["gan", 1]].tolist() == [5.0, 2.5]
    assert both.pairs is not None
    assert both.pairs[at["gan", 1], at["gan", 1]].tolist() == [0.0, 2.0]


def test_what_cannot_be_read_is_told(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario.rates is not None
    with pytest.raises(InputError, match=r"rates\.json: no throughputs for the type 'h100'"):
        load(Scenario(cluster="h100=1", rates=scenario.rates))
    RateTable([Rate("llm", "l4", 0.5)]).write(scenario.rates)
    with pytest.raises(InputError, match=r"rates\.json: its rates are relative; expected some with a unit"):
        load(scenario)
    with pytest.raises(ThroughputsError, match="llm: rates in items/s and in tokens/s; expected one unit"):
        from_rates(RateTable([Rate("llm", "l4", 1.0, unit=unit) for unit in ("items/s", "tokens/s")]))
    assert from_rates(RateTable([Rate("llm", "l4", 3.0, unit=u) for u in ("items/s", "steps/s")])).alone.tolist() == [
        [3.0]
    ]
    assert restart_prices(RateTable(), [("llm", 1)], ["l4"]) is None
    found = restart_prices(RateTable([], [Switch("llm", 5.0, device="l4")]), [("llm", 1)], ["l4", "t4"])
    assert found is not None
    assert np.array_equal(found, [[5.0, np.nan]], equal_nan=True)


def test_a_restart_longer_than_a_round_is_refused(scenario: Scenario) -> None:
    loaded = load(scenario)
    with pytest.raises(InputError, match="a restart of 45 s in rounds of 40 s"):
        run(loaded.setup, loaded.policy("fifo"), RoundRules(round_s=40.0))


def test_the_command_takes_it(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-c", str(scenario.cluster), "--rates", str(scenario.rates), "-t", str(scenario.trace), "--format", "json"]
    assert main(["cluster", "simulate", *words]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 5
    assert main(["cluster", "simulate", *words, "--compat", "gavel"]) == 0
