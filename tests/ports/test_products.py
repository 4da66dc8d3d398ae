"""Matrix products on AArch64, with lanes as factors and dot products, in QEMU, and the loops that compute
them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.targets.llvm.test_weight_forms import made, products
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import i8

from .emulators import NoEmulator, command_of, run_model
from .inner_loops import cycles, inner_loop, least_cycles, program

ALL = "aarch64-linux:dotprod+i8mm+bf16"
SHAPES = [(1, 64, 48), (2, 7, 5), (5, 33, 70), (13, 130, 16), (64, 48, 129)]
"""Rows, depth, columns."""


def run(library: Any, target: str, *inputs: np.ndarray, guarded: bool = False) -> np.ndarray:
    return run_all(library, target, list(inputs), guarded=guarded)[0][0]


def run_all(
    library: Any, target: str, *runs: list[np.ndarray], guarded: bool = False
) -> list[list[np.ndarray]]:
    try:
        command_of(target)
    except NoEmulator as error:
        pytest.skip(str(error))
    return run_model(library, target, runs, guarded=guarded)


def operands(shape: tuple[int, int, int], dtypes: tuple[Any, Any]) -> list[np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(sum(shape))
    return [
        rng.standard_normal(s).astype(t)
        if np.dtype(t).kind not in "iu"
        else rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, endpoint=True).astype(t)
        for s, t in zip(((m, k), (k, n)), dtypes, strict=True)
    ]


def integer_product(x: Any, weights: np.ndarray) -> Any:
    return tw.numpy.matmul(x.astype("int32"), tw.Tensor(weights).astype("int32"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["aarch64-linux", ALL, "aarch64-linux:sve256", "aarch64-linux:sve512"])
def test_float32(target: str, shape: tuple[int, int, int]) -> None:
    x, w = operands(shape, (np.float32, np.float32))
    library = tw.compile(lambda x: x @ tw.Tensor(w), (x,), target=target, cache=False)
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(run(library, target, x), wanted, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "target", ["aarch64-linux", ALL, "aarch64-linux:sve256", "aarch64-linux:sve256+bf16"]
)
def test_bf16(target: str, shape: tuple[int, int, int]) -> None:
    x, w = operands(shape, (np.float32, np.float32))
    library = tw.compile(lambda x: x @ tw.Tensor(w), (x,), target=target, precision="bf16", cache=False)
    a, b = (v.astype(ml_dtypes.bfloat16).astype(np.float64) for v in (x, w))
    wanted = a @ b
    assert np.abs(run(library, target, x) - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_bytes_are_exact(left: Any, right: Any, shape: tuple[int, int, int]) -> None:
    check_bytes(ALL, left, right, shape)


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_bytes_on_hexagon_are_exact(left: Any, right: Any, shape: tuple[int, int, int]) -> None:
    check_bytes("hexagon-linux", left, right, shape)


@pytest.mark.parametrize("shape", [(3, 7, 5), (13, 132, 200)], ids=str)
@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_bytes_in_vectors_of_hexagon_are_exact(left: Any, right: Any, shape: tuple[int, int, int]) -> None:
    """Columns that fill no vector, and rows whose words do and do not lie at multiples of four bytes. Memory
    ends with the last panel.
    """
    check_bytes("hexagon-linux:hvx", left, right, shape, guarded=True)


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
@pytest.mark.parametrize("dtypes", [(np.int8, np.int8), (np.uint8, np.int8)])
@pytest.mark.parametrize("target", ["aarch64-linux", "armv7-linux", "riscv64-linux", "riscv64-linux:v"])
def test_bytes_without_dot_products_are_exact(
    target: str, dtypes: tuple[Any, Any], shape: tuple[int, int, int]
) -> None:
    check_bytes(target, *dtypes, shape)


def check_bytes(
    target: str, left: Any, right: Any, shape: tuple[int, int, int], guarded: bool = False
) -> None:
    x, w = operands(shape, (left, right))
    library = tw.compile(lambda x: integer_product(x, w), (x,), target=target, cache=False)
    found = run(library, target, x, guarded=guarded)
    np.testing.assert_array_equal(found, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("shape", [(1, 48, 80), (7, 83, 80), (70, 40, 64)], ids=str)
@pytest.mark.parametrize("kind", ["bytes", "bf16"])
def test_rows_in_pairs(kind: str, shape: tuple[int, int, int]) -> None:
    """Three or more panels read rows of A that were paired before, odd numbers of rows and incomplete groups
    among them; the number of rows may be known only at run time.
    """
    x, w = operands(shape, (np.int8, np.int8) if kind == "bytes" else (np.float32, np.float32))
    model = (lambda x: integer_product(x, w)) if kind == "bytes" else lambda x: x @ tw.Tensor(w)
    library = tw.compile(
        model, (x,), target=ALL, dims={"x": {0: "batch<=100"}}, precision="bf16" if kind == "bf16" else None,
        cache=False,
    )  # fmt: skip
    assert "%pairs" in library.ir("llvm")
    a, b = (v.astype(np.int64) if kind == "bytes" else v.astype(ml_dtypes.bfloat16).astype(np.float64)
            for v in (x, w))  # fmt: skip
    tolerance = 0 if kind == "bytes" else 1e-6 * np.abs(a @ b).max()
    assert np.abs(run(library, ALL, x) - a @ b).max() <= tolerance


@pytest.mark.parametrize("size", [28, 31])
def test_convolutions_read_rows_in_pairs(size: int) -> None:
    """The rows of a window's lines are paired, too; results have the bits of `cpu`."""
    rng = np.random.default_rng(size)
    x = rng.standard_normal((1, 24, size, size), np.float32)
    model = tw.quantize(tw.nn.Conv2d(24, 72, 3, padding=1), [x])
    library = tw.compile(model, target=ALL, cache=False)
    assert "%pairs" in library.ir("llvm")
    wanted = tw.compile(model, target="cpu")(x)
    np.testing.assert_array_equal(run(library, ALL, x), wanted)


