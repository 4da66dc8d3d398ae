"""Every optimizer in a training step: losses are those of a loop that runs at once, states are updated in
place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import batch, perceptron, squares

optim = tw.optim
RULES = {
    "sgd": optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": optim.Adam(lr=0.01),
    "adamw": optim.AdamW(lr=0.01, weight_decay=0.1),
    "adafactor": optim.Adafactor(),
    "lion": optim.Lion(lr=0.01),
    "muon": optim.Muon(lr=0.01),
    "groups": optim.Groups([("*.bias", optim.SGD(lr=0.1))], optim.AdamW(lr=0.01)),
    "schedule": optim.AdamW(lr=lambda steps: 0.01 / (1 + steps)),
}


def at_once(rule: Any, batches: Any, clip: float) -> list[float]:
    """The losses of a loop of `tw.value_and_grad` and `update`."""
    module = perceptron()
    parameters = dict(module.named_parameters())
    state = rule.init(parameters)
    losses = []
    for x, y in batches:
        value, gradients = tw.value_and_grad(lambda m, x=x, y=y: squares(m(x), y))(module)
        gradients, _ = optim.clip_grad_norm(gradients, clip)
        parameters, state = rule.update(parameters, gradients, state)
        module.load_state_dict({n: p.numpy() for n, p in parameters.items()})
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("name", RULES)
def test_losses_are_those_of_a_loop(name: str) -> None:
    rule = RULES[name]
    if name == "muon":  # is for matrices
        rule = optim.Groups([("*.weight", rule)], optim.AdamW(lr=0.01))
    batches = [batch(k) for k in range(5)]
    step = tw.train_step(perceptron(), squares, rule, batch(), clip=0.5)
    assert "copied" not in step.library.metadata["memory"]
    losses = [float(step(*b)) for b in batches]
    np.testing.assert_allclose(losses, at_once(rule, batches, 0.5), rtol=2e-4)
