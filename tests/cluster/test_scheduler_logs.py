"""Logs of Slurm, Kubernetes and Ray as traces: what is read, what is told from a mapping, what is left out and why."""

# ruff: noqa: E501  (lines are as they are printed)

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail import cli, cluster
from dovetail.cluster.inputs.analytic import analytic
from dovetail.cluster.inputs.throughputs import reference_type
from dovetail.cluster.inputs.traces import JobTrace, detect, read_trace, write_trace
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError

HERE = ("v100", "a100")
SACCT = """\
JobID|JobName|Account|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES|ReqTRES
100|bert-large|nlp|COMPLETED|2024-11-13T08:00:00|2024-11-13T09:00:00|2024-11-13T11:00:00|02:00:00|UNLIMITED|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1|cpu=8,gres/gpu=4
100.batch|batch||COMPLETED|2024-11-13T09:00:00|2024-11-13T09:00:00|2024-11-13T11:00:00|02:00:00||cpu=8,gres/gpu:a100=4,gres/gpu=4|
100.extern|extern||COMPLETED|2024-11-13T09:00:00|2024-11-13T09:00:00|2024-11-13T11:00:00|02:00:00||cpu=8|
101_3|sweep|vision|TIMEOUT|2024-11-13T08:10:00|2024-11-13T08:20:00|2024-11-14T08:20:00|1-00:00:00|1-00:00:00|cpu=4,gres/gpu=1,mem=8G|cpu=4,gres/gpu:v100=1
101_[4-9%2]|sweep|vision|PENDING|2024-11-13T08:10:00|Unknown|Unknown|00:00:00|1-00:00:00||cpu=4,gres/gpu:v100=1
102|later|nlp|RUNNING|2024-11-13T08:30:00|2024-11-13T08:31:00|Unknown|05:00:00|UNLIMITED|gres/gpu=2|gres/gpu=2
103|prep|nlp|COMPLETED|2024-11-13T08:40:00|2024-11-13T08:41:00|2024-11-13T08:42:00|00:01:00|10:00|cpu=2,mem=4G,node=1|cpu=2
104|gone|nlp|CANCELLED by 42|2024-11-13T08:50:00|None|2024-11-13T08:55:00|00:00:00|10:00||gres/gpu=8
105|small|nlp|CANCELLED by 42|2024-11-13T09:00:00|2024-11-13T09:00:00|2024-11-13T09:07:00|07:00|10:00|gres/gpu:a100_3g.20gb=1|gres/gpu=1
"""


def _read(tmp_path: Path, text: str, name: str = "log.txt", **how: Any) -> JobTrace:
    path = tmp_path / name
    path.write_text(text)
    known = analytic(HERE)
    return read_trace(path, known, elsewhere=lambda: analytic(["v100", "a100", "h100"]), **how)


def _rate(model: str, width: int, on: str) -> float:
    known = analytic((*HERE, "h100"))
    return float(known.alone[known.index()[model, width], known.types.index(on)])


def _bare(model: str) -> str:
    return model.partition(" on ")[0]


def test_sacct(tmp_path: Path) -> None:
    found = _read(tmp_path, SACCT)
    assert found.format == "slurm"
    assert [(job.name, job.arrival_s, job.width, job.entity) for job in found] == [
        ("bert-large", 0.0, 4, "nlp"),
        ("sweep", 600.0, 1, "vision"),
        ("small", 3600.0, 1, "nlp"),
    ]
    assert found.dropped == {
        "steps of jobs": 2,
        "jobs that never ran": 2,
        "jobs that still run": 1,
        "jobs without a GPU": 1,
    }
    first, second, third = found.jobs
    # Two hours on the type that it had are as many steps as the model does there in two hours.
    assert first.steps == pytest.approx(7200 * _rate(first.model, 4, "a100"))
    assert second.model.endswith(" on v100")  # it asked for that type, and only that
    assert second.steps == pytest.approx(86400 * _rate(_bare(second.model), 1, "v100"))
    assert third.steps == pytest.approx(420 * 3 / 7 * _rate(third.model, 1, "a100"))  # three sevenths of one
    assert any("TIMEOUT 1, CANCELLED 1" in note for note in found.notes)


def test_a_job_over_several_servers_did_as_much_as_it_does_there(tmp_path: Path) -> None:
    line = "100|wide|nlp|COMPLETED|2024-11-13T08:00:00|2024-11-13T09:00:00|2024-11-13T10:00:00|01:00:00||cpu=8,gres/gpu{}=4,node=2|gres/gpu=4"
    known = analytic(HERE)
    for kind, on in ((":v100", "v100"), ("", reference_type(known))):
        (job,) = _read(tmp_path, SACCT.splitlines()[0] + "\n" + line.format(kind) + "\n").jobs
        assert job.steps == pytest.approx(3600 * known.spread[known.index()[job.model, 4], known.types.index(on)])


