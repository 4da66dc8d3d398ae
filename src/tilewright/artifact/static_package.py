"""A model as C sources, or as a library of objects with C sources, whose memory is static.

The archive has the model's functions (``model.c`` and ``model.h``), its code, its weights, the runtime
(`runtime/static`), a build file for CMake, an example, and notes. All global names begin with the model's
prefix, so that a program can link several models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifact.c_interface import (
    c_type,
    comment,
    description,
    formula,
    functions_of,
    identifier,
    output_name,
    shape_text,
    size_parameters,
    sizes,
    tensor_parameters,
)
from tilewright.artifact.package import save_files
from tilewright.artifact.sources import HEADER, INCLUDE_DIR, check_prefix
from tilewright.artifact.symbols import with_prefix
from tilewright.errors import ArtifactError

STATIC_DIR = INCLUDE_DIR.parent / "static"
PREFIX = "model"
"""The prefix of names, unless a library is saved with another one."""
LARGEST_SOURCE = 64 << 20
"""Bytes of weights that are written as a C array. Compilers take about 20 times as much memory to read it."""

NAMES = (
    "tw_module",
    "tw_launch",
    "tw_raise",
    "tw_block",
    "tw_late_output",
    "tw_prepare_scratch",
    "tw_static_run",
    "tw_static_reset",
    "tw_static_no_weights",
)
"""The global names of the runtime and of the model's tables."""


def save_static(
    path: Path,
    code: Mapping[str, bytes],
    symbols: Sequence[str],
    metadata: Mapping[str, Any],
    weights: np.ndarray,
    *,
    prefix: str | None = None,
    beside: bool = False,
    notes: Sequence[str] = (),
) -> Path:
    """Write the archive.

    Args:
        path: The file, whose suffix is ``.tar``.
        code: The generated code: C sources, or objects, by file names.
        symbols: The global names of the generated code.
        metadata: The model's description, with `static_memory` as ``static``.
        weights: All weights, as bytes.
        prefix: The beginning of all names; `PREFIX` if None.
        beside: Leave the weights out of the program: it passes their address, and the file ``model.weights``
            has them.
        notes: Lines about the target for the notes.

    Raises:
        ArtifactError: The model needs memory whose size is not known before it runs, or the weights are too
            large for a C array.
    """
    memory = metadata["static"]
    if memory["refused"]:
        raise ArtifactError(f"{path}: a model in static memory cannot be written: {memory['refused']}")
    if weights.nbytes > LARGEST_SOURCE and not beside:
        raise ArtifactError(
            f"{path}: {weights.nbytes} bytes of weights are too many for a C source; write them to a file of "
            "their own with weights='beside' (--weights beside)"
        )
    name = PREFIX if prefix is None else check_prefix(prefix)
    model = _Model(name, metadata, weights.nbytes, beside)
    files: dict[str, bytes | bytearray] = {
        f"{name}.h": model.header().encode(),
        f"{name}.c": model.source().encode(),
        "main.c": model.example().encode(),
        "names.h": _renamed(name, (*NAMES, *symbols)).encode(),
        "CMakeLists.txt": _cmake(name, sorted(code), beside).encode(),
        "NOTES.md": model.notes(notes).encode(),
        **code,
        **{file.name: file.read_bytes() for file in sorted(STATIC_DIR.glob("*.[ch]"))},
        **{file.name: file.read_bytes() for file in (HEADER, INCLUDE_DIR / "runtime.h")},
    }
    if beside:
        files[f"{name}.weights"] = weights.tobytes()
    else:
        files["weights.c"] = _array(f"{name}_weights", weights).encode()
    return save_files(path, files)


def _renamed(prefix: str, symbols: Sequence[str]) -> str:
    lines = [f"#define {symbol} {with_prefix(symbol, prefix)}" for symbol in dict.fromkeys(symbols)]
    guard = f"{prefix.upper()}NAMES_H_"
    head = "/* names.h - gives the global names of a model's code its prefix. */"
    return "\n".join([head, f"#ifndef {guard}", f"#define {guard}", *lines, "#endif", ""])


