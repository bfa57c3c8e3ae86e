"""The pipeline planner measured: exactness and speed. Prints JSON.

    python -m bench.pipeline                       golden cases, large pools, 1,000 random cases against every plan
    python -m bench.pipeline --cases 5000

`recorded_cpu_s` is what the corrected C++ sched-pipeline of PipeEdge took on another machine of the same kind; a ratio
to it is for orientation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import yaml

from bench import show
from dovetail.core.parallel import run_all
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan
from dovetail.testing.pipeline import evaluate, every_plan, random_pipeline

GOLDEN = Path(os.environ.get("DOVETAIL_GOLDEN", Path(__file__).parents[1] / "../shared/golden")).resolve() / "pipeline"
FILES = ("models.yml", "device_types.yml", "devices.yml")
# A case with more hosts of each type, what the corrected C++ was recorded at, and its optimum to the recorded digits.
LARGE: dict[str, tuple[str, int, float | None, float | None]] = {
    "4 types x 16 devices x 96 layers": ("b_K4_n4_L96", 16, 71.08, 0.760125),
    "5 types x 8 devices x 96 layers": ("b_K5_n4_L96", 8, 73.15, 1.111815),
    "5 types x 16 devices x 96 layers": ("b_K5_n4_L96", 16, None, 0.758400),
    "5 types x 32 devices x 96 layers": ("b_K5_n4_L96", 32, None, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="random cases against every plan")
    sections = ("golden", "large", "random")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "golden": golden,
        "large": large,
        "random": lambda: against_brute(arguments.cases),
    }
    show({name: parts[name]() for name in arguments.only})


def golden() -> dict[str, Any]:
    """Every reference case: is the optimum the same double, and what does the whole command cost?"""
    if not GOLDEN.exists():
        return {"skipped": "no golden files"}
    expected = json.loads((GOLDEN / "expected.json").read_text())
    rows = {}
    for name, row in expected["cases"].items():
        folder = GOLDEN / "cases" / name
        if not folder.exists():
            continue
        found = plan(load(*[folder / file for file in FILES], model="synth"))
        cpu_s, _ = command(folder)
        rows[name] = {
            "equal": isinstance(found, Plan) and found.bottleneck_s == row["bottleneck_s"],
            "command_cpu_s": round(cpu_s, 3),
            "recorded_cpu_s": row["reference_cpu_s"],
        }
    return {"cases": len(rows), "equal": sum(row["equal"] for row in rows.values()), "rows": rows}


def large() -> dict[str, Any]:
    """Golden cases with more hosts of each type: over a minute for the older scheduler, or more memory than it had."""
    if not (GOLDEN / "cases").exists():
        return {"skipped": "no golden files"}
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, (case, count, recorded_s, optimum_s) in LARGE.items():
            for file in FILES[:2]:
                (folder / file).write_bytes((GOLDEN / "cases" / case / file).read_bytes())
            hosts = yaml.safe_load((GOLDEN / "cases" / case / FILES[2]).read_text())
            more = {kind: [f"{kind}-{i}" for i in range(count)] for kind in hosts}
            (folder / FILES[2]).write_text(yaml.safe_dump(more))
            cpu_s, peak_mib = command(folder)
            row: dict[str, Any] = {"command_cpu_s": round(cpu_s, 2), "peak_mib": round(peak_mib)}
            if recorded_s is not None:
                row |= {"recorded_cpu_s": recorded_s, "ratio": round(recorded_s / cpu_s)}
            if optimum_s is not None:
                found = plan(load(*[folder / file for file in FILES], model="synth"))
                row["equal"] = isinstance(found, Plan) and f"{found.bottleneck_s:.6f}" == f"{optimum_s:.6f}"
            rows[title] = row
    return rows


def command(folder: Path) -> tuple[float, float]:
    """CPU seconds and peak memory of `sched-pipeline`, interpreter start included."""
    program = "import sys; from dovetail.pipeline.compat.sched_pipeline import main; sys.exit(main())"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "-m", "synth"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"sched-pipeline failed on {folder}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def against_brute(cases: int) -> dict[str, Any]:
    """Random problems: is the planner's bottleneck the least of all plans, and is memory kept?"""
    wrong = [seed for seed, fine in enumerate(run_all(check_case, range(cases))) if not fine]
    return {"cases": cases, "wrong": len(wrong), "first_wrong": wrong[:10]}


def check_case(seed: int) -> bool:
    pipeline = random_pipeline(seed, links=seed % 3 == 0)
    tables = Tables(pipeline)
    best = min((evaluate(tables, parts).bottleneck_s for parts in every_plan(tables)), default=inf)
    found = plan(pipeline)
    if not isinstance(found, Plan):
        return best == inf
    kept = all(stage.mem_mib < stage.mem_limit_mib for stage in found.stages)
    return kept and found.bottleneck_s == best


if __name__ == "__main__":
    main()
