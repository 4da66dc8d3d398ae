"""The results of every intrinsic on a real device, bit for bit, and their replay in the simulator.

An intrinsic is an operation of a kernel that a device, not this project, defines: the scalar functions and
conversions, the exchange of values in a warp, and the matrix instructions. The inputs are drawn again from
the same seeds, so only results are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.targets.gpu import programs, scalar_cases

from tilewright.ir.matrix_atom import MMA_SYNC
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.ir.types import f32, f64, i32
from tilewright.targets.gpu.dialects.cuda import CUDA
from tilewright.targets.gpu.prelude import definitions
from tilewright.targets.gpu.printer import module_text, print_kernel

Launch = Callable[[str, str, int, int, list[np.ndarray]], None]
"""Runs a kernel: the text of its module, its entry, blocks, threads of a block, arrays."""

SIZE = scalar_cases.SIZE


@dataclass(frozen=True)
class Golden:
    """A kernel that applies one intrinsic to many values."""

    name: str
    entry: str
    blocks: int
    threads: int
    inputs: tuple[np.ndarray, ...]
    results: int
    """The number of arrays at the end of `inputs` that the kernel writes."""
    exact: bool
    """Whether the definition of the intrinsic leaves no choice, so that every device gives the same bits."""


@dataclass(frozen=True)
class Group:
    """Kernels of one module."""

    name: str
    text: str
    goldens: tuple[Golden, ...]


@cache
def groups() -> tuple[Group, ...]:
    """All goldens."""
    return (*_scalar_groups(), _matrix_group())


def _scalar_groups() -> Iterator[Group]:
    info = TargetInfo(name="cuda", gpu=Gpu())
    for kind, cases in scalar_cases.CASES.items():
        printed, goldens = [], []
        for number, (name, operands, result, compute) in enumerate(cases()):
            kernel = programs.elementwise(operands, result, compute, SIZE, name)
            one = print_kernel(kernel, CUDA, info)
            values = [
                scalar_cases.values(t, 2 * number + k, name.partition("_")[0])[:SIZE]
                for k, t in enumerate(operands)
            ]
            arrays = (*values, np.zeros(SIZE, result.numpy))
            (blocks, _, _) = one.grid
            assert isinstance(blocks, int)
            exact = scalar_cases.is_exact(name, result)
            printed.append(one)
            goldens.append(Golden(name, one.entry, blocks, one.threads, arrays, 1, exact))
        yield Group(kind, module_text(printed, CUDA), tuple(goldens))


_MATRIX_BLOCKS = 12


def _matrix_group() -> Group:
    """The matrix instructions: each block is a warp that multiplies matrices of another scale."""
    texts, goldens = [], []
    for number, (name, atom) in enumerate(MMA_SYNC.items()):
        rng = np.random.default_rng([9, number])
        kind = {f32: "float", i32: "int", f64: "double"}[atom.result_type]
        word = "double" if atom.left_type is f64 else "unsigned int"
        counts, arrays = [], []
        for layout, dtype in (
            (atom.left, atom.left_type),
            (atom.right, atom.right_type),
            (atom.result, atom.result_type),
        ):
            slots = 1 << len(layout.slots)
            shape = (_MATRIX_BLOCKS, atom.threads, slots)
            if dtype.is_integer:
                low, high = dtype.limits
                values = rng.integers(low // 2, high // 2, shape)
            else:
                scales = 2.0 ** rng.integers(-14, 14, shape) ** (np.arange(_MATRIX_BLOCKS) % 2)[:, None, None]
                values = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 0, scales)
                values[-1].reshape(-1)[rng.integers(0, values[-1].size, 6)] = [np.inf, -np.inf, np.nan] * 2
            arrays.append(values.astype(dtype.numpy).reshape(-1))
            counts.append(max(1, slots * dtype.bits // max(32, dtype.bits)))
        x, y, z = counts
        texts.append(
            f"""extern "C" __global__ void golden_{name}(
    const {word}* a, const {word}* b, const {kind}* c, {kind}* d) {{
  int at = blockIdx.x * {atom.threads} + threadIdx.x;
  {word} x[{x}], y[{y}];
  {kind} z[{z}];
  for (int i = 0; i < {x}; i++) x[i] = a[at * {x} + i];
  for (int i = 0; i < {y}; i++) y[i] = b[at * {y} + i];
  for (int i = 0; i < {z}; i++) z[i] = c[at * {z} + i];
  tw_mma_{name}(z, x, y);
  for (int i = 0; i < {z}; i++) d[at * {z} + i] = z[i];
}}"""
        )
        arrays.append(np.zeros_like(arrays[2]))
        golden = Golden(name, f"golden_{name}", _MATRIX_BLOCKS, atom.threads, tuple(arrays), 1, exact=True)
        goldens.append(golden)
    text = "\n".join([*definitions(CUDA, [f"tw_mma_{name}" for name in MMA_SYNC]), *texts])
    return Group("matrix", text, tuple(goldens))


def record(launch: Launch) -> dict[str, np.ndarray]:
    """Run all kernels; return the bits of each result by name."""
    found = {}
    for group in groups():
        for golden in group.goldens:
            arrays = [a.copy() for a in golden.inputs]
            launch(group.text, golden.entry, golden.blocks, golden.threads, arrays)
            written = arrays[len(arrays) - golden.results :]
            bits = [np.frombuffer(a.tobytes(), np.uint8) for a in written]
            found[f"{group.name}/{golden.name}"] = np.concatenate(bits)
    return found


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray], ulps: float = 4.0) -> list[str]:
    """Say in which intrinsics two records differ: exact ones in any bit, others by more than `ulps` units in
    the last place. Bits of NaNs are not compared.
    """
    found = []
    for group in groups():
        for golden in group.goldens:
            key = f"{group.name}/{golden.name}"
            if key not in one or key not in other:
                found.append(f"{key}: missing in one record")
                continue
            allowed = 0.0 if golden.exact else ulps
            start = 0
            for array in golden.inputs[len(golden.inputs) - golden.results :]:
                a, b = (r[key][start : start + array.nbytes].view(array.dtype) for r in (one, other))
                start += array.nbytes
                worst = float(np.max(scalar_cases.errors(a, b, flushes=not golden.exact)))
                if worst > allowed:
                    found.append(f"{key}: {worst:.3g} units in the last place")
    return found


def save(path: Path, record: dict[str, np.ndarray], arch: str) -> None:
    """Write a record of a device of an architecture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: Any = record
    np.savez_compressed(path, arch=np.array(arch), **arrays)


def load(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """Read a record, and the architecture of its device."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "arch"}, str(file["arch"])
