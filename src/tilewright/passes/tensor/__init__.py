"""Passes at the tensor level."""
