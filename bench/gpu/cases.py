"""Programs of `python -m bench.gpu --record` besides the goldens: models against eager, and kernels whose
speed is known from the device's bandwidth and rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tests.zoo.models import MINILM, MODELS, ZooModel

import tilewright.numpy as tnp
from tilewright.nn import functional as F


@dataclass(frozen=True)
class ModelCase:
    """A model with inputs, and eager's results."""

    name: str
    model: ZooModel
    dynamic: bool

    def build(self) -> tuple[Any, dict[str, Any], list[np.ndarray], np.ndarray]:
        """The module, the keyword arguments of `tilewright.compile`, the inputs, and eager's result."""
        import torch

        module = self.model.torch_model("tiny")
        if self.model is MINILM:  # 45 MB of weights instead of 90
            module = module.half()
        inputs = self.model.inputs("tiny", batch=2, seq=16)
        with torch.no_grad():
            expected = module(*inputs.values())
        options: dict[str, Any] = {"dims": self.model.dims} if self.dynamic else {}
        return (
            (module, tuple(inputs.values())),
            options,
            [np.asarray(x) for x in inputs.values()],
            np.asarray(expected.float()),
        )


def model_cases() -> list[ModelCase]:
    """The README's architectures and MiniLM, static and dynamic."""
    models = [*MODELS.values(), MINILM]
    return [
        ModelCase(f"{m.name}{'-dynamic' if dynamic else ''}", m, dynamic)
        for m in models
        for dynamic in (False, True)
        if m is not MINILM or dynamic  # its weights are large
    ]


@dataclass(frozen=True)
class SpeedCase:
    """A function whose kernels' time has a floor."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    flops: float = 0.0
    """Operations of a run, a multiply-add counted as two; 0: the floor is memory's."""

    def inputs(self) -> list[np.ndarray]:
        """Inputs of the case."""
        import ml_dtypes

        rng = np.random.default_rng(0)
        dtype = {"bfloat16": ml_dtypes.bfloat16}.get(self.dtype, self.dtype)
        return [(rng.standard_normal(s, np.float32) / 8).astype(dtype) for s in self.shapes]


def speed_cases() -> list[SpeedCase]:
    """Rows and elementwise functions, whose goal is 85 % of a copy's bandwidth, and products."""
    large, rows = (1 << 25,), (1 << 14, 2048)
    cases = [
        SpeedCase("relu", partial(tnp.maximum, 0), (large,), "float32"),
        SpeedCase("x * y + x", lambda x, y: x * y + x, (large, large), "float32"),
        SpeedCase("gelu", F.gelu, (rows,), "bfloat16"),
        SpeedCase("softmax", lambda x: F.softmax(x, -1), (rows,), "float32"),
        SpeedCase("softmax", lambda x: F.softmax(x, -1), (rows,), "bfloat16"),
        SpeedCase("layer norm", lambda x: F.layer_norm(x, (2048,)), (rows,), "float32"),
        SpeedCase("sum of rows", lambda x: x.sum(-1), (rows,), "float32"),
        SpeedCase("sum of columns", lambda x: x.sum(0), (rows,), "float32"),
        SpeedCase("transpose", lambda x: tnp.transpose(x).copy(), ((1 << 12, 1 << 12),), "float32"),
    ]
    for n in (1024, 4096):
        cases += [
            SpeedCase(f"product {n}", tnp.matmul, ((n, n), (n, n)), dtype, 2.0 * n**3)
            for dtype in ("float32", "bfloat16", "float16")
        ]
    for rows_ in (1, 4):
        shape = ((rows_, 4096), (4096, 14336))
        cases.append(SpeedCase(f"product of {rows_} rows", tnp.matmul, shape, "bfloat16"))
    heads = ((1, 32, 2048, 128),) * 3
    cases.append(SpeedCase("attention", F.attention, heads, "bfloat16", 4.0 * 32 * 2048**2 * 128))
    return cases
