"""Many calls of one language model at once: a call joins the running batch between two steps and leaves it likewise.

A prompt is read alone, so the first token is the one that it would have alone. Then its keys and values join those of
the others, and every step computes one token for each. The arithmetic of a batch is that of one sequence up to the
order of additions: greedy answers are the same unless two tokens are as likely as each other to the last bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from dovetail.core.errors import is_out_of_memory
from dovetail.core.service.key_value_cache import SequenceCache, lengths_mask
from dovetail.workflow.live.backends.sampling import TokenChoice
from dovetail.workflow.live.protocol import BackEndError, OutOfMemoryError


class DecodedCall:
    """A call in the batch. `take` is given every token as it comes, in the decoder's thread, and says whether it wants
    more."""

    def __init__(self, prompt: list[int], choice: TokenChoice, take: Callable[[int], bool], stopped: Event) -> None:
        self.prompt = prompt
        self.choice = choice
        self.take = take
        self.stopped = stopped
        self.length = len(prompt)  # tokens in the cache
        self.ended = Event()
        self.error: BackEndError | None = None

    def end(self, error: BackEndError | None = None) -> None:
        self.error = error
        self.ended.set()


class BatchedDecoder:
    """Runs one model's batch in a thread of its own until it is closed."""

    def __init__(self, model: Any, slots: int, device: torch.device) -> None:
        self.model = model
        self.device = device
        layers = {type(layer) for layer in DynamicCache(config=model.config).layers}
        self.shared = layers <= {DynamicLayer, DynamicSlidingWindowLayer} and not model._is_stateful
        self.slots = slots if self.shared else 1
        self.healthy = True
        self.steps = 0  # of the batch, and how many tokens they made
        self.tokens = 0
        known = inspect.signature(model.forward).parameters
        if "past_key_values" not in known:
            raise BackEndError(f"{type(model).__name__} keeps its state in a way that is not known here")
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._positions = "position_ids" in known
        self._changed = Condition()
        self._waiting: list[DecodedCall] = []
        self._closing = False
        self._rows: list[DecodedCall] = []
        self._cache: Any = None
        self._tokens: Tensor | None = None
        self._thread = Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()

    def decode(self, call: DecodedCall) -> None:
        """Have a call decoded to its end. Raises `BackEndError`."""
        with self._changed:
            self._waiting.append(call)
            self._changed.notify()
        call.ended.wait()
        if call.error is not None:
            raise call.error

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._cache = self._tokens = self.model = None

    @torch.inference_mode()
    def _run(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        while True:
            with self._changed:
                while not (self._waiting or self._rows or self._closing):
                    self._changed.wait()
                if self._closing:
                    for call in (*self._waiting, *self._rows):
                        call.end(BackEndError("the model was unloaded"))
                    return
                for call in self._waiting:  # whoever gave up need not wait for room
                    if call.stopped.is_set():
                        call.end()
                self._waiting = [call for call in self._waiting if not call.ended.is_set()]
                room = self.slots - len(self._rows)
                joining, self._waiting = self._waiting[:room], self._waiting[room:]
            for call in joining:
                self._guarded(lambda call=call: self._admit(call))  # type: ignore[misc]
            if self._rows:
                self._guarded(self._step)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # nobody knows in which state the batch is
            self._fail(self._rows, error)
            self._rows, self._cache, self._tokens = [], None, None

    def _admit(self, call: DecodedCall) -> None:
        """Read a prompt, alone, and put it into the batch if it is to be gone on with."""
        if call.stopped.is_set():
            call.end()
            return
        try:
            cache: Any = SequenceCache() if self.shared else None
            read = torch.tensor([call.prompt], device=self.device)
            found = self.model(input_ids=read, past_key_values=cache, use_cache=True, **self._last)
            token = call.choice.choose(found.logits[0, -1])
        except Exception as error:
            self._fail([call], error)
            return
        if not self._goes_on(call, int(token)):
            return
        self._rows.append(call)
        if self._tokens is None:
            self._cache, self._tokens = found.past_key_values, token[None]
        else:
            self._cache.join(found.past_key_values)
            self._tokens = torch.cat((self._tokens, token[None]))

    def _step(self) -> None:
        """One more token for each."""
        rows, tokens = self._rows, self._tokens
        assert tokens is not None
        lengths = [call.length for call in rows]
        given: dict[str, Any] = {"attention_mask": lengths_mask(lengths, self.device)}
        if self._positions:
            given["position_ids"] = torch.tensor(lengths, device=self.device)[:, None]
        try:
            found = self.model(input_ids=tokens[:, None], past_key_values=self._cache, use_cache=True, **given)
        except Exception as error:
            if not (is_out_of_memory(error) and self.shared and len(rows) > 1):
                raise
            self._fail(rows[-1:], error)  # the others may go on without the youngest
            self._cache.back_to(max(lengths))
            self._stay(list(range(len(rows) - 1)))
            return
        logits = found.logits[:, -1]
        chosen = logits.argmax(-1)
        for i, call in enumerate(rows):
            if not call.choice.sampling.plain:
                chosen[i] = call.choice.choose(logits[i])
        self._tokens = chosen
        self.steps += 1
        staying = []
        for i, (call, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
            call.length += 1
            if self._goes_on(call, token):
                staying.append(i)
        if len(staying) < len(rows):
            self._stay(staying)

    def _stay(self, staying: list[int]) -> None:
        assert self._tokens is not None
        self._rows = [self._rows[i] for i in staying]
        if not staying:
            self._cache = self._tokens = None
            return
        self._tokens = self._tokens[staying]
        self._cache.keep(staying, max(call.length for call in self._rows))

    def _goes_on(self, call: DecodedCall, token: int) -> bool:
        self.tokens += 1
        try:
            if call.take(token) and not call.stopped.is_set():
                return True
            call.end()
        except Exception as error:
            call.end(BackEndError(f"the answer could not be passed on: {error}"))
        return False

    def _fail(self, calls: list[DecodedCall], error: Exception) -> None:
        if is_out_of_memory(error):
            error.__traceback__ = None  # it holds on to what the step had
            lengths = sum(call.length for call in calls)
            why: BackEndError = OutOfMemoryError(f"no memory left for {lengths} tokens on {self.device}: {error}")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        else:
            self.healthy = self.healthy and "CUDA error" not in str(error)  # its context is of no more use
            why = BackEndError(f"{type(error).__name__}: {error}")
        for call in calls:
            call.end(why)
