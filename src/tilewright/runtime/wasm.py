"""`WasmLibrary`: a WebAssembly artifact run by wasmtime, with the interface of `Library`.

The module has its own linear memory with 4-byte pointers, so tensors are copied in and out. One instance
serves one call at a time: calls take a lock.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifact.kinds import suffixes_of
from tilewright.artifact.sources import ABI_VERSION
from tilewright.artifact.trailer import fingerprint, parse_metadata, verify_file
from tilewright.artifact.weights import find_beside, read_weights
from tilewright.errors import ArtifactError, TilewrightError
from tilewright.runtime.model import CompiledModel, LibraryFunction, exception_for
from tilewright.runtime.save_copy import Saved
from tilewright.runtime.tensors import DTYPES
from tilewright.runtime.wasm_instance import WasmInstance

_TENSOR = struct.Struct("<IiiiBBHII4xQ")  # DLTensor of wasm32
_OPTIONS = struct.Struct("<IiI4xQII")  # tw_options of wasm32
_CPU = 1
_SKIP_VERIFY = 1


class WasmLibrary(CompiledModel):
    """A compiled model in a ``.wasm`` file.

    Args:
        path: The ``.wasm`` file.
        weights: The weights, where the file does not hold them: one array of bytes, or the path of a file.
            The default is the file that was saved with the library.
        num_threads: The threads that run a module compiled for threads; 0: as many as processors. Other
            modules run on one.

    Raises:
        ArtifactError: Wasmtime is not installed, or the file is not an artifact, is damaged, or is of another
            version.
    """

    index = 0
    """The number of its main function at run time."""

    def __init__(
        self, path: str | Path, *, weights: np.ndarray | str | Path | None = None, num_threads: int = 0
    ) -> None:
        self.path = Path(path).absolute()
        verify_file(self.path)
        self._fingerprint = fingerprint(self.path)
        self._instance = WasmInstance(self.path, num_threads)
        self._call, self._view = self._instance.call, self._instance.view
        self.num_threads = self._instance.threads
        version = self._call("tw_abi_version")
        if version != ABI_VERSION:
            raise ArtifactError(
                f"{path}: its C interface is version {version}, this Tilewright supports version "
                f"{ABI_VERSION}: compile the model again"
            )
        self._describe(parse_metadata(path, self._text("tw_metadata").encode()), str(path))
        self._weights_file: Path | None = None
        if not isinstance(weights, np.ndarray):
            file = find_beside(self.path, self.metadata) if weights is None else Path(weights).absolute()
            self._weights_file = file
            weights = None if file is None else read_weights(file, self.metadata)
        self._context = self._create(weights)
        self._ended = weakref.finalize(self, _end, self._instance, self._context)
        self._ended.atexit = False  # the process frees everything

    def _checked(self, name: str, *arguments: int) -> None:
        status = self._call(name, *arguments)
        if status:
            raise exception_for(status, self._text("tw_last_error"))

    def _text(self, function: str) -> str:
        pointer = self._call(function) & 0xFFFFFFFF
        data = self._view(pointer, self._instance.memory_bytes - pointer)
        end = 256
        while (zeros := np.flatnonzero(data[:end] == 0)).size == 0 and end < data.size:
            end *= 4
        return data[: zeros[0]].tobytes().decode()

    def _place(self, data: bytes | np.ndarray) -> int:
        """Copy bytes into newly allocated linear memory; return the address, which tw_free takes."""
        source = np.frombuffer(data, np.uint8)
        pointer = self._call("tw_alloc", max(source.nbytes, 1)) & 0xFFFFFFFF
        if not pointer:
            raise TilewrightError(
                f"{self.path}: out of WebAssembly memory for an input of {source.nbytes} bytes"
            )
        self._view(pointer, source.nbytes)[:] = source
        return pointer

    def _create(self, weights: np.ndarray | None) -> int:
        held = 0 if weights is None else self._place(weights)  # allocated for the life of the instance
        size = 0 if weights is None else weights.nbytes
        options = self._place(_OPTIONS.pack(ABI_VERSION, self.num_threads, held, size, _SKIP_VERIFY, 0))
        slot = self._place(bytes(4))
        self._checked("tw_create", options, slot)
        context = int(self._view(slot, 4).view(np.uint32)[0])
        self._call("tw_free", options)
        self._call("tw_free", slot)
        return context

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        text = self._place(name.encode() + b"\0")
        index = self._call("tw_function_index", text)
        self._call("tw_free", text)
        return LibraryFunction(self, name, index, entry)

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return self._execute_function(self, arrays, out)

    def _execute_function(
        self, function: CompiledModel, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None
    ) -> list[np.ndarray]:
        with self._turn:
            if not self._context:
                raise ArtifactError(f"{self.path}: this library has been closed")
            held: list[int] = []
            try:
                return self._run(function, arrays, out, held)
            finally:
                for pointer in held:
                    self._call("tw_free", pointer)

    def _run(
        self, function: Any, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None, held: list[int]
    ) -> list[np.ndarray]:
        count, results_count = len(arrays), len(function.outputs)
        tensors = bytearray(_TENSOR.size * (count + results_count))
        for index, array in enumerate(arrays):
            held.append(data := self._place(array.reshape(-1).view(np.uint8)))
            held.append(shape := self._place(np.array(array.shape, np.int64).view(np.uint8)))
            code, bits = DTYPES[array.dtype]
            row = (data, _CPU, 0, array.ndim, code, bits, 1, shape, 0, 0)
            _TENSOR.pack_into(tensors, index * _TENSOR.size, *row)
        held.append(at := self._place(bytes(tensors)))
        outputs = at + count * _TENSOR.size
        self._checked("tw_function_run", self._context, function.index, at, count, outputs, results_count)
        results = []
        for index, (spec, dtype) in enumerate(zip(function.outputs, function._output_dtypes, strict=True)):
            row = _TENSOR.unpack(self._view(outputs + index * _TENSOR.size, _TENSOR.size).tobytes())
            sizes: tuple[int, ...] = tuple(self._view(row[7], 8 * row[3]).view(np.int64).tolist())
            size = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
            result = self._view(row[0], size).copy().view(dtype).reshape(sizes)
            if out is not None:
                if out[index].shape != sizes or out[index].dtype != dtype:
                    got = f"{out[index].dtype}{list(out[index].shape)}"
                    raise exception_for(
                        2, f"output '{spec.name}': expected {dtype.name}{list(sizes)}, got {got}"
                    )
                out[index][...] = result
            results.append(result)
        for index in function._updated:
            arrays[index][...] = (
                self._view(held[2 * index], arrays[index].nbytes)
                .view(arrays[index].dtype)
                .reshape(arrays[index].shape)
            )
        return results

    def _state_memory(self) -> WasmLibrary:
        return self

    def _state(self, index: int, size: int) -> np.ndarray:
        if not self._context:
            raise ArtifactError(f"{self.path}: this library has been closed")
        described = self._place(bytes(_TENSOR.size))
        self._checked("tw_state", self._context, index, described)
        data = _TENSOR.unpack(self._view(described, _TENSOR.size).tobytes())[0]
        self._call("tw_free", described)
        return self._view(data, size)

    def read_state(self, index: int, size: int) -> np.ndarray:
        """A copy of a state's bytes, uint8 of shape (size).

        Args:
            index: The state's number in the metadata.
            size: The size of the state in bytes.

        Raises:
            ArtifactError: The library has been closed.
            TilewrightError: There is no such state, or WebAssembly has no memory.
        """
        return self._state(index, size).copy()

    def write_state(self, index: int, data: np.ndarray) -> None:
        """Replace a state's bytes.

        Args:
            index: The state's number in the metadata.
            data: The new bytes, uint8 of the shape (size) of the whole state.

        Raises:
            ArtifactError: The library has been closed.
            TilewrightError: There is no such state, or WebAssembly has no memory.
        """
        self._state(index, data.size)[...] = data

    def reset_states(self) -> None:
        """Give all states their first values again."""
        self._checked("tw_reset", self._context)

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Copy the artifact, with the C header beside it, and the file of its weights if there is one."""
        file = Saved(
            self.path, self._fingerprint, self._weights_file, suffixes_of("wasm32"), "wasm32", self.metadata
        )
        return file.copy_to(Path(path), weights, prefix, self.origin)

    def close(self) -> None:
        """Free the context; the instance is freed with this object.

        Raises:
            TilewrightError: The code inside WebAssembly fails.
        """
        with self._turn:
            self._context = 0
            self._ended()

    def __repr__(self) -> str:
        return f"WasmLibrary({str(self.path)!r})"


def _end(instance: WasmInstance, context: int) -> None:
    instance.call("tw_destroy", context)
    instance.end_threads()
