"""Comparison of a compiled kernel with its reference."""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..artifact import link, temporary
from ..dialects.kernels import KernelDefinition, Scalar
from ..errors import ArtifactError, DeviceError
from ..ir.substitution import evaluate
from ..targets.cpu.isa import host_isa
from ..targets.llvm.c_kernels import object_of, source_of, symbol_of

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129)
"""The sizes that trials draw from: powers of two, and numbers beside them."""
GUARD = 64
"""Elements before and behind a tensor that a kernel must not change."""
TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 2e-2, 1: 0.2}
"""Relative and absolute tolerance by the bytes of a float."""


def check(
    kernel: KernelDefinition,
    sizes: int | Sequence[Mapping[str, int]],
    seed: int,
    rtol: float | None,
    atol: float | None,
    scalars: tuple[Scalar, ...],
) -> None:
    """See `Kernel.check`."""
    rng = np.random.default_rng(seed)
    numbers = dict(zip(kernel.scalars, scalars, strict=True))
    isa = host_isa()
    data = object_of(kernel, source_of(kernel, "cpu"), isa, hidden=False)
    symbol = symbol_of(kernel)
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        path = Path(folder) / "kernel.so"
        link.link_shared([data], path, isa, [symbol])
        function = ctypes.CDLL(str(path))[symbol]
        function.restype = None
        for chosen in chosen_sizes(kernel, sizes, rng):
            _trial(kernel, function, chosen, numbers, rng, rtol, atol)


def chosen_sizes(
    kernel: KernelDefinition,
    sizes: int | Sequence[Mapping[str, int]],
    rng: np.random.Generator,
    among: Sequence[int] = SIZES,
) -> Iterator[dict[str, int]]:
    """The sizes of each trial by name: those given, or as many as told of `among`."""
    names = [s.name for s in kernel.symbols]
    if not isinstance(sizes, int):
        for given in sizes:
            if set(given) != set(names):
                raise kernel.error(
                    f"check: its sizes are {', '.join(names) or 'none'}, got {', '.join(given)}"
                )
            yield dict(given)
        return
    for trial in range(sizes):
        yield {n: 1 if trial == 0 else int(rng.choice(among)) for n in names}


def _trial(
    kernel: KernelDefinition,
    function: Any,
    sizes: dict[str, int],
    numbers: dict[str, Scalar],
    rng: np.random.Generator,
    rtol: float | None,
    atol: float | None,
) -> None:
    where = ", ".join(f"{n} = {v}" for n, v in sizes.items())
    shapes = [[int(evaluate(d, sizes)) for d in p.shape] for p in (*kernel.inputs, *kernel.outputs)]
    count = len(kernel.inputs)
    inputs = [random_array(rng, p.dtype.numpy, s) for p, s in zip(kernel.inputs, shapes, strict=False)]
    expected = kernel.compute(inputs, numbers)
    total = 1 if kernel.split is None else sizes[kernel.split]
    for ranges in _ranges(kernel, total):
        guarded = [_guarded(x) for x in inputs]
        kept = [memory.copy() for memory, _ in guarded]
        results = []
        for k, (p, shape) in enumerate(zip(kernel.outputs, shapes[count:], strict=True)):
            nothing = np.full(shape, np.nan if p.dtype.is_float else 0x5A, p.dtype.numpy)
            results.append(_guarded(inputs[kernel.in_place[k]] if k in kernel.in_place else nothing))
        before = [memory.copy() for memory, _ in results]
        for begin, end in ranges:
            arguments: list[Any] = []
            if kernel.split is not None:
                arguments += [ctypes.c_int64(begin), ctypes.c_int64(end)]
            arguments += [ctypes.c_int64(sizes[s.name]) for s in kernel.symbols]
            tensors = [x for _, x in (*guarded, *results)]
            arguments += [ctypes.c_void_p(tensors[number].ctypes.data) for number in kernel.pointers]
            arguments += [
                ctypes.c_double(v) if isinstance(v, float) else ctypes.c_int64(int(v))
                for v in numbers.values()
            ]
            function(*arguments)
        parts = f"in the parts {ranges}" if kernel.split is not None else "at once"
        for p, (memory, _), old in zip(kernel.inputs, guarded, kept, strict=True):
            if memory.tobytes() != old.tobytes():
                raise kernel.error(f"it changes its input {p.name!r}, or memory beside it, with {where}")
        for p, (memory, y), old, wanted in zip(kernel.outputs, results, before, expected, strict=True):
            edges = slice(None, GUARD), slice(memory.size - GUARD, None)
            if any(memory[edge].tobytes() != old[edge].tobytes() for edge in edges):
                raise kernel.error(f"it writes outside of its output {p.name!r}, with {where}")
            compare(kernel, p.name, y, wanted.reshape(y.shape), rtol, atol, f"{where}, {parts}")