def test_a_job_that_was_resized_counts_until_then(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Start|End|Elapsed|AllocTRES\n"
    line = "7|RESIZING|2024-11-13T08:00:00|2024-11-13T09:00:00|{}|01:00:00|gres/gpu=4\n"
    found = _read(tmp_path, head + line.format("2024-11-13T10:00:00") + line.format("Unknown"))
    assert [(job.width, job.duration_s) for job in found] == [(4, 3600.0)]
    assert found.dropped == {"jobs that still run": 1}
    assert not any("did not end well" in note for note in found.notes)


def test_a_row_that_ends_before_it_starts_cannot_be_read(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Start|End|AllocTRES\n"
    line = "7|COMPLETED|2024-11-13T08:00:00|2024-11-13T09:00:00|2024-11-13T{}:00:00|gres/gpu=4\n"
    said = "log.txt:3: End: expected a time after Start, 2024-11-13T09:00:00, found 2024-11-13T08:00:00"
    with pytest.raises(InputError, match=said):
        _read(tmp_path, head + line.format("10") + line.format("08"))
    found = _read(tmp_path, head + line.format("10") + line.format("08"), on_error="skip")
    assert (len(found), found.dropped) == (1, {"rows that could not be read": 1})


def test_of_the_first_jobs_of_a_log_without_order_only_theirs_is_told(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Elapsed|AllocTRES\n"
    ran, cpu = (
        "{0}|COMPLETED|2024-11-13T{0}:00:00|01:00:00|gres/gpu=1\n",
        "{0}|COMPLETED|2024-11-13T{0}:00:00|01:00:00|cpu=1\n",
    )
    rows = [
        cpu.format(10),
        ran.format(10),
        cpu.format(12),
        cpu.format(13),
        ran.format(14),
        ran.format(11),
        cpu.format(15),
    ]
    assert [job.name for job in _read(tmp_path, head + "".join(rows), most=2)] == ["10", "11"]
    for most, left_out in ((1, 1), (2, 1), (3, 4), (None, 4)):
        found = _read(tmp_path, head + "".join(rows), most=most)
        assert found.dropped == {"jobs without a GPU": left_out}


def test_models_that_are_known_are_named_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model 'NOPE': no throughputs for it; known: A3C, CycleGAN, LM, "):
        _read(tmp_path, SACCT, model={"x*": "NOPE"})


def test_old_columns_cannot_say_a_type_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    jobs, out = _read(tmp_path, SACCT).jobs, tmp_path / "out.trace"
    said = r"sacct.txt: job 1 \('sweep'\): '.* on v100': no command is known for it; .* \(--map type= lets"
    with pytest.raises(InputError, match=said):
        write_trace(jobs, out, "gavel", "sacct.txt")
    assert not out.exists()
    assert write_trace(_read(tmp_path, SACCT, map={"type": ""}).jobs, out, "gavel", "sacct.txt") == len(jobs)


def test_a_type_that_is_asked_for_and_not_here_is_noted(tmp_path: Path) -> None:
    line = "100|x|nlp|COMPLETED|2024-11-13T08:00:00|2024-11-13T09:00:00|2024-11-13T10:00:00|01:00:00||gres/gpu:h100=1|gres/gpu:h100=1"
    found = _read(tmp_path, SACCT.splitlines()[0] + "\n" + line + "\n")
    (job,) = found.jobs
    assert " on " not in job.model
    assert job.steps == pytest.approx(3600 * _rate(job.model, 1, "h100"))
    assert found.dropped == {"wishes for GPU types that are not known here": 1}


def test_the_table_that_sacct_prints_without_options_for_parsing(tmp_path: Path) -> None:
    table = """\

       JobID    JobName              Submit    Elapsed                                    AllocTRES      State
------------ ---------- ------------------- ---------- -------------------------------------------- ----------
3445652      slurm_bat+ 2024-11-13T08:00:00   02:00:00 billing=8,cpu=8,gres/gpu:v100=2,gres/gpu=2  COMPLETED
3445652.bat+      batch 2024-11-13T08:00:00   02:00:00 cpu=8,gres/gpu:v100=2,gres/gpu=2            COMPLETED
3445653      omp_mem_t+ 2024-11-13T08:01:00   00:30:00 billing=8,cpu=8,gres/gpu=1                  OUT_OF_ME+
"""
    found = _read(tmp_path, table)
    assert [(job.name, job.width, job.duration_s) for job in found] == [
        ("slurm_bat+", 2, 7200),
        ("omp_mem_t+", 1, 1800),
    ]
    cut = table.replace("billing=8,cpu=8,gres/gpu=1                 ", "billing=8,cpu=8,gres/g+                    ")
    with pytest.raises(InputError, match=r"log.txt:6: alloctres: expected all of it, found 'billing=8,cpu=8,gres/g\+'"):
        _read(tmp_path, cut)
    with pytest.raises(InputError, match=r"log.txt:2: expected a line of dashes under the names, found '1 '"):
        _read(tmp_path, "JobID  Submit\n1 \n")


@pytest.mark.parametrize(
    ("name", "elapsed", "accelerators"),
    [
        ("train", "1-00:00:00", 16),
        ("训练模型", "00:10:00", 2),
        ("Prüfläufe", "1-00:10:00", 4),
        ("long", "12-00:00:09", 16),
    ],
)
def test_a_table_whose_columns_are_filled_up_by_bytes(
    tmp_path: Path, name: str, elapsed: str, accelerators: int
) -> None:
    """As C's printf does: a name takes as many columns as it has bytes, and a time is never cut short."""
    sizes = {"JobID": 12, "JobName": 14, "Submit": 19, "Elapsed": 10, "AllocTRES": 30, "State": 10}

    def line(*cells: str) -> bytes:
        filled = zip(cells, sizes.values(), strict=True)
        return b" ".join(cell.encode().rjust(size) for cell, size in filled) + b" \n"

    rows = [(name, elapsed, accelerators), ("next", "00:10:00", 1)]
    jobs = [
        line(f"{i}", name, "2024-11-13T08:00:00", elapsed, f"cpu=8,gres/gpu={gpus}", "COMPLETED")
        for i, (name, elapsed, gpus) in enumerate(rows)
    ]
    (tmp_path / "log.txt").write_bytes(line(*sizes) + line(*("-" * size for size in sizes.values())) + b"".join(jobs))
    found = read_trace(tmp_path / "log.txt", analytic(HERE))
    took_s = {"1-00:00:00": 86400, "00:10:00": 600, "1-00:10:00": 87000, "12-00:00:09": 12 * 86400 + 9}
    assert [(job.name, job.width) for job in found] == [(name, accelerators), ("next", 1)]
    assert [job.duration_s for job in found] == pytest.approx([took_s[elapsed], 600])


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ("1234567_100+|01:00:00|gres/gpu=2|gres/gpu=2", "JobID: expected all of it, found '1234567_100\\+', cut short"),
        (
            "1|01:00:00|gres/gpu=2|cpu=8,gres/gpu:a10+",
            "reqtres: expected all of it, found 'cpu=8,gres/gpu:a10\\+', cut",
        ),
        ("1|10-03:04:+|gres/gpu=2|gres/gpu=2", "elapsed: expected all of it, found '10-03:04:\\+', cut short"),
    ],
)
def test_what_is_cut_short_is_not_guessed(tmp_path: Path, cells: str, wrong: str) -> None:
    """A JobID could be a step's, a type that was asked for another one."""
    job, elapsed, had, asked = cells.split("|")
    text = f"JobID|Submit|Elapsed|AllocTRES|ReqTRES\n{job}|2024-11-13T08:00:00|{elapsed}|{had}|{asked}\n"
    with pytest.raises(InputError, match=f"log.txt:2: {wrong}"):
        _read(tmp_path, text)


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ("1|2024-11-13T08:00:00|soon|gres/gpu=1", "2: elapsed: expected seconds or DAYS-HH:MM:SS, found 'soon'"),
        ("1|Tomorr 10:00|1:00|gres/gpu=1", "2: submit: expected a time such as 2024-11-13T13:03:31, .* found 'Tomorr"),
        ("1|Unknown|1:00|gres/gpu=1", "2: Submit: expected when it came, found 'Unknown'"),
        (
            "1|2024-11-13T08:00:00|1:00|cpu=1,gres/gpu=x",
            "2: alloctres: expected accelerators as .*, found 'gres/gpu=x'",
        ),
        ("1|2024-11-13T08:00:00|1:00", "2: expected 4 columns, found 3"),
        ("|2024-11-13T08:00:00|1:00|gres/gpu=1", "2: JobID: expected a job, found nothing"),
    ],
)
def test_lines_that_cannot_be_read(tmp_path: Path, cells: str, wrong: str) -> None:
    text = f"JobID|Submit|Elapsed|AllocTRES\n{cells}\n2|2024-11-13T08:00:00|1:00|gres/gpu=1\n"
    with pytest.raises(InputError, match=f"log.txt:{wrong}"):
        _read(tmp_path, text)
    found = _read(tmp_path, text, on_error="skip")
    assert (len(found), found.dropped) == (1, {"rows that could not be read": 1})
    assert any(note.startswith("could not be read: ") and "log.txt:2: " in note for note in found.notes)


