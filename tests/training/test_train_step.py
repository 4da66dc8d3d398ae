"""`tw.train_step` of `tw.nn` modules: the losses are PyTorch's, and states are updated in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import Momentum, Perceptron, batch, in_torch, perceptron, squares, torch_losses

BATCHES = [batch(k) for k in range(6)]


def compiled(**options: Any) -> Any:
    return tw.train_step(perceptron(), squares, Momentum(), batch(), **options)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("nonfinite", ["raise", "ignore"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_losses_are_those_of_torch(clip: float | None, nonfinite: str, accumulate: int) -> None:
    step = compiled(clip=clip, nonfinite=nonfinite, accumulate=accumulate)
    losses = [float(step(*b)) for b in BATCHES]
    expected = torch_losses(in_torch(perceptron()), BATCHES, clip=clip)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert step.steps == len(BATCHES)


def test_states_are_updated_in_place() -> None:
    """No state is copied, its first values are in the file once, and no second buffer of it exists."""
    step = tw.train_step(perceptron(hidden=512), squares, Momentum(), batch(n=4))
    memory = step.library.metadata["memory"]
    bytes_of = parameter_bytes(step)
    assert "copied" not in memory
    assert memory["weights_bytes"] < 1.02 * bytes_of + 256
    assert memory["arena_bytes"] < 2 * bytes_of


def test_accumulating_takes_the_memory_of_one_more_gradient() -> None:
    """Parts are added in place, one after the other: no step keeps another copy of the parameters, and no
    pass computes something for all parts at once.
    """

    def trained(accumulate: int) -> tuple[int, int]:
        tw.nn.seed(0)
        module = tw.nn.Sequential(*(tw.nn.Linear(128, 128) for _ in range(4)))
        data = np.random.default_rng(0).normal(size=(2, 64 * accumulate, 128)).astype(np.float32)
        step = tw.train_step(module, squares, Momentum(), tuple(data), accumulate=accumulate)
        memory = step.library.metadata["functions"]["main"]["memory"]
        return memory["arena_bytes"], parameter_bytes(step)

    (one, bytes_of), (four, _) = trained(1), trained(4)
    assert four - one < 1.1 * bytes_of


def parameter_bytes(step: Any) -> int:
    return sum(a.nbytes for n, a in step.state_dict().items() if not n.startswith(("optim", "training")))


def test_prediction_has_the_present_parameters() -> None:
    step = compiled()
    x, y = batch()
    for _ in range(3):
        step(x, y)
    module = perceptron()
    module.load_state_dict({n: step.library.state[n] for n in step.parameter_names})
    np.testing.assert_allclose(step.predict(x), module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_sync_writes_the_parameters_into_the_module() -> None:
    module = perceptron()
    step = tw.train_step(module, squares, Momentum(), batch())
    before = module.state_dict()
    step(*batch())
    np.testing.assert_array_equal(module.state_dict()["first.weight"], before["first.weight"])
    step.sync()
    np.testing.assert_array_equal(module.state_dict()["first.weight"], step.state_dict()["first.weight"])
    assert not np.array_equal(module.state_dict()["first.weight"], before["first.weight"])


def test_only_chosen_parameters_change() -> None:
    step = compiled(trainable=["second.*"])
    assert step.parameter_names == ["second.weight", "second.bias"]
    model = in_torch(perceptron())
    model[0].requires_grad_(False)
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(model, BATCHES), rtol=1e-5)


def test_tied_parameters_have_one_state() -> None:
    class Tied(tw.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = tw.nn.Linear(8, 8), tw.nn.Linear(8, 8)
            self.second.weight = self.first.weight

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return self.second(tw.nn.functional.relu(self.first(x)))

    import torch

    tw.nn.seed(0)
    module = Tied()
    x = batch()[0]
    step = tw.train_step(module, squares, Momentum(), (x, x))
    assert step.parameter_names == ["first.weight", "first.bias", "second.bias"]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model[2].weight = model[0].weight
    with torch.no_grad():
        for parameter, name in ((model[0].weight, "first.weight"), (model[0].bias, "first.bias"),
                                (model[2].bias, "second.bias")):  # fmt: skip
            parameter.copy_(torch.tensor(module.state_dict()[name]))
    losses = [float(step(x, x)) for _ in range(4)]
    np.testing.assert_allclose(losses, torch_losses(model, [(x, x)] * 4), rtol=1e-5)
    step.sync()
    assert module.first.weight is module.second.weight


def test_further_results_come_beside_the_loss() -> None:
    def loss(outputs: Any, target: Any) -> Any:
        return squares(outputs, target), {"error": abs(outputs - target).max()}

    step = tw.train_step(perceptron(), loss, Momentum(), batch())
    x, y = batch()
    value, more = step(x, y)
    expected = perceptron()(x).numpy() - y
    np.testing.assert_allclose(more["error"], abs(expected).max(), rtol=1e-6)
    np.testing.assert_allclose(value, (expected**2).mean(), rtol=1e-6)


def test_a_model_may_compute_its_loss() -> None:
    class Whole(Perceptron):
        def forward(self, x: tw.Tensor, y: tw.Tensor) -> tw.Tensor:
            return squares(super().forward(x), y)

    tw.nn.seed(0)
    step = tw.train_step(Whole(), None, Momentum(), batch())
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), BATCHES), rtol=1e-5)
    with pytest.raises(tw.CompileError, match="no prediction"):
        step.predict(batch()[0])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_of_several_sizes(accumulate: int) -> None:
    size = "n<=32" if accumulate == 1 else "2*half"
    dims = {"x": {0: size}, "target": {0: size}}
    step = compiled(dims=dims, accumulate=accumulate)
    batches = [batch(k, n) for k, n in enumerate((12, 2, 30, 12))]
    losses = [float(step(*b)) for b in batches]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), batches), rtol=1e-5)


def test_a_loaded_library_trains_on(tmp_path: Path) -> None:
    step = compiled()
    loaded = tw.TrainStep(tw.load(step.save(tmp_path / "train.so")))
    for b in BATCHES[:3]:
        assert step(*b).tobytes() == loaded(*b).tobytes()
    x = BATCHES[0][0]
    np.testing.assert_array_equal(step.predict(x), loaded.predict(x))
    with pytest.raises(tw.CompileError, match="no model"):
        loaded.sync()
    with pytest.raises(tw.CompileError, match="no training step"):
        tw.TrainStep(tw.compile(perceptron(), (x,)))


def test_torch_tensors_are_taken_and_returned() -> None:
    import torch

    step = compiled()
    x, y = map(torch.tensor, batch())
    assert isinstance(step(x, y), torch.Tensor)
    assert step.predict(x).shape == (12, 3)


def test_it_trains_in_webassembly() -> None:
    pytest.importorskip("wasmtime")
    step = compiled(target="wasm32")
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), BATCHES), rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_running_statistics_and_dropout_of_modules(accumulate: int, tmp_path: Path) -> None:
    """Statistics follow each step, a step drops other elements than the one before, and both are resumed."""

    class Normalized(tw.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = tw.nn.Linear(8, 12), tw.nn.BatchNorm2d(12)
            self.drop, self.last = tw.nn.Dropout(0.5), tw.nn.Linear(12, 3)

        def forward(self, x: tw.Tensor) -> tw.Tensor:
            normalized = self.norm(self.first(x)[:, :, None, None])[:, :, 0, 0]
            return self.last(self.drop(normalized))

    def made(seed: int) -> tuple[Any, Any]:
        tw.nn.seed(0)
        module = Normalized()
        return module, tw.train_step(
            module, squares, Momentum(0.0), batch(), seed=seed, accumulate=accumulate
        )

    module, step = made(0)
    assert "copied" not in step.library.metadata["memory"]
    x, y = batch()
    mean = np.zeros(12, np.float32)
    losses = []
    for k in range(4):
        losses.append(float(step(x, y)))
        for part in np.split(module.first(x).numpy(), accumulate):
            mean = 0.9 * mean + 0.1 * part.mean(0)
        np.testing.assert_allclose(step.state_dict()["norm.running_mean"], mean, rtol=1e-4, atol=1e-6)
        if k == 1:
            step.save_checkpoint(tmp_path / "two.safetensors")
    assert len(set(losses)) == 4
    _, resumed = made(5)
    resumed.load_checkpoint(tmp_path / "two.safetensors")
    assert [float(resumed(x, y)) for _ in range(2)] == losses[2:]
    step.sync()
    assert module.training
    np.testing.assert_allclose(module.eval()(x).numpy(), step.predict(x), rtol=1e-4, atol=1e-5)
