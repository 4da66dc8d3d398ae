"""Builds the handwritten affine model of tests/runtime/c as an artifact, without the compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tilewright.artifact.package import blob, sign
from tilewright.artifact.sources import EXPORTS, INCLUDE_DIR, WASM_EXPORTS, runtime_sources

SOURCES = Path(__file__).parent / "c"
METADATA: dict[str, Any] = {
    "format": 1,
    "target": {"name": "handwritten"},
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["batch", 8]},
        {"name": "z", "dtype": "float32", "shape": ["batch"]},
    ],
    "outputs": [
        {"name": "y", "dtype": "float32", "shape": ["batch", 8]},
        {"name": "pairs", "dtype": "float32", "shape": ["2 * batch"]},
    ],
    "symbols": {"batch": [1, 4096]},
    "kernels": ["scale", "shift"],
}
STATES = [
    {"name": "calls", "dtype": "int32", "shape": []},
    {"name": "last", "dtype": "float32", "shape": [2, 4]},
]
FUNCTIONS = {
    "main": METADATA,
    "recall": {
        "inputs": [],
        "outputs": [{"name": "last", "dtype": "float32", "shape": [2, 4]}],
        "symbols": {},
        "solver": [],
    },
}
W = np.arange(1, 9, dtype=np.float32) * 0.5
B = np.arange(1, 9, dtype=np.float32) * 10
WEIGHTS = np.concatenate([W, B]).view(np.uint8)


def expected(x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * W + B + z[:, None], np.concatenate([z, z])


def blobs_source(weights: np.ndarray, embed: bool, text: bytes) -> str:
    """Return the C source of both blobs, byte by byte."""
    checksum = xxhash.xxh64_intdigest(weights)
    parts = {"weights": blob(weights if embed else weights[:0], checksum), "metadata": blob(text + b"\0")}
    lines = [
        f"_Alignas(64) const unsigned char tw_blob_{name}[] = {{{','.join(map(str, data))}}};"
        for name, data in parts.items()
    ]
    return "\n".join(lines)


def build(
    path: Path, *, embed: bool = True, wasm: bool = False, defines: tuple[str, ...] = (), states: bool = False
) -> Path:
    """Compile and link the model with the system's compiler (zig for WebAssembly) and sign it. With `states`,
    its metadata describe its states and functions.
    """
    import json

    blobs = path.with_suffix(".blobs.c")
    metadata = {**METADATA, **({"states": STATES, "functions": FUNCTIONS} if states else {})}
    text = json.dumps(metadata).encode()
    blobs.write_text(blobs_source(WEIGHTS, embed, text))
    sources = [SOURCES / "affine_module.c", blobs, *runtime_sources()]
    common = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", f"-I{INCLUDE_DIR}"]
    zig = [sys.executable, "-m", "ziglang", "cc"]
    if wasm:
        exports = [f"-Wl,--export={name}" for name in WASM_EXPORTS]
        how = [
            *zig,
            "-target",
            "wasm32-freestanding",
            "-nostdlib",
            "-lcompiler_rt",
            "-Wl,--no-entry",
            *exports,
        ]
    else:
        how = [*(["cc"] if shutil.which("cc") else zig), "-shared", "-fPIC", "-pthread"]
    command = [*how, *common, *(f"-D{d}" for d in defines), *map(str, sources), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    blobs.unlink()
    sign(path, wasm=wasm, metadata=text)
    return path


__all__ = ["B", "EXPORTS", "METADATA", "W", "WEIGHTS", "build", "expected"]
