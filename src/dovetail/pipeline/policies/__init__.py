"""Ways to make a plan, one per file: the exact planner, the auction, and the rules of thumb to compare with."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
