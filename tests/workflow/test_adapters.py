"""Adapters: prices and residents against a recount from the definition, files that say them, runs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import workflow
from dovetail.core.errors import InputError
from dovetail.core.events import Start
from dovetail.core.journal import Reader
from dovetail.core.rates import RateTable, Switch
from dovetail.core.resources import DeviceType, Pool
from dovetail.workflow.check import check_journal
from dovetail.workflow.gpus.residents import Residents, least_setup
from dovetail.workflow.inputs.costs import CostRules, ModelCost, room_mib

MODELS = {
    "llm": ModelCost(14.0, 30.0),
    "poet": ModelCost(1.0, 0.5, adapter_of="llm"),
    "judge": ModelCost(2.0, 0.25, adapter_of="llm"),
    "clerk": ModelCost(0.5, 4.0, adapter_of="llm"),
    "sd": ModelCost(4.0, 10.0),
    "anime": ModelCost(0.5, 0.125, adapter_of="sd"),
    "pair": ModelCost(12.0, 20.0, 2),
    "fork": ModelCost(3.0, 2.0, 2, adapter_of="pair"),
}


def residents(costs: CostRules | None = None, gpus: str = "4", rates: RateTable | None = None) -> Residents:
    types = {"big": DeviceType("big", 20 * 1024), "small": DeviceType("small", 16 * 1024)}
    return Residents(Pool.parse(gpus, types, 2), MODELS, costs or CostRules(), rates)


# --- by hand --------------------------------------------------------------------------------------


def test_an_adapter_costs_its_own_time_where_its_base_is_and_both_elsewhere() -> None:
    held = residents()
    assert held.price(0, "poet") == 30 + 0.5
    held.load([0], "llm")
    held.load([1], "sd")
    held.load([2], "judge")
    assert held.price(0, "poet") == 0.5
    assert held.price(1, "poet") == (4 + 14) / 16 + 2 + 0.5
    assert held.price(2, "poet") == 0.5  # the base is there through another adapter
    assert held.price(2, "llm") == 0.0
    assert held.price(2, "sd") == (14 + 4) / 16 + 2  # the adapter is dropped, not moved


def test_one_adapter_at_a_time_stays_with_its_base() -> None:
    held = residents()
    held.load([0], "poet")
    held.load([0], "llm")
    assert held.evicted(0, "judge") == ["poet"] == [held.replaced([0], "judge")]
    held.load([0], "judge")
    assert list(held.held[0]) == ["judge", "llm"]
    assert held.evicted(0, "anime") == ["judge", "llm"]
    held.load([0], "anime")
    assert list(held.held[0]) == ["anime", "sd"]


def test_slots_keep_the_adapters_that_were_used_last() -> None:
    held = residents(CostRules(adapter_slots=2))
    for model in ("poet", "judge", "poet"):
        held.load([0], model)
    assert held.evicted(0, "clerk") == ["judge"]
    held.load([0], "clerk")
    assert list(held.held[0]) == ["poet", "clerk", "llm"]


def test_memory_holds_the_base_once_for_all_of_its_adapters() -> None:
    held = residents(CostRules(resident="memory"), "big:1")  # 20 GB
    for model in ("poet", "judge", "clerk"):
        held.load([0], model)
    assert list(held.held[0]) == ["poet", "judge", "clerk", "llm"]  # 17.5 GB
    assert held.price(0, "anime") == 4 / 16 + 2 + 0.125
    assert held.evicted(0, "anime") == ["poet", "judge"]
    assert held.evicted(0, "pair") == ["poet", "judge", "clerk"]  # 6 GB on each GPU, 3.5 of it theirs: the base stays
    held.load([0], "pair")
    assert list(held.held[0]) == ["llm", "pair"]
    assert held.evicted(0, "clerk") == ["pair"]  # never its own base, though that is older


def test_host_memory_keeps_adapters_too() -> None:
    held = residents(CostRules(dram_gb=64.0))
    assert held.price(0, "poet") == 30 + 0.5
    held.load([0], "poet")
    assert held.price(1, "poet") == 14 / 16 + 2 + 1 / 16  # the other GPU of this host
    assert held.price(1, "judge") == 14 / 16 + 2 + 2 / 2  # the adapter from disk, at 2 GB/s
    assert held.price(2, "poet") == 30 + 0.5


def test_measured_switches_go_before_the_formulas() -> None:
    switches = [
        Switch("poet", 0.75, "llm"),
        Switch("poet", 0.0625, "judge"),
        Switch("llm", 7.0, "sd"),
        Switch("llm", 11.0),
    ]
    held = residents(rates=RateTable([], switches))
    assert held.price(0, "poet") == 11.0 + 0.75
    held.load([0], "anime")
    assert held.price(0, "poet") == 7.0 + 0.75
    held.load([0], "judge")
    assert held.price(0, "poet") == 0.0625
    held.load([0], "clerk")
    assert held.price(0, "poet") == 0.75


def test_what_going_back_costs() -> None:
    held = residents()
    assert held.reload_s("poet", "judge") == 0.25
    assert held.reload_s("llm", "judge") == 0.25
    assert held.reload_s("judge", "llm") == 0.0
    assert held.reload_s("anime", "judge") == held.reload_s("sd", "llm") + 0.25
    assert held.reload_s("judge", "sd") == held.reload_s("llm", "sd") == (14 + 4) / 16 + 2


def test_the_least_of_an_adapter_is_its_own() -> None:
    two = {name: MODELS[name] for name in ("llm", "poet", "sd")}
    assert least_setup(two, CostRules()) == {"llm": 18 / 16 + 2, "poet": 0.5, "sd": 18 / 16 + 2}
    assert least_setup(two, CostRules(dram_gb=64.0))["poet"] == 1 / 16
    assert least_setup(two, CostRules(), RateTable([], [Switch("poet", 0.125, "llm")]))["poet"] == 0.125


# --- against the definition -----------------------------------------------------------------------


class Definition:
    """What a GPU holds and what a change costs, in the words of docs/workflow-affinity.md."""

    def __init__(self, memories: list[int | None], hosts: list[int], costs: CostRules, rates: RateTable) -> None:
        self.memories, self.hosts, self.costs, self.rates = memories, hosts, costs, rates
        self.used: list[dict[str, int]] = [{} for _ in memories]  # when what is there was last used
        self.in_dram: dict[int, dict[str, int]] = {host: {} for host in hosts}
        self.clock = 0

    @staticmethod
    def family(model: str) -> str:
        return MODELS[model].adapter_of or model

    def fits(self, gpu: int, held: set[str]) -> bool:
        memory, adapters = self.memories[gpu], [m for m in held if MODELS[m].adapter_of]
        if memory is not None and sum(MODELS[m].shard_mib for m in held) > memory:
            return False
        if self.costs.resident == "memory":
            return True
        return len({self.family(m) for m in held}) == 1 and len(adapters) <= self.costs.adapter_slots

    def leaving(self, gpu: int, model: str) -> list[str]:
        there = self.used[gpu]
        if model in there:
            return []
        wanted, gone = {model, self.family(model)}, list[str]()
        if self.costs.resident == "one" and self.family(model) not in there:
            return sorted(there, key=there.__getitem__)
        while not self.fits(gpu, set(there) - set(gone) | wanted):
            rest = [m for m in there if m not in gone and m not in wanted]
            if not rest:
                break
            oldest = min(rest, key=there.__getitem__)
            assert not any(MODELS[m].adapter_of == oldest for m in rest)  # a base leaves after its adapters
            gone.append(oldest)
        return gone

    def price(self, gpu: int, model: str) -> float:
        there, base, gone = self.used[gpu], self.family(model), self.leaving(gpu, model)
        if model in there:
            return 0.0
        device = "big" if self.memories[gpu] is not None else "gpu"
        dram, pcie = self.in_dram[self.hosts[gpu]], self.costs.pcie_gb_s
        moved = [m for m in gone if not MODELS[m].adapter_of]
        moved_s = sum(MODELS[m].memory_gb for m in moved) / pcie
        total = 0.0
        if base not in there:
            memory = MODELS[base].memory_gb
            copy_s = memory / pcie + self.costs.overhead_s
            load_s: float | None = self.rates.switch_s(None, base, device)
            if load_s is None:
                load_s = max(MODELS[base].load_s, memory / self.costs.ssd_gb_s if self.costs.dram_gb else 0.0)
            measured = self.rates.switch_s(moved[0], base, device) if len(moved) == 1 else None
            if self.costs.dram_gb:
                total = moved_s + (copy_s if base in dram else load_s)
            elif measured is not None:
                total = measured
            else:
                total = moved_s + copy_s if there else load_s
        elif model != base:
            total = moved_s
        if model == base:
            return total
        own = MODELS[model]
        if self.costs.dram_gb and model in dram:
            return total + own.memory_gb / pcie
        siblings = [m for m in gone if MODELS[m].adapter_of == base]
        for previous in [*(siblings if len(siblings) == 1 else []), base]:
            if (seconds := self.rates.switch_s(previous, model, device)) is not None:
                return total + seconds
        return total + max(own.load_s, own.memory_gb / self.costs.ssd_gb_s if self.costs.dram_gb else 0.0)

    def use(self, gpu: int, model: str) -> None:
        for name in self.leaving(gpu, model):
            del self.used[gpu][name]
        for name in dict.fromkeys((model, self.family(model))):
            self.clock += 1
            self.used[gpu][name] = self.clock
            if self.costs.dram_gb:
                kept = self.in_dram[self.hosts[gpu]]
                kept[name] = self.clock
                while sum(MODELS[m].memory_gb for m in kept) > self.costs.dram_gb:
                    del kept[min(kept, key=kept.__getitem__)]


rules = st.builds(
    CostRules,
    window=st.sampled_from(["slowest", "primary"]),
    resident=st.sampled_from(["one", "memory"]),
    adapter_slots=st.integers(1, 3),
    overlap=st.sampled_from([0.0, 0.5, 1.0]),
    dram_gb=st.sampled_from([0.0, 4.0, 20.0, 100.0]),
    ssd_gb_s=st.sampled_from([0.1, 2.0]),
)
switches = st.lists(
    st.builds(
        Switch,
        st.sampled_from(["llm", "poet", "judge", "sd"]),
        st.sampled_from([0.0, 0.375, 9.0]),
        st.sampled_from(["", "llm", "judge", "poet", "sd"]),
        st.sampled_from(["", "big"]),
    ),
    unique_by=lambda switch: (switch.to, switch.previous, switch.device),
)
starts = st.lists(
    st.tuples(st.sampled_from(sorted(MODELS)), st.integers(0, 3), st.floats(0.1, 50)), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=400)
@given(rules, switches, st.booleans(), starts)
def test_residents_are_what_the_definition_says(
    costs: CostRules, given: list[Switch], limited: bool, starts: list[tuple[str, int, float]]
) -> None:
    limited = limited or costs.resident == "memory"
    table = RateTable([], given)
    held = residents(costs, "big:4" if limited else "4", table)
    wanted = Definition([20 * 1024 if limited else None] * 4, [0, 0, 1, 1], costs, table)
    least, seen = least_setup(MODELS, costs, table), set[str]()
    for model, first, run_s in starts:
        for gpu in range(4):
            assert held.evicted(gpu, model) == wanted.leaving(gpu, model)
            assert held.price(gpu, model) == pytest.approx(wanted.price(gpu, model), abs=1e-12)
        window = range(min(first, 4 - MODELS[model].width), 4)[: MODELS[model].width]
        prices = [wanted.price(gpu, model) for gpu in (window[:1] if costs.window == "primary" else window)]
        assert held.setup(window, model) == pytest.approx(max(prices), abs=1e-12)
        if model not in seen:  # the bounds count each model once, a base apart from its adapters
            first_time = {model, MODELS[model].adapter_of or model} - seen
            assert held.visible(held.setup(window, model), run_s) >= sum(least[m] for m in first_time) - 1e-12
        seen |= {model, MODELS[model].adapter_of or model}
        held.load(window, model)
        for gpu in window:
            wanted.use(gpu, model)
        for gpu in range(4):
            assert list(held.held[gpu]) == sorted(wanted.used[gpu], key=wanted.used[gpu].__getitem__)
            assert all((gpu in held.holders.get(m, ())) == (m in wanted.used[gpu]) for m in MODELS)


# --- files ----------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 14, "gpus_required": 2, "load_time_seconds": 30, "tokens_per_second": 50},
        "poet": {"adapter_of": "llm", "base_model": "llm", "memory_gb": 1, "load_time_seconds": 0.5},
        "judge": {"adapter_of": "llm", "memory_gb": 2, "load_time_seconds": 0.25},
        "sd": {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 10},
    },
    "workflows": {
        "verse": {"nodes": [{"id": "write", "model": "poet"}]},
        "score": {"nodes": [{"id": "read", "model": "judge"}]},
        "talk": {"nodes": [{"id": "answer", "model": "llm"}]},
        "draw": {"nodes": [{"id": "paint", "model": "sd"}]},
    },
}


def config(**models: dict[str, Any]) -> dict[str, Any]:
    return CONFIG | {"models": CONFIG["models"] | models}


def rows(*workflows: str) -> list[dict[str, Any]]:
    nodes = {name: {node["id"]: 5.0 for node in of["nodes"]} for name, of in CONFIG["workflows"].items()}
    return [
        {"request_id": f"r{i}", "workflow_id": of, "timestamp": 50.0 * i, "node_execution_times": nodes[of]}
        for i, of in enumerate(workflows)
    ]


def test_an_adapter_is_as_wide_as_its_base_and_inherits_only_what_it_asks_for() -> None:
    problem = workflow.load(CONFIG, rows("verse"), gpus=2)
    assert problem.models["poet"] == ModelCost(1.0, 0.5, 2, adapter_of="llm")
    assert room_mib(problem.models, "poet") == 7 * 1024 + 512


@pytest.mark.parametrize(
    ("poet", "message"),
    [
        ({"adapter_of": "lm"}, "models.poet.adapter_of: 'lm' is not a model; did you mean 'llm'?"),
        ({"adapter_of": ["llm"]}, "models.poet.adapter_of: ['llm'] is not a model"),
        ({"adapter_of": "judge"}, "models.poet.adapter_of: 'judge' is an adapter itself; expected the model that it"),
        ({"adapter_of": "poet"}, "models.poet.adapter_of: 'poet' is an adapter itself"),
        ({"gpus_required": 1}, "models.poet.gpus_required: expected 2 as 'llm' has, found 1"),
        ({"memory_gb": None}, "models.poet.memory_gb: expected float, found null"),
    ],
)
def test_what_is_no_adapter_is_refused(poet: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        workflow.load(config(poet=CONFIG["models"]["poet"] | poet), rows("verse"), gpus=2)
    assert message in str(refusal.value)


def test_memory_and_load_are_never_those_of_the_base() -> None:
    for key in ("memory_gb", "load_time_seconds"):
        poet = {k: v for k, v in CONFIG["models"]["poet"].items() if k != key}
        with pytest.raises(InputError, match=f"models.poet: {key} is missing; expected the adapter's own"):
            workflow.load(config(poet=poet), rows("verse"), gpus=2)


def test_models_that_adapt_each_other_by_inheritance_are_refused() -> None:
    plain = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1}
    circle: dict[str, Any] = {"x": {"base_model": "a"}, "y": {"base_model": "b"}}
    circle |= {"a": plain | {"adapter_of": "y"}, "b": plain | {"adapter_of": "x"}}
    with pytest.raises(InputError, match="is an adapter itself"):
        workflow.load(config(**circle), rows("verse"), gpus=2)


def test_slots_are_a_positive_number() -> None:
    with pytest.raises(InputError, match="--cost adapter_slots: expected 1 or more, found 0"):
        workflow.load(CONFIG, rows("verse"), gpus=2, costs={"adapter_slots": 0})


def test_an_adapter_needs_room_for_its_base_too() -> None:
    small = CONFIG | {"gpu_types": {"small": {"memory_gb": 7}}}
    assert len(workflow.load(small, rows("talk"), gpus="small:2").requests) == 1
    with pytest.raises(InputError, match="needs 7680 MiB on each of 2 neighbouring GPUs"):
        workflow.load(small, rows("verse"), gpus="small:2")


def test_measured_switches_that_nobody_pays_are_told() -> None:
    measured = [
        {"to": "poet", "from": "judge", "seconds": 0.1},
        {"to": "poet", "from": "sd", "seconds": 3},
        {"to": "sd", "from": "poet", "seconds": 3},
        {"to": "poet", "seconds": 40},
    ]
    problem = workflow.load(CONFIG, rows("verse"), gpus=2, rates={"switches": measured})
    assert [(s.previous, s.to) for s in problem.rates.switches.values()] == [("judge", "poet")]
    text = "the rate table's switch from '{}' to '{}' (adapters change beside their base) is nothing that config has"
    assert problem.notes == [
        f"{text.format(*pair)}: ignored" for pair in (("sd", "poet"), ("poet", "sd"), ("", "poet"))
    ]


def test_who_knows_no_adapters_says_so() -> None:
    with pytest.raises(InputError, match=r"models\.poet\.adapter_of: --compat gswarm knows no adapters"):
        workflow.load(CONFIG, rows("verse"), gpus=2, compat="gswarm")
    with pytest.raises(InputError, match="--exact knows no adapters"):
        workflow.optimum(workflow.load(CONFIG, rows("verse"), gpus=2))


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [name for name, *_ in workflow.list_policies() if name != "optimise"])
def test_every_policy_pays_an_adapters_own_time(policy: str) -> None:
    problem = workflow.load(CONFIG, rows("verse", "score", "talk", "verse", "draw", "verse"), gpus=2, mode="online")
    run = workflow.run(problem, policy)
    assert run.check().valid
    assert run.replay().difference is None
    setups = {event.job: event.setup_s for _, _, event in Reader(run.journal) if type(event) is Start}
    assert [setups[f"r{i}"] for i in range(4)] == [30.5, 0.25, 0.0, 0.5]
    assert [setups[f"r{i}"] for i in (4, 5)] == [3.125, 3.625]


def test_a_wrong_price_of_an_adapter_is_found(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    problem = workflow.load(CONFIG, rows("verse", "score"), gpus=2, mode="online")
    assert workflow.run(problem, "baseline", journal=journal).check().valid
    text = journal.read_text()
    for wrong, code in (('"setup_s":3.375', "price"), ('"setup_s":0.25', None)):
        assert '"setup_s":0.25' in text
        journal.write_text(text.replace('"setup_s":0.25', wrong))
        faults = check_journal(journal).faults
        assert (code in {fault.code for fault in faults}) == (code is not None)
    for old, new in (('"adapter_of":"llm"', '"adapter_of":"sd"'), ('"adapter_of":"llm"', '"adapter_of":"lm"')):
        journal.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=r"adapter_of: expected a model of the same width that is no adapter"):
            check_journal(journal)
