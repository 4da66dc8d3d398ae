"""Levels of optimization: which passes run, the report and the results. Random programs at these levels are
in `tests.differential`.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.opt_levels import LEVELS, opt_level
from tilewright.passes import all_passes

W = np.random.default_rng(0).standard_normal((3, 16, 24)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)


def projections(x):  # type: ignore[no-untyped-def]
    return x @ W[0], x @ W[1], x @ W[2]


def test_levels_name_passes() -> None:
    known = {info.name for info in all_passes()}
    assert LEVELS["O0"].without <= known
    assert (
        LEVELS["O0"].without
        > LEVELS["O1"].without
        > LEVELS["O2"].without
        == LEVELS["O3"].without
        == frozenset()
    )
    with pytest.raises(tw.CompileError, match="O9.*O0, O1, O2, O3"):
        opt_level("O9")


@pytest.mark.parametrize("opt", LEVELS)
def test_the_report_lists_the_passes_that_ran(opt: str) -> None:
    with tw.compile(projections, (X,), opt=opt, cache=False) as library:
        for found, w in zip(library(X), W, strict=True):
            np.testing.assert_allclose(found, X @ w, rtol=1e-4, atol=1e-4)
        report, merges = library.report, opt in ("O2", "O3")
        assert ("merge-matmuls" in report.passes) == merges and ("merge-matmuls" in report.left_out) != merges
        assert "form-groups" in report.passes and not set(report.passes) & set(report.left_out)
        assert f"optimization {opt} (LLVM {opt[1]}): drop-derivative-marks, cse, " in str(report)
        assert library.metadata["opt"] == opt and library.metadata["passes"] == report.passes
        products = sum(
            kernel["launches"] for kernel in library.metadata["kernels"] if kernel["kind"] == "contraction"
        )
        assert products == (1 if merges else 3)


def test_levels_have_separate_cache_entries() -> None:
    compiled = [tw.compile(projections, (X,), opt=opt) for opt in ("O1", "O2", "O1")]
    assert [library.report.opt for library in compiled] == ["O1", "O2", "O1"] and compiled[2].report.cached
    first = "optimization O1 (LLVM 1): drop-derivative-marks, cse, "
    assert compiled[2].report.opt_lines()[0].startswith(first)
    assert compiled[2].report.passes == compiled[0].report.passes != compiled[1].report.passes
    for library in compiled:
        library.close()
