"""Instances of a WebAssembly module in wasmtime: one for the thread that runs the model, and one for each
further thread, with the same memory.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ArtifactError, TilewrightError


class WasmInstance:
    """The module in the file `path`, with `threads` threads (0: one for each processor) where it can use
    them.

    Raises:
        ArtifactError: Wasmtime is not installed, or cannot load the module.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        try:
            import wasmtime
        except ImportError:
            raise ArtifactError(f"{path}: running WebAssembly needs wasmtime: pip install wasmtime") from None
        self.path = path
        self._errors = (wasmtime.Trap, wasmtime.WasmtimeError)
        try:
            config = wasmtime.Config()
            config.wasm_threads = True
            config.shared_memory = True
            self._engine = wasmtime.Engine(config)
            self._module = wasmtime.Module.from_file(self._engine, str(path))
            self._shared = self._shared_memory()
            self._store, self._exports = self._instantiate()
        except (AttributeError, *self._errors) as error:
            raise ArtifactError(
                f"{path}: wasmtime cannot load it: {error}; modules with threads or relaxed SIMD need a "
                "recent wasmtime (pip install -U wasmtime), and run in Node and browsers too"
            ) from error
        self._memory = self._shared or self._exports["memory"]
        self._workers: list[threading.Thread] = []
        self.threads = 1
        if self._shared is not None:
            self.threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            self._start(self.threads - 1)

    def _shared_memory(self) -> Any:
        """The memory that the module imports; None where it has its own."""
        import wasmtime

        imports = self._module.imports
        return _importable(wasmtime.SharedMemory)(self._engine, imports[0].type) if imports else None

    def _instantiate(self) -> tuple[Any, Any]:
        import wasmtime

        store = wasmtime.Store(self._engine)
        imports = [] if self._shared is None else [self._shared]
        return store, wasmtime.Instance(store, self._module, imports).exports(store)

    def _start(self, count: int) -> None:
        """Start `count` threads, which wait for work until `end_threads`.

        Raises:
            ArtifactError: There is no memory for another instance.
        """
        for index in range(count):
            place = self.call("tw_thread_prepare") & 0xFFFFFFFF
            if not place:
                raise ArtifactError(
                    f"{self.path}: no memory for the stack of thread {index + 1}: use fewer threads"
                )
            store, exports = self._instantiate()
            # The thread ends with the process, in which nobody else may wait for it.
            worker = threading.Thread(target=_work, args=(store, exports, place), daemon=True)
            worker.start()
            self._workers.append(worker)

    def end_threads(self) -> None:
        """End the threads, which no context may use, and wait for them."""
        if self._workers:
            self.call("tw_thread_end")
        for worker in self._workers:
            worker.join()
        self._workers.clear()

    def call(self, name: str, *arguments: int) -> int:
        """Call an exported function.

        Raises:
            TilewrightError: It fails inside WebAssembly.
        """
        try:
            result: int = self._exports[name](self._store, *arguments)
        except self._errors as error:
            raise TilewrightError(f"{self.path}: {name} failed inside WebAssembly: {error}") from error
        return result

    @property
    def memory_bytes(self) -> int:
        """The present size of the memory."""
        size: int = self._memory.data_len(*self._memory_store)
        return size

    @property
    def _memory_store(self) -> tuple[Any, ...]:
        return (self._store,) if self._shared is None else ()

    def view(self, pointer: int, size: int) -> np.ndarray:
        """A uint8 view of `size` bytes of the linear memory. It becomes invalid when the memory grows, so use
        it at once.
        """
        base = ctypes.addressof(self._memory.data_ptr(*self._memory_store).contents)
        memory: Any = (ctypes.c_uint8 * size).from_address(base + pointer)
        return np.frombuffer(memory, np.uint8)


def _importable(base: Any) -> Any:
    """The class of shared memories, as objects that an instance can import. In wasmtime 25 to 50,
    `SharedMemory._as_extern` passes a pointer to the pointer that its C interface expects.
    """
    from wasmtime import _ffi as ffi

    class Importable(base):
        def _as_extern(self) -> Any:
            union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
            return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)

    return Importable


def _work(store: Any, exports: Any, place: int) -> None:
    """Run parts of kernels until the module's threads end."""
    exports["tw_thread_run"](store, place)


__all__ = ["WasmInstance"]
