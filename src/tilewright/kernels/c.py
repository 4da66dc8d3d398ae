"""`c_kernel`: a C or C++ source as an operator."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifact import disk_cache
from ..dialects.kernels import KERNELS, Scalar
from ..errors import KernelError
from ..ir.types import TensorSpec
from ..targets.llvm.c_kernels import FAMILIES, CSource
from .contents import contents
from .kernel import Kernel

Tensors = Sequence[TensorSpec] | Mapping[str, TensorSpec]
_SUFFIXES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".C": "c++"}


def c_kernel(
    name: str,
    *,
    source: str | Path,
    inputs: Tensors,
    outputs: Tensors,
    reference: Callable[..., Any],
    pattern: Callable[..., Any] | None = None,
    scalars: Mapping[str, Scalar] | None = None,
    split: str | None = None,
    grain: int | None = None,
    flags: Sequence[str] = (),
    include_dirs: Sequence[str | Path] = (),
    language: str | None = None,
    function: str | None = None,
) -> Kernel:
    """Make a C or C++ function an operator of models for CPUs and WebAssembly.

    The function's type follows from the description: `Kernel.header` prints it. Its source is compiled at the
    first compilation of a model that uses it, for the model's target, and linked into the artifact.

    Args:
        name: The name of the operator, and of the C function unless `function` names another.
        source: The source code, or a path to it. The declaration of `Kernel.header` stands before it.
        inputs: The inputs' types, in order: ``[tw.f32["n", "d"]]``, or by name. Sizes are numbers, names or
            formulas of names. A first size ``"*n"`` stands for any number of leading dimensions.
        outputs: The outputs' types. Their sizes are formulas of the names in the inputs.
        reference: A function of NumPy arrays, and of the numbers by name, that returns the outputs. The
            interpreter, `Kernel.check`, and calls outside of compiled models use it.
        pattern: A function on `tilewright.Tensor` of the same arguments and results. It lets
            ``tw.compile(..., replace=[kernel])`` put the kernel in place of equal operators, and is compiled
            in place of the kernel for targets without its code.
        scalars: Default values of the numbers that the kernel takes beside tensors. The type of the default
            is theirs: a float is a `double`, an int or bool an `int64_t`.
        split: A size whose range threads share. The function takes [begin, end) of it.
        grain: How many elements of that range are worth a thread; None: by the bytes of each.
        flags: Options of the compiler, such as ``-ffast-math``.
        include_dirs: Folders with headers; that of the source's file is always one.
        language: ``"c"`` or ``"c++"``; None: by the path's suffix, C for source code.
        function: The name of the C function.

    Raises:
        KernelError: The description contradicts itself, or the file cannot be read.
    """
    text, path = _text_of(name, source)
    if language is None:
        language = "c" if path is None else _SUFFIXES.get(path.suffix, "")
    if language not in ("c", "c++"):
        raise KernelError(f"kernel {name!r}: language is {language!r}; give 'c' or 'c++'")
    folders = [Path(folder).absolute() for folder in include_dirs]
    if path is not None:
        folders.append(path.absolute().parent)
    ins = _named(name, "input", inputs, reference)
    outs = _named(name, "output", outputs, None, taken=ins)
    suffix = "c" if language == "c" else "cpp"
    code = CSource(
        text,
        f"{name}.{suffix}" if path is None else str(path),
        language,
        function or name,
        tuple(flags),
        tuple(folders),
    )
    numbers = dict(scalars or {})
    taken: set[str] = {"begin", "end"}
    sizes = dict.fromkeys(n for spec in ins.values() for n in spec.names)
    for word in (name, code.function):
        _check_name(name, "the kernel", word)
    for what, names in (("size", sizes), ("input", ins), ("output", outs), ("number", numbers)):
        for word in names:
            _check_name(name, what, word)
            if word in taken:
                raise KernelError(f"kernel {name!r}: the {what} {word!r} has the name of another parameter")
            taken.add(word)
    for word, value in numbers.items():
        if not isinstance(value, (bool, int, float)):
            raise KernelError(f"kernel {name!r}: the default of {word!r} is {value!r}, not a number")
    described = repr(
        (
            name,
            [(n, s.dtype.name, s.sizes) for n, s in (*ins.items(), *outs.items())],
            len(ins),
            list(numbers.items()),
            split,
            grain,
        )
    )
    digest = disk_cache.digest(described, code.fingerprint, contents(reference), contents(pattern))
    kernel = Kernel(
        name,
        inputs=ins,
        outputs=outs,
        scalars=numbers,
        reference=reference,
        implementations=dict.fromkeys(FAMILIES, code),
        split=split,
        grain=grain,
        digest=digest,
    )
    kernel.replaces(pattern)
    KERNELS[digest] = kernel
    kernel.announce()
    return kernel


def _text_of(name: str, source: str | Path) -> tuple[str, Path | None]:
    if isinstance(source, str) and ("{" in source or "\n" in source):
        return source, None
    path = Path(source)
    try:
        return path.read_text(), path
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(
            f"kernel {name!r}: cannot read {path}: {error}; give source code or the path of a file"
        ) from None


def _named(
    kernel: str,
    what: str,
    specs: Tensors,
    reference: Callable[..., Any] | None,
    taken: Mapping[str, TensorSpec] = {},
) -> dict[str, TensorSpec]:
    """The types by name: the names given, those of the reference's parameters, or a letter that is not
    `taken`, with numbers.
    """
    if isinstance(specs, Mapping):
        result = dict(specs)
    else:
        names: list[str] = []
        if reference is not None:
            try:
                kinds = inspect.signature(reference).parameters.values()
                names = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            except (TypeError, ValueError):
                pass
        if len(names) < len(specs):
            letters = "x" if what == "input" else "yzuv"
            letter = next(a for a in (*letters, "out") if a not in taken and f"{a}0" not in taken)
            names = [letter] if len(specs) == 1 else [f"{letter}{k}" for k in range(len(specs))]
        result = dict(zip(names, specs, strict=False))
    for n, spec in result.items():
        if not isinstance(spec, TensorSpec):
            raise KernelError(
                f'kernel {kernel!r}: the type of {what} {n!r} is {spec!r}; write it as tw.f32["n", "d"]'
            )
    return result


def _check_name(kernel: str, what: str, word: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) or keyword.iskeyword(word):
        raise KernelError(f"kernel {kernel!r}: {word!r} cannot be the name of {what} in C and Python")


__all__ = ["c_kernel"]
