"""Each policy is held to the promise of its docstring, decision by decision, on random workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Finished, Reject, Start
from dovetail.core.rates import Rate, RateTable
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.patience import PatienceRule
from dovetail.testing.workflow.random_workloads import RandomWorkload, random_case, read_case
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.policies.base import ListPolicy, Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode, Window
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import run

OURS = (
    "baseline",
    "deadline",
    "dovetail",
    "heft",
    "hybrid",
    "offline",
    "online",
    "optimise",
    "srpt",
    "static",
)
WAIT = ("dovetail", "heft", "optimise", "static")  # may keep a GPU idle for something better
Rule = Callable[[View, Place | None], None]


class Watched(WorkflowPolicy):
    """A policy whose every decision is looked at before it is carried out."""

    def __init__(self, policy: WorkflowPolicy, rule: Rule) -> None:
        self.policy = policy
        self.rule = rule
        self.decisions = 0

    def begin(self, view: View) -> None:
        self.policy.begin(view)

    def rank(self, node: ReadyNode, view: View) -> Any:
        return self.policy.rank(node, view)

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        return self.policy.refuse(node, view)

    def choose(self, view: View) -> Place | Wait | None:
        choice = self.policy.choose(view)
        assert not isinstance(choice, Wait)
        self.rule(view, choice)
        self.decisions += choice is not None
        return choice


def cases(folder: Path, seeds: range = range(60)) -> Iterator[tuple[RandomWorkload, WorkflowProblem]]:
    for seed in seeds:
        case = random_case(seed).plain()
        yield case, read_case(case, folder)


def watch(folder: Path, name: str, rule: Rule, options: dict[str, Any] | None = None) -> None:
    """Run a policy over many workloads; the rule sees every decision."""
    decisions = 0
    for case, problem in cases(folder):
        watched = Watched(registry.create("workflow", name, options), rule)
        run(problem, watched, failure_rate=case.failure_rate, retries=case.retries, journal=False)
        decisions += watched.decisions
    assert decisions > 500


def ready(view: View) -> list[ReadyNode]:
    return [node for queue in view.queues.values() for node in queue.nodes()]


def free_windows(view: View, model: str, aligned: bool) -> list[Window]:
    """By hand: neighbours that are free and have room, aligned ones if any has room."""
    width, memories = view.models[model].width, view.pool.memories
    parts = [model, *([view.models[model].adapter_of] if view.models[model].adapter_of else [])]
    shard = sum(view.models[part].shard_mib for part in parts)

    def has_room(window: Window) -> bool:
        return all((memory := memories[gpu]) is None or memory >= shard for gpu in window)

    roomy = [window for window in view.pool.windows(width, aligned) if has_room(window)]
    roomy = roomy or [window for window in view.pool.windows(width, aligned=False) if has_room(window)]
    return [window for window in roomy if all(view.free[gpu] for gpu in window)]


def is_warm(view: View, model: str, window: Window) -> bool:
    return view.setup_s(window, model) == 0


# --- all of them ----------------------------------------------------------------------------------


def test_these_are_the_policies_and_each_says_what_it_promises() -> None:
    assert set(OURS) <= set(registry.names("workflow"))
    assert all(len(registry.promise("workflow", name)) > 20 for name in OURS)


@pytest.mark.parametrize("name", OURS)
def test_what_is_chosen_is_ready_and_its_gpus_are_free_with_room_for_it(tmp_path: Path, name: str) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is not None:
            assert choice.node in ready(view)
            assert choice.window in free_windows(view, choice.node.model, aligned=False)
            assert choice.why

    watch(tmp_path, name, rule, {"schedules": 5} if name == "optimise" else None)


@pytest.mark.parametrize("name", OURS)
def test_nothing_waits_while_nothing_runs(tmp_path: Path, name: str) -> None:
    """Otherwise the run would stand still for ever."""

    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            assert view.free_count < len(view.pool)

    watch(tmp_path, name, rule, {"schedules": 5} if name == "optimise" else None)


@pytest.mark.parametrize("name", [name for name in OURS if name not in WAIT])
def test_these_leave_no_gpu_idle_that_a_ready_node_could_use(tmp_path: Path, name: str) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            assert not any(free_windows(view, model, aligned=True) for model in view.queues)

    watch(tmp_path, name, rule)


@pytest.mark.parametrize("name", [name for name in OURS if name not in ("baseline", "optimise")])
def test_windows_are_aligned_so_that_they_do_not_fragment_the_pool(tmp_path: Path, name: str) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is not None:
            assert choice.window in free_windows(view, choice.node.model, aligned=True)

    watch(tmp_path, name, rule)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dovetial", {}, "no workflow policy is called 'dovetial'; did you mean 'dovetail'?"),
        ("srpt", {"aging": "1"}, "policy srpt has no option 'aging'; did you mean 'ageing'?"),
        ("srpt", {"ageing": "old"}, "policy srpt, option ageing='old': expected a number"),
        (
            "optimise",
            {"objective": "beauty"},
            "policy optimise, option objective='beauty': Invalid enum value 'beauty'; known: makespan, mean",
        ),
    ],
)
def test_a_wrong_name_or_option_is_told(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.create("workflow", name, options)
    assert str(caught.value) == message


# --- baseline -------------------------------------------------------------------------------------


def test_baseline_first_ready_first_served_warm_or_longest_idle(tmp_path: Path) -> None:
    def rule(view: View, choice: Place | None) -> None:
        fitting = [node for node in ready(view) if free_windows(view, node.model, aligned=False)]
        first = min(fitting, key=lambda node: node.seq, default=None)
        assert (choice.node if choice else None) is first
        if choice is None or first is None:
            return
        windows = free_windows(view, first.model, aligned=False)
        if first.width > 1:
            assert choice.window == windows[0], "the first free run of GPUs, whatever it holds"
            return
        warm = [window for window in windows if first.model in view.residents.held[window[0]]]
        longest_idle = min(windows, key=lambda window: (view.idle_since[window[0]], window))
        assert choice.window == (warm[0] if warm else longest_idle)

    watch(tmp_path, "baseline", rule)


# --- offline, hybrid, online ----------------------------------------------------------------------


def test_offline_no_switch_while_something_can_run_warm_then_the_largest_group(tmp_path: Path) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            return
        options = [(model, window) for model in view.queues for window in free_windows(view, model, aligned=True)]
        if any(is_warm(view, model, window) for model, window in options):
            assert is_warm(view, choice.node.model, choice.window)
            return
        request = {model: sum(node.gpu_s for node in view.queues[model].nodes()) for model, _ in options}
        assert request[choice.node.model] == pytest.approx(max(request.values()))

    watch(tmp_path, "offline", rule)


def test_hybrid_the_batch_of_highest_priority_on_the_gpus_free_longest(tmp_path: Path) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            return
        priority = {}
        for model, queue in view.queues.items():
            if free_windows(view, model, aligned=True):
                tasks = queue.nodes()
                work_s = sum(node.size for node in tasks)
                priority[model] = 1000 * len(tasks) + work_s - 10 * view.models[model].load_s
        assert priority[choice.node.model] == pytest.approx(max(priority.values()))
        free_since = {
            window: max(view.idle_since[gpu] for gpu in window)
            for window in free_windows(view, choice.node.model, aligned=True)
        }
        assert free_since[choice.window] == min(free_since.values())

    watch(tmp_path, "hybrid", rule)


def test_online_the_least_cost_goes_first(tmp_path: Path) -> None:
    alpha, beta, gamma, delta, lookahead = 1.0, 1.5, 0.3, 0.5, 3

    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            return
        oldest = sorted(ready(view), key=lambda node: node.seq)
        mean = sum(view.executions) / len(view.pool)

        def cost(node: ReadyNode, window: Window) -> float:
            coming = [other for other in oldest if other is not node][:lookahead]
            future = 0.0
            for other in coming:
                if other.model == node.model:
                    future -= 0.1 * view.models[node.model].load_s
                else:
                    future += 0.1 * view.residents.reload_s(node.model, other.model)
            balance = sum(view.executions[gpu] - mean for gpu in window) / len(window)
            waited = view.now - node.ready_s
            return -alpha * waited + beta * view.setup_s(window, node.model) + gamma * future + delta * balance

        heads = [queue.nodes()[0] for queue in view.queues.values()]
        costs = [cost(node, w) for node in heads for w in free_windows(view, node.model, aligned=True)]
        assert cost(choice.node, choice.window) == pytest.approx(min(costs))

    watch(tmp_path, "online", rule)


# --- heft, srpt, deadline -------------------------------------------------------------------------


def test_heft_the_longest_path_goes_first_where_it_finishes_earliest(tmp_path: Path) -> None:
    def rule(view: View, choice: Place | None) -> None:
        kept: set[int] = set()
        for head in sorted((queue.nodes()[0] for queue in view.queues.values()), key=lambda t: (-t.tail_s, t.seq)):
            ends = {
                window: view.free_at(window) + view.setup_s(window, head.model) + view.run_s(head, window)
                for window in view.roomy_windows(head.model)
                if kept.isdisjoint(window)
            }
            if not ends:
                continue
            window = min(ends, key=lambda w: (ends[w], w))
            if all(view.free[gpu] for gpu in window):
                assert choice is not None
                assert (choice.node, choice.window) == (head, window)
                return
            kept |= set(window)  # it waits for these; others may use only the rest
        assert choice is None

    watch(tmp_path, "heft", rule)


def test_srpt_the_request_with_the_least_left_goes_first_and_ages(tmp_path: Path) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is not None:
            heads = [queue.head for queue in view.queues.values() if free_windows(view, queue.model, aligned=True)]
            assert choice.node.rank == min(head.rank for head in heads)

    watch(tmp_path, "srpt", rule, {"hysteresis": 0.0})
    srpt = registry.create("workflow", "srpt", {"ageing": 0.5})
    view = View(Pool.parse("1", {}), MODELS, CostRules())
    scheduler = WorkflowScheduler(view, GRAPHS, srpt)
    scheduler.handle([Arrived("running", "one", (100.0,))], 0.0)
    scheduler.handle([Arrived("long", "one", (30.0,))], 0.0)
    scheduler.handle([Arrived("short", "one", (10.0,)), Arrived("heavy", "one", (30.0,), weight=5.0)], 10.0)
    scheduler.handle([Arrived("late", "one", (10.0,))], 80.0)
    order = [node.request.id for node in view.queues["llm"].nodes()]
    # GPU-seconds left, per weight, + half of when it became ready: 30, 10 + 5, 6 + 5, 10 + 40
    assert order == ["heavy", "short", "long", "late"]


def test_deadline_the_earliest_latest_start_goes_first(tmp_path: Path) -> None:
    """Of those that can be on time, and of those without a deadline."""

    def latest_start(node: ReadyNode) -> float:
        due_s = node.request.due_s
        if due_s is None:
            due_s = node.request.arrived_s + 10.0 * node.request.graph.longest_path(node.request.sizes)
        return due_s - node.tail_s

    def rule(view: View, choice: Place | None) -> None:
        def can_be_on_time(node: ReadyNode) -> bool:
            return node.request.due_s is None or view.now + node.tail_s / view.fastest <= node.request.due_s

        if choice is not None:
            tasks = [node for node in ready(view) if free_windows(view, node.model, aligned=True)]
            in_time = [latest_start(node) for node in tasks if can_be_on_time(node)]
            if can_be_on_time(choice.node):
                assert latest_start(choice.node) == min(in_time)
            else:
                assert choice.node.rank <= min(in_time, default=choice.node.rank), "by its new deadline"

    watch(tmp_path, "deadline", rule, {"hysteresis": 0.0})


def test_deadline_who_cannot_be_on_time_makes_room_for_who_can() -> None:
    view, handle = start_of("deadline", 1)
    handle([Arrived("first", "one", (20.0,), 100.0)], 0.0)
    handle([Arrived("late", "one", (20.0,), 25.0), Arrived("other", "one", (20.0,), 60.0)], 0.0)
    assert [node.request.id for node in view.queues["llm"].nodes()] == ["late", "other"]
    assert names(handle([Finished("first", "a")], 30.0)) == [("other", (0,))], "late needs 20 s and had until 25"
    assert view.queues["llm"].head.rank == 30.0 + 10 * 20.0 - 20.0, "ten times its path from then on, not never"


@pytest.mark.parametrize("name", ["srpt", "deadline"])
def test_a_list_policy_asks_how_fast_a_gpu_is(name: str) -> None:
    types = {"slow": DeviceType("slow", speed=0.1), "fast": DeviceType("fast")}
    view = View(Pool.parse("slow:1,fast:1", types), MODELS, CostRules())
    scheduler = WorkflowScheduler(view, GRAPHS, registry.create("workflow", name))
    assert names(scheduler.handle([Arrived("r", "one", (10.0,))], 0.0)) == [("r", (1,))]


class Fates:
    """Follows a run: who was rejected for its deadline, who finished late."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}
        self.rejected: dict[str, float] = {}

    def step(self, n: int, t: float, events: Any) -> None:
        for event in events:
            if isinstance(event, Arrived) and event.due_s is not None:
                self.due[event.job] = t + event.due_s
            elif isinstance(event, Reject) and "deadline" in event.why:
                self.rejected[event.job] = t


