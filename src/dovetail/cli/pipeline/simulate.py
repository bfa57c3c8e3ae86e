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
    from dovetail.pipeline import simulate as simulate_plan

    figures = simulate_plan(plan, microbatches, buffers, journal if journal is not None else False).metrics
    if format == "json":
        print_json(figures)
        return 0
    uses, makespan_s, predicted_s = figures["utilisation"], figures["makespan_s"], figures["predicted_s"]
    print_table(["device or link", "use %"], [[name, round(100 * use, 1)] for name, use in uses.items()])
    off = round(100 * (makespan_s / predicted_s - 1), 6) if predicted_s else 0.0
    print(f"\n{microbatches} microbatches in {makespan_s:.6f} s, {figures['throughput_items_s']:.3f} items/s")
    print(f"the formula predicts {predicted_s:.6f} s ({off + 0.0:+.6f} %)")
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0
