"""What a live run came to, against its journal, counted again by the definitions of the figures."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import pytest

from dovetail.core.events import Arrived, Complete, Decided, Finished, Start
from dovetail.core.journal import Reader
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.inputs.problem import MIB
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.results import LiveResult, evaluate
from dovetail.pipeline.live.supervisor import Patience
from dovetail.testing.pipeline_live import PlayedRun, even_plan

PATIENT = RunOptions(patience=Patience(heartbeat_limit_s=1000.0))
TOTAL, BYTES = 24, 80_000


def play(
    path: Path, replicas: int = 1, deaths: dict[int, str] | None = None, how: Literal["matched", "emulated"] = "matched"
) -> tuple[PlayedRun, LiveResult]:
    played = PlayedRun(path, even_plan(4, replicas), TOTAL, seed=3, deaths=deaths, options=PATIENT)
    carried = {f"h{i}": Carrier("t", "cpu", "a processor", how) for i in range(4)}
    return played, evaluate(played.counter, played.plans, played.journal.ids, carried, TOTAL, 5 * TOTAL)


class Recount:
    """The records of a journal, sorted by what they are."""

    def __init__(self, path: Path) -> None:
        entries = list(Reader(path))
        self.plan_of = {e.event.job: e.event.facts["plan"] for e in entries if isinstance(e.event, Arrived)}
        self.first_s = min(e.t for e in entries if isinstance(e.event, Arrived))
        self.out = [(e.t, self.plan_of[e.event.job]) for e in entries if isinstance(e.event, Complete)]
        self.decided = [(e.t, e.event) for e in entries if isinstance(e.event, Decided)]
        begun: dict[tuple[str, str], tuple[float, Any]] = {}
        self.spans: list[tuple[int, str, int, float]] = []  # plan, station, device, seconds
        for entry in entries:
            event = entry.event
            if isinstance(event, Start):
                begun[event.job, event.task] = (entry.t, event.devices[0])
            elif isinstance(event, Finished):
                start_s, device = begun.pop((event.job, event.task))
                self.spans.append((self.plan_of[event.job], event.task, device, entry.t - start_s))

    def seconds(self, plan: int, station: str) -> list[float]:
        return [seconds for of, name, _, seconds in self.spans if (of, name) == (plan, station)]


@pytest.mark.parametrize(("replicas", "deaths"), [(1, {}), (2, {}), (1, {4: "h1"}), (1, {20: "h1"})])
def test_figures_are_those_of_the_journal(tmp_path: Path, replicas: int, deaths: dict[int, str]) -> None:
    played, result = play(tmp_path / "run.jsonl", replicas, deaths)
    seen = Recount(tmp_path / "run.jsonl")
    elapsed_s = seen.out[-1][0] - seen.first_s
    assert (result.microbatches, result.completed, result.items) == (TOTAL, TOTAL, 5 * TOTAL)
    assert len(seen.out) == TOTAL
    assert result.elapsed_s == pytest.approx(elapsed_s)
    assert result.throughput_items_s == pytest.approx(5 * TOTAL / elapsed_s)

    counts = {plan: [t for t, of in seen.out if of == plan] for plan in played.plans}
    main = max(counts, key=lambda plan: len(counts[plan]))
    used, arrivals_s = played.plans[main], counts[main]
    assert main == (2 if deaths == {4: "h1"} else 1)
    fill = min(len(used.stages) + 1, ceil(len(arrivals_s) / 2))
    steady = (len(arrivals_s) - fill - 1) / (arrivals_s[-1] - arrivals_s[fill])
    assert result.steady_items_s == pytest.approx(steady * used.batch_size)
    assert result.predicted_items_s == used.throughput_items_s
    assert result.difference_percent == pytest.approx(100 * (steady * used.batch_size / used.throughput_items_s - 1))
    assert result.plans == len(played.plans) == 1 + len(deaths)

    assert [(stage.host, stage.layers) for stage in result.stages] == [(s.host, s.layers) for s in used.stages]
    for stage, planned in zip(result.stages, used.stages, strict=True):
        station = " + ".join(planned.hosts)
        assert stage.replicas == planned.replicas
        assert stage.compute_s == pytest.approx(median(seen.seconds(main, station)[2:]))
        assert stage.predicted_compute_s == pytest.approx(planned.compute_s * len(planned.hosts))
        assert stage.send_bits == 32
        busy_s = [
            sum(s for *_, device, s in seen.spans if device == played.journal.ids[host]) for host in planned.hosts
        ]
        assert stage.utilisation == pytest.approx(fmean(busy_s) / elapsed_s)
    for stage, after in zip(result.stages, [*result.stages[1:], None], strict=True):
        link = f"{stage.host} to {after.host if after else 'data host'}"
        assert stage.send_s == pytest.approx(median(seen.seconds(main, link)[2:]))


def test_a_change_of_plan_is_timed_from_the_first_microbatch(tmp_path: Path) -> None:
    _, result = play(tmp_path / "run.jsonl", deaths={4: "h1"})
    seen = Recount(tmp_path / "run.jsonl")
    ((at_s, halt),) = [(t, event) for t, event in seen.decided if event.what == "halt"]
    (change,) = result.changes
    assert change.at_s == pytest.approx(at_s - seen.first_s)
    assert change.why == halt.why


def test_what_other_levels_may_read_is_what_was_measured(tmp_path: Path) -> None:
    played, result = play(tmp_path / "run.jsonl", deaths={4: "h1"})
    seen = Recount(tmp_path / "run.jsonl")
    launched_s = next(t for t, event in seen.decided if event.what == "launch")
    halted_s = next(t for t, event in seen.decided if event.what == "halt")
    fed_s = {event.facts["plan"]: t for t, event in seen.decided if event.what == "feed"}
    chains = {generation: plan.chain for generation, plan in played.plans.items()}
    assert {(s.previous, s.device): s.seconds for s in result.rates.switches.values()} == {
        ("", chains[1]): pytest.approx(fed_s[1] - launched_s),
        ("m", chains[2]): pytest.approx(fed_s[2] - halted_s),
    }
    (rate,) = result.rates.rates.values()
    assert (rate.kind, rate.device, rate.unit, rate.source) == ("m", chains[2], "items/s", "measured")
    assert rate.rate == result.steady_items_s
    hosts = ["data host", *(stage.host for stage in played.plans[2].stages), "data host"]
    for sender, to in pairwise(hosts):
        pace = BYTES / median(seen.seconds(2, f"{sender} to {to}")) / MIB
        assert result.rates.links[sender, to].mib_per_s == pytest.approx(pace)


def test_a_prediction_for_other_hardware_is_not_held_against_a_run(tmp_path: Path) -> None:
    _, result = play(tmp_path / "run.jsonl", how="emulated")
    assert result.steady_items_s
    assert (result.as_planned, result.difference_percent) == (False, None)
    assert set(result.hardware.values()) == {"emulated on cpu a processor"}
    (rate,) = result.rates.rates.values()
    assert rate.device == " + ".join(["t, emulated on cpu"] * len(result.stages))


def test_on_a_busy_machine_nothing_is_judged(tmp_path: Path) -> None:
    played, judged = play(tmp_path / "run.jsonl")
    assert (judged.cannot_be_judged, judged.difference_percent is None) == ("", False)
    carried = {f"h{i}": Carrier("t", "cpu", "a processor", "matched") for i in range(4)}

    def result(busy: float) -> LiveResult:
        return evaluate(played.counter, played.plans, played.journal.ids, carried, TOTAL, 5 * TOTAL, busy)

    assert result(0.04).difference_percent == judged.difference_percent
    found = result(0.31)
    assert found.cannot_be_judged == "other programs took 31 % of all cores during the run"
    assert (found.as_planned, found.difference_percent) == (True, None)
    problem = played.plans[1].problem
    assert problem is not None
    problem.classes[0].busy = 0.2
    assert result(0.0).cannot_be_judged == "other programs took 20 % of the time when t was profiled"
