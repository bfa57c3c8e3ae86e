"""Live workflows, measured on real worker processes.

python -m bench.workflow_live fidelity     live runs beside their simulations with measured rates
python -m bench.workflow_live load         a public load generator against the service
python -m bench.workflow_live chaos        kills every few seconds
python -m bench.workflow_live decisions    how long the service decides, with 1,000 requests open and 100 models
python -m bench.workflow_live rivals       Ray Serve and FIFO swapping on the same models, trace and machine
python -m bench.workflow_live gpu          real-sized models on a GPU

What follows the part's name are its own options (`fidelity --help`).
"""

from __future__ import annotations

import sys
from importlib import import_module

# Each in bench/workflow_PART.py, whose `main` reads sys.argv.
PARTS = (
    "fidelity",
    "load",
    "chaos",
    "decisions",
    "rivals",
    "gpu",
)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    part = sys.argv.pop(1)
    sys.argv[0] = f"bench.workflow_live {part}"
    import_module(f"bench.workflow_{part}").main()


if __name__ == "__main__":
    main()
