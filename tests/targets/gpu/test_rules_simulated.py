"""Kernels of the schedule rules as CUDA text, run by the simulator, which finds races, accesses out of bounds
and barriers that not all threads reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets.gpu import (
    test_rule_of_chains,
    test_rule_of_gemv,
    test_rule_of_quantized,
    test_rule_of_sorting,
    test_rules_elementwise,
    test_rules_others,
    test_rules_rows,
)
from tests.targets.gpu.simulated import Program

import tilewright as tw
from tilewright.errors import ArtifactError
from tilewright.runtime.simulated_device import simulated_driver

PROGRAMS = {
    **{f"elementwise: {k}": p for k, p in test_rules_elementwise.PROGRAMS.items()},
    **{f"quantized: {k}": p for k, p in test_rule_of_quantized.PROGRAMS.items()},
    **{f"sorting: {k}": p for k, p in test_rule_of_sorting.PROGRAMS.items()},
    **{f"sorting: {k}": p for k, p in test_rule_of_sorting.PIECES.items()},
    **{f"rows: {k}": p for k, p in test_rules_rows.PROGRAMS.items()},
    **{f"others: {k}": p for k, p in test_rules_others.PROGRAMS.items()},
    **{f"chains: {k}": p for k, p in test_rule_of_chains.PROGRAMS.items()},
    **{f"gemv: {k}": p for k, p in test_rule_of_gemv.PROGRAMS.items()},
}


@pytest.fixture(scope="module", autouse=True)
def _simulator() -> None:
    try:
        simulated_driver("cuda").add('extern "C" __global__ void tw_nothing() {}')
    except (ArtifactError, ImportError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = Program(function, inputs)
    if not program.kernels:
        return  # copies only
    wanted = program.wanted(*inputs)
    with tw.compile(function, inputs, target="cuda", cache=False) as library:
        results: Any = library.simulated(checked=True)(*inputs)
    found = results if isinstance(results, tuple) else (results,)
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(y), z, rtol=1e-2 if "quantized" in name else 1e-3, atol=1e-4)
