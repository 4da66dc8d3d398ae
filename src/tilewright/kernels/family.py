"""`KernelFamily`: one loop program for several element types."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..dialects.kernels import Scalar
from ..errors import ShapeError
from ..frontends.trace.operands import as_tensor
from ..ir.types import DType
from .kernel import Kernel


class KernelFamily:
    """The kernels of a loop program whose arrays have a `tilewright.element_type`.

    A call takes the kernel that fits the element types of the inputs. Each is a `Kernel`, with the names of
    its element types behind the program's: `scale_f32`, `scale_bf16`.
    """

    def __init__(self, name: str, kernels: Sequence[Kernel]) -> None:
        """Join kernels; `tilewright.kernel` does.

        Args:
            name: The name of the program.
            kernels: Its kernels.
        """
        self.name = name
        self.kernels = tuple(kernels)
        """The kernels, which ``replace=[*family.kernels]`` and `Kernel.torch` take one by one."""

    def __repr__(self) -> str:
        return f"KernelFamily({', '.join(k.name for k in self.kernels)})"

    def __call__(self, *tensors: Any, **scalars: Scalar) -> Any:
        """The outputs of the kernel that fits, as of `Kernel`.

        Args:
            *tensors: The inputs.
            **scalars: The numbers that differ from their defaults.

        Raises:
            ShapeError: None fits.
        """
        return self.of(*tensors)(*tensors, **scalars)

    def of(self, *tensors: Any) -> Kernel:
        """The kernel for the element types of inputs.

        Args:
            *tensors: The inputs.

        Raises:
            ShapeError: There is none.
        """
        dtypes = [_dtype_of(x) for x in tensors]
        for kernel in self.kernels:
            if [p.dtype for p in kernel.inputs] == dtypes:
                return kernel
        known = "; ".join(f"({', '.join(p.dtype.label for p in k.inputs)})" for k in self.kernels)
        raise ShapeError(
            f"kernel {self.name!r}: the inputs are ({', '.join(d.label for d in dtypes)}); it takes {known}"
        )

    def check(self, sizes: int = 8, *, seed: int = 0) -> None:
        """`Kernel.check` of each kernel.

        Args:
            sizes: As of `Kernel.check`.
            seed: As of `Kernel.check`.

        Raises:
            KernelError: One is wrong.
        """
        for kernel in self.kernels:
            kernel.check(sizes, seed=seed)


def _dtype_of(x: Any) -> DType:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from ..frontends.torch.tensors import dtype_of

        return dtype_of(x.dtype)
    return as_tensor(x).type.dtype


__all__ = ["KernelFamily"]
