"""Sources of kernels of the user's for GPUs: their texts, launches and parameters.

The function keeps its own parameters, which get what the description calls so: an input or output a pointer,
a size an integer, a number its value. The text is complete: files beside it are put in the place of their
``#include``, and definitions stand before it.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...artifact import disk_cache
from ...dialects.kernels import KernelDefinition, Scalar
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr
from ...ir.symbolic_text import parse
from ..llvm.host_calls import Argument, ArgumentKind
from .signature import ELEMENTS, QUALIFIERS, Signature, SignatureError, SourceParameter, signature_of

Formula = int | str
"""A number, or a formula of the sizes and whole numbers of a kernel, with ``ceildiv(a, b)``."""

SUFFIXES = {"cuda": "cu", "hip": "hip", "opencl": "cl", "metal": "metal"}
_SIZE_TYPES = {
    4: {"int", "signed int", "unsigned", "unsigned int", "uint", "int32_t", "uint32_t"},
    8: {"long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t"}
    | {"unsigned long", "unsigned long long", "ulong", "uint64_t", "size_t"},
}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)


@dataclass(frozen=True)
class GpuSource:
    """The code of a kernel in a language of GPUs, and its launch. `gpu_source` makes it."""

    target: str
    """The target or family of targets that it is for: ``cuda``, ``cuda:sm_90``, ``opencl``."""
    text: str
    """The complete text."""
    name: str
    """Its name in messages."""
    function: str
    """The name of the kernel's function."""
    grid: tuple[Formula, ...]
    """Blocks along x, y, z."""
    block: tuple[Formula, ...]
    """Threads of a block along x, y, z."""
    shared: Formula = 0
    """Bytes of dynamic shared memory of a block."""

    @property
    def language(self) -> str:
        """``cuda``, ``hip``, ``opencl`` or ``metal``."""
        return self.target.partition(":")[0]

    @property
    def fingerprint(self) -> str:
        """A digest of the text and the launch."""
        return disk_cache.digest(*(repr(v) for v in vars(self).values()))

    def for_target(self, target: str) -> GpuSource:
        """The same text for another target."""
        return replace(self, target=target)

    # -- Parameters ------------------------------------------------------------------------------------------

    def signature(self, kernel: KernelDefinition) -> Signature:
        """The declaration of the function.

        Raises:
            KernelError: The source does not define it.
        """
        try:
            return signature_of(self.text, self.function, self.language)
        except SignatureError as error:
            raise kernel.error(f"{self.name}: {error}") from None

    def check(self, kernel: KernelDefinition) -> None:
        """Compare the source with the description.

        Raises:
            KernelError: A parameter has no meaning or another type, one is missing, or a formula of the
                launch is wrong.
        """
        self.arguments(kernel, kernel.scalars)
        self.launch(kernel, {s: s for s in kernel.symbols}, kernel.scalars)

    def arguments(self, kernel: KernelDefinition, scalars: Mapping[str, Scalar]) -> tuple[Argument, ...]:
        """The values of the parameters in a use with the numbers `scalars`, in the order of the declaration
        (in Metal: of the buffers' numbers).

        Raises:
            KernelError: See `check`.
        """
        buffers = {p.name: k for k, p in enumerate((*kernel.inputs, *kernel.outputs))}
        parameters = list(self.signature(kernel).parameters)
        if self.language == "metal":
            parameters = _metal_buffers(kernel, self.name, parameters)
        found = {p.name for p in parameters}
        missing = [n for n in buffers if n not in found]
        if missing:
            raise kernel.error(
                f"{self.name}: the function {self.function!r} has no parameter {missing[0]!r}; its "
                f"parameters are {', '.join(p.name for p in parameters) or 'none'}"
            )
        arguments = [self._argument(kernel, p, buffers, scalars) for p in parameters]
        if self.language == "opencl":
            order = [p for p in parameters if p.name in buffers]
            arguments += [Argument(ArgumentKind.OFFSET, 8, buffers[p.name]) for p in order]
        return tuple(arguments)

    def _argument(
        self,
        kernel: KernelDefinition,
        p: SourceParameter,
        buffers: Mapping[str, int],
        scalars: Mapping[str, Scalar],
    ) -> Argument:
        sizes = [s.name for s in kernel.symbols]
        if p.space == "shared":
            return Argument(ArgumentKind.SHARED)
        if p.name in buffers:
            described = (*kernel.inputs, *kernel.outputs)[buffers[p.name]]
            elements = ELEMENTS.get(p.type, (described.dtype,))
            if not p.pointer or described.dtype not in elements:
                raise self._wrong(kernel, p, f"{described.spec}, so it is a pointer to such elements")
            if p.const and described in kernel.outputs:
                raise self._wrong(kernel, p, "an output, so its elements cannot be const")
            return Argument(ArgumentKind.BUFFER, 8, buffers[p.name])
        if p.name in sizes:
            width = next((n for n, types in _SIZE_TYPES.items() if p.type in types), 0)
            if p.pointer or not width:
                raise self._wrong(kernel, p, "a size, so it is an int or an int64_t")
            return Argument(ArgumentKind.SIZE, width, sizes.index(p.name))
        if p.name in scalars:
            bits = None if p.pointer else number_bits(p.type, scalars[p.name])
            if bits is None:
                raise self._wrong(kernel, p, f"a number, {scalars[p.name]!r}")
            return Argument(ArgumentKind.NUMBER, *bits)
        known = ", ".join((*buffers, *sizes, *scalars))
        raise kernel.error(
            f"{self.name}: the parameter {p.text!r} of {self.function!r} is nothing of the description, "
            f"which has {known}"
        )

    def _wrong(self, kernel: KernelDefinition, p: SourceParameter, expected: str) -> Exception:
        return kernel.error(
            f"{self.name}: the parameter {p.text!r} of {self.function!r} does not fit: {p.name!r} is "
            f"{expected}"
        )

    # -- The launch ------------------------------------------------------------------------------------------

    def launch(
        self, kernel: KernelDefinition, sizes: Mapping[Expr, Dim], scalars: Mapping[str, Scalar]
    ) -> tuple[Dim, ...]:
        """The launch of a use with these `sizes` and numbers: blocks and threads of a block along x, y, z,
        and bytes of shared memory.

        Raises:
            KernelError: A formula is wrong.
        """
        return launch_of(kernel, self.grid, self.block, self.shared, sizes, scalars)

    # -- The text --------------------------------------------------------------------------------------------

    def unit(self, kernel: KernelDefinition) -> str:
        """The text for the compiler, in which the function has the entry point's name.

        Raises:
            KernelError: The source does not define the function.
        """
        s = self.signature(kernel)
        if self.language in ("cuda", "hip"):
            return f'{self.text[: s.start]}extern "C" {self.text[s.start :]}'
        if self.language == "opencl":
            return self._with_offsets(kernel, s)
        return self.text

    def _with_offsets(self, kernel: KernelDefinition, s: Signature) -> str:
        """The text whose function takes the number of elements before each buffer's first one, as the last
        parameters.
        """
        text = self.text
        widths = {p.name: p.dtype.itemsize for p in (*kernel.inputs, *kernel.outputs)}
        declared, offsets, places = [], [], []
        for p in s.parameters:
            if p.name not in widths:
                declared.append(p.text)
                continue
            kind = re.sub(rf"\b{re.escape(p.name)}\s*$", "", p.text).strip()
            declared.append(f"{kind} tw_{p.name}")
            offsets.append(f"long tw_at_{p.name}")
            byte = "__global const char*" if p.const else "__global char*"
            places.append(
                f" {kind} {p.name} = ({kind})(({byte})tw_{p.name} + tw_at_{p.name} * {widths[p.name]});"
            )
        head = ", ".join((*declared, *offsets))
        lines = "\n" * text.count("\n", s.opening, s.closing)
        body = text[s.closing : s.body] + "".join(places) + text[s.body :]
        return f"{text[: s.opening]}{head}{lines}{body}"


