"""An operator whose dynamic operands do not fit is the user's mistake, one with constant sizes a bug."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.errors import CompileError, InternalError
from tilewright.frontends.refusals import refusal
from tilewright.frontends.torch.registry import importers
from tilewright.ir.core import IRError
from tilewright.ir.location import Location

SUM = """module @m {
  func.func public @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
    %0 = stablehlo.add %x, %y : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
}
"""


def test_sizes_of_different_names_that_must_be_equal(tmp_path: Path) -> None:
    path = tmp_path / "sum.mlir"
    path.write_text(SUM)
    x = np.arange(3, dtype=np.float32)
    with pytest.raises(CompileError, match=r"stablehlo.add at .*: .* do not broadcast.* one name in `dims`"):
        tw.compile(path, cache=False)
    library = tw.compile(path, dims={"arg0": {0: "n"}, "arg1": {0: "n"}}, cache=False)
    np.testing.assert_array_equal(library(x, x), 2 * x)


def test_operands_of_constant_sizes_that_are_refused_are_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object) -> None:
        raise IRError("refuses its operands")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    name = "aten.sin.default"
    monkeypatch.setitem(importers(), name, refuses)
    x = torch.ones(3)
    with pytest.raises(InternalError, match=r"importing aten.sin.* refuses its operands"):
        tw.compile(Model(), (x,), cache=False)
    with pytest.raises(CompileError, match="aten.sin.* have the dynamic sizes 'n'"):
        tw.compile(Model(), (x,), dims={"x": {0: "n"}}, cache=False)


def test_what_is_no_tensor_has_no_sizes() -> None:
    error = refusal("add", Location("here"), IRError("does not fit"), [None, 3, (1, 2)])
    assert isinstance(error, InternalError)
