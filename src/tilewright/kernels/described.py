"""From the description of a kernel with code of its own to the `Kernel`."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifact import disk_cache
from ..dialects.kernels import KERNELS, Implementation, Scalar
from ..errors import KernelError
from ..ir.types import TensorSpec
from ..targets.gpu.user_kernel import DeviceSource
from ..targets.gpu.user_source import GpuSource
from .contents import contents
from .kernel import Kernel

Tensors = Sequence[TensorSpec] | Mapping[str, TensorSpec]
"""Types in order, or by name."""


def described(
    name: str,
    inputs: Tensors,
    outputs: Tensors,
    reference: Callable[..., Any],
    pattern: Callable[..., Any] | None,
    scalars: Mapping[str, Scalar] | None,
    implementations: Mapping[str, Implementation],
    words: Sequence[str] = (),
    split: str | None = None,
    grain: int | None = None,
) -> Kernel:
    """The kernel of a description, which is known by its digest from then on.

    Args:
        name: As of `c_kernel`, as are the others that are not named here.
        inputs: The inputs' types.
        outputs: The outputs' types.
        reference: The meaning in NumPy.
        pattern: The meaning in operators.
        scalars: The numbers.
        implementations: The code by target.
        words: The names of its functions.
        split: The size whose range threads share.
        grain: How many elements of it are worth a thread.

    Raises:
        KernelError: The description contradicts itself.
    """
    ins = _named(name, "input", inputs, reference)
    outs = _named(name, "output", outputs, None, taken=ins)
    numbers = dict(scalars or {})
    taken: set[str] = {"begin", "end"}
    sizes = dict.fromkeys(n for spec in ins.values() for n in spec.names)
    for word in (name, *words):
        _check_name(name, "the kernel", word)
    for what, names in (("size", sizes), ("input", ins), ("output", outs), ("number", numbers)):
        for word in names:
            _check_name(name, what, word)
            if word in taken and not (what == "output" and word in ins):
                raise KernelError(f"kernel {name!r}: the {what} {word!r} has the name of another parameter")
            taken.add(word)
    for word, value in numbers.items():
        if not isinstance(value, (bool, int, float)):
            raise KernelError(f"kernel {name!r}: the default of {word!r} is {value!r}, not a number")
    text = repr(
        (
            name,
            [(n, s.dtype.name, s.sizes) for n, s in (*ins.items(), *outs.items())],
            len(ins),
            list(numbers.items()),
            split,
            grain,
        )
    )
    codes = dict.fromkeys(code.fingerprint for code in implementations.values())
    digest = disk_cache.digest(text, *codes, contents(reference), contents(pattern))
    kernel = Kernel(
        name,
        inputs=ins,
        outputs=outs,
        scalars=numbers,
        reference=reference,
        implementations=implementations,
        split=split,
        grain=grain,
        digest=digest,
    )
    for code in implementations.values():
        if isinstance(code, (GpuSource, DeviceSource)):
            code.check(kernel)
    kernel.replaces(pattern)
    KERNELS[digest] = kernel
    kernel.announce()
    return kernel


def text_of(name: str, source: str | Path) -> tuple[str, Path | None]:
    """A source code, and its file where `source` is the path of one.

    Raises:
        KernelError: The file cannot be read.
    """
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


__all__ = ["Tensors", "described", "text_of"]
