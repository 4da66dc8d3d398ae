"""Running a loop program as plain Python, for debugging and as its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...dialects.kernels import KernelDefinition, Scalar
from ...errors import KernelError, OutOfRangeError
from ...ir.types import DType


class View:
    """An array as a loop program sees it: elements by index, and sizes by name."""

    def __init__(
        self, name: str, data: np.ndarray[Any, Any], sizes: Mapping[str, int], dtype: DType, *, writable: bool
    ) -> None:
        self._name, self._data, self._sizes, self._writable = name, data, dict(sizes), writable
        self.dtype, self.shape, self.ndim = dtype, data.shape, data.ndim

    def __getattr__(self, name: str) -> int:
        sizes = self.__dict__.get("_sizes", {})
        if name in sizes:
            return int(sizes[name])
        raise AttributeError(f"the array {self.__dict__.get('_name')!r} has no {name!r}")

    def _index(self, index: Any) -> tuple[int, ...]:
        places = tuple(int(i) for i in (index if isinstance(index, tuple) else (index,)))
        if len(places) != self.ndim:
            raise KernelError(f"{self._name!r} has {self.ndim} dimensions, {len(places)} indices are given")
        for d, (i, n) in enumerate(zip(places, self.shape, strict=True)):
            if not 0 <= i < n:
                raise OutOfRangeError(
                    f"index {i} of dimension {d} of {self._name!r} is outside of 0 .. {n - 1}"
                )
        return places

    def __getitem__(self, index: Any) -> Any:
        return self._data[self._index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self._writable:
            raise KernelError(f"{self._name!r} is an input, which cannot be written")
        self._data[self._index(index)] = np.asarray(value)

    __iter__ = None
    __contains__ = None


def _numbers(shape: Sequence[Any]) -> list[int]:
    return [int(d) for d in shape]


def run_plain(
    kernel: KernelDefinition,
    function: Any,
    arrays: Sequence[np.ndarray[Any, Any]],
    scalars: Mapping[str, Scalar],
) -> tuple[np.ndarray[Any, Any], ...]:
    """The outputs that a kernel's function computes when Python runs it, element by element."""
    from ...ir.types import TensorType

    binding = kernel.bind([TensorType(DType.of(x), x.shape) for x in arrays])
    sizes = dict(zip((s.name for s in binding.sizes), _numbers([*binding.sizes.values()]), strict=True))
    views: dict[str, Any] = dict(scalars)
    outputs: list[np.ndarray[Any, Any]] = []
    for p, x in zip(kernel.inputs, arrays, strict=True):
        own = {n: v for n, v in sizes.items() if n in p.spec.names}
        shape = _numbers(kernel.flat(p, binding))
        views[p.name] = View(p.name, np.asarray(x).reshape(shape), own, p.dtype, writable=False)
    for p, t in zip(kernel.outputs, kernel.result_types(binding), strict=True):
        own = {n: v for n, v in sizes.items() if n in p.spec.names}
        data = np.zeros(_numbers(kernel.flat(p, binding)), p.dtype.numpy)
        views[p.name] = View(p.name, data, own, p.dtype, writable=True)
        outputs.append(data.reshape(_numbers(t.shape)))
    with np.errstate(all="ignore"):
        function(**views)
    return tuple(outputs)


__all__ = ["View", "run_plain"]
