"""`tilewright.optim`: optimizers as pure functions on parameters, which run at once and in traces.

optimizer = tw.optim.AdamW(lr=1e-3)
parameters = dict(model.named_parameters())
state = optimizer.init(parameters)
gradients = tw.grad(loss)(model, batch)
parameters, state = optimizer.update(parameters, gradients, state)
"""

from __future__ import annotations

from . import lr_scheduler
from .adafactor import Adafactor
from .adam import Adam, AdamW
from .base import Optimizer, PerParameter, Progress, Schedule
from .clipping import clip_grad_norm, clip_grad_value
from .lion import Lion
from .muon import Muon
from .sgd import SGD
from .wrappers import Accumulate, Choice, Clipped, Groups

__all__ = [
    "SGD",
    "Accumulate",
    "Adafactor",
    "Adam",
    "AdamW",
    "Choice",
    "Clipped",
    "Groups",
    "Lion",
    "Muon",
    "Optimizer",
    "PerParameter",
    "Progress",
    "Schedule",
    "clip_grad_norm",
    "clip_grad_value",
    "lr_scheduler",
]
