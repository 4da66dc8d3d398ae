"""Training: steps that compute a loss, its gradient and an update in one library."""

from .compile_step import train_step
from .log import Log
from .step import TrainStep

__all__ = ["Log", "TrainStep", "train_step"]
