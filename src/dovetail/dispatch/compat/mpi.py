"""The scheduler for MPI programs: each rank has one device of its host, and a batch can be spread over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.dispatch.inputs.devices import NodeDevice, devices_with, resolve
from dovetail.dispatch.live.mpi import agreed, communicator, mpi

MoreRanks = Literal["error", "round_robin"]
FewerRanks = Literal["idle", "error"]


class SimpleMPIScheduler(Struct, kw_only=True, forbid_unknown_fields=True):
    """One device per rank, out of a list that holds for every host.

    `sub_batch_sizes` and `capacities` have one value, or one per device. `more_ranks`: what to do when a host has more
    ranks than devices (an error, or ranks share devices, in turn); `fewer_ranks`: when it has fewer (devices stay idle,
    or an error).
    """

    devices: Sequence[str | NodeDevice]
    sub_batch_sizes: Sequence[int] = (0,)
    capacities: Sequence[int] | None = None
    more_ranks: MoreRanks = "error"
    fewer_ranks: FewerRanks = "idle"

    def __post_init__(self) -> None:
        self.resolved()

    def resolved(self) -> list[NodeDevice]:
        """The devices with their sizes, if they make sense."""
        return devices_with(self.devices, self.sub_batch_sizes, self.capacities, exist=False)

    def device(self, comm: Any = None) -> NodeDevice:
        """This rank's device. All ranks of the communicator (by default, all) must ask together."""
        comm = communicator(comm)

        def choose() -> NodeDevice:
            rank, ranks = rank_on_host(hosts, comm.rank)
            index = device_index(rank, ranks, len(self.devices), self.more_ranks, self.fewer_ranks)
            return resolve(devices[index])[0]  # of all devices, only this one must be here

        devices = self.resolved()
        hosts = comm.allgather(mpi().Get_processor_name())
        return agreed(comm, choose)

    def dispatcher(self, function: Any, *, comm: Any = None, **options: Any) -> Any:
        """A Dispatcher for this rank's device and its own batches. All ranks must ask together."""
        from dovetail.dispatch.live.dispatcher import Dispatcher

        return Dispatcher(function, [self.device(comm)], **{"policy": "fixed", **options})

    def run(self, function: Any, batch: Any, *, comm: Any = None, root: int | None = None, **options: Any) -> Any:
        """One batch over the devices of all ranks; the result on all of them, or on `root` only.

        Every rank gives the same batch, or all but one give None. Ranks pull from one cursor, so a fast one does more.
        """
        from dovetail.dispatch.live.mpi_batch import run_over_ranks

        comm = communicator(comm)
        if mpi().Query_thread() < mpi().THREAD_SERIALIZED:
            raise DovetailError("MPI was started without threads; expected MPI_THREAD_SERIALIZED at least")
        with self.dispatcher(function, comm=comm, **options) as dispatcher:
            return run_over_ranks(dispatcher, batch, comm, root, options.get("dim", 0), options.get("reduce"))


def rank_on_host(hosts: Sequence[str], rank: int) -> tuple[int, int]:
    """Which of the ranks on its host a rank is, and how many there are; `hosts` has each rank's host.

    >>> rank_on_host(["a", "b", "a", "a"], 2)
    (1, 3)
    """
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return here.index(rank), len(here)


def device_index(
    rank: int, ranks: int, devices: int, more_ranks: MoreRanks = "error", fewer_ranks: FewerRanks = "idle"
) -> int:
    """The device of a rank on its host.

    >>> [device_index(rank, 4, 2, more_ranks="round_robin") for rank in range(4)]
    [0, 1, 0, 1]
    >>> [device_index(rank, 2, 3) for rank in range(2)]
    [0, 1]
    """
    if ranks > devices and more_ranks == "error":
        raise InputError(
            f"{ranks} ranks on one host share {devices} devices; start at most one rank per device, name more devices, "
            "or set more_ranks to round_robin"
        )
    if ranks < devices and fewer_ranks == "error":
        raise InputError(
            f"{ranks} ranks on one host leave {devices - ranks} of {devices} devices idle; start one rank per device, "
            "name fewer devices, or set fewer_ranks to idle"
        )
    return rank % devices
