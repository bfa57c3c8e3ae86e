"""`dovetail cluster` as a user meets it: simulate, compare, policies, generate and import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.cli import main
from dovetail.cli.cluster.flags import JobFlags, RuleFlags, WorkFlags
from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import Scenario
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.policies.fifo import Fifo
from dovetail.cluster.rules import ClusterOptions, RoundRules
from dovetail.cluster.sweeps.rule_options import options_of

FEW = ("--jobs", "6", "-c", "2:2:2", "-f", "7200")
KEYS = {
    "makespan_s",
    "avg_jct_s",
    "utilization",
    "total_cost",
    "rounds",
    "bound_makespan_s",
    "policy_s",
    "allocations",
    "rho_mean",
    "jain",
    "slo_violations",
    "notes",
}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cluster", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capsys, "simulate", *words, "--format", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_runs_without_any_flag_or_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "simulate")
    assert (code, err) == (0, "")
    assert "max_min_fairness_perf on 8 v100, 8 p100, 8 k80" in out
    assert "40 measured, 40 completed, 0 rejected" in out
    assert "the built-in model's estimates" in out


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, *FEW)
    assert set(found) >= KEYS
    assert found["jobs"] == found["completed"] == 6
    assert found["makespan_s"] >= found["bound_makespan_s"] > 0
    assert found["cluster"] == {"v100": 2, "p100": 2, "k80": 2}


def test_the_same_command_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (figures(capsys, *FEW, "--seed", "3") for _ in range(2))
    for found in (first, second):
        del found["policy_s"], found["cpu_s"]
    assert first == second
    assert figures(capsys, *FEW, "--seed", "4")["makespan_s"] != first["makespan_s"]


def test_old_spellings_of_flags_work(capsys: pytest.CaptureFixture[str]) -> None:
    new = ("--num-gpus-per-server", "2:2:2", "--assign-SLOs", "--enable-global-queue", "--profiling-percentage", "0.5")
    old = ("--num_gpus_per_server", "2:2:2", "--assign_SLOs", "--enable_global_queue", "--profiling_percentage", "0.5")
    found = [figures(capsys, *FEW, *words) for words in (new, old)]
    assert found[0]["slo_jobs"] == 6
    assert found[0]["makespan_s"] == found[1]["makespan_s"]


def test_the_rules_that_are_asked_for_are_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Six equal jobs on six accelerators of three types must take turns: every rule shows."""
    plain = figures(capsys, *FEW)
    assert figures(capsys, *FEW, "--restart-s", "100")["avg_jct_s"] > plain["avg_jct_s"]
    assert figures(capsys, *FEW, "-i", "3600")["rounds"] < plain["rounds"]
    assert figures(capsys, *FEW, "--time_per_iteration", "3600")["rounds"] < plain["rounds"]
    ideal = figures(capsys, *FEW, "--ideal")
    assert (ideal["rounds"], ideal["leases"]) == (0, 0)
    assert figures(capsys, *FEW, "--compat", "gavel")["leases"] == 0
    crowded = ("--jobs", "30", "-c", "2:2:2", "-f", "7200", "-l", "600", "--compat", "gavel")
    eager = figures(capsys, *crowded, "--allocate-every-s", "0")
    assert eager["allocations"] > figures(capsys, *crowded)["allocations"]


def test_flags_become_rules_and_a_scenario() -> None:
    rules = RuleFlags(enable_global_queue=True, interval=100.0)
    assert options_of(**rules.how()).rules == RoundRules(round_s=100.0, global_queue=True)
    old = options_of(**RuleFlags(compat="gavel", interval=100.0).how())
    assert old == ClusterOptions(rules=replace(GAVEL, round_s=100.0), compat=True)
    assert WorkFlags().scenario(JobFlags(), RuleFlags()) == Scenario()


