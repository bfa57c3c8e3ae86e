"""Training jobs on real processes beside their simulations, and what a switch costs.

python -m bench.cluster_live fidelity
python -m bench.cluster_live fidelity --policies fifo max_min_fairness_perf --times 1
python -m bench.cluster_live overheads
python -m bench.cluster_live rounds

Jobs take their time and little else (`dovetail.testing.cluster.paced`): a step takes as long as it would on the
accelerator that the job was given, which is of one of three types. They are preempted, saved and loaded like real ones.
A live run is checked as it was written and decided again from its journal; then its jobs are simulated at the rates and
costs that it measured. A step that ends a little later changes who goes next, so the simulated figure is the mean of
nine simulations in which jobs take as much more or less as live ones did, with the least and the largest beside it. The
order of policies is told pair by pair, with how sure the live runs are of it. With `--compute` steps are computed in
place of waited for. `rounds` is without processes: how long decisions about 10,000 jobs take (`bench._rounds`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from bench import _rounds, show
from dovetail import cluster
from dovetail.cluster.live.serve import ServedCluster
from dovetail.cluster.live.wire import ProcessEvent
from dovetail.cluster.rounding.records import ROUND
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.core.results.confidence import paired
from dovetail.journals import check_journal

TYPES = {"a100": 2, "v100": 2, "k80": 2}
ROUND_S = 6.0
SIMULATIONS = 9
POLICIES = ("fifo", "finish_time_fairness_perf", "max_min_fairness_perf", "max_min_fairness_packed")
# Steps per second by type; alone, and beside another job.
_RATES = {
    "resnet": {"a100": 40.0, "v100": 20.0, "k80": 6.0},
    "language": {"a100": 24.0, "v100": 16.0, "k80": 8.0},
    "translation": {"a100": 30.0, "v100": 12.0, "k80": 5.0},
    "recommendation": {"a100": 20.0, "v100": 18.0, "k80": 12.0},
}
_PACKED = {"resnet": 0.6, "language": 0.7, "translation": 0.6, "recommendation": 0.85}
_TWO_WIDE = 1.8  # times as fast on two accelerators
# Model, width, seconds alone on the fastest type, seconds after the first job.
_JOBS = (
    ("resnet", 1, 18, 0),
    ("language", 1, 24, 0),
    ("translation", 2, 20, 0),
    ("recommendation", 1, 30, 0),
    ("resnet", 1, 12, 0),
    ("language", 2, 16, 0),
    ("translation", 1, 14, 1),
    ("recommendation", 1, 20, 3),
    ("resnet", 2, 15, 7),
    ("language", 1, 10, 10),
    ("translation", 1, 22, 13),
    ("recommendation", 1, 12, 17),
    ("resnet", 1, 16, 22),
    ("language", 1, 14, 26),
)


def job(model: str, width: int, seconds: float, compute: float = 0.0) -> dict[str, Any]:
    """What is submitted: it takes so many seconds on one accelerator, or on two, of the fastest type."""
    rates = _RATES[model]
    packed = {name: rate * _PACKED[model] for name, rate in rates.items()}
    words = [sys.executable, "-m", "dovetail.testing.cluster.paced", "--rates", _listed(rates), "--noise", "0.05"]
    words += ["--packed", _listed(packed), "--widths", f"2={_TWO_WIDE}"]
    words += ["--import-s", "0.3", "--load-s", "0.1", "--save-s", "0.1"]
    words += ["--compute", str(compute)] if compute else []
    wider = _TWO_WIDE if width == 2 else 1.0
    return {
        "command": words,
        "steps_flag": "--steps",
        "steps": round(rates["a100"] * wider * seconds),
        "model": model,
        "width": width,
        "rates": {name: rate * wider for name, rate in rates.items()},
        "name": f"{model} for {seconds} s",
    }


def _listed(rates: dict[str, float]) -> str:
    return ",".join(f"{name}={rate:g}" for name, rate in rates.items())


def live(folder: Path, policy: str, jobs: int = len(_JOBS), compute: float = 0.0) -> Path:
    """The first so many jobs on real processes; gives the journal."""
    with cluster.serve(types=TYPES, policy=policy, round_s=ROUND_S, state=folder) as served:
        began = time.monotonic()
        for model, width, seconds, at_s in _JOBS[:jobs]:
            time.sleep(max(began + at_s - time.monotonic(), 0.0))
            served.service.submit(job(model, width, seconds, compute))
        _all_ended(served)
        return served.service.journal()


def _all_ended(served: ServedCluster) -> None:
    ids = [each.id for each in served.service.jobs(limit=10_000)]
    ended = [served.service.wait(each) for each in ids]
    if wrong := [each for each in ended if each.state != "completed"]:
        raise SystemExit(f"{len(wrong)} jobs did not complete, first {wrong[0]}")


# --- beside its simulation ------------------------------------------------------------------------------------


def compare(folder: Path, policy: str, jobs: int = len(_JOBS), compute: float = 0.0) -> dict[str, Any]:
    """A live run and its simulation."""
    return compared(live(folder, policy, jobs, compute))


def compared(journal: Path) -> dict[str, Any]:
    """A live run, checked as it was written and decided again, beside its simulation."""
    checked, again = check_journal(journal), replay_journal(journal)
    work = cluster.live_workload(journal)
    found, took = [work.simulate(seed=seed) for seed in range(SIMULATIONS)], work.live_jct_s
    expected = {job_id: fmean(each.completion_s[job_id] for each in found) for job_id in took}
    errors = sorted(abs(took[job_id] / seconds - 1) for job_id, seconds in expected.items())
    first_s, last_s = _span(journal)
    drawn = {
        "jct": [each.figures.avg_jct_s for each in found],
        "makespan": [each.figures.makespan_s for each in found],
    }
    return {
        "valid": checked.valid,
        "replayed": again.difference is None,
        "steps": again.steps,
        "live": {"jct": fmean(took.values()), "makespan": last_s - first_s},
        "simulated": {name: fmean(values) for name, values in drawn.items()},
        "simulated_from_to": {name: [min(values), max(values)] for name, values in drawn.items()},
        "job_error": {"median": median(errors), "p90": quantiles(errors, n=10, method="inclusive")[-1]},
    }


def _span(journal: Path) -> tuple[float, float]:
    """When the first job came, and when the last one was completed."""
    at = [
        (rows.of, at_s)
        for _, _, events in Reader(journal).rows()
        for rows in events
        if isinstance(rows, Rows) and rows.of in ("arrived", "completed")
        for at_s in rows.columns["at_s"]
    ]
    return min(at_s for of, at_s in at if of == "arrived"), max(at_s for of, at_s in at if of == "completed")


def fidelity(
    folder: Path, policies: Sequence[str], times: int, jobs: int = len(_JOBS), compute: float = 0.0
) -> dict[str, Any]:
    """Every policy so many times: live over simulated, and whether policies are in the same order."""
    runs = {p: [compare(folder / f"{p}-{k}", p, jobs, compute) for k in range(times)] for p in policies}
    rows = {policy: _row(each) for policy, each in runs.items()}
    order = {
        side: sorted(policies, key=lambda policy, side=side: rows[policy]["jct"][side])  # type: ignore[misc]
        for side in ("live_s", "simulated_s")
    }
    pairs = [_pair(a, b, runs) for a, b in combinations(order["live_s"], 2)]
    return {
        "jobs": jobs,
        "types": TYPES,
        "round_s": ROUND_S,
        "times": times,
        "valid": all(row["valid"] for row in rows.values()),
        "replayed": all(row["replayed"] for row in rows.values()),
        "off_at_most_percent": {f: 100 * max(abs(row[f]["off"]) for row in rows.values()) for f in ("jct", "makespan")},
        "same_order": order["live_s"] == order["simulated_s"],
        "order": order["live_s"],
        "order_simulated_otherwise_though_sure": sum(pair["sure"] and not pair["simulated_alike"] for pair in pairs),
        "pairs": pairs,
        "predicted_and_measured": [
            [row[figure]["simulated_s"], row[figure]["live_s"]]
            for row in rows.values()
            for figure in ("jct", "makespan")
        ],
        "policies": rows,
    }


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The runs of a policy together."""
    found: dict[str, Any] = {
        "valid": all(run["valid"] for run in runs),
        "replayed": all(run["replayed"] for run in runs),
        "job_error": {name: round(fmean(run["job_error"][name] for run in runs), 3) for name in ("median", "p90")},
    }
    for figure in ("jct", "makespan"):
        there, here = (fmean(run[side][figure] for run in runs) for side in ("live", "simulated"))
        found[figure] = {
            "live_s": round(there, 2),
            "simulated_s": round(here, 2),
            "simulated_from_to": [
                round(pick(run["simulated_from_to"][figure][at] for run in runs), 2)
                for at, pick in ((0, min), (1, max))
            ],
            "off": round(there / here - 1, 4),
            "off_each": [round(run["live"][figure] / run["simulated"][figure] - 1, 4) for run in runs],
        }
    return found


