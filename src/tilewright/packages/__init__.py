"""Packages: a compiled model in the form that users of a language or a system add to their projects."""

from .build import package
from .kinds import KINDS

__all__ = ["KINDS", "package"]
