"""Automatic differentiation of graph-level modules."""
