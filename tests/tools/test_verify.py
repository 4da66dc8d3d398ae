"""Comparison with the source framework finds agreement and every kind of difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError
from tilewright.runtime.model import TensorSpec
from tilewright.tools.verify import compare, source_runner, verify


class Fake:
    """A stand-in for a compiled library that computes y = f(x) for x of shape (n, 4)."""

    def __init__(self, function: Any) -> None:
        self.metadata = {
            "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 4]}],
            "symbols": {"n": [1, 6]},
        }
        self.outputs = (TensorSpec("y", "float32", ("n", 4)),)
        self.function = function

    def __call__(self, x: np.ndarray) -> Any:
        return self.function(x)


def test_compare() -> None:
    x = np.linspace(-5, 5, 11, dtype=np.float32)
    assert compare(x, x)[2]
    assert compare(x + np.float32(4e-5), x)[2]
    largest, relative, passed, _ = compare(x + np.float32(0.01), x)
    assert not passed
    assert largest == pytest.approx(0.01, rel=1e-3)
    assert relative == pytest.approx(0.002, rel=1e-3)
    assert not compare(x[:5], x)[2]
    assert compare(x.astype(np.float64), x)[3] == "dtype float64, expected float32"
    hole = x.copy()
    hole[3] = np.nan
    assert not compare(hole, x)[2]
    assert not compare(x, hole)[2]
    assert compare(hole, hole)[2]
    infinite = x.copy()
    infinite[3] = np.inf
    assert compare(infinite, infinite)[2]
    assert not compare(-infinite, infinite)[2]
    assert not compare(np.array([1, 2]), np.array([1, 3]))[2]
    assert compare(np.empty((0, 3)), np.empty((0, 3)))[2]


def test_torch_module() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.tanh(x) * 2

    args = (torch.zeros(2, 4),)
    report = verify(Fake(lambda x: np.tanh(x) * 2), Model(), args)
    assert report.passed, report.text()
    assert [row.sizes["n"] for row in report.rows][:2] == [1, 6]
    assert "all outputs agree" in report.text()
    report = verify(Fake(lambda x: np.tanh(x) * 2.001), Model(), args)
    assert not report.passed
    assert "DIFFERS" in report.text()
    assert "3 of 3 comparisons differ" in report.text()
    with pytest.raises(CompileError, match="example inputs"):
        source_runner(Model())


def test_exported_program() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, *, factor: Any) -> Any:
            return {"a": x * factor, "b": x + factor}

    program = torch.export.export(Model(), (torch.ones(3),), {"factor": torch.ones(3)})
    _, run = source_runner(program)
    a, b = run({"x": np.full(3, 2, np.float32), "factor": np.full(3, 5, np.float32)})
    np.testing.assert_array_equal(a, [10, 10, 10])
    np.testing.assert_array_equal(b, [7, 7, 7])


def test_onnx_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ONNX Runtime is not installed, ONNX's own evaluator is used, with the same result."""
    pytest.importorskip("onnx")
    import sys

    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.ones((2, 4), np.float32)
    names = []
    for hidden in (False, True):
        if hidden:
            monkeypatch.setitem(sys.modules, "onnxruntime", None)
        name, run = source_runner(model)
        names.append(name)
        np.testing.assert_allclose(run({"x": x})[0], np.exp(x), rtol=1e-6)
    assert names[1] == "the ONNX reference evaluator"
    assert verify(Fake(np.exp), model).passed


def test_what_cannot_be_run() -> None:
    with pytest.raises(CompileError, match="dict is not a model"):
        source_runner({})
