"""Runs a compiled model on QEMU's boards of Cortex-M processors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.targets.mcu.boards import run_on

from tilewright.artifact.c_interface import C_TYPES, identifier
from tilewright.ir.types import DType
from tilewright.runtime.expressions import evaluate


def run_library(lib: Any, name: str, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The outputs of a library for each set of inputs, on the processor `name`."""
    with tempfile.TemporaryDirectory() as folder:
        path = lib.save(Path(folder) / "model.tar")
        main, types = _main(lib, inputs)
        said = iter(run_on(name, [path], main, Path(folder)).split("\n"))
    return [[np.frombuffer(bytes.fromhex(next(said)), t).reshape(s) for t, s in row] for row in types]


def _main(
    lib: Any, inputs: list[list[np.ndarray]]
) -> tuple[str, list[list[tuple[np.dtype, tuple[int, ...]]]]]:
    """The main function, and the type and shape of each output that it says, by sets of inputs."""
    entry = lib.metadata
    sizes = list(dict.fromkeys(step["symbol"] for step in entry["solver"] if "symbol" in step))
    lines, body, types = [], [], []
    for number, arrays in enumerate(inputs):
        symbols = lib.symbols_of([x.shape for x in arrays])
        names = []
        for k, array in enumerate(arrays):
            names.append(f"in{number}_{k}")
            data = ", ".join(map(str, array.tobytes())) or "0"
            lines.append(f"static const _Alignas(8) unsigned char {names[-1]}[] = {{{data}}};")
        row = []
        for k, output in enumerate(entry["outputs"]):
            dtype = np.dtype(DType.named(output["dtype"]).numpy)
            shape = tuple(evaluate(size, symbols) for size in output["shape"])
            row.append((dtype, shape))
            names.append(f"out{number}_{k}")
            count = max(int(np.prod(shape)), 1) * dtype.itemsize
            lines.append(f"static _Alignas(8) unsigned char {names[-1]}[{count}];")
        types.append(row)
        kinds = [C_TYPES.get(t["dtype"], "uint8_t") for t in (*entry["inputs"], *entry["outputs"])]
        data = [f"({kind}*){name}" for kind, name in zip(kinds, names, strict=True)]
        given_sizes = [str(symbols[identifier(symbol)]) for symbol in sizes]
        body.append(f"  if (model_run({', '.join([*given_sizes, *data])})) return say(model_error()), 1;")
        outputs = names[len(arrays) :]
        for (dtype, shape), name in zip(row, outputs, strict=True):
            body.append(f"  say_bytes({name}, {int(np.prod(shape)) * dtype.itemsize});")
    head = '#include <stddef.h>\n#include "model.h"\nvoid say(const char*);'
    lines.insert(0, "void say_bytes(const void*, size_t);")
    return "\n".join([head, *lines, "int main(void) {", *body, "  return 0;", "}", ""]), types


__all__ = ["run_library"]
