"""Sweeps on a Ray cluster of three nodes (on this machine): the same results, whatever dies, and what is refused."""

from __future__ import annotations

import operator
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from dovetail.cli import main
from dovetail.core.errors import DovetailError, InputError, MissingExtraError
from dovetail.core.parallel import run_all
from dovetail.core.service import ray_cells
from dovetail.core.service.ray_cells import CellAnswer, CellErrand, run_on_ray, work
from dovetail.core.service.ray_messages import CellEnded, NodesChanged, RunCell
from dovetail.core.service.ray_processes import RayChange, RayDown, RayUp
from dovetail.core.service.ray_start import RayNode
from dovetail.version import __version__
from tests.ray_nodes import RayNodes, ray_nodes
from tests.waiting import PATIENCE_S, until

ray: Any = pytest.importorskip("ray")
ROOT = Path(__file__).parents[2]
on_ray = pytest.mark.xdist_group("ray")  # one cluster at a time


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """A head and two nodes, each with one CPU; only the two are told apart, by a resource."""
    with ray_nodes() as made:
        made.add("left", left=1)
        made.add("right", right=1)
        yield made


def attend(folder: Path, cell: int) -> int:
    """On a node: say so, and wait until everybody may go on; 13 is a bad cell."""
    here = ray.get_runtime_context().get_node_id()
    (resources,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    where = next(iter({"left", "right"} & resources.keys()), "head")
    (folder / f"{cell}.{where}.{os.getpid()}").touch()
    until((folder / "go").exists)
    if cell == 13:
        raise InputError("thirteen")
    print(f"cell {cell}", file=sys.stderr)
    return cell * cell


def begun(folder: Path) -> list[tuple[int, str, int]]:
    """Cells, where they began, and in which process."""
    names = [path.name.split(".") for path in folder.iterdir() if path.name != "go"]
    return [(int(cell), where, int(pid)) for cell, where, pid in names]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@on_ray
@pytest.mark.filterwarnings("ignore:node .* has gone")  # if it is told before all is done
def test_cells_of_a_node_that_dies_are_repeated(
    nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others are run once; the results are those of local processes, in their order."""

    def lose_one() -> None:
        until(lambda: len(begun(tmp_path)) == 3)
        nodes.kill("left")
        until(lambda: not any(alive(pid) for _, where, pid in begun(tmp_path) if where == "left"))
        (tmp_path / "go").touch()

    killer = threading.Thread(target=lose_one)
    killer.start()
    told: list[int] = []
    found = run_all(partial(attend, tmp_path), range(8), None, told.append, address=nodes.address)
    killer.join()
    nodes.add("left", left=1)
    assert found == [i * i for i in range(8)]
    assert told == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(capsys.readouterr().err.splitlines()) == [f"cell {i}" for i in range(8)], "what they said is here"
    times = Counter(cell for cell, _, _ in begun(tmp_path))
    (lost,) = (cell for cell, where, _ in begun(tmp_path) if where == "left")
    assert times == Counter(range(8)) + Counter([lost])
    assert {where for _, where, _ in begun(tmp_path)} == {"left", "right", "head"}


@on_ray
def test_a_cell_that_fails_by_itself_is_not_repeated(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with pytest.raises(InputError, match=r"^thirteen$"):
        run_all(partial(attend, tmp_path), [13], address=nodes.address)
    assert len(begun(tmp_path)) == 1


INTERRUPTED = """
import signal, sys
from functools import partial
from pathlib import Path
from dovetail.core.parallel import run_all
from tests.core.test_ray_cells import attend
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_all(partial(attend, Path(sys.argv[1])), range(8), address=sys.argv[2])
except KeyboardInterrupt:
    sys.exit(130)
"""


@on_ray
def test_ctrl_c_leaves_no_process_behind(nodes: RayNodes, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), nodes.address]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        until(lambda: len(begun(tmp_path)) == 3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[1] == b""
        assert process.returncode == 130
    until(lambda: not any(alive(pid) for _, _, pid in begun(tmp_path)))
    assert len(begun(tmp_path)) == 3


def sweep(folder: Path, *more: str) -> list[str]:
    words = ["cluster", "sweep", "static", "-l", str(folder), "-p", "max_min_fairness_packed", "finish_time_fairness"]
    return [*words, "--seeds", "0", "1", "-c", "2:2:2", "-a", "0", "-b", "40", "-n", "3", *more]


def kept(folder: Path) -> dict[str, bytes]:
    """All files of a folder, without the CPU times that runs have measured."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet")  # the table again
    found = {str(path.relative_to(folder)): path for path in files}
    measured = re.compile(rb'"(policy|cpu)_s": .*|(,[-.e0-9]+){2}$', re.MULTILINE)  # also the last columns of the table
    return {name: measured.sub(b"", path.read_bytes()) for name, path in found.items()}


@on_ray
def test_a_sweep_that_was_interrupted_goes_on_and_gives_the_same_bytes(
    nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "one" / "logs"
    ready = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from dovetail.cli import main; "
    words = sweep(folder, "--address", nodes.address, "-j", "1")
    command = [sys.executable, "-c", f"{ready}raise SystemExit(main({words}))"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(lambda: list(folder.rglob("*jobs=20.json")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"the same command goes on" in err
    assert main(sweep(folder, "--address", nodes.address)) == 0
    assert "of 8 runs have a result already" in capsys.readouterr().err
    (tmp_path / "two").mkdir()
    assert main(sweep(tmp_path / "two" / "logs", "-j", "2")) == 0
    assert kept(folder) == kept(tmp_path / "two" / "logs")


@on_ray
def test_policies_compared_on_ray_are_those_compared_here(
    nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, journals = [], []
    for name, where in (("here", []), ("ray", ["--address", nodes.address])):
        words = ["--gpus", "4", "8", "--config", "examples/system_config.yaml", "--out", str(tmp_path / name), *where]
        words += ["--requests", "examples/workflow_requests.yaml", "--format", "json"]
        assert main(["workflow", "compare", *words]) == 0
        found = msgspec.json.decode(capsys.readouterr().out)
        rows.append([{key: value for key, value in row.items() if key != "simulation_s"} for row in found])
        journals.append({name: text for name, text in kept(tmp_path / name).items() if name.endswith("jsonl")})
    assert rows[0] == rows[1]
    assert len(journals[0]) == 4
    assert journals[0] == journals[1]


# --- without a cluster ---


class Pretended:
    """Takes orders in the place of Ray."""

    gcs = "head:6379"

    def __init__(self, cpus: float = 2.0) -> None:
        self.nodes: tuple[RayNode, ...] = tuple(RayNode(f"id-{name}", name, name, {"CPU": cpus}) for name in "ab")
        self.asked: list[int] = []
        self.closed = False

    def __call__(self, address: str | None, tell: Any) -> Pretended:
        self.tell = tell
        return self

    def run(self, order: RunCell) -> None:
        self.asked.append(order.cell)

    def close(self) -> None:
        self.closed = True


def answered(cell: int, value: Any) -> CellEnded:
    return CellEnded(cell, msgspec.msgpack.encode(CellAnswer(pickle.dumps(value))))


def test_what_was_lost_with_the_head_is_run_again_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = Pretended()
    monkeypatch.setattr(ray_cells, "RayProcesses", pretended)
    script: list[RayChange] = [
        answered(1, "b"),
        NodesChanged(pretended.nodes[1:]),
        RayDown("it fell"),
        NodesChanged(()),
        RayUp(pretended.nodes),
        answered(0, "a"),
        answered(1, "told twice"),
        answered(2, "c"),
        answered(3, "d"),
    ]
    seen: list[list[int]] = []

    class Scripted(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            seen.append(list(pretended.asked))
            return script.pop(0)

    monkeypatch.setattr(ray_cells, "SimpleQueue", Scripted)
    with pytest.warns(RuntimeWarning) as warned:
        found: list[Any] = run_on_ray(operator.neg, [0, 1, 2, 3], 2, lambda done: None, None)
    assert [str(each.message) for each in warned] == [
        "node a of the Ray cluster has gone; its runs are repeated on others",
        "the Ray cluster is away: it fell; its runs are repeated when it is back",
    ]
    assert found == ["a", "b", "c", "d"]
    assert seen == [[0, 1], *4 * [[0, 1, 2]], [0, 1, 2, 0, 2], *3 * [[0, 1, 2, 0, 2, 3]]]
    assert pretended.closed


def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = Pretended()
    monkeypatch.setattr(ray_cells, "RayProcesses", pretended)
    monkeypatch.setattr(ray_cells, "_AWAY_S", 0.01)
    monkeypatch.setattr(pretended, "run", lambda order: pretended.tell(RayDown("it fell")))
    with pytest.warns(RuntimeWarning), pytest.raises(DovetailError, match=r"^the Ray cluster is gone: it fell$"):
        run_on_ray(operator.neg, [0], None, lambda done: None, None)
    assert pretended.closed


def test_a_cell_that_ends_its_process_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = Pretended()
    monkeypatch.setattr(ray_cells, "RayProcesses", pretended)
    monkeypatch.setattr(pretended, "run", lambda order: pretended.tell(CellEnded(order.cell, why="exit code 9")))
    with pytest.raises(DovetailError, match="process was ended from outside, again and again: exit code 9"):
        run_on_ray(operator.neg, [0], None, lambda done: None, None)


def test_nodes_without_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cells, "RayProcesses", Pretended(0.0))
    with pytest.raises(InputError, match="no node of the Ray cluster at head:6379 has a CPU"):
        run_on_ray(operator.neg, [0], None, lambda done: None, None)


def done_by(errand: CellErrand) -> Any:
    answer = msgspec.msgpack.decode(work(msgspec.msgpack.encode(errand)), type=CellAnswer)
    if answer.failed:
        raise pickle.loads(answer.value)
    return pickle.loads(answer.value)


class UnsentError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


def refuse(cell: int) -> None:
    raise UnsentError(f"cell {cell}")


def test_a_node_that_is_unlike_this_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = CellErrand(pickle.dumps((operator.neg, 7)), __version__, str(tmp_path), tuple(sys.path), ())
    assert done_by(good) == -7
    for wrong, says in (
        ({"version": "0.0"}, r"has dovetail .*; expected 0.0, as on this machine"),
        ({"folder": "/nowhere"}, "needs the folder /nowhere as this machine has it: .*No such file"),
        ({"probes": (str(tmp_path / "logs" / "x"),)}, "needs the folder .*/logs as this machine has it: it is not the"),
    ):
        with pytest.raises(DovetailError, match=f"node .* of the Ray cluster {says}"):
            done_by(msgspec.structs.replace(good, **wrong))
    with pytest.raises(DovetailError, match=r"^UnsentError: cell 7$"):
        done_by(msgspec.structs.replace(good, call=pickle.dumps((refuse, 7))))


def test_without_ray_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError):
        run_all(operator.neg, [1], engine="ray")
    assert main(sweep(tmp_path, "--engine", "ray")) == 2
    assert capsys.readouterr().err == (
        "error: the ray engine needs Ray, which is not installed: pip install 'dovetail[ray]'\n"
    )


def test_wrong_engines_and_addresses_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["--address", "127.0.0.1:1"], "--address 127.0.0.1:1: no Ray cluster can be reached there"),
        (["--address", "127.0.0.1:1", "--engine", "local"], "address 127.0.0.1:1: is that of a Ray cluster, but the"),
    ):
        assert main(sweep(tmp_path / "logs", *words)) == 2
        assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was written"
    with pytest.raises(InputError, match="engine: expected local or ray, found 'rya'; did you mean 'ray'"):
        run_all(operator.neg, [1], engine="rya")  # type: ignore[arg-type]
