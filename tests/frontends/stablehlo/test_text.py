"""StableHLO programs that JAX does not generate, written as text and compared with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("jaxlib")

from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.stablehlo import import_stablehlo
from tilewright.ir.interpreter import Interpreter
from tilewright.runtime.nested import Nested

RANDOM = np.random.default_rng(0)


def run(tmp_path: Path, arguments: str, body: str, result: str, *inputs: Any, attributes: str = "") -> Any:
    """Return the result of a function of `arguments` whose `body` computes ``%y``."""
    path = tmp_path / "model.mlir"
    path.write_text(
        f"module {attributes} {{\nfunc.func @main({arguments}) -> {result} {{\n{body}\nfunc.return "
        f"%y : {result}\n}} }}"
    )
    module = import_stablehlo(path)
    nested = Nested(*entries) if (entries := module.symbol("main").attributes.get("nested")) else None
    results = Interpreter(module).run("main", list(nested.flatten(inputs, {}) if nested else inputs))
    return nested.unflatten(results) if nested else results[0]


def complexes(*shape: int, dtype: str = "c16") -> Any:
    return (RANDOM.standard_normal(shape) + 1j * RANDOM.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("form", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
def test_complex_triangular_systems(tmp_path: Path, left: bool, lower: bool, unit: bool, form: str) -> None:
    a, b = complexes(2, 4, 4), complexes(2, 4, 3)
    a, b = a + 3 * np.eye(4), b if left else b.swapaxes(1, 2).copy()
    of_b = f"tensor<2x{b.shape[1]}x{b.shape[2]}xcomplex<f64>>"
    options = f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}".lower()
    found = run(
        tmp_path,
        f"%a: tensor<2x4x4xcomplex<f64>>, %b: {of_b}",
        (
            f'%y = "stablehlo.triangular_solve"(%a, %b) <{{{options}, transpose_a = '
            f"#stablehlo<transpose {form}>}}> : (tensor<2x4x4xcomplex<f64>>, {of_b}) -> {of_b}"
        ),
        of_b,
        a,
        b,
    )
    t = np.tril(a) if lower else np.triu(a)
    if unit:
        t = t * (1 - np.eye(4)) + np.eye(4)
    t = {"NO_TRANSPOSE": t, "TRANSPOSE": t.swapaxes(1, 2), "ADJOINT": t.conj().swapaxes(1, 2)}[form]
    np.testing.assert_allclose(t @ found if left else found @ t, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lower", [True, False])
def test_complex_cholesky(tmp_path: Path, lower: bool) -> None:
    z = complexes(2, 4, 4)
    a = z @ z.conj().swapaxes(1, 2) + np.eye(4)
    given = np.tril(a) if lower else np.triu(a)
    of_a = "tensor<2x4x4xcomplex<f64>>"
    body = f"%y = stablehlo.cholesky %a, lower = {str(lower).lower()} : {of_a}"
    found = run(tmp_path, f"%a: {of_a}", body, of_a, given)
    factor = np.tril(found) if lower else np.triu(found).conj().swapaxes(1, 2)
    np.testing.assert_allclose(factor, np.linalg.cholesky(a), rtol=1e-10, atol=1e-10)


BITS = {
    "f64": np.float64, "f32": np.float32, "i16": np.int16,
    "i32": np.int32, "ui8": np.uint8, "i1": np.bool_,
    "complex<f32>": np.complex64, "complex<f64>": np.complex128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("3xf64", "3x2xf32"), ("3x2xf32", "3xf64"), ("2x4xi16", "2xf64"), ("2xf64", "2x8xui8")),
        *(("3xcomplex<f64>", "3x2xcomplex<f32>"), ("3x2xcomplex<f32>", "3xcomplex<f64>"), ("2xf32", "2xi32")),
        *(("2xf32", "2x32xi1"), ("2x32xi1", "2xf32")),
    ],
)
def test_bitcasts(tmp_path: Path, source: str, target: str) -> None:
    *size, name = source.split("x", source.count("x") - ("complex" in source))
    *new, result = target.split("x", target.count("x") - ("complex" in target))
    dtype, wanted = np.dtype(BITS[name]), np.dtype(BITS[result])
    bits = 1 if dtype.kind == "b" else dtype.itemsize * 8
    # Values below 120 in the highest byte are never NaN.
    raw = RANDOM.integers(0, 120, int(np.prod([int(d) for d in size])) * bits // 8, np.uint8)
    x = np.unpackbits(raw, bitorder="little").astype(bool) if dtype.kind == "b" else raw.view(dtype)
    text = f"%y = stablehlo.bitcast_convert %x : (tensor<{source}>) -> tensor<{target}>"
    found = run(
        tmp_path, f"%x: tensor<{source}>", text, f"tensor<{target}>", x.reshape([int(d) for d in size])
    )
    y = np.unpackbits(raw, bitorder="little").astype(bool) if wanted.kind == "b" else raw.view(wanted)
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, y.reshape([int(d) for d in new]))


@pytest.mark.parametrize("name", ["f8E3M4", "f8E4M3", "f8E4M3B11FNUZ", "f6E2M3FN", "f6E3M2FN"])
def test_floats_of_few_bits(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, f"float{name[1]}_{name[2:].lower()}"))
    x = RANDOM.standard_normal(50).astype(dtype)
    found = run(
        tmp_path,
        f"%x: tensor<50x{name}>",
        f"%y = stablehlo.add %x, %x : tensor<50x{name}>",
        f"tensor<50x{name}>",
        x,
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(
        found.astype(np.float32), (x.astype(np.float32) * 2).astype(dtype).astype(np.float32)
    )


def test_tuples(tmp_path: Path) -> None:
    body = """%t = stablehlo.tuple %a, %b : tuple<tensor<2xf32>, tensor<2xf32>>
    %u = stablehlo.tuple %t, %a : tuple<tuple<tensor<2xf32>, tensor<2xf32>>, tensor<2xf32>>
    %v = stablehlo.get_tuple_element %u[0] : (tuple<tuple<tensor<2xf32>, tensor<2xf32>>, tensor<2xf32>>)
        -> tuple<tensor<2xf32>, tensor<2xf32>>
    %w = stablehlo.get_tuple_element %v[1] : (tuple<tensor<2xf32>, tensor<2xf32>>) -> tensor<2xf32>
    %y = stablehlo.subtract %w, %a : tensor<2xf32>"""
    a, b = np.float32([1, 2]), np.float32([5, 7])
    np.testing.assert_array_equal(
        run(tmp_path, "%a: tensor<2xf32>, %b: tensor<2xf32>", body, "tensor<2xf32>", a, b), b - a
    )
    pair = "tuple<tensor<2xf32>, tensor<2xf32>>"
    with pytest.raises(CompileError, match="returns a tuple"):
        run(tmp_path, "%a: tensor<2xf32>", f"%y = stablehlo.tuple %a, %a : {pair}", pair, a)


def test_operands_are_broadcast(tmp_path: Path) -> None:
    body = """%s = chlo.broadcast_subtract %a, %b : (tensor<3x1xf32>, tensor<?xf32>) -> tensor<3x?xf32>
    %l = chlo.broadcast_compare %a, %c {broadcast_dimensions = array<i64: 0>, comparison_direction =
        #chlo<comparison_direction LT>} : (tensor<3x1xf32>, tensor<3xf32>) -> tensor<3x1xi1>
    %y = chlo.broadcast_select %l, %s, %a : (tensor<3x1xi1>, tensor<3x?xf32>, tensor<3x1xf32>) ->
        tensor<3x?xf32>"""
    arguments = "%a: tensor<3x1xf32>, %b: tensor<?xf32>, %c: tensor<3xf32>"
    a, b, c = RANDOM.standard_normal((3, 1)), RANDOM.standard_normal(4), RANDOM.standard_normal(3)
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    found = run(tmp_path, arguments, body, "tensor<3x?xf32>", a, b, c)
    np.testing.assert_array_equal(found, np.where(a < c[:, None], a - b, np.broadcast_to(a, (3, 4))))


COLLECTIVE = """%g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<GROUPS>
    : tensor<SIZExi64>}> : (tensor<2xf32>) -> tensor<RESULTxf32>
