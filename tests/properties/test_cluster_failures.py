"""Servers of several accelerators that fail whole, as jobs come and end: one instant, one step, one decision."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dovetail.cluster.check import check_journal
from dovetail.cluster.explain import account, explain
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.narrate import JobStory
from dovetail.cluster.policies import make
from dovetail.cluster.rounds import scheduler_for
from dovetail.cluster.simulate import run
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.testing.cluster.fuzz import ClusterCase, policies_for, random_case

POLICIES = ["fifo", "max_min_fairness_perf", "max_min_fairness_packed", "elastic_throughput", "gandiva", "sia"]


def failing(case: ClusterCase, journal: Path, seed: int) -> ClusterSetup:
    """The same setup with servers that fail as jobs of an earlier run of it come and end, and as rounds do."""
    rng, setup = Random(seed), case.setup
    times = [case.rules.round_s * k for k in (1, 2, 5)] + [job.arrival_s for job in case.jobs]
    for _, t, events in Reader(journal).rows():
        times += [t for each in events if isinstance(each, Rows) and each.of == "completed"]
    found, first = [], 0
    for count, size in zip(setup.counts.tolist(), setup.per_server.tolist(), strict=True):
        for at in range(first, first + count, size):
            devices = tuple(range(at, min(at + size, first + count)))
            last_s = -1.0
            for at_s in sorted(rng.sample(times, min(3, len(times)))):
                if at_s > last_s:
                    last_s = at_s + rng.choice((0.0, 90.0, case.rules.round_s))
                    found.append(Outage(at_s, last_s, devices))
        first += count
    return replace(setup, outages=sorted(found, key=attrgetter("at_s")))


def broken_rules(story: JobStory, lost: int, text: str) -> list[str]:
    """What a job's story has against it, that lost its accelerators so many times."""
    found = []
    told = [lease for lease in story.leases if lease.end.startswith("accelerator ")]
    if len(told) != lost or any(not each.end.endswith(" failed") for each in told):
        found.append(f"job {story.job}: {len(told)} failures are told, expected {lost}")
    if text.count("ended: accelerator ") != lost:
        found.append(f"job {story.job}: {lost} failures are not in {text!r}")
    starts_s = sum(lease.start_s for lease in story.leases)
    if story.parts is not None and starts_s != story.parts.restarts_s:
        found.append(f"job {story.job}: starts took {starts_s} s, or {story.parts.restarts_s} s")
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_fails_as_one(policy: str, tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    for seed in range(16):
        case, path = random_case(seed), tmp_path / "run.jsonl"
        if policy not in policies_for(case):
            continue
        run(case.setup, make(policy), case.rules, name=policy, journal=path)
        setup = failing(case, path, seed)
        run(setup, make(policy), case.rules, name=policy, journal=path)
        assert check_journal(path).faults == []
        assert all(found == recorded for _, _, found, recorded in replay(scheduler_for(Reader(path)), Reader(path)))
        failures: dict[float, list[int]] = defaultdict(list)
        steps: dict[float, set[int]] = defaultdict(set)
        lost: Counter[int] = Counter()
        began: dict[int, tuple[float, set[int]]] = {}
        for n, t, events in Reader(path).rows():
            rows = [each for each in events if isinstance(each, Rows)]
            down: set[int] = set()
            for each in rows:
                if each.of == "failed":
                    failures[t] += each.columns["device"]
                    steps[t].add(n)
                    down |= set(each.columns["device"])
                    lost.update(job for jobs in each.columns["jobs"] for job in jobs)
                    counted["with others"] += len({row.of for row in rows} - {"failed", "mended", "stopped"}) > 0
                elif each.of == "started":
                    for job, devices in zip(each.columns["id"], each.columns["devices"], strict=True):
                        began[job] = (t, set(devices))
                elif each.of == "stopped":
                    for job in each.columns["id"]:
                        at_s, devices = began[job]
                        assert not (at_s == t and devices & down), (seed, t, job)  # it began where it fails now
        assert all(len(each) == 1 for each in steps.values()), seed
        assert sum(map(len, failures.values())) <= sum(len(each.devices) for each in setup.outages)
        assert failures.keys() <= {each.at_s for each in setup.outages}, seed
        counted["wide"] += sum(len(each) > 1 for each in failures.values())
        counted["lost"] += sum(lost.values())
        for job in sorted(lost)[:3]:
            story, text = explain(Reader(path), str(job)), account(Reader(path), str(job)).text
            assert broken_rules(story, lost[job], text) == [], seed
    assert min(counted[name] for name in ("wide", "lost", "with others")) > 3


def planted(lines: list[dict[str, Any]], rng: Random) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """What is wrong, the code that it has, and the journal with one row about a failure changed."""
    failed, mended = ([i for i, line in enumerate(lines) if line.get("of") == of] for of in ("failed", "mended"))
    jobs = sorted(job for line in lines if line.get("of") == "arrived" for job in line["columns"]["id"])
    total = len(lines[0]["pool"]["devices"])
    for at in rng.sample(failed, min(3, len(failed))):
        columns = lines[at]["columns"]
        held = columns["jobs"][0]
        others = [job for job in jobs if job not in held]
        changes = [("one more", "finish", {"jobs": [[*held, rng.choice(others)]]})] if others else []
        changes += [("another", "finish", {"jobs": [[rng.choice(others), *held[1:]]]})] if held and others else []
        changes += [
            ("one less", "finish", {"jobs": [held[1:]]}),
            ("twice there", "finish", {"jobs": [held * 2]}),
        ] * bool(held)
        for name, code, change in [*changes, ("no such device", "device", {"device": [total + rng.choice((0, 1000))]})]:
            yield name, code, [*lines[:at], lines[at] | {"columns": columns | change}, *lines[at + 1 :]]
        yield "fails twice", "device", [*lines[: at + 1], *lines[at:]]
    for at in rng.sample(mended, min(2, len(mended))):
        yield "mended twice", "device", [*lines[: at + 1], *lines[at:]]
        columns = {"device": [total]}
        yield "no such device comes back", "device", [*lines[:at], lines[at] | {"columns": columns}, *lines[at + 1 :]]
    stops = [at + 1 for at in failed if lines[at]["columns"]["jobs"][0]]
    for at in rng.sample(stops, min(2, len(stops))):
        yield "goes on", "finish", [*lines[:at], *lines[at + 1 :]]


def test_what_is_wrong_about_a_failure_is_found(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    path, bad = tmp_path / "run.jsonl", tmp_path / "bad.jsonl"
    for seed in range(16):
        case, policy = random_case(seed), "max_min_fairness_perf"
        run(case.setup, make(policy), case.rules, name=policy, journal=path)
        run(failing(case, path, seed), make(policy), case.rules, name=policy, journal=path)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for name, code, changed in planted(lines, Random(seed)):
            bad.write_text("".join(json.dumps(line) + "\n" for line in changed))
            assert code in check_journal(bad).faults_by_code, (seed, name)
            counted[name] += 1
    assert min(counted.values()) > 5
    assert len(counted) == 9
