"""Block programs by hand, their results by the interpreter, and devices that run their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import pytest

from tilewright.dialects import loop, scalar
from tilewright.errors import CompileError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Value
from tilewright.ir.interpreter import Frame
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, Expr, ceildiv, symbol
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.ir.types import BufferType, DType
from tilewright.runtime.simulator import SimulatedModule
from tilewright.runtime.simulator.build import LANGUAGES
from tilewright.runtime.webgpu_device import on_device, stored_as
from tilewright.targets.gpu.dialect import DeviceKernel, Dialect
from tilewright.targets.gpu.dialects.cuda import CUDA
from tilewright.targets.gpu.dialects.hip import HIP
from tilewright.targets.gpu.dialects.metal import METAL
from tilewright.targets.gpu.dialects.opencl import OPENCL
from tilewright.targets.gpu.dialects.wgsl import WGSL
from tilewright.targets.gpu.portable import WEBGPU
from tilewright.targets.gpu.printer import module_text, print_kernel

Array = np.ndarray[Any, Any]
THREADS = 64


def new_kernel(
    buffers: Sequence[BufferType], outputs: int, dims: Sequence[Expr] = (), name: str = "k"
) -> tuple[loop.Kernel, list[Value]]:
    """Return an empty kernel and its buffers."""
    kernel = loop.Kernel(sym_name=name, num_outputs=outputs, dims=tuple(dims))
    return kernel, [kernel.body.add_arg(b) for b in buffers]


def nest(b: Builder, name: str, extent: Dim, kind: str = "serial", **options: Any) -> tuple[Builder, Expr]:
    """Insert a loop; returns a builder for its body, and its variable."""
    iv = symbol(name, 0, extent - 1)
    f = b.insert(loop.For(iv=iv, kind=loop.LoopKind(kind), **options))
    return Builder(f.body), iv


def elementwise(
    operands: Sequence[DType],
    result: DType,
    compute: Callable[..., Value],
    size: Dim,
    name: str = "k",
    dims: Sequence[Expr] = (),
) -> loop.Kernel:
    """Return ``result[i] = compute(builder, operand_0[i], ...)`` for `size` elements, a thread for each."""
    buffers = [BufferType(t, (size,)) for t in (*operands, result)]
    kernel, values = new_kernel(buffers, 1, dims, name)
    blocks, block = nest(Builder(kernel.body), f"{name}_block", ceildiv(size, THREADS), "block.x")
    threads, thread = nest(blocks, f"{name}_thread", THREADS, "thread.x")
    at = block * THREADS + thread
    inside = Builder(threads.insert(loop.If(conditions=(size - 1 - at,))).body)
    loaded = [inside(loop.Load(v, (), None, indices=(at,))) for v in values[:-1]]
    inside.insert(loop.Store(compute(inside, *loaded), values[-1], (), indices=(at,)))
    return kernel


def interpreted(kernel: loop.Kernel, arrays: Sequence[Array], dims: Mapping[str, int]) -> list[Array]:
    """Return the kernel's buffers after it has run in the interpreter."""
    buffers = [a.copy() for a in arrays]
    with np.errstate(all="ignore"):
        Frame(Module(), dict(dims), {}).run_block(kernel.body, buffers)
    return buffers


def interpreted_operation(kernel: loop.Kernel, arrays: Sequence[Array]) -> Array:
    """Return the result of an `elementwise` kernel's operations on whole arrays, by the interpreter."""
    loads = [op for op in kernel.walk() if isinstance(op, loop.Load)]
    frame = Frame(Module(), {}, dict(zip((op.result for op in loads), arrays, strict=True)))
    for op in kernel.walk():
        if isinstance(op, scalar.ScalarOp):
            with np.errstate(all="ignore"):
                frame.values[op.result] = op.interpret(frame, *(frame.values[v] for v in op.operands))
    (store,) = [op for op in kernel.walk() if isinstance(op, loop.Store)]
    return np.broadcast_to(frame.values[store.value], arrays[0].shape)


# -- Devices -------------------------------------------------------------------------------------------------


class Device(Protocol):
    """Runs kernels of a language here."""

    dialect: Dialect
    info: TargetInfo
    ulps: Mapping[str, float]
    """Errors of functions that exceed those of the CPU target, by key or name, in units in the last place."""

    def run(self, text: str, kernel: DeviceKernel, arrays: Sequence[Array], dims: Mapping[str, int]) -> None:
        """Run a kernel of the module `text`, changing `arrays` in place."""


