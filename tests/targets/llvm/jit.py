"""Runs generated LLVM functions in this process, whatever instruction set they were written for.

LLVM legalizes wide vectors; instructions that this machine lacks are emulated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import pytest

from tilewright.targets.llvm.emulate import EMULATED, emulate
from tilewright.targets.llvm.isa import Isa

WIDE = Isa("wide", "", "", (), 512, 32, masked=True, fma=True)
MIDDLE = Isa("middle", "", "", (), 256, 16, masked=False, fma=True)
NARROW = Isa("narrow", "", "", (), 128, 16, masked=False, fma=False)
ISAS = pytest.mark.parametrize("isa", [WIDE, MIDDLE, NARROW], ids=lambda isa: isa.name)

LEVEL = 0
"""The optimization level of LLVM, which takes half the time of the default and does not change results. Tests
of whole libraries use the default level.
"""

_engines: list[Any] = []


def host_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = ",".join(("+" if on else "-") + name for name, on in llvm.get_host_cpu_features().items())
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=LEVEL, jit=True)


def has_instructions(feature: str) -> bool:
    """Return whether this machine has an extension such as ``amx-int8`` and lets this process use it."""
    if not llvm.get_host_cpu_features().get(feature):
        return False
    if not feature.startswith("amx"):
        return True
    request_permission, tile_data = 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return ctypes.CDLL(None).syscall(158, request_permission, tile_data) == 0


@cache
def missing() -> tuple[str, ...]:
    """Return the extensions that are emulated here."""
    return tuple(feature for feature in EMULATED if not has_instructions(feature))


def compile_functions(text: str) -> Callable[[str], int]:
    """Optimize and load a module. Returns a function from the names of its functions to addresses."""
    machine = host_machine()
    module = llvm.parse_assembly(emulate(text, missing(), threads=False))
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address


def exported(definitions: Iterable[str], name: str, extra: int) -> Callable[..., None]:
    """Return the internal function `name`, which takes three pointers and `extra` i64 arguments."""
    numbers = "".join(f", i64 %d{i}" for i in range(extra))
    pointers = "ptr %a, ptr %b, ptr %c"
    entry = (
        f"define void @entry({pointers}{numbers}) {{\n  call void "
        f"@{name}({pointers}{numbers})\n  ret void\n}}\n"
    )
    address = compile_functions("\n".join([*definitions, entry]))("entry")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * extra)(address)
