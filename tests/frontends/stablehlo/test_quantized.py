"""Quantized StableHLO: the stored integers of a result equal those that the same arithmetic gives in
NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jaxlib")

import tilewright as tw
from tilewright.errors import UnsupportedOperatorError
from tilewright.frontends.stablehlo import import_stablehlo
from tilewright.frontends.stablehlo.reading import bindings, context
from tilewright.ir.interpreter import Interpreter

RANDOM = np.random.default_rng(0)


def stored(x: Any, scale: Any, zero: Any, low: int = -128, high: int = 127) -> Any:
    scaled = (x / np.float32(scale)).astype(np.float32) + np.asarray(zero, np.float32)
    return np.round(np.nan_to_num(np.clip(scaled, low, high)))


def real(q: Any, scale: Any, zero: Any) -> Any:
    return (q.astype(np.int32) - zero).astype(np.float32) * np.float32(scale)


def run(tmp_path: Path, text: str, *inputs: Any, native: bool = False) -> Any:
    path = tmp_path / "model.mlir"
    path.write_text(text)
    if native:
        return tw.compile(path, cache=False)(*inputs)
    results = Interpreter(import_stablehlo(path)).run("main", list(inputs))
    return results[0] if len(results) == 1 else results


def main(arguments: str, body: str, result: str) -> str:
    return f"func.func @main({arguments}) -> {result} {{\n{body}\nfunc.return %y : {result}\n}}"


A, B, C = (
    "!quant.uniform<i8:f32, 0.1:-30>",
    "!quant.uniform<i8:f32, 5.0e-2:7>",
    "!quant.uniform<u8<1:254>:f32, 0.25:128>",
)
EACH = "!quant.uniform<i8:f32:1, {0.1:-30,0.5:-20,2.0}>"


@pytest.mark.parametrize("native", [False, True])
def test_operators_round_to_their_results_type(tmp_path: Path, native: bool) -> None:
    text = main(
        f"%a: tensor<4x3x{A}>, %b: tensor<4x3x{B}>",
        f"""%s = stablehlo.add %a, %b : (tensor<4x3x{A}>, tensor<4x3x{B}>) -> tensor<4x3x{B}>
        %y = stablehlo.uniform_quantize %s : (tensor<4x3x{B}>) -> tensor<4x3x{C}>""",
        f"tensor<4x3x{C}>",
    )
    a = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
    b = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
    total = stored(real(a, 0.1, -30) + real(b, 0.05, 7), 0.05, 7)
    wanted = stored(real(total, 0.05, 7), 0.25, 128, 1, 254)
    got = run(tmp_path, text, a, b, native=native)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, wanted)


def test_each_index_of_an_axis(tmp_path: Path) -> None:
    text = main(
        "%x: tensor<4x3xf32>",
        f"""%q = stablehlo.uniform_quantize %x : (tensor<4x3xf32>) -> tensor<4x3x{EACH}>
        %t = stablehlo.transpose %q, dims = [1, 0] : (tensor<4x3x{EACH}>) ->
            tensor<3x4x{EACH.replace("f32:1", "f32:0")}>
        %d = stablehlo.uniform_dequantize %t : (tensor<3x4x{EACH.replace("f32:1", "f32:0")}>) ->
            tensor<3x4xf32>
        %y = stablehlo.bitcast_convert %q : (tensor<4x3x{EACH}>) -> tensor<4x3xi8>""",
        "tensor<4x3xi8>",
    ).replace(") -> tensor<4x3xi8> {", ") -> (tensor<3x4xf32>, tensor<4x3xi8>) {")
    text = text.replace("return %y : tensor", "return %d, %y : tensor<3x4xf32>, tensor")
    x = RANDOM.standard_normal((4, 3)).astype(np.float32) * 5
    x[0] = np.nan, np.inf, -np.inf
    scales, zeros = np.float32([0.1, 0.5, 2]), np.array([-30, -20, 0])
    wanted = stored(x, scales, zeros)
    numbers, integers = run(tmp_path, text, x)
    assert integers[0].tolist() == [0, 127, -128]
    np.testing.assert_array_equal(integers, wanted)
    np.testing.assert_allclose(numbers, real(wanted, scales, zeros).T, rtol=1e-6)


def test_real_numbers_times_quantized_weights(tmp_path: Path) -> None:
    each = "!quant.uniform<i8:f32:1, {0.1,0.5,2.0}>"
    text = main(
        f"%x: tensor<5x4xf32>, %w: tensor<4x3x{each}>",
        (
            f"%y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<5x4xf32>, "
            f"tensor<4x3x{each}>) -> tensor<5x3xf32>"
        ),
        "tensor<5x3xf32>",
    )
    x = RANDOM.standard_normal((5, 4)).astype(np.float32)
    w = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
    wanted = x @ real(w, np.float32([0.1, 0.5, 2]), 0)
    np.testing.assert_allclose(run(tmp_path, text, x, w), wanted, rtol=1e-4, atol=1e-3)


POOL = f"""%low = stablehlo.constant() {{value = dense<-128> : tensor<i8>}} : () -> tensor<{A}>
    %y = "stablehlo.reduce_window"(%a, %low) <{{window_dimensions = array<i64: 2, 1>, window_strides =
        array<i64: 2, 1>}}> ({{
      ^bb0(%l: tensor<{A}>, %r: tensor<{A}>):
        %m = stablehlo.OPERATION %l, %r : tensor<{A}>
        stablehlo.return %m : tensor<{A}>
    }}) : (tensor<4x3x{A}>, tensor<{A}>) -> tensor<2x3x{A}>"""


def test_the_largest_of_each_window(tmp_path: Path) -> None:
    text = main(f"%a: tensor<4x3x{A}>", POOL.replace("OPERATION", "maximum"), f"tensor<2x3x{A}>")
    a = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
    np.testing.assert_array_equal(run(tmp_path, text, a), a.reshape(2, 2, 3).max(1))


def test_sums_of_quantized_numbers_are_refused(tmp_path: Path) -> None:
    text = main(f"%a: tensor<4x3x{A}>", POOL.replace("OPERATION", "add"), f"tensor<2x3x{A}>")
    with pytest.raises(UnsupportedOperatorError, match=r"reduce_window.*\n?.*quantized"):
        run(tmp_path, text, np.zeros((4, 3), np.int8))


def test_bytecode(tmp_path: Path) -> None:
    text = main(
        f"%a: tensor<4x{A}>", f"%y = stablehlo.negate %a : (tensor<4x{A}>) -> tensor<4x{A}>", f"tensor<4x{A}>"
    )
    ir, stablehlo, *_ = bindings()
    with context():
        module = ir.Module.parse(text)
        data = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    (tmp_path / "model.mlirbc").write_bytes(data)
    a = np.int8([-128, -30, 5, 127])
    (got,) = Interpreter(import_stablehlo(tmp_path / "model.mlirbc")).run("main", [a])
    np.testing.assert_array_equal(got, stored(-real(a, 0.1, -30), 0.1, -30))
