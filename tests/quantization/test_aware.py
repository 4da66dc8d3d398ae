"""Training with the errors of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn, optim
from tilewright.errors import CompileError
from tilewright.quantization.aware import fake_quantize

from .models import images, made
from .test_accuracy import accuracy, digits, network
from .test_quantize import Block, Chain, sqnr

Array = np.ndarray[Any, Any]


def squared(y: tw.Tensor, wanted: tw.Tensor) -> tw.Tensor:
    return ((y - wanted) ** 2).mean()


def test_gradients_are_those_of_learned_step_sizes() -> None:
    """Inside of the range the gradient passes; outside it belongs to the scale. Esser et al., equation 3."""
    x, scale = np.array([-3.0, -0.26, 0.1, 0.49, 9.0], np.float32), np.float32(0.25)
    low, high = -8, 7

    def total(x: tw.Tensor, log2_scale: tw.Tensor) -> tw.Tensor:
        return fake_quantize(x, log2_scale, low, high).sum()

    value, (dx, ds) = tw.value_and_grad(total, argnums=(0, 1))(tw.tensor(x), tw.tensor(np.log2(scale)))
    multiples = np.clip(np.rint(x / scale), low, high)
    assert np.isclose(float(value), (multiples * scale).sum())
    inside = np.array([0, 1, 1, 1, 0], bool)
    assert np.array_equal(dx.numpy(), inside.astype(np.float32))
    slope = np.where(inside, multiples - x / scale, multiples).sum()
    assert np.isclose(float(ds), slope * scale * np.log(2) / np.sqrt(5 * high), rtol=1e-5)


@pytest.mark.parametrize("weight_bits", [4, 8])
def test_the_prediction_is_that_of_the_integers(weight_bits: int) -> None:
    x = images()
    aware = tw.prepare_qat(made(Block), x, weight_bits=weight_bits)
    exact = tw.compile(made(Block), (x[0],))(x[0])
    step = tw.train_step(aware, squared, optim.SGD(lr=0.0), (x[0], exact))
    assert sqnr(tw.compile(aware.convert())(x[0]), step.predict(x[0])) > 45


def test_training_lessens_the_error_of_integers() -> None:
    data = images()
    float_model = tw.compile(made(Chain), (data[0],))
    wanted = [np.array(float_model(x)) for x in data]
    aware = tw.prepare_qat(made(Chain), data, weights="per_tensor")
    before = aware.convert().report.output_sqnr
    step = tw.train_step(aware, squared, optim.Adam(lr=1e-3), (data[0], wanted[0]))
    assert {"a/conv.weight", "a/conv.bias", "c/matmul.bias"} <= set(step.parameter_names)
    for _ in range(100):
        for x, y in zip(data, wanted, strict=True):
            step(x, y)
    step.sync()
    library = tw.compile(aware.convert())
    after = sqnr(np.concatenate([library(x) for x in data]), np.concatenate(wanted))
    assert after > before + 2


def test_some_parameters_train() -> None:
    data = images()
    aware = tw.prepare_qat(made(Block), data, skip=["scores*"])
    example = data[0], np.zeros((2, 5), np.float32)
    step = tw.train_step(aware, squared, optim.SGD(lr=0.1), example, trainable=["*.log2_scale"])
    assert all(name.endswith(".log2_scale") for name in step.parameter_names)
    assert not any(name.startswith("scores") for name in step.parameter_names)


def test_errors() -> None:
    with pytest.raises(CompileError, match="there is no calibration data"):
        tw.prepare_qat(made(Block), [])
    aware = tw.prepare_qat(made(Block), images())
    with pytest.raises(CompileError, match="'x' is .* in the imported model"):
        example = np.zeros((3, 3, 8, 8), np.float32), np.zeros((3, 5), np.float32)
        tw.train_step(aware, squared, optim.SGD(lr=0.1), example)


def trained_on_digits(rate: float, passes: int, **options: Any) -> tuple[float, float, float]:
    """The accuracies of the float model, after calibration, and after training with integers."""
    x, y, _, _ = digits()
    calibration = [x[k : k + 64] for k in range(0, 256, 64)]
    own, loss = {"input": {0: "n<=100"}}, nn.functional.cross_entropy
    calibrated = tw.quantize(network(), calibration, dims=own, metric=accuracy, **options).report
    aware = tw.prepare_qat(network(), calibration, dims=own, **options)
    dims = {name: {0: "n<=100"} for name in ("input", "target")}
    step = tw.train_step(aware, loss, optim.Adam(lr=rate), (x[:64], y[:64]), dims=dims)
    rng = np.random.default_rng(0)
    for _ in range(passes):
        for part in np.split(rng.permutation(1280), 20):
            step(x[part], y[part])
    step.sync()
    trained = aware.convert(metric=accuracy).report
    assert trained.before is not None and trained.after is not None and calibrated.after is not None
    return trained.before, calibrated.after, trained.after


@pytest.mark.slow
def test_digits() -> None:
    before, calibrated, trained = trained_on_digits(1e-4, 4, weights="per_tensor")
    assert trained >= calibrated and trained >= before - 0.5


@pytest.mark.slow
def test_digits_with_weights_of_four_bits() -> None:
    before, calibrated, trained = trained_on_digits(3e-4, 6, weight_bits=4)
    assert trained > calibrated and trained >= before - 0.5
