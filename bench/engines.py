"""The engines: how each one compiles and runs a case, in its fastest configuration that computes the same
result.

Imports are local, since a process loads one engine. An engine's `build` runs in its own process and leaves
files; `load` runs in the measured process.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .case import Case, source
from .held_out import KNOWN


@dataclass
class Loaded:
    """A model that is ready to run: `run()` is one inference on the case's inputs, `arrays` converts its
    results to NumPy.

    `inside`, if given, returns the seconds of one inference without the call from Python; `kernels` lists
    (flops, bytes) of each kernel of one inference.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], list[np.ndarray]]
    inside: Callable[[], float] | None = None
    kernels: Callable[[], list[tuple[int, int]]] | None = None


class Engine:
    """One engine. `settings` states its configuration by precision; `lacks` gives the reason for each missing
    precision.

    `modules` are imported before the time of loading is measured. `builds` states that it compiles ahead of
    time, by `build`; `threaded` that the compiled files depend on the number of threads. An engine that
    measures candidates while it builds does so for `search_seconds`; it runs only if it is named.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    modules: ClassVar[tuple[str, ...]]
    settings: ClassVar[dict[str, str]]
    lacks: ClassVar[dict[str, str]] = {}
    builds: ClassVar[bool] = False
    threaded: ClassVar[bool] = False
    search_seconds: float = 0

    def refuses(self, case: Case) -> str | None:
        """The reason why this engine does not run `case`; None if it does."""
        return self.lacks.get(case.precision)

    def version(self) -> str:
        """The versions of the engine's packages. Raises PackageNotFoundError."""
        return ", ".join(f"{p} {importlib.metadata.version(p)}" for p in self.packages)

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        """Compile ahead of time, leaving files in `folder`; returns figures by name, such as
        "compile_seconds".
        """
        return {}

    def load(self, case: Case, folder: Path) -> Loaded:
        """Load what `build` left, or the case's own files."""
        raise NotImplementedError


def _plain(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(o) for o in (outputs if isinstance(outputs, tuple | list) else (outputs,))]


class Tilewright(Engine):
    name = "tilewright"
    packages = ("llvmlite",)
    modules = ("tilewright", "tilewright.runtime.library")
    settings = {
        "float32": "artifact of the ONNX file, loaded by tw.load, bound inputs and outputs",
        "bf16": 'the same with precision="bf16"',
    }
    builds = True

    def version(self) -> str:
        import tilewright

        return f"tilewright {tilewright.__version__}, {super().version()}"

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        import tilewright as tw

        precision = None if case.precision == "float32" else case.precision
        figures = {}
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TILEWRIGHT_CACHE_DIR"] = cache
            for kind in ("compile", "cached"):
                start = time.perf_counter()
                library = tw.compile(case.onnx, precision=precision, threads=case.threads)
                figures[f"{kind}_seconds"] = time.perf_counter() - start
            library.save(folder / "model.so")
        return figures

    def load(self, case: Case, folder: Path) -> Loaded:
        import tilewright as tw

        library = tw.load(folder / "model.so", threads=case.threads)
        arrays = list(case.inputs().values())

        def kernels() -> list[tuple[int, int]]:
            return [(row.flops, row.bytes) for row in library.profile(*arrays, repeat=1)]

        def inside() -> float:
            from .inside import seconds_inside

            return seconds_inside(library, arrays)

        return Loaded(library.bind(*arrays), _plain, inside, kernels)


class TilewrightTuned(Tilewright):
    """Tilewright with the choices that `tw.tune` makes from measurements."""

    name = "tilewright-tuned"
    settings = {
        "float32": "tilewright with the choices of tw.tune",
        "bf16": 'the same with precision="bf16"',
    }
    threaded = True
    search_seconds = 600

    def version(self) -> str:
        """The versions, and the state of the sources, since choices hold for the code that was measured."""
        return f"{super().version()}, sources {source()}"

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        import tilewright as tw

        precision = None if case.precision == "float32" else case.precision
        path = folder / "tuned.jsonl"
        trials = tw.tune(
            case.onnx, budget=self.search_seconds, database=path, threads=case.threads, precision=precision
        )
        start = time.perf_counter()
        library = tw.compile(case.onnx, tuned=trials, threads=case.threads, precision=precision, cache=False)
        library.save(folder / "model.so")
        return {
            "search_seconds": self.search_seconds,
            "trials": len(trials),
            "compile_seconds": time.perf_counter() - start,
        }


class Torch(Engine):
    name = "torch"
    packages = ("torch",)
    modules = ("torch", "transformers")
    settings = {
        "float32": "eager, inference mode, channels-last for convolutional networks",
        "bf16": "the same with the module and its inputs in bfloat16",
    }

    def program(self, case: Case) -> tuple[Any, list[Any]]:
        """The module and its inputs, in the case's precision and the layout that suits it."""
        import torch

        inputs = self.inputs(case)
        model = KNOWN[case.model]
        module = model.module()
        if case.precision == "bf16":
            module = module.to(torch.bfloat16)
        if model.images:
            module = module.to(memory_format=torch.channels_last)
        return module, inputs

    def inputs(self, case: Case) -> list[Any]:
        import torch

        torch.set_num_threads(case.threads)
        torch.set_num_interop_threads(1)
        inputs = [torch.from_numpy(a) for a in case.inputs().values()]
        if case.precision == "bf16":
            inputs = [t.to(torch.bfloat16) if t.is_floating_point() else t for t in inputs]
        if KNOWN[case.model].images:
            inputs = [t.contiguous(memory_format=torch.channels_last) for t in inputs]
        return inputs

    def load(self, case: Case, folder: Path) -> Loaded:
        import torch

        module, inputs = self.program(case)

        def run() -> Any:
            with torch.inference_mode():
                return module(*inputs)

        return Loaded(run, _tensors)


