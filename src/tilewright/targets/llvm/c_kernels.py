"""Kernels in C and C++ for targets with LLVM code: their headers, and their object files.

A kernel's function has the type that `header` prints:

    void rms(int64_t begin, int64_t end, int64_t n, int64_t d, const float *__restrict x, float *__restrict y,
             double eps);

The range [begin, end) is there if the kernel is `split`: one call computes these elements of the size.
Then come the sizes in the order in which the description names them, the inputs, the outputs and the numbers.
An output with the name of an input stands among the outputs only, and holds the input's values before.
Tensors are dense and row-major; outputs do not overlap other inputs, and no alignment beyond the element's is
promised.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...artifact import disk_cache, elf, link, symbols
from ...dialects.kernels import KernelDefinition, Scalar
from ...errors import ArtifactError, KernelError
from ...ir.types import DType
from .isa import Isa

HEADERS = (".h", ".hh", ".hpp", ".hxx", ".inc", ".inl")
_C_TYPES = {"f64": "double", "f32": "float"}
_DEFAULTS = ("-O3", "-fvisibility=hidden")
_STANDARDS = {
    "c": ("-std=gnu11",),
    "c++": ("-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
}


@dataclass(frozen=True)
class CSource:
    """The source of a kernel."""

    text: str
    """The source code."""
    name: str
    """Its name or path in the compiler's messages."""
    language: str
    """``c`` or ``c++``."""
    function: str
    """The name of the C function."""
    flags: tuple[str, ...] = ()
    """Options of the compiler, after the defaults."""
    include_dirs: tuple[Path, ...] = ()
    """Folders with headers."""

    @property
    def fingerprint(self) -> str:
        """A digest of the source, its options and the headers in its folders."""
        headers = [
            part
            for folder in self.include_dirs
            for file in sorted(folder.rglob("*"))
            if file.suffix in HEADERS and file.is_file()
            for part in (str(file.relative_to(folder)), file.read_bytes())
        ]
        return disk_cache.digest(
            self.text, self.name, self.language, self.function, *self.flags, "", *headers
        )


def c_type(dtype: DType) -> str:
    """The C type of an element. Narrow floats are unsigned integers with their bits; a boolean is a byte, 0
    or 1, and so is an integer of fewer than 8 bits.
    """
    known = _C_TYPES.get(dtype.name)
    if known is not None:
        return known
    signed = dtype.kind == "int"
    return f"{'' if signed else 'u'}int{dtype.itemsize * 8}_t"


def parameters(definition: KernelDefinition) -> list[str]:
    """The parameters of a kernel's C function, each with its type."""
    result = ["int64_t begin", "int64_t end"] if definition.split is not None else []
    result += [f"int64_t {s.name}" for s in definition.symbols]
    described = (*definition.inputs, *definition.outputs)
    for number in definition.pointers:
        p, constant = described[number], "const " * (number < len(definition.inputs))
        result.append(f"{constant}{c_type(p.dtype)} *__restrict {p.name}")
    return result + [
        f"{'double' if isinstance(v, float) else 'int64_t'} {name}" for name, v in definition.scalars.items()
    ]


def prototype(definition: KernelDefinition, function: str) -> str:
    """The declaration of a kernel's C function, without a semicolon."""
    head, items = f"void {function}(", parameters(definition)
    line = f"{head}{', '.join(items)})"
    return line if len(line) <= 100 else f"{head}\n    " + ",\n    ".join(items) + ")"


def header(definition: KernelDefinition, function: str, symbol: str = "") -> str:
    """The header of a kernel's source: what each parameter holds, and the declaration of the function.

    With `symbol`, objects call the function so.
    """
    lines = [f"/* Kernel {definition.name}."]
    if definition.split is not None:
        lines.append(
            f"   Computes the elements begin <= {definition.split} < end of the whole; calls run at once."
        )
    changed = {k + len(definition.inputs) for k in definition.in_place}
    for number in definition.pointers:
        p = (*definition.inputs, *definition.outputs)[number]
        what = "in " if number < len(definition.inputs) else "in, out" if number in changed else "out"
        lines.append(f"   {what} {p.name}: {p.dtype.label} [{', '.join(map(str, p.shape))}]")
    label = ' __asm__(TW_TEXT(__USER_LABEL_PREFIX__) "' + symbol + '")' if symbol else ""
    macros = ["#define TW_TEXT_(x) #x", "#define TW_TEXT(x) TW_TEXT_(x)"] if symbol else []
    return "\n".join(
        [
            *lines[:-1],
            f"{lines[-1]} */",
            "#include <stdint.h>",
            *macros,
            "#ifdef __cplusplus",
            'extern "C"',
            "#endif",
            f"{prototype(definition, function)}{label};",
            "",
        ]
    )


