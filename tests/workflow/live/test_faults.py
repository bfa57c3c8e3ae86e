"""Whatever breaks, nodes run again elsewhere, every request ends once, and the journal tells what happened: a service
over worker processes, with models that break on request."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import journals, workflow
from dovetail.core.events import Complete, Failed, Observed, Reject, Settled, Start
from dovetail.core.journal import Reader
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.runs import RunRequest, RunStatus
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from tests.waiting import PATIENCE_S, until

CHAIN = {
    "nodes": [{"id": "write", "model": "llm"}, {"id": "shorten", "model": "sum"}],
    "edges": [{"from": "write", "to": "shorten"}],
}


class Fleet:
    """A service of two models on emulated GPUs, with a folder of faults."""

    def __init__(self, folder: Path, gpus: int, models: dict[str, Any], settings: LiveSettings) -> None:
        self.faults = folder / "faults"
        self.faults.mkdir(exist_ok=True)
        emulated = {"load_s": 0.0, "call_s": 0.0, "faults": str(self.faults)}
        model = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.01, "inference_time_mean": 0.01}
        known = {name: model | {"source": {"emulated": emulated}} | models.get(name, {}) for name in ("llm", "sum")}
        config = {"models": known, "workflows": {"chain": CHAIN}, "costs": {"overhead_s": 0.01}}
        problem = workflow.load(config, [], gpus=gpus, mode="online")
        self.engine = LocalGpuEngine(emulated_gpus(gpus), settings.limits.silence_s)
        log = LogLines(io.StringIO())
        self.service = WorkflowService.over(problem, self.engine, folder / "state", settings, log=log)

    def ask(self, count: int = 4, **input: Any) -> list[str]:
        asked = RunRequest(workflow="chain", input={"prompt": "hello", **input})
        return [self.service.submit(asked) for _ in range(count)]

    def ends(self, runs: Sequence[str]) -> list[RunStatus]:
        return [self.service.wait(run, PATIENCE_S) for run in runs]

    def run(self, count: int = 4) -> None:
        """So many requests, all of which are completed."""
        ended = self.ends(self.ask(count))
        assert [(end.state, end.error) for end in ended] == [("completed", "")] * count

    def fault(self, *names: str) -> None:
        for name in names:
            (self.faults / name).touch()

    def pid(self, worker: int) -> int | None:
        pid: int | None = self.engine.status()[worker]["pid"]
        return pid

    def running(self, worker: int) -> list[str]:
        running: list[str] = self.service.about()["gpus"][worker]["running"]
        return running

    def told(self, *kinds: type) -> list[Any]:
        """What the journal holds of these kinds, so far."""
        return [e for _, _, events in Reader(self.service.journal()).steps() for e in events if isinstance(e, kinds)]

    def lost(self) -> list[str]:
        return [event.why for event in self.told(Failed) if event.lost]


@contextmanager
def fleet(
    folder: Path, gpus: int = 2, models: dict[str, Any] | None = None, retries: int = 3, lost: int = 20, **limits: Any
) -> Iterator[Fleet]:
    """At the end every request has ended once, and the journal is valid."""
    settings = LiveSettings(retries=retries, lost_retries=lost, limits=LiveLimits(**{"silence_s": 60.0, **limits}))
    made = Fleet(folder, gpus, models or {}, settings)
    with made.service:
        until(lambda: all(worker["state"] == "up" for worker in made.engine.status()))
        yield made
        journal = made.service.journal()
        ends = [event.job for event in made.told(Complete, Reject)]
        assert sorted(ends) == sorted({run.id for run in made.service.runs(limit=1000)})
    report = journals.check_journal(journal)
    assert report.valid, report


@pytest.mark.parametrize("verb", ["load", "call"])
@pytest.mark.parametrize("fault", ["oom", "fail", "die"])
def test_a_fault_costs_a_try_and_no_request(tmp_path: Path, verb: str, fault: str) -> None:
    with fleet(tmp_path) as made:
        made.fault(f"any.{verb}.{fault}.1", f"any.{verb}.{fault}.2")
        made.run()
        assert len(made.lost()) >= 2
        observed = [event.what for event in made.told(Observed)]
        assert ("emptied" in observed) == (verb == "load" or fault == "die")
        assert ("gone" in observed) == (fault == "die")


def test_a_call_that_is_to_blame_itself_fails_its_request_alone(tmp_path: Path) -> None:
    with fleet(tmp_path, retries=1) as made:
        (bad,) = made.ask(1, fault="blame")
        made.run()
        (end,) = made.ends([bad])
        assert (end.state, end.error) == (
            "failed",
            "node 'write' failed 2 times: llm was told to refuse this call",
        )
        assert made.lost() == []


def test_a_call_that_kills_whoever_runs_it_ends_too(tmp_path: Path) -> None:
    with fleet(tmp_path, lost=2) as made:
        (poison,) = made.ask(1, fault="die")
        made.run()
        (end,) = made.ends([poison])
        assert end.state == "failed"
        assert "was lost 3 times: the worker of GPU" in end.error


def test_a_model_that_fits_nowhere_fails_its_requests_and_no_other(tmp_path: Path) -> None:
    with fleet(tmp_path, retries=0) as made:
        made.fault(*(f"sum.load.oom.{i}" for i in range(100)))
        end, *_ = made.ends(made.ask(1))
        assert (end.state, end.error) == (
            "failed",
            "node 'shorten' failed 1 times: sum could not be loaded: sum was told to run out of memory",
        )
        assert len(made.lost()) == 2
        only = made.service.submit(RunRequest(workflow="llm", input={"prompt": "hello"}))
        assert made.ends([only])[0].state == "completed"


@pytest.mark.parametrize("fault", ["hang", "stuck"])
def test_a_load_that_never_ends_is_given_up(tmp_path: Path, fault: str) -> None:
    with fleet(tmp_path, load_factor=0.0, load_floor_s=1.0, load_tries=1000) as made:
        made.fault(f"llm.load.{fault}")
        made.run()
        assert any("llm was not loaded within 1 s" in why for why in made.lost())


@pytest.mark.parametrize("fault", ["hang", "stuck"])
def test_a_call_that_never_ends_is_given_up(tmp_path: Path, fault: str) -> None:
    """One that heeds being stopped costs no worker."""
    with fleet(tmp_path, call_factor=0.0, call_floor_s=1.0, stop_grace_s=30.0 if fault == "hang" else 0.1) as made:
        made.fault(f"llm.call.{fault}")
        made.run()
        assert any("it did not end within 1 s" in why for why in made.lost())
        gone = [event for event in made.told(Observed) if event.what == "gone"]
        assert bool(gone) == (fault == "stuck")


def test_a_model_that_says_it_is_ill_is_loaded_anew(tmp_path: Path) -> None:
    with fleet(tmp_path) as made:
        made.fault("sum.call.unhealthy")
        made.run()
        assert any("sum was told to be ill" in why for why in made.lost())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_replaced(tmp_path: Path, how: signal.Signals) -> None:
    with fleet(tmp_path, silence_s=4.0) as made:
        made.fault("llm.call.hang")
        asked = made.ask(1)
        until(lambda: not any(made.faults.iterdir()))  # it hangs
        worker = next(i for i in range(2) if made.running(i))
        pid = made.pid(worker)
        assert pid is not None
        os.kill(pid, how)
        assert made.ends(asked)[0].state == "completed"
        until(lambda: made.engine.status()[worker]["state"] == "up" and made.pid(worker) != pid)
        until(lambda: "back" in [event.what for event in made.told(Observed)])
        observed = [(event.what, event.facts["gpus"]) for event in made.told(Observed) if "gpus" in event.facts]
        assert observed == [("gone", [worker]), ("emptied", [worker]), ("back", [worker])]
        made.run()


def test_a_run_that_is_cancelled_frees_its_gpu(tmp_path: Path) -> None:
    with fleet(tmp_path, gpus=1) as made:
        made.fault("llm.call.hang")
        asked = made.ask(2)
        until(lambda: not any(made.faults.iterdir()))
        made.service.cancel(asked[0], "no longer wanted")
        assert [end.state for end in made.ends(asked)] == ["cancelled", "completed"]


def test_slots_are_shared_and_wide_models_have_their_window(tmp_path: Path) -> None:
    slotted = {"max_concurrency": 4, "concurrency_curve": [1.0, 1.0, 1.0, 1.0]}
    with fleet(tmp_path, models={"llm": slotted, "sum": {"gpus_required": 2}}) as made:
        made.run(6)
        windows = {start.devices for start in made.told(Start) if start.kind == "sum"}
        assert windows == {(0, 1)}
        settled = [event for event in made.told(Settled) if event.task == "shorten"]
        assert {event.devices for event in settled} == {(0, 1)}


def test_nodes_without_a_gpu_have_a_worker_of_their_own_which_comes_back(tmp_path: Path) -> None:
    with fleet(tmp_path, models={"sum": {"gpus_required": 0}}) as made:
        made.run(2)
        made.fault("sum.call.die")
        made.run(2)
        lost = made.lost()
        assert lost
        assert all("the worker of nodes without a GPU was lost" in why for why in lost)
        assert "gone" not in [event.what for event in made.told(Observed)]
