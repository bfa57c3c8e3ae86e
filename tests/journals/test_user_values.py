"""Values as notebooks have them, at every level: numpy's numbers where a number is taken, and options that are none."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import InputError, cluster, dispatch, host, pipeline, workflow

CONFIG, REQUESTS = "examples/system_config.yaml", "examples/workflow_requests.yaml"
CURVES = {"devices": {"gpu": {"latency_s": 0.004, "rate": 2e5}, "cpu": {"latency_s": 0.001, "rate": 3e4}}}
PROGRAMS = [{"threads": 2, "work": 20}, {"threads": 4, "work": 20}]


def _workflow(number: Callable[[Any], Any]) -> Any:
    problem = workflow.load(
        CONFIG, REQUESTS, gpus=number(4), gpus_per_server=number(4), costs={"noise": number(0.25)}, mode="online"
    )
    return workflow.run(problem, seed=number(3), failure_rate=number(0.25), retries=number(9))


def _cluster(number: Callable[[Any], Any]) -> Any:
    jobs = cluster.load(
        cluster={"a100": number(2), "l4": number(4)}, jobs=number(6), lam_s=number(60.0), seed=number(2)
    )
    how: dict[str, Any] = {"interval": number(120), "restart_s": number(5.0), "longest_queue": number(8.0)}
    return cluster.simulate(jobs, "max_min_fairness_perf", **how)


def _host(number: Callable[[Any], Any]) -> Any:
    workload = host.load(PROGRAMS, cores=number(4), work=number(100), seed=number(1))
    return host.simulate(workload, "rr", "max_prop", quantum=number(5.0), min_cores=number(1))


def _dispatch(number: Callable[[Any], Any]) -> Any:
    given: dict[str, Any] = {"items": number(5000), "noise": number(0.125), "seed": number(4)}
    return dispatch.simulate(CURVES, slower={"cpu": number(2)}, **given)


LEVELS = {"workflow": _workflow, "cluster": _cluster, "host": _host, "dispatch": _dispatch}


def _of_numpy(value: Any) -> Any:
    return np.int64(value) if isinstance(value, int) else np.float64(value)


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_of_numpy_are_numbers(level: str) -> None:
    taken = ("simulation_s", "cpu_s", "policy_s")  # how long it took here
    ours, theirs = LEVELS[level](lambda value: value), LEVELS[level](_of_numpy)
    told = [{name: value for name, value in run.metrics.items() if name not in taken} for run in (ours, theirs)]
    assert told[0] == told[1]
    assert theirs.check().valid
    assert ours.frame().equals(theirs.frame())


def test_arrays_of_numpy_are_lists() -> None:
    numbers: Any = np.arange(2)
    jobs = cluster.load(cluster={"a100": 2}, jobs=4)
    found = cluster.sweep(jobs, kind="static", loads=numbers + 2, policies=["fifo"], seeds=numbers)
    assert [(row["load"], row["seeds"]) for row in found] == [(2.0, 2), (3.0, 2)]
    problem = workflow.load(CONFIG, REQUESTS, gpus=4)
    assert [row["gpus"] for row in workflow.compare(problem, "baseline", gpus=4 * numbers + 4, jobs=1)] == [4, 8]
    assert host.experiment(numbers[1], 2, plans=["fcfs"], assigns=["strict"], repeats=numbers[1])


def test_generated_requests_are_counted_in_numbers_of_numpy() -> None:
    number = _of_numpy
    generated = workflow.generate(CONFIG, requests=number(5), rate=number(20.0), seed=number(1))
    assert len(workflow.load(CONFIG, generated, gpus=number(4)).requests) == 5
    with pytest.raises(InputError, match=r"--max-gpus 2.5: expected a whole number"):
        workflow.fewest_gpus(CONFIG, REQUESTS, p99=number(300.0), max_gpus=number(2.5))


@pytest.mark.parametrize("options", [3, "hysteresis=3", ["hysteresis"], {1: 2}, np.int64(1)])
@pytest.mark.parametrize(
    "run",
    [
        lambda options: workflow.run(workflow.load(CONFIG, REQUESTS, gpus=4), options=options),
        lambda options: cluster.simulate(cluster.load(cluster="a100=1", jobs=1), options=options),
        lambda options: dispatch.simulate(CURVES, options=options),
        lambda options: pipeline.plan(_pipeline(), option=options),
    ],
    ids=["workflow", "cluster", "dispatch", "pipeline"],
)
def test_options_are_by_name(run: Callable[[Any], Any], options: Any) -> None:
    with pytest.raises(InputError, match="option"):
        run(options)


def _pipeline() -> pipeline.Pipeline:
    device = pipeline.DeviceClass("t", "t", ["a"], bw_mbps=1000.0, mem_mib=99.0, time_s=[0.25])
    return pipeline.Pipeline(
        model="m", layers=1, mem_mib=[1.0], cut_bytes=[0, 0], classes=[device], batch_size=1, dtype="torch.float32"
    )


def test_a_wrong_policy_is_not_printed_at_length() -> None:
    class Wall:
        def __repr__(self) -> str:
            return "wall\n" * 1000

    with pytest.raises(InputError) as error:
        workflow.run(workflow.load(CONFIG, REQUESTS, gpus=4), Wall())  # type: ignore[arg-type]
    assert len(str(error.value)) < 200


def test_what_is_no_function_is_refused() -> None:
    problem = workflow.load(CONFIG, REQUESTS, gpus=4)
    jobs = cluster.load(cluster="a100=2", jobs=2)
    layers = pipeline.load(*(f"examples/pipeline/{name}.yml" for name in ("models", "device_types", "devices")))
    calls: list[Callable[[Any], object]] = [
        lambda wrong: workflow.run(problem, progress=wrong),
        lambda wrong: workflow.compare(problem, ["srpt"], progress=wrong),
        lambda wrong: cluster.simulate(jobs, progress=wrong),
        lambda wrong: cluster.compare(jobs, ["fifo"], progress=wrong),
        lambda wrong: cluster.sweep(jobs, kind="static", loads=[2], policies=["fifo"], progress=wrong),
        lambda wrong: host.experiment(1, 2, progress=wrong),
        lambda wrong: pipeline.front(layers, progress=wrong),
    ]
    for call in calls:
        with pytest.raises(InputError, match="progress 3: expected a function"):
            call(3)
