"""Floats outside of an integer type's range are converted by one rule in every front end. It agrees with
eager torch, NumPy and ONNX Runtime where these agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.frontend_registry import import_model
from tilewright.ir.interpreter import Interpreter

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import import_torch  # noqa: E402

from .torch.checks import Lambda, to_numpy  # noqa: E402

SOURCES = ["float32", "float64", "float16", "bfloat16"]
NARROW = ["int8", "uint8", "int16", "uint16", "uint32"]
INSIDE = [
    0.0,
    -0.5,
    -1.0,
    -1.9,
    127.9,
    128.0,
    -129.0,
    255.0,
    256.0,
    300.5,
    -300.5,
    32768.0,
    65280.0,
    -40000.0,
    1.5e9,
    -1.5e9,
]
"""Numbers in the range of int32."""
BEYOND = [4e9, -4e9, 1e19, -1e19, 3e38, float("inf"), -float("inf"), float("nan")]


def inside(source: str) -> Any:
    x = torch.tensor(INSIDE).repeat(5).to(getattr(torch, source))
    return x[torch.isfinite(x)]


def ways(x: Any, target: str) -> list[Any]:
    """Return the results of the conversion compiled, interpreted, folded, and compiled for one element."""
    model = Lambda(lambda x: x.to(getattr(torch, target)))
    module = import_torch(model, (x,))
    held = Lambda(lambda y, x=x: x.to(getattr(torch, target)) + y)
    found = [tw.compile(model, (x,), cache=False)(x), Interpreter(module).run("main", [to_numpy(x)])[0]]
    zero = torch.zeros((), dtype=getattr(torch, target))
    found.append(Interpreter(import_model(held, (zero,), {}, None)).run("main", [zero.numpy()])[0])
    one = tw.compile(model, (x[:1],), cache=False)
    found.append(np.concatenate([one(x[k : k + 1]) for k in range(len(x))]))
    return [np.asarray(y) for y in found]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", NARROW)
def test_narrow_integers_wrap_around_as_in_torch(source: str, target: str) -> None:
    x = inside(source)
    wanted = x.to(getattr(torch, target)).numpy()
    for found in ways(x, target):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("target", ["int32", "int64", *NARROW])
def test_conversions_saturate_and_nan_becomes_zero(source: str, target: str) -> None:
    x = torch.tensor(BEYOND).repeat(5).to(getattr(torch, source))
    middle = {"int64": np.int64, "uint32": np.int64}.get(target, np.int32)
    ends = np.iinfo(middle)
    exact = [
        0 if v != v else ends.max if v > ends.max else ends.min if v < ends.min else int(v)
        for v in x.tolist()
    ]
    wanted = np.array(exact, np.int64).astype(target)
    for found in ways(x, target):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("source", SOURCES[:3])
@pytest.mark.parametrize("target", NARROW)
def test_traced_functions_convert_as_numpy(source: str, target: str) -> None:
    x = inside(source).numpy()
    with np.errstate(invalid="ignore"):
        wanted = x.astype(target)
    np.testing.assert_array_equal(tw.tensor(x).astype(target).numpy(), wanted)
    np.testing.assert_array_equal(tw.compile(lambda x: x.astype(target), (x,), cache=False)(x), wanted)


@pytest.mark.parametrize("target", NARROW)
def test_onnx_converts_as_onnx_runtime(target: str) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x = inside("float32").numpy()
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["x"], ["y"], to=kind)],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [len(x)])],
        [onnx.helper.make_tensor_value_info("y", kind, [len(x)])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(tw.compile(model, cache=False)(x), wanted)


def test_limited_numbers_are_converted_at_once() -> None:
    model = Lambda(lambda x: x.round().clamp(-128, 127).to(torch.int8))
    module = import_torch(model, (torch.ones(3),))
    assert sum(op.name == "graph.cast" for op in module.symbol("main").body.ops) == 1
