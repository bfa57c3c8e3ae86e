"""The pipeline planner measured: recorded optima and speed. Prints JSON. Exactness is `bench.pipeline_fuzz`.

    python -m bench.pipeline                       golden cases, large pools

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
from pathlib import Path
from typing import Any

import yaml

from bench import show
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan

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
    sections = ("golden", "large")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "golden": golden,
        "large": large,
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


if __name__ == "__main__":
    main()
