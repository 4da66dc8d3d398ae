"""Inputs that a model changes: which tensors may be passed for them, and how a change reaches a tensor that
cannot be written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.tensors import is_torch, like, strided_view

_WORK = 100_000
"""The most steps of the exact search for elements shared by two strided tensors; beyond it they count as
overlapping.
"""


def prepare_updates(
    values: Sequence[Any], arrays: Sequence[np.ndarray], updated: Sequence[int], names: Sequence[str]
) -> Callable[[], None]:
    """Check the inputs number `updated` among the tensors of a call. `arrays` are what the model gets. The
    returned function must be called after the run; it copies changes back where needed.

    Raises:
        ShapeError: Such an input is not a writable tensor, has elements that share memory, or overlaps
            another input.
    """
    seen = [
        strided_view(v) if is_torch(v) or isinstance(v, np.ndarray) else a
        for v, a in zip(values, arrays, strict=True)
    ]
    late = []
    for k in updated:
        value, view, name = values[k], seen[k], names[k]
        if not (is_torch(value) or isinstance(value, np.ndarray)) or not view.flags.writeable:
            raise ShapeError(
                f"the model changes input '{name}': give a NumPy array or a torch tensor that can be "
                "written to, not a "
                f"{'read-only array' if isinstance(value, np.ndarray) else type(value).__name__}"
            )
        if _overlaps_itself(view):
            raise ShapeError(
                f"the model changes input '{name}', but several of its elements share memory, as in an "
                "expanded tensor: give a copy"
            )
        for j, other in enumerate(seen):
            if j != k and _share(view, other):
                raise ShapeError(
                    f"the model changes input '{name}', which shares memory with input '{names[j]}': it was "
                    "compiled for tensors of their own; "
                    "give a copy"
                )
        if not (view.flags.c_contiguous and view.flags.aligned):
            late.append((value, arrays[k]))

    def finish() -> None:
        for value, array in late:
            if is_torch(value):
                value.detach().copy_(like(array, value))
            else:
                value[...] = array

    return finish


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(a: np.ndarray) -> bool:
    """Whether two elements of an array may share memory. Exact for layouts made by slicing and transposing; a
    few others that do not overlap count as overlapping.
    """
    reach = a.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(a.strides, a.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return a.size > 0
            reach += stride * (size - 1)
    return False


__all__ = ["prepare_updates"]