def loop_of(product: str, target: str) -> list[str]:
    """The inner loop of a product of 128 x 512 by 512 x 512 numbers."""
    kind = np.float32 if product in ("fmla", "bfmmla", *WIDE) else np.int8
    x, w = operands((128, 512, 512), (kind, kind))
    model = (lambda x: x @ tw.Tensor(w)) if kind is np.float32 else lambda x: integer_product(x, w)
    precision = "bf16" if product == "bfmmla" else None
    library = tw.compile(model, (x,), target=target, precision=precision, cache=False)
    return inner_loop(library.ir("asm"), product.split()[0])


WIDE = ("fmla z256", "fmla z512")
"""Multiply-adds in registers of SVE."""
LOOPS = {
    "fmla": ("aarch64-linux", ("neoverse-n1", "neoverse-v1", "apple-m1"), ["fmla v{}.4s, v30.4s, v31.4s"]),
    "fmla z256": ("aarch64-linux:sve256", ("neoverse-v1",), ["fmla z{}.s, p0/m, z30.s, z31.s"]),
    "fmla z512": ("aarch64-linux:sve512", ("a64fx",), ["fmla z{}.s, p0/m, z30.s, z31.s"]),
    "sdot": (
        "aarch64-linux:dotprod",
        ("neoverse-n1", "neoverse-v1", "apple-m1"),
        ["sdot v{}.4s, v30.16b, v31.16b"],
    ),
    "smmla": (
        "aarch64-linux:i8mm",
        ("neoverse-v1", "neoverse-n2", "apple-m2"),
        ["smmla v{}.4s, v30.16b, v31.16b"],
    ),
    "bfmmla": (
        "aarch64-linux:bf16",
        ("neoverse-v1", "neoverse-n2", "apple-m2"),
        ["bfmmla v{}.4s, v30.8h, v31.8h"],
    ),
    "sadalp": (
        "aarch64-linux",
        ("neoverse-n1", "neoverse-v1", "apple-m1"),
        ["smull v29.8h, v30.8b, v31.8b", "sadalp v{}.4s, v29.8h"],
    ),
}
"""By the product: a target, processors that have it, and the instructions whose throughput is the peak."""
LOADS = ("ldr", "ldp", "ldur", "ld1r", "ld1b", "ld1rw", "ld1rqw")