class OpenCLDevice:
    """A device of the first OpenCL platform, or PoCL's."""

    dialect = OPENCL
    info = TargetInfo(name="opencl", gpu=Gpu(shuffles=False))
    ulps: Mapping[str, float] = {}

    def __init__(self) -> None:
        cl = pytest.importorskip("pyopencl", reason="needs pyopencl")
        try:
            platforms = cl.get_platforms()
        except cl.LogicError:
            platforms = []
        if not platforms:
            pytest.skip("no OpenCL platform: install pocl-opencl-icd")
        self.cl = cl
        self.context = cl.Context([platforms[0].get_devices()[0]])
        self.queue = cl.CommandQueue(self.context)
        self._programs: dict[str, Any] = {}

    def run(self, text: str, kernel: DeviceKernel, arrays: Sequence[Array], dims: Mapping[str, int]) -> None:
        cl = self.cl
        program = self._programs.get(text)
        if program is None:
            program = self._programs[text] = cl.Program(self.context, text).build()
        flags = cl.mem_flags.READ_WRITE
        # Buffers begin at an offset, which the kernel adds.
        offsets = [3 + k for k in range(len(arrays))]
        buffers = []
        for array, offset in zip(arrays, offsets, strict=True):
            size = max((offset + array.size) * array.itemsize, 16)
            buffer = cl.Buffer(self.context, flags, size)
            if array.size:
                cl.enqueue_copy(self.queue, buffer, as_bytes(array), dst_offset=offset * array.itemsize)
            buffers.append(buffer)
        numbers = [np.int64(dims[n]) for n in kernel.dims] + [np.int64(o) for o in offsets]
        grid = [evaluate(d, dims) for d in kernel.grid]
        local = (kernel.threads, 1, 1)
        if all(grid):
            sizes = tuple(g * n for g, n in zip(grid, local, strict=True))
            cl.Kernel(program, kernel.entry)(self.queue, sizes, local, *buffers, *numbers)
        for array, buffer, offset, written in zip(arrays, buffers, offsets, kernel.written, strict=True):
            if written and array.size:
                data = np.empty(array.nbytes, np.uint8)
                cl.enqueue_copy(self.queue, data, buffer, src_offset=offset * array.itemsize)
                array[...] = data.view(array.dtype).reshape(array.shape)
        self.queue.finish()


