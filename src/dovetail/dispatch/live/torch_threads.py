"""How many threads PyTorch's operations on the host have, on one thread of ours and on no other."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

_setting = Lock()  # between the two numbers that are set, no other thread takes over the first


def use_torch_threads(count: int) -> int:
    """Operations on this thread have so many; the number before is given back.

    A thread begins with the number that was set last, by whichever thread: those that begin later get what they would
    have got.
    """
    with _setting, ThreadPoolExecutor(1, "dovetail keeper") as keeper:
        before: int = torch.get_num_threads()
        try:
            others: int = keeper.submit(torch.get_num_threads).result()
        except RuntimeError:  # the interpreter ends: no thread begins any more
            return before
        torch.set_num_threads(count)
        keeper.submit(torch.set_num_threads, others).result()
    return before


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
