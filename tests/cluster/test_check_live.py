"""The checker of live cluster journals: a run is written by hand, and planted faults are found, each by its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.check import check_journal
from dovetail.cluster.header import facts_of, header
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.metrics import closing, metrics_for
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Writer
from dovetail.core.loop.replay import replay_journal
from tests.cluster.conftest import FixedPrices

Lines = list[dict[str, Any]]
RULES = RoundRules(round_s=100.0, restart_s=10.0, decide_at=0.5)
NONE = np.zeros((0, 2))


def _arrived(*ids: int, at_s: float) -> Rows:
    count = len(ids)
    return Rows("arrived", {"id": [*ids], "kind": [0] * count, "steps": [400.0] * count, "at_s": [at_s] * count})


HAPPENS: list[tuple[float, list[Rows]]] = [
    (0.0, [records.joined([0, 1, 2], [0, 0, 1], [0, 0, 1])]),
    (
        1.0,
        [
            records.kinds(["cnn", "cnn"], [1, 2], [[2.0, 1.0], [3.0, 0.0]]),
            records.costs([0], [0], [7.0]),
            records.costs([0, 0], [0, 1], [2.0, 3.0], [True, True]),
            _arrived(3, 5, 6, 9, at_s=1.0),
        ],
    ),
    (20.0, [records.progress([3, 5], [1, 1], [30.0, 20.0], [10.0, 20.0])]),
    (30.0, [records.exited([5], [1], ["exit code 1"])]),
    (51.0, [records.due("plan")]),
    (101.0, [records.due("round")]),
    (102.0, [records.progress([3], [1], [150.0], [150.0])]),
    (120.0, [records.failed([2])]),
    (130.0, [records.drained([0])]),
    (151.0, [records.due("plan")]),
    (201.0, [records.due("round")]),
    (210.0, [records.mended([2]), records.undrained([0]), records.learned([0], [0], [2.5])]),
    (220.0, [records.policy("max_min_fairness_perf")]),
    (251.0, [records.due("plan")]),
    (301.0, [records.due("round")]),
    (302.0, [records.cancelled([6])]),
]


def _setup() -> ClusterSetup:
    return ClusterSetup(
        counts=np.zeros(2, dtype=np.int64),
        per_server=np.array([2, 1]),
        throughputs=Throughputs(("fast", "slow"), [], NONE, NONE, np.zeros((0, 0, 2))),
        prices=FixedPrices([1.0, 1.0]),
        jobs=(),
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Four jobs on three accelerators: one fails five times and is given up, one is cancelled, two are completed."""
    path = tmp_path_factory.mktemp("live") / "run.jsonl"
    rounds = Rounds(_setup(), make("max_min_fairness_packed"), RULES, reported=True)
    first = header(_setup(), make("max_min_fairness_packed"), "max_min_fairness_packed", {}, RULES, "changes", "live")
    metrics = metrics_for(facts_of(first))
    with Writer(path, first) as writer:
        n, now = 0, 0.0

        def step(now: float, rows: list[Rows]) -> None:
            nonlocal n
            found = rounds.handle(rows, now)
            if found:
                n += 1
                writer.step(n, now, found)
                metrics.step(n, now, found)

        for now, rows in HAPPENS:
            step(now, rows)
        for i in range(5):  # it saves once more, and then never again
            while 5 not in (held := rounds.leases()):
                now = rounds.next_s
                step(now, rounds.due(now))
            now += 1.0
            kept = [records.kept([5], [held[5].epoch])] if i == 0 else []
            step(now, [*kept, records.exited([5], [held[5].epoch], ["exit code 1"])])
        for job in (3, 9):
            while job not in (held := rounds.leases()):
                now = rounds.next_s
                step(now, rounds.due(now))
            now += 1.0
            done = records.progress([job], [held[job].epoch], [400.0], [400.0])
            step(now, [done, records.completed([job], [now])])
        writer.end(n + 1, now, closing(metrics))
    assert replay_journal(path).difference is None
    return [json.loads(line) for line in path.read_text().splitlines()]


def _codes(lines: Lines, tmp_path: Path) -> set[str]:
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return set(check_journal(path).faults_by_code)


def test_the_run_itself_is_valid_and_has_everything(lines: Lines, tmp_path: Path) -> None:
    assert _codes(lines, tmp_path) == set()
    told = {line.get("of") for line in lines}
    assert {"kinds", "costs", "learned", "progress", "exited", "planned", "given_up", "cancelled", "due"} <= told
    assert {"joined", "drained", "undrained", "failed", "mended", "policy"} <= told


def _all(lines: Lines, of: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("of") == of]


def _columns(lines: Lines, of: str, k: int = 0) -> dict[str, Any]:
    columns: dict[str, Any] = _all(lines, of)[k]["columns"]
    return columns