def check_on_device(
    kernel: KernelDefinition,
    library: Any,
    sizes: int | Sequence[Mapping[str, int]],
    seed: int,
    rtol: float | None,
    atol: float | None,
    numbers: Mapping[str, Scalar],
    inputs: Callable[[Mapping[str, int], np.random.Generator], Sequence[Any]] | None,
) -> None:
    """See `Kernel.check`. `library` is the kernel alone, compiled for a device; it is simulated where the
    simulator knows its interface.
    """
    rng = np.random.default_rng(seed)
    try:
        runs = library.simulated(checked=True)
    except ArtifactError:
        runs = library
    for chosen in chosen_sizes(kernel, sizes, rng):
        where = ", ".join(f"{n} = {v}" for n, v in chosen.items()) or "no sizes"
        if inputs is None:
            shapes = [[int(evaluate(d, chosen)) for d in p.shape] for p in kernel.inputs]
            arrays = [random_array(rng, p.dtype.numpy, s) for p, s in zip(kernel.inputs, shapes, strict=True)]
        else:
            arrays = [np.asarray(x) for x in inputs(chosen, rng)]
        try:
            results = runs(*arrays)
        except DeviceError as error:
            raise kernel.error(f"with {where}: {error}") from None
        results = results if isinstance(results, (tuple, list)) else (results,)
        for p, y, wanted in zip(kernel.outputs, results, kernel.compute(arrays, numbers), strict=True):
            compare(kernel, p.name, np.asarray(y), wanted, rtol, atol, where)


def _ranges(kernel: KernelDefinition, total: int) -> list[list[tuple[int, int]]]:
    whole = [(0, total)]
    if kernel.split is None or total < 2:
        return [whole]
    cuts = sorted({0, total // 3, total // 2, total})
    return [whole, [(a, b) for a, b in reversed(list(itertools.pairwise(cuts))) if a < b]]


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Small random numbers of an element type."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 8, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _guarded(x: Array) -> tuple[Array, Array]:
    """A copy of an array amid `GUARD` elements on both sides: the whole memory, and the copy."""
    memory = np.full(x.size + 2 * GUARD, 0x5A, np.uint8).astype(x.dtype)
    middle = memory[GUARD : GUARD + x.size]
    middle[:] = x.reshape(-1)
    return memory, middle.reshape(x.shape)


def compare(
    kernel: KernelDefinition,
    name: str,
    y: Array,
    wanted: Array,
    rtol: float | None,
    atol: float | None,
    where: str,
    other: str = "the reference",
) -> None:
    """Refuse an output that differs from what `other` computes.

    Raises:
        KernelError: The message shows the first difference.
    """
    usual = 0.0 if wanted.dtype.kind in "biu" else TOLERANCE[wanted.dtype.itemsize]
    a, b = (x.astype(np.float64 if usual else x.dtype) for x in (y, wanted))
    if usual:
        near = np.isclose(
            a, b, rtol=usual if rtol is None else rtol, atol=usual if atol is None else atol, equal_nan=True
        )
    else:
        near = a == b
    if near.all():
        return
    against = other.replace("the reference", "its reference")
    first = tuple(int(i) for i in np.argwhere(~near)[0])
    raise kernel.error(
        f"it differs from {against} in {int((~near).sum())} of {near.size} elements of {name!r}, with "
        f"{where}: the first is {name}[{', '.join(map(str, first))}] = {y[first]!s}, {other} has "
        f"{wanted[first]!s}"
    )


__all__ = ["TOLERANCE", "check", "check_on_device", "chosen_sizes", "compare", "random_array"]
