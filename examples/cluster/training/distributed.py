"""Data-parallel training whose number of processes may change from turn to turn: every step has the same samples.

torchrun --nproc-per-node 2 distributed.py --steps 500
"""

import argparse
import os

import torch
from torch import distributed, nn

from dovetail.cluster import ElasticBatches, LeaseIterator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
torch.manual_seed(1)
distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, width = distributed.get_rank(), distributed.get_world_size()

made = torch.Generator().manual_seed(0)
inputs = torch.randn(512, 16, generator=made)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
loader = torch.utils.data.DataLoader(dataset, batch_sampler=ElasticBatches(len(dataset), batch=32))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters())


def load():
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def save():
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


batches = LeaseIterator(loader, "checkpoints", load, save, total_steps=args.steps, save_each_round=True)
path = batches.checkpoint_dir / "model.pt"
batches.load_checkpoint()
while not batches.done:
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        distributed.all_reduce(loss)
        if rank == 0:
            print("loss", (loss.item() / width).hex(), flush=True)
if rank == 0:
    batches.save_checkpoint()
distributed.destroy_process_group()
