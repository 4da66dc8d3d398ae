"""The target ``webgpu``: WGSL kernels and a host program as data, which `runtime.webgpu` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...dialects import host, loop
from ...dialects.func import entries
from ...errors import CompileError, UnsupportedOperator
from ...ir.constant import Constant
from ...ir.target_info import GPU_SPLITS, TargetInfo, ThreadAxis
from ...lowering.memory_plan import MemoryPlan
from ...lowering.pipeline import Lowered, LoweringOptions
from ...runtime.model import CompiledModel
from ..base import Progress, Target, Weights
from ..gpu.dialect import DeviceKernel
from ..gpu.dialects.wgsl import WGSL, WGSL_F16, with_subgroups
from ..gpu.portable import WEBGPU
from ..gpu.printer import module_text, print_kernel
from ..gpu.rules import RULES
from .bindings import Parameters, merged_bindings, parameters
from .program import element_bytes, host_program

_ALIGNMENT = 256
"""Bytes; bindings of WebGPU begin at multiples of it."""


FEATURES = ("f16", "subgroups")
"""Optional features of devices: ``f16`` is WebGPU's ``shader-f16``."""


class WebgpuTarget(Target):
    """WebGPU; with the feature ``f16`` for devices that have elements of float16, with ``subgroups`` for
    those whose threads exchange values without shared memory.
    """

    name = "webgpu"
    has_checks = False
    code_level = "wgsl"
    suffixes = (".tar",)
    precisions = ("bf16", "f16")

    def __init__(self, features: Sequence[str] = ()) -> None:
        """The target with the given `FEATURES`."""
        self.features = tuple(features)
        self.name = ":".join(["webgpu", *filter(None, ["+".join(features)])])
        dialect = WGSL_F16 if "f16" in features else WGSL
        self.dialect = with_subgroups(dialect) if "subgroups" in features else dialect
        self._built: WeakKeyDictionary[Any, tuple[Any, Weights]] = WeakKeyDictionary()
        """The parts that each library was built from, for `keep`."""

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            name=self.name,
            vector_bits=0,
            memory_spaces=("global", "shared", "register", "local"),
            thread_axes=(
                ThreadAxis("block.x"),  # the printer folds more blocks than a dispatch may have
                ThreadAxis("block.y", WEBGPU.grid_limits[1]),
                ThreadAxis("block.z", WEBGPU.grid_limits[2]),
                ThreadAxis("thread.x", WEBGPU.max_threads),
            ),
            alignment=_ALIGNMENT,
            cache_line=0,
            row_group_bytes=WEBGPU.shared_bytes,
            reductions=GPU_SPLITS,
            gpu=WEBGPU,
        )

    @property
    def lowering(self) -> LoweringOptions:
        return LoweringOptions(panel=None, rules=RULES, info=self.info)

    def describe(self) -> dict[str, Any]:
        return {"name": "webgpu", "features": [*self.features]}

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        problems: dict[str, list[str]] = {}
        launched = parameters(lowered.module, self.dialect)
        for kernel in lowered.module.functions(loop.Kernel):
            try:
                self._shader(kernel, launched)
            except CompileError as error:
                info = lowered.kernels[kernel.sym_name]
                what = str(error).partition(" (")[0].removeprefix(f"{WGSL.name} ")
                problems.setdefault(what, []).extend([str(info.location)] * info.launches)
        for op in (op for function in entries(lowered.module) for op in function.walk()):
            if isinstance(op, host.View) and not _same_words(op):
                what = f"cannot see {op.source.type.dtype.label} as {op.result.type.dtype.label}"
                problems.setdefault(what, []).append(str(op.location))
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
        launched = parameters(lowered.module, self.dialect)
        shaders = {k.sym_name: self._shader(k, launched) for k in lowered.module.functions(loop.Kernel)}
        program, constants = host_program(lowered.module, shaders, plan), [value for _, value in plan.weights]
        kernels = {name: module_text([shader], self.dialect) for name, shader in shaders.items()}
        library = WebgpuLibrary(metadata, program, kernels, _flat(constants))
        self._built[library] = (metadata, program, kernels), tuple(enumerate(constants))
        return library

    def _shader(self, kernel: loop.Kernel, launched: Mapping[str, Parameters]) -> DeviceKernel:
        bindings, aligned = launched.get(kernel.sym_name, Parameters())
        shader = print_kernel(kernel, self.dialect, self.info, bindings, aligned)
        most = WEBGPU.max_buffers or len(shader.written)
        if len(shader.written) > most:
            fewer = merged_bindings(kernel.body.args, shader.bindings, shader.written, most, self.dialect)
            shader = print_kernel(kernel, self.dialect, self.info, fewer, aligned)
        if (count := len(shader.written)) > most:
            raise CompileError(
                f"{WGSL.name} allows {most} buffers in a kernel; kernel '{kernel.sym_name}' has {count}"
            )
        if (size := shader.shared_bytes) > WEBGPU.shared_bytes:
            raise CompileError(
                f"{WGSL.name} has {WEBGPU.shared_bytes} bytes of shared memory; kernel '{kernel.sym_name}' "
                f"needs {size}"
            )
        return shader

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


def _same_words(op: host.View) -> bool:
    """Whether a view's elements are those of its source, or both take as many bytes as on other devices."""
    old, new = op.source.type.dtype, op.result.type.dtype
    return old is new or all(element_bytes(t) == t.itemsize for t in (old, new))


def webgpu_target(name: str) -> WebgpuTarget:
    """Return the target ``webgpu``, ``webgpu:f16``, ``webgpu:subgroups`` or ``webgpu:f16+subgroups``.

    Raises:
        CompileError: An unknown feature.
    """
    features = [x for x in name.partition(":")[2].split("+") if x]
    for feature in features:
        if feature not in FEATURES:
            raise CompileError(
                f"unknown feature {feature!r} of webgpu; known targets: webgpu, webgpu:{', '.join(FEATURES)}"
            )
    return WebgpuTarget(features)


def _flat(constants: Sequence[Constant]) -> list[np.ndarray[Any, Any]]:
    from ...runtime.webgpu_device import on_device

    return [on_device(c.array) for c in constants]
