"""The parent of one program: starts it once, waits for it, and writes down how it ended. Outlives whoever asked.

Run as a script by a bare interpreter, in milliseconds: `python -I -S shim.py FOLDER`. It imports nothing of Dovetail,
and before the program runs only what loads at once. Without a folder it is one process that forks such parents, which
is faster still: each is asked for by a packet on its standard input: the folder, what to run, and a pipe. Into that,
its standard output, a parent writes a line with its pid when the program runs, and one with what goes to exit.json.

FOLDER/launch says what to run, if no packet did. FOLDER/claim, made by a link that fails if it exists, is held by the
one shim that may run it; a second shim for the same folder leaves at once. FOLDER/exit.json is written when the program
and all that it left behind have ended. Files of an earlier program, left as FOLDER/claim.spare and so on, are taken for
these: a new file costs more than all else.

With a `lease` in the launch, FOLDER/lease says how long it may run, by the monotonic clock: three numbers, when it is
to get SIGTERM, when SIGKILL, and how: SIGTERM goes to all that it has started or to the program alone, or it is stopped
in the place of that, to go on if it may again. The file is looked at when SIGWINCH comes and when a time has come: a
program ends with its lease even if who renews it is gone.
"""

import ctypes
import errno
import marshal
import os
import resource
import signal
import struct
import sys
import time

LEASE = struct.Struct("<ddd")
TO_ALL, STOPS, TO_PROGRAM = 0, 1, 2
POKE = signal.SIGWINCH  # ignored by who does not wait for it
_PR_SET_CHILD_SUBREAPER = 36
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)  # of a command or folder that is not there
_ROOM = 1024  # bytes put aside for what is to be said, so that a full disk cannot lose it
CLAIM, PROGRAM, EXIT = KEPT = ("claim", "program", "exit.json")
SPARE = ".spare"
MOST = 1 << 17  # bytes of a packet
_FULL = (errno.ENOSPC, errno.EDQUOT)


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since the machine did: with the pid it names the process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def name_of(pid: int) -> bytes:
    """Which process it is, for good."""
    return f'{{"pid": {pid}, "start": {start_time(pid)}, "boot": "{boot_id()}"}}'.encode()


def claim(folder: str) -> bool:
    """Whether this process is the one that may run what the folder says."""
    path = os.path.join(folder, CLAIM)
    mine = f"{path}.{os.getpid()}"
    try:
        file = room(path, mine)
        try:
            os.pwrite(file, name_of(os.getpid()).ljust(_ROOM), 0)
        finally:
            os.close(file)
        os.link(mine, path)
    except FileExistsError:
        return False
    finally:
        remove(mine)
    return True


def room(path: str, part: str) -> int:
    """Open a file of one's own that is to become this one: a spare one, or a new one."""
    try:
        os.rename(path + SPARE, part)  # which one process alone can do
    except FileNotFoundError:
        return os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
    file = os.open(part, os.O_WRONLY)
    if os.fstat(file).st_size > _ROOM:  # an earlier one had much to say; its end must not stand behind ours
        os.ftruncate(file, _ROOM)
    return file


def remove(path: str) -> None:
    try:  # noqa: SIM105
        os.unlink(path)
    except FileNotFoundError:
        pass


class Aside:
    """A file that comes to be when there is something to say; the room for that is put aside before."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = os.path.join(folder, name)
        self.part = f"{self.path}.{os.getpid()}"
        self.file = room(self.path, self.part)
        try:
            os.write(self.file, b" " * _ROOM)
        except OSError:
            self.drop()
            raise

    def say(self, text: bytes, lasts: bool = False) -> None:
        os.pwrite(self.file, text.ljust(_ROOM), 0)
        if lasts:
            os.fsync(self.file)
        os.rename(self.part, self.path)

    def drop(self) -> None:
        os.close(self.file)
        remove(self.part)


def begin(folder: str) -> list:  # type: ignore[type-arg]
    """Claim the folder, with room for which process the program is and how it ended; nothing if another shim has it."""
    kept: list = []  # type: ignore[type-arg]
    held = False
    try:
        for name in (PROGRAM, EXIT):
            kept.append(Aside(folder, name))  # noqa: PERF401  if one fails, those before are known
        held = claim(folder)
    finally:  # nothing has run if there is no room for it
        for each in () if held else kept:
            each.drop()
    return kept if held else []


def become(launch: dict, errors: int) -> None:  # type: ignore[type-arg]
    """In the child: enter the groups, and become the program. Never returns."""
    step = "start"
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        step = "enter its control group"
        for group in launch["groups"]:
            with open(group, "w") as file:
                file.write("0")
        if launch["groups"]:  # from here on the group alone binds it: a choice of its own would outlast a change
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        if launch.get("nice") is not None:
            step = f"run at nice {launch['nice']}"
            os.setpriority(os.PRIO_PROCESS, 0, launch["nice"])
        step = f"open its log {launch['log']}"
        log = os.open(launch["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        if launch.get("errors"):
            step = f"open its log {launch['errors']}"
            log = os.open(launch["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, 2)
        step = f"open its input {launch.get('stdin')}"
        os.dup2(os.open(launch.get("stdin") or os.devnull, os.O_RDONLY), 0)
        step = f"enter its folder {launch['cwd']}"
        os.chdir(launch["cwd"])
        step = f"run {launch['command'][0]}"
        os.execvpe(launch["command"][0], launch["command"], launch["env"])
    except OSError as error:
        absent = step.startswith(("enter its folder", "run")) and error.errno in _ABSENT
        os.write(errors, f"{int(absent)}cannot {step}: {error.strerror}".encode())
    finally:
        os._exit(127)


def parents() -> dict:  # type: ignore[type-arg]
    """All processes that live, with their parents."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
    return found


