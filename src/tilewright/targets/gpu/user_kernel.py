"""A kernel of the user's in a program for a GPU: a module of device code of its own, and its launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from ...dialects import kernels, loop
from ...errors import CompileError
from ...ir.core import Value
from ...ir.symbolic import Dim, Expr, smax
from ..llvm.host_calls import Argument, ArgumentKind
from ..vendor.calls import VendorCall
from .images import DeviceCode
from .user_source import GpuSource


@runtime_checkable
class DeviceSource(Protocol):
    """Code of a kernel that a target compiles itself; Triton's is one."""

    @property
    def fingerprint(self) -> str:
        """As of `dialects.kernels.Implementation`."""

    @property
    def function(self) -> str:
        """The name of the function."""

    def check(self, kernel: kernels.KernelDefinition) -> None:
        """As of `GpuSource`."""

    def arguments(
        self, kernel: kernels.KernelDefinition, scalars: Mapping[str, kernels.Scalar]
    ) -> tuple[Argument, ...]:
        """As of `GpuSource`."""

    def launch(
        self,
        kernel: kernels.KernelDefinition,
        sizes: Mapping[Expr, Dim],
        scalars: Mapping[str, kernels.Scalar],
    ) -> tuple[Dim, ...]:
        """As of `GpuSource`; the images may need more shared memory."""

    def compile(
        self, kernel: kernels.KernelDefinition, scalars: Mapping[str, kernels.Scalar], archs: Sequence[str]
    ) -> tuple[DeviceCode, int]:
        """The images for architectures, and the bytes of shared memory of a block.

        Raises:
            CompileError: The compiler is missing or refuses the code.
        """


@dataclass(frozen=True)
class UserKernel:
    """A kernel of the user's as host programs launch it: see `targets.llvm.host_calls.DeviceKernel`."""

    name: str
    """The name of the kernel in the module."""
    entry: str
    """The name of its function."""
    text: str
    """Its translation unit."""
    launch: tuple[Dim, ...]
    arguments: tuple[Argument, ...]
    module: int

    def with_shared(self, least: int) -> UserKernel:
        """The kernel whose launches give a block at least so many bytes of shared memory."""
        launch = (
            *self.launch[:6],
            smax(self.launch[6], least) if least else self.launch[6],
            *self.launch[7:],
        )
        return replace(self, launch=launch)

    @property
    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Blocks along x, y and z."""
        x, y, z = self.launch[:3]
        return x, y, z

    @property
    def threads(self) -> int:
        """Threads of a block; 0 if they depend on sizes."""
        x, y, z = self.launch[3:6]
        return x * y * z if isinstance(x, int) and isinstance(y, int) and isinstance(z, int) else 0

    @property
    def matrix(self) -> bool:
        """Whether matrix instructions do its arithmetic, as far as is known without a look at its code."""
        return False

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory that a launch gives a block; 0 if they depend on sizes."""
        shared = self.launch[6]
        return shared if isinstance(shared, int) else 0


def call_in(kernel: loop.Kernel) -> kernels.Call | None:
    """The call of a kernel of the user's that is all of a kernel; None for another kernel."""
    ops = [op for op in kernel.body.ops if not op.terminator]
    return ops[0] if len(ops) == 1 and isinstance(ops[0], kernels.Call) else None


def user_kernel(kernel: loop.Kernel, op: kernels.Call, target: str, modules: Mapping[str, int]) -> UserKernel:
    """The launch of a call.

    Args:
        kernel: The kernel, whose buffers the launch gets.
        op: The call that it is.
        target: The name of the target.
        modules: The number of the module of device code by the text of its unit; 0 is taken for others.

    Raises:
        CompileError: The kernel has no source for the target.
        KernelError: Its source does not fit its description.
    """
    definition = kernels.definition_of(op)
    source = definition.implementation(target)
    scalars = kernels.scalars_of(op)
    sizes = dict(zip(definition.symbols, op.sizes, strict=True))
    if isinstance(source, VendorCall):
        launch = (*source.launch(definition, sizes, scalars), *op.sizes)
        facts = _placed(source.arguments(definition, scalars), kernel, op)
        return UserKernel(kernel.sym_name, source.library, "", launch, facts, source.module)
    if isinstance(source, GpuSource):
        text = source.unit(definition)
    elif isinstance(source, DeviceSource):
        text = f"{source.fingerprint} {sorted(scalars.items())}"
    else:
        raise CompileError(f"kernel {definition.name!r} has no source for target {target!r}")
    launch = (*source.launch(definition, sizes, scalars), *op.sizes)
    return UserKernel(
        kernel.sym_name,
        source.function,
        text,
        launch,
        _placed(source.arguments(definition, scalars), kernel, op),
        modules.get(text, 0),
    )


def _placed(arguments: Sequence[Argument], kernel: loop.Kernel, op: kernels.Call) -> tuple[Argument, ...]:
    """Arguments that name the buffers of the call, as those of the kernel, which has a buffer once that the
    call has several times.
    """
    places: dict[Value, int] = {arg: k for k, arg in enumerate(kernel.body.args)}
    buffers = (ArgumentKind.BUFFER, ArgumentKind.OFFSET)
    return tuple(replace(a, value=places[op.buffers[a.value]]) if a.kind in buffers else a for a in arguments)


__all__ = ["DeviceSource", "UserKernel", "call_in", "user_kernel"]