%p = "stablehlo.partition_id"() : () -> tensor<ui32>
%q = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
%b = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> tensor<RESULTxf32>
%y = stablehlo.add %g, %b : tensor<RESULTxf32>"""


def test_one_device_gets_what_it_sends(tmp_path: Path) -> None:
    x = np.float32([1, 2])
    body = COLLECTIVE.replace("GROUPS", "[[0]]").replace("SIZE", "1x1").replace("RESULT", "2")
    np.testing.assert_array_equal(run(tmp_path, "%x: tensor<2xf32>", body, "tensor<2xf32>", x), x)
    with pytest.raises(UnsupportedOperatorError, match="several devices"):
        run(
            tmp_path,
            "%x: tensor<2xf32>",
            body,
            "tensor<2xf32>",
            x,
            attributes="attributes {mhlo.num_partitions = 2 : i32}",
        )
    body = COLLECTIVE.replace("GROUPS", "[[0, 1]]").replace("SIZE", "1x2").replace("RESULT", "4")
    with pytest.raises(UnsupportedOperatorError, match="several devices"):
        run(tmp_path, "%x: tensor<2xf32>", body, "tensor<4xf32>", x)


SCATTER = """%r:2 = "stablehlo.scatter"(%x, %z, %i, %u, %v) <{scatter_dimension_numbers =
    #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims
        = [0], index_vector_dim = 1>}> ({
^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
  %s = stablehlo.multiply %a, %d : tensor<f32>
  %t = stablehlo.subtract %s, %c : tensor<f32>
  %m = stablehlo.maximum %b, %s : tensor<f32>
  stablehlo.return %t, %m : tensor<f32>, tensor<f32>
}) : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<5xi32>, tensor<5x3xf32>, tensor<5x3xf32>) ->
    (tensor<4x3xf32>, tensor<4x3xf32>)
