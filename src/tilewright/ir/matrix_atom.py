"""Matrix instructions of GPUs: which threads hold which elements of the operands.

An *atom* is one instruction that the threads of a warp (or of several warps) run together: it adds the
product of a ``rows x depth`` and a ``depth x columns`` matrix to one of ``rows x columns`` elements. Each
thread holds a part of every operand in registers, its *fragment*. A `FragmentLayout` says which. Schedules,
the interpreter and the printer read it; nothing else knows where elements are. Some instructions read the
factors from shared memory.

Sources of the layouts: of ``mma.sync`` and ``wgmma`` the "Parallel Thread Execution ISA", section "Matrix
Fragments"; of
AMD's MFMA and WMMA the instruction set architectures of CDNA2, CDNA3 and RDNA3; of Apple's matrices of a
simdgroup, which Apple does not publish, the kernels of MLX.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .types import DType, bf16, f16, f32, f64, i8, i32, u8

NO_AXIS = ""
"""The axis of bits of a thread's number that no element depends on: the threads hold copies."""


@dataclass(frozen=True)
class Run:
    """Neighbouring bits of an element's row or column that are neighbouring bits of a thread's or slot's
    number, too.
    """

    axis: str
    """The axis: ``m`` (rows of the product), ``n`` (columns), ``k`` (terms), or `NO_AXIS`."""
    bit: int
    """The lowest bit in the number of the row, column or term."""
    place: int
    """The lowest bit in the number of the thread or slot."""
    count: int
    """The number of bits."""

    @property
    def extent(self) -> int:
        """The number of values."""
        return 1 << self.count


@dataclass(frozen=True)
class FragmentLayout:
    """The elements of an operand that threads hold.

    Bits are listed from the lowest. Each names the bit of a row (``m0``, ``m1``, ...), column (``n0``) or
    term (``k0``) that it is; a bit of a thread's number may be ``-``: such threads hold the same elements.

    Attributes:
        lanes: The bits of the number of a thread within the atom.
        slots: The bits of the number of an element within a thread. Elements narrower than 32 bits are packed
            into words in this order, the first in the lowest bits.
    """

    lanes: tuple[str, ...]
    slots: tuple[str, ...]

    @staticmethod
    def of(lanes: str, slots: str) -> FragmentLayout:
        """The layout with these bits, separated by spaces."""
        return FragmentLayout(tuple(lanes.split()), tuple(slots.split()))

    @cached_property
    def lane_runs(self) -> tuple[Run, ...]:
        """The bits of a thread's number as runs, lowest first."""
        return _runs(self.lanes)

    @cached_property
    def slot_runs(self) -> tuple[Run, ...]:
        """The bits of a slot's number as runs, lowest first."""
        return _runs(self.slots)

    def pieces(self, axis: str) -> list[int]:
        """The extents of the parts into which the runs divide an axis, lowest first."""
        found = [r for r in (*self.lane_runs, *self.slot_runs) if r.axis == axis]
        return [r.extent for r in sorted(found, key=lambda r: r.bit)]

    def extent(self, axis: str) -> int:
        """The number of rows, columns or terms."""
        total = 1
        for piece in self.pieces(axis):
            total *= piece
        return total

    def widened(self, axis: str) -> FragmentLayout | None:
        """The layout that gives each thread twice as many neighbours along an axis, after threads have
        exchanged elements with the thread that has these neighbours; None if no other thread has them.

        The bit of the axis that follows the slots' lowest ones, one of the threads' numbers, becomes one of
        the slots', and the first bit above those of the threads takes its place. That may be a bit of the
        number of an atom: the layout is that of two neighbouring atoms then.
        """
        first = self.slot_runs[0] if self.slots else None
        if first is None or first.axis != axis or first.bit:
            return None
        lanes = next((r for r in self.lane_runs if r.axis == axis and r.bit == first.count), None)
        if lanes is None:
            return None
        near, far = f"{axis}{lanes.bit}", f"{axis}{lanes.bit + lanes.count}"
        rest = tuple(b for b in self.slots[first.count :] if b != far)
        return FragmentLayout(
            tuple(far if b == near else b for b in self.lanes), (*self.slots[: first.count], near, *rest)
        )

    def element(self, axis: str, lane: Any, slot: Any) -> Any:
        """The row, column or term of an element, by the numbers of thread and slot (NumPy arrays, too)."""
        total: Any = 0 * lane + 0 * slot
        for number, runs in ((lane, self.lane_runs), (slot, self.slot_runs)):
            for r in runs:
                if r.axis == axis:
                    total = total + number // (1 << r.place) % r.extent * (1 << r.bit)
        return total


