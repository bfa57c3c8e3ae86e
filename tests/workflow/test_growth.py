"""Requests that grow: what files may say, what is drawn, and that everybody who follows a run agrees on it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count as counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.check import Check
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Finished, Grew, Order, Start
from dovetail.core.journal import Observer, Reader, Writer
from dovetail.core.loop.engine import serve
from dovetail.core.loop.inbox import Inbox
from dovetail.core.loop.replay import replay_journal
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.growth.request import Later, RequestGrowth, draw
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import make_policy

Config = dict[str, Any]

MODEL = {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 2, "inference_time_mean": 3}


def agent(**thens: Any) -> Config:
    """plan -> think -> judge -> answer; search -> read and run are added where a `then` says so."""
    nodes = [{"id": name, "model": "llm"} for name in ("plan", "think", "judge", "answer")]
    nodes += [{"id": "search", "model": "web"}, {"id": "read", "model": "llm"}, {"id": "run", "model": "code"}]
    used = str(thens)
    nodes = [node for node in nodes if node["id"] not in ("search", "read", "run") or f"'{node['id']}'" in used]
    if "'search'" in used:
        nodes.append({"id": "read", "model": "llm"})
    for node in nodes:
        if node["id"] in thens:
            node["then"] = thens[node["id"]]
    edges = [("plan", "think"), ("think", "judge"), ("judge", "answer"), ("search", "read")]
    names = {node["id"] for node in nodes}
    lines = [{"from": one, "to": two} for one, two in edges if {one, two} <= names]
    models = {"llm": MODEL, "web": MODEL | {"memory_gb": 1}, "code": MODEL | {"gpus_required": 0}}
    return {"models": models, "workflows": {"agent": {"nodes": nodes, "edges": lines}}}


def requests(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"request_id": f"r{i}", "workflow_id": "agent", "timestamp": 2.0 * i, **more} for i in range(count)]


def rules_of(config: Config) -> tuple[GrowthRules, TaskGraph]:
    system = read_system(config)
    return system.growth["agent"], system.graph("agent")


def drawn(config: Config, name: str = "r", seed: int = 0, **outcomes: Any) -> dict[str, Grew]:
    rules, graph = rules_of(config)
    return draw(name, rules, graph, Later({node.name: 3.0 for node in rules.nodes}, outcomes), seed)


# --- what is added, and where ---------------------------------------------------------------------


def test_a_branch_lies_between_its_node_and_what_follows() -> None:
    config = agent(think={"search": 0.5, "run": 0.2})
    assert [task.name for task in rules_of(config)[1].tasks] == ["plan", "think", "judge", "answer"]
    event = drawn(config, think=["search"])["think"]
    assert [(task.name, task.kind) for task in event.tasks] == [("search", "web"), ("read", "llm")]
    assert set(event.edges) == {("think", "search"), ("search", "read"), ("read", "judge")}
    assert event.why == "goes on with search"
    assert drawn(config, think=[None]) == {}


def test_a_loop_adds_what_lies_between_and_is_bounded() -> None:
    events = drawn(agent(judge={"think": {"chance": 0.5, "at_most": 2}}), judge=["think"] * 9)
    assert list(events) == ["judge", "judge#2"]
    assert [task.name for task in events["judge#2"].tasks] == ["think#3", "judge#3"]
    assert set(events["judge#2"].edges) == {("judge#2", "think#3"), ("think#3", "judge#3"), ("judge#3", "answer")}
    assert events["judge"].why == "goes back to think, 1 of at most 2 times"


def test_copies_are_side_by_side_and_joined() -> None:
    event = drawn(agent(plan={"search": {"copies": [2, 3]}}), plan=[{"search": 3}])["plan"]
    assert [task.name for task in event.tasks] == ["search", "read", "search#2", "read#2", "search#3", "read#3"]
    joined = {edge for edge in event.edges if edge[1] == "think"}
    assert joined == {("read", "think"), ("read#2", "think"), ("read#3", "think")}


def test_what_is_repeated_decides_again_and_inner_loops_begin_anew() -> None:
    loops = {"think": {"think": {"chance": 0.5, "at_most": 1}}, "judge": {"think": {"chance": 0.5, "at_most": 1}}}
    events = drawn(agent(**loops), think=["think"] * 9, judge=["think"] * 9)
    assert list(events) == ["think", "judge", "think#3"]
    assert set(events["think#3"].edges) == {("think#3", "think#4"), ("think#4", "judge#2")}


def test_a_service_says_what_really_happened() -> None:
    rules, graph = rules_of(agent(think={"search": 0.5}, judge={"think": {"chance": 0.5, "at_most": 1}}))
    request = RequestGrowth("r", rules, graph, lambda instance, node: 1.0)
    assert request.grow("think", None) is None
    again = request.grow("judge", "think")
    found = request.grow("think#2", "search")
    assert again is not None
    assert found is not None
    assert set(found.edges) == {("think#2", "search"), ("search", "read"), ("read", "judge#2")}
    assert request.grow("judge#2", "think") is None


def test_sizes_are_of_the_instance_the_node_or_the_model_with_its_spread() -> None:
    config = agent(judge={"think": {"chance": 1, "at_most": 3}})
    rows = requests(1, node_execution_times={"think": 5, "think#3": 7}, outcomes={"judge": ["think"] * 3})
    config["models"]["llm"] = MODEL | {"inference_time_std": 0.5}
    run = workflow.run(workflow.load(config, rows, gpus=1))
    sizes = {
        t.name: s
        for _, _, e in Reader(run.journal)
        if isinstance(e, Grew)
        for t, s in zip(e.tasks, e.sizes, strict=True)
    }
    assert (sizes["think#2"], sizes["think#3"], sizes["think#4"]) == (5, 7, 5)
    judges = [sizes[f"judge#{i}"] for i in (2, 3, 4)]
    assert len(set(judges)) == 3
    assert all(1 < size < 5 for size in judges)


# --- chance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (agent(think={"run": 0.3}), {"run": 0.3}),
        (agent(think={"search": 0.25, "run": 0.5}), {"search": 0.25, "read": 0.25, "run": 0.5}),
        (agent(judge={"judge": {"chance": 0.6, "at_most": 4}}), {"judge": (1 - 0.6**5) / (1 - 0.6)}),
        (agent(judge={"plan": {"chance": 0.5, "at_most": 2}}), {"plan": 1.75, "think": 1.75, "judge": 1.75}),
        (agent(plan={"search": {"copies": [1, 4]}}), {"search": 2.5, "read": 2.5}),
        (agent(plan={"search": {"chance": 0.5, "copies": {2: 0.5, 4: 0.25}}}), {"search": 1.0, "read": 1.0}),
        (
            agent(think={"run": 0.5}, judge={"think": {"chance": 0.5, "at_most": 1}}, run={"search": {"copies": 2}}),
            {"think": 1.5, "judge": 1.5, "run": 0.75, "search": 1.5, "read": 1.5},
        ),
    ],
)
def test_nodes_are_added_as_often_as_the_closed_form_says(config: Config, expected: dict[str, float]) -> None:
    rules, graph = rules_of(config)
    whole = dict.fromkeys([task.name for task in graph.tasks], 1.0) | expected
    assert rules.expected([task.name for task in graph.tasks]) == pytest.approx(whole)
    counted, many = Counter[str](), 4000
    for i in range(many):
        for event in drawn(config, f"request {i}").values():
            counted.update(task.name.partition("#")[0] for task in event.tasks)
    for name, count in whole.items():
        added = counted[name] / many + (name in graph.index)
        assert added == pytest.approx(count, abs=0.12), name


def by_hand(workflow_of: Config, rng: random.Random) -> Counter[str]:
    """How often each node runs, played from the file: no rules, no graphs."""
    nodes = {node["id"]: node.get("then", {}) for node in workflow_of["nodes"]}
    after: dict[str, set[str]] = {name: set() for name in nodes}
    for edge in workflow_of["edges"]:
        after[edge["from"]].add(edge["to"])

    def onward(name: str) -> set[str]:
        return {name}.union(*(onward(other) for other in after[name]))

    branches = {to for name, then in nodes.items() for to in then if name not in onward(to)}
    optional = set().union(*(onward(to) for to in branches))
    counted: Counter[str] = Counter()
    left = [(name, 0) for name in nodes if name not in optional]
    while left:
        name, rounds = left.pop()
        counted[name] += 1
        at = rng.random()
        for to, entry in nodes[name].items():
            entry = entry if isinstance(entry, dict) else {"chance": entry}
            at -= entry.get("chance", 1.0)
            if at >= 0:
                continue
            if name in onward(to):
                if rounds < entry["at_most"]:
                    between = {one for one in onward(to) if name in onward(one)}
                    left += [(one, rounds + 1 if one == name else 0) for one in between]
            else:
                copies = entry.get("copies", 1)
                if isinstance(copies, dict):
                    drawn_at, chosen = rng.random(), 0
                    for count, chance in copies.items():
                        drawn_at -= chance
                        if drawn_at < 0:
                            chosen = int(count)
                            break
                    copies = chosen
                copies = rng.randint(*copies) if isinstance(copies, list) else copies
                left += [(one, 0) for one in onward(to)] * copies
            break
    return counted


def test_random_workflows_grow_as_when_played_by_hand() -> None:
    compared = 0
    for seed in range(60):
        case = random_case(seed)
        for name, of in case.config["workflows"].items():
            if not any("then" in node for node in of["nodes"]):
                continue
            system, rng, many = read_system(case.config), random.Random(seed), 1500
            graph = system.graph(name)
            expected = system.growth[name].expected([task.name for task in graph.tasks])
            played: Counter[str] = Counter()
            squares: Counter[str] = Counter()
            for _ in range(many):
                counts = by_hand(of, rng)
                played.update(counts)
                squares.update({node: count * count for node, count in counts.items()})
            assert played.keys() <= expected.keys()
            for node, count in expected.items():
                mean = played[node] / many
                error = max(squares[node] / many - mean**2, 0.0) ** 0.5 / many**0.5
                assert abs(mean - count) <= 5 * error + 0.02, (seed, name, node)
                compared += 1
    assert compared > 60


def test_a_request_grows_alike_under_every_policy_and_on_every_pool() -> None:
    config = agent(
        plan={"search": {"copies": [0, 3]}}, think={"run": 0.5}, judge={"think": {"chance": 0.6, "at_most": 3}}
    )
    told: dict[tuple[str, str], Grew] = {}
    for gpus in (1, 3):
        problem = workflow.load(config, requests(30), gpus=gpus, mode="online")
        for policy in ("baseline", "heft", "srpt", "static", workflow.DEFAULT_POLICY):
            run = workflow.run(problem, policy, seed=4, failure_rate=0.1, retries=9)
            found = {(e.job, e.task): e for _, _, e in Reader(run.journal) if isinstance(e, Grew)}
            told = told or found
            assert found == told
    run = workflow.run(problem, seed=5)
    assert {(e.job, e.task): e for _, _, e in Reader(run.journal) if isinstance(e, Grew)} != told


# --- everybody who follows a run ------------------------------------------------------------------


def test_the_bounds_are_those_of_what_requests_became() -> None:
    config = agent(plan={"search": {"copies": [0, 3]}}, judge={"think": {"chance": 0.6, "at_most": 3}})
    problem = workflow.load(config, requests(12), gpus=2, mode="online")
    run = workflow.run(problem)
    graphs: dict[str, TaskGraph] = {}
    sizes: dict[str, dict[str, float]] = {}
    for _, _, event in Reader(run.journal):
        if isinstance(event, Arrived):
            graphs[event.job] = problem.graphs["agent"]
            sizes[event.job] = {
                task.name: size for task, size in zip(graphs[event.job].tasks, event.sizes, strict=True)
            }
        elif isinstance(event, Grew):
            graphs[event.job] = graphs[event.job].grown(event.tasks, event.edges)
            sizes[event.job] |= {task.name: size for task, size in zip(event.tasks, event.sizes, strict=True)}
    known: Config = {"models": config["models"], "workflows": {}}
    for job, graph in graphs.items():
        names = [task.name.replace("#", "_") for task in graph.tasks]  # no instances here
        edges = [{"from": names[i], "to": names[j]} for i, after in enumerate(graph.before) for j in after]
        nodes = [{"id": name, "model": task.kind} for name, task in zip(names, graph.tasks, strict=True)]
        sizes[job] = {name.replace("#", "_"): size for name, size in sizes[job].items()}
        known["workflows"][job] = {"nodes": nodes, "edges": edges}
    rows = [
        {**row, "workflow_id": row["request_id"], "node_execution_times": sizes[row["request_id"]]}
        for row in requests(12)
    ]
    static = workflow.bound(workflow.load(known, rows, gpus=2, mode="online"))
    assert run.lower.makespan_s == pytest.approx(static.makespan_s)
    assert (run.lower.mean_s, run.lower.p99_s) == pytest.approx((static.mean_s, static.p99_s))
    assert workflow.bound(problem).makespan_s < static.makespan_s  # of what is certain when they arrive
    assert run.metrics["grown"] == sum(len(graph.tasks) for graph in graphs.values()) - 4 * 12


def test_the_forecast_is_the_expectation() -> None:
    config = agent(think={"search": 0.5}, judge={"judge": {"chance": 0.5, "at_most": 1}})
    problem = workflow.load(config, requests(10, node_execution_times={"search": 8, "judge": 4}), gpus=2)
    assert problem.requests.forecast == pytest.approx({"llm": 10 * (9 + 0.5 * 3 + 1.5 * 4), "web": 40.0, "code": 0.0})


def test_a_run_replays_resumes_and_is_explained(tmp_path: Path) -> None:
    problem = workflow.load(agent(judge={"think": {"chance": 0.7, "at_most": 5}}), requests(20), gpus=2, mode="online")
    journal = tmp_path / "journal.jsonl"
    run = workflow.run(problem, journal=journal, seed=2)
    assert run.replay().difference is None
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2])
    workflow.run(problem, journal=journal, seed=2, resume=True)
    assert journal.read_bytes() == whole
    again = next(e for _, _, e in Reader(journal) if isinstance(e, Grew))
    told = str(run.explain(again.job, again.tasks[0].name))
    assert "It was added when judge ended: goes back to think, 1 of at most 5 times." in told
    assert set(run.frame("tasks")["task"]) > {"think", "think#2", "judge#2"}


def test_an_instance_reads_what_its_node_reads() -> None:
    config = agent(judge={"think": {"chance": 1, "at_most": 2}})
    reads = {"prefill_tokens_per_second": 100, "tokens_per_second": 10, "prefix_cache_tokens": 10_000}
    config["models"]["llm"] = {key: value for key, value in MODEL.items() if key != "inference_time_mean"} | reads
    more = {"node_tokens": {"think": {"input": 1000, "output": 20}}, "node_prefix": {"think": "talk"}}
    run = workflow.run(workflow.load(config, requests(1, **more), gpus=1))
    sizes = {
        t.name: s
        for _, _, e in Reader(run.journal)
        if isinstance(e, Grew)
        for t, s in zip(e.tasks, e.sizes, strict=True)
    }
    starts = {e.task: e for _, _, e in Reader(run.journal) if isinstance(e, Start)}
    assert sizes["think#2"] == 12.0
    assert starts["think"].run_s == 12.0
    assert starts["think#2"].run_s == starts["think#3"].run_s == pytest.approx(6.88)  # a block of 512 tokens is cached
    assert run.check(config=config, requests=requests(1, **more)).valid


def test_an_instance_has_a_time_or_tokens() -> None:
    config = agent(judge={"think": {"chance": 1, "at_most": 2}})
    config["models"]["llm"] = MODEL | {"prefill_tokens_per_second": 100}
    more = {"node_tokens": {"think": {"input": 1000}}, "node_execution_times": {"think#2": 3}}
    with pytest.raises(InputError, match="its node has tokens as well"):
        workflow.load(config, requests(1, **more), gpus=1)


def test_a_large_file_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    rows = requests(40, node_execution_times={"think": 2, "think#2": 9})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = agent(judge={"think": {"chance": 0.7, "at_most": 5}})
    kept = workflow.run(workflow.load(config, path, gpus=2, mode="online"))
    monkeypatch.setattr("dovetail.workflow.inputs.requests._IN_MEMORY", 0)
    streamed = workflow.run(workflow.load(config, path, gpus=2, mode="online"))
    assert streamed.journal.read_bytes() == kept.journal.read_bytes()


def test_a_recorded_run_runs_again_on_another_pool(tmp_path: Path) -> None:
    config = agent(
        plan={"search": {"copies": [0, 3]}}, think={"run": 0.5}, judge={"think": {"chance": 0.6, "at_most": 3}}
    )
    config["models"]["llm"] = MODEL | {"inference_time_std": 1.0}
    run = workflow.run(workflow.load(config, requests(25), gpus=2, mode="online"), seed=3)
    rows, journal = workflow.requests_of(run), tmp_path / "requests.jsonl"
    again = workflow.run(workflow.load(config, rows, gpus=5, mode="online"), "srpt", seed=99)
    grown = [{(e.job, e.task): e for _, _, e in Reader(r.journal) if isinstance(e, Grew)} for r in (run, again)]
    assert grown[0] == grown[1]
    workflow.write_logs(run, requests=journal)
    assert [json.loads(line) for line in journal.read_text().splitlines()] == rows
    live = relabelled(Reader(run.journal).path, tmp_path / "live.jsonl")
    assert workflow.requests_of(live) == rows  # whatever order a live run numbered its nodes in


def relabelled(journal: Path, to: Path) -> Path:
    """The same run, as if added nodes had been numbered otherwise."""
    names: dict[str, str] = {}
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        for task in line.get("tasks", ()):
            names[f"{line['job']}/{task['name']}"] = f"{task['name'].partition('#')[0]}#{len(names) + 100}"
    for line in lines[1:]:
        job = line.get("job")
        for task in line.get("tasks", ()):
            task["name"] = names[f"{job}/{task['name']}"]
        line["edges"] = [[names.get(f"{job}/{end}", end) for end in edge] for edge in line.get("edges", ())]
        if "task" in line:
            line["task"] = names.get(f"{job}/{line['task']}", line["task"])
        if line["k"] != "grew":
            del line["edges"]
    to.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


# --- who must know everything ahead ---------------------------------------------------------------


def test_who_plans_ahead_says_why_it_cannot() -> None:
    problem = workflow.load(agent(think={"run": 0.5}), requests(2), gpus=2)
    sentence = "but requests for workflow 'agent' are given nodes while they run"
    with pytest.raises(InputError, match=sentence):
        workflow.run(problem, "optimise")
    with pytest.raises(InputError, match=sentence):
        workflow.optimum(problem)
    assert "optimise" not in [row["policy"] for row in workflow.compare(problem, "all", jobs=1).rows]


def test_seeds_are_compared_and_a_plan_counts_the_widest_node_that_may_be_added() -> None:
    config = agent(think={"search": 0.9})
    rows = workflow.compare(workflow.load(config, requests(9), gpus=2), ["baseline"], seeds=[1, 2], jobs=1).rows
    assert rows[0]["seeds"] == [1, 2]
    config["models"]["web"]["gpus_required"] = 3
    assert workflow.fewest_gpus(config, requests(3), makespan=1e6).gpus == 3


def test_the_older_scheduler_knew_nothing_of_it() -> None:
    with pytest.raises(InputError, match=r"nodes.1.then: --compat gswarm knows no nodes that are added"):
        workflow.load(agent(think={"run": 0.5}), requests(1), gpus=2, compat="gswarm")


# --- files that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (agent(think={"run": 0}), r"nodes.1.then.run.chance: expected a chance above 0 and up to 1, found 0"),
        (agent(think={"run": 1.5}), "expected a chance above 0 and up to 1, found 1.5"),
        (agent(think={"run": 0.7, "search": 0.4}), r"nodes.1.then: .*add up to 1.1, expected at most 1"),
        (agent(think={"serch": 0.5, "search": 0.5}), r"'serch' is not a node; did you mean 'search'\?"),
        (agent(judge={"think": 0.5}), r"leads back to an earlier node: say how often at most, as \{chance: 0.5"),
        (agent(judge={"think": {"chance": 0.5, "at_most": 0}}), "at_most: expected a number from 1 to 10,000, found 0"),
        (agent(judge={"think": {"at_most": 2, "copies": 3}}), "a loop has no copies"),
        (agent(think={"run": {"at_most": 2}}), "at_most is for loops"),
        (agent(think={"run": {"chanse": 0.5}}), r"then.*unknown.*chanse|chanse.*did you mean .chance"),
        (agent(think={"run": {"copies": [3, 2]}}), r"copies: expected the least and the most, as \[2, 5\]"),
        (agent(think={"run": {"copies": {2: 0.8, 3: 0.8}}}), "chances above 0 that add up to at most 1"),
        (agent(think={"run": {"copies": {"two": 0.8}}}), "expected numbers of copies and their chances"),
        (agent(think={"run": {"copies": 0}}), "some above 0, found 0"),
        (agent(think={"judge": 0.5}), "'judge' is or follows 'judge', which 'think' adds"),
        (
            agent(run={"run": {"at_most": 10_000, "chance": 0.5}}, think={"run": {"copies": 9}}),
            "may come to 90,013 nodes",
        ),
        (
            agent(judge={"think": {"chance": 0.2, "at_most": 2}, "plan": {"chance": 0.2, "at_most": 2}}),
            "goes back to two nodes, expected one",
        ),
        (
            agent(think={"run": 0.5}, run={"search": 0.5}, search={"run": 0.5}),
            "again without end: run -> search -> run",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(config: Config, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_system(config)
    assert "workflows.agent" in str(error.value)


def chain(count: int) -> Config:
    """Each node adds the next one."""
    nodes: list[dict[str, Any]] = [{"id": f"n{i}", "model": "llm", "then": {f"n{i + 1}": 0.5}} for i in range(count)]
    del nodes[-1]["then"]
    return {"models": {"llm": MODEL}, "workflows": {"agent": {"nodes": nodes}}}


def test_a_long_chain_of_thens_is_read() -> None:
    rules, graph = rules_of(chain(1000))
    assert rules.most(["n0"]) == 1000
    assert {name: rules.expected_of(graph)[name] for name in ("n0", "n1", "n9")} == {"n0": 1, "n1": 0.5, "n9": 0.5**9}


def test_a_chain_of_thens_without_measure_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"agent.nodes.499.then: .*nested too deeply, expected at most 1,000 levels"):
        read_system(chain(1500))


def test_the_command_names_file_line_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, rows = tmp_path / "config.json", tmp_path / "requests.json"
    config.write_text(json.dumps(agent(think={"rum": 0.5, "run": 0.1}), indent=1))
    rows.write_text(json.dumps({"requests": requests(1)}))
    given = ["--config", str(config), "--requests", str(rows), "--gpus", "2"]
    assert main(["workflow", "validate", *given]) == 2
    told = capsys.readouterr().err
    line = next(i for i, text in enumerate(config.read_text().splitlines(), 1) if '"rum"' in text)
    assert f"config.json:{line}: workflows.agent.nodes.1.then.rum: " in told
    assert "'rum' is not a node; did you mean 'run'?" in told


def test_a_join_that_is_drawn_twice_is_told_how_to_write_it() -> None:
    config = agent(think={"run": 0.5})
    config["workflows"]["agent"]["edges"].append({"from": "run", "to": "judge"})
    with pytest.raises(InputError, match="what follows a node waits for what that adds"):
        read_system(config)


def test_names_with_a_number_sign_are_for_what_is_added() -> None:
    config = agent(judge={"judge": {"chance": 0.5, "at_most": 1}})
    config["workflows"]["agent"]["nodes"][0]["id"] = "plan#1"
    config["workflows"]["agent"]["edges"].pop(0)
    with pytest.raises(InputError, match="'#' is for the numbers of nodes that are added"):
        read_system(config)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"outcomes": {"thing": ["run"]}},
            r"outcomes.thing: .*expected a node that adds others .*did you mean 'think'",
        ),
        ({"outcomes": {"think": ["rum"]}}, r"outcomes.think.0: .*'rum' is no outcome of 'think'; did you mean 'run'"),
        ({"outcomes": {"think": [{"run": 5}]}}, "expected 0, 2 copies of 'run', found 5"),
        ({"outcomes": {"think": [{"run": 2, "x": 1}]}}, "expected one outcome, found 2"),
        ({"outcomes": {"think": "run"}}, "outcomes"),
        ({"node_execution_times": {"think#2": -1}}, r"node_execution_times.think#2: .*expected a positive number"),
        ({"node_execution_times": {"thing#2": 1}}, r"thing#2: .*not a node of workflow 'agent'"),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        workflow.load(agent(think={"run": {"chance": 0.5, "copies": 2}}), requests(1, **more), gpus=2)


def test_outcomes_of_a_workflow_that_does_not_grow_are_refused() -> None:
    with pytest.raises(InputError, match=r"outcomes: .*no node of workflow 'agent' adds others"):
        workflow.load(agent(), requests(1, outcomes={"think": []}), gpus=2)


# --- live -----------------------------------------------------------------------------------------


class Model:
    """Stands for real models: a node's output decides what comes next, and is told together with its end."""

    def __init__(self, inbox: Inbox, growth: Mapping[str, RequestGrowth], outputs: Mapping[str, str | None]) -> None:
        self._inbox, self._growth, self._outputs = inbox, growth, outputs
        self.calls: list[str] = []

    def carry(self, orders: Sequence[Order], now: float) -> None:
        for order in orders:
            assert isinstance(order, Start)
            self.calls.append(order.task)
            grown = self._growth[order.job].grow(order.task, self._outputs.get(order.task))
            self._inbox.put(*([grown] if grown is not None else []), Finished(order.job, order.task))
            if order.task == "answer":
                self._inbox.close()

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        assert not desired