def launch_of(
    kernel: KernelDefinition,
    grid: tuple[Formula, ...],
    block: tuple[Formula, ...],
    shared: Formula,
    sizes: Mapping[Expr, Dim],
    scalars: Mapping[str, Scalar],
) -> tuple[Dim, ...]:
    """The values of the formulas of a launch: see `GpuSource.launch`.

    Raises:
        KernelError: A formula is wrong.
    """
    names: dict[str, Any] = {s.name: s for s in kernel.symbols}
    names |= {n: v for n, v in scalars.items() if isinstance(v, int)}
    values = [
        substitute(_formula(kernel, what, f, names), sizes)
        for what, formulas in (("grid", _three(grid)), ("block", _three(block)))
        for f in formulas
    ]
    return (*values, substitute(_formula(kernel, "shared", shared, names), sizes))


def source_text(
    path: Path | None, text: str, name: str, defines: Mapping[str, str | int], folders: Sequence[Path]
) -> str:
    """A complete text: definitions, then the source with the files that it includes.

    Args:
        path: The source's file; None: it has none.
        text: The source.
        name: Its name in messages.
        defines: Values of macros by name.
        folders: Folders of the files that it includes, besides its own.
    """
    search = [*([path.absolute().parent] if path is not None else []), *folders]
    seen: set[Path] = set()

    def expanded(text: str, name: str) -> str:
        def content(match: re.Match[str]) -> str:
            file = next((f for folder in search if (f := (folder / match[1]).resolve()).is_file()), None)
            if file is None:
                return match.group()
            if file in seen:
                return ""
            seen.add(file)
            search.append(file.parent)
            line = text.count("\n", 0, match.end()) + 2
            inner = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", "", file.read_text(), flags=re.M)
            return f'#line 1 "{file.name}"\n{expanded(inner, file.name)}\n#line {line} "{name}"'

        return _INCLUDE.sub(content, text)

    lines = "".join(f"#define {n} {v}\n" for n, v in defines.items())
    return f'{lines}#line 1 "{name}"\n{expanded(text, name)}\n'


