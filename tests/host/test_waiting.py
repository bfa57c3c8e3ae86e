"""Who waits, kept from decision to decision: what it gives is what going through all programs would give."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.events import Arrived, Defer, Failed, Finished, Start
from dovetail.host.curves import curve
from dovetail.host.options import HostOptions
from dovetail.host.program import RUNNING, WAITING, Ask, Program, program_graph
from dovetail.host.scheduler import HostScheduler
from dovetail.host.waiting import WaitingPrograms


def program(seq: int) -> Program:
    return Program(str(seq), "p", seq, Ask(1), 0.0, curve("linear"), 0.0)


OPERATIONS = st.tuples(st.sampled_from(["come", "hold", "let", "start", "pause", "end", "tell"]), st.integers(0, 7))


@given(st.lists(OPERATIONS, max_size=60))
def test_those_who_may_run_are_all_of_them_in_the_order_of_arrivals(operations: list[tuple[str, int]]) -> None:
    waiting, all_of, held = WaitingPrograms(), dict[str, Program](), set[str]()
    near: set[str] = set()  # of whom something else was said last, or nothing yet
    for seq, (what, which) in enumerate(operations):
        if what == "come":
            new = program(seq)
            all_of[new.id] = new
            waiting.look_again(new)
            near.add(new.id)
        elif all_of:
            chosen = list(all_of.values())[which % len(all_of)]
            if what == "tell":
                waiting.told(chosen, far=which < 5)
                (near.discard if which < 5 else near.add)(chosen.id)
                continue
            near.add(chosen.id)
            if what == "end":
                waiting.leave(all_of.pop(chosen.id))
                continue
            if what in ("start", "pause"):
                chosen.state = RUNNING if what == "start" else WAITING
            else:
                (held.add if what == "hold" else held.discard)(chosen.id)
            waiting.look_again(chosen)
        found = waiting.ready(lambda p: p.state != RUNNING and p.id not in held)
        expected = [p for p in all_of.values() if p.state != RUNNING and p.id not in held]
        assert found == expected
        told = waiting.to_tell((), ())
        assert [p for p in expected if p.id in near] == [p for p in told if p.id in near]
        assert set(told) <= set(expected)


def scheduler(cores: int, **options: Any) -> HostScheduler:
    return HostScheduler(cores, {"p": program_graph("p", cores)}, HostOptions(**options))


def arrivals(count: int, **facts: Any) -> list[Arrived]:
    return [Arrived(str(i), "p", (0.0,), facts={"cores": 1} | facts) for i in range(count)]


def test_one_that_failed_while_it_was_paused_is_told_why_it_waits_again() -> None:
    host = scheduler(1, plan="rr", quantum_s=1.0)
    host.handle(arrivals(30, retries=1), 0.0)
    host.handle([], 1.0)  # its turn is over
    assert host.programs["0"].state == "paused"
    out = host.handle([Failed("0", "run", "it was killed")], 1.5)
    assert [order.job for order in out if isinstance(order, Defer)] == ["0"]


def test_who_has_ended_is_not_looked_at_again_by_those_who_waited_for_many() -> None:
    class Counted(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            self.looks += 1
            return super().__contains__(name)

    first, then = 200, 20
    host = scheduler(1)
    host._done = done = Counted()
    names = [str(i) for i in range(first)]
    behind = [Arrived(f"b{i}", "p", (0.0,), facts={"cores": 1, "after": names}) for i in range(then)]
    host.handle([*arrivals(first), *behind], 0.0)
    for now, job in enumerate(names):
        assert not any(program.may_run for program in host.programs.values() if program.id[0] == "b")
        done.looks = 0
        host.handle([Finished(job, "run")], float(now))
        assert done.looks <= 7 * then
    assert [program.id for program in host.programs.values() if program.state == "running"] == ["b0"]


def test_a_decision_looks_at_few_of_a_long_queue() -> None:
    looked = []

    class Counting(HostScheduler):
        def _look_at(self, program: Program, now: float) -> bool:
            looked.append(program.id)
            return super()._look_at(program, now)

    host = Counting(2, {"p": program_graph("p", 2)}, HostOptions())
    host.handle(arrivals(3000), 0.0)
    looked.clear()
    for now, job in enumerate(("0", "1", "2", "3"), 1):
        out = host.handle([Finished(job, "run")], float(now))
        assert sum(isinstance(order, Start) for order in out) == 1
    assert len(looked) <= 4 * 3
