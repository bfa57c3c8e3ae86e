"""What the policies promise, and what holds for every one of them."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.optimise.shares import isolated_share, proportional_rate
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Policy, Problem
from dovetail.cluster.policies.tiresias import gittins
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from dovetail.core.registry import names, promise
from dovetail.testing.cluster.problems import random_problem
from tests.cluster.conftest import Make

POLICIES = names("cluster")
BY_JOB = ("ids", "kind", "width", "weight", "steps_left", "age_s", "deadline_s", "entity")


def part(problem: Problem, jobs: Ints) -> Problem:
    """The same problem with these jobs only."""
    changed = {name: getattr(problem, name)[jobs] for name in BY_JOB if getattr(problem, name) is not None}
    return replace(problem, **changed)


def drawn(seed: int, **more: Any) -> Problem:
    shape: dict[str, Any] = {"jobs": 12, "kinds": 4, "counts": (3, 2, 4), "weights": (1.0, 2.0)}
    return random_problem(np.random.default_rng(seed), **(shape | more))


def check_limits(problem: Problem, allocation: Allocation) -> None:
    share, pairs, pair_share = allocation.share, allocation.pairs, allocation.pair_share
    width = problem.width
    if allocation.kind is not None and problem.kind_width is not None:
        width = problem.kind_width[allocation.kind]
    used, time = width @ share, share.sum(axis=1)
    if len(pairs):
        assert (pairs[:, 0] < pairs[:, 1]).all()
        assert (width[pairs[:, 0]] == width[pairs[:, 1]]).all()
        used = used + width[pairs[:, 0]] @ pair_share
        assert (pair_share >= 0).all()
        for side in (0, 1):
            np.add.at(time, pairs[:, side], pair_share.sum(axis=1))
    assert share.shape == (problem.jobs, len(problem.types))
    assert (share >= 0).all()
    assert (used <= problem.counts + 1e-9).all()
    assert (time <= 1 + 1e-9).all()


def test_every_name_of_the_old_system_is_there_and_each_promises_something() -> None:
    old = """fifo fifo_perf fifo_packed isolated max_min_fairness max_min_fairness_perf max_min_fairness_packed
        max_min_fairness_water_filling max_min_fairness_water_filling_perf max_min_fairness_water_filling_packed
        finish_time_fairness finish_time_fairness_perf finish_time_fairness_packed min_total_duration
        min_total_duration_perf min_total_duration_packed max_sum_throughput_perf
        max_sum_throughput_normalized_by_cost_perf max_sum_throughput_normalized_by_cost_perf_SLOs
        max_sum_throughput_normalized_by_cost_packed_SLOs allox gandiva"""
    assert set(old.split()) < set(POLICIES)
    assert all(len(promise("cluster", name)) > 30 for name in POLICIES)
    for name in POLICIES:
        assert make(name).packs == ("packed" in name or name == "gandiva"), name
        decides_all = name.startswith("fifo") or name in ("sia", "pollux", "goodput_lookahead")
        assert make(name).strict == decides_all, name


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), jobs=st.integers(0, 14), types=st.integers(1, 4))
def test_any_problem_gets_shares_within_limits_and_is_left_alone(name: str, seed: int, jobs: int, types: int) -> None:
    generator = np.random.default_rng(seed)
    counts = tuple(generator.integers(0, 6, types).tolist())
    problem = random_problem(
        generator,
        jobs=jobs,
        kinds=4,
        counts=(*counts, 1),
        widths=(1,) if name.startswith("allox") else (1, 2, 4),
        weights=(1.0, 3.0),
        unfit=0.2,
        pairs=True,
        entities=2 if seed % 2 and jobs else 0,
        deadlines=0.4,
    )
    before = pickle.dumps(problem)
    policy = make(name)
    for some in (problem, part(problem, np.arange(jobs)[::2]), problem):
        allocation = policy.allocate(some)
        check_limits(some, allocation)
        assert allocation.why
    assert pickle.dumps(problem) == before


@pytest.mark.parametrize("name", POLICIES)
def test_same_calls_same_answers_and_a_saved_policy_goes_on(name: str) -> None:
    problem = drawn(1, jobs=20, pairs=True, deadlines=0.3)
    calls = [part(problem, np.arange(first, first + 12)) for first in range(8)]
    one, two = make(name), make(name)
    for number, call in enumerate(calls):
        a, b = one.allocate(call), two.allocate(call)
        assert pickle.dumps(a) == pickle.dumps(b) or number > 4
        assert a.share == pytest.approx(b.share, abs=2e-9)
        if number == 4:
            two = pickle.loads(pickle.dumps(two))


HISTORY = [
    "max_min_fairness_perf",
    "max_min_fairness_packed",
    "max_min_fairness_water_filling_perf",
    "max_min_fairness_water_filling_packed",
    "min_total_duration_perf",
    "min_total_duration_packed",
    "max_sum_throughput_perf",
    "nash_welfare",
]


@pytest.mark.parametrize("name", HISTORY)
@pytest.mark.parametrize("alike", [False, True])
def test_the_way_to_a_problem_does_not_matter(name: str, alike: bool) -> None:
    """A policy with a long history and a fresh one that was told its last shares decide alike, even among ties."""
    if alike and name == "min_total_duration_packed":
        pytest.skip("with all pairs alike, who becomes a class of its own is a tie too")
    for seed in range(4):
        problem = drawn(seed, jobs=60, kinds=8, counts=(6, 5, 4), widths=(1, 1, 2), unfit=0.1, pairs=True)
        if alike:  # all kinds have the same ratios: nothing but the last tie-breaks decides
            problem.rates[:] = np.outer(problem.rates.max(axis=1), [4.0, 2.0, 1.0])
            problem.pair_rates[:] = np.where(problem.pair_rates > 0, problem.rates[:, None] * 0.7, 0.0)  # type: ignore[index,operator]
        generator, old = np.random.default_rng(seed), make(name)
        for _ in range(15):
            jobs = np.sort(generator.choice(60, int(generator.integers(5, 40)), replace=False))
            old.allocate(part(problem, jobs))
        fresh = pickle.loads(pickle.dumps(old))  # the last shares, and nothing of the programs
        now = part(problem, np.sort(generator.choice(60, 25, replace=False)))
        a, b = old.allocate(now), fresh.allocate(now)
        assert a.share == pytest.approx(b.share, abs=2e-9)
        assert a.pairs.tolist() == b.pairs.tolist()
        assert a.pair_share == pytest.approx(b.pair_share, abs=2e-9)


SCALE_FREE = ["max_min_fairness_perf", "max_min_fairness_water_filling_perf", "max_min_fairness_packed", "nash_welfare"]


@pytest.mark.parametrize("name", SCALE_FREE)
def test_the_size_of_a_step_does_not_matter(name: str) -> None:
    for seed in range(6):
        problem = drawn(seed, pairs=True)
        factor = np.random.default_rng(seed).uniform(0.01, 100, len(problem.rates))[:, None]
        scaled = replace(problem, rates=problem.rates * factor, pair_rates=problem.pair_rates * factor[:, None])  # type: ignore[operator]
        near = 1e-3 if name == "nash_welfare" else 1e-7  # a product is flat at its largest
        assert make(name).allocate(problem).share == pytest.approx(make(name).allocate(scaled).share, abs=near)


def levels(problem: Problem, rate: Floats) -> Floats:
    return rate / proportional_rate(problem.speed, problem.counts)


def test_no_other_shares_have_more_percent_for_some_than_less_for_others() -> None:
    for seed in range(10):
        problem = drawn(seed, widths=(1, 2))
        rate = make("nash_welfare").allocate(problem).throughput(problem)
        for other in ("isolated", "max_min_fairness_perf", "max_sum_throughput_perf", "shortest_remaining"):
            change = make(other).allocate(problem).throughput(problem) / rate - 1.0
            assert problem.weight @ change <= 1e-3


@pytest.mark.parametrize("name", ["max_min_fairness_perf", "max_min_fairness_packed"])
def test_nobody_is_worse_off_than_with_an_equal_part(name: str) -> None:
    for seed in range(20):
        problem = drawn(seed, weights=(1.0,), pairs=True, jobs=15)
        equal = (isolated_share(problem) * problem.speed).sum(axis=1)
        assert (make(name).allocate(problem).throughput(problem) >= equal * (1 - 1e-7)).all()


def test_agnostic_water_filling_is_the_general_one_where_types_are_alike() -> None:
    for seed, inner in product(range(10), ("fairness", "fifo", "entity1=fifo")):
        problem = drawn(seed, widths=(1, 2), entities=3)
        problem.rates[:] = 1.0
        plain = make("max_min_fairness_water_filling", {"inner": inner}).allocate(problem)
        general = make("max_min_fairness_water_filling_perf", {"inner": inner}).allocate(problem)
        assert plain.share.sum(axis=1) == pytest.approx(general.share.sum(axis=1), abs=1e-6)


def test_weights_and_entities_count() -> None:
    problem = drawn(3, jobs=6, kinds=1, counts=(2,), weights=(1.0,))
    problem.weight[:] = [1, 1, 1, 1, 1, 5]
    time = make("max_min_fairness_perf").allocate(problem).share.sum(axis=1)
    assert time == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2, 1.0])
    problem.weight[:] = 1.0
    shared = replace(problem, entity=np.array([0, 0, 0, 0, 0, 1]), entity_weight=np.array([1.0, 1.0]))
    for name in ("max_min_fairness_water_filling", "max_min_fairness_water_filling_perf"):
        assert make(name).allocate(shared).share.sum(axis=1) == pytest.approx([0.2] * 5 + [1.0])
        by_age = make(name, {"inner": "fifo"}).allocate(shared).share.sum(axis=1)
        assert by_age == pytest.approx([1.0, 0, 0, 0, 0, 1.0], abs=1e-6)


def test_no_lie_about_rates_pays() -> None:
    for seed in range(4):
        problem = drawn(seed, jobs=4, kinds=4, counts=(1, 1), weights=(1.0,))
        problem = replace(problem, kind=np.arange(4))
        policy = "max_min_fairness_strategy_proof_perf"
        honest = make(policy).allocate(problem).throughput(problem)[0]
        for first, second in product([0.3, 1.0, 3.0], repeat=2):
            lie = problem.rates.copy()
            lie[0] *= [first, second]
            told = make(policy).allocate(replace(problem, rates=lie))
            assert told.throughput(problem)[0] <= honest * (1 + 1e-6)


def test_a_strategy_proof_share_is_at_least_1_over_e_of_the_nash_share() -> None:
    for seed in range(5):
        problem = drawn(seed)
        nash = make("nash_welfare").allocate(problem).throughput(problem)
        kept = make("max_min_fairness_strategy_proof_perf").allocate(problem).throughput(problem)
        assert (kept >= nash * (np.exp(-1) - 1e-6)).all()
        assert (kept <= nash * (1 + 1e-6)).all()


def test_first_come_first_served() -> None:
    for seed, name in product(range(15), ("fifo", "fifo_moving", "fifo_perf", "fifo_packed")):
        problem = drawn(seed, widths=(1, 2, 4), pairs=True, unfit=0.1)
        found = make(name).allocate(problem)
        runs = found.share.sum(axis=1) + np.bincount(found.pairs.ravel(), minlength=problem.jobs)
        able = ((problem.speed > 0) & (problem.width[:, None] <= problem.counts)).any(axis=1)
        waits = np.flatnonzero(able & (runs == 0))
        used = problem.width @ found.share + problem.width[found.pairs[:, 0]] @ found.pair_share.reshape(-1, 3)
        for job in waits[:1]:
            room = (problem.counts - used >= problem.width[job]) & (problem.speed[job] > 0)
            assert not room.any()
            if name != "fifo_perf":  # there, a job that runs only on full types is passed over
                assert not runs[job + 1 :].any() or name == "fifo_packed"


def test_fifo_keeps_running_jobs_where_they_are() -> None:
    problem, policy = drawn(2, jobs=12), make("fifo")
    before = policy.allocate(problem).share
    after = policy.allocate(part(problem, np.arange(1, 12))).share
    stayed = before[1:].sum(axis=1) > 0
    assert (after[stayed] == before[1:][stayed]).all()
    freed = before[0].argmax()
    newcomer = np.flatnonzero(~stayed & (after.sum(axis=1) > 0))
    assert after[newcomer].argmax(axis=1).tolist() == [freed]


def test_shortest_remaining_and_least_service_go_first() -> None:
    problem = drawn(0, jobs=8, kinds=1, counts=(3,), weights=(1.0,))
    problem.steps_left[:] = [80, 10, 70, 20, 60, 30, 50, 40]
    runs = np.flatnonzero(make("shortest_remaining").allocate(problem).share[:, 0])
    assert runs.tolist() == [1, 3, 5]
    tiresias = make("tiresias", {"thresholds_s": [100.0]})
    rate = problem.rates[0, 0]
    problem.steps_left[:] = 1e6 * rate
    assert np.flatnonzero(tiresias.allocate(problem).share[:, 0]).tolist() == [0, 1, 2]
    problem.steps_left[[0, 1]] -= 150 * rate  # two have had their time
    assert np.flatnonzero(tiresias.allocate(problem).share[:, 0]).tolist() == [2, 3, 4]


def test_allox_has_the_least_sum_of_completion_times() -> None:
    """Of all ways to queue jobs on accelerators, follow the first decision: the sum of ends is the least."""
    for seed in range(6):
        problem = drawn(seed, jobs=4, kinds=4, counts=(1, 1), weights=(1.0,))
        time = problem.steps_left[:, None] / problem.speed
        best = min(total_ends(time, queue) for queue in product(range(2), repeat=4))
        first = make("allox").allocate(problem).share
        able = [queue for queue in product(range(2), repeat=4) if total_ends(time, queue) <= best * (1 + 1e-9)]
        heads = [{(min((j for j in range(4) if q[j] == t), key=lambda j: time[j, t]), t) for t in set(q)} for q in able]
        assert set(zip(*np.nonzero(first), strict=True)) in heads


def total_ends(time: Floats, queue: tuple[int, ...]) -> float:
    ends = [np.cumsum(np.sort([time[job, on] for job, at in enumerate(queue) if at == on])).sum() for on in (0, 1)]
    return float(sum(ends))


def test_allox_promises_the_least_sum_on_what_is_free_and_waits_for_no_busy_accelerator() -> None:
    allox = make("allox")
    for jobs in (1, 2):
        problem = drawn(0, jobs=jobs, kinds=1, counts=(1, 1), weights=(1.0,))
        problem.rates[0] = [10.0, 1.0]
        problem.steps_left[:] = [10.0, 1000.0][:jobs]
        share = allox.allocate(problem).share
    assert share.tolist() == [[1.0, 0.0], [0.0, 1.0]]  # 1000 s at once, not 101 s after the first job
    assert "matched to what is free now" in (type(allox).__doc__ or "").splitlines()[0]


def test_allox_places_nobody_where_it_does_not_run() -> None:
    """A job that is placed stays, so one on a type that it does not run on would wait there for ever."""
    for seed in range(20):
        problem = drawn(seed, jobs=12, kinds=6, counts=(3, 1), weights=(1.0,), unfit=0.5)
        assert not make("allox").allocate(problem).share[problem.speed == 0].any()


def test_allox_takes_its_option_in_the_name_and_refuses_wide_jobs() -> None:
    assert make("allox_alpha=0.5").alpha == 0.5  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="alpha is 2"):
        make("allox_alpha=2")
    with pytest.raises(InputError, match="no option 'beta'"):
        make("allox_beta=2")
    with pytest.raises(InputError, match="did you mean 'allox'"):
        make("alox")
    with pytest.raises(InputError, match="job 0 needs 2"):
        make("allox").allocate(drawn(0, widths=(2,)))


def test_gandiva_pairs_only_when_jobs_outnumber_accelerators() -> None:
    crowd, few = drawn(5, jobs=20, pairs=True), drawn(5, jobs=6, pairs=True)
    assert not len(make("gandiva").allocate(few).pairs)
    policy = make("gandiva", {"seed": 3})
    before = {tuple(pair) for pair in crowd.ids[policy.allocate(crowd).pairs].tolist()}
    fewer = part(crowd, np.arange(1, 20))
    after = {tuple(pair) for pair in fewer.ids[policy.allocate(fewer).pairs].tolist()}
    assert before
    assert {pair for pair in before if 0 not in pair} <= after


def test_gandiva_leaves_no_accelerator_idle_for_a_pair() -> None:
    """Without its last pair not everybody would have room; kept pairs obey this, too, when jobs have left."""
    paired = 0
    for seed in range(30):
        policy = make("gandiva", {"seed": seed})
        crowd = drawn(seed, jobs=14, pairs=True, widths=(1, 1, 2))
        for left in (14, 12, 10, 8):
            problem = part(crowd, np.arange(14 - left, 14))
            width, pairs = problem.width, policy.allocate(problem).pairs
            saved = width[pairs[:, 0]]
            too_many = int(width.sum() - problem.counts.sum())
            assert len(pairs) == 0 if too_many <= 0 else saved[:-1].sum() < too_many, seed
            assert len(np.unique(pairs)) == pairs.size, seed
            paired += len(pairs) > 1
    assert paired > 30  # several pairs, of which one too many would be seen


def test_gandiva_pairs_all_by_the_older_rules() -> None:
    crowd = drawn(5, jobs=10, pairs=True)  # on nine accelerators
    assert len(make("gandiva").allocate(crowd).pairs) == 1
    assert len(make("gandiva", {"pair_all": True}).allocate(crowd).pairs) > 1


@pytest.mark.parametrize("learns", [False, True])
def test_a_run_by_the_older_rules_leaves_a_policy_as_it_was(make_setup: Make, learns: bool) -> None:
    """It pairs all by them, and only as many as it must in the next run, which has its own rules."""
    setup = make_setup([Job(id=i, model="AB"[i % 2], steps=900) for i in range(6)])

    def made(**options: bool) -> Policy:
        found = make("gandiva", options)
        assert setup.throughputs.pairs is not None
        return LearnedRates(found, setup.throughputs.pairs) if learns else found

    policy = made()
    by_older = run(setup, policy, compat=True).completion_s
    assert by_older == run(setup, made(pair_all=True), compat=True).completion_s
    assert run(setup, policy).completion_s == run(setup, made()).completion_s
    assert run(setup, made()).completion_s != run(setup, made(pair_all=True)).completion_s


def test_elastic_throughput_chooses_the_widths_that_are_worth_most() -> None:
    """Three kinds of one model (1, 2 and 4 wide), 5 accelerators, 3 jobs: against every choice."""
    problem = drawn(0, jobs=3, kinds=3, counts=(5,), weights=(1.0, 2.0))
    rates = np.array([[10.0], [18.0], [30.0]])
    scaled, widths = np.tile(np.arange(3), (3, 1)), np.array([1, 2, 4])
    one = np.zeros(3, dtype=np.int64)
    problem = replace(problem, rates=rates, kind=one, width=one + 1, scaled=scaled, kind_width=widths)
    found = make("elastic_throughput", {"power": 0.5}).allocate(problem)
    check_limits(problem, found)
    gain = [0.0, *np.sqrt(rates[:, 0] / 10.0)]
    choices = [c for c in product(range(4), repeat=3) if sum([0, 1, 2, 4][k] for k in c) <= 5]
    assert found.value == pytest.approx(max(sum(problem.weight[j] * gain[k] for j, k in enumerate(c)) for c in choices))
    assert found.kind is not None
    runs = found.share[:, 0] > 0
    assert (problem.weight[runs] * np.sqrt(rates[found.kind[runs], 0] / 10)).sum() == pytest.approx(found.value)


def index_by_definition(sizes: list[float], service: float) -> float:
    """Of the sizes above `service`, the best ratio of those that end within more service to what that takes."""
    left = [size - service for size in sizes if size > service]
    return max((sum(one <= more for one in left) / sum(min(one, more) for one in left) for more in left), default=0.0)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30).map(float), min_size=1, max_size=12),
    service=st.lists(st.integers(0, 60).map(lambda half: half / 2), min_size=1, max_size=6),
)
def test_the_gittins_index_is_that_of_its_definition(sizes: list[float], service: list[float]) -> None:
    found = gittins(np.sort(sizes), np.array(service))
    assert found == pytest.approx([index_by_definition(sizes, had) for had in service])


def test_who_is_likely_to_end_soon_goes_first_once_sizes_are_known() -> None:
    """Most jobs take 10 s, few 1000 s: who has had 8 s is nearly done, who has had 20 s is not."""
    sizes = {"thresholds_s": [], "sizes_s": [10.0] * 9 + [1000.0]}
    problem = drawn(0, jobs=3, kinds=1, counts=(1,), weights=(1.0,))
    rate = problem.rates[0, 0]
    told, blind = make("tiresias_gittins", sizes), make("tiresias", {"thresholds_s": [5.0]})
    problem.steps_left[:] = 1e6 * rate
    for each in (told, blind):
        each.allocate(problem)
    problem.steps_left[:] -= np.array([20.0, 8.0, 0.0]) * rate
    assert told.allocate(problem).share[:, 0].argmax() == 1
    assert blind.allocate(problem).share[:, 0].argmax() == 2


def test_sizes_are_learned_from_jobs_that_ended() -> None:
    """Jobs that ended took 10 s: who is nearly there goes before who is beyond all of them."""
    policy = make("tiresias_gittins", {"thresholds_s": [], "least": 4})
    problem = drawn(0, jobs=8, kinds=1, counts=(8,), weights=(1.0,))
    rate = problem.rates[0, 0]
    problem.steps_left[:] = 10 * rate
    policy.allocate(problem)
    rest = replace(part(problem, np.arange(4, 8)), counts=np.array([1]))
    rest.steps_left[:] = 1e6 * rate
    policy.allocate(rest)
    rest.steps_left[:] -= np.array([50.0, 2.0, 9.0, 0.0]) * rate
    assert policy.allocate(rest).share[:, 0].argmax() == 2
    for option, value in (("sizes_s", [0.0]), ("least", 0)):
        with pytest.raises(InputError, match=f"{option} is"):
            make("tiresias_gittins", {option: value})


def test_optimus_widens_who_wins_most_time() -> None:
    """Two jobs, five accelerators: the long one grows to 4; nothing that could still grow is left idle."""
    problem = drawn(0, jobs=2, kinds=3, counts=(5,), weights=(1.0,))
    scaled, widths, one = np.tile(np.arange(3), (3, 1)), np.array([1, 2, 4]), np.zeros(2, dtype=np.int64)
    rates = np.array([[10.0], [18.0], [30.0]])
    problem = replace(problem, rates=rates, kind=one, width=one + 1, scaled=scaled, kind_width=widths)
    problem.steps_left[:] = [100.0, 1000.0]
    found = make("optimus").allocate(problem)
    check_limits(problem, found)
    assert found.kind is not None
    assert found.kind.tolist() == [0, 2]
    assert found.share[:, 0].tolist() == [1.0, 1.0]
    rates[2] = 18.0  # four are no faster than two: the rest goes to the short one
    assert make("optimus").allocate(problem).kind.tolist() == [1, 1]  # type: ignore[union-attr]


def test_optimus_leaves_nothing_idle_that_makes_a_job_faster() -> None:
    for seed in range(40):
        problem = drawn(seed, jobs=4 + seed % 9, kinds=6, unfit=0.2)
        widths = np.array([1, 2, 4, 1, 3, 8])
        scaled = np.array([[0, 1, 2]] * 3 + [[3, 4, 5]] * 3)
        problem = replace(problem, scaled=scaled, kind_width=widths, width=widths[problem.kind])
        found = make("optimus").allocate(problem)
        check_limits(problem, found)
        assert found.kind is not None
        free = problem.counts - widths[found.kind] @ found.share
        for job, (kind, share) in enumerate(zip(found.kind.tolist(), found.share, strict=True)):
            for other in scaled[kind]:
                faster = problem.rates[other] > (problem.rates[kind] if share.any() else 0.0)
                room = free >= widths[other] - widths[kind] * share
                assert not (faster & room & (share > 0 if share.any() else True)).any(), (seed, job)


def test_a_free_type_among_priced_ones_is_refused() -> None:
    problem = drawn(0)
    problem.prices[1] = 0.0
    with pytest.raises(InputError, match="price of type1 is 0"):
        make("max_sum_throughput_normalized_by_cost_perf").allocate(problem)
    problem.prices[:] = 0.0
    for suffix in ("", "_SLOs"):
        make(f"max_sum_throughput_normalized_by_cost_perf{suffix}").allocate(problem)


def test_deadlines_that_cannot_be_kept_are_named() -> None:
    problem = drawn(0, jobs=3, kinds=1, counts=(1,), weights=(1.0,))
    problem.deadline_s[:] = problem.steps_left / problem.rates[0, 0] * 1.5  # each needs two thirds of the only one
    found = make("max_sum_throughput_normalized_by_cost_perf_SLOs").allocate(problem)
    assert "deadlines of jobs [3, 6] cannot be kept" in found.why
    assert found.share[0, 0] >= 2 / 3 - 1e-6


@pytest.mark.parametrize("name", HISTORY)
def test_rates_that_change_in_place_are_seen(name: str) -> None:
    problem, policy = drawn(4, pairs=True), make(name)
    policy.allocate(problem)
    problem.rates[:, 0] *= 0.1
    problem.pair_rates[:, :, 0] *= 0.1  # type: ignore[index]
    problem.counts[1] += 1
    assert policy.allocate(problem).value == pytest.approx(make(name).allocate(problem).value, rel=1e-7)


def test_problems_have_the_fields_that_this_file_cuts_by_job() -> None:
    assert {field.name for field in fields(Problem)} >= set(BY_JOB)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("fif", "inner='fif': expected fairness or fifo, or NAME=RULE"),
        ("a=fif", "expected each entity once, as NAME=RULE, found 'a=fif'"),
        ("a=fifo,a=fifo", "expected each entity once"),
    ],
)
def test_inner_rules_that_are_none_are_told(inner: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make("max_min_fairness_water_filling", {"inner": inner})


def test_an_inner_rule_for_an_entity_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError, match=r"no entity is 'entity7'; did you mean 'entity"):
        make("max_min_fairness_water_filling_perf", {"inner": "entity7=fifo"}).allocate(drawn(0, entities=3))
