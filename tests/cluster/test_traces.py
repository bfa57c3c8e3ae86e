"""Traces of every format become jobs in order of arrival; what is wrong is said with file and line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.analytic import analytic
from dovetail.cluster.inputs.csv_rows import given_rows
from dovetail.cluster.inputs.throughputs import RateEntry, table
from dovetail.cluster.inputs.traces import FORMATS, JobTrace, detect, read_trace, write_gavel, write_table, write_trace
from dovetail.cluster.inputs.traces.batch_changes import phases_of
from dovetail.cluster.inputs.workload import Job, Throughputs, TrainingStart
from dovetail.core.errors import InputError

RATES = table(
    [
        RateEntry("LM", "v100", 2.0),
        RateEntry("LM", "v100", 3.0, width=2),
        RateEntry("GAN", "v100", 0.5),
        RateEntry("LM", "l4", 1.0),
        RateEntry("Tiny", "l4", 1.0),
    ]
)
SHOCKWAVE = "{}\trun\tfolder\t--steps\t1\t{}\t{}\t{}\t1\t-1\t1418\t0\n"
GAVEL = 'LM\tcommand with "quotes", commas\tfolder\t--steps\t1\t600\t2\t1\t{slack}\t{arrival}\n'


def read(folder: Path, text: str, name: str = "jobs.csv", **options: object) -> JobTrace:
    path = folder / name
    path.write_text(text)
    return read_trace(path, RATES, **options)  # type: ignore[arg-type]


def test_gavel_rows_are_jobs_and_a_deadline_is_told_from_steps(tmp_path: Path) -> None:
    text = GAVEL.format(slack=-1.0, arrival=0) + GAVEL.format(slack=1.2, arrival="9292.608074")
    trace = read(tmp_path, text)
    assert trace.format == "gavel"
    first, second = trace
    assert first == Job(id=0, model="LM", width=2, steps=600.0, duration_s=200.0, start=first.start)
    assert second.arrival_s == 9292.608074
    assert second.due_s == pytest.approx(240.0)


def test_older_and_newer_tab_formats(tmp_path: Path) -> None:
    old = read(tmp_path, "LM\tcd %s && run\t--steps\t1\t600\t6.5\t2\n")
    assert (old.format, old.jobs[0].arrival_s, old.jobs[0].width, old.jobs[0].steps) == ("gavel-7", 6.5, 2, 600.0)
    new = read(tmp_path, "LM\trun\tfolder\t--steps\t1\t600\t1\tgns\t5\t2.0\t1418\t55\n")
    job = new.jobs[0]
    assert (new.format, job.duration_s, job.weight, job.due_s, job.arrival_s) == (
        "shockwave",
        1418.0,
        5.0,
        2836.0,
        55.0,
    )
    assert job.phases == ()  # a model that says no batch keeps it
    with pytest.raises(InputError, match="mode: unknown 'gnss'; did you mean 'gns'"):
        read(tmp_path, "LM\trun\tfolder\t--steps\t1\t600\t1\tgnss\t5\t2.0\t1418\t55\n")


def test_a_job_of_shockwave_changes_its_batch_in_steps_of_the_first(tmp_path: Path) -> None:
    known = {10: 50.0, 20: 40.0, 80: 20.0}
    rates = table([RateEntry(model=f"LM (batch size {b})", type="v100", steps_per_s=rate) for b, rate in known.items()])
    path = tmp_path / "jobs.trace"
    path.write_text("LM (batch size 10)\trun\tfolder\t--steps\t1\t400000\t1\tgns\t1\t-1\t1418\t0\n")
    trace = read_trace(path, rates)
    # 5,968 steps of 10 samples are an epoch; it doubles after 11, 21 and 41 of them, and nothing is known of 40
    assert trace.jobs[0].phases == (
        (11 * 5968.0, "LM (batch size 10)"),
        (41 * 5968.0, "LM (batch size 10) now 20"),
        (400000.0, "LM (batch size 10) now 80"),
    )
    assert trace.throughputs is not None
    found = trace.throughputs.alone[trace.throughputs.index()["LM (batch size 10) now 20", 1], 0]
    assert found == 40 * 5968 / 2984


def test_a_job_without_end_is_told_its_phases_at_once() -> None:
    assert phases_of("LM (batch size 80)", 1, "accordion", 1e15, lambda model, worth: model) == ()
    phases = phases_of("LM (batch size 40)", 1, "gns", 1e15, lambda model, worth: model)
    assert phases[-1] == (1e15, "LM (batch size 80)")


def test_a_model_with_a_slip_in_its_name_is_hinted_at() -> None:
    for wrong, says in (("LMM", "did you mean 'LM (batch size 5)' or"), ("LM (batch size 21)", "did you mean 'LM (")):
        with pytest.raises(InputError, match=re.escape(says)):
            read_trace(
                given_rows("trace", [{"arrival_s": 0, "model": wrong, "steps": 10}]), analytic(["v100"]), format="table"
            )


def test_jobs_in_phases_are_not_written_without_them(tmp_path: Path) -> None:
    job = Job(id=3, model="LM", steps=10.0, arrival_s=0.0, phases=((4.0, "LM"), (10.0, "LM now")))
    for to in ("table", "gavel"):
        with pytest.raises(InputError, match=r"^job 3 changes its batch as it goes.*take its file as it is \(-t\)"):
            write_trace([job], tmp_path / "jobs.csv", to)
        with pytest.raises(InputError, match=r"^wave.trace: job 3 \('x'\) changes its batch"):
            write_trace([replace(job, name="x")], tmp_path / "jobs.csv", to, "wave.trace")
    with pytest.raises(InputError, match="there is no folder"):
        write_trace([replace(job, phases=())], tmp_path / "slip" / "jobs.csv")
    assert not list(tmp_path.iterdir())


def test_our_table_needs_steps_or_a_duration(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "arrival_s,model,width,steps,duration_s,weight,due_s,entity,name\n5,LM,2,,100,,900,team,night\n1,GAN,,40,,2,,,\n",
    )
    assert trace.format == "table"
    assert trace.jobs[0] == Job(id=0, model="GAN", steps=40.0, arrival_s=1.0, weight=2.0, duration_s=80.0)
    late = trace.jobs[1]
    assert (late.id, late.steps, late.due_s, late.entity, late.name) == (1, 300.0, 900.0, "team", "night")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("arrival_s,model,steps\n0,LM,x\n", ":2: steps: expected a number, found 'x'"),
        ("arrival_s,model,steps\n0,LM,10\n-3,LM,10\n", ":3: arrival_s: expected a number >= 0, found '-3'"),
        ("arrival_s,model,steps\n0,GANs,10\n", ":2: no throughputs for the model 'GANs'; did you mean 'GAN'?"),
        ("arrival_s,model,steps,width\n0,GAN,10,2\n", ":2: no throughputs for GAN at width 2, only at 1"),
        ("arrival_s,model,width\n0,LM,1\n", ":2: expected steps or a duration, found neither"),
        ("arrival_s,model,duration_s\n0,Tiny,9\n", ":2: Tiny at width 1 does not run on v100"),
        ("arrival_s,model,steps,width\n0,LM,10,1.5\n", ":2: width: expected a whole number >= 1, found '1.5'"),
        ("arrival_s,model,step\n0,LM,10\n", ":1: unknown column 'step'; did you mean 'steps'?"),
        ("arrivals,model,steps\n0,LM,10\n", ":1: unknown column 'arrivals'; did you mean 'arrival_s'?"),
        ("model,steps\nLM,10\n", ":1: missing column 'arrival_s'; found model, steps"),
        ("PK\x03\x04\x00\x00", ": expected a text file with jobs, found a binary one"),
        (
            SHOCKWAVE.format("ResNet-50 (batch size 16)", 10**12, 1, "accordion"),
            ":1: steps: expected at most 100,000 epochs of 6,250 steps, found 1e+12 steps",
        ),
        ("arrival_s,model,steps\n", ": expected jobs, found none"),
        ("arrival_s,model,steps\n0,LM\n", ":2: expected 3 columns, found 2"),
        ("arrival_s,model,steps\n0,,10\n", ":2: model: expected something, found nothing"),
        (GAVEL.format(slack="soon", arrival=0), ":1: slack: expected a number, found 'soon'"),
        (GAVEL.format(slack=-1, arrival=0) + "LM\t1\n", ":2: expected 10 columns, found 2"),
        ("timestamp,duration,num_gpus\nyesterday,5,1\n", ":2: timestamp: expected seconds or a time"),
        ("when,what\n1,2\n", ":1: not a trace that is known: found a header with when, what; known formats: table"),
        ("a\tb\tc\n", ":1: not a trace that is known: found 3 columns with tabs between"),
        ("", ": expected jobs, found an empty file"),
        ("1001|gpt|2026-08-22T08:00:00|COMPLETED|gres/gpu=8\n", "sacct prints without its header: leave -n"),
        ('{"kind": "List", "items": []}', ": expected jobs, found none"),
        (
            "JobID|Submit|Elapsed|AllocTRES\n1|2026-01-01T00:00:00|1:00|cpu=2\n",
            ": expected jobs, found none (left out: 1 x jobs without a GPU; --map width=KEY tells where",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "jobs.csv"))
    assert says in str(error.value)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"arrival_s,model,steps\n0,\xff\xfe,1\n")
    with pytest.raises(InputError, match="not a text file with columns"):
        read_trace(path, RATES)
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "none.csv", RATES)
    with pytest.raises(InputError, match="did you mean 'philly'"):
        read_trace(path, RATES, format="phily")


def test_without_throughputs_only_steps_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.trace"
    path.write_text(GAVEL.format(slack=-1, arrival=3))
    (job,) = read_trace(path).jobs
    assert job == Job(id=0, model="LM", width=2, steps=600.0, arrival_s=3.0, start=job.start)
    path.write_text(GAVEL.format(slack=2.0, arrival=3))
    with pytest.raises(InputError, match=":1: needs throughputs"):
        read_trace(path)


def test_widths_that_are_not_known_are_refused_or_guessed(tmp_path: Path) -> None:
    text = "arrival_s,model,width,steps\n0,LM,4,90\n"
    with pytest.raises(InputError, match="only at 1, 2"):
        read(tmp_path, text)
    trace = read(tmp_path, text, widths="guess")
    assert trace.throughputs is not None
    rate = trace.throughputs.alone[trace.throughputs.index()["LM", 4], 0]
    assert rate == pytest.approx(4.5)  # as from 1 to 2
    assert trace.jobs[0].duration_s == pytest.approx(90 / rate)
    assert "widths 4" in trace.notes[0]


def test_a_log_of_a_cluster_gets_models_by_hash_and_keeps_its_time(tmp_path: Path) -> None:
    rows = [f"2017-10-0{9 - i % 3} 07:01:5{i % 10},{60 + i},{i % 2},7.0,vc{i % 3}" for i in range(60)]
    text = "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]) + "\n"
    trace, again = read(tmp_path, text), read(tmp_path, text, name="copy.csv")
    assert trace.jobs == again.jobs
    assert trace.dropped == {"jobs without a GPU": 30}
    assert [job.arrival_s for job in trace] == sorted(job.arrival_s for job in trace)
    assert trace.jobs[0].arrival_s == 0.0
    assert trace.jobs[-1].arrival_s == pytest.approx(2 * 86400, abs=10)
    assert {job.model for job in trace} == {"LM", "GAN"}  # Tiny does not run on the reference type
    for job in trace:
        assert job.duration_s is not None
        assert job.steps == pytest.approx(job.duration_s * RATES.alone[RATES.index()[job.model, 1], 0])


def test_helios_rows(tmp_path: Path) -> None:
    text = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "7,u1,vcA,1,8,1,COMPLETED,2020-04-01 00:00:09,2020-04-01 00:00:10,2020-04-01 00:01:10,60,1\n"
        "8,u1,vcB,0,8,1,COMPLETED,2020-04-01 00:00:01,2020-04-01 00:00:10,2020-04-01 00:01:10,60,1\n"
        "9,u2,vcB,2,8,1,FAILED,2020-04-01 00:00:02,2020-04-01 00:00:10,2020-04-01 00:00:40,30,8\n"
    )
    trace = read(tmp_path, text)
    assert trace.format == "helios"
    assert [(job.name, job.width, job.entity, job.arrival_s) for job in trace] == [
        ("9", 2, "vcB", 0.0),
        ("7", 1, "vcA", 7.0),
    ]


def test_a_pod_for_certain_types_becomes_a_model_that_runs_only_there(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "pod-a,1,1,1,500,L4,LS,Running,10,210,110\n"
        "pod-b,1,1,1,1000,A10|G2,LS,Running,20,220,120\n"
        "pod-c,1,1,0,0,,LS,Running,20,220,120\n"
        "pod-d,1,1,1,1000,,LS,Pending,20,220,\n"
        "pod-e,1,1,1,1000,V100M16|L4,LS,Running,30,230,130\n"
    )
    trace = read(tmp_path, text)
    assert trace.format == "alibaba-2023"
    assert trace.dropped == {
        "pods without a GPU": 1,
        "pods that never ran": 1,
        "wishes for GPU types that are not known here": 1,
    }
    a, b, e = trace
    assert (a.arrival_s, a.duration_s) == (0.0, 50.0)  # half a GPU for 100 s
    assert a.model.endswith(" on l4")
    assert " on " not in b.model
    assert " on " not in e.model  # both types that there are
    assert trace.throughputs is not None
    at = trace.throughputs.index()[a.model, 1]
    plain = RATES.index()[a.model.removesuffix(" on l4"), 1]
    assert trace.throughputs.alone[at].tolist() == [0.0, RATES.alone[plain, 1]]


def test_a_restricted_model_can_be_written_to_our_table_and_read_back(tmp_path: Path) -> None:
    trace = read(tmp_path, "arrival_s,model,steps\n0,LM on l4|tpu,10\n1,LM,10\n")
    assert [job.model for job in trace] == ["LM on l4|tpu", "LM"]
    assert trace.throughputs is not None
    assert trace.throughputs.alone[trace.throughputs.index()["LM on l4|tpu", 1]].tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match=":2: no throughputs for the model 'LM on tpu'"):
        read(tmp_path, "arrival_s,model,steps\n0,LM on tpu,10\n")


def test_restricted_models_share_only_where_both_run(measured: Throughputs, traces: Path) -> None:
    trace = read_trace(traces / "alibaba-gpu-2023/openb_pod_list_gpuspec33.csv", measured)
    found = trace.throughputs
    assert found is not None
    assert found.pairs is not None
    restricted = [k for k, (model, _) in enumerate(found.kinds) if " on " in model]
    assert restricted
    assert (found.pairs[restricted] > 0).any()
    runs = found.alone > 0
    assert not found.pairs[~(runs[:, None, :] & runs[None, :, :])].any()


@pytest.mark.parametrize(
    ("file", "format", "jobs", "last_s"),
    [
        ("gavel/physical_cluster/max_min_fairness.trace", "gavel", 96, 46317.0),
        ("gavel/msr_seed0/ee9e8c.trace", "gavel-7", 2000, None),
        ("shockwave/120_multigpu_dynamic.trace", "shockwave", 120, 5011.0),
        ("philly-pollux/philly.csv", "philly", 82247, 9408690.0),
        ("philly-pollux/workload-1.csv", "pollux", 160, 27695.0),
        ("alibaba-gpu-2023/openb_pod_list_default.csv", "alibaba-2023", 6203, 12901761.0),
        ("muri/trace4.csv", "muri", 2638, 7363956.0),
        ("chronus-philly/trace_job_Philly_SLO.csv", "chronus", 30735, 20150.0),
        ("tiresias/60_job.csv", "tiresias", 60, 1779.0),
    ],
)
def test_every_public_trace_is_read_and_detected(
    traces: Path, measured: Throughputs, file: str, format: str, jobs: int, last_s: float | None
) -> None:
    trace = read_trace(traces / file, measured, widths="guess")
    assert (trace.format, len(trace)) == (format, jobs)
    assert [job.id for job in trace] == list(range(jobs))
    arrivals = np.array([job.arrival_s for job in trace])
    assert (np.diff(arrivals) >= 0).all()
    assert last_s is None or arrivals[-1] == last_s
    assert trace.throughputs is not None
    assert {(job.model, job.width) for job in trace} <= set(trace.throughputs.kinds)
    assert all(job.steps > 0 for job in trace)


def test_deadlines_and_milliseconds_of_other_simulators(traces: Path, measured: Throughputs) -> None:
    trace = read_trace(traces / "chronus-philly/trace_job_Philly_SLO.csv", measured)
    job = next(job for job in trace if job.name == "0")
    assert (job.width, job.duration_s, job.due_s, job.entity) == (4, 211.0, 282.0, "vc_103959")
    muri = read_trace(traces / "muri/trace4.csv", measured)
    assert (muri.jobs[1].arrival_s, muri.jobs[1].duration_s) == (6.0, 16794.0)
    assert muri.jobs[1].model == "A3C"  # stands for dqn
    own = table(
        [
            RateEntry("vgg19", "v100", 9.0),
            *(RateEntry(model, "v100", 1.0) for model in ("vgg11", "resnet50")),
        ]
    )
    known = read_trace(traces / "tiresias/60_job.csv", own, widths="guess")
    assert (known.jobs[0].model, known.jobs[0].steps) == ("vgg19", 606.0)  # a known model keeps its iterations


def test_a_pollux_job_without_a_profile_has_its_applications_gpu_hours(traces: Path, measured: Throughputs) -> None:
    trace = read_trace(traces / "philly-pollux/workload-1.csv", measured)
    for job in trace:
        assert job.duration_s is not None
        if job.name.startswith("imagenet"):
            assert job.duration_s * job.width / 3600 == pytest.approx(287)
            assert job.model.startswith("ResNet-50")


def test_the_recorded_old_trace_is_written_back_byte_by_byte(golden: Path, tmp_path: Path) -> None:
    source = golden / "cluster/gen444_seed0_lam9000_window100.trace"
    assert write_gavel(read_trace(source), tmp_path / "again.trace") == 156
    old, new = source.read_text().splitlines(), (tmp_path / "again.trace").read_text().splitlines()
    assert [line.replace("\t0.000000", "\t0") for line in new] == [line.replace("\t0.000000", "\t0") for line in old]


STARTED = """\
LM\tpython3 "my train.py" %s/wiki  -b 5 \tlm/a b\t--steps\t1\t7\t1\t1\t-1.000000\t0.000000
LM\tpython3 "my train.py" %s/wiki  -b 5 \tlm/a b\t--steps\t1\t9\t2\t1\t-1.000000\t1.000000
GAN\t\t\t-n\t0\t8\t1\t1\t-1.000000\t2.000000
"""


def test_commands_are_kept_once_and_written_back_as_they_were(tmp_path: Path) -> None:
    path, table, again = tmp_path / "jobs.trace", tmp_path / "jobs.csv", tmp_path / "again.trace"
    path.write_text(STARTED)
    jobs = read_trace(path).jobs
    assert jobs[0].start == TrainingStart('python3 "my train.py" %s/wiki  -b 5 ', "lm/a b", "--steps", True)
    assert jobs[1].start is jobs[0].start
    write_gavel(jobs, again)
    assert again.read_text() == STARTED
    write_table(jobs, table)
    write_gavel(read_trace(table), again)
    assert again.read_text() == STARTED, "by way of our table"


def test_the_oldest_commands_are_kept_too(traces: Path, tmp_path: Path) -> None:
    """Their seven columns have no folder."""
    path = traces / "gavel/msr_seed0/0e4a51.trace"
    write_gavel(read_trace(path), tmp_path / "again.trace")
    lines = [each.read_text().splitlines() for each in (path, tmp_path / "again.trace")]
    for old, new in zip(*lines, strict=True):
        model, command, folder, *rest = new.split("\t")
        assert ([model, command, *rest[:3]], folder) == (old.split("\t")[:5], "")


def test_a_wrong_data_flag_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.trace"
    path.write_text(STARTED.replace("\t0\t8", "\tmaybe\t8"))
    with pytest.raises(InputError, match=r"jobs.trace:3: needs data: expected 0 or 1, found 'maybe'"):
        read_trace(path)
    rows = [{"arrival_s": 0, "model": "LM", "steps": 1, "command": "a\tb", "needs_data": True}]
    (job,) = read_trace(given_rows("trace", rows)).jobs
    assert job.start == TrainingStart("a\tb", needs_data=True)
    with pytest.raises(InputError, match="job 0: a tab or the end of a line"):
        write_gavel([job], path)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A3C", steps=1.0), Job(id=1, model="other", steps=1.0)]
    with pytest.raises(InputError, match="no command is known"):
        write_gavel(jobs, tmp_path / "jobs.trace")
    with pytest.raises(InputError, match="needs its duration"):
        write_gavel([Job(id=0, model="A3C", steps=1.0, due_s=5.0)], tmp_path / "jobs.trace")
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_carriage_return_does_not_break_the_row(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    write_table([Job(id=0, model="LM", steps=1.0, name="a\rb"), Job(id=1, model="LM", steps=1.0, name="c\nd")], path)
    assert [job.name for job in read_trace(path, RATES)] == ["a b", "c\nd"]


def test_formats_are_told_apart(traces: Path, tmp_path: Path) -> None:
    assert next(iter(FORMATS)) == "table"
    assert detect(traces / "tiresias/60_job.csv").name == "tiresias"
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbfarrival_s,model,steps\r\n0,LM,5\r\n")
    assert read_trace(path, RATES).jobs[0].steps == 5.0


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=8)
numbers = st.floats(0, 1e9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, st.sampled_from(["LM", "GAN"]), st.none() | numbers, names), min_size=1))
def test_our_table_is_written_and_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float, str, float | None, str]]
) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    jobs = [
        Job(id=i, model=model, steps=steps, arrival_s=at, due_s=due, duration_s=steps, name=name.strip(), weight=0.5)
        for i, (at, steps, model, due, name) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("trace") / "jobs.csv"
    assert write_table(jobs, path) == len(jobs)
    assert read_trace(path, RATES).jobs == jobs


def test_every_format_reads_with_the_built_in_throughputs(traces: Path) -> None:
    trace = read_trace(traces / "philly-pollux/workload-3.csv", analytic(["h100", "l4"]))
    assert trace.throughputs is not None
    assert trace.throughputs.source == "estimated"
    assert all(job.steps > 0 for job in trace)