def serve_once(problem: WorkflowProblem, outputs: Mapping[str, str | None], journal: Path, resume: bool) -> list[str]:
    inbox, ticks = Inbox(), counter()
    graph = problem.graphs["agent"]
    model = Model(inbox, {"r": RequestGrowth("r", problem.growth["agent"], graph, lambda *_: 1.0)}, outputs)
    if not resume:
        inbox.put(Arrived("r", "agent", (1.0,) * len(graph.tasks)))
    else:
        inbox.close()
    scheduler = WorkflowScheduler(problem.new_view(), problem.graphs, make_policy("baseline", {}, "online")[1])
    header = problem.header("baseline", {}, 0, simulate=True)
    history = [(n, t, events) for n, t, events in Reader(journal).steps()] if resume else []
    followers: list[Observer] = []
    with nullcontext() if resume else Writer(journal, header) as writer:
        if writer is not None:
            followers.append(writer)
        serve(scheduler, problem.pool, problem.graphs, inbox, model, lambda: float(next(ticks)), followers, history)
    return model.calls


def test_a_live_run_is_decided_by_outputs_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    config = agent(think={"search": 0.01}, judge={"think": {"chance": 0.01, "at_most": 2}})
    problem = workflow.load(config, requests(1), gpus=2, mode="online")
    outputs = {"judge": "think", "think#2": "search", "judge#2": None}
    journal = tmp_path / "live.jsonl"
    calls = serve_once(problem, outputs, journal, resume=False)
    assert calls == ["plan", "think", "judge", "think#2", "search", "read", "judge#2", "answer"]
    check = Check(Reader(journal).header, exact=False)
    for n, t, events in Reader(journal).steps():
        check.step(n, t, events)
    assert check.faults.counts == {}
    assert replay_journal(journal).difference is None
    assert serve_once(problem, outputs, journal, resume=True) == []  # all is known from the journal
    assert workflow.requests_of(journal)[0]["outcomes"] == {"think": [None, "search"], "judge": ["think", None]}


