"""What a process is given that outlives whoever starts it, in a folder of its own."""

from __future__ import annotations

import os


def lasting_environment() -> dict[str, str]:
    """The environment, with a PYTHONPATH that means the same in every folder."""
    known = os.environ.get("PYTHONPATH")
    path = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, known.split(os.pathsep)))} if known else {}
    return os.environ | path
