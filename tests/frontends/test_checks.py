"""Indices out of range and divisions by zero raise errors where the framework raises them. An error names its
place in the model. Without checks there are no errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.driver.frontend_registry import import_model
from tilewright.errors import DivisionError, OutOfRangeError
from tilewright.ir.interpreter import Interpreter

VECTOR, TABLE = torch.arange(10.0), torch.arange(40.0).reshape(10, 4)
PLACES = np.array([0, -10, 9])


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def i64(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def interpreted(model: Any, args: Any, values: Any) -> Any:
    module = import_model(model, args, None, None)
    return Interpreter(module).run("main", [np.asarray(v) for v in values])


TORCH: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "index": (lambda x, i: x[i], (VECTOR, i64(0, -10, 9)), (VECTOR, i64(0, -11, 9))),
    "two indices": (lambda x, i, j: x[i, j], (TABLE, i64(0, 9), i64(-4, 3)), (TABLE, i64(0, 9), i64(0, 4))),
    "embedding": (lambda x, i: F.embedding(i, x), (TABLE, i64(0, 9)), (TABLE, i64(0, 10))),
    "embedding of -1": (lambda x, i: F.embedding(i, x), (TABLE, i64(0, 9)), (TABLE, i64(0, -1))),
    "embedding bag": (
        lambda x, i: F.embedding_bag(i, x, i64(0, 1), mode="sum"),
        (TABLE, i64(0, 9)),
        (TABLE, i64(0, 10)),
    ),
    "gather": (lambda x, i: x.gather(0, i), (VECTOR, i64(0, 9)), (VECTOR, i64(0, 10))),
    "index_select": (lambda x, i: x.index_select(0, i), (VECTOR, i64(0, 9)), (VECTOR, i64(0, 10))),
    "take": (lambda x, i: x.take(i), (TABLE, i64(0, -40)), (TABLE, i64(0, 40))),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (VECTOR, i64(0, 9)), (VECTOR, i64(0, 10))),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x[:2]), (VECTOR, i64(0, 9)), (VECTOR, i64(-1, 9))),
    "index_put": (
        lambda x, i: x.index_put((i,), torch.ones(2), accumulate=True),
        (VECTOR, i64(0, -10)),
        (VECTOR, i64(0, 10)),
    ),
    "cross entropy": (
        F.cross_entropy,
        (TABLE, i64(0, 1, 2, 3, -100, 0, 1, 2, 3, 0)),
        (TABLE, i64(0, 1, 2, 3, 4, 0, 1, 2, 3, 0)),
    ),
    "//": (lambda x, y: x // y, (i64(4, -(2**63)), i64(3, -1)), (i64(4, 5), i64(3, 0))),
    "%": (lambda x, y: x % y, (i64(4, -(2**63)), i64(3, -1)), (i64(4, 5), i64(3, 0))),
    "fmod": (torch.fmod, (i64(4, 5), i64(3, -1)), (i64(4, 5), i64(3, 0))),
}


@pytest.mark.parametrize("name", TORCH)
def test_errors_of_torch(name: str) -> None:
    """A compiled model raises an error exactly where eager torch does, and a failed call does not affect the
    next one. Without checks, no memory outside of the tensors is touched.
    """
    function, good, bad = TORCH[name]
    model = Calls(function)
    with pytest.raises((IndexError, RuntimeError)):
        function(*bad)
    error = DivisionError if name in ("//", "%", "fmod") else OutOfRangeError
    with tw.compile(model, good) as library:
        assert library.metadata["checks"]
        for _ in range(2):
            torch.testing.assert_close(library(*good), function(*good))
            with pytest.raises(error, match="test_checks.py|/functional.py"):
                library(*bad)
    with pytest.raises(error):
        interpreted(model, good, bad)
    with tw.compile(model, good, checks=False) as trusting:
        assert not trusting.metadata["checks"]
        trusting(*bad)


def test_errors_of_torch_compile() -> None:
    """Functions of torch.compile raise Python's own kinds of errors, forward and backward."""
    function = torch.compile(lambda x, i: (x[i] * x[i]).sum(), backend="tilewright")
    x = torch.arange(10.0, requires_grad=True)
    function(x, i64(0, 9)).backward()
    with pytest.raises(IndexError, match="an index is outside of -10 .. 9"):
        function(x, i64(0, 10))
    trusting = torch.compile(lambda x, i: x[i] + 1, backend="tilewright", options={"checks": False})
    assert trusting(VECTOR, i64(0, 10))[0] == 1


def onnx_model(signature: str, body: str) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> main {signature} {{ {body} }}')


