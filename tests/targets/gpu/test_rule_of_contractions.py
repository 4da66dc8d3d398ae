"""The rule of contractions: products and convolutions as block programs, run by the interpreter."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import pytest
from tests.passes.tensor.test_fusion import arrays, build, weight

from tilewright.dialects import graph, loop, simt
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Value
from tilewright.ir.debug import STRICT_SCHEDULES, VARIABLE
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import symbol
from tilewright.ir.target_info import Gpu, TargetInfo, ThreadAxis
from tilewright.lowering.pipeline import LoweringOptions, lower
from tilewright.targets.gpu.rules import RULES

INFO = TargetInfo(
    name="cuda",
    vector_bits=0,
    gpu=Gpu(max_threads=64),
    cache_line=0,
    thread_axes=(ThreadAxis("block.x"), ThreadAxis("thread.x", 64)),
)
OPTIONS = LoweringOptions(panel=None, rules=RULES, info=INFO, in_place=False)
M = symbol("m", 1, None)


def check(module: Module, tolerance: float = 1e-4, **sizes: int) -> list[loop.Kernel]:
    """Run a module before and after it is lowered; return its kernels."""
    inputs = arrays(module, **sizes)
    wanted = Interpreter(module).run("main", inputs)
    with mock.patch.dict(os.environ, {VARIABLE: STRICT_SCHEDULES}):
        lowered = lower(module, OPTIONS, lambda step, m: step(m))
    outputs = [np.full_like(x, np.nan) for x in wanted]
    Interpreter(lowered.module).run("main", [*inputs, *outputs])
    for y, z in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(y, z, rtol=tolerance, atol=tolerance)
    return list(lowered.module.functions(loop.Kernel))


def has_tiles(kernel: loop.Kernel) -> bool:
    """Whether a kernel keeps its sums in registers, loads tiles to shared memory and their parts to
    registers, and waits twice a step.
    """
    ops = list(kernel.walk())
    spaces = sorted(op.buffer.space for op in ops if isinstance(op, loop.Alloc))
    barriers = sum(isinstance(op, simt.Barrier) for op in ops)
    return spaces == ["local", "local", "register", "shared", "shared"] and barriers == 2


def test_product_of_one_matrix_in_a_batch() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b(graph.Matmul(x, weight(b, 8, 16)))

    (kernel,) = check(build({"x": (1, 5, 8)}, body))
    assert has_tiles(kernel)


@pytest.mark.parametrize(("m", "k", "n"), [(20, 11, 13), (9, 40, 33), (5, 6, 3)])
def test_product_with_epilogue(m: int, k: int, n: int) -> None:
    def body(b: Builder, x: Value) -> Value:
        y = b(graph.Matmul(x, weight(b, k, n)))
        return b(graph.Relu(b(graph.Add(y, weight(b, n)))))

    (kernel,) = check(build({"x": (m, k)}, body))
    assert has_tiles(kernel)


def test_product_of_unknown_rows() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b(graph.Matmul(x, weight(b, 24, 20)))

    for m in (1, 9):
        (kernel,) = check(build({"x": (M, 24)}, body), m=m)
        assert has_tiles(kernel)


def test_batched_product_of_transposed_operands() -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        return b(graph.Matmul(x, b(graph.Transpose(y, permutation=(0, 1, 3, 2)))))

    (kernel,) = check(build({"x": (1, 3, 10, 8), "y": (1, 3, 9, 8)}, body))
    assert has_tiles(kernel)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_convolution_is_an_implicit_product(layout: str) -> None:
    def body(b: Builder, x: Value) -> Value:
        y = b(
            graph.Conv(
                x,
                weight(b, 10, 3, 3, 3),
                None,
                strides=(2, 2),
                padding=((1, 1), (1, 1)),
                dilations=(1, 1),
                layout=layout,
            )
        )
        return b(graph.Relu(y))

    shape = (2, 3, 8, 9) if layout == "channels_first" else (2, 8, 9, 3)
    *_, kernel = check(build({"x": shape}, body))
    assert has_tiles(kernel)
