"""MiniLM and other models on WebAssembly (wasmtime and Node) and on WebGPU."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.models.compare import assert_matches, compiled
from tests.zoo.models import MINILM
from tilewright.errors import ArtifactError

NODE = r"""
const { load } = await import(process.argv[2]);
const model = await load(process.argv[3]);
const ids = JSON.parse(process.argv[4]);
const shape = [1, ids.length];
const tensor = (values) => ({ data: BigInt64Array.from(values, BigInt), shape });
const outputs = await model.run({ input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1)) });
const { data } = Object.values(outputs)[0];
console.log(JSON.stringify([...data]));
"""


@pytest.fixture(scope="module")
def minilm_wasm() -> Any:
    pytest.importorskip("wasmtime")
    return tw.compile(MINILM.onnx_model("tiny", dynamic=True), dims=MINILM.dims, target="wasm32", cache=False)


@pytest.mark.parametrize("name", ["minilm"])
def test_minilm_in_wasmtime(minilm_wasm: Any, name: str) -> None:
    assert_matches(minilm_wasm, name, 2, 9)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_minilm_in_node(minilm_wasm: Any, tmp_path: Path) -> None:
    import torch

    path = minilm_wasm.save(tmp_path / "minilm.wasm")
    loader = Path(tw.__file__).parent / "runtime" / "js" / "index.js"
    script = tmp_path / "run.mjs"
    script.write_text(NODE)
    ids = [101, 7592, 2088, 102]
    done = subprocess.run(
        ["node", script, loader, path, json.dumps(ids)], check=True, capture_output=True, text=True
    )
    with torch.no_grad():
        wanted = MINILM.torch_model()(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64)).numpy()
    np.testing.assert_allclose(
        np.array(json.loads(done.stdout)).reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_wasm(name: str) -> None:
    pytest.importorskip("wasmtime")
    assert_matches(compiled(name, "onnx", dynamic=True, target="wasm32"), name, 2, 9)


def on_webgpu(name: str, front_end: str = "onnx") -> Any:
    pytest.importorskip("wgpu")
    try:
        return compiled(name, front_end, dynamic=True, target="webgpu")
    except ArtifactError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "name", ["bert", "llama", "resnet50", pytest.param("mobilenet_v2", marks=pytest.mark.slow)]
)
def test_webgpu(name: str) -> None:
    library = on_webgpu(name)
    for batch, seq in ((2, 9), (1, 16)):
        assert_matches(library, name, batch, seq)


def test_two_layers_of_minilm_on_webgpu(tmp_path: Path) -> None:
    import torch

    pytest.importorskip("wgpu")
    model = MINILM.torch_model()
    encoder = next(m for m in model.modules() if m.__class__.__name__ == "BertEncoder")
    encoder.layer = encoder.layer[:2]
    inputs = MINILM.inputs("tiny", batch=2, seq=16)
    try:
        library = tw.compile(model, tuple(inputs.values()), dims=MINILM.dims, target="webgpu", cache=False)
    except ArtifactError as error:
        pytest.skip(str(error))
    loaded = tw.load(library.save(tmp_path / "minilm.tar"))
    for seq in (16, 9):
        inputs = MINILM.inputs("tiny", batch=2, seq=seq)
        with torch.no_grad():
            wanted = model(*inputs.values()).numpy()
        for runner in (library, loaded):
            np.testing.assert_allclose(
                runner(*[v.numpy() for v in inputs.values()]), wanted, rtol=1e-4, atol=1e-4
            )
