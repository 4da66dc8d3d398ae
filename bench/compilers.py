"""Engines that compile the ONNX file ahead of time: TVM and IREE."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import metaschedule
from .case import Case
from .engines import Engine, Loaded


class Tvm(Engine):
    name = "tvm"
    packages = ("apache-tvm",)
    modules = ("tvm.relax",)
    settings = {"float32": "Relax from ONNX, default CPU pipeline, LLVM for this processor; no tuning run"}
    lacks = {"bf16": "its mixed precision computes in float16 or float32"}
    builds = True
    threaded = True

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        import onnx
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        start = time.perf_counter()
        module = from_onnx(onnx.load(case.onnx), keep_params_in_input=False)
        tvm.compile(module, metaschedule.target(case.threads)).export_library(str(folder / "model.so"))
        return {"compile_seconds": time.perf_counter() - start}

    def load(self, case: Case, folder: Path) -> Loaded:
        os.environ["TVM_NUM_THREADS"] = str(case.threads)
        import tvm
        from tvm import relax

        machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "model.so")), tvm.cpu())
        inputs = [tvm.runtime.tensor(array) for array in case.inputs().values()]
        main = machine["main"]

        def arrays(outputs: Any) -> list[np.ndarray]:
            return [outputs.numpy()] if hasattr(outputs, "numpy") else [t.numpy() for t in outputs]

        return Loaded(lambda: main(*inputs), arrays)


class TvmTuned(Tvm):
    """TVM with schedules that MetaSchedule found by measuring."""

    name = "tvm-tuned"
    settings = {
        "float32": "Relax from ONNX, MetaSchedule with "
        f"{metaschedule.TRIALS} trials of a kernel at a time and a population of {metaschedule.POPULATION}, "
        "packed weights, LLVM for this processor"
    }
    search_seconds = 600

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        trials = metaschedule.tune(case.onnx, folder, case.threads, self.search_seconds)
        start = time.perf_counter()
        metaschedule.compiled(case.onnx, folder, case.threads).export_library(str(folder / "model.so"))
        return {
            "search_seconds": self.search_seconds,
            "trials": trials,
            "compile_seconds": time.perf_counter() - start,
        }


class Iree(Engine):
    name = "iree"
    packages = ("iree-base-compiler", "iree-base-runtime")
    modules = ("iree.runtime",)
    settings = {
        "float32": (
            "llvm-cpu for this processor, -O3 with data tiling, local-task with as many workers as threads"
        ),
        "bf16": "the same with the factors of all contractions demoted to bf16",
    }
    builds = True

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        from iree.compiler import tools

        start = time.perf_counter()
        importer = Path(sys.executable).with_name("iree-import-onnx")
        imported = folder / "model.mlir"
        demote = "--iree-global-opt-demote-contraction-inputs-"
        demoted = [f"{demote}operations=all", f"{demote}type=bf16"] if case.precision == "bf16" else []
        # The tiles of its layer normalization need more stack (74 KB) than its default limit.
        stack = "--iree-llvmcpu-stack-allocation-limit=1048576"
        subprocess.run([importer, case.onnx, "-o", imported], check=True)
        tools.compile_file(
            str(imported),
            output_file=str(folder / "model.vmfb"),
            target_backends=["llvm-cpu"],
            input_type="onnx",
            extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3", stack, *demoted],
        )
        return {"compile_seconds": time.perf_counter() - start}

    def load(self, case: Case, folder: Path) -> Loaded:
        from iree import runtime

        runtime.flags.parse_flags(f"--task_topology_group_count={case.threads}")
        config = runtime.Config("local-task")
        module = runtime.VmModule.mmap(config.vm_instance, str(folder / "model.vmfb"))
        bound = runtime.load_vm_module(module, config)
        name = next(n for n in module.function_names if not n.startswith("__") and not n.endswith("$async"))
        function = bound[name]
        inputs = [runtime.asdevicearray(config.device, array) for array in case.inputs().values()]

        def arrays(outputs: Any) -> list[np.ndarray]:
            return [o.to_host() for o in (outputs if isinstance(outputs, tuple | list) else (outputs,))]

        return Loaded(lambda: function(*inputs), arrays)
