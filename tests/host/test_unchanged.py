"""Programs under `python -m dovetail.host.agent`: they know nothing of it, and follow their cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.host.agent import FOLDER, TARGET_FILE
from tests.waiting import PATIENCE_S

NUMPY = """
import sys, numpy, threadpoolctl
print("words", sys.argv[1:], __name__, flush=True)
seen, a = None, numpy.ones((64, 64))
while seen != 1:
    a @ a
    now = max((pool["num_threads"] for pool in threadpoolctl.threadpool_info()), default=1)
    if now != seen:
        print("threads", now, flush=True)
    seen = now
"""
TORCH = """
import torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.zeros(8, 4), batch_size=4, num_workers=2)
while True:
    for batch in loader:
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
    print("now", torch.get_num_threads(), loader.num_workers, flush=True)
    if (torch.get_num_threads(), loader.num_workers) == (1, 1):
        break
"""


def tell(folder: Path, gen: int, cores: int) -> None:
    part = folder / "part"
    part.write_text(json.dumps({"gen": gen, "cores": cores, "cpus": list(range(cores))}))
    part.rename(folder / TARGET_FILE)


def run(folder: Path, text: str, *words: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "dovetail.host.agent", "--", *(words or (str(folder / "train.py"),))]
    env = os.environ | {FOLDER: str(folder), "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=folder)


def test_threads_below_numpy_follow_the_cores(tmp_path: Path) -> None:
    pytest.importorskip("threadpoolctl")
    tell(tmp_path, 1, 2)
    with run(tmp_path, NUMPY, "train.py", "--lr", "3") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "words ['--lr', '3'] __main__\n"
        assert program.stdout.readline() == "threads 2\n"
        tell(tmp_path, 2, 1)
        assert program.stdout.read() == "threads 1\n"
        assert program.wait(PATIENCE_S) == 0


def test_torch_s_threads_and_workers_follow_the_cores(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tell(tmp_path, 1, 2)
    with run(tmp_path, TORCH) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line == "now 2 2\n":
                break
        tell(tmp_path, 2, 1)
        assert program.stdout.read().splitlines()[-1] == "now 1 1"
        assert program.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "expected a program: python -m dovetail.host.agent -- SCRIPT.py"),
        (("absent.py",), 2, "absent.py: there is no such script"),
        (("-m", "absent_module"), 1, "No module named absent_module"),
        (("folder",), 1, "can't find '__main__' module in"),
        (("train.py",), 7, ""),
    ],
)
def test_a_program_ends_as_it_would_without(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "train.py").write_text("import os; os.chdir('/'); open(__file__).close(); raise SystemExit(7)")
    (tmp_path / "folder").mkdir()
    command = [sys.executable, "-m", "dovetail.host.agent", "--", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


LATE = """
import atexit, os, pickle, sys, threading

class Checkpoint:
    pass

def save():
    assert pickle.loads(pickle.dumps(Checkpoint())).__class__ is Checkpoint
    print("saved", sys.argv, open(__file__).readline() == "\\n")

main_ends = threading.main_thread().join
threading.Thread(target=lambda: (main_ends(), save())).start()
atexit.register(save)
os.chdir("/")
raise SystemExit(3)
"""


@pytest.mark.parametrize("words", [("train.py", "-x"), ("-m", "train", "-x"), ("folder", "-x")])
def test_what_a_program_does_at_its_end_is_as_without(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("train.py", "folder/__main__.py"):
        (tmp_path / name).write_text(LATE)

    def ended(*command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.returncode, done.stdout, done.stderr

    found = ended("-m", "dovetail.host.agent", "--", *words)
    assert found == ended(*words)
    assert (found[0], found[1].count("saved")) == (3, 2)