def test_with_admission_only_a_hopeless_request_is_rejected_and_at_once(tmp_path: Path) -> None:
    """At the moment of rejection the request that is left is longer than the time, on the fastest GPU there is."""
    rejected = 0

    def rule(view: View, choice: Place | None) -> None:
        for node in ready(view):
            if node.ready_s == view.now and node.request.due_s is not None:
                assert view.now + node.tail_s / view.fastest <= node.request.due_s, "it should have been rejected"

    for _, problem in cases(tmp_path):
        fates = Fates()
        watched = Watched(registry.create("workflow", "deadline", {"admit": True}), rule)
        run(problem, watched, observers=[fates], journal=False)
        assert fates.rejected.keys() <= fates.due.keys()
        rejected += len(fates.rejected)
        plain = Fates()
        run(problem, "deadline", observers=[plain], journal=False)
        assert plain.rejected == {}
    assert rejected > 10


def test_admission_knows_the_fastest_measured_rate() -> None:
    def first(rates: RateTable) -> list[Any]:
        view = View(Pool.parse("1", {}), MODELS, CostRules(), rates)
        deadline = registry.create("workflow", "deadline", {"admit": True})
        return WorkflowScheduler(view, GRAPHS, deadline).handle([Arrived("r", "one", (30.0,), 20.0)], 0.0)

    assert first(RateTable()) == [Reject("r", "cannot meet its deadline: 30.0 s of work left, 20.0 s of time")]
    assert isinstance(first(RateTable([Rate("llm", "gpu", 2.0)]))[0], Start)


