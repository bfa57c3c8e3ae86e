"""Why a node waited and went where it went, from the journal; with tenants, also what its tenant had to do with it."""

from __future__ import annotations

from collections.abc import Collection

from dovetail.core.events import Observed, Start
from dovetail.core.explain import Explanation, Turn, explain, sentences
from dovetail.core.journal import Reader
from dovetail.core.resources import devices_text
from dovetail.core.results.run import Account
from dovetail.workflow.capacity import BACK, GONE
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.tenants.ledger import Key, TenantLedger, TenantState

_SHOWN = 10  # reasons of a node


def account(reader: Reader, job: str, task: str | None = None) -> Account:
    """Why a request, or one node of it, waited and went where it went."""
    stories = explain(reader, str(job), task)
    facts = WorkflowFacts.of(reader.header, reader.path)
    if facts.tenancy is not None:
        witness = _TenantWitness(reader, facts, str(job))
        for story in stories:
            story.turns = sorted([*witness.reasons.get(story.task, ()), *story.turns], key=lambda turn: turn.t_s)
    if facts.gpus_over_time is not None:
        for story in stories:
            off = None if story.ready_s is None else facts.gpus_over_time.off_at(story.ready_s, len(reader.header.pool))
            _leave_out(story, off or ())
    if facts.live:
        away = _Away(reader)
        for story in stories:
            _leave_out(story, away.at(story.ready_s))
    return Account("\n\n".join("\n".join(sentences(story)) for story in stories), list(stories))


class _Away:
    """Which GPUs were seen to be gone at which times."""

    def __init__(self, reader: Reader) -> None:
        self._seen = [
            (t, event.what == GONE, event.facts.get("gpus", []))
            for _, t, event in reader
            if isinstance(event, Observed) and event.what in (GONE, BACK)
        ]

    def at(self, t: float | None) -> set[int]:
        away = set[int]()
        for at_s, gone, gpus in self._seen:
            if t is not None and at_s <= t:
                away = away.union(gpus) if gone else away.difference(gpus)
        return away


def _leave_out(story: Explanation, off: Collection[int]) -> None:
    """GPUs that were off when a node became ready were not free, though nothing ran on them."""
    free, ready_s = story.free_when_ready, story.ready_s
    if free is not None and ready_s is not None:
        story.free_when_ready = tuple(gpu for gpu in free if gpu not in off)
        if gone := tuple(gpu for gpu in free if gpu in off):
            said = "GPU {} was off" if len(gone) == 1 else "GPUs {} were off"
            story.turns = [Turn(ready_s, "had to wait", said.format(devices_text(gone))), *story.turns]


class _TenantWitness:
    """Follows a run and keeps why nodes of a request waited for their tenant's quota or turn; each reason once, until
    another takes its place."""

    def __init__(self, reader: Reader, facts: WorkflowFacts, job: str) -> None:
        assert facts.tenancy is not None
        self.reasons: dict[str, list[Turn]] = {}
        self._job = job
        self._in_turn = bool(facts.tenancy.tenants)
        self._tolerance_s = facts.tenancy.sharing.tolerance_s
        self._ledger = ledger = TenantLedger(reader.header.build_graphs(), facts.models, facts.tenancy)
        self._last: dict[Key, str] = {}
        for _, t, events in reader.steps():
            for members in ledger.starts(t, events):
                if members[0].devices and self._in_turn:
                    self._begin(t, members)
            if job in ledger.jobs:
                self._look(t)

    def _begin(self, t: float, members: list[Start]) -> None:
        """Something starts: whether a node of the request could not because it was not its tenant's turn."""
        ledger = self._ledger
        wanting, own = ledger.served(), self._state()
        other = ledger.jobs.get(members[0].job)
        if own is not None and other is not None and own.name in wanting and other.tenant != own.name:
            least, least_s = min(wanting.items(), key=lambda item: (item[1], item[0]))
            ahead_s = wanting[own.name] - least_s
            if ahead_s > self._tolerance_s:
                served = f"tenant {own.name!r} was ahead by {ahead_s:.2f} s of service per weight"
                for key in own.ready:
                    if key[0] == self._job:
                        self._tell(t, key, "turn", f"it was the turn of {least!r}: {served}")

    def _look(self, t: float) -> None:
        """A step is over: whether what is still ready waits for room under its quota."""
        own = self._state()
        for key, share in own.ready.items() if own is not None else ():
            if key[0] == self._job and own is not None and share > own.quota - own.held + 1e-6:
                held = f"tenant {own.name!r} holds {own.held:g} GPUs, and its quota is {own.quota:g}"
                self._tell(t, key, "quota", held)
            elif self._last.get(key) == "quota":
                self._last[key] = ""

    def _state(self) -> TenantState | None:
        job = self._ledger.jobs.get(self._job)
        return None if job is None else self._ledger.state(job.tenant)

    def _tell(self, t: float, key: Key, kind: str, why: str) -> None:
        told = self.reasons.setdefault(key[1], [])
        if self._last.get(key) != kind and len(told) < _SHOWN:
            told.append(Turn(t, "had to wait", why))
        self._last[key] = kind
