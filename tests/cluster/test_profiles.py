"""Profiles of applications: what is read, what is refused, and that rates are those that were measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dovetail import cluster
from dovetail.cluster.goodput.application import Application, Batch
from dovetail.cluster.inputs.profiles import fixed_rate, read_profiles
from dovetail.core.errors import InputError

VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n10,10,0.5,1.0,3.0\n20,20,0.6,1.0,7.0\n"
PLACEMENTS = (
    "placement,local_bsz,step_time,sync_time\n1,4,1.0,0.1\n1,8,2.0,0.1\n2,4,1.0,0.4\n2,8,2.0,0.4\n31,4,3.0,2.0\n"
)
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,8,4,5.0,4.0\n"
FILES = {
    "validation-8.csv": VALIDATION,
    "validation-32.csv": VALIDATION.replace("10,10", "12,3"),
    "placements-t.csv": PLACEMENTS,
    "scalability-t.csv": SCALABILITY,
}
PARAMS = {
    "application": "app",
    "profile": "m",
    "alpha_c": 0.1,
    "beta_c": 0.01,
    "alpha_n": 0.2,
    "beta_n": 0.0,
    "alpha_r": 0.1,
    "beta_r": 0.0,
    "gamma": 1.0,
    "min_local_batch": 4,
    "max_local_batch": 16,
    "one_gpu_samples_per_s": 40.0,
}


def write(folder: Path, **changed: str) -> Path:
    (folder / "app").mkdir(parents=True, exist_ok=True)
    for name, text in (FILES | changed).items():
        (folder / "app" / name).write_text(text)
    return folder


def app(folder: Path) -> Application:
    return read_profiles(write(folder), ["t"])["app"]


def test_times_are_linear_between_what_was_measured(tmp_path: Path) -> None:
    found = app(tmp_path)
    assert (found.initial, found.most, found.progress, found.size) == (8, 32, [10.0, 20.0], 20.0)
    profile = found.types["t"]
    assert (profile.least_local, profile.most_local, profile.one_gpu) == (4, 8, 4.0)
    assert [float(value) for value in profile.step_s((2,), 6)] == [1.5, 0.4]
    assert [float(value) for value in profile.step_s((1, 3), 4)] == [3.0, 2.0]  # whichever way it is turned
    # (3 servers, 6 accelerators) lies in the middle of 3 + 1 and the measured 4 servers with 8
    assert [float(value) for value in profile.step_s((2, 2, 2), 4)] == pytest.approx([4.0, 3.0])
    assert profile.most_local_at((2,)) == 8
    assert profile.most_local_at((2, 2, 2)) == 4


def test_a_batch_is_worth_what_the_noise_lets_it(tmp_path: Path) -> None:
    found = app(tmp_path)
    # twice the initial batch: (3 + 1) / (3 / 2 + 1) iterations in 2 + (2 - 0.1) seconds
    assert float(found.rate("t", (1,), Batch(8, 1, 16), 0)) == pytest.approx(1.6 / 3.9)
    assert float(found.rate("t", (1,), Batch(8, 1, 16), 1)) == pytest.approx(8 / 4.5 / 3.9)
    assert found.fixed("t", (1,), 16) == Batch(8, 1, 16)
    assert found.fixed("t", (1,) * 9, 16) is None  # nine times four is more than the largest batch


def test_a_type_without_a_profile_may_have_seven_numbers(tmp_path: Path) -> None:
    write(tmp_path)
    rows = [PARAMS]
    jobs = [{"name": "a-0", "time": 5, "application": "app", "num_replicas": 2, "batch_size": 16}]
    loaded = cluster.load(
        cluster="t=2,m=2", per_server=2, profiles=tmp_path, throughput_params=rows, trace=jobs, trace_format="pollux"
    )
    assert loaded.notes[0] == "steps on m by seven numbers of a model, not by a profile"
    [job] = loaded.setup.jobs
    assert (job.model, job.width, job.steps) == ("app (batch size 16)", 2, 20.0)
    kind = loaded.setup.throughputs.index()["app (batch size 16)", 2]
    # (alpha_c + 8 beta_c) + alpha_r, worth 1.6 and 8 / 4.5 iterations in the first and the second half
    seconds = 0.28 * (10 / 1.6 + 10 * 4.5 / 8)
    assert loaded.setup.throughputs.alone[kind, 1] == pytest.approx(20 / seconds)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("validation-8.csv", VALIDATION.replace("20,20", "9,20"), "validation-8.csv:3: progress: expected more than"),
        ("validation-8.csv", VALIDATION.replace("grad_var", "grad_vra"), "unknown column 'grad_vra'; did you mean"),
        ("validation-8.csv", VALIDATION.rpartition("20,20")[0], "validation-8.csv: has 1 epochs, but|has 2 epochs"),
        ("validation-8.csv", VALIDATION.replace("1.0,3.0", "0,0"), "validation-8.csv:2: grad_sqr: expected it or"),
        ("validation-x.csv", VALIDATION, "validation-x.csv: expected a name such as validation-128.csv"),
        ("placements-t.csv", PLACEMENTS.replace("31,", "3-1,"), "placements-t.csv:6: placement: expected a digit"),
        ("placements-t.csv", PLACEMENTS.replace("3.0,2.0", "3.0,3.0"), "placements-t.csv:6: sync_time: expected less"),
        ("placements-t.csv", PLACEMENTS.replace("\n1,", "\n3,"), "expected rows of placement 1"),
        ("scalability-t.csv", SCALABILITY.replace("4,8,4", "4,3,4"), "scalability-t.csv:2: num_replicas: expected one"),
    ],
)
def test_a_bad_profile_is_refused_with_its_place(tmp_path: Path, file: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_profiles(write(tmp_path, **{file: text}), ["t"])


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder with one of profiles"):
        read_profiles(tmp_path / "none", ["t"])
    with pytest.raises(InputError, match="expected folders of applications with"):
        read_profiles(tmp_path, ["t"])
    with pytest.raises(InputError, match="no application has a profile of the type 'T'"):
        read_profiles(write(tmp_path), ["T"])
    for wrong, message in (
        ({"gamma": 11}, "gamma: expected 1 to 10, found 11"),
        ({"max_local_batch": 1}, "max_local_batch: expected 4 or more, found 1"),
        ({"alpha_c": 0, "beta_c": 0}, "alpha_c: expected it or beta_c above 0"),
        ({"alpa_r": 1}, "unknown column 'alpa_r'; did you mean 'alpha_r'"),
    ):
        with pytest.raises(InputError, match=message):
            cluster.load(cluster="m=2", profiles=tmp_path, throughput_params=[PARAMS | wrong], trace=[{"model": "app"}])


def test_profiles_do_not_go_together_with_everything(tmp_path: Path) -> None:
    write(tmp_path)
    jobs = [{"arrival_s": 0, "model": "app (batch size 16)", "steps": 20.0}]
    for fields, message in (
        ({"throughputs": []}, "give profiles, or throughputs and rates, not both"),
        ({"trace": None}, "profiles are of the jobs of a trace"),
        ({"profiles": None, "throughput_params": []}, "they need profiles"),
        ({"trace": [jobs[0] | {"model": "ap (batch size 16)"}]}, "no profile of the application 'ap'; did you mean"),
        ({"trace": [jobs[0] | {"model": "app (batch size 64)"}]}, "batch size 64: expected 8 to 32"),
    ):
        with pytest.raises(InputError, match=message):
            cluster.load(**({"cluster": "t=2", "profiles": tmp_path, "trace": jobs} | fields))
    assert cluster.load(cluster="t=2", profiles=tmp_path, trace=jobs).setup.jobs[0].steps == 20.0  # type: ignore[index]


@pytest.mark.parametrize(("policy", "done"), [("sia", True), ("optimus", True), ("fifo_perf", False)])
def test_a_job_that_asks_for_more_than_there_is_runs_where_its_width_is_chosen(
    tmp_path: Path, policy: str, done: bool
) -> None:
    write(tmp_path)
    jobs = [{"arrival_s": 0, "model": "app (batch size 16)", "width": 4, "steps": 20.0}]
    loaded = cluster.load(cluster="t=2", per_server=2, profiles=tmp_path, trace=jobs)
    run = cluster.simulate(loaded, policy)
    assert (list(run.completion_s) == [0], run.figures.rejected) == (done, 0 if done else 1)
    assert run.check().valid
    with pytest.raises(InputError, match="width 65: expected at most 64"):
        cluster.load(cluster="t=2", profiles=tmp_path, trace=[jobs[0] | {"width": 65}])


def test_rigid_jobs_take_as_long_as_recorded(golden: Path, traces: Path) -> None:
    found = read_profiles(traces / "sia/profiles", ["aws"])
    with (golden / "cluster/sia/rigid_t4.csv").open() as file:
        for row in csv.DictReader(file):
            of, width, batch = found[row["application"]], int(row["num_replicas"]), int(row["batch_size"])
            took_s = of.size / fixed_rate(of, "aws", width, 4, batch)
            assert took_s == pytest.approx(float(row["duration_s_by_progress"]), abs=1e-3)


def test_sizes_are_those_of_the_profiles(traces: Path) -> None:
    found = read_profiles(traces / "sia/profiles", ["aws"])
    sizes = {name: (each.initial, each.most, round(each.size, 4)) for name, each in found.items()}
    assert sizes["cifar10"] == (128, 4096, 39062.9082)
    assert sizes["imagenet"] == (200, 12800, 576525.5949)
    assert sizes["yolov3"] == (8, 512, 103443.978)
