"""Training: steps that compute a loss, its gradient and an update in one library."""

from .program import Optimizer
from .step import TrainStep
from .train_step import train_step

__all__ = ["Optimizer", "TrainStep", "train_step"]
