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
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from tilewright.artifact.sources import ABI_VERSION
from tilewright.artifact.trailer import verify_file
from tilewright.errors import ArtifactError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.model import CompiledModel, KernelTime, exception_for
from tilewright.runtime.tensors import DTYPES, NUMPY, Border, border_of

_TENSOR = struct.Struct("=QiiiBBHQQQ")  # DLTensor of a 64-bit system: data, device, ndim, dtype, shape, strides, offset
_CPU = 1
_SKIP_VERIFY = 1
_PIN_THREADS = 2
_SOMEWHERE = 64  # stands for an address that is not read
_SHAPES_KEPT = 64  # combinations of input shapes whose calls a context remembers


class _Options(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("num_threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weights_size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
    ]


class Binding:
    """A `tw_binding`: a run whose data types and shapes have been checked. Further runs differ in the tensors' addresses alone.

    `tensors`: data type and shape of each input; with `outputs`, of each output too, to be compared with what the model
    makes of the inputs. Raises ShapeError: the model takes or makes others.
    """

    def __init__(
        self,
        context: _Context,
        inputs: Sequence[tuple[np.dtype, tuple[int, ...]]],
        outputs: Sequence[tuple[np.dtype, tuple[int, ...]]] = (),
    ) -> None:
        native, num_inputs, dtypes = context.native, context.num_inputs, context.out_dtypes
        tensors = [*inputs, *outputs]
        count = num_inputs + len(dtypes)
        dims = [size for _, shape in tensors for size in shape]
        block = ctypes.create_string_buffer(_TENSOR.size * count + 8 * len(dims) + 8)
        start = ctypes.addressof(block)
        at = _TENSOR.size * count
        struct.pack_into(f"={len(dims)}q", block, at, *dims)
        for index, (dtype, shape) in enumerate(tensors):
            code, bits = DTYPES[dtype]
            # Only tensors with an address have their shapes compared; the real ones are written before each run.
            address = 0 if index < num_inputs else _SOMEWHERE
            fields = (address, _CPU, 0, len(shape), code, bits, 1, start + at, 0, 0)
            _TENSOR.pack_into(block, index * _TENSOR.size, *fields)
            at += 8 * len(shape)
        self.memory = (ctypes.c_uint64 * -(-native.tw_binding_size() // 8))()
        self.pointer = ctypes.addressof(self.memory)
        described = start + num_inputs * _TENSOR.size
        context.check(native.tw_bind(context.handle, start, num_inputs, described, len(dtypes), self.pointer))
        self.addresses = (ctypes.c_uint64 * count).from_address(self.memory[1])
        """Where the elements of the inputs lie, then of the outputs."""
        self.outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        """Shape and data type of each output."""
        for index, dtype in enumerate(dtypes, num_inputs):
            fields = _TENSOR.unpack_from(block, index * _TENSOR.size)
            rank, where = fields[3], fields[7]
            self.outputs.append((tuple((ctypes.c_int64 * rank).from_address(where)) if rank else (), dtype))
        self.out_shapes = tuple([shape for shape, _ in self.outputs])


class _Context:
    """A `tw_context` and the calls it has made. Serves one thread."""

    def __init__(self, library: Library) -> None:
        self.native = library._native
        self.run_bound = self.native.tw_run_bound
        self.in_dtypes, self.out_dtypes = list(library._dtypes), library._output_dtypes
        # The trailer's checksum covers embedded weights; the compiler's own are trusted.
        flags = _SKIP_VERIFY | (_PIN_THREADS if library.pin_threads else 0)
        options = _Options(ABI_VERSION, library.num_threads, None, 0, flags)
        self.weights = library._weights  # to live as long as this
        if self.weights is not None:
            options.weights, options.weights_size = self.weights.ctypes.data, self.weights.nbytes
        handle = ctypes.c_void_p()
        self.check(self.native.tw_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        # Closing the library, or the end of the thread, destroys the context, but only once.
        self.destroy = weakref.finalize(self, self.native.tw_destroy, ctypes.c_void_p(handle.value))
        self.num_inputs = len(library.inputs)
        self.late = library._late
        self.plain = not self.late and not library._updated and all(DTYPES[dtype][1] >= 8 for dtype in self.out_dtypes)
        """Whether results may be written into tensors of the caller's library: torch has no elements of fewer than 8 bits."""
        self.known: dict[tuple[tuple[int, ...], ...], Binding] = {}
        """By the shapes of inputs that were of the model's data types and accepted."""
        self.bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()

    def _state(self, index: int, size: int) -> np.ndarray:
        described = ctypes.create_string_buffer(_TENSOR.size)
        self.check(self.native.tw_state(self.handle, index, ctypes.addressof(described)))
        address = _TENSOR.unpack(described)[0]
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def read_state(self, index: int, size: int) -> np.ndarray:
        return self._state(index, size).copy()

    def write_state(self, index: int, data: np.ndarray) -> None:
        self._state(index, data.size)[...] = data

    def reset_states(self) -> None:
        self.check(self.native.tw_reset(self.handle))

    def check(self, status: int) -> None:
        if status:
            raise exception_for(status, self.native.tw_last_error().decode())

    def run(self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray] | None) -> Sequence[np.ndarray]:
        """One run on NumPy arrays of any data types and shapes; the model's own check refuses them."""
        if self.late:
            return self.run_late(arrays)
        return self.invoke(self.binding_for(arrays, out), arrays, NUMPY, out)

    def run_late(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One run whose outputs' sizes are known at its end: the context's memory is copied."""
        count = len(arrays)
        tensors = [*((a.dtype, a.shape, a.ctypes.data) for a in arrays), *((d, (), 0) for d in self.out_dtypes)]
        block = ctypes.create_string_buffer(_TENSOR.size * len(tensors) + 8 * sum(len(s) for _, s, _ in tensors) + 8)
        start = ctypes.addressof(block)
        at = _TENSOR.size * len(tensors)
        for index, (dtype, shape, address) in enumerate(tensors):
            code, bits = DTYPES[dtype]
            fields = (address, _CPU, 0, len(shape), code, bits, 1, start + at, 0, 0)
            _TENSOR.pack_into(block, index * _TENSOR.size, *fields)
            struct.pack_into(f"={len(shape)}q", block, at, *shape)
            at += 8 * len(shape)
        outputs = start + count * _TENSOR.size
        self.check(self.native.tw_run(self.handle, start, count, outputs, len(self.out_dtypes)))
        results = []
        for index, dtype in enumerate(self.out_dtypes, count):
            fields = _TENSOR.unpack_from(block, index * _TENSOR.size)
            address, rank, where = fields[0], fields[3], fields[7]
            found = np.empty(tuple((ctypes.c_int64 * rank).from_address(where)) if rank else (), dtype)
            ctypes.memmove(found.ctypes.data, address, found.nbytes)
            results.append(found)
        return results

    def run_known(self, values: tuple[Any, ...], out: Any = None) -> Sequence[Any] | None:
        """One run with inputs of shapes that have been seen before, None when anything is out of the ordinary."""
        border = border_of(type(values[0])) if len(values) == self.num_inputs > 0 and self.plain else None
        shapes = None if border is None else border.plain_shapes(values, self.in_dtypes)
        binding = None if shapes is None else self.known.get(shapes)
        if binding is None or border is None:
            return None
        if out is not None:
            out = out if isinstance(out, tuple | list) else (out,)
            if len(out) != len(self.out_dtypes) or not border.writable(out):
                return None
            if border.plain_shapes(out, self.out_dtypes) != binding.out_shapes:
                return None
        return self.invoke(binding, values, border, out)

    def invoke(
        self, binding: Binding, values: Sequence[Any], border: Border, out: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Run with plain inputs of the binding's shapes; `out`: plain tensors to fill instead of new ones."""
        if out is None:
            empty = border.empty
            out = [empty(shape, dtype) for shape, dtype in binding.outputs]
        border.write_addresses(binding.addresses, (*values, *out))
        if status := self.run_bound(binding.pointer):
            self.check(status)
        return out

    def binding_for(self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray] | None = None) -> Binding:
        """The binding of a call with these inputs, and with the outputs that the model makes of them, which `out` are to be like."""
        key = tuple([array.shape for array in arrays])
        inputs = [(array.dtype, array.shape) for array in arrays]
        ordinary = [dtype for dtype, _ in inputs] == self.in_dtypes
        binding = self.known.get(key) if ordinary else None
        if binding is None:
            binding = Binding(self, inputs)
            if len(self.known) >= _SHAPES_KEPT:
                self.known.clear()
            self.known[key] = binding
        if out is not None and [(array.shape, array.dtype) for array in out] != binding.outputs:
            return Binding(self, inputs, [(array.dtype, array.shape) for array in out])
        return binding


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
        self._shared = SimpleNamespace()
        """Of all threads, in place of `_local`, where the context keeps states."""
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
        kept: Any = self._shared if self._keeps else self._local
        context = getattr(kept, "context", None)
        if context is None or self._closed:
            with self._lock:
                if self._closed:
                    self._refuse()
                context = getattr(kept, "context", None) if self._keeps else None
                if context is None:
                    context = _Context(self)
                    kept.context = context
                    self._contexts.add(context)
        return context

    def _state_memory(self) -> _Context:
        return self._context()

    def session(self) -> Library:
        """The same code and weights with states of their own, for independent calls: another conversation, say."""
        library = Library(
            self.path,
            weights=self._weights,
            num_threads=self.num_threads,
            pin_threads=self.pin_threads,
            verify=False,
        )
        library._parent = self
        library.report, library.origin = self.report, self.origin
        return library

    _parent: Library | None = None
    """Whose session this is, which owns the file."""

    def _refuse(self) -> NoReturn:
        raise ArtifactError(f"{self.path}: this library has been closed")

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """As `CompiledModel`; what was called before with such tensors is called without looking at it all again."""
        if self._keeps:
            with self._turn:
                return self._call(args, out, kwargs)
        return self._call(args, out, kwargs)

    def _call(self, args: tuple[Any, ...], out: Any, kwargs: dict[str, Any]) -> Any:
        if not kwargs and self._nested is None:
            results = self._context().run_known(args, out)
            if results is not None:
                return out if out is not None else results[0] if len(results) == 1 else tuple(results)
        return super().__call__(*args, out=out, **kwargs)

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return list(self._context().run(arrays, out))

    def _bound(
        self, inputs: tuple[Any, ...], out: Any, arrays: list[np.ndarray], targets: list[np.ndarray], has_run: bool
    ) -> BoundCall:
        context = self._context()
        given, wanted = ([(array.dtype, array.shape) for array in tensors] for tensors in (arrays, targets))
        binding = Binding(context, given, wanted)
        NUMPY.write_addresses(binding.addresses, (*arrays, *targets))
        run = partial(context.run_bound, binding.pointer)
        call = BoundCall(inputs, out, run, context.check, (context, binding, arrays, targets))
        context.bound.add(call)
        return call

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

        if self._parent is not None:
            return self._parent.save(path)
        path = Path(path)
        copy_whole(self.path, path)
        copy_whole(HEADER, path.with_name(HEADER.name))
        return path

    def close(self) -> None:
        """Free all contexts. No other thread may be in a call. The code itself stays mapped until the process ends."""
        with self._lock:
            self._closed = True
            for context in list(self._contexts):
                for call in context.bound:
                    call.run = self._refuse
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
        "tw_binding_size": (ctypes.c_int64, []),
        "tw_bind": (ctypes.c_int, [void, void, count, void, count, void]),
        "tw_run": (ctypes.c_int, [void, void, count, void, count]),
        "tw_run_bound": (ctypes.c_int, [void]),
        "tw_state": (ctypes.c_int, [void, count, void]),
        "tw_reset": (ctypes.c_int, [void]),
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
