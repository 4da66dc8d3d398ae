"""Injected faults are reduced to a few operations of a real model, and the written reduction fails in the
same way.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from tests.zoo.models import MODELS

import tilewright as tw
from tilewright.driver.frontend_registry import import_model
from tilewright.tools.minimize import MinimizedModel
from tilewright.tools.minimize.delta_debugging import smallest
from tilewright.tools.minimize.failure import in_process

FAULTS = str(Path(__file__).with_name("faults.py"))
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def check(found: MinimizedModel) -> int:
    """Return the exit code of the command that a reduction names."""
    words = found.command.split()
    assert words[0] == "tilewright"
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("fault", "text"),
    [pytest.param("drop_bias", "wrong result", marks=pytest.mark.slow), ("crash", "SIGSEGV")],
)
def test_a_real_model(fault: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["swin"].onnx_model("tiny", dynamic=False)
    assert sum(1 for _ in import_model(model, None, {}, None).symbol("main").body.ops) > 300
    monkeypatch.setenv("FAULT", fault)
    found = tw.minimize(model, output=tmp_path / "small", imports=[FAULTS])
    assert found is not None and text in found.failure and found.operations <= 3
    assert (found.inputs is not None) == (fault == "drop_bias")
    assert "graph.matmul" in found.path.read_text() and found.path.stat().st_size < 4000
    assert check(found) == 1
    monkeypatch.setenv("FAULT", "none")
    assert check(found) == 0


def network(x: Any, ids: Any, w: Any) -> Any:
    table = tw.Tensor(np.arange(40, dtype=np.float32).reshape(10, 4))
    y = tw.numpy.tanh(x * 2) + table[ids]
    y = tw.cond((y.sum() > 0), lambda: y @ w + 1.0, lambda: y - 1.0)
    return tw.numpy.exp(-y), y.sum(0)


ARGS = X, np.array([9, 8, 7]), np.eye(4, dtype=np.float32)


def test_a_mistake_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "mistake")
    lines: list[str] = []
    dims = {"x": {0: "n<=9"}, "ids": {0: "n<=9"}}
    found = tw.minimize(
        network, ARGS, dims=dims, output=tmp_path / "small", imports=[FAULTS], progress=lines.append
    )
    assert found is not None and "AssertionError: no such case" in found.failure and found.inputs is None
    assert found.operations <= 2 and len(lines) > 2
    assert "tensor<?" not in found.path.read_text() and "graph.tanh" not in found.path.read_text()


def test_what_does_not_end() -> None:
    def work(send: Any) -> None:
        send("stage", "run")
        time.sleep(100)

    found, _ = in_process(work, 0.3)
    assert found is not None and (found.kind, found.stage) == ("slow", "run")


def test_given_inputs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "drop_bias")
    arguments = dict(zip(("x", "ids", "w"), ARGS, strict=True))
    found = tw.minimize(network, ARGS, inputs=arguments, output=tmp_path / "small", imports=[FAULTS])
    assert found is not None and found.operations == 2
    assert found.inputs is not None and "graph.if" not in found.path.read_text()
    assert check(found) == 1
    with pytest.raises(tw.ShapeError, match="the model has x, ids, w"):
        tw.minimize(network, ARGS, inputs={"x": X}, output=tmp_path / "small")


def test_an_import_that_fails(tmp_path: Path) -> None:
    nodes = [
        oh.make_node("Relu", ["x"], ["a"]),
        oh.make_node("Sin", ["a"], ["b"]),
        oh.make_node("Wave", ["b", "w"], ["c"], domain="my.own"),
    ]
    nodes += [oh.make_node("Cos", ["c"], ["y"])]
    value = lambda name: oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3])  # noqa: E731
    graph = oh.make_graph(nodes, "g", [value("x")], [value("y")], [onnx.numpy_helper.from_array(X, "w")])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21), oh.make_opsetid("my.own", 1)])
    found = tw.minimize(model, output=tmp_path / "small")
    assert found is not None and found.operations == 1 and "Wave" in found.failure
    (node,) = onnx.load(found.path).graph.node
    assert node.op_type == "Wave" and check(found) == 1


def test_strings_have_to_be_given(tmp_path: Path) -> None:
    names = [oh.make_tensor_value_info(n, onnx.TensorProto.STRING, [2]) for n in "aby"]
    graph = oh.make_graph([oh.make_node("StringConcat", ["a", "b"], ["y"])], "g", names[:2], names[2:])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)])
    with pytest.raises(tw.CompileError, match="inputs must be given"):
        tw.minimize(model, output=tmp_path / "small")
    words = np.array(["x", "longer"], object)
    assert tw.minimize(model, inputs={"a": words, "b": words}, output=tmp_path / "small") is None


def test_what_does_not_fail(tmp_path: Path) -> None:
    assert tw.minimize(network, ARGS, output=tmp_path / "small") is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(tw.CompileError, match="raises AttributeError.*no_such_method"):
        tw.minimize(lambda x: x.no_such_method(), (X,), output=tmp_path / "small")


def test_the_text_of_a_module_is_a_model(tmp_path: Path) -> None:
    from tilewright.ir.printer import print_op

    module = import_model(network, ARGS, {}, None)
    path = tmp_path / "model.tw"
    path.write_text(print_op(module, locations=True, resources=True))
    for a, b in zip(tw.compile(path)(*ARGS), network(*map(tw.Tensor, ARGS)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    path.write_text("func.func @main {")
    with pytest.raises(tw.CompileError, match=r"model\.tw: .*: line 1"):
        tw.compile(path)


def test_smallest() -> None:
    needed, tried = {3, 40, 41, 97}, []

    def fails(some: list[int]) -> bool:
        tried.append(len(some))
        return needed <= set(some)

    assert set(smallest(range(100), fails)) == needed
    assert len(tried) < 100
