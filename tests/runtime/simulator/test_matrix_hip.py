"""The matrix instructions of AMD's GPUs by clang's built-in functions, against their definitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from tests.runtime.simulator import matrix_reference as reference
from tests.runtime.simulator.matrix_cases import cases
from tests.runtime.simulator.matrix_reference import BF16, F16, F32, Format

from tilewright.runtime.simulator import SimulatedModule, SimulationError


@dataclass(frozen=True)
class Atom:
    """A matrix instruction of square results as AMD's manuals describe it."""

    size: int
    """Rows and columns."""
    depth: int
    factor: Format | type
    result: Format | type
    call: str
    """The text that calls the built-in function on x, y and z."""
    factor_type: str
    result_type: str
    warp: int = 64

    def places(self) -> list[list[list[tuple[int, int]]]]:
        """For a, b, d: the (row, column) of each register element of each lane."""
        size, lanes = self.size, range(self.warp)
        each = self.size * self.depth // self.warp
        if self.warp == 32:  # RDNA3: both halves of the warp have all factors
            a = [[(lane % 16, i) for i in range(16)] for lane in lanes]
            d = [[(2 * i + lane // 16, lane % 16) for i in range(8)] for lane in lanes]
        else:
            a = [[(lane % size, each * (lane // size) + i) for i in range(each)] for lane in lanes]
            d = [[self._d(lane, i) for i in range(size * size // 64)] for lane in lanes]
        return [a, [[(k, row) for row, k in places] for places in a], d]

    def _d(self, lane: int, i: int) -> tuple[int, int]:
        if self.result is np.float64:
            return 4 * i + lane // 16, lane % 16
        if self.size == 16:
            return 4 * (lane // 16) + i, lane % 16
        return 8 * (i // 4) + 4 * (lane // 32) + i % 4, lane % 32


def mfma(size: int, depth: int, name: str, factor: type | Format, result: type | Format, *types: str) -> Atom:
    letter = {F32: "f32", np.float64: "f64", np.int32: "i32"}[result]
    call = f"__builtin_amdgcn_mfma_{letter}_{size}x{size}x{depth}{name}(x, y, z, 0, 0, 0)"
    return Atom(size, depth, factor, result, call, *types)


MFMA = {
    "bf16 16": mfma(16, 16, "bf16_1k", BF16, F32, "s4", "f4"),
    "bf16 32": mfma(32, 8, "bf16_1k", BF16, F32, "s4", "f16"),
    "f16 16": mfma(16, 16, "f16", F16, F32, "h4", "f4"),
    "f16 32": mfma(32, 8, "f16", F16, F32, "h4", "f16"),
    "f32 16": mfma(16, 4, "f32", F32, F32, "float", "f4"),
    "f32 32": mfma(32, 2, "f32", F32, F32, "float", "f16"),
    "f64 16": mfma(16, 4, "f64", np.float64, np.float64, "double", "d4"),
    "i8 16x16x32": mfma(16, 32, "_i8", np.int8, np.int32, "long", "i4"),
    "i8 32x32x16": mfma(32, 16, "_i8", np.int8, np.int32, "long", "i16"),
    "i8 16x16x16": mfma(16, 16, "i8", np.int8, np.int32, "int", "i4"),
    "i8 32x32x8": mfma(32, 8, "i8", np.int8, np.int32, "int", "i16"),
}
W = "__builtin_amdgcn_wmma_"
WMMA = {
    "bf16 w32": Atom(16, 16, BF16, F32, f"{W}f32_16x16x16_bf16_w32(x, y, z)", "s16", "f8", 32),
    "f16 w32": Atom(16, 16, F16, F32, f"{W}f32_16x16x16_f16_w32(x, y, z)", "h16", "f8", 32),
    **{
        f"{kind} w32": Atom(
            16,
            16,
            np.int8 if kind == "i8" else np.uint8,
            np.int32,
            f"{W}i32_16x16x16_iu8_w32({signed}, x, {signed}, y, z, false)",
            "i4",
            "i8",
            32,
        )
        for kind, signed in (("i8", "true"), ("u8", "false"))
    },
}
ATOMS = {**MFMA, **WMMA}

HEAD = "".join(
    f"typedef {base} {name}{n} __attribute__((ext_vector_type({n})));\n"
    for base, name in (("short", "s"), ("_Float16", "h"), ("float", "f"), ("int", "i"), ("double", "d"))
    for n in (4, 8, 16)
)
KERNEL = """
extern "C" __global__ void k{number}({D}* d, const {F}* a, const {F}* b) {{
  int lane = blockIdx.x * {warp} + threadIdx.x;
  {F} x = a[lane], y = b[lane];
  {D} z = d[lane];
  d[lane] = {call};
}}
"""


@cache
def module(warp: int, checked: bool) -> SimulatedModule:
    text = HEAD
    for number, atom in enumerate(ATOMS.values()):
        if atom.warp == warp:
            text += KERNEL.format(
                number=number, D=atom.result_type, F=atom.factor_type, warp=warp, call=atom.call
            )
    return SimulatedModule(text, "hip", checked=checked, warp=warp)


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy at a multiple of 64 bytes, as vectors of 16 floats need."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def simulated(
    name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, architecture: str, checked: bool = False
) -> np.ndarray:
    """d of a batch of products."""
    atom = ATOMS[name]
    places = [np.array(p) for p in atom.places()]
    registers = [
        aligned(matrix[:, p[..., 0], p[..., 1]]) for matrix, p in zip((a, b, c), places, strict=True)
    ]
    entry = f"k{list(ATOMS).index(name)}"
    arguments = [registers[2], registers[0], registers[1]]
    module(atom.warp, checked).launch(entry, len(a), atom.warp, arguments, architecture=architecture)
    d = np.empty_like(c)
    d[:, places[2][..., 0], places[2][..., 1]] = registers[2]
    return d


@pytest.mark.parametrize("name", ["bf16 16", "bf16 32", "f16 16", "f16 32"])
def test_matrix_cores(name: str) -> None:
    atom = ATOMS[name]
    assert isinstance(atom.factor, Format)
    rng = np.random.default_rng(atom.size)
    a, b, c = cases((atom.size, atom.size, atom.depth), atom.factor, F32, rng)
    results = [simulated(name, a, b, c, architecture) for architecture in ("gfx942", "gfx90a")]
    for k in range(len(a)):
        third = reference.cdna3(a[k], b[k], c[k], atom.factor)
        np.testing.assert_array_equal(results[0][k], third, f"gfx942, case {k}")
        second = reference.cdna2(a[k], b[k], c[k], atom.factor)
        np.testing.assert_array_equal(results[1][k], second, f"gfx90a, case {k}")
    np.testing.assert_array_equal(results[0], simulated(name, a, b, c, "", checked=True))


@pytest.mark.parametrize("name", ["f32 16", "f32 32", "f64 16", "bf16 w32", "f16 w32"])
def test_chains(name: str) -> None:
    """The order of sums is that of the depth; the published rule for float32 and float64."""
    atom = ATOMS[name]
    rng = np.random.default_rng(3)
    shapes = (2, atom.size, atom.depth), (2, atom.depth, atom.size), (2, atom.size, atom.size)
    a, b, c = (rng.standard_normal(s) for s in shapes)
    b[1] *= 2.0 ** rng.integers(-9, 9, b[1].shape)
    if isinstance(atom.factor, Format):
        a, b, c = (x.astype(np.float32) for x in (a, b, c))
        kind = atom.factor
        if kind is not F32:
            shift = 16 if kind is BF16 else 13
            a, b = ((x.view(np.uint32) >> shift << shift).view(np.float32) for x in (a, b))
        stored = [
            (x.view(np.uint32) >> 16).astype(np.uint16)
            if kind is BF16
            else x.astype(np.float16).view(np.uint16)
            if kind is F16
            else x
            for x in (a, b)
        ]
    else:
        stored = [a, b]
    got = simulated(name, *stored, c, "")
    for k in range(2):
        expected = reference.chained(a[k], b[k], c[k])
        if c.dtype == np.float64:
            np.testing.assert_allclose(got[k], expected, rtol=2**-50)
        else:
            np.testing.assert_array_equal(got[k], expected)


@pytest.mark.parametrize("name", [n for n in ATOMS if n.startswith(("i8", "u8"))])
def test_integers(name: str) -> None:
    atom = ATOMS[name]
    rng = np.random.default_rng(4)
    assert isinstance(atom.factor, type)
    limits = np.iinfo(atom.factor)
    a = rng.integers(limits.min, limits.max, (2, atom.size, atom.depth), atom.factor, endpoint=True)
    b = rng.integers(limits.min, limits.max, (2, atom.depth, atom.size), atom.factor, endpoint=True)
    c = rng.integers(-(2**31), 2**31, (2, atom.size, atom.size), np.int32)
    with np.errstate(over="ignore"):
        expected = a.astype(np.int32) @ b.astype(np.int32) + c
    np.testing.assert_array_equal(simulated(name, a, b, c, ""), expected)


def test_misuse() -> None:
    text = HEAD + (
        'extern "C" __global__ void f(f4* d, s4* a) {\n  int t = threadIdx.x;\n'
        "if (t != 50) d[t] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a[t], a[t], d[t], 0, 0, 0);\n}\n"
    )
    arguments = [np.zeros((64, 4), np.float32), np.zeros((64, 4), np.int16)]
    with pytest.raises(SimulationError, match="lane 50") as error:
        SimulatedModule(text, "hip", checked=True, warp=64).launch("f", 1, 64, arguments)
    assert error.value.fault is not None
    assert error.value.fault.kind == "lane"
    assert error.value.fault.line == 3 + HEAD.count("\n")
