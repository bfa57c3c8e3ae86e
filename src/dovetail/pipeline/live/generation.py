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
    from dovetail.pipeline.live.sampling import TokenSampling
    from dovetail.pipeline.models.spec import ModelSpec, Value
    from dovetail.pipeline.plan import Plan


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
    """What generation came to. The steady rate is that of the time in which all sequences were being decoded, by the
    plan that lived longest, and a step is the median time from a lane's token to its next then; predicted is what that
    plan says."""

    sequences: int
    completed: int
    tokens: int
    tokens_s: float
    steady_tokens_s: float | None
    step_s: float | None
    soonest_first_token_s: float | None  # over sequences: the prediction is for one that waits for no other
    first_token_s: float | None  # the median
    longest_first_token_s: float | None
    predicted_tokens_s: float | None
    predicted_first_token_s: float | None


class _LayoutTimes(Struct):
    """When tokens came of one layout, and of which sequences."""

    sequences: int
    came_s: list[float] = field(default_factory=list)
    firsts_s: dict[int, float] = field(default_factory=dict)
    steps_s: list[float] = field(default_factory=list)  # from one step of a lane to its next, once all are decoded
    ended_s: float | None = None  # when the first sequence was complete

    @property
    def steady_tokens_s(self) -> float | None:
        """Tokens per second from when all sequences were being decoded, until the first ended or the layout did."""
        if len(self.firsts_s) < self.sequences or not self.came_s:
            return None
        begin_s, end_s = max(self.firsts_s.values()), self.ended_s or self.came_s[-1]
        return sum(begin_s < at_s <= end_s for at_s in self.came_s) / (end_s - begin_s) if end_s > begin_s else None


class _Lane(Struct):
    rows: list[GeneratedSequence] = field(default_factory=list)
    keep: list[int] | None = None  # what the stages are to keep with the next step
    came_s: float | None = None  # when its last step came


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
        sampling: TokenSampling | None = None,
        take: Callable[[int, int], None] = lambda number, token: None,
    ) -> None:
        """`ends` are tokens that end a sequence; `take` is told of every token, by the number of its prompt. Tokens are
        the most likely ones, or drawn with `sampling`."""
        self.model, self.dtype, self.sampling = model, dtype, sampling
        self.total: int | None = None  # of steps: not known before
        self.decodes = True
        self.sequences = [GeneratedSequence(list(prompt)) for prompt in prompts]
        self._numbers = {id(sequence): number for number, sequence in enumerate(self.sequences)}
        self._most, self._ends, self._size, self._count = max_new_tokens, ends, lane_size, lanes
        self._take = take
        self._changed = threading.Condition()
        self._origin_s: float | None = None
        self.came_s: list[float] = []  # when each token came
        self._times: dict[int, _LayoutTimes] = {}

    def restart(self, generation: int) -> None:
        """The layout of a plan, by its number, begins; its caches are empty."""
        with self._changed:
            if self._origin_s is None:
                self._origin_s = time.monotonic()
            self._interrupted = False
            self._waiting = deque(sequence for sequence in self.sequences if sequence.last_s is None)
            self._now = self._times[generation] = _LayoutTimes(len(self._waiting))
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
                step = DecodeStep(at, lengths, keep, True, *self._draws(joining))
                return torch.tensor([joining.prompt + joining.tokens]), step
            self._under_way[number] = (at, None)
            return torch.tensor([sequence.tokens[-1:] for sequence in lane.rows]), DecodeStep(at, lengths, keep)

    def _draws(self, joining: GeneratedSequence) -> tuple[int, ...]:
        """By which seed a sequence draws its tokens, and how many it has, if they are drawn."""
        if self.sampling is None:
            return ()
        return self.sampling.seed + self._numbers[id(joining)], len(joining.tokens)

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
            if lane.came_s is not None and joined is None and len(self._now.firsts_s) == self._now.sequences:
                self._now.steps_s.append(now_s - lane.came_s)
            lane.came_s = now_s
            for sequence, token in zip(given, found, strict=True):
                sequence.tokens.append(token)
                self.came_s.append(now_s)
                self._now.came_s.append(now_s)
                self._now.firsts_s.setdefault(id(sequence), now_s)
                sequence.first_s = now_s if sequence.first_s is None else sequence.first_s
                if token in self._ends or len(sequence.tokens) >= self._most:
                    sequence.last_s = now_s
                    self._now.ended_s = self._now.ended_s or now_s
            staying = [i for i, sequence in enumerate(lane.rows) if sequence.last_s is None]
            if len(staying) < len(lane.rows):
                lane.keep, lane.rows = staying, [lane.rows[i] for i in staying]
            self._ready.append(at)
            self._changed.notify_all()
        for sequence, token in zip(given, found, strict=True):
            self._take(self._numbers[id(sequence)], token)

    def figures(self, generation: int, asked: Plan, used: Plan) -> DecodingFigures:
        """What came of it. `used` is the plan of this number, which lived longest; `asked` is the first."""
        firsts = [sequence.first_s for sequence in self.sequences if sequence.first_s is not None]
        tokens = len(self.came_s)
        times = self._times.get(generation)
        return DecodingFigures(
            sequences=len(self.sequences),
            completed=sum(sequence.last_s is not None for sequence in self.sequences),
            tokens=tokens,
            tokens_s=tokens / self.came_s[-1] if tokens and self.came_s[-1] > 0 else 0.0,
            steady_tokens_s=None if times is None else times.steady_tokens_s,
            step_s=None if times is None or not times.steps_s else median(times.steps_s),
            soonest_first_token_s=min(firsts, default=None),
            first_token_s=median(firsts) if firsts else None,
            longest_first_token_s=max(firsts, default=None),
            predicted_tokens_s=_predicted_tokens_s(asked, used),
            predicted_first_token_s=None if used.generation is None else used.generation.ttft_s,
        )


def _predicted_tokens_s(asked: Plan, used: Plan) -> float | None:
    """What a plan says of tokens per second, if it was made for generation, or again after one that was: then by the
    same groups, since the data host feeds as many lanes as before."""
    told = asked.generation
    if used.generation is not None or told is None:
        return None if used.generation is None else used.generation.tokens_s
    step_s = max(used.latency_s, told.groups * used.bottleneck_s)
    return told.concurrency / step_s if step_s > 0 else None