%y = stablehlo.add %r#0, %r#1 : tensor<4x3xf32>"""


def test_windows_are_scattered_in_turn(tmp_path: Path) -> None:
    """Windows are scattered one after another. The body combines several tensors, so that the order of equal
    indices matters; windows out of range are skipped.
    """
    x, z, u, v = (RANDOM.standard_normal(s).astype(np.float32) for s in ((4, 3), (4, 3), (5, 3), (5, 3)))
    places = np.int32([2, -1, 2, 4, 0])
    arguments = (
        "%x: tensor<4x3xf32>, %z: tensor<4x3xf32>, %i: tensor<5xi32>, %u: tensor<5x3xf32>, "
        "%v: tensor<5x3xf32>"
    )
    found = run(tmp_path, arguments, SCATTER, "tensor<4x3xf32>", x, z, places, u, v)
    for k, place in enumerate(places):
        if 0 <= place < 4:
            product = x[place] * v[k]
            x[place], z[place] = product - u[k], np.maximum(z[place], product)
    np.testing.assert_allclose(found, x + z, rtol=1e-6)


REDUCE = """%zero = stablehlo.constant dense<0.5> : tensor<f32>
%r:2 = stablehlo.reduce(%x init: %zero), (%x init: %zero) across dimensions = [0, 2] :
    (tensor<?x3x?x2xf32>, tensor<?x3x?x2xf32>, tensor<f32>, tensor<f32>) -> (tensor<3x2xf32>, tensor<3x2xf32>)
  reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<f32>, %d: tensor<f32>) {
    %s = stablehlo.add %a, %c : tensor<f32>
    %m = stablehlo.maximum %b, %d : tensor<f32>
    stablehlo.return %s, %m : tensor<f32>, tensor<f32>
  }
%y = stablehlo.subtract %r#0, %r#1 : tensor<3x2xf32>"""


@pytest.mark.parametrize("sizes", [(4, 5), (1, 3)])
def test_reduction_of_several_tensors_over_dynamic_dimensions(tmp_path: Path, sizes: tuple[int, int]) -> None:
    x = RANDOM.standard_normal((sizes[0], 3, sizes[1], 2)).astype(np.float32)
    found = run(tmp_path, "%x: tensor<?x3x?x2xf32>", REDUCE, "tensor<3x2xf32>", x)
    wanted = x.sum((0, 2)) + 0.5 - x.max((0, 2), initial=0.5)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
