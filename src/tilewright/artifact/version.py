"""The version of this compiler, which artifacts name in their metadata."""

__version__ = "0.1.0"

__all__ = ["__version__"]
