"""The metadata of tensors and symbols."""

from __future__ import annotations

from tilewright.driver.metadata import interface
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, TensorType, f32, i64
from tilewright.runtime.expressions import solve_symbols


def test_tensors_and_buffers_are_described_alike() -> None:
    batch, half = symbol("batch", 1, 8), symbol("half", 1, None)
    tensors = [("x", (batch, 2 * half)), ("scalar", ())]
    described = interface(
        [(name, TensorType(f32, shape)) for name, shape in tensors], [("y", TensorType(i64, (batch * half,)))]
    )
    assert described["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["batch", "2*half"]},
        {"name": "scalar", "dtype": "float32", "shape": []},
    ]
    assert described["outputs"] == [{"name": "y", "dtype": "int64", "shape": ["batch*half"]}]
    assert described["symbols"] == {"batch": [1, 8], "half": [1, None]}
    assert solve_symbols(described["solver"], ["x", "scalar"], [(3, 10), ()]) == {"batch": 3, "half": 5}
    buffers = [(name, BufferType(f32, shape)) for name, shape in tensors]
    assert interface(buffers, [("y", BufferType(i64, (batch * half,)))]) == described
