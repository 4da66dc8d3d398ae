"""Learning-rate schedules have the values of `torch.optim.lr_scheduler`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import optim
from tilewright.optim import lr_scheduler as ours

theirs = torch.optim.lr_scheduler
CASES: dict[str, tuple[Any, Any]] = {
    "constant": (ours.ConstantLR(0.3, 0.25, 4), lambda o: theirs.ConstantLR(o, 0.25, 4)),
    "linear": (ours.LinearLR(0.3, 0.1, total_iters=7), lambda o: theirs.LinearLR(o, 0.1, total_iters=7)),
    "exponential": (ours.ExponentialLR(0.3, 0.9), lambda o: theirs.ExponentialLR(o, 0.9)),
    "step": (ours.StepLR(0.3, 4, 0.5), lambda o: theirs.StepLR(o, 4, 0.5)),
    "multi step": (ours.MultiStepLR(0.3, [3, 8]), lambda o: theirs.MultiStepLR(o, [3, 8])),
    "polynomial": (ours.PolynomialLR(0.3, 9, 2.0), lambda o: theirs.PolynomialLR(o, 9, 2.0)),
    "cosine": (ours.CosineAnnealingLR(0.3, 15, 0.01), lambda o: theirs.CosineAnnealingLR(o, 15, 0.01)),
    "one cycle": (ours.OneCycleLR(0.3, 20), lambda o: theirs.OneCycleLR(o, 0.3, 20)),
    "one cycle, linear, three phases": (
        ours.OneCycleLR(0.3, 20, 0.4, "linear", 10.0, 100.0, True),
        lambda o: theirs.OneCycleLR(
            o, 0.3, 20, None, None, 0.4, "linear", True, 0.85, 0.95, 10.0, 100.0, True
        ),
    ),
    "warmup and cosine": (
        ours.SequentialLR([ours.LinearLR(0.3, 0.1, total_iters=5), ours.CosineAnnealingLR(0.3, 15)], [5]),
        lambda o: theirs.SequentialLR(
            o, [theirs.LinearLR(o, 0.1, total_iters=5), theirs.CosineAnnealingLR(o, 15)], [5]
        ),
    ),
}


def rates(make: Any, count: int = 20) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's SequentialLR calls its parts in a way that it warns of
        scheduler = make(optimizer)
        found = []
        for _ in range(count):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step() if len(found) < count else None
    return found


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name: str) -> None:
    schedule, make = CASES[name]
    expected = rates(make)
    found = [float(schedule(tw.tensor(k, "float64"))) for k in range(20)]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)
    compiled = tw.jit(lambda step: schedule(step))
    found = [float(compiled(np.int64(k))) for k in range(20)]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_an_optimizer_follows_a_schedule() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=0.3)
    scheduler = theirs.CosineAnnealingLR(optimizer, 15, 0.01)
    mine = optim.AdamW(ours.CosineAnnealingLR(0.3, 15, 0.01))
    parameters: dict[str, tw.Tensor] = {"p": tw.tensor(p.detach().numpy())}
    state = mine.init(parameters)
    for _ in range(15):
        p.grad = p.detach() ** 3
        parameters, state = mine.update(parameters, {"p": parameters["p"] ** 3}, state)
        optimizer.step()
        scheduler.step()
        np.testing.assert_allclose(parameters["p"], p.detach().numpy(), rtol=1e-11)
    own = optim.SGD(lambda step: 0.5 / (step + 1))
    state = own.init(parameters)
    for k in (1, 2, 3):
        before = np.asarray(parameters["p"])
        parameters, state = own.update(parameters, {"p": tw.tensor(np.ones(2))}, state)
        np.testing.assert_allclose(parameters["p"], before - 0.5 / k, rtol=1e-12)


def test_wrong_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="'cos' or 'linear'"):
        ours.OneCycleLR(0.1, 10, anneal_strategy="exp")
    with pytest.raises(ValueError, match="pct_start is 2"):
        ours.OneCycleLR(0.1, 10, pct_start=2)
    with pytest.raises(ValueError, match="have 1 milestones, not 0"):
        ours.SequentialLR([ours.ConstantLR(1.0), ours.ConstantLR(1.0)], [])
