"""Runs that outlive their journals, travel to other processes, or are shown: short and true."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import InputError, cluster, dispatch, host, workflow
from dovetail.workflow.policies import ListPolicy, ReadyNode, View

CONFIG, REQUESTS = "examples/system_config.yaml", "examples/workflow_requests.yaml"
CURVES = {"devices": {"gpu": {"latency_s": 0.004, "rate": 2e5}, "cpu": {"latency_s": 0.001, "rate": 3e4}}}
RUNS: dict[str, Callable[..., dovetail.Run]] = {
    "workflow": lambda **how: workflow.run(workflow.load(CONFIG, REQUESTS, gpus=4), **how),
    "cluster": lambda **how: cluster.simulate(cluster.load(cluster="a100=2", jobs=3), "fifo", **how),
    "host": lambda **how: host.simulate(host.load([{"threads": 2, "work": 20}], cores=2), **how),
    "dispatch": lambda **how: dispatch.simulate(CURVES, items=1000, **how),
}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
@pytest.mark.parametrize("level", RUNS)
def test_a_copy_of_a_run_does_not_need_the_run(level: str, copied: Callable[[Any], Any]) -> None:
    run = RUNS[level]()
    told, rows = repr(run), len(run.frame())
    kept = copied(run)
    del run
    gc.collect()
    assert repr(kept) == told
    assert kept.check().valid
    assert kept.replay().difference is None
    assert len(kept.frame()) == rows
    folder = kept.journal.parent
    del kept
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("level", RUNS)
def test_a_run_is_still_shown_when_its_journal_is_gone(level: str, tmp_path: Path) -> None:
    run = RUNS[level](journal=tmp_path / "run.jsonl")
    run.journal.unlink()
    assert type(run).__name__ in repr(run)
    assert "<svg" not in run._repr_html_()
    for ask in (run.check, run.frame, run.plot, run.replay, lambda: run.save(tmp_path / "a.jsonl")):
        with pytest.raises(InputError, match=r"run\.jsonl: no such file"):
            ask()


def test_a_recorded_run_whose_journal_is_gone_says_so(tmp_path: Path) -> None:
    run = dovetail.read_journal(RUNS["host"]().save(tmp_path / "run.jsonl"))
    run.journal.unlink()
    assert repr(run) == f"<Run {tmp_path / 'run.jsonl'}: no such file>"


@pytest.mark.parametrize("level", RUNS)
def test_what_a_run_gives_is_shown_in_a_few_lines(level: str) -> None:
    run = RUNS[level]()
    assert repr(run.check()) == f"<Report valid: {run.journal}>"
    assert repr(run.header) == f"<Header of a {level} run: {run.header.policy} on {len(run.header.pool)} devices>"


def test_a_report_shows_its_first_faults(tmp_path: Path) -> None:
    run = RUNS["workflow"]()
    lines = run.journal.read_text().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join(lines[:-8]))
    report = dovetail.check_journal(broken)
    shown = repr(report).splitlines()
    assert shown[0] == f"<Report not valid (1 end): {broken}>"
    assert shown[1].startswith("end : did not end:")


class LastFirst(ListPolicy):
    """The latest first; remembers how often it was asked, and forgets its rule after the first run."""

    asked = 0

    def rank(self, node: ReadyNode, view: View) -> float:
        self.asked += 1
        return -node.ready_s if self.asked < 1000 else node.ready_s


@pytest.mark.parametrize("policy", [LastFirst, LastFirst(), lambda: LastFirst()])
def test_a_policy_of_ones_own_decides_again(policy: Any) -> None:
    run = workflow.run(workflow.load(CONFIG, REQUESTS, gpus=4), policy)
    assert run.replay().difference is None
    assert run.replay().steps > 10


def test_a_planning_without_an_order_is_told_so() -> None:
    class Nothing(host.Planning):
        """Decides nothing."""

    with pytest.raises(dovetail.DovetailError, match="Nothing lacks the method 'order'"):
        host.simulate(host.load([{"threads": 1}], cores=1), Nothing)
