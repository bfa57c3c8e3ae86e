"""A load that cannot be borne is told from one that can, and a run that takes too long is stopped."""

from __future__ import annotations

from math import inf

import pytest

from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, load
from dovetail.cluster.simulate import run
from dovetail.cluster.sweeps.stability import QueueWatch, StoppedError
from dovetail.core.events import Rows

CLUSTER = "2:2:2"
WINDOW = (60, 120)


def loaded(rate: float, **more: object) -> LoadedScenario:
    return load(Scenario(cluster=CLUSTER, lam_s=3600 / rate, window=WINDOW, duration_s=3600.0, **more))  # type: ignore[arg-type]


def watched(rate: float, longest: float = 10.0, **more: object) -> QueueWatch:
    found = loaded(rate, **more)
    watch = QueueWatch(found.setup, long=longest)
    run(found.setup, found.policy("max_min_fairness_perf"), observers=[watch])
    return watch


def test_a_light_load_is_borne() -> None:
    watch = watched(2.0)
    assert watch.verdict() == ""
    assert watch.completed >= WINDOW[1] - WINDOW[0]


def test_a_queue_that_grows_without_end_stops_the_run() -> None:
    with pytest.raises(StoppedError, match="more are wanted than the 6 there are, and the queue grows") as stopped:
        watched(20.0, longest=5.0)
    assert stopped.value.status == "unstable"


def test_a_run_that_ends_although_its_queue_grew_is_called_unstable() -> None:
    assert "the queue grew by" in watched(20.0, longest=inf).verdict()


def test_a_queue_that_comes_and_goes_is_borne() -> None:
    """Wide jobs make a queue for a moment, and the last of the window may be one of them."""
    setup = loaded(2.0).setup
    widths = [width for _, width in setup.throughputs.kinds]
    narrow, wide = widths.index(1), widths.index(max(widths))
    for staying in (4, 40):
        watch = QueueWatch(setup, long=inf)
        for job in range(WINDOW[1]):
            stays = job >= WINDOW[1] - staying
            watch.step(job, float(job), [Rows("arrived", {"id": [job], "kind": [wide if stays else narrow]})])
            if not stays:
                watch.step(job, float(job), [Rows("completed", {"id": [job]})])
        assert watch.queue > 0
        assert bool(watch.verdict()) == (staying == 40)


def test_a_limit_on_the_queue_is_what_is_asked_for() -> None:
    """The same load under a looser limit goes on longer before it is stopped."""
    arrivals = []
    for longest in (2.0, 6.0):
        with pytest.raises(StoppedError) as stopped:
            watched(20.0, longest)
        arrivals.append(int(str(stopped.value).split()[1]))
    assert arrivals[0] < arrivals[1]


def test_jobs_that_are_all_known_are_never_unstable() -> None:
    """All jobs are there at the start: the queue is long, and shrinks."""
    found = load(Scenario(cluster=CLUSTER, jobs=200, duration_s=3600.0))
    watch = QueueWatch(found.setup, long=0.0)
    run(found.setup, found.policy("max_min_fairness_perf"), observers=[watch])
    assert watch.verdict() == ""
    assert watch.completed == 200
    assert watch.queue == 0


def test_a_run_that_takes_too_long_is_stopped() -> None:
    found = loaded(2.0)
    with pytest.raises(StoppedError, match="not done after 0 s") as stopped:
        run(found.setup, found.policy("isolated"), observers=[QueueWatch(found.setup, timeout_s=0)])
    assert stopped.value.status == "timeout"


@pytest.mark.parametrize("clock", ["ideal", "compat"])
def test_every_clock_is_watched(clock: str) -> None:
    found = loaded(20.0)
    with pytest.raises(StoppedError):
        run(
            found.setup,
            found.policy("max_min_fairness_perf"),
            observers=[QueueWatch(found.setup, long=2.0)],
            ideal=clock == "ideal",
            compat=clock == "compat",
        )
