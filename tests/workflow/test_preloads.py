"""Models that are loaded ahead of need: what that takes, what is refused, and that the checker sees what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Finished, Prepare, PrepareEnded, Start
from dovetail.core.journal import Reader
from dovetail.core.loop.guard import Guard
from dovetail.core.loop.replay import replay_journal
from dovetail.core.resources import Pool
from dovetail.report.data.bars import Bars
from dovetail.testing.workflow import restless
from dovetail.testing.workflow.families import WorkloadFamily, load_family
from dovetail.testing.workflow.live_like import live_case, random_reality, run_live_like
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.export import write_logs
from dovetail.workflow.policies.base import ListPolicy, Preload, Wait
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import WorkflowRun, run

ONE = {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 4}
CONFIG: dict[str, Any] = {
    "models": {"llm": ONE, "sd": ONE, "wide": ONE | {"gpus_required": 2}, "tool": ONE | {"gpus_required": 0}},
    "workflows": {
        "chat": {"nodes": [{"id": "say", "model": "llm"}]},
        "draw": {"nodes": [{"id": "paint", "model": "sd"}]},
        "film": {"nodes": [{"id": "cut", "model": "wide"}]},
        "chain": {
            "nodes": [{"id": "say", "model": "llm"}, {"id": "paint", "model": "sd"}],
            "edges": [{"from": "say", "to": "paint"}],
        },
    },
}
NODES = {"chat": ("say",), "draw": ("paint",), "film": ("cut",), "chain": ("say", "paint")}
RESTLESS = f"{restless.__file__}:Restless"


def asked(*requests: tuple[str, float, float]) -> list[dict[str, Any]]:
    """Requests by workflow, arrival and the seconds of each node."""
    return [
        {"request_id": f"r{i}", "workflow_id": of, "timestamp": t, "node_execution_times": dict.fromkeys(NODES[of], s)}
        for i, (of, t, s) in enumerate(requests)
    ]


class Scripted(ListPolicy):
    """First come, first served; and these preloads, each at its time or when its GPUs are idle after that."""

    def __init__(self, *plan: tuple[float, str, tuple[int, ...]]) -> None:
        super().__init__()
        self.plan = list(plan)

    def preload(self, view: View) -> Preload | Wait | None:
        if not self.plan:
            return None
        at_s, model, window = self.plan[0]
        if view.now < at_s:
            return Wait(at_s)
        self.plan.pop(0)
        return Preload(model, window, "it is in the script")


def served(rows: list[dict[str, Any]], policy: Any, gpus: int = 1, config: Any = CONFIG, **given: Any) -> WorkflowRun:
    found = run(load(config, rows, gpus=gpus, mode="online"), policy, **given)
    report = found.check()
    assert report.valid, report.faults
    assert found.replay().difference is None
    return found


def starts(found: WorkflowRun) -> dict[str, tuple[float, Start]]:
    return {e.event.job: (e.t, e.event) for e in Reader(found.journal) if isinstance(e.event, Start)}


def ends(found: WorkflowRun) -> dict[str, float]:
    return {e.event.job: e.t for e in Reader(found.journal) if isinstance(e.event, Finished)}


# --- what it takes --------------------------------------------------------------------------------


def test_a_start_finds_what_was_loaded_before_it() -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 20.0, 3.0)), Scripted((8.0, "sd", (0,))))
    _, start = starts(found)["r1"]
    assert (start.setup_s, start.replaces) == (0.0, None)
    assert ends(found) == {"r0": 6.0, "r1": 23.0}
    figures = found.figures
    (ahead,) = [e.event for e in Reader(found.journal) if isinstance(e.event, Prepare)]
    assert (ahead.kind, ahead.devices, ahead.replaces, ahead.why) == ("sd", (0,), "llm", "it is in the script")
    assert (figures.switches, figures.loads, figures.preloads, figures.preloads_used) == (1, 1, 1, 1)
    assert figures.switch_time_s == pytest.approx(ahead.setup_s)
    assert figures.devices[0].busy_s == pytest.approx(2 + 4 + 3 + ahead.setup_s)
    assert found.metrics["preloads"] == 1
    assert "Preloads: 1, of which 1 were of use" in found.text()


def test_a_start_on_a_load_that_is_under_way_waits_for_the_rest_only() -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 7.0, 3.0)), Scripted((0.5, "sd", (1,))), gpus=2)
    assert starts(found)["r1"][1].setup_s == 0.0
    found = served(asked(("chat", 0.0, 2.0), ("draw", 3.0, 3.0)), Scripted((0.5, "sd", (1,))), gpus=2)
    at_s, start = starts(found)["r1"]
    assert (at_s, start.setup_s, start.devices, start.replaces) == (3.0, 1.5, (1,), None)
    assert ends(found)["r1"] == 7.5
    assert (found.figures.loads, found.figures.load_time_s, found.figures.preloads_used) == (2, 8.0, 1)
    assert found.figures.devices[1].busy_s == 7.0


def test_the_text_log_tells_of_loads_ahead_of_need(tmp_path: Path) -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 9.0, 3.0)), Scripted((8.0, "sd", (0,))))
    write_logs(found, log=tmp_path / "log")
    lines = (tmp_path / "log").read_text().splitlines()
    assert "[8.00s] Loading sd ahead of need on GPU(s) [0] in the place of llm (it is in the script)" in lines
    rest = next(line for line in lines if "goes on for node" in line)
    assert rest.startswith("[9.00s] Loading of sd on GPU(s) [0] goes on for node ")
    assert re.search(r"of request r1 \(\S+s left\)$", rest)
    assert not any("from None to sd" in line for line in lines)


def test_who_may_preload_says_so_where_there_was_no_need() -> None:
    rows = asked(("chat", 0.0, 2.0))
    assert "Preloads: 0" in served(rows, "dovetail", options={"preload": True}).text()
    assert "Preloads" not in served(rows, "dovetail").text()


def test_another_model_waits_until_the_load_is_over() -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 1.0, 3.0)), Scripted((0.5, "llm", (1,))), gpus=2)
    at_s, start = starts(found)["r1"]
    assert (at_s, start.devices, start.replaces) == (4.5, (1,), "llm")
    assert (found.figures.preloads, found.figures.preloads_used) == (1, 0)


def test_a_wide_window_is_loaded_as_one() -> None:
    found = served(asked(("chat", 0.0, 1.0), ("film", 6.0, 1.0)), Scripted((0.0, "wide", (2, 3))), gpus=4)
    at_s, start = starts(found)["r1"]
    assert (at_s, start.setup_s, start.devices) == (6.0, 0.0, (2, 3))


def test_what_nobody_takes_is_no_use() -> None:
    found = served(asked(("chat", 0.0, 1.0)), Scripted((0.0, "sd", (1,))), gpus=2)
    assert (found.figures.preloads, found.figures.preloads_used) == (1, 0)


def test_a_run_without_preloads_says_nothing_of_them(tmp_path: Path) -> None:
    found = served(asked(("chain", 0.0, 2.0)), Scripted(), journal=tmp_path / "j")
    assert not {"preloads", "preloads_used"} & found.metrics.keys()
    assert b"prepar" not in (tmp_path / "j").read_bytes()


def test_one_gpu_against_an_oracle() -> None:
    """A preload at `p`, a request for that model or another at `r`: by hand."""
    rng = Random(3)
    for _ in range(40):
        p, size, same = rng.uniform(8, 20), rng.uniform(0.1, 5), rng.random() < 0.6
        r = p + rng.uniform(0, 3)
        found = served(asked(("chat", 0.0, 1.0), ("draw" if same else "chat", r, size)), Scripted((p, "sd", (0,))))
        switch_s = next(e.event.setup_s for e in Reader(found.journal) if isinstance(e.event, Prepare))
        expected = max(r, p + switch_s) + (0.0 if same else switch_s) + size
        assert ends(found)["r1"] == pytest.approx(expected)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "window", "message"),
    [
        ("nobody", (1,), "a model that needs GPUs"),
        ("tool", (), "a model that needs GPUs"),
        ("sd", (0,), "GPUs that are free"),
        ("sd", (7,), "GPUs side by side that are there"),
        ("sd", (1, 2), "as many as the model needs"),
        ("wide", (1, 3), "side by side"),
        ("wide", [2, 3], "side by side"),
    ],
)
def test_a_preload_that_cannot_be_is_refused(model: str, window: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        served(asked(("chat", 0.0, 2.0)), Scripted((0.0, model, window)), gpus=4)


def test_a_model_that_does_not_fit_or_is_there_is_refused() -> None:
    small = CONFIG | {"gpu_types": {"big": {"memory_gb": 9}, "small": {"memory_gb": 4}}}
    problem = load(small, asked(("chat", 0.0, 2.0)), gpus="big:1,small:1", mode="online")
    with pytest.raises(PolicyError, match="with room for it"):
        run(problem, Scripted((0.0, "sd", (1,))))
    with pytest.raises(PolicyError, match="GPUs that do not hold it"):
        served(asked(("chat", 0.0, 2.0)), Scripted((9.0, "llm", (0,))), gpus=2)


def test_an_answer_that_is_none_is_refused() -> None:
    class Confused(ListPolicy):
        def preload(self, view: View) -> Any:
            return ("sd", (1,))

    with pytest.raises(PolicyError, match=r"Confused.preload gave .*, expected Preload with a reason, Wait or None"):
        served(asked(("chat", 0.0, 2.0)), Confused, gpus=2)


def test_the_guard_keeps_its_own_account() -> None:
    guard = Guard(Pool.parse("2", {}), {}, {"llm": 1, "wide": 2})
    guard.allow(Prepare(1, "llm", (0,), 4.0, "why not"), 0.0)
    for order, message in (
        (Prepare(2, "llm", (0,), 4.0, "again"), "device 0 is held by preload/1"),
        (Prepare(2, "wide", (0, 1), 4.0, "too much"), "device 0 is held by preload/1"),
        (Prepare(1, "llm", (1,), 4.0, "again"), "number 1 was given before"),
        (Prepare(2, "wide", (1,), 4.0, "narrow"), "it needs 2 devices, found 1"),
        (Prepare(2, "ghost", (1,), 4.0, "boo"), "there is no such kind"),
        (Prepare(2, "llm", (1,), -1.0, "soon"), "expected seconds"),
        (Prepare(2, "llm", (1,), 1.0, ""), "no reason is given"),
    ):
        with pytest.raises(PolicyError, match=message):
            guard.allow(order, 1.0)
    assert guard.preparing == [1]
    guard.see(PrepareEnded(1), 4.0)
    guard.allow(Prepare(2, "wide", (0, 1), 4.0, "now"), 4.0)


def test_a_policy_that_never_stops_is_stopped() -> None:
    class Endless(ListPolicy):
        def preload(self, view: View) -> Preload | Wait | None:
            models = [model for model in ("llm", "sd") if view.preloadable(model)]
            return Preload(models[0], view.preloadable(models[0])[0], "on and on") if models else None

    with pytest.raises(PolicyError, match="woken 100000 times in a row to start nothing"):
        run(load(CONFIG, asked(("chat", 0.0, 2.0)), gpus=1, mode="online"), Endless, journal=False)


# --- what the checker finds -----------------------------------------------------------------------

Row = dict[str, Any]


def _of(rows: list[Row], kind: str, **like: Any) -> Row:
    return next(row for row in rows if row.get("k") == kind and all(row.get(key) == v for key, v in like.items()))


def _over_committed(rows: list[Row]) -> None:
    _of(rows, "preparing")["devices"] = [0]


def _never_settled(rows: list[Row]) -> None:
    rows.remove(_of(rows, "prepared"))


def _warm_too_soon(rows: list[Row]) -> None:
    _of(rows, "started", job="r1")["setup_s"] = 0.0


def _settled_twice(rows: list[Row]) -> None:
    rows.insert(rows.index(_of(rows, "prepared")), _of(rows, "prepared").copy())


def _settled_early(rows: list[Row]) -> None:
    row = _of(rows, "prepared")
    rows.remove(row)
    at = next(i for i, other in enumerate(rows) if other.get("t", 0) >= 3.0)
    rows.insert(at, row | {"n": rows[at]["n"], "t": rows[at]["t"]})


def _too_cheap(rows: list[Row]) -> None:
    _of(rows, "preparing")["setup_s"] = 1.0


def _ghost(rows: list[Row]) -> None:
    _of(rows, "preparing")["kind"] = "ghost"


def _apart(rows: list[Row]) -> None:
    _of(rows, "preparing")["devices"] = [1, 2]


def _in_the_place_of(rows: list[Row]) -> None:
    _of(rows, "preparing")["replaces"] = "llm"


def _without_a_reason(rows: list[Row]) -> None:
    _of(rows, "preparing")["why"] = ""


def _miscounted(rows: list[Row]) -> None:
    rows[-1]["summary"]["preloads_used"] = 0


@pytest.mark.parametrize(
    ("plant", "code", "where"),
    [
        (_over_committed, "overlap", "preload 1"),
        (_never_settled, "running", "preload 1"),
        (_warm_too_soon, "price", "r1/paint"),
        (_settled_twice, "preload", "preload 1"),
        (_settled_early, "duration", "preload 1"),
        (_too_cheap, "price", "preload 1"),
        (_ghost, "model", "preload 1"),
        (_apart, "window", "preload 1"),
        (_in_the_place_of, "replaces", "preload 1"),
        (_without_a_reason, "reason", "preload 1"),
        (_miscounted, "summary", "preloads_used"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, plant: Callable[[list[Row]], None], code: str, where: str) -> None:
    journal = tmp_path / "journal.jsonl"
    rows = asked(("chat", 0.0, 2.0), ("draw", 3.0, 3.0))
    served(rows, Scripted((0.5, "sd", (1,))), gpus=3, journal=journal)
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    plant(told)
    journal.write_text("".join(json.dumps(row) + "\n" for row in told))
    found = [(fault.code, fault.where.rsplit(": ")[-1]) for fault in check_journal(journal).faults]
    assert (code, where) in found


# --- what is told ---------------------------------------------------------------------------------


def test_the_reason_is_explained_and_the_load_is_drawn() -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 3.0, 3.0)), Scripted((0.5, "sd", (1,))), gpus=2)
    told = str(found.explain("r1"))
    assert "sd was preloaded there from 0.50 s on: it is in the script." in told
    assert "Making sd resident took 1.50 s." in told
    bars = [bar for _, t, events in Reader(found.journal).steps() for bar in BARS.step(t, events)]
    (ahead,) = [bar for bar in bars if bar.job == "preload"]
    assert (ahead.start_s, ahead.end_s, ahead.setup_s, ahead.kind, ahead.devices) == (0.5, 3.0, 2.5, "sd", (1,))
    assert sum(bar.tasks for bar in bars) == 2


def test_an_execution_log_of_it_is_not_judged(tmp_path: Path) -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 3.0, 3.0)), Scripted((0.5, "sd", (1,))), gpus=2)
    write_logs(found, executions=tmp_path / "log.json")
    with pytest.raises(InputError, match="a run with 1 preloads, of which an execution log says no more"):
        check_log(tmp_path / "log.json")


@pytest.mark.parametrize("name", ["preload", "other"])
def test_a_request_may_be_called_as_preloads_are(name: str) -> None:
    """It runs on GPU 1, which is closed meanwhile, while the first preload comes and goes."""
    config = CONFIG | {"workflows": CONFIG["workflows"] | {"one": {"nodes": [{"id": "1", "model": "llm"}]}}}
    beside = {"request_id": name, "workflow_id": "one", "timestamp": 0.1, "node_execution_times": {"1": 30.0}}
    rows = [*asked(("chat", 0.0, 0.1), ("draw", 12.0, 3.0), ("draw", 13.0, 3.0)), beside]
    problem = load(config, rows, gpus=2, mode="online", gpus_over_time={"steps": [[0, 2], [20, 1]]})
    found = run(problem, Scripted((5.0, "sd", (0,))))
    assert found.check().valid
    assert f"[1] by {name}/1 (llm)" in str(found.explain("r2"))
    assert found.metrics["gpu_hours"] == pytest.approx(2 * ends(found)[name] / 3600)


def test_who_had_to_wait_for_a_preload_is_told_so() -> None:
    found = served(asked(("chat", 0.0, 2.0), ("draw", 1.0, 3.0)), Scripted((0.5, "llm", (1,))), gpus=2)
    assert "[1] by preload/1 (llm)" in str(found.explain("r1"))


BARS = Bars(Pool.parse("2", {}), "journal")


# --- the default's own ----------------------------------------------------------------------------

CALM = WorkloadFamily(
    name="calm", gpus="4", load=0.1, requests=120, models=20, popularity=1.0, chain=(2, 4), mean_s=5.0
)


def test_the_default_loads_what_comes_next_and_gains_by_it(tmp_path: Path) -> None:
    without = run(load_family(CALM, 1), "dovetail", journal=False).figures
    found = run(load_family(CALM, 1), "dovetail", options={"preload": True}, journal=tmp_path / "j")
    assert found.check().valid
    assert found.replay().difference is None
    assert found.figures.preloads_used > 0.9 * found.figures.preloads > 50
    assert found.figures.response_s.mean < 0.95 * without.response_s.mean
    whys = {e.event.why for e in Reader(tmp_path / "j") if isinstance(e.event, Prepare)}
    assert all(re.fullmatch(r"r\d+ is about to need it, in \S+ s", why) for why in whys)


def test_the_default_loads_nothing_ahead_where_gpus_are_needed(tmp_path: Path) -> None:
    busy = replace(CALM, load=0.9)
    runs = [run(load_family(busy, 1), "dovetail", options=options) for options in ({}, {"preload": True})]
    assert [found.figures.preloads for found in runs] == [0, 0]
    assert runs[0].figures == runs[1].figures


def test_a_preload_is_as_late_as_it_can_be(tmp_path: Path) -> None:
    """It ends when the node before ends: a GPU is held no longer than the node itself would hold it."""
    found = run(load_family(CALM, 2), "dovetail", options={"preload": True}, journal=tmp_path / "j")
    begun, early = dict[int, tuple[float, Prepare]](), 0
    ended: dict[float, None] = {}
    for entry in Reader(tmp_path / "j"):
        if isinstance(entry.event, Prepare):
            begun[entry.event.id] = (entry.t, entry.event)
        elif isinstance(entry.event, Finished):
            ended[entry.t] = None
    for t, order in begun.values():
        due = [end for end in ended if end >= t]
        early += not any(end <= t + order.setup_s + 1e-6 for end in due)
    assert (early, found.figures.preloads) == (0, len(begun))


def test_the_policy_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """A model that comes often is loaded again when the rare one that took its place is done."""
    page = (Path(__file__).parents[2] / "docs" / "adding-a-policy.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Prewarming" in block]
    (tmp_path / "prewarming.py").write_text(code.replace('@policy("prewarming", level="workflow")\n', ""))
    often = [("chat", 10.0 * i, 1.0) for i in range(6)]
    rows = asked(*often, ("draw", 60.0, 1.0), ("chat", 80.0, 1.0))
    found = served(rows, f"{tmp_path / 'prewarming.py'}:Prewarming")
    assert starts(found)["r7"][1].setup_s == 0.0
    (ahead,) = [e.event for e in Reader(found.journal) if isinstance(e.event, Prepare)]
    assert (ahead.kind, ahead.why) == ("llm", "asked for 6 times so far")


# --- with everything else -------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_preloads_at_random_are_valid_beside_everything(tmp_path: Path, first: int) -> None:
    preloads = used = 0
    for seed in range(first, first + 10):
        case = random_case(seed)
        problem, policies = read_case(case, tmp_path), [p for p in policies_for(case) if p not in _PLANNERS]
        options = {"of": policies[seed % len(policies)], "seed": seed}
        given: dict[str, Any] = {"failure_rate": case.failure_rate, "retries": case.retries, "seed": seed}
        found = run(problem, RESTLESS, options=options, journal=tmp_path / "j.jsonl", **given)
        report = check_journal(tmp_path / "j.jsonl", problem.source.config, problem.requests.path)
        assert (seed, report.faults) == (seed, [])
        assert replay_journal(tmp_path / "j.jsonl").difference is None
        preloads, used = preloads + found.figures.preloads, used + found.figures.preloads_used
    assert preloads > used > 0


_PLANNERS = ("heft", "hybrid", "offline", "optimise")


def test_preloads_at_random_are_valid_whatever_befalls_a_live_run(tmp_path: Path) -> None:
    """Loads that fail or take longer, workers that die, a service that is started anew."""
    told = ""
    for seed in range(24):
        case, journal = live_case(seed), tmp_path / "j.jsonl"
        problem, policies = read_case(case, tmp_path), [p for p in policies_for(case) if p not in _PLANNERS]
        options = {"of": policies[seed % len(policies)], "seed": seed}
        reality = random_reality(seed, problem.pool)
        run_live_like(problem, RESTLESS, journal, reality, options=options, retries=case.retries, seed=seed)
        assert (seed, check_journal(journal, problem.source.config).faults) == (seed, [])
        assert replay_journal(journal).difference is None
        told += journal.read_text()
    for why in ("out of memory", "its worker died", "the service was restarted"):
        assert re.search(f'"k":"prepared","id":[0-9]+,"why":"{why}"', told)


def test_a_load_that_is_under_way_for_a_node_is_not_begun_again() -> None:
    """Loads take longer than the nodes before them: each comes too late, and is the soonest all the same."""
    names = [f"m{i}" for i in range(4)]
    models = {name: {"memory_gb": 16, "gpus_required": 1, "load_time_seconds": 0.6} for name in names}
    edges = [{"from": one, "to": two} for one, two in pairwise(names)]
    chain = {"nodes": [{"id": name, "model": name} for name in names], "edges": edges}
    config = {"costs": {"overhead_s": 0.1}, "models": models, "workflows": {"chain": chain}}
    times = dict.fromkeys(names, 0.8)
    rows = [
        {"request_id": f"r{i}", "workflow_id": "chain", "timestamp": 12.0 * i, "node_execution_times": times}
        for i in range(10)
    ]
    figures = served(rows, "dovetail", gpus=3, config=config, options={"preload": True}).figures
    assert figures.preloads == figures.preloads_used > 3
