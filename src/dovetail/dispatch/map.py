"""Offline inference: a function over a dataset larger than memory, on all devices of a node or of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from dovetail.core.errors import InputError
from dovetail.core.parallel import CellEngine, cell_engine
from dovetail.dispatch.inputs.devices import NodeDevice, several
from dovetail.dispatch.inputs.target import blamed, load
from dovetail.dispatch.live.dispatcher import Dispatcher
from dovetail.dispatch.live.mapping.run import MapReport


def map(
    function: Any,
    dataset: Any,
    out: str | Path,
    *,
    devices: str | NodeDevice | Sequence[str | NodeDevice] | None = None,
    sizes: int | Sequence[int] | None = None,
    items: int | None = None,
    to: str | None = None,
    backend: str | None = None,
    on_error: Literal["retry", "fail", "skip"] = "retry",
    engine: CellEngine | None = None,
    address: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> MapReport:
    """Call a function on every item of a dataset; the results are shards in a folder. A killed map is gone on with.

    >>> import tempfile, torch
    >>> out = Path(tempfile.mkdtemp()) / "doubled"
    >>> done = map(torch.sin, torch.arange(10.0), out, items=4, to="npy")
    >>> done.shards, done.items, sorted(path.name for path in out.iterdir())
    (3, 10, ['000000.npy', '000001.npy', '000002.npy', 'manifest.json'])

    Parameters
    ----------
    function
        A function, a module or an object with `on(device)`, or text that names one as `file.py:name`.
    dataset
        A folder of .npy, .safetensors or .parquet files (or one file), a Dataset or DataLoader, an iterable; or text
        that names one of these, or a function that makes it, as `file.py:name`.
    out
        The folder of the results; empty, not there yet, or with what an earlier run of the same has done.
    devices
        Names such as `cuda:0` and `cpu`, or `Device`s; cpu by default. On a Ray cluster those that every node is to use
        as far as it has them; all by default.
    sizes
        Items of a call: one for all devices, or one each; by default found by measuring.
    items
        Items of a shard; by default about 64 MiB of them.
    to
        The format of the results: safetensors, parquet or npy; by default that of the files, else safetensors.
    backend
        `thread`, or `process` for functions that hold Python's lock.
    on_error
        `retry`: another device tries what fails, then the map ends; `fail`: it ends at once; `skip`: the other shards
        are done first.
    engine, address
        `ray`: whole shards on the nodes of the cluster at an address, of $RAY_ADDRESS, or of this machine alone. All
        nodes must see the same folders.
    progress
        Told the items that are done, and how many there are (None: not known).
    """
    given = load(function) if isinstance(function, str) else function
    if isinstance(dataset, str) and ".py:" in dataset:
        made = load(dataset)
        with blamed(dataset):
            dataset = made() if callable(made) and not hasattr(made, "__getitem__") else made
    with ExitStack() as stack:
        if cell_engine(engine, address) == "ray":
            if backend is not None:
                raise InputError(f"backend {backend}: is for this machine, but the engine is ray")
            backend, devices = "ray", _of_cluster(devices, address, stack)
        made = Dispatcher(given, devices or "cpu", sizes=sizes, backend=backend or "thread", on_error=on_error)
        with blamed(function), stack.enter_context(made) as dispatcher:
            return dispatcher.map(dataset, out, items=items, to=to, progress=progress)


def _of_cluster(wanted: Any, address: str | None, stack: ExitStack) -> list[NodeDevice]:
    """The devices of a cluster that have one of these names, on whichever node."""
    from dovetail.dispatch.live.ray import devices_of_cluster, ray, release

    ray(address)
    stack.callback(release)
    found = devices_of_cluster()
    places = [str(getattr(each, "place", each)) for each in several("devices", wanted)] if wanted else []
    chosen = [device for device in found if not places or device.place in places or device.name in places]
    if not chosen:
        raise InputError(f"devices {','.join(places)}: no node of the Ray cluster has one; found {_names(found)}")
    return chosen


def _names(devices: list[NodeDevice]) -> str:
    return ", ".join(sorted({device.place for device in devices}))
