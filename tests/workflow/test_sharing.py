"""Several nodes at once on one window: when each ends, what is refused, and that the checker sees what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from dovetail.core import registry
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Failed, Finished, Observed, Start
from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.workflow.check import check_journal
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.export import write_logs
from dovetail.workflow.gpus.sharing import SharedWindow
from dovetail.workflow.inputs.costs import speeds_at_once
from dovetail.workflow.optimise.exact import optimum
from dovetail.workflow.policies.base import Place, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import WorkflowRun, run

SIZES = {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 4}
LLM = SIZES | {"max_concurrency": 3, "concurrency_curve": [1.0, 0.75, 0.5]}
CONFIG: dict[str, Any] = {
    "models": {"llm": LLM, "sd": SIZES},
    "workflows": {
        "chat": {"nodes": [{"id": "say", "model": "llm"}]},
        "draw": {"nodes": [{"id": "paint", "model": "sd"}]},
    },
}


def chats(*sizes: float, at: tuple[float, ...] = ()) -> list[dict[str, Any]]:
    times = at or (0.0,) * len(sizes)
    return [
        {"request_id": f"r{i}", "workflow_id": "chat", "timestamp": t, "node_execution_times": {"say": size}}
        for i, (size, t) in enumerate(zip(sizes, times, strict=True))
    ]


def served(
    rows: list[dict[str, Any]], policy: Any = "baseline", config: dict[str, Any] | None = None, **options: Any
) -> WorkflowRun:
    gpus, rates = options.pop("gpus", 1), options.pop("rates", None)
    problem = load(config or CONFIG, rows, gpus=gpus, mode="online", rates=rates)
    return run(problem, policy, **options)


def ends(journal: Path) -> dict[str, float]:
    return {entry.event.job: entry.t for entry in Reader(journal) if isinstance(entry.event, Finished)}


def starts(journal: Path) -> dict[str, Start]:
    return {entry.event.job: entry.event for entry in Reader(journal) if isinstance(entry.event, Start)}


# --- when they end --------------------------------------------------------------------------------


def test_who_shares_is_slower_and_who_is_left_goes_faster_again() -> None:
    """Loaded at 4 s. At 6 s the first has 4 s left and is joined: both go at 0.75 until it ends at 6 + 4 / 0.75. The
    second has done 4 of its 10 s by then and does the rest alone."""
    found = served(chats(6.0, 10.0, at=(0.0, 6.0)))
    assert ends(found.journal) == pytest.approx({"r0": 6 + 4 / 0.75, "r1": 6 + 4 / 0.75 + 6})
    begun = starts(found.journal)
    assert [(start.run_s, start.slots) for start in begun.values()] == [(6.0, 3), (pytest.approx(10 / 0.75), 3)]


def test_who_joins_during_the_load_waits_for_what_is_left_of_it() -> None:
    found = served(chats(3.0, 3.0, at=(0.0, 1.0)))
    assert [start.setup_s for start in starts(found.journal).values()] == [4.0, 3.0]
    assert ends(found.journal) == pytest.approx({"r0": 4 + 3 / 0.75, "r1": 4 + 3 / 0.75})
    assert (found.figures.loads, found.figures.load_time_s) == (1, 4.0)


def test_no_more_than_there_are_slots_run_at_once() -> None:
    found = served(chats(2.0, 2.0, 2.0, 2.0))
    assert [start.ready_s for start in starts(found.journal).values()] == [0.0] * 4
    assert ends(found.journal) == pytest.approx({"r0": 8.0, "r1": 8.0, "r2": 8.0, "r3": 10.0})


def test_a_gpu_is_busy_once_however_many_share_it() -> None:
    (gpu,) = served(chats(2.0, 2.0, 2.0, 2.0)).figures.devices
    assert (gpu.busy_s, gpu.setup_s, gpu.executions, gpu.utilisation) == (10.0, 4.0, 4, 1.0)


def test_another_model_waits_until_the_last_has_left() -> None:
    draw = {"request_id": "d", "workflow_id": "draw", "timestamp": 1.0, "node_execution_times": {"paint": 1.0}}
    found = served([*chats(2.0, 5.0), draw])
    assert starts(found.journal)["d"].replaces == "llm"
    assert min(end for job, end in ends(found.journal).items() if job != "d") == pytest.approx(4 + 2 / 0.75)
    assert ends(found.journal)["d"] == pytest.approx(4 + 2 / 0.75 + 3 + 3.0 + 1.0)


def test_without_a_curve_those_who_share_have_the_window_among_them() -> None:
    config = CONFIG | {"models": {"llm": SIZES | {"max_concurrency": 4}, "sd": SIZES}}
    assert ends(served(chats(1.0, 1.0, 1.0, 1.0), config=config).journal) == pytest.approx(
        dict.fromkeys(["r0", "r1", "r2", "r3"], 8.0)
    )


def test_a_curve_is_linear_between_its_points_and_flat_in_all_beyond() -> None:
    assert speeds_at_once({1: 1.0, 4: 0.7, 8: 0.5}, 10) == pytest.approx(
        (1.0, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.5, 4 / 9, 0.4)
    )
    assert speeds_at_once({1: 1.0, 4: 0.7}, 2) == pytest.approx((1.0, 0.9))


def test_rates_that_were_measured_at_once_go_over_the_curve(tmp_path: Path) -> None:
    rates = {
        "rates": [
            {"kind": "llm", "device": "gpu", "rate": 2.0},
            {"kind": "llm", "device": "gpu", "rate": 0.5, "concurrency": 2},
        ]
    }
    found = served(chats(4.0, 4.0), rates=rates)
    assert ends(found.journal) == pytest.approx({"r0": 12.0, "r1": 12.0})
    assert found.check().faults == []


def test_a_window_of_several_gpus_is_shared_as_a_whole() -> None:
    config = CONFIG | {"models": {"llm": LLM | {"gpus_required": 2}, "sd": SIZES}}
    found = served(chats(3.0, 3.0), config=config, gpus=4)
    assert {start.devices for start in starts(found.journal).values()} == {(0, 1)}
    assert [gpu.busy_s for gpu in found.figures.devices] == [8.0, 8.0, 0.0, 0.0]
    assert found.check().faults == []


# --- an oracle ------------------------------------------------------------------------------------


def shared_ends(begun: list[tuple[float, Start]], speeds: list[float]) -> Iterator[tuple[str, float]]:
    """Processor sharing from its definition, one window: between two events each of n nodes does `speeds[n - 1]` of its
    work per second, and none does any before the load is over."""
    coming = sorted(begun, key=lambda start: start[0])
    left: dict[str, float] = {}
    now, loaded_s = 0.0, 0.0
    while coming or left:
        speed = speeds[len(left) - 1] if left and now >= loaded_s else 0.0
        instants = [coming[0][0]] if coming else []
        instants += [loaded_s] if now < loaded_s else []
        instants += [now + min(left.values()) / speed] if speed else []
        then = min(instants)
        for name in left:
            left[name] -= (then - now) * speed
        now = then
        for name in [name for name, work in left.items() if work < 1e-9]:
            del left[name]
            yield name, now
        while coming and coming[0][0] <= now:
            t, start = coming.pop(0)
            if not left:
                loaded_s = t + start.setup_s
            left[start.job] = float(start.why)


class Joins(WorkflowPolicy):
    """Starts the oldest on any window that takes it; the reason is its work there alone, for the oracle."""

    def __init__(self, *, seed: int = 0) -> None:
        self._rng = Random(seed)

    def choose(self, view: View) -> Place | None:
        for queue in view.queues.values():
            if windows := view.free_windows(queue.model):
                window = self._rng.choice(windows)
                return Place(queue.head, window, repr(queue.head.size / view.speed(queue.model, window)))
        return None


@pytest.mark.parametrize("seed", range(40))
def test_ends_are_those_of_processor_sharing(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    curve = [1.0, *sorted((rng.uniform(0.2, 1.0) for _ in range(rng.randint(1, 5))), reverse=True)]
    models = {"llm": LLM | {"max_concurrency": len(curve), "concurrency_curve": curve}, "sd": LLM}
    types = {"fast": {"speed": rng.choice((1.0, 2.5))}, "slow": {"speed": rng.choice((1.0, 0.3))}}
    rows: list[dict[str, Any]] = [
        {
            "request_id": f"r{i}",
            "workflow_id": rng.choice(("chat", "chat", "chat", "draw")),
            "timestamp": round(rng.uniform(0, 40), rng.choice((0, 6))),
        }
        for i in range(30)
    ]
    for row in rows:
        row["node_execution_times"] = {"say" if row["workflow_id"] == "chat" else "paint": rng.randint(1, 60) / 4}
    journal = tmp_path / "run.jsonl"
    served(
        rows, Joins(seed=seed), CONFIG | {"models": models, "gpu_types": types}, gpus="fast:1,slow:2", journal=journal
    )
    begun: dict[tuple[str, tuple[int, ...]], list[tuple[float, Start]]] = {}
    for entry in Reader(journal):
        if isinstance(entry.event, Start):
            begun.setdefault((entry.event.kind, entry.event.devices), []).append((entry.t, entry.event))
    expected: dict[str, float] = {}
    for (model, _), entries in begun.items():
        expected |= dict(shared_ends(entries, curve if model == "llm" else [1.0, 0.75, 0.5]))
    assert ends(journal) == pytest.approx(expected)
    assert check_journal(journal).faults == []


def test_the_next_end_costs_no_more_when_many_share() -> None:
    """Work is counted for the window, so that nobody is gone through: the last of 2,000 joins as the first does."""
    window = SharedWindow([1 / n for n in range(1, 2001)], 0.0)
    done = [window.join(float(n)) for n in range(2000)]
    assert window.when(done[-1] + 1) == pytest.approx(1999 + 2000)
    assert not hasattr(window, "__dict__")


# --- what policies see ----------------------------------------------------------------------------


def test_what_a_policy_sees_of_a_shared_window() -> None:
    class Looks(WorkflowPolicy):
        def choose(self, view: View) -> Place | None:
            node: ReadyNode = view.queues["llm"].head
            window = (0,)
            row = (view.free[0], view.free_count, view.free_windows("llm"), view.can_start(window, "llm"))
            seen.append((*row, view.can_start(window, "sd"), view.setup_s(window, "llm"), view.run_s(node, window)))
            return Place(node, window, "first") if view.can_start(window, "llm") else None

    seen: list[Any] = []
    served(chats(2.0, 2.0, 2.0, 2.0), Looks)
    assert seen[:3] == [
        (True, 1, [(0,)], True, True, 4.0, 2.0),
        (False, 1, [(0,)], True, False, 4.0, pytest.approx(2 / 0.75)),
        (False, 1, [(0,)], True, False, 4.0, 4.0),
    ]
    assert seen[3] == (True, 1, [(0,)], True, True, 0.0, 2.0)  # not asked while no slot is free


def test_until_when_a_shared_window_is_taken() -> None:
    class Looks(WorkflowPolicy):
        def choose(self, view: View) -> Place | None:
            until.append(view.free_at((0,)))
            return Place(view.queues["llm"].head, (0,), "first")

    until: list[float] = []
    served(chats(6.0, 10.0, 1.0, at=(0.0, 6.0, 7.0)), Looks)
    assert until == pytest.approx([0.0, 10.0, 6 + 10 / 0.75])


@pytest.mark.parametrize("model", ["llm", "sd"])
def test_a_policy_that_overfills_a_window_is_stopped(model: str) -> None:
    class Greedy(WorkflowPolicy):
        def choose(self, view: View) -> Place | None:
            queue = view.queues.get("llm") if view.can_start((0,), "llm") else view.queues.get(model)
            return Place(queue.head, (0,), "now") if queue is not None else None

    draw = {"request_id": "d", "workflow_id": "draw", "timestamp": 0.0, "node_execution_times": {"paint": 1.0}}
    message = f"was placed on [0], which has no free slot for {model}"
    with pytest.raises(PolicyError, match=re.escape(message)):
        served([*chats(2.0, 2.0, 2.0, 2.0), draw], Greedy, gpus=2, journal=False)


# --- noise, failures, exports ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["baseline", "dovetail", "srpt", "heft", "static"])
def test_noise_and_failures_are_followed_by_checker_replay_and_logs(tmp_path: Path, policy: str) -> None:
    journal, log = tmp_path / "run.jsonl", tmp_path / "log.json"
    config = CONFIG | {"costs": {"noise": 0.5}}
    rows = chats(*(1.0 + i % 7 for i in range(40)), at=tuple(i * 0.9 for i in range(40)))
    found = served(rows, policy, config, journal=journal, failure_rate=0.2, retries=5, seed=3, gpus=2)
    assert found.figures.failures > 0
    assert found.check().faults == []
    assert replay_journal(journal).difference is None
    write_logs(journal, executions=log)
    assert check_log(log).faults == []


def test_a_run_goes_on_after_an_interruption(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    rows = chats(*(1.0 + i % 7 for i in range(20)), at=tuple(i * 0.9 for i in range(20)))
    served(rows, journal=whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[: len(lines) // 2]))
    served(rows, journal=part, resume=True)
    assert part.read_bytes() == whole.read_bytes()


# --- planted faults -------------------------------------------------------------------------------


def tokens(inputs: int = 100) -> list[dict[str, Any]]:
    return [
        {"request_id": f"r{i}", "workflow_id": "chat", "timestamp": 0.5 * i, "node_tokens": {"say": given}}
        for i, given in enumerate([{"input": inputs, "output": 20 + i} for i in range(6)])
    ]


TOKENS = CONFIG | {
    "models": {"llm": LLM | {"tokens_per_second": 10, "prefill_tokens_per_second": 100}, "sd": SIZES},
}


Records = list[dict[str, Any]]


def one_slot_too_many(records: Records) -> None:
    first = next(r for r in records if r.get("k") == "started")
    late = [r for r in records if r.get("k") == "started"][3]
    late["t"] = late["ready_s"]
    records.remove(late)
    at = next(i for i, r in enumerate(records) if r.get("k") == "arrived" and r["job"] == late["job"])
    records.insert(at + 1, late | {"n": records[at]["n"]})
    assert late["devices"] == first["devices"]


def another_model(records: Records) -> None:
    second = [r for r in records if r.get("k") == "started"][1]
    second["kind"] = "sd"


def too_early(records: Records) -> None:
    _move(records, "finished", -0.25)


def too_late(records: Records) -> None:
    _move(records, "finished", 0.01)


def _move(records: Records, kind: str, by_s: float) -> None:
    i = next(i for i, r in enumerate(records) if r.get("k") == kind)
    for record in records:
        if record.get("n") == records[i]["n"]:
            record["t"] += by_s


def before_the_load(records: Records) -> None:
    i = next(i for i, r in enumerate(records) if r.get("k") == "observed")
    token = records.pop(i)
    at = max(j for j, r in enumerate(records) if r.get("t", 9.0) <= 1.0)
    records.insert(at + 1, token | {"n": records[at]["n"], "t": records[at]["t"]})


def missing(records: Records) -> None:
    records.remove(next(r for r in records if r.get("k") == "observed"))


def twice(records: Records) -> None:
    i = next(i for i, r in enumerate(records) if r.get("k") == "observed")
    records.insert(i, dict(records[i]))


def of_nobody(records: Records) -> None:
    next(r for r in records if r.get("k") == "observed")["facts"] = {"job": "nobody", "task": "say"}


def slower_token(records: Records) -> None:
    next(r for r in records if r.get("k") == "started")["first_s"] += 0.5


def other_slots(records: Records) -> None:
    for record in records:
        if record.get("k") == "started":
            record["slots"] = 9


def no_slots(records: Records) -> None:
    for record in records:
        record.pop("slots", None)


def longer_load(records: Records) -> None:
    [r for r in records if r.get("k") == "started"][1]["setup_s"] += 1.0


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (one_slot_too_many, "slots"),
        (another_model, "overlap"),
        (too_early, "duration"),
        (too_late, "duration"),
        (before_the_load, "token"),
        (missing, "token"),
        (twice, "token"),
        (of_nobody, "token"),
        (slower_token, "token"),
        (other_slots, "slots"),
        (no_slots, "overlap"),
        (longer_load, "price"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, plant: Callable[[Records], None], code: str) -> None:
    journal = tmp_path / "run.jsonl"
    served(tokens(), config=TOKENS, journal=journal)
    assert check_journal(journal).faults == []
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    plant(records)
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert code in {fault.code for fault in check_journal(journal).faults}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"max_concurrency": 0}, r"models.llm.max_concurrency: expected 1 to 4096 at once, found 0"),
        ({"max_concurrency": 2, "gpus_required": 0}, "max_concurrency: expected none for a model that needs no GPU"),
        ({"concurrency_curve": [1.0, 0.5]}, "concurrency_curve: expected max_concurrency above 1 beside it"),
        (
            {"max_concurrency": 2, "concurrency_curve": [0.9]},
            r"concurrency_curve: expected the speed of each.*1.0 alone",
        ),
        ({"max_concurrency": 2, "concurrency_curve": [1.0, 1.1]}, r"concurrency_curve: expected the speed of each"),
        (
            {"max_concurrency": 2, "concurrency_curve": {"two": 0.5}},
            "expected numbers of nodes from 1 to 4096, found 'two'",
        ),
        ({"max_concurency": 2}, "did you mean 'max_concurrency'"),
    ],
)
def test_slots_that_make_no_sense_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(CONFIG | {"models": {"llm": SIZES | model, "sd": SIZES}}, [], gpus=1)


def test_a_model_has_batches_or_slots() -> None:
    config = CONFIG | {"models": {"llm": LLM | {"batch_curve": [1.0, 1.5]}, "sd": SIZES}}
    load(config, [], gpus=1)
    with pytest.raises(
        InputError, match=r"models.llm.max_concurrency: has a batch_curve too.*expected batches or slots"
    ):
        load(config, [], gpus=1, costs={"batching": True})


def test_what_plans_or_was_before_knows_no_slots() -> None:
    problem = load(CONFIG, chats(1.0), gpus=1)
    with pytest.raises(InputError, match="policy optimise plans ahead: it cannot plan nodes that share their GPUs"):
        run(problem, "optimise")
    with pytest.raises(InputError, match="--exact knows no slots"):
        optimum(problem)
    with pytest.raises(InputError, match=r"max_concurrency: --compat gswarm runs one node on a GPU at a time"):
        load(CONFIG, chats(1.0), gpus=1, compat="gswarm")


def test_failed_nodes_leave_their_slot() -> None:
    found = served(chats(*[4.0] * 6), failure_rate=0.4, retries=9, seed=1)
    assert any(isinstance(entry.event, Failed) for entry in Reader(found.journal))
    assert found.check().faults == []


def test_first_tokens_come_when_a_node_has_read_beside_others() -> None:
    """Loaded at 4 s; the three that fill the slots read a second's work at half the speed."""
    found = served(tokens(), config=TOKENS)
    told = {e.event.facts["job"]: e.t for e in Reader(found.journal) if isinstance(e.event, Observed)}
    assert [told[f"r{i}"] for i in range(3)] == pytest.approx([6.0, 6.0, 6.0])


