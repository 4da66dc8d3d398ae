"""Calls of models with inputs and outputs that are lists or optional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.errors import ShapeError


def sequence_model() -> Any:
    """Return a model of ``out = SequenceInsert(items, x)`` that also tells whether an optional value is
    present.
    """
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    sequence = helper.make_sequence_type_proto(tensor)
    nodes = [
        helper.make_node("SequenceInsert", ["items", "x"], ["out"]),
        helper.make_node("OptionalHasElement", ["maybe"], ["there"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_value_info("items", sequence),
            helper.make_value_info("x", tensor),
            helper.make_value_info("maybe", helper.make_optional_type_proto(tensor)),
        ],
        [
            helper.make_value_info("out", sequence),
            helper.make_tensor_value_info("there", TensorProto.BOOL, []),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_lists_in_and_out(tmp_path: Any) -> None:
    a, b = np.ones(3, np.float32), np.zeros(3, np.float32)
    with tw.compile(sequence_model(), [[a, b], a, None], cache=False) as library:
        assert [spec.name for spec in library.inputs] == ["items_0", "items_1", "x"]
        path = library.save(tmp_path / "model.so")
        with pytest.raises(ShapeError, match="list of 2 tensors"):
            library([a], b, None)
        with pytest.raises(ShapeError, match="absent when the model was compiled"):
            library([a, b], b, a)
        with pytest.raises(ShapeError, match="missing input 'x'"):
            library([a, b])
    with tw.load(path) as library:
        five = [np.full(5, k, np.float32) for k in range(3)]
        out, there = library(five[:2], x=five[2])
        assert isinstance(out, list)
        assert not there
        np.testing.assert_array_equal(out, five)


def test_the_length_of_a_list_is_that_of_the_example() -> None:
    with pytest.raises(tw.CompileError, match="'items' is a sequence: give an example"):
        tw.compile(sequence_model())
