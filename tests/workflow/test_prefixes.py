"""Prefix caches: what is kept and what it saves, against a recount from the definition; files, runs, bounds, faults."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Start
from dovetail.core.journal import Reader
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.check.prefixes import PrefixRecount
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.gpus.prefixes import PrefixCaches
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.inputs.costs import CostRules, ModelCost, PrefixRules
from dovetail.workflow.policies.base import ListPolicy, Place
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode
from dovetail.workflow.policies.view import View

POLICIES = [name for name, *_ in workflow.list_policies() if name != "optimise"]
LLM = ModelCost(14.0, 30.0, prefill_s=0.01, prefix=PrefixRules(400, 100, 0.5))


def caches(gpus: int = 2, **models: ModelCost) -> PrefixCaches:
    given = models or {"llm": LLM}
    return PrefixCaches(given, [dict.fromkeys(given) for _ in range(gpus)])


# --- what is kept ---------------------------------------------------------------------------------


def test_the_longest_leading_run_counts() -> None:
    kept = caches()
    kept.use("llm", [1, 2, 3], (0,))
    assert [kept.cached("llm", blocks, (0,)) for blocks in ([1, 2, 9], [1, 9, 3], [2, 3], [], [1, 2, 3, 4])] == [
        *(2, 1, 2, 0, 3)
    ]
    assert kept.cached("llm", [1, 2], (1,)) == 0


def test_ends_go_before_beginnings_and_old_before_new() -> None:
    kept = caches()  # four blocks
    kept.use("llm", [1, 2, 3], (0,))
    kept.use("llm", [7, 8], (0,))
    assert kept.cached("llm", [1, 2, 3], (0,)) == 2
    kept.use("llm", [1], (0,))
    kept.use("llm", [9], (0,))
    assert [kept.cached("llm", [block], (0,)) for block in (1, 2, 7, 8, 9)] == [1, 0, 1, 1, 1]
    kept.use("llm", list(range(10, 20)), (0,))
    assert kept.cached("llm", list(range(10, 20)), (0,)) == 4


def test_all_gpus_of_a_window_must_have_it() -> None:
    kept = caches()
    kept.use("llm", ["a", "b"], (0, 1))
    kept.use("llm", list("pqrs"), (0,))
    kept.use("llm", ["a"], (0,))
    assert kept.cached("llm", ["a", "b"], (1,)) == 2
    assert kept.cached("llm", ["a", "b"], (0, 1)) == 1


def test_a_model_that_leaves_takes_its_blocks_with_it() -> None:
    models = Residents(Pool.parse("1", {}), {"llm": LLM, "other": LLM}, CostRules())
    kept = PrefixCaches({"llm": LLM, "other": LLM}, models.held)
    models.load([0], "llm")
    kept.use("llm", [1], (0,))
    models.load([0], "llm")
    assert kept.cached("llm", [1], (0,)) == 1
    models.load([0], "other")
    models.load([0], "llm")
    assert kept.cached("llm", [1], (0,)) == 0


class Definition:
    """In the words of the page: which blocks a GPU has for a model, in order of last use, as a list."""

    def __init__(self) -> None:
        self.lists: dict[tuple[int, str], list[Any]] = {}

    def cached(self, model: str, blocks: list[Any], window: tuple[int, ...]) -> int:
        runs = [n for n in range(len(blocks) + 1) if all(self._has(model, blocks[:n], gpu) for gpu in window)]
        return max(runs)

    def _has(self, model: str, blocks: list[Any], gpu: int) -> bool:
        return all(block in self.lists.get((gpu, model), []) for block in blocks)

    def leave(self, gpu: int, models: Iterable[str]) -> None:
        for model in models:
            self.lists.pop((gpu, model), None)

    def use(self, model: str, blocks: list[Any], window: tuple[int, ...]) -> None:
        for gpu in window:
            before = [block for block in self.lists.get((gpu, model), []) if block not in blocks]
            self.lists[gpu, model] = (before + list(dict.fromkeys(blocks))[::-1])[-4:]


starts = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.lists(st.one_of(st.integers(0, 5), st.sampled_from("ab")), max_size=6),
        st.sampled_from([(0,), (1,), (0, 1), (2,)]),
        st.sampled_from(["beside others", "alone", "on an empty GPU"]),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(starts)
def test_scheduler_and_checker_keep_what_the_definition_says(
    starts: list[tuple[str, list[Any], tuple[int, ...], str]],
) -> None:
    models = {"one": LLM, "two": LLM}
    held: list[dict[str, OrderedDict[int | str, None] | None]] = [dict.fromkeys(models) for _ in range(3)]
    kept, recount, wanted = PrefixCaches(models, held), PrefixRecount(models), Definition()
    for i, (model, blocks, window, how) in enumerate(starts):
        if how == "on an empty GPU":
            for gpu in window:
                wanted.leave(gpu, models)
                held[gpu].clear()
                recount.forget(gpu)
        arrived = Arrived(f"r{i}", "w", (1.0,), facts={"prefix": {"n": blocks}})
        start = Start(arrived.job, "n", model, window, 0.0, 1.0, "")
        expected = wanted.cached(model, blocks, window)
        assert kept.cached(model, blocks, window) == expected
        assert recount.cached(start, arrived) == expected
        for gpu in window:
            gone = [other for other in held[gpu] if other != model and how == "alone"]
            wanted.leave(gpu, gone)
            for other in gone:
                del held[gpu][other]
            held[gpu].setdefault(model)
        kept.use(model, blocks, window)
        recount.start(start, arrived, held)
        wanted.use(model, blocks, window)


# --- what it saves --------------------------------------------------------------------------------


def view_of(*nodes: dict[str, Any]) -> tuple[View, list[ReadyNode]]:
    view = View(Pool.parse("2", {}), {"llm": LLM}, CostRules())
    graph = TaskGraph("one", [Task("n", "llm")], [])
    requests = [OpenRequest(f"r{i}", graph, (10.0,), 0.0, None, 1.0, facts) for i, facts in enumerate(nodes)]
    return view, [ReadyNode(request, 0, 0.0, i) for i, request in enumerate(requests)]


def test_without_tokens_a_share_of_the_seconds_is_saved() -> None:
    view, (first, second) = view_of({"prefix": {"n": [1, 2]}}, {"prefix": {"n": [1, 2, 3, 4]}})
    assert not view.even
    assert view.run_s(second, (0,)) == 10.0
    view.occupy((0,), "llm", 40.0)
    view.remember([first], (0,))
    assert (view.cached_blocks(second, (0,)), view.hit_share(second, (0,))) == (2, 0.5)
    assert view.run_s(second, (0,)) == 10.0 - 0.5 * 10.0 * 2 / 4
    assert view.run_s(second, (1,)) == 10.0
    assert view.hit_share(second, (1,)) == 0.0


def test_with_tokens_reading_is_saved_but_for_the_last_token() -> None:
    prefix = {"prefix": {"n": [1, 2]}, "tokens": {"n": [150, 20]}}
    view, (first, again, longer) = view_of(prefix, prefix, {**prefix, "tokens": {"n": [500, 20]}})
    view.occupy((0,), "llm", 40.0)
    view.remember([first], (0,))
    assert view.run_s(again, (0,)) == pytest.approx(10.0 - 149 * 0.01)
    assert view.first_s(again, (0,)) == pytest.approx(0.01)
    assert view.run_s(longer, (0,)) == pytest.approx(10.0 - 200 * 0.01)
    assert view.first_s(longer, (1,)) == pytest.approx(5.0)


# --- files ----------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {
            "memory_gb": 14,
            "gpus_required": 1,
            "load_time_seconds": 30,
            "prefix_cache_tokens": 2048,
            "prefix_saves": 0.6,
        },
        "sd": {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 10},
    },
    "workflows": {
        "chat": {"nodes": [{"id": "answer", "model": "llm"}]},
        "draw": {"nodes": [{"id": "paint", "model": "sd"}]},
    },
}


def with_llm(**keys: Any) -> dict[str, Any]:
    return CONFIG | {"models": CONFIG["models"] | {"llm": CONFIG["models"]["llm"] | keys}}


def rows(*prefixes: Any, every_s: float = 20.0) -> list[dict[str, Any]]:
    return [
        {
            "request_id": f"r{i}",
            "workflow_id": "chat",
            "timestamp": every_s * i,
            "node_execution_times": {"answer": 10.0},
            **({"node_prefix": {"answer": prefix}} if prefix else {}),
        }
        for i, prefix in enumerate(prefixes)
    ]


def test_a_request_says_blocks_or_a_name() -> None:
    problem = workflow.load(CONFIG, rows([1, 2], "talk", None), gpus=1)
    facts = [arrived.facts for _, arrived in problem.requests.arrivals()]
    assert facts == [{"prefix": {"answer": [1, 2]}}, {"prefix": {"answer": ["talk"]}}, {}]
    assert problem.models["llm"].prefix == PrefixRules(2048, 512, 0.6)


def test_prefixes_of_models_that_keep_nothing_are_left_out() -> None:
    row = {"request_id": "r", "workflow_id": "draw", "timestamp": 0, "node_prefix": {"paint": [1]}}
    problem = workflow.load(CONFIG, [row], gpus=1)
    assert [arrived.facts for _, arrived in problem.requests.arrivals()] == [{}]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prefix_cache_tokens": 511}, "prefix_cache_tokens: expected a block or more, up to 1e+12 tokens, found 511"),
        ({"prefix_block_tokens": 0}, "prefix_block_tokens: expected 1 to 1e+12 tokens, found 0"),
        ({"prefix_saves": 1.0}, "prefix_saves: expected 0 or more, and less than 1, found 1.0"),
        ({"prefix_saves": -0.1}, "prefix_saves: expected 0 or more, and less than 1, found -0.1"),
        ({"prefix_cache_tokens": "many"}, "prefix_cache_tokens: expected"),
        ({"prefix_cache_tokens": None}, "prefix_saves: expected prefix_cache_tokens beside it"),
    ],
)
def test_wrong_caches_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        workflow.load(with_llm(**keys), rows([1]), gpus=1)
    assert f"models.llm.{message}" in str(refusal.value)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ({"answr": [1]}, "node_prefix.answr: request 'r0': not a node of workflow 'chat'; did you mean 'answer'?"),
        ({"answer": []}, "node_prefix.answer: request 'r0': expected at least one block, or a name, found none"),
        ({"answer": [1.5]}, "node_prefix.answer.0: request 'r0': expected int | str, found float"),
        ({"answer": {"a": 1}}, "node_prefix.answer: request 'r0': expected str | array, found object"),
    ],
)
def test_wrong_prefixes_are_refused(prefix: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        workflow.load(CONFIG, [rows(None)[0] | {"node_prefix": prefix}], gpus=1)
    assert message in str(refusal.value)


def test_who_knows_no_prefixes_says_so() -> None:
    with pytest.raises(InputError, match="--exact knows no prefixes"):
        workflow.optimum(workflow.load(CONFIG, rows([1]), gpus=1))
    with pytest.raises(InputError, match=r"node_prefix.*GSwarm knew no such thing"):
        workflow.load(CONFIG, rows([1]), gpus=1, compat="gswarm")


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_shorter_where_the_prefix_is(policy: str, tmp_path: Path) -> None:
    problem = workflow.load(CONFIG, rows([1, 2], [1, 2], [1, 3], [4]), gpus=1, mode="online")
    run = workflow.run(problem, policy, journal=tmp_path / "run.jsonl")
    assert run.check().valid
    assert run.replay().difference is None
    starts = [event for _, _, event in Reader(run.journal) if type(event) is Start]
    assert [(start.cached, start.run_s) for start in starts] == [(0, 10.0), (2, 4.0), (1, 7.0), (0, 10.0)]
    assert run.metrics["prefix_hit_rate"] == 3 / 7
    assert "Prefix blocks found cached: 42.9%" in run.text()
    assert "2 blocks of its input were cached there." in str(run.explain("r1"))
    assert "1 block of its input was cached there." in str(run.explain("r2"))


def test_hits_are_told_on_pages_and_in_comparisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow.write_config(tmp_path / "config.json", CONFIG)
    (tmp_path / "asked.json").write_text(json.dumps({"requests": rows([1, 2], [1, 2], [1, 3], [4])}))
    files = ["--config", str(tmp_path / "config.json"), "--requests", str(tmp_path / "asked.json")]
    main(["workflow", "compare", "--gpus", "1", "--policy", "heft", "--mode", "online", "--jobs", "1", *files])
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert (head.split()[-2:], row.split()[-1]) == (["hits", "%"], "42.86")
    run = workflow.run(workflow.load(*files[1::2], gpus=1, mode="online"), "heft")
    page = run.report(tmp_path / "page.html").read_text()
    assert "found cached" in page
    assert "42.9" in page


@pytest.mark.parametrize("policy", ["heft", "srpt", "dovetail"])
def test_policies_that_compare_windows_go_where_the_prefix_is(policy: str) -> None:
    """Two talks, alternately, long after one another: each stays on its own GPU."""
    asked = rows(*(["a", 1], ["b", 1]) * 4, every_s=0.0)
    asked = [row | {"timestamp": 100.0 * (i // 2)} for i, row in enumerate(asked)]
    for order in (asked, [asked[i ^ (i // 2 % 2)] | {"timestamp": asked[i]["timestamp"]} for i in range(8)]):
        problem = workflow.load(CONFIG, order, gpus=2, mode="online")
        run = workflow.run(problem, policy)
        assert run.metrics["prefix_hit_rate"] == 6 / 8


def test_a_plan_counts_on_what_will_be_cached() -> None:
    problem = workflow.load(CONFIG, rows(*["a", "b"] * 3), gpus=2)
    run = workflow.run(problem, "optimise", options={"schedules": 30})
    assert run.check().valid
    assert run.metrics["makespan_s"] == 30 + 10 + 4 + 4


def test_fewer_gpus_are_enough_where_prefixes_are_kept() -> None:
    asked = rows(*["talk"] * 30, every_s=5.0)
    asked[0]["timestamp"] = -60.0
    enough = [
        workflow.fewest_gpus(config, asked, mode="online", policy="srpt", mean=30.0, max_gpus=4).gpus
        for config in (CONFIG, with_llm(prefix_saves=0.0))
    ]
    assert enough == [1, 2]


def test_a_batch_finds_what_was_there_before_it_and_takes_as_long_as_its_slowest() -> None:
    config = with_llm(batch_curve=[1.0, 1.5])
    asked = rows("a", "a", "b", every_s=0.0)
    asked = [asked[0], *[row | {"timestamp": 1.0} for row in asked[1:]]]
    problem = workflow.load(config, asked, gpus=1, mode="online", costs={"batching": True})
    run = workflow.run(problem, "baseline")
    starts = [event for _, _, event in Reader(run.journal) if type(event) is Start]
    assert [(start.cached, start.run_s) for start in starts] == [(0, 10.0), (1, 15.0), (0, 15.0)]
    assert run.check().valid


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    problem = workflow.load(CONFIG, rows(*["a", "b"] * 4, every_s=3.0), gpus=2, mode="online")
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    workflow.run(problem, "heft", journal=whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    for kept in range(2, len(lines), 3):
        cut.write_bytes(b"".join(lines[:kept]))
        workflow.run(problem, "heft", journal=cut, resume=True)
        assert cut.read_bytes() == whole.read_bytes()


def test_execution_logs_can_be_checked(tmp_path: Path) -> None:
    problem = workflow.load(CONFIG, rows(*["a", "b"] * 4, every_s=3.0), gpus=2, mode="online")
    log = tmp_path / "log.json"
    workflow.write_logs(workflow.run(problem, "heft"), executions=log)
    assert check_log(log).faults == []
    content = json.loads(log.read_text())
    hit = next(row for row in content["executions"] if row.get("cached"))
    hit["cached"] += 1
    log.write_text(json.dumps(content))
    assert {fault.code for fault in check_log(log).faults} == {"prefix"}


# --- the checker ----------------------------------------------------------------------------------


def planted(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> set[str]:
    """What the checker says of a good journal in which the last start, or the end, was changed."""
    path = tmp_path / "run.jsonl"
    problem = workflow.load(CONFIG, rows([1, 2], [1, 2], [1, 3]), gpus=1, mode="online")
    assert workflow.run(problem, "baseline", journal=path).check().valid
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {fault.code for fault in check_journal(path).faults}


def events(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [line, *(event for event in line.get("events", []) if isinstance(event, dict))]


@pytest.mark.parametrize(
    ("kind", "key", "old", "new", "codes"),
    [
        ("started", "cached", 1, 2, {"prefix", "summary"}),
        ("started", "cached", 2, 0, {"prefix", "summary"}),
        ("started", "run_s", 7.0, 10.0, {"run"}),
        ("arrived", "facts", {"prefix": {"answer": [1, 3]}}, {"prefix": {"answer": [9, 3]}}, {"prefix", "run"}),
        ("arrived", "facts", {"prefix": {"answer": [1, 3]}}, {"prefix": [[1, 3]]}, {"prefix", "run", "summary"}),
    ],
)
def test_planted_faults_are_found(tmp_path: Path, kind: str, key: str, old: Any, new: Any, codes: set[str]) -> None:
    changed = []

    def change(line: dict[str, Any]) -> None:
        for event in events(line):
            if event.get("k") == kind and event.get(key) == old:
                event[key] = new
                changed.append(event)

    found = planted(tmp_path, change)
    assert changed
    assert codes <= found


def test_a_wrong_hit_rate_is_found(tmp_path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        for event in events(line):
            if "prefix_hit_rate" in event.get("summary", {}):
                event["summary"]["prefix_hit_rate"] = 0.9

    assert planted(tmp_path, change) == {"summary"}


def test_cases_find_prefixes_cached_under_every_policy(tmp_path: Path) -> None:
    """So that what random cases prove is not about nothing."""
    hits: dict[str, int] = {}
    for seed in range(120):
        case = random_case(seed)
        if not any("node_prefix" in row for row in case.rows):
            continue
        problem = read_case(case, tmp_path)
        for policy in policies_for(case):
            run_case(problem, case, policy, seed, tmp_path / "run.jsonl")
            cached = sum(event.cached for _, _, event in Reader(tmp_path / "run.jsonl") if type(event) is Start)
            hits[policy] = hits.get(policy, 0) + cached
    assert min(hits.values()) > 10


# --- bounds ---------------------------------------------------------------------------------------


def test_blocks_that_nobody_shares_save_nothing_in_the_bounds() -> None:
    plain = workflow.bound(workflow.load(CONFIG, rows(None, None, None), gpus=1))
    apart = workflow.bound(workflow.load(CONFIG, rows([1], [2], [3]), gpus=1))
    shared = workflow.bound(workflow.load(CONFIG, rows([1, 2], [1, 3], [4]), gpus=1))
    assert apart == plain
    assert shared.area_s == plain.area_s - 2 * 0.6 * 10.0 / 2
    assert shared.path_s == plain.path_s  # the one that shares nothing


def test_after_a_failure_a_node_may_find_its_own_blocks(tmp_path: Path) -> None:
    problem = workflow.load(CONFIG, rows(*[[i] for i in range(20)], every_s=0.0), gpus=1)
    run = workflow.run(problem, "baseline", failure_rate=0.5, retries=20, seed=3, journal=tmp_path / "run.jsonl")
    assert run.metrics["prefix_hit_rate"] > 0
    assert run.check().valid
    assert run.lower.area_s < workflow.bound(problem).area_s


# --- the page, and a real trace -------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "workflow-affinity.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        exec(block, {"__name__": "page"})
        assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)", block, re.MULTILINE)


class OldestFirst(ListPolicy):
    """Oldest first, where it ends first."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.ready_s


