"""One benchmark case, and the files that all engines share: the model as ONNX, its inputs, and float32
PyTorch's outputs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .held_out import KNOWN
from .models import BENCH_MODELS

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """A model, a precision ("float32", "bf16"), a batch and a number of threads."""

    model: str
    precision: str
    batch: int
    threads: int

    def __str__(self) -> str:
        return f"{self.model} {self.precision} batch {self.batch} threads {self.threads}"

    @property
    def folder(self) -> Path:
        """The folder of this model's and batch's files; its name depends on the content of their sources."""
        from tests.zoo.models import cache_dir

        own = ["bench/models.py"] if self.model in BENCH_MODELS else ["bench/models.py", "bench/held_out.py"]
        sources = b"".join((ROOT / name).read_bytes() for name in [*own, "tests/zoo/models.py"])
        versions = [importlib.metadata.version(p) for p in ("torch", "transformers", "onnxscript")]
        digest = hashlib.sha256(sources + "/".join(versions).encode()).hexdigest()[:12]
        return cache_dir() / "bench" / f"{self.model}-{self.batch}-{digest}"

    @property
    def onnx(self) -> Path:
        """The model as ONNX, opset 20, all shapes static, weights in a file beside it."""
        return self.folder / "model.onnx"

    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs by name, in the order of the module's arguments."""
        return dict(np.load(self.folder / "inputs.npz"))

    def expected(self) -> list[np.ndarray]:
        """The outputs of PyTorch, eager, float32."""
        return list(np.load(self.folder / "expected.npz").values())


def prepare(case: Case) -> None:
    """Write the case's files unless they exist. It runs in a separate process, because it loads torch."""
    import torch

    if case.folder.exists():
        return
    case.folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=case.folder.parent))
    try:
        model = KNOWN[case.model]
        module, inputs = model.module(), model.inputs(case.batch)
        with torch.inference_mode():
            outputs = module(*inputs.values())
        expected = outputs if isinstance(outputs, tuple) else (outputs,)
        np.savez(partial / "inputs.npz", **{name: tensor.numpy() for name, tensor in inputs.items()})
        np.savez(partial / "expected.npz", *[tensor.numpy() for tensor in expected])
        _export(model.export() if model.export else module, inputs, partial / "model.onnx")
        partial.rename(case.folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _export(module: Any, inputs: dict[str, Any], path: Path) -> None:
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            opset_version=20,
            dynamo=True,
            external_data=True,
            verbose=False,
            optimize=True,
        )


def largest_error(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference of any output, divided by that output's largest magnitude; infinite for other
    shapes or NaNs.
    """
    if [f.shape for f in found] != [e.shape for e in expected]:
        return float("inf")
    worst = 0.0
    for f, e in zip(found, expected, strict=True):
        error = np.abs(f.astype(np.float64) - e.astype(np.float64)).max() / np.abs(e).max()
        worst = max(worst, float(error) if np.isfinite(error) else float("inf"))
    return worst


@cache
def source() -> str:
    """A hash of the files of src/."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "src").rglob("*")):
        if file.suffix in (".py", ".c", ".h"):
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]
