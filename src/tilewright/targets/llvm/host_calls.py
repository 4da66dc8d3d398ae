"""How a host program runs kernels and touches their buffers: on the CPU itself, or through the runtime of a
device.

`host.py` prints everything else of a host program, which is the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from ...dialects import loop
from ...ir.symbolic import Dim
from .emitter import Emitter

if TYPE_CHECKING:
    from .kernel import KernelCode

_DEVICE_KERNEL = "{ ptr, ptr, i32, i32, i32, i32, ptr, i32, i32 }"
_ARGUMENT = "{ i32, i32, i64 }"


class Constants(Protocol):
    """The constants of the module that is being printed."""

    kernels: dict[str, loop.Kernel]
    order: list[str]

    def string(self, text: str) -> str:
        """The name of a constant with this text and a zero byte."""

    def array(self, name: str, kind: str, items: Sequence[str]) -> str:
        """The name of a constant array of LLVM's type `kind`, or ``null`` without items."""


class Ends(Protocol):
    """The part of a program's printer that ends a run."""

    emit: Emitter

    def stop_if(self, status: str) -> None:
        """End the run with this status (i32) if it is not 0."""


class HostCalls(ABC):
    """Launches, copies and reads of a host program."""

    marks_updates: bool
    """Whether the table of inputs says which of them the function changes."""

    @abstractmethod
    def modules(self, order: Sequence[str]) -> list[str]:
        """LLVM modules of the kernels named in `order`."""

    @abstractmethod
    def declarations(self, constants: Constants) -> list[str]:
        """Global constants, and declarations of functions that launches and copies call."""

    @abstractmethod
    def sizes(self, name: str) -> Sequence[Dim]:
        """The sizes of a launch of this kernel, which the program computes."""

    def scratch(self, name: str) -> Dim:
        """Bytes of each thread's private memory that the runtime allocates."""
        return 0

    @abstractmethod
    def arguments(self, name: str, number: int, sizes: Sequence[str]) -> list[tuple[str, str]]:
        """Types and values of the arguments of a launch that depend on the kernel.

        Args:
            name: The kernel.
            number: Its number at run time.
            sizes: The values of `sizes`.
        """

    @abstractmethod
    def launch(self, emit: Emitter, arguments: Sequence[tuple[str, str]], buffers: str, dims: str) -> None:
        """Run a kernel with `arguments` on an array of addresses and an array of sizes."""

    @abstractmethod
    def copy(self, emit: Emitter, target: str, source: str, size: str) -> None:
        """Copy `size` bytes."""

    @abstractmethod
    def read(self, program: Ends, kind: str, place: str) -> str:
        """The integer of LLVM's type `kind` that lies at the address `place`."""