def _epoch_again(lines: Lines) -> None:
    started = next(line for line in _all(lines, "started") if max(line["columns"]["epoch"]) > 1)["columns"]
    started["epoch"] = [1] * len(started["epoch"])


def _no_epoch(lines: Lines) -> None:
    del _columns(lines, "started")["epoch"]


def _on_drained(lines: Lines) -> None:
    """It was drained before the first lease began there."""
    at = lines.index(_all(lines, "joined")[0])
    device = _columns(lines, "started")["devices"][0][0]
    lines.insert(at + 1, {**_all(lines, "drained")[0], "n": 1, "t": 0.0, "columns": {"device": [device]}})


def _stays_on_drained(lines: Lines) -> None:
    """All were drained, and who was there stays when the round begins."""
    _columns(lines, "drained")["device"] = [0, 1, 2]
    for line in [line for line in lines if line.get("t") == 201.0 and line.get("of") in ("started", "stopped")]:
        lines.remove(line)


def _on_gone(lines: Lines) -> None:
    mended = _all(lines, "mended")[0]
    lines.remove(mended)


def _back_beyond_saved(lines: Lines) -> None:
    lines.insert(
        lines.index(_all(lines, "progress")[1]) + 1,
        {**_all(lines, "progress")[1], "columns": {"id": [3], "epoch": [1], "steps": [149.0], "saved": [149.0]}},
    )


def _old_process(lines: Lines) -> None:
    last = _all(lines, "progress")[-1]["columns"]
    last["epoch"] = [0]


def _never_ran(lines: Lines) -> None:
    first = _all(lines, "progress")[0]["columns"]
    first["id"][0] = 9 if 9 not in _columns(lines, "started")["id"] else 6


def _more_saved(lines: Lines) -> None:
    _columns(lines, "progress")["saved"][0] = 31.0


def _too_early(lines: Lines) -> None:
    exited = [line for line in _all(lines, "exited") if line["columns"]["id"] == [5]]
    lines.remove(exited[1])


def _not_given_up(lines: Lines) -> None:
    lines.remove(_all(lines, "given_up")[0])


def _nothing_kept(lines: Lines) -> None:
    lines.remove(_all(lines, "kept")[0])


def _kept_by_nobody(lines: Lines) -> None:
    _columns(lines, "kept")["epoch"] = [7]


def _too_soon(lines: Lines) -> None:
    """A round begins half a round after the last one."""
    second = [line for line in _all(lines, "due") if line["columns"]["what"] == ["plan"]][1]
    second["columns"]["what"] = ["round"]


def _another_plan(lines: Lines) -> None:
    for line in _all(lines, "planned"):
        line["columns"]["devices"] = [[] for _ in line["columns"]["id"]]
        line["columns"]["on"] = [-1] * len(line["columns"]["id"])


def _no_plan(lines: Lines) -> None:
    lines.remove(_all(lines, "planned")[0])


def _plan_where_somebody_stays(lines: Lines) -> None:
    """Whoever is to begin would have an accelerator that is not given up."""
    for line in _all(lines, "planned"):
        columns = line["columns"]
        begins = [i for i, places in enumerate(columns["devices"]) if places]
        if begins:
            columns["devices"][begins[0]] = [(d + 1) % 2 for d in columns["devices"][begins[0]]]
            return


def _plan_out_of_time(lines: Lines) -> None:
    planned = _all(lines, "planned")[0]
    lines.insert(lines.index(_all(lines, "progress")[0]) + 1, {**planned, "n": 3, "t": 20.0})


def _exit_of_an_earlier_process(lines: Lines) -> None:
    exited = _all(lines, "exited")[-2]["columns"]
    exited["epoch"] = [exited["epoch"][0] - 1]


def _ends_for_nothing(lines: Lines) -> None:
    lines.remove(_all(lines, "exited")[0])


def _ended_later(lines: Lines) -> None:
    stopped = _columns(lines, "stopped")
    stopped["to_s"] = [to_s - 1.0 for to_s in stopped["to_s"]]


def _invented_steps(lines: Lines) -> None:
    stopped = next(line for line in _all(lines, "stopped") if 3 in line["columns"]["id"])["columns"]
    stopped["steps"][stopped["id"].index(3)] += 50.0


def _shares_after_all(lines: Lines) -> None:
    """Two start together, long after a policy came that does not do that."""
    changed = _all(lines, "policy")[0]["t"]
    started = next(line for line in _all(lines, "started") if line["t"] > changed)["columns"]
    started["beside"] = [3] * len(started["id"])


def _wide_after_all(lines: Lines) -> None:
    started = _columns(lines, "started")
    started["kind"][0] = 1


def _unknown_kind(lines: Lines) -> None:
    _columns(lines, "learned")["kind"] = [7]


