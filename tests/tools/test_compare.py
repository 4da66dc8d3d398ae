"""`tilewright compare` names the operator and the line where a wrong kernel makes the numbers part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.cli.test_cli import run
from tests.explorer.network import Network
from tests.tools import compared

import tilewright as tw
from tilewright.errors import CompileError
from tilewright.passes import register_pass, unregister_pass
from tilewright.tools.compare.places import Place, layers
from tilewright.tools.verify import verify

FILE = Path(compared.__file__)
MODEL = "tests.tools.compared:make"


def line_of(mark: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if line.endswith(f"# the line of {mark}"))


@pytest.fixture
def wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    """The pass `request.param` in each compilation."""
    change: Callable[..., None] = request.param
    register_pass(change, level="graph", after="simplify")
    yield
    unregister_pass(change.__name__.replace("_", "-"))


def test_a_right_model_agrees_in_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", MODEL) == 0
    shown = capsys.readouterr().out
    assert "all layers and outputs agree with PyTorch" in shown
    for layer in ("blocks.0.up", "blocks.1.act", "head"):
        assert layer in shown


@pytest.mark.parametrize("wrong", [compared.wrong_gelu], indirect=True)
def test_the_command_names_the_line_of_a_wrong_kernel(
    wrong: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", MODEL, "--json", "-") == 1
    found = json.loads(capsys.readouterr().out)
    place = found["first"]["place"]
    assert (place["path"], place["operator"]) == ("blocks.1.act", "gelu")
    assert place["source"] == f"{FILE}:{line_of('GELU')}"
    assert next(x["layer"] for x in found["layers"] if not x["passed"]) == "blocks.1.act"
    assert found["first"]["max_abs"] > 1e-3 and not found["alone"]
    assert found["kernels"] and "blocks.1.act/gelu" in found["verdict"][0]


@pytest.mark.parametrize("wrong", [compared.wrong_fused_gelu], indirect=True)
def test_a_kernel_that_is_wrong_only_when_fused_is_found(wrong: None) -> None:
    found = tw.compare(*compared.make(), cache=False)
    assert all(row.passed for row in found.layers) and not found.outputs[0].passed
    assert found.first is not None and found.first.place.name == "blocks.1.act/gelu" and found.alone


@pytest.mark.parametrize("wrong", [compared.wrong_gelu], indirect=True)
def test_exported_models_name_the_same_line(wrong: None, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    import torch

    model, args = compared.make()
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(model, args, path, dynamo=True, verbose=False)
    for exported in (path, torch.export.export(model, args)):
        found = tw.compare(exported, cache=False)
        assert found.first is not None and found.first.place.path == "blocks.1.act"
        assert found.first.place.source == f"{FILE}:{line_of('GELU')}"


def test_the_first_nan_and_its_operator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 2, -1, 0], np.float32))
    assert run("compare", "tests.tools.compared:risky", "--input", f"x={tmp_path / 'x.npy'}") == 0
    shown = capsys.readouterr().out
    for what in ("NaN", "infinity"):
        (line,) = [x for x in shown.splitlines() if x.startswith(f"the first {what}")]
        assert f"log ({FILE}:{line_of('LOG')})" in line


def test_modules_of_this_package_and_dynamic_sizes() -> None:
    x = np.ones((8, 64), np.float32)
    found = tw.compare(Network().eval(), (x,), dims={"x": {0: "batch<=16"}}, sizes={"batch": 5})
    assert found.passed and found.framework == "the reference interpreter"
    assert found.layers[0].shape[0] == 5 and any(row.layer.startswith("blocks.1") for row in found.layers)


def test_prints_in_a_function_of_jax_are_no_places() -> None:
    jax = pytest.importorskip("jax")

    def function(x: Any) -> Any:
        y = jax.numpy.sin(x)
        jax.debug.print("the sum is {}", y.sum())
        return jax.numpy.exp(y)

    found = tw.compare(jax.jit(function), (np.ones((3, 4), np.float32),))
    assert found.passed and {row.place.operator for row in found.layers} >= {"sin", "exp"}


def test_a_function_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def function(x: Any, w: Any) -> Any:
        h = jax.nn.relu(x @ w)
        return jax.nn.softmax(h)

    args = (np.ones((2, 8), np.float32), np.eye(8, dtype=np.float32))
    found = tw.compare(jax.jit(function), args)
    assert found.passed and found.framework.startswith("JAX")
    lines = {row.place.source.rpartition(":")[0] for row in found.layers}
    assert lines == {__file__} and len(found.layers) > 1


def test_inputs_that_numpy_has_no_type_for() -> None:
    import torch

    model = torch.nn.Linear(8, 8).bfloat16()
    x = torch.ones(2, 8, dtype=torch.bfloat16)
    found = tw.compare(model, (x,))
    assert found.passed and found.outputs[0].dtype == "bfloat16"
    assert verify(tw.compile(model, (x,)), model, (x,), rtol=2e-2, atol=2e-2).passed


def test_a_lower_precision_has_its_own_tolerance() -> None:
    model, args = compared.make()
    assert tw.compare(model, args, precision="bf16").passed
    strict = tw.compare(model, args, precision="bf16", rtol=1e-6, atol=1e-7)
    assert not strict.passed and strict.first is not None
    assert strict.first.place.name == "blocks.0.up/linear"


def test_models_that_cannot_be_compared() -> None:
    import torch

    with pytest.raises(CompileError, match="random numbers"):
        tw.compare(torch.nn.Dropout().train(), (torch.ones(4),))
    assert run("compare", "model.so") == 2


def test_layers_are_as_deep_as_the_limit_allows() -> None:
    places = [Place(f"blocks.{k // 4}.{'ab'[k // 2 % 2]}", f"op{k}") for k in range(16)]
    assert layers(places, 4) == [(f"blocks.{k}", 4 * k, 4 * k + 3) for k in range(4)]
    assert len(layers(places, 8)) == 8
    assert layers([Place("", "a", "f.py:1"), Place("", "b", "f.py:1"), Place("", "c", "f.py:2")]) == [
        ("f.py:1", 0, 1),
        ("f.py:2", 2, 2),
    ]
    assert len(layers([Place("", f"op{k}", f"f.py:{k}") for k in range(9)], 4)) <= 4