def _three(values: tuple[Formula, ...]) -> tuple[Formula, ...]:
    return (*values, *(1,) * (3 - len(values)))


class _Ceiling(ast.NodeTransformer):
    """``ceildiv(a, b)`` as ``(a + b - 1) // b``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "ceildiv" and len(node.args) == 2:
            a, b = (ast.unparse(x) for x in node.args)
            return ast.parse(f"({a} + ({b}) - 1) // ({b})", mode="eval").body
        return node


def _formula(kernel: KernelDefinition, what: str, formula: Formula, names: Mapping[str, Any]) -> Dim:
    if isinstance(formula, int):
        return formula
    try:
        tree = _Ceiling().visit(ast.parse(formula.strip(), mode="eval"))
        return parse(ast.unparse(tree), names)
    except (SyntaxError, ValueError) as error:
        raise kernel.error(f"{what}={formula!r} is no formula of its sizes and numbers: {error}") from None


_FORMATS = {"float": "f", "double": "d", "half": "e", "__half": "e", "_Float16": "e"}


def number_bits(kind: str, value: Scalar) -> tuple[int, int] | None:
    """The bytes and the bits of a number of a type; None if the type cannot hold it."""
    if kind in _FORMATS:
        data = struct.pack("<" + _FORMATS[kind], float(value))
        return len(data), int.from_bytes(data, "little")
    dtype = ELEMENTS.get(kind, (None,))[0]
    if dtype is None or dtype.is_float or isinstance(value, float):
        return None
    width = dtype.itemsize
    info = np.iinfo(dtype.numpy) if dtype.numpy.kind != "b" else None
    if info is not None and not info.min <= value <= info.max:
        return None
    return width, int.from_bytes(int(value).to_bytes(width, "little", signed=int(value) < 0), "little")


def _metal_buffers(
    kernel: KernelDefinition, name: str, parameters: Sequence[SourceParameter]
) -> list[SourceParameter]:
    """The parameters that are buffers or numbers, in the order of their numbers."""
    found = sorted((p for p in parameters if p.attribute == "buffer"), key=lambda p: p.number)
    if [p.number for p in found] != list(range(len(found))):
        numbers = ", ".join(str(p.number) for p in found)
        raise kernel.error(f"{name}: its buffers have the numbers {numbers}; number them from 0 without gaps")
    return found


def sources_by_target(sources: Sequence[Any]) -> dict[str, Any]:
    """The sources by target. CUDA C++ serves ``hip``, too, if no source is for it."""
    found = {s.target: s for s in sources}
    if isinstance(cuda := found.get("cuda"), GpuSource):
        found.setdefault("hip", cuda.for_target("hip"))
    return found


__all__ = [
    "QUALIFIERS",
    "SUFFIXES",
    "Formula",
    "GpuSource",
    "launch_of",
    "number_bits",
    "source_text",
    "sources_by_target",
]