def _kind_again(lines: Lines) -> None:
    _columns(lines, "kinds")["width"] = [1, 1]


def _joins_out_of_order(lines: Lines) -> None:
    _columns(lines, "joined")["device"] = [0, 2, 1]


def _cheap(lines: Lines) -> None:
    _columns(lines, "costs")["restart_s"] = [8.0]


def _priced(lines: Lines, was_s: float, is_s: float) -> None:
    columns = next(line["columns"] for line in _all(lines, "started") if was_s in line["columns"].get("setup_s", []))
    columns["setup_s"] = [is_s if price_s == was_s else price_s for price_s in columns["setup_s"]]


def _not_as_planned(lines: Lines) -> None:
    """A start that was planned ahead costs what any other does."""
    _priced(lines, 2.0, 7.0)


def _cheap_though_not_planned(lines: Lines) -> None:
    _priced(lines, 7.0, 2.0)


def _cancelled_twice(lines: Lines) -> None:
    cancelled = _all(lines, "cancelled")[0]
    lines.insert(lines.index(cancelled) + 1, cancelled)


def _twice_at_once(lines: Lines) -> None:
    started = _all(lines, "started")[0]
    lines.insert(lines.index(started) + 1, started)


def _numbers_fall(lines: Lines) -> None:
    _columns(lines, "arrived")["id"] = [3, 6, 5, 9]


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (_epoch_again, "epoch"),
        (_no_epoch, "epoch"),
        (_on_drained, "device"),
        (_stays_on_drained, "drained"),
        (_on_gone, "device"),
        (_shares_after_all, "policy"),
        (_wide_after_all, "policy"),
        (_back_beyond_saved, "progress"),
        (_old_process, "progress"),
        (_never_ran, "progress"),
        (_more_saved, "progress"),
        (_too_early, "given_up"),
        (_not_given_up, "given_up"),
        (_nothing_kept, "given_up"),
        (_kept_by_nobody, "epoch"),
        (_too_soon, "time"),
        (_another_plan, "plan"),
        (_no_plan, "plan"),
        (_plan_where_somebody_stays, "plan"),
        (_plan_out_of_time, "plan"),
        (_exit_of_an_earlier_process, "finish"),
        (_ends_for_nothing, "finish"),
        (_ended_later, "finish"),
        (_invented_steps, "steps"),
        (_unknown_kind, "kind"),
        (_kind_again, "kind"),
        (_joins_out_of_order, "device"),
        (_cheap, "restart"),
        (_not_as_planned, "restart"),
        (_cheap_though_not_planned, "restart"),
        (_cancelled_twice, "closed"),
        (_twice_at_once, "twice"),
        (_numbers_fall, "arrival"),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[Lines], None], code: str, lines: Lines, tmp_path: Path) -> None:
    changed = copy.deepcopy(lines)
    plant(changed)
    assert code in _codes(changed, tmp_path)


@pytest.mark.parametrize(
    ("of", "column", "value", "message"),
    [
        ("due", "what", ["noon"], "due: Invalid enum value 'noon'"),
        ("progress", "saved", [1.0], "progress.saved has 1 values, expected 2"),
        ("exited", "why", [3], "exited: Expected `str`, got `int`"),
        ("kinds", "width", [0, 1], "kinds: Expected `int` >= 1"),
        ("policy", "options", [], "policy.options has 0 values, expected 1"),
        ("joined", "server", [0], "joined.server has 1 values, expected 3"),
        ("costs", "ahead", [1], "costs: Expected `bool`, got `int`"),
        ("costs", "ahead", [True, False], "costs.ahead has 2 values, expected 1"),
        ("planned", "on", [-2], "planned: Expected `int` >= -1"),
    ],
)
def test_rows_of_another_form_are_refused_with_their_line(
    of: str, column: str, value: list[Any], message: str, lines: Lines, tmp_path: Path
) -> None:
    changed = copy.deepcopy(lines)
    _columns(changed, of)[column] = value
    with pytest.raises(InputError, match=r"changed\.jsonl:\d+: ") as found:
        _codes(changed, tmp_path)
    assert message in str(found.value)


def test_whatever_was_due_cannot_be_left_out(lines: Lines, tmp_path: Path) -> None:
    """Each `due`, and its whole step if it is alone there: steps are numbered anew, so that no gap tells of it."""
    places = [i for i, line in enumerate(lines) if line.get("of") == "due"]
    assert len(places) > 10
    for at in places:
        changed = copy.deepcopy(lines)
        n = changed.pop(at)["n"]
        if not any(line["n"] == n for line in changed[1:]):
            for line in changed[1:]:
                line["n"] -= line["n"] > n
        assert {"time"} <= _codes(changed, tmp_path)
