"""Executors without models, for tests of the service: they answer from a thread, when they are told to, or never."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core.events import Failed, Finished, Observed, Order, Start, Stop
from dovetail.core.loop.inbox import Inbox
from dovetail.workflow.live.protocol import Answer, AnswerPiece, BackEndError, ModelCall
from dovetail.workflow.live.runs import Runs


class TestCarrier:
    """Answers each call with what `answer` makes of it, from one thread; with `hold`, only those that are let go."""

    __test__ = False

    def __init__(self, inbox: Inbox, runs: Runs, hold: bool = False, gpus: int = 2) -> None:
        self.inbox, self.runs, self.hold, self.gpus = inbox, runs, hold, gpus
        self.calls: list[ModelCall] = []
        self.large = ""  # what to answer with
        self._changed = threading.Condition()
        self._waiting: list[tuple[Start, ModelCall]] = []
        self._allowed = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="test carrier")

    def start(self) -> None:
        self._thread.start()

    def carry(self, orders: Sequence[Order], now: float) -> None:
        for order in orders:
            if isinstance(order, Stop):
                self._drop(order)
            elif isinstance(order, Start):
                try:
                    call = self.runs.call(order.job, order.task, order.kind, f"{order.job}/{order.task}")
                except BackEndError as error:
                    self.inbox.put(Failed(order.job, order.task, str(error)))
                    continue
                with self._changed:
                    self.calls.append(call)
                    self._waiting.append((order, call))
                    self._changed.notify_all()

    def _drop(self, order: Stop) -> None:
        with self._changed:
            left = [(s, c) for s, c in self._waiting if (s.job, s.task) != (order.job, order.task)]
            waited, self._waiting = len(left) < len(self._waiting), left
        if waited:  # else its end has been told, or is about to be
            self.inbox.put(Failed(order.job, order.task, "stopped"))

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        why, gpus = "the service was restarted", list(range(self.gpus))
        lost = [Failed(job, task, why, lost=True) for job, task in desired]
        self.inbox.put(Observed("emptied", {"gpus": gpus, "why": why}), *lost)

    def let_go(self, count: int = 1) -> None:
        """Let so many more calls be answered."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._waiting and (self._allowed > 0 or not self.hold)))
                if self._closed:
                    return
                self._allowed -= 1
                start, call = self._waiting.pop(0)
            self.answer(start, call)

    def answer(self, start: Start, call: ModelCall) -> None:
        told = str(call.inputs.get("text", call.inputs.get("prompt", "")))
        if "fail" in told:
            self.inbox.put(Failed(start.job, start.task, "it cannot be done"))
            return
        text = self.large or f"{start.kind}({told})"
        self.runs.piece(start.job, start.task, AnswerPiece(call.id, text))
        given = {"text": text, "then": "think"} if start.task.startswith("think") else {"text": text}
        grew = self.runs.answered(start.job, start.task, Answer(call.id, given, 1, 2))
        where = {"job": start.job, "task": start.task}
        seen = [Observed("first token", where), Observed("tokens", where | {"input": 1, "output": 2})]
        self.inbox.put(*seen, *([grew] if grew is not None else []), Finished(start.job, start.task))

    def status(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