def test_a_width_that_is_told_needs_no_column(tmp_path: Path) -> None:
    table = "JobID|State|Submit|Elapsed|AllocCPUS\n7|COMPLETED|2024-11-13T08:00:00|01:00:00|4\n"
    assert [job.width for job in _read(tmp_path, table, map={"width": "AllocCPUS"})] == [4]
    assert [job.width for job in _read(tmp_path, table, map={"width": "1"})] == [1]
    with pytest.raises(InputError, match="missing column 'AllocTRES'"):
        _read(tmp_path, table)


def test_a_name_with_a_bar_in_the_last_column(tmp_path: Path) -> None:
    found = _read(tmp_path, "JobID|Submit|Elapsed|AllocTRES|JobName\n1|1000|60|gres/gpu=1|a|b\n")
    assert found.jobs[0].name == "a|b"


def test_a_name_with_a_bar_in_any_column(tmp_path: Path) -> None:
    found = _read(tmp_path, "JobID|JobName|Submit|Elapsed|AllocTRES\n1|a|b|1000|60|gres/gpu=1\n")
    assert [(job.name, job.width) for job in found] == [("a|b", 1)]
    with pytest.raises(InputError, match=r"log.txt:2: expected 6 columns, found 7"):  # which of the two has it?
        _read(tmp_path, "JobID|JobName|Comment|Submit|Elapsed|AllocTRES\n1|a|b|c|1000|60|gres/gpu=1\n")


@pytest.mark.parametrize("between", [";", "\t", "^"])
def test_accounts_with_another_delimiter(tmp_path: Path, between: str) -> None:
    expected = _read(tmp_path, SACCT)
    found = _read(tmp_path, SACCT.replace("|", between))
    assert (found.jobs, found.dropped) == (expected.jobs, expected.dropped)


def test_accounts_with_commas_need_quotes(tmp_path: Path) -> None:
    quoted = 'JobID,JobName,Submit,Elapsed,AllocTRES\n7,"a,b",1000,60,"cpu=1,gres/gpu=2"\n'
    assert [(job.name, job.width) for job in _read(tmp_path, quoted)] == [("a,b", 2)]
    with pytest.raises(InputError, match=r"log.txt:2: expected 5 columns, found 7 \(commas in a cell need quotes"):
        _read(tmp_path, quoted.replace('"', ""))


def test_older_accounts_count_accelerators_by_node(tmp_path: Path) -> None:
    found = _read(tmp_path, "JobID|Submit|Elapsed|AllocGRES|AllocNodes|\n1|1000|60|gpu:v100:2|4|\n2|1001|60|gpu:1|1|\n")
    assert [job.width for job in found] == [8, 1]