# --- the greedy list ------------------------------------------------------------------------------


class Oldest(ListPolicy):
    def rank(self, node: ReadyNode, view: View) -> float:
        return node.ready_s


@pytest.mark.parametrize("hysteresis", [0.0, 8.0])
def test_a_list_policy_weighs_rank_against_the_price_of_the_switch(tmp_path: Path, hysteresis: float) -> None:
    def rule(view: View, choice: Place | None) -> None:
        if choice is None:
            return

        def ends_s(node: ReadyNode, window: Window) -> float:
            return view.setup_s(window, node.model) + view.run_s(node, window)

        def best(node: ReadyNode) -> Window:
            return min(free_windows(view, node.model, aligned=True), key=lambda w: (ends_s(node, w), w))

        def key(node: ReadyNode) -> float:
            price = view.setup_s(best(node), node.model)
            return float(node.rank + hysteresis * price * node.width / len(view.pool))

        heads = [queue.head for queue in view.queues.values() if free_windows(view, queue.model, aligned=True)]
        assert key(choice.node) == pytest.approx(min(map(key, heads)))
        assert ends_s(choice.node, choice.window) == pytest.approx(ends_s(choice.node, best(choice.node)))

    for case, problem in cases(tmp_path):
        run(
            problem,
            Watched(Oldest(hysteresis=hysteresis), rule),
            failure_rate=case.failure_rate,
            retries=0,
            journal=False,
        )


