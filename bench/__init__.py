"""Measured figures as data: `python -m bench` runs the scripts here and compares what they print with figures/."""

from __future__ import annotations

import json
import os
import platform
from typing import Any


def show(found: dict[str, Any]) -> None:
    """Print what a script found, and on what."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(json.dumps({"machine": machine, **found}, indent=2, default=str))
