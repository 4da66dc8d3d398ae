"""Inputs and dynamic dimensions may have any name that a model or Python gives them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.cli import cli
from tilewright.driver.random_inputs import write_npz
from tilewright.errors import CompileError, ShapeError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.parser import parse

X = np.arange(-8, 16, dtype=np.float32).reshape(3, 8)
DIMS = [
    "größe",
    "名",
    "batch-size",
    "a*b",
    "a%b",
    "a-b",
    "min(a,b)",
    "None",
    "class",
    "lambda",
    "min",
    "v0",
    "i0",
    "inf",
    "x²",
    "ﬁ",
    "",
    "-1",
    "0",
    "2",
    "N<=4",
    "new\nline",
    'q"uote',
    "🙂",
    "_",
    "x" * 300,
    "é" * 200,
    "nonzero_0",
]
INPUTS = [
    "größe",
    "self",
    "out",
    "class",
    "a*b",
    "in:0",
    "scope/in:0",
    "file",
    "seed",
    "repeat",
    "%0",
    'q"uote',
    "x" * 300,
]


def model(dim: str, name: str = "x", result: str = "y", operator: str = "Relu") -> onnx.ModelProto:
    x = helper.make_tensor_value_info(name, TensorProto.FLOAT, [dim, 8])
    y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(operator, [name], [result])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_any_name_of_a_dimension() -> None:
    for dim in DIMS:
        module = import_onnx(model(dim))
        ((rows, _),) = [v.type.shape for v in module.symbol("main").outputs]
        assert str(parse(str(module))) == str(module), dim
        assert str(rows).isidentifier(), dim


@pytest.mark.parametrize("dim", ["größe", "v0", "class", "batch-size"])
def test_a_library_with_any_name_of_a_dimension(dim: str) -> None:
    with tw.compile(model(dim), cache=False) as library:
        np.testing.assert_array_equal(library(X), np.maximum(X, 0))
        for level in ("tensor", "loop", "host"):
            parse(library.ir(level))


def test_a_size_of_the_run_beside_a_dimension_of_its_name() -> None:
    proto = model("nonzero_0", operator="NonZero")
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with tw.compile(proto, cache=False) as library:
        np.testing.assert_array_equal(library(X), np.stack(np.nonzero(X)))


def two(first: str, second: str) -> list[str]:
    """Return the sizes that the importer gives two inputs whose dimensions have these names."""
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in (("x", first), ("y", second))
    ]
    nodes = [helper.make_node("Concat", ["x", "y"], ["z"], axis=0)]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    )
    module = import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    return [str(a.type.shape[0]) for a in module.symbol("main").body.args]


def test_similar_names_are_different_dimensions() -> None:
    assert two("batch-size", "batch_size") == ["batch_size_2", "batch_size"]
    # ``a*b`` is a multiple of a, with a new dimension b as the quotient.
    assert two("a", "a*b") == ["a", "a*b"]
    assert two("b*a", "a*b") == ["b_a", "a_b"]
    assert two("n", "2*n") == ["n", "2*n"]


@pytest.mark.parametrize("name", INPUTS)
def test_any_name_of_an_input(name: str) -> None:
    with tw.compile(model("n", name), cache=False) as library:
        np.testing.assert_array_equal(library(X), np.maximum(X, 0))
        np.testing.assert_array_equal(library({name: X}), np.maximum(X, 0))
        if name == "out":
            with pytest.raises(ShapeError, match="missing input 'out'.*one dictionary by name"):
                library(out=X)
        else:
            np.testing.assert_array_equal(library(**{name: X}), np.maximum(X, 0))
        out = np.empty_like(X)
        assert library({name: X}, out=out) is out
        assert library.bind({name: X})() is not None
        assert library.profile({name: X}, repeat=1)
        if name not in ("out", "repeat"):
            with pytest.raises(ShapeError, match="given twice"):
                library({name: X}, **{name: X})


def test_parameters_called_self_and_out() -> None:
    def subtract(self, out):  # type: ignore[no-untyped-def]
        return self - out

    with tw.compile(subtract, (X, X), cache=False) as library:
        np.testing.assert_array_equal(library(X + 1, X), np.ones_like(X))
        np.testing.assert_array_equal(library({"out": X, "self": X + 1}), np.ones_like(X))
    np.testing.assert_array_equal(np.asarray(tw.jit(subtract)(out=X, self=X + 1)), np.ones_like(X))


@pytest.mark.parametrize("dim", ["größe", "v0", "class<=8"])
def test_unusual_names_of_dimensions(dim: str) -> None:
    import torch

    for function in (torch.nn.ReLU(), lambda x: tw.numpy.maximum(x, 0.0)):
        given = (torch.from_numpy(X),) if isinstance(function, torch.nn.Module) else (X,)
        name = "input" if isinstance(function, torch.nn.Module) else "x"
        with tw.compile(function, given, dims={name: {0: dim}}, cache=False) as library:
            np.testing.assert_array_equal(library(X[:2]), np.maximum(X[:2], 0))


@pytest.mark.parametrize("dim", ["batch-size", "a*b"])
def test_a_dimension_that_nothing_determines(dim: str) -> None:
    import torch

    with pytest.raises(CompileError, match=r"dims\['input'\]\[0\] is .* does not determine"):
        tw.compile(torch.nn.ReLU(), (torch.from_numpy(X),), dims={"input": {0: dim}})
    with pytest.raises(CompileError, match=r"dims\['x'\]\[0\] is .* does not determine"):
        tw.compile(lambda x: x + x, (X,), dims={"x": {0: dim}})
    with pytest.raises(CompileError, match=r"dims\['x'\]\[0\] is .* does not determine"):
        tw.compile(model("n"), dims={"x": {0: dim}})


def test_names_of_jax() -> None:
    jax = pytest.importorskip("jax")
    for dim in ("größe", "class", "v0"):
        (size,) = jax.export.symbolic_shape(dim)
        exported = jax.export.export(jax.jit(lambda self: jax.numpy.maximum(self, 0)))(
            jax.ShapeDtypeStruct((size, 8), np.float32)
        )
        with tw.compile(exported, cache=False) as library:
            np.testing.assert_array_equal(library(self=X), np.maximum(X, 0))


def test_names_on_the_command_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from click.testing import CliRunner

    onnx.save(model("größe", "in:0=a,b", "file"), tmp_path / "m.onnx")
    write_npz(tmp_path / "in.npz", {"file": X})
    np.save(tmp_path / "x.npy", np.load(tmp_path / "in.npz")["file"])
    command = ["run", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.npz")]
    found = CliRunner().invoke(cli, [*command, "--input", f"in:0=a,b={tmp_path / 'x.npy'}"])
    assert found.exit_code == 0, found.output
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["file"], np.maximum(X, 0))
    found = CliRunner().invoke(cli, [*command, "--dims", "in:0=a,b:größe<=8", "--dim", "größe=5"])
    assert found.exit_code == 0, found.output
    assert np.load(tmp_path / "out.npz")["file"].shape == (5, 8)