# --- static ---------------------------------------------------------------------------------------

MODELS = {
    "llm": ModelCost(8.0, 10.0),
    "sd": ModelCost(4.0, 5.0),
    "pair": ModelCost(16.0, 20.0, 2),
    "quad": ModelCost(64.0, 60.0, 4),
    "new": ModelCost(4.0, 5.0),
    "tool": ModelCost(0.0, 0.0, 0),
}
GRAPHS = {
    graph.name: graph
    for graph in (
        TaskGraph("one", [Task("a", "llm")], []),
        TaskGraph("draw", [Task("a", "sd")], []),
        TaskGraph("two", [Task("a", "pair", 2)], []),
        TaskGraph("four", [Task("a", "quad", 4)], []),
        TaskGraph("new", [Task("a", "new")], []),
        TaskGraph("later", [Task("a", "tool", 0), Task("b", "llm")], [("a", "b")]),
    )
}
OF = {"llm": "one", "sd": "draw", "pair": "two", "quad": "four"}


def test_static_runs_a_model_only_where_it_is_pinned(tmp_path: Path) -> None:
    for case, problem in cases(tmp_path):
        static = registry.create("workflow", "static")

        def rule(view: View, choice: Place | None, static: Any = static) -> None:
            if choice is not None:
                assert choice.window in static.pins[choice.node.model]
                assert choice.node.seq == min(node.seq for node in view.queues[choice.node.model].nodes())

        run(problem, Watched(static, rule), failure_rate=case.failure_rate, retries=case.retries, journal=False)


