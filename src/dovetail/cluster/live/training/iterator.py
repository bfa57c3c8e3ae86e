"""A data loader that ends when the lease does: what a training script needs to be preempted and to go on.

    batches = LeaseIterator(loader, "checkpoints", load, save)
    batches.load_checkpoint()
    for batch in batches:
        train(batch)
    batches.save_checkpoint()

It imports nothing that the program has not imported itself.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dovetail.cluster.live.training.keepers import HiddenStateKeeper, OptimizerKeeper
from dovetail.cluster.live.training.lease import CheckpointRefusedError, TrainingLease, torch_distributed
from dovetail.cluster.live.training.resume import (
    Position,
    random_states,
    read_position,
    set_random_states,
    write_position,
)

Batch = TypeVar("Batch")


class LeaseIterator(Generic[Batch]):
    """Gives the loader's batches as long as the job's lease lasts; then `done` is true and every pass ends at once.

    The lease is renewed when three quarters of what was last granted are over. All ranks of a job stop before the same
    step. `load` and `save` are called by `load_checkpoint` and `save_checkpoint` with their arguments; what is saved in
    `checkpoint_dir` becomes the job's checkpoint when `save` returns, unless the lease was taken away. A service that
    started the process names the folder in DOVETAIL_CHECKPOINT_DIR, which takes the place of `checkpoint_dir`.

    After `total_steps` of the job, or as many as it was submitted with, it is complete.

    A lease that goes on is a reason to save as well: what is not saved is lost if the process is killed. A `save` that
    needs no arguments is called by itself then, between two steps and by rank 0, unless `save_each_round` is false.
    Where torch.distributed is in use it has to be true for that: a `save` in which ranks talk to each other would wait
    for ever.

    A pass that was interrupted is taken up where it was: as many batches as were given out are drawn again from the
    loader, with the random numbers of that time, and dropped. A loader, or its `batch_sampler` or `sampler`, that has a
    method `resume_at(step)` is told the step in place of that; `replay=False` leaves it all to the program.
    `keep_unsaved` keeps what torch's optimizers and recurrent layers remember, for programs whose `save` does not.

    Outside of a service it gives all batches, and stops at SIGTERM.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        checkpoint_dir: str | os.PathLike[str] = "checkpoints",
        load: Callable[..., Any] | None = None,
        save: Callable[..., Any] | None = None,
        *,
        total_steps: int | None = None,
        replay: bool = True,
        save_each_round: bool | None = None,
        keep_unsaved: bool = False,
        lease: TrainingLease | None = None,
    ) -> None:
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader: expected something to iterate over, found {type(loader).__name__}")
        self.checkpoint_dir = Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR") or checkpoint_dir)
        self.lease = lease or TrainingLease()
        if self.lease.total_steps is None:
            self.lease.total_steps = total_steps
        self._loader = loader
        self._load, self._save = load, save
        self._replay, self._save_each_round = replay, save_each_round
        self._keepers: list[OptimizerKeeper | HiddenStateKeeper] = []
        if keep_unsaved:
            self._keepers = [OptimizerKeeper(), HiddenStateKeeper()]
        self._resume: Position | None = None
        self._skips = True  # what was given out, unless the loader goes on there by itself
        self._iterator: Iterator[Batch] | None = None
        self._given: int | None = None
        self._pass_random: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        """Whether the process is to save and leave: the lease is over, or the job is complete."""
        return self.lease.done

    @property
    def steps(self) -> int:
        """Steps of the job in all its leases; the one that is being done counts."""
        return self.lease.steps

    @property
    def beside(self) -> str:
        """The model of the job that shares the accelerators at the moment, if there is one."""
        return self.lease.beside

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Self:
        resume, self._resume = self._resume, None
        if resume is not None and resume.given is not None:
            set_random_states(resume.pass_random)
        self._pass_random = random_states()
        self._iterator = iter(self._loader)
        self._given = 0
        if resume is not None and resume.given is not None:
            for _ in range(resume.given if self._skips else 0):
                next(self._iterator, None)
            self._given = resume.given
            set_random_states(resume.random)
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            iter(self)
        assert self._iterator is not None
        if not self.lease.go_on():
            self._stop()
            raise StopIteration
        if self.lease.save_due and self._saves_itself:
            self._save_in_passing()
        try:
            batch = self._next_batch(self._iterator)
        except StopIteration:
            self._given = None
            raise
        assert self._given is not None
        self._given += 1
        self.lease.steps += 1
        return batch

    def complete(self) -> None:
        """All of the job's work is done: to be called before the last `save_checkpoint`."""
        self.lease.complete()

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """What `load` gives; the next pass then goes on where the checkpoint was made."""
        self.lease.happened("load_begin")
        found = self._load(*args, **kwargs) if self._load is not None else None
        self.lease.happened("load_end")
        self._take_up()
        return found

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """What `save` gives; what it wrote is then the job's checkpoint."""
        self.lease.happened("save_begin")
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        made = self._save(*args, **kwargs) if self._save is not None else None
        self._write_position()
        self.lease.happened("save_end")
        self.lease.commit()
        return made

    @property
    def _saves_itself(self) -> bool:
        """Whether `save` can be called here, without arguments."""
        wanted = self._save_each_round
        if wanted is None:
            wanted = self.lease.width == 1 or torch_distributed() is None
        if self._save is None or not wanted:
            return False
        from inspect import signature  # takes a while, and is needed by who trains for more than one round

        try:
            signature(self._save).bind()
        except TypeError:
            self._save_each_round = False
        else:
            self._save_each_round = True
        return self._save_each_round

    def _save_in_passing(self) -> None:
        try:
            self.save_checkpoint()
        except CheckpointRefusedError as error:
            self.lease.save_due = False
            warnings.warn(f"{error}; training goes on", stacklevel=3)

    def _next_batch(self, iterator: Iterator[Batch]) -> Batch:
        return next(iterator)

    def _stop(self) -> None:
        """Every rank keeps its place before rank 0 saves the model."""
        if self.lease.rank != 0:
            with suppress(FileNotFoundError):  # rank 0 has saved already: its place is taken for this one's, too
                self._write_position()
        if (distributed := torch_distributed()) is not None:
            distributed.barrier()

    def _write_position(self) -> None:
        position = Position(
            self.lease.steps,
            self.lease.width,
            self._given,
            self._pass_random,
            random_states(),
            [keeper.states() for keeper in self._keepers],
        )
        write_position(self.checkpoint_dir, self.lease.rank, position)

    def _take_up(self) -> None:
        first = read_position(self.checkpoint_dir, 0)
        if first is None:
            return
        self.lease.steps = first.steps
        for keeper, kept in zip(self._keepers, first.kept, strict=False):
            keeper.restore(kept, in_pass=bool(first.given))
        own = read_position(self.checkpoint_dir, self.lease.rank)
        if own is None or own.steps != first.steps or first.width != self.lease.width:
            own = first._replace(pass_random={}, random={})  # rank 0 saved alone, or for others: the place is known
        parts: list[Any] = [self._loader, *(getattr(self._loader, name, None) for name in ("batch_sampler", "sampler"))]
        told = [part.resume_at(first.steps) for part in parts if hasattr(part, "resume_at")]
        if told:
            self._skips = False
            ended = own.given is not None and hasattr(self._loader, "__len__") and own.given >= len(self)
            own = own._replace(given=None if ended else own.given, pass_random={})
        elif not self._replay:
            return
        elif first.width != self.lease.width:
            ranks = f"{self.lease.width} in place of {first.width} ranks"
            message = f"the loader cannot go on at step {first.steps} with {ranks}: its pass begins anew"
            warnings.warn(f"{message}; see dovetail.cluster.ElasticBatches", stacklevel=3)
            return
        self._resume = own
        if own.given is None:
            set_random_states(own.random)
