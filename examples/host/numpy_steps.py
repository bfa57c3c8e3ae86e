"""Products of matrices, with a change of cores taken up after any of them.

dovetail host submit --cores 2 -- python examples/host/numpy_steps.py 200
"""

import sys

import numpy as np

from dovetail.host import agent


def main(steps: int) -> None:
    a = np.random.default_rng(0).standard_normal((700, 700))
    agent.step(0, steps)
    print("ready", flush=True)
    for _ in range(steps):
        b = a @ a
        agent.step(total=steps)
    print(f"trace {np.trace(b):.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
