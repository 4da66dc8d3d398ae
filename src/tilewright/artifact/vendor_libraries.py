"""Vendors' libraries that artifacts may call: where they lie, and the functions that are called.

An artifact does not contain such a library. The runtime opens it when a context is created, by the names
here or the path in a variable of the environment, and says which one is missing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class VendorLibrary:
    """A library of a vendor."""

    name: str
    """The name in the option `libraries` of `tilewright.compile`."""
    files: tuple[str, ...]
    """Names that the system's loader is asked for, in order."""
    functions: tuple[str, ...]
    """The functions that are called; the order numbers them."""
    package: str
    """The Python package that has it."""
    needs: tuple[str, ...] = ()
    """Libraries of the package that are opened before it, in order."""

    @property
    def variable(self) -> str:
        """The variable of the environment that has its path."""
        return f"TILEWRIGHT_{self.name.upper()}"


LIBRARIES = {
    library.name: library
    for library in (
        VendorLibrary(
            "mkl",
            ("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so", "mkl_rt.3.dll", "mkl_rt.2.dll"),
            ("cblas_sgemm_64", "cblas_dgemm_64", "MKL_Set_Num_Threads_Local"),
            "mkl",
        ),
        VendorLibrary(
            "onednn",
            ("libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", "dnnl.dll"),
            ("dnnl_sgemm",),
            "onednn",
            needs=("libtbb.so.12", "libintlc.so.5", "libsvml.so", "libirng.so", "libimf.so", "libsycl.so.9"),
        ),
        VendorLibrary(
            "cublas",
            ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"),
            (
                "cublasLtCreate",
                "cublasLtMatmulDescCreate",
                "cublasLtMatmulDescSetAttribute",
                "cublasLtMatrixLayoutCreate",
                "cublasLtMatrixLayoutSetAttribute",
                "cublasLtMatmulPreferenceCreate",
                "cublasLtMatmulPreferenceSetAttribute",
                "cublasLtMatmulAlgoGetHeuristic",
                "cublasLtMatmul",
                "cublasLtDestroy",
                "cublasLtMatmulDescDestroy",
                "cublasLtMatrixLayoutDestroy",
                "cublasLtMatmulPreferenceDestroy",
            ),
            "nvidia-cublas",
        ),
        VendorLibrary(
            "cudnn",
            ("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so", "cudnn64_9.dll", "cudnn64_8.dll"),
            (
                "cudnnCreate",
                "cudnnSetStream",
                "cudnnCreateTensorDescriptor",
                "cudnnSetTensorNdDescriptor",
                "cudnnCreateFilterDescriptor",
                "cudnnSetFilterNdDescriptor",
                "cudnnCreateConvolutionDescriptor",
                "cudnnSetConvolutionNdDescriptor",
                "cudnnSetConvolutionGroupCount",
                "cudnnSetConvolutionMathType",
                "cudnnGetConvolutionForwardAlgorithm_v7",
                "cudnnConvolutionForward",
                "cudnnDestroy",
                "cudnnDestroyTensorDescriptor",
                "cudnnDestroyFilterDescriptor",
                "cudnnDestroyConvolutionDescriptor",
            ),
            "nvidia-cudnn-cu12",
        ),
    )
}
"""The known libraries by name."""


def table_text(names: Iterable[str]) -> str:
    """The table of the libraries that an artifact calls, as C for the runtime (`runtime/c/libraries.c`)."""
    rows, lines = [], ['#include "libraries.h"']
    for name in names:
        library = LIBRARIES[name]
        files = ", ".join(f'"{file}"' for file in library.files)
        functions = ", ".join(f'"{function}"' for function in library.functions)
        lines += [
            f"static const char* const {name}_files[] = {{{files}, 0}};",
            f"static const char* const {name}_names[] = {{{functions}, 0}};",
            f"void* tw_functions_of_{name}[{len(library.functions)}];",
        ]
        rows.append(
            f'{{"{name}", "{library.variable}", "{library.package}", {name}_files, {name}_names, '
            f"tw_functions_of_{name}}}"
        )
    lines += [
        f"const tw_vendor_library tw_vendor_libraries[] = {{{', '.join(rows)}}};",
        f"const int tw_num_vendor_libraries = {len(rows)};",
    ]
    return "\n".join(lines) + "\n"


def make_known(name: str) -> bool:
    """Open a library of an installed Python package, so that the runtime finds it by its name; return whether
    there is one.

    The system's loader does not search the folders of packages. A library that a variable of the environment
    names is left to it.
    """
    return not os.environ.get(LIBRARIES[name].variable) and _opened(name)


@cache
def _opened(name: str) -> bool:
    library = LIBRARIES[name]
    for folder in _folders():
        for file in library.files:
            if (folder / file).is_file():
                for needed in (*library.needs, file):
                    if (folder / needed).is_file():
                        try:
                            _kept.append(ctypes.CDLL(str(folder / needed)))
                        except OSError:
                            return False
                return True
    return False


_kept: list[ctypes.CDLL] = []
"""Opened libraries."""


def _folders() -> Sequence[Path]:
    """Folders in which Python packages put libraries."""
    packages = [Path(p) / "nvidia" for p in sys.path if p]
    return [
        Path(sys.prefix) / "lib",
        Path(sys.prefix) / "Library" / "bin",
        *(found for p in packages if p.is_dir() for found in sorted(p.glob("*/lib"))),
    ]


__all__ = ["LIBRARIES", "VendorLibrary", "make_known", "table_text"]
