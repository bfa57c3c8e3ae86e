"""Sweeps: results in the order of the cells, an error stops the rest, and Ctrl-C leaves no process behind."""

from __future__ import annotations

import operator
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dovetail.core.errors import DovetailError, MissingExtraError
from dovetail.core.parallel import run_all


@pytest.mark.parametrize("jobs", [None, 1, 2, 16])
def test_results_come_in_the_order_of_the_cells(jobs: int | None) -> None:
    done: list[int] = []
    cells = [3, -1, 2, 0, -7]
    assert run_all(operator.neg, cells, jobs, done.append) == [-3, 1, -2, 0, 7]
    assert done == [1, 2, 3, 4, 5]


def test_nothing_to_do_gives_nothing() -> None:
    assert run_all(operator.neg, [], 4) == []


def test_several_jobs_run_in_processes_of_their_own() -> None:
    assert os.getpid() not in run_all(eval, ["__import__('os').getpid()"] * 2, 2)
    assert run_all(eval, ["__import__('os').getpid()"], 2) == [os.getpid()], "one cell needs no process"


def test_an_error_in_one_cell_stops_the_others_at_once() -> None:
    """The other cell waits for ever: this test ends only if it is stopped."""
    wait_for = partial(select.select, [], [])
    with pytest.raises(TypeError):
        run_all(wait_for, [[], 7], 2)


def test_an_error_stops_a_sweep_in_one_process_too() -> None:
    done: list[int] = []
    with pytest.raises(ZeroDivisionError):
        run_all(partial(operator.floordiv, 1), [1, 0, 1], 1, done.append)
    assert done == [1]


def test_an_error_arrives_as_it_was_raised() -> None:
    code = "(_ for _ in ()).throw(__import__('dovetail.core.errors').core.errors.MissingExtraError('a', 'b', 'c'))"
    with pytest.raises(MissingExtraError, match=r"^c needs b, which is not installed: pip install 'dovetail\[a\]'$"):
        run_all(eval, [code, code], 2)


def test_a_process_that_is_killed_is_told_without_a_traceback() -> None:
    with pytest.raises(DovetailError, match="process was ended from outside"):
        run_all(os._exit, [9, 9], 2)


def test_only_the_parent_is_interrupted() -> None:
    handlers = run_all(eval, ["__import__('signal').getsignal(2)"] * 2, 2)
    assert handlers == [signal.SIG_IGN, signal.SIG_IGN]


INTERRUPTED = """
import signal
import sys
from dovetail.core.parallel import run_all

if __name__ == "__main__":
    # A shell that starts tests in the background has them ignore Ctrl-C, and their children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Each cell tells that it runs; all but the first then wait for ever.
    tell, wait = "__import__('os').write(1, b'.')", "__import__('signal').pause()"
    try:
        run_all(eval, [tell, f"({tell}, {wait})", f"({tell}, {wait})"], 2)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("whom", ["the sweep", "all, as a terminal does"])
def test_ctrl_c_leaves_no_process_behind(whom: str) -> None:
    """The processes share a pipe: it ends when the last of them has ended."""
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.read(3) == b"..."
        if whom == "the sweep":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        assert process.communicate() == (b"", b"")
        assert process.returncode == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


SCRIPT = """
import operator
from dovetail.core.parallel import run_all
print(run_all(operator.neg, [1, 2, 3], 2))
"""


@pytest.mark.parametrize("from_file", [True, False])
def test_a_script_need_not_guard_its_first_lines(tmp_path: Path, from_file: bool) -> None:
    """Whether it lies in a file or is typed in, it is not run again by the processes that it starts."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py") if from_file else "-"]
    done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[-1, -2, -3]\n", "")


def test_functions_of_a_script_with_a_guard_can_be_used(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dovetail.core.parallel import run_all\ndef twice(x): return 2 * x\n"
        "if __name__ == '__main__': print(run_all(twice, [1, 2], 2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[2, 4]\n", "")
