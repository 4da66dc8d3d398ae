"""Handwritten device kernels and host programs that launch them, built as artifacts without a code generator
for devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from tilewright.artifact import link
from tilewright.artifact.device_code import DEVICE_TYPES, DeviceImage, device_code
from tilewright.artifact.package import blob
from tilewright.dialects import func, host, loop
from tilewright.driver.metadata import interface
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, Module
from tilewright.ir.symbolic import Dim, Expr
from tilewright.ir.types import BufferType, DType, f32
from tilewright.lowering.memory_plan import plan_memory
from tilewright.targets.llvm.build import BuiltLibrary, build
from tilewright.targets.llvm.host import host_inputs, host_outputs
from tilewright.targets.llvm.host_calls import DeviceCalls
from tilewright.targets.llvm.isa import Isa

HOST = Isa("test", llvm.get_default_triple(), "", (), 128, 16, masked=False, fma=False)


@dataclass(frozen=True)
class Kernel:
    """A kernel for tests: the fields that a host program needs."""

    entry: str
    grid: tuple[Dim, Dim, Dim]
    threads: int = 64
    dynamic_bytes: int = 0
    arguments: None = None
    module: int = 0

    @property
    def launch(self) -> tuple[Dim, ...]:
        every_device_has_room = 0
        return (*self.grid, self.threads, 1, 1, self.dynamic_bytes, every_device_has_room)


def declare(
    module: Module, name: str, types: list[tuple[DType, tuple[Dim, ...]]], dims: tuple[Expr, ...] = ()
) -> None:
    """Add a kernel without a body, which has one output."""
    kernel = module.body.append(loop.Kernel(sym_name=name, dims=dims, num_outputs=1))
    for dtype, shape in types:
        kernel.body.add_arg(BufferType(dtype, shape))


def begin(
    inputs: dict[str, BufferType], outputs: dict[str, BufferType], **attributes: object
) -> tuple[Module, Builder, list]:
    """A module with an empty function "main"."""
    module = Module()
    main = func.Func(
        sym_name="main", arg_names=(*inputs, *outputs), result_names=tuple(outputs), **attributes
    )
    module.body.append(main)
    args = [main.body.add_arg(type_) for type_ in (*inputs.values(), *outputs.values())]
    return module, Builder(main.body), args


def built(
    module: Module, kernels: dict[str, Kernel], source: str | list[DeviceImage], api: str, **metadata: object
) -> BuiltLibrary:
    """Link the program with the source or the images of its kernels."""
    main = module.symbol("main")
    assert isinstance(main, func.Func)
    images = [DeviceImage(f"source-{api}", source.encode())] if isinstance(source, str) else source
    code = link.blob_object(bytes(blob(device_code(images))), "tw_blob_device", HOST.triple)
    described = {
        "name": "test",
        **interface(host_inputs(main), host_outputs(main)),
        "target": {"name": api, "triple": HOST.triple, "device": DEVICE_TYPES[api]},
        "kernels": [{"name": name} for name in kernels],
        **metadata,
    }
    return build(
        module, DeviceCalls(kernels), HOST, described, plan=plan_memory(module), library_objects=[code]
    )


def weight(values: np.ndarray) -> Constant:
    return Constant(values)


__all__ = ["Kernel", "begin", "built", "declare", "f32", "host", "weight"]
