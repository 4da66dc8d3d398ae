"""A folder with headers for C and C++ that are typed for the model, the libraries, and CMake's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ..artifact.c_interface import identifier, output_name, shape_text
from .contents import SHARED, STATIC, Contents, TargetLibrary
from .example import example_shape, example_symbols
from .templates import write_templates
from .typed_c import element_code
from .typed_names import method_name, type_prefix

_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
    "float16": "tilewright::float16",
    "bfloat16": "tilewright::bfloat16",
    **{f"{sign}int{bits}": f"std::{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_SYSTEMS = {
    "linux": 'CMAKE_SYSTEM_NAME STREQUAL "Linux"',
    "linux-musl": 'CMAKE_SYSTEM_NAME STREQUAL "Linux"',
    "android": 'CMAKE_SYSTEM_NAME STREQUAL "Android"',
    "freebsd": 'CMAKE_SYSTEM_NAME STREQUAL "FreeBSD"',
    "macos": 'CMAKE_SYSTEM_NAME STREQUAL "Darwin"',
    "ios": 'CMAKE_SYSTEM_NAME STREQUAL "iOS" AND NOT CMAKE_OSX_SYSROOT MATCHES "[Ss]imulator"',
    "ios-simulator": 'CMAKE_SYSTEM_NAME STREQUAL "iOS" AND CMAKE_OSX_SYSROOT MATCHES "[Ss]imulator"',
    "windows": 'CMAKE_SYSTEM_NAME STREQUAL "Windows"',
}
"""CMake's conditions for systems."""
_PROCESSORS = {"x86_64": "x86_64|amd64|x64", "aarch64": "aarch64|arm64", "armv7": "armv7.*|arm"}
"""The processors' names in CMake, as regular expressions."""
_LINKED = {"ELF": "Threads::Threads m ${CMAKE_DL_LIBS}", "Mach-O": "Threads::Threads", "PE": ""}
"""The libraries that programs with a static library need, by the format of the system's files."""


def write(contents: Contents) -> None:
    """Write the package."""
    for part in contents.libraries:
        name = part.file_name(contents.name, contents.linkage)
        contents.save(part, contents.folder / "lib" / part.place / name)
    contents.write_headers(contents.folder / "include")
    write_templates("cpp", contents.folder, _values(contents))


def _values(contents: Contents) -> dict[str, str]:
    function, entry = next(iter(contents.functions.items()))
    symbols = example_symbols(entry)
    return {
        "name": contents.name,
        "upper": contents.name.upper(),
        "places": ", ".join(part.place for part in contents.libraries),
        "structs": "\n\n".join(_structs(*item) for item in contents.functions.items()),
        "methods": _methods(contents),
        "choices": _choices(contents.libraries, f"_{contents.name}"),
        "library_kind": contents.linkage.upper(),
        "properties": _properties(contents),
        "call": method_name(function),
        "buffers": "\n".join(_buffer(t, symbols) for t in entry["inputs"]),
        "arguments": ", ".join(_argument(t, symbols) for t in entry["inputs"]),
        "prints": "\n".join(
            f'  print("{t["name"]}", outputs.{output_name(entry, t["name"])});' for t in entry["outputs"]
        ),
        "by_hand": _by_hand(contents),
    }


def _buffer(tensor: Mapping[str, Any], symbols: Mapping[str, int]) -> str:
    """The declaration of the elements of an input in the example. A vector of bool has no elements."""
    label, count = identifier(tensor["name"]), prod(example_shape(tensor, symbols))
    if tensor["dtype"] == "bool":
        return f"  const auto {label} = std::make_unique<bool[]>({count});"
    return f"  std::vector<{element_type(tensor)}> {label}({count});"


def _argument(tensor: Mapping[str, Any], symbols: Mapping[str, int]) -> str:
    label = identifier(tensor["name"]) + (".get()" if tensor["dtype"] == "bool" else "")
    shape = example_shape(tensor, symbols)
    given = [str(n) for n, size in zip(shape, tensor["shape"], strict=True) if not isinstance(size, int)]
    return f"{{{', '.join([label, *given])}}}"


def element_type(tensor: Mapping[str, Any]) -> str:
    """The type of a tensor's elements in C++."""
    code, bits = element_code(tensor)
    return _TYPES.get(tensor["dtype"], f"tilewright::Element<{code}, {bits}>")


def _tensor_type(tensor: Mapping[str, Any], constant: bool) -> str:
    dims = [str(size) if isinstance(size, int) else "tilewright::dynamic" for size in tensor["shape"]]
    return f"tilewright::Tensor<{', '.join([('const ' if constant else '') + element_type(tensor), *dims])}>"


def _structs(function: str, entry: Mapping[str, Any]) -> str:
    texts = []
    for role, tensors in (("Inputs", entry["inputs"]), ("Outputs", entry["outputs"])):
        is_input = role == "Inputs"
        lines = [f"/* The {role.lower()} of the function {function}. */"]
        lines.append(f"struct {type_prefix(function)}{role} {{")
        for tensor in tensors:
            label = identifier(tensor["name"]) if is_input else output_name(entry, tensor["name"])
            kind = _tensor_type(tensor, is_input and not tensor.get("updated"))
            also = ", also written" if is_input and tensor.get("updated") else ""
            lines.append(f"  {kind} {label}; /* {shape_text(tensor)}{also} */")
        texts.append("\n".join([*lines, "};"]))
    return "\n\n".join(texts)


