"""The search for plans: bounds that hold, beams that know what they left out, and answers when time is over."""

from __future__ import annotations

import os
import random
import signal
from itertools import product
from math import inf

import numpy as np
import pytest

from bench.pipeline_anytime import pool
from dovetail.cli.pipeline.plan import _best_and_bound
from dovetail.core.errors import InputError
from dovetail.pipeline import plan as plan_method
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise import chains
from dovetail.pipeline.optimise.chains import EXACT
from dovetail.pipeline.optimise.cheapest import BoundedChain, CheapestChain, cheapest
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.focus import Focus, focus
from dovetail.pipeline.optimise.labels import Guide, Labels
from dovetail.pipeline.optimise.multipliers import ResourcePrices
from dovetail.pipeline.optimise.paces import LeastPace
from dovetail.pipeline.optimise.scarcity import Scarcity
from dovetail.pipeline.optimise.search import Search
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan, flag
from dovetail.pipeline.planner import plan
from dovetail.testing.pipeline import random_pipeline

OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "batch", "devices", "energy", "money")
LONG_S = 600.0  # more than any machine needs


def small(seed: int) -> tuple[Costs, Constraints]:
    limits = Constraints(
        replicas=1 + seed % 2, latency_cap_s=(None, 3.0)[seed // 2 % 2], max_stages=(None, 3)[seed // 4 % 2]
    )
    return Costs(Tables(random_pipeline(seed, links=seed % 3 == 0)), limits), limits


def test_no_prices_promise_more_than_a_chain_costs() -> None:
    tried = 0
    for seed in range(60):
        costs, _ = small(seed)
        chains = costs.chains(costs.tariff("latency"), 0.0, inf)
        best = cheapest(chains, SearchClock())
        assert best.closed
        rng = random.Random(seed)
        for _ in range(5):
            prices = np.zeros(len(chains.limits))
            prices[chains.priced] = [rng.choice([0.0, rng.random()]) for _ in chains.priced]
            assert chains.relax(prices).value <= best.value * (1 + 1e-12)
            tried += best.stages is not None
    assert tried > 100


@pytest.mark.parametrize("objective", ["energy", "money", "batch"])
def test_within_an_interval_of_paces_no_chain_is_charged_more_than_at_its_own(objective: Objective) -> None:
    """Nor less than at the fastest pace; a stage that is slower than that is charged by its own."""
    between = 0
    for seed in range(40):
        costs, _ = small(seed)
        tariff = costs.tariff(objective, microbatches=5)
        rng = np.random.default_rng(seed)
        free = costs.chains(costs.tariff("latency"), 0.0, inf)
        for _ in range(5):
            chain = free.relax(rng.random(len(free.limits)) * (free.limits < inf)).chain
            if not chain:
                continue
            pace_s = costs.pace_s(chain)
            low_s, high_s = pace_s * rng.uniform(0.3, 1.0), pace_s * rng.uniform(1.0, 2.0)
            charged = costs.chains(tariff, low_s, high_s).figures(chain)[0] + tariff.by_pace * low_s
            fastest = costs.chains(tariff, low_s, low_s).fixed
            least = sum(fastest[costs.options.index(option)] for option, _, _ in chain)
            assert least * (1 - 1e-12) <= charged <= costs.value(tariff, chain) * (1 + 1e-12), seed
            own = costs.chains(tariff, pace_s, pace_s).figures(chain)[0] + tariff.by_pace * pace_s
            assert own == pytest.approx(costs.value(tariff, chain))
            between += len(chain) > 1
    assert between >= 20


def test_a_narrow_beam_knows_what_it_left_out() -> None:
    """The least of what was dropped and what was found is a bound, however narrow the beam."""
    dropped = 0
    for seed in range(12):
        costs = Costs(Tables(pool(("fit", "odd")[seed % 2], 4, 12, 16, seed)), Constraints(latency_cap_s=1.0))
        chains = costs.chains(costs.tariff(("devices", "money", "latency")[seed % 3]), 1.0, inf)
        best = cheapest(chains, SearchClock())
        assert best.closed
        guides = [Guide(chains.relax(np.zeros(len(chains.limits))), True)]
        for width in (1, 2):
            beam = Labels(chains, guides, SearchClock()).beam(inf, width)
            assert min(beam.lost, beam.value) <= best.value * (1 + 1e-9), seed
            if beam.chain is not None:
                assert chains.allows(beam.chain)
                assert chains.figures(beam.chain)[0] == pytest.approx(beam.value)
            dropped += beam.lost < beam.value
    assert dropped > 2


def test_labels_that_do_not_look_at_some_resources_bound_those_that_do() -> None:
    """Whatever they leave out; and where the chain that they find takes no more than there is, it is the best."""
    exceeded = allowed = 0
    for seed in range(12):
        costs = Costs(Tables(pool("fit", 3, 12, 10, seed)), Constraints(latency_cap_s=(None, 0.1)[seed % 2]))
        chains = costs.chains(costs.tariff(("latency", "money", "energy")[seed % 3]), 0.1, inf)
        best = cheapest(chains, SearchClock())
        if best.stages is None:
            continue
        guides, rng = [Guide(chains.relax(np.zeros(len(chains.limits))), True)], random.Random(seed)
        for _ in range(4):
            free = {r for r in chains.priced if rng.random() < 0.5}
            beam = Labels(chains, guides, SearchClock(), free).beam(inf, 10**6)
            assert beam.chain is not None
            assert beam.lost == inf
            over = Focus(guides, free).exceeded(chains, beam.chain)
            assert over == {r for r in free if chains.figures(beam.chain)[1][r] > chains.limits[r] * EXACT}
            assert beam.value <= best.value * (1 + 1e-9)
            assert over or beam.value == pytest.approx(best.value)
            exceeded, allowed = exceeded + bool(over), allowed + (not over)
    assert min(exceeded, allowed) >= 5


def test_what_is_not_looked_at_has_no_price() -> None:
    free = bounds = 0
    for seed in range(6):
        costs = Costs(Tables(pool("fit", 6, 24, 16, seed)), Constraints(latency_cap_s=0.3, max_stages=20))
        chains = costs.chains(costs.tariff("money"), 0.05, 0.05)
        search = CheapestChain(chains, SearchClock())
        search.price()
        best = search.run()
        assert best.closed
        known = [Guide(kept, True) for kept in search.prices.kept]
        for tight in (set(), set(chains.priced)):
            at = focus(chains, search.prices.kept[0], known, tight)
            assert not at.free & tight
            assert not any(guide.relaxed.prices[r] for guide in at.guides for r in at.free)
            assert all(guide.relaxed.value <= best.value * (1 + 1e-9) for guide in at.guides)
            free, bounds = free + len(at.free), bounds + len(at.guides)
    assert free > 6
    assert bounds > 24


def test_a_beam_that_time_cuts_short_proves_nothing() -> None:
    """Whenever that is: at any of the times at which the clock is asked."""
    costs = Costs(Tables(pool("odd", 3, 12, 24, seed=1)), Constraints())
    chains = costs.chains(costs.tariff("throughput"), 0.0, float(costs.paces[len(costs.paces) // 2]))
    guides = [Guide(chains.relax(np.zeros(len(chains.limits))), False)]
    whole, asked = CountedClock(), 0
    assert Labels(chains, guides, whole).beam(inf, 1000).lost == inf
    for asked in range(whole.asked):
        assert Labels(chains, guides, CountedClock(asked)).beam(inf, 1000).lost == -inf
    assert asked > 10


class CountedClock(SearchClock):
    """Time is over when it was asked for so often."""

    def __init__(self, most: float = inf) -> None:
        super().__init__()
        self.asked, self._most = 0, most

    @property
    def over(self) -> bool:
        self.asked += 1
        return self.asked > self._most


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_is_proven_where_counts_are_too_many_to_look_at(objective: Objective) -> None:
    problem = pool("fit", 4, 48, 40, seed=21)
    free = plan(problem, "latency", time_limit_s=LONG_S)
    assert isinstance(free, Plan)
    cap_s = 1.3 * free.latency_s
    limits = Constraints(latency_cap_s=cap_s, max_stages=36, replicas=2)
    made = plan(problem, objective, limits, slack=0.05, time_limit_s=LONG_S)
    assert isinstance(made, Plan)
    assert (made.optimal, made.gap) == (True, 0.0)
    assert made.latency_s <= cap_s * (1 + 1e-9)
    assert len(made.hosts) <= 36


def test_the_two_searches_for_a_pace_agree() -> None:
    """A cap that does not bind makes the general search answer what the probe over count vectors does."""
    for kind, seed in (("std", 1), ("fit", 2), ("odd", 3), ("net", 4)):
        problem = pool(kind, 3, 12, 24, seed)
        probed = plan(problem, time_limit_s=LONG_S)
        searched = plan(problem, constraints=Constraints(latency_cap_s=1e6), time_limit_s=LONG_S)
        assert isinstance(probed, Plan)
        assert isinstance(searched, Plan)
        assert probed.bottleneck_s == searched.bottleneck_s


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_when_time_is_over_a_plan_is_given_with_what_is_proven(objective: Objective) -> None:
    problem = pool("unlike", 20, 20, 40, seed=5)
    told: list[tuple[float, float]] = []

    def stop(best: float, bound: float) -> bool:
        told.append((best, bound))
        return len(told) > 3

    made = plan(problem, objective, slack=0.05, time_limit_s=LONG_S, progress=stop)
    assert len(told) > 3 or (isinstance(made, Plan) and made.optimal)
    if isinstance(made, Plan):
        assert made.gap is None or made.gap >= 0
        assert made.optimal == (made.method == "exact" and made.value <= made.bound_s * (1 + 1e-9))
    else:
        assert "that there is none is not proven" in made.reasons[0]


def test_without_time_nothing_is_claimed() -> None:
    problem = pool("fit", 8, 64, 64, seed=3)
    made = plan(problem, "energy", Constraints(latency_cap_s=1e-9), time_limit_s=LONG_S)
    assert isinstance(made, Infeasible)
    assert "the least latency possible is" in made.reasons[0]
    hasty = plan(problem, "energy", time_limit_s=LONG_S, progress=lambda best, bound: True)
    assert isinstance(hasty, Infeasible)
    assert hasty.reasons == ["no plan was found before the search was stopped; that there is none is not proven"]


@pytest.mark.parametrize("limit", [0, -1.0, inf, float("nan")])
def test_a_time_limit_is_a_positive_number(limit: float) -> None:
    with pytest.raises(InputError, match=r"--time-limit-s .*: expected a positive number of seconds"):
        plan_method(random_pipeline(1), time_limit_s=limit)


def test_a_floor_on_throughput_is_kept_or_named() -> None:
    problem = pool("std", 3, 9, 12, seed=1)
    best = plan(problem)
    assert isinstance(best, Plan)
    cheap = plan(problem, "latency", Constraints(throughput_floor_items_s=0.9 * best.throughput_items_s))
    assert isinstance(cheap, Plan)
    assert cheap.throughput_items_s >= 0.9 * best.throughput_items_s
    none = plan(problem, "money", Constraints(throughput_floor_items_s=1.1 * best.throughput_items_s))
    assert isinstance(none, Infeasible)
    assert none.reasons[0].startswith(flag("throughput_floor_items_s"))
    assert none.reasons[0].endswith(f"the most possible is {best.throughput_items_s:.6g} items/s")


def test_an_interrupt_ends_the_search_and_gives_what_was_found() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _best_and_bound() as tell:
        assert not tell(1.0, 0.5)
        os.kill(os.getpid(), signal.SIGINT)
        assert tell(1.0, 0.5)
        assert signal.getsignal(signal.SIGINT) is before  # a second one ends the command
    assert signal.getsignal(signal.SIGINT) is before


def test_the_least_pace_by_what_is_scarce_is_the_one_by_cutting_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of unlike devices are searched in another way: forced on small ones, it gives the same."""
    plans = 0
    for seed in range(60):
        costs, _ = small(seed)
        if not len(costs.paces):
            continue
        expected = LeastPace(costs, SearchClock()).run()
        with monkeypatch.context() as patch:
            patch.setattr(chains, "UNLIKE", 1)
            found = LeastPace(costs, SearchClock()).run()
        assert (found.value, found.bound) == (expected.value, expected.bound), seed
        assert (found.stages is None) == (expected.stages is None)
        plans += found.stages is not None
    assert plans > 20


def test_prices_found_within_a_box_bound_as_well_as_those_found_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many resources cutting planes stay near the best prices; among few both come to the same bound."""
    asked: tuple[Objective, ...] = ("latency", "energy", "devices")
    for seed, objective in product(range(3), asked):
        costs = Costs(Tables(pool("fit", 8, 16, 30, seed)), Constraints(max_stages=12, latency_cap_s=0.2))
        chain = costs.chains(costs.tariff(objective), 0.01, 0.01)
        anywhere, near = ResourcePrices(chain), ResourcePrices(chain)
        anywhere.start()
        anywhere.improve(SearchClock(), 200)
        near.start()
        with monkeypatch.context() as patch:
            patch.setattr(chains, "UNLIKE", 1)
            near.improve(SearchClock(), 40)
        assert near.bound == pytest.approx(anywhere.bound, rel=1e-5), (seed, objective)


def test_what_is_scarce_is_proof_that_no_chain_keeps_the_limits_or_leads_to_one() -> None:
    problem = pool("unlike", 16, 16, 32, seed=1)
    costs = Costs(Tables(problem), Constraints(max_stages=12))
    best = LeastPace(costs, SearchClock()).run()
    assert best.closed
    for factor, possible in ((0.8, False), (1.1, True)):
        scarcity = Scarcity(costs.chains(costs.tariff("throughput"), 0.0, best.value * factor))
        scarcity.improve(SearchClock())
        assert scarcity.broken == (not possible)
        assert sum(scarcity.best.prices * np.nan_to_num(scarcity.chains.limits, posinf=0.0)) == pytest.approx(1.0)
        found = scarcity.met or scarcity.beam(SearchClock(), 50).chain
        assert (found is not None) == possible
        assert found is None or (scarcity.chains.allows(found) and costs.pace_s(found) <= 1.1 * best.value)


def test_a_search_goes_on_from_where_it_was() -> None:
    costs = Costs(Tables(pool("fit", 6, 30, 40, seed=2)), Constraints())
    search = CheapestChain(costs.chains(costs.tariff("latency"), 0.0, inf), SearchClock())
    bound = search.price().bound
    for width in (2, 8, 1000):
        answer = search.beam(width)
        assert answer.bound >= bound
        bound = answer.bound
    assert answer.closed


class _Asked(SearchClock):
    """Time is over when it has been asked for so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    @property
    def over(self) -> bool:
        self._times -= 1
        return self._times < 0


@pytest.mark.parametrize("limits", [Constraints(), Constraints(latency_cap_s=0.04), Constraints(max_stages=7)])
def test_a_plan_that_another_objective_knows_at_once_is_where_throughput_begins(limits: Constraints) -> None:
    tables = Tables(pool("unlike", 40, 40, 48, seed=2))
    quick = Search(tables, limits, _Asked(20)).least("latency")
    found = Search(tables, limits, _Asked(20)).run("throughput")
    assert quick.stages is not None
    assert found.stages is not None
    assert found.value <= Costs(tables, limits).pace_s(quick.stages)


@pytest.mark.parametrize("objective", ["throughput", "latency", "batch", "devices"])
def test_times_far_above_a_cap_are_no_trouble(objective: Objective) -> None:
    def line(*classes: DeviceClass) -> Pipeline:
        return Pipeline(
            model="m",
            layers=2,
            mem_mib=[1.0, 1.0],
            cut_bytes=[4, 4, 4],
            classes=list(classes),
            batch_size=1,
            dtype="torch.float32",
        )

    huge = DeviceClass("t", "t", ["a", "b"], 8.0, 99.0, [1e15, 1e-3])
    quick = DeviceClass("q", "q", ["c"], 8.0, 99.0, [1e-9, 1e-9])
    never = plan(line(huge), objective, Constraints(latency_cap_s=0.5))
    assert isinstance(never, Infeasible)
    assert never.proven
    assert "latency" in never.reasons[0]
    found = plan(line(huge, quick), objective, Constraints(latency_cap_s=3e-9))
    assert isinstance(found, Plan)
    assert found.hosts == ["c"]


def test_few_devices_leave_their_time_to_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pace that was cut off is looked for further, and the fewest devices within the slack of a better one too."""
    problem, run, times = pool("unlike", 12, 12, 20, seed=3), LeastPace.run, [10**9]

    def cut_off(self: LeastPace) -> BoundedChain:
        self._clock = _Asked(times[0])
        return run(self)

    monkeypatch.setattr(LeastPace, "run", cut_off)
    exact = plan(problem, "devices", slack=0.05, time_limit_s=LONG_S)
    assert isinstance(exact, Plan)
    assert exact.optimal
    cut = 0
    for times[0] in (3, 10, 30, 60):
        search = Search(Tables(problem), Constraints(), SearchClock(LONG_S))
        cut += not search.throughput().closed
        made = plan(problem, "devices", slack=0.05, time_limit_s=LONG_S)
        assert isinstance(made, Plan)
        assert (made.optimal, made.value) == (True, exact.value)
    assert cut


@pytest.mark.parametrize("seed", range(8))
def test_fewest_devices_are_proven_as_far_as_the_pace_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pace that is known to within 10 % proves the fewest devices where as few are within the slack of its bound."""
    problem, throughput = pool("std", 3, 12, 24, seed), Search.throughput
    least = plan(problem, "throughput", time_limit_s=LONG_S)
    assert isinstance(least, Plan)

    def unsure(self: Search, clock: SearchClock | None = None) -> BoundedChain:
        found = throughput(self, clock)
        return found._replace(bound=found.bound / 1.1)

    def fewest(slack: float) -> Plan:
        made = plan(problem, "devices", slack=slack, time_limit_s=LONG_S)
        assert isinstance(made, Plan)
        return made

    exact = {slack: fewest(slack).value for slack in (0.0, 0.5)}
    monkeypatch.setattr(Search, "throughput", unsure)
    tight = fewest(0.0)
    assert (tight.optimal, tight.value) == (False, exact[0.0])
    assert tight.gap == pytest.approx(0.1)
    assert "within the slack of the best pace found, at most 10 % above" in tight.proof()
    loose, surely = fewest(0.5), least.bottleneck_s * 1.5 / 1.1
    assert loose.value == exact[0.5]
    assert loose.optimal == (loose.bottleneck_s <= surely * (1 + 1e-9)) == (loose.gap == 0)


def test_devices_are_few_where_many_chains_use_as_many() -> None:
    """Prices tell no difference between them: with a cap on latency beams alone met none of fewer than 194 devices."""
    limits = Constraints(latency_cap_s=1.755, max_stages=384)
    found = plan(pool("fit", 10, 512, 256, seed=12), "devices", limits, slack=0.05, time_limit_s=60.0)
    assert isinstance(found, Plan)
    assert found.optimal
    assert found.value == 183
    assert found.latency_s <= 1.755
