"""`tilewright.explore`: a page that shows a compiled model at every level."""

from .page import explore

__all__ = ["explore"]
