"""Prices by hand: the seed's formula, and each extension on its own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.workflow.gpus.residents import Residents, least_setup
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode, Window
from dovetail.workflow.policies.view import View

MODELS = {
    "llm7b": ModelCost(14.0, 30.0),
    "llm30b": ModelCost(60.0, 120.0, 4),
    "sd": ModelCost(4.0, 10.0),
    "tiny": ModelCost(2.0, 1.0),
    "more": ModelCost(3.0, 9.0),
    "tool": ModelCost(0.0, 0.0, 0),
}


def residents(
    costs: CostRules | None = None, gpus: str = "4", rates: RateTable | None = None, per_host: int = 8
) -> Residents:
    types = {"big": DeviceType("big", 20 * 1024), "small": DeviceType("small", 8 * 1024, 0.5)}
    return Residents(Pool.parse(gpus, types, per_host), MODELS, costs or CostRules(), rates)


# --- the seed's formula ---------------------------------------------------------------------------


def test_a_resident_model_costs_nothing() -> None:
    held = residents()
    held.load([0], "sd")
    assert held.price(0, "sd") == 0.0


def test_an_empty_gpu_costs_the_load_time() -> None:
    assert residents().price(0, "llm7b") == 30.0


def test_a_switch_moves_both_models_over_pcie_and_adds_an_overhead() -> None:
    held = residents()
    held.load([0], "llm7b")
    assert held.price(0, "sd") == (14 + 4) / 16 + 2
    assert held.reload_s("llm7b", "llm30b") == 6.625


def test_the_constants_of_the_formula_can_be_changed() -> None:
    held = residents(CostRules(pcie_gb_s=4, overhead_s=0.5))
    held.load([0], "llm7b")
    assert held.price(0, "sd") == 18 / 4 + 0.5


def test_one_model_at_a_time() -> None:
    held = residents()
    held.load([0], "llm7b")
    held.load([0], "sd")
    assert list(held.held[0]) == ["sd"]
    assert [*held.held[0]][-1] == "sd"
    assert not held.held[1]


# --- windows --------------------------------------------------------------------------------------


def test_the_slowest_gpu_of_a_window_sets_the_price() -> None:
    held = residents()
    held.load([0], "sd")
    held.load([2], "llm7b")
    assert held.setup([0, 1, 2, 3], "llm30b") == 120.0  # the empty ones
    held.load([1, 3], "sd")
    assert held.setup([0, 1, 2, 3], "llm30b") == (14 + 60) / 16 + 2
    assert held.replaced([0, 1, 2, 3], "llm30b") == "sd"


def test_as_the_older_scheduler_priced_it_only_the_first_gpu_counts() -> None:
    held = residents(CostRules(window="primary"))
    held.load([0], "sd")
    assert held.setup([0, 1, 2, 3], "llm30b") == (4 + 60) / 16 + 2
    held.load([0, 1, 2, 3], "llm30b")
    held.load([1], "tiny")
    assert held.setup([0, 1, 2, 3], "llm30b") == 0.0
    assert held.replaced([0, 1, 2, 3], "llm30b") is None


@pytest.mark.parametrize("costs", [CostRules(), CostRules(window="primary")])
def test_a_node_that_needs_no_gpu_costs_nothing(costs: CostRules) -> None:
    held = residents(costs)
    assert held.setup([], "tool") == 0.0
    assert held.replaced([], "tool") is None


def test_a_model_is_cut_into_equal_parts_rounded_up() -> None:
    assert ModelCost(60.0, 0.0, 4).shard_mib == 15 * 1024
    assert ModelCost(1.0, 0.0, 3).shard_mib == 342
    assert ModelCost(1.0, 0.0, 0).shard_mib == 1024


# --- several models on a GPU ----------------------------------------------------------------------


def test_models_stay_while_there_is_room_and_the_least_recently_used_leaves() -> None:
    held = residents(CostRules(resident="memory"), "big:1")  # 20 GB
    for model in ("llm7b", "sd", "tiny"):
        held.load([0], model)
    assert list(held.held[0]) == ["llm7b", "sd", "tiny"]
    assert all(held.price(0, model) == 0.0 for model in held.held[0])
    held.load([0], "llm7b")  # used again: now sd is the oldest
    assert held.evicted(0, "llm30b") == ["sd", "tiny", "llm7b"]  # 15 GB of it go here
    held.load([0], "llm30b")
    assert list(held.held[0]) == ["llm30b"]


def test_only_as_many_leave_as_must() -> None:
    held = residents(CostRules(resident="memory"), "big:1")
    for model in ("sd", "tiny", "llm7b"):  # full
        held.load([0], model)
    assert held.evicted(0, "more") == ["sd"]
    assert held.replaced([0], "more") == "sd"
    held.load([0], "more")
    assert list(held.held[0]) == ["tiny", "llm7b", "more"]


def test_what_has_room_is_only_copied() -> None:
    held = residents(CostRules(resident="memory"), "big:1")
    assert held.price(0, "sd") == 10.0  # the first on an empty GPU
    held.load([0], "sd")
    assert held.price(0, "tiny") == 2 / 16 + 2
    assert held.replaced([0], "tiny") is None


def test_several_that_leave_are_all_moved() -> None:
    held = residents(CostRules(resident="memory"), "big:1")
    for model in ("sd", "tiny", "llm7b"):
        held.load([0], model)
    assert held.price(0, "llm30b") == (4 + 2 + 14 + 60) / 16 + 2


# --- host memory and disk -------------------------------------------------------------------------


def test_a_model_in_host_memory_costs_the_transfer_from_disk_the_load() -> None:
    held = residents(CostRules(dram_gb=64.0, ssd_gb_s=2.0))
    assert held.price(0, "llm7b") == 30.0
    held.load([0], "llm7b")
    assert held.price(1, "llm7b") == 14 / 16 + 2  # an empty GPU of the same host
    held.load([0], "sd")
    assert held.price(0, "llm7b") == (4 + 14) / 16 + 2  # sd goes out, llm7b comes back


def test_a_disk_cannot_be_outrun() -> None:
    held = residents(CostRules(dram_gb=64.0, ssd_gb_s=0.25))
    assert held.price(0, "llm7b") == 14 / 0.25
    held.load([0], "sd")
    assert held.price(0, "llm7b") == 4 / 16 + 14 / 0.25


def test_host_memory_keeps_the_last_used_and_nothing_that_is_larger_than_it() -> None:
    held = residents(CostRules(dram_gb=16.0))
    for model in ("llm7b", "tiny", "sd"):  # llm7b must leave host memory for sd
        held.load([0], model)
    assert held.price(1, "tiny") == 2 / 16 + 2
    assert held.price(1, "sd") == 4 / 16 + 2
    assert held.price(1, "llm7b") == 30.0
    held.load([0, 1, 2, 3], "llm30b")
    held.load([0, 1, 2, 3], "tiny")
    assert held.price(0, "llm30b") == 2 / 16 + 120.0


def test_each_host_has_its_own_memory() -> None:
    held = residents(CostRules(dram_gb=64.0), "4", per_host=2)
    held.load([0], "llm7b")
    assert held.price(1, "llm7b") == 14 / 16 + 2
    assert held.price(2, "llm7b") == 30.0


# --- loading behind running -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "setup_s", "run_s", "visible_s"),
    [
        (0.0, 10.0, 100.0, 10.0),
        (0.5, 10.0, 100.0, 5.0),
        (1.0, 10.0, 100.0, 0.0),
        (1.0, 10.0, 4.0, 6.0),  # no more can hide than there is to hide behind
        (0.5, 0.0, 4.0, 0.0),
    ],
)
def test_part_of_loading_hides_behind_the_run(overlap: float, setup_s: float, run_s: float, visible_s: float) -> None:
    assert residents(CostRules(overlap=overlap)).visible(setup_s, run_s) == visible_s


# --- measured numbers -----------------------------------------------------------------------------


def test_a_measured_switch_goes_before_the_formula() -> None:
    table = RateTable(
        [Rate("sd", "small", 0.25)],
        [Switch("sd", 1.5, "llm7b"), Switch("sd", 2.5, "llm7b", "small"), Switch("sd", 7.0)],
    )
    held = residents(CostRules(), "big:1,small:1", table)
    assert [held.price(gpu, "sd") for gpu in (0, 1)] == [7.0, 7.0]
    held.load([0, 1], "llm7b")
    assert [held.price(gpu, "sd") for gpu in (0, 1)] == [1.5, 2.5]
    held.load([0, 1], "tiny")
    assert held.price(0, "sd") == (2 + 4) / 16 + 2  # not measured


@pytest.mark.parametrize(
    ("window", "model", "seconds"),
    [
        ((0,), "llm7b", 10.0),  # big: speed 1, not measured
        ((4,), "llm7b", 20.0),  # small: speed 0.5, not measured
        ((0,), "sd", 5.0),  # measured: twice as fast
        ((4,), "sd", 40.0),  # measured: slower than the speed says
        ((0, 1, 2, 3), "llm30b", 4.0),  # measured for this width
        ((1, 2, 3, 4), "llm30b", 20.0),  # the slowest GPU sets the pace
        ((), "tool", 10.0),
    ],
)
def test_a_measured_rate_goes_before_the_speed_of_the_gpu(window: Window, model: str, seconds: float) -> None:
    types = {"big": DeviceType("big"), "small": DeviceType("small", speed=0.5)}
    rates = [Rate("sd", "big", 2.0), Rate("sd", "small", 0.25), Rate("llm30b", "big", 2.5, 4)]
    view = View(Pool.parse("big:4,small:1", types), MODELS, CostRules(), RateTable(rates))
    graph = TaskGraph("one", [Task("a", model, MODELS[model].width)], [])
    task = ReadyNode(OpenRequest("r", graph, (10.0,), 0.0, None, 1.0), 0, 0.0, 0)
    assert view.run_s(task, window) == seconds


# --- what is wrong with costs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        (CostRules(), None),
        (CostRules(pcie_gb_s=0), "pcie_gb_s: expected a positive number, found 0"),
        (CostRules(ssd_gb_s=float("inf")), "ssd_gb_s: expected a positive number, found inf"),
        (CostRules(overhead_s=-1), "overhead_s: expected a number >= 0, found -1"),
        (CostRules(noise=float("nan")), "noise: expected a number >= 0, found nan"),
        (CostRules(dram_gb=float("inf")), "dram_gb: expected a number >= 0, found inf"),
        (CostRules(overlap=1.01), "overlap: expected 0 to 1, found 1.01"),
    ],
)
def test_wrong_costs_are_told(costs: CostRules, problem: str | None) -> None:
    assert costs.problem() == problem


# --- what a set-up costs at least -----------------------------------------------------------------


def test_the_least_by_hand() -> None:
    least = least_setup(MODELS, CostRules())
    assert least["sd"] == (0 + 4) / 16 + 2  # from the model without memory
    assert least["tiny"] == 1.0  # loading it afresh is cheaper than any switch
    assert least["tool"] == 0.0
    assert least_setup({"sd": MODELS["sd"]}, CostRules()) == {"sd": 10.0}
    two = {name: MODELS[name] for name in ("llm7b", "sd")}
    assert least_setup(two, CostRules())["sd"] == (14 + 4) / 16 + 2
    for costs in (CostRules(resident="memory"), CostRules(dram_gb=64.0)):  # nothing need leave for it
        assert least_setup(two, costs)["sd"] == 4 / 16 + 2
    assert least_setup(MODELS, CostRules(overlap=0.5))["sd"] == 2.25 / 2
    assert least_setup(MODELS, CostRules(), RateTable([], [Switch("sd", 0.5, "tiny", "small")]))["sd"] == 0.5


costs = st.builds(
    CostRules,
    pcie_gb_s=st.sampled_from([0.5, 16.0]),
    overhead_s=st.sampled_from([0.0, 2.0]),
    window=st.sampled_from(["slowest", "primary"]),
    resident=st.sampled_from(["one", "memory"]),
    overlap=st.sampled_from([0.0, 0.5, 1.0]),
    dram_gb=st.sampled_from([0.0, 10.0, 100.0]),
    ssd_gb_s=st.sampled_from([0.1, 2.0]),
)
switches = st.lists(
    st.builds(
        Switch,
        st.sampled_from(["llm7b", "sd", "tiny"]),
        st.sampled_from([0.0, 1.0, 50.0]),
        st.sampled_from(["", "llm7b", "tiny"]),
        st.sampled_from(["", "big", "small"]),
    ),
    unique_by=lambda switch: (switch.to, switch.previous, switch.device),
)
starts = st.lists(st.tuples(st.sampled_from(["llm7b", "sd", "tiny", "llm30b"]), st.integers(0, 4), st.floats(0.1, 50)))


@settings(deadline=None)
@given(costs, switches, starts)
def test_no_load_ever_costs_less_than_the_least(
    costs: CostRules, switches: list[Switch], starts: list[tuple[str, int, float]]
) -> None:
    """The lower bounds count one set-up of each model at this price: it must never be charged less the first time."""
    table = RateTable([], switches)
    held = residents(costs, "big:5" if costs.resident == "memory" else "big:3,small:2", table)
    least = least_setup(MODELS, costs, table)
    loaded = set()
    for model, first, run_s in starts:
        window = range(min(first, 5 - MODELS[model].width), 5)[: MODELS[model].width]
        setup_s = held.setup(window, model)
        if model not in loaded or setup_s:
            assert held.visible(setup_s, run_s) >= least[model] - 1e-12
        held.load(window, model)
        loaded.add(model)
        for gpu in window:
            assert [*held.held[gpu]][-1] == model
            if costs.resident == "memory":
                assert sum(MODELS[m].shard_mib for m in held.held[gpu]) <= 20 * 1024
            else:
                assert list(held.held[gpu]) == [model]
