"""Passes at the graph level."""