# --- planted faults -------------------------------------------------------------------------------

LOOP = agent(plan={"search": {"copies": [1, 3]}}, judge={"think": {"chance": 0.7, "at_most": 3}})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WorkflowProblem]:
    journal = tmp_path_factory.mktemp("growth") / "journal.jsonl"
    problem = workflow.load(LOOP, requests(12), gpus=2, mode="online")
    workflow.run(problem, "baseline", journal=journal)
    assert check_journal(journal, LOOP, requests(12)).valid
    return journal, problem


def grown_by(lines: list[dict[str, Any]], node: str, last: bool = False) -> dict[str, Any]:
    found = [line for line in lines if line["k"] == "grew" and line["task"].partition("#")[0] == node]
    return found[-1 if last else 0]


def once_more(lines: list[dict[str, Any]]) -> None:
    """The loop that went back as often as it may goes back again, in place of a plain end."""
    often = next(line for line in lines if line["k"] == "grew" and "3 of at most 3" in line["why"])
    last = often["tasks"][1]["name"]
    end = next(x for x in lines if x["k"] == "finished" and (x["job"], x["task"]) == (often["job"], last))
    number = int(last.partition("#")[2]) + 1
    tasks = [{**task, "name": f"{task['name'].partition('#')[0]}#{number}"} for task in often["tasks"]]
    names = [task["name"] for task in tasks]
    edges = [[last, names[0]], [names[0], names[1]], [names[1], "answer"]]
    lines.insert(
        lines.index(end), {**often, "n": end["n"], "t": end["t"], "task": last, "tasks": tasks, "edges": edges}
    )


