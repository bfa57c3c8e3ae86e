"""`Dispatcher.map`: the same results as one call, whole shards or none, gone on with after a kill, in little memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("safetensors")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from dovetail.dispatch import Device, Dispatcher  # noqa: E402
from dovetail.dispatch.live.mapping.feed import ShardFeed  # noqa: E402
from dovetail.dispatch.live.mapping.shard_files import FORMATS, read_rows, size_of, write_rows  # noqa: E402

TWO = [Device("first", where="cpu"), Device("second", where="cpu")]
ROWS = (50, 0, 31)


def shown(x: Any) -> dict[str, Any]:
    return {"double": 2 * x["a"], "sum": {"of": x["b"].sum(1)}}


def doubled(x: Any) -> Any:
    return 2 * x


def dispatcher(function: Any = doubled, **options: Any) -> Dispatcher:
    return Dispatcher(function, TWO, **{"cache": False, "sizes": 7, **options})


def folder_of(folder: Path, suffix: str = "npy", rows: tuple[int, ...] = ROWS) -> Any:
    """Files of rows; all of them as one batch."""
    folder.mkdir()
    parts = []
    for i, n in enumerate(rows):
        tree = {"a": torch.arange(n) + 1000 * i, "b": torch.arange(4.0 * n).reshape(n, 4) / 3 + i}
        write_rows(folder / f"part{i}.{suffix}", tree["b"] if suffix == "npy" else tree)
        parts.append(tree)
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return whole["b"] if suffix == "npy" else whole


def mapped_rows(out: Path) -> Any:
    """All shards of a folder, put together."""
    files = sorted(path for path in out.iterdir() if path.suffix[1:] in FORMATS)
    parts = [read_rows(path, 0, size_of(path)[0]) for path in files]
    if isinstance(parts[0], dict):
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return torch.cat(parts)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("to", ["safetensors", "parquet"])
def test_files_of_every_format(tmp_path: Path, suffix: str, to: str) -> None:
    whole = folder_of(tmp_path / "in", suffix)
    function: Any = (lambda x: {"double": 2 * x}) if suffix == "npy" else shown
    told: list[tuple[int, int | None]] = []
    with dispatcher(function) as both:
        report = both.map(
            tmp_path / "in", tmp_path / "out", items=20, to=to, progress=lambda done, total: told.append((done, total))
        )
    found = mapped_rows(tmp_path / "out")
    assert torch.equal(found["double"], function(whole)["double"])
    if suffix != "npy":
        assert torch.equal(found["sum.of"], whole["b"].sum(1))
    assert (report.shards, report.items, report.shards_before) == (5, 81, 0)
    assert sum(report.devices.values()) == 81
    assert sorted(told) == told
    assert told[-1] == (81, 81)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["complete"]
    assert [(s["file"], s["start"], s["stop"]) for s in manifest["shards"]] == [
        (f"part0.{suffix}", 0, 20),
        (f"part0.{suffix}", 20, 40),
        (f"part0.{suffix}", 40, 50),
        (f"part2.{suffix}", 0, 20),
        (f"part2.{suffix}", 20, 31),
    ]


class Squares(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i >= self.n:
            raise IndexError(i)
        return {"a": i, "b": torch.tensor([i * i, 1.0])}


class Noisy(Squares):
    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"a": torch.rand(3)}


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: Squares(53),
        lambda: DataLoader(Squares(53), batch_size=6),
        lambda: DataLoader(Squares(53), batch_size=6, num_workers=1),
        lambda: iter(DataLoader(Squares(53), batch_size=6)),
        lambda: next(iter(DataLoader(Squares(53), batch_size=53))),
    ],
    ids=["dataset", "loader", "workers", "iterable", "batch"],
)
def test_datasets(tmp_path: Path, dataset: Callable[[], Any]) -> None:
    """Also with shards missing in the middle: what is done is not computed again."""
    seen: list[int] = []

    def function(x: Any) -> Any:
        seen.extend(x["a"].tolist())
        return {"y": 2 * x["a"], "z": x["b"].sum(1)}

    with dispatcher(function, backup=False) as both:
        assert both.map(dataset(), tmp_path / "out", items=10).shards == 6
        assert sorted(seen) == list(range(53))
        seen.clear()
        (tmp_path / "out" / "000001.safetensors").unlink()
        (tmp_path / "out" / "000005.safetensors").unlink()
        manifest = tmp_path / "out" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
        report = both.map(dataset(), tmp_path / "out", items=10)
    assert sorted(seen) == [*range(10, 20), 50, 51, 52]
    assert (report.shards, report.shards_before, report.items, report.items_before) == (6, 4, 53, 40)
    found = mapped_rows(tmp_path / "out")
    assert torch.equal(found["y"], 2 * torch.arange(53))
    assert torch.equal(found["z"], torch.arange(53.0) ** 2 + 1)


def test_a_shard_that_was_removed_is_done_again(tmp_path: Path) -> None:
    folder_of(tmp_path / "in")
    with dispatcher() as both:
        both.map(tmp_path / "in", tmp_path / "out", items=20)
        before = content(tmp_path / "out")
        (tmp_path / "out" / "000003.npy").unlink()
        assert both.map(tmp_path / "in", tmp_path / "out", items=20).shards_before == 4
    assert content(tmp_path / "out") == before


def test_no_items(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", rows=(0,))
    with dispatcher() as both:
        for i, dataset in enumerate((tmp_path / "in", iter(()), Squares(0))):
            report = both.map(dataset, tmp_path / f"out{i}")
            assert (report.shards, report.items, report.rate) == (0, 0, 0.0)
            assert json.loads((tmp_path / f"out{i}" / "manifest.json").read_text())["complete"]


def test_killed_at_any_write(tmp_path: Path) -> None:
    """Gone on with, the files are those of a map that nobody killed, byte by byte."""
    whole = folder_of(tmp_path / "in")
    program = [
        sys.executable,
        str(Path(__file__).with_name("killed_map.py")),
        str(tmp_path / "in"),
        str(tmp_path / "out"),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 4 + 5 * 5 + 4 + 1, "four around each manifest, five at each shard, and one that lives"
    outs = sorted((tmp_path / "out").iterdir())
    assert torch.equal(mapped_rows(outs[-1]), 2 * whole)
    assert len(content(outs[-1])) == 6
    assert all(content(out) == content(outs[-1]) for out in outs)


SCALE = 2.0


def scaled(x: Any) -> Any:
    return SCALE * x


class Linear(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def forward(self, x: Any) -> Any:
        return x * self.weight


@pytest.mark.parametrize("kind", ["tensor", "array", "frame"])
def test_what_is_in_memory_is_known_by_all_that_it_holds(tmp_path: Path, kind: str) -> None:
    rows = np.arange(100.0)

    def go() -> Any:
        frame = pytest.importorskip("pandas").DataFrame if kind == "frame" else lambda data: data["a"]
        data = frame({"a": torch.from_numpy(rows.copy()) if kind == "tensor" else rows.copy()})
        with dispatcher(np.asarray, sizes=10) as both:
            return both.map(data, tmp_path / "out", items=20)

    assert [go().shards_before, go().shards_before] == [0, 5]
    rows[55] += 1
    with pytest.raises(InputError, match=r"dataset\.all of them was"):
        go()


def test_something_else_is_refused_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "in")
    out = tmp_path / "out"

    def go(function: Any = scaled, items: int = 20, to: str | None = None, **options: Any) -> Any:
        with dispatcher(function, **options) as both, torch.no_grad():
            return both.map(tmp_path / "in", out, items=items, to=to)

    go()
    before = content(out)
    hook: Callable[[Any, Any], Any] = lambda work, device: work  # noqa: E731
    changes: list[tuple[Callable[[], Any], str]] = [
        (lambda: go(items=21), "options.items was 20, is 21"),
        (lambda: go(to="safetensors"), "options.to was 'npy', is 'safetensors'"),
        (lambda: go(preprocess=hook), "options.preprocess was None, is '"),
        (lambda: go(lambda x: 2 * x), "function.name was '.*scaled', is '.*lambda"),
        (lambda: go(Linear(2.0)), "function.name was '.*scaled', is '.*Linear'"),
    ]
    for change, what in changes:
        with pytest.raises(InputError, match=rf"manifest.json: its shards were made otherwise: {what}"):
            change()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(InputError, match=r"function.fingerprint was '\w+', is '\w+'; name another folder$"):
        go()
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert go().shards_before == 5
    os.utime(tmp_path / "in" / "part0.npy", ns=(1, 1))
    with pytest.raises(InputError, match=r"dataset.files.0.3 was \d+, is 1;"):
        go()
    assert content(out) == before
    out = tmp_path / "weights"
    os.utime(tmp_path / "in" / "part0.npy", ns=(1, 1))
    go(Linear(2.0))
    with pytest.raises(InputError, match="fingerprint was"):
        go(Linear(3.0))


def bad(folder: Path) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Datasets and options, and what is said of them."""
    whole = folder_of(folder / "in")
    (folder / "empty").mkdir()
    (folder / "mixed").mkdir()
    for suffix in ("npy", "safetensors"):
        write_rows(folder / "mixed" / f"a.{suffix}", whole)
    (folder / "torn.npy").write_bytes((folder / "in" / "part0.npy").read_bytes()[:200])
    np.save(folder / "number.npy", np.float32(3))
    (folder / "half").mkdir()
    (folder / "half" / "manifest.json").write_text('{"dovetail": "map 1", "complete": false}')
    yield folder / "none", {}, "none: expected a folder of shards, found nothing"
    yield folder / "empty", {}, "expected files of one kind of .safetensors, .parquet, .npy, found none"
    yield folder / "mixed", {}, r"found \.npy and \.safetensors"
    yield folder / "torn.npy", {}, "torn.npy: cannot be read as .npy: "
    yield folder / "number.npy", {}, "expected rows, found one number"
    yield folder / "half", {}, "a map that has not come to its end"
    yield folder / "in", {"out": folder / "in"}, "is the folder of the input"
    yield folder / "in", {"out": folder / "mixed"}, "expected an empty folder, or shards of an earlier map; found a.npy"
    yield folder / "in", {"to": "parkett"}, "did you mean 'parquet'"
    yield folder / "in", {"items": 0}, "items 0: expected 1 or more"
    yield 3, {}, "expected a folder, a Dataset or an iterable, found int"
    yield Noisy(9), {}, "differs from one reading to the next"
    yield DataLoader(Squares(9), shuffle=True), {}, "a RandomSampler has another order each time"


