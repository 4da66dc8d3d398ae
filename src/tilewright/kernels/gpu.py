"""`gpu_kernel`: sources for GPUs as an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dialects.kernels import Scalar
from ..errors import KernelError
from ..targets.gpu.user_source import (
    QUALIFIERS,
    SUFFIXES,
    Formula,
    GpuSource,
    source_text,
    sources_by_target,
)
from .described import Tensors, described, text_of
from .kernel import Kernel

if TYPE_CHECKING:
    from ..targets.cuda.triton_source import TritonSource

Sizes = Formula | Sequence[Formula]
"""One to three numbers or formulas."""


@dataclass(frozen=True)
class GpuCode:
    """A source for GPUs before it belongs to a kernel; `gpu_source` makes it."""

    target: str
    source: str | Path
    grid: tuple[Formula, ...]
    block: tuple[Formula, ...]
    shared: Formula
    function: str | None
    defines: tuple[tuple[str, str | int], ...]
    include_dirs: tuple[Path, ...]

    def of(self, kernel: str) -> GpuSource:
        """The source of the kernel called `kernel`.

        Raises:
            KernelError: The file cannot be read.
        """
        text, path = text_of(kernel, self.source)
        name = f"{kernel}.{SUFFIXES[self.target.partition(':')[0]]}" if path is None else path.name
        complete = source_text(path, text, name, dict(self.defines), self.include_dirs)
        return GpuSource(
            self.target, complete, name, self.function or kernel, self.grid, self.block, self.shared
        )


def gpu_source(
    target: str,
    source: str | Path,
    *,
    grid: Sizes,
    block: Sizes,
    shared: Formula = 0,
    function: str | None = None,
    defines: Mapping[str, str | int] | None = None,
    include_dirs: Sequence[str | Path] = (),
) -> GpuCode:
    """The code of a kernel in a language of GPUs, for `gpu_kernel` and `c_kernel`.

    The function keeps its own parameters, in any order. Each has the name of an input or output (a pointer to
    its first element; tensors are dense and row-major), of a size (an integer of 32 or 64 bits) or of a
    number. Sizes and numbers that it does not need may be missing. In OpenCL C a pointer to ``__local``
    memory gets the `shared` bytes.

    Args:
        target: The target, and so the language: ``"cuda"`` (CUDA C++), ``"hip"``, ``"opencl"`` (OpenCL C) or
            ``"metal"``; or one architecture of it, such as ``"cuda:sm_90"``. CUDA C++ serves HIP, too, if no
            source is for it.
        source: The source code, or a path to it.
        grid: Numbers of blocks along x, y and z; missing ones are 1. Each is a number or a formula of the
            sizes and whole numbers of the kernel: ``"ceildiv(n, 256)"``.
        block: Numbers of threads of a block along x, y and z.
        shared: Bytes of dynamic shared memory of a block.
        function: The name of the function; None: the kernel's.
        defines: Values of macros by name, which are defined before the source.
        include_dirs: Folders of files that it includes in quotation marks; that of the source's file is
            always one. These files become a part of the text.

    Raises:
        KernelError: There is no such language, or a number of blocks or threads is missing.
    """
    if target.partition(":")[0] not in QUALIFIERS:
        raise KernelError(f"gpu_source: target is {target!r}; its languages are {', '.join(QUALIFIERS)}")
    return GpuCode(
        target,
        source,
        _shape("gpu_source: grid", grid),
        _shape("gpu_source: block", block),
        shared,
        function,
        tuple((defines or {}).items()),
        tuple(Path(folder).absolute() for folder in include_dirs),
    )


def triton_source(
    function: Any,
    *,
    grid: Sizes,
    constants: Mapping[str, Scalar] | None = None,
    warps: int = 4,
    stages: int = 3,
    target: str = "cuda",
) -> TritonSource:
    """A Triton kernel, for `gpu_kernel` and `c_kernel`.

    It is compiled with the model by the package ``triton``, for which no GPU is needed. Parameters get what
    the description calls so: an input or output a pointer, a size 32 bits, a number its value. A simulated
    device cannot run it; Triton's own interpreter can (``TRITON_INTERPRET=1``).

    Args:
        function: The function that ``triton.jit`` returns.
        grid: Numbers of programs along x, y and z, as of `gpu_source`. Formulas may name whole constants.
        constants: Values of the parameters of type ``tl.constexpr``.
        warps: Warps of a program.
        stages: Stages of pipelined loops.
        target: ``"cuda"``, or one architecture, such as ``"cuda:sm_90"``.

    Raises:
        KernelError: `function` is no Triton kernel, or the target is not for NVIDIA's GPUs.
    """
    from ..targets.cuda.triton_source import TritonSource

    if not all(hasattr(function, name) for name in ("fn", "arg_names", "cache_key")):
        raise KernelError(f"triton_source: {function!r} is no function of triton.jit")
    if target.partition(":")[0] != "cuda":
        raise KernelError(f"triton_source: target is {target!r}; Triton kernels are compiled for 'cuda'")
    return TritonSource(
        target,
        function,
        str(function.cache_key),
        _shape("triton_source: grid", grid),
        tuple((constants or {}).items()),
        warps,
        stages,
    )


def _shape(what: str, given: Sizes) -> tuple[Formula, ...]:
    sizes = (given,) if isinstance(given, (int, str)) else tuple(given)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, (int, str)) for size in sizes):
        raise KernelError(f"{what} is {given!r}; give one to three numbers or formulas")
    return sizes


def gpu_kernel(
    name: str,
    *,
    sources: Sequence[GpuCode | TritonSource],
    inputs: Tensors,
    outputs: Tensors,
    reference: Callable[..., Any],
    pattern: Callable[..., Any] | None = None,
    scalars: Mapping[str, Scalar] | None = None,
) -> Kernel:
    """Make kernels for GPUs an operator of models, one source for each target.

    A model takes the source for its target. The source is compiled with the model, as far as the target's
    compiler is installed, and lies in the artifact as a module of its own.

    Args:
        name: The name of the operator, and of the functions unless their sources name others.
        sources: The sources, each made by `gpu_source` or `triton_source`.
        inputs: The inputs' types, as of `c_kernel`.
        outputs: The outputs' types, as of `c_kernel`.
        reference: The meaning in NumPy, as of `c_kernel`.
        pattern: The meaning in operators, as of `c_kernel`. It is compiled for targets without a source.
        scalars: Default values of the numbers that the kernel takes beside tensors.

    Raises:
        KernelError: The description contradicts itself, a file cannot be read, or a function does not fit the
            description; the message names the parameter.
    """
    if not sources:
        raise KernelError(f"kernel {name!r}: it has no sources; give it one for each target")
    codes = [source.of(name) for source in sources]
    words = list(dict.fromkeys(code.function for code in codes))
    return described(
        name, inputs, outputs, reference, pattern, scalars, sources_by_target(codes), words=words
    )


__all__ = ["GpuCode", "gpu_kernel", "gpu_source", "triton_source"]
