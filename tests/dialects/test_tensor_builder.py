"""Mistakes in the body of a computation raise errors that say what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects.graph import GraphOp
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.errors import InternalError
from tilewright.frontends.trace import apply
from tilewright.ir.builder import Builder
from tilewright.ir.core import IRError, Module, Operand, operation
from tilewright.ir.types import TensorType, f32

X = np.ones((2, 3), np.float32)


def build(body: Callable[..., Any]) -> None:
    """Build a computation over a matrix with the body ``body(x, i, j)``."""
    module = Module()
    t = TensorBuilder(Builder(module.body))
    x = t.wrap(module.body.add_arg(TensorType(f32, X.shape)))
    t.compute(X.shape, lambda i, j: body(x, i, j))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, i, j: x[i, j] if x[i, j] > 0 else -x[i, j], r"no truth value.*condition.select\(a, b\)"),
        (lambda x, i, j: (x[i, j] > 0) and x[i, j], "instead of `and`, `or` and `not`"),
        (lambda x, i, j: max(x[i, j], 0), "a.max\\(b\\)"),
        (lambda x, i, j: np.maximum(x[i, j], 0), "a.max\\(b\\)"),
        (lambda x, i, j: (x[i, j] == 0).select(1, x[i, j]), "a.equals\\(b\\)"),
        (lambda x, i, j: (x[i, j] != 0).select(1, x[i, j]), "a.differs\\(b\\)"),
        (lambda x, i, j: math.exp(x[i, j]), r"x\[i\].exp\(\) instead of math.exp"),
        (lambda x, i, j: x[i, j] * int(x[i, j]), "cast\\(dtype\\) instead of float and int"),
    ],
)
def test_elements_have_no_value(body: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build(body)


def test_unknown_functions_name_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="no function 'sqr'; did you mean sqrt"):
        build(lambda x, i, j: x[i, j].sqr())
    with pytest.raises(AttributeError, match="no function 'relu'; .*erf, sigmoid"):
        build(lambda x, i, j: x[i, j].relu())


def test_each_dimension_needs_an_index() -> None:
    with pytest.raises(IRError, match=r"2 dimensions, \(2, 3\), but 1 index is given"):
        build(lambda x, i, j: x[i])


def test_a_body_returns_an_element() -> None:
    with pytest.raises(IRError, match=r"returns 1.0, not an element: .* t.constant\(value, dtype\)"):
        build(lambda x, i, j: 1.0)


class _Wrong(GraphOp):
    x: Operand

    def infer_types(self) -> Any:
        return (self.x.type,)

    def reference(self, x: Any) -> Any:
        return x


@operation
class _Raises(_Wrong):
    name = "builder_test.raises"

    def lower(self, t: Any, x: Any) -> Any:
        return t.compute(x.shape, lambda *i: 1.0)


@operation
class _Doubles(_Wrong):
    name = "builder_test.doubles"

    def lower(self, t: Any, x: Any) -> Any:
        return t.compute(x.shape, lambda *i: x[i] * 2)


@operation
class _Nothing(_Wrong):
    name = "builder_test.nothing"


@operation
class _OneType(_Wrong):
    name = "builder_test.one_type"

    def infer_types(self) -> Any:
        return self.x.type


def test_errors_in_a_lowering_name_the_operators_file() -> None:
    message = (
        rf"`lower` of the operator 'builder_test.raises' \(at .*\n.* is defined in {__file__}:\d+, outside"
    )
    with pytest.raises(InternalError, match=message) as caught:
        tw.compile(lambda x: apply(_Raises, x), (X,), cache=False)
    assert "bug in Tilewright" not in str(caught.value)


def test_check_mode_names_operators_from_outside() -> None:
    message = rf"outside of Tilewright: 'builder_test.doubles' \({__file__}:\d+\). Compare their `lower`"
    with pytest.raises(InternalError, match=message) as caught:
        tw.compile(lambda x: apply(_Doubles, x), (X,), check=True)
    assert "bug in Tilewright" not in str(caught.value)


def test_an_operator_without_a_lowering_is_unsupported() -> None:
    with pytest.raises(tw.CompileError, match="builder_test.nothing .*\n *the class has neither `lower` nor"):
        tw.compile(lambda x: apply(_Nothing, x), (X,), cache=False)


def test_types_of_results_are_a_tuple() -> None:
    with pytest.raises(tw.TilewrightError, match=r"return a tuple of types: \(tensor<2x3xf32>,\)"):
        apply(_OneType, tw.Tensor(X))


def test_tensors_are_no_operands() -> None:
    with pytest.raises(tw.CompileError, match=r"write tilewright.frontends.trace.apply\(Operator, x\) \(at "):
        tw.compile(lambda x: _Doubles(x), (X,), cache=False)


def test_an_operators_name_has_a_dialect() -> None:
    with pytest.raises(TypeError, match="name = 'plain' has no dialect; write 'dialect.operation'"):
        operation(type("Plain", (_Wrong,), {"name": "plain"}))
