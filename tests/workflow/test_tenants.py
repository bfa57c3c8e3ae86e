"""Tenants: who is admitted, quotas, turns; against definitions written down plainly, and with faults planted."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.core import registry
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Arrived, Decided, Failed, Finished, Grew, Reject, Start
from dovetail.core.findings import Report
from dovetail.core.journal import Ended, Reader, Writer
from dovetail.core.metrics import Spread
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.random_workloads import check_case, random_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.inputs.generate import generate
from dovetail.workflow.inputs.tenants import Tenancy, Tenant
from dovetail.workflow.policies.base import ListPolicy, Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import WorkflowRun, run
from dovetail.workflow.study import compare
from dovetail.workflow.tenants.accounts import Tenants
from dovetail.workflow.tenants.figures import TenantFigures, jain
from dovetail.workflow.tenants.guard import QuotaGuard
from dovetail.workflow.tenants.lanes import LaneView
from dovetail.workflow.tenants.ledger import TenantLedger

Row = dict[str, Any]
ONLINE = [name for name in registry.names("workflow") if not registry.create("workflow", name).plans_ahead]


def model(width: int = 1, memory_gb: float = 10, load_s: float = 5.0) -> Row:
    return {"memory_gb": memory_gb, "gpus_required": width, "load_time_seconds": load_s}


CONFIG: dict[str, Any] = {
    "models": {"llm": model(), "sd": model(memory_gb=4), "wide": model(2, 20), "tool": model(0, 0, 0)},
    "workflows": {
        "chat": {"nodes": [{"id": "say", "model": "llm"}]},
        "draw": {"nodes": [{"id": "paint", "model": "sd"}]},
        "film": {"nodes": [{"id": "cut", "model": "wide"}]},
        "look": {
            "nodes": [{"id": "read", "model": "tool"}, {"id": "say", "model": "llm"}],
            "edges": [{"from": "read", "to": "say"}],
        },
    },
}
NODE = {"chat": "say", "draw": "paint", "film": "cut"}


def asked(i: int, tenant: str = "", of: str = "chat", at_s: float = 0.0, run_s: float = 10.0) -> Row:
    row: Row = {"request_id": f"r{i}", "workflow_id": of, "timestamp": at_s}
    row["node_execution_times"] = {NODE[of]: run_s} if of in NODE else {"read": 1.0, "say": run_s}
    return row | ({"tenant": tenant} if tenant else {})


def loaded(
    rows: list[Row], gpus: int = 4, on_error: Any = "fail", mode: Any = "online", **config: Any
) -> WorkflowProblem:
    return load(CONFIG | config, rows, gpus=gpus, mode=mode, on_error=on_error)


def mixed(seed: int, count: int = 150, every_s: float = 0.7) -> list[Row]:
    """More than four GPUs can do, of three tenants."""
    rng = random.Random(seed)
    kinds, tenants = ("chat", "chat", "draw", "draw", "film"), ("ann", "ann", "bob", "cy")
    return [asked(i, rng.choice(tenants), rng.choice(kinds), every_s * i, rng.uniform(1, 9)) for i in range(count)]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tenants": {"ann": {"wieght": 2}}}, r"tenants.ann.wieght: unknown key 'wieght'; did you mean 'weight'"),
        (
            {"tenants": {"ann": {"weight": 0}}},
            r"tenants.ann.weight: expected a positive number from 1e-06 to 1e\+12, found 0",
        ),
        ({"tenants": {"ann": {"quota_gpus": -1}}}, "tenants.ann.quota_gpus: expected a positive number"),
        ({"tenants": {"ann": {"max_queue": 0}}}, "tenants.ann.max_queue: expected 1 or more requests, found 0"),
        ({"tenants": {"ann": {"max_queue": 1.5}}}, "tenants.ann.max_queue: "),
        ({"sharing": {"tolerance_s": -1}}, "sharing.tolerance_s: expected a number from 0"),
        ({"sharing": {"max_queue": 0}}, "sharing.max_queue: expected 1 or more"),
        ({"sharing": {"tolerance": 1}}, "sharing.tolerance: unknown key 'tolerance'; did you mean 'tolerance_s'"),
    ],
)
def test_wrong_keys_of_the_configuration_are_refused(config: Row, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loaded([asked(1)], **config)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (asked(1, "anm"), "tenant: request 'r1': unknown tenant 'anm'; did you mean 'ann'"),
        (asked(1), "tenant: request 'r1': missing; expected one of the configuration's: ann, bob"),
        (asked(1, "*"), r"'\*' stands for all who are not named; expected a name"),
        (asked(1, "bob", "film"), r"'bob' may hold 1 GPUs at once \(quota_gpus\), but node 'cut' needs 2"),
        (asked(1) | {"tenant": 3}, "tenant: "),
    ],
)
def test_requests_of_unknown_or_too_narrow_tenants_are_refused(row: Row, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loaded([row], tenants={"ann": {}, "bob": {"quota_gpus": 1}})


def test_such_requests_may_be_rejected_one_by_one() -> None:
    found = run(loaded([asked(1, "ann"), asked(2, "anm")], on_error="reject", tenants={"ann": {}}))
    assert (found.figures.completed, found.figures.rejected) == (1, 1)
    assert found.check().valid


def test_without_tenants_in_the_configuration_a_request_may_name_any() -> None:
    found = run(loaded([asked(1, "ann"), asked(2)]))
    assert found.figures.completed == 2
    assert "tenancy" not in found.header.facts


def test_who_is_not_named_has_what_the_star_has() -> None:
    rows = [asked(i, "dee" if i % 2 else "") for i in range(6)]
    found = run(loaded(rows, tenants={"ann": {}, "*": {"quota_gpus": 1}}))
    assert most_held(found) == {"dee": 1, "-": 1}


def test_the_older_scheduler_knew_no_tenants() -> None:
    cases: list[tuple[Row, Row]] = [(asked(1), {"tenants": {"ann": {}}}), (asked(1, "ann"), {})]
    for row, config in cases:
        with pytest.raises(InputError, match=r"tenants?: (request 'r1': )?GSwarm knew no such thing"):
            load(CONFIG | config, [row], gpus=4, compat="gswarm")


def test_a_policy_that_plans_ahead_is_refused() -> None:
    with pytest.raises(InputError, match="policy optimise plans ahead: it cannot keep to turns and quotas"):
        run(loaded([asked(1, "ann")], mode="offline", tenants={"ann": {}}), "optimise")
    assert run(loaded([asked(1)], mode="offline", sharing={"max_queue": 1}), "optimise").figures.completed == 1


# --- admission ------------------------------------------------------------------------------------


def rejections(found: WorkflowRun) -> dict[str, Reject]:
    return {event.job: event for _, _, event in Reader(found.journal) if isinstance(event, Reject)}


def test_a_full_queue_turns_away_with_both_numbers() -> None:
    found = run(loaded([asked(i, "ann") for i in range(5)], gpus=1, tenants={"ann": {"max_queue": 3}}), "baseline")
    why = "3 requests of tenant 'ann' wait, and max_queue is 3"
    assert rejections(found) == {f"r{i}": Reject(f"r{i}", why, queue="ann") for i in (3, 4)}


def test_the_whole_service_has_a_queue_too() -> None:
    rows = [asked(i, tenant) for i, tenant in enumerate(("ann", "bob", "ann"))]
    found = run(loaded(rows, gpus=1, sharing={"max_queue": 2}), "baseline")
    assert rejections(found) == {"r2": Reject("r2", "2 requests of all tenants wait, and max_queue is 2", queue="*")}
    assert found.check().valid


def test_who_has_started_anything_waits_no_more() -> None:
    """A node without a GPU starts on arrival."""
    rows = [asked(i, "ann", "look") for i in range(9)]
    found = run(loaded(rows, gpus=1, tenants={"ann": {"max_queue": 1}}))
    assert not rejections(found)
    assert found.check().valid


@pytest.mark.parametrize("seed", range(20))
def test_admission_is_that_of_a_queue_written_down_plainly(seed: int) -> None:
    """One GPU, one model that loads in no time, first come first served: who is turned away can be counted by hand."""
    rng = random.Random(seed)
    most, together = rng.randint(1, 4), rng.randint(3, 8)
    at_s, rows = 0.0, []
    for i in range(120):
        at_s += rng.choice((0.0, 0.5, 3.0))
        rows.append(asked(i, rng.choice(("ann", "bob")), at_s=at_s, run_s=rng.choice((1.0, 2.0, 4.5))))
    free_s, queue, expected = 0.0, list[tuple[Row, float]](), {}
    for row in rows:
        now = row["timestamp"]
        while queue and max(free_s, queue[0][1]) < now:  # what starts at this instant starts after it was counted
            free_s = max(free_s, queue[0][1]) + queue.pop(0)[0]["node_execution_times"]["say"]
        own = sum(other["tenant"] == row["tenant"] for other, _ in queue)
        if own >= most or len(queue) >= together:
            expected[row["request_id"]] = row["tenant"] if own >= most else "*"
        else:
            queue.append((row, now))
    tenants = {name: {"max_queue": most} for name in ("ann", "bob")}
    sharing = {"max_queue": together, "tolerance_s": 1e9}
    models = CONFIG["models"] | {"llm": model(load_s=0.0)}
    found = run(loaded(rows, gpus=1, tenants=tenants, sharing=sharing, models=models), "baseline")
    assert {name: reject.queue for name, reject in rejections(found).items()} == expected
    assert found.check().valid


# --- quotas ---------------------------------------------------------------------------------------


def most_held(found: WorkflowRun) -> dict[str, int]:
    """The most GPUs that each tenant held at once, counted plainly."""
    tenant, held, most = dict[str, str](), dict[str, int](), dict[str, int]()
    running: dict[tuple[str, str], Start] = {}
    for _, _, event in Reader(found.journal):
        if isinstance(event, Arrived):
            tenant[event.job] = event.facts.get("tenant", "-")
        elif isinstance(event, Start):
            running[event.job, event.task] = event
            name = tenant[event.job]
            held[name] = held.get(name, 0) + len(event.devices)
            most[name] = max(most.get(name, 0), held[name])
        elif isinstance(event, Finished | Failed):
            held[tenant[event.job]] -= len(running.pop((event.job, event.task)).devices)
    return most


@pytest.mark.parametrize("policy", ONLINE)
def test_no_policy_goes_beyond_a_quota_and_none_idles_for_it(policy: str) -> None:
    tenants = {"ann": {"quota_gpus": 2}, "bob": {"quota_gpus": 3}, "cy": {"weight": 3}}
    found = run(loaded(mixed(1), tenants=tenants), policy)
    held = most_held(found)
    assert (held["ann"], held["bob"]) == (2, 3)
    assert found.figures.completed == 150
    assert found.check().valid
    assert found.replay().difference is None


def test_a_quota_takes_the_narrow_node_that_still_fits() -> None:
    rows = [asked(0, "ann"), asked(1, "ann", "film"), asked(2, "ann")]
    found = run(loaded(rows, gpus=4, tenants={"ann": {"quota_gpus": 2}}), "baseline")
    starts = {event.job: t for _, t, event in Reader(found.journal) if isinstance(event, Start)}
    assert starts["r0"] == starts["r2"] == 0.0
    assert starts["r1"] == 15.0


def test_a_guard_refuses_what_is_beyond_a_quota() -> None:
    guard = QuotaGuard(
        Pool.parse("4", {}), {"one": TaskGraph("one", [Task("a", "m")], [])}, Tenancy({"ann": Tenant(1.0, 2)})
    )
    for i in range(3):
        guard.see(Arrived(f"r{i}", "one", (1.0,), facts={"tenant": "ann"}), 0.0)
    start = Start("r0", "a", "m", (0,), 0.0, 1.0, "first")
    guard.allow(start, 0.0)
    guard.allow(msgspec.structs.replace(start, job="r1", devices=(1,)), 0.0)
    third = msgspec.structs.replace(start, job="r2", devices=(2,))
    with pytest.raises(
        PolicyError, match=r"start of r2/a on .2. refused: tenant 'ann' would hold 3 GPUs, and its quota is 2"
    ):
        guard.allow(third, 0.0)


def test_a_guard_counts_a_batch_once_and_forgets_what_ended() -> None:
    guard = QuotaGuard(
        Pool.parse("4", {}), {"one": TaskGraph("one", [Task("a", "m")], [])}, Tenancy({"ann": Tenant(1.0, 1)})
    )
    for i in range(3):
        guard.see(Arrived(f"r{i}", "one", (1.0,), facts={"tenant": "ann"}), 0.0)
    for i in range(2):
        guard.allow(Start(f"r{i}", "a", "m", (0,), 0.0, 1.0, "together", batch=1), 0.0)
    third = Start("r2", "a", "m", (1,), 0.0, 1.0, "alone")
    guard.see(Finished("r0", "a"), 1.0)
    with pytest.raises(PolicyError, match="would hold 2 GPUs"):
        guard.allow(third, 1.0)


class Grabs(WorkflowPolicy):
    """Starts the nodes that it was asked to rank, whether it is shown them or not."""

    def __init__(self) -> None:
        self.known: list[ReadyNode] = []

    def rank(self, node: ReadyNode, view: View) -> int:
        self.known.append(node)
        return node.seq

    def choose(self, view: View) -> Place | Wait | None:
        self.known = [node for node in self.known if not node.gone]
        for node in self.known:
            if windows := view.free_windows(node.model):
                return Place(node, windows[0], "mine")
        return None


def test_a_policy_that_keeps_nodes_gets_no_more_than_a_quota() -> None:
    rows = [asked(i, "ann" if i < 4 else "bob") for i in range(6)]
    found = run(loaded(rows, tenants={"ann": {"quota_gpus": 1}, "bob": {}}), Grabs)
    assert most_held(found)["ann"] == 1
    assert found.check().valid


class Stubborn(Grabs):
    def choose(self, view: View) -> Place | Wait | None:
        windows = view.free_windows("llm")
        return Place(self.known[0], windows[0], "mine") if windows else None


def test_a_policy_that_starts_a_node_twice_is_stopped_with_tenants_too() -> None:
    with pytest.raises(PolicyError, match="the policy chose r0/say twice"):
        run(loaded([asked(0, "ann"), asked(1, "ann")], tenants={"ann": {}}), Stubborn)


# --- turns ----------------------------------------------------------------------------------------


class Oldest(ListPolicy):
    """A plug-in that knows nothing of tenants."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return node.request.arrived_s