X, T, U = (
    np.arange(10, dtype=np.float32),
    np.arange(10, dtype=np.float32).reshape(5, 2),
    np.ones(2, np.float32),
)
ONNX = {
    "Gather": ("(float[n] x, int64[m] i) => (float[m] y)", "y = Gather(x, i)", (X, [0, -10]), (X, [0, 10])),
    "GatherElements": (
        "(float[n] x, int64[m] i) => (float[m] y)",
        "y = GatherElements<axis = 0>(x, i)",
        (X, [0, -10]),
        (X, [0, -11]),
    ),
    "GatherND": (
        "(float[5, 2] x, int64[m, 2] i) => (float[m] y)",
        "y = GatherND(x, i)",
        (T, [[0, -2], [4, 1]]),
        (T, [[0, 2], [4, 1]]),
    ),
    "ScatterND": (
        "(float[5, 2] x, int64[2, 2] i, float[2] u) => (float[5, 2] y)",
        "y = ScatterND(x, i, u)",
        (T, [[0, -2], [4, 1]], U),
        (T, [[5, -2], [4, 1]], U),
    ),
    "ScatterElements": (
        "(float[n] x, int64[2] i, float[2] u) => (float[n] y)",
        "y = ScatterElements<axis = 0>(x, i, u)",
        (X, [0, -10], U),
        (X, [0, 10], U),
    ),
    "Div": (
        "(int64[n] a, int64[n] b) => (int64[n] y)",
        "y = Div(a, b)",
        ([-(2**63), 3], [-1, 2]),
        ([1, 3], [0, 2]),
    ),
    "Mod": (
        "(int64[n] a, int64[n] b) => (int64[n] y)",
        "y = Mod(a, b)",
        ([-(2**63), 3], [-1, 2]),
        ([1, 3], [0, 2]),
    ),
}


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
@pytest.mark.parametrize("name", ONNX)
def test_errors_of_onnx(name: str, target: str) -> None:
    """Compiled and interpreted ONNX models of dynamic sizes raise errors for inputs that ONNX Runtime
    refuses.
    """
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    signature, body, *given = ONNX[name]
    good, bad = ([np.asarray(v) for v in values] for values in given)
    proto = onnx_model(signature, body)
    error = DivisionError if name in ("Div", "Mod") else OutOfRangeError
    with tw.compile(proto, target=target) as library:
        library(*good)
        with pytest.raises(error, match=name):
            library(*bad)
        library(*good)
    with pytest.raises(error, match=name):
        interpreted(proto, None, bad)


def test_errors_of_functions() -> None:
    """Eager, traced and jitted functions raise IndexError for indices out of range. Integers divided by zero
    give 0, as in NumPy.
    """
    x = np.arange(10, dtype=np.float32)
    for function in (
        lambda x, i: tw.Tensor(x)[i] if isinstance(x, np.ndarray) else x[i],
        tnp.take,
        tnp.take_along_axis,
    ):
        good, bad = (x, np.array([0, -10])), (x, np.array([0, 10]))
        with pytest.raises(IndexError, match="an index is outside of -10 .. 9"):
            tw.compile(function, good)(*bad)
        with pytest.raises(IndexError):
            tw.jit(function)(*bad)
    a, b = np.array([7, -7, 3, -128], np.int8), np.array([0, 0, 2, -1], np.int8)
    for name in ("floor_divide", "mod", "fmod"):
        with np.errstate(all="ignore"):
            want = getattr(np, name)(a, b)
        np.testing.assert_array_equal(tw.compile(getattr(tnp, name), (a, b))(a, b), want)
        np.testing.assert_array_equal(np.asarray(getattr(tnp, name)(a, b)), want)


def test_jax_clamps() -> None:
    """JAX's specification defines the result of indices out of range, so nothing is checked."""
    jax = pytest.importorskip("jax")
    x, i = np.arange(10, dtype=np.float32), np.array([0, 99], np.int32)
    exported = jax.export.export(jax.jit(lambda x, i: (x[i], x.at[i].set(-1))), platforms=["cpu"])(x, i)
    for got, want in zip(
        tw.compile(exported)(x, i), (x[[0, 9]], np.where(np.arange(10) == 0, -1, x)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


KNOWN: dict[str, Callable[..., Any]] = {
    "constants": lambda x: x[torch.tensor([3, 0, -10])],
    "positions": lambda x: x[torch.arange(x.shape[0] - 1) + 1],
    "argmax": lambda x: x[x.argmax(0)],
    "top-k": lambda x: x.gather(0, x.topk(3).indices),
    "sorted": lambda x: x.gather(0, x.argsort()),
    "nonzero": lambda x: x[x > 3],
    "modulo": lambda x: x[x.to(torch.int64) % 10],
    "clamped": lambda x: x[x.to(torch.int64).clamp(0, 9)],
    "where": lambda x: x[torch.where(x > 2, 4, 5)],
    "division by a number": lambda x: x.to(torch.int64) // 3,
}


@pytest.mark.parametrize("name", KNOWN)
def test_conditions_that_always_hold_are_not_checked(name: str) -> None:
    with tw.compile(Calls(KNOWN[name]), (VECTOR,)) as library:
        assert "graph.check" not in library.ir("graph")
        torch.testing.assert_close(library(VECTOR), KNOWN[name](VECTOR))


def test_a_check_is_made_once() -> None:
    """Several tables that are read at the same indices need one check, that of the smallest table."""
    tables = [torch.ones(n, 2) for n in (10, 10, 12)]
    model = Calls(lambda i: sum(F.embedding(i, t) for t in tables))
    with tw.compile(model, (i64(1, 2),)) as library:
        assert library.ir("graph").count("graph.check_index") == 1
        with pytest.raises(IndexError):
            library(i64(0, 10))
