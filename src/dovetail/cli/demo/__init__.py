"""`dovetail demo`: all five levels on one chain of measured rates, and one page that shows what each gained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.common import Format, atomic_write, make_folder, print_json, print_table, progress
from dovetail.core.errors import DovetailError, InputError

if TYPE_CHECKING:
    from dovetail.report.gains import Gain

_LEAD = (
    "One machine, measured; the rate that a level finds is what the next one works with. Above, the rule that people "
    "use today; below, Dovetail's, on the same work and the same scale of time. Grey is time spent on changing. "
    "All runs are simulated, and each journal was proven valid."
)
_UNDER_WAY = "<!doctype html><title>Dovetail</title><p>This demonstration is under way, or was stopped: run it again.\n"


def demo(*, out: Path = Path("dovetail-demo"), format: Format = "table") -> int:
    """Show on one page what each of the five levels gains, from this machine's measured rates up.

    A layer is timed on this machine's processor; two faster cards are assumed beside it. A batch is dispatched over
    these devices, a model's layers are cut over them, the plan's rate becomes a node of workflows and a type of job of
    a cluster, and programs share this machine's cores as the timed layer does. Each runs under the rule that people use
    today and under Dovetail's. It takes a few seconds and needs no extras.

    Example: dovetail demo --out demo

    Parameters
    ----------
    out
        Folder for the inputs, the journals and the page.
    format
        table or json.
    """
    from dovetail.cli.demo import levels
    from dovetail.report.gains import gains_page, picture

    page = out / "demo.html"
    if out.is_dir() and any(out.iterdir()) and not page.exists():
        raise InputError(f"--out {out}: holds files that are not of a demonstration; name another folder")
    make_folder(out)
    atomic_write(page, _UNDER_WAY)  # first of all: it marks the folder as ours, also if the rest is never written
    with progress("running", 6) as done:
        machine = levels.measure()
        done(1)
        rates = levels.write_rates(machine, out / "rates.json")
        gains = [levels.dispatch(machine, out)]
        done(2)
        pipeline, chain = levels.pipeline(rates, out)
        gains.append(pipeline)
        done(3)
        for count, level in enumerate((levels.workflow, levels.cluster, levels.host), start=4):
            gains.append(level(machine, chain, out))
            done(count)
    atomic_write(page, gains_page(gains, "Dovetail: five levels, one chain of rates", _LEAD, opened=2))
    atomic_write(out / "workflow.svg", picture(gains[2]))
    _check(out)
    if format == "json":
        print_json({"levels": [_row(gain) for gain in gains], "page": str(page)})
        return 0
    columns = ["level", "compared", "rule of today", "seconds", "Dovetail's", "seconds", "less %"]
    print_table(columns, [[*_row(gain).values()][:7] for gain in gains])
    for gain in gains:
        print(f"\n{gain.title}: {gain.sentence}")
    print(f"\nThe page: {page} (and of the workflows a picture: {out / 'workflow.svg'})")
    print("Try it yourself:")
    config, requests = out / "system_config.yaml", out / "workflow_requests.jsonl"
    print(f"  dovetail workflow run --config {config} --requests {requests} --gpus 8 --mode online --out {out}")
    print(f"  dovetail workflow explain req_0001 --journal {out / 'dovetail_journal.jsonl'}")
    return 0


def _row(gain: Gain) -> dict[str, Any]:
    return {
        "level": gain.ours.header.level,
        "figure": gain.figure,
        "rule": gain.rule_name,
        "rule_s": float(f"{gain.rule_s:.4g}"),
        "ours": gain.ours_name,
        "ours_s": float(f"{gain.ours_s:.4g}"),
        "less_percent": round(100 * gain.saved, 1),
        "sentence": gain.sentence,
    }


def _check(out: Path) -> None:
    """Nothing is shown that the checker would not pass."""
    from dovetail import check_journal

    for journal in sorted(out.glob("*_journal.jsonl")):
        report = check_journal(journal)
        if not report.valid:
            raise DovetailError(f"{journal}: the checker found faults: {report.faults_by_code}")
