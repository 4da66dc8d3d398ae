"""Packing compiled kernels, the runtime, weights and metadata into one file."""