class Blind(OldestFirst):
    """Oldest first, on the free GPU that has the model: it does not look where prefixes are."""

    def choose(self, view: View) -> Place | None:
        node = min((queue.head for queue in view.queues.values()), key=lambda node: node.seq)
        free = [(view.setup_s(window, node.model), window) for window in view.free_windows(node.model)]
        return Place(node, min(free)[1], "free") if free else None


def test_affinity_shortens_the_conversations_of_a_real_trace(traces: Path) -> None:
    """The pool that reads, as Mooncake has one: who looks where prefixes are hits more and is faster."""
    keys = {"timestamp": "timestamp", "input_tokens": "input_length", "prefix": "hash_ids"}
    model = {"memory_gb": 24.3, "gpus_required": 1, "load_time_seconds": 12.2, "prefill_tokens_per_second": 7884.8}
    trace = workflow.import_jsonl(
        traces / "mooncake" / "conversation_trace.jsonl",
        map=keys,
        time_unit="ms",
        model={"": model | {"prefix_cache_tokens": 3_000_000}},
    )
    asked = list(trace)[:3000]
    problem = workflow.load(trace.config, asked, gpus=8, mode="online")
    blind, looks, default = (workflow.run(problem, policy) for policy in (Blind, OldestFirst, "dovetail"))
    assert default.check().valid
    for other in (looks, default):
        assert other.metrics["prefix_hit_rate"] > 1.2 * blind.metrics["prefix_hit_rate"]
        assert other.metrics["avg_request_s"] < 0.98 * blind.metrics["avg_request_s"]
    blocks = [block for row in asked for block in row["node_prefix"]["generate"]]
    assert default.metrics["prefix_hit_rate"] <= 1 - len(set(blocks)) / len(blocks)  # each is read once at least
