"""A script as they were written for Gavel: a recurrent language model whose hidden state goes from batch to batch.

    python language_model.py --steps 100 --checkpoint_dir checkpoints --enable_gavel_iterator

It saves its model alone. What it imports is `gavel_iterator`, which a cluster service puts on the path of the commands
that it starts.
"""

import argparse
import os

import torch
from gavel_iterator import GavelIterator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--bptt", type=int, default=10)
parser.add_argument("--checkpoint_dir", required=True)
parser.add_argument("--enable_gavel_iterator", action="store_true")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)
WORDS = 50


class Text(torch.utils.data.Dataset):
    """Each word follows from the last two; every column of a batch goes on in the next one."""

    def __init__(self, length=2000):
        words = [1, 2]
        while len(words) < length:
            words.append((3 * words[-1] + words[-2]) % WORDS)
        self.columns = torch.tensor(words[: length // args.batch_size * args.batch_size]).view(args.batch_size, -1)

    def __len__(self):
        return (self.columns.shape[1] - 1) // args.bptt * args.batch_size

    def __getitem__(self, index):
        row, column = divmod(index, args.batch_size)
        piece = self.columns[column, row * args.bptt : (row + 1) * args.bptt + 1]
        return piece[:-1], piece[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.rnn = nn.LSTM(32, 32, 2, dropout=0.2)
        self.decoder = nn.Linear(32, WORDS)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.embedding(words), hidden)
        return self.decoder(output), hidden


def load_checkpoint(path):
    return torch.load(path) if os.path.exists(path) else None


def save_checkpoint(state, path):
    torch.save(state, path)


loader = torch.utils.data.DataLoader(Text(), batch_size=args.batch_size)
path = os.path.join(args.checkpoint_dir, "model.chkpt")
model = Model()
if args.enable_gavel_iterator:
    loader = GavelIterator(loader, args.checkpoint_dir, load_checkpoint, save_checkpoint)
    checkpoint = loader.load_checkpoint(path)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

steps = 0
while steps < args.steps and not (args.enable_gavel_iterator and loader.done):
    hidden = (torch.zeros(2, args.batch_size, 32), torch.zeros(2, args.batch_size, 32))
    for words, targets in loader:
        hidden = tuple(state.detach() for state in hidden)
        model.zero_grad()
        output, hidden = model(words.t(), hidden)
        loss = criterion(output.reshape(-1, WORDS), targets.t().flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)
        steps += 1
        if steps >= args.steps:
            break
if args.enable_gavel_iterator:
    if steps >= args.steps:
        loader.complete()
    loader.save_checkpoint({"model": model.state_dict()}, path)
else:
    save_checkpoint({"model": model.state_dict()}, path)
