"""Products with quantized weights: weights are dequantized in registers, or on their way to shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.devices import need, running
from tests.devices import sources_only as without_nvrtc
from tests.targets.gpu.simulated import Program

import tilewright as tw
from tilewright.dialects import loop, simt
from tilewright.ir.types import DType, bf16, i8, u8
from tilewright.llm.quantization.tables import E2M1
from tilewright.llm.quantized_linear import QuantizedLinear, factors

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def product(bits: int, rows: int, columns: int, depth: int, group: int, factor: DType) -> Any:
    """A product of `rows` rows with a quantized matrix [columns, depth], and its input."""
    limit = 1 << (bits - 1)
    qvalues = tw.Tensor(DRAW.integers(-limit, limit, (columns, depth)).astype(np.int8))
    qvalues = tnp.astype(qvalues, f"int{bits}") if bits < 8 else qvalues
    layer = QuantizedLinear(qvalues, tw.Tensor(drawn(columns, depth // group)))

    def function(x: Any) -> Any:
        with factors(factor):
            return tnp.maximum(layer(x), 0)

    return function, (drawn(rows, depth),)


def coded(form: str, rows: int, factor: DType, depth: int = 256) -> Any:
    """A product with weights of another program's form, and its input."""
    columns = 20
    codes = tnp.astype(tw.Tensor(DRAW.integers(0, 16, (columns, depth)).astype(np.uint8)), "uint4")
    if form == "k-quants":
        numbers = [DRAW.integers(0, 64, (columns, 8)).astype(np.uint8) for _ in range(2)]
        units = [DRAW.uniform(0.01, 0.02, (columns, 1)).astype(np.float16) for _ in range(2)]
        scales, minimums, unit, minimum_unit = map(tw.Tensor, (*numbers, *units))
        layer = QuantizedLinear(codes, scales, units=unit, minimums=minimums, minimum_units=minimum_unit)
    else:
        exponents = 2.0 ** DRAW.integers(-8, -4, (columns, depth // 32))
        scales = tw.Tensor(exponents.astype(ml_dtypes.float8_e8m0fnu))
        layer = QuantizedLinear(codes, scales, table=E2M1)

    def function(x: Any) -> Any:
        with factors(factor):
            return tnp.maximum(layer(x), 0)

    return function, (drawn(rows, depth),)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "int8, one row": product(8, 1, 20, 64, 32, bf16),
    "int8, one row, bytes": product(8, 1, 20, 64, 32, i8),
    "int4, one row": product(4, 1, 20, 64, 32, bf16),
    "int4, two rows": product(4, 2, 20, 96, 32, i8),
    "int4, many rows": product(4, 20, 24, 64, 32, bf16),
    "int8, many rows, bytes": product(8, 20, 24, 64, 32, i8),
    "int4, odd rows and columns": product(4, 7, 19, 96, 32, bf16),
    "K-quants, one row": coded("k-quants", 1, bf16),
    "K-quants, many rows": coded("k-quants", 20, bf16),
    "MXFP4, one row, bytes": coded("mxfp4", 1, i8),
    "MXFP4, many rows": coded("mxfp4", 20, bf16, depth=64),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = Program(function, inputs)
    kinds = [info.kind for info in program.lowered.kernels.values()]
    assert kinds.count("contraction") == 1
    program.check(*inputs, rtol=1e-2 if "byte" not in name else 1e-4)


def test_weights_of_one_row_are_loaded_side_by_side() -> None:
    function, inputs = product(8, 1, 64, 1024, 32, bf16)
    *_, kernel = Program(function, inputs).kernels
    assert [op.count for op in kernel.walk() if isinstance(op, simt.AllReduce)] == [32]
    vectors = [op for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "vectorize"]
    assert {f.extent for f in vectors} == {16}


def test_a_thread_uses_all_weights_of_a_byte() -> None:
    """A vector of 16 bytes is loaded once for 32 weights."""
    function, inputs = product(4, 1, 64, 1024, 32, bf16)
    *_, kernel = Program(function, inputs).kernels
    (lanes,) = [op for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "vectorize"]
    loads = [op.buffer.type.dtype for op in lanes.body.ops if isinstance(op, loop.Load)]
    assert lanes.extent == 16 and loads.count(u8) == 1 and loads.count(bf16) == 2


def test_weights_of_many_rows_are_dequantized_in_tiles() -> None:
    function, inputs = product(4, 40, 64, 64, 32, bf16)
    *_, kernel = Program(function, inputs).kernels
    tiles = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc) and op.buffer.space == "shared"]
    assert [tile.dtype for tile in tiles] == [bf16, bf16]


@pytest.mark.parametrize("target", ["cuda", "hip", "metal", "opencl", "vulkan", "webgpu"])
def test_two_weights_share_a_byte(target: str) -> None:
    """In memory, in the artifact and in what a kernel reads."""
    columns, depth, group = 64, 256, 32
    scales = columns * depth // group * 4
    for bits in (4, 8):
        function, inputs = product(bits, 1, columns, depth, group, i8)
        with without_nvrtc():
            library = tw.compile(function, inputs, target=target)
        weights = columns * depth * bits // 8 + scales
        assert library.metadata["memory"]["weights_bytes"] == weights
        qvalues, _ = library.metadata["parameters"]
        assert qvalues["dtype"] == ("uint8" if bits == 4 else "int8")
        (read,) = (k["bytes"] for k in library.metadata["kernels"] if k["kind"] == "contraction")
        assert weights < read < weights + 1024


@pytest.mark.parametrize("target", ["cuda", "hip", "metal", "opencl", "vulkan", "webgpu"])
@pytest.mark.parametrize("rows", [3, 20])
def test_devices(target: str, rows: int) -> None:
    """Packed weights on every device, in the checked simulator where there is one, against NumPy."""
    need(target)
    function, inputs = product(4, rows, 40, 128, 32, i8)
    (x,) = inputs
    with without_nvrtc():
        library = tw.compile(function, inputs, target=target)
    with running(library, checked=True) as there:
        found = there(x)
    *_, wanted = Program(function, inputs).wanted(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