def test_a_table_that_cannot_say_what_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log.txt:1: missing column 'AllocTRES'; found jobid, .*\(as by sacct -a -X"):
        _read(tmp_path, "JobID|JobName|Submit|Elapsed\n1|x|1000|60\n")


def test_what_a_log_does_not_say_is_told(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "map": {"entity": "State", "weight": "3", "due_s": "Timelimit", "type": ""},
        "model": {"bert*": "Transformer"},
    }
    first, second, third = _read(tmp_path, SACCT, **how)
    assert first.model.startswith("Transformer (batch size ")
    assert [job.entity for job in (first, second, third)] == ["COMPLETED", "TIMEOUT", "CANCELLED by 42"]
    assert [job.weight for job in (first, second, third)] == [3, 3, 3]
    assert [job.due_s for job in (first, second, third)] == [None, 86400, 600]
    assert " on " not in second.model  # a type that nobody asks for any more
    exact = _read(tmp_path, SACCT, model={"": "LM (batch size 10)"}, map={"steps": "500"})
    assert {(job.model.partition(" on ")[0], job.steps) for job in exact} == {("LM (batch size 10)", 500)}


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"map": {"modle": "JobName"}}, "map: unknown name 'modle'; did you mean 'model'"),
        ({"map": {"model": "Jobname2"}}, "log.txt:2: expected a column 'Jobname2', found jobid, jobname"),
        ({"map": {"weight": "JobName"}}, "log.txt:2: JobName: expected a number from 1e-06 .* found 'bert-large'"),
        ({"model": {"": "Transformr"}}, "model 'Transformr': no throughputs for it; did you mean 'Transformer'"),
    ],
)
def test_a_mapping_that_is_wrong(tmp_path: Path, how: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        _read(tmp_path, SACCT, **how)


def test_other_formats_have_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"map, model and on_error are for logs of schedulers \(slurm, kubernetes, ray\)"
    ):
        _read(tmp_path, "arrival_s,model,steps\n0,LM,5\n", map={"model": "model"})


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def _meta(name: str, uid: str, at: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "team-a", "uid": uid, "creationTimestamp": f"2026-09-02T{at}Z", **more}


def _pod(gpus: Any, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}], **spec}}


def _condition(kind: str, at: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": "True", "lastTransitionTime": f"2026-09-02T{at}Z", **more}


def _event(about: str, reason: str, at: str) -> dict[str, Any]:
    involved = {"kind": "Workload", "namespace": "team-a", "name": about}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": involved,
        "reason": reason,
        "firstTimestamp": f"2026-09-02T{at}Z",
    }


WORKLOAD = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "Workload",
    "metadata": _meta("job-train", "w1", "10:00:00", ownerReferences=[{"kind": "Job", "name": "train", "uid": "j1"}]),
    "spec": {"queueName": "user-queue", "podSets": [{"name": "main", "count": 2, "template": _pod("4")}]},
    "status": {
        "conditions": [
            _condition("QuotaReserved", "10:29:00"),
            _condition("Admitted", "10:30:00"),
            _condition("Finished", "11:30:00", reason="Succeeded"),
        ],
        "admission": {
            "clusterQueue": "research",
            "podSetAssignments": [
                {
                    "name": "main",
                    "flavors": {"cpu": "c", "nvidia.com/gpu": "pool-h100-spot"},
                    "resourceUsage": {"cpu": "16", "nvidia.com/gpu": "8"},
                }
            ],
        },
    },
}
JOBS = [
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta("train", "j1", "10:00:00"), "spec": {"template": _pod(4)}, "status": {}},
    {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta("wide", "j2", "10:05:00"),
        "spec": {"parallelism": 2, "template": _pod(1, nodeSelector={"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"})},
        "status": {"startTime": "2026-09-02T10:06:00Z", "conditions": [_condition("Failed", "10:16:00")]},
    },
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _meta("set", "j3", "10:07:00"),
        "spec": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2, "template": _pod("1")}}}]},
        "status": {"startTime": "2026-09-02T10:08:00Z", "conditions": [_condition("Completed", "10:18:00")]},
    },
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta("open", "j4", "10:08:00"), "spec": {"template": _pod(1)}, "status": {"startTime": "2026-09-02T10:09:00Z"}},
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta("held", "j5", "10:08:00"), "spec": {"template": _pod(1)}, "status": {}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": _meta("p", "p1", "10:08:00")},
]  # fmt: skip


def _listed(items: Sequence[Any]) -> str:
    return json.dumps(
        {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}, indent=4
    )


def _told(found: JobTrace) -> list[tuple[str, float, int, str]]:
    return [(job.name, job.arrival_s, job.width, job.entity) for job in found]


def test_workloads_and_jobs(tmp_path: Path) -> None:
    found = _read(tmp_path, _listed([WORKLOAD, *JOBS]), "k8s.json")
    assert found.format == "kubernetes"
    assert _told(found) == [("train", 0.0, 8, "research"), ("wide", 300.0, 2, "team-a"), ("set", 420.0, 4, "team-a")]
    assert found.dropped == {
        "jobs that a workload stands for": 1,
        "jobs that still run": 1,
        "jobs that never ran": 1,
        "objects that are no jobs (Pod)": 1,
    }
    train, wide, jobset = found.jobs
    assert train.steps == pytest.approx(3600 * _rate(train.model, 8, "h100"))  # by the flavor that it had
    assert wide.model.endswith(" on v100")
    assert wide.steps == pytest.approx(600 * _rate(_bare(wide.model), 2, "v100"))
    assert jobset.duration_s == pytest.approx(600)
    assert any("Failed 1" in note for note in found.notes)


