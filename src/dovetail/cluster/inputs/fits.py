"""What a user should know of jobs that do not fit into a server, or into the whole cluster."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.inputs.setup import ClusterSetup

_LITTLE = 1.01  # times slower: not worth a note


def spread_note(setup: ClusterSetup) -> str:
    """Jobs that no server can hold, if that makes them slower."""
    if not isinstance(setup.jobs, list) or setup.adaptive is not None:
        return ""
    known, index = setup.throughputs, setup.throughputs.index()
    wide, slower = 0, 1.0
    for job in setup.jobs:
        kind = index.get((job.model, job.width))
        able = [] if kind is None else (known.spread[kind] > 0) & (setup.counts >= job.width)  # others are rejected
        runs = np.flatnonzero(able).tolist()
        if runs and all(job.width > setup.per_server[j] for j in runs):
            loss = max(float(known.alone[kind, j] / known.spread[kind, j]) for j in runs)
            wide, slower = wide + (loss > _LITTLE), max(slower, loss)
    if not wide:
        return ""
    jobs = "1 job is" if wide == 1 else f"{wide:,} jobs are"
    sizes = ", ".join(str(size) for size in sorted(set(setup.per_server.tolist())))
    return (
        f"{jobs} wider than every server ({sizes}), and run{'s' * (wide == 1)} at the rate over several servers: up to "
        f"{slower:.1f} times slower than within one (--num-gpus-per-server)"
    )


def rejected_note(setup: ClusterSetup, rejected: int, compat: bool = False) -> str:
    """Why jobs were rejected, and which widths they have where that is known; `compat` is by the older rules."""
    if not rejected:
        return ""
    rates, index = setup.rates(), setup.throughputs.index()
    widths = set()
    for job in setup.jobs if isinstance(setup.jobs, list) else ():
        fits = (rates[index[job.model, job.width]] > 0) & (setup.counts >= job.width)
        if not fits.any():
            widths.add(job.width)
    failed = "by the older rules a job with fewer steps left than accelerators fails, and goes after five times"
    if not widths and compat:
        return f"{rejected:,} rejected: {failed}"
    if not widths and isinstance(setup.jobs, list):
        return f"{rejected:,} rejected, though they fit: the journal has the reason"
    wide = f" (they are {', '.join(str(width) for width in sorted(widths))} wide)" if widths else ""
    there = ", ".join(f"{count} {name}" for name, count in setup.accelerators().items())
    others = f"; and {failed}" if compat else ""
    return f"{rejected:,} rejected: no type has enough accelerators that they run on{wide}; there are {there}{others}"
