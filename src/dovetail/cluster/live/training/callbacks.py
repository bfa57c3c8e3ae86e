"""Leases for training loops that others wrote: one callback for Hugging Face's Trainer, one for Lightning's."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from dovetail.cluster.live.training.lease import TrainingLease
from dovetail.cluster.live.training.resume import random_states, set_random_states
from dovetail.core.errors import MissingExtraError


def trainer_callback() -> Any:
    """For `transformers.Trainer(..., callbacks=[trainer_callback()])`: at the end of the lease it saves and stops; what
    the Trainer saves in its `output_dir`, which should be $DOVETAIL_CHECKPOINT_DIR, becomes the job's checkpoint."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise MissingExtraError("models", "transformers", "trainer_callback") from None
    lease = TrainingLease()

    class LeaseCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            lease.steps = state.global_step
            lease.go_on()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            lease.steps = state.global_step
            if lease.steps >= state.max_steps:
                lease.complete()
            control.should_training_stop |= not lease.go_on()
            control.should_save |= lease.done or lease.all_save()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            lease.commit()

    return LeaseCallback()


def lightning_callback(checkpoint: str | os.PathLike[str] | None = None) -> Any:
    """For `lightning.Trainer(callbacks=[lightning_callback()])`: at the end of the lease it saves to `checkpoint`
    (last.ckpt in $DOVETAIL_CHECKPOINT_DIR) and stops; `fit(..., ckpt_path=callback.ckpt_path)` goes on from there,
    after `callback.steps` steps. Lightning begins an interrupted epoch's data anew, unless the loader does better."""
    try:
        import torch
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        raise MissingExtraError("lightning", "lightning", "lightning_callback") from None
    lease = TrainingLease()
    resumed: dict[str, Any] = {}
    path = Path(checkpoint or Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR", "checkpoints"), "last.ckpt"))

    class LightningLeaseCallback(Callback):  # type: ignore[misc]
        @property
        def ckpt_path(self) -> str | None:
            return str(path) if path.exists() else None

        @property
        def steps(self) -> int:
            return int(torch.load(path, weights_only=False, mmap=True)["global_step"]) if path.exists() else 0

        def state_dict(self) -> dict[str, Any]:
            return {"random": pickle.dumps(random_states()).hex()}  # what Lightning reads back has plain types only

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            resumed.update(pickle.loads(bytes.fromhex(state_dict["random"])))

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            set_random_states(resumed)  # its loader has drawn from them
            lease.steps = trainer.global_step
            lease.go_on()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            lease.steps = trainer.global_step
            if not trainer.should_stop and not lease.go_on():
                trainer.should_stop = True
            if lease.done or lease.all_save():
                self._save(trainer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if not lease.done:
                lease.complete()
                self._save(trainer)

        def _save(self, trainer: Any) -> None:
            trainer.save_checkpoint(path)
            lease.commit()

    return LightningLeaseCallback()
