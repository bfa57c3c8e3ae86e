"""Accelerators in servers: who holds which. Jobs stay where they are; a wide job gets as few servers as possible."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from dovetail.core.errors import DovetailError


class Devices:
    """Numbered accelerators, type by type and server by server.

    >>> devices = Devices(counts=[4, 2], per_server=[2, 1])
    >>> devices.take(0, 1), devices.take(0, 2), devices.take(0, 1)
    ((0,), (2, 3), (1,))
    >>> devices.take(1, 2), devices.servers((4, 5))
    ((4, 5), 2)
    >>> devices.take(0, 1) is None
    True
    """

    def __init__(self, counts: Sequence[int], per_server: Sequence[int]) -> None:
        firsts = [0, *np.cumsum(counts).tolist()]
        self.type_of: list[int] = np.repeat(np.arange(len(counts)), counts).tolist()
        server_of: list[int] = []
        self._of_type: list[list[int]] = []  # the servers of each type
        for count, size in zip(counts, per_server, strict=True):
            before = server_of[-1] + 1 if server_of else 0
            server_of += [before + i // size for i in range(count)]
            self._of_type.append(list(range(before, before + -(-count // size))))
        self.server_of = server_of
        self._size: list[int] = np.bincount(server_of).tolist() if server_of else []
        total = sum(map(len, self._of_type))
        self._idle: list[list[int]] = [[] for _ in range(total)]  # free devices of each server, the lowest last
        for device in reversed(range(len(server_of))):
            self._idle[server_of[device]].append(device)
        # Where a server has one device: all that are free. One is taken from the end, several from the beginning.
        self._single = [
            list(range(first, first + count)) if size == 1 else None
            for first, count, size in zip(firsts[:-1], counts, per_server, strict=True)
        ]
        # Elsewhere, servers by how many of their devices are free; dicts keep the order in which servers came.
        self._by_free: list[list[dict[int, None]]] = []
        for j, size in enumerate(per_server):
            groups: list[dict[int, None]] = [{} for _ in range(size + 1)]
            for server in self._of_type[j]:
                groups[len(self._idle[server])][server] = None
            self._by_free.append(groups)
        self.free = [int(count) for count in counts]
        self._is_free = bytearray(b"\1" * len(server_of))
        self.down: set[int] = set()
        self.drained: set[int] = set()

    def __len__(self) -> int:
        return len(self.server_of)

    def servers(self, devices: Sequence[int]) -> int:
        """How many servers these devices are in."""
        return len({self.server_of[device] for device in devices})

    def shape(self, devices: Sequence[int]) -> tuple[int, ...]:
        """How many of these devices are in each server, in order.

        >>> Devices(counts=[8], per_server=[4]).shape((1, 2, 5))
        (2, 1)
        """
        return tuple(self._inside(devices).values())

    def _inside(self, devices: Sequence[int]) -> dict[int, int]:
        """How many of these devices are in each server."""
        inside: dict[int, int] = {}
        for device in sorted(devices):
            inside[self.server_of[device]] = inside.get(self.server_of[device], 0) + 1
        return inside

    def whole(self, devices: Sequence[int]) -> bool:
        """Whether these are all devices of the servers that they are in."""
        return all(count == self._size[server] for server, count in self._inside(devices).items())

    def fit(self, j: int, widths: Sequence[int], per_server: int, given: Sequence[int] = ()) -> bool:
        """Whether there is room for jobs of these widths, each in as few servers as possible, if these devices were
        given back.

        >>> devices = Devices(counts=[8], per_server=[4])
        >>> _ = devices.take(0, 1)
        >>> devices.fit(0, [4, 3], 4), devices.fit(0, [4, 4], 4), devices.fit(0, [5, 2], 4)
        (True, False, True)
        """
        back = self._inside(given)
        free = sorted(len(self._idle[server]) + back.get(server, 0) for server in self._of_type[j])
        for width in sorted(widths, reverse=True):
            whole, rest = divmod(width, per_server)
            for size in [per_server] * whole + [rest] * bool(rest):
                at = bisect_left(free, size)
                if at == len(free):
                    return False
                insort(free, free.pop(at) - size)
        return True

    def could_gather(self, devices: Sequence[int]) -> bool:
        """Whether one server could hold as many, if these were given back."""
        j, width = self.type_of[devices[0]], len(devices)
        if any(self._by_free[j][width:]):
            return True
        return any(len(self._idle[server]) + count >= width for server, count in self._inside(devices).items())

    def take(self, j: int, width: int) -> tuple[int, ...] | None:
        """Devices of a type: of one server, the fullest with enough, else of as few as possible; None if too few."""
        if self.free[j] < width:
            return None
        self.free[j] -= width
        single = self._single[j]
        if single is None:
            taken = self._from_servers(j, width)
        elif width == 1:
            taken = (single.pop(),)
        else:
            taken = tuple(sorted(single[:width]))
            del single[:width]
        for device in taken:
            self._is_free[device] = 0
        return taken

    def _from_servers(self, j: int, width: int) -> tuple[int, ...]:
        groups = self._by_free[j]
        for group in groups[width:]:
            if group:
                return self._remove(j, next(iter(group)), width)
        taken: list[int] = []
        for size in range(len(groups) - 1, 0, -1):
            while len(taken) < width and groups[size]:
                taken += self._remove(j, next(iter(groups[size])), min(size, width - len(taken)))
        return tuple(sorted(taken))

    def _remove(self, j: int, server: int, count: int) -> tuple[int, ...]:
        idle = self._idle[server]
        taken = tuple(idle[: -count - 1 : -1])
        del idle[-count:]
        self._move(j, server, len(idle) + count, len(idle))
        return taken

    def _move(self, j: int, server: int, before: int, after: int) -> None:
        groups = self._by_free[j]
        del groups[before][server]
        groups[after][server] = None

    def give(self, devices: Sequence[int]) -> None:
        """Devices are free again, except those that are down or drained."""
        for device in devices:
            if device in self.down or device in self.drained:
                continue
            if self._is_free[device]:
                raise DovetailError(f"accelerator {device} was given back twice, which should not happen")
            self._is_free[device] = 1
            j = self.type_of[device]
            self.free[j] += 1
            single = self._single[j]
            if single is not None:
                single.append(device)
                continue
            server = self.server_of[device]
            idle = self._idle[server]
            idle.append(device)
            if len(idle) > 1:
                idle.sort(reverse=True)
            self._move(j, server, len(idle) - 1, len(idle))

    def all_free(self, devices: Sequence[int]) -> bool:
        return all(self._is_free[device] for device in devices)

    def claim(self, devices: Sequence[int]) -> bool:
        """Take exactly these devices, if all of them are free."""
        if not self.all_free(devices):
            return False
        for device in devices:
            self._withdraw(device)
        return True

    # --- devices that come and go -----------------------------------------------------------------------

    def usable(self, device: int) -> bool:
        return device not in self.down and device not in self.drained

    def fail(self, device: int) -> None:
        """A device is down. Whoever holds it must give it back; a free one is free no more."""
        self.down.add(device)
        self._withdraw(device)

    def mend(self, device: int) -> None:
        """A device is up again, and free."""
        self.down.discard(device)
        self.give((device,))

    def drain(self, device: int) -> None:
        """Nobody new may have a device; whoever holds it keeps it until it is given back."""
        self.drained.add(device)
        self._withdraw(device)

    def undrain(self, device: int, held: bool) -> None:
        self.drained.discard(device)
        if not held:
            self.give((device,))

    def _withdraw(self, device: int) -> None:
        """A device is free no more, if it was."""
        if not self._is_free[device]:
            return
        j, server = self.type_of[device], self.server_of[device]
        self.free[j] -= 1
        self._is_free[device] = 0
        single = self._single[j]
        if single is not None:
            single.remove(device)
        else:
            self._idle[server].remove(device)
            self._move(j, server, len(self._idle[server]) + 1, len(self._idle[server]))

    def join(self, devices: Sequence[int], on: Sequence[int], servers: Sequence[int]) -> None:
        """Devices join, numbered on from those that are there, as are servers; each server is of one type.

        >>> devices = Devices(counts=[0, 1], per_server=[1, 1])
        >>> devices.join([1, 2, 3], on=[0, 0, 0], servers=[1, 1, 2])
        >>> devices.take(0, 2), devices.take(0, 2), devices.take(0, 1)
        ((1, 2), None, (3,))
        """
        for device, j, server in zip(devices, on, servers, strict=True):
            new = server == len(self._size)
            if device != len(self) or server > len(self._size) or not (new or server in self._of_type[j]):
                raise DovetailError(f"accelerator {device} of type {j} joins server {server}: expected the next number")
            if new:
                self._size.append(0)
                self._idle.append([])
                self._of_type[j].append(server)
                self._by_free[j][0][server] = None
            elif self._single[j] is not None:
                self._tell_servers_apart(j)
            self._size[server] += 1
            while len(self._by_free[j]) <= self._size[server]:
                self._by_free[j].append({})
            self.type_of.append(j)
            self.server_of.append(server)
            self._is_free.append(0)
            self.give((device,))

    def _tell_servers_apart(self, j: int) -> None:
        """A server of a type that had one device in each has another one now."""
        free, self._single[j] = self._single[j] or [], None
        groups: list[dict[int, None]] = [{} for _ in self._by_free[j]]
        for server in self._of_type[j]:
            self._idle[server] = sorted((d for d in free if self.server_of[d] == server), reverse=True)
            groups[len(self._idle[server])][server] = None
        self._by_free[j] = groups
