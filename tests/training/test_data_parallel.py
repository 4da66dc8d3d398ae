"""Training in several processes, for which threads stand, equals training in one on the joint batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.distributed as td
from tests.distributed.test_collectives import together
from tilewright import nn, optim
from tilewright.distributed.engine import ThreadEngine

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 80)).astype(np.float32)
Y = RANDOM.normal(size=(12, 3)).astype(np.float32)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(80, 72), nn.Linear(72, 3)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        return self.last(tw.numpy.tanh(self.first(x)))


def loss(y: tw.Tensor, target: tw.Tensor) -> tw.Tensor:
    return ((y - target) ** 2).mean()


def network(seed: int = 0) -> Network:
    nn.seed(seed)
    return Network()


def alone(steps: int, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    step = tw.train_step(network(), loss, optim.AdamW(lr=0.01), (X, Y), **options)
    return [float(step(X, Y)) for _ in range(steps)], step.state_dict()


def parts(rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(12 // size * rank, 12 // size * (rank + 1))
    return X[rows], Y[rows]


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}, {"nonfinite": "ignore"}], ids=str)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_equal_one_on_the_joint_batch(size: int, sharded: bool, options: dict[str, Any]) -> None:
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(size)]
    # The others begin with other parameters, and take over those of the first.
    models = [network(seed) for seed in range(size)]

    def run(rank: int) -> Any:
        batch = parts(rank, size)
        step = tw.train_step(
            models[rank],
            loss,
            optim.AdamW(lr=0.01),
            batch,
            group=groups[rank],
            sharded=sharded,
            threads=1,
            **options,
        )
        return [float(step(*batch)) for _ in range(5)], step.state_dict(), step

    wanted, states = alone(5, **options)
    for losses, found, step in together(run, size):
        np.testing.assert_allclose(losses, wanted, rtol=2e-5)
        assert found.keys() == states.keys()
        for name, value in states.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
        held = step.library.state["optimizer.exp_avg.first.weight"].size
        assert held == (72 * 80 // size if sharded else 72 * 80)


def test_a_checkpoint_of_divided_states_serves_any_number_of_processes(tmp_path: Path) -> None:
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    models = [network() for _ in range(2)]

    def run(rank: int) -> Any:
        batch = parts(rank, 2)
        step = tw.train_step(
            models[rank], loss, optim.AdamW(lr=0.01), batch, group=groups[rank], sharded=True, threads=1
        )
        for _ in range(3):
            step(*batch)
        step.save_checkpoint(tmp_path / f"{rank}.safetensors")
        after = [float(step(*batch)) for _ in range(2)]
        step.load_checkpoint(tmp_path / "0.safetensors")
        return after, [float(step(*batch)) for _ in range(2)]

    for after, again in together(run, 2):
        assert after == again
        later = after
    step = tw.train_step(network(5), loss, optim.AdamW(lr=0.01), (X, Y))
    step.load_checkpoint(tmp_path / "1.safetensors")
    assert step.steps == 3
    np.testing.assert_allclose([float(step(X, Y)) for _ in range(2)], later, rtol=2e-5)


def test_a_divided_state_belongs_to_the_parameter_of_its_whole_name() -> None:
    """A parameter's name may end another's, here with as many elements in another shape."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(RANDOM.normal(size=(80, 72)).astype(np.float32) / 9)
            self.linear = nn.Linear(80, 72)

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return self.linear(x) + x @ self.weight

    def mean_square(y: tw.Tensor) -> tw.Tensor:
        return (y**2).mean()

    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    model = Nested()

    def run(rank: int) -> Any:
        x, _ = parts(rank, 2)
        adam = optim.AdamW(lr=0.01)
        step = tw.train_step(model, mean_square, adam, (x,), group=groups[rank], sharded=True, threads=1)
        step(x)
        return step.state_dict(), step

    whole = tw.train_step(model, mean_square, optim.AdamW(lr=0.01), (X,))
    whole(X)
    for found, _ in together(run, 2):
        for name, value in whole.state_dict().items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_processes_draw_different_numbers_and_agree_on_statistics() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop, self.norm = nn.Linear(80, 8), nn.Dropout(0.5), nn.BatchNorm2d(8)

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return self.norm(self.drop(self.linear(x)).reshape(x.shape[0], 8, 1, 1))

    def squares(y: tw.Tensor) -> tw.Tensor:
        return (y**2).sum()

    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    nn.seed(0)
    models = [Noisy(), Noisy()]

    def run(rank: int) -> Any:
        x = parts(0, 2)[0]  # the same in both
        step = tw.train_step(models[rank], squares, optim.SGD(lr=0.0), (x,), group=groups[rank])
        return float(step(x)), step.state_dict()["norm.running_mean"], step

    (first, mean, _), (second, other, _) = together(run, 2)
    assert first == second
    np.testing.assert_array_equal(mean, other)
    nn.seed(0)
    single = tw.train_step(Noisy(), squares, optim.SGD(lr=0.0), (parts(0, 2)[0],))
    single(parts(0, 2)[0])
    assert np.abs(single.state_dict()["norm.running_mean"] - mean).max() > 1e-3


def test_an_optimizer_of_matrices_cannot_be_divided() -> None:
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    with pytest.raises(tw.CompileError, match="Adafactor cannot be sharded"):
        tw.train_step(network(), loss, optim.Adafactor(), parts(0, 2), group=groups[0], sharded=True)


def test_a_process_that_fails_is_told_as_an_error_of_the_group() -> None:
    class Broken(ThreadEngine):
        failing = False

        def start(self, operation: Any) -> Any:
            if self.failing:
                raise OSError("connection reset by peer")
            return super().start(operation)

    group = td.Group(Broken(0, 1, ThreadEngine.of_size(1)[0].shared))
    step = tw.train_step(network(), loss, optim.SGD(lr=0.1), (X, Y), group=group)
    step(X, Y)
    Broken.failing = True
    with pytest.raises(td.GroupError, match="connection reset by peer"):
        step(X, Y)