PLANTED: list[tuple[str, str, Callable[[list[dict[str, Any]]], Any]]] = [
    ("growth", "other nodes than the outcome's", lambda s: grown_by(s, "judge")["tasks"][0].update(name="plan#2")),
    ("growth", "a part of the outcome's nodes", lambda s: [grown_by(s, "plan")[k].pop(0) for k in ("tasks", "sizes")]),
    ("growth", "a join that does not wait", lambda s: grown_by(s, "judge")["edges"].pop()),
    ("growth", "a loop that goes back too often", once_more),
    ("growth", "another model", lambda s: grown_by(s, "judge")["tasks"][0].update(kind="web")),
    ("run", "a wrong size", lambda s: grown_by(s, "judge")["sizes"].__setitem__(0, 1.5)),
    ("requests", "a wrong size, against the files", lambda s: grown_by(s, "judge")["sizes"].__setitem__(0, 1.5)),
    ("requests", "an outcome that was not drawn", lambda s: s.remove(grown_by(s, "judge"))),
    ("task", "nodes that were never added", lambda s: s.remove(grown_by(s, "judge"))),
    ("config", "other rules than the file's", lambda s: s[0]["facts"]["growth"]["agent"]["then"].pop("plan")),
]


@pytest.mark.parametrize(("code", "what", "plant"), PLANTED, ids=[what for _, what, _ in PLANTED])
def test_a_planted_fault_is_found(
    tmp_path: Path, recorded: tuple[Path, WorkflowProblem], code: str, what: str, plant: Callable[[Any], Any]
) -> None:
    lines = [{"k": "", **json.loads(line)} for line in recorded[0].read_text().splitlines()]
    plant(lines)
    del lines[0]["k"]
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = check_journal(damaged, LOOP, requests(12))
    assert code in report.faults_by_code, report.faults


