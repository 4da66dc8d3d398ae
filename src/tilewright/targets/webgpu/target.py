"""The target ``webgpu``: WGSL kernels and a host program as data, which `runtime.webgpu` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...dialects import loop
from ...dialects.func import entries
from ...errors import CompileError, UnsupportedOperator
from ...ir.constant import Constant
from ...ir.target_info import TargetInfo, ThreadAxis
from ...lowering.memory_plan import MemoryPlan
from ...lowering.pipeline import Lowered, LoweringOptions
from ...runtime.model import CompiledModel
from ..base import Progress, Target, Weights
from ..gpu.dialect import DeviceKernel
from ..gpu.dialects.wgsl import WGSL
from ..gpu.portable import WEBGPU
from ..gpu.printer import module_text, print_kernel
from ..gpu.simple_rules import RULES
from .program import RUN_TIME, host_program


class WebgpuTarget(Target):
    name = "webgpu"
    has_checks = False
    code_level = "wgsl"
    suffixes = (".tar",)

    def __init__(self) -> None:
        self._built: WeakKeyDictionary[Any, tuple[Any, Weights]] = WeakKeyDictionary()
        """The parts that each library was built from, for `keep`."""

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            name=self.name,
            vector_bits=0,
            memory_spaces=("global", "register"),
            thread_axes=(ThreadAxis("block.x"), ThreadAxis("thread.x", WEBGPU.max_threads)),
            gpu=WEBGPU,
        )

    @property
    def lowering(self) -> LoweringOptions:
        return LoweringOptions(panel=None, rules=RULES, info=self.info, row_groups=False, in_place=False)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "features": []}

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        problems: dict[str, list[str]] = {}
        for kernel in lowered.module.functions(loop.Kernel):
            try:
                self._shader(kernel)
            except CompileError as error:
                info = lowered.kernels[kernel.sym_name]
                what = str(error).partition(" (")[0].removeprefix(f"{WGSL.name} ")
                problems.setdefault(what, []).extend([str(info.location)] * info.launches)
        functions = entries(lowered.module)
        for op in (op for function in functions for op in function.body.ops):
            if isinstance(op, RUN_TIME):
                problems.setdefault(
                    "does not support loops, branches, or sizes that are computed at run time", []
                ).append(str(op.location))
        if updates := dict.fromkeys(name for function in functions for name in function.updates):
            problems["does not support states or updated inputs"] = [f"'{name}'" for name in updates]
        if [function.sym_name for function in functions] != ["main"]:
            problems["supports only models of one function, 'main'"] = [
                f"'{function.sym_name}'" for function in functions
            ]
        return [
            UnsupportedOperator(
                what,
                len(places),
                tuple(dict.fromkeys(places)),
                instead="convert the model to float32, or compile for cpu or wasm32"
                if "float" in what
                else "compile for cpu or wasm32",
            )
            for what, places in problems.items()
        ]

    def build(
        self,
        lowered: Lowered,
        plan: MemoryPlan,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        llvm_opt_level: int = 2,
    ) -> CompiledModel:
        from ...runtime.webgpu import WebgpuLibrary

        progress("generating WGSL")
        shaders = {k.sym_name: self._shader(k) for k in lowered.module.functions(loop.Kernel)}
        program, constants = host_program(lowered.module, shaders)
        kernels = {name: module_text([shader], WGSL) for name, shader in shaders.items()}
        library = WebgpuLibrary(metadata, program, kernels, _flat(constants))
        self._built[library] = (metadata, program, kernels), tuple(enumerate(constants))
        return library

    def _shader(self, kernel: loop.Kernel) -> DeviceKernel:
        return print_kernel(kernel, WGSL, self.info)

    def keep(self, library: CompiledModel) -> tuple[Any, Weights] | None:
        return self._built.get(library)

    def restore(
        self, kept: Any, weights: Callable[[], Weights], threads: int | None, source: dict[str, str]
    ) -> CompiledModel:
        from ...runtime.webgpu import WebgpuLibrary

        metadata, program, kernels = kept
        return WebgpuLibrary(
            {**metadata, "source": source}, program, kernels, _flat([c for _, c in weights()])
        )


def webgpu_target(name: str) -> WebgpuTarget:
    """Return the target ``webgpu``.

    Raises:
        CompileError: `name` has features.
    """
    if name != "webgpu":
        raise CompileError(f"unknown target {name!r}: the target webgpu has no features to choose")
    return WebgpuTarget()


def _flat(constants: Sequence[Constant]) -> list[np.ndarray[Any, Any]]:
    return [np.ascontiguousarray(c.array).reshape(-1) for c in constants]
