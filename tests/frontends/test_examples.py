"""Example inputs by position and by name, for models of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.driver.frontend_registry import import_model
from tilewright.errors import CompileError

X = np.ones((3, 8), np.float32)


def added() -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "ab"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


class Added(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a + b


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("models")
    onnx.save(added(), folder / "m.onnx")
    program = torch.export.export(Added(), (torch.ones(3, 8), torch.ones(3, 8)))
    torch.export.save(program, folder / "m.pt2")
    text = str(import_model(added(), None, {}, None))
    (folder / "m.tw").write_text(text)
    return {
        "onnx": added(),
        ".onnx": folder / "m.onnx",
        "program": program,
        ".pt2": folder / "m.pt2",
        ".tw": folder / "m.tw",
        "module": Added(),
        "function": lambda a, b: a + b,
    }


KINDS = ["onnx", ".onnx", "program", ".pt2", ".tw", "module", "function"]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_by_name(kind: str, models: dict[str, Any]) -> None:
    x = torch.from_numpy(X) if kind == "module" else X
    for args, kwargs in (
        ({"a": x, "b": x}, {}),
        (None, {"b": x, "a": x}),
        ((x,), {"b": x}),
        ({"a": x}, {"b": x}),
    ):
        main = import_model(models[kind], args, dict(kwargs), None).symbol("main")
        assert sorted(main.arg_names) == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_no_input(kind: str, models: dict[str, Any]) -> None:
    x = torch.from_numpy(X) if kind == "module" else X
    for args, kwargs in (
        ({"a": x, "b": x, "c": x}, {}),
        (None, {"b": x, "a": x, "c": x}),
        ((x, x), {"c": x}),
    ):
        with pytest.raises(CompileError, match="no input 'c'|unexpected keyword argument 'c'"):
            tw.compile(models[kind], args, kwargs=kwargs)
    with pytest.raises(CompileError, match="given twice"):
        tw.compile(models[kind], {"a": x}, kwargs={"a": x})


def test_more_examples_than_inputs(models: dict[str, Any]) -> None:
    with pytest.raises(CompileError, match="3 example inputs are given, the model has 2"):
        tw.compile(models["onnx"], (X, X, X))