def test_it_is_explained_who_shared_and_when_the_first_token_came() -> None:
    found = served(tokens(), config=TOKENS)
    told = " ".join(found.explain("r2").text.split())
    assert "It had one of 3 slots there, beside 2 others." in told
    assert "At 6.00 s its first token was seen." in told


def test_the_example_gives_what_its_page_says(tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    config = yaml.safe_load((examples / "serving.yaml").read_text())
    alone = deepcopy(config)
    for model in alone["models"].values():
        del model["max_concurrency"], model["concurrency_curve"]
    page = (examples.parent / "docs" / "workflow-serving.md").read_text()
    for name, given in (("one node at a time", alone), ("slots", config)):
        problem = load(given, examples / "serving_requests.jsonl", mode="online")
        told = run(problem, "baseline", journal=False).metrics
        row = f"{told['output_tokens_per_s']:.0f} | {told['p99_ttft_s']:.1f} | {told['avg_tpot_s']:.3f} | "
        row += f"{told['avg_request_s']:.1f} | {100 * told['slo_met']:.1f} %"
        assert f"| {name} | {row} |" in page
    found = run(problem, "srpt", journal=tmp_path / "run.jsonl")
    assert check_journal(found.journal, examples / "serving.yaml", examples / "serving_requests.jsonl").faults == []


@pytest.mark.parametrize("policy", [name for name in registry.names("workflow") if name != "optimise"])
def test_every_policy_fills_the_slots_of_a_warm_window(policy: str) -> None:
    """12 nodes on one GPU: three at a time, whoever decides."""
    found = served(chats(*[2.0] * 12), policy)
    assert found.figures.makespan_s == pytest.approx(4 + 12 * 2 / (3 * 0.5))
