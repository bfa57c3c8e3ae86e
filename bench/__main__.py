"""Run the measurements of ranges/*.toml, say which figures lie outside their ranges, and write docs/figures.md.

python -m bench                          those that this machine can do in about five minutes each
python -m bench --minutes 60 --only cluster
python -m bench --write                  no measurement: only the page, from what was measured last
"""

from __future__ import annotations

import argparse
import sys

from bench.figures import Measured, Run, load, machine_lacks, measure, read_measured, write_measured, write_page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="only these scripts: work, cluster, host_live, ...")
    parser.add_argument("--minutes", type=float, default=5.0, help="leave out what takes longer on two cores")
    parser.add_argument("--idle", action="store_true", help="nothing else runs here: also what needs an idle machine")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    given = parser.parse_args()
    known, outside = read_measured(), 0
    for run in load():
        if given.write or (given.only and run.script not in given.only):
            continue
        lacks = machine_lacks(run, idle=given.idle)
        if run.minutes > given.minutes or lacks:
            print(f"-- {run.words}: left out: {lacks or f'about {run.minutes:g} minutes'}")
            continue
        print(f"-- {run.words}", flush=True)
        outside += _compare(run, measure(run.words), known)
    write_measured(known)
    write_page(known)
    print(f"{outside} outside their ranges; docs/figures.md is written")
    return 1 if outside else 0


def _compare(run: Run, output: object, known: dict[str, Measured]) -> int:
    outside = 0
    for figure in run.figure:
        with_pairs = figure is run.figure[0]
        found = known[figure.name] = figure.with_pairs(output) if with_pairs else figure.measured(output)
        inside = figure.least <= found.value <= figure.most
        outside += not inside
        verdict = "" if inside else f"   OUTSIDE {figure.range()}"
        print(f"   {figure.name}: {found.value:g} {figure.unit}{verdict}", flush=True)
    return outside


if __name__ == "__main__":
    sys.exit(main())