@pytest.mark.parametrize("product", LOOPS)
def test_instructions_of_the_inner_loop(product: str) -> None:
    """At least 90 % are multiply-adds or loads of their operands, and no register is spilled, copied or
    exchanged. Where a factor is loaded by itself, the calculation of its address is an instruction, too.
    """
    body = loop_of(product, LOOPS[product][0])
    names = [x.split()[0] for x in body]
    products = {product.split()[0], "smull"}
    least = 0.75 if product == "fmla z512" else 0.9
    assert sum(x in products or x in LOADS for x in names) >= least * len(body), body
    others = ("str", "stp", "mov", "dup", "zip1", "zip2")
    assert not [x for x in body if x.split()[0] in others or "[sp" in x], body


@pytest.mark.skipif(program() is None, reason="llvm-mca 19 or later is not installed (Debian: llvm-19)")
@pytest.mark.parametrize("product", LOOPS)
def test_inner_loops_reach_85_percent_of_the_peak(product: str) -> None:
    """llvm-mca's estimate of the inner loop, against products alone."""
    target, processors, instructions = LOOPS[product]
    body = loop_of(product, target)
    count = sum(x.startswith(product.split()[0]) for x in body)
    for processor in processors:
        reached = count * least_cycles(instructions, processor) / cycles(body, processor)
        assert reached >= 0.85, (processor, reached)


def test_registers_of_armv7_hold_the_inner_loop() -> None:
    x, w = operands((128, 512, 512), (np.int8, np.int8))
    library = tw.compile(lambda x: integer_product(x, w), (x,), target="armv7-linux", cache=False)
    body = inner_loop(library.ir("asm"), "vpadal")
    assert not [x for x in body if "sp" in x.split(None, 1)[-1] or x.startswith(("vorr", "vmov"))], body


@pytest.mark.parametrize(
    ("target", "product", "rows"),
    [("aarch64-linux:dotprod", "sdot", 5), (ALL, "usdot", 5), ("aarch64-linux", "smlal", 2)],
)
def test_inner_loop_of_quantized_weights(target: str, product: str, rows: int) -> None:
    """A group of 32 weights of 4 bits, for the most rows of a tile: no register is spilled. Nothing but
    unpacking and scales is beside products and loads.
    """
    module = products([made("4 bits in i8", 64)], i8, count=rows)
    body = inner_loop(tw.compile(module, target=target, cache=False).ir("asm"), product)
    assert not [x for x in body if "sp" in x.split(None, 1)[-1]], body
    names = [x.split()[0] for x in body]
    steps = (product, "smull", "smlal2", "smull2", *LOADS, "and", "ushr", "fsub", "fmla", "fcvtl")
    assert sum(x in steps for x in names) >= 0.75 * len(body), body
    assert sum(x in steps[:4] for x in names) == rows * 16 * (2 if product == "smlal" else 1), body


FORMS = {
    "bits": ("4 bits in i8", "8 bits in i8", "8 bits in u8"),
    "zeros": ("4 bits, zeros", "8 bits, zeros"),
    "tables": ("mxfp4", "iq4_xs"),
    "k": ("q4_k", "q6_k"),
    "ternary": ("tq1_0",),
}
"""Forms of quantized weights that a library has together."""


@pytest.mark.parametrize("names", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("target", [ALL, "aarch64-linux:dotprod", "aarch64-linux", "armv7-linux"])
def test_quantized_weights(target: str, names: tuple[str, ...]) -> None:
    """By tiles of packed panels, and of panels that are unpacked once for many rows, with the same bits."""
    weights = [made(name, 33) for name in names]
    module = products(weights, i8)
    x = np.random.default_rng(0).standard_normal((26, 512)).astype(np.float32)
    expected = Interpreter(module).run("main", [x])
    library = tw.compile(module, target=target, cache=False)
    assert library.ir("loop").count("simd.quantized_gemm") == len(names)
    many, one, two = run_all(library, target, [x], [x[:1]], [x[:2]])
    for y, first, both, wanted, w in zip(many, one, two, expected, weights, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
        product = x @ w.matrix.T
        assert np.linalg.norm(y - product) < 1.2e-2 * np.linalg.norm(product)
        np.testing.assert_array_equal(first, y[:1])
        np.testing.assert_array_equal(both, y[:2])