def _tensors(outputs: Any) -> list[np.ndarray]:
    return [t.float().numpy() for t in (outputs if isinstance(outputs, tuple | list) else (outputs,))]


class Inductor(Torch):
    name = "inductor"
    modules = ("torch", "torch._inductor.package")
    settings = {
        "float32": (
            "AOTInductor: torch.export, freezing, threads decided at run "
            "time; channels-last for convolutional networks"
        ),
        "bf16": "the same with the module and its inputs in bfloat16",
    }
    builds = True

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        import torch
        from torch._inductor import aoti_compile_and_package, config

        module, inputs = self.program(case)
        start = time.perf_counter()
        # All models share this folder, which also holds TorchInductor's precompiled headers.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent.parent / "inductor")
        with torch.inference_mode(), config.patch({"freezing": True, "cpp.dynamic_threads": True}):
            exported = torch.export.export(module, tuple(inputs))
            aoti_compile_and_package(exported, package_path=str(folder / "model.pt2"))
        return {"compile_seconds": time.perf_counter() - start}

    def load(self, case: Case, folder: Path) -> Loaded:
        from torch._inductor import aoti_load_package

        inputs = self.inputs(case)
        run = aoti_load_package(str(folder / "model.pt2")).loader.boxed_run
        return Loaded(lambda: run(list(inputs)), _tensors)


class OnnxRuntime(Engine):
    name = "onnxruntime"
    packages = ("onnxruntime",)
    modules = ("onnxruntime",)
    settings = {"float32": "CPU provider, all graph optimizations, bound inputs and outputs"}
    lacks = {"bf16": "its CPU provider has no bf16 kernels on x86"}

    def load(self, case: Case, folder: Path) -> Loaded:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.threads
        session = onnxruntime.InferenceSession(str(case.onnx), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for value, array in zip(session.get_inputs(), case.inputs().values(), strict=True):
            binding.bind_cpu_input(value.name, array)
        for value in session.get_outputs():
            binding.bind_output(value.name)
        return Loaded(lambda: session.run_with_iobinding(binding), lambda _: binding.copy_outputs_to_cpu())


class OpenVino(Engine):
    name = "openvino"
    packages = ("openvino",)
    modules = ("openvino",)
    settings = {
        "float32": "latency hint, inference precision f32, bound inputs",
        "bf16": "latency hint, inference precision bf16, bound inputs",
    }

    def load(self, case: Case, folder: Path) -> Loaded:
        import openvino
        from openvino import properties
        from openvino.properties import hint

        compiled = openvino.Core().compile_model(
            str(case.onnx),
            "CPU",
            {
                hint.performance_mode: hint.PerformanceMode.LATENCY,
                hint.inference_precision: openvino.Type.f32
                if case.precision == "float32"
                else openvino.Type.bf16,
                properties.inference_num_threads: case.threads,
            },
        )
        request = compiled.create_infer_request()
        arrays = list(case.inputs().values())  # Shared with the request; `run` keeps it alive.
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

        def run() -> Any:
            request.infer()
            return arrays

        return Loaded(
            run, lambda _: [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]
        )


class _Program(Engine):
    """An engine that runs only the models written for it."""

    field: ClassVar[str]

    def refuses(self, case: Case) -> str | None:
        absent = getattr(KNOWN[case.model], self.field) is None
        return "the model is no program of its kind" if absent else super().refuses(case)

    def program(self, case: Case) -> Callable[..., Any]:
        model = KNOWN[case.model]
        return getattr(model, self.field)(model.module())


class NumPy(_Program):
    name = "numpy"
    field = "numpy"
    packages = ("numpy", "scipy")
    modules = ("numpy", "scipy.special")
    settings = {"float32": "the formula on whole arrays, erf from SciPy; one thread"}
    lacks = {"bf16": "no bf16"}

    def load(self, case: Case, folder: Path) -> Loaded:
        program, arrays = self.program(case), list(case.inputs().values())
        return Loaded(lambda: program(*arrays), _plain)


class Jax(_Program):
    name = "jax"
    field = "jax"
    packages = ("jax", "jaxlib")
    modules = ("jax", "torch")
    settings = {"float32": "jax.jit on the CPU backend, process bound to as many cores as threads"}
    lacks = {"bf16": "not written for bf16"}

    def load(self, case: Case, folder: Path) -> Loaded:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.threads])
        import jax

        program = jax.jit(self.program(case))
        arrays = [jax.numpy.asarray(a) for a in case.inputs().values()]
        return Loaded(lambda: jax.block_until_ready(program(*arrays)), _plain)