def test_a_window_is_measured_while_jobs_go_on_arriving(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "-l", "7200", "-s", "5", "-e", "15", "-c", "4:4:4", "-f", "3600")
    assert found["jobs"] == 10
    assert found["completed"] >= 10
    assert found["bound_makespan_s"] == 0
    assert figures(capsys, "-l", "0", "-s", "5", "-e", "15", "-f", "3600")["jobs"] == 10


def test_a_window_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = str(tmp_path / "jobs.csv")
    assert main(["cluster", "generate", trace, "--jobs", "12", "-l", "600", "-f", "1800"]) == 0
    capsys.readouterr()
    assert figures(capsys, "-t", trace)["jobs"] == 12
    assert figures(capsys, "-t", trace, "-s", "2", "-e", "7")["jobs"] == 5


def test_an_unstable_load_ends_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-l", "60", "-s", "50", "-e", "90", "-c", "1:1:1", "-f", "3600", "--longest-queue", "5")
    code, out, err = run(capsys, "simulate", *words)
    assert (code, out) == (1, "")
    assert err.startswith("error: the load is too heavy: after ")
    assert "accelerators more are wanted than the 3 there are" in err


def test_the_example_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Every command of the example's page, as it stands there."""
    monkeypatch.chdir(pytestconfig.rootpath)
    text = Path("examples/cluster/README.md").read_text()
    commands = [line.split()[2:] for line in text.splitlines() if line.startswith("dovetail cluster ")]
    assert len(commands) == 2
    for words in commands:
        code, out, err = run(capsys, *words)
        assert (code, err) == (0, ""), words
        assert "max_min_fairness_perf" in out


def test_the_journal_passes_the_checker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    journal = str(tmp_path / "run.jsonl")
    code, _, err = run(capsys, "simulate", *FEW, "-p", "max_min_fairness_packed", "--journal", journal)
    assert code == 0, err
    assert main(["check", journal]) == 0
    assert "PASS" in capsys.readouterr().out
    run(capsys, "simulate", *FEW, "--journal", journal, "--journal-mode", "summary")
    assert main(["check", journal]) == 0
    assert "the journal is a summary" in capsys.readouterr().out


def test_a_fault_in_a_journal_is_found_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    run(capsys, "simulate", *FEW, "--journal", str(journal))
    kept = [line for line in journal.read_text().splitlines() if '"mended"' not in line]
    at = next(i for i, line in enumerate(kept) if '"stopped"' in line)
    journal.write_text("\n".join([*kept[:at], *kept[at + 1 :]]) + "\n")
    assert main(["check", str(journal)]) == 1
    assert "a job called complete before it did all of its steps" in capsys.readouterr().out


def test_a_run_goes_on_from_its_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The last checkpoint is some rounds before the end: what comes after it is run again, with the same result."""
    words = (*FEW, "--checkpoint_file", str(tmp_path / "state"), "--checkpoint-every", "7")
    whole, rest = figures(capsys, *words), figures(capsys, *words, "--resume")
    for found in (whole, rest):
        del found["policy_s"], found["cpu_s"]
    assert whole == rest
    code, _, err = run(capsys, "simulate", *words, "--resume", "--seed", "9")
    assert code == 2
    assert "is a checkpoint of another run" in err


IN_A_FILE = """
import threading
from collections import deque
from dataclasses import dataclass
import numpy as np
from dovetail.cluster import Allocation

def alike(problem):
    return Allocation(share=np.full((problem.jobs, len(problem.types)), 0.9 / (problem.jobs * len(problem.types))))

nameless = lambda problem: alike(problem)

@dataclass
class Seen:
    last: deque

class Turns:
    agnostic, packs, strict = False, False, False

    def __init__(self, *, lock_after: int = 10**9) -> None:
        self.calls, self.lock_after, self.seen = 0, lock_after, Seen(deque(maxlen=3))
        if lock_after < 0:
            self.lock = threading.Lock()

    def allocate(self, problem):
        self.calls += 1
        self.seen.last.append(self.calls)
        if self.calls > self.lock_after:
            self.lock = threading.Lock()
        share = alike(problem).share
        share[:, sum(self.seen.last) % len(problem.types)] = 0.0
        return Allocation(share=share, why=str(self.seen.last))
