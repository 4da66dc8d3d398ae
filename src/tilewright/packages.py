"""Packages that only some models and targets need: what each is for, and what to install where it is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

OPTIONAL: Mapping[str, tuple[str, str]] = {
    "onnx": ("'tilewright[onnx]'", "ONNX models"),
    "torch": ("'tilewright[torch]'", "PyTorch models"),
    "jax": ("'tilewright[jax]'", "JAX models and StableHLO"),
    "jaxlib": ("'tilewright[jax]'", "JAX models and StableHLO"),
    "tensorflow": ("'tilewright[tensorflow]'", "TensorFlow SavedModels"),
    "wgpu": ("'tilewright[webgpu]'", "running artifacts for the target webgpu"),
    "wasmtime": ("wasmtime", "running artifacts for the target wasm32"),
    "safetensors": ("'tilewright[nn]'", "files of weights"),
    **dict.fromkeys(
        ("h11", "httpx", "jinja2", "llguidance", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn"),
        ("'tilewright[llm]'", "language models"),
    ),
    "transformers": ("transformers", "models of Hugging Face"),
    "onnxruntime": ("onnxruntime", "running ONNX models for comparison"),
    "onnxscript": ("onnxscript", "exporting PyTorch models to ONNX"),
    "threadpoolctl": ("threadpoolctl", "comparing with other engines"),
}
"""By the name that is imported: what pip installs, and what it is for."""


def installed(name: str) -> bool:
    """Whether a package can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # what stands for it in this process is no module
        return False


def missing(error: ImportError) -> str | None:
    """What to tell the user of an import that failed; None where it is none of a package that may be absent."""
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL:
        return None
    install, purpose = OPTIONAL[name]
    if isinstance(error, ModuleNotFoundError):
        return f"the package {name}, for {purpose}, is not installed: pip install {install}"
    return f"the package {name} is installed, but cannot be imported ({error}): pip install --force-reinstall {install}"


__all__ = ["OPTIONAL", "installed", "missing"]
