"""Programs that the tests of process groups start: ``python -m tests.distributed.programs NAME``."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tilewright as tw
import tilewright.distributed as td
import tilewright.numpy as tnp

SHAPES = {"first": (12, 16), "second": (16, 4)}


def data() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The weights, and 8 inputs with their targets."""
    random = np.random.default_rng(0)
    weights = {n: (random.normal(size=s) / 4).astype(np.float32) for n, s in SHAPES.items()}
    return weights, *(random.normal(size=(8, n)).astype(np.float32) for n in (12, 4))


def loss(weights: dict[str, tw.Tensor], x: tw.Tensor, y: tw.Tensor) -> tw.Tensor:
    return ((tnp.tanh(x @ weights["first"]) @ weights["second"] - y) ** 2).mean()


def train(group: td.Group, steps: int) -> list[float]:
    """Train with gradients averaged over the group, each process on its part of the data; return the mean
    losses.
    """
    weights, x, y = data()
    kept = {n: tw.State(n, w.shape, "float32", w) for n, w in weights.items()}

    def step(x: tw.Tensor, y: tw.Tensor) -> tw.Tensor:
        now = {n: state.value for n, state in kept.items()}
        value, found = tw.value_and_grad(loss)(now, x, y)
        found = td.all_reduce_tree({**found, "loss": value.reshape(1)}, "mean", group)
        for n, state in kept.items():
            state.value = now[n] - 0.5 * found[n]
        return found["loss"]

    rows = slice(group.rank * 8 // group.size, (group.rank + 1) * 8 // group.size)
    library = tw.compile(step, (x[rows], y[rows]))
    td.connect(library, group)
    return [float(library(x[rows], y[rows])[0]) for _ in range(steps)]


def resume(group: td.Group, folder: Path, steps: int, dies_after: int) -> None:
    """Train, with a checkpoint after every second step, from the last one if there is one. After some steps
    the process of rank 1 is killed.
    """
    from tilewright import nn, optim

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 4)

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return self.last(tnp.tanh(self.first(x)))

    _, x, y = data()
    rows = slice(group.rank * 8 // group.size, (group.rank + 1) * 8 // group.size)
    batch, path = (x[rows], y[rows]), folder / f"{group.rank}.safetensors"
    nn.seed(0)
    adam = optim.AdamW(lr=0.01)
    step = tw.train_step(Network(), lambda y, t: ((y - t) ** 2).mean(), adam, batch, group=group)
    if (folder / "0.safetensors").exists():
        step.load_checkpoint(folder / "0.safetensors")
    losses = {}
    while step.steps < steps:
        if group.rank == 1 and step.steps == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        number, start = step.steps, time.monotonic()
        try:
            losses[number] = float(step(*batch))
        except td.GroupError as error:
            sys.stdout.write(f"told after {time.monotonic() - start:.1f} seconds: {error}\n")
            sys.stdout.flush()
            os._exit(3)
        if step.steps % 2 == 0:
            step.save_checkpoint(path)
    sys.stdout.write(" ".join(["losses", *(f"{n}:{x!r}" for n, x in losses.items())]) + "\n")


def exchange(group: td.Group) -> None:
    """Every operation once, on the engine itself, with equal results in both processes' arithmetic."""
    n, k = group.size, group.rank
    x = np.arange(2 * n, dtype=np.float32) + 10 * k
    whole = [np.arange(2 * n, dtype=np.float32) + 10 * j for j in range(n)]
    checks = {
        "sum": (td.all_reduce(x, "sum", group), np.sum(whole, 0)),
        "mean": (td.all_reduce(x, "mean", group), np.mean(whole, 0)),
        "max": (td.all_reduce(x, "max", group), np.max(whole, 0)),
        "gather": (td.all_gather(x, group), np.concatenate(whole)),
        "scatter": (td.reduce_scatter(x, "sum", group), np.sum(whole, 0)[2 * k : 2 * k + 2]),
        "broadcast": (td.broadcast(x, n - 1, group), whole[n - 1]),
        "exchange": (td.all_to_all(x, group), np.concatenate([w[2 * k : 2 * k + 2] for w in whole])),
        "shift": (td.shift(x, 1, group), whole[(k - 1) % n]),
        "narrow": (td.all_reduce(x.astype(tw.bf16.numpy), "sum", group), np.sum(whole, 0)),
    }
    for name, (found, wanted) in checks.items():
        assert np.array_equal(np.asarray(found).astype(np.float32), wanted), (name, found, wanted)
    halves = [list(range(n // 2)), list(range(n // 2, n))]
    half, mine = group.engine.divided(halves), halves[k >= n // 2]
    assert half is not None and (half.rank, half.size) == (mine.index(k), len(mine))
    total = td.all_reduce(x, "sum", td.Group(half, "half"))
    assert np.array_equal(np.asarray(total), np.sum([whole[j] for j in mine], 0))
    ends = group.engine.divided([[0, n - 1]])
    assert (ends is None) == (k not in (0, n - 1))
    if ends is not None:
        last = td.broadcast(x, 1, td.Group(ends, "ends"))
        assert np.array_equal(np.asarray(last), whole[n - 1])


def main(name: str, *options: str) -> None:
    if name.startswith("mpi"):
        group = td.init_mpi()
    else:
        over_gloo = name.startswith("gloo")
        group = td.init(shared_memory=not over_gloo, timeout=datetime.timedelta(seconds=20))
        assert type(group.engine).__name__ == ("TorchEngine" if over_gloo else "SharedMemoryEngine")
    if name.endswith("exchange"):
        exchange(group)
        print("equal")
    elif name.endswith("resume"):
        resume(group, Path(options[0]), *map(int, options[1:]))
    elif name.endswith("train"):
        # One write: the lines of processes that share an output do not mix.
        sys.stdout.write(" ".join(["losses", *map(str, train(group, 5))]) + "\n")
    elif name.endswith("lost"):
        x = np.ones(4, np.float32)
        library = tw.compile(lambda x: td.all_reduce(x, "sum", group), (x,))
        td.connect(library, group)
        library(x)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        try:
            library(x)
        except tw.TilewrightError as error:
            print("told:", error)
            try:
                group.check()
            except td.GroupError as more:
                print("because:", more)
        print("seconds", time.monotonic() - start)
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
