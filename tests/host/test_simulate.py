"""From requests to figures: runs, journals that check and replay, figures that are recounted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dovetail.core.errors import InputError
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.host.check import check_journal
from dovetail.host.inputs.requests import Request, read_requests
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.scheduler import make_scheduler
from dovetail.host.simulate import record, run
from dovetail.testing.host import ASSIGNS, PLANS, random_options, random_workload


def request(id: str, threads: int, at_s: float = 0.0, **more: object) -> Request:
    return Request(1, "execution", id, "image", threads, at_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("assign", ASSIGNS)
def test_a_journal_checks_and_replays(tmp_path: Path, plan: str, assign: str) -> None:
    for seed in range(4):
        rng = Random(f"{plan} {assign} {seed}")
        workload, options = random_workload(rng), random_options(rng, plan, assign)
        path = tmp_path / f"{seed}.jsonl"
        record(workload, options, path)
        report = check_journal(path)
        assert report.valid, report.faults
        scheduler = make_scheduler(workload.cores, workload.graphs, options)
        for n, _, decided, recorded in replay(scheduler, Reader(path)):
            assert decided == recorded, n


@pytest.mark.parametrize("assign", ["strict", "max_prop", "always_attend"])
@pytest.mark.parametrize("plan", ["fcfs", "priority"])
def test_a_legacy_journal_checks_and_replays(tmp_path: Path, plan: str, assign: str) -> None:
    requests = [request(str(i), 2 + 5 * i % 15, 7.0 * i, priority=i % 5) for i in range(20)]
    workload = Workload.of(requests, 16, 500.0)
    options = HostOptions(plan=plan, assign=assign, profile="legacy")
    path = tmp_path / "run.jsonl"
    record(workload, options, path)
    assert check_journal(path).valid
    scheduler = make_scheduler(workload.cores, workload.graphs, options)
    assert all(decided == recorded for _, _, decided, recorded in replay(scheduler, Reader(path)))


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rng = Random("bytes")
        workload, options = random_workload(rng), random_options(rng, "rr", "max_prop")
        record(workload, options, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_work_comes_from_the_line_the_flag_the_curve_or_the_default() -> None:
    def ends(work: float | None, curves: dict[str, str], given: float | None = None) -> float | None:
        return run(Workload.of([request("0", 1, work=given)], 4, work, curves), HostOptions()).rows[0].ended_s

    assert ends(None, {}) == 1000.0
    assert ends(None, {"": "table:1=70,2=40"}) == pytest.approx(70.0)
    assert ends(30.0, {"": "table:1=70,2=40"}) == 30.0
    assert ends(30.0, {}, 20.0) == 20.0
    assert ends(None, {"other": "table:1=70"}) == 1000.0


def test_an_update_line_resizes(tmp_path: Path) -> None:
    path = tmp_path / "requests_file.txt"
    path.write_text("execution,0,tf_scheduler,2,60\nupdate,0,tf_scheduler,12,90\n")
    row = run(Workload.of(read_requests(path), 16, 660.0), HostOptions()).rows[0]
    assert row.ended_s == 90 + (660 - 2 * 90) / 12
    assert (row.resizes, row.first_cores) == (1, 2)


def test_the_original_version_is_rigid() -> None:
    requests = [request("0", 8), request("1", 8, 1.0)]
    workload = Workload.of(requests, 16, 160.0, malleable=False)
    rows = run(workload, HostOptions(assign="max_prop")).rows
    assert [row.resizes for row in rows] == [0, 0]


@pytest.mark.parametrize(("cores", "work"), [(0, 1.0), (4, -1.0), (4, float("nan"))])
def test_bad_numbers_are_refused(cores: int, work: float) -> None:
    with pytest.raises(InputError, match="expected"):
        Workload.of([request("0", 1)], cores, work)
