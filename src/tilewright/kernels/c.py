"""`c_kernel`: a C or C++ source as an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dialects.kernels import Scalar
from ..errors import KernelError
from ..targets.cpu.ports import PORTS
from ..targets.gpu.user_source import sources_by_target
from ..targets.llvm.c_kernels import CSource
from .described import Tensors, described, text_of
from .gpu import GpuCode
from .kernel import Kernel

if TYPE_CHECKING:
    from ..targets.cuda.triton_source import TritonSource

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
    gpu: Sequence[GpuCode | TritonSource] = (),
) -> Kernel:
    """Make a C or C++ function an operator of models for CPUs and WebAssembly.

    The function's type follows from the description: `Kernel.header` prints it. Its source is compiled at the
    first compilation of a model that uses it, for the model's target, and linked into the artifact.

    Args:
        name: The name of the operator, and of the C function unless `function` names another.
        source: The source code, or a path to it. The declaration of `Kernel.header` stands before it.
        inputs: The inputs' types, in order: ``[tw.f32["n", "d"]]``, or by name. Sizes are numbers, names or
            formulas of names. A first size ``"*n"`` stands for any number of leading dimensions.
        outputs: The outputs' types. Their sizes are formulas of the names in the inputs. An output with the
            name of an input is its new value; the function gets one pointer to the old one and changes it.
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
        gpu: Sources of the same kernel for GPUs, each made by `gpu_source` or `triton_source`.

    Raises:
        KernelError: The description contradicts itself, the file cannot be read, or a source for GPUs does
            not fit the description.
    """
    text, path = text_of(name, source)
    if language is None:
        language = "c" if path is None else _SUFFIXES.get(path.suffix, "")
    if language not in ("c", "c++"):
        raise KernelError(f"kernel {name!r}: language is {language!r}; give 'c' or 'c++'")
    folders = [Path(folder).absolute() for folder in include_dirs]
    if path is not None:
        folders.append(path.absolute().parent)
    suffix = "c" if language == "c" else "cpp"
    code = CSource(
        text,
        f"{name}.{suffix}" if path is None else str(path),
        language,
        function or name,
        tuple(flags),
        tuple(folders),
    )
    return described(
        name,
        inputs,
        outputs,
        reference,
        pattern,
        scalars,
        {
            **dict.fromkeys(("cpu", *PORTS, "wasm32"), code),
            **sources_by_target([source.of(name) for source in gpu]),
        },
        words=(code.function,),
        split=split,
        grain=grain,
    )


__all__ = ["c_kernel"]
