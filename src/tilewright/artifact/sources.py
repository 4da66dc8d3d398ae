"""Where the runtime's C sources are, and the C interface that every artifact exports."""

from __future__ import annotations

from pathlib import Path

ABI_VERSION = 3
"""TW_ABI_VERSION of tilewright.h."""

INCLUDE_DIR = Path(__file__).parent.parent / "runtime" / "c"
HEADER = INCLUDE_DIR / "tilewright.h"

EXPORTS = (
    "tw_abi_version",
    "tw_create",
    "tw_destroy",
    "tw_run",
    "tw_output_shapes",
    "tw_binding_size",
    "tw_bind",
    "tw_run_bound",
    "tw_function_index",
    "tw_function_run",
    "tw_function_shapes",
    "tw_function_bind",
    "tw_state",
    "tw_reset",
    "tw_metadata",
    "tw_last_error",
    "tw_profile_enable",
    "tw_profile_read",
)
WASM_EXPORTS = (*EXPORTS, "tw_alloc", "tw_free")

COMPILE_FLAGS = ("-std=c11", "-O2", "-fvisibility=hidden")


def runtime_sources() -> list[Path]:
    """All C files of the runtime: each is compiled for every target, and is empty where it does not apply."""
    return sorted(INCLUDE_DIR.glob("*.c"))