def _runs(bits: tuple[str, ...]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for place, name in enumerate(bits):
        axis, bit = (NO_AXIS, 0) if name == "-" else (name[0], int(name[1:]))
        last = runs[-1] if runs else None
        if last is not None and last.axis == axis and (axis == NO_AXIS or last.bit + last.count == bit):
            runs[-1] = Run(axis, last.bit, last.place, last.count + 1)
        else:
            runs.append(Run(axis, bit, place, 1))
    return tuple(runs)


@dataclass(frozen=True)
class MatrixAtom:
    """A matrix instruction: ``result[m, n] += left[m, k] * right[k, n]``."""

    name: str
    """The name, a part of the name of the function that prints for it: ``tw_mma_<name>``."""
    rows: int
    columns: int
    depth: int
    left_type: DType
    """The type of the elements of the left factor."""
    right_type: DType
    """The type of the elements of the right factor."""
    result_type: DType
    """The type of the elements of the result, and of the sums."""
    threads: int
    """The threads that run it together: those of a warp, or of several."""
    left: FragmentLayout
    """The layout of the left factor, of axes ``m`` and ``k``."""
    right: FragmentLayout
    """The layout of the right factor, of axes ``n`` and ``k``."""
    result: FragmentLayout
    """The layout of the result, of axes ``m`` and ``n``."""
    rounds_to: str = ""
    """The format to which the instruction rounds factors of a wider type: ``tf32``. Such an atom is used only
    where the user asks for this precision.
    """
    shared: bool = False
    """Whether the instruction reads the factors from shared memory. Their layouts then have slots alone,
    which number the elements.
    """
    opaque: bool = False
    """Whether the device does not tell which threads hold which elements. The layouts are then ours: the
    interpreter uses them, and device code only sets whole matrices to a number, loads them from shared memory
    and stores them there.
    """

    def __post_init__(self) -> None:
        """Check that every layout has each element of its operand once for each copy.

        Raises:
            ValueError: One has not.
        """
        wanted = {"m": self.rows, "n": self.columns, "k": self.depth}
        for layout, axes in ((self.left, "mk"), (self.right, "nk"), (self.result, "mn")):
            bits = [b for b in (*layout.lanes, *layout.slots) if b != "-"]
            expected = {f"{a}{k}" for a in axes for k in range(wanted[a].bit_length() - 1)}
            if len(bits) != len(set(bits)) or set(bits) != expected or "-" in layout.slots:
                raise ValueError(f"atom {self.name}: the bits {bits} are not those of axes {axes}")
            if 1 << len(layout.lanes) != self.threads:
                raise ValueError(f"atom {self.name}: {len(layout.lanes)} bits for {self.threads} threads")


def _by_name(atoms: Iterable[MatrixAtom]) -> dict[str, MatrixAtom]:
    return {atom.name: atom for atom in atoms}


_MMA_RESULT = FragmentLayout.of("n1 n2 m0 m1 m2", "n0 m3")


def _mma(depth: int, left: DType, right: DType, result: DType, rounds_to: str = "") -> MatrixAtom:
    """An atom of ``mma.sync`` with 16 rows and 8 columns: words of a row's factors go to 4 neighbouring
    threads, and the further ones to the next registers.
    """
    packed = 32 // left.bits
    inner = packed.bit_length() - 1
    slots = " ".join(f"k{b}" for b in range(inner))
    rest = " ".join(f"k{b}" for b in range(inner + 2, depth.bit_length() - 1))
    lanes = f"k{inner} k{inner + 1}"
    factor = rounds_to or left.name.replace("ui", "u")
    name = f"m16n8k{depth}_{result.name}_{factor}"
    return MatrixAtom(
        name=name,
        rows=16,
        columns=8,
        depth=depth,
        left_type=left,
        right_type=right,
        result_type=result,
        threads=32,
        left=FragmentLayout.of(f"{lanes} m0 m1 m2", f"{slots} m3 {rest}"),
        right=FragmentLayout.of(f"{lanes} n0 n1 n2", f"{slots} {rest}"),
        result=_MMA_RESULT,
        rounds_to=rounds_to,
    )


MMA_SYNC = _by_name(
    (
        _mma(16, bf16, bf16, f32),
        _mma(16, f16, f16, f32),
        _mma(8, f32, f32, f32, "tf32"),
        _mma(32, i8, i8, i32),
        _mma(32, u8, u8, i32),
        MatrixAtom(
            name="m8n8k4_f64",
            rows=8,
            columns=8,
            depth=4,
            left_type=f64,
            right_type=f64,
            result_type=f64,
            threads=32,
            left=FragmentLayout.of("k0 k1 m0 m1 m2", ""),
            right=FragmentLayout.of("k0 k1 n0 n1 n2", ""),
            result=FragmentLayout.of("n1 n2 m0 m1 m2", "n0"),
        ),
    )
)
"""``mma.sync`` of NVIDIA's compute capability 8.0."""


def _bits(axis: str, first: int, last: int) -> str:
    return " ".join(f"{axis}{b}" for b in range(first, last))


def _wgmma(columns: int, depth: int, factor: DType, result: DType, rounds_to: str = "") -> MatrixAtom:
    """An atom of ``wgmma`` with 64 rows: each of the four warps has 16 of them, in the layout of ``mma.sync``
    for every 8 columns.
    """
    side, terms = columns.bit_length() - 1, depth.bit_length() - 1
    nobody = "- - - - - - -"
    return MatrixAtom(
        name=f"wgmma_m64n{columns}k{depth}_{result.name}_{rounds_to or factor.name}",
        rows=64,
        columns=columns,
        depth=depth,
        left_type=factor,
        right_type=factor,
        result_type=result,
        threads=128,
        left=FragmentLayout.of(nobody, f"{_bits('k', 0, terms)} {_bits('m', 0, 6)}"),
        right=FragmentLayout.of(nobody, f"{_bits('k', 0, terms)} {_bits('n', 0, side)}"),
        result=FragmentLayout.of("n1 n2 m0 m1 m2 m4 m5", f"n0 m3 {_bits('n', 3, side)}"),
        rounds_to=rounds_to,
        shared=True,
    )


WGMMA = _by_name(
    _wgmma(columns, depth, factor, result, rounds_to)
    for factor, result, depth, rounds_to in (
        (bf16, f32, 16, ""),
        (f16, f32, 16, ""),
        (i8, i32, 32, ""),
        (f32, f32, 8, "tf32"),
    )
    for columns in (256, 128, 64)
)
"""``wgmma`` of NVIDIA's compute capability 9.0: four warps multiply factors in shared memory. From there, the
instruction for ``tf32`` takes float32 and leaves out the low 13 bits: it rounds toward zero.
"""


def _mfma(size: int, depth: int, factor: DType, result: DType = f32) -> MatrixAtom:
    """An atom of AMD's CDNA with square results: a thread has neighbouring terms of one row or column."""
    side, terms = size.bit_length() - 1, depth.bit_length() - 1
    inner = terms - (6 - side)  # bits of the terms of a thread
    if result is f64:
        held = FragmentLayout.of("n0 n1 n2 n3 m0 m1", "m2 m3")
    else:
        held = FragmentLayout.of(
            f"{_bits('n', 0, side)} {_bits('m', 2, 8 - side)}", f"m0 m1 {_bits('m', 8 - side, side)}"
        )
    return MatrixAtom(
        name=f"mfma_{result.name}_{size}x{size}x{depth}_{factor.name}",
        rows=size,
        columns=size,
        depth=depth,
        left_type=factor,
        right_type=factor,
        result_type=result,
        threads=64,
        left=FragmentLayout.of(f"{_bits('m', 0, side)} {_bits('k', inner, terms)}", _bits("k", 0, inner)),
        right=FragmentLayout.of(f"{_bits('n', 0, side)} {_bits('k', inner, terms)}", _bits("k", 0, inner)),
        result=held,
    )


MFMA = _by_name(
    (
        _mfma(16, 16, bf16),
        _mfma(32, 8, bf16),
        _mfma(16, 16, f16),
        _mfma(32, 8, f16),
        _mfma(16, 4, f32),
        _mfma(32, 2, f32),
        _mfma(16, 4, f64, f64),
    )
)
"""MFMA of AMD's CDNA2 and later."""
MFMA_CDNA2 = _by_name((_mfma(16, 16, i8, i32), _mfma(32, 8, i8, i32)))
"""MFMA that CDNA3 no longer has."""
MFMA_CDNA3 = _by_name((_mfma(16, 32, i8, i32), _mfma(32, 16, i8, i32)))
"""MFMA that CDNA2 does not have."""


def _wmma(factor: DType, result: DType) -> MatrixAtom:
    """An atom of AMD's RDNA3: both halves of a warp have all factors, and every second row of the result."""
    return MatrixAtom(
        name=f"wmma_{result.name}_16x16x16_{factor.name.replace('ui', 'u')}_w32",
        rows=16,
        columns=16,
        depth=16,
        left_type=factor,
        right_type=factor,
        result_type=result,
        threads=32,
        left=FragmentLayout.of("m0 m1 m2 m3 -", "k0 k1 k2 k3"),
        right=FragmentLayout.of("n0 n1 n2 n3 -", "k0 k1 k2 k3"),
        result=FragmentLayout.of("n0 n1 n2 n3 m0", "m1 m2 m3"),
    )


WMMA = _by_name((_wmma(bf16, f32), _wmma(f16, f32), _wmma(i8, i32), _wmma(u8, i32)))
"""WMMA of AMD's RDNA3, for warps of 32 threads."""


def _simdgroup(factor: DType) -> MatrixAtom:
    def layout(row: str, column: str) -> FragmentLayout:
        return FragmentLayout.of(f"{column}1 {row}0 {row}1 {column}2 {row}2", f"{column}0")

    return MatrixAtom(
        name=f"simdgroup_8x8_{factor.name}",
        rows=8,
        columns=8,
        depth=8,
        left_type=factor,
        right_type=factor,
        result_type=f32,
        threads=32,
        left=layout("m", "k"),
        right=layout("k", "n"),
        result=layout("m", "n"),
    )


SIMDGROUP = _by_name(_simdgroup(factor) for factor in (bf16, f16, f32))
"""Simdgroup matrices of Apple's GPUs."""


def _cooperative(rows: int, columns: int, depth: int, factor: DType, threads: int) -> MatrixAtom:
    """An atom of Vulkan's cooperative matrices. The layouts number the elements row by row."""
    sides = {"m": rows, "n": columns, "k": depth}

    def layout(row: str, column: str) -> FragmentLayout:
        bits = [f"{x}{b}" for x in (column, row) for b in range(sides[x].bit_length() - 1)]
        lanes = threads.bit_length() - 1
        return FragmentLayout(tuple(bits[:lanes]), tuple(bits[lanes:]))

    return MatrixAtom(
        name=f"cooperative_{rows}x{columns}x{depth}_{factor.name}",
        rows=rows,
        columns=columns,
        depth=depth,
        left_type=factor,
        right_type=factor,
        result_type=i32 if factor is i8 else f32,
        threads=threads,
        left=layout("m", "k"),
        right=layout("k", "n"),
        result=layout("m", "n"),
        opaque=True,
    )


COOPERATIVE = _by_name(
    (
        _cooperative(16, 16, 16, f16, 32),
        _cooperative(16, 16, 16, i8, 32),
        _cooperative(16, 16, 32, i8, 32),
        _cooperative(8, 8, 8, f16, 8),
        _cooperative(8, 8, 8, i8, 8),
    )
)
"""Cooperative matrices of Vulkan's extension ``VK_KHR_cooperative_matrix``."""

ATOMS: dict[str, MatrixAtom] = {
    **MMA_SYNC,
    **WGMMA,
    **MFMA,
    **MFMA_CDNA2,
    **MFMA_CDNA3,
    **WMMA,
    **SIMDGROUP,
    **COOPERATIVE,
}
"""All atoms by name: `dialects.simt.Mma` names its atom."""

__all__ = [
    "ATOMS",
    "COOPERATIVE",
    "MFMA",
    "MFMA_CDNA2",
    "MFMA_CDNA3",
    "MMA_SYNC",
    "NO_AXIS",
    "SIMDGROUP",
    "WGMMA",
    "WMMA",
    "FragmentLayout",
    "MatrixAtom",
    "Run",
]
