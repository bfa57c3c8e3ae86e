"""The agent of a node: starts what the service leases out there, serves its processes, and says what became of them.

It outlives the service, and its processes outlive it: an agent that takes its place finds them again. Who has heard
nothing of the service for a lease is stopped all the same, by the shim of each process.
"""

from __future__ import annotations

import os
import selectors
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

import msgspec

from dovetail.cluster.live.agent_desk import ProcessCaller, ProcessDesk
from dovetail.cluster.live.agent_env import SharedGpus, environment, filled, free_ports, last_line
from dovetail.cluster.live.agent_folder import AgentFolder
from dovetail.cluster.live.agent_link import AgentErrand, ServiceLink
from dovetail.cluster.live.agent_runs import SILENT_ROUNDS, KeptRun, Margins, NodeRun
from dovetail.cluster.live.checkpoints import JobFolder, has_news
from dovetail.cluster.live.processes import RankExit, RankProcess
from dovetail.cluster.live.wire import (
    Commit,
    Done,
    Happened,
    Hello,
    JobComplete,
    LeaveNode,
    NodeLease,
    NodeLeases,
    ProcessEvent,
    Renew,
    Request,
    StepsDone,
    StopAsked,
    StopAt,
)
from dovetail.core.service import shim

_ORPHAN_ROUNDS = 10.0  # without a service, and with nothing to run: then an agent leaves
_ORPHAN_S = 60.0
_WORTH = 0.05  # part of a round: a renewal is written down if it is worth that


