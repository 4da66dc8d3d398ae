"""Comparison of a compiled loop program with Python's own run of it, and with its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...dialects.kernels import KernelDefinition, Scalar
from ...ir.substitution import evaluate
from ..check import chosen_sizes, compare, random_array
from .plain import run_plain

Array = np.ndarray[Any, Any]
Inputs = Callable[[Mapping[str, int], np.random.Generator], Sequence[Any]]
"""Makes the inputs of a trial, from its sizes."""
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17)
"""The sizes that trials draw from; Python's own run is slow."""


def check_program(
    kernel: KernelDefinition,
    run: Callable[[Sequence[Array]], Sequence[Array]],
    sizes: int | Sequence[Mapping[str, int]],
    seed: int,
    rtol: float | None,
    atol: float | None,
    numbers: Mapping[str, Scalar],
    inputs: Inputs | None,
) -> None:
    """See `Kernel.check`.

    Args:
        kernel: The kernel.
        run: The compiled kernel.
        sizes: As of `Kernel.check`, as are the next ones.
        seed: The seed.
        rtol: The relative tolerance.
        atol: The absolute tolerance.
        numbers: The values of its numbers.
        inputs: Makes the inputs of a trial; None: random ones.
    """
    assert kernel.program is not None
    rng = np.random.default_rng(seed)
    for chosen in chosen_sizes(kernel, sizes, rng, SIZES):
        where = ", ".join(f"{n} = {v}" for n, v in chosen.items()) or "no sizes"
        if inputs is None:
            arrays = [
                random_array(rng, p.dtype.numpy, [int(evaluate(d, chosen)) for d in p.shape])
                for p in kernel.inputs
            ]
        else:
            arrays = [np.asarray(x) for x in inputs(chosen, rng)]
        results = run(arrays)
        for name, expected in (
            ("the function, run by Python,", run_plain(kernel, kernel.program.function, arrays, numbers)),
            ("the reference", kernel.compute(arrays, numbers)),
        ):
            for p, y, wanted in zip(kernel.outputs, results, expected, strict=True):
                compare(kernel, p.name, y, wanted.reshape(y.shape), rtol, atol, where, name)


__all__ = ["Inputs", "check_program"]
