"""`tilewright.explore`: a page that shows a compiled model at every level. `tilewright.Live`: a page that
follows a run.
"""

from .live import Live
from .page import explore

__all__ = ["Live", "explore"]
