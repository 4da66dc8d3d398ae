"""Calls of vendors' libraries on a device: what the runtime (`runtime/c/device_vendor.c`) is told of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from ...dialects.kernels import KernelDefinition, Scalar
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr
from ..llvm.host_calls import Argument, ArgumentKind


class VendorCall(ABC):
    """The code of a kernel that is a call of a library. A dataclass, so that its text tells it apart."""

    library: ClassVar[str]
    """The name of the library, a key of `artifact.vendor_libraries.LIBRARIES`."""
    module: ClassVar[int]
    """The number by which the runtime knows the library in the place of a module of device code; it is
    negative.
    """

    @property
    def fingerprint(self) -> str:
        """As of `dialects.kernels.Implementation`."""
        return repr(self)

    @property
    @abstractmethod
    def facts(self) -> tuple[int, ...]:
        """Numbers that the runtime reads, in its order."""

    def arguments(self, kernel: KernelDefinition, scalars: Mapping[str, Scalar]) -> tuple[Argument, ...]:
        """The facts, then the buffers of `kernel`."""
        buffers = len(kernel.inputs) + len(kernel.outputs)
        return (
            *(Argument(ArgumentKind.NUMBER, 8, int(fact)) for fact in self.facts),
            *(Argument(ArgumentKind.BUFFER, 8, number) for number in range(buffers)),
        )

    def launch(
        self, kernel: KernelDefinition, sizes: Mapping[Expr, Dim], scalars: Mapping[str, Scalar]
    ) -> tuple[Dim, ...]:
        """The launch: a grid that is empty where the result is."""
        elements: Dim = 1
        for size in kernel.outputs[0].shape:
            elements = elements * substitute(size, sizes)
        return (elements, 1, 1, 1, 1, 1, 0)


__all__ = ["VendorCall"]
