"""Files for the benchmark in the browser: each model as ONNX and compiled for WebAssembly, and its inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

from ..models import BENCH_MODELS, Model

MODELS = ("minilm", "mobilenet_v2", "resnet50")
TARGETS = {"wasm": ("wasm32:relaxed", "wasm32:relaxed+threads"), "webgpu": ("webgpu",)}
"""The targets for each engine of the browser; of those of WebAssembly the second one has several threads."""


def file_of(target: str) -> str:
    """The name of the artifact for a target."""
    suffix = "tar" if target.startswith("webgpu") else "wasm"
    return f"{target.replace(':', '-').replace('+', '-')}.{suffix}"


def prepare(name: str, folder: Path, engine: str) -> None:
    """Write a model's files into `folder`: ``model.onnx``, an artifact for each of the engine's targets with
    its weights beside it, and ``inputs.json``: inputs, and the result of the target ``cpu``.
    """
    model = BENCH_MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {key: smaller(x) if engine == "webgpu" else x for key, x in model.inputs(1).items()}
    module = model.module()
    export(model, module, inputs, folder / "model.onnx")
    arguments = tuple(inputs.values())
    expected = tw.compile(module, arguments)(*(x.numpy() for x in arguments))
    for target in TARGETS[engine]:
        library = tw.compile(module, arguments, target=target, threads=1)
        library.save(folder / file_of(target), weights="beside")
    described = {
        "inputs": {key: described_array(value.numpy()) for key, value in inputs.items()},
        "expected": described_array(np.asarray(expected)),
    }
    (folder / "inputs.json").write_text(json.dumps(described))


def smaller(x: Any) -> Any:
    """Images of half the height and width, since a simulated GPU takes seconds for an image."""
    return x[..., ::2, ::2].contiguous() if x.ndim == 4 else x


def described_array(array: np.ndarray) -> dict[str, Any]:
    return {"type": array.dtype.name, "shape": list(array.shape), "data": array.ravel().tolist()}


def export(model: Model, module: Any, inputs: dict[str, Any], path: Path) -> None:
    """Write the module as ONNX, with its weights inside."""
    import torch

    exported = torch.onnx.export(
        (model.export or (lambda: module))(), tuple(inputs.values()), input_names=list(inputs), dynamo=True
    )
    assert exported is not None
    exported.save(path, external_data=False)
