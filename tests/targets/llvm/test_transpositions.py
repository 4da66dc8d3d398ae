"""Transposed copies and panels: values, and the order in which their loops pass memory."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.analysis.loop_nest import address, enclosing_loops
from tilewright.dialects import func, graph, loop
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.substitution import evaluate
from tilewright.ir.types import TensorType, f32
from tilewright.lowering.pipeline import lower
from tilewright.targets.cpu.target import cpu_target
from tilewright.targets.llvm.rules.common import SQUARE_ROWS

DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64, "u8": np.uint8}


@pytest.mark.every_isa
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axes", "step"),
    [
        ((130, 201), (1, 0), 1),
        ((65, 257), (1, 0), 1),
        ((3, 70, 131), (0, 2, 1), 1),
        ((3, 70, 131), (2, 1, 0), 1),
        ((5, 66, 9, 8), (0, 2, 1, 3), 1),  # runs too short for the order of reading
        ((5, 66, 3, 70), (0, 2, 1, 3), 1),  # heads of an attention
        ((6, 3, 5, 130), (2, 0, 1, 3), 1),
        ((6, 3, 5, 130), (2, 1, 0, 3), 2),  # every other column
        ((150, 260), (1, 0), 2),
        ((2, 7), (1, 0), 1),
    ],
)
def test_values(shape: tuple[int, ...], axes: tuple[int, ...], step: int, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape).astype(DTYPES[dtype])
    library = tw.compile(lambda x: tnp.transpose(x[..., ::step], axes) * 2, (x,), threads=2)
    np.testing.assert_array_equal(library(x), x[..., ::step].transpose(axes) * 2)


def transposition(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[loop.Kernel]:
    """The kernels of a transposition of a float32 tensor for AVX-512."""
    return kernels({"x": shape}, lambda b, x: b(graph.Transpose(x, permutation=axes)))


def kernels(inputs: dict[str, tuple[int, ...]], body: Any) -> list[loop.Kernel]:
    module = Module()
    f = func.Func(sym_name="main", arg_names=tuple(inputs), result_names=("y",))
    module.body.append(f)
    arguments = [f.body.add_arg(TensorType(f32, shape), name) for name, shape in inputs.items()]
    b = Builder(f.body)
    b.insert(func.Return([body(b, *arguments)]))
    lowered = lower(module, cpu_target("cpu:x86-64-v4").lowering, lambda step, m: step(m))
    return [op for op in lowered.module.walk() if isinstance(op, loop.Kernel)]


def first_addresses(kernel: loop.Kernel, kind: type) -> list[int]:
    """The address of the first element that each iteration of a kernel's parallel loop loads or stores."""
    (access,) = (op for op in kernel.walk() if isinstance(op, kind))
    (divided,) = (f for f in enclosing_loops(access) if f.kind == loop.LoopKind.PARALLEL)
    at = dict.fromkeys((f.iv.name for f in enclosing_loops(access)), 0)
    assert isinstance(divided.extent, int)
    return [evaluate(address(access), {**at, divided.iv.name: k}) for k in range(divided.extent)]


def test_squares_write_pieces_of_rows() -> None:
    """A block of columns is written in pieces of rows, all rows of the block, before the next block."""
    (kernel,) = transposition((200, 300), (1, 0))
    lanes = [op for op in kernel.walk() if isinstance(op, loop.For) and op.kind == loop.LoopKind.VECTORIZE]
    assert [str(f.extent).startswith(f"min({SQUARE_ROWS}, ") for f in lanes] == [True]
    reads, writes = (first_addresses(kernel, kind) for kind in (loop.Load, loop.Store))
    assert reads == [block * 300 + row for block in range(0, 200, 64) for row in range(0, 300, 64)]
    assert writes == [row * 200 + block for block in range(0, 200, 64) for row in range(0, 300, 64)]


@pytest.mark.parametrize(("width", "reads_in_order"), [(64, True), (128, True), (32, False)])
def test_long_runs_are_read_in_order(width: int, reads_in_order: bool) -> None:
    """Where every iteration writes whole cache lines, the loops pass what they read from first to last."""
    (kernel,) = transposition((2, 30, 4, width), (0, 2, 1, 3))
    reads, writes = (first_addresses(kernel, kind) for kind in (loop.Load, loop.Store))
    in_order = list(range(0, 2 * 30 * 4 * width, width))
    assert (reads, sorted(writes)) == (in_order, in_order) if reads_in_order else writes == in_order


def test_panels_are_read_in_order() -> None:
    """A matrix's rows are read from first to last; each is cut into the panels' rows."""
    found = kernels({"a": (256, 128), "b": (128, 256)}, lambda b, *ab: b(graph.Matmul(*ab)))
    (pack,) = (k for k in found if k.sym_name.startswith("pack"))
    reads, writes = (first_addresses(pack, kind) for kind in (loop.Load, loop.Store))
    assert reads == list(range(0, 128 * 256, 64))
    assert writes == [panel * 128 * 64 + row * 64 for row, panel in itertools.product(range(128), range(4))]
