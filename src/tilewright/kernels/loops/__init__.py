"""Kernels as loop programs: Python functions whose source is read and turned into tensor computations."""