class CpuCalls(HostCalls):
    """Kernels as functions of the library, in the memory of the CPU."""

    marks_updates = False

    def __init__(self, codes: Mapping[str, KernelCode]) -> None:
        """Take the generated code of the kernels, by name."""
        self.codes = codes

    def modules(self, order: Sequence[str]) -> list[str]:
        from .kernel_modules import kernel_modules

        return kernel_modules([self.codes[name] for name in order])

    def declarations(self, constants: Constants) -> list[str]:
        return [
            *(
                f"declare hidden void @{self.codes[name].symbol}(i64, i64, ptr, ptr, ptr)"
                for name in constants.order
            ),
            "declare i32 @tw_launch(ptr, i32, ptr, i64, i64, ptr, ptr)",
        ]

    def sizes(self, name: str) -> Sequence[Dim]:
        return self.codes[name].extent, self.codes[name].grain

    def scratch(self, name: str) -> Dim:
        return self.codes[name].scratch

    def arguments(self, name: str, number: int, sizes: Sequence[str]) -> list[tuple[str, str]]:
        values = [("i64", value) for value in sizes]
        return [("i32", str(number)), ("ptr", f"@{self.codes[name].symbol}"), *values]

    def launch(self, emit: Emitter, arguments: Sequence[tuple[str, str]], buffers: str, dims: str) -> None:
        given = ", ".join(f"{kind} {value}" for kind, value in arguments)
        emit.op(f"call i32 @tw_launch(ptr %context, {given}, ptr {buffers}, ptr {dims})")

    def copy(self, emit: Emitter, target: str, source: str, size: str) -> None:
        emit.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

    def read(self, program: Ends, kind: str, place: str) -> str:
        return program.emit.load(kind, place, int(kind[1:]) // 8)


class ArgumentKind(IntEnum):
    """Kinds of arguments of a kernel of the user's: TW_ARGUMENT_* of `runtime/c/device.h`."""

    BUFFER = 0
    OFFSET = 1
    SIZE = 2
    NUMBER = 3
    SHARED = 4


@dataclass(frozen=True)
class Argument:
    """The value of a parameter of a user's kernel."""

    kind: ArgumentKind
    bytes: int = 0
    """Bytes of a size, an offset or a number."""
    value: int = 0
    """The number of the buffer, or that among the sizes of the launch; or the number's bits."""


class DeviceKernel(Protocol):
    """A kernel in the language of a device."""

    @property
    def entry(self) -> str:
        """The name of its function in the device's code."""

    @property
    def launch(self) -> tuple[Dim, ...]:
        """The blocks along x, y and z, the threads of a block along them, the bytes of shared memory that a
        launch gives a block beside those that the kernel declares, and the sizes that `arguments` name; over
        the kernel's sizes.
        """

    @property
    def threads(self) -> int:
        """The number of threads in a block; 0 if the launch has it."""

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory of a launch; 0 if they depend on sizes."""

    @property
    def arguments(self) -> Sequence[Argument] | None:
        """The value of each parameter; None: the buffers, then the kernel's sizes, as generated code has."""

    @property
    def module(self) -> int:
        """The number of the module of device code that has the function."""


class DeviceCalls(HostCalls):
    """Kernels on a device: `runtime/c/device.h` declares what the program calls."""

    marks_updates = True

    def __init__(self, kernels: Mapping[str, DeviceKernel]) -> None:
        """Take the kernels, by name."""
        self.kernels = kernels

    def modules(self, order: Sequence[str]) -> list[str]:
        return []

    def declarations(self, constants: Constants) -> list[str]:
        rows = []
        for number, name in enumerate(constants.order):
            code, kernel = self.kernels[name], constants.kernels[name]
            widths = [f"i64 {arg.type.dtype.itemsize}" for arg in kernel.body.args]
            counts = (len(widths), len(kernel.dims), code.threads, code.dynamic_bytes)
            arguments = [
                f"{_ARGUMENT} {{ i32 {int(a.kind)}, i32 {a.bytes}, i64 {a.value} }}"
                for a in code.arguments or ()
            ]
            fields = [
                f"ptr {constants.string(code.entry)}",
                f"ptr {constants.array(f'widths{number}', 'i64', widths)}",
                *(f"i32 {count}" for count in counts),
                f"ptr {constants.array(f'arguments{number}', _ARGUMENT, arguments)}",
                f"i32 {len(arguments)}",
                f"i32 {code.module}",
            ]
            rows.append(f"{_DEVICE_KERNEL} {{ {', '.join(fields)} }}")
        table = constants.array("device_kernels", _DEVICE_KERNEL, rows)
        return [
            f"@tw_device_module = hidden constant {{ ptr }} {{ ptr {table} }}, align 8",
            "declare void @tw_device_launch(ptr, i32, ptr, ptr, ptr)",
            "declare void @tw_device_copy(ptr, ptr, ptr, i64)",
            "declare i32 @tw_device_read(ptr, ptr, ptr, i64)",
        ]

    def sizes(self, name: str) -> Sequence[Dim]:
        return self.kernels[name].launch

    def arguments(self, name: str, number: int, sizes: Sequence[str]) -> list[tuple[str, str]]:
        return [("i32", str(number)), *(("i64", value) for value in sizes)]

    def launch(self, emit: Emitter, arguments: Sequence[tuple[str, str]], buffers: str, dims: str) -> None:
        (kind, number), *values = arguments
        array = emit.alloca(f"[{len(values)} x i64]", 8)
        for k, (_, value) in enumerate(values):
            emit.line(f"store i64 {value}, ptr {emit.at(array, str(k), 8)}, align 8")
        given = f"{kind} {number}, ptr {array}"
        emit.line(f"call void @tw_device_launch(ptr %context, {given}, ptr {buffers}, ptr {dims})")

    def copy(self, emit: Emitter, target: str, source: str, size: str) -> None:
        emit.line(f"call void @tw_device_copy(ptr %context, ptr {target}, ptr {source}, i64 {size})")

    def read(self, program: Ends, kind: str, place: str) -> str:
        emit, size = program.emit, int(kind[1:]) // 8
        copy = emit.alloca(kind, 8)
        program.stop_if(
            emit.op(f"call i32 @tw_device_read(ptr %context, ptr {copy}, ptr {place}, i64 {size})")
        )
        return emit.load(kind, copy, size)


__all__ = ["CpuCalls", "DeviceCalls", "DeviceKernel", "HostCalls"]
