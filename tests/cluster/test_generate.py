"""Generated workloads: the old system's, draw for draw, and what each option adds to them."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.generate import GeneratedJobs, jobs_per_hour
from dovetail.cluster.inputs.scenario import load
from dovetail.cluster.inputs.templates import TEMPLATES
from dovetail.cluster.inputs.throughputs import RateEntry, table
from dovetail.cluster.inputs.traces import read_trace
from dovetail.cluster.inputs.traces.gavel import gavel_line
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.core.errors import InputError


def test_a_recorded_workload_of_the_old_system_is_met_to_the_last_digit(measured: Throughputs, golden: Path) -> None:
    lines = (golden / "cluster/gen444_seed0_lam9000_window100.trace").read_text().splitlines()
    recorded = [line for line in lines if not line.endswith("\t0")]  # those still running when the window began
    jobs = list(islice(GeneratedJobs(throughputs=measured, lam_s=9000), 100, 100 + len(recorded)))
    assert len(recorded) == 150
    for job, line in zip(jobs, recorded, strict=True):
        cells = gavel_line(job).split("\t")
        cells[-1] = f"{job.arrival_s - jobs[0].arrival_s:f}"
        assert "\t".join(cells) == line


def test_the_templates_are_in_the_order_that_seeds_were_made_for(measured: Throughputs) -> None:
    assert len(TEMPLATES) == 26
    assert {(template.model, 1) for template in TEMPLATES} <= set(measured.kinds)
    assert [template.model for template in TEMPLATES][-3:] == ["Recommendation (batch size 8192)", "A3C", "CycleGAN"]


def test_the_same_seed_gives_the_same_jobs_whatever_else_is_asked_for(measured: Throughputs) -> None:
    plain = list(GeneratedJobs(throughputs=measured, lam_s=600, jobs=200, seed=3))
    assert plain == list(GeneratedJobs(throughputs=measured, lam_s=600, jobs=200, seed=3))
    assert plain != list(GeneratedJobs(throughputs=measured, lam_s=600, jobs=200, seed=4))
    more = GeneratedJobs(throughputs=measured, lam_s=600, jobs=200, seed=3, deadlines=True, entities=("a", "b"))
    for one, other in zip(plain, more, strict=True):
        assert (one.model, one.steps, one.arrival_s) == (other.model, other.steps, other.arrival_s)
        assert other.due_s is not None
        assert other.duration_s is not None
        assert round(other.due_s / other.duration_s, 9) in {1.2, 2.0, 10.0}
    assert {job.entity for job in more} == {"a", "b"}


def test_shares_are_those_of_the_published_trace(measured: Throughputs) -> None:
    jobs = list(GeneratedJobs(throughputs=measured, lam_s=0, jobs=20_000, multi_gpu=True, priorities=True))
    widths = Counter(job.width for job in jobs)
    for width, share in {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}.items():
        assert widths[width] / len(jobs) == pytest.approx(share, abs=0.015)
    assert sum(job.weight == 5 for job in jobs) / len(jobs) == pytest.approx(0.2, abs=0.015)
    durations = [job.duration_s or 0.0 for job in jobs]
    assert sum(durations) / len(jobs) == pytest.approx(60_362, rel=0.05)  # the distribution's mean
    assert 60 * 10**1.5 <= min(durations) <= max(durations) <= 60 * 10**4
    assert {job.arrival_s for job in jobs} == {0.0}
    index = measured.index()
    assert all((job.model, job.width) in index for job in jobs)
    short = sum(duration < 60_000 for duration in durations)
    assert short / len(jobs) == pytest.approx(0.8, abs=0.015)


def test_steps_take_the_duration_on_the_reference_type(measured: Throughputs) -> None:
    index = measured.index()
    for reference, known in (("v100", measured), ("p100", measured.of_types(("k80", "p100")))):
        t = measured.types.index(reference)
        jobs = GeneratedJobs(throughputs=known, lam_s=60, jobs=50, duration_s=1000.0)
        for job in jobs:
            assert job.duration_s == 1000.0
            assert job.steps == 1000.0 * measured.alone[index[job.model, 1], t]


def test_arrivals_without_end_have_the_mean_gap_that_was_asked_for(measured: Throughputs) -> None:
    jobs = GeneratedJobs(throughputs=measured, lam_s=jobs_per_hour(4.0))
    last = next(islice(jobs, 20_000, None))
    assert last.id == 20_000
    assert last.arrival_s / 20_000 == pytest.approx(900, rel=0.03)


def test_a_steady_state_begins_with_full_types(measured: Throughputs) -> None:
    filled = GeneratedJobs(throughputs=measured, lam_s=600, multi_gpu=True, prefill=(10, 0, 7), jobs=60)
    jobs = list(filled)
    at_start = [job for job in jobs if job.arrival_s == 0.0]
    count, left = 0, [10, 7]
    while left:
        left[0] -= at_start[count].width
        count += 1
        if left[0] <= 0:
            del left[0]
    assert len(at_start) == count + 1  # and the first that arrives
    plain = list(GeneratedJobs(throughputs=measured, lam_s=600, multi_gpu=True, jobs=60))
    assert [job.steps for job in jobs] == [job.steps for job in plain]
    assert [job.arrival_s for job in jobs][count:] == [job.arrival_s for job in plain][: 60 - count]


def test_other_models_and_widths_than_the_templates_work(tmp_path: Path) -> None:
    own = table(
        [
            RateEntry("b", "l4", 2.0),
            RateEntry("a", "l4", 1.0),
            RateEntry("a", "l4", 3.0, width=4),
            RateEntry("c", "l4", 0.0),
        ]
    )
    jobs = list(GeneratedJobs(throughputs=own, lam_s=0, jobs=300, multi_gpu=True))
    assert {(job.model, job.width) for job in jobs} == {("a", 1), ("b", 1), ("a", 4)}
    with pytest.raises(InputError, match="no command is known"):
        gavel_line(jobs[0])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lam_s": -1}, "lam_s: expected"),
        ({"lam_s": 0}, "need a number"),
        ({"lam_s": float("nan")}, "lam_s: expected"),
        ({"lam_s": 1, "jobs": -1}, "jobs: expected"),
        ({"lam_s": 1, "duration_s": 0.0}, "duration_s: expected"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        GeneratedJobs(throughputs=table([RateEntry("a", "l4", 1.0)]), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a number above 0"):
        jobs_per_hour(0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_generated_jobs_survive_the_old_format(
    tmp_path_factory: pytest.TempPathFactory, seed: int, wide: bool, due: bool
) -> None:
    from dovetail.cluster.inputs.analytic import analytic
    from dovetail.cluster.inputs.traces import write_gavel

    rates = analytic(["v100"])
    jobs = list(GeneratedJobs(throughputs=rates, lam_s=500, jobs=12, seed=seed, multi_gpu=wide, deadlines=due))
    path = tmp_path_factory.mktemp("trace") / "jobs.trace"
    assert write_gavel(jobs, path) == 12
    for one, other in zip(jobs, read_trace(path, rates), strict=True):
        assert (one.id, one.model, one.width, one.weight) == (other.id, other.model, other.width, other.weight)
        assert int(one.steps) == other.steps
        assert one.arrival_s == pytest.approx(other.arrival_s, abs=1e-6)
        if due:
            assert other.due_s == pytest.approx(one.due_s, rel=0.01)  # by whole steps and six digits


def test_generated_jobs_are_the_same_on_every_cluster_unless_a_type_is_named() -> None:
    def steps(cluster: str, **more: str) -> list[float]:
        jobs = load(cluster=cluster, jobs=4, **more).setup.jobs
        return [job.steps for job in jobs]

    everywhere = steps("8:8:8")
    for cluster in ("l4=4", "a100=4,l4=1", "l4=1,a100=4"):
        assert steps(cluster) == everywhere
    assert steps("l4=4", durations_on="l4") != everywhere
    assert steps("a100=4", durations_on="l4") == steps("l4=4", durations_on="l4")
    assert any("drawn by their time on v100" in note for note in load(cluster="l4=4", jobs=4).notes)
    with pytest.raises(InputError, match="no published figures for the accelerator 'l5'"):
        load(cluster="l4=4", jobs=4, durations_on="l5")
    rates = [{"model": "A", "type": "l3", "steps_per_s": 1.0}]
    with pytest.raises(InputError, match="durations_on: no throughputs for the type 'l4'"):
        load(cluster="l3=4", jobs=4, throughputs=rates, durations_on="l4")