def test_events_tell_of_evictions(tmp_path: Path) -> None:
    events = [
        _event("job-train", "Admitted", "10:05:00"),
        _event("job-train", "EvictedDueToPreempted", "10:15:00"),
        _event("job-train", "Admitted", "10:30:00"),
    ]
    found = _read(tmp_path, _listed([*events, WORKLOAD]), "k8s.json")
    assert found.jobs[0].steps == pytest.approx((600 + 3600) * _rate(found.jobs[0].model, 8, "h100"))
    past = json.loads(json.dumps(WORKLOAD))
    past["status"]["accumulatedPastExecutionTimeSeconds"] = 600
    same = _read(tmp_path, json.dumps(past), "k8s.json", map={"width": "8"})
    assert same.jobs[0].steps == found.jobs[0].steps
    with pytest.raises(InputError, match="found events alone, which do not say how many accelerators: kubectl get"):
        _read(tmp_path, _listed(events), "k8s.json")


def test_an_event_that_is_told_once_for_several_times_counts_first_and_last(tmp_path: Path) -> None:
    """Events of one message are one object: begun at 10:05 and again at 10:30, stopped between, ended at 11:30."""
    begun = _event("job-train", "Started", "10:05:00") | {"count": 2, "lastTimestamp": "2026-09-02T10:30:00Z"}
    stopped = _event("job-train", "Stopped", "10:15:00") | {"count": 1, "lastTimestamp": "2026-09-02T10:15:00Z"}
    found = _read(tmp_path, _listed([begun, stopped, WORKLOAD]), "k8s.json")
    assert found.jobs[0].steps == pytest.approx((600 + 3600) * _rate(found.jobs[0].model, 8, "h100"))
    newer = []
    for each in (begun, stopped):  # as events.k8s.io tells it
        last = {"count": each["count"], "lastObservedTime": each["lastTimestamp"]}
        times = {"eventTime": each["firstTimestamp"], "series": last if each["count"] > 1 else None}
        newer.append({"kind": "Event", "regarding": each["involvedObject"], "reason": each["reason"], **times})
    same = _read(tmp_path, _listed([*newer, WORKLOAD]), "k8s.json")
    assert same.jobs[0].steps == found.jobs[0].steps


def test_a_workload_that_lost_its_admission_and_was_given_up_never_ran(tmp_path: Path) -> None:
    given_up = json.loads(json.dumps(WORKLOAD))
    given_up["metadata"]["uid"] = "w2"
    given_up["status"]["conditions"][1] = _condition("Admitted", "10:30:00") | {"status": "False"}
    found = _read(tmp_path, _listed([WORKLOAD, given_up]), "k8s.json")
    assert (len(found), found.dropped) == (1, {"jobs that never ran": 1})


def _owned(by: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": by, "name": "whole", "uid": uid}]}


def _part(name: str, at: str, until: str, owner: dict[str, Any], gpus: int = 4) -> dict[str, Any]:
    """A Job that is part of a whole, as a JobSet makes it."""
    times = {"startTime": f"2026-09-02T{at}Z", "completionTime": f"2026-09-02T{until}Z"}
    status = times | {"conditions": [_condition("Complete", until)]}
    meta = _meta(name, f"uid-{name}", "10:00:00", **owner)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"template": _pod(gpus)},
        "status": status,
    }


def _job_set(uid: str, until: str, **more: Any) -> dict[str, Any]:
    """A JobSet of two Jobs with four GPUs each; its status has conditions, and no times."""
    spec = {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 1, "template": _pod("4")}}}]}
    status = {"conditions": [_condition("Completed", until)], "restarts": 0}
    meta = _meta("whole", uid, "10:00:00", **more)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def test_a_job_that_consists_of_others_is_one_job(tmp_path: Path) -> None:
    whole = _job_set("js", "11:00:00")
    parts = [_part(f"whole-{i}", f"10:{20 - 10 * i}:00", "11:00:00", _owned("JobSet", "js")) for i in range(2)]
    found = _read(tmp_path, _listed([*parts, whole]), "k8s.json")
    assert [(job.name, job.width, job.duration_s) for job in found] == [("whole", 8, 3000.0)]  # since the first began
    assert found.dropped == {"jobs that are part of another": 2}
    alone = _read(tmp_path, _listed([whole]), "k8s.json")
    assert [(job.width, job.duration_s) for job in alone] == [(8, 3600.0)]  # since it was created
    suspended = json.loads(json.dumps(whole))
    suspended["status"]["conditions"].append(_condition("Suspended", "10:30:00") | {"status": "False"})
    resumed = _read(tmp_path, _listed([suspended]), "k8s.json")
    assert [job.duration_s for job in resumed] == [1800.0]
    separate = _read(tmp_path, _listed(parts), "k8s.json")  # all that is known
    assert [(job.name, job.width) for job in separate] == [("whole", 4), ("whole", 4)]


