"""Runs a kernel's LLVM code in this process, with buffers that lie at pages which must not be accessed."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dialects import loop, tensor
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Frame
from tilewright.ir.substitution import evaluate
from tilewright.ir.types import TensorType
from tilewright.lowering.tensor_to_loop import kernel_of_group
from tilewright.schedule import Schedule, finalize
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel import KernelCode, print_kernel

from .jit import compile_functions

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)


def make_group(
    types: Sequence[TensorType], body: Callable[..., Sequence[Any]], kind: str = "rows"
) -> tensor.Group:
    """Return a group of computations over arguments of `types`; ``body(t, *tensors)`` returns its results."""
    group = tensor.Group((), kind=kind, result_types=())
    arguments = [group.body.add_arg(t) for t in types]
    t = TensorBuilder(Builder(group.body))
    results = body(t, *(t.wrap(v) for v in arguments))
    Builder(group.body).insert(tensor.Yield([r.value for r in results]))
    return tensor.Group((), kind=kind, regions=[group.regions[0]])


def scheduled(group: tensor.Group, rule: Callable[[Schedule], object] | None) -> loop.Kernel:
    """Return the group's finalized kernel after `rule` has scheduled it."""
    schedule = Schedule(kernel_of_group(group, "kernel"))
    if rule is not None:
        rule(schedule)
    return finalize(schedule)


class Fenced:
    """A copy of an array that ends (or begins) at a page which must not be accessed."""

    def __init__(self, array: np.ndarray[Any, Any], at_end: bool) -> None:
        room = -(-max(array.nbytes, 1) // PAGE) * PAGE
        self._map = mmap.mmap(-1, room + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for fence in (start, start + PAGE + room):
            assert _libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) == 0
        offset = PAGE + (room - array.nbytes if at_end else 0)
        self.array = np.frombuffer(self._map, array.dtype, array.size, offset).reshape(array.shape)
        self.address = start + offset
        self.array[...] = array


@functools.cache
def _compiled(text: str) -> int:
    return compile_functions(text)("kernel")


def run_kernel(
    kernel: loop.Kernel,
    isa: Isa,
    inputs: Sequence[np.ndarray[Any, Any]],
    dims: Mapping[str, int],
    pieces: int = 1,
    in_place: Mapping[int, int] | None = None,
) -> tuple[list[np.ndarray[Any, Any]], KernelCode]:
    """Return the outputs of a kernel, and its code. Its range is divided into `pieces`. `in_place` maps the
    number of an output to the number of the input in whose memory it is.
    """
    code = print_kernel(kernel, isa, "kernel")
    text = "\n".join([*code.helpers.values(), code.text])
    address = _compiled(text)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3)(address)
    outputs: list[np.ndarray[Any, Any]] = []
    for at_end in (True, False):
        buffers = [Fenced(x, at_end) for x in inputs]
        for k, arg in enumerate(kernel.body.args[len(inputs) :]):
            if in_place and k in in_place:
                buffers.append(buffers[in_place[k]])
                continue
            shape = tuple(evaluate(d, dims) for d in arg.type.shape)
            buffers.append(
                Fenced(
                    np.frombuffer(
                        b"\xa5" * (int(np.prod(shape)) * arg.type.dtype.itemsize), arg.type.dtype.numpy
                    ).reshape(shape),
                    at_end,
                )
            )
        pointers = (ctypes.c_void_p * len(buffers))(*(b.address for b in buffers))
        sizes = (ctypes.c_int64 * max(len(kernel.dims), 1))(*(dims[d.name] for d in kernel.dims))
        scratch = Fenced(np.zeros(-(-evaluate(code.scratch, dims) // PAGE) * PAGE, np.uint8), at_end)
        extent = evaluate(code.extent, dims)
        cuts = [extent * k // pieces for k in range(pieces + 1)]
        for begin, end in itertools.pairwise(cuts):
            function(
                begin,
                end,
                ctypes.cast(pointers, ctypes.c_void_p),
                ctypes.cast(sizes, ctypes.c_void_p),
                scratch.address,
            )
        results = [b.array.copy() for b in buffers[len(inputs) :]]
        if outputs:
            for a, b in zip(outputs, results, strict=True):
                assert a.tobytes() == b.tobytes()
        outputs = results
    return outputs, code


def reference(
    group: tensor.Group, inputs: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int]
) -> list[np.ndarray[Any, Any]]:
    """Return the result of the group by the semantics of the tensor level."""
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in Frame(Module(), dict(dims), {}).run_block(group.body, list(inputs))]


def interpreted(
    kernel: loop.Kernel, inputs: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int]
) -> list[np.ndarray[Any, Any]]:
    """Return the result of the kernel by the semantics of the loop level."""
    outputs = []
    for arg in kernel.body.args[len(inputs) :]:
        outputs.append(np.zeros(tuple(evaluate(d, dims) for d in arg.type.shape), arg.type.dtype.numpy))
    with np.errstate(all="ignore"):
        Frame(Module(), dict(dims), {}).run_block(kernel.body, [*inputs, *outputs])
    return outputs