def test_bad_input(tmp_path: Path) -> None:
    with dispatcher() as both:
        for dataset, options, said in bad(tmp_path):
            with pytest.raises(InputError, match=said):
                both.map(dataset, **{"out": tmp_path / "out", **options})
            assert not (tmp_path / "out").exists(), said
    with dispatcher(dim=1) as other, pytest.raises(InputError, match="dim 1: shards are cut along dimension 0"):
        other.map(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("text", ["[1]", "{", '{"complete": false}', "\xff"])
def test_a_manifest_of_somebody_else_is_not_looked_at(tmp_path: Path, text: str) -> None:
    whole = folder_of(tmp_path / "in")
    (tmp_path / "in" / "manifest.json").write_text(text, encoding="latin-1")
    with dispatcher() as both:
        both.map(tmp_path / "in", tmp_path / "out", items=20)
    assert torch.equal(mapped_rows(tmp_path / "out"), 2 * whole)


def test_frames_become_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(9.0)}, index=pandas.Index([f"row {i}" for i in range(9)], name="name"))
    with dispatcher(lambda rows: rows.assign(twice=2 * rows["a"])) as both:
        both.map(frame, tmp_path / "out", items=4, to="parquet")
    found = pandas.concat([pandas.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet"))])
    pandas.testing.assert_frame_equal(found, frame.assign(twice=2 * frame["a"]))


@pytest.mark.parametrize(
    ("to", "result", "said"),
    [
        ("npy", np.ma.masked_array([1, 2], mask=[True, False]), "MaskedArray cannot be written as npy"),
        ("safetensors", np.array(["a", "b"]), "cannot be written as safetensors: can't convert"),
        ("safetensors", torch.eye(2).to_sparse(), "cannot be written as safetensors: "),
        ("parquet", torch.ones(2, dtype=torch.complex64), "cannot be written as parquet: "),
        ("parquet", torch.ones(2, 0), "cannot be written as parquet: "),
    ],
)
def test_what_a_format_has_no_place_for_is_refused(tmp_path: Path, to: str, result: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        write_rows(tmp_path / f"a.{to}", result)
    assert not list(tmp_path.iterdir())


def test_shards_of_an_iterable_that_was_longer_are_found(tmp_path: Path) -> None:
    def go(pieces: int) -> Any:
        with dispatcher() as both:
            return both.map((torch.ones(4) for _ in range(pieces)), tmp_path / "out", items=4, to="npy")

    go(5)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(InputError, match=r"000003.npy: lies behind the end of the dataset, 3 shards; name another"):
        go(3)
    assert go(6).shards_before == 5


@pytest.mark.parametrize("to", ["safetensors", "parquet"])
def test_parts_that_would_have_one_name_in_a_file_are_refused(tmp_path: Path, to: str) -> None:
    with pytest.raises(InputError, match=r"a\.b: two parts of the result have this name"):
        write_rows(tmp_path / f"a.{to}", {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}})
    assert not list(tmp_path.iterdir())


def test_a_failure_keeps_what_is_done(tmp_path: Path) -> None:
    folder_of(tmp_path / "in")
    poison = [45.0]

    def picky(x: Any) -> Any:
        if bool((x[:, 0] * 3 == poison[0] * 4).any()):
            raise ValueError("poison")
        return x + 0

    with dispatcher(picky, retries=0, on_error="skip", mode="sync") as both:
        with pytest.raises(ValueError, match="poison") as caught:
            both.map(tmp_path / "in", tmp_path / "out", items=20)
        assert "in shard 2 (items 40 to 50 of part0.npy); the shards that are done stay" in caught.value.__notes__
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert names == {"manifest.json", "000000.npy", "000001.npy", "000003.npy", "000004.npy"}
        poison[0] = -1
        with pytest.raises(InputError, match="fingerprint"):
            both.map(tmp_path / "in", tmp_path / "out", items=20)
    with dispatcher(lambda x: [x, "text"]) as both, pytest.raises(InputError, match=r"1: str cannot be written as npy"):
        both.map(tmp_path / "in", tmp_path / "text", items=20)


def test_many_devices_have_many_shards_open(tmp_path: Path) -> None:
    """None is let go of while its result waits to be written: 80 wait for the first."""
    forty = [Device(f"cpu{i}", where="cpu", threads=1) for i in range(40)]
    computed, told = threading.Semaphore(0), list[int]()

    def function(x: Any) -> Any:
        computed.release()
        return 2 * x

    def tell(done: int, total: int | None) -> None:
        if not told:
            assert all(computed.acquire(timeout=60) for _ in range(80))
        told.append(done)

    with Dispatcher(function, forty, cache=False, sizes=4, backup=False) as dispatcher:
        report = dispatcher.map(torch.arange(600), tmp_path / "out", items=4, progress=tell)
    assert (report.shards, len(told)) == (150, 150)
    assert torch.equal(mapped_rows(tmp_path / "out")["result"], 2 * torch.arange(600))


def test_only_shards_that_were_given_up_are_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest 64 of them are held, for who asks which one failed, and all others until they are written."""
    fed: list[Any] = []

    def picky(x: Any) -> Any:
        if x[0] % 8:
            raise ValueError("odd")
        return 2 * x

    class Fed(ShardFeed):
        def close(self) -> None:
            fed.extend(each.start for each in self._loaded)
            super().close()

    monkeypatch.setattr("dovetail.dispatch.live.mapping.run.ShardFeed", Fed)
    with (
        dispatcher(picky, retries=0, on_error="skip", sizes=4, mode="sync") as both,
        pytest.raises(ExceptionGroup, match="75 chunks failed") as caught,
    ):
        both.map(torch.arange(600), tmp_path / "out", items=4)
    assert len(caught.value.exceptions) == 75
    assert 64 <= len(fed) <= 66
    assert all(start % 8 for start in fed)
    assert torch.equal(mapped_rows(tmp_path / "out")["result"], 2 * torch.arange(600).reshape(75, 8)[:, :4].reshape(-1))


def test_an_interrupt_leaves_whole_shards(tmp_path: Path) -> None:
    folder_of(tmp_path / "in")
    told = iter([False, False, True])

    def tell(done: int, total: int | None) -> None:
        if next(told, False):
            os.kill(os.getpid(), signal.SIGINT)

    with dispatcher() as both:
        with pytest.raises(KeyboardInterrupt):
            both.map(tmp_path / "in", tmp_path / "out", items=20, progress=tell)
        left = content(tmp_path / "out")
        assert 3 <= len(left) - 1 <= 4
        assert not [name for name in left if name.startswith(".")]
        assert both.map(tmp_path / "in", tmp_path / "out", items=20).shards_before == len(left) - 1
        both.map(tmp_path / "in", tmp_path / "again", items=20)
    assert content(tmp_path / "out") == content(tmp_path / "again")


def test_one_map_at_a_time(tmp_path: Path) -> None:
    folder_of(tmp_path / "in")
    refused = []

    def tell(done: int, total: int | None) -> None:
        with dispatcher() as other, pytest.raises(InputError, match="another map is writing there") as caught:
            other.map(tmp_path / "in", tmp_path / "out", items=20)
        refused.append(caught.value)

    with dispatcher() as both:
        both.map(tmp_path / "in", tmp_path / "out", items=20, progress=tell)
    assert len(refused) == 5


CONFINED = """
import resource, sys
import numpy as np
import torch
from dovetail.dispatch import Device, Dispatcher

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

def function(x):
    return x[:, :4] + 1

torch.set_num_threads(1)
data, out = sys.argv[1:]
two = [Device("first", where="cpu", threads=1), Device("second", where="cpu", threads=1)]
with Dispatcher(function, two, cache=False) as dispatcher:
    dispatcher.map(torch.ones(1000, 1024), out + "/warm")
    before = peak()
    report = dispatcher.map(data, out + "/all", items=4096)
    print(before, peak(), report.items)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    try:
        dispatcher.map(data, out + "/full", items=4096)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_memory_is_bounded_and_a_full_disk_is_said(tmp_path: Path) -> None:
    """Two GiB of zeros that take no place on the disk, in shards of 16 MiB."""
    shape = (524_288, 1024)
    with (tmp_path / "zeros.npy").open("wb") as file:
        np.lib.format.write_array_header_2_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * shape[0] * shape[1])
    program = [sys.executable, "-c", CONFINED, str(tmp_path / "zeros.npy"), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    before, peak, items = map(int, first.split())
    assert items == shape[0]
    assert peak - before < 400, f"{peak - before} MiB for 2,048 MiB of data"
    assert re.fullmatch(r"InputError .*/full/00000\d.npy: cannot be written: File too large", second)
    assert {path.name for path in (tmp_path / "full").iterdir()} == {"manifest.json"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = folder_of(tmp_path / "in")
    (tmp_path / "twice.py").write_text(
        "import torch\n\ndef twice(x):\n    return 2 * x\n\ndef bad(x):\n    raise ValueError('no')\n\n"
        "def data():\n    return torch.utils.data.TensorDataset(torch.arange(9.0))\n\n"
        "def first(x):\n    return x[0]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["dispatch", "map", "twice.py:twice", "in", "out", "--items", "20"]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["shards"], found["items"], found["items_before"], found["devices"]) == (5, 81, 0, {"cpu": 81})
    assert torch.equal(mapped_rows(tmp_path / "out"), 2 * whole)
    assert main(words) == 0
    assert re.search(r"shards before\s+5", capsys.readouterr().out)
    assert main([*words[:-1], "30"]) == 2
    assert "options.items was 20, is 30" in capsys.readouterr().err
    assert main(["dispatch", "map", "twice.py:bad", "in", "other"]) == 2
    assert "twice.py:bad: raised ValueError: no" in capsys.readouterr().err
    assert main(["dispatch", "map", "twice.py:first", "twice.py:data", "made", "--to", "npy", "--items", "4"]) == 0
    assert torch.equal(mapped_rows(tmp_path / "made"), torch.arange(9.0))
    assert main([*words, "--backend", "process", "--engine", "ray"]) == 2
    assert "backend process: is for this machine, but the engine is ray" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_gets_as_many_items_as_its_loader_says(tmp_path: Path, workers: int) -> None:
    loader = DataLoader(Rows(), batch_size=4, collate_fn=numbered, num_workers=workers)
    with dispatcher(lambda x: x) as both:
        both.map(loader, tmp_path / "out", items=10, to="npy")
    found = np.concatenate([np.load(path) for path in sorted((tmp_path / "out").glob("*.npy"))])
    assert found.tolist() == [n for i in range(0, 25, 10) for n in groups(min(10, 25 - i))]


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 25

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(i)


def numbered(items: list[Any]) -> Any:
    return torch.full((len(items),), len(items))


def groups(items: int) -> list[int]:
    """How many items stand together with each."""
    return [min(4, items - i // 4 * 4) for i in range(items)]


class PlacedByAttribute:
    """An object whose `on` is a plain function."""

    def __init__(self) -> None:
        self.on = lambda device: lambda x: 2 * x


def test_an_object_whose_on_is_no_method(tmp_path: Path) -> None:
    with dispatcher(PlacedByAttribute()) as both:
        both.map(np.arange(10.0), tmp_path / "out", items=5, to="npy")
    assert np.load(tmp_path / "out" / "000001.npy").tolist() == [10, 12, 14, 16, 18]


def test_the_command_goes_on_with_other_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0))
    text = "def f(x):\n    if 3 in x:\n        raise ValueError('three')\n    return x\n"
    (tmp_path / "failing.py").write_text(text)
    command = ["dispatch", "map", f"{tmp_path / 'failing.py'}:f", str(tmp_path / "x.npy"), str(tmp_path / "out")]
    assert main([*command, "--items", "5", "--on-error", "skip"]) == 2
    assert "three" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == [f"00000{i}.npy" for i in (1, 2, 3)]
    assert main([*command, "--on-error", "never"]) == 2