def test_strict_turns_alternate_between_equal_tenants() -> None:
    """One GPU, one model that loads in no time: whatever the policy's order, the tenants take turns."""
    rows = [asked(i, "ann", run_s=4.0) for i in range(4)] + [asked(i + 4, "bob", run_s=4.0) for i in range(4)]
    models = CONFIG["models"] | {"llm": model(load_s=0.0)}
    for tolerance_s, expected in ((0.0, "ababab"), (4.0, "aabababb")):
        shared: Any = {"tenants": {"ann": {}, "bob": {}}, "sharing": {"tolerance_s": tolerance_s}, "models": models}
        found = run(loaded(rows, gpus=1, **shared), Oldest)
        tenants = {row["request_id"]: row["tenant"][0] for row in rows}
        order = "".join(tenants[event.job] for _, _, event in Reader(found.journal) if isinstance(event, Start))
        assert order.startswith(expected)
        assert found.check().valid


def test_who_rested_is_owed_nothing() -> None:
    """Bob comes late: from then on they take turns, and bob is not given what ann had alone."""
    rows = [asked(i, "ann", run_s=4.0) for i in range(12)] + [
        asked(i + 12, "bob", at_s=22.0, run_s=4.0) for i in range(3)
    ]
    models = CONFIG["models"] | {"llm": model(load_s=0.0)}
    shared: Any = {"tenants": {"ann": {}, "bob": {}}, "sharing": {"tolerance_s": 0.0}, "models": models}
    found = run(loaded(rows, gpus=1, **shared), Oldest)
    tenants = {row["request_id"]: row["tenant"][0] for row in rows}
    order = "".join(tenants[event.job] for _, _, event in Reader(found.journal) if isinstance(event, Start))
    assert order == "aaaaaabababaaaa"


