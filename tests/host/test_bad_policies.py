"""A policy of one's own that fails, exits, or answers something else is stopped by its name, whatever it was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import host
from dovetail.core.errors import PolicyError
from dovetail.host.curves import curve
from dovetail.host.options import HostOptions
from dovetail.host.policies import Assignment, MachineView, Planning, Program
from dovetail.host.policies.contract import ANSWERS
from dovetail.host.program import Ask

RUNS = [{"threads": threads, "at_s": 10.0 * i} for i, threads in enumerate([4, 8, 2, 1, 16, 3])]
WORKLOAD = host.load(RUNS, cores=8, curves="table:2=785,3=425,4=313,5=248,8=171,16=101")
NOT_CALLED = {"lent", "must_have", "must_start"}  # by the scheduler: the checker asks


class Oldest(Planning):
    def order(self, view: MachineView) -> list[Program]:
        return sorted(view.waiting, key=lambda program: program.seq)


class Asked(Assignment):
    def most(self, program: Program, view: MachineView) -> int:
        return program.asked

    def take(self, program: Program, view: MachineView) -> int:
        return program.asked if program.asked <= view.free else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return program.asked - view.free


def fail(*_: Any) -> Any:
    raise ValueError("boom")


def leave(*_: Any) -> Any:
    sys.exit()


BAD: dict[str, Callable[..., Any]] = {
    "raise": fail,
    "exit": leave,
    "text": lambda *_: "x",
    "none": lambda *_: None,
    "negative": lambda *_: -5,
    "huge": lambda *_: 10**9,
    "nan": lambda *_: float("nan"),
    "infinite": lambda *_: float("inf"),
    "half": lambda *_: 1.5,
    "true": lambda *_: True,
    "list": lambda *_: ["x"],
    "mapping": lambda *_: {"x": "y"},
    "type": lambda *_: int,
}
GOOD = {
    "look_s": {"none", "negative", "huge", "half"},
    "lack": {"negative", "huge"},
    "must_start": {"true"},
    "refusal": {"text"},
    "reason": {"text"},
} | {method: {"huge"} for method in ("most", "frees", "keeps", "lent")}
METHODS = [(base, method) for base in (Oldest, Asked) for method in ANSWERS if hasattr(base, method)]


def policies_with(base: type, method: str, answer: Any) -> tuple[Planning, Assignment]:
    cheat = type("Cheat", (base,), {method: answer})()
    return (cheat, Asked()) if base is Oldest else (Oldest(), cheat)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("base", "method"), METHODS)
def test_a_bad_answer_is_refused_by_name_and_a_run_is_valid(base: type, method: str, bad: str) -> None:
    """Whatever is answered: a valid journal, or an error that names the method."""
    plan, assign = policies_with(base, method, BAD[bad])
    for options in ({}, {"first": "growth", "shrink": True}, {"overtaking": "backfill"}):
        told = ""
        try:
            report = host.simulate(WORKLOAD, plan, assign, **options).check()
            assert report.valid or (method in NOT_CALLED and set(report.faults_by_code) == {"idle"})
        except PolicyError as error:
            told = str(error)
        assert not told or (f"Cheat.{method} " in told and bad not in GOOD.get(method, ()))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("base", "method"), METHODS)
def test_every_method_is_looked_after(base: type, method: str, bad: str) -> None:
    view = MachineView(8, HostOptions())
    one, other = (
        Program(id, "p", seq, Ask(cores=2), 60.0, curve("linear"), 0.0) for seq, id in enumerate(("one", "other"))
    )
    one.bound(2, 8, 1, None)
    other.bound(2, 8, 1, None)
    view.running, view.waiting, view.widths = [one], [other], {"one": 2}
    plan, assign = policies_with(base, method, BAD[bad])
    asked = getattr(plan if base is Oldest else assign, method)
    given = {"may_pause": (other, view), "reason": (other, 2, view)}
    alone = {"order", "over", "look_s", "lent", "spread", "must_have"}
    words = given.get(method, (view,) if method in alone else (one if method == "frees" else other, view))
    if bad in GOOD.get(method, ()):
        asked(*words)
        return
    with pytest.raises(PolicyError, match=rf"\.Cheat\.{method} (failed: \w+: |gave .*, expected )"):
        asked(*words)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("order", lambda self, view: view.waiting * 2),
        ("over", lambda self, view: view.running * 2),
        ("over", lambda self, view: view.waiting),
    ],
)
def test_programs_of_another_kind_or_twice_are_refused(method: str, answer: Any) -> None:
    with pytest.raises(PolicyError, match=rf"Cheat\.{method} gave .*, each once"):
        host.simulate(WORKLOAD, *policies_with(Oldest, method, answer))


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("take", lambda self, program, view: program.asked),
        ("take", lambda self, program, view: view.cores),
        ("spread", lambda self, view: {p.id: view.cores for p in view.running}),
        ("spread", lambda self, view: dict.fromkeys(view.widths, 0)),
        ("spread", lambda self, view: {}),
    ],
)
def test_cores_that_a_program_cannot_have_are_refused(method: str, answer: Any) -> None:
    with pytest.raises(PolicyError, match=rf"Cheat\.{method} gave .*, expected .*cores"):
        host.simulate(WORKLOAD, *policies_with(Asked, method, answer))


def test_methods_from_elsewhere_are_looked_after_and_inner_ones_are_named(tmp_path: Path) -> None:
    class Elsewhere:
        def keeps(self, program: Program, view: MachineView) -> Any:
            return "all"

    with pytest.raises(PolicyError, match=r"Mixed\.keeps gave 'all'"):
        host.simulate(WORKLOAD, Oldest(), type("Mixed", (Elsewhere, Asked), {}))
    with pytest.raises(PolicyError, match=r"Inner\.most gave None"):
        host.simulate(WORKLOAD, Oldest(), type("Inner", (Asked,), {"most": lambda *_: None}))


def test_methods_may_be_called_with_names_and_take_more_than_ours_do() -> None:
    class Named(Asked):
        def most(self, program: Program, view: MachineView, more: int = 0) -> int:
            return program.asked + more

        def take(self, program: Program, view: MachineView, *, at_least: int = 1) -> int:
            cores = min(program.asked, view.free, self.most(more=0, view=view, program=program))
            return cores if cores >= max(self.most(program, view, 0), at_least) else 0

        def spread(self, view: MachineView, why: str = "") -> dict[str, int]:
            return dict(view.widths)

    assert host.simulate(WORKLOAD, Oldest(), Named()).check().valid
    view = MachineView(8, HostOptions())
    assert Named().spread(why="to see", view=view) == {}
    bad: Any = policies_with(Named, "most", lambda *_, **named: "x")[1]
    for given, named in (((), {"program": None, "view": view}), ((None, view, 3), {})):
        with pytest.raises(PolicyError, match=r"Cheat\.most gave 'x', expected"):
            bad.most(*given, **named)


@pytest.mark.parametrize("method", sorted(NOT_CALLED))
def test_the_checker_notes_whom_it_cannot_ask(method: str) -> None:
    report = host.simulate(WORKLOAD, *policies_with(Asked, method, leave)).check()
    assert report.valid
    assert method == "must_start" or any(f"Cheat.{method} failed: SystemExit" in note for note in report.notes)
