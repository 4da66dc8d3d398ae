"""The engines by name, our own first."""

from __future__ import annotations

from .compilers import Iree, Tvm, TvmTuned
from .engines import Engine, Inductor, Jax, NumPy, OnnxRuntime, OpenVino, Tilewright, TilewrightTuned, Torch

_ALL: list[type[Engine]] = [
    Tilewright,
    Torch,
    Inductor,
    OnnxRuntime,
    OpenVino,
    Tvm,
    Iree,
    Jax,
    NumPy,
    TilewrightTuned,
    TvmTuned,
]
ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in _ALL}
