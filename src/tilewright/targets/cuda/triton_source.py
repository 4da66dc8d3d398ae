"""Kernels in Triton: compiled to machine code and PTX by the package ``triton``, without a GPU.

The parameters get what the description calls so, as those of other sources do: an input or output a pointer,
a size 32 bits, a number its value. Constant expressions get their values at compile time. No alignment of
pointers is promised to Triton's compiler, since tensors may begin at any element.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...artifact import disk_cache
from ...artifact.device_code import DeviceImage
from ...dialects.kernels import KernelDefinition, Scalar
from ...errors import CompileError
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, bf16, boolean, f16, f32, f64
from ..gpu.images import DeviceCode
from ..gpu.user_source import Formula, launch_of, number_bits
from ..llvm.host_calls import Argument, ArgumentKind

_POINTERS: Mapping[DType, str] = {f16: "fp16", bf16: "bf16", f32: "fp32", f64: "fp64", boolean: "i1"}
_FALLBACK = 80
"""The capability whose PTX serves GPUs without machine code of their own."""


@dataclass(frozen=True)
class TritonSource:
    """A Triton kernel and its launch. `tilewright.triton_source` makes it."""

    target: str
    """``cuda``, or one architecture of it."""
    jit: Any
    """The function of ``triton.jit``."""
    text: str
    """A text that changes with the function."""
    grid: tuple[Formula, ...]
    """Programs along x, y, z."""
    constants: tuple[tuple[str, Scalar], ...] = ()
    """Values of constant expressions by name."""
    warps: int = 4
    """Warps of a program."""
    stages: int = 3
    """Stages of pipelined loops."""

    def of(self, kernel: str) -> TritonSource:
        """The source of the kernel called `kernel`."""
        return self

    @property
    def fingerprint(self) -> str:
        """A digest of the function and the launch."""
        return disk_cache.digest(self.text, repr((self.target, self.grid, self.constants, self._options())))

    @property
    def function(self) -> str:
        """The name of the kernel's function."""
        return str(self.jit.fn.__name__)

    def _options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}

    def check(self, kernel: KernelDefinition) -> None:
        """Compare the function with the description.

        Raises:
            KernelError: A parameter has no meaning, one is missing, or a formula of the launch is wrong.
        """
        self.signature(kernel, kernel.scalars)
        self.launch(kernel, {s: s for s in kernel.symbols}, kernel.scalars)

    def signature(self, kernel: KernelDefinition, scalars: Mapping[str, Scalar]) -> dict[str, str]:
        """Triton's types of the parameters by name.

        Raises:
            KernelError: See `check`.
        """
        buffers = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
        sizes, constants = [s.name for s in kernel.symbols], dict(self.constants)
        types: dict[str, str] = {}
        for name in self.jit.arg_names:
            if name in constants:
                types[name] = "constexpr"
            elif name in buffers:
                types[name] = "*" + _pointer(kernel, name, buffers[name])
            elif name in sizes:
                types[name] = "i32"
            elif name in scalars:
                types[name] = _number(scalars[name])
            else:
                known = ", ".join((*buffers, *sizes, *scalars))
                raise kernel.error(
                    f"the parameter {name!r} of {self.function!r} is nothing of the description, which has "
                    f"{known}; give it a value in constants="
                )
        for name in (*buffers, *constants):
            if name not in types:
                raise kernel.error(f"the function {self.function!r} has no parameter {name!r}")
        return types

    def arguments(self, kernel: KernelDefinition, scalars: Mapping[str, Scalar]) -> tuple[Argument, ...]:
        """The values of the parameters in a use with the numbers `scalars`.

        Raises:
            KernelError: See `check`.
        """
        buffers = [p.name for p in (*kernel.inputs, *kernel.outputs)]
        sizes = [s.name for s in kernel.symbols]
        given = []
        for name, kind in self.signature(kernel, scalars).items():
            if name in buffers:
                given.append(Argument(ArgumentKind.BUFFER, 8, buffers.index(name)))
            elif kind != "constexpr" and name in sizes:
                given.append(Argument(ArgumentKind.SIZE, 4, sizes.index(name)))
            elif kind != "constexpr":
                given.append(Argument(ArgumentKind.NUMBER, *_bits(kind, scalars[name])))
        # Triton adds pointers to memory of its own, which these kernels do not have.
        return (*given, *(Argument(ArgumentKind.NUMBER, 8, 0) for _ in range(2)))

    def launch(
        self, kernel: KernelDefinition, sizes: Mapping[Expr, Dim], scalars: Mapping[str, Scalar]
    ) -> tuple[Dim, ...]:
        """The launch of a use, without shared memory: see `GpuSource.launch`.

        Raises:
            KernelError: A formula is wrong.
        """
        numbers = {**scalars, **dict(self.constants)}
        return launch_of(kernel, self.grid, (32 * self.warps,), 0, sizes, numbers)

    def compile(
        self, kernel: KernelDefinition, scalars: Mapping[str, Scalar], archs: Sequence[str]
    ) -> tuple[DeviceCode, int]:
        """The images for architectures, and the bytes of shared memory of a block.

        Raises:
            CompileError: The package ``triton`` is not installed, its compiler refuses the function, or the
                function needs memory of its own.
        """
        types = self.signature(kernel, scalars)
        images, shared = [], 0
        for arch in archs:
            capability = int(re.sub(r"\D", "", arch))
            entry = self._compiled(types, capability)
            shared = max(shared, entry["shared"])
            # Triton uses the instructions of one generation only since the H100.
            exact = f"sm_{capability}{'a' if capability >= 90 else ''}"
            images.append(DeviceImage("cubin", base64.b64decode(entry["cubin"]), exact))
            if capability == _FALLBACK:
                images.append(DeviceImage("ptx", entry["ptx"].encode() + b"\0", f"compute_{capability}"))
        return DeviceCode(tuple(images), {}), shared

    def _compiled(self, types: Mapping[str, str], capability: int) -> dict[str, Any]:
        triton = _triton()
        options = self._options()
        key = disk_cache.digest(
            triton.__version__, str(capability), repr(sorted(types.items())), repr(options), self.fingerprint
        )
        if (kept := disk_cache.read("triton", key)) is not None:
            return dict(json.loads(kept))
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(fn=self.jit, signature=dict(types), constexprs=dict(self.constants))
        try:
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        except Exception as error:  # Triton has no common class of its errors.
            raise CompileError(f"Triton refuses it for sm_{capability}: {error}") from error
        if made.metadata.global_scratch_size or made.metadata.profile_scratch_size:
            raise CompileError("it needs global memory of its own, which artifacts do not give")
        ptx = made.asm["ptx"]
        entry = re.search(r"\.entry\s+\w+\((.*?)\)", ptx, re.S)
        count = sum(kind != "constexpr" for kind in types.values()) + 2
        if entry is None or entry[1].count(".param") != count:
            raise CompileError(
                f"the installed triton {triton.__version__} gives kernels other parameters than this version "
                "of Tilewright knows"
            )
        kept_entry = {
            "ptx": ptx,
            "cubin": base64.b64encode(made.asm["cubin"]).decode(),
            "shared": made.metadata.shared,
        }
        disk_cache.write("triton", key, json.dumps(kept_entry).encode())
        return kept_entry


def _triton() -> Any:
    try:
        import triton
    except ImportError:
        raise CompileError("the package triton is not installed: pip install triton") from None
    return triton


def _pointer(kernel: KernelDefinition, name: str, dtype: DType) -> str:
    if dtype in _POINTERS:
        return _POINTERS[dtype]
    if dtype.is_sub_byte or dtype.is_float:
        raise kernel.error(f"Triton has no pointers to {dtype.label}, which {name!r} has")
    return f"{'i' if dtype.is_signed else 'u'}{dtype.bits}"


def _number(value: Scalar) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _bits(kind: str, value: Scalar) -> tuple[int, int]:
    names = {"i1": "bool", "fp32": "float", "i32": "int", "i64": "long long"}
    bits = number_bits(names[kind], value)
    assert bits is not None
    return bits


__all__ = ["TritonSource"]