def _methods(contents: Contents) -> str:
    lines: list[str] = []
    for number, (function, entry) in enumerate(contents.functions.items()):
        lines += _method(contents.name, number, function, entry)
    for k, state in enumerate(contents.states):
        kind = _tensor_type(state, constant=False)
        lines += [
            "",
            f"  /* The state {state['name']}, {shape_text(state)}: its elements between runs. */",
            f"  {kind} state_{identifier(state['name'])}() {{",
            "    DLTensor state = {};",
            f"    check({contents.name}_state(context_.get(), {k}, &state));",
            f"    return {kind}::of(state);",
            "  }",
        ]
    if contents.states:
        lines += [
            "",
            "  /* Gives all states their initial values. */",
            f"  void reset() {{ check({contents.name}_reset(context_.get())); }}",
        ]
    return "\n".join(lines)


def _method(name: str, number: int, function: str, entry: Mapping[str, Any]) -> list[str]:
    method, prefix = method_name(function), type_prefix(function)
    inputs, outputs = entry["inputs"], entry["outputs"]
    labels = [output_name(entry, t["name"]) for t in outputs]
    given = ", ".join(f"inputs.{identifier(t['name'])}.dl()" for t in inputs) or "DLTensor{}"
    run = f"{name}_function_run(context_.get(), {number}, given, {len(inputs)}, results, {len(outputs)})"
    views = ", ".join(
        f"decltype({prefix}Outputs::{label})::of(results[{k}])" for k, label in enumerate(labels)
    )
    unused = "" if inputs else "[[maybe_unused]] "
    lines = [
        "",
        f"  /* Runs the function {function}. The outputs lie in memory of the model, until its next run. */",
        f"  {prefix}Outputs {method}({unused}const {prefix}Inputs& inputs) {{",
        f"    const DLTensor given[] = {{{given}}};",
        f"    DLTensor results[{max(len(outputs), 1)}] = {{}};",
        f"    check({run});",
        f"    return {{{views}}};",
        "  }",
    ]
    if outputs and not any(t.get("late") for t in outputs):
        results = ", ".join(f"outputs.{label}.dl()" for label in labels)
        lines += [
            "",
            f"  /* Runs the function {function}, and writes the outputs to memory of the caller's. */",
            f"  void {method}({unused}const {prefix}Inputs& inputs, const {prefix}Outputs& outputs) {{",
            f"    const DLTensor given[] = {{{given}}};",
            f"    DLTensor results[] = {{{results}}};",
            f"    check({run});",
            "  }",
        ]
    return lines


def _choices(libraries: Sequence[TargetLibrary], label: str) -> str:
    """CMake's commands that choose a library by the system and the processor."""
    lines = []
    for part in libraries:
        processor = _PROCESSORS.get(part.processor, part.processor)
        condition = f'{_SYSTEMS[part.system.name]} AND {label}_processor MATCHES "^({processor})$"'
        lines += [f"if({condition})", f'  set({label}_default "{part.place}")', "endif()"]
    return "\n".join(lines)


def _properties(contents: Contents) -> str:
    """CMake's commands for the file of each system, and for what programs need in addition."""
    name, lines = contents.name, []
    groups: dict[tuple[str, str], list[str]] = {}
    for part in contents.libraries:
        key = (part.file_name(name, contents.linkage), part.system.format)
        groups.setdefault(key, []).append(part.place)
    for (file, form), places in groups.items():
        lines.append(f'  if({name.upper()}_TARGET MATCHES "^({"|".join(places)})$")')
        target = f"    set_property(TARGET {name}::{name} PROPERTY"
        lines.append(f'{target} IMPORTED_LOCATION "${{_{name}_base}}/{file}")')
        if contents.linkage == SHARED and form == "PE":
            lines.append(f'{target} IMPORTED_IMPLIB "${{_{name}_base}}/{name}.lib")')
        elif contents.linkage == SHARED and form == "ELF":
            lines.append(f"{target} IMPORTED_NO_SONAME TRUE)")
        elif contents.linkage == STATIC and form == "PE":
            lines.append(f"{target} INTERFACE_COMPILE_DEFINITIONS TW_STATIC)")
        elif contents.linkage == STATIC:
            lines.append("    find_package(Threads REQUIRED)")
            lines.append(f"{target} INTERFACE_LINK_LIBRARIES {_LINKED[form]})")
        lines.append("  endif()")
    return "\n".join(lines)


def _by_hand(contents: Contents) -> str:
    part = contents.libraries[0]
    file = f"lib/{part.place}/{part.file_name(contents.name, contents.linkage)}"
    if part.system.format == "PE":
        defined = " /DTW_STATIC" if contents.linkage == STATIC else ""
        return f"`cl /std:c++17 /EHsc{defined} /Iinclude main.cpp lib\\{part.place}\\{contents.name}.lib`."
    more = " -pthread -lm -ldl" if contents.linkage == STATIC and part.system.format == "ELF" else ""
    return f"`c++ -std=c++17 -Iinclude main.cpp {file}{more}`."


__all__ = ["write"]
