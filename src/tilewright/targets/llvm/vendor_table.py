"""The table of vendors' libraries in an artifact, for kernels that call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...artifact import link
from ...artifact.sources import INCLUDE_DIR
from ...artifact.vendor_libraries import table_text
from ...dialects.kernels import KernelDefinition
from .isa import Isa


def libraries_of(kernels: Iterable[KernelDefinition]) -> list[str]:
    """The names of the libraries that the code of kernels calls, in order."""
    codes = (code for kernel in kernels for code in kernel.implementations.values())
    return sorted({name for code in codes if (name := getattr(code, "library", ""))})


def vendor_metadata(kernels: Iterable[KernelDefinition]) -> dict[str, Any]:
    """The entry of an artifact's metadata that names the libraries."""
    names = libraries_of(kernels)
    return {"vendor_libraries": names} if names else {}


def vendor_objects(kernels: Iterable[KernelDefinition], isa: Isa) -> list[bytes]:
    """The object file with the table; none if no library is called."""
    names = libraries_of(kernels)
    if not names:
        return []
    flags = ["-O2", "-std=c11", "-fvisibility=hidden", f"-I{INCLUDE_DIR}"]
    return [link.compile_text(table_text(names), "libraries.c", isa, flags, "")]


__all__ = ["libraries_of", "vendor_metadata", "vendor_objects"]
