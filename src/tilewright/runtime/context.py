"""Contexts of a native library, and the calls of its functions that they have made."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.artifact.sources import ABI_VERSION
from tilewright.errors import ArtifactError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.model import CompiledModel, exception_for
from tilewright.runtime.native_code import NativeCode, written_over
from tilewright.runtime.tensors import DTYPES, NUMPY, Border, border_of

if TYPE_CHECKING:
    from tilewright.runtime.library import Library

_TENSOR = struct.Struct("=QiiiBBHQQQ")  # DLTensor of a 64-bit system: data, device, ndim, dtype, shape, strides, offset
_CPU = 1
_SKIP_VERIFY = 1
_PIN_THREADS = 2
_VERIFY_FILE = 4
_SOMEWHERE = 64  # stands for an address that is not read
_SHAPES_KEPT = 64  # combinations of input shapes whose calls a context remembers


class Options(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("num_threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weights_size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("weights_path", ctypes.c_char_p),
    ]


class Binding:
    """A `tw_binding`: a run whose data types and shapes have been checked. Further runs differ in the tensors' addresses alone.

    `tensors`: data type and shape of each input; with `outputs`, of each output too, to be compared with what the model
    makes of the inputs. Raises ShapeError: the model takes or makes others.
    """

    def __init__(
        self,
        calls: Calls,
        inputs: Sequence[tuple[np.dtype, tuple[int, ...]]],
        outputs: Sequence[tuple[np.dtype, tuple[int, ...]]] = (),
    ) -> None:
        native, num_inputs, dtypes = calls.native, calls.num_inputs, calls.out_dtypes
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
        bind = native.tw_function_bind
        calls.check(bind(calls.handle, calls.index, start, num_inputs, described, len(dtypes), self.pointer))
        self.addresses = (ctypes.c_uint64 * count).from_address(self.memory[1])
        """Where the elements of the inputs lie, then of the outputs."""
        self.outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        """Shape and data type of each output."""
        for index, dtype in enumerate(dtypes, num_inputs):
            fields = _TENSOR.unpack_from(block, index * _TENSOR.size)
            rank, where = fields[3], fields[7]
            self.outputs.append((tuple((ctypes.c_int64 * rank).from_address(where)) if rank else (), dtype))
        self.out_shapes = tuple([shape for shape, _ in self.outputs])
        made = [(dtype, shape) for shape, dtype in self.outputs]
        self.sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in (*inputs, *made)]
        """Bytes of each tensor."""

    def outputs_overlap(self) -> bool:
        """Whether an output shares memory with another tensor, by the addresses that were written last."""
        spans = list(zip(self.addresses, self.sizes, strict=True))
        for k in range(len(spans) - len(self.outputs), len(spans)):
            start, size = spans[k]
            for other, its in spans[:k]:
                if start < other + its and other < start + size:
                    return True
        return False


class OpenFile:
    """A file that stays what it is when another takes its place: `name` is a path to it for as long as this object is.

    Raises ArtifactError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ArtifactError(f"{path}: the weights cannot be read: {error.strerror or error}") from error
        if os.path.exists(f"/dev/fd/{handle}"):
            self.name = f"/dev/fd/{handle}"
            weakref.finalize(self, os.close, handle)
        else:
            os.close(handle)


class Context:
    """A `tw_context`. Serves one thread at a time."""

    def __init__(self, library: Library) -> None:
        self.native = library._native
        self.check = partial(check, self.native)
        # The trailer's checksum covers embedded weights; the compiler's own are trusted.
        flags = _SKIP_VERIFY | (_PIN_THREADS if library.pin_threads else 0)
        flags |= _VERIFY_FILE if library.check_weights else 0
        options = Options(ABI_VERSION, library.num_threads, None, 0, flags, None)
        self.weights, file = library.weights, library.weights_file  # to live as long as this
        if file is not None:
            options.weights_path = file.name.encode() if sys.platform == "win32" else os.fsencode(file.name)
        elif isinstance(self.weights, np.ndarray):
            options.weights, options.weights_size = self.weights.ctypes.data, self.weights.nbytes
        handle = ctypes.c_void_p()
        if status := self.native.tw_create(ctypes.byref(options), ctypes.byref(handle)):
            message = self.native.tw_last_error().decode(errors="replace")
            raise exception_for(status, message if file is None else message.replace(file.name, str(file.path), 1))
        self.handle = handle
        # Closing the library, or the end of the thread, destroys the context, but only once.
        self.destroy = weakref.finalize(self, _destroy, self.native, ctypes.c_void_p(handle.value))
        self.bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()
        self._calls: dict[int, Calls] = {}

    def calls(self, function: CompiledModel, index: int) -> Calls:
        """The calls of the library's function of this number."""
        found = self._calls.get(index)
        if found is None:
            found = self._calls[index] = Calls(self, function, index)
        return found

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


def _destroy(native: NativeCode, handle: ctypes.c_void_p) -> None:
    if not written_over(native.file, native.of):
        native.tw_destroy(handle)


def check(native: NativeCode, status: int) -> None:
    """Raise what a status of the C interface stands for."""
    if status:
        raise exception_for(status, native.tw_last_error().decode(errors="replace"))


class Calls:
    """The calls of one function in one context."""

    def __init__(self, context: Context, function: CompiledModel, index: int) -> None:
        # Not the context itself: it goes with its last user, and its memory with it.
        self.native, self.handle, self.index = context.native, context.handle, index
        self.check, self.run_bound = context.check, context.native.tw_run_bound
        self.in_dtypes, self.out_dtypes = list(function._dtypes), function._output_dtypes
        self.num_inputs = len(function.inputs)
        self.late = function._late
        self.plain = not self.late and not function._updated and all(DTYPES[dtype][1] >= 8 for dtype in self.out_dtypes)
        """Whether results may be written into tensors of the caller's library: torch has no elements of fewer than 8 bits."""
        self.known: dict[tuple[tuple[int, ...], ...], Binding] = {}
        """By the shapes of inputs that were of the model's data types and accepted."""

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
        run = self.native.tw_function_run
        self.check(run(self.handle, self.index, start, count, outputs, len(self.out_dtypes)))
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
            border.write_addresses(binding.addresses, (*values, *out))
            if binding.outputs_overlap():
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


__all__ = ["Binding", "Calls", "Context", "Options"]
