"""`dovetail pipeline simulate`: a plan in virtual time."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.common import Format, print_json, print_table


def simulate(
    plan: Path,
    /,
    *,
    microbatches: int = 64,
    buffers: int = 1,
    journal: Path | None = None,
    format: Format = "table",
) -> int:
    """Send microbatches through a plan in virtual time.

    Stages and links run side by side, each one microbatch at a time, with bounded buffers between them.

    Example: dovetail pipeline plan --format json > plan.json; dovetail pipeline simulate plan.json --journal run.jsonl

    Parameters
    ----------
    plan
        A plan as `dovetail pipeline plan --format json` prints it.
    microbatches
        How many.
    buffers
        Microbatches that may wait before a stage.
    journal
        Write the journal here; `dovetail report` draws it.
    format
        table or json.
    """
    from dovetail.core.output import refuse_overwrite
    from dovetail.pipeline.plan import read_plan
    from dovetail.pipeline.simulate import record

    given = read_plan(plan)
    if journal is not None:
        refuse_overwrite([journal], [plan])
    outcome = record(given, microbatches, buffers, journal)
    figures = {
        "microbatches": outcome.microbatches,
        "makespan_s": outcome.makespan_s,
        "predicted_s": outcome.predicted_s,
        "throughput_items_s": outcome.throughput_items_s,
        "utilisation": outcome.uses,
    }
    if format == "json":
        print_json(figures)
        return 0
    print_table(["device or link", "use %"], [[name, round(100 * use, 1)] for name, use in outcome.uses.items()])
    off = round(100 * (outcome.makespan_s / outcome.predicted_s - 1), 6) if outcome.predicted_s else 0.0
    print(f"\n{microbatches} microbatches in {outcome.makespan_s:.6f} s, {outcome.throughput_items_s:.3f} items/s")
    print(f"the formula predicts {outcome.predicted_s:.6f} s ({off + 0.0:+.6f} %)")
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0