def test_the_parts_of_what_a_workload_stands_for_do_not_count_again(tmp_path: Path) -> None:
    """`kubectl get workloads,jobs` lists the Jobs of a JobSet, and not the JobSet."""
    workload = json.loads(json.dumps(WORKLOAD))
    workload["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "whole", "uid": "js"}]
    parts = [_part(f"whole-{i}", "10:30:00", "11:30:00", _owned("JobSet", "js")) for i in range(2)]
    for others in (parts, [*parts, _job_set("js", "11:30:00")]):
        found = _read(tmp_path, _listed([workload, *others]), "k8s.json")
        assert [(job.name, job.width, job.entity) for job in found] == [("whole", 8, "research")]


def test_a_ray_job_has_as_many_workers_as_it_has_at_least(tmp_path: Path) -> None:
    for more, width in (
        ({"replicas": 2}, 8),
        ({"minReplicas": 1, "maxReplicas": 5}, 4),
        ({"replicas": 2, "numOfHosts": 2}, 16),
    ):
        workers = [{"groupName": "w", "template": _pod(4), **more}]
        spec = {"rayClusterSpec": {"headGroupSpec": {"template": _pod(0)}, "workerGroupSpecs": workers}}
        status = {"startTime": "2026-09-02T10:01:00Z", "endTime": "2026-09-02T10:11:00Z", "jobStatus": "SUCCEEDED"}
        job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": _meta("r", "r1", "10:00:00")}
        found = _read(tmp_path, _listed([job | {"spec": spec, "status": status}]), "k8s.json")
        assert [(each.width, each.duration_s) for each in found] == [(width, 600.0)]


@pytest.mark.parametrize(
    ("counts", "width"),
    [({"parallelism": 4, "completions": 1}, 2), ({"parallelism": 4, "completions": 100}, 8), ({}, 2)],
)
def test_no_more_pods_run_than_have_to_complete(tmp_path: Path, counts: dict[str, int], width: int) -> None:
    job = _part("job", "10:00:00", "10:10:00", {}) | {"spec": counts | {"template": _pod(2)}}
    assert [each.width for each in _read(tmp_path, _listed([job]), "k8s.json")] == [width]


@pytest.mark.parametrize(("says", "told"), [("FAILED", "Failed 1"), ("STOPPED", "Stopped 1"), ("SUCCEEDED", "")])
def test_how_a_ray_job_ended_is_told(tmp_path: Path, says: str, told: str) -> None:
    status = {"startTime": "2026-09-02T10:00:00Z", "endTime": "2026-09-02T10:10:00Z", "jobStatus": says}
    spec = {"rayClusterSpec": {"headGroupSpec": {"template": _pod(1)}}}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": _meta("r", "r1", "10:00:00"), "spec": spec}
    found = _read(tmp_path, _listed([job | {"status": status}]), "k8s.json")
    assert [note for note in found.notes if "did not end well" in note] == (
        [f"the time of jobs counts that did not end well: {told}"] if told else []
    )


@pytest.mark.parametrize(
    ("init", "width"),
    [
        ([{}], 4),
        ([{"gpus": 1}, {"gpus": 4}], 8),
        ([{"gpus": 1, "restartPolicy": "Always"}], 6),
        ([{"gpus": 1, "restartPolicy": "Always"}, {"gpus": 2}], 6),
        ([{"gpus": 3}, {"gpus": 1, "restartPolicy": "Always"}], 6),
        ([{"gpus": 1, "restartPolicy": "Always"}, {"gpus": 3}], 8),
    ],
)
def test_a_pod_holds_what_its_init_containers_and_sidecars_need(
    tmp_path: Path, init: list[dict[str, Any]], width: int
) -> None:
    """Two pods with containers that want two accelerators; sidecars stay, other init containers leave before."""
    pod = _pod(2)
    pod["spec"]["initContainers"] = [
        {key: value for key, value in each.items() if key != "gpus"}
        | ({"resources": {"limits": {"nvidia.com/gpu": each["gpus"]}}} if "gpus" in each else {})
        for each in init
    ]
    spec = {"parallelism": 2, "template": pod}
    job = _part("job", "10:00:00", "10:10:00", {}) | {"spec": spec}
    assert [each.width for each in _read(tmp_path, _listed([job]), "k8s.json")] == [width]


def test_jobs_that_a_timetable_makes_are_jobs(tmp_path: Path) -> None:
    jobs = [_part(f"nightly-{i}", "10:00:00", "10:10:00", _owned("CronJob", "cron")) for i in range(2)]
    assert len(_read(tmp_path, _listed(jobs), "k8s.json")) == 2


def test_a_train_job_counts_by_its_job_set_or_by_its_nodes(tmp_path: Path) -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}}
    meta, status = _meta("tuning", "tj", "10:00:00"), {"conditions": [_condition("Complete", "11:00:00")]}
    train = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": meta, "status": status}
    told = _read(tmp_path, _listed([train | {"spec": {"trainer": trainer}}]), "k8s.json")
    assert [(job.name, job.width, job.duration_s) for job in told] == [("tuning", 8, 3600.0)]
    job_set = _job_set("js", "11:00:00", **_owned("TrainJob", "tj"))
    parts = [_part(f"part-{i}", "10:10:00", "11:00:00", _owned("JobSet", "js")) for i in range(2)]
    found = _read(tmp_path, _listed([train | {"spec": {"trainer": {}}}, job_set, *parts]), "k8s.json")
    assert [(job.width, job.duration_s) for job in found] == [(8, 3000.0)]
    assert found.dropped == {"jobs that a job set stands for": 1, "jobs that are part of another": 2}


def test_lines_and_watched_objects_are_the_same(tmp_path: Path) -> None:
    before = json.loads(json.dumps(WORKLOAD))
    before["status"] = {}
    watched = [{"type": "ADDED", "object": before}, {"type": "MODIFIED", "object": WORKLOAD}]
    for text in ("\n".join(map(json.dumps, watched)), "".join(json.dumps(each, indent=2) for each in watched)):
        assert _told(_read(tmp_path, text, "watch.jsonl")) == [("train", 0.0, 8, "research")]
    given = cluster.load(cluster="h100=8", trace=[WORKLOAD], model={"": "Transformer"})
    assert [job.width for job in given.setup.jobs] == [8]


