"""C sources that call MKL and oneDNN through the addresses that the runtime has found."""

from __future__ import annotations

from dataclasses import dataclass

from ..llvm.c_kernels import CSource


@dataclass(frozen=True)
class LibrarySource(CSource):
    """A source that calls a library."""

    library: str = ""
    """The name of the library, a key of `artifact.vendor_libraries.LIBRARIES`."""


def _parameters(kind: str, batched: bool, split: bool) -> str:
    sizes = ["batch", "rows", "depth", "columns"] if batched else ["rows", "depth", "columns"]
    # The sizes stand in the order in which the description names them.
    items = ["int64_t begin", "int64_t end"] if split else []
    items += [f"int64_t {size}" for size in sizes]
    return ", ".join((*items, f"const {kind}* x", f"const {kind}* y", f"{kind}* z"))


def mkl_source(label: str, double: bool, batched: bool, transposed: bool) -> LibrarySource:
    """Products by MKL. Threads of the model's own share the rows or the matrices, and each call runs in one.

    Args:
        label: A name for the function.
        double: Whether elements are double, else float.
        batched: See `Product`.
        transposed: See `Product`.
    """
    kind, number = ("double", 1) if double else ("float", 0)
    name = f"tw_mkl_{label}"
    order = "112" if transposed else "111"
    ld = "depth" if transposed else "columns"
    call = (
        f"multiply(101, 111, {order}, {{m}}, columns, depth, 1, {{x}}, depth > 0 ? depth : 1, {{y}}, "
        f"{ld} > 0 ? {ld} : 1, 0, {{z}}, columns);"
    )
    if batched:
        step = call.format(
            m="rows", x="x + i * rows * depth", y="y + i * depth * columns", z="z + i * rows * columns"
        )
        body = f"for (int64_t i = begin; i < end; i++) {step}"
        empty = "begin >= end || !rows || !columns"
    else:
        body = call.format(m="end - begin", x="x + begin * depth", y="y", z="z + begin * columns")
        empty = "begin >= end || !columns"
    text = f"""extern void* tw_functions_of_mkl[];
typedef void (*gemm)(int, int, int, int64_t, int64_t, int64_t, {kind}, const {kind}*, int64_t, const {kind}*,
                     int64_t, {kind}, {kind}*, int64_t);

void {name}({_parameters(kind, batched, True)}) {{
  gemm multiply = (gemm)tw_functions_of_mkl[{number}];
  int (*set_threads)(int) = (int (*)(int))tw_functions_of_mkl[2];
  if ({empty}) return;
  int before = set_threads(1);
  {body}
  set_threads(before);
}}
"""
    return LibrarySource(text, f"{name}.c", "c", name, library="mkl")


def onednn_source(label: str, batched: bool, transposed: bool) -> LibrarySource:
    """Products of float32 matrices by oneDNN, which runs its own threads.

    Args:
        label: A name for the function.
        batched: See `Product`.
        transposed: See `Product`.
    """
    name = f"tw_onednn_{label}"
    order, ld = ("'T'", "depth") if transposed else ("'N'", "columns")
    call = (
        f"multiply('N', {order}, rows, columns, depth, 1, {{x}}, depth > 0 ? depth : 1, {{y}}, "
        f"{ld} > 0 ? {ld} : 1, 0, {{z}}, columns);"
    )
    if batched:
        step = call.format(x="x + i * rows * depth", y="y + i * depth * columns", z="z + i * rows * columns")
        body = f"for (int64_t i = 0; i < batch; i++) {step}"
    else:
        body = call.format(x="x", y="y", z="z")
    text = f"""extern void* tw_functions_of_onednn[];
typedef int (*gemm)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                    int64_t, float, float*, int64_t);

void {name}({_parameters("float", batched, False)}) {{
  gemm multiply = (gemm)tw_functions_of_onednn[0];
  if (!rows || !columns) return;
  {body}
}}
"""
    return LibrarySource(text, f"{name}.c", "c", name, library="onednn")


__all__ = ["LibrarySource", "mkl_source", "onednn_source"]
