"""NVIDIA's matrix instructions, bit for bit against their definition in exact integers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from tests.runtime.simulator import matrix_reference as reference
from tests.runtime.simulator.matrix_cases import cases
from tests.runtime.simulator.matrix_reference import BF16, F16, F32, TF32, Format

from tilewright.runtime.simulator import SimulatedModule, SimulationError


@dataclass(frozen=True)
class Atom:
    """A matrix instruction as the PTX ISA describes it."""

    rows: int
    columns: int
    depth: int
    factor: Format | type
    result: Format | type
    right: type | None = None

    @property
    def types(self) -> tuple[np.dtype, np.dtype, np.dtype]:
        """The stored types of a, b, d."""
        kinds = (self.factor, self.right or self.factor, self.result)
        return tuple(np.dtype(k.stored if isinstance(k, Format) else k) for k in kinds)  # type: ignore[return-value]

    def places(self) -> list[list[list[tuple[int, int]]]]:
        """For a, b, d: the (row, column) of each register element of each lane."""
        return [
            [[place(self, lane, i) for i in range(count)] for lane in range(32)]
            for place, count in (
                (a_place, self.rows * self.depth // 32),
                (b_place, self.columns * self.depth // 32),
                (d_place, self.rows * self.columns // 32),
            )
        ]


# The formulas of the PTX ISA, "Matrix Fragments for mma": the group is lane / 4, the thread lane % 4.
def a_place(atom: Atom, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane // 4, lane % 4
    packed = 4 // atom.types[0].itemsize or 1
    if atom.rows == 8:
        return group, thread
    register, part = divmod(i, packed)
    return group + 8 * (register % 2), thread * packed + part + 4 * packed * (register // 2)


def b_place(atom: Atom, lane: int, i: int) -> tuple[int, int]:
    packed = 4 // atom.types[0].itemsize or 1
    register, part = divmod(i, packed)
    return lane % 4 * packed + part + 4 * packed * register, lane // 4


def d_place(atom: Atom, lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


def integers(depth: int) -> dict[str, Atom]:
    kinds = {"i8": np.int8, "u8": np.uint8}
    return {
        f"m16n8k{depth}_i32_{left}" + ("" if left == right else f"_{right}"): Atom(
            16, 8, depth, kinds[left], np.int32, kinds[right]
        )
        for left in kinds
        for right in kinds
    }


ATOMS = {
    **{
        f"m16n8k{depth}_{result.name}_{factor.name}": Atom(16, 8, depth, factor, result)
        for depth in (8, 16)
        for factor, result in ((BF16, F32), (F16, F32), (F16, F16))
    },
    "m16n8k8_f32_tf32": Atom(16, 8, 8, TF32, F32),
    "m16n8k4_f32_tf32": Atom(16, 8, 4, TF32, F32),
    **integers(16),
    **integers(32),
    "m8n8k4_f64": Atom(8, 8, 4, np.float64, np.float64),
}

KERNEL = """
extern "C" __global__ void {name}({D}* d, const {A}* a, const {B}* b) {{
  int lane = blockIdx.x * 32 + threadIdx.x;
  {A} x[{as_}];
  {B} y[{bs}];
  {D} z[{ds}];
  for (int i = 0; i < {as_}; ++i) x[i] = a[lane * {as_} + i];
  for (int i = 0; i < {bs}; ++i) y[i] = b[lane * {bs} + i];
  for (int i = 0; i < {ds}; ++i) z[i] = d[lane * {ds} + i];
  tw_sim_mma_{name}(z, x, y);
  for (int i = 0; i < {ds}; ++i) d[lane * {ds} + i] = z[i];
}}
"""
C_TYPES = {1: "signed char", 2: "unsigned short", 4: "unsigned", 8: "double"}


@cache
def module(checked: bool) -> SimulatedModule:
    texts = []
    for name, atom in ATOMS.items():
        a, b, d = atom.types
        sizes = [len(p[0]) for p in atom.places()]
        texts.append(
            KERNEL.format(
                name=name,
                A=C_TYPES[a.itemsize],
                B=C_TYPES[b.itemsize],
                D=C_TYPES[d.itemsize],
                as_=sizes[0],
                bs=sizes[1],
                ds=sizes[2],
            )
        )
    return SimulatedModule("".join(texts), "cuda", checked=checked)


def simulated(
    name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, checked: bool, architecture: str, seed: int = 0
) -> np.ndarray:
    """d of a batch of products."""
    atom = ATOMS[name]
    places = [np.array(p) for p in atom.places()]
    registers = [
        np.ascontiguousarray(matrix[:, p[..., 0], p[..., 1]])
        for matrix, p in zip((a, b, c), places, strict=True)
    ]
    module(checked).launch(
        name, len(a), 32, [registers[2], registers[0], registers[1]], seed=seed, architecture=architecture
    )
    d = np.empty_like(c)
    d[:, places[2][..., 0], places[2][..., 1]] = registers[2]
    return d


FLOATS = [name for name, atom in ATOMS.items() if isinstance(atom.factor, Format)]


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    atom = ATOMS[name]
    rng = np.random.default_rng(len(name) + atom.depth)
    assert isinstance(atom.factor, Format)
    assert isinstance(atom.result, Format)
    a, b, c = cases((atom.rows, atom.columns, atom.depth), atom.factor, atom.result, rng)
    results = []
    for architecture, capability in (("sm_80", 80), ("sm_90", 90)):
        d = simulated(name, a, b, c, False, architecture)
        for k in range(len(a)):
            expected = reference.tensor_core(a[k], b[k], c[k], atom.factor, atom.result, capability)
            np.testing.assert_array_equal(d[k], expected, f"{architecture}, case {k}")
        results.append(d)
        np.testing.assert_array_equal(d, simulated(name, a, b, c, True, architecture, seed=3))
    assert (results[0] != results[1]).any()  # the cases tell the architectures apart
    np.testing.assert_array_equal(results[0], simulated(name, a, b, c, False, ""))


@pytest.mark.parametrize("name", [*integers(16), *integers(32)])
def test_integers(name: str) -> None:
    atom = ATOMS[name]
    rng = np.random.default_rng(7)
    shapes = (3, atom.rows, atom.depth), (3, atom.depth, atom.columns), (3, atom.rows, atom.columns)
    a, b, c = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, endpoint=True)
        for s, t in zip(shapes, atom.types, strict=True)
    )
    c[1], a[1], b[1] = np.iinfo(np.int32).max, abs(a[1] // 2), abs(b[1] // 2)  # wraps around
    with np.errstate(over="ignore"):
        expected = a.astype(np.int32) @ b.astype(np.int32) + c
    np.testing.assert_array_equal(simulated(name, a, b, c, False, ""), expected)


def test_double() -> None:
    rng = np.random.default_rng(8)
    a, b, c = rng.standard_normal((3, 2, 8, 8))
    a, b = a[:, :, :4], b[:, :4]
    b[1] *= 2.0 ** rng.integers(-40, 40, b[1].shape)
    expected = c.astype(np.longdouble)  # 64 digits, so that each sum rounds as a fused one but for rare ties
    for k in range(4):
        product = a[:, :, k, None].astype(np.longdouble) * b[:, None, k]
        expected = (expected + product).astype(np.float64).astype(np.longdouble)
    got = simulated("m8n8k4_f64", a, b, c, False, "")
    np.testing.assert_allclose(got, expected.astype(np.float64), rtol=2**-51)


MISUSES = {
    "a lane has ended": ("if (t == 7) return;\ntw_sim_mma_m16n8k8_f32_bf16(d, a, b);", "lane", 5),
    "a block of half a warp": ("tw_sim_mma_m16n8k8_f32_bf16(d, a, b);", "lane", 4),
    "two instructions": (
        "if (t < 16) tw_sim_mma_m16n8k8_f32_bf16(d, a, b);\nelse tw_sim_mma_m16n8k8_f32_bf16(d, a, b);",
        "mask",
        0,
    ),
    "the others wait elsewhere": (
        "if (t < 16) tw_sim_mma_m16n8k8_f32_bf16(d, a, b);\nelse __syncwarp(0xffff0000); __syncthreads();",
        "divergent-barrier",
        0,
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_misuse(what: str) -> None:
    body, kind, line = MISUSES[what]
    text = (
        'extern "C" __global__ void f(float* out) {\n  int t = threadIdx.x;\n'
        "  float d[4] = {}; unsigned a[2] = {}, b[1] = {};\n"
        f"{body}\n  for (int i = 0; i < 4; ++i) out[4 * t + i] = d[i];\n}}\n"
    )
    out = np.zeros(128, np.float32)
    for checked in (True, False):
        with pytest.raises(SimulationError) as error:
            SimulatedModule(text, checked=checked).launch("f", 1, 16 if "half" in what else 32, [out])
        fault = error.value.fault
        assert fault is not None
        assert fault.kind == kind, str(error.value)
        if line:
            assert fault.line == line