class NodeAgent:
    """All state belongs to the thread that runs it; other threads `post` what it shall do."""

    def __init__(self, errand: AgentErrand, place: AgentFolder) -> None:
        self._errand, self._place = errand, place
        self._folder, self._runs_folder, self._socket = place.path, place.runs, place.socket
        self._trouble = ""  # why nothing can be started
        self._looked = -inf
        self._runs: dict[tuple[int, int], NodeRun] = {}
        self._processes: dict[tuple[tuple[int, int], int], RankProcess] = {}
        self._margins = Margins()
        self._beat_s, self._round_s, self._renew_at = 1.0, 1.0, 0.75
        self._heard = time.monotonic()
        self._measured = 0.0
        self._measuring = False
        self._seen = -1
        self._ports: tuple[int, ...] = ()
        self._ports_at = -inf
        self._leaving = False
        self._gpus = SharedGpus(self._folder)
        self._posted: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._desk = ProcessDesk(self._socket, self._selector, self._serve)
        self._find_runs()
        self._link = ServiceLink(errand, lambda *said: self.post(lambda: self._hear(*said)))

    def post(self, what: Callable[[], None]) -> None:
        self._posted.append(what)
        os.write(self._wake_write, b".")

    def run(self) -> None:
        now = time.monotonic()
        while not (self._leaving and all(run.gone for run in self._runs.values())):
            for key, _ in self._selector.select(self._beat_s):
                key.data()
            while self._posted:
                self._posted.popleft()()
            self._free()
            before, now = now, time.monotonic()
            self._end_hanging(now, slept=now - before > self._round_s)
            self._measure(now)
            if (self._trouble or self._place.lost) and now - self._looked >= self._beat_s:
                self._look_after_folder(now)
            if now - self._heard > max(_ORPHAN_ROUNDS * self._round_s, _ORPHAN_S):
                self._leaving = self._leaving or all(run.gone for run in self._runs.values())
        self._gpus.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    # --- what the service says ----------------------------------------------------------------------------

    def _hear(self, message: NodeLeases | LeaveNode | None, sent: float) -> None:
        now = time.monotonic()
        if isinstance(message, NodeLeases):
            self._heard, self._seen = now, message.beat
            self._margins = Margins(message.grace_s, message.kill_after_s)
            self._beat_s, self._round_s, self._renew_at = message.beat_s, message.round_s, message.renew_at
            for key in message.over:
                self._forget(key)
            if not self._leaving:  # who leaves begins nothing any more
                self._follow(message.leases, sent, now)
        elif isinstance(message, LeaveNode):
            self._leaving = True
            for run in self._runs.values():
                run.unwanted(now)
                self._grant(run)
            self._runs = {key: run for key, run in self._runs.items() if run.started}
        self._beat()

    def _follow(self, leases: tuple[NodeLease, ...], sent: float, now: float) -> None:
        """Bring the node to where the service wants it."""
        wanted = {(lease.job, lease.epoch) for lease in leases}
        for lease in leases:
            self._follow_one(lease, sent, now)
        for key, run in list(self._runs.items()):
            if key not in wanted and not run.gone:
                run.unwanted(now)
                self._grant(run)
                if not run.started:
                    del self._runs[key]

    def _follow_one(self, lease: NodeLease, sent: float, now: float) -> None:
        key = (lease.job, lease.epoch)
        run = self._runs.get(key)
        if run is None or not run.started:
            run = self._resumed(lease) or run
        if run is not None and run.gone and run.is_elsewhere(lease):
            self._forget(key)
            run = None
        if run is None:
            if lease.end:
                return
            run = self._runs[key] = NodeRun(lease, lease.epoch)
        before, stop = run.end, run.stop_steps
        run.told(lease, sent, now, self._round_s)
        if before is not None and self._place.lost:
            run.end = before  # its parent process cannot be told of more
        self._tell_stop(run, stop)
        self._begin_if_free(run)
        if run.may_start:
            self._start(run)
        if run.begun and not run.started and (run.over(now) or run.kill_at <= now):
            run.gone = True  # it could not be started
        if run.end is not None and (before is None or run.end - before > _WORTH * self._round_s):
            self._keep(run)
        self._grant(run)

    def _begin_if_free(self, run: NodeRun) -> None:
        """Let a lease begin that was granted, if nobody is left of those that it comes after."""
        before = [self._runs[key] for key in run.lease.after if key in self._runs]
        if run.begun or run.dropped or run.granted is None:
            return
        if all(each.is_off(time.monotonic()) for each in before):
            run.begin(time.monotonic())
            self._event(run, run.lease.ranks[0], "go")

    def _free(self) -> None:
        """Accelerators have become free: whoever waits for them begins, without a word of the service."""
        for run in list(self._runs.values()):
            if run.granted is not None and not run.begun:
                self._begin_if_free(run)
                if run.may_start:
                    self._start(run)
                if run.begun:
                    self._keep(run)
                    self._grant(run)
        self._answer_waiting(time.monotonic())

    def _resumed(self, lease: NodeLease) -> NodeRun | None:
        """A lease whose processes are here, stopped, from an earlier one."""
        run = self._runs.get((lease.job, lease.resumes)) if lease.resumes and lease.go else None
        if run is None or run.gone:
            return None
        for rank in run.ranks:
            self._processes[(lease.job, lease.epoch), rank] = self._processes.pop((run.key, rank))
        del self._runs[run.key]
        self._runs[lease.job, lease.epoch] = run
        run.goes_on(time.monotonic())
        return run

    def _forget(self, key: tuple[int, int]) -> None:
        run = self._runs.get(key)
        if run is not None and run.gone:
            del self._runs[key]
            shutil.rmtree(self._home(run), ignore_errors=True)

    def _home(self, run: NodeRun) -> Path:
        return self._runs_folder / f"{run.lease.job}.{run.begun_epoch}"

    # --- processes ------------------------------------------------------------------------------------------

    def _start(self, run: NodeRun) -> None:
        self._look_after_folder(time.monotonic())
        if self._trouble:
            return  # the service hears of it, and lets it begin elsewhere
        lease, folder = run.lease, JobFolder(run.lease.command.folder)
        run.started, run.launched = True, time.time()
        try:
            folder.attempt(lease.epoch).mkdir(parents=True, exist_ok=True)
            (folder.path / "logs").mkdir(exist_ok=True)
            self._home(run).mkdir(exist_ok=True)
            self._keep(run)
            pipes = self._gpus.pipes(lease)
            for rank in lease.ranks:
                mine = folder.attempt(lease.epoch)
                env = environment(lease, rank, mine, self._socket, os.environ, pipes, self._renew_at)
                process = self._processes[run.key, rank] = RankProcess(self._home(run) / str(rank))
                cwd = lease.command.cwd or str(folder.path)
                log = folder.log(lease.epoch, rank)
                process.start(filled(lease.command.words, env), env, cwd, log, run.limits(self._margins))
                self._watch(run, rank, process)
                self._event(run, rank, "launch")
        except OSError as error:
            run.why = f"it cannot be started: {error.strerror or error}"
            for rank in lease.ranks:
                if (run.key, rank) not in self._processes or self._processes[run.key, rank].handle < 0:
                    run.ended(rank, RankExit(why=run.why), time.monotonic())
            self._grant(run)
            self._finish_if_gone(run)

    def _watch(self, run: NodeRun, rank: int, process: RankProcess) -> None:
        self._selector.register(process.handle, selectors.EVENT_READ, lambda: self._ended(run, rank, process))

    def _grant(self, run: NodeRun) -> None:
        limits = run.limits(self._margins)
        for rank in run.ranks:
            process = self._processes.get((run.key, rank))
            if process is not None and process.handle >= 0:
                with suppress(OSError):
                    process.grant(*limits)

    def _ended(self, run: NodeRun, rank: int, process: RankProcess) -> None:
        self._selector.unregister(process.handle)
        now = time.monotonic()
        if self._place.lost:
            run.unwanted(now)  # how it ended cannot be known, and is not its fault
        run.ended(rank, process.ended(), now)
        self._event(run, rank, "exit")
        self._processes.pop((run.key, rank), None)
        self._grant(run)
        self._finish_if_gone(run)
        self._free()

    def _finish_if_gone(self, run: NodeRun) -> None:
        """When all ranks are gone, take over what they left, which may take a while."""
        if run.ranks_gone and not run.gone:
            threading.Thread(target=self._finish, args=(run, time.monotonic()), daemon=True).start()

    def _finish(self, run: NodeRun, now: float) -> None:
        folder, epoch, trouble = JobFolder(run.lease.command.folder), run.lease.epoch, ""
        kept = new = False
        try:
            if run.counts_no_steps and 0 in run.ranks and run.begun and run.launched:
                new = has_news(run.lease.command, folder.attempt(run.begun_epoch), run.launched, bool(run.why))
            if (run.mode != "iterator" or new) and 0 in run.ranks and run.begun:
                mine = folder.attempt(run.begun_epoch)
                if mine.is_dir() and any(mine.iterdir()):
                    folder.commit(epoch, folder.saved, True, mine, run.lease.command.most_mib)
            current = folder.current()
            kept = 0 not in run.ranks or (current is not None and current.epoch == epoch)
        except Exception as error:
            trouble = f"its checkpoint was not taken: {error}"
        exits = [rank.exit for rank in run.ranks.values()]
        failed = next((rank.number for rank in run.ranks.values() if rank.exit is not None and rank.exit.code), None)
        words = "" if failed is None else last_line(folder.log(run.begun_epoch, failed))
        idle = run.counts_no_steps and 0 in run.ranks and run.launched > 0 and not new

        def done() -> None:
            if all(exit is not None and exit.good for exit in exits) and run.begun and run.counts_no_steps:
                run.complete = run.complete or now < run.limits(self._margins).end  # it was told nothing
            run.why, run.kept = run.verdict(self._margins, now, kept, idle) or trouble, new and not trouble
            run.why += f": {words}" if run.why and words else ""
            run.gone = True
            self._keep(run)
            if run.dropped:
                self._forget(run.key)
                if run.next is not None and not self._leaving:
                    self._follow_one(*run.next, time.monotonic())
            self._beat()

        self.post(done)

    # --- finding again what an earlier agent had started -----------------------------------------------------

    def _keep(self, run: NodeRun) -> None:
        """Write down what an agent in the place of this one has to know."""
        with suppress(OSError):
            greeted = tuple(rank.number for rank in run.ranks.values() if rank.greeted)
            told = (run.gone, run.why, run.complete, run.kept, greeted, run.launched)
            kept = KeptRun(run.lease, run.begun_epoch, run.end, run.granted, shim.boot_id(), *told)
            part = self._home(run) / "run.part"
            part.write_bytes(msgspec.msgpack.encode(kept))
            part.replace(self._home(run) / "run")

    def _find_runs(self) -> None:
        for home in self._runs_folder.iterdir():
            try:
                kept = msgspec.msgpack.decode((home / "run").read_bytes(), type=KeptRun)
            except (OSError, msgspec.DecodeError):
                shutil.rmtree(home, ignore_errors=True)  # nothing was started
                continue
            run = NodeRun(kept.lease, kept.begun_epoch)
            run.started, run.gone, run.why = True, kept.gone, kept.why
            run.complete, run.kept, run.launched = kept.complete, kept.kept, kept.launched
            if kept.boot == shim.boot_id():
                run.end, run.granted = kept.end, kept.granted
            run.saved = max(run.saved, JobFolder(kept.lease.command.folder).saved)
            self._runs[run.key] = run
            if run.gone:
                continue
            for rank in run.ranks:
                process = self._processes[run.key, rank] = RankProcess(home / str(rank))
                if process.find():
                    run.ranks[rank].greeted = rank in kept.greeted
                    run.heard = time.monotonic() if kept.greeted or run.owes_a_word else inf
                    self._watch(run, rank, process)
                else:
                    del self._processes[run.key, rank]
                    run.ended(rank, process.ended(), time.monotonic())
            self._grant(run)
            self._finish_if_gone(run)

    # --- what processes ask ----------------------------------------------------------------------------------

    def _serve(self, caller: ProcessCaller, request: Request) -> None:
        now, run = time.monotonic(), caller.run
        if run is not None:
            run.heard = now
        if isinstance(request, Hello):
            self._greet(caller, request, now)
        elif run is None:
            caller.answer(Done(False, "expected hello first"))
        elif isinstance(request, Renew):
            run.reported(caller.rank, request.steps, request.seconds)
            caller.leaves = request.stop
            if run.fixes_stop(now, request.stop) and not self._are_all_connected(run):
                caller.waits, caller.wants_stop = now, True  # they dial before their next step, and can be told then
            else:
                self._renew(caller, run, now)
            self._beat()
        elif isinstance(request, StepsDone):
            run.reported(caller.rank, request.steps, request.seconds)
            caller.answer(Done(beside=run.lease.beside))
            self._beat()
        elif isinstance(request, Happened):
            self._event(run, caller.rank, request.name, request.at)
            caller.answer(Done())
        elif isinstance(request, Commit):
            threading.Thread(target=self._commit, args=(caller, run, request), daemon=True).start()
        elif isinstance(request, JobComplete):
            run.reported(caller.rank, request.steps, 0.0)
            run.complete = True
            self._keep(run)
            caller.answer(Done())
            self._beat()

    def _renew(self, caller: ProcessCaller, run: NodeRun, now: float) -> None:
        before = run.stop_steps
        answer = run.renew(caller.rank, now, caller.leaves, notice_s=2 * self._beat_s)
        self._tell_stop(run, before)
        if isinstance(answer, int):
            caller.waits, caller.wants_stop = now, True
            self._link.say(StopAsked(*run.key, answer))
        else:
            caller.answer(answer)

    def _are_all_connected(self, run: NodeRun) -> bool:
        here = {caller.rank for caller in self._desk.callers if caller.run is run}
        return all(rank.number in here for rank in run.ranks.values() if rank.greeted and rank.exit is None)

    def _tell_stop(self, run: NodeRun, before: int | None) -> None:
        """If it is new where all ranks stop, tell those that are here."""
        if run.stop_steps is not None and run.stop_steps != before:
            for caller in self._desk.callers:
                if caller.run is run:
                    caller.tell(StopAt(run.stop_steps))

    def _greet(self, caller: ProcessCaller, hello: Hello, now: float) -> None:
        who = (hello.job, hello.epoch)
        run = next((run for run in self._runs.values() if (run.lease.job, run.begun_epoch) == who), None)
        if run is None or run.gone:
            caller.answer(Done(False, f"there is no lease of job {hello.job} under epoch {hello.epoch} here"))
            return
        answer = run.greet(hello.rank, now)
        if isinstance(answer, Done):
            caller.answer(answer)
            return
        caller.run, caller.rank = run, hello.rank
        run.heard = now
        self._keep(run)
        self._event(run, hello.rank, "hello")
        if answer is None:
            caller.waits = now
        else:
            caller.answer(answer)
        self._beat()

    def _answer_waiting(self, now: float) -> None:
        for caller in self._desk.callers:
            run = caller.run
            if caller.waits is None or run is None:
                continue
            if not caller.wants_stop:
                if run.begun:
                    caller.answer(run.offer(now))
            elif run.stop_steps is not None:
                caller.answer(run.offer(now))
            elif now - caller.waits >= self._beat_s:
                self._renew(caller, run, now)  # of ranks elsewhere the service is asked until it answers

    def _commit(self, caller: ProcessCaller, run: NodeRun, request: Commit) -> None:
        answer = Done()
        try:
            folder = JobFolder(run.lease.command.folder)
            mine, most = folder.attempt(run.begun_epoch), run.lease.command.most_mib
            folder.commit(run.lease.epoch, request.steps, request.last, mine, most)
        except Exception as error:  # whatever it is, somebody waits for an answer
            answer = Done(False, str(error) or repr(error))

        def done() -> None:
            if answer.ok:
                run.saved = max(run.saved, request.steps)
                run.reported(caller.rank, request.steps, 0.0)
            caller.answer(answer)
            if answer.ok and request.last and all(gpu < 0 for gpu in run.lease.gpus):
                run.released = True
                self._free()
            self._beat()

        self.post(done)

    def _event(self, run: NodeRun, rank: int, name: str, at: float | None = None) -> None:
        self._link_say(ProcessEvent(*run.key, rank, name, time.time() if at is None else at))

    def _link_say(self, event: ProcessEvent) -> None:
        link = getattr(self, "_link", None)  # there is none yet while runs are found again
        if link is not None:
            link.say(event)

    # --- signs of life -----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = time.monotonic()
        states = tuple(run.state(now) for run in self._runs.values())
        if now - self._ports_at > self._beat_s:
            self._ports, self._ports_at = free_ports(), now
        self._link.beat(self._seen, states, self._ports, self._trouble)

    def _look_after_folder(self, now: float) -> None:
        """Whether processes can be started from it. One that was removed is made again once those are gone that were
        started from it, whose leases nobody can extend any more."""
        self._looked, trouble = now, self._place.trouble()
        if self._place.lost:
            left = [run for run in self._runs.values() if run.started and not run.gone]
            for (key, _), process in self._processes.items():
                if (run := self._runs.get(key)) is not None and run.mode == "pause" and run.over(now):
                    process.kill()  # else it would stay stopped
            with suppress(OSError):
                if not left:
                    self._place.make_again(self._errand)
                    self._desk.listen()
                    self._gpus.close()
                    self._gpus = SharedGpus(self._folder)
                    trouble = self._place.trouble()
        if trouble != self._trouble:
            self._trouble = trouble
            self._beat()

    def _end_hanging(self, now: float, slept: bool) -> None:
        """Who says nothing any more is ended, however often its lease is renewed. Who has `slept` heard nobody."""
        for run in self._runs.values():
            if slept and run.heard < now:
                run.heard = now
            if run.hangs(now) and not run.why:
                run.why = f"it has not said a word for {SILENT_ROUNDS:g} rounds"
                run.unwanted(now)
                self._grant(run)

    def _measure(self, now: float) -> None:
        """Look at how much the folders of jobs hold."""
        limited = {run.key: run for run in self._runs.values() if run.lease.command.most_mib and not run.gone}
        if self._measuring or now - self._measured < self._beat_s or not limited:
            return
        self._measuring = True

        def look() -> None:
            sizes = {key: JobFolder(run.lease.command.folder).size_mib() for key, run in limited.items()}

            def done() -> None:
                self._measuring, self._measured = False, time.monotonic()
                for key, size in sizes.items():
                    run, most = limited[key], limited[key].lease.command.most_mib or 0.0
                    if size > most and not run.gone:
                        run.why = run.why or f"its folder holds {size:.0f} MiB, more than the {most:g} MiB of job_mib"
                        run.kill_at = min(run.kill_at, self._measured)
                        self._grant(run)

            self.post(done)

        threading.Thread(target=look, daemon=True).start()


def main(folder: str) -> None:
    """Be the agent whose errand is in this folder, unless one is there."""
    place = AgentFolder(folder)
    if place.claim():
        NodeAgent(place.errand(), place).run()


if __name__ == "__main__":
    main(sys.argv[1])