def symbol_of(definition: KernelDefinition) -> str:
    """The name of a kernel's function in object files. It differs for kernels of the same name."""
    return f"tw_{definition.name}_{definition.digest[:12]}"


def scalar_argument(value: Scalar) -> str:
    """A number as an argument in LLVM IR."""
    if isinstance(value, float):
        return f"double 0x{struct.pack('>d', value).hex().upper()}"
    return f"i64 {int(value)}"


def object_of(definition: KernelDefinition, source: CSource, isa: Isa, *, hidden: bool = True) -> bytes:
    """The object file of a kernel for an instruction set; its function is called `symbol_of`.

    Args:
        definition: The kernel.
        source: Its source.
        isa: The instruction set.
        hidden: Whether the function is visible only inside the library that it is linked into.

    Raises:
        KernelError: There is no compiler, the compiler refuses the source (the message is the compiler's), or
            the source does not define the function.
    """
    symbol = symbol_of(definition)
    flags = [
        *(_DEFAULTS if hidden else _DEFAULTS[:1]),
        *_STANDARDS[source.language],
        *_machine_flags(isa),
        *(f"-I{folder}" for folder in source.include_dirs),
        *source.flags,
        # The headers in the folders, for the key of the cache.
        f"-DTW_SOURCE_{disk_cache.digest(source.fingerprint)[:16]}",
    ]
    try:
        data = link.compile_text(
            source.text,
            source.name,
            isa,
            flags,
            header(definition, source.function, symbol),
            cpp=source.language == "c++",
        )
    except link.CompilerError as error:
        raise definition.error(
            f"the compiler refuses its source. The function is declared as\n"
            f"  {prototype(definition, source.function)}\nand the compiler says:\n{error}"
        ) from None
    except ArtifactError as error:
        raise definition.error(str(error)) from None
    if elf.serves(isa.triple):
        _check_symbols(definition, source, data, symbol)
    return data


def _check_symbols(definition: KernelDefinition, source: CSource, data: bytes, symbol: str) -> None:
    """Check that an object defines the kernel's function, and that it needs no C++ library."""
    defined, needed = symbols.global_names(data)
    if symbol not in defined:
        found = ", ".join(defined) or "none"
        raise definition.error(
            f"{source.name} does not define the function {source.function!r}; it defines: {found}. Define\n"
            f"  {prototype(definition, source.function)}\n"
            "or name the function with function="
        )
    library = [name for name in needed if re.match(r"_Z|__cxa_|__gxx_|_Unwind", name)]
    if library:
        raise definition.error(
            f"{source.name} needs the C++ run-time library ({', '.join(library[:3])}), which artifacts do "
            "not contain; use what headers define alone"
        )


def _machine_flags(isa: Isa) -> list[str]:
    """The compiler's options for an instruction set, so that intrinsics of it may be used."""
    if isa.triple.startswith("x86_64"):
        if isa.emulated or not isa.cpu.startswith("x86-64"):
            return []
        level = [f"-march={isa.cpu}"]
        return level + [f"-m{f.lstrip('+')}" for f in isa.features if f.lstrip("+") in _EXTENSIONS]
    if isa.triple.startswith("wasm"):
        return link.feature_flags(isa)
    return []


_EXTENSIONS = (
    "avx512bf16",
    "avx512fp16",
    "avx512vnni",
    "avxvnni",
    "amx-tile",
    "amx-bf16",
    "amx-int8",
    "gfni",
)
"""Features beyond a level whose compiler option has their name."""


def source_of(definition: KernelDefinition, target: str) -> CSource:
    """The C or C++ source of a kernel for a target.

    Raises:
        KernelError: It has none.
    """
    source = definition.implementation(target)
    if not isinstance(source, CSource):
        raise KernelError(
            f"kernel {definition.name!r} has no C or C++ source for target {target!r}; it has code for "
            f"{', '.join(definition.implementations) or 'none'}"
        )
    return source


def objects_of_kernels(kernels: Iterable[KernelDefinition], target: str, isa: Isa) -> list[bytes]:
    """The object files of the kernels that a model uses.

    Raises:
        KernelError: As `object_of` and `source_of`.
    """
    return [object_of(k, source_of(k, target), isa) for k in kernels]


def compilers_of_kernels(kernels: Iterable[KernelDefinition], target: str, isa: Isa) -> str:
    """A text that identifies the compilers of the kernels' sources."""
    languages = {s.language for k in kernels if isinstance(s := k.implementation(target), CSource)}
    return " ".join(link.compiler_identity(isa, cpp=language == "c++") for language in sorted(languages))


__all__ = [
    "CSource",
    "c_type",
    "compilers_of_kernels",
    "header",
    "object_of",
    "objects_of_kernels",
    "parameters",
    "prototype",
    "scalar_argument",
    "source_of",
    "symbol_of",
]
