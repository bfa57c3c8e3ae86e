"""The state machine: stimuli in, instructions with reasons out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Defer,
    Failed,
    Finished,
    Instruction,
    Measured,
    Observed,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stimulus,
    Stop,
    WakeAt,
    Woke,
)
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.program import program_graph
from dovetail.host.scheduler import HostScheduler
from dovetail.host.simulate import run

CORES = 8
GRAPHS = {"p": program_graph("p", CORES)}


def arrive(name: str, cores: int, size: float = 80.0, **facts: Any) -> Arrived:
    return Arrived(name, "p", (size,), facts={"cores": cores, **facts})


def scheduler(**options: Any) -> HostScheduler:
    return HostScheduler(CORES, GRAPHS, msgspec.convert(options, HostOptions))


def told(orders: list[Instruction]) -> list[str]:
    """Orders in short: what, whom, how many cores."""
    found = []
    for order in orders:
        match order:
            case Start() | Resume() | Resize():
                found.append(f"{type(order).__name__.lower()} {order.job} {len(order.devices)}")
            case WakeAt():
                found.append(f"wake {order.at_s:g}")
            case Pause() | Stop() | Defer() | Complete() | Reject():
                found.append(f"{type(order).__name__.lower()} {order.job}")
    return found


def whys(orders: list[Instruction], kind: type[Instruction]) -> list[str]:
    return [order.why for order in orders if isinstance(order, kind)]  # type: ignore[union-attr]


def simulated(options: HostOptions, *arrivals: tuple[float, Stimulus]) -> dict[str, Any]:
    rows = run(Workload(CORES, arrivals, GRAPHS), options).rows  # type: ignore[arg-type]
    return {row.program: row for row in rows}


def test_every_wait_shrink_and_pause_has_its_reason() -> None:
    strict = scheduler()
    strict.handle([arrive("a", 6)], 0.0)
    orders = strict.handle([arrive("b", 4), arrive("c", 1)], 1.0)
    assert told(orders) == ["defer b", "defer c"]
    assert whys(orders, Defer) == ["needs 4 cores, 2 free", "behind b, which needs 4 cores, 2 free"]
    assert told(strict.handle([Woke()], 2.0)) == []  # the reason is the same
    orders = strict.handle([Finished("a", "run"), arrive("d", 8), arrive("e", 8)], 3.0)
    assert whys(orders, Defer) == ["needs 8 cores, 3 free", "behind d, which needs 8 cores, 3 free"]
    orders = strict.handle([Asked("d", "pause")], 4.0)
    assert whys(orders, Defer) == ["its user paused it", "needs 8 cores, 3 free"]
    share = scheduler(assign="max_prop")
    share.handle([arrive("a", 4)], 0.0)
    orders = share.handle([arrive("b", 4)], 1.0)
    assert whys(orders, Resize) == ["shrinks to 4 of 8 cores for 4 of 8 asked"]
    urgent = scheduler(plan="priority", preemptive=True)
    urgent.handle([arrive("a", 8, priority=3)], 0.0)
    orders = urgent.handle([arrive("b", 8)], 1.5)
    assert whys(orders, Pause) == ["gives way to b, which is more urgent (ran 1.5 s)"]


def test_only_the_front_of_a_long_queue_is_told_whom_it_waits_for() -> None:
    host = scheduler()
    names = [f"p{i}" for i in range(14)]
    told_at_first = {order.job: order.why for order in host.handle([arrive(name, 8) for name in names], 0.0)[1:]}  # type: ignore[union-attr]
    assert told_at_first["p1"] == "needs 8 cores, 0 free"
    assert told_at_first["p3"] == "behind p1, which needs 8 cores, 0 free"
    assert told_at_first["p4"] == told_at_first["p13"] == "3 or more others wait before it"
    orders = host.handle([Finished("p0", "run")], 1.0)
    assert {order.job: order.why for order in orders if isinstance(order, Defer)} == {
        "p2": "needs 8 cores, 0 free",
        **{f"p{i}": "behind p2, which needs 8 cores, 0 free" for i in range(3, 5)},
    }


def test_a_user_pauses_and_resumes() -> None:
    host = scheduler()
    host.handle([arrive("a", 8), arrive("b", 8)], 0.0)
    assert told(host.handle([Asked("a", "pause")], 5.0)) == ["pause a", "start b 8"]
    assert told(host.handle([Finished("b", "run")], 15.0)) == ["complete b"]  # it stays paused
    orders = host.handle([Asked("a", "resume")], 20.0)
    assert told(orders) == ["resume a 8"]
    assert isinstance(orders[0], Resume)
    assert orders[0].run_s == (80 - 5 * 8) / 8


def test_a_user_resizes() -> None:
    host = scheduler()
    host.handle([arrive("a", 4), arrive("b", 4)], 0.0)
    assert told(host.handle([Asked("a", "resize", 8)], 1.0)) == []  # all or nothing
    assert told(host.handle([Asked("b", "resize", 2)], 2.0)) == ["resize b 2"]
    assert told(host.handle([Finished("b", "run")], 3.0)) == ["complete b", "resize a 8"]
    assert told(host.handle([Asked("a", "resize", 99)], 4.0)) == []


def test_a_user_cancels_what_waits_and_what_runs() -> None:
    host = scheduler()
    host.handle([arrive("a", 8), arrive("b", 8), arrive("c", 8)], 0.0)
    assert told(host.handle([Asked("b", "cancel")], 1.0)) == ["reject b", "defer c"]
    assert told(host.handle([Asked("a", "cancel")], 2.0)) == ["stop a"]  # its cores are not free yet
    orders = host.handle([Failed("a", "run", "signal 15")], 3.0)
    assert told(orders) == ["reject a", "start c 8"]
    assert whys(orders, Reject) == ["cancelled by its user"]


def test_what_finishes_before_its_stop_is_complete() -> None:
    host = scheduler()
    host.handle([arrive("a", 8)], 0.0)
    host.handle([Asked("a", "cancel")], 1.0)
    assert told(host.handle([Finished("a", "run")], 1.1)) == ["complete a"]


def test_a_user_requeues() -> None:
    host = scheduler()
    host.handle([arrive("a", 8), arrive("b", 8)], 0.0)
    assert told(host.handle([Asked("a", "requeue")], 2.0)) == ["stop a"]
    assert told(host.handle([Failed("a", "run", "signal 15")], 3.0)) == ["start a 8"]  # it is still the oldest


def test_a_requeue_is_no_failure() -> None:
    host = scheduler()
    host.handle([arrive("a", 8, retries=1)], 0.0)
    host.handle([Asked("a", "requeue")], 1.0)
    host.handle([Failed("a", "run", "signal 15")], 2.0)
    assert told(host.handle([Failed("a", "run", "exit code 3")], 3.0)) == ["start a 8"]
    orders = host.handle([Failed("a", "run", "exit code 3")], 4.0)
    assert whys(orders, Reject) == ["failed 2 times: exit code 3"]


def test_a_user_changes_a_priority() -> None:
    host = scheduler(plan="priority")
    host.handle([arrive("a", 8), arrive("b", 8, priority=2), arrive("c", 8, priority=3)], 0.0)
    host.handle([Asked("c", "priority", 0)], 1.0)
    assert told(host.handle([Finished("a", "run")], 10.0))[:2] == ["complete a", "start c 8"]


@pytest.mark.parametrize("what", ["pause", "cancel", "resize", "requeue", "sing"])
def test_what_is_asked_of_nobody_is_ignored(what: str) -> None:
    assert scheduler().handle([Asked("nobody", what, 3)], 0.0) == []


def test_a_failed_program_is_tried_again_as_often_as_it_may() -> None:
    host = scheduler()
    host.handle([arrive("a", 8, retries=1)], 0.0)
    assert told(host.handle([Failed("a", "run", "exit code 3")], 1.0)) == ["start a 8"]
    orders = host.handle([Failed("a", "run", "exit code 3")], 2.0)
    assert whys(orders, Reject) == ["failed 2 times: exit code 3"]


def test_dependencies_wait_and_fail_together() -> None:
    host = scheduler()
    orders = host.handle([arrive("a", 1), arrive("b", 1, after=["a"]), arrive("c", 1, after=["b"])], 0.0)
    assert told(orders) == ["defer b", "defer c", "start a 1"]
    assert whys(orders, Defer) == ["waits for a", "waits for b"]
    assert told(host.handle([Finished("a", "run")], 1.0)) == ["complete a", "start b 1"]
    orders = host.handle([Failed("b", "run", "exit code 1")], 2.0)
    assert whys(orders, Reject) == ["failed: exit code 1", "waits for b, which was not completed"]
    assert whys(host.handle([arrive("d", 1, after=["b"])], 3.0), Reject) == ["waits for b, which was not completed"]
    assert whys(host.handle([arrive("e", 1, after=["zz"])], 3.0), Reject) == ["waits for zz, which is not known"]


@pytest.mark.parametrize("begin_s", [float("nan"), float("inf")])
def test_a_time_to_begin_must_come(begin_s: float) -> None:
    (why,) = whys(scheduler().handle([arrive("a", 1, begin_s=begin_s)], 0.0), Reject)
    assert f"begin_s: found {begin_s}, expected a time that comes" in why


def test_a_start_names_its_gpus() -> None:
    host = scheduler(gpus=[{"type": "a100", "memory_mib": 1024}] * 3)
    orders = host.handle([arrive("a", 1, gpus=1), arrive("b", 1, gpus=2)], 0.0)
    assert [why.rpartition(", ")[2] for why in whys(orders, Start)] == ["GPU 0", "GPUs 1-2"]


def test_a_less_urgent_one_of_a_full_group_gives_way() -> None:
    host = scheduler(plan="priority", preemptive=True)
    one: dict[str, Any] = {"group": "g", "parallel": 1}
    assert told(host.handle([arrive("x", 1, priority=9), arrive("a", 1, priority=5, **one)], 0.0)) == [
        "start a 1",
        "start x 1",
    ]
    orders = host.handle([arrive("b", 1, priority=0, **one)], 1.0)
    assert told(orders) == ["pause a", "start b 1", "defer a"]
    assert whys(orders, Pause) == ["gives way to b, which is more urgent (ran 1 s)"]
    assert told(host.handle([arrive("c", 1, priority=0, **one)], 2.0)) == ["defer c"]  # b is as urgent
    assert told(host.handle([Finished("b", "run")], 3.0)) == ["complete b", "start c 1"]
    assert told(host.handle([Finished("c", "run")], 4.0)) == ["complete c", "resume a 1"]


def test_who_waits_for_a_group_or_for_cores_is_told_anew_when_the_number_changes() -> None:
    host = scheduler()
    host.handle([arrive(name, 1, group="g", parallel=1) for name in "abc"], 0.0)
    orders = host.handle([Asked("", "group", facts={"group": "g", "parallel": 2})], 1.0)
    assert whys(orders, Defer) == ["of group g 2 may run at once"]
    orders = host.handle([Observed("group", {"group": "g", "parallel": 1})], 1.0)  # as earlier journals have it
    assert whys(orders, Defer) == ["of group g 1 may run at once"]
    assert whys(host.handle([arrive("d", 8)], 2.0), Defer) == ["needs 8 cores, 6 free"]
    assert whys(host.handle([Asked("d", "resize", 7)], 3.0), Defer) == ["needs 7 cores, 6 free"]


def test_nobody_of_a_full_group_is_paused_in_vain() -> None:
    host = scheduler(plan="priority", preemptive=True)
    host.handle([arrive("y", 7, priority=0), arrive("a", 1, priority=5, group="g", parallel=1)], 0.0)
    assert told(host.handle([arrive("b", 2, least=2, priority=0, group="g")], 1.0)) == ["defer b"]


def test_a_time_limit_counts_running_time_only() -> None:
    host = scheduler()
    assert told(host.handle([arrive("a", 8, 800.0, limit_s=10.0)], 0.0)) == ["start a 8", "wake 10"]
    host.handle([Asked("a", "pause")], 4.0)
    assert told(host.handle([Asked("a", "resume")], 100.0)) == ["resume a 8", "wake 106"]
    orders = host.handle([Woke()], 106.0)
    assert whys(orders, Stop) == ["ran for its limit of 10 s"]
    assert whys(host.handle([Failed("a", "run", "signal 9")], 107.0), Reject) == ["ran for its limit of 10 s"]


def test_the_memory_of_paused_programs_counts() -> None:
    host = scheduler(memory_mib=1000)
    orders = host.handle([arrive("a", 8, memory_mib=700), arrive("b", 8, memory_mib=400)], 0.0)
    assert whys(orders, Defer) == ["needs 400 MiB, 300 MiB are free"]
    assert told(host.handle([Asked("a", "pause")], 1.0)) == ["pause a"]
    assert whys(host.handle([arrive("c", 1, memory_mib=1001)], 2.0), Reject) == [
        "needs 1001 MiB, the machine has 1000 MiB"
    ]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"cores": 9}, "needs 9 cores, the machine has 8"),
        ({"cores": 0}, "expected 1 <= least"),
        ({"cores": 2, "least": 3}, "expected 1 <= least"),
        ({"cores": 2, "curve": "cubic"}, "curve 'cubic'"),
        ({"cores": 2, "prioriti": 1}, "unknown key 'prioriti'; did you mean 'priority'"),
        ({}, "missing key `cores`"),
    ],
)
def test_what_can_never_run_is_rejected_on_arrival(facts: dict[str, Any], said: str) -> None:
    orders = scheduler().handle([Arrived("a", "p", (1.0,), facts=facts)], 0.0)
    assert said in whys(orders, Reject)[0]


def test_an_elastic_program_may_ask_for_more_than_there_is() -> None:
    for assign in ("max_prop", "always_attend", "efficient"):
        assert told(scheduler(assign=assign).handle([arrive("a", 100)], 0.0)) == ["start a 8"]


def test_first_fit_overtakes_and_none_does_not() -> None:
    arrivals = [(0.0, arrive("a", 6, 600.0)), (1.0, arrive("big", 8)), (2.0, arrive("small", 2, 20.0))]
    assert simulated(HostOptions(), *arrivals)["small"].started_s == 110.0
    assert simulated(HostOptions(overtaking="first-fit"), *arrivals)["small"].started_s == 2.0


def test_first_fit_looks_at_everybody() -> None:
    host = scheduler(overtaking="first-fit")
    host.handle([arrive("a", 7)], 0.0)
    orders = host.handle([*(arrive(f"big{i}", 8) for i in range(20)), arrive("small", 1)], 1.0)
    assert told(orders)[0] == "start small 1"


def test_backfill_never_delays_the_first() -> None:
    """A short one fits before the big one starts, a long one would delay it."""
    arrivals = [(0.0, arrive("a", 6, 600.0)), (1.0, arrive("big", 8))]
    rows = simulated(HostOptions(overtaking="backfill"), *arrivals, (2.0, arrive("short", 2, 100.0)))
    assert (rows["short"].started_s, rows["big"].started_s) == (2.0, 100.0)
    rows = simulated(HostOptions(overtaking="backfill"), *arrivals, (2.0, arrive("long", 2, 900.0)))
    assert rows["big"].started_s == 100.0
    assert rows["long"].started_s == 110.0
    unknown = simulated(HostOptions(overtaking="backfill"), *arrivals, (2.0, arrive("unknown", 2, 0.0)))
    assert unknown["unknown"].started_s == 110.0


def test_age_makes_urgent_and_stops_overtaking() -> None:
    """A stream of urgent programs never ends; the old one goes first all the same."""
    stream = [(4.0 * i, arrive(f"u{i}", 8)) for i in range(40)]
    patient = (1.0, arrive("old", 8, priority=3))
    arrivals = sorted([*stream, patient], key=lambda pair: pair[0])
    never = simulated(HostOptions(plan="priority"), *arrivals)["old"]
    aged = simulated(HostOptions(plan="priority", age_step_s=20.0), *arrivals)["old"]
    assert never.started_s == 400.0
    assert 60 <= aged.started_s < 150
    small = [(4.0 * i, arrive(f"s{i}", 3, 36.0)) for i in range(40)]
    both = sorted([*small, (1.0, arrive("wide", 8))], key=lambda pair: pair[0])
    passed = simulated(HostOptions(overtaking="first-fit"), *both)["wide"]
    waited = simulated(HostOptions(overtaking="first-fit", age_step_s=20.0), *both)["wide"]
    assert passed.started_s > 150
    assert 21 <= waited.started_s < 40


def test_a_running_program_that_its_user_makes_less_urgent_can_be_paused() -> None:
    host = scheduler(plan="priority", preemptive=True)
    host.handle([arrive("a", 8)], 0.0)
    assert told(host.handle([arrive("b", 8, priority=1)], 1.0)) == ["defer b"]
    assert told(host.handle([Asked("a", "priority", 2)], 2.0)) == ["pause a", "start b 8", "defer a"]


def test_who_started_because_of_its_age_is_not_paused_for_the_next_urgent_one() -> None:
    stream = [(2.5 * i, arrive(f"u{i}", 8, 20.0)) for i in range(100)]
    arrivals = sorted([*stream, (1.0, arrive("old", 8, 80.0, priority=4))], key=lambda pair: pair[0])
    old = simulated(HostOptions(plan="priority", preemptive=True, age_step_s=5.0), *arrivals)["old"]
    assert old.pauses == 0
    assert 21 <= old.started_s < 25
    host = scheduler(plan="priority", preemptive=True, age_step_s=5.0)
    host.handle([arrive("a", 8, priority=4)], 0.0)
    assert told(host.handle([arrive("b", 8, priority=4)], 0.0))[0] == "defer b"
    assert told(host.handle([Woke()], 5.0))[:2] == ["pause a", "start b 8"]  # it is more urgent than a was at its start
    assert told(host.handle([Asked("b", "priority", 4), arrive("c", 8)], 6.0))[:2] == ["pause b", "start c 8"]


def test_a_round_asks_for_the_order_once() -> None:
    """Otherwise a decision costs the square of those that wait."""
    host, asked = scheduler(overtaking="first-fit"), []
    plan = host._plan
    order = plan.order
    plan.order = lambda view: asked.append(view.now) or order(view)  # type: ignore[method-assign,func-returns-value]
    host.handle([arrive(f"p{i}", 8) for i in range(50)], 0.0)
    assert asked == [0.0]


def test_a_newcomer_waits_its_turn() -> None:
    """Of two that wait, who has waited longer goes first, whether it has had a turn or not."""
    host = scheduler(plan="rr", quantum_s=10.0)
    host.handle([arrive("a", 8, 800.0), arrive("b", 8, 800.0)], 0.0)
    assert told(host.handle([Woke()], 10.0))[:2] == ["pause a", "start b 8"]
    host.handle([arrive("new", 8, 800.0)], 15.0)
    assert told(host.handle([Woke()], 20.0))[:2] == ["pause b", "resume a 8"]
    assert told(host.handle([Woke()], 30.0))[:2] == ["pause a", "start new 8"]


def test_the_victim_can_be_chosen_by_run_or_by_request() -> None:
    first = [arrive("long", 5, 500.0, priority=3)], [arrive("small", 3, 300.0, priority=3)]
    for victim, paused in (("longest", "long"), ("smallest", "small")):
        host = scheduler(plan="priority", preemptive=True, victim=victim)
        host.handle(first[0], 0.0)
        host.handle(first[1], 5.0)
        assert told(host.handle([arrive("urgent", 2)], 6.0))[0] == f"pause {paused}"


def test_nobody_is_paused_if_that_does_not_suffice() -> None:
    host = scheduler(plan="priority", preemptive=True)
    host.handle([arrive("a", 2, priority=3), arrive("b", 6, priority=0)], 0.0)
    assert told(host.handle([arrive("c", 8, priority=1)], 1.0)) == ["defer c"]


def test_a_turn_that_nobody_else_can_use_goes_on() -> None:
    host = scheduler(plan="rr", quantum_s=10.0, overtaking="first-fit")
    host.handle([arrive("a", 4, 400.0)], 0.0)
    host.handle([arrive("b", 4, 400.0), arrive("big", 8)], 5.0)
    orders = host.handle([Woke()], 10.0)
    assert not [order for order in orders if isinstance(order, Pause | Resume)]


def test_a_rigid_program_keeps_its_cores() -> None:
    host = scheduler(assign="max_prop")
    host.handle([arrive("a", 4, malleable=False)], 0.0)
    assert told(host.handle([arrive("b", 4)], 1.0)) == ["defer b"]


def test_a_rigid_program_keeps_its_number_of_cores_across_a_pause_but_not_a_failure() -> None:
    host = scheduler(assign="always_attend")
    host.handle([arrive("wide", 6), arrive("a", 6, malleable=False, retries=1)], 0.0)
    host.handle([Finished("wide", "run"), Asked("a", "pause")], 1.0)
    assert told(host.handle([Asked("a", "resume")], 2.0)) == ["resume a 2"]
    assert told(host.handle([Asked("a", "resize", 4)], 3.0)) == []
    assert told(host.handle([Asked("a", "pause"), arrive("b", 7)], 4.0)) == ["pause a", "start b 7"]
    assert whys(host.handle([Asked("a", "resume")], 5.0), Defer) == ["needs at least 2 cores, 1 free"]
    assert told(host.handle([Finished("b", "run")], 6.0)) == ["complete b", "resume a 2"]
    assert told(host.handle([Failed("a", "run", "exit code 1")], 7.0)) == ["start a 6"]


def test_always_attend_can_be_made_to_shrink() -> None:
    host = scheduler(assign="always_attend", shrink=True)
    host.handle([arrive("a", 8)], 0.0)
    assert told(host.handle([arrive("b", 4, least=2)], 1.0)) == ["resize a 6", "start b 2"]


def test_growth_can_go_first() -> None:
    arrivals = [(0.0, arrive("a", 4, 40.0)), (0.0, arrive("b", 8, 400.0)), (1.0, arrive("c", 4, 40.0))]
    assert simulated(HostOptions(assign="always_attend"), *arrivals)["c"].started_s == 10.0
    assert simulated(HostOptions(assign="always_attend", first="growth"), *arrivals)["c"].started_s > 10.0


def test_cores_are_kept_and_had_again() -> None:
    host = scheduler(assign="max_prop")
    first = host.handle([arrive("a", 4)], 0.0)[0]
    assert isinstance(first, Start)
    shrunk = host.handle([arrive("b", 4)], 1.0)[0]
    assert isinstance(shrunk, Resize)
    assert set(shrunk.devices) < set(first.devices)


def test_options_are_checked() -> None:
    for wrong in ({"quantum_s": 0.0}, {"age_step_s": -1.0}, {"min_cores": 0}, {"max_cores": 1, "min_cores": 2}):
        with pytest.raises(InputError, match="expected"):
            HostOptions(**wrong)


def test_what_nobody_resumes_is_rejected_in_the_end() -> None:
    rows = simulated(HostOptions(), (0.0, arrive("a", 8)), (1.0, Asked("a", "pause")))
    assert (rows["a"].status, rows["a"].why) == ("rejected", "its user paused it and never resumed it")


def test_a_measured_speed_becomes_a_curve_unless_the_user_gave_one() -> None:
    host = scheduler(assign="efficient")
    host.handle([arrive("flat", 4), arrive("linear", 4), arrive("given", 1, curve="amdahl:0")], 0.0)
    before = {name: len(program.cores) for name, program in host.programs.items()}
    assert before == {"flat": 6, "linear": 1, "given": 1}  # all that is known is that more is faster
    assert told(host.handle([Measured("flat", "run", 6, 5.0)], 1.0)) == []  # one number of cores says nothing
    orders = host.handle([Measured("flat", "run", 1, 5.0), Measured("given", "run", 1, 1.0)], 2.0)
    assert told(orders) == ["resize flat 1", "resize linear 6"]
    host.handle([Measured("given", "run", 2, 9.0)], 3.0)
    assert host.programs["given"].curve.text == "amdahl:0"
    assert host.programs["flat"].left == 80.0 - 2 * 6  # what it did until then was counted as it was known then


def test_strict_lends_idle_cores_to_who_said_that_it_can_use_them_until_somebody_can_start() -> None:
    host = scheduler()
    orders = host.handle([arrive("a", 2, most=6), arrive("b", 1)], 0.0)
    assert told(orders) == ["start a 6", "start b 1"]
    assert whys(orders, Start) == ["6, of which 4 lent while idle", "1 of 1 asked"]
    orders = host.handle([arrive("c", 4)], 1.0)
    assert told(orders) == ["resize a 3", "start c 4"]  # one is still idle
    assert told(host.handle([arrive("d", 2)], 2.0)) == ["defer d"]  # what was asked for is never taken
    assert whys(host.handle([Finished("c", "run")], 3.0), Start) == ["2 of 2 asked"]
    assert told(host.handle([Finished("b", "run")], 4.0)) == ["complete b", "resize a 6"]


def test_lent_cores_go_where_they_gain_and_to_nobody_that_they_do_not_make_faster() -> None:
    host = scheduler()
    flat: dict[str, Any] = {"most": 8, "curve": "amdahl:0"}
    steep: dict[str, Any] = {"most": 8, "curve": "amdahl:0.9"}
    assert told(host.handle([arrive("a", 1, **flat), arrive("b", 1, **steep)], 0.0)) == ["start a 1", "start b 7"]
    assert told(host.handle([arrive("c", 1, **steep)], 1.0)) == ["resize b 4", "start c 3"]


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({}, {}),
        ({"most": 2}, {}),
        ({"most": 8, "malleable": False}, {}),
        ({"most": 8}, {"shrink": False}),
        ({"most": 8}, {"first": "growth"}),
        ({"most": 8}, {"max_cores": 2}),
    ],
)
def test_strict_lends_to_nobody_that_did_not_say_so_or_could_not_give_back(
    facts: dict[str, Any], options: dict[str, Any]
) -> None:
    assert told(scheduler(**options).handle([arrive("a", 2, **facts)], 0.0)) == ["start a 2"]


def test_a_borrower_that_asks_for_more_gets_it_before_others_borrow() -> None:
    host = scheduler()
    host.handle([arrive("a", 2, most=8), arrive("b", 2, most=8)], 0.0)
    assert told(host.handle([Asked("b", "resize", 6)], 1.0)) == ["resize a 2", "resize b 6"]
    assert told(host.handle([Asked("b", "resize", 1)], 2.0)) == ["resize b 1", "resize a 7"]