def pins(forecast: dict[str, float], gpus: int) -> dict[str, list[Window]]:
    static = registry.create("workflow", "static")
    static.begin(View(Pool.parse(str(gpus), {}), MODELS, CostRules(), forecast=forecast))
    found: dict[str, list[Window]] = static.pins
    return found


@pytest.mark.parametrize("gpus", range(1, 17))
def test_static_shares_no_gpu_while_the_pool_is_large_enough_for_all(gpus: int) -> None:
    forecast = {"llm": 10.0, "sd": 40.0, "pair": 20.0, "quad": 80.0}
    fitting = {model: request for model, request in forecast.items() if MODELS[model].width <= gpus}
    windows = [window for model in pins(fitting, gpus).values() for window in model]
    taken = [gpu for window in windows for gpu in window]
    if sum(MODELS[model].width for model in fitting) <= gpus:
        assert len(taken) == len(set(taken))
    assert set(taken) == set(range(gpus)), "no GPU is left without a model"


def test_static_gives_replicas_to_the_model_with_the_most_work() -> None:
    found = pins({"llm": 10.0, "sd": 90.0}, 10)
    assert {model: len(windows) for model, windows in found.items()} == {"llm": 1, "sd": 9}
    found = pins({"llm": 30.0, "sd": 60.0}, 9)
    assert {model: len(windows) for model, windows in found.items()} == {"llm": 3, "sd": 6}


def test_static_never_switches_when_every_model_has_its_own_gpus() -> None:
    view = View(Pool.parse("4", {}), MODELS, CostRules(), forecast={"llm": 50.0, "sd": 50.0, "pair": 50.0})
    scheduler = WorkflowScheduler(view, GRAPHS, registry.create("workflow", "static"))
    requests = [Arrived(f"{model}{i}", OF[model], (5.0,)) for i in range(9) for model in ("llm", "sd", "pair")]
    orders = scheduler.handle(requests, 0.0)
    switches, done = 0, 0
    while starts := [order for order in orders if isinstance(order, Start)]:
        switches += sum(start.replaces is not None for start in starts)
        done += len(starts)
        orders = scheduler.handle([Finished(start.job, start.task) for start in starts], 100.0 * done)
    assert (switches, done) == (0, 27)


def test_static_shared_gpus_change_their_model_only_for_who_waited_longer_than_the_switch_is_worth() -> None:
    view = View(Pool.parse("1", {}), MODELS, CostRules(), forecast={"llm": 50.0, "sd": 50.0})
    scheduler = WorkflowScheduler(view, GRAPHS, registry.create("workflow", "static", {"hysteresis": 4.0}))
    price = (8 + 4) / 16 + 2  # times 4: 11 s

    def next_after(t: float, *stimuli: Any) -> list[str]:
        return [order.job for order in scheduler.handle(stimuli, t) if isinstance(order, Start)]

    assert next_after(0.0, Arrived("llm0", "one", (5.0,)), Arrived("sd0", "draw", (5.0,))) == ["sd0"]  # loads faster
    assert next_after(10.0, Finished("sd0", "a"), Arrived("sd1", "draw", (5.0,))) == ["sd1"]  # llm0 waited only 10 s
    assert next_after(15.0, Finished("sd1", "a"), Arrived("sd2", "draw", (5.0,))) == ["llm0"]  # 15 s > 4 x the price
    assert 10.0 < 4 * price < 15.0
    assert next_after(25.0, Finished("llm0", "a")) == ["sd2"]  # nobody waits for llm


# --- dovetail -------------------------------------------------------------------------------------


def start_of(
    policy: str | WorkflowPolicy, gpus: int = 2, types: dict[str, DeviceType] | None = None
) -> tuple[View, Any]:
    view = View(Pool.parse(str(gpus), types or {}), MODELS, CostRules())
    chosen = registry.create("workflow", policy) if isinstance(policy, str) else policy
    return view, WorkflowScheduler(view, GRAPHS, chosen).handle