def children() -> list:  # type: ignore[type-arg]
    """The processes whose parent this is: also what a program left behind, since it is given to us."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # most often, and sooner than all of /proc is read
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def family(of: "set | None" = None) -> list:  # type: ignore[type-arg]
    """All that descend from this process, or from these."""
    above = parents()
    found, look = [], [os.getpid()] if of is None else list(of)
    while look:
        parent = look.pop()
        below = [pid for pid, its in above.items() if its == parent]
        found += below
        look += below
    return found


def send(pids: list, number: int) -> None:  # type: ignore[type-arg]
    for pid in pids:
        try:  # noqa: SIM105
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def halt() -> None:
    """Stop everything that descends from this process: again until nobody new is found."""
    before: set = set()  # type: ignore[type-arg]
    while (now := set(family())) - before:
        send(list(now), signal.SIGSTOP)
        before |= now


class Limit:
    """How long the program may run, and what was done about it."""

    def __init__(self, path: str, program: int) -> None:
        self._program = program
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._told = self._stopped = False

    def keep(self) -> float:
        """Do what is due; gives the seconds until something is due again."""
        end, kill, how = LEASE.unpack(os.pread(self._file, LEASE.size, 0))
        now = time.monotonic()
        if now >= kill:
            send(family(), signal.SIGKILL)
            return 0.05  # who was born meanwhile is next
        if now >= end and not self._stopped and how == STOPS:
            halt()
            self._stopped = True
        elif now < end and self._stopped:
            send(family(), signal.SIGCONT)
            self._stopped = False
        elif now >= end and how != STOPS and not self._told:
            send([self._program] if how == TO_PROGRAM else family(), signal.SIGTERM)
            if self._stopped:
                send(family(), signal.SIGCONT)
            self._told = True
        return min((at for at in (end, kill) if at > now), default=now + 3600.0) - now


def wait_for(program: int, limit: "Limit | None") -> int:
    """The program's wait status, once it and everything that it started have ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG if limit else 0)
        if pid == program:
            break
        if limit and not pid:
            signal.sigtimedwait((signal.SIGCHLD, POKE), min(limit.keep(), 3600.0))
    while left := children():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
    return status


def tell(line: bytes) -> None:
    """Say something to whoever asked for the program."""
    try:  # noqa: SIM105
        os.write(1, line + b"\n")
    except OSError:
        pass  # who is gone


def main(folder: str, order: bytes = b"") -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, POKE))
    if not order:
        with open(os.path.join(folder, "launch"), "rb") as file:
            order = file.read()
    launch = marshal.loads(order)
    if launch["cpus"]:
        os.sched_setaffinity(0, launch["cpus"])  # so that the program is bound from its first moment
    if not (kept := begin(folder)):
        return
    name, end = kept
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    errors, child_errors = os.pipe()
    program = os.fork()
    if not program:
        become(launch, child_errors)
    os.close(child_errors)
    told = os.read(errors, 300).decode(errors="replace")  # nothing, at the moment when the child becomes the program
    name.say(name_of(program))
    tell(b"%d" % os.getpid())
    for path in () if launch.get("lease") else (os.path.join(folder, CLAIM), folder):
        os.fsync(os.open(path, os.O_RDONLY))  # now, so that the program did not have to wait for the disk
    import json  # takes a while, which the program need not wait for

    status = wait_for(program, Limit(os.path.join(folder, "lease"), program) if launch.get("lease") else None)
    code = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome: dict = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}  # type: ignore[type-arg]
    if told:
        outcome |= {"why": told[1:], "absent": told[0] == "1"}
    else:
        outcome |= {"code": code} if code >= 0 else {"signal": -code}
    text = json.dumps(outcome).encode()
    end.say(text, lasts=not launch.get("lease"))  # which is over with the machine's end anyway
    tell(text)


def reap(*_: object) -> None:
    """Wait for parents that have ended, so that none stays as a zombie; who follows them sees their end elsewhere."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def serve() -> None:
    """Fork a parent for each folder that is asked for, until who asks is gone; the parents stay."""
    import contextlib
    import json  # noqa: F401  what a parent needs is loaded once
    import socket
    import traceback

    line, null = socket.socket(fileno=0), os.open(os.devnull, os.O_RDWR)
    signal.signal(signal.SIGCHLD, reap)
    while True:
        packet, told, _, _ = socket.recv_fds(line, MOST, 1)
        if not packet:
            return
        place, _, order = packet.partition(b"\0")
        folder = os.fsdecode(place)
        try:
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                os.dup2(told[0], 1)
                os.close(told[0])
                for number in (0, 2):  # whoever reads what the daemon says need not wait for its programs
                    os.dup2(null, number)
                main(folder, order)
                os._exit(0)
        except BaseException as error:
            if getattr(error, "errno", None) not in _FULL:  # else it is asked for again, when there may be room
                with contextlib.suppress(OSError), open(os.path.join(folder, "shim.log"), "a") as log:
                    traceback.print_exc(file=log)
            if os.getpid() != PID:
                os._exit(1)
        os.close(told[0])


PID = os.getpid()
if __name__ == "__main__":
    main(sys.argv[1]) if sys.argv[1:] else serve()
