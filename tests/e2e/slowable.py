"""A model whose layers take their time asleep, however busy the machine is, and ten times as long in one process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

LAYERS = 4
SLEEP_S = 0.03


class Sleeper(nn.Module):
    """Adds one. `flag` is a file that holds the number of the process in which it is slow."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self._flag = Path(flag)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        slow = self._flag.exists() and self._flag.read_text() == str(os.getpid())
        time.sleep(10 * SLEEP_S if slow else SLEEP_S)
        return value + 1


def model(flag: str) -> nn.Module:
    made = nn.Sequential(*(Sleeper(flag) for _ in range(LAYERS)))
    made.input_shapes = ((4,),)  # type: ignore[assignment]
    return made
