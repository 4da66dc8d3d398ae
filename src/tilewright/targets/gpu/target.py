"""Targets whose artifacts are shared libraries that launch kernels on a GPU: a host program, the runtime with
one driver, and device code.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...artifact import link
from ...artifact.device_code import DEVICE_TYPES, device_code
from ...artifact.kinds import suffixes_of
from ...artifact.package import blob
from ...dialects import kernels as kernels_dialect
from ...dialects import loop
from ...errors import CompileError, InternalError, UnsupportedOperator
from ...ir.target_info import GPU_SPLITS, Gpu, TargetInfo, ThreadAxis
from ...lowering.memory_plan import MemoryPlan
from ...lowering.pipeline import Lowered, LoweringOptions
from ...runtime.device_library import DeviceLibrary
from ...runtime.model import CompiledModel, goes_beside
from ..base import Progress
from ..llvm.isa import Isa
from ..llvm.target import BuiltCode, ForeignLibrary, LinkedTarget
from ..llvm.vendor_table import vendor_metadata, vendor_objects
from .dialect import DeviceKernel, Dialect
from .images import DeviceCode
from .printer import module_text, print_kernel
from .rules import RULES
from .user_kernel import DeviceSource, UserKernel, call_in, user_kernel

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary

_ALIGNMENT = 256
"""Bytes; buffers begin at multiples of it. Devices load whole segments of 128 bytes or less; bindings of
Vulkan and WebGPU begin at multiples of up to 256.
"""


@cache
def host_isa() -> Isa:
    """The processor of host programs: any of this machine's system, since they contain no vector code."""
    import llvmlite.binding as llvm

    return Isa("host", llvm.get_process_triple(), "", (), 128, 16, masked=False, fma=False)


def architecture_in(name: str, family: str, known: Collection[str]) -> str | None:
    """The architecture in a target's name, ``sm_90`` in ``cuda:sm_90``; None in the name of the family alone.

    Raises:
        CompileError: The name is of another family, or the architecture is not among the known ones.
    """
    first, _, arch = name.partition(":")
    if first != family or (arch and arch not in known):
        names = ", ".join([family, *(f"{family}:{a}" for a in known)])
        raise CompileError(f"unknown target {name!r}; known: {names}")
    return arch or None


class BuiltDeviceLibrary(BuiltCode, DeviceLibrary):
    """A library just compiled. The device is opened at the first call, so that a library for a device that
    this machine lacks can be saved and inspected.
    """

    def __init__(self, built: BuiltLibrary, machine_text: Callable[[str, str], str | None]) -> None:
        """Load `built`; `machine_text` is `GpuTarget.machine_text`."""
        self.built, self._machine_text = built, machine_text
        super().__init__(built.path, verify=False)

    @property
    def weights(self) -> np.ndarray[Any, Any]:
        """The weights that the compiler arranged; no file holds them yet."""
        return self.built.weights

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        return self.built.save(path, beside=goes_beside(path, weights), prefix=prefix)

    def code_text(self, level: str) -> str | None:
        text = DeviceLibrary.code_text(self, level) or BuiltCode.code_text(self, level)
        if text is not None:
            return text
        parts = [self._machine_text(source, level) for source in self.sources]
        return "\n".join(p for p in parts if p is not None) or None


