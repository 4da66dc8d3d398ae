"""`tilewright.random`: random numbers by explicit keys, at once and in compiled functions."""

from .frontends.trace.random import *  # noqa: F403
from .frontends.trace.random import __all__

__all__ = [*__all__]
