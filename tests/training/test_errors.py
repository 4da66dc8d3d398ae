"""Wrong inputs and numbers that are not finite: named errors, and no state is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn, optim

from .rules import Momentum, Perceptron, batch, perceptron, squares


def compiled(**options: Any) -> Any:
    return tw.train_step(perceptron(), squares, Momentum(), batch(), **options)


def states(step: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in step.state_dict().items() if not n.startswith("training.")}


def test_a_loss_that_is_no_number_names_the_parameter() -> None:
    step = compiled()
    x, y = batch()
    step(x, y)
    before = states(step)
    with pytest.raises(tw.TrainingError, match=r"step 2: the loss is nan.*'first\.weight'"):
        step(x * np.nan, y)
    assert states(step) == before
    assert step.steps == 1
    step(x, y)
    assert step.steps == 2


def test_the_first_parameter_with_such_a_gradient_is_named() -> None:
    class Roots(Perceptron):
        def forward(self, x: tw.Tensor) -> tw.Tensor:
            return super().forward(x) + tw.numpy.sqrt(self.second.bias * 0)

    tw.nn.seed(0)
    step = tw.train_step(Roots(), squares, Momentum(), batch())
    with pytest.raises(tw.TrainingError, match=r"the loss is [0-9.]+, .*'second\.bias'"):
        step(*batch())


def test_such_steps_can_be_skipped() -> None:
    step, other = compiled(nonfinite="skip"), compiled()
    x, y = batch()
    assert np.isnan(step(x * np.nan, y))
    assert np.isnan(step.gradient_norm)
    for k in range(3):
        assert step(*batch(k)).tobytes() == other(*batch(k)).tobytes()


def test_they_can_be_ignored() -> None:
    step = compiled(nonfinite="ignore")
    x, y = batch()
    step(x * np.nan, y)
    assert np.isnan(step.state_dict()["first.weight"]).all()
    with pytest.raises(tw.CompileError, match="nonfinite='skip'"):
        step.gradient_norm  # noqa: B018


def test_inputs_of_other_shapes_are_refused() -> None:
    step = compiled()
    x, y = batch()
    before = states(step)
    with pytest.raises(tw.ShapeError, match="'target'"):
        step(x, y[:, :2])
    with pytest.raises(tw.ShapeError, match="'x'"):
        step(x[:5], y[:5])
    assert states(step) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonfinite": "warn"}, "'warn': known are 'raise', 'skip', 'ignore'"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"accumulate": 5}, "accumulate=5: the first size of 'x' is 12"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"trainable": ["third.*"]}, r"'third\.\*'; the model has first.weight"),
        ({"trainable": lambda name: False}, "no parameter is trained"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.CompileError, match=message):
        compiled(**options)


def test_wrong_losses_are_named() -> None:
    with pytest.raises(tw.CompileError, match="floating-point scalar"):
        tw.train_step(perceptron(), lambda out, y: out - y, Momentum(), batch())
    with pytest.raises(tw.CompileError, match="dictionary of tensors"):
        tw.train_step(perceptron(), lambda out, y: (squares(out, y), out), Momentum(), batch())
    with pytest.raises(tw.CompileError, match="3 example inputs for the arguments x, y"):
        tw.train_step(perceptron(), lambda out, y: squares(out, y), Momentum(), (*batch(), batch()[1]))
    with pytest.raises(tw.CompileError, match="cannot train a int"):
        tw.train_step(3, squares, Momentum(), batch())


def test_wrong_optimizers_are_named() -> None:
    class Wide(Momentum):
        def update(self, parameters: Any, gradients: Any, state: Any) -> Any:
            return {n: p.astype("float64") for n, p in parameters.items()}, state

    class Forgetful(Momentum):
        def update(self, parameters: Any, gradients: Any, state: Any) -> Any:
            return {}, state

    class Growing(Momentum):
        def update(self, parameters: Any, gradients: Any, state: Any) -> Any:
            return parameters, {**state, "more": gradients}

    for rule, message in ((Wide(), "'first.weight' from float32"), (Forgetful(), "leaves out parameter"),
                          (Growing(), "changes its state")):  # fmt: skip
        with pytest.raises(tw.CompileError, match=message):
            tw.train_step(perceptron(), squares, rule, batch())


class Partly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.used(x)


def test_parameters_that_do_not_affect_the_loss_are_named_and_kept() -> None:
    nn.seed(0)
    model, x = Partly(), np.ones((3, 4), np.float32)
    with pytest.warns(UserWarning, match=r"not depend on the parameters 'unused.weight', 'unused.bias'"):
        step = tw.train_step(model, lambda out: (out**2).mean(), optim.AdamW(lr=0.1), (x,))
    before = {name: np.array(value) for name, value in step.state_dict().items()}
    step(x)
    after = step.state_dict()
    np.testing.assert_array_equal(after["unused.weight"], before["unused.weight"])
    assert not np.array_equal(after["used.weight"], before["used.weight"])


def test_a_loss_without_parameters_is_refused() -> None:
    x = np.ones((3, 4), np.float32)
    with pytest.raises(tw.CompileError, match="the loss depends on no parameter that changes"):
        tw.train_step(Partly(), lambda out: tw.stop_gradient(out).mean(), optim.SGD(lr=0.1), (x,))


def test_an_optimizer_of_torch_is_named() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(4, 2)
    batch = (torch.ones(3, 4), torch.ones(3, 2))
    with pytest.raises(tw.CompileError, match=r"torch.optim.sgd.SGD: give one of tilewright.optim"):
        tw.train_step(module, torch.nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1), batch)
