"""A plain transformer encoder as a chain of half blocks: attention, MLP, attention, MLP, ...

dovetail pipeline profile examples/pipeline/transformer.py:encoder
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        items, tokens, width = x.shape
        split = self.query_key_value(self.norm(x)).view(items, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        mixed: torch.Tensor = self.project(seen.transpose(1, 2).reshape(items, tokens, width))
        return x + mixed


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.narrow(functional.gelu(self.widen(self.norm(x))))
        return x + changed


def encoder(blocks: int = 12, width: int = 384, heads: int = 6, sequence: int = 128) -> nn.Sequential:
    """An item is a sequence of `sequence` vectors, each `width` wide; so is what comes out."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for block in range(1, blocks + 1):
        layers[f"attention{block}"] = Attention(width, heads)
        layers[f"mlp{block}"] = MLP(width)
    model = nn.Sequential(layers)
    model.input_shapes = ((sequence, width),)  # type: ignore[assignment]  # so that nobody needs to say --shape
    return model
