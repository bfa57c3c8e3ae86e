"""What must hold in the journal of any level. Faults come as data, with what was found instead of what.

The checker keeps its own account and trusts nothing that the engine, the scheduler or the summary says. Stamps may be
wrong against each other by as much as the header says of its clock; what needs that to hold together is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from dovetail.core.check.follow import Check as Check
from dovetail.core.check.follow import told_late
from dovetail.core.findings import Findings
from dovetail.core.journal import Observer, Reader, Step
from dovetail.core.journal import check_header as check_header
from dovetail.core.metrics import Figures

CODES = {
    "time": "an instant before the one written ahead of it, or not a time",
    "number": "a negative or endless number of seconds",
    "graph": "a job of an unknown graph, or with sizes that do not match it",
    "arrival": "a job that arrives twice, or of which something happens before it arrives",
    "task": "a task that its graph does not have",
    "growth": "tasks added by one that does not run or does not end then, or that cannot be added so",
    "order": "a task started before a predecessor finished, or one that can never be ready",
    "twice": "a task run again although it had not failed",
    "ready": "a wrong instant at which a task became ready",
    "kind": "a task run as something else than its graph says",
    "width": "a task on more or fewer devices than its graph allows",
    "device": "a device that does not exist, or is named twice",
    "overlap": "a device held by two tasks at a time",
    "slots": "more tasks on shared devices than there are slots",
    "batch": "tasks in one batch that do not run as one",
    "finish": "an end of something that does not run",
    "duration": "an end that is not start + setup + run, or not what a later change said",
    "change": "a pause, resume, resize or stop of a task that is not there to be changed so",
    "complete": "a job called complete at another time than its last task's end",
    "missing": "a job called complete without all of its tasks",
    "closed": "something about a job that was completed or rejected before",
    "reason": "a job rejected, or a task changed, without a reason",
    "running": "a task or a preload still under way at the end",
    "preload": "a preload that is numbered or ends twice, or ends without a beginning",
    "unclosed": "a job neither completed nor rejected",
    "end": "a run that did not end, or went on after its end",
    "summary": "a figure of the summary that differs from the recount",
    "bound": "a figure better than is possible",
}


def read_steps(reader: Reader, faults: Findings) -> Iterator[Step]:
    """The steps of a journal, with a fault where they are not numbered upwards or a step has two times."""
    last_n, last_t = 0, -inf
    if reader.header.order == "written":
        yield from reader.steps()
        return
    for n, t, events in reader.steps():
        faults.at(n, t)
        if n < last_n:
            faults.add("time", "", f"found step {n} after step {last_n}")
        elif n == last_n and t != last_t:
            faults.add("time", "", f"found one step at {last_t}, {t} s, expected one instant")
        if not told_late(reader.header, events):
            last_n, last_t = n, t
        yield n, t, events


def check_journal(
    reader: Reader,
    faults: Findings,
    followers: Sequence[Observer] = (),
    exact: bool = True,
    may_go_on: bool = False,
) -> Figures:
    """Check a recorded run; a level adds its own rules as followers. That a run has not ended is a fault, but a note
    for one that may still go on."""
    check = Check(reader.header, faults, followers, exact)
    for n, t, events in read_steps(reader, faults):
        check.step(n, t, events)
    return check.finish(reader.torn, may_go_on)
