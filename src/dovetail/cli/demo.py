"""`dovetail demo`: a small example of each level that exists, and one page that shows what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.cli.common import Format, atomic_write, make_folder, print_json, print_table
from dovetail.core.errors import DovetailError, InputError

_POLICIES = ("baseline", "offline", "dovetail")
_REQUESTS, _RATE, _SEED = 120, 14.0, 5


def demo(*, out: Path = Path("dovetail-demo"), format: Format = "table") -> int:
    """Run a small example of each level and write one page about it.

    Example: dovetail demo --out demo

    Parameters
    ----------
    out
        Folder for the inputs, the journals and the page.
    format
        table or json.
    """
    from dovetail.core.journal import Reader

    if out.is_dir() and any(out.iterdir()) and not (out / "demo.html").exists():
        raise InputError(f"--out {out}: holds files that are not of a demonstration; name another folder")
    make_folder(out)
    rows, journals = _workflow(out)
    planned, pipeline_journal = _pipeline(out)
    journals.append(pipeline_journal)
    page = out / "demo.html"
    from dovetail.report.collect import collect
    from dovetail.report.html import page as render

    atomic_write(page, render([collect(Reader(path)) for path in journals], "Dovetail: a demonstration"))
    if format == "json":
        print_json({"workflow": rows, "pipeline": planned, "page": str(page)})
        return 0
    print("workflow: the same requests on the same GPUs, under three policies\n")
    columns = ["policy", "makespan s", "above bound %", "mean s", "P99 s", "switches", "check"]
    print_table(columns, [list(row.values()) for row in rows])
    config, requests = out / "system_config.yaml", out / "workflow_requests.jsonl"
    print("\npipeline: twelve layers over a fast and three slow devices, planned four ways\n")
    print_table(["method", "bottleneck s", "items/s"], [list(row.values()) for row in planned])
    print(f"\nThe page: {page}")
    print("Try it yourself:")
    print(f"  dovetail workflow run --config {config} --requests {requests} --mode online --out {out}")
    print(f"  dovetail workflow explain req_0001 --journal {out / 'dovetail_journal.jsonl'}")
    return 0


def _pipeline(out: Path) -> tuple[list[dict[str, Any]], Path]:
    from dovetail.pipeline import DeviceClass, Pipeline, plan, simulate

    layers = [0.02 + 0.01 * (i % 4) for i in range(12)]
    pipeline = Pipeline(
        model="twelve layers",
        layers=12,
        mem_mib=[40.0] * 12,
        cut_bytes=[600_000] + [600_000 * (1 + i % 2) for i in range(12)],
        classes=[
            DeviceClass("fast", "fast", ["fast-0"], 1000.0, 1024.0, layers),
            DeviceClass("slow", "slow", ["slow-0", "slow-1", "slow-2"], 300.0, 512.0, [3 * s for s in layers]),
        ],
        batch_size=8,
        dtype="torch.float32",
    )
    table = []
    for method in ("equal", "speed-proportional", "auction", "exact"):
        found = plan(pipeline, method=method)
        pace = round(found.throughput_items_s, 1)
        table.append({"method": method, "bottleneck_s": round(found.bottleneck_s, 4), "items_s": pace})
    return table, simulate(found, 24, journal=out / "pipeline_journal.jsonl").journal


def _workflow(out: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    from dovetail import check_journal
    from dovetail.workflow import generate, load, run, synthetic_system, write_config

    config, requests = out / "system_config.yaml", out / "workflow_requests.jsonl"
    made = synthetic_system(_SEED, models=6, workflows=4, max_width=4)
    write_config(config, made)
    generate(config, requests=_REQUESTS, rate=_RATE, seed=_SEED).write(requests)
    problem = load(config, requests, mode="online")
    table, journals = [], []
    for policy in _POLICIES:
        journal = out / f"{policy}_journal.jsonl"
        figures = run(problem, policy, journal=journal).metrics
        report = check_journal(journal, config=config, requests=requests)
        if not report.valid:
            raise DovetailError(f"{journal}: the checker found faults: {report.faults_by_code}")
        journals.append(journal)
        table.append(
            {
                "policy": policy,
                "makespan_s": round(figures["makespan_s"], 1),
                "gap_percent": round(100 * figures["gap_makespan"], 1),
                "mean_s": round(figures["avg_request_s"], 1),
                "p99_s": round(figures["p99_request_s"], 1),
                "switches": figures["switches"],
                "check": "clean",
            }
        )
    return table, journals
