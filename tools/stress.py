"""Run the live tests beside CPU hogs on all cores, several times: a test that waits for seconds, not for events, fails.

python -m tools.stress --times 5 tests/e2e tests/host
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIVE = tuple(f"tests/{of}" for of in ("e2e", "host", "dispatch", "pipeline", "cluster/live", "workflow/live", "core"))
_HOG = "import os\nwhile os.getppid() == {parent}: sum(range(10**6))"  # ends with us, however we end


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that keep a core busy, each ended by its id."""
    started = [subprocess.Popen([sys.executable, "-c", _HOG.format(parent=os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in started:
            hog.kill()
            hog.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=LIVE)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--hogs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=2, help="test processes")
    given = parser.parse_args()
    failed = 0
    with hogs(given.hogs):
        for number in range(1, given.times + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-n", str(given.jobs), "--dist", "loadgroup", *given.tests]
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            failed += code != 0
            print(
                f"run {number} of {given.times} beside {given.hogs} hogs: {'failed' if code else 'passed'}", flush=True
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
