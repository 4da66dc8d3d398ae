"""Memory of large results, which a later call uses again once no tensor refers to it.

The C library returns large blocks to the operating system, and new ones are filled with zeros page by page at
their first use. The forward pass of a training step returns the values that the backward pass reads, and that
returns gradients: as much memory in each step as the model's values take.
"""

from __future__ import annotations

import math

import numpy as np

LEAST_BYTES = 256 << 10
"""The size from which the memory of a result is kept. A smaller value also keeps blocks that the C library
itself uses again.
"""


class ResultMemory:
    """The memory of the results of one function. For each result, the block that was released last is kept,
    and no other.
    """

    def __init__(self) -> None:
        self._released: dict[int, np.ndarray] = {}

    def empty(self, index: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """A new array for the result of this number, with undefined contents; None for a small one."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return None
        block = self._released.pop(index, None)
        if block is None or block.size != size:
            block = np.empty(size, np.uint8)
        return np.asarray(_Loan(block, self._released, index)).view(dtype).reshape(shape)


class _Loan:
    """The owner of an array on a block of memory. It ends with the last tensor that shares the array's
    memory, in any array library.
    """

    def __init__(self, block: np.ndarray, released: dict[int, np.ndarray], index: int) -> None:
        self.block, self.released, self.index = block, released, index
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self.released[self.index] = self.block


__all__ = ["LEAST_BYTES", "ResultMemory"]
