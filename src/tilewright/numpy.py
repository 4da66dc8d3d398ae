"""`tilewright.numpy`: the functions on tensors, under NumPy's names."""

from .frontends.trace.numpy import *  # noqa: F403
from .frontends.trace.numpy import __all__

__all__ = [*__all__]