class GpuTarget(LinkedTarget):
    """A kind of GPU, programmed through one interface (CUDA, OpenCL, ...)."""

    api: str
    """The interface, a key of `artifact.device_code.DEVICE_TYPES`."""
    dialect: Dialect
    """The language of kernels."""
    language: str = ""
    """The level of `CompiledModel.ir` for the language of kernels; empty: `api`."""
    gpu: Gpu
    """The facts of the device that schedules read."""
    architectures: tuple[str, ...] = ()
    """The architectures that artifacts have machine code for."""
    machine_levels: tuple[str, ...] = ()
    """The levels below the language of kernels: ``ptx``, ``sass``."""
    precisions = ("bf16", "f16")

    def __init__(self, name: str, host: Isa | None = None) -> None:
        """Set up the target called `name`, whose host programs are for the machine `host`; None: this one."""
        self.name = name
        self.host = host or host_isa()
        self.code_levels = (self.language or self.api, *self.machine_levels, "llvm", "asm")
        self.suffixes = suffixes_of(self.host.triple)

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            name=self.name,
            vector_bits=0,
            memory_spaces=("global", "shared", "register", "local"),
            thread_axes=(
                ThreadAxis("block.x"),  # no tensor needs as many blocks as a launch may have
                ThreadAxis("block.y", self.gpu.grid_limits[1]),
                ThreadAxis("block.z", self.gpu.grid_limits[2]),
                ThreadAxis("thread.x", self.gpu.max_threads),
            ),
            alignment=_ALIGNMENT,
            cache_line=0,
            row_group_bytes=self.gpu.shared_bytes,
            reductions=GPU_SPLITS,
            gpu=self.gpu,
        )

    @property
    def lowering(self) -> LoweringOptions:
        return LoweringOptions(panel=None, rules=RULES, info=self.info, variants=True)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "triple": self.host.triple,
            "features": [],
            "device": DEVICE_TYPES[self.api],
        }

    def printed(self, kernel: loop.Kernel, modules: Mapping[str, int] = {}) -> DeviceKernel | UserKernel:
        """A finalized kernel in the language of the device, or as the user has written it.

        Args:
            kernel: The kernel.
            modules: See `user_kernel`.

        Raises:
            CompileError: The language cannot express it.
            KernelError: The source of a kernel of the user's does not fit its description.
        """
        call = call_in(kernel)
        if call is not None:
            return user_kernel(kernel, call, self.name, modules)
        return print_kernel(kernel, self.dialect, self.info)

    def kernel_code(self, kernel: loop.Kernel) -> str:
        printed = self.printed(kernel)
        return f"{printed.text}\n{printed.launch}"

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        places: dict[str, list[str]] = {}
        for kernel in lowered.module.functions(loop.Kernel):
            try:
                self.printed(kernel)
            except CompileError as error:
                name = (
                    kernel.sym_name
                    if kernel.sym_name in lowered.kernels
                    else kernel.sym_name.partition(".")[0]
                )
                info = lowered.kernels[name]
                places.setdefault(str(error), []).extend([str(info.location)] * info.launches)
        return [
            UnsupportedOperator(what, len(where), tuple(dict.fromkeys(where)), instead="compile for cpu")
            for what, where in places.items()
        ]

    def source(self, kernels: Sequence[DeviceKernel]) -> str:
        """The text of all kernels of a library."""
        return module_text(kernels, self.dialect)

    def missing_compiler(self) -> str | None:
        """Why the text of kernels is not compiled on this machine, with the command that helps; None if it
        is, or where the device's driver does it.
        """
        return None

    @abstractmethod
    def device_code(self, text: str) -> DeviceCode:
        """The images of a translation unit, compiled as far as this machine has a compiler."""

    def user_text(self, text: str) -> str:
        """A source of the user's as the compiler gets it."""
        return text

    def machine_text(self, text: str, level: str) -> str | None:
        """A translation unit at a level of `machine_levels`; None for another level.

        Raises:
            CompileError: A compiler or disassembler is not installed; the message says what to do.
        """
        return None

    def build(
        self,
        lowered: Lowered,
        plan: MemoryPlan,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        llvm_opt_level: int = 2,
    ) -> CompiledModel:
        from ..llvm.build import build
        from ..llvm.host_calls import DeviceCalls

        progress("generating code")
        isa = self.host
        kernels = lowered.module.functions(loop.Kernel)
        calls = {k.sym_name: call for k in kernels if (call := call_in(k)) is not None}
        texts = [
            user_kernel(k, calls[k.sym_name], self.name, {}).text for k in kernels if k.sym_name in calls
        ]
        modules = {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)), start=1)}
        codes = {k.sym_name: self.printed(k, modules) for k in kernels}
        own = [code for code in codes.values() if isinstance(code, DeviceKernel)]
        progress("compiling")
        if (reason := self.missing_compiler()) is not None:
            warnings.warn(
                f"target {self.name}: {reason}; until then the library has the source of its kernels alone, "
                "which runs in the simulator and not on a device",
                stacklevel=2,
            )
        units = {0: self.device_code(self.source(own))} if own else {}
        # Calls of vendors' libraries have negative numbers, and no device code.
        units |= {code.module: DeviceCode((), {}) for code in codes.values() if code.module < 0}
        least: dict[int, int] = {}
        for name, call in calls.items():
            code = codes[name]
            if code.module not in units:
                units[code.module], shared = self._user_unit(code.text, call)
                least[code.module] = shared
        codes = {
            n: c.with_shared(least.get(c.module, 0)) if isinstance(c, UserKernel) else c
            for n, c in codes.items()
        }
        described: dict[str, dict[str, Any]] = {}
        for number, unit in units.items():
            found = unit.metadata([code for code in codes.values() if code.module == number])
            described |= {name: {**entry, "module": number} for name, entry in found.items()}
        entries = [{**k, "device": described[k["name"]]} for k in metadata["kernels"]]
        images = [replace(i, module=number) for number, unit in units.items() for i in unit.images]
        data = link.blob_object(bytes(blob(device_code(images))), "tw_blob_device", isa.triple)
        used = kernels_dialect.kernels_in(lowered.module).values()
        built = build(
            lowered.module,
            DeviceCalls(codes),
            isa,
            {**metadata, "kernels": entries, **vendor_metadata(used)},
            plan=plan,
            llvm_opt_level=llvm_opt_level,
            library_objects=[data, *vendor_objects(used, isa)],
        )
        return self.load(built, threads)

    def _user_unit(self, unit: str, call: kernels_dialect.Call) -> tuple[DeviceCode, int]:
        """The images of `unit`, the source of a kernel of the user's, and the least bytes of shared memory
        that a launch gives a block.

        Raises:
            KernelError: The compiler refuses it; the message is the compiler's.
        """
        definition = kernels_dialect.definition_of(call)
        source = definition.implementation(self.name)
        try:
            if isinstance(source, DeviceSource):
                return source.compile(definition, kernels_dialect.scalars_of(call), self.architectures)
            return self.device_code(self.user_text(unit)), 0
        except (CompileError, InternalError) as error:
            # The last line of an internal error asks for a report of a bug, which this is not.
            text = str(error) if isinstance(error, CompileError) else str(error).rpartition("\n")[0]
            raise definition.error(f"its source for {self.name} cannot be compiled: {text}") from None

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        if self.host != host_isa():
            return ForeignLibrary(
                built,
                self.name,
                f"compiled for {self.name}, which is not this machine: save the library and run it there",
            )
        return BuiltDeviceLibrary(built, self.machine_text)


__all__ = ["DeviceKernel", "GpuTarget", "host_isa"]
