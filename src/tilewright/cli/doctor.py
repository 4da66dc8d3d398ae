"""`tilewright doctor [MODEL]`: is everything here that Tilewright uses, and does it know the model's operators?"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tilewright.dialects.func import entries
from tilewright.errors import TilewrightError
from tilewright.ir.symbolic import free_symbols
from tilewright.support import Support, examine

from .common import compile_options, console, dims_argument, is_artifact, number, shape_text, source_of

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
@click.option(
    "--json", "as_json", is_flag=True, help="Print what was found of MODEL as JSON, with all places, and nothing else."
)
def command(
    model: str | None, target: str, dims: tuple[Any, ...], threads: int | None, precision: str | None, as_json: bool
) -> int:
    """Check this machine and, with MODEL, list all of the model that is not supported: how often, where, and what to do instead.

    MODEL is a file, or MODULE:NAME or FILE.py:NAME: a model in Python, or a function that returns one with a tuple of example inputs.
    """
    if as_json:
        if model is None:
            raise click.UsageError("--json needs a MODEL")
        with contextlib.redirect_stdout(io.StringIO()):
            found = _check_model(model, target, precision, dims_argument(dims))
        click.echo(json.dumps(_as_data(found), indent=2, ensure_ascii=False))
        return 0 if found.ok else 1
    sound = _check_machine()
    if model is not None:
        sound = _check_model(model, target, precision, dims_argument(dims)).ok and sound
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be made ({error.strerror}); set TILEWRIGHT_CACHE_DIR to a folder") from error
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


def _check_model(model: str, target: str, precision: str | None, dims: Any) -> Support:
    if is_artifact(model):
        raise click.UsageError("doctor takes a model, not an artifact; see 'tilewright inspect'")
    source = source_of(model)
    if source.model is model and Path(model).suffix.lower() == ".onnx":
        for state, fact in _onnx_facts(model):
            _say(state, fact)
    found = examine(source.model, source.args, target=target, precision=precision, dims=dims)
    if found.problems:
        uses = sum(p.count for p in found.problems)
        what = f"{len(found.problems)} of its operators are not supported"
        if found.module is not None:
            what = f"target {target} cannot run it"
        _say("FAILED", f"{model}: {what} ({uses} {'use' if uses == 1 else 'uses'})")
        for operator in sorted(found.problems, key=lambda p: -p.count):
            console().print(textwrap.indent(str(operator), " " * 10), highlight=False, markup=False, soft_wrap=True)
    elif found.error is not None:
        _say("FAILED", f"{model}: {found.error}")
    if not found.ok or found.module is None:
        return found
    functions = entries(found.module)
    operators = found.operators
    for text in found.interpreted:
        _say(
            "missing", f"a target for {text}: runs in Python beside what is compiled, so that the model cannot be saved"
        )
    _say(
        "ok",
        f"{model}: all operators are supported ({_count(operators.total(), 'operation')} of {_count(len(operators), 'kind')} after import)",
    )
    _say("ok", f"target {target}: {_count(found.kernels, 'different kernel')}")
    for f in functions:
        for name, value in zip(f.arg_names, f.body.args, strict=True):
            kind = "state" if name in dict(f.states) else "updated input" if name in f.updates else "input"
            where = f"{f.sym_name}: " if len(functions) > 1 else ""
            _say("ok", f"{where}{kind} {name}: {value.type.dtype.label}{shape_text(value.type.shape)}")
    arguments = [v for f in functions for v in f.body.args]
    for symbol in sorted({s for v in arguments for d in v.type.shape for s in free_symbols(d)}, key=str):
        _say("ok", f"dynamic dimension: {_bounds_text(symbol)}")
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _as_data(found: Support) -> dict[str, Any]:
    return {
        "supported": found.ok,
        "error": None if found.error is None else str(found.error),
        "problems": [asdict(p) for p in found.problems],
        "operators": dict(found.operators),
        "kernels": found.kernels,
    }


def _bounds_text(symbol: Any) -> str:
    """``1 <= batch <= 8``, with advice where nothing bounds it."""
    from tilewright.ir.symbolic import bounds

    low, high = bounds(symbol)
    return (
        f"{low} <= {symbol} <= {high}"
        if high is not None
        else f"{low} <= {symbol} (no upper bound; --dims can give one)"
    )


def _onnx_facts(model: str) -> Iterator[tuple[str, str]]:
    """Opsets, nodes, functions and external data of an ONNX file, each with its state."""
    from tilewright.frontends.onnx.model import read_model

    file = read_model(model)
    proto = file.model
    opsets = ", ".join(f"{e.domain or 'ai.onnx'} {e.version}" for e in proto.opset_import)
    maker = f", written by {proto.producer_name} {proto.producer_version}".rstrip() if proto.producer_name else ""
    functions = f", {len(proto.functions)} functions" if proto.functions else ""
    yield "ok", f"opset {opsets}; {len(proto.graph.node)} nodes{functions}{maker}"
    files: dict[str, int] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            try:
                size = file.array(tensor, f"initializer '{tensor.name}'").nbytes
            except TilewrightError as error:
                yield "FAILED", str(error)
                return
            files[location] = files.get(location, 0) + size
    for location, size in files.items():
        yield "ok", f"external data: {number(size, 'B')} in {location}"
