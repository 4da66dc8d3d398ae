"""Train a classifier of handwritten digits in several processes that Ray starts.

    pip install 'tilewright[ray]' scikit-learn
    python examples/train_on_ray.py --processes 2

Each process of Ray joins one group over gloo and computes its part of every batch; the gradients are averaged
inside of the compiled step. On a cluster, ``ray.init(address="auto")`` places the processes on its machines.
"""

from __future__ import annotations

import argparse
import socket
from typing import Any

import numpy as np
import ray


@ray.remote
class Worker:
    """One process of the group."""

    def address(self) -> tuple[str, int]:
        """Return this machine's address and a free port, for the process of rank 0."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def train(self, address: tuple[str, int], rank: int, size: int, steps: int, batch: int) -> list[float]:
        """Make training steps; return the mean losses over all processes."""
        from sklearn.datasets import load_digits

        import tilewright as tw
        import tilewright.distributed as td
        from tilewright import nn, optim

        host, port = address
        group = td.init(init_method=f"tcp://{host}:{port}", rank=rank, world_size=size)
        images, labels = load_digits(return_X_y=True)
        images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
        nn.seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
        part = batch // size
        first = images[:part], labels[:part]
        loss = nn.functional.cross_entropy
        step = tw.train_step(model, loss, optim.AdamW(lr=3e-3), first, group=group, threads=1)
        random, losses = np.random.default_rng(0), []
        for _ in range(steps):
            rows = random.integers(0, len(labels), batch)[rank * part : (rank + 1) * part]
            losses.append(float(step(images[rows], labels[rows])))
        return losses


def train(processes: int, steps: int = 60, batch: int = 64) -> list[list[float]]:
    """Train in processes of Ray; return the losses that each has seen, which are equal."""
    workers: list[Any] = [Worker.remote() for _ in range(processes)]
    address = ray.get(workers[0].address.remote())
    return ray.get([w.train.remote(address, k, processes, steps, batch) for k, w in enumerate(workers)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    ray.init(num_cpus=options.processes)
    losses = train(options.processes, options.steps)[0]
    print(f"loss {np.mean(losses[:5]):.3f}, after {options.steps} steps {np.mean(losses[-5:]):.3f}")
