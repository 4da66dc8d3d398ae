"""The code of docs/extending/adding-an-operator.md runs on every target, and its ONNX importer reads a
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .pages import run_page


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's code blocks define, run in order as one program."""
    return run_page("extending/adding-an-operator.md")


@pytest.mark.parametrize("target", ["cpu", "wasm32", "webgpu"])
def test_compiles_on_every_target(page: dict[str, Any], target: str) -> None:
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    if target == "webgpu":
        wgpu = pytest.importorskip("wgpu")
        try:
            wgpu.gpu.request_adapter_sync()
        except Exception as error:
            pytest.skip(f"no WebGPU adapter (Debian: mesa-vulkan-drivers): {error}")
    library = page["run_on"](target)
    assert [tuple(spec.shape) for spec in library.outputs] != []
    other = page["np"].cos(np.linspace(0, 50, 2 * 561, dtype=np.float32)).reshape(2, 561)
    (expected,) = page["Interpreter"](page["module"]).run("main", [other])
    assert expected.shape == (2, 2)
    np.testing.assert_allclose(library(other), expected, rtol=1e-4, atol=1e-5)


def test_passes_check_out(page: dict[str, Any]) -> None:
    import tilewright as tw

    library = tw.compile(page["module"], check=True, cache=False)
    np.testing.assert_allclose(library(page["signal"]), page["expected"], rtol=1e-4, atol=1e-5)


def test_onnx_models_may_use_it(page: dict[str, Any], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    import tilewright as tw

    node = helper.make_node("MuLaw", ["x"], ["y"], domain="example.audio", mu=100.0)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("example.audio", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=opsets, ir_version=9
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    x = np.linspace(-1, 1, 101, dtype=np.float32)
    expected = np.sign(x) * np.log1p(100 * np.abs(x)) / np.log1p(100)
    np.testing.assert_allclose(tw.compile(path)(x), expected, rtol=1e-4, atol=1e-5)
