"""Schedulers from dictionaries, files and flags, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError

torch: Any = pytest.importorskip("torch")

from dovetail.dispatch.compat.options import (  # noqa: E402
    KINDS,
    read_scheduler,
    read_schedulers,
    scheduler_from,
    scheduler_from_flags,
)

EVERY_KIND: dict[str, dict[str, Any]] = {
    "SimpleScheduler": {"device": "cpu", "sub_batch_size": 3, "capacity": 6},
    "StaticHybridScheduler": {
        "devices": [{"name": "a", "where": "cpu"}, {"name": "b", "where": "cpu"}],
        "sub_batch_sizes": [3, 4],
        "capacities": [6, 4],
        "priorities": [1, 2],
    },
    "SimpleMPIScheduler": {"devices": ["cuda:0", "cpu"], "sub_batch_sizes": [4], "more_ranks": "round_robin"},
    "SharedScheduler": {"devices": ["cpu"], "policy": "guided"},
    "Dispatcher": {"devices": ["cpu"], "policy": "fixed", "policy_options": {"size": 3}},
}


def test_every_kind_has_a_case() -> None:
    assert EVERY_KIND.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    options = {"type": kind, "cache": False, "mode": "sync", **EVERY_KIND[kind]}
    chosen = scheduler_from(options)
    assert chosen.type == kind
    assert chosen.run_options == {"cache": False, "mode": "sync"}
    path = tmp_path / "options.yml"
    path.write_text(f"schedulers:\n  it: {options!r}\n".replace("'", '"').replace("False", "false"))
    found = read_scheduler(path, "it")
    assert found.type == kind
    if kind != "SimpleMPIScheduler":  # that one needs ranks
        x = torch.arange(10.0)
        with found.dispatcher(torch.sqrt) as dispatcher:
            assert dispatcher.mode == "sync"
            assert torch.equal(dispatcher.run(x), x.sqrt())


def test_one_scheduler_is_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "simple.json"
    path.write_text('{"type": "SimpleScheduler", "device": "cpu", "batch_size": 8, "trace_file": "trace.json"}')
    chosen = read_scheduler(path)
    assert chosen.scheduler.sub_batch_size == 8  # by its older name
    assert chosen.run_options == {"trace": "trace.json"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "type: SimpleSchedular\n",
            ":1: type: no scheduler is called 'SimpleSchedular'; did you mean 'SimpleScheduler'?",
        ),
        ("device: cpu\n", ": missing key `type`; expected one of SimpleScheduler, "),
        ("type: SimpleScheduler\ndevise: cpu\n", ":2: devise: unknown key 'devise'; did you mean 'device'?"),
        ("type: SimpleScheduler\nbatch_size: many\n", ":2: batch_size: expected int, found str"),
        ("type: SimpleScheduler\nmode: later\n", ":2: mode: expected async or sync, found 'later'"),
        ("type: SimpleScheduler\nsub_batch_size: 8\ncapacity: 4\n", "capacity 4 is below"),
        ("type: StaticHybridScheduler\ndevices: [cpu]\n", "missing key `sub_batch_sizes`"),
        ("type: StaticHybridScheduler\ndevices: [cuda, cuda:0]\nsub_batch_sizes: [3]\n", "'cuda:0' is given twice"),
        ("type: SharedScheduler\nbackend: process\n", "backend: found process; a shared pool has threads"),
        ("schedulers:\n  a:\n    type: SimpleScheduler\n    capacity: x\n", ":4: schedulers.a.capacity: "),
        ("schedulers:\n  a: 3\n", ":2: schedulers.a: expected keys and values, found int"),
        ("schedulers: []\n", ":1: schedulers: expected schedulers by name"),
        ("schedulers: {a: {type: SimpleScheduler}}\nscheduler: 1\n", ":2: scheduler: unknown key 'scheduler'"),
        ("[1]\n", ": expected keys and values, found list"),
    ],
)
def test_errors_are_located(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_schedulers(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_name_is_needed_if_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "options.yml"
    path.write_text("schedulers:\n  a: {type: SimpleScheduler}\n  bee: {type: SharedScheduler}\n")
    with pytest.raises(InputError, match="has 2 schedulers; name one of a, bee"):
        read_scheduler(path)
    with pytest.raises(InputError, match="no scheduler is called 'be'; did you mean 'bee'"):
        read_scheduler(path, "be")
    assert read_scheduler(path, "a").type == "SimpleScheduler"


def test_flags() -> None:
    flags = {"--devices": "cuda, cpu", "--batch-sizes": "512,64", "priorities": "1,2.5", "backup": "false"}
    chosen = scheduler_from_flags("StaticHybridScheduler", flags)
    assert chosen.scheduler.sub_batch_sizes == [512, 64]
    assert chosen.scheduler.priorities == [1, 2.5]
    assert chosen.run_options == {"backup": False}


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("SimpleScheduler", {"devise": "cpu"}, "--devise: no option of SimpleScheduler; did you mean 'device'?"),
        ("SimpleScheduler", {"sub_batch_size": "x"}, "--sub-batch-size x: expected int, found str"),
        ("StaticHybridScheduler", {"sub_batch_sizes": "1,x", "devices": "cpu"}, "--sub-batch-sizes 1,x: expected int"),
        (
            "StaticHybridScheduler",
            {"devices": "cpu"},
            "--scheduler StaticHybridScheduler: missing key `sub_batch_sizes`",
        ),
        ("Simple", {}, "--scheduler no scheduler is called 'Simple'"),
    ],
)
def test_bad_flags(kind: str, flags: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        scheduler_from_flags(kind, flags)
    assert message in str(caught.value)