def _pair(one: str, two: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """By how much the average JCT of the second policy is larger, live with its 95 % interval, and simulated."""
    live_s, simulated_s = (
        [dict(enumerate(run[side]["jct"] for run in runs[policy])) for policy in (one, two)]
        for side in ("live", "simulated")
    )
    there, here = paired(*live_s), paired(*simulated_s)
    assert there is not None
    assert here is not None
    return {
        "policies": [one, two],
        "live_ratio": there.ratio,
        "live_from_to": [there.least, there.most],
        "sure": there.sure,
        "simulated_ratio": here.ratio,
        "simulated_alike": (there.difference < 0) == (here.difference < 0),
    }


# --- what a switch costs --------------------------------------------------------------------------------------


# Without early dispatch the next round is decided when it begins, so that no process waits for its turn.
_DISPATCH: dict[str, dict[str, Any]] = {
    "early": {},
    "no_spares": {"spares": False},
    "late": {"decide_at": 1.0, "spares": False},
}


def overheads(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each part of a lease, the median over all, and how long an accelerator was idle between two of them:
    from the end of the last step of one to the begin of the first step of the next, all of them, those at turns (a
    round begins), and those where a job had ended and another took its place."""
    timelines: dict[int, list[ProcessEvent]] = {}
    with cluster.serve(
        types=TYPES, policy="max_min_fairness_perf", round_s=ROUND_S, state=folder, live=settings
    ) as served:
        for model, width, seconds, _ in _JOBS:
            served.service.submit(job(model, width, seconds))
        _all_ended(served)
        timelines = {each.id: served.service.timeline(each.id) for each in served.service.jobs(limit=10_000)}
        places = _places(served.service.journal())
    leases: list[dict[str, float]] = []
    spans: dict[int, list[tuple[float, float, bool]]] = {}  # by accelerator: first step, begin of the last save, turn
    for job_id, timeline in timelines.items():
        for epoch, events in _by_epoch(timeline).items():
            leases.append(_parts(events))
            if {"first_step", "save_begin"} <= events.keys():
                on, devices, turn = places[job_id, epoch]
                first_s = events["first_step"] - 1 / _rate(_JOBS[job_id - 1], on)  # it is told when it is done
                for device in devices:
                    spans.setdefault(device, []).append((first_s, events["save_begin"], turn))
    idle = [(after[0] - before[1], after[2]) for each in spans.values() for before, after in pairwise(sorted(each))]
    names = sorted({name for parts in leases for name in parts})
    return {
        "leases": len(leases),
        "median_s": {n: round(median(each[n] for each in leases if n in each), 3) for n in names},
        "idle_s": _idle([seconds for seconds, _ in idle])
        | {
            "at_turns": _idle([seconds for seconds, turn in idle if turn]),
            "inside": _idle([seconds for seconds, turn in idle if not turn]),
        },
    }


def _idle(seconds: Sequence[float]) -> dict[str, Any]:
    if len(seconds) < 2:
        return {"switches": len(seconds)}
    worst = quantiles(seconds, n=10, method="inclusive")[-1]
    return {"switches": len(seconds), "median": round(median(seconds), 3), "p90": round(worst, 3)}


def _rate(given: tuple[str, int, float, float], on: int) -> float:
    """Steps per second of a job, on the type that has this place."""
    model, width, *_ = given
    return _RATES[model][[*TYPES][on]] * (_TWO_WIDE if width == 2 else 1.0)


def _places(journal: Path) -> dict[tuple[int, int], tuple[int, list[int], bool]]:
    """The type and its accelerators by job and epoch, and whether the lease began with a round."""
    found: dict[tuple[int, int], tuple[int, list[int], bool]] = {}
    for _, _, events in Reader(journal).rows():
        for rows in events:
            if isinstance(rows, Rows) and rows.of == "started":
                keys = (rows.columns[name] for name in ("id", "epoch", "on", "devices", "why"))
                for job_id, epoch, *place, why in zip(*keys, strict=True):
                    found.setdefault((job_id, epoch), (*place, why == ROUND))
    return found


def _by_epoch(timeline: Sequence[ProcessEvent]) -> dict[int, dict[str, float]]:
    """Of the first rank: when what first happened, but for saves, of which the last counts."""
    found: dict[int, dict[str, float]] = {}
    for event in timeline:
        if event.rank == 0:
            seen = found.setdefault(event.epoch, {})
            if event.name not in seen or event.name.startswith("save"):
                seen[event.name] = event.at
    return found


def _parts(events: dict[str, float]) -> dict[str, float]:
    spans = {
        "launch": ("launch", "import"),
        "import": ("import", "hello"),
        "wait": ("hello", "go"),
        "load": ("load_begin", "load_end"),
        "go_to_step": ("go", "first_step"),
        "train": ("first_step", "save_begin"),
        "save": ("save_begin", "save_end"),
        "exit": ("save_end", "exit"),
    }
    return {name: events[b] - events[a] for name, (a, b) in spans.items() if a in events and b in events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fidelity", "overheads", "rounds"))
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--times", type=int, help="runs of each policy (3), or rounds (10)")
    parser.add_argument("--jobs", type=int, help="the first so many of them (all), or so many (10000)")
    parser.add_argument(
        "--compute", type=float, default=0.0, metavar="MIB", help="hash so much per step, at the fastest"
    )
    parser.add_argument("--folder", type=Path, help="keep journals there")
    given = parser.parse_args()
    if given.part == "rounds":
        show(_rounds.measure(tuple(given.policies), given.jobs or 10_000, given.times or 10))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if given.part == "fidelity":
            show(fidelity(folder, tuple(given.policies), given.times or 3, given.jobs or len(_JOBS), given.compute))
        else:
            show({name: overheads(folder / name, settings) for name, settings in _DISPATCH.items()})


if __name__ == "__main__":
    main()
