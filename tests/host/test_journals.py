"""Journals of this level: decided again they come out the same, and damaged ones are named as such."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dovetail.core.journal import Writer
from dovetail.core.loop.engine import serve
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.loop.replay import replay_journal
from dovetail.host.check import check_journal
from dovetail.host.live.setup import HostSetup
from dovetail.host.options import HostOptions
from dovetail.host.scheduler import make_scheduler
from dovetail.host.simulate import header, machine, record
from dovetail.testing.clock import TimedInbox
from dovetail.testing.damage import breaks_down, damaged
from dovetail.testing.host import ASSIGNS, PLANS, random_options, random_workload

PAIRS = [(plan, assign) for plan in PLANS for assign in ASSIGNS]


@pytest.mark.parametrize(("plan", "assign"), PAIRS)
def test_a_run_is_decided_again_as_it_was(tmp_path: Path, plan: str, assign: str) -> None:
    for seed in range(5):
        rng = Random(f"{plan} {assign} {seed}")
        path = tmp_path / f"{seed}.jsonl"
        record(random_workload(rng), random_options(rng, plan, assign), path)
        agreement = replay_journal(path)
        assert agreement.difference is None
        assert agreement.steps > 0


@pytest.mark.parametrize("assign", ["strict", "always_attend", "max_prop"])
def test_so_is_one_of_the_older_scheduler(tmp_path: Path, assign: str) -> None:
    path = tmp_path / "run.jsonl"
    workload = random_workload(Random(assign), asks=False)
    record(workload, HostOptions(assign=assign, profile="legacy"), path)
    assert replay_journal(path).difference is None


@pytest.mark.parametrize(("plan", "assign"), PAIRS)
def test_so_is_one_that_was_served(tmp_path: Path, plan: str, assign: str) -> None:
    """The loop of the daemon, over programs that take as long as they should, on a clock that jumps."""
    rng = Random(f"served {plan} {assign}")
    workload, options = random_workload(rng), random_options(rng, plan, assign)
    path = tmp_path / "run.jsonl"
    inbox, executor = TimedInbox(workload.arrivals), SimExecutor()
    executor.report_to(inbox)
    scheduler = make_scheduler(workload.cores, workload.graphs, options)
    with Writer(path, header(workload.cores, workload.graphs, options, "live")) as writer:
        steps, _ = serve(
            scheduler, machine(workload.cores), workload.graphs, inbox, executor, inbox.now, observers=[writer]
        )
    assert replay_journal(path).steps == steps
    assert check_journal(path).faults_by_code == {}


def test_a_changed_decision_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for seed in range(20):  # the first in which somebody starts, and is told why
        record(random_workload(Random(seed)), HostOptions(assign="max_prop"), path)
        if ' asked"' in path.read_text():
            break
    path.write_text(path.read_text().replace(' asked"', ' wished"', 1))
    difference = replay_journal(path).difference
    assert difference is not None
    assert ("asked" in difference.decided, "wished" in difference.recorded) == (True, True)


@pytest.mark.parametrize("chunk", range(6))
def test_a_damaged_journal_is_named_as_such(tmp_path: Path, chunk: int) -> None:
    """By every command that reads one: a fault, or the line; never a breakdown."""
    path, out = tmp_path / "run.jsonl", tmp_path / "out"
    for seed in range(60 * chunk, 60 * chunk + 60):
        rng = Random(seed)
        path.unlink(missing_ok=True)  # a damaged one may not look like ours, and is not written over
        record(random_workload(rng), random_options(rng, *PAIRS[seed % len(PAIRS)]), path)
        path.write_bytes(damaged(path.read_bytes(), rng))
        found = breaks_down(
            ("check", path),
            ("replay", path),
            ("host", "explain", "p0", "--journal", path),
            ("host", "gantt", path, "--out", out.with_suffix(".svg")),
            *([("report", path, "--out", out.with_suffix(".html"))] if seed % 10 == 0 else []),
        )
        assert found == [], f"seed {seed}"


@pytest.mark.parametrize("devices", ["[0, 0]", "[99]", "[-1]", "[]"])
def test_a_core_that_does_not_exist_or_is_named_twice_is_a_fault(tmp_path: Path, devices: str) -> None:
    path = tmp_path / "run.jsonl"
    record(random_workload(Random(3), asks=False), HostOptions(), path)
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"k":"started"' in line)
    head, _, rest = lines[at].partition('"devices":[')
    lines[at] = f'{head}"devices":{devices}{rest[rest.index("]") + 1 :]}'
    path.write_text("\n".join(lines) + "\n")
    report = check_journal(path)
    assert {"device", "width"} & set(report.faults_by_code)


def test_the_header_of_a_live_run_names_its_clock_and_its_processors() -> None:
    found = HostSetup("test", 0.0, (0, 2, 3), {}).header()
    assert (found.clock.source, found.clock.error_s) == ("monotonic", 0.0)
    assert found.hardware["core"].endswith("processors 0,2-3")