"""


@pytest.mark.parametrize("name", ["Turns", "alike"])
def test_a_policy_from_a_file_goes_on_from_its_checkpoint_in_a_new_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    mine, journal = tmp_path / "of.mine" / "mine.py", tmp_path / "run.jsonl"
    for folder in (tmp_path / "others", mine.parent):  # two files of one name
        folder.mkdir()
        (folder / "mine.py").write_text(IN_A_FILE)
    assert run(capsys, "simulate", *FEW, "-p", f"{tmp_path}/others/mine.py:{name}")[0] == 0
    words = ["simulate", *FEW, "-p", f"{mine}:{name}", "--journal", str(journal)]
    words += ["--checkpoint-file", str(tmp_path / "state"), "--checkpoint-every", "7"]
    assert run(capsys, *words)[0] == 0
    whole = journal.read_bytes()
    command = [sys.executable, "-m", "dovetail", "cluster", *words, "--resume"]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert journal.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Turns,lock_after=-1", "its attribute 'lock': cannot pickle '_thread.lock' object"),
        ("Turns,lock_after=0", "its attribute 'lock': cannot pickle '_thread.lock' object"),  # at the first checkpoint
        ("nameless", "it: Can't pickle <function <lambda>"),
    ],
)
def test_a_policy_that_no_checkpoint_can_keep_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(IN_A_FILE)
    policy, state, journal = f"{tmp_path}/mine.py:{name}", tmp_path / "state", tmp_path / "run.jsonl"
    words = ("--checkpoint-file", str(state), "--checkpoint-every", "7", "--journal", str(journal))
    code, _, err = run(capsys, "simulate", *FEW, "-p", policy, *words)
    assert code == 2
    assert f"policy {policy}: a checkpoint cannot keep {message}" in err
    assert not state.exists()
    assert journal.exists() == ("=0" in name)  # what was recorded until then stays


def test_the_old_log_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    found = figures(capsys, *FEW, "--log", str(log))
    text = log.read_text()
    assert f"Average job completion time: {found['avg_jct_s']:.3f} seconds" in text
    assert text.count("\nJob ") + text.startswith("Job ") == 6


def test_options_reach_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    plain = figures(capsys, *FEW, "-p", "allox", "--option", "alpha=0.1")
    assert figures(capsys, *FEW, "-p", "allox_alpha=0.1")["avg_jct_s"] == plain["avg_jct_s"]
    code, _, err = run(capsys, "simulate", *FEW, "-p", "allox", "--option", "alhpa=0.1")
    assert code == 2
    assert "policy allox has no option 'alhpa'; did you mean 'alpha'?" in err


def test_the_solver_is_accepted_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "simulate", *FEW, "--solver", "ECOS")
    assert (code, err) == (0, "note: --solver is not used: HiGHS solves everything\n")


def test_prices_make_the_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("time_s,type,price\n" + "".join(f"0,{name},2\n" for name in ("v100", "p100", "k80")))
    found = figures(capsys, *FEW, "--prices", str(prices))
    assert found["total_cost"] == pytest.approx(2 * found["utilization"] * 6 * found["makespan_s"] / 3600)
    old = figures(capsys, *FEW, "--prices", str(prices), "--compat", "gavel")
    assert old["total_cost"] == pytest.approx(2 * old["utilization"] * 6 * old["makespan_s"] / 3600)
    (tmp_path / "clouds").mkdir()
    clouds = ("--per_instance_type_prices_dir", str(tmp_path / "clouds"), "--available_clouds", "gcp")
    assert figures(capsys, *FEW, *clouds)["total_cost"] == figures(capsys, *FEW)["total_cost"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-p", "max_min_fairnes"), "no cluster policy is called 'max_min_fairnes'; did you mean 'max_min_fairness'?"),
        (("-t", "none.trace"), "none.trace: no such file"),
        (("-l", "5", "--jobs-per-hour", "3"), "give --lam or --jobs-per-hour, not both"),
        (("-t", "x", "-m"), "--generate-multi-gpu-jobs is for generated jobs: not together with --trace"),
        (("-s", "4"), "--window-start needs --window-end"),
        (("-s", "4", "-e", "4"), "window 4 to 4: expected 0 <= start < end"),
        (("-i", "0"), "interval 0: expected seconds, more than 0"),
        (("--restart-s", "-1"), "restart_s -1: expected seconds, 0 or more"),
        (("--jobs", "0"), "--jobs 0: expected 1 or more"),
        (("--compat", "gavel", "--ideal"), "compat gavel has rounds, and restarts that are free"),
        (("--ideal", "--checkpoint-file", "x"), "or an ideal one, keeps no checkpoint: it has no rounds to go on from"),
        (("--resume",), "resume needs checkpoint_file"),
        (("--checkpoint-every", "0"), "checkpoint_every 0: expected rounds, 1 or more"),
        (("--entities", "a=0"), "--entities a=0: expected a number of entities, or NAME=WEIGHT"),
        (("--prices", "a", "--per-instance-type-prices-dir", "b"), "give --prices or --per-instance-type-prices-dir"),
        (("--num-reference-models", "0"), "--num-reference-models 0: expected 1 or more"),
        (("-c", "8:8:8:8"), "cluster '8:8:8:8': expected 3 numbers"),
        (("-c", ""), "cluster '': expected v100:p100:k80"),
        (("-c", "none.yaml"), "cluster 'none.yaml': no such file; expected v100:p100:k80"),
        (("-c", "99999999999:1:1"), "expected at most 10,000,000 accelerators, found 100,000,000,001"),
        (("-i", "5"), "a restart of 10 s in rounds of 5 s"),
        (("-l", "nan"), "--lam nan: expected seconds, 0 or more"),
        (("-f", "0"), "--fixed-job-duration 0: expected seconds, more than 0"),
        (("--entities", "0"), "--entities 0: expected a number of entities"),
        (("--entities", "a=1", "a=2"), "--entities a=2: 'a' is given twice"),
        (("--profiling-percentage", "nan"), "--profiling-percentage nan: expected 0 to 1"),
        (("--longest-queue", "-1"), "longest_queue -1: expected more than 0"),
        (("--available-clouds", "gcp"), "--available-clouds needs --per-instance-type-prices-dir"),
        (("--per-instance-type-prices-dir", "."), ".: expected aws/logs or azure/logs in it, found none"),
        (("--trace-format", "gavel"), "--trace-format is about a trace: it needs --trace"),
        (("-p", "max_min_fairness_water_filling", "--option", "inner=all"), "expected fairness or fifo, or NAME=RULE"),
        (("-p", "tiresias", "--option", "thresholds_s=9,1"), "expected rising numbers"),
        (("-p", "allox", "-m", "--journal", "half.jsonl"), "policy allox places jobs on one accelerator each"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "simulate", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_no_input_is_written_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "generate", "jobs.csv", "--jobs", "3"]) == 0
    before = Path("jobs.csv").read_text()
    for words in (
        ("simulate", "-t", "jobs.csv", "--journal", "jobs.csv"),
        ("simulate", "-t", "jobs.csv", "--log", "./jobs.csv"),
        ("import", "jobs.csv", "jobs.csv"),
        ("generate", "jobs.csv", "--throughputs-file", "jobs.csv"),
    ):
        code, _, err = run(capsys, *words)
        assert code == 2, words
        assert "is the same file as the input" in err
    assert Path("jobs.csv").read_text() == before


def test_a_trace_gives_what_its_jobs_gave(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Generated jobs, written and read again, run alike: nothing is lost in the table."""
    flags = ("--jobs", "8", "-l", "900", "-m", "--generate-multi-priority-jobs", "--assign-SLOs", "-f", "1800")
    trace = str(tmp_path / "jobs.csv")
    assert main(["cluster", "generate", trace, *flags]) == 0
    capsys.readouterr()
    direct, read = figures(capsys, *flags), figures(capsys, "-t", trace)
    for found in (direct, read):
        del found["policy_s"], found["cpu_s"]
    assert direct == read