def test_when_the_policy_passes_the_next_ones_go() -> None:
    """Ann has served least, but her wide node has no room: bob's narrow one takes the GPU, and the journal says why."""
    rows = [asked(0, "bob", run_s=50.0), asked(1, "ann", "film", at_s=1.0), asked(2, "bob", at_s=1.0)]
    found = run(loaded(rows, gpus=2, tenants={"ann": {}, "bob": {}}, sharing={"tolerance_s": 0.0}), Oldest)
    events = [event for _, t, event in Reader(found.journal) if t == 1.0]
    assert [event.facts for event in events if isinstance(event, Decided)] == [{"tenants": ["ann"]}]
    assert [event.job for event in events if isinstance(event, Start)] == ["r2"]
    assert found.check().valid


class Drift:
    """For each two tenants and each stretch in which both have something ready: by how much the difference of their
    services (GPU-seconds over weight, counted when a node starts) changes. Where the policy passes one of them, the
    stretch ends, and another begins."""

    def __init__(self, found: WorkflowRun, weights: dict[str, float]) -> None:
        self.ready, self.services = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0.0)
        self.largest = dict.fromkeys(weights, 0.0)
        self.stretches: dict[tuple[str, str], tuple[float, float, bool]] = {}  # least and most; whether after a pass
        self.changes: list[tuple[str, str, float, bool]] = []
        tenant, graphs = dict[str, str](), found.header.build_graphs()
        for _, _, events in Reader(found.journal).steps():
            for event in events:
                if isinstance(event, Arrived):
                    tenant[event.job] = event.facts["tenant"]
                    self.ready[tenant[event.job]] += len(graphs[event.of].roots)
            self.look()
            for event in events:
                if isinstance(event, Decided):
                    self.end(*event.facts["tenants"])
                elif isinstance(event, Start):
                    name = tenant[event.job]
                    self.start(name, (event.setup_s + event.run_s) * len(event.devices) / weights[name])

    def start(self, name: str, charge: float) -> None:
        self.services[name] += charge
        self.largest[name] = max(self.largest[name], charge)
        self.look()  # both had something ready before it
        self.ready[name] -= 1
        self.look()

    def look(self) -> None:
        for a, b in combinations(self.ready, 2):
            if self.ready[a] and self.ready[b]:
                ahead = self.services[a] - self.services[b]
                low, high, after = self.stretches.get((a, b), (ahead, ahead, False))
                self.stretches[a, b] = min(low, ahead), max(high, ahead), after
            elif (a, b) in self.stretches:
                low, high, after = self.stretches.pop((a, b))
                self.changes.append((a, b, high - low, after))

    def end(self, *passed: str) -> None:
        for (a, b), (low, high, after) in list(self.stretches.items()):
            if a in passed or b in passed:
                ahead = self.services[a] - self.services[b]
                self.stretches[a, b] = ahead, ahead, True
                self.changes.append((a, b, high - low, after))


