"""A training script for a live cluster: it stops when its turn is over and goes on where it was, bit by bit.

    python train.py --steps 500

Alone it is a plain script, which SIGTERM stops with a checkpoint.
"""

import argparse
import os

import torch
from torch import nn

from dovetail.cluster import LeaseIterator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
torch.manual_seed(1)

made = torch.Generator().manual_seed(0)
inputs = torch.randn(512, 16, generator=made)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())


def load():
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def save():
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


batches = LeaseIterator(loader, "checkpoints", load, save, total_steps=args.steps)
path = batches.checkpoint_dir / "model.pt"
batches.load_checkpoint()
while not batches.done:  # one epoch after the other
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)
batches.save_checkpoint()
