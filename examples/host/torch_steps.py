"""A small network that trains on random images, and takes up a change of its cores after any step.

dovetail host submit --cores 2 -- python examples/host/torch_steps.py 200
"""

import sys

import torch

from dovetail.host import agent


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    agent.step(0, steps)
    print("ready", flush=True)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agent.step(total=steps, metrics={"loss": loss.item()})
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