def test_the_jobs_of_a_run_are_written_as_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.trace"
    words = ("-l", "7200", "-s", "3", "-e", "6", "-f", "3600", "--compat", "gavel")
    found = figures(capsys, *words, "--output_trace_file_name", str(trace))
    assert len(trace.read_text().splitlines()) == 6
    again = figures(capsys, "-t", str(trace), "-s", "3", "-e", "6", "--compat", "gavel")
    assert again["avg_jct_s"] == pytest.approx(found["avg_jct_s"], rel=0.01), "steps are cut to whole ones there"


def test_an_old_trace_is_imported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new = tmp_path / "old.trace", tmp_path / "new.csv"
    assert main(["cluster", "generate", str(old), "--jobs", "5", "--to", "gavel"]) == 0
    code, out, _ = run(capsys, "import", str(old), str(new), "--most", "3")
    assert code == 0
    assert f"{old}: gavel\n3 jobs written to {new}\n" in out
    assert len(new.read_text().splitlines()) == 4


def test_policies_are_listed_with_their_promises(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "policies", "--format", "json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["max_min_fairness"]["agnostic"]
    assert rows["max_min_fairness_packed"]["packs"]
    assert rows["allox"]["options"] == {"alpha": 1.0}
    assert all(row["promise"].endswith((".", ";", ":")) or row["promise"] for row in rows.values())
    assert "max_min_fairness_perf" in run(capsys, "policies")[1]


def test_compare_gives_ratios_to_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("max_min_fairness", "max_min_fairness_perf")
    code, out, _ = run(capsys, "compare", "-p", *names, *FEW, "-j", "1", "--format", "json")
    first, second = json.loads(out)
    assert code == 0
    assert [first["policy"], second["policy"]] == list(names)
    assert set(first["ratios"].values()) == {1.0}
    assert second["ratios"]["avg_jct_s"] == pytest.approx(second["avg_jct_s"] / first["avg_jct_s"])
    assert second["avg_jct_s"] == figures(capsys, *FEW, "-p", names[1])["avg_jct_s"]
    code, out, _ = run(capsys, "compare", "-p", *names, *FEW, "-j", "1")
    assert f"({second['ratios']['avg_jct_s']:.2f})" in out


def test_compare_tells_of_a_policy_that_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compare", "-p", "isolated", "allox", "-m", "--jobs", "20", "-f", "600", "-j", "1")
    assert code == 1
    assert "error: allox: " in err


def test_entities_share_by_their_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    rows = "".join(f"0,A3C,3600,{name}\n" for name in ("big", "small") for _ in range(8))
    trace.write_text("arrival_s,model,duration_s,entity\n" + rows)
    words = ("-t", str(trace), "-c", "2:0:0", "-p", "max_min_fairness_water_filling_perf", "--restart-s", "0")
    equal = figures(capsys, *words)
    weighed = figures(capsys, *words, "--entities", "big=9", "small=1")
    assert weighed["avg_jct_s"] < equal["avg_jct_s"]


def test_what_is_left_of_an_interrupted_run_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user ends it in its third round: what it has is kept, and no bound is held against it."""
    rounds = 0
    allocate = Fifo.allocate

    def interrupted(self: Fifo, problem: Problem) -> Allocation:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        return allocate(self, problem)

    monkeypatch.setattr(Fifo, "allocate", interrupted)
    journal = tmp_path / "cut.jsonl"
    words = ("cluster", "simulate", "-p", "fifo", "--jobs", "20", "-c", "2:2:2", "--journal", str(journal))
    assert main([*words]) == 130
    assert f"{journal} has the run so far" in capsys.readouterr().err
    main(["check", str(journal)])
    out = capsys.readouterr().out
    assert "makespan" in out
    assert "is possible" not in out


def test_jobs_in_phases_are_refused_before_they_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.trace"
    trace.write_text("LM (batch size 10)\trun\tfolder\t--steps\t1\t400000\t1\tgns\t1\t-1\t1418\t0\n")
    words = ["cluster", "simulate", "-t", str(trace), "-c", "v100=1", "--output-trace-file-name", str(tmp_path / "out")]
    assert main(words) == 2
    assert "jobs change their batch as they go" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", [("--seed", "1"), ("--seeds", "1", "5")])
@pytest.mark.parametrize("policies", [("fifo", "fifo_perf"), ("fifo_perf", "fifo")])
def test_compare_stops_an_unstable_load_and_keeps_the_other_rows(
    capsys: pytest.CaptureFixture[str], seeds: tuple[str, ...], policies: tuple[str, ...]
) -> None:
    flags = ("-s", "30", "-e", "60", "-c", "1:1:1", "-f", "7200", "-j", "1", *seeds)
    both = ("-p", *policies)
    light = (*flags, *both, "-l", "5400", "--longest-queue", "1")
    code, out, err = run(capsys, "compare", *light)
    assert (code, err) == (0, "")
    assert out.count("stopped  ") == out.count("fifo: stopped: the load is too heavy: after ") == 1
    rows = {row["policy"]: row for row in json.loads(run(capsys, "compare", *light, "--format", "json")[1])}
    assert (rows["fifo"]["avg_jct_s"], rows["fifo"]["makespan_s"]) == (None, None)
    assert rows["fifo"]["reason"].startswith("after ")
    alone = json.loads(run(capsys, "compare", *flags, "-l", "5400", "-p", "fifo_perf", "--format", "json")[1])
    assert rows["fifo_perf"]["avg_jct_s"] == alone[0]["avg_jct_s"] > 0
    code, out, _ = run(capsys, "compare", *flags, *both, "-l", "60")
    assert (code, out.count("stopped  ")) == (1, 2)
    assert run(capsys, "compare", *flags, *both, "-l", "60", "--format", "json")[0] == 1


@pytest.mark.parametrize("figure", ["rounds", "types", "cost"])
def test_figures_stop_an_unstable_load_and_keep_the_other_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, figure: str
) -> None:
    cluster = ("-c", "1:1:1")
    own = {"rounds": ("--intervals", "360", *cluster), "types": ("--total", "3", "--shares", "0.5"), "cost": cluster}
    flags = ("-s", "30", "-e", "60", "-f", "7200", "-j", "1", "--seeds", "1", "5", *own[figure])
    picture = tmp_path / "figure.svg"
    some = ("figure", figure, *flags, "-l", "5400", "--longest-queue", "1")
    orders: list[tuple[str, ...]] = [("fifo_perf", "fifo"), ("fifo", "fifo_perf")]
    for policies in orders:
        code, out, err = run(capsys, *some, "-p", *policies)
        assert (code, err) == (0, ""), out
        assert " stopped " in out
        assert ": stopped: the load is too heavy: after " in out
        assert ("fifo at interval_s ideal: stopped" in out) == (figure == "rounds")
        code, _, err = run(capsys, *some, "-p", *policies, "--out", str(picture))
        relative = figure == "cost" and policies[0] == "fifo"  # to what was stopped
        assert (code, picture.exists()) == ((1, False) if relative else (0, True)), err
        picture.unlink(missing_ok=True)
    heavy = ("figure", figure, *flags, "-l", "60", "-p", "fifo")
    assert [run(capsys, *heavy, *more)[0] for more in ((), ("--format", "json"), ("--out", str(picture)))] == [1] * 3
    assert not picture.exists()
