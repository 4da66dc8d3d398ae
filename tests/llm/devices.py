"""How tests compile language models for devices."""

from __future__ import annotations

from tests.devices import sources_only as without_nvrtc

__all__ = ["without_nvrtc"]
