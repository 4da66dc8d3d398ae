"""Tilewright, a machine-learning compiler: it compiles models to small native artifacts that run without
Python.

    import tilewright as tw
    lib = tw.compile(model, args, target="cpu")
    out = lib(x)
    lib.save("model.so"); lib = tw.load("model.so")

Names are imported at their first use, so that `import tilewright` takes little time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright import nn, numpy, optim, random
    from tilewright.artifact.version import __version__
    from tilewright.driver.compile import compile
    from tilewright.driver.inspection import inspect
    from tilewright.driver.jit import jit
    from tilewright.driver.load import load
    from tilewright.errors import (
        ArtifactError,
        CompileError,
        GradientError,
        KernelError,
        ScheduleMismatchError,
        ShapeError,
        TilewrightError,
        TrainingError,
        UnsupportedOperatorError,
        WeightsError,
    )
    from tilewright.explorer import Live, explore
    from tilewright.frontends.trace import (
        State,
        Tensor,
        TraceError,
        checkpoint,
        cond,
        custom_gradient,
        grad,
        jvp,
        scan,
        stop_gradient,
        tensor,
        value_and_grad,
        vjp,
        vmap,
        where,
        while_loop,
    )
    from tilewright.ir.types import (
        bf16,
        boolean,
        f16,
        f32,
        f64,
        i8,
        i16,
        i32,
        i64,
        u8,
        u16,
        u32,
        u64,
    )
    from tilewright.kernels import Kernel, c_kernel, gpu_kernel, gpu_source, triton_source
    from tilewright.kernels.define import kernel
    from tilewright.kernels.family import KernelFamily
    from tilewright.kernels.loops.generic import element_type
    from tilewright.kernels.loops.language import *  # noqa: F403
    from tilewright.packages import package
    from tilewright.quantization import QuantizationAwareModel, QuantizedModel, prepare_qat, quantize
    from tilewright.runtime.simulator.simulate import simulate
    from tilewright.schedule.kernel_schedule import load_schedules, pin, save_schedules, schedule_kernel
    from tilewright.tools.compare import compare
    from tilewright.tools.measure_libraries import measure_libraries
    from tilewright.tools.minimize import minimize
    from tilewright.tools.schedule_check import check_schedule
    from tilewright.training import TrainStep, train_step
    from tilewright.tuning.tune import tune

__all__ = [
    "ArtifactError",
    "CompileError",
    "GradientError",
    "Kernel",
    "KernelError",
    "KernelFamily",
    "Live",
    "QuantizationAwareModel",
    "QuantizedModel",
    "ScheduleMismatchError",
    "ShapeError",
    "State",
    "Tensor",
    "TilewrightError",
    "TraceError",
    "TrainStep",
    "TrainingError",
    "UnsupportedOperatorError",
    "WeightsError",
    "__version__",
    "bf16",
    "boolean",
    "c_kernel",
    "check_schedule",
    "checkpoint",
    "compare",
    "compile",
    "cond",
    "custom_gradient",
    "element_type",
    "explore",
    "f16",
    "f32",
    "f64",
    "gpu_kernel",
    "gpu_source",
    "grad",
    "i16",
    "i32",
    "i64",
    "i8",
    "inspect",
    "jit",
    "jvp",
    "kernel",
    "load",
    "load_schedules",
    "measure_libraries",
    "minimize",
    "nn",
    "numpy",
    "optim",
    "package",
    "pin",
    "prepare_qat",
    "quantize",
    "random",
    "save_schedules",
    "scan",
    "schedule_kernel",
    "simulate",
    "stop_gradient",
    "tensor",
    "train_step",
    "triton_source",
    "tune",
    "u16",
    "u32",
    "u64",
    "u8",
    "value_and_grad",
    "vjp",
    "vmap",
    "where",
    "while_loop",
]

_HOME = {
    "__version__": "tilewright.artifact.version",
    "compile": "tilewright.driver.compile",
    "load": "tilewright.driver.load",
    "ArtifactError": "tilewright.errors",
    "CompileError": "tilewright.errors",
    "GradientError": "tilewright.errors",
    "KernelError": "tilewright.errors",
    "ScheduleMismatchError": "tilewright.errors",
    "ShapeError": "tilewright.errors",
    "TilewrightError": "tilewright.errors",
    "UnsupportedOperatorError": "tilewright.errors",
    "inspect": "tilewright.driver.inspection",
    "TrainingError": "tilewright.errors",
    "WeightsError": "tilewright.errors",
    "jit": "tilewright.driver.jit",
    "check_schedule": "tilewright.tools.schedule_check",
    "measure_libraries": "tilewright.tools.measure_libraries",
    "compare": "tilewright.tools.compare",
    "minimize": "tilewright.tools.minimize",
    "simulate": "tilewright.runtime.simulator.simulate",
    "tune": "tilewright.tuning.tune",
    **dict.fromkeys(("TrainStep", "train_step"), "tilewright.training"),
    "Live": "tilewright.explorer",
    "explore": "tilewright.explorer",
    "package": "tilewright.packages",
    **dict.fromkeys(
        ("QuantizationAwareModel", "QuantizedModel", "prepare_qat", "quantize"), "tilewright.quantization"
    ),
    "Kernel": "tilewright.kernels",
    **dict.fromkeys(("c_kernel", "gpu_kernel", "gpu_source", "triton_source"), "tilewright.kernels"),
    "kernel": "tilewright.kernels.define",
    "KernelFamily": "tilewright.kernels.family",
    "element_type": "tilewright.kernels.loops.generic",
    **dict.fromkeys(
        (
            "acos acosh all any argmax argmin array asin asinh atan atanh axes axis cast ceil claim cos "
            "cosh erf exp exp2 expm1 floor isinf isnan log log1p log2 max min prod rsqrt sigmoid sin "
            "sinh sqrt sum tan tanh trunc"
        ).split(),
        "tilewright.kernels.loops.language",
    ),
    **dict.fromkeys("bf16 boolean f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64".split(), "tilewright.ir.types"),
    **dict.fromkeys(
        ("load_schedules", "pin", "save_schedules", "schedule_kernel"), "tilewright.schedule.kernel_schedule"
    ),
    **dict.fromkeys(
        (
            "State Tensor TraceError checkpoint cond custom_gradient grad jvp scan stop_gradient tensor "
            "value_and_grad vjp vmap where while_loop"
        ).split(),
        "tilewright.frontends.trace",
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name in ("nn", "numpy", "optim", "random"):
        return importlib.import_module(f"tilewright.{name}")
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
