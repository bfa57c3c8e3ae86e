"""Scenarios: what commands name becomes a setup, and what cannot be is told."""

from __future__ import annotations

import re
from itertools import islice, pairwise, takewhile
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.cluster.compat.log import old_log
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.failures import RandomFailures
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.scenario import CONTINUOUS_JOBS, STATIC_JOBS, Scenario, load
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.simulate import run
from dovetail.cluster.study import compare, simulate
from dovetail.core.errors import InputError

TRACE = """\
arrival_s,model,width,steps,entity
0,LM (batch size 5),1,1000,research
60,LM (batch size 5),2,1000,product
120,A3C,1,1000,product
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


def jobs_of(**given: Any) -> list[Any]:
    found = load(Scenario(**given)).setup.jobs
    assert isinstance(found, list)
    return found


def test_without_anything_some_jobs_are_there_at_the_start() -> None:
    jobs = jobs_of()
    assert len(jobs) == STATIC_JOBS
    assert {job.arrival_s for job in jobs} == {0.0}


def test_jobs_arrive_if_there_is_a_rate() -> None:
    jobs = jobs_of(lam_s=600.0)
    assert len(jobs) == CONTINUOUS_JOBS
    assert len({job.arrival_s for job in jobs}) == CONTINUOUS_JOBS


def test_jobs_of_a_window_are_without_end() -> None:
    setup = load(Scenario(lam_s=600.0, window=(3, 7))).setup
    assert not isinstance(setup.jobs, list)
    assert setup.window == (3, 7)


def test_a_steady_state_fills_the_cluster_before_the_first_arrival() -> None:
    jobs = jobs_of(cluster="2:3:4", lam_s=600.0, jobs=20, steady_state=True)
    assert sum(job.arrival_s == 0.0 for job in jobs) == 2 + 3 + 4 + 1


def test_the_seed_is_all_that_makes_jobs_differ() -> None:
    assert jobs_of(seed=1) == jobs_of(seed=1)
    assert jobs_of(seed=1) != jobs_of(seed=2)


def test_types_are_filled_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("types: {v100: {count: 2, gpus_per_server: 2}, h100: 4, k80: 0}\norder: [h100, v100]\n")
    setup = load(Scenario(cluster=str(path))).setup
    assert setup.types == ("h100", "v100")
    assert setup.counts.tolist() == [4, 2]
    assert setup.per_server.tolist() == [1, 2]
    rates = setup.throughputs.alone[setup.throughputs.index()["ResNet-50 (batch size 64)", 1]]
    assert rates[0] > rates[1]


def test_entities_of_a_trace_have_weights(trace: Path) -> None:
    assert load(Scenario(trace=trace)).setup.entities == {"research": 1.0, "product": 1.0}
    weighed = load(Scenario(trace=trace, entities={"product": 3.0})).setup.entities
    assert weighed == {"research": 1.0, "product": 3.0}


def test_an_entity_without_jobs_is_left_out_and_no_slip_is_taken_for_one() -> None:
    def entities(*of: str, **weights: float) -> dict[str, float]:
        jobs = [{"arrival_s": 0, "model": "LM (batch size 20)", "steps": 9, "entity": entity} for entity in of]
        return load(Scenario(trace=jobs, entities=weights)).setup.entities

    assert entities("y", "", x=2.0, y=3.0) == {"y": 3.0, "": 1.0}
    with pytest.raises(InputError, match=r"no job is of the entity 'x'; known: y$"):
        entities("y", "", x=2.0)
    with pytest.raises(InputError, match=r"no job is of the entity 'x'; no job has an entity$"):
        entities("", "", x=2.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entities": {"prodct": 1.0}}, r"no job is of the entity 'prodct'; did you mean 'product'\?"),
        ({"window": (1, 9)}, r"window 1 to 9: expected ids of the jobs, which are 0 to 3"),
        ({"cluster": "8:8"}, "expected 3 numbers"),
        ({"cluster": "v99=3"}, "v99"),
    ],
)
def test_what_cannot_be_is_told(trace: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(Scenario(trace=trace, **given))


def test_a_type_without_throughputs_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("model,type,steps_per_s\nLM,a100,2\n")
    with pytest.raises(InputError, match=r"rates.csv: no throughputs for the type 'a10'; did you mean 'a100'\?"):
        load(Scenario(throughputs=path, cluster="a10=4"))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    for rate in (2.0, 4.0):
        path.write_text(f"model,type,steps_per_s\nLM,a100,{rate}\n")
        assert load(Scenario(throughputs=path, cluster="a100=1")).setup.throughputs.alone.tolist() == [[rate]]


def test_a_policy_that_draws_does_so_by_the_seed() -> None:
    loaded = load(Scenario(cluster="2:2:2", seed=5))
    drawn = [loaded.policy("gandiva", options) for options in ({}, {"seed": "5"}, {"seed": "6"})]
    by_run, by_option, other = (run(loaded.setup, policy).completion_s for policy in drawn)
    assert by_run == by_option != other


def test_servers_fail_as_often_as_the_file_says() -> None:
    spec = parse_cluster("a100=8", gpus_per_server="4")
    assert list(RandomFailures(spec, seed=0)) == []
    failing = replace(spec, failure_s=(100_000.0,), repair_s=(5_000.0,))
    found = list(takewhile(lambda each: each.at_s < 6e7, RandomFailures(failing, seed=0)))
    assert {outage.devices for outage in found} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert np.mean([outage.until_s - outage.at_s for outage in found]) == pytest.approx(5_000, rel=0.15)
    for devices in {outage.devices for outage in found}:
        mine = [outage for outage in found if outage.devices == devices]
        assert all(a.until_s <= b.at_s for a, b in pairwise(mine))
        assert np.mean([b.at_s - a.until_s for a, b in pairwise(mine)]) == pytest.approx(100_000, rel=0.15)


def test_servers_fail_for_as_long_as_a_run_lasts_and_from_its_first_arrival_on() -> None:
    spec = parse_cluster({"types": {"a100": {"count": 2, "failure_s": 1e6}}})
    late = list(takewhile(lambda each: each.at_s < 3e8, RandomFailures(spec, seed=1)))
    assert late[-1].at_s > 2.9e8
    shifted = RandomFailures(spec, seed=1, begins_s=1.7e9)
    for early, later in zip(late, shifted, strict=False):
        assert later.devices == early.devices
        assert (later.at_s - 1.7e9, later.until_s - 1.7e9) == pytest.approx((early.at_s, early.until_s), abs=1e-3)


def test_failures_are_those_of_earlier_versions() -> None:
    spec = parse_cluster({"types": {"a100": {"count": 2, "failure_s": 86400}}})
    found = [(each.at_s, each.until_s, each.devices) for each in islice(RandomFailures(spec, seed=0), 3)]
    assert found == [
        (18378.91452409246, 23125.273646695856, (1,)),
        (45714.019843193244, 47856.58307691635, (1,)),
        (66335.85524758199, 67122.23025330261, (1,)),
    ]


def test_failures_make_a_run_longer(tmp_path: Path) -> None:
    spans = []
    for failure_s in (inf, 20_000.0):
        path = tmp_path / "cluster.yaml"
        line = "" if failure_s == inf else f", failure_s: {failure_s}, repair_s: 20000"
        path.write_text(f"types: {{v100: {{count: 2{line}}}}}\n")
        loaded = load(Scenario(cluster=str(path), jobs=4, duration_s=20_000.0))
        spans.append(run(loaded.setup, loaded.policy("max_min_fairness_perf")).figures.makespan_s)
    assert spans[0] < spans[1]


class Pairs:
    """Gives every pair half of the first type, and keeps the pair rates that it was shown."""

    agnostic, packs, strict = False, True, False

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def allocate(self, problem: Problem) -> Allocation:
        assert problem.pair_rates is not None
        self.seen.append(problem.pair_rates)
        share = np.zeros((problem.jobs, len(problem.types)))
        paired = np.zeros((1, len(problem.types)))
        paired[0, 0] = 0.5
        return Allocation(share=share, pairs=np.array([[0, 1]]), pair_share=paired)


def test_estimated_pairs_are_believed_until_they_are_tried() -> None:
    loaded = load(Scenario(jobs=2, profiled=0.3, references=4))
    true, believed = loaded.setup.throughputs.pairs, loaded.believed
    assert true is not None
    assert believed is not None
    assert believed.pairs is not None
    inner = Pairs()
    policy = LearnedRates(inner, believed.pairs)
    wrong = (believed.pairs != true).any(axis=2) & (true != true.swapaxes(0, 1)).any(axis=2)
    a, b = np.argwhere(wrong)[0]
    problem = Problem(
        now_s=0.0,
        types=loaded.setup.types,
        counts=loaded.setup.counts,
        prices=np.ones(3),
        ids=np.arange(2),
        kind=np.array([a, b]),
        rates=loaded.setup.rates(),
        width=np.ones(2, dtype=np.int64),
        weight=np.ones(2),
        steps_left=np.ones(2),
        age_s=np.zeros(2),
        deadline_s=np.full(2, inf),
        pair_rates=true,
    )
    policy.allocate(problem)
    policy.allocate(problem)
    first, second = inner.seen
    assert (first == believed.pairs).all()
    assert (second[a, b] == true[a, b]).all()
    assert (second[b, a] == true[b, a]).all()
    others = np.ones(true.shape[:2], dtype=bool)
    others[a, b] = others[b, a] = False
    assert (second[others] == first[others]).all()


def test_only_policies_that_pack_need_estimates() -> None:
    loaded = load(Scenario(jobs=2, profiled=0.3))
    assert isinstance(loaded.policy("max_min_fairness_packed"), LearnedRates)
    assert not isinstance(loaded.policy("max_min_fairness_perf"), LearnedRates)
    assert not isinstance(load(Scenario(jobs=2)).policy("max_min_fairness_packed"), LearnedRates)


def test_the_old_log_has_the_lines_that_scripts_look_for() -> None:
    loaded = load(Scenario(lam_s=20_000.0, window=(2, 4), priorities=True, deadlines=True, seed=3))
    outcome = run(loaded.setup, loaded.policy("max_min_fairness_perf"))
    log = old_log(outcome, loaded.setup.window)
    found = outcome.figures
    assert re.findall(r"^Job (\d+): ([\d.]+)$", log, re.M) == [
        (str(job), f"{outcome.completion_s[job]:.3f}") for job in (2, 3)
    ]
    assert f"Average job completion time: {found.avg_jct_s:.3f} seconds (" in log
    assert f"Total duration: {found.makespan_s:.3f} seconds (" in log
    assert f"Number of SLO violations: {found.slo_violations}\n" in log


def test_jobs_that_no_server_holds_or_no_type_are_told(trace: Path) -> None:
    loaded = load(cluster="v100=1,l4=1", trace=trace)
    assert "wider" not in str(loaded.notes)  # it is rejected, and that is told when it is
    assert "1 job is wider than every server (1), and runs at" in load(cluster="v100=2", trace=trace).notes[-1]
    assert "wider" not in str(load(cluster="v100=2", per_server=2, trace=trace).notes)
    why = "1 rejected: no type has enough accelerators that they run on (they are 2 wide); there are 1 v100, 1 l4"
    assert simulate(loaded, "fifo", journal=False).notes[-1] == why
    assert compare(loaded, ["fifo"]).notes[-1] == f"fifo: {why}"
