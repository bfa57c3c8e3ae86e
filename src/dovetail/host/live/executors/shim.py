"""The parent of one program: starts it once, waits for it, and writes down how it ended. Outlives the daemon.

Run as a script by a bare interpreter, in milliseconds: `python -I -S shim.py FOLDER`. It imports nothing of Dovetail,
and before the program runs only what loads at once.

FOLDER/launch says what to run. FOLDER/claim, made by a link that fails if it exists, is held by the one shim that
may run it; a second shim for the same folder leaves at once. FOLDER/exit.json is written when the program and all that
it left behind have ended.
"""

import ctypes
import marshal
import os
import resource
import signal
import sys

_PR_SET_CHILD_SUBREAPER = 36
_ROOM = 1024  # bytes put aside for the end, so that a full disk cannot lose it


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since the machine did: with the pid it names the process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def write_name(path: str, pid: int) -> None:
    """Write down for good which process it is."""
    part = f"{path}.{os.getpid()}"
    with open(part, "w") as file:
        file.write(f'{{"pid": {pid}, "start": {start_time(pid)}, "boot": "{boot_id()}"}}')
    os.rename(part, path)


def claim(folder: str) -> bool:
    """Whether this process is the one that may run what the folder says."""
    mine = os.path.join(folder, f"claim.{os.getpid()}")
    write_name(mine, os.getpid())
    try:
        os.link(mine, os.path.join(folder, "claim"))
    except FileExistsError:
        return False
    finally:
        os.unlink(mine)
    return True


def become(launch: dict, errors: int) -> None:  # type: ignore[type-arg]
    """In the child: enter the groups, and become the program. Never returns."""
    step = "start"
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        step = "enter its control group"
        for group in launch["groups"]:
            with open(group, "w") as file:
                file.write("0")
        if launch["groups"]:  # from here on the group alone binds it: a choice of its own would outlast a change
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        step = f"open its log {launch['log']}"
        log = os.open(launch["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        step = f"enter its folder {launch['cwd']}"
        os.chdir(launch["cwd"])
        step = f"run {launch['command'][0]}"
        os.execvpe(launch["command"][0], launch["command"], launch["env"])
    except OSError as error:
        os.write(errors, f"cannot {step}: {error.strerror}".encode())
    finally:
        os._exit(127)


def children() -> list:  # type: ignore[type-arg]
    """The processes whose parent this is: also what a program left behind, since it is given to us."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
            except (OSError, IndexError):
                continue
    return found


def wait_for(program: int) -> int:
    """The program's wait status, once it and everything that it started have ended."""
    while True:
        pid, status = os.wait()
        if pid == program:
            break
    while left := children():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
    return status


def main(folder: str) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(os.path.join(folder, "launch"), "rb") as file:
        launch = marshal.load(file)
    os.sched_setaffinity(0, launch["cpus"])  # so that the program is bound from its first moment
    if not claim(folder):
        return
    end = os.path.join(folder, "exit.json")
    room = os.open(f"{end}.room", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(room, b" " * _ROOM)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    errors, child_errors = os.pipe()
    program = os.fork()
    if not program:
        become(launch, child_errors)
    os.close(child_errors)
    why = os.read(errors, 300).decode()  # nothing, at the moment when the child becomes the program
    write_name(os.path.join(folder, "program"), program)
    try:  # noqa: SIM105
        os.write(1, b"started\n")
    except OSError:
        pass  # whoever asked is gone
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    for path in (os.path.join(folder, "claim"), folder):
        os.fsync(os.open(path, os.O_RDONLY))  # now, so that the program did not have to wait for the disk
    import json  # takes a while, which the program need not wait for

    status = wait_for(program)
    code = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome: dict = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}  # type: ignore[type-arg]
    outcome |= {"why": why} if why else {"code": code} if code >= 0 else {"signal": -code}
    text = json.dumps(outcome).encode()
    os.pwrite(room, text.ljust(_ROOM), 0)
    os.fsync(room)
    os.rename(f"{end}.room", end)


if __name__ == "__main__":
    main(sys.argv[1])
