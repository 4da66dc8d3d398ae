"""Lowering from the tensor level: kernels of the loop level, the host program and its memory plan."""
