"""The data host's side of generation: prompts go into lanes, tokens come out, and every step depends on the last.

As many lanes are under way as keep all stages busy; a lane holds as many sequences as the plan's microbatches have
items. When a plan is replaced the caches are gone: every sequence that is not complete is read again, its prompt and
the tokens that it has so far.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from dovetail.pipeline.live.decoding import DecodeStep

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import ModelSpec, Value
    from dovetail.pipeline.plan import GenerationFigures


class GeneratedSequence(Struct):
    """A prompt and what follows it. Times are since the first step could be fed."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    first_s: float | None = None  # when its first token came
    last_s: float | None = None  # when it was complete

    @property
    def read(self) -> int:
        """Tokens in the caches, once it has joined a lane: the newest has not been read."""
        return len(self.prompt) + len(self.tokens) - 1


class DecodingFigures(Struct, frozen=True, kw_only=True):
    """What generation came to. The steady rate is that of the time in which all sequences were being decoded."""

    sequences: int
    completed: int
    tokens: int
    tokens_s: float
    steady_tokens_s: float | None
    first_token_s: float | None  # the median over sequences, and the longest
    longest_first_token_s: float | None
    predicted_tokens_s: float | None
    predicted_first_token_s: float | None


class _Lane(Struct):
    rows: list[GeneratedSequence] = field(default_factory=list)
    keep: list[int] | None = None  # what the stages are to keep with the next step


class TokenStream:
    """Microbatches by number, for a flow: each is a prompt, or the newest token of every sequence of a lane."""

    def __init__(
        self,
        model: ModelSpec,
        dtype: str,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        ends: frozenset[int],
        lanes: int,
        lane_size: int,
        take: Callable[[int, int], None] = lambda number, token: None,
    ) -> None:
        """`ends` are tokens that end a sequence; `take` is told of every token, by the number of its prompt."""
        self.model, self.dtype = model, dtype
        self.total: int | None = None  # of steps: not known before
        self.decodes = True
        self.sequences = [GeneratedSequence(list(prompt)) for prompt in prompts]
        self._numbers = {id(sequence): number for number, sequence in enumerate(self.sequences)}
        self._most, self._ends, self._size, self._count = max_new_tokens, ends, lane_size, lanes
        self._take = take
        self._changed = threading.Condition()
        self._origin_s: float | None = None
        self.came_s: list[float] = []  # when each token came

    def restart(self) -> None:
        """A layout begins; its caches are empty."""
        with self._changed:
            if self._origin_s is None:
                self._origin_s = time.monotonic()
            self._interrupted = False
            self._waiting = deque(sequence for sequence in self.sequences if sequence.last_s is None)
            self._lanes = [_Lane() for _ in range(self._count)]
            self._ready = deque(range(self._count))
            self._under_way: dict[int, tuple[int, GeneratedSequence | None]] = {}  # by number: lane, and who joins

    def interrupt(self) -> None:
        """Nothing more is wanted of this layout."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    @property
    def done(self) -> bool:
        return all(sequence.last_s is not None for sequence in self.sequences)

    @property
    def ready(self) -> bool:
        """Whether a step can be taken at once."""
        return self._next() is not None

    def inputs(self, number: int) -> tuple[Value, DecodeStep] | None:
        """The next step that can be taken, once there is one; None if there will be none."""
        import torch

        with self._changed:
            self._changed.wait_for(lambda: self._interrupted or self.done or self.ready)
            at = self._next()
            if self._interrupted or at is None:
                return None
            self._ready.remove(at)
            lane = self._lanes[at]
            keep, lane.keep = lane.keep, None
            lengths = [sequence.read for sequence in lane.rows]
            if self._waiting and len(lane.rows) < self._size:
                joining = self._waiting.popleft()
                self._under_way[number] = (at, joining)
                return torch.tensor([joining.prompt + joining.tokens]), DecodeStep(at, lengths, keep, joins=True)
            self._under_way[number] = (at, None)
            return torch.tensor([sequence.tokens[-1:] for sequence in lane.rows]), DecodeStep(at, lengths, keep)

    def _next(self) -> int | None:
        """The lane that has waited longest of those that have something to do."""
        return next((at for at in self._ready if self._lanes[at].rows or self._waiting), None)

    def deliver(self, number: int, value: Any) -> None:
        """The tokens that a step gave."""
        found = value.tolist()
        with self._changed:
            now_s = time.monotonic() - (self._origin_s or 0.0)
            at, joined = self._under_way.pop(number)
            lane = self._lanes[at]
            if joined is not None:
                lane.rows.append(joined)
            given = [joined] if joined is not None else lane.rows
            for sequence, token in zip(given, found, strict=True):
                sequence.tokens.append(token)
                self.came_s.append(now_s)
                sequence.first_s = now_s if sequence.first_s is None else sequence.first_s
                if token in self._ends or len(sequence.tokens) >= self._most:
                    sequence.last_s = now_s
            staying = [i for i, sequence in enumerate(lane.rows) if sequence.last_s is None]
            if len(staying) < len(lane.rows):
                lane.keep, lane.rows = staying, [lane.rows[i] for i in staying]
            self._ready.append(at)
            self._changed.notify_all()
        for sequence, token in zip(given, found, strict=True):
            self._take(self._numbers[id(sequence)], token)

    def figures(self, predicted: GenerationFigures | None) -> DecodingFigures:
        """What came of it; `predicted` is what the plan says of generation, if it does."""
        firsts = [sequence.first_s for sequence in self.sequences if sequence.first_s is not None]
        lasts = [sequence.last_s for sequence in self.sequences if sequence.last_s is not None]
        tokens = len(self.came_s)
        steady = None
        if len(lasts) == len(self.sequences) and (span_s := min(lasts) - max(firsts)) > 0:
            steady = sum(max(firsts) < at_s <= min(lasts) for at_s in self.came_s) / span_s
        return DecodingFigures(
            sequences=len(self.sequences),
            completed=len(lasts),
            tokens=tokens,
            tokens_s=tokens / self.came_s[-1] if tokens and self.came_s[-1] > 0 else 0.0,
            steady_tokens_s=steady,
            first_token_s=median(firsts) if firsts else None,
            longest_first_token_s=max(firsts, default=None),
            predicted_tokens_s=None if predicted is None else predicted.tokens_s,
            predicted_first_token_s=None if predicted is None else predicted.ttft_s,
        )
