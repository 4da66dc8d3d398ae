"""Contexts of a native library, and the calls of its functions in a context."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifact.sources import ABI_VERSION
from tilewright.errors import ArtifactError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.model import CompiledModel, exception_for
from tilewright.runtime.native_code import NativeCode, written_over
from tilewright.runtime.result_memory import LEAST_BYTES, ResultMemory
from tilewright.runtime.tensors import DTYPES, NUMPY, Border, border_of, torch_has

_TENSOR = struct.Struct(
    "=QiiiBBHQQQ"
)  # DLTensor of a 64-bit system: data, device, ndim, dtype, shape, strides, offset
_CPU = 1
HOST = (_CPU, 0)
"""DLPack's type and number of the CPU's memory."""
_SKIP_VERIFY = 1
_PIN_THREADS = 2
_VERIFY_FILE = 4
_NO_GRAPHS = 1
_LEGACY_STREAM = 1
_SOMEWHERE = 64  # stands for an address that is not read
_SHAPES_KEPT = 64  # combinations of input shapes for which a context keeps the checked call


class ContextOptions(ctypes.Structure):
    """`tw_options` of the C interface."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("num_threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weights_size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("weights_path", ctypes.c_char_p),
    ]


class DeviceOptions(ctypes.Structure):
    """`tw_device_options` of the C interface."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("index", ctypes.c_int32),
        ("driver", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("allocator_data", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]

    def __init__(
        self,
        index: int = 0,
        driver: str | None = None,
        stream: int | None = None,
        graphs: bool = True,
    ) -> None:
        """Choose a device.

        Args:
            index: Its number.
            driver: The driver's library; None: the default.
            stream: A stream of the caller's, by its address; 0 is the legacy default stream. None: one of
                the context's own.
            graphs: Whether runs that repeat become graphs.
        """
        name = None if driver is None else os.fsencode(driver)
        handle = _LEGACY_STREAM if stream == 0 else stream
        flags = 0 if graphs else _NO_GRAPHS
        super().__init__(ctypes.sizeof(DeviceOptions), index, name, handle, None, None, None, flags)


class Binding:
    """A `tw_binding`: a run whose data types and shapes have been checked. Further runs differ in the
    tensors' addresses only.

    `inputs` and `outputs` are data types and shapes. With `outputs`, those are compared with the shapes that
    the model computes from the inputs. `places` are the type and number of the device of each tensor, inputs
    before outputs, as DLPack has them; None: all are in the CPU's memory.

    Raises:
        ShapeError: The model takes or returns other data types or shapes.
    """

    def __init__(
        self,
        calls: Calls,
        inputs: Sequence[tuple[np.dtype, tuple[int, ...]]],
        outputs: Sequence[tuple[np.dtype, tuple[int, ...]]] = (),
        places: Sequence[tuple[int, int]] | None = None,
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
            # Only tensors with an address have their shapes compared; the real addresses are written before
            # each run.
            address = 0 if index < num_inputs else _SOMEWHERE
            place = HOST if places is None else places[index]
            fields = (address, *place, len(shape), code, bits, 1, start + at, 0, 0)
            _TENSOR.pack_into(block, index * _TENSOR.size, *fields)
            at += 8 * len(shape)
        for index in range(len(tensors), count if places is not None else 0):
            assert places is not None
            fields = (0, *places[index], 0, 0, 0, 0, 0, 0, 0)
            _TENSOR.pack_into(block, index * _TENSOR.size, *fields)
        self.memory = (ctypes.c_uint64 * -(-native.tw_binding_size() // 8))()
        self.pointer = ctypes.addressof(self.memory)
        described = start + num_inputs * _TENSOR.size
        bind = native.tw_function_bind
        calls.check(bind(calls.handle, calls.index, start, num_inputs, described, len(dtypes), self.pointer))
        self.addresses = (ctypes.c_uint64 * count).from_address(self.memory[1])
        """Addresses of the elements of the inputs, then of the outputs."""
        self.outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        """Shape and data type of each output."""
        for index, dtype in enumerate(dtypes, num_inputs):
            fields = _TENSOR.unpack_from(block, index * _TENSOR.size)
            rank, where = fields[3], fields[7]
            self.outputs.append((tuple((ctypes.c_int64 * rank).from_address(where)) if rank else (), dtype))
        self.out_shapes = tuple([shape for shape, _ in self.outputs])
        made = [(dtype, shape) for shape, dtype in self.outputs]
        self.sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in (*inputs, *made)]
        """Size of each tensor in bytes."""
        self.large = any(size >= LEAST_BYTES for size in self.sizes[num_inputs:])
        """Whether a result is so large that its memory is kept."""

    def outputs_overlap(self) -> bool:
        """Whether an output shares memory with another tensor, by the addresses that were written last."""
        first_output = len(self.sizes) - len(self.outputs)
        spans = sorted(
            (start, start + size, k >= first_output)
            for k, (start, size) in enumerate(zip(self.addresses, self.sizes, strict=True))
            if size
        )
        # Inputs may share memory with each other, so the ends of outputs are kept apart.
        end = end_of_outputs = 0
        for start, stop, is_output in spans:
            if start < (end if is_output else end_of_outputs):
                return True
            end = max(end, stop)
            if is_output:
                end_of_outputs = max(end_of_outputs, stop)
        return False


class OpenFile:
    """An open file that keeps its contents when another file takes its place: `name` is a path to it as long
    as this object lives.

    Raises:
        ArtifactError: The file cannot be opened.
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
    """A `tw_context`: working memory and worker threads of one library. It serves one thread at a time."""

    def __init__(
        self,
        native: NativeCode,
        weights: np.ndarray | Path | None,
        file: OpenFile | None,
        *,
        num_threads: int = 0,
        pin_threads: bool = False,
        check_weights: bool = False,
        device: DeviceOptions | None = None,
    ) -> None:
        """Create a context of the library's code.

        Args:
            native: The library's code.
            weights: The weights that the library's file does not hold: bytes, or the path of a file.
            file: That file, open.
            num_threads: The most threads that a run uses; 0: all cores.
            pin_threads: Bind each worker thread to a core.
            check_weights: Compare the checksum of the file of weights.
            device: The device, for a library that was compiled for one.

        Raises:
            ArtifactError: this processor lacks a feature, or the weights are not those of the library.
        """
        self.native = native
        self.after_error: dict[str, Callable[[], None]] = {}
        """Called by name before the error of a run is raised: they end what the run has left unfinished."""
        self.check = partial(check, self.native, self.after_error)
        # The trailer's checksum covers embedded weights; the compiler's own are trusted.
        flags = _SKIP_VERIFY | (_PIN_THREADS if pin_threads else 0)
        flags |= _VERIFY_FILE if check_weights else 0
        options = ContextOptions(ABI_VERSION, num_threads, None, 0, flags, None)
        self.weights, self.file = weights, file  # they have to live as long as the context
        if file is not None:
            options.weights_path = file.name.encode() if sys.platform == "win32" else os.fsencode(file.name)
        elif isinstance(weights, np.ndarray):
            options.weights, options.weights_size = weights.ctypes.data, weights.nbytes
        handle = ctypes.c_void_p()
        self.device = device
        if device is None:
            status = self.native.tw_create(ctypes.byref(options), ctypes.byref(handle))
        else:
            create = self.native.tw_create_on
            status = create(ctypes.byref(options), ctypes.byref(device), ctypes.byref(handle))
        if status:
            message = self.native.tw_last_error().decode(errors="replace")
            raise exception_for(
                status, message if file is None else message.replace(file.name, str(file.path), 1)
            )
        self.handle = handle
        # The context is destroyed once, when the library is closed or the thread ends. The end of the process
        # does not destroy it, because a daemon thread may still be in a call.
        self.destroy = weakref.finalize(self, _destroy, self.native, ctypes.c_void_p(handle.value))
        self.destroy.atexit = False
        self.bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()
        self._calls: dict[int, Calls] = {}

    def calls(self, function: CompiledModel, index: int) -> Calls:
        """The calls of the function of this number."""
        calls = self._calls.get(index)
        if calls is None:
            calls = self._calls[index] = Calls(self, function, index)
        return calls

    def _state(self, index: int, size: int) -> np.ndarray:
        described = ctypes.create_string_buffer(_TENSOR.size)
        self.check(self.native.tw_state(self.handle, index, ctypes.addressof(described)))
        address = _TENSOR.unpack(described)[0]
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def view_state(self, index: int, size: int) -> np.ndarray:
        if self.device is not None:
            raise TypeError("the states of a device cannot be viewed: read and write them")
        return self._state(index, size)

    def read_state(self, index: int, size: int) -> np.ndarray:
        if self.device is None:
            return self._state(index, size).copy()
        data = np.empty(size, np.uint8)
        self.check(self.native.tw_state_read(self.handle, index, data.ctypes.data, size))
        return data

    def write_state(self, index: int, data: np.ndarray) -> None:
        if self.device is None:
            self._state(index, data.size)[...] = data
            return
        data = np.ascontiguousarray(data)
        self.check(self.native.tw_state_write(self.handle, index, data.ctypes.data, data.size))

    def reset_states(self) -> None:
        self.check(self.native.tw_reset(self.handle))