def test_a_model_that_nobody_announced_voids_the_bounds(recorded: tuple[Path, WorkflowProblem]) -> None:
    bounds = recorded[1].new_bounds()
    bounds.step(1, 0.0, [Arrived("x", "agent", (1.0, 1.0, 1.0, 1.0))])
    event = Grew("x", "plan", (Task("odd", "unheard of"),), (("plan", "odd"),), (1.0,))
    bounds.step(2, 1.0, [replace(event), Finished("x", "plan")])
    assert "did not announce" in bounds.result().void


@pytest.mark.parametrize("seed", [2, 3, 5, 8, 13])
def test_random_cases_that_grow_replay(tmp_path: Path, seed: int) -> None:
    case = next(case for case in map(random_case, range(100 * seed, 100 * seed + 100)) if case.grows)
    problem = read_case(case, tmp_path)
    for policy in policies_for(case):
        run_case(problem, case, policy, seed, tmp_path / "journal.jsonl")
        assert replay_journal(tmp_path / "journal.jsonl").difference is None, policy


def test_tenants_of_a_run_that_lacks_what_was_added_are_counted_on(tmp_path: Path) -> None:
    config = {
        "models": {"m": {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1}},
        "tenants": {"ann": {}},
        "workflows": {"w": {"nodes": [{"id": "a", "model": "m", "then": {"b": 1}}, {"id": "b", "model": "m"}]}},
    }
    journal = tmp_path / "journal.jsonl"
    workflow.run(
        workflow.load(config, [{"request_id": "r", "workflow_id": "w", "tenant": "ann"}], gpus=1), journal=journal
    )
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"k":"grew"' not in line))
    assert "task" in {fault.code for fault in check_journal(journal).faults}


def test_growth_that_the_header_does_not_tell_of_is_found(tmp_path: Path) -> None:
    config = {
        "models": {"m": {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1}},
        "workflows": {"w": {"nodes": [{"id": "a", "model": "m", "then": {"b": 1}}, {"id": "b", "model": "m"}]}},
    }
    journal = tmp_path / "journal.jsonl"
    workflow.run(workflow.load(config, [{"request_id": "r", "workflow_id": "w"}], gpus=1), journal=journal)
    header, *steps = journal.read_text().splitlines()
    told = json.loads(header)
    del told["facts"]["growth"]
    journal.write_text("\n".join([json.dumps(told), *steps]) + "\n")
    assert "growth" in {fault.code for fault in check_journal(journal).faults}


def test_an_id_that_would_be_taken_for_an_added_node_is_refused() -> None:
    model = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1}
    nodes = [{"id": "a", "model": "m"}, {"id": "a#2", "model": "m"}]
    with pytest.raises(InputError, match=r"workflows.w.nodes.1.id: node 'a#2' would be taken for one that 'a' adds"):
        workflow.load({"models": {"m": model}, "workflows": {"w": {"nodes": nodes}}}, [], gpus=1)