def names(orders: list[Any]) -> list[tuple[str, Window]]:
    return [(order.job, order.devices) for order in orders if isinstance(order, Start)]


def test_patience_the_oldest_goes_first_where_no_switch_is_needed() -> None:
    _, handle = start_of(PatienceRule(), 1)
    handle([Arrived("first", "one", (5.0,))], 0.0)
    handle([Arrived("b", "one", (5.0,))], 2.0)
    handle([Arrived("a", "one", (1.0,))], 3.0)
    assert names(handle([Finished("first", "a")], 15.0)) == [("b", (0,))]


def test_patience_a_switch_waits_until_it_is_worth_it() -> None:
    """With one GPU and patience 20, a switch of 2.75 s and back counts 110 s."""
    _, handle = start_of(PatienceRule(), 1)
    handle([Arrived("r0", "one", (5.0,))], 0.0)
    handle([Arrived("other", "draw", (5.0,))], 0.0)
    running, t = "r0", 15.0
    while True:
        orders = names(handle([Arrived(f"r{t}", "one", (5.0,)), Finished(running, "a")], t))
        [(running, _)] = orders
        if running == "other":
            break
        t += 5.0
    assert t > 20 * 2.75
    assert t < 200.0


def test_patience_prefers_a_warm_window_then_the_cheapest() -> None:
    view, handle = start_of(PatienceRule(), 3)
    view.residents.load([0], "quad")
    view.residents.load([1], "sd")
    view.residents.load([2], "llm")
    assert names(handle([Arrived("r", "one", (5.0,))], 0.0)) == [("r", (2,))]
    assert names(handle([Arrived("s", "one", (5.0,))], 0.0)) == [("s", (1,))]


def test_patience_evicts_what_nobody_will_need() -> None:
    view, handle = start_of(PatienceRule(), 2)
    handle([Arrived("x", "draw", (50.0,)), Arrived("y", "one", (50.0,))], 0.0)
    handle([Finished("x", "a"), Finished("y", "a")], 100.0)
    held = [next(iter(models)) for models in view.residents.held]
    assert sorted(held) == ["llm", "sd"]
    handle([Arrived("l", "later", (50.0, 5.0))], 100.0)  # will need llm, but is not ready
    assert names(handle([Arrived("n", "new", (5.0,))], 100.0)) == [("n", (held.index("sd"),))]


def saturate(policy: str | WorkflowPolicy, until_s: float) -> float | None:
    """When a node of two GPUs starts on two GPUs that a stream of short nodes keeps busy, one or the other."""
    _, handle = start_of(policy, 2)
    ends: list[tuple[float, str]] = []

    def follow(orders: list[Any], now: float) -> float | None:
        for order in orders:
            if isinstance(order, Start):
                if order.job == "wide":
                    return now
                ends.append((now + order.setup_s + order.run_s, order.job))
        return None

    follow(handle([Arrived(f"n{i}", "one", (10.0 + 5 * i,)) for i in range(2)], 0.0), 0.0)
    follow(handle([Arrived("wide", "two", (10.0,))], 1.0), 1.0)
    number = 2
    while ends:
        ends.sort()
        now, done = ends.pop(0)
        if now > until_s:
            return None
        arrivals = [Arrived(f"n{number + i}", "one", (10.0,)) for i in range(2)]  # there is always narrow request
        number += 2
        found = follow(handle([Finished(done, "a"), *arrivals], now), now)
        if found is not None:
            return found
    raise AssertionError("the policy stopped deciding")


def test_patience_a_wide_node_is_not_starved_by_a_stream_of_narrow_ones() -> None:
    started = saturate(PatienceRule(starvation=0.5), 20_000.0)
    assert started is not None
    assert saturate("baseline", 20_000.0) is None, "the stream would starve it"


def test_patience_reserved_gpus_are_given_only_to_who_finishes_in_time(tmp_path: Path) -> None:
    reserved = 0
    for _, problem in cases(tmp_path, range(300)):
        policy = PatienceRule(starvation=0.0)

        def rule(view: View, choice: Place | None, policy: PatienceRule = policy) -> None:
            nonlocal reserved
            if policy._reserved is None or choice is None or choice.node is policy._reserved[0]:
                return
            reserved += 1
            kept = policy._reserved[1]
            ends_s = view.now + view.setup_s(choice.window, choice.node.model) + view.run_s(choice.node, choice.window)
            assert not set(kept) & set(choice.window) or ends_s <= view.free_at(kept)

        run(problem, Watched(policy, rule), journal=False)
    assert reserved > 20


