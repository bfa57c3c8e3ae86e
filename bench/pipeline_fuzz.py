"""The pipeline planner against every plan there is: random small questions with all options combined. Prints JSON.

    python -m bench.pipeline_fuzz                        20,000 questions: six objectives and the front of each
    python -m bench.pipeline_fuzz --cases 500 --planted  faults planted in the planner: how many questions find each

A question is known by its seed: `list(faults(random_case(SEED)))` of `dovetail.testing.pipeline` asks it again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import islice
from typing import Any

from bench import show
from dovetail.core.parallel import CellEngine, run_all
from dovetail.testing.pipeline.answers import PLANTED, faults, planted
from dovetail.testing.pipeline.cases import random_case
from dovetail.testing.pipeline.oracle import Oracle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--planted", action="store_true", help="how many questions each planted fault is found by")
    parser.add_argument("--jobs", type=int, help="processes at a time")
    parser.add_argument("--engine", choices=("local", "ray"), help="where they run; ray: on a cluster's nodes")
    parser.add_argument("--address", help="of the Ray cluster; without one --engine ray starts a private one")
    words = parser.parse_args()
    seeds = range(words.first, words.first + words.cases)
    show(found_planted(seeds) if words.planted else fuzz(seeds, words.jobs, words.engine, words.address))


def fuzz(
    seeds: range, jobs: int | None = None, engine: CellEngine | None = None, address: str | None = None
) -> dict[str, Any]:
    """Every question asked, and what was wrong with the answers."""
    rows = run_all(judge, seeds, jobs, engine=engine, address=address)
    wrong = {seed: row["faults"] for seed, row in zip(seeds, rows, strict=True) if row["faults"]}
    kinds = Counter(fault.partition(":")[0] for found in wrong.values() for fault in found)
    return {
        "cases": len(rows),
        "with a plan": sum(row["plans"] > 0 for row in rows),
        "different plans": sum(row["plans"] for row in rows),
        "options": dict(Counter(option for row in rows for option in row["options"]).most_common()),
        "wrong": len(wrong),
        "wrong by objective": dict(kinds.most_common()),
        "first wrong": dict(islice(wrong.items(), 10)),
    }


def judge(seed: int) -> dict[str, Any]:
    case = random_case(seed)
    options = [*case.limits, *(["links"] if case.links else []), *(["batch sizes"] if case.batch_sizes[1:] else [])]
    return {"plans": len(Oracle(case).every), "options": options, "faults": list(faults(case))}


def found_planted(seeds: range) -> dict[str, Any]:
    """For each planted fault: how many questions find it, and the first."""
    rows = {}
    for name in PLANTED:
        with planted(name):
            found = [seed for seed in seeds if any(faults(random_case(seed)))]
        rows[name] = {"found by": len(found), "first": found[0] if found else None}
    return {"cases": len(seeds), "not found": sum(not row["found by"] for row in rows.values()), "planted": rows}


if __name__ == "__main__":
    main()
