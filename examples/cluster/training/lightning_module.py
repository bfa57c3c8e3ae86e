"""A Trainer of Lightning's under a lease: one callback, and the checkpoint that it names.

python lightning_module.py --steps 200
"""

import argparse

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import nn

from dovetail.cluster import ElasticBatches, lightning_callback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
torch.manual_seed(1)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        print("loss", loss.item().hex(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


lease = lightning_callback()  # waits until it is this job's turn
made = torch.Generator().manual_seed(0)
inputs = torch.randn(96, 8, generator=made)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
order = ElasticBatches(len(dataset), batch=8, seed=1)
order.resume_at(lease.steps)
loader = torch.utils.data.DataLoader(dataset, batch_sampler=order)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=args.steps,
    callbacks=[lease],
    plugins=[LightningEnvironment()],
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Regression(), loader, ckpt_path=lease.ckpt_path)
