"""Where the loop waits: nothing that is put in, from whatever thread, is slept over, and files are looked after."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from math import inf

import pytest

from dovetail.core.events import Asked
from dovetail.host.live.loop_inbox import LoopInbox


@pytest.fixture
def inbox() -> Iterator[LoopInbox]:
    inbox = LoopInbox()
    yield inbox
    inbox.release()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("timeout_s", [None, inf, 1e9])
def test_what_is_put_in_while_nobody_looks_ends_the_wait(inbox: LoopInbox, timeout_s: float | None) -> None:
    many = [Asked(str(i), "pause") for i in range(500)]

    def put() -> None:
        for each in many:
            inbox.put(each)

    thread = threading.Thread(target=put)
    thread.start()
    heard: list[object] = []
    while len(heard) < len(many):
        heard += inbox.take(timeout_s) or ()
    thread.join()
    assert heard == many
    assert inbox.take(0.0) == []
    inbox.close()
    assert inbox.take(timeout_s) is None


def test_what_happened_before_goes_out_first(inbox: LoopInbox) -> None:
    inbox.put(Asked("3", "pause"))
    inbox.put_first([Asked("1", "pause"), Asked("2", "pause")])
    inbox.put(Asked("4", "pause"))
    assert inbox.take() == [Asked(job, "pause") for job in "1234"]


def test_what_a_file_says_is_taken_in_at_once(inbox: LoopInbox, pipe: tuple[int, int]) -> None:
    read, write = pipe

    def hear() -> None:
        inbox.put(Asked(os.read(read, 10).decode(), "resume"))

    inbox.watch(read, hear)
    os.write(write, b"one")
    assert inbox.take() == [Asked("one", "resume")]
    inbox.watch(read, lambda: inbox.put(Asked(os.read(read, 10).decode(), "pause")))
    os.write(write, b"two")
    assert inbox.take() == [Asked("two", "pause")]
    inbox.forget(read)
    inbox.forget(read)
    os.write(write, b"three")
    assert inbox.take(0.0) == []


def test_what_came_from_both_goes_out_together(inbox: LoopInbox, pipe: tuple[int, int]) -> None:
    read, write = pipe
    inbox.watch(read, lambda: inbox.put(Asked(os.read(read, 10).decode(), "resume")))
    inbox.put(Asked("put", "pause"))
    os.write(write, b"file")
    assert inbox.take() == [Asked("put", "pause"), Asked("file", "resume")]
