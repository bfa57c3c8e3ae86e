"""hosts.yml: what each host of a plan is on real machines: cores, threads, a share of them, a device, a node."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.pipeline.hardware import check_device

DEVICE = re.compile(r"cpu|cuda(:\d+)?")


class HostSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`share` is in cores: 0.5 is half of one. `node` is a Ray node's address, name or id, or a resource it has. A host
    without a `device` is matched to one that this machine has."""

    cores: tuple[int, ...] = ()
    threads: int | None = None
    share: float | None = None
    device: str | None = None
    node: str | None = None


def read_hosts(hosts: Source, known: Collection[str], local: bool = True) -> dict[str, HostSettings]:
    """Settings by host. `local` also checks that the cores exist here."""
    doc = Document.of(hosts, "hosts")
    found = doc.convert(doc.data, dict[str, HostSettings])
    here = os.sched_getaffinity(0)
    for host, settings in found.items():
        if host not in known:
            raise doc.error((host,), f"is not a host of the plan{did_you_mean(host, known)}")
        if settings.device is not None and not DEVICE.fullmatch(settings.device):
            raise doc.error((host, "device"), f"expected cpu, cuda or cuda:N, found {settings.device!r}")
        if settings.threads is not None and settings.threads < 1:
            raise doc.error((host, "threads"), f"expected at least 1, found {settings.threads}")
        if settings.share is not None and not 0.05 <= settings.share <= 4096:
            raise doc.error((host, "share"), f"expected cores from 0.05, found {settings.share:g}")
        if local and settings.device is not None:
            try:
                check_device(settings.device)
            except InputError as error:
                raise doc.error((host, "device"), str(error)) from None
        absent = sorted(set(settings.cores) - here) if local else []
        if absent:
            raise doc.error((host, "cores"), f"found {absent}, expected some of {sorted(here)}")
    return found
