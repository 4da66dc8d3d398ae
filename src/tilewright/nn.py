"""`tilewright.nn`: modules that run at once and compile as they stand."""

from .frontends.nn import *  # noqa: F403
from .frontends.nn import __all__

__all__ = [*__all__]
