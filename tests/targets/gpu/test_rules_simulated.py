"""Kernels of the schedule rules as CUDA text, run by the simulator, which finds races, accesses out of bounds
and barriers that not all threads reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.devices import need
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
    need("cuda")


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


def test_rows_beyond_the_end_have_initial_values() -> None:
    """All rows of a tile are read, also where the first key that its queries see is not the first of all."""

    def later(q: Any, k: Any, v: Any) -> Any:
        rows, columns = tw.numpy.arange(q.shape[2])[:, None], tw.numpy.arange(k.shape[2])
        return tw.nn.functional.attention(q, k, v, columns > rows)

    inputs = test_rule_of_chains.heads((1, 2, 9, 8), 20, 8, 1)
    dims = {"q": {2: "n<=80"}, "k": {2: "m<=80"}, "v": {2: "m"}}
    wanted = Program(later, inputs, dims).wanted(*inputs)
    with tw.compile(later, inputs, dims=dims, target="cuda", cache=False) as library:
        assert len(library.kernels) == 1
        found = library.simulated(checked=True)(*inputs)
    np.testing.assert_allclose(np.asarray(found), wanted[0], rtol=1e-3, atol=1e-4)