def _destroy(native: NativeCode, handle: ctypes.c_void_p) -> None:
    if not written_over(native.file, native.of):
        native.tw_destroy(handle)


def check(native: NativeCode, after_error: Mapping[str, Callable[[], None]], status: int) -> None:
    """Raise the exception for a status of the C interface other than 0, after the calls of `after_error`."""
    if status:
        error = exception_for(status, native.explain(native.tw_last_error().decode(errors="replace")))
        for end in after_error.values():
            end()
        raise error


class Calls:
    """The calls of one function in one context."""

    def __init__(self, context: Context, function: CompiledModel, index: int) -> None:
        # A reference to the context itself would keep it, and its memory, alive after its last user.
        self.native, self.handle, self.index = context.native, context.handle, index
        self.check, self.run_bound = context.check, context.native.tw_run_bound
        self.in_dtypes, self.out_dtypes = list(function._dtypes), function._output_dtypes
        self.num_inputs = len(function.inputs)
        self.late = function._late
        self.plain = not self.late and not function._updated and all(map(torch_has, self.out_dtypes))
        """Whether results may be written into tensors of the caller's library."""
        self.known: dict[tuple[tuple[int, ...], ...], Binding] = {}
        """Checked calls by the shapes of the inputs."""
        self.placed: dict[Any, Binding] = {}
        """Checked calls with tensors on a device, by types, shapes and places."""
        self.kept = _SHAPES_KEPT
        self.memory = ResultMemory()

    def run(self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray] | None) -> Sequence[np.ndarray]:
        """Run on NumPy arrays of any data types and shapes; the model's own check refuses wrong ones."""
        if self.late:
            return self.run_late([(a.dtype, a.shape, a.ctypes.data, HOST) for a in arrays])
        return self.invoke(self.binding_for(arrays, out), arrays, NUMPY, out)

    def run_late(
        self, inputs: Sequence[tuple[np.dtype, tuple[int, ...], int, tuple[int, int]]]
    ) -> list[np.ndarray]:
        """Run where outputs have sizes known at the end of the run; they are copied from the context's
        memory. `inputs` are data types, shapes, addresses, and places as `Binding` has them.
        """
        count = len(inputs)
        tensors = [*inputs, *((d, (), 0, HOST) for d in self.out_dtypes)]
        block = ctypes.create_string_buffer(
            _TENSOR.size * len(tensors) + 8 * sum(len(s) for _, s, _, _ in tensors) + 8
        )
        start = ctypes.addressof(block)
        at = _TENSOR.size * len(tensors)
        for index, (dtype, shape, address, place) in enumerate(tensors):
            code, bits = DTYPES[dtype]
            fields = (address, *place, len(shape), code, bits, 1, start + at, 0, 0)
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
            result = np.empty(tuple((ctypes.c_int64 * rank).from_address(where)) if rank else (), dtype)
            ctypes.memmove(result.ctypes.data, address, result.nbytes)
            results.append(result)
        return results

    def run_known(self, values: tuple[Any, ...], out: object = None) -> Sequence[Any] | None:
        """Run with inputs whose shapes have been checked in an earlier call; None where that does not
        apply.
        """
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
        """Run with plain inputs of the binding's shapes; fill `out`, plain tensors, or new ones."""
        if out is None:
            out = self._new_results(binding, border)
        border.write_addresses(binding.addresses, (*values, *out))
        if status := self.run_bound(binding.pointer):
            self.check(status)
        return out

    def _new_results(self, binding: Binding, border: Border) -> list[Any]:
        if not binding.large:
            empty = border.empty
            return [empty(shape, dtype) for shape, dtype in binding.outputs]
        kept = [self.memory.empty(k, *described) for k, described in enumerate(binding.outputs)]
        pairs = zip(kept, binding.outputs, strict=True)
        return [border.empty(*described) if k is None else border.around(k) for k, described in pairs]

    def binding_for(self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray] | None = None) -> Binding:
        """The binding of a call with these inputs. Outputs like `out` are compared with the model's."""
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


__all__ = ["HOST", "Binding", "Calls", "Context", "ContextOptions", "DeviceOptions"]
