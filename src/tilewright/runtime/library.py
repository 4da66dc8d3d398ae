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
from tilewright.errors import ArtifactError
from tilewright.runtime.model import CompiledModel, KernelTime, exception_for
from tilewright.runtime.tensors import DTYPES, NUMPY, Border, border_of

_TENSOR = struct.Struct("=QiiiBBHQQQ")  # DLTensor of a 64-bit system: data, device, ndim, dtype, shape, strides, offset
_CPU = 1
_SKIP_VERIFY = 1
_PIN_THREADS = 2
_WORDS = _TENSOR.size // 8  # the first of a tensor's words is its address
_SHAPES_KEPT = 64  # combinations of input shapes whose calls a context remembers


class _Options(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("num_threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weights_size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
    ]


class _Call:
    """The descriptors of a call: inputs, then outputs, of these data types and shapes. Calls of equal shapes differ in addresses alone."""

    def __init__(self, tensors: Sequence[tuple[np.dtype, tuple[int, ...]]], num_inputs: int, num_outputs: int) -> None:
        dims = [size for _, shape in tensors for size in shape]
        count = num_inputs + num_outputs
        self.block = ctypes.create_string_buffer(_TENSOR.size * count + 8 * len(dims) + 8)
        start = ctypes.addressof(self.block)
        self.words = (ctypes.c_uint64 * (_WORDS * count)).from_buffer(self.block)
        self.inputs = ctypes.c_void_p(start)
        self.outputs = ctypes.c_void_p(start + num_inputs * _TENSOR.size)
        at = _TENSOR.size * count
        struct.pack_into(f"={len(dims)}q", self.block, at, *dims)
        for index, (dtype, shape) in enumerate(tensors):
            code, bits = DTYPES[dtype]
            fields = (0, _CPU, 0, len(shape), code, bits, 1, start + at, 0, 0)
            _TENSOR.pack_into(self.block, index * _TENSOR.size, *fields)
            at += 8 * len(shape)
        self.out_shapes: tuple[tuple[int, ...], ...] = tuple(shape for _, shape in tensors[num_inputs:])


class _Context:
    """A `tw_context` and the calls it has made. Serves one thread."""

    def __init__(self, library: Library) -> None:
        self.native = library._native
        self.in_dtypes, self.out_dtypes = list(library._dtypes), library._output_dtypes
        # The trailer's checksum covers embedded weights; the compiler's own are trusted.
        flags = _SKIP_VERIFY | (_PIN_THREADS if library.pin_threads else 0)
        options = _Options(ABI_VERSION, library.num_threads, None, 0, flags)
        if library._weights is not None:
            options.weights, options.weights_size = library._weights.ctypes.data, library._weights.nbytes
        handle = ctypes.c_void_p()
        self.check(self.native.tw_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        # Closing the library, or the end of the thread, destroys the context, but only once.
        self.destroy = weakref.finalize(self, self.native.tw_destroy, ctypes.c_void_p(handle.value))
        self.num_inputs, self.num_outputs = len(library.inputs), len(library.outputs)
        self.known: dict[tuple[tuple[int, ...], ...], _Call] = {}
        """By the shapes of inputs that were of the model's data types and accepted."""

    def check(self, status: int) -> None:
        if status:
            raise exception_for(status, self.native.tw_last_error().decode())

    def run(self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray] | None) -> Sequence[np.ndarray]:
        """One run on NumPy arrays of any data types and shapes; the model's own check refuses them."""
        call = self.call_for(arrays)
        if out is None:
            return self.invoke(call, arrays, NUMPY)
        given = [(array.dtype, array.shape) for array in out]
        if given != list(zip(self.out_dtypes, call.out_shapes, strict=True)):
            tensors = [(array.dtype, array.shape) for array in (*arrays, *out)]
            call = _Call(tensors, self.num_inputs, self.num_outputs)
        return self.invoke(call, arrays, NUMPY, out)

    def run_known(self, values: tuple[Any, ...]) -> Sequence[Any] | None:
        """One run with inputs of shapes that have been seen before, None when anything is out of the ordinary."""
        border = border_of(type(values[0])) if len(values) == self.num_inputs > 0 else None
        if border is None or not border.all_plain(values, self.in_dtypes):
            return None
        call = self.known.get(tuple([value.shape for value in values]))
        return None if call is None else self.invoke(call, values, border)

    def invoke(
        self, call: _Call, values: Sequence[Any], border: Border, out: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Run with plain inputs of the call's shapes; `out`: plain tensors to fill instead of new ones."""
        words, address = call.words, border.address
        if out is None:
            out = [border.empty(shape, dtype) for shape, dtype in zip(call.out_shapes, self.out_dtypes, strict=True)]
        at = 0
        for value in values:
            words[at] = address(value)
            at += _WORDS
        for value in out:
            words[at] = address(value)
            at += _WORDS
        self.check(self.native.tw_run(self.handle, call.inputs, self.num_inputs, call.outputs, self.num_outputs))
        return out

    def call_for(self, arrays: Sequence[np.ndarray]) -> _Call:
        """The descriptors of a call with these inputs and the outputs that the model makes of them."""
        key = tuple([array.shape for array in arrays])
        ordinary = [array.dtype for array in arrays] == self.in_dtypes
        if ordinary and (known := self.known.get(key)) is not None:
            return known
        inputs = [(array.dtype, array.shape) for array in arrays]
        asked = _Call(inputs, self.num_inputs, self.num_outputs)
        self.check(
            self.native.tw_output_shapes(self.handle, asked.inputs, self.num_inputs, asked.outputs, self.num_outputs)
        )
        outputs = []
        for index, dtype in enumerate(self.out_dtypes, self.num_inputs):
            fields = _TENSOR.unpack_from(asked.block, index * _TENSOR.size)
            rank, where = fields[3], fields[7]
            outputs.append((dtype, tuple((ctypes.c_int64 * rank).from_address(where)) if rank else ()))
        call = _Call([*inputs, *outputs], self.num_inputs, self.num_outputs)
        if len(self.known) >= _SHAPES_KEPT:
            self.known.clear()
        self.known[key] = call
        return call


class Library(CompiledModel):
    """A compiled model in a shared library, which `tilewright.compile` and `tilewright.load` return.

    `path`: the .so, .dylib or .dll. `weights`: where the file does not carry them, all of them in one array of bytes
    aligned to 64, kept alive by the library. `num_threads`: 0 means all cores; more than there are count as that.
    `pin_threads`: worker threads stay each on a core of its own. `verify`: check the file's trailer before
    anything of it is run; only the compiler, which has just written the file, does without.
    Raises ArtifactError: not an artifact, damaged, of another version, or for another processor.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        weights: np.ndarray | None = None,
        num_threads: int = 0,
        pin_threads: bool = False,
        verify: bool = True,
    ) -> None:
        self.path = Path(path)
        self.pin_threads = pin_threads
        self.num_threads = num_threads
        self._weights = None if weights is None else weights.reshape(-1).view(np.uint8)
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

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """As `CompiledModel`; what was called before with such tensors is called without looking at it all again."""
        if out is None and not kwargs:
            results = self._context().run_known(args)
            if results is not None:
                return results[0] if len(results) == 1 else tuple(results)
        return super().__call__(*args, out=out, **kwargs)

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return list(self._context().run(arrays, out))

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
