"""Training: steps that compute a loss, its gradient and an update in one library."""

from .step import TrainStep
from .compile_step import train_step

__all__ = ["TrainStep", "train_step"]
