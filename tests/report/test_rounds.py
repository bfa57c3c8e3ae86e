"""Journals written in rows, as a level with rounds writes them: told as leases, drawn, compared."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dovetail import cluster
from dovetail.cluster.words import WORDS
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.results.charts import Chart, Series, as_fact
from dovetail.core.words import Words
from dovetail.report import perfetto
from dovetail.report.data.bars import DONE, FAILED
from dovetail.report.data.collect import QUEUE, Story, collect
from dovetail.report.html import page
from dovetail.report.static import draw
from dovetail.report.svg.gantt import gantt

Step = tuple[float, Sequence[Any]]
Write = Callable[..., Path]
SUMMARY = {"rho_mean": 0.75, "utilization_by_type": {"fast": 0.5, "slow": 0.25}, "leases": 4}

# Two jobs share device 0 from 10 to 50 s, device 2 fails under the third at 30 s.
STEPS: list[Step] = [
    (
        10.0,
        [
            Rows("prices", {"price": [1.0, 2.0]}),
            Rows(
                "arrived", {"id": [0, 1, 2], "kind": [0, 1, 1], "at_s": [0.0, 4.0, 10.0], "due_s": [None, 20.0, None]}
            ),
            Rows("started", {"id": [0, 1], "on": [0, 0], "devices": [[0], [0]], "why": [0, 0], "beside": [1, 0]}),
            Rows("started", {"id": [2], "on": [1], "devices": [[2, 3]], "why": [1], "setup_s": [0.0]}),
        ],
    ),
    (
        30.0,
        [
            Rows("failed", {"device": [2], "jobs": [[2]]}),
            Rows("stopped", {"id": [2], "on": [1], "from_s": [10.0], "to_s": [30.0]}),
        ],
    ),
    (
        50.0,
        [
            Rows("stopped", {"id": [0, 1], "on": [0, 0], "from_s": [10.0, 10.0], "to_s": [50.0, 50.0]}),
            Rows("completed", {"id": [0, 1], "at_s": [50.0, 50.0]}),
            Rows("started", {"id": [2], "on": [0], "devices": [[0, 1]], "why": [0]}),
        ],
    ),
    (60.0, [Rows("stopped", {"id": [2], "on": [0], "from_s": [50.0], "to_s": [60.0]})]),
    (60.0, [Rows("completed", {"id": [2], "at_s": [60.0]})]),
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(
        steps: Sequence[Step] = STEPS,
        summary: dict[str, Any] | None = SUMMARY,
        level: str = "cluster",
        name: str = "run",
        **facts: Any,
    ) -> Path:
        pool = Pool(
            tuple(Device(i, "fast" if i < 2 else "slow", i // 2) for i in range(4)),
            {"fast": DeviceType("fast"), "slow": DeviceType("slow")},
        )
        known = {"kinds": [["A", 1], ["B", 2]], "why": ["its turn", "free"], "restart_s": 5.0, "bound_makespan_s": 48.0}
        path = tmp_path / f"{name}.jsonl"
        words = WORDS if level == "cluster" else Words()
        header = Header(level=level, policy="fair", pool=pool, facts=known | facts, words=words)
        with Writer(path, header) as writer:
            for n, (t, events) in enumerate(steps, start=1):
                writer.step(n, t, events)
            if summary is not None:
                writer.end(len(steps) + 1, steps[-1][0], summary)
        return path

    return make


def _without_leases() -> list[Step]:
    return [(t, [row for row in rows if row.of not in ("started", "stopped", "failed")]) for t, rows in STEPS]


def test_leases_become_bars(write: Write) -> None:
    story = collect(write())
    rows = [(b.job, b.task, b.kind, b.devices, b.start_s, b.setup_s, b.end_s, b.wait_s, b.state) for b in story.bars]
    assert rows == [
        ("job 0", "lease 1", "A", (0,), 10.0, 5.0, 50.0, 10.0, DONE),
        ("job 1", "lease 1", "B", (0,), 10.0, 5.0, 50.0, 6.0, DONE),
        ("job 2", "lease 1", "B", (2, 3), 10.0, 0.0, 30.0, 0.0, FAILED),
        ("job 2", "lease 2", "B", (0, 1), 50.0, 5.0, 60.0, 20.0, DONE),
    ]
    assert [(b.place, b.sharing) for b in story.bars] == [(0, 2), (1, 2), (0, 1), (0, 1)]
    assert story.bars[0].why == "its turn; it shares with job 1"
    assert [(i.job, i.why) for i in story.failed] == [("job 2", "accelerator 2 failed")]


def test_figures_count_shared_devices_once_and_time_from_the_arrival(write: Write) -> None:
    figures = collect(write()).figures
    assert [device.busy_s for device in figures.devices] == [50.0, 10.0, 20.0, 20.0]
    assert (figures.response_s.min, figures.response_s.max) == (46.0, 50.0)
    assert (figures.makespan_s, figures.completed, figures.late) == (60.0, 3, 1)


def test_curves_over_time(write: Write) -> None:
    story = collect(write(), from_s=0.0, to_s=60.0)
    charts = {chart.title: {s.name: s.points for s in chart.series} for chart in story.charts}

    def at(title: str, name: str, t: float) -> float:
        return min(charts[title][name], key=lambda point: abs(point[0] - t))[1]

    jobs = "Jobs over time"
    assert [at(jobs, "active", t) for t in (2, 6, 20, 55)] == [1, 2, 3, 1]
    assert [at(jobs, "running", t) for t in (2, 20, 40, 55)] == [0, 3, 2, 1]
    assert [at(jobs, "waiting", t) for t in (2, 6, 20, 40, 55)] == [1, 2, 0, 1, 0]
    use = "Accelerators in use, by type"
    assert [at(use, "fast", t) for t in (5, 20, 55)] == [0, 50, 100]
    assert [at(use, "slow", t) for t in (5, 20, 40)] == [0, 100, 0]
    assert max(story.strip.means[QUEUE]) == 2


def test_who_still_waits_at_the_end_is_in_the_curve(write: Write) -> None:
    story = collect(write(STEPS[:2], summary=None))
    assert story.unfinished == 3
    assert "with 3 jobs unfinished." in story.left_out[0]
    cut = collect(write([*STEPS[:2], (40.0, [Rows("mended", {"device": [2]})])]))
    assert cut.strip.means[QUEUE][-1] == 1


def test_the_page_speaks_of_jobs_leases_and_accelerators(write: Write) -> None:
    rho = as_fact([Chart("Finish-time fairness", "rho", "jobs, %", [Series("jobs", [(0.5, 0.0), (1.0, 100.0)])])])
    html = page([collect(write(summary=SUMMARY | rho))])
    shown = html.split("</style>", 1)[1].split("<script", 1)[0].split("Everything else", 1)[0]
    for expected in (
        "Completion times",
        "Mean completion",
        "25 % above the bound, 48",
        "Jobs over time",
        "Accelerators in use, by type",
        "Finish-time fairness",
        "finish-time rho, mean",
        "utilisation, slow",
        "Find a job",
        "3 of them with a start or restart",
        "accelerator 2 failed",
    ):
        assert expected in shown.replace("\xa0", " "), expected
    for absent in ("Response", "response", "request", "node", "switch", "GPU"):
        assert absent not in shown, absent
    text = "\n".join(ElementTree.fromstring(draw([collect(write())], "svg")).itertext())
    for expected in ("Completion times", "Jobs over time", "Jobs waiting", "accelerator 0  fast", "lower bound 48 s"):
        assert expected in text, expected


def test_several_runs_compare_the_figures_they_claim(write: Write) -> None:
    stories = [collect(write(name=name, summary=SUMMARY | {"rho_mean": rho})) for name, rho in (("a", 0.5), ("b", 2.5))]
    html = page(stories)
    assert '<td class="name">finish-time rho, mean</td><td class="number">0.5</td><td class="number">2.5</td>' in html
    assert draw(stories, dpi=30)


def test_a_summary_gets_a_page_without_a_schedule(write: Write) -> None:
    story = collect(write(_without_leases()))
    assert (story.figures.makespan_s, story.figures.completed) == (60.0, 3)
    html = page([story])
    assert "there is no schedule to draw" in html
    assert "<canvas" not in html
    assert "Active jobs over time" in html
    assert "finish-time rho, mean" in html
    assert draw([story], dpi=30)


def test_only_measured_works_count_for_completion_times(write: Write) -> None:
    story = collect(write(window=[1, 3]))
    assert sorted(story.responses_s) == [46.0, 50.0]
    assert story.figures.response_s.mean == 48.0
    assert len(story.bars) == 4
    assert "Only jobs 1 to 2 are measured" in story.left_out[0]


def test_the_trace_has_every_lease_and_counts_active_jobs(write: Write) -> None:
    out = io.BytesIO()
    perfetto.write(write(), out)
    events = json.loads(out.getvalue())["traceEvents"]
    runs = sorted((e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == "run")
    assert runs == [
        (1, 15e6, 35e6),
        (1, 15e6, 35e6),
        (1, 55e6, 5e6),
        (2, 55e6, 5e6),
        (3, 10e6, 20e6),
        (4, 10e6, 20e6),
    ]
    active = [(e["ts"], e["args"]["jobs"]) for e in events if e["ph"] == "C" and e["name"] == "active"]
    assert active == [(0.0, 1), (4e6, 2), (10e6, 3), (50e6, 1), (60e6, 0)]


def test_another_level_needs_only_the_columns(write: Write) -> None:
    story: Story = collect(write(level="ours", kinds=["A", "B"], why=[]))
    assert [bar.job for bar in story.bars] == ["job 0", "job 1", "job 2", "job 2"]
    assert [bar.kind for bar in story.bars] == ["A", "B", "B", "B"]
    assert "Jobs over time" in page([story])


@pytest.mark.parametrize(
    "rows",
    [
        Rows("started", {"id": [7], "on": [0], "devices": [[0]], "why": [0]}),
        Rows("started", {"id": [0], "devices": [[0], [1]], "why": [0]}),
        Rows("arrived", {"id": [3], "at_s": [0.0]}),
        Rows("arrived", {"id": [3], "kind": [9], "at_s": [0.0]}),
        Rows("completed", {"id": 3}),
    ],
)
def test_rows_that_cannot_be_read_are_named_with_their_line(write: Write, rows: Rows) -> None:
    path = write([*STEPS[:2], (40.0, [rows])])
    with pytest.raises(InputError, match=rf"{path.name}:8: rows that cannot be read"):
        collect(path)


def test_many_leases_on_many_devices_are_merged_and_many_devices_told_by_type(tmp_path: Path) -> None:
    count, rounds = 200, 60
    pool = Pool(
        tuple(Device(i, "x" if i < 150 else "y") for i in range(count)), {"x": DeviceType("x"), "y": DeviceType("y")}
    )
    path, jobs = tmp_path / "many.jsonl", list(range(count))
    with Writer(
        path, Header(level="cluster", policy="fair", pool=pool, facts={"kinds": [["A", 1]], "why": ["w"]}, words=WORDS)
    ) as writer:
        for i in range(rounds):
            rows = [] if i else [Rows("arrived", {"id": jobs, "kind": [0] * count, "at_s": [0.0] * count})]
            if i:
                rows.append(Rows("stopped", {"id": jobs}))
            rows.append(Rows("started", {"id": jobs, "devices": [[(j + i) % count] for j in jobs], "why": [0] * count}))
            writer.step(i + 1, i * 360.0, rows)
        writer.step(rounds + 1, rounds * 360.0, [Rows("stopped", {"id": jobs}), Rows("completed", {"id": jobs})])
        writer.end(rounds + 2, rounds * 360.0, {})
    story = collect(path, max_bars=2000)
    assert story.bars_seen == count * rounds
    assert len(story.bars) <= 2000
    assert sum(bar.merged for bar in story.bars) == count * rounds
    html = page([story])
    assert "150 x x" in html
    assert "accelerator 17" not in html.split("<script", 1)[0]
    assert draw([story], dpi=30)


def test_a_run_without_leases_is_no_summary(tmp_path: Path) -> None:
    job = {"arrival_s": 1.7e9, "model": "m", "steps": 0}
    problem = cluster.load(
        cluster={"a": 1}, throughputs=[{"model": "m", "type": "a", "steps_per_s": 1}], trace=[job, job]
    )
    run = cluster.simulate(problem, "fifo_perf", journal=tmp_path / "none.jsonl")
    text = page([collect(tmp_path / "none.jsonl")])
    assert "There were no leases, so there is no schedule to draw." in text
    assert "is a summary" not in text
    assert run.plot().svg.startswith("<svg")


LATE_S = 1_700_000_000.0


def late_run(path: Path) -> Path:
    """Jobs that arrive in epoch seconds, on servers that fail."""
    problem = cluster.load(
        cluster={"types": {"a": {"count": 2, "failure_s": 4000, "repair_s": 60}}},
        throughputs=[{"model": "m", "type": "a", "steps_per_s": 1}],
        trace=[{"arrival_s": LATE_S + 60 * i, "model": "m", "steps": 9000, "entity": "x"} for i in range(4)],
    )
    cluster.simulate(problem, "fifo_perf", journal=path)
    return path


def test_failures_are_told_from_the_first_arrival_in_epoch_seconds(tmp_path: Path) -> None:
    story = collect(late_run(tmp_path / "late.jsonl"))
    failed_s = [round(incident.t_s - LATE_S, 6) for incident in story.failed]
    assert len(set(failed_s)) > 1
    text = page([story])
    card = text[text.index("Failed leases") :].split("</table>")[0]
    assert "after first arrival" in card
    times = [float(t.replace(",", "")) for t in re.findall(r'<td class="number time">([\d,.]+) s<', card)]
    assert times == pytest.approx(failed_s, abs=max(failed_s) / 1000)
    assert len(set(times)) == len(set(failed_s))


@pytest.mark.parametrize("width", [960.0, 480.0])
def test_labels_of_epoch_seconds_do_not_touch(tmp_path: Path, width: float) -> None:
    svg = gantt(collect(late_run(tmp_path / "late.jsonl")), width=width)
    labels = re.findall(r'<text x="([\d.]+)"[^>]*>(1,700,0[\d,]+)</text>', svg)
    assert len({text for _, text in labels}) == len(labels) > 1
    gaps = [float(b[0]) - float(a[0]) - 6.4 * (len(a[1]) + len(b[1])) / 2 for a, b in pairwise(labels)]
    assert min(gaps) > 2
    assert float(labels[-1][0]) + 3.2 * len(labels[-1][1]) <= width
