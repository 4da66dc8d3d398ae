"""Every scalar operation on every dtype in each language, executed, against the NumPy functions."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.types import DType, i64

from .programs import DEVICES, check_module, device, elementwise, interpreted_operation
from .scalar_cases import CASES, SIZE, assert_near, tolerance, values


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("language", DEVICES)
def test_operations_compute_what_numpy_does(language: str, kind: str) -> None:
    programs = []
    there = device(language)
    for number, (name, operands, result, compute) in enumerate(CASES[kind]()):
        if i64 in (result, *operands) and not there.dialect.wide:
            continue  # 64-bit integers are narrowed.
        kernel = elementwise(operands, result, compute, SIZE, name)
        arrays = [values(t, 2 * number + k, name.partition("_")[0]) for k, t in enumerate(operands)]
        programs.append((kernel, [*arrays, np.zeros(SIZE, result.numpy)]))
    failures = []
    for (kernel, arrays), results in check_module(language, programs):
        wanted = interpreted_operation(kernel, arrays[:-1])
        name = kernel.sym_name
        try:
            assert_near(results[-1], wanted, tolerance(name, DType.of(wanted), there), name)
        except AssertionError as error:
            failures.append(str(error)[:300])
    assert not failures, "\n".join([f"{len(failures)} failures", *failures])
