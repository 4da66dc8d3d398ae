"""Gradients against PyTorch and finite differences."""
