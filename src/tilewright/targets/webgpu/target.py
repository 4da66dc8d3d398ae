"""The target ``webgpu``: WGSL kernels and a host program as data, run through `runtime.webgpu`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects import loop
from ...lowering.pipeline import Lowered, LoweringOptions
from ..base import Progress, Target
from .program import host_program
from .rules import schedule_kernel
from .wgsl import print_shader


class WebgpuTarget(Target):
    name = "webgpu"
    code_level = "wgsl"
    suffix = ".tar"

    @property
    def lowering(self) -> LoweringOptions:
        return LoweringOptions(panel=None, rule=schedule_kernel, row_groups=False)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "features": []}

    def build(
        self, lowered: Lowered, plan: Any, metadata: dict[str, Any], progress: Progress, threads: int | None
    ) -> Any:
        from ...runtime.webgpu import WebgpuLibrary

        progress("generating WGSL")
        shaders = {k.sym_name: print_shader(k) for k in lowered.module.functions(loop.Kernel)}
        program, constants = host_program(lowered.module, shaders)
        weights = [np.ascontiguousarray(c.array).reshape(-1) for c in constants]
        return WebgpuLibrary(metadata, program, {n: s.text for n, s in shaders.items()}, weights)
