"""A script as they were written for Gavel: it saves the model and the epoch, and neither optimizer nor random numbers.

    python image_classification.py --num_steps 100 --checkpoint_dir checkpoints --enable_gavel_iterator

What it imports is `gavel_iterator`, which a cluster service puts on the path of the commands that it starts.
"""

import argparse
import os

import torch
from gavel_iterator import GavelIterator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--num_steps", type=int, required=True)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--checkpoint_dir", required=True)
parser.add_argument("--enable_gavel_iterator", action="store_true")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)


class Images(torch.utils.data.Dataset):
    """Noise in ten classes; each look at an image turns it over at random."""

    def __init__(self, samples=160):
        made = torch.Generator().manual_seed(0)
        self.images = torch.randn(samples, 3, 16, 16, generator=made)
        self.labels = torch.randint(0, 10, (samples,), generator=made)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        return image.flip(2) if torch.rand(()) < 0.5 else image, self.labels[index]


def load_checkpoint(path):
    return torch.load(path) if os.path.exists(path) else None


def save_checkpoint(path, state):
    torch.save(state, path)


net = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
    *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 7 * 7, 10)),
)
loader = torch.utils.data.DataLoader(Images(), batch_size=args.batch_size, shuffle=True, num_workers=2)
path = os.path.join(args.checkpoint_dir, "model.chkpt")
first_epoch = 0
if args.enable_gavel_iterator:
    loader = GavelIterator(loader, args.checkpoint_dir, load_checkpoint, save_checkpoint)
    checkpoint = loader.load_checkpoint(path)
    if checkpoint is not None:
        net.load_state_dict(checkpoint["net"])
        first_epoch = checkpoint["epoch"]
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

steps, epoch, done = 0, first_epoch, False
while not done:
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)
        steps += 1
        if steps >= args.num_steps:
            break
    if args.enable_gavel_iterator and steps >= args.num_steps:
        loader.complete()
    done = steps >= args.num_steps or (args.enable_gavel_iterator and loader.done)
    epoch += not done

state = {"net": net.state_dict(), "epoch": epoch}
if args.enable_gavel_iterator:
    loader.save_checkpoint(path, state)
else:
    save_checkpoint(path, state)
