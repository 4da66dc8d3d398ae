"""A module for Gradle: libraries in ``jniLibs``, a wrapper in C, and a class in Kotlin that is typed for the
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..artifact.c_interface import c_type, description, formula, identifier, output_name, sizes
from ..errors import ArtifactError
from .contents import Contents
from .templates import write_templates
from .typed_c import call_name, element_bytes
from .typed_names import camel_case, method_name

ABIS = {"aarch64": "arm64-v8a", "armv7": "armeabi-v7a", "x86_64": "x86_64"}
"""Android's names of processors."""

_WORDS = frozenset(
    "as break class continue do else false for fun if in interface is null object package return super this "
    "throw true try typealias typeof val var when while context env self open buffer reset close "
    "int float double char long short static const void struct union enum signed unsigned default switch "
    "case register auto extern goto sizeof typedef volatile inline bool".split()
)
"""Words of Kotlin and C, and names of the wrapper."""


def write(contents: Contents) -> None:
    """Write the package.

    Raises:
        ArtifactError: The model has an output whose size depends on data.
    """
    late = [t["name"] for entry in contents.functions.values() for t in entry["outputs"] if t.get("late")]
    if late:
        raise ArtifactError(
            f"the size of the output {', '.join(late)} depends on data, and a buffer of Kotlin has a fixed "
            "one; write the package for cpp, and a wrapper of your own"
        )
    main = contents.folder / "src" / "main"
    for part in contents.libraries:
        name = part.file_name(contents.name, contents.linkage)
        contents.save(part, main / "jniLibs" / ABIS[part.processor] / name)
    contents.write_headers(main / "cpp" / "include")
    write_templates("android", contents.folder, _values(contents))


def _values(contents: Contents) -> dict[str, str]:
    kind = camel_case(contents.name)
    whole = f"{contents.identifier}.{kind}Native"
    return {
        "name": contents.name,
        "identifier": contents.identifier,
        "path": contents.identifier.replace(".", "/"),
        "class": kind,
        "jni": whole.replace("_", "_1").replace(".", "_"),
        "abis": ", ".join(f'"{ABIS[part.processor]}"' for part in contents.libraries),
        "functions": "\n\n".join(_c_function(contents, whole, *item) for item in contents.functions.items()),
        "methods": "\n".join(_method(kind, *item) for item in contents.functions.items()),
        "externals": "\n".join(_external(*item) for item in contents.functions.items()),
    }


def _method_name(function: str) -> str:
    return f"call_{identifier(function)}" if function in _WORDS else method_name(function)


def _native_name(function: str) -> str:
    """The external method, apart from those of all models."""
    return f"run_{identifier(function)}"


def _labels(entry: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The names of the sizes, and of the tensors of a function."""
    tensors = [identifier(t["name"], _WORDS) for t in entry["inputs"]]
    tensors += [output_name(entry, t["name"], _WORDS) for t in entry["outputs"]]
    return [identifier(symbol, _WORDS) for symbol in sizes(entry)], tensors


def _parameters(entry: Mapping[str, Any]) -> list[str]:
    numbers, tensors = _labels(entry)
    return [*(f"{n}: Long" for n in numbers), *(f"{t}: ByteBuffer" for t in tensors)]


def _method(kind: str, function: str, entry: Mapping[str, Any]) -> str:
    numbers, tensors = _labels(entry)
    lines = ["", "    /**", f"     * Runs the function {function}.", "     *"]
    lines += [f"     * - {line}" for line in description(entry)]
    given = ", ".join(["open()", *numbers, *tensors])
    lines += [
        "     */",
        f"    fun {_method_name(function)}({', '.join(_parameters(entry))}) =",
        f"        {kind}Native.{_native_name(function)}({given})",
    ]
    return "\n".join(lines)


def _external(function: str, entry: Mapping[str, Any]) -> str:
    parameters = ", ".join(["context: Long", *_parameters(entry)])
    return f"\n    external fun {_native_name(function)}({parameters})"


def _c_function(contents: Contents, whole: str, function: str, entry: Mapping[str, Any]) -> str:
    method = f"{whole}.{_native_name(function)}".replace("_", "_1").replace(".", "_")
    numbers, tensors = _labels(entry)
    given = [*(f"jlong {n}" for n in numbers), *(f"jobject {t}" for t in tensors)]
    lines = [
        f"JNIEXPORT void JNICALL Java_{method}(",
        f"    {', '.join(['JNIEnv* env, jobject self, jlong context', *given])}) {{",
        "  (void)self;",
    ]
    # Formulas of sizes have the names of the typed functions in C.
    for number, symbol in zip(numbers, sizes(entry), strict=True):
        if number != identifier(symbol):
            lines.append(f"  const int64_t {identifier(symbol)} = {number};")
    data = []
    for k, (tensor, label) in enumerate(zip((*entry["inputs"], *entry["outputs"]), tensors, strict=True)):
        width = element_bytes(tensor)
        size = " * ".join(["(int64_t)1", *(formula(s) for s in tensor["shape"]), str(width)])
        data.append(f"data{k}")
        pointer = f"{c_type(tensor)}* data{k}"
        align = min(width, 8)
        lines.append(f'  {pointer} = elements(env, {label}, "{tensor["name"]}", {size}, {align});')
        lines.append(f"  if (!data{k}) return;")
    call = ", ".join(["(tw_context*)(intptr_t)context", *numbers, *data])
    return "\n".join([*lines, f"  check(env, {call_name(contents.name, function)}({call}));", "}"])


__all__ = ["ABIS", "write"]
