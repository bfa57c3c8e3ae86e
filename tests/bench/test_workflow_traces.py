"""The day that is made of an hour's traces: who is kept, and that nothing else about them changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.workflow_traces import BLOCKS, day_of, kept, table


def row(i: int, *blocks: int) -> dict[str, Any]:
    made = {"request_id": f"r{i}", "timestamp": i / 10, "workflow_id": "w", "node_tokens": {"generate": {"input": i}}}
    return made | ({"node_prefix": {"generate": list(blocks)}} if blocks else {})


def test_each_hour_keeps_as_many_as_it_has_and_changes_nothing_else() -> None:
    hour = [row(i) for i in range(4000)]
    made = list(day_of(hour, 24, 0.5, seed=1))
    counted = Counter(int(request["timestamp"] // 3600) for request in made)
    for i in range(24):
        assert abs(counted[i] - 4000 * kept(i, 0.5)) < 130  # four standard deviations
    assert kept(15, 0.5) == 0.5
    assert len({request["request_id"] for request in made}) == len(made)
    for request in made[::100]:
        name, _, at = request["request_id"].partition("@")
        source = hour[int(name[1:])]
        assert request["node_tokens"] == source["node_tokens"]
        assert round(request["timestamp"] - 3600 * int(at) - source["timestamp"], 6) == 0


def test_a_seed_gives_the_same_day_and_another_one_another() -> None:
    hour = [row(i) for i in range(300)]
    assert list(day_of(hour, 3, 0.5, seed=1)) == list(day_of(hour, 3, 0.5, seed=1))
    assert list(day_of(hour, 3, 0.5, seed=1)) != list(day_of(hour, 3, 0.5, seed=2))


def test_conversations_are_kept_whole_and_hours_share_nothing() -> None:
    hour = [row(i, 0, 100 + i % 40, 1000 + i) for i in range(400)]
    made = list(day_of(hour, 2, 0.5, seed=1))
    for at in (0, 1):
        blocks = [r["node_prefix"]["generate"] for r in made if r["request_id"].endswith(f"@{at}")]
        assert all(at * BLOCKS <= block < (at + 1) * BLOCKS for some in blocks for block in some)
        counted = Counter(some[1] for some in blocks)
        assert set(counted.values()) == {10}
        assert 0 < len(counted) < 40


def test_the_best_of_a_column_is_in_bold() -> None:
    figures = dict.fromkeys(("mean_s", "p99_s", "ttft_s", "p99_ttft_s", "makespan_s", "gpu_s", "switches"), 2.0)
    figures |= {"slo_met": 0.5, "goodput_per_s": 1.0, "prefix_hit_rate": 0.1}
    lines = table([figures | {"policy": "a"}, figures | {"policy": "b", "mean_s": 1.0, "slo_met": 0.25}])
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| `b`", "| `a`"]
    assert "**1.0**" in lines[2]
    assert "**25.0**" not in lines[2]
    assert "**50.0**" in lines[3]
