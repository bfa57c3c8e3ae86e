"""The level from Python: what may be given in the place of files, a policy of one's own, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Run, cluster, read_journal
from dovetail.cluster.inputs.fits import rejected_note
from dovetail.core.errors import DovetailError, InputError

JOBS = [
    {"arrival_s": 0.0, "model": "LM", "steps": 4000},
    {"arrival_s": 30.5, "model": "LM", "duration_s": 900, "weight": 2},
    {"arrival_s": 60.0, "model": "GAN", "steps": 3000, "name": "mine"},
]
RATES = [
    {"model": "LM", "type": "a100", "steps_per_s": 4.0},
    {"model": "LM", "type": "l4", "steps_per_s": 1.0},
    {"model": "GAN", "type": "a100", "steps_per_s": 2.0},
    {"model": "GAN", "type": "l4", "steps_per_s": 2.0},
]
GIVEN: dict[str, Any] = {"cluster": {"a100": 1, "l4": 1}, "trace": JOBS, "throughputs": RATES}


def written(folder: Path) -> dict[str, Any]:
    """The same as files."""
    (folder / "jobs.csv").write_text(
        "arrival_s,model,steps,duration_s,weight,name\n0,LM,4000,,,\n30.5,LM,,900,2,\n60,GAN,3000,,,mine\n"
    )
    rows = "".join(f"{row['model']},{row['type']},{row['steps_per_s']}\n" for row in RATES)
    (folder / "rates.csv").write_text("model,type,steps_per_s\n" + rows)
    return {"cluster": "a100=1,l4=1", "trace": str(folder / "jobs.csv"), "throughputs": folder / "rates.csv"}


def test_rows_may_stand_in_the_place_of_files(tmp_path: Path) -> None:
    from_files, given = cluster.load(**written(tmp_path)), cluster.load(**GIVEN)
    assert list(given.setup.jobs) == list(from_files.setup.jobs)
    assert given.setup.jobs[1].steps == 3600.0  # type: ignore[index]
    for name in ("alone", "spread"):
        assert np.array_equal(getattr(given.setup.throughputs, name), getattr(from_files.setup.throughputs, name))
    assert repr(given) == "<LoadedScenario 1 a100, 1 l4; 3 jobs>"
    assert cluster.simulate(given).metrics["makespan_s"] == cluster.simulate(from_files).metrics["makespan_s"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_may_stand_in_the_place_of_a_file(library: str) -> None:
    frames = pytest.importorskip(library)
    names = dict.fromkeys(name for row in JOBS for name in row)
    columns = {name: [row.get(name) for row in JOBS] for name in names}
    found = cluster.load(**GIVEN | {"trace": frames.DataFrame(columns), "throughputs": frames.DataFrame(RATES)})
    assert list(found.setup.jobs) == list(cluster.load(**GIVEN).setup.jobs)


def test_a_cluster_prices_and_rates_as_their_files_have_them() -> None:
    details = {"types": {"a100": {"count": 2, "gpus_per_server": 2}, "l4": 3}, "order": ["l4", "a100"]}
    rates = {"rates": [{"kind": "LM", "device": "a100", "rate": 8.0, "unit": "steps/s"}]}
    prices = [{"time_s": 0, "type": "a100", "price": 3.5}, {"time_s": 0, "type": "l4", "price": 0.5}]
    setup = cluster.load(**GIVEN | {"cluster": details, "rates": rates, "prices": prices}).setup
    assert (setup.types, setup.counts.tolist(), setup.per_server.tolist()) == (("l4", "a100"), [3, 2], [1, 2])
    assert setup.throughputs.alone[0].tolist() == [1.0, 8.0]
    assert setup.prices.price_at(0.0).tolist() == [0.5, 3.5]
    assert cluster.load(cluster="a100=8", per_server=4, jobs=2).setup.per_server.tolist() == [4]
    assert cluster.load(cluster="a100=8", jobs=2, entities=3).setup.entities == dict.fromkeys(
        ("entity-0", "entity-1", "entity-2"), 1.0
    )
    assert cluster.load(jobs=2, jobs_per_hour=4.0).scenario.lam_s == 900.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"trace": [JOBS[0], {"arrival_s": 1, "model": "LM", "steps": "many"}]}, "trace[1]: steps: expected a number"),
        (
            {"trace": [JOBS[0], {"arrival_s": 1, "model": "LN", "steps": 4}]},
            "trace[1]: no throughputs for the model 'LN'",
        ),
        ({"trace": [{"arrival_s": 1, "model": "LM", "wieght": 4}]}, "trace: unknown column 'wieght'; did you mean"),
        ({"trace": [JOBS[0], 7]}, "trace[1]: expected a dict with columns, found 7"),
        ({"trace": 7}, "trace: expected a path, a list of dicts or a frame, found 7"),
        ({"trace": {}}, "trace: expected a path, a list of dicts or a frame"),
        ({"trace": []}, "trace: expected jobs, found none"),
        ({"trace": "none.csv"}, "none.csv: no such file"),
        ({"throughputs": [{"model": "LM", "type": "a100"}]}, "throughputs: missing column 'steps_per_s'"),
        ({"throughputs": {"throughputs": [{"model": "LM"}]}}, "throughputs: throughputs.0"),
        ({"throughputs": 3.5}, "throughputs: expected a path, a list of dicts or a frame, found 3.5"),
        ({"prices": [{"time_s": 0, "type": "a100", "price": -1}]}, "prices[0]: price: expected a number >= 0"),
        (
            {"rates": {"rates": [{"kind": "LM", "device": "a100", "rate": -1.0}]}},
            "rates: rates.0.rate: expected a positive",
        ),
        ({"cluster": {"a100": -1}}, "cluster 'a100=-1': expected a whole number >= 0, found '-1'"),
        ({"cluster": {"a100": 2.5}}, "cluster 'a100=2.5': expected a whole number >= 0, found '2.5'"),
        ({"cluster": {"types": {"a100": {"cuont": 1}}}}, "cluster: types.a100.cuont: unknown key 'cuont'"),
        ({"cluster": None}, "cluster '': expected v100:p100:k80"),
        ({"cluster": 8}, "cluster '8': expected v100:p100:k80"),
        ({"jobs": 2.5, "trace": None}, "jobs 2.5: expected 1 or more, a whole number"),
        ({"jobs": 0, "trace": None}, "jobs 0: expected 1 or more"),
        ({"jobs": "many", "trace": None}, "jobs 'many': expected 1 or more"),
        ({"lam_s": -1.0, "trace": None}, "lam_s -1: expected seconds, 0 or more"),
        ({"jobs_per_hour": 0}, "jobs_per_hour 0: expected more than 0"),
        ({"multi_gpu": "yes"}, "multi_gpu 'yes': expected True or False"),
        ({"widths": "gues"}, "widths 'gues': expected error or guess"),
        ({"entities": {"a": 0}}, "the weight of entity 'a' 0: expected more than 0"),
        ({"entities": "a"}, "entities 'a': expected weights by name, or a number"),
        ({"profiled": 2}, "profiled 2: expected 0 to 1"),
        ({"seed": None}, "seed None: expected a whole number"),
        ({"window": 5}, "window 5: expected the first job and the one after the last"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        cluster.load(**GIVEN | fields)
    assert says in str(error.value)


def test_an_unknown_field_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="jbos"):
        cluster.load(jbos=3)
    with pytest.raises(TypeError, match="intervall"):
        cluster.simulate(cluster.load(**GIVEN), intervall=3)  # type: ignore[call-arg]


class Oldest(cluster.Policy):
    """Twenty lines of somebody: whoever came first has the fastest type that is free."""

    def allocate(self, problem: cluster.Problem) -> cluster.Allocation:
        share, free = np.zeros((problem.jobs, len(problem.types))), problem.counts.copy()
        for job in range(problem.jobs):
            speed = np.where(free >= problem.width[job], problem.speed[job], 0.0)
            if speed.max() > 0:
                share[job, speed.argmax()] = 1.0
                free[speed.argmax()] -= problem.width[job]
        return cluster.Allocation(share=share, why="the oldest that fit")


def oldest(problem: cluster.Problem) -> cluster.Allocation:
    return Oldest().allocate(problem)


@pytest.mark.parametrize("own", [Oldest, Oldest(), oldest])
def test_a_policy_of_ones_own_goes_in_where_a_name_does(own: Any) -> None:
    found = cluster.simulate(cluster.load(**GIVEN), own)
    assert found.metrics["policy"] == found.header.policy == ("oldest" if own is oldest else "Oldest")
    assert found.completion_s[0] == 10 + 4000 / 4  # the oldest has the fastest from its arrival to its end
    assert found.check().valid
    assert found.replay().difference is None
    rows = cluster.compare(cluster.load(**GIVEN), ["fifo", own], processes=2)
    assert [row["policy"] for row in rows] == ["fifo", found.metrics["policy"]]
    assert rows[1]["avg_jct_s"] == found.metrics["avg_jct_s"]


class Once(cluster.Policy):
    """Remembers: who was served once goes last."""

    def __init__(self) -> None:
        self.served: set[int] = set()

    def allocate(self, problem: cluster.Problem) -> cluster.Allocation:
        first = [job for job in problem.ids.tolist() if job not in self.served] or problem.ids.tolist()
        self.served.add(first[0])
        share = np.zeros((problem.jobs, len(problem.types)))
        share[problem.ids.tolist().index(first[0])] = 1 / len(problem.types)
        return cluster.Allocation(share=share)


def test_every_run_has_a_copy_of_ones_own_object() -> None:
    mine = Once()
    one, two = (cluster.simulate(cluster.load(**GIVEN), mine) for _ in range(2))
    assert one.completion_s == two.completion_s
    assert one.replay().difference is None
    assert mine.served == set()


def test_a_policy_in_a_file_goes_in_where_a_name_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom dovetail import cluster\n"
        "def half(problem):\n    return cluster.Allocation(share=np.full((problem.jobs, len(problem.types)), 0.5))\n"
    )
    name = f"{tmp_path / 'mine.py'}:half"
    run = cluster.simulate(cluster.load(**GIVEN), name)
    assert (run.header.policy, run.replay().difference) == (name, None)
    cluster.sweep(cluster.Scenario(cluster="a100=1"), kind="static", loads=[2], policies=[name], log_dir=tmp_path / "s")
    assert [path.name for path in (tmp_path / "s" / "raw_logs" / "a100=1").iterdir()] == [name.replace("/", "_")]


class Lacking:
    packs = strict = False


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Lacking(), "policy Lacking: expected a method `allocate(problem)`"),
        (type("Half", (Lacking,), {"allocate": oldest}), "policy Half: expected agnostic to be True or False"),
        (None, "expected a cluster policy: a name, file.py:name, or one of your own; found None"),
        ("fifoo", "no cluster policy is called 'fifoo'; did you mean 'fifo'?"),
        ("baseline", "no cluster policy is called 'baseline'"),
    ],
)
def test_what_is_no_policy_is_told(policy: Any, says: str) -> None:
    with pytest.raises(InputError) as error:
        cluster.simulate(cluster.load(**GIVEN), policy)
    assert says in str(error.value)


def test_what_a_policy_of_ones_own_raises_names_it() -> None:
    def broken(problem: cluster.Problem) -> cluster.Allocation:
        raise ZeroDivisionError("by nothing")

    with pytest.raises(DovetailError, match="policy broken: allocate failed: ZeroDivisionError: by nothing"):
        cluster.simulate(cluster.load(**GIVEN), broken)


def test_a_run_can_be_asked_and_read_back(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = tmp_path / "run.jsonl"
    run = cluster.simulate(cluster.load(**GIVEN), journal=str(path), progress=lambda done, of: told.append((done, of)))
    assert isinstance(run, Run)
    assert run.journal == path
    assert told[-1] == (3, 3)
    assert run.bounds["makespan_s"] == run.bound == run.metrics["bound_makespan_s"]
    assert run.gap == pytest.approx(run.metrics["makespan_s"] / run.bound - 1)
    jobs = run.frame()
    assert list(jobs["job"]) == ["job 0", "job 1", "job 2 mine"]
    assert list(jobs["response_s"]) == pytest.approx(list(run.completion_s.values()))
    assert "Job 2 (mine) arrived at 60.00 s: 3,000 steps of GAN" in str(run.explain("mine"))
    assert run.replay().difference is None
    assert "<svg" in run.plot().svg
    again = read_journal(path)
    assert again.metrics["avg_jct_s"] == run.metrics["avg_jct_s"]
    assert again.check().valid


@pytest.mark.parametrize("how", [{"ideal": True}, {"compat": "gavel"}])
def test_runs_without_leases_are_recorded_too(how: Any) -> None:
    run = cluster.simulate(cluster.load(**GIVEN), "isolated", **how)
    assert run.check().valid
    assert list(run.frame()["response_s"]) == pytest.approx([run.completion_s[i] for i in range(3)])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"interval": 0}, "interval 0: expected seconds, more than 0"),
        ({"interval": "long"}, "interval 'long': expected seconds"),
        ({"interval": 5}, "a restart of 10 s in rounds of 5 s"),
        ({"compat": "gswarm"}, "compat 'gswarm': expected gavel"),
        ({"compat": "gavel", "ideal": True}, "compat gavel has rounds"),
        ({"journal": 3}, "journal: expected a path, found 3"),
        ({"journal_mode": "full"}, "journal_mode 'full': expected changes or summary"),
        ({"longest_queue": 0}, "longest_queue 0: expected more than 0"),
        ({"ideal": True, "allocate_every_s": 60.0}, "an ideal run has new shares whenever something changes"),
        ({"resume": True}, "resume needs checkpoint_file"),
        ({"options": "alpha=1"}, "options: expected values by name, found 'alpha=1'"),
        ({"ideal": 1}, "ideal 1: expected True or False"),
        ({"interval": None}, "interval None: expected seconds"),
        ({"options": {"alpha": 1}}, "has no option 'alpha'"),
    ],
)
def test_options_that_make_no_sense_are_told(how: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        cluster.simulate(cluster.load(**GIVEN), **how)
    assert says in str(error.value)
    with pytest.raises(InputError, match="scenario: expected a Scenario, found 'jobs'"):
        cluster.simulate("jobs")  # type: ignore[arg-type]


def test_a_sweep_gives_means_with_their_confidence(tmp_path: Path) -> None:
    base = cluster.Scenario(cluster="a100=1,l4=1", duration_s=3600.0)
    names = ["isolated", "max_min_fairness_perf"]
    found = cluster.sweep(base, kind="static", loads=[3, 6], policies=names, seeds=[0, 1, 2], log_dir=tmp_path / "logs")
    assert [(row["policy"], row["load"], row["seeds"]) for row in found] == [
        (name, load, 3) for name in names for load in (3.0, 6.0)
    ]
    row = found[0]
    values = [run["avg_jct_s"] for run in found.runs if (run["policy"], run["num_total_jobs"]) == ("isolated", 3)]
    assert row["avg_jct_s"] == pytest.approx(np.mean(values))
    assert row["avg_jct_s_plus_minus"] == pytest.approx(4.303 * np.std(values, ddof=1) / 3**0.5, rel=1e-6)
    assert (tmp_path / "logs" / "sweep.html").is_file()
    assert cluster.read_results(tmp_path / "logs").rows == found.rows
    before = cluster.compare_sweeps(found, str(tmp_path / "logs"))
    assert [row["avg_jct_s"]["ratio"] for row in before] == [1.0] * 4
    kept: list[tuple[int, int]] = []
    cluster.sweep(
        base,
        kind="static",
        loads=[3, 6],
        policies=names,
        seeds=[0, 1, 2],
        log_dir=tmp_path / "logs",
        progress=lambda done, of: kept.append((done, of)),
    )
    assert kept == [(12, 12)]


def test_a_sweep_that_cannot_be_is_told() -> None:
    with pytest.raises(InputError, match="seeds: expected at least one value, found 3"):
        cluster.sweep(kind="static", loads=[4], seeds=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kind 'statc': expected continuous or static"):
        cluster.sweep(kind="statc", loads=[4])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="loads 'x': expected more than 0"):
        cluster.sweep(kind="static", loads=["x"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="cutoffs: fifo: expected"):
        cluster.sweep(kind="static", loads=[4], policies=["fifo"], cutoffs={"fifo": 3})
    with pytest.raises(InputError, match="a static one needs loads"):
        cluster.sweep(kind="static", utilization_threshold=0.5)
    with pytest.raises(InputError, match=r"jobs: expected some as load\(\.\.\.\)\.setup\.jobs has them, found 7"):
        cluster.write_trace([7], "x.csv")  # type: ignore[list-item]
    with pytest.raises(InputError, match="no load is left to run"):
        cluster.sweep(kind="static", policies=["fifo"])


def test_traces_are_written_and_policies_listed(tmp_path: Path) -> None:
    loaded = cluster.load(cluster="a100=2", jobs=4, seed=3)
    assert cluster.write_trace(loaded.setup.jobs, str(tmp_path / "jobs.csv")) == 4
    again = cluster.load(cluster="a100=2", trace=tmp_path / "jobs.csv")
    assert [job.steps for job in again.setup.jobs] == [job.steps for job in loaded.setup.jobs]
    assert again.trace_format == "table"
    endless = cluster.load(cluster="a100=2", window=(5, 10), lam_s=600.0)
    with pytest.raises(InputError, match="jobs: these are without end"):
        cluster.write_trace(endless.setup.jobs, tmp_path / "x")
    with pytest.raises(InputError, match="to 'csv': expected table or gavel"):
        cluster.write_trace(loaded.setup.jobs, tmp_path / "x", "csv")  # type: ignore[arg-type]
    knows = {row["name"]: row["knows"] for row in cluster.list_policies()}
    assert (knows["isolated"], knows["fifo_perf"], knows["gandiva"]) == ("nothing of types", "types", "pairs")


def test_what_was_assumed_is_told_of_the_jobs_that_are_read() -> None:
    rows = [{"timestamp": 10 * i, "duration": 60 * (i != 1), "num_gpus": 1} for i in (2, 0, 1, 3, 4)]
    for most, drawn, dropped in ((None, 4, 1), (2, 2, 0), (3, 3, 1)):
        notes = cluster.load(cluster="a100=2", trace=rows, jobs=most).notes
        assert f"models drawn by hash for {drawn} jobs, steps told from their time on v100" in notes
        assert (f"left out: {dropped} x jobs that took no time" in notes) is bool(dropped)


def test_a_policy_is_compared_with_itself_under_other_options(tmp_path: Path) -> None:
    loaded = cluster.load(cluster="v100=2,k80=2", jobs=8)
    names = ["tiresias", "tiresias,thresholds_s=60,600", "max_min_fairness_perf"]
    found = cluster.compare(loaded, names)
    assert [row["policy"] for row in found] == names
    alone = cluster.simulate(loaded, "tiresias", options={"thresholds_s": (60, 600)})
    assert found[1]["avg_jct_s"] == alone.metrics["avg_jct_s"] != found[0]["avg_jct_s"]
    run = cluster.simulate(loaded, names[1], journal=tmp_path / "run.jsonl")
    assert run.check().valid
    assert run.replay().difference is None
    swept = cluster.sweep(
        cluster.load(cluster="v100=2"), kind="static", loads=[4], policies=names[:2], seeds=[0], processes=1
    )
    assert [row["policy"] for row in swept] == names[:2]
    for wrong, says in (
        ("tiresias,thresholds=60", "policy tiresias has no option 'thresholds'; did you mean 'thresholds_s'?"),
        ("tiresia,seed=1", "no cluster policy is called 'tiresia'"),
    ):
        with pytest.raises(InputError, match=says):
            cluster.compare(loaded, [wrong])
    with pytest.raises(InputError, match="policies: fifo is given twice"):
        cluster.compare(loaded, ["fifo", "fifo"])


def test_what_a_seed_draws_is_not_taken_from_options_behind_a_name() -> None:
    loaded = cluster.load(cluster="v100=2", jobs=4, seed=7)
    assert loaded.options("pollux") == {"seed": "7"}
    assert loaded.options("pollux,seed=3") == {}
    assert loaded.options("pollux,population=10") == {"seed": "7"}


def test_policies_by_goodput_say_that_jobs_have_no_profiles() -> None:
    loaded = cluster.load(cluster="v100=2", jobs=4)
    note = "sia: jobs without profiles keep their width and batch (--profiles)"
    assert note in cluster.simulate(loaded, "sia", journal=False).notes
    assert note in cluster.compare(loaded, ["fifo", "sia"]).notes
    assert not any("profiles" in each for each in cluster.simulate(loaded, "fifo", journal=False).notes)


def test_the_older_rules_say_themselves_why_they_reject() -> None:
    rows = [{"arrival_s": 0, "model": "LM (batch size 20)", "steps": 2, "width": 4}]
    rows += [{"arrival_s": 0, "model": "LM (batch size 20)", "steps": 100_000, "width": 1}]
    run = cluster.simulate(cluster.load(cluster="v100=8", trace=rows), "fifo", compat="gavel", journal=False)
    assert run.figures.rejected == 1
    assert any(note.startswith("1 rejected: by the older rules a job with fewer steps") for note in run.notes)
    endless = cluster.load(cluster="v100=8", jobs_per_hour=4, window=(0, 4))
    assert "enough accelerators" not in rejected_note(endless.setup, 1, compat=True)


def test_a_checkpoint_is_not_a_folder(tmp_path: Path) -> None:
    """It is said at once, and not at the first checkpoint."""
    with pytest.raises(InputError, match=r": cannot be written: it is a folder"):
        cluster.simulate(cluster.load(cluster="v100=2", jobs=2), checkpoint_file=tmp_path)


def test_a_type_without_published_figures_is_said_with_where_it_is_named() -> None:
    with pytest.raises(InputError, match=r"cluster \(-c\): no published .* 'h1000'; did you mean 'h100'\? \(--through"):
        cluster.load(cluster="h1000=4", jobs=2)
    with pytest.raises(InputError, match=r"durations_on: no published figures for the accelerator 'v1000'"):
        cluster.load(cluster="v100=4", jobs=2, durations_on="v1000")


def test_a_checkpoint_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        cluster.simulate(cluster.load(cluster="v100=2", jobs=2), checkpoint_file=tmp_path / "slip" / "run.ck")


def test_progress_is_never_more_than_all_there_is() -> None:
    told: list[tuple[int, int]] = []
    loaded = cluster.load(cluster="v100=4", jobs_per_hour=1.0, window=(2, 6))
    cluster.simulate(
        loaded,
        "shortest_remaining",
        journal=False,
        longest_queue=1e6,
        progress=lambda done, of: told.append((done, of)),
    )
    assert told
    assert all(done <= of == 6 for done, of in told)


def test_a_job_that_is_rejected_is_not_said_to_run_over_several_servers() -> None:
    model = "ResNet-50 (batch size 64)"
    wide = [{"arrival_s": 0, "model": model, "width": 8, "duration_s": 900}]
    assert not [note for note in cluster.load(cluster="l4=4", trace=wide).notes if "over several servers" in note]
    assert [note for note in cluster.load(cluster="l4=8", trace=wide).notes if "over several servers" in note]
