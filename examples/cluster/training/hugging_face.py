"""A Trainer of Hugging Face's under a lease: one callback, and its output folder.

python hugging_face.py --steps 200
"""

import argparse
import os

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from dovetail.cluster import trainer_callback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
torch.manual_seed(1)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x, labels):
        loss = nn.functional.mse_loss(self.layers(x).squeeze(1), labels)
        if self.training:
            print("loss", loss.item().hex(), flush=True)
        return {"loss": loss}


folder = os.environ.get("DOVETAIL_CHECKPOINT_DIR", "checkpoints")
made = torch.Generator().manual_seed(0)
dataset = [{"x": x, "labels": x.sum().sin()} for x in torch.randn(96, 8, generator=made)]
settings = TrainingArguments(
    folder,
    max_steps=args.steps,
    per_device_train_batch_size=8,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    dataloader_pin_memory=False,
)
trainer = Trainer(Regression(), settings, train_dataset=dataset)
trainer.add_callback(trainer_callback())  # waits until it is this job's turn
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
