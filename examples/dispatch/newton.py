"""A batched solve: for every item six equations, K u + u^3 = f, by Newton's method.

Any function will do that takes tensors with one item per row and returns such tensors.
"""

import torch


def solve(batch):
    """The unknowns u of every item. `loads` has a row per item, `stiffness` is the same for all of them."""
    loads, stiffness = batch["loads"], batch["stiffness"]
    u = torch.zeros_like(loads)
    for _ in range(20):
        residual = (stiffness @ u[..., None])[..., 0] + u**3 - loads
        if residual.abs().max() < 1e-10:
            break
        tangent = stiffness + torch.diag_embed(3 * u**2)
        u = u - torch.linalg.solve(tangent, residual)
    return u


def batch(items=20_000):
    """Random loads, and one symmetric matrix."""
    torch.manual_seed(0)
    half = torch.rand(6, 6, dtype=torch.float64)
    stiffness = half @ half.T + 6 * torch.eye(6, dtype=torch.float64)
    return {"loads": torch.rand(items, 6, dtype=torch.float64), "stiffness": stiffness[None]}


if __name__ == "__main__":
    from dovetail.dispatch import Dispatcher

    with Dispatcher(solve, ["cpu"]) as dispatcher:  # add "cuda:0" where there is one
        print(dispatcher.run(batch())[:2])
        print(f"{dispatcher.report.rate:,.0f} items/s")
