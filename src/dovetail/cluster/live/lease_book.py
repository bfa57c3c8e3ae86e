"""Which leases there ought to be and which there are, on which nodes: what is decided and what agents say goes in, what
each agent is answered and what the rounds are told comes out. Without a clock; times are the monotonic clock's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from math import inf
from typing import Any

import msgspec
import numpy as np

from dovetail.cluster.live.agent_runs import AHEAD
from dovetail.cluster.live.live_leases import JobLease, Key, LiveNode, NodePart
from dovetail.cluster.live.nodes import ClusterNode
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.wire import (
    AgentBeat,
    LeaseState,
    NodeLease,
    NodeLeases,
    NodeTrouble,
    ProcessEvent,
    StopAsked,
    TrainingCommand,
)
from dovetail.cluster.rounding import records
from dovetail.core.events import Rows

_DOUBT_BEATS = 4  # of silence, and a node is gone that Ray has lost
FIRST_S = 60.0  # for an agent to be heard of for the first time
UNKNOWN = ""  # the name of a node that was never named
RAN_OUT = "its lease ran out before it was renewed"


class LeaseBook:
    """`report` is given rows for the rounds; `prepare` is asked to ready a job's folder for a lease (job, epoch, and
    whether a checkpoint is to be copied), and says so by `prepared`."""

    def __init__(
        self,
        settings: ClusterSettings,
        round_s: float,
        commands: Callable[[int], TrainingCommand],
        report: Callable[[Rows], None],
        prepare: Callable[[int, int, bool], None],
    ) -> None:
        self._commands = commands
        self._report = report
        self._prepare = prepare
        self._round_s, self._renew_at = round_s, settings.renew_at
        self._grace_s, self._kill_s = settings.grace * round_s, settings.kill_after * round_s
        self.beat_s = settings.beat_s(round_s)
        self._silence_s = settings.silence * round_s
        self.nodes: dict[str, LiveNode] = {}
        self.leases: dict[Key, JobLease] = {}
        self._of: dict[int, dict[int, JobLease]] = {}  # by job and epoch
        self._open: dict[Key, JobLease] = {}  # all but those that just run
        self._places: dict[int, tuple[str, int]] = {}
        self._progress: dict[int, tuple[int, int, int]] = {}  # to be told: epoch, steps, saved
        self._known: dict[int, tuple[int, int]] = {}  # steps and saved steps that were told
        self._drained: set[int] = set()  # accelerators that are to be left
        self._unable: dict[int, set[str]] = {}  # by job: nodes on which its command is not there
        self._told_at = -inf
        self._greeters: set[tuple[str, ...]] = set()
        self._blind_until = -inf  # after a restart, until all nodes are met
        self._resuming = False  # after a restart, until the first step

    # --- nodes ------------------------------------------------------------------------------------------

    def add_node(self, node: ClusterNode, numbers: range, now: float) -> None:
        known = self.nodes.get(node.name)
        if known is None:
            self.nodes[node.name] = LiveNode(node, numbers, now)
        else:
            known.node, known.numbers, known.doubted = node, numbers, False
        self._places |= {number: (node.name, place) for place, number in enumerate(numbers)}

    def lose_node(self, name: str) -> None:
        """A node is gone, as Ray says: it is, if its agent is not heard of any more, either."""
        if name in self.nodes:
            self.nodes[name].doubted = True

    def _lose(self, node: LiveNode) -> None:
        if not node.down:
            node.down = True
            self._report(Rows("failed", {"device": list(node.numbers)}))

    # --- what is decided --------------------------------------------------------------------------------

    def carry(self, rows: Iterable[Rows], now: float, ends: float) -> None:
        """What happened and was decided in one step; leases that are not told to end last until `ends`."""
        rows, self._resuming = list(rows), False
        cancelled = {int(job) for each in rows if each.of == "cancelled" for job in each.columns["id"]}
        for each in rows:
            if each.of in ("completed", "cancelled", "given_up"):
                for job in each.columns["id"]:
                    self._unable.pop(int(job), None)
            self._decided(each.of, _lists(each.columns))
        over = any(each.of == "due" and "round" in each.columns["what"] for each in rows)
        for lease in list(self.leases.values()):
            if over and not lease.started and not lease.spare:
                self._drop(lease)  # planned, but not to be
            elif lease.wanted and lease.started and not lease.last:
                lease.ends = ends
            elif lease.wanted and lease.started and lease.ends is None:
                lease.ends = ends - self._round_s  # it began in the very step that planned it away
            elif not lease.wanted and lease.started and not lease.end:
                if lease.job in cancelled:
                    lease.end = "kill"
                elif lease.ends is not None and now < lease.ends - self._grace_s:
                    lease.end = "stop"
        self._wake()
        self.settle(now)

    def _decided(self, of: str, columns: dict[str, Any]) -> None:
        if of == "planned":
            self._plan(columns)
        elif of == "spares":
            self._ready(columns)
        elif of == "drained":
            self._drained.update(columns["device"])
        elif of == "undrained":
            self._drained.difference_update(columns["device"])
        elif of == "stopped":
            for job in columns["id"]:
                self._stop(job)
        elif of == "started":
            for job, epoch, devices, beside in zip(
                columns["id"], columns["epoch"], columns["devices"], _beside(columns), strict=True
            ):
                self._start(job, epoch, tuple(devices), beside)

    def restore(
        self, held: Mapping[int, Any], now: float, ends: float, longest_s: float, drained: Iterable[int] = ()
    ) -> None:
        """After a start: the leases that the journal knows, and what is drained. Agents may know of ends that were
        granted before, in rounds of `longest_s` at most."""
        self._drained.update(drained)
        for job, lease in held.items():
            key, devices = (int(job), int(lease.epoch)), tuple(lease.devices)
            self._start(*key, devices, _partner(lease.beside))
            mine = self.leases.get(key)
            if mine is None:  # on a node that nobody knows now: until its time is over, it may run there
                mine = JobLease(*key, devices, "", {UNKNOWN: NodePart((), (), ())}, started=True, wanted=False, go=True)
                self._keep(mine)
            else:
                mine.unsure, mine.ends = True, ends
            mine.granted = now + 2 * longest_s
        self._blind_until = now + 2 * longest_s + self._grace_s + self._kill_s
        self._resuming = True
        self._wake()

    def _plan(self, columns: dict[str, Any]) -> None:
        for job, epoch, devices, beside in zip(
            columns["id"], columns["epoch"], columns["devices"], _beside(columns), strict=True
        ):
            for lease in self._of.get(job, {}).values():
                if lease.wanted and lease.started:
                    lease.last = True
            if devices and all(device in self._places for device in devices):
                self._expect(job, epoch, tuple(devices), beside).spare = False

    def _ready(self, columns: dict[str, Any]) -> None:
        """Processes that are to be up in case that others end: these, and no others any more."""
        wanted = dict(
            zip(zip(columns["id"], columns["epoch"], strict=True), map(tuple, columns["devices"]), strict=True)
        )
        for lease in list(self.leases.values()):
            if lease.spare and not lease.started and lease.key not in wanted:
                self._drop(lease)
        for key, devices in wanted.items():
            if all(device in self._places for device in devices):
                self._expect(*key, devices, -1).spare = True

    def _expect(self, job: int, epoch: int, devices: tuple[int, ...], beside: int) -> JobLease:
        """A lease that may begin soon, there and not elsewhere."""
        lease = self.leases.get((job, epoch))
        if lease is not None and lease.devices == devices:
            return lease
        if lease is not None:
            self._drop(lease)
        return self._add(job, epoch, devices, beside)

    def _start(self, job: int, epoch: int, devices: tuple[int, ...], beside: int) -> None:
        if missing := [device for device in devices if device not in self._places]:
            self._report(Rows("failed", {"device": missing}))
            return
        lease = self._expect(job, epoch, devices, beside)
        lease.started, lease.wanted, lease.spare, lease.last, lease.end, lease.beside = (
            True,
            True,
            False,
            False,
            "",
            beside,
        )

    def _add(self, job: int, epoch: int, devices: tuple[int, ...], beside: int) -> JobLease:
        parts: dict[str, list[tuple[int, int, int]]] = {}
        for rank, device in enumerate(devices):
            name, place = self._places[device]
            gpu = self.nodes[name].node.devices[place].gpu
            parts.setdefault(name, []).append((rank, place, gpu))
        name, place = self._places[devices[0]]
        node = self.nodes[name]
        found = {each: NodePart(*map(tuple, zip(*rows, strict=True))) for each, rows in parts.items()}
        lease = JobLease(job, epoch, devices, node.node.devices[place].type, found, self._commands(job), beside)
        if len(devices) > 1:
            lease.port = node.ports.pop(0) if node.ports else 20_000 + (job * 97 + epoch * 31) % 20_000
        self._keep(lease)
        return lease

    def _keep(self, lease: JobLease) -> None:
        self.leases[lease.key] = self._open[lease.key] = lease
        self._of.setdefault(lease.job, {})[lease.epoch] = lease
        for node in self._nodes_of(lease):
            node.leases[lease.key] = lease

    def _nodes_of(self, lease: JobLease) -> list[LiveNode]:
        return [self.nodes[name] for name in lease.parts if name in self.nodes]

    def _drop(self, lease: JobLease) -> None:
        """It is over, or will never be: what its nodes still have of it, they end."""
        del self.leases[lease.key]
        self._open.pop(lease.key, None)
        del self._of[lease.job][lease.epoch]
        if not self._of[lease.job]:
            del self._of[lease.job]
        for node in self._nodes_of(lease):
            node.leases.pop(lease.key, None)
            node.sent.pop(lease.key, None)
        self._wake(lease)

    def _stop(self, job: int) -> None:
        for lease in self._of.get(job, {}).values():
            if lease.wanted and lease.started:
                lease.wanted = False
                self._open[lease.key] = lease

    # --- who may begin ----------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Let begin whoever may, tell of who is gone, and forget who is not wanted and gone."""
        for lease in list(self._open.values()):
            self._tell(lease)
            if not lease.wanted and not self._drained.isdisjoint(lease.devices) and self._is_paused(lease):
                self._end_paused(lease)
            if not lease.wanted and self._cleared(lease, now) and not self._is_paused(lease):
                self._drop(lease)
        for lease in list(self._open.values()):
            if lease.wanted and not lease.go and not lease.unsure and not lease.told:
                self._advance(lease, now)
            if lease.wanted and lease.go and not lease.gone:
                del self._open[lease.key]

    def _advance(self, lease: JobLease, now: float) -> None:
        others = [each for each in self._of[lease.job].values() if each is not lease and (each.go or each.unsure)]
        for each in list(others):
            if self._resumable(each, lease):
                lease.resumes = each.epoch
                others.remove(each)
            elif lease.started and self._is_paused(each):
                self._end_paused(each)
        if others or (lease.epoch > 1 and now < self._blind_until and not all(n.met for n in self.nodes.values())):
            return
        if not lease.folder:
            lease.folder = "asked"
            self._prepare(lease.job, lease.epoch, not lease.resumes)
        if lease.folder == "ready" and lease.started:
            lease.go = True
            if lease.resumes:
                self._drop(self._of[lease.job][lease.resumes])
            self._wake(lease)

    def _before(self, lease: JobLease, name: str) -> tuple[Key, ...]:
        """Leases that are over, whose processes may still have one of its accelerators on this node."""
        mine = set(lease.devices) & set(self.nodes[name].numbers)
        return tuple(
            each.key
            for each in self.nodes[name].leases.values()
            if not each.wanted and each.go and name not in each.gone and not mine.isdisjoint(each.devices)
        )

    def _cleared(self, lease: JobLease, now: float) -> bool:
        """Whether none of its processes can be there any more."""
        if not lease.go and not lease.unsure:
            return True  # they wait, and write nothing
        late = now > lease.granted + self._grace_s + self._kill_s
        return all(name in lease.gone or (late and self._is_silent(name, now)) for name in lease.parts)

    def _is_silent(self, name: str, now: float) -> bool:
        node = self.nodes.get(name)
        return node is None or (node.down and not node.trouble) or now - node.heard > self._silence_s

    def _is_paused(self, lease: JobLease) -> bool:
        states = [self.nodes[name].states.get(lease.key) for name in lease.parts if name in self.nodes]
        return bool(states) and all(state is not None and state.state == "paused" for state in states)

    def _end_paused(self, lease: JobLease) -> None:
        """It will not go on there."""
        if not lease.end:
            lease.end = "stop"
            self._wake(lease)

    def _resumable(self, old: JobLease, new: JobLease) -> bool:
        return not old.wanted and not old.end and old.devices == new.devices and self._is_paused(old)

    def prepared(self, job: int, epoch: int, done: int, trouble: str, now: float) -> None:
        """A job's folder is ready for a lease, or why it is not."""
        lease = self.leases.get((job, epoch))
        if lease is None:
            return
        lease.folder, lease.done, lease.trouble = "ready", done, trouble
        self.settle(now)

    # --- what agents say --------------------------------------------------------------------------------

    def heard(self, beat: AgentBeat, now: float) -> list[LeaseState | NodeTrouble]:
        """A sign of life; gives what is new in it."""
        node = self.nodes.get(beat.node)
        if node is None:
            return []
        first, trouble = not node.met, node.trouble
        node.trouble = beat.trouble
        if node.trouble:
            self._lose(node)
        elif node.down or first:  # the journal may have it as down
            node.down = False
            self._report(Rows("mended", {"device": list(node.numbers)}))
        node.news = node.news or node.beat is not None  # at once, so that it may say the next thing
        node.met, node.heard, node.beat, node.beat_at = True, now, beat.number, now
        before, node.states = node.states, {(state.job, state.epoch): state for state in beat.states}
        node.ports = [*dict.fromkeys([*node.ports, *beat.ports])][-16:]
        if first:
            self._meet(node, now)
        new = [state for key, state in node.states.items() if not _alike(state, before.get(key))]
        for state in new:
            self._see(node, state, now)
        for lease in node.leases.values():
            unknown = lease.key not in node.states and node.node.name not in lease.gone
            if unknown and lease.go and beat.seen >= node.sent.get(lease.key, inf):
                why = "its agent knows nothing of it" if lease.wanted else ""
                self._gone(lease, node, LeaseState(*lease.key, "gone", why=why))
        self.settle(now)
        return [*new, *([NodeTrouble(beat.node, beat.trouble)] if beat.trouble != trouble else [])]

    def linked(self, name: str) -> None:
        """An agent has dialled in: whatever it was sent before, it is told again."""
        node = self.nodes.get(name)
        if node is not None:
            node.sent, node.beat = {}, None

    def _meet(self, node: LiveNode, now: float) -> None:
        """The first word of an agent after a restart: what it runs goes on, whether or not it is wanted."""
        name = node.node.name
        for key, state in node.states.items():
            if state.granted and state.state != "gone" and key not in self.leases:
                foreign = JobLease(*key, tuple(node.numbers), "", {name: NodePart((), (), ())})
                foreign.started, foreign.wanted, foreign.go, foreign.folder = True, False, True, "ready"
                foreign.granted = now + (state.left_s or 0.0)
                self._keep(foreign)
        for lease in node.leases.values():
            if lease.unsure:
                state_here = node.states.get(lease.key)
                if state_here is not None and (state_here.granted or state_here.state == "gone"):
                    lease.unsure, lease.go, lease.folder = False, True, "ready"
                elif all(self.nodes[each].met for each in lease.parts if each in self.nodes):
                    lease.unsure = False  # it was never begun

    def _see(self, node: LiveNode, state: LeaseState, now: float) -> None:
        lease = self.leases.get((state.job, state.epoch))
        if state.state != "starting" and state.state != "waiting":
            self._note(state)
        if lease is not None and state.state == "gone" and node.node.name in lease.parts:
            self._gone(lease, node, state)

    def _gone(self, lease: JobLease, node: LiveNode, state: LeaseState) -> None:
        """Its processes on a node are gone; if they failed, those on others go too."""
        lease.gone[node.node.name] = state
        self._open[lease.key] = lease
        if state.why and not lease.all_gone:
            lease.end = "kill"
            self._wake(lease)

    def _note(self, state: LeaseState) -> None:
        """Keep what is new about a job's progress, to be told soon."""
        before = self._known.get(state.job, (0, 0))
        saved = max(state.saved, before[1])  # of which a process that has not begun need not know
        now = (max(state.steps, saved), saved)
        if now != before and now[0] > 0:
            self._known[state.job] = now
            self._progress[state.job] = (state.epoch, *now)

    def stop_asked(self, asked: StopAsked) -> None:
        """The first rank that asks fixes where all ranks of a job stop."""
        lease = self.leases.get((asked.job, asked.epoch))
        if lease is None or lease.stop_steps is not None:
            return
        states = [self.nodes[name].states.get(lease.key) for name in lease.parts if name in self.nodes]
        highest = max((state.steps for state in states if state is not None), default=0)
        lease.stop_steps = max(asked.steps, highest + AHEAD)
        self._wake(lease)

    def _tell(self, lease: JobLease) -> None:
        """Once all of its processes are gone, or it cannot begin: how it ended."""
        if lease.told or not lease.started:
            return
        why = lease.trouble or next((state.why for state in lease.gone.values() if state.why), "")
        if not lease.all_gone and not lease.trouble:
            return
        complete = any(state.complete for state in lease.gone.values())
        if self._resuming and not why and not complete:
            return  # whether it should have been renewed is decided with what is due
        lease.told = True
        self.flush()
        if any(state.kept for state in lease.gone.values()):
            self._report(records.kept([lease.job], [lease.epoch]))
        if complete and not why:
            self._report(Rows("completed", {"id": [lease.job]}))
        elif why:
            self._exited(*lease.key, why, self._is_final(lease))
        elif lease.wanted and not lease.last and not any(node.down for node in self._nodes_of(lease)):
            self._exited(*lease.key, RAN_OUT)  # of a node that is down the rounds know already

    def _is_final(self, lease: JobLease) -> bool:
        """Whether its command is not there on any node that is up and that it may run on."""
        here = {name for name, state in lease.gone.items() if state.absent}
        if not here:
            return False
        unable = self._unable.setdefault(lease.job, set())
        unable |= here
        types = lease.command.types if lease.command is not None else ()
        up = {name: node.node.counts.keys() for name, node in self.nodes.items() if not node.down}
        return unable >= {name for name, there in up.items() if not types or not there.isdisjoint(types)}

    def _exited(self, job: int, epoch: int, why: str, final: bool = False) -> None:
        self._report(records.exited([job], [epoch], [why], [final] if final else None))

    def flush(self) -> None:
        """Tell the progress that was made."""
        if self._progress:
            found, self._progress = self._progress, {}
            jobs = list(found)
            epochs, steps, saved = map(list, zip(*(found[job] for job in jobs), strict=True))
            self._report(Rows("progress", {"id": jobs, "epoch": epochs, "steps": steps, "saved": saved}))

    # --- time, and answers --------------------------------------------------------------------------------

    def tick(self, now: float, slept: bool) -> list[LiveNode]:
        """What is due; gives the nodes that have no agent, or a silent one. Who has `slept` heard nobody meanwhile."""
        lost = []
        for node in self.nodes.values():
            if slept:
                node.heard = max(node.heard, now - self._silence_s / 2) if node.met else now
            quiet, most = now - node.heard, self._silence_s if node.met else max(self._silence_s, FIRST_S)
            if quiet > (_DOUBT_BEATS * self.beat_s if node.doubted else most):
                self._lose(node)
            if quiet > 2 * self.beat_s:
                lost.append(node)
        if now - self._told_at > self._round_s / 8:
            self._told_at = now
            self.flush()
        self.settle(now)
        return lost

    def answer(self, node: LiveNode, now: float) -> NodeLeases | None:
        """The answer to a beat, if it is due."""
        if node.beat is None or not (node.news or now - node.beat_at >= self.beat_s):
            return None
        name, leases = node.node.name, []
        for lease in node.leases.values():
            part = lease.parts[name]
            if not part.ranks or name in lease.gone:
                continue  # of a service before this one, or not to be begun again
            node.sent.setdefault(lease.key, node.beat)
            leases.append(self._node_lease(lease, part, node))
        over = tuple(key for key, state in node.states.items() if state.state == "gone" and key not in self.leases)
        beat, node.beat, node.news = node.beat, None, False
        margins = (self._grace_s, self._kill_s, self.beat_s, self._round_s, self._renew_at)
        return NodeLeases(beat, tuple(leases), over, *margins)

    def _node_lease(self, lease: JobLease, part: NodePart, node: LiveNode) -> NodeLease:
        seconds = None
        if lease.go and lease.ends is not None:
            seconds = lease.ends - node.beat_at  # less than none if it is over
            lease.granted = max(lease.granted, lease.ends)
        assert lease.command is not None
        beside = self._model_of(lease.beside) if lease.beside >= 0 else ""
        first = self.nodes[self._places[lease.devices[0]][0]].node.address
        return NodeLease(
            lease.job,
            lease.epoch,
            *part,
            lease.type,
            len(lease.devices),
            lease.command,
            first,
            lease.port,
            self._script(lease.command) in self._greeters,
            lease.go,
            lease.done,
            seconds,
            lease.last or not lease.wanted,
            lease.stop_steps,
            lease.end,
            beside,
            self._before(lease, node.node.name) if lease.wanted else (),
            lease.resumes,
            self._counts(lease, lease.command.total_steps),
        )

    def _counts(self, lease: JobLease, total: int | None) -> bool:
        """Whether its job has counted steps, and has not saved all of them: who has may leave without a word."""
        return (lease.done > 0 or lease.job in self._known) and (total is None or lease.done < total)

    def _model_of(self, job: int) -> str:
        command = next((each.command for each in self._of.get(job, {}).values()), None)
        return (command.model if command is not None else "") or str(job)

    def greeted(self, event: ProcessEvent) -> None:
        """A process has said hello: others of its script will too, so they may be started ahead, and wait."""
        lease = self.leases.get((event.job, event.epoch))
        if lease is not None and lease.command is not None:
            self._greeters.add(self._script(lease.command))

    @staticmethod
    def _script(command: TrainingCommand) -> tuple[str, ...]:
        """What tells programs apart: the words before the first flag."""
        return (command.model, *takewhile(lambda word: not word.startswith("--"), command.words))

    def _wake(self, lease: JobLease | None = None) -> None:
        """Some nodes, or all, should hear of this at once."""
        for node in self.nodes.values() if lease is None else self._nodes_of(lease):
            node.news = True


def _alike(state: LeaseState, before: LeaseState | None) -> bool:
    """Whether nothing has happened but time."""
    return before is not None and msgspec.structs.replace(before, left_s=state.left_s) == state


def _lists(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}


def _beside(columns: Mapping[str, Any]) -> Sequence[int]:
    beside = columns.get("beside")
    return [-1] * len(columns["id"]) if beside is None else [_partner(each) for each in beside]


def _partner(beside: int | None) -> int:
    return -1 if beside is None else int(beside)
