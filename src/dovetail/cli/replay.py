"""`dovetail replay`: whether a recorded run would be decided again as it was."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.common import Format, print_json


def replay(journal: Path, /, *, format: Format = "table") -> int:
    """Decide a recorded run again and compare.

    The policy that the journal names, with its options, is told everything that was seen, step by step; what it decides
    is held against what is recorded.

    Exit code 0: all steps agree; 1: one differs; 2: it cannot be read, or its level or policy is not installed.

    Example: dovetail replay dovetail_journal.jsonl

    Parameters
    ----------
    journal
        The journal of a run, of any level.
    format
        table for people, json for programs.
    """
    from dovetail.core.loop.replay import replay_journal

    found = replay_journal(journal)
    unlike = found.difference
    if format == "json":
        print_json(found)
        return 1 if unlike else 0
    steps = "1 step was decided as it is" if found.steps == 1 else f"{found.steps} steps were decided as they are"
    told = f"{journal}: {found.level} run, policy {found.policy}: {steps} recorded"
    if unlike is None:
        print(f"PASS: {told}")
        return 0
    print(f"FAIL: {told}, then step {unlike.step} differs")
    print(f"  at        {unlike.t} s")
    print(f"  decided   {unlike.decided or 'nothing more'}")
    print(f"  recorded  {unlike.recorded or 'nothing more'}")
    return 1
