"""What this level writes into the journal, column by column: arrivals, leases begun and ended, completions.

A lease is a stretch of time in which a job holds the same accelerators; `stopped` tells when it began and what it
brought, so that figures need nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

from dovetail.cluster.goodput.application import Batch
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.core.events import Rows

ROUND, KEPT, FREE, GATHERED, CHANGED, MOVED = 0, 1, 2, 3, 4, 5
WHY = (
    "its turn: it is owed the most time",
    "kept its place: only its company changed",
    "accelerators were free",
    "moved into one server: it was spread over several",
)
CHOSEN = "its turn: the policy chose it for this round"  # in the first one's place, of policies asked every round
WHY_IN_PHASES = (
    *WHY,
    "kept its place: its batch or its phase changed",
    "moved to other servers, as many accelerators in each: another job needs a whole one",
)


def arrived(
    jobs: Sequence[Job],
    kinds: Sequence[int],
    entities: Sequence[int] | None = None,
    phases: Sequence[Sequence[tuple[float, int]]] | None = None,
) -> Rows:
    """`entities` are places in the header's list of their weights; `phases` are of each job (done when it ends, kind),
    where any has some."""
    columns: dict[str, Any] = {
        "id": [job.id for job in jobs],
        "kind": list(kinds),
        "steps": [job.steps for job in jobs],
        "at_s": [job.arrival_s for job in jobs],
    }
    if any(job.name for job in jobs):
        columns["name"] = [job.name for job in jobs]
    if any(job.weight != 1.0 for job in jobs):
        columns["weight"] = [job.weight for job in jobs]
    if any(job.due_s is not None for job in jobs):
        columns["due_s"] = [inf if job.due_s is None else job.due_s for job in jobs]
    if any(job.duration_s is not None for job in jobs):
        columns["duration_s"] = [job.duration_s for job in jobs]
    if entities is not None:
        columns["entity"] = list(entities)
    if phases is not None:
        columns["phases"] = list(phases)
    return Rows("arrived", columns)


def started(
    ids: Ints | Sequence[int],
    on: Ints | Sequence[int],
    devices: Sequence[Sequence[int]],
    why: Sequence[int],
    beside: Ints | None = None,
    setup_s: Floats | None = None,
    kinds: Ints | None = None,
    batches: Sequence[Batch] | None = None,
    epochs: Sequence[int] | None = None,
) -> Rows:
    """`why` is a place in the header's list of reasons. The others are written where somebody has company, where a
    start may cost another price than a restart's, where jobs may have another width than they came with, where
    they may choose their batch, and where leases are carried out for real."""
    columns: dict[str, Any] = {"id": ids, "on": on, "devices": devices, "why": why}
    more: dict[str, Any] = {"kind": kinds, "beside": beside, "setup_s": setup_s, "epoch": epochs}
    if batches is not None:
        more |= {"local": [batch.local for batch in batches], "accumulation": [batch.steps for batch in batches]}
    return Rows("started", columns | {name: column for name, column in more.items() if column is not None}, True)


def stopped(
    ids: Ints | Sequence[int],
    on: Ints | Sequence[int],
    beside: Ints | Sequence[int],
    from_s: float | Floats | Sequence[float],
    to_s: Floats | Sequence[float],
    steps: Floats | Sequence[float],
) -> Rows:
    columns = {"id": ids, "on": on, "beside": beside, "from_s": from_s, "to_s": to_s, "steps": steps}
    return Rows("stopped", columns, True)


def phase(ids: Sequence[int]) -> Rows:
    """Jobs have reached the end of a phase, and begin the next one."""
    return Rows("phase", {"id": ids})


def completed(ids: Ints | Sequence[int], at_s: Floats | Sequence[float] | None = None, decided: bool = False) -> Rows:
    """Jobs ended by themselves, or had nothing to do, which is decided when they come. Without a time: now, as the live
    loop sees it."""
    return Rows("completed", {"id": ids} if at_s is None else {"id": ids, "at_s": at_s}, decided)


def rejected(ids: Ints | Sequence[int], why: str) -> Rows:
    return Rows("rejected", {"id": ids, "why": [why] * len(ids)}, True)


# --- on wall-clock time: what is seen ---------------------------------------------------------------------


def due(what: Literal["plan", "round"]) -> Rows:
    """It is time: for the next round to be decided, or to begin."""
    return Rows("due", {"what": [what]})


def progress(ids: Sequence[int], epochs: Sequence[int], steps: Sequence[float], saved: Sequence[float]) -> Rows:
    """Steps that jobs have done in all, as their processes of these epochs say, and how many of them are saved."""
    return Rows("progress", {"id": ids, "epoch": epochs, "steps": steps, "saved": saved})


def exited(ids: Sequence[int], epochs: Sequence[int], why: Sequence[str], final: Sequence[bool] | None = None) -> Rows:
    """The processes of jobs are gone, which was not asked for; `final`: there is no node on which they could start."""
    columns: dict[str, Any] = {"id": ids, "epoch": epochs, "why": why}
    return Rows("exited", columns if final is None else columns | {"final": final})


def kept(ids: Sequence[int], epochs: Sequence[int]) -> Rows:
    """Processes of jobs that count no steps have left something new."""
    return Rows("kept", {"id": ids, "epoch": epochs})


def lapsed(ids: Sequence[int], at_s: Sequence[float]) -> Rows:
    """Leases are over since then: nobody was there to renew them, or the service leaves."""
    return Rows("lapsed", {"id": ids, "at_s": at_s})


def cancelled(ids: Sequence[int]) -> Rows:
    return Rows("cancelled", {"id": ids})


def failed(devices: Sequence[int]) -> Rows:
    return Rows("failed", {"device": devices})


def mended(devices: Sequence[int]) -> Rows:
    return Rows("mended", {"device": devices})


def drained(devices: Sequence[int]) -> Rows:
    """Nobody new may have these accelerators; who is there leaves when the round is over."""
    return Rows("drained", {"device": devices})


def undrained(devices: Sequence[int]) -> Rows:
    return Rows("undrained", {"device": devices})


def joined(devices: Sequence[int], on: Sequence[int], servers: Sequence[int]) -> Rows:
    """Accelerators that join, numbered on from those that are there, as are servers."""
    return Rows("joined", {"device": devices, "on": on, "server": servers})


def kinds(
    models: Sequence[str],
    widths: Sequence[int],
    alone: Sequence[Sequence[float]],
    spread: Sequence[Sequence[float]] | None = None,
) -> Rows:
    """Models and widths that become known, with their first rates by type, in one server and over several."""
    columns: dict[str, Any] = {"model": models, "width": widths, "alone": alone}
    return Rows("kinds", columns if spread is None else columns | {"spread": spread})


def learned(
    kinds: Sequence[int], on: Sequence[int], rates: Sequence[float], spread: Sequence[bool] | None = None
) -> Rows:
    """Kinds turn out to do so many steps per second on types, alone in one server or `spread` over several."""
    columns: dict[str, Any] = {"kind": kinds, "on": on, "rate": rates}
    return Rows("learned", columns if spread is None else columns | {"spread": spread})


def learned_pairs(kinds: Sequence[int], beside: Sequence[int], on: Sequence[int], rates: Sequence[float]) -> Rows:
    """Kinds turn out to do so many steps per second on types while jobs of other kinds share their accelerators."""
    return Rows("learned_pairs", {"kind": kinds, "beside": beside, "on": on, "rate": rates})


def costs(
    kinds: Sequence[int], on: Sequence[int], restart_s: Sequence[float], ahead: Sequence[bool] | None = None
) -> Rows:
    """To start a job of a kind on a type turns out to take so many seconds: whenever it is, or only a start that was
    planned `ahead` (or was not)."""
    columns: dict[str, Any] = {"kind": kinds, "on": on, "restart_s": restart_s}
    return Rows("costs", columns if ahead is None else columns | {"ahead": ahead})


def policy(name: str, options: Mapping[str, Any] | None = None) -> Rows:
    """This policy decides from now on."""
    return Rows("policy", {"name": [name], "options": [dict(options or {})]})


def saved() -> Rows:
    """The machine is saved: its policy goes on as it would after a restart."""
    return Rows("saved", {})


# --- and what is decided ------------------------------------------------------------------------------------


def planned(
    ids: Sequence[int],
    on: Sequence[int],
    devices: Sequence[Sequence[int]],
    epochs: Sequence[int] | None,
    beside: Sequence[int] | None = None,
    kinds: Sequence[int] | None = None,
) -> Rows:
    """Who will stop when the round is over (`on` is -1), and who will begin where; all others stay as they are."""
    columns: dict[str, Any] = {"id": ids, "on": on, "devices": devices}
    more: dict[str, Any] = {"epoch": epochs, "beside": beside, "kind": kinds}
    return Rows("planned", columns | {name: column for name, column in more.items() if column is not None}, True)


def spares(ids: Sequence[int], devices: Sequence[Sequence[int]], epochs: Sequence[int] | None) -> Rows:
    """Who would begin where if jobs that are about to end did so; nobody else is kept ready any more."""
    columns: dict[str, Any] = {"id": ids, "devices": devices}
    return Rows("spares", columns if epochs is None else columns | {"epoch": epochs}, True)


def given_up(ids: Sequence[int], why: Sequence[str]) -> Rows:
    return Rows("given_up", {"id": ids, "why": why}, True)


def undecided(why: str) -> Rows:
    """The policy had no answer: the shares stay as they were."""
    return Rows("undecided", {"why": [why]}, True)
