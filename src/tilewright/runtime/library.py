"""`Library`: a native artifact opened in this process through ctypes.

Every calling thread gets a context (arena and threads) of its own at its first call, so one library may be called from
several threads at once; ctypes lets go of the interpreter's lock during a call.
"""

from __future__ import annotations

import ctypes
import json
import struct
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifact.sources import ABI_VERSION
from tilewright.artifact.trailer import verify_file
from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.model import CompiledModel, KernelTime, exception_for
from tilewright.runtime.tensors import DTYPES

_TENSOR = struct.Struct("=QiiiBBHQQQ")  # DLTensor of a 64-bit system: data, device, ndim, dtype, shape, strides, offset
_CPU = 1
_SKIP_VERIFY = 1
_SHAPES_KEPT = 64  # combinations of input shapes whose output shapes a context remembers


class _Options(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("num_threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weights_size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
    ]


class _Context:
    """A `tw_context` with the buffers in which its calls are written down. Serves one thread."""

    def __init__(self, library: Library) -> None:
        self.native = library._native
        self.dtypes = library._output_dtypes
        options = _Options(ABI_VERSION, library.num_threads, None, 0, _SKIP_VERIFY if library._verified else 0)
        if library._weights is not None:
            options.weights, options.weights_size = library._weights.ctypes.data, library._weights.nbytes
        handle = ctypes.c_void_p()
        self.check(self.native.tw_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        # Closing the library, or the end of the thread, destroys the context, but only once.
        self.destroy = weakref.finalize(self, self.native.tw_destroy, ctypes.c_void_p(handle.value))
        self.inputs = library.inputs
        count, dims = len(library.inputs), sum(len(spec.shape) for spec in (*library.inputs, *library.outputs))
        self.num_inputs, self.num_outputs = count, len(library.outputs)
        self.tensors = ctypes.create_string_buffer(_TENSOR.size * (count + self.num_outputs) or 1)
        self.spare_dims = dims + 64
        self.shapes = ctypes.create_string_buffer(8 * (2 * dims + 128))
        self.in_pointer = ctypes.c_void_p(ctypes.addressof(self.tensors))
        self.out_pointer = ctypes.c_void_p(ctypes.addressof(self.tensors) + count * _TENSOR.size)
        self.shapes_pointer = ctypes.addressof(self.shapes)
        self.known_shapes: dict[tuple[tuple[int, ...], ...], list[tuple[int, ...]]] = {}
        self.shape_formats = [struct.Struct(f"={rank}q") for rank in range(65)]

    def check(self, status: int) -> None:
        if status:
            raise exception_for(status, self.native.tw_last_error().decode())

    def _write(self, index: int, array: np.ndarray, at: int) -> int:
        """Write down tensor `index`, its shape at byte `at` of `shapes`; returns where the next shape goes."""
        shape = array.shape
        rank = len(shape)
        code, bits = DTYPES[array.dtype]
        self.shape_formats[rank].pack_into(self.shapes, at, *shape)
        data = array.__array_interface__["data"][0]
        where = self.shapes_pointer + at
        _TENSOR.pack_into(self.tensors, index * _TENSOR.size, data, _CPU, 0, rank, code, bits, 1, where, 0, 0)
        return at + 8 * rank

    def run(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        if sum([array.ndim for array in arrays]) > self.spare_dims:
            self._refuse_ranks(arrays)
        at = 0
        for index, array in enumerate(arrays):
            at = self._write(index, array, at)
        if out is None:
            out = [
                np.empty(shape, dtype) for shape, dtype in zip(self._output_shapes(arrays), self.dtypes, strict=True)
            ]
        for index, array in enumerate(out, len(arrays)):
            at = self._write(index, array, at)
        self.check(
            self.native.tw_run(self.handle, self.in_pointer, self.num_inputs, self.out_pointer, self.num_outputs)
        )
        return list(out)

    def _refuse_ranks(self, arrays: list[np.ndarray]) -> None:
        for array, spec in zip(arrays, self.inputs, strict=True):
            if array.ndim != len(spec.shape):
                expected = len(spec.shape)
                raise ShapeError(f"input '{spec.name}': expected {expected} dimensions, got {array.ndim}")

    def _output_shapes(self, arrays: list[np.ndarray]) -> list[tuple[int, ...]]:
        key = tuple([array.shape for array in arrays])
        known = self.known_shapes.get(key)
        if known is not None:
            return known
        call = self.native.tw_output_shapes
        self.check(call(self.handle, self.in_pointer, self.num_inputs, self.out_pointer, self.num_outputs))
        shapes = []
        for index in range(self.num_outputs):
            fields = _TENSOR.unpack_from(self.tensors, (self.num_inputs + index) * _TENSOR.size)
            rank, where = fields[3], fields[7]
            shapes.append(tuple((ctypes.c_int64 * rank).from_address(where)) if rank else ())
        if len(self.known_shapes) >= _SHAPES_KEPT:
            self.known_shapes.clear()
        self.known_shapes[key] = shapes
        return shapes


class Library(CompiledModel):
    """A compiled model in a shared library, which `tilewright.compile` and `tilewright.load` return.

    `path`: the .so, .dylib or .dll. `weights`: where the file does not carry them, all of them in one array of bytes
    aligned to 64, kept alive by the library. `num_threads`: 0 means all cores. `verify`: check the file's trailer before
    anything of it is run; only the compiler, which has just written the file, does without.
    Raises ArtifactError: not an artifact, damaged, of another version, or for another processor.
    """

    def __init__(
        self, path: str | Path, *, weights: np.ndarray | None = None, num_threads: int = 0, verify: bool = True
    ) -> None:
        self.path = Path(path)
        self.num_threads = num_threads
        self._weights = None if weights is None else weights.reshape(-1).view(np.uint8)
        self._verified = True  # the trailer's checksum covers embedded weights; the compiler's own are trusted
        self._closed = False
        self._lock = threading.Lock()
        self._contexts: weakref.WeakSet[_Context] = weakref.WeakSet()
        self._local = threading.local()
        if verify:
            verify_file(self.path)
        self._native = _open(self.path)
        found = self._native.tw_abi_version()
        if found != ABI_VERSION:
            raise ArtifactError(
                f"{path}: its C interface is version {found}, this Tilewright speaks version {ABI_VERSION}: "
                "compile the model again"
            )
        try:
            metadata = json.loads(self._native.tw_metadata())
        except ValueError as error:
            raise ArtifactError(f"{path}: damaged file: its metadata is not JSON: {error}") from error
        self._describe(metadata, str(path))
        self._context()  # refuses missing CPU features now, not at the first call

    def _context(self) -> _Context:
        context = getattr(self._local, "context", None)
        if context is None or self._closed:
            with self._lock:
                if self._closed:
                    raise ArtifactError(f"{self.path}: this library has been closed")
                context = self._local.context = _Context(self)
                self._contexts.add(context)
        return context

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return self._context().run(arrays, out)

    def profile_raw(self, *args: Any, **kwargs: Any) -> list[KernelTime]:
        """Run once with the kernels' clocks on: launches and nanoseconds of each kernel, in the metadata's order."""
        context = self._context()
        names = [k["name"] if isinstance(k, dict) else str(k) for k in self.metadata.get("kernels", [])]
        nanoseconds, calls = (ctypes.c_uint64 * len(names))(), (ctypes.c_uint64 * len(names))()
        context.check(context.native.tw_profile_enable(context.handle, 1))
        try:
            self(*args, **kwargs)
            context.check(context.native.tw_profile_read(context.handle, nanoseconds, calls, len(names)))
        finally:
            context.native.tw_profile_enable(context.handle, 0)
        return [KernelTime(*row) for row in zip(names, calls, nanoseconds, strict=True)]

    def save(self, path: str | Path) -> Path:
        """Copy the artifact, with the C header beside it."""
        from tilewright.artifact.package import copy_whole
        from tilewright.artifact.sources import HEADER

        path = Path(path)
        copy_whole(self.path, path)
        copy_whole(HEADER, path.with_name(HEADER.name))
        return path

    def close(self) -> None:
        """Free all contexts. No other thread may be in a call. The code itself stays mapped until the process ends."""
        with self._lock:
            self._closed = True
            for context in list(self._contexts):
                context.destroy()
            self._contexts.clear()

    def __repr__(self) -> str:
        signature = ", ".join(f"{s.name}: {s.dtype}[{', '.join(map(str, s.shape))}]" for s in self.inputs)
        return f"Library({str(self.path)!r}, {signature})"


def _open(path: Path) -> ctypes.CDLL:
    if struct.calcsize("P") != 8:
        raise ArtifactError(f"{path}: native artifacts need a 64-bit Python")
    try:
        native = ctypes.CDLL(str(path.resolve()), mode=getattr(ctypes, "RTLD_LOCAL", 0))
    except OSError as error:
        raise ArtifactError(f"{path}: the system cannot load it (compiled for another target?): {error}") from error
    void, count = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "tw_abi_version": (count, []),
        "tw_create": (ctypes.c_int, [void, void]),
        "tw_destroy": (None, [void]),
        "tw_run": (ctypes.c_int, [void, void, count, void, count]),
        "tw_output_shapes": (ctypes.c_int, [void, void, count, void, count]),
        "tw_metadata": (ctypes.c_char_p, []),
        "tw_last_error": (ctypes.c_char_p, []),
        "tw_profile_enable": (ctypes.c_int, [void, ctypes.c_int]),
        "tw_profile_read": (ctypes.c_int, [void, void, void, count]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(native, name)
        except AttributeError:
            raise ArtifactError(f"{path}: not a Tilewright artifact: it does not export {name}") from None
        function.restype, function.argtypes = result, arguments
    return native