class WebgpuDevice:
    """An adapter of wgpu: a GPU, or Mesa's software Vulkan driver."""

    dialect = WGSL
    info = TargetInfo(name="webgpu", gpu=WEBGPU)
    ulps: Mapping[str, float] = {
        # There is no fused multiplication, and a division may be off by 2.5 units.
        **dict.fromkeys(("exp", "exp2", "log", "log2", "log1p", "expm1", "tanh", "erf"), 8.0),
    }

    def __init__(self) -> None:
        wgpu = pytest.importorskip("wgpu", reason="needs wgpu")
        usage = wgpu.BufferUsage
        self.usage = usage.STORAGE | usage.UNIFORM | usage.COPY_SRC | usage.COPY_DST
        try:
            adapter = wgpu.gpu.request_adapter_sync()
        except Exception as error:  # wgpu raises plain exceptions of several kinds here
            pytest.skip(f"no WebGPU adapter: {error}")
        self.device = adapter.request_device_sync()

    def run(self, text: str, kernel: DeviceKernel, arrays: Sequence[Array], dims: Mapping[str, int]) -> None:
        device = self.device
        module = device.create_shader_module(code=text)
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": kernel.entry}
        )
        # Buffers begin at an offset, which the kernel adds.
        offsets = [2 + k for k in range(len(arrays))]
        numbers = np.zeros(64, np.int32)  # a uniform buffer has the size that the kernel declares
        given = [*(dims[n] for n in kernel.dims), *offsets]
        numbers[: len(given)] = given
        buffers = [self._upload(a, o) for a, o in zip(arrays, offsets, strict=True)]
        entries = [
            {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for k, b in enumerate([*buffers, self._upload(numbers, 0)])
            if k == len(buffers) or f"b{k}[" in text
        ]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        grid = [evaluate(d, dims) for d in kernel.grid]
        if all(grid):
            work.dispatch_workgroups(*grid)
        work.end()
        device.queue.submit([encoder.finish()])
        for array, buffer, offset, written in zip(arrays, buffers, offsets, kernel.written, strict=True):
            if written and array.size:
                stored = stored_as(array.dtype)
                whole = np.frombuffer(device.queue.read_buffer(buffer), np.uint8)
                data = whole[: whole.size // stored.itemsize * stored.itemsize].view(stored)
                array[...] = data[offset : offset + array.size].reshape(array.shape).astype(array.dtype)

    def _upload(self, array: Array, offset: int) -> Any:
        data = on_device(np.concatenate([np.zeros(offset, array.dtype), array.reshape(-1)]))
        buffer = self.device.create_buffer(size=max(data.size, 16), usage=self.usage)
        if data.size:
            self.device.queue.write_buffer(buffer, 0, data)
        return buffer


class SimulatedDevice:
    """The simulator of CUDA, HIP or Metal, which checks for races and accesses out of bounds."""

    ulps: Mapping[str, float] = {}

    def __init__(self, language: str, dialect: Dialect, gpu: Gpu) -> None:
        if language not in LANGUAGES:
            pytest.skip(f"the simulator does not run {dialect.name}")
        self.language, self.dialect = language, dialect
        self.info = TargetInfo(name=language, gpu=gpu)
        self._modules: dict[str, SimulatedModule] = {}

    def run(self, text: str, kernel: DeviceKernel, arrays: Sequence[Array], dims: Mapping[str, int]) -> None:
        module = self._modules.get(text)
        if module is None:
            checked = text.count("tw_k(") > 0  # Texts of many kernels are not: they take minutes to compile.
            warp = self.info.gpu.warp if self.info.gpu else 32
            module = self._modules[text] = SimulatedModule(text, self.language, checked, warp)
        grid = [evaluate(d, dims) for d in kernel.grid]
        numbers: list[Any] = [dims[n] for n in kernel.dims]
        # The smallest array is one element: the simulator has no null pointers.
        buffers = [a if a.size else np.zeros(1, a.dtype) for a in arrays]
        if self.dialect.params:
            numbers = [np.array([*numbers, *[0] * len(arrays)], np.int64)]
        if all(grid):
            module.launch(kernel.entry, grid, kernel.threads, [*buffers, *numbers], kernel.dynamic_bytes)


def as_bytes(array: Array) -> Array:
    """Return the array's memory as bytes."""
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


DEVICES: dict[str, Callable[[], Device]] = {
    "cuda": lambda: SimulatedDevice("cuda", CUDA, Gpu()),
    "hip": lambda: SimulatedDevice("hip", HIP, Gpu(warp=64)),
    "metal": lambda: SimulatedDevice("metal", METAL, Gpu()),
    "opencl": OpenCLDevice,
    "wgsl": WebgpuDevice,
}


@cache
def device(name: str) -> Device:
    """Return a device by the name of its language; skips the test where there is none."""
    return DEVICES[name]()


def run(
    name: str, kernel: loop.Kernel, arrays: Sequence[Array], dims: Mapping[str, int] | None = None
) -> tuple[list[Array], DeviceKernel]:
    """Return the kernel's buffers after it has run on a device, and its text."""
    there = device(name)
    printed = print_kernel(kernel, there.dialect, there.info)
    buffers = [a.copy() for a in arrays]
    there.run(module_text([printed], there.dialect), printed, buffers, dims or {})
    return buffers, printed


Program = tuple[loop.Kernel, Sequence[Array]]


def check_module(name: str, programs: Sequence[Program]) -> Iterator[tuple[Program, list[Array]]]:
    """Run kernels that share a module, and yield each program with its buffers afterwards.

    Kernels that the language refuses are left out.
    """
    there = device(name)
    printed: list[tuple[Program, DeviceKernel]] = []
    for program in programs:
        try:
            printed.append((program, print_kernel(program[0], there.dialect, there.info)))
        except CompileError as error:
            assert "does not support" in str(error), error
    together = [kernel for _, kernel in printed]
    text = "" if there.dialect.arrays else module_text(together, there.dialect)
    for program, kernel in printed:
        buffers = [a.copy() for a in program[1]]
        there.run(text or module_text([kernel], there.dialect), kernel, buffers, {})
        yield program, buffers