def _array(name: str, weights: np.ndarray) -> str:
    """The weights as an array of words, little-endian."""
    padded = np.zeros(-(-max(weights.nbytes, 1) // 4) * 4, np.uint8)
    padded[: weights.nbytes] = weights
    digits = padded.view("<u4").astype(">u4").tobytes().hex()
    words = [f"0x{digits[k : k + 8]}u" for k in range(0, len(digits), 8)]
    rows = [", ".join(words[k : k + 8]) for k in range(0, len(words), 8)]
    body = ",\n  ".join(rows)
    return f"#include <stdint.h>\n\n_Alignas(64) const uint32_t {name}[{len(words)}] = {{\n  {body}\n}};\n"


def _cmake(name: str, code: Sequence[str], beside: bool) -> str:
    own = [f"{name}.c", "static.c", *([] if beside else ["weights.c"])]
    sources = "\n  ".join([*own, *(file for file in code if file.endswith(".c"))])
    archives = " ".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{file}" for file in code if file.endswith(".a"))
    return f"""cmake_minimum_required(VERSION 3.13)
project({name} C)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_library({name} STATIC
  {sources})
set_target_properties({name} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options({name} PRIVATE -ffp-contract=off)
endif()
if(NOT MSVC)
  target_link_libraries({name} PUBLIC {archives + " " if archives else ""}m)
endif()
add_executable({name}_example main.c)
target_link_libraries({name}_example {name})
"""


class _Model:
    """Writes the sources that depend on the model's inputs and outputs."""

    def __init__(self, name: str, metadata: Mapping[str, Any], weights: int, beside: bool) -> None:
        self.name, self.metadata, self.weights, self.beside = name, metadata, weights, beside
        self.memory = metadata["static"]
        self.functions = functions_of(metadata)
        self.states: list[dict[str, Any]] = list(metadata.get("states", ()))

    def _call(self, function: str) -> str:
        return f"{self.name}_{'run' if function == 'main' else identifier(function)}"

    def _signature(self, function: str, entry: Mapping[str, Any]) -> str:
        parameters = ", ".join([*size_parameters(entry), *tensor_parameters(entry)])
        return f"int {self._call(function)}({parameters or 'void'})"

    def _describe(self, function: str, entry: Mapping[str, Any]) -> str:
        end = f"Returns 0, or a status after which {self.name}_error() says why."
        return comment([f"Runs the function {function}.", *description(entry), end])

    def header(self) -> str:
        name, memory = self.name, self.memory
        upper, states = name.upper(), sum(memory["states"].values())
        lines = [
            f"/* {name}.h - a model compiled by Tilewright, in static memory.",
            " *",
            " * Tensors are compact and row-major. Calls must not overlap in time. */",
            f"#ifndef {upper}_MODEL_H_",
            f"#define {upper}_MODEL_H_",
            "",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"#define {upper}_WEIGHTS_BYTES {self.weights} /* constants */",
            f"#define {upper}_ARENA_BYTES {memory['arena']} /* intermediate tensors */",
            f"#define {upper}_SCRATCH_BYTES {memory['scratch']} /* memory of one kernel */",
            f"#define {upper}_STATES_BYTES {states} /* tensors that keep their contents between calls */",
            "",
        ]
        for function, entry in self.functions.items():
            lines += [self._describe(function, entry), f"{self._signature(function, entry)};", ""]
        if self.beside:
            lines += [
                f"/* Before the first call: passes the bytes of {name}.weights, aligned to 64, which",
                " * stay in use. */",
                f"void {name}_set_weights(const void* weights);",
                "",
            ]
        if self.states:
            names = ", ".join(f"{k}: {s['name']} {shape_text(s)}" for k, s in enumerate(self.states))
            lines += [
                f"/* The memory of a state: {names}. */",
                f"void* {name}_state(int index);",
                "/* Gives all states their initial values, as before the first call. */",
                f"void {name}_reset(void);",
                "",
            ]
        lines += ["/* The reason why the last call failed. */", f"const char* {name}_error(void);"]
        return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])

    def source(self) -> str:
        name, memory = self.name, self.memory
        symbols = max((len(entry["symbols"]) for entry in self.functions.values()), default=0)
        lines = [f'#include "{name}.h"', "", '#include "static.h"', ""]
        for what in ("arena", "scratch"):
            lines.append(f"static _Alignas(64) uint8_t {what}[{max(memory[what], 1)}];")
        states = list(memory["states"].items())
        for k, (_, size) in enumerate(states):
            lines.append(f"static _Alignas(64) uint8_t state{k}[{max(size, 1)}];")
        inside = ", ".join(f"state{k}" for k in range(len(states))) or "0"
        lines.append(f"static void* states[] = {{{inside}}};")
        lines.append(f"static int64_t symbols[{max(symbols, 1)}];")
        given = "0" if self.beside else f"(const uint8_t*){name}_weights"
        if not self.beside:
            lines.append(f"extern const uint32_t {name}_weights[];")
        lines += [
            "static tw_context context = {",
            f"    arena, {memory['arena']}, scratch, {memory['scratch']}, states, {given}, symbols, {{0}}}};",
            "",
        ]
        if states:
            lines += ["static int is_set; /* whether the states have their initial values */", ""]
        if self.beside:
            lines += [f"void {name}_set_weights(const void* weights) {{ context.weights = weights; }}", ""]
        for number, (function, entry) in enumerate(self.functions.items()):
            lines += [*self._body(number, function, entry), ""]
        if states:
            lines += [
                f"void* {name}_state(int index) {{",
                f"  if (!is_set) {name}_reset();",
                "  return states[index];",
                "}",
                f"void {name}_reset(void) {{",
                "  tw_static_reset(&context);",
                "  is_set = 1;",
                "}",
            ]
        return "\n".join([*lines, f"const char* {name}_error(void) {{ return context.message; }}", ""])

    def _body(self, number: int, function: str, entry: Mapping[str, Any]) -> list[str]:
        lines = [f"{self._signature(function, entry)} {{"]
        inputs, outputs = entry["inputs"], entry["outputs"]
        if self.beside:
            lines.append("  if (!context.weights) return tw_static_no_weights(&context);")
        if self.memory["states"]:
            lines.append(f"  if (!is_set) {self.name}_reset();")
        for k, tensor in enumerate(inputs):
            shape = ", ".join(formula(size) for size in tensor["shape"]) or "0"
            lines.append(f"  const int64_t shape{k}[] = {{{shape}}};")
        shapes = ", ".join(f"shape{k}" for k in range(len(inputs))) or "0"
        data = ", ".join(f"(void*){identifier(t['name'])}" for t in inputs) or "0"
        results = ", ".join(output_name(entry, t["name"]) for t in outputs) or "0"
        return [
            *lines,
            f"  const int64_t* const shapes[] = {{{shapes}}};",
            f"  void* inputs[] = {{{data}}};",
            f"  void* outputs[] = {{{results}}};",
            f"  return tw_static_run(&context, {number}, shapes, inputs, outputs);",
            "}",
        ]

    def example(self) -> str:
        """A program that runs the first function on inputs of zeros and prints the first elements."""
        function, entry = next(iter(self.functions.items()))
        bounds = {s: entry["symbols"][s] for s in sizes(entry)}
        largest = {s: max(low or 1, 1) if high is None else high for s, (low, high) in bounds.items()}
        lines = [f'#include "{self.name}.h"', "", "#include <stdio.h>", ""]
        if largest:
            values = ", ".join(f"{identifier(symbol)} = {value}" for symbol, value in largest.items())
            lines += [f"enum {{ {values} }};", ""]
        names = []
        for tensor in (*entry["inputs"], *entry["outputs"]):
            is_output = tensor in entry["outputs"]
            label = output_name(entry, tensor["name"]) if is_output else identifier(tensor["name"])
            names.append(label)
            elements = " * ".join(formula(size) for size in tensor["shape"]) or "1"
            lines.append(f"static {c_type(tensor)} {label}[{elements}];")
        call = f"{self._call(function)}({', '.join([*map(identifier, largest), *names])})"
        lines += ["", "int main(void) {"]
        if self.beside:
            lines.append(f"  /* {self.name}_set_weights(address of {self.name}.weights); */")
        lines += [f"  if ({call}) {{", f'    printf("%s\\n", {self.name}_error());', "    return 1;", "  }"]
        first = entry["outputs"][0] if entry["outputs"] else None
        if first is not None and first["shape"] != []:
            label = output_name(entry, first["name"])
            lines.append(
                f"  for (unsigned k = 0; k < 4 && k < sizeof {label} / sizeof *{label}; ++k) "
                f'printf("%g\\n", (double){label}[k]);'
            )
        return "\n".join([*lines, "  return 0;", "}", ""])

    def notes(self, lines: Sequence[str]) -> str:
        memory, states = self.memory, sum(self.memory["states"].values())
        total = memory["arena"] + memory["scratch"] + states
        place = f"in {self.name}.weights" if self.beside else "in weights.c, read only"
        shared, alone = memory["four_bits"]
        return "\n".join(
            [
                f"# {self.name}",
                "",
                f"- Weights: {self.weights} bytes, {place}.",
                *(
                    [
                        f"- Weights of 4 bits, among them: {shared} bytes with two in each, {alone} bytes "
                        "with one in each, which depthwise convolutions and others without packed weights "
                        "read."
                    ]
                    if shared or alone
                    else []
                ),
                f"- Memory: {total} bytes, written: {memory['arena']} for intermediate tensors, "
                f"{memory['scratch']} for a kernel, {states} for states.",
                *(f"- {line}" for line in lines),
                "",
                f"`{self.name}.h` declares the functions. To build the library and the example:",
                "",
                "    cmake -B build && cmake --build build",
                "",
            ]
        )


__all__ = ["NAMES", "PREFIX", "save_static"]
