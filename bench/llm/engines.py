"""The engines: their environments, configurations and installation, and the files that each makes ahead of
time.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..machines import machine
from ..results import source
from . import sessions
from .model import Size, write

# The features of the processor are passed explicitly; with GGML_NATIVE, the build would detect them. Some
# processors have AVX512-VNNI without AVX-VNNI, whose instructions the compiler would choose.
_CMAKE = {
    "GGML_NATIVE": "OFF",
    "GGML_AVX_VNNI": "ON" if "avx_vnni" in machine()["flags"] else "OFF",
    **{f"GGML_{name}": "ON" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")},
    **{f"GGML_{name}": "ON" for name in ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")},
    "MTMD_BUILD": "OFF",
}
_AMX = {
    **{f"GGML_AMX_{name}": "ON" for name in ("TILE", "INT8", "BF16")},
    # GCC assumes that `_tile_loadconfig` reads eight bytes and removes the other stores, which causes an
    # illegal instruction.
    "CMAKE_CXX_FLAGS": "-fno-tree-dse -fno-dse",
}


GGUF = "model.gguf"


@dataclass(frozen=True)
class Engine:
    """An engine. `requirements` are installed into its own environment (except Tilewright's), with `cmake`
    where it is built from source.
    """

    name: str
    session: type[sessions.Session]
    packages: tuple[str, ...]
    settings: str
    requirements: tuple[str, ...] = ()
    cmake: dict[str, str] = field(default_factory=dict)

    def python(self, environments: Path) -> Path:
        """The path of its interpreter, which may not exist."""
        return environments / self.name / "bin" / "python" if self.requirements else Path(sys.executable)

    def version(self, python: Path) -> str:
        """The versions of its packages. Raises CalledProcessError."""
        names = ", ".join(repr(name) for name in self.packages)
        code = (
            "from importlib.metadata import version\nprint(*(n + ' ' "
            f"+ version(n) for n in [{names}]), sep=', ')"
        )
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    def install(self, environments: Path) -> None:
        """Make its environment. Raises CalledProcessError."""
        python = self.python(environments)
        flags = shlex.join(f"-D{name}={value}" for name, value in self.cmake.items())
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        command = [python, "-m", "pip", "install", "-U", *self.requirements]
        if self.cmake:  # Without pip's cache, which may hold a wheel that was built with other flags.
            command += ["--no-cache-dir", "--no-binary", ",".join(self.requirements)]
        subprocess.run(command, check=True, env=os.environ | ({"CMAKE_ARGS": flags} if flags else {}))

    def made(self, folder: Path) -> Path:
        """The file that the engine loads: the GGUF file, or its conversion."""
        return folder / GGUF

    def make(self, folder: Path, size: Size, precision: str, threads: int) -> dict[str, float]:
        """Make the file that the engine loads in `folder`; returns figures about it."""
        return {}


class _Tilewright(Engine):
    def version(self, python: Path) -> str:
        import tilewright

        return f"tilewright {tilewright.__version__}, llvmlite {importlib.metadata.version('llvmlite')}"

    def made(self, folder: Path) -> Path:
        return folder / f"tilewright-{source()}" / "model.so"

    def make(self, folder: Path, size: Size, precision: str, threads: int) -> dict[str, float]:
        from tilewright.llm.library import LibraryOptions, compile_library, save_library
        from tilewright.llm.weights import open_checkpoint

        for old in folder.glob("tilewright-*"):
            shutil.rmtree(old)
        path = self.made(folder)
        partial = _fresh(path.parent)
        checkpoint = open_checkpoint(folder / GGUF)
        options = LibraryOptions(
            context=size.held, chunk=size.prompt, max_batch=size.users, pages=size.cached // 64
        )
        start = time.perf_counter()
        library = compile_library(checkpoint, options, threads=threads)
        seconds = time.perf_counter() - start
        save_library(library, checkpoint, partial / path.name)
        partial.rename(path.parent)
        return {"compile_seconds": seconds}


class _OpenVino(Engine):
    """OpenVINO GenAI, with models in its own format.

    Its GGUF reader produces weights with zero points, which multiply slower than signed ones, and does not
    read bf16.
    """

    def made(self, folder: Path) -> Path:
        return folder / "openvino"

    def make(self, folder: Path, size: Size, precision: str, threads: int) -> dict[str, float]:
        import openvino_genai

        partial = _fresh(self.made(folder))
        given = partial / "model.gguf"
        if precision == "bf16":
            write(size, "f16", given)
        else:
            given.hardlink_to(folder / GGUF)
        start = time.perf_counter()
        openvino_genai.LLMPipeline(str(given), "CPU", enable_save_ov_model=True)
        if precision == "int4":
            _sign_codes(partial / "openvino_model.xml")
        seconds = time.perf_counter() - start
        given.unlink()
        partial.rename(self.made(folder))
        return {"compile_seconds": seconds}


def _fresh(path: Path) -> Path:
    """An empty folder, renamed to `path` when it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _sign_codes(path: Path) -> None:
    """Replace an OpenVINO model's unsigned 4-bit weights, minus eight, by signed ones."""
    import numpy as np
    import openvino

    model = openvino.Core().read_model(path)
    arrays = []  # OpenVINO's constants refer to this memory, so the list keeps it alive.
    for subtract in model.get_ordered_ops():
        if subtract.get_type_name() != "Subtract":
            continue
        codes, zero = (subtract.input_value(i).get_node().input_value(0).get_node() for i in (0, 1))
        if codes.get_element_type() != openvino.Type.u4:
            continue
        if not (np.asarray(zero.data).view(np.uint8) == 0x88).all():
            raise ValueError(f"{codes.get_friendly_name()}: zero points are not 8")
        arrays.append(np.ascontiguousarray(codes.data).view(np.uint8).reshape(-1) ^ np.uint8(0x88))
        signed = openvino.op.Constant(
            openvino.Tensor(arrays[-1], openvino.Shape(list(codes.shape)), openvino.Type.i4)
        )
        converted = openvino.opset13.convert(signed, "f16")
        for reader in subtract.output(0).get_target_inputs():
            reader.replace_source_output(converted.output(0))
    if not arrays:
        raise ValueError("no codes of four bits")
    changed = path.with_name("signed.xml")
    openvino.save_model(model, changed, compress_to_fp16=False)
    del model  # The model maps the file, which is replaced below.
    for suffix in (".xml", ".bin"):
        changed.with_suffix(suffix).replace(path.with_suffix(suffix))


_ALL: list[Any] = [
    _Tilewright(
        "tilewright",
        sessions.Tilewright,
        ("llvmlite",),
        "`compile_library` of the GGUF file, weights in a file beside it; called through `LibraryRunner`; KV "
        "cache in bf16",
    ),
    Engine(
        "llama.cpp-amx",
        sessions.LlamaCpp,
        ("llama-cpp-python",),
        "built with AVX-512 (VNNI, VBMI, BF16) and AMX; the GGUF file; `llama_decode`, defaults (repacked "
        "weights, flash attention where it decides so, KV cache in f16)",
        ("llama-cpp-python",),
        _CMAKE | _AMX,
    ),
    Engine(
        "llama.cpp",
        sessions.LlamaCpp,
        ("llama-cpp-python",),
        "the same without AMX",
        ("llama-cpp-python",),
        _CMAKE,
    ),
    _OpenVino(
        "openvino-genai",
        sessions.OpenVino,
        ("openvino", "openvino-genai"),
        "`LLMPipeline`, defaults (paged attention, dynamic quantization, bf16 where the processor has it, KV "
        "cache in 8 bits), of a model in its own format: the same "
        "codes, signed; bf16: weights in f16, which hold the same numbers",
        ("openvino-genai", "gguf"),
    ),
]
ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ALL}
"""Engines by name, ours first."""
OURS = "tilewright"


def installed(engines: list[Engine], environments: Path, program: str) -> list[Engine]:
    """The engines that can run; messages name the others, and the `program` that installs them."""
    found = []
    for engine in engines:
        try:
            engine.version(engine.python(environments))
            found.append(engine)
        except (OSError, subprocess.CalledProcessError):
            print(
                f"{engine.name} is left out: it is not installed in {environments}; "
                f"`python -m {program} --install -e {engine.name}` does so"
            )
    return found
