"""`tilewright.optim`: optimizers as pure functions on parameters, which run at once and in traces.

optimizer = tw.optim.AdamW(lr=1e-3)
parameters = dict(model.named_parameters())
state = optimizer.init(parameters)
gradients = tw.grad(loss)(model, batch)
parameters, state = optimizer.update(parameters, gradients, state)
"""

from __future__ import annotations

from .adam import Adam, AdamW
from .base import Optimizer, Progress, Schedule
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Progress", "Schedule"]
