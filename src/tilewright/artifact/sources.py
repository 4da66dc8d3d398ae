"""The runtime's C sources, and the C interface that every artifact exports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import ArtifactError

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
    "tw_function_name",
    "tw_tensor_count",
    "tw_describe",
    "tw_function_run",
    "tw_function_shapes",
    "tw_function_bind",
    "tw_state",
    "tw_reset",
    "tw_metadata",
    "tw_last_error",
    "tw_profile_enable",
    "tw_profile_read",
    "tw_profile_launches",
    "tw_profile_threads",
    "tw_profile_run",
)
WASM_EXPORTS = (*EXPORTS, "tw_alloc", "tw_free")
WASM_THREAD_EXPORTS = ("tw_thread_prepare", "tw_thread_run", "tw_thread_end")
"""Further functions of a WebAssembly module with threads."""
DEVICE_EXPORTS = (
    *EXPORTS,
    "tw_create_on",
    "tw_state_read",
    "tw_state_write",
    "tw_stream_wait",
    "tw_device_code",
)
"""The functions of a library for a device."""

PREFIX = "tw"
"""The prefix of exported functions, unless a library is saved with another one."""


def exported(name: str, prefix: str) -> str:
    """The name of a function of tilewright.h in a library with this prefix."""
    return f"{prefix}_{name.removeprefix('tw_')}"


def check_prefix(prefix: str) -> str:
    """Raises ArtifactError: the prefix is not the beginning of an identifier in C, or is that of the plain
    interface.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", prefix) or prefix in ("tw", "tilewright"):
        raise ArtifactError(
            f"prefix {prefix!r} cannot be used: give letters, digits and underscores, such as 'encoder'; "
            "'tw' is reserved"
        )
    return prefix


def prefixed_header(prefix: str, exports: Sequence[str] = EXPORTS, more: str = "") -> str:
    """A header that declares the functions `exports` of a library with this prefix, with the types of
    tilewright.h, and has the text `more` at its end.
    """
    text = HEADER.read_text().partition("#ifdef __wasm__")[0]
    names = re.compile(r"\btw_(" + "|".join(name.removeprefix("tw_") for name in exports) + r")(?=\()")
    declarations = [d for d in re.findall(r"^TW_API[^;]*;", text, re.MULTILINE) if names.search(d)]
    guard = f"TILEWRIGHT_{prefix.upper()}_H_"
    return "\n".join(
        [
            f"/* {prefix}.h - the functions of tilewright.h, as a library saved with the prefix {prefix} "
            "exports them. */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            '#include "tilewright.h"',
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            *(names.sub(rf"{prefix}_\1", declaration) for declaration in declarations),
            *(["", more] if more else []),
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            f"#endif /* {guard} */",
            "",
        ]
    )


COMPILE_FLAGS = ("-std=c11", "-O2", "-g0", "-fvisibility=hidden")


def runtime_sources() -> list[Path]:
    """All C files of the runtime. Each is compiled for every target; a file for another system compiles to
    nothing.
    """
    return sorted(INCLUDE_DIR.glob("*.c"))
