"""A day of Azure's and Mooncake's traces on 16 mixed GPUs under every policy and simple rule. Prints JSON.

    python -m bench.workflow_traces --table docs/table.md --picture docs/img/traces.svg
    python -m bench.workflow_traces --hours 2 --policies dovetail static

The traces are about an hour long. A day is that hour 24 times, each time with so many of its requests as the hour of
the day has: each is kept with a chance (`kept`), drawn from the seed, the hour and its name; times within the hour,
tokens and prefixes stay as they were recorded. Requests of one conversation (those of Mooncake that share the block
after the common first one) are kept or dropped together, and hours share no blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from math import cos, pi
from pathlib import Path
from typing import Any
from zlib import crc32

from bench import show
from bench.workflow_policies import rivals
from dovetail import workflow
from dovetail.core.events import Arrived, Complete
from dovetail.core.parallel import run_all
from dovetail.core.results.charts import Chart, Series
from dovetail.core.results.run import Picture
from dovetail.testing.workflow.simple_rules import RULES
from dovetail.workflow.inputs.write import write_config, write_requests

TRACES = Path(os.environ.get("DOVETAIL_TRACES", Path(__file__).parents[1] / "../shared/traces")).resolve()
GPUS = "a100:8,h100:8"
MODELS = {"code": "llama2-70b", "conv": "llama2-70b", "conversation": "llama2-70b", "synthetic": "llama2-13b"}
SLO = {"ttft_s": 30.0, "tpot_s": 0.2}
BLOCKS = 10**7  # more than a trace has
SHARE = 0.15  # of the recorded requests, in the busiest hour
_SHOWN = ("dovetail", "baseline", "srpt", "earliest finish", "patience")
Row = dict[str, Any]
Cell = tuple[Path, str]


def kept(hour: int, share: float) -> float:
    """The chance of a request to be kept: most in the hour from 15, a fifth of that in the hour from 3."""
    return share * (0.6 + 0.4 * cos(2 * pi * (hour - 15) / 24))


def recorded(traces: Path) -> tuple[Row, list[Row]]:
    """The traces as they are: one configuration, and requests with times from 0 on."""
    if not (traces / "mooncake").is_dir() or not (traces / "azure-llm-2023").is_dir():
        raise SystemExit(
            f"{traces}: expected azure-llm-2023/*.csv and mooncake/*.jsonl; DOVETAIL_TRACES names the folder"
        )
    azure = {name: MODELS[name] for name in ("code", "conv")}
    mooncake = {name: MODELS[name] for name in ("conversation", "synthetic")}
    imports = [
        workflow.import_azure(sorted((traces / "azure-llm-2023").glob("*.csv")), model=azure),
        workflow.import_mooncake(sorted((traces / "mooncake").glob("*.jsonl")), model=mooncake),
    ]
    config: Row = {"models": {}, "workflows": {}, "slo": SLO}
    requests: list[Row] = []
    for found in imports:
        rows = list(found.requests)
        first = min(row["timestamp"] for row in rows)
        requests += [row | {"timestamp": row["timestamp"] - first} for row in rows]
        for key in ("models", "workflows"):
            config[key] |= found.config[key]
        config["gpu_types"] = found.config["gpu_types"]
    return config, sorted(requests, key=lambda row: row["timestamp"])


def day_of(requests: Sequence[Row], hours: int, share: float, seed: int) -> Iterator[Row]:
    """The hour that was recorded, once for each hour of the day."""
    for hour in range(hours):
        chance = kept(hour, share) * 2**32
        for row in requests:
            blocks = row.get("node_prefix", {}).get("generate", ())
            together = f"{row['workflow_id']}/{blocks[1]}" if len(blocks) > 1 else row["request_id"]
            if crc32(f"{seed}/{hour}/{together}".encode()) < chance:
                at_s, name = 3600 * hour + row["timestamp"], f"{row['request_id']}@{hour}"
                made = row | {"request_id": name, "timestamp": round(at_s, 6)}
                if blocks:
                    made["node_prefix"] = {"generate": [BLOCKS * hour + block for block in blocks]}
                yield made


class _ByHour:
    """How long requests took, by the hour in which they arrived."""

    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}
        self.taken: dict[int, list[float]] = {}

    def step(self, n: int, t: float, events: Iterable[Any]) -> None:
        for event in events:
            if type(event) is Arrived:
                self._arrived[event.job] = t
            elif type(event) is Complete:
                at_s = self._arrived.pop(event.job)
                self.taken.setdefault(int(at_s // 3600), []).append(t - at_s)

    def p99(self) -> list[tuple[int, float]]:
        return [(hour, sorted(some)[int(0.99 * (len(some) - 1))]) for hour, some in sorted(self.taken.items())]


def measure(cell: Cell) -> Row:
    folder, policy = cell
    problem = workflow.load(folder / "config.json", folder / "requests.jsonl", gpus=GPUS, mode="online")
    by_hour, began = _ByHour(), time.process_time()
    found = workflow.run(problem, RULES.get(policy, policy), journal=False, observers=[by_hour])
    figures, metrics = found.figures, found.metrics
    assert figures.completed == len(problem.requests)
    return {
        "policy": policy,
        "mean_s": metrics["avg_request_s"],
        "p99_s": metrics["p99_request_s"],
        "ttft_s": metrics["avg_ttft_s"],
        "p99_ttft_s": metrics["p99_ttft_s"],
        "slo_met": metrics["slo_met"],
        "goodput_per_s": metrics["goodput_per_s"],
        "makespan_s": metrics["makespan_s"],
        "gpu_s": sum(device.busy_s for device in figures.devices),
        "prefix_hit_rate": metrics.get("prefix_hit_rate"),
        "switches": metrics["switches"],
        "requests": figures.completed,
        "bound_mean_s": metrics["bound_mean_s"],
        "p99_by_hour": by_hour.p99(),
        "cpu_s": time.process_time() - began,
    }


_COLUMNS = {
    "mean_s": ("mean s", "{:.1f}", min),
    "p99_s": ("P99 s", "{:.0f}", min),
    "ttft_s": ("TTFT s", "{:.2f}", min),
    "p99_ttft_s": ("P99 TTFT s", "{:.1f}", min),
    "slo_met": ("in SLO %", "{:.1%}", max),
    "goodput_per_s": ("goodput /s", "{:.3f}", max),
    "makespan_s": ("makespan s", "{:.0f}", min),
    "gpu_s": ("GPU-s busy", "{:,.0f}", min),
    "prefix_hit_rate": ("prefix hits %", "{:.1%}", max),
    "switches": ("switches", "{}", min),
}


def table(rows: Sequence[Row]) -> list[str]:
    """A row for each policy, by mean; the best of each column in bold."""
    best = {key: pick(row[key] for row in rows) for key, (_, _, pick) in _COLUMNS.items()}
    lines = [f"| policy | {' | '.join(name for name, _, _ in _COLUMNS.values())} |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for row in sorted(rows, key=lambda row: row["mean_s"]):
        cells = [text.format(row[key]).rstrip("%") for key, (_, text, _) in _COLUMNS.items()]
        marked = [f"**{cell}**" if row[key] == best[key] else cell for key, cell in zip(_COLUMNS, cells, strict=True)]
        lines.append(f"| `{row['policy']}` | {' | '.join(marked)} |")
    return lines


def draw(rows: Sequence[Row], out: Path) -> None:
    shown = [row for row in rows if row["policy"] in _SHOWN]
    series = [Series(row["policy"], [(hour, value) for hour, value in row["p99_by_hour"]]) for row in shown]
    chart = Chart(
        "P99 response of requests by the hour in which they arrived", "hour of arrival", "P99 response, s", series
    )
    Picture.of(chart).save(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", help="by default all that work online, and the simple rules")
    parser.add_argument("--hours", type=int, default=24, help="of the day, from midnight on")
    parser.add_argument("--share", type=float, default=SHARE, help="of the recorded requests in the busiest hour")
    parser.add_argument("--seed", type=int, default=1, help="of who is kept")
    parser.add_argument("--jobs", type=int, help="processes; by default one per core")
    parser.add_argument("--table", help="write the table here as Markdown; - is the standard error")
    parser.add_argument("--picture", type=Path, help="draw the P99 over the day here, as SVG")
    parser.add_argument("--rows", type=Path, help="write every policy's figures here as JSON lines")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config, requests = recorded(TRACES)
        write_config(folder / "config.json", config)
        made = day_of(requests, given.hours, given.share, given.seed)
        count = write_requests(made, folder / "requests.jsonl", "jsonl")
        del requests, made
        rows = run_all(measure, [(folder, policy) for policy in given.policies or rivals()], given.jobs)
    if given.rows:
        given.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if given.table:
        text = "\n".join(table(rows))
        sys.stderr.write(f"{text}\n") if given.table == "-" else Path(given.table).write_text(f"{text}\n")
    if given.picture:
        draw(rows, given.picture)
    found = {row["policy"]: row for row in rows}
    over = {
        key: found["dovetail"][key] / min(row[key] for name, row in found.items() if name != "dovetail")
        for key in ("mean_s", "p99_s", "ttft_s")
        if "dovetail" in found and len(found) > 1
    }
    show({"gpus": GPUS, "requests": count, "default_over_best_rival": over, "policies": found})


if __name__ == "__main__":
    main()
