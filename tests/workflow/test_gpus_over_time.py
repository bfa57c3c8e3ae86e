"""GPUs that come and go: who may start where and when, what it costs, and that the checker finds who does not obey."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Decided, Finished, Start
from dovetail.core.journal import Reader
from dovetail.testing.workflow.reactive import scale_on_use
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.plan_over_time import ask_ahead
from dovetail.workflow.policies.base import Place, WorkflowPolicy
from dovetail.workflow.policies.view import View

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 3, "inference_time_mean": 1}
CONFIG: dict[str, Any] = {
    "models": {"a": MODEL, "b": MODEL},
    "workflows": {name: {"nodes": [{"id": "n", "model": name}]} for name in "ab"},
}


def rows(*given: tuple[float, float], of: str = "a") -> list[dict[str, Any]]:
    """Requests that arrive at a time and run for a time."""
    return [
        {"request_id": f"r{i}", "workflow_id": of, "timestamp": at, "node_execution_times": {"n": run}}
        for i, (at, run) in enumerate(given)
    ]


def run(
    requests: list[dict[str, Any]], steps: Sequence[Sequence[float]], delay_s: float = 0.0, gpus: int = 2, **how: Any
) -> workflow.WorkflowRun:
    over_time = {"steps": steps, "scale_up_s": delay_s}
    problem = workflow.load(CONFIG, requests, gpus=gpus, mode="online", gpus_over_time=over_time)
    return workflow.run(problem, how.pop("policy", "baseline"), **how)


def starts(found: workflow.WorkflowRun) -> list[tuple[float, tuple[int, ...], float]]:
    return [(t, event.devices, event.setup_s) for _, t, event in Reader(found.journal) if isinstance(event, Start)]


# --- the rules, one by one ------------------------------------------------------------------------


def test_a_gpu_that_goes_finishes_what_it_runs_and_takes_nothing_more() -> None:
    found = run(rows((0, 100), (0, 100), (1, 100)), [[0, 2], [50, 1]])
    assert starts(found) == [(0, (0,), 3), (0, (1,), 3), (103, (0,), 0)]
    assert found.check().valid
    assert found.metrics["gpu_hours"] == pytest.approx((203 + 103) / 3600)  # the second is gone when it has finished


def test_a_gpu_that_comes_is_there_after_the_delay_and_empty() -> None:
    found = run(rows((0, 10), (0, 10), (200, 10), (200, 50)), [[0, 2], [50, 1], [100, 2]], delay_s=120)
    assert starts(found) == [(0, (0,), 3), (0, (1,), 3), (200, (0,), 0), (210, (0,), 0)]
    found = run(rows((0, 10), (0, 10), (200, 40), (200, 50)), [[0, 2], [50, 1], [100, 2]], delay_s=120)
    assert starts(found)[3:] == [(220, (1,), 3)]  # it had the model before it went
    assert found.metrics["gpu_hours"] == pytest.approx((273 + 50 + 173) / 3600)  # paid for while it comes
    assert found.check().valid


def test_a_gpu_that_never_went_keeps_its_model() -> None:
    found = run(rows((0, 100), (0, 100), (150, 10), (150, 10)), [[0, 2], [50, 1], [60, 2]], delay_s=20)
    assert starts(found)[2:] == [(150, (0,), 0), (150, (1,), 0)]
    assert found.check().valid


def test_one_that_ends_as_it_comes_back_has_gone() -> None:
    found = run(rows((0, 100), (0, 77), (150, 10), (150, 10)), [[0, 2], [50, 1], [60, 2]], delay_s=20)
    assert starts(found)[2:] == [(150, (0,), 0), (150, (1,), 3)]
    assert found.check().valid


def test_what_changes_is_told_with_a_reason() -> None:
    found = run(rows((0, 10), (200, 10)), [[0, 2], [50, 1], [100, 2]], delay_s=20)
    told = [(t, event) for _, t, event in Reader(found.journal) if isinstance(event, Decided)]
    assert [(t, event.why, event.facts["gpus"]) for t, event in told] == [
        (50, "the plan closes 1", 1),
        (120, "the plan opens 1", 2),
    ]


def test_who_waited_for_a_gpu_that_was_off_is_told_so() -> None:
    found = run(rows((0, 10), (60, 30), (60, 30)), [[0, 2], [50, 1]])
    told = str(found.explain("r2"))
    assert "No device was free when it became ready; held were [0] by r1/n (a)." in told
    assert "At 60.00 s it had to wait: GPU 1 was off." in told
    assert "preferred others" not in told
    assert "GPU-hours paid" in found.text()


def test_wide_nodes_use_only_what_is_there() -> None:
    config = {"models": {"a": MODEL | {"gpus_required": 2}}, "workflows": {"a": CONFIG["workflows"]["a"]}}
    how: dict[str, Any] = {"gpus": 4, "mode": "online"}
    requests = rows((0, 10), (0, 10), (20, 10), (20, 10))
    problem = workflow.load(config, requests, gpus_over_time={"steps": [[0, 4], [15, 2]]}, **how)
    assert [where for _, where, _ in starts(workflow.run(problem))] == [(0, 1), (2, 3), (0, 1), (0, 1)]
    with pytest.raises(InputError, match=r"node 'n' \(model 'a'\) needs 2 GPUs, the pool has 1"):
        workflow.load(config, requests, gpus_over_time={"steps": [[0, 4], [15, 1]]}, **how)


# --- the definition as oracle ---------------------------------------------------------------------

COUNTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), max_size=6)


def usable(over_time: GpusOverTime, gpu: int, t: float) -> bool:
    """By definition: wanted now and for all of the delay before, or since the beginning."""
    begin = t - over_time.scale_up_s
    during = [
        n for at, n in over_time.steps if at <= t and not any(at < later <= begin for later, _ in over_time.steps)
    ]
    last_before = [n for at, n in over_time.steps if at <= max(begin, 0)][-1:]
    return gpu < min([*during, *(last_before if begin >= 0 else [over_time.steps[0][1]])])


@given(COUNTS, st.integers(1, 4), st.integers(0, 40))
def test_changes_are_what_the_definition_says(gaps: list[tuple[int, int]], first: int, delay: int) -> None:
    steps, at = [(0.0, first)], 0.0
    for gap, count in gaps:
        at += gap
        steps.append((at, count))
    over_time = GpusOverTime(tuple(steps), float(delay))
    off: set[int] = set()
    changes = over_time.changes(4)
    assert all(a.at_s < b.at_s for a, b in pairwise(changes))
    for t in range(int(at) + delay + 5):
        for change in changes:
            if change.at_s == t:
                assert off.issuperset(change.opened)
                off = (off - set(change.opened)) | set(change.closed)
        assert off == {gpu for gpu in range(4) if not usable(over_time, gpu, t)}, t


@settings(max_examples=60)
@given(
    COUNTS,
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), min_size=1, max_size=10),
    st.sampled_from(["baseline", "dovetail", "static", "heft"]),
)
def test_nothing_waits_beside_a_gpu_that_is_there_and_idle(
    gaps: list[tuple[int, int]], delay: int, given: list[tuple[int, int]], policy: str
) -> None:
    """One model that costs nothing to load: a policy has no reason to wait; and every start is where it may be."""
    steps, at = [[0.0, 2]], 0.0
    for gap, count in gaps:
        at += gap
        steps.append([at, count])
    config = {"models": {"a": MODEL | {"load_time_seconds": 0}}, "workflows": {"a": CONFIG["workflows"]["a"]}}
    over_time = GpusOverTime(tuple((a, int(n)) for a, n in steps), float(delay))
    requests = rows(*((float(a), float(b)) for a, b in sorted(given)))
    problem = workflow.load(config, requests, gpus=4, mode="online", gpus_over_time=over_time)
    found = workflow.run(problem, policy)
    assert found.check().valid
    assert found.replay().difference is None
    held: dict[str, tuple[float, int]] = {}
    busy: list[tuple[float, float, int]] = []
    waits: list[tuple[float, float]] = []
    for _, t, event in Reader(found.journal):
        if isinstance(event, Start):
            assert usable(over_time, event.devices[0], t)
            held[event.job] = (t, event.devices[0])
            waits.append((event.ready_s, t))
        elif isinstance(event, Finished):
            began, gpu = held[event.job]
            busy.append((began, t, gpu))
    instants = sorted({t for pair in waits for t in pair} | {t for a, b, _ in busy for t in (a, b)})
    for t in instants:
        if any(ready <= t < start for ready, start in waits):
            idle = set(range(4)) - {gpu for a, b, gpu in busy if a <= t < b}
            assert not any(usable(over_time, gpu, t) for gpu in idle)


# --- who does not obey ----------------------------------------------------------------------------


def damaged(journal: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        change(line)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out


def test_the_checker_finds_a_start_on_a_gpu_that_is_off(tmp_path: Path) -> None:
    from dovetail.workflow.check import check_journal

    found = run(
        rows((0, 10), (60, 10), (200, 10)), [[0, 2], [50, 1], [100, 2]], delay_s=20, journal=tmp_path / "j.jsonl"
    )
    assert found.check().valid

    def move(line: dict[str, Any]) -> None:
        if line.get("k") == "started" and line["job"] == "r1":
            line |= {"devices": [1], "setup_s": 3.0}

    report = check_journal(damaged(tmp_path / "j.jsonl", tmp_path / "off.jsonl", move))
    assert "started at 60.0 s on GPU 1, which is off then" in [
        fault.message for fault in report.faults if fault.code == "off"
    ]

    def warm(line: dict[str, Any]) -> None:
        if line.get("k") == "started" and line["job"] == "r2":
            line |= {"devices": [1], "setup_s": 0.0}

    report = check_journal(damaged(tmp_path / "j.jsonl", tmp_path / "warm.jsonl", warm))
    assert any(fault.code == "price" for fault in report.faults)  # what comes back is empty

    def cheap(line: dict[str, Any]) -> None:
        if "summary" in line:
            line["summary"]["gpu_hours"] *= 0.9

    report = check_journal(damaged(tmp_path / "j.jsonl", tmp_path / "cheap.jsonl", cheap))
    assert [fault.where.split(": ")[-1] for fault in report.faults] == ["gpu_hours"]

    def wrong(line: dict[str, Any]) -> None:
        if "facts" in line and "gpus_over_time" in line["facts"]:
            line["facts"]["gpus_over_time"]["steps"] = [[0, 9]]

    with pytest.raises(InputError, match=r"facts.gpus_over_time.steps.0: expected 1 to 2 GPUs of the pool, found 9"):
        check_journal(damaged(tmp_path / "j.jsonl", tmp_path / "wrong.jsonl", wrong))


class Stubborn(WorkflowPolicy):
    """Uses the last GPU, whatever the view says."""

    def choose(self, view: View) -> Place | None:
        return Place(next(iter(view.queues.values())).head, (1,), "mine")


def test_a_policy_that_starts_on_a_gpu_that_is_off_is_stopped() -> None:
    with pytest.raises(PolicyError, match=r"\[60.00s\] the policy started r1/n on GPUs \[1\], of which one is off"):
        run(rows((0, 10), (60, 10)), [[0, 2], [50, 1]], policy=Stubborn)


def test_who_plans_for_the_whole_pool_refuses() -> None:
    over_time = {"steps": [[0, 2], [50, 1]]}
    problem = workflow.load(CONFIG, rows((0, 1)), gpus=2, gpus_over_time=over_time)
    with pytest.raises(InputError, match="policy optimise plans ahead for the whole pool: it knows no gpus_over_time"):
        workflow.run(problem, "optimise")
    with pytest.raises(InputError, match="--exact knows no gpus_over_time"):
        workflow.optimum(problem)
    with pytest.raises(InputError, match="--compat gswarm knows no GPUs that come and go"):
        workflow.load(CONFIG, rows((0, 1)), gpus=2, gpus_over_time=over_time, compat="gswarm")
    with pytest.raises(InputError, match="--compat gswarm knows no GPUs that come and go"):
        workflow.load(CONFIG | {"gpus_over_time": over_time}, rows((0, 1)), gpus=2, compat="gswarm")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": []}, "steps: expected 1 to 10000 pairs"),
        ({"steps": [[1, 2]]}, "steps.0: expected the first at 0 s, found 1"),
        ({"steps": [[0, 2], [0, 1]]}, "steps.1: expected a time after 0"),
        ({"steps": [[0, 2], [5, 0]]}, "steps.1: expected 1 to .* GPUs of the pool, found 0"),
        ({"steps": [[0, 3]]}, "steps.0: expected 1 to 2 GPUs of the pool, found 3"),
        ({"steps": [[0, 2], [inf, 1]]}, "steps.1: expected a time after 0"),
        ({"steps": [[0, 2]], "scale_up_s": -1}, "scale_up_s: expected seconds, 0 or more, found -1"),
        ({"steps": [[0, 2]], "scale_up": 1}, "unknown key 'scale_up'; did you mean 'scale_up_s'"),
        ({"steps": [[0, 2.5]]}, "expected int, found float"),
        (3, "gpus_over_time: expected a path, dicts, lists or a frame, found 3"),
    ],
)
def test_wrong_steps_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        workflow.load(CONFIG, rows((0, 1)), gpus=2, gpus_over_time=given)
    if isinstance(given, dict):
        with pytest.raises(InputError, match=message):
            workflow.load(CONFIG | {"gpus_over_time": given}, rows((0, 1)), gpus=2)


def test_files_say_where_it_is_wrong_and_the_command_takes_them(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    (tmp_path / "r.json").write_text(json.dumps({"requests": rows((0, 10), (60, 10))}))
    (tmp_path / "g.yaml").write_text("steps:\n- [0, 2]\n- [50, 1]\nscale_up_s: fast\n")
    given = ["workflow", "run", "--gpus", "2", "--mode", "online", "--config", str(tmp_path / "c.json")]
    given += ["--requests", str(tmp_path / "r.json"), "--gpus-over-time", str(tmp_path / "g.yaml"), "--format", "json"]
    assert main([*given, "--out", str(tmp_path)]) == 2
    assert "g.yaml:4: scale_up_s: expected float, found str" in capsys.readouterr().err
    (tmp_path / "g.yaml").write_text("gpus_over_time:\n  steps: [[0, 2], [50, 1]]\n")
    assert main([*given, "--out", str(tmp_path)]) == 0
    assert "gpu_hours" in capsys.readouterr().out


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    requests, steps = rows((0, 10), (60, 10), (200, 10)), [[0, 2], [50, 1], [100, 2]]
    run(requests, steps, delay_s=20, journal=journal)
    whole = journal.read_bytes()
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    run(requests, steps, delay_s=20, journal=journal, resume=True)
    assert journal.read_bytes() == whole


# --- plans over time ------------------------------------------------------------------------------


def day(seed: int) -> list[dict[str, Any]]:
    """Three intervals of 100 s with unlike loads of two models."""
    rng = SeededRandom(seed)
    drawn = [
        (100 * i + 100 * rng.random(), min(max(0.1, rng.exponential(10.0)), 30.0), rng.choice("ab"))
        for i in range(3)
        for _ in range(rng.choice((2, 6, 14, 25)))
    ]
    return [rows((at, run_s), of=of)[0] | {"request_id": f"r{i}"} for i, (at, run_s, of) in enumerate(sorted(drawn))]


@pytest.mark.parametrize(("seed", "p99", "delay"), [(0, 40, 20), (3, 60, 120), (6, 60, 0), (13, 40, 20), (19, 40, 0)])
def test_a_plan_over_time_is_the_best_of_all(seed: int, p99: float, delay: float) -> None:
    """Against every number of GPUs in every interval."""
    requests = day(seed)
    found = workflow.fewest_gpus_over_time(CONFIG, requests, p99=p99, every_s=100, scale_up_s=delay, policy="baseline")
    assert found.constant_gpus is not None
    problem = workflow.load(CONFIG, requests, gpus=found.constant_gpus, mode="online")
    least = inf
    for gpus in product(range(1, found.constant_gpus + 1), repeat=len(found.gpus)):
        case = replace(problem, gpus_over_time=ask_ahead(gpus, 100, delay))
        tried = workflow.run(case, "baseline", journal=False).metrics
        if tried["p99_request_s"] <= p99:
            least = min(least, tried["gpu_hours"])
    assert found.gpu_hours == pytest.approx(least)
    assert found.value_s is not None
    assert found.value_s <= p99


def test_what_a_plan_says_is_what_a_run_gives() -> None:
    requests = day(6)
    found = workflow.fewest_gpus_over_time(CONFIG, requests, p99=40, every_s=100, scale_up_s=20)
    assert found.constant_gpus is not None
    over_time = found.gpus_over_time
    problem = workflow.load(CONFIG, requests, gpus=found.constant_gpus, mode="online", gpus_over_time=over_time)
    run = workflow.run(problem)
    assert run.check().valid
    assert (run.metrics["p99_request_s"], run.metrics["gpu_hours"]) == (found.value_s, found.gpu_hours)
    assert found.saving is not None
    assert found.saving > 0.1
    constant = workflow.run(workflow.load(CONFIG, requests, gpus=found.constant_gpus, mode="online")).metrics
    expected = found.constant_gpus * constant["makespan_s"] / 3600
    assert found.constant_gpu_hours == pytest.approx(expected)


def test_a_plan_that_knows_the_day_beats_one_that_looks_back() -> None:
    """Scaling on the use of the last interval: cheaper only where it misses the target."""
    compared = 0
    for seed in range(12):
        requests = day(seed)
        found = workflow.fewest_gpus_over_time(CONFIG, requests, p99=60, every_s=100, scale_up_s=20, policy="baseline")
        assert found.constant_gpus is not None
        assert found.gpu_hours is not None
        problem = workflow.load(CONFIG, requests, gpus=found.constant_gpus, mode="online")
        how: dict[str, Any] = {"intervals": len(found.gpus), "every_s": 100, "scale_up_s": 20, "least": 1}
        for use in (0.5, 0.7, 0.9):
            _, rival = scale_on_use(problem, "baseline", use=use, **how)
            if rival.metrics["p99_request_s"] <= 60:
                compared += 1
                assert found.gpu_hours <= rival.metrics["gpu_hours"] * (1 + 1e-9)
    assert compared > 8


def test_gpus_are_asked_for_ahead() -> None:
    assert ask_ahead([2, 1, 4], 100, 250).steps == ((0.0, 4),)
    assert ask_ahead([1, 1, 4, 1], 100, 150).steps == ((0.0, 1), (50.0, 4), (300.0, 1))
    assert ask_ahead([3, 1], 100, 0).steps == ((0.0, 3), (100.0, 1))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 30))
def test_every_interval_has_its_gpus(gpus: list[int], delay: int) -> None:
    over_time = ask_ahead(gpus, 10, delay)
    for i, count in enumerate(gpus):
        assert all(usable(over_time, gpu, 10 * i + at) for gpu in range(count) for at in range(10))


def test_a_plan_that_rejects_requests_misses_the_target() -> None:
    """Those that a full queue sends away have no response that could be too long."""
    config = CONFIG | {"sharing": {"max_queue": 1}}
    requests = rows((0, 50), (1, 50), (150, 10), (151, 10), (152, 10), (250, 1))
    found = workflow.fewest_gpus_over_time(config, requests, p99=70, every_s=100, scale_up_s=0, policy="baseline")
    assert (found.constant_gpus, found.gpus) == (2, [2, 2, 1])
    problem = workflow.load(config, requests, gpus=2, mode="online", gpus_over_time=found.gpus_over_time)
    assert workflow.run(problem, "baseline").figures.rejected == 0


def test_no_plan_where_no_pool_is_large_enough() -> None:
    found = workflow.fewest_gpus_over_time(CONFIG, rows((0, 10)), p99=5, every_s=100, max_gpus=3)
    assert (found.gpus, found.gpus_over_time, found.saving) == ([], None, None)


def test_the_search_stops_when_it_is_told_to() -> None:
    found = workflow.fewest_gpus_over_time(CONFIG, day(6), p99=40, every_s=100, scale_up_s=20, max_runs=2)
    assert found.runs == 2
    assert found.value_s is not None
    assert found.value_s <= 40
    assert "--max-runs" in found.reason


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"every_s": 0}, "--every-s 0: expected seconds, more than 0"),
        ({"scale_up_s": -1}, "--scale-up-s -1: expected seconds, 0 or more"),
        ({"max_runs": 0}, "--max-runs 0: expected 1 or more"),
        ({"p99": None}, "give one limit"),
        ({"every_s": 0.001}, "--every-s 0.001: gives more than 5000 intervals"),
    ],
)
def test_questions_that_make_no_sense(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        workflow.fewest_gpus_over_time(CONFIG, rows((0, 10), (100, 1)), **{"p99": 60, "every_s": 100} | how)


def test_the_command_plans_over_time_and_its_file_runs(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(CONFIG))
    Path("r.json").write_text(json.dumps({"requests": day(6)}))
    files = ["--config", "c.json", "--requests", "r.json"]
    plan = ["workflow", "plan", *files, "--mode", "online", "--p99", "40", "--every-s", "100", "--scale-up-s", "20"]
    assert main([*plan, "--out", "day.yaml"]) == 0
    told = capsys.readouterr().out
    assert "% saved" in told
    assert main([*plan, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["saving"] > 0.1
    run = ["workflow", "run", *files, "--gpus", str(answer["constant_gpus"]), "--mode", "online", "--format", "json"]
    assert main([*run, "--gpus-over-time", "day.yaml"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu_hours"] == answer["gpu_hours"]
    for more, message in (
        (["--gpus-over-time", "day.yaml"], "is what a plan finds; leave it out"),
        (["--out", "c.json"], "is the same file as the input"),
    ):
        assert main([*plan, *more]) == 2
        assert message in capsys.readouterr().err
    offline = [word for word in plan if word not in ("--mode", "online")]
    assert main(offline) == 2
    assert "--every-s: needs --mode online" in capsys.readouterr().err
    assert main([*plan[: plan.index("--every-s")], "--out", "x.yaml"]) == 2
    assert "--out: needs --every-s" in capsys.readouterr().err
    Path("c.json").write_text(json.dumps(CONFIG | {"gpus_over_time": {"steps": [[0, 1]]}}))
    assert main(plan) == 2
    assert "is what a plan finds; leave it out" in capsys.readouterr().err


def test_execution_logs_of_such_runs_check_clean_too(tmp_path: Path) -> None:
    found = run(rows((0, 10), (60, 10), (200, 40), (200, 50)), [[0, 2], [50, 1], [100, 2]], delay_s=120)
    workflow.write_logs(found, executions=tmp_path / "e.json")
    assert check_log(tmp_path / "e.json").valid
