"""`tilewright doctor [MODEL]`: is everything here that Tilewright uses, and does it know the model's operators?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .common import compile_options, console, dims_argument, is_artifact, require_file

_PACKAGES = {
    "needed": ("numpy", "ml_dtypes", "llvmlite", "ziglang", "xxhash", "click", "rich", "platformdirs", "filelock"),
    "for ONNX models": ("onnx",),
    "for PyTorch models": ("torch",),
    "for the webgpu target": ("wgpu",),
    "to run wasm32 artifacts": ("wasmtime",),
    "for bench and --verify": ("onnxruntime", "onnxscript", "threadpoolctl"),
}


@click.command("doctor")
@click.argument("model", required=False)
@compile_options
def command(model: str | None, target: str, dims: tuple[Any, ...], threads: int | None, precision: str | None) -> int:
    """Check this machine and, with MODEL, list every operator of the model that is not supported."""
    sound = _check_machine()
    if model is not None:
        sound = _check_model(model, dims_argument(dims)) and sound
    return 0 if sound else 1


def _say(state: str, what: str) -> None:
    colour = {"ok": "green", "missing": "yellow", "FAILED": "red"}[state]
    console().print(f"[{colour}]{state:>8}[/]  ", end="")
    console().print(what, highlight=False, markup=False, soft_wrap=True)


def _check_machine() -> bool:
    sound = sys.version_info >= (3, 11) and sys.maxsize > 2**32
    _say("ok" if sound else "FAILED", f"Python {platform.python_version()}, {platform.platform()}")
    for purpose, names in _PACKAGES.items():
        found, lacking = [], []
        for name in names:
            try:
                found.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                lacking.append(name)
        if found:
            _say("ok", f"{purpose}: {', '.join(found)}")
        if lacking:
            sound = sound and purpose != "needed"
            state = "FAILED" if purpose == "needed" else "missing"
            _say(state, f"{purpose}: {', '.join(lacking)} (pip install {' '.join(lacking)})")
    checks: list[tuple[str, Callable[[], str]]] = [
        ("compiler for the runtime", _c_compiler),
        ("cache", _cache),
        ("processor", _processor),
    ]
    for name, check in checks:
        try:
            _say("ok", f"{name}: {check()}")
        except Exception as error:  # whatever breaks is the finding
            sound = False
            _say("FAILED", f"{name}: {error}")
    try:
        _say("ok", f"WebGPU adapter: {_webgpu()}")
    except Exception as error:
        _say("missing", f"WebGPU adapter: {error} (only the webgpu target needs it)")
    return sound


def _c_compiler() -> str:
    found = shutil.which("cc")
    return found if found else "python -m ziglang cc (no system compiler; slower, otherwise as good)"


def _cache() -> str:
    from tilewright.disk_cache import cache_folder

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder} cannot be written; set TILEWRIGHT_CACHE_DIR")
    return str(folder)


def _processor() -> str:
    import llvmlite.binding as llvm

    features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    shown = [f for f in ("avx2", "fma", "avx512f", "avx512bf16", "amx-tile", "neon", "sve") if f in features]
    return f"{platform.machine()}, {os.cpu_count()} cores, {', '.join(shown) or 'no vector extension known here'}"


def _webgpu() -> str:
    import wgpu

    adapter = wgpu.gpu.request_adapter_sync()
    return str(adapter.info.get("device") or adapter.summary)


def _check_model(model: str, dims: Any) -> bool:
    from tilewright.errors import UnsupportedOperatorError

    if is_artifact(model):
        raise click.UsageError("doctor takes a model, not an artifact; see 'tilewright inspect'")
    require_file(model)
    try:
        module = _import(model, dims)
    except UnsupportedOperatorError as error:
        _say("FAILED", f"{model}: {len(error.operators)} of its operators are not supported")
        for operator in error.operators:
            console().print(f"{'':10}{operator}", highlight=False, markup=False, soft_wrap=True)
        return False
    main = module.symbol("main")
    operators: dict[str, int] = {}
    for op in main.body.ops:
        operators[op.name] = operators.get(op.name, 0) + 1
    total = sum(operators.values())
    _say("ok", f"{model}: all operators are supported ({total} of {len(operators)} kinds after import)")
    return True


def _import(model: str, dims: Any) -> Any:
    if Path(model).suffix.lower() == ".pt2":
        import torch

        from tilewright.frontends.torch import import_torch

        return import_torch(torch.export.load(model), None, dims=dims)
    from tilewright.frontends.onnx import import_onnx

    return import_onnx(model, dims=dims)