def best_by_definition(policy: PatienceRule, view: View) -> tuple[float, int, Window]:
    """What the rule says of itself, without short cuts: the smallest key over every ready node and free window."""
    waiting = max(len(view.requests), policy.patience) / view.size
    keys = []
    for queue in view.queues.values():
        options = []
        for window in view.free_windows(queue.model):
            setup_s = view.residents.setup(window, queue.model)
            evicted = [(gpu, other) for gpu in window for other in view.residents.evicted(gpu, queue.model)]
            wasted = setup_s * queue.width
            for other in {other for _, other in evicted if view.queues.get(other)}:
                wasted += view.residents.reload_s(queue.model, other) * view.models[other].width
            regret = sum(
                view.residents.reload_s(queue.model, other)
                * (policy.look_ahead if view.demand[other] > 0 else 1.0)
                / (1 + (view.now - view.idle_since[gpu]) / 100)
                for gpu, other in evicted
            )
            warm = all(queue.model in view.residents.held[gpu] for gpu in window)
            options.append((not warm, wasted + regret, window, wasted))
        if options:
            cold, _, window, wasted = min(options)
            node = queue.head
            keys.append((node.rank + (waiting * wasted if cold else 0.0), node.seq, window))
    return min(keys)


def test_patience_takes_the_smallest_key_of_all(tmp_path: Path) -> None:
    decided = cold = 0
    for _, problem in cases(tmp_path, range(60)):
        policy = PatienceRule(starvation=1e9)  # no reservations

        def rule(view: View, choice: Place | None, policy: PatienceRule = policy) -> None:
            nonlocal decided, cold
            if choice is not None:
                key, seq, window = best_by_definition(policy, view)
                decided, cold = decided + 1, cold + (choice.why == "worth the load")
                assert (choice.node.seq, choice.window) == (seq, window), key

        run(problem, Watched(policy, rule))
    assert decided > cold > 200


# --- heterogeneous GPUs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_a_model_never_lands_on_a_gpu_too_small_for_it(name: str) -> None:
    types = {"big": DeviceType("big", 8 * 1024), "small": DeviceType("small", 4 * 1024, 0.5)}
    view = View(Pool.parse("small:3,big:1", types), MODELS, CostRules(), forecast={"llm": 10.0, "sd": 10.0})
    options = {"schedules": 3} if name == "optimise" else {}
    scheduler = WorkflowScheduler(view, GRAPHS, registry.create("workflow", name, options))
    requests = [Arrived(f"l{i}", "one", (5.0,)) for i in range(3)] + [
        Arrived(f"s{i}", "draw", (5.0,)) for i in range(9)
    ]
    orders, done = scheduler.handle(requests, 0.0), 0
    while starts := [order for order in orders if isinstance(order, Start)]:
        for start in starts:
            if start.kind == "llm":
                assert start.devices == (3,)
            assert start.run_s == (5.0 if start.devices == (3,) else 10.0), "a slow GPU takes longer"
        done += len(starts)
        orders = scheduler.handle([Finished(start.job, start.task) for start in starts], 100.0 * done)
    assert done == 12


@pytest.mark.parametrize("name", OURS)
def test_where_no_aligned_window_has_room_any_other_will_do(name: str) -> None:
    """Aligned windows keep to one type of GPU; here only two unlike neighbours are large enough."""
    types = {
        "small": DeviceType("small", 1024),
        "big": DeviceType("big", 8 * 1024),
        "huge": DeviceType("huge", 16 * 1024),
    }
    view = View(Pool.parse("small:2,big:1,huge:1", types), MODELS, CostRules(), forecast={"pair": 10.0})
    assert view.roomy_windows("pair") == {(2, 3)}
    options = {"schedules": 3} if name == "optimise" else {}
    scheduler = WorkflowScheduler(view, GRAPHS, registry.create("workflow", name, options))
    assert names(scheduler.handle([Arrived("r", "two", (5.0,))], 0.0)) == [("r", (2, 3))]
