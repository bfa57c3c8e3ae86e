"""Damaged journals: whatever is wrong with a file, every command that reads it says so and none breaks down."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dovetail.testing.damage import breaks_down, damaged
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case

CASES = 240
BLOCK = 40


@pytest.mark.parametrize("first", range(0, CASES, BLOCK))
def test_no_command_breaks_down_over_a_damaged_journal(tmp_path: Path, first: int) -> None:
    journal, damage = tmp_path / "journal.jsonl", tmp_path / "damaged.jsonl"
    found = []
    for seed in range(first, first + BLOCK):
        if seed % 4 == 0:
            case = random_case(seed)
            policies = policies_for(case)
            run_case(read_case(case, tmp_path), case, policies[seed // 4 % len(policies)], seed, journal)
        damage.write_bytes(damaged(journal.read_bytes(), Random(seed)))
        found += breaks_down(
            ["check", damage],
            ["replay", damage],
            ["workflow", "explain", "r1", "--journal", damage],
            ["workflow", "export", damage, "--executions", tmp_path / "log.json", "--log", tmp_path / "log", "--force"],
            ["report", damage, "--out", tmp_path / "page.html"],
        )
    assert found == []
