"""Training of programs that `torch.export` made, and of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import Momentum, batch, in_torch, perceptron, squares, torch_losses

BATCHES = [batch(k) for k in range(5)]
torch = pytest.importorskip("torch")


def exported(model: Any, dynamic: bool = False) -> Any:
    shapes = ({0: torch.export.Dim("n", min=1, max=32)},) if dynamic else None
    return torch.export.export(model, (torch.tensor(batch()[0]),), dynamic_shapes=shapes)


def normalized() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))


def dropping(training: bool) -> Any:
    torch.manual_seed(0)
    parts = torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    return torch.nn.Sequential(*parts).train(training)


def test_an_exported_program_trains_and_takes_its_weights_back() -> None:
    program = exported(in_torch(perceptron()))
    step = tw.train_step(program, squares, Momentum(), batch())
    assert step.parameter_names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), BATCHES), rtol=1e-5)
    step.sync()
    x = BATCHES[0][0]
    np.testing.assert_allclose(
        program.module()(torch.tensor(x)).detach(), step.predict(x), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(program.state_dict["0.weight"].detach(), step.state_dict()["0.weight"])


def test_dynamic_dimensions_of_a_program_stay() -> None:
    step = tw.train_step(exported(in_torch(perceptron()), True), squares, Momentum(), batch())
    batches = [batch(k, n) for k, n in enumerate((12, 1, 32))]
    losses = [float(step(*b)) for b in batches]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), batches), rtol=1e-5)
    assert step.predict(batch(0, 7)[0]).shape == (7, 3)
    with pytest.raises(tw.ShapeError, match="'input'"):
        step(*batch(0, 33))


def test_dims_name_and_narrow_those_of_a_program() -> None:
    program = exported(in_torch(perceptron()), True)
    dims = {"input": {0: "rows<=16"}, "target": {0: "rows<=16"}}
    step = tw.train_step(program, squares, Momentum(), batch(), dims=dims)
    assert float(step(*batch(0, 16))) > 0
    with pytest.raises(tw.ShapeError, match=r"rows|16"):
        step(*batch(0, 17))
    with pytest.raises(tw.CompileError, match="fixes that dimension to 12"):
        tw.train_step(exported(in_torch(perceptron())), squares, Momentum(), batch(), dims=dims)


def test_a_file_is_trained_and_written_to_another(tmp_path: Path) -> None:
    torch.export.save(exported(in_torch(perceptron())), tmp_path / "model.pt2")
    before = (tmp_path / "model.pt2").read_bytes()
    step = tw.train_step(tmp_path / "model.pt2", squares, Momentum(), batch(), trainable="2.*")
    assert step.parameter_names == ["2.weight", "2.bias"]
    for b in BATCHES:
        step(*b)
    with pytest.raises(tw.CompileError, match=r"model\.pt2', which stays as it is: .*sync\('trained\.pt2'\)"):
        step.sync()
    step.sync(tmp_path / "trained.pt2")
    assert (tmp_path / "model.pt2").read_bytes() == before
    trained = torch.export.load(tmp_path / "trained.pt2").module()
    x = BATCHES[0][0]
    np.testing.assert_allclose(trained(torch.tensor(x)).detach(), step.predict(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(tw.WeightsError, match="cannot write"):
        step.sync(tmp_path / "nowhere" / "trained.pt2")
    with pytest.raises(tw.CompileError, match="no such file"):
        tw.train_step(tmp_path / "none.pt2", squares, Momentum(), batch())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("decomposed", [False, True])
def test_batch_normalization_of_a_program(training: bool, decomposed: bool) -> None:
    """A program in inference mode is switched to training, unless it was decomposed: then the statistics are
    constants.
    """
    program, reference = exported(normalized().train(training), True), normalized()
    if decomposed:
        program = program.run_decompositions()
        reference.train(training)
    step = tw.train_step(program, squares, Momentum(), batch())
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(reference, BATCHES), rtol=1e-5)
    x = torch.tensor(batch(7)[0])
    np.testing.assert_allclose(step.predict(x), reference.eval()(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("training", "decomposed"), [(True, False), (False, False), (True, True)])
def test_dropout_of_a_program_draws_in_training_alone(training: bool, decomposed: bool) -> None:
    program = exported(dropping(training))
    program = program.run_decompositions() if decomposed else program
    step = tw.train_step(program, squares, Momentum(0.0), batch())
    x, y = batch()
    assert len({float(step(x, y)) for _ in range(4)}) == 4
    expected = dropping(False)(torch.tensor(x)).detach()
    np.testing.assert_allclose(step.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_program_that_always_draws_has_no_inference_mode() -> None:
    class Noisy(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return y + torch.rand_like(y)

    with pytest.raises(tw.CompileError, match=r"rand_like.* draws random numbers also in inference mode"):
        tw.train_step(exported(Noisy(8, 3)), squares, Momentum(), batch())


def test_attention_and_a_recurrent_layer_of_a_program() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.project, self.cells = torch.nn.Linear(8, 3), torch.nn.LSTM(3, 3, batch_first=True)

        def forward(self, x: Any) -> Any:
            y = self.cells(self.project(x)[None])[0]
            probability = 0.2 if self.training else 0.0
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(y[None], y[None], y[None], dropout_p=probability)[0, 0]

    step = tw.train_step(exported(Layers()), squares, Momentum(0.0), batch())
    x, y = batch()
    assert len({float(step(x, y)) for _ in range(3)}) == 3
    expected = Layers().eval()(torch.tensor(x)).detach()
    np.testing.assert_allclose(step.predict(x), expected, rtol=1e-4, atol=1e-5)


def test_an_onnx_file_is_written_to_another(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from .test_frameworks import onnx_perceptron

    onnx.save(onnx_perceptron(), tmp_path / "model.onnx")
    dims = {"x": {0: "n<=32"}, "target": {0: "n<=32"}}
    step = tw.train_step(tmp_path / "model.onnx", squares, Momentum(), batch(), dims=dims)
    step(*batch())
    with pytest.raises(tw.CompileError, match=r"sync\('trained\.onnx'\)"):
        step.sync()
    step.sync(tmp_path / "trained.onnx")
    again = tw.train_step(tmp_path / "trained.onnx", squares, Momentum(), batch(), dims=dims)
    np.testing.assert_array_equal(again.state_dict()["first_weight"], step.state_dict()["first_weight"])


def test_other_models_are_not_written_to_files(tmp_path: Path) -> None:
    step = tw.train_step(perceptron(), squares, Momentum(), batch())
    with pytest.raises(tw.CompileError, match="only ONNX models and exported programs"):
        step.sync(tmp_path / "model.pt2")
