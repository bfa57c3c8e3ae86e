"""Options of the auction by the names that the older one gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {"dev_count": "devices", "filter_bids_chunk": "chunk", "filter_bids_largest": "largest", "sched": "mode"}
OLD_MODES = {"latency_ordered": "latency", "throughput_ordered": "throughput", "greedy_host_count": "greedy"}


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by our names, where they were given by those of the older auction.

    >>> renamed({"sched": "latency_ordered", "dev_count": "4", "no_strict_order": "true"})
    {'mode': 'latency', 'devices': '4', 'strict_order': 'false'}
    """
    ours = {OLD_NAMES.get(key, key): value for key, value in options.items()}
    if "no_strict_order" in ours:
        off = str(ours.pop("no_strict_order")).lower() in ("true", "1")
        ours["strict_order"] = "false" if off else "true"
    if "mode" in ours:
        ours["mode"] = OLD_MODES.get(ours["mode"], ours["mode"])
    return ours