def test_objects_that_cannot_be_read_are_named_by_their_line(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(WORKLOAD))
    broken["metadata"]["uid"] = "w2"
    broken["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]["nvidia.com/gpu"] = "many"
    text = _listed([WORKLOAD, broken])
    line = 1 + text[: text.rindex('"apiVersion": "kueue')].count("\n") - 1
    with pytest.raises(InputError, match=f"k8s.json:{line}: nvidia.com/gpu: expected a whole number .* found 'many'"):
        _read(tmp_path, text, "k8s.json")
    text = json.dumps(WORKLOAD) + '\n{"kind": \n'
    with pytest.raises(InputError, match=r"k8s.json:2: expected an object as JSON"):
        _read(tmp_path, text, "k8s.json")
    assert len(_read(tmp_path, text, "k8s.json", on_error="skip")) == 1


@pytest.mark.parametrize(
    ("where", "value", "wrong"),
    [
        (("status", "conditions"), {"type": "x"}, "status.conditions: expected a list of objects, found"),
        (("status", "admission", "podSetAssignments"), [3], "podSetAssignments: expected a list of objects, found"),
        (("metadata", "ownerReferences"), True, "metadata.ownerReferences: expected a list of objects, found 'True'"),
        (("metadata", "creationTimestamp"), "noon", "expected a time such as 2024-11-13T13:03:31Z, found 'noon'"),
        (("metadata", "name"), None, ""),
        (("spec", "podSets"), 7, ""),
    ],
)
def test_objects_of_another_shape(tmp_path: Path, where: tuple[str, ...], value: Any, wrong: str) -> None:
    broken = json.loads(json.dumps(WORKLOAD))
    inner = broken
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    text = json.dumps(broken)
    if wrong:
        with pytest.raises(InputError, match=f"k8s.json:1: .*{wrong}"):
            _read(tmp_path, text, "k8s.json")
    else:
        assert len(_read(tmp_path, text, "k8s.json")) == 1


# --- Ray --------------------------------------------------------------------------------------------------------------

PRINTED = """\
Job submission server address: http://10.130.0.158:8265
[JobDetails(type=<JobType.SUBMISSION: 'SUBMISSION'>, job_id='02000000', submission_id='raysubmit_a', driver_info=DriverInfo(id='02000000', node_ip_address='10.130.0.158', pid='10377'), status=<JobStatus.SUCCEEDED: 'SUCCEEDED'>, entrypoint='python run_hp_search.py', message='Job finished.', error_type=None, start_time=1692980228147, end_time=1692980828147, metadata={'gpus': '2', 'team': 'vision'}, runtime_env={'working_dir': 'gcs://x.zip'}, driver_agent_http_address=None, driver_node_id=None),
 JobDetails(type=<JobType.SUBMISSION: 'SUBMISSION'>, job_id=None, submission_id='raysubmit_b', driver_info=None, status=<JobStatus.PENDING: 'PENDING'>, entrypoint='python test.py', message='Job has not started yet.', error_type=None, start_time=1701271760641, end_time=None, metadata={}, runtime_env={}, driver_agent_http_address=None, driver_node_id=None),
 JobDetails(type=<JobType.DRIVER: 'DRIVER'>, job_id='05000000', submission_id=None, driver_info=None, status=<JobStatus.FAILED: 'FAILED'>, entrypoint='', message=None, error_type=None, start_time=1692980300000, end_time=1692980330000, metadata=None, runtime_env=None, driver_agent_http_address=None, driver_node_id=None)]
"""


def _jobs(found: JobTrace) -> list[tuple[str, float, int, float | None, str]]:
    return [(job.name, job.arrival_s, job.width, job.duration_s, job.entity) for job in found]


def test_what_ray_prints(tmp_path: Path) -> None:
    found = _read(tmp_path, PRINTED, map={"width": "metadata.gpus", "entity": "metadata.team"})
    assert found.format == "ray"
    assert _jobs(found) == [("raysubmit_a", 0.0, 2, 600.0, "vision")]
    assert found.dropped == {
        "jobs that never ran": 1,
        "jobs that do not say how many accelerators they had (--map width=KEY tells)": 1,
    }
    with pytest.raises(InputError, match="expected jobs, found none"):
        _read(tmp_path, PRINTED)
    both = _read(tmp_path, PRINTED, map={"width": "1"})
    assert [job.name for job in both] == ["raysubmit_a", "05000000"]


def test_what_a_terminal_printed_around_it(tmp_path: Path) -> None:
    around = "2023-08-25 16:17:08,147\tINFO dashboard_sdk.py:338 -- Uploading\n" + PRINTED + "user@head:~$ \n"
    assert len(_read(tmp_path, around, map={"width": "1"})) == len(_read(tmp_path, PRINTED, map={"width": "1"})) == 2


def test_what_ray_answers_and_writes(tmp_path: Path) -> None:
    job = {
        "submission_id": "raysubmit_a",
        "status": "SUCCEEDED",
        "entrypoint": "x",
        "start_time": 1_000_000,
        "end_time": 1_600_000,
        "entrypoint_num_gpus": 0.5,
    }
    found = _read(tmp_path, json.dumps([job]), "jobs.json")
    assert _jobs(found) == [("raysubmit_a", 0.0, 1, 300.0, "")]
    events = [
        {"timestamp": 1000 + at, "event_id": "e", "source_type": "EXPORT_SUBMISSION_JOB", "event_data": {"submission_job_id": "s", "status": status, "start_time": "1000000", "end_time": end, "metadata": {"gpus": "4"}}}
        for at, status, end in ((0, "PENDING", None), (200, "RUNNING", None), (500, "SUCCEEDED", "1500000"))
    ]  # fmt: skip
    other = {"timestamp": 1, "event_id": "e", "source_type": "EXPORT_ACTOR", "event_data": {}}
    text = "\n".join(map(json.dumps, [*events, other]))
    found = _read(tmp_path, text, "event_EXPORT_SUBMISSION_JOB.log", map={"width": "metadata.gpus"})
    assert _jobs(found) == [("s", 0.0, 4, 300.0, "")]  # it ran from 200 s on
    assert found.dropped == {"events of other things": 1}
    with pytest.raises(InputError, match=r"jobs.json:1: end_time: expected milliseconds, found 'late'"):
        _read(tmp_path, json.dumps([job | {"end_time": "late"}]), "jobs.json")
    with pytest.raises(InputError, match=r"entrypoint_num_gpus: expected a number from 0 to [\d,]+, found -1.0"):
        _read(tmp_path, json.dumps([job | {"entrypoint_num_gpus": -1.0}]), "jobs.json")


def test_a_file_that_was_cut_off_is_called_truncated(tmp_path: Path) -> None:
    for text in (json.dumps(json.loads(_listed([WORKLOAD]))), _listed([WORKLOAD])):
        for end in range(len(text) // 2, len(text) - 1, 7):
            with pytest.raises(InputError, match=r"expected an object as JSON, found .*: is it truncated\?$"):
                _read(tmp_path, text[:end], format="kubernetes")
    with pytest.raises(InputError, match=r"expected an object as JSON, found '\{\]\}'$"):
        _read(tmp_path, "{]}", format="kubernetes")


def test_what_this_version_of_ray_prints(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray.dashboard.modules.job.pydantic_models")
    details = ray.JobDetails(
        type="SUBMISSION",
        submission_id="s",
        status="SUCCEEDED",
        entrypoint="it's",
        start_time=10**6,
        end_time=2 * 10**6,
    )
    from pprint import pformat

    found = _read(tmp_path, pformat([details, details.model_copy(update={"submission_id": "t"})]), map={"width": "1"})
    assert [job.name for job in found] == ["s", "t"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1|a|x|COMPLETED|gres/gpu=2\n", "sacct prints without its header: leave -n, --noheader away"),
        ('{\n "jobs": [],\n "meta": {"slurm": {}}}', "sacct --json prints: leave --json away, and give -P"),
        ('{"meta": {"Slurm": {}}, "jobs": []}', "sacct --json prints: leave --json away, and give -P"),
        ('{"meta": {}, "jobs": []}', "sacct --json prints: leave --json away, and give -P"),
        ('{"jobs": [{"account": "a", "association": {}}]}', "sacct --json prints: leave --json away, and give -P"),
        ("apiVersion: v1\nitems:\n- kind: Job\n", "kubectl prints: give -o json"),
        (
            "LAST SEEN   TYPE     REASON     OBJECT\n5m   Normal   Admitted   workload/x\n",
            "kubectl prints: give -o json",
        ),
        ("\n======== List: 2023-01-01 00:00:00.0 ========\nStats:\n", "ray list jobs prints: give --format json"),
    ],
)
def test_a_log_in_a_form_that_is_not_read_is_known_by_its_looks(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"log.txt:1: not a trace that is known: .*\(it looks like what {hint}\)"):
        _read(tmp_path, text)
    for format in ("slurm", "kubernetes", "ray"):
        with pytest.raises(
            InputError, match=rf"log.txt:1: expected .*, found something else \(it looks like what {hint}\)"
        ):
            _read(tmp_path, text, format=format)


# --- all --------------------------------------------------------------------------------------------------------------


def test_formats_are_told_apart(tmp_path: Path) -> None:
    for text, name in ((SACCT, "slurm"), (_listed([WORKLOAD]), "kubernetes"), (PRINTED, "ray")):
        path = tmp_path / "trace"
        path.write_text(text)
        assert detect(path).name == name


def test_a_frame_of_accounts() -> None:
    rows = [{"JobID": 7, "Submit": "2024-11-13T08:00:00", "Elapsed": "1:00:00", "AllocTRES": "gres/gpu=2"}]
    jobs = cluster.load(cluster="v100=4", trace=rows).setup.jobs
    assert isinstance(jobs, list)
    assert [(job.width, job.duration_s) for job in jobs if isinstance(job, Job)] == [(2, 3600)]


def test_the_command_writes_what_simulate_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "sacct.txt", tmp_path / "jobs.csv"
    log.write_text(SACCT)
    words = ["cluster", "import", str(log), str(out), "-c", "v100=4,a100=8", "--map", "entity=State,weight=2"]
    assert cli.main([*words, "--model", "LM", "bert*=Transformer", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["jobs"]) == ("slurm", 3)
    assert "left out: 2 x steps of jobs" in told["notes"]
    assert cli.main(["cluster", "simulate", "-t", str(out), "-c", "v100=4,a100=8", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 3
    log.write_text("JobID|Submit|Elapsed|AllocTRES\n1|never ever|1:00|gres/gpu=1\n")
    assert cli.main(words) == 2
    assert "sacct.txt:2: submit: expected a time" in capsys.readouterr().err


def test_what_import_tells_of_widths_holds_for_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "sacct.txt", tmp_path / "jobs.csv"
    job = "2026-01-01T00:00:00|1:00:00|gres/gpu:a100=4"
    log.write_text(f"JobID|JobName|Submit|Elapsed|AllocTRES\n1|gan|{job}\n2|lm|{job}\n")
    words = [
        "cluster",
        "import",
        str(log),
        str(out),
        "-c",
        "a100=8",
        "--format",
        "json",
        "--model",
        "CycleGAN",
        "lm=LM",
    ]
    assert cli.main(words) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(note.endswith("widths 4 (a table of these jobs needs --widths guess)") for note in notes)
    assert any(note.startswith("1 job is wider than every server (1), and runs at") for note in notes)
    assert cli.main([*words, "--num-gpus-per-server", "4"]) == 0
    assert "wider" not in capsys.readouterr().out
    simulated = ["cluster", "simulate", "-t", str(out), "-c", "a100=8", "--num-gpus-per-server", "4"]
    assert cli.main([*simulated, "--widths", "guess", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 3600 <= found["makespan_s"] <= 3620  # as in the log, and a start
    assert "wider" not in str(found["notes"])
