"""Training of models from PyTorch, ONNX and JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import Momentum, batch, in_torch, perceptron, squares, torch_losses

BATCHES = [batch(k) for k in range(5)]
EXPECTED = torch_losses(in_torch(perceptron()), BATCHES)


def check(step: Any, model: Any = None) -> None:
    np.testing.assert_allclose([float(step(*b)) for b in BATCHES], EXPECTED, rtol=1e-5)
    if model is not None:
        import torch

        step.sync()
        x = BATCHES[0][0]
        np.testing.assert_allclose(model(torch.tensor(x)).detach(), step.predict(x), rtol=1e-5, atol=1e-6)


def mean_square(outputs: Any, target: Any) -> Any:
    """A loss of tensors of this package, as its module says."""
    return squares(outputs, target)


mean_square.__module__ = "tilewright.example"


@pytest.mark.parametrize("loss", [squares, "module", mean_square], ids=["function", "module", "own"])
def test_a_module_of_torch(loss: Any) -> None:
    import torch

    model = in_torch(perceptron())
    example = tuple(map(torch.tensor, batch()))
    step = tw.train_step(model, torch.nn.MSELoss() if loss == "module" else loss, Momentum(), example)
    assert step.parameter_names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    check(step, model)


def test_a_module_of_torch_that_computes_its_loss() -> None:
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = in_torch(perceptron())

        def forward(self, x: Any, y: Any) -> Any:
            out = self.inner(x)
            return {"loss": squares(out, y), "largest": out.max()}

    x, y = map(torch.tensor, batch())
    model = Whole()
    step = tw.train_step(model, None, Momentum(), (x, y))
    value, more = step(x, y)
    assert value.item() == pytest.approx(torch_losses(in_torch(perceptron()), [batch()])[0], rel=1e-5)
    assert more["largest"].item() == pytest.approx(in_torch(perceptron())(x).max().item(), rel=1e-5)


def test_torch_with_sizes_that_change() -> None:
    import torch

    example = tuple(map(torch.tensor, batch()))
    dims = {"input": {0: "n<=32"}, "target": {0: "n<=32"}}
    step = tw.train_step(in_torch(perceptron()), squares, Momentum(), example, dims=dims)
    batches = [batch(k, n) for k, n in enumerate((12, 5, 30))]
    losses = [float(step(*b)) for b in batches]
    np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), batches), rtol=1e-5)


def test_only_chosen_parameters_of_torch_change() -> None:
    import torch

    model = in_torch(perceptron())
    step = tw.train_step(model, squares, Momentum(), tuple(map(torch.tensor, batch())), trainable="2.*")
    assert step.parameter_names == ["2.weight", "2.bias"]
    reference = in_torch(perceptron())
    reference[0].requires_grad_(False)
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(reference, BATCHES), rtol=1e-5)


def test_tied_parameters_of_torch_have_one_state() -> None:
    import torch

    def tied() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        model[2].weight = model[0].weight
        return model

    x = batch()[0]
    step = tw.train_step(tied(), squares, Momentum(), (torch.tensor(x), torch.tensor(x)))
    assert step.parameter_names == ["0.weight", "0.bias", "2.bias"]
    losses = [float(step(x, x)) for _ in range(4)]
    np.testing.assert_allclose(losses, torch_losses(tied(), [(x, x)] * 4), rtol=1e-5)


def test_batch_normalization_of_torch_keeps_running_statistics() -> None:
    import torch

    def normalized() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))

    model, reference = normalized(), normalized()
    step = tw.train_step(model, squares, Momentum(), tuple(map(torch.tensor, batch())))
    losses = [float(step(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(reference, BATCHES), rtol=1e-5)
    x = torch.tensor(batch(7)[0])
    np.testing.assert_allclose(step.predict(x), reference.eval()(x).detach(), rtol=1e-4, atol=1e-5)
    step.sync()
    np.testing.assert_allclose(model.eval()(x).detach(), reference(x).detach(), rtol=1e-4, atol=1e-5)


def test_dropout_of_torch_draws_anew_in_each_step_and_is_resumed(tmp_path: Path) -> None:
    import torch

    def dropping(seed: int) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3))
        return tw.train_step(model, squares, Momentum(0.0), tuple(map(torch.tensor, batch())), seed=seed)

    b = batch()
    step = dropping(0)
    losses = [float(step(*b)) for _ in range(6)]
    assert len(set(losses)) == 6
    assert losses != [float(other(*b)) for other in [dropping(1)] for _ in range(6)]
    step = dropping(0)
    assert [float(step(*b)) for _ in range(3)] == losses[:3]
    step.save_checkpoint(tmp_path / "three.safetensors")
    resumed = dropping(5)
    resumed.load_checkpoint(tmp_path / "three.safetensors")
    assert [float(resumed(*b)) for _ in range(3)] == losses[3:]
    x = b[0]
    np.testing.assert_array_equal(step.predict(x), step.predict(x))


def onnx_perceptron() -> Any:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = {n.replace(".", "_"): a for n, a in perceptron().state_dict().items()}
    nodes = [
        helper.make_node("Gemm", ["x", "first_weight", "first_bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "second_weight", "second_bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_an_onnx_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx_perceptron()
    dims = {"x": {0: "n<=32"}, "target": {0: "n<=32"}}
    step = tw.train_step(model, squares, Momentum(), batch(), dims=dims)
    check(step)
    step.sync()
    first = onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "first_weight"))
    np.testing.assert_array_equal(first, step.state_dict()["first_weight"])
    onnx.save(onnx_perceptron(), tmp_path / "model.onnx")
    of_file = tw.train_step(
        tmp_path / "model.onnx", squares, Momentum(), batch(), dims=dims, trainable="second_*"
    )
    assert of_file.parameter_names == ["second_weight", "second_bias"]
    assert float(of_file(*BATCHES[0])) == pytest.approx(EXPECTED[0], rel=1e-5)
    with pytest.raises(tw.CompileError, match="no such file"):
        tw.train_step(tmp_path / "none.onnx", squares, Momentum(), batch())


def test_a_function_of_jax() -> None:
    jax = pytest.importorskip("jax")
    weights = perceptron().state_dict()
    parameters = {
        part: {n: jax.numpy.asarray(weights[f"{part}.{n}"]) for n in ("weight", "bias")}
        for part in ("first", "second")
    }

    def model(parameters: Any, x: Any) -> Any:
        for part in ("first", "second"):
            x = x @ parameters[part]["weight"].T + parameters[part]["bias"]
            x = jax.nn.relu(x) if part == "first" else x
        return x

    step = tw.train_step(model, squares, Momentum(), batch(), parameters=parameters)
    assert sorted(step.parameter_names) == ["first.bias", "first.weight", "second.bias", "second.weight"]
    check(step)
    with pytest.raises(tw.CompileError, match="state_dict"):
        step.sync()
    some = tw.train_step(
        jax.jit(model), squares, Momentum(), batch(), parameters=parameters, trainable="second.*"
    )
    assert sorted(some.parameter_names) == ["second.bias", "second.weight"]
    weights = perceptron()
    reference = in_torch(weights)
    reference[0].requires_grad_(False)
    losses = [float(some(*b)) for b in BATCHES]
    np.testing.assert_allclose(losses, torch_losses(reference, BATCHES), rtol=1e-5)


def test_a_transformer_with_inputs_by_name() -> None:
    """A model of Hugging Face, which computes its loss from labels, beside its scores."""
    transformers = pytest.importorskip("transformers")
    import torch

    def classifier() -> Any:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.BertForSequenceClassification(config)

    rng = np.random.default_rng(0)
    batches = [
        {
            "input_ids": torch.from_numpy(rng.integers(0, 50, (4, 10))),
            "attention_mask": torch.ones(4, 10, dtype=torch.int64),
            "labels": torch.from_numpy(rng.integers(0, 2, 4)),
        }
        for _ in range(4)
    ]
    step = tw.train_step(classifier(), None, Momentum(0.05), batches[0])
    reference = classifier()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for b in batches:
        loss, more = step(**b)
        optimizer.zero_grad()
        expected = reference(**b)
        expected.loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
        np.testing.assert_allclose(more["logits"], expected.logits.detach(), atol=1e-4)


def test_inputs_of_a_module_by_name() -> None:
    x, y = batch()
    step = tw.train_step(perceptron(), squares, Momentum(), {"x": x, "wanted": y})
    assert [spec.name for spec in step.library.inputs] == ["x", "wanted"]
    check(step)


def test_a_function_of_jax_with_sizes_that_change() -> None:
    jax = pytest.importorskip("jax")
    weights = perceptron().state_dict()
    parameters = {n.replace(".", "_"): jax.numpy.asarray(a) for n, a in weights.items()}

    def model(p: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ p["first_weight"].T + p["first_bias"])
        return hidden @ p["second_weight"].T + p["second_bias"]

    dims = {"x": {0: "n<=32"}, "target": {0: "n<=32"}}
    for function in (model, jax.jit(model)):
        step = tw.train_step(function, squares, Momentum(), batch(), parameters=parameters, dims=dims)
        batches = [batch(k, n) for k, n in enumerate((12, 1, 32))]
        losses = [float(step(*b)) for b in batches]
        np.testing.assert_allclose(losses, torch_losses(in_torch(perceptron()), batches), rtol=1e-5)
        assert step.predict(batch(0, 7)[0]).shape == (7, 3)
        with pytest.raises(tw.ShapeError, match="'x'"):
            step(*batch(0, 33))
    with pytest.raises(tw.CompileError, match="no_such"):
        tw.train_step(
            model, squares, Momentum(), batch(), parameters=parameters, dims={**dims, "no_such": {0: "n"}}
        )
    with pytest.raises(tw.CompileError, match="JAX cannot export <lambda> with the dynamic dimensions"):
        tw.train_step(
            lambda p, x: model(p, x.reshape(12, -1)), squares, Momentum(), batch(),
            parameters=parameters, dims=dims,
        )  # fmt: skip
