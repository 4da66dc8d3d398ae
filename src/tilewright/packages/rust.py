"""A crate with static libraries and a safe interface that is typed for the model. It has no dependency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..artifact.c_interface import identifier, output_name, shape_text
from ..artifact.sources import ABI_VERSION
from .contents import Contents
from .example import example_shape, example_symbols
from .templates import write_templates
from .typed_c import element_code
from .typed_names import method_name, type_prefix

_WORDS = frozenset(
    "as async await break const continue crate dyn else enum extern false fn for gen if impl in let loop "
    "match mod move mut pub ref return self Self static struct super trait true try type union unsafe use "
    "where while abstract become box do final macro override priv typeof unsized virtual yield "
    "given results model context".split()
)
_TYPES = {
    "float32": "f32",
    "float64": "f64",
    "bool": "bool",
    "float16": "F16",
    "bfloat16": "Bf16",
    "complex64": "Complex64",
    "complex128": "Complex128",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}


def write(contents: Contents) -> None:
    """Write the package."""
    for part in contents.libraries:
        name = part.file_name(contents.name, contents.linkage)
        contents.save(part, contents.folder / "lib" / part.place / name)
    write_templates("rust", contents.folder, _values(contents))


def _values(contents: Contents) -> dict[str, str]:
    function, entry = next(iter(contents.functions.items()))
    symbols = example_symbols(entry)
    buffers, arguments = [], []
    for tensor in entry["inputs"]:
        label, shape = identifier(tensor["name"], _WORDS), example_shape(tensor, symbols)
        count = " * ".join(map(str, shape)) or "1"
        mutable = "mut " if tensor.get("updated") else ""
        buffers.append(f"    let {mutable}{label} = vec![{_zero(tensor, contents.name)}; {count}];")
        kind = "TensorMut" if mutable else "Tensor"
        arguments.append(f"        {label}: {contents.name}::{kind}::new(&{mutable}{label}, {list(shape)}),")
    return {
        "name": contents.name,
        "abi_version": str(ABI_VERSION),
        "places": ", ".join(part.place for part in contents.libraries),
        "structs": "\n\n".join(_structs(*item) for item in contents.functions.items()),
        "methods": _methods(contents),
        "call": _method_name(function),
        "prefix": type_prefix(function),
        "buffers": "\n".join(buffers),
        "arguments": "\n".join(arguments),
        "prints": "\n".join(
            f'    println!("{t["name"]}: {{:?}}", outputs.{output_name(entry, t["name"], _WORDS)}.shape());'
            for t in entry["outputs"]
        ),
    }


def _zero(tensor: Mapping[str, Any], name: str) -> str:
    kind = element_type(tensor)
    if kind == "bool":
        return "false"
    if kind[0] in "iuf":
        return f"0 as {kind}"
    zero = {"Complex64": "[0f32; 2]", "Complex128": "[0f64; 2]"}.get(kind, "0")
    return f"{name}::Bits({zero})" if zero != "0" or kind in ("F16", "Bf16") else f"{name}::{kind}(0)"


def element_type(tensor: Mapping[str, Any]) -> str:
    """The type of a tensor's elements in Rust."""
    code, bits = element_code(tensor)
    return _TYPES.get(tensor["dtype"], f"Bits::<u8, {code}, {bits}>")


def _method_name(function: str) -> str:
    name = method_name(function)
    return f"{name}_" if name in _WORDS or name in ("new", "with_threads", "reset", "drop") else name


def _structs(function: str, entry: Mapping[str, Any]) -> str:
    texts = []
    for role in ("Inputs", "Outputs"):
        tensors, fields = entry[role.lower()], []
        for tensor in tensors:
            is_input = role == "Inputs"
            label = (
                identifier(tensor["name"], _WORDS) if is_input else output_name(entry, tensor["name"], _WORDS)
            )
            kind = "TensorMut" if is_input and tensor.get("updated") else "Tensor"
            fields.append(f"    /// {shape_text(tensor)}")
            fields.append(f"    pub {label}: {kind}<'a, {element_type(tensor)}, {len(tensor['shape'])}>,")
        lines = [f"/// The {role.lower()} of the function {function}.", "#[derive(Debug)]"]
        lifetime = "<'a>" if tensors else ""
        lines += [f"pub struct {type_prefix(function)}{role}{lifetime} {{", *fields, "}"]
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def _methods(contents: Contents) -> str:
    lines: list[str] = []
    for number, (function, entry) in enumerate(contents.functions.items()):
        lines += _method(contents.name, number, function, entry)
    for k, state in enumerate(contents.states):
        kind = f"TensorMut<'_, {element_type(state)}, {len(state['shape'])}>"
        lines += [
            "",
            f"    /// The state {state['name']}, {shape_text(state)}: its elements between runs.",
            f"    pub fn state_{identifier(state['name'], _WORDS)}(&mut self) -> Result<{kind}, Error> {{",
            "        let mut state = DLTensor::empty();",
            "        let context = self.context.as_ptr();",
            f"        check(unsafe {{ ffi::{contents.name}_state(context, {k}, &mut state) }})?;",
            "        Ok(unsafe { state.view_mut() })",
            "    }",
        ]
    if contents.states:
        lines += [
            "",
            "    /// Gives all states their initial values.",
            "    pub fn reset(&mut self) -> Result<(), Error> {",
            f"        check(unsafe {{ ffi::{contents.name}_reset(self.context.as_ptr()) }})",
            "    }",
        ]
    return "\n".join(lines)


def _method(name: str, number: int, function: str, entry: Mapping[str, Any]) -> list[str]:
    prefix, inputs, outputs = type_prefix(function), entry["inputs"], entry["outputs"]
    given = []
    for tensor in inputs:
        label = f"inputs.{identifier(tensor['name'], _WORDS)}"
        given.append(
            f"DLTensor::updated(&mut {label})" if tensor.get("updated") else f"DLTensor::read(&{label})"
        )
    any_updated = any(t.get("updated") for t in inputs)
    parameter = f"{'mut ' if any_updated else ''}{'inputs' if inputs else '_inputs'}"
    views = ", ".join(
        f"{output_name(entry, t['name'], _WORDS)}: results[{k}].view()" for k, t in enumerate(outputs)
    )
    lifetimes = "<'_>" if inputs else "", "<'_>" if outputs else ""
    built = f"unsafe {{ {prefix}Outputs {{ {views} }} }}" if outputs else f"{prefix}Outputs {{}}"
    return [
        "",
        f"    /// Runs the function {function}. The outputs lie in memory of the model.",
        f"    pub fn {_method_name(function)}(",
        "        &mut self,",
        f"        {parameter}: {prefix}Inputs{lifetimes[0]},",
        f"    ) -> Result<{prefix}Outputs{lifetimes[1]}, Error> {{",
        f"        let given: [DLTensor; {len(inputs)}] = [{', '.join(given)}];",
        f"        let mut results = [DLTensor::empty(); {len(outputs)}];",
        "        check(unsafe {",
        f"            ffi::{name}_function_run(",
        f"                self.context.as_ptr(), {number}, given.as_ptr(), {len(inputs)},",
        f"                results.as_mut_ptr(), {len(outputs)},",
        "            )",
        "        })?;",
        f"        Ok({built})",
        "    }",
    ]


__all__ = ["write"]