@pytest.mark.parametrize("tolerance_s", [0.0, 7.0, 60.0])
@pytest.mark.parametrize("policy", [*ONLINE, Oldest])
def test_no_two_tenants_drift_apart(policy: Any, tolerance_s: float) -> None:
    """The promise: while both have something ready, the difference of their services changes by at most the largest
    node of each, set-up included, over its weight, and twice the tolerance; after a pass, by the largest of anybody
    more."""
    weights = {"ann": 2.0, "bob": 1.0, "cy": 0.5}
    tenants = {name: {"weight": weight} for name, weight in weights.items()}
    seen = 0
    for seed in range(3):
        rows = [row for row in mixed(seed, 200, 0.9) if row["workflow_id"] != "film"]
        found = run(loaded(rows, gpus=3, tenants=tenants, sharing={"tolerance_s": tolerance_s}), policy)
        drift = Drift(found, weights)
        for a, b, change, after_pass in drift.changes:
            most = drift.largest[a] + drift.largest[b] + after_pass * max(drift.largest.values())
            assert change <= most + 2 * tolerance_s + 1e-6
            seen += change > 0.5 * most
    assert seen > 3  # the promise is not idle


def filled(gpus: int, tenants: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Weighted max-min shares of GPUs by progressive filling: all rise in proportion to their weights; who meets its
    quota stays there."""
    shares = dict.fromkeys(tenants, 0.0)
    rising, left = set(tenants), float(gpus)
    while rising and left > 1e-12:
        weights = sum(tenants[name][0] for name in rising)
        step = min([left / weights, *[(tenants[n][1] - shares[n]) / tenants[n][0] for n in rising]])
        for name in rising:
            shares[name] += step * tenants[name][0]
        left -= step * weights
        rising = {name for name in rising if shares[name] < tenants[name][1] - 1e-12}
    return shares


def test_progressive_filling_by_hand() -> None:
    assert filled(6, {"a": (1, 9), "b": (2, 9)}) == pytest.approx({"a": 2, "b": 4})
    assert filled(6, {"a": (1, 9), "b": (5, 2), "c": (1, 9)}) == pytest.approx({"a": 2, "b": 2, "c": 2})
    assert filled(9, {"a": (1, 2), "b": (1, 3)}) == pytest.approx({"a": 2, "b": 3})


@pytest.mark.parametrize("seed", range(12))
def test_long_run_shares_are_weighted_max_min(seed: int) -> None:
    """Constant backlog of all tenants: each gets what progressive filling gives it, under every kind of rule."""
    rng = random.Random(seed)
    gpus, until_s = rng.randint(2, 6), 1000.0
    rules = {name: (rng.choice((1.0, 2.0, 3.5)), rng.choice((99.0, 99.0, 1.0, 2.0))) for name in ("ann", "bob", "cy")}
    tenants = {name: {"weight": weight, "quota_gpus": quota} for name, (weight, quota) in rules.items()}
    rows = [asked(i, ("ann", "bob", "cy")[i % 3], run_s=rng.uniform(1, 5)) for i in range(3 * 450 * gpus)]
    models = CONFIG["models"] | {"llm": model(load_s=0.0)}
    shared: Any = {"tenants": tenants, "sharing": {"tolerance_s": rng.choice((0.0, 10.0))}, "models": models}
    found = run(loaded(rows, gpus=gpus, mode="offline", **shared), rng.choice(("baseline", "srpt", "dovetail")))
    used = dict.fromkeys(rules, 0.0)
    tenant = {row["request_id"]: row["tenant"] for row in rows}
    for _, t, event in Reader(found.journal):
        if isinstance(event, Start) and t < until_s:
            used[tenant[event.job]] += min(event.run_s, until_s - t) / until_s
    assert used == pytest.approx(filled(gpus, rules), abs=0.05)  # one tolerance and one node, by weight


# --- the checker finds what is planted ------------------------------------------------------------

Plant = Callable[[list[tuple[int, float, list[Any]]]], None]


def planted(found: WorkflowRun, plant: Plant, folder: Path, facts: Row | None = None) -> Report:
    """Check the journal of a run into which a fault was planted."""
    reader = Reader(found.journal)
    steps = [(n, t, list(events)) for n, t, events in reader.steps()]
    plant(steps)
    header = msgspec.structs.replace(reader.header, facts=reader.header.facts | (facts or {}))
    path = folder / "planted.jsonl"
    with Writer(path, header, False) as writer:
        for n, t, events in steps:
            kept = [event for event in events if not isinstance(event, Ended)]
            writer.step(n, t, kept)
            for event in events:
                if isinstance(event, Ended):
                    writer.end(n, t, event.summary)
    return check_journal(path)


def codes(report: Report) -> set[str]:
    return {fault.code for fault in report.faults} - {"summary"}


def turned_away() -> WorkflowRun:
    return run(loaded([asked(i, "ann") for i in range(5)], gpus=1, tenants={"ann": {"max_queue": 3}}), "baseline")


def test_the_checker_finds_a_rejection_without_reason(tmp_path: Path) -> None:
    def plant(steps: list[tuple[int, float, list[Any]]]) -> None:
        pass

    assert planted(turned_away(), plant, tmp_path).valid
    report = planted(turned_away(), plant, tmp_path, {"tenancy": {"tenants": {"ann": {"max_queue": 4}}}})
    assert [fault.code for fault in report.faults] == ["admission"] * 2
    assert (
        "found it turned away by the queue of 'ann', expected it admitted: 3 requests of 'ann'"
        in report.faults[0].message
    )


def test_the_checker_finds_a_rejection_that_is_missing(tmp_path: Path) -> None:
    report = planted(turned_away(), lambda steps: None, tmp_path, {"tenancy": {"tenants": {"ann": {"max_queue": 2}}}})
    assert [(fault.code, fault.where) for fault in report.faults] == [("admission", "step 1 at 0 s: r2")]


def test_the_checker_finds_the_wrong_queue(tmp_path: Path) -> None:
    def plant(steps: list[tuple[int, float, list[Any]]]) -> None:
        for _, _, events in steps:
            events[:] = [msgspec.structs.replace(e, queue="*") if isinstance(e, Reject) else e for e in events]

    assert codes(planted(turned_away(), plant, tmp_path)) == {"admission"}


def test_the_checker_finds_a_quota_that_was_broken(tmp_path: Path) -> None:
    found = run(loaded(mixed(2, 20), tenants={"*": {"quota_gpus": 3}}), "baseline")
    facts = {"tenancy": {"tenants": {"*": {"quota_gpus": 2}}, "sharing": {"tolerance_s": 1e9}}}
    report = planted(found, lambda steps: None, tmp_path, facts)
    assert "quota" in codes(report)
    assert "holds 3 GPUs with it, expected at most 2" in report.faults[0].message


def test_the_checker_finds_a_start_out_of_turn(tmp_path: Path) -> None:
    rows = mixed(3, 60)
    found = run(loaded(rows, tenants={"*": {}}, sharing={"tolerance_s": 30.0}), "baseline")
    facts = {"tenancy": {"tenants": {"*": {}}, "sharing": {"tolerance_s": 0.0}}}
    assert codes(planted(found, lambda steps: None, tmp_path, facts)) == {"turn"}


def test_the_checker_finds_a_pass_that_nobody_decided(tmp_path: Path) -> None:
    rows = [asked(0, "bob", run_s=50.0), asked(1, "ann", "film", at_s=1.0), asked(2, "bob", at_s=1.0)]
    found = run(loaded(rows, gpus=2, tenants={"ann": {}, "bob": {}}, sharing={"tolerance_s": 0.0}), Oldest)

    def plant(steps: list[tuple[int, float, list[Any]]]) -> None:
        for _, _, events in steps:
            events[:] = [event for event in events if not isinstance(event, Decided)]

    assert planted(found, lambda steps: None, tmp_path).valid
    assert codes(planted(found, plant, tmp_path)) == {"turn"}


def test_the_checker_finds_a_pass_of_somebody_whose_turn_it_was_not(tmp_path: Path) -> None:
    rows = [asked(i, ("ann", "bob")[i % 2], run_s=4.0) for i in range(6)]
    found = run(loaded(rows, gpus=1, tenants={"ann": {}, "bob": {}}, sharing={"tolerance_s": 0.0}), Oldest)

    def plant(steps: list[tuple[int, float, list[Any]]]) -> None:
        """After ann's first node it is bob's turn: ann is said to have passed, though she was ahead."""
        _, _, events = steps[1]
        events.insert(1, Decided("passed", "planted", {"tenants": ["ann"]}))

    assert planted(found, lambda steps: None, tmp_path).valid
    assert codes(planted(found, plant, tmp_path)) == {"turn"}


@pytest.mark.parametrize("seed", [n for n in range(40) if "sharing" in random_case(n).config])
def test_random_workloads_with_tenants_are_valid_under_every_policy(seed: int, tmp_path: Path) -> None:
    assert check_case(seed, tmp_path) == []


def test_a_node_that_a_request_is_given_beyond_its_quota_ends_it() -> None:
    graph = TaskGraph("agent", [Task("a", "m")], [])
    tenancy = Tenancy({"ann": Tenant(1.0, 1)})
    models = {"m": ModelCost(1, 1), "wide": ModelCost(2, 1, 2)}
    view = LaneView(Pool.parse("4", {}), models, CostRules())
    scheduler = WorkflowScheduler(view, {"agent": graph}, Oldest(), 0, Tenants(tenancy))
    scheduler.handle([Arrived("r", "agent", (1.0,), facts={"tenant": "ann"})], 0.0)
    grew = Grew("r", "a", (Task("b", "wide", 2),), (("a", "b"),), (3.0,))
    why = "tenant 'ann' may hold 1 GPUs at once (quota_gpus), but node 'b' needs 2"
    assert scheduler.handle([grew, Finished("r", "a")], 2.0) == [Reject("r", why)]


# --- figures --------------------------------------------------------------------------------------


def test_figures_of_tenants_add_up_and_are_counted_again(tmp_path: Path) -> None:
    rows = [*mixed(4), asked(900, "ann", "look", 3.0)]
    tenants = {"ann": {"weight": 2, "max_queue": 9}, "*": {}}
    found = run(loaded(rows, tenants=tenants), "baseline")
    m = found.metrics
    assert {name: sum(row["tenant"] == name for row in rows) for name in ("ann", "bob", "cy")} == m["tenant_requests"]
    assert sum(m["tenant_rejected"].values()) == m["rejected"] == m["tenant_full"]["ann"] > 0
    assert sum(m["tenant_gpu_s"].values()) == pytest.approx(found.figures.device_s)
    assert sum(m["tenant_share"].values()) == pytest.approx(1)
    assert m["tenant_weight_share"] == {"ann": 0.5, "bob": 0.25, "cy": 0.25}
    setup_s = sum(device.setup_s for device in found.figures.devices)
    assert sum(m["tenant_setup_gpu_s"].values()) == pytest.approx(setup_s)
    completed = {n: m["tenant_requests"][n] - m["tenant_rejected"][n] for n in m["tenant_requests"]}
    total_s = sum(m["tenant_mean_s"][name] * count for name, count in completed.items())
    assert total_s / m["completed"] == pytest.approx(m["avg_request_s"])

    def plant(steps: list[tuple[int, float, list[Any]]]) -> None:
        ended = steps[-1][2][-1]
        ended.summary["tenant_gpu_s"]["ann"] += 1
        ended.summary["jain"] = 0.99

    report = planted(found, plant, tmp_path)
    assert sorted(fault.where for fault in report.faults) == ["jain", "tenant_gpu_s.ann"]


def test_seconds_of_a_gpu_are_shared_by_those_on_it() -> None:
    """Two tenants in one batch: each is charged half of its set-up and run."""
    models = CONFIG["models"] | {"llm": model() | {"batch_curve": [1.0, 1.5]}}
    rows = [asked(0, "ann", run_s=10.0), asked(1, "bob", run_s=8.0)]
    shared: Any = {"tenants": {"ann": {"weight": 2}, "bob": {"quota_gpus": 1}}, "sharing": {"tolerance_s": 99.0}}
    found = run(loaded(rows, gpus=1, models=models, costs={"batching": True}, **shared), "baseline")
    assert found.metrics["tenant_gpu_s"] == {"ann": 10.0, "bob": 10.0}
    assert found.metrics["tenant_setup_gpu_s"] == {"ann": 2.5, "bob": 2.5}
    assert found.check().valid


def test_with_slots_a_node_counts_its_slot_against_a_quota_and_its_part_of_the_seconds() -> None:
    """One GPU with four slots: ann may have half of it, so two of her nodes are there beside two of bob's. Ann pays for
    the load, which bob's nodes wait for too; then all four share the seconds."""
    models = CONFIG["models"] | {"llm": model(load_s=6.0) | {"max_concurrency": 4, "concurrency_curve": [1, 1, 1, 1]}}
    rows = [asked(0, "ann", run_s=10.0), asked(1, "ann"), asked(2, "ann"), asked(3, "bob"), asked(4, "bob")]
    shared: Any = {"tenants": {"ann": {"quota_gpus": 0.5}, "bob": {}}, "sharing": {"tolerance_s": 99.0}}
    found = run(loaded(rows, gpus=1, models=models, **shared), "baseline")
    starts = {event.job: (t, event.setup_s) for _, t, event in Reader(found.journal) if isinstance(event, Start)}
    assert starts == {"r0": (0, 6), "r1": (0, 6), "r3": (0, 6), "r4": (0, 6), "r2": (16, 0)}
    assert found.metrics["tenant_gpu_s"] == pytest.approx({"ann": 8 + 10, "bob": 8})
    assert found.metrics["tenant_setup_gpu_s"] == {"ann": 6, "bob": 0}
    assert found.check().valid


def test_a_quota_that_is_smaller_than_a_slot_is_refused() -> None:
    models = CONFIG["models"] | {"llm": model() | {"max_concurrency": 4, "concurrency_curve": [1, 1, 1, 1]}}
    with pytest.raises(InputError, match=r"may hold 0.2 GPUs at once .quota_gpus., but node 'say' needs 0.25"):
        loaded([asked(0, "ann")], gpus=1, models=models, tenants={"ann": {"quota_gpus": 0.2}})


def test_jain_is_one_where_shares_are_even_and_a_half_where_one_of_two_has_all() -> None:
    def got(*pairs: tuple[float, float]) -> float:
        nothing = Spread(0, 0, 0, 0, 0)
        made = [TenantFigures(str(i), 1, 0, 0, 0, 0, nothing, 0, 0, 0, *pair) for i, pair in enumerate(pairs)]
        return jain(made)

    assert got((5, 5), (5, 5)) == 1
    assert got((10, 5), (0, 5)) == 0.5
    assert got((9, 9), (0, 1), (1, 0)) == pytest.approx(10 / 9)  # who is entitled to nothing does not count
    assert got() == got((0, 0)) == 1


def test_without_turns_one_tenant_has_all_and_the_index_says_so() -> None:
    """The older of two equal backlogs goes first where tolerance allows all."""
    rows = [asked(i, "ann" if i < 20 else "bob") for i in range(40)]
    index = {}
    for tolerance_s in (0.0, 1e9):
        shared: Any = {"tenants": {"*": {}}, "sharing": {"tolerance_s": tolerance_s}}
        index[tolerance_s] = run(loaded(rows, gpus=2, **shared), Oldest).metrics["jain"]
    assert index[0.0] > 0.99
    assert index[1e9] == pytest.approx(0.5, abs=0.01)


def test_a_comparison_shows_fairness_where_there_are_tenants() -> None:
    rows = mixed(5, 30)
    found = compare(loaded(rows, tenants={"*": {}}), ["baseline", "srpt"], jobs=1)
    assert "jain" in repr(found)
    assert all(0 < row["jain"] <= 1 for row in found)
    assert "jain" not in repr(compare(loaded(rows), ["baseline"], jobs=1))


def test_the_text_and_the_page_name_tenants(tmp_path: Path) -> None:
    found = run(loaded(mixed(6, 30), tenants={"ann": {"weight": 3}, "*": {}}), "baseline")
    assert re.search(r"^  ann +\d+ +0 +[\d.]+s +[\d.]+s +[\d.]+ +[\d.]+% +60.0%", found.text(), re.MULTILINE)
    found.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "GPU-seconds, ann" in page
    assert "index of fairness" in page


def test_without_tenants_journal_and_figures_say_nothing_of_them() -> None:
    found = run(loaded([asked(1)]))
    assert not [key for key in found.metrics if "tenant" in key or key == "jain"]
    assert "tenan" not in found.journal.read_text()


# --- explanations ---------------------------------------------------------------------------------


def test_a_node_that_waited_for_its_quota_is_told_so() -> None:
    rows = [asked(0, "ann"), asked(1, "ann"), asked(2, "bob", at_s=1.0)]
    found = run(loaded(rows, tenants={"ann": {"quota_gpus": 1}, "bob": {}}), "baseline")
    told = str(found.explain("r1"))
    assert "At 0.00 s it had to wait: tenant 'ann' holds 1 GPUs, and its quota is 1." in told
    assert "had to wait" not in str(found.explain("r0"))
    assert "had to wait" not in str(found.explain("r2"))


def test_a_node_that_waited_for_its_turn_is_told_so() -> None:
    rows = [asked(0, "ann", run_s=4.0), asked(1, "ann", run_s=4.0), asked(2, "bob", at_s=1.0, run_s=4.0)]
    models = CONFIG["models"] | {"llm": model(load_s=0.0)}
    shared: Any = {"tenants": {"ann": {}, "bob": {}}, "sharing": {"tolerance_s": 0.0}, "models": models}
    found = run(loaded(rows, gpus=1, **shared), Oldest)
    why = "it was the turn of 'bob': tenant 'ann' was ahead by 4.00 s of service per weight"
    assert f"At 4.00 s it had to wait: {why}." in str(found.explain("r1", "say"))
    assert "had to wait" not in str(found.explain("r2"))


def test_a_request_that_was_turned_away_is_told_why() -> None:
    told = str(turned_away().explain("r4"))
    assert "rejected: 3 requests of tenant 'ann' wait, and max_queue is 3." in told


# --- requests made up -----------------------------------------------------------------------------


def test_generated_requests_are_of_the_configurations_tenants() -> None:
    config = CONFIG | {"tenants": {"ann": {"weight": 5}, "bob": {"quota_gpus": 1}, "*": {}}}
    rows = list(generate(config, requests=300, seed=1))
    counts = Counter(row["tenant"] for row in rows)
    assert counts.keys() == {"ann", "bob"}
    assert not [row for row in rows if row["tenant"] == "bob" and row["workflow_id"] == "film"]
    assert len(load(config, rows, gpus=4).requests) == 300
    bare = [{key: value for key, value in row.items() if key != "tenant"} for row in rows]
    assert bare == list(generate(CONFIG, requests=300, seed=1))


def test_generated_requests_are_sent_as_much_as_was_said() -> None:
    made = generate(CONFIG, requests=1000, tenants={"ann": 3, "bob": 1, "cy": 0}, seed=2)
    counts = Counter(row["tenant"] for row in made)
    assert counts.keys() == {"ann", "bob"}
    assert counts["ann"] / 1000 == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ({"anm": 1}, "--tenant anm: unknown tenant 'anm'; did you mean 'ann'"),
        ({"ann": -1}, "--tenant ann: expected a weight >= 0, found -1"),
        ({"bob": 1}, "--tenant bob: none has a quota that is wide enough for 'film'"),
        ("ann", "--tenant 'ann': expected names of tenants"),
    ],
)
def test_wrong_tenants_to_make_up_requests_for_are_refused(tenants: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(CONFIG | {"tenants": {"ann": {}, "bob": {"quota_gpus": 1}}}, requests=10, tenants=tenants)


def test_the_example_runs_and_is_told_in_numbers() -> None:
    config = Path(__file__).parents[2] / "examples" / "tenants.yaml"
    sent = {"search": 2, "shop": 1, "lab": 2, "guest": 1}
    made = generate(config, requests=150, rate=40, tenants=sent, seed=1)
    problem = load(config, made, mode="online")
    assert problem.describe()["tenants"] == dict(sorted(Counter(row["tenant"] for row in made).items()))
    found = run(problem)
    assert found.check().valid
    assert found.replay().difference is None
    full = found.metrics["tenant_full"]
    assert full["guest"] > 0
    assert full["search"] == full["shop"] == 0  # their queues have no bound, and that of all was not full


def test_an_interrupted_run_with_tenants_goes_on(tmp_path: Path) -> None:
    shared: Any = {"tenants": {"ann": {"quota_gpus": 2, "max_queue": 8}, "*": {}}, "sharing": {"tolerance_s": 5.0}}
    whole = run(loaded(mixed(7), **shared), "dovetail", journal=tmp_path / "whole.jsonl")
    lines = whole.journal.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = run(loaded(mixed(7), **shared), "dovetail", journal=cut, resume=True)
    assert again.metrics == whole.metrics
    assert cut.read_bytes() == whole.journal.read_bytes()


def test_what_tenants_have_is_the_sum_over_what_runs() -> None:
    """Random starts and ends, alone, in slots and in batches, on one GPU or two."""
    rng = random.Random(3)
    graph = TaskGraph("one", [Task("say", "llm")], [])
    ledger = TenantLedger({"one": graph}, {}, Tenancy({}))
    running: dict[str, tuple[str, Start]] = {}
    for i in range(400):
        batch = i if rng.random() < 0.3 else 0
        devices = tuple(sorted(rng.sample(range(4), rng.randint(1, 2))))
        new = [(f"{i}.{k}", rng.choice("abc")) for k in range(rng.randint(1, 3) if batch else 1)]
        starts = [Start(job, "say", "llm", devices, float(i), 1.0, "", batch=batch) for job, _ in new]
        ended = [Finished(job, "say") for job in rng.sample(sorted(running), min(len(running), rng.randint(0, 3)))]
        for event in ended:
            del running[event.job]
        running |= {start.job: (tenant, start) for start, (_, tenant) in zip(starts, new, strict=True)}
        arrived = [Arrived(job, "one", (1.0,), facts={"tenant": tenant}) for job, tenant in new]
        list(ledger.starts(float(i), [*ended, *arrived, *starts]))
        nodes = Counter(gpu for _, start in running.values() for gpu in start.devices)
        expected: dict[str, float] = {}
        for tenant, start in running.values():
            expected[tenant] = expected.get(tenant, 0.0) + sum(1 / nodes[gpu] for gpu in start.devices)
        found = ledger.rates()
        assert list(found) == list(expected)  # in this order, too
        assert found == pytest.approx(expected)
        held: dict[str, set[Any]] = {tenant: set() for tenant in expected}
        for tenant, start in running.values():
            held[tenant].add(start.batch or (start.job, "say"))
        assert {name: set(state.holds) for name, state in ledger.tenants.items() if state.holds} == held
