"""`from gavel_iterator import GavelIterator`, for training scripts that were written for Gavel.

Signature, environment and log lines are the older system's, the lease is Dovetail's. Beyond the older system, a pass
over the data is taken up where it was interrupted, with the random numbers, the optimizers' momentum and the hidden
state of that time.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from dovetail.cluster import LeaseIterator, TrainingLease
from dovetail.core.errors import DovetailError

_FORMAT = "[{asctime}] [{event}] [{status}] {message}"
_UNLIMITED = 10**9
_log = logging.getLogger("gavel_iterator")
_log.propagate = False
_log.setLevel(logging.DEBUG)


def _tell(event: str, status: str, message: str = "") -> None:
    _log.info(message, extra={"event": event, "status": status})


class _LoggedLease(TrainingLease):
    """Tells the log what it asks and gets, in the older system's words."""

    def __init__(self, log_file: Path) -> None:
        kept = MemoryHandler(capacity=100)
        _log.handlers = [kept]
        _tell("INIT", "REQUESTING")
        try:
            super().__init__()
        except DovetailError as error:
            _tell("INIT", "ERROR", str(error))
            raise
        finally:
            _write_to(log_file, kept)
        self.first_steps = self.steps
        if self.max_steps > 0 and self.max_duration > 0:
            _tell(
                "INIT", "COMPLETE", f"Initial lease: max_steps {self.max_steps}, max_duration={self.max_duration:.4f}"
            )
        else:
            _tell("INIT", "FAILED")

    @property
    def max_steps(self) -> int:
        """Of this process, as all that the older system counts."""
        limits = [limit for limit in (self.total_steps, self.stop_steps) if limit is not None]
        return min(limits) - self.first_steps if limits else _UNLIMITED

    @property
    def max_duration(self) -> float:
        return min(self.seconds + self.left_s, float(_UNLIMITED))

    def renew(self, now: float) -> bool:
        _tell("LEASE", "REQUESTING")
        answered = super().renew(now)
        if answered:
            words = f"New lease: max_steps={self.max_steps}, max_duration={self.max_duration:.4f}"
            _tell("LEASE", "UPDATED", words)
        else:
            _tell("LEASE", "ERROR", "the agent does not answer")
        return answered


class GavelIterator(LeaseIterator[Any]):
    def __init__(
        self,
        data_loader: Iterable[Any],
        checkpoint_dir: str,
        load_checkpoint_func: Callable[..., Any],
        save_checkpoint_func: Callable[..., Any],
        synthetic_data: bool = False,
        write_on_close: bool = True,
        verbose: bool = True,
    ) -> None:
        if not isinstance(data_loader, Iterable):
            raise ValueError(f"Data is of uniterable type {type(data_loader)}")
        self._write_on_close = write_on_close
        self._synthetic_data = synthetic_data
        self._initial_val: Any = None
        self._logged = lease = _LoggedLease(_log_file(Path(checkpoint_dir)))
        super().__init__(
            data_loader, checkpoint_dir, load_checkpoint_func, save_checkpoint_func, keep_unsaved=True, lease=lease
        )
        self._write_info()
        if write_on_close:
            atexit.register(self._write_info)

    def __next__(self) -> Any:
        was_done = self.done
        try:
            return super().__next__()
        except StopIteration:
            if self.done and not was_done:
                lease = self._logged
                steps = f"{lease.steps - lease.first_steps} / {lease.max_steps} steps"
                _tell("LEASE", "EXPIRED", f"{steps}, {lease.seconds:.4f} / {lease.max_duration:.4f} seconds")
            else:
                self._write_info()
            raise

    def complete(self) -> None:
        super().complete()
        if not self._write_on_close:
            self._write_info()
        _tell("LEASE", "COMPLETE")

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        _tell("LOAD CHECKPOINT", "BEGIN")
        checkpoint = super().load_checkpoint(*args, **kwargs)
        _tell("LOAD CHECKPOINT", "END")
        self._logged.first_steps = self.steps
        return checkpoint

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        _tell("SAVE CHECKPOINT", "BEGIN")
        made = super().save_checkpoint(*args, **kwargs)
        _tell("SAVE CHECKPOINT", "END")
        return made

    def _next_batch(self, iterator: Iterator[Any]) -> Any:
        """Synthetic data is the first batch again and again."""
        if not self._synthetic_data:
            return super()._next_batch(iterator)
        if self._initial_val is None:
            self._initial_val = super()._next_batch(iterator)
        elif self._given == len(self):
            raise StopIteration
        return self._initial_val

    def _write_info(self) -> None:
        _tell("PROGRESS", "STEPS", str(self.steps - self._logged.first_steps))
        _tell("PROGRESS", "DURATION", str(self._logged.seconds))


def _log_file(checkpoint_dir: Path) -> Path:
    names = (("GAVEL_ROUND_ID", "DOVETAIL_EPOCH"), ("GAVEL_WORKER_ID", "DOVETAIL_RANK"))
    round_id, worker_id = (os.environ.get(old) or os.environ.get(new) or "0" for old, new in names)
    return checkpoint_dir / ".gavel" / f"round={round_id}" / f"worker={worker_id}.log"


def _write_to(path: Path, kept: MemoryHandler) -> None:
    """From now on, with what was kept so far: until its turn has come a process writes nothing to its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%d %H:%M:%S", style="{"))
    kept.setTarget(file)
    kept.close()
    _log.handlers = [file]
