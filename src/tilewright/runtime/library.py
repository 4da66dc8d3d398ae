"""`Library`: a native artifact in this process, called through ctypes.

Each calling thread gets a context (working memory and worker threads) at its first call, so several threads
may call one library at once. ctypes releases the interpreter's lock during a call.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from time import monotonic_ns, perf_counter
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import numpy as np

from tilewright.artifact.kinds import check_native, suffixes_of
from tilewright.artifact.sources import ABI_VERSION, PREFIX
from tilewright.artifact.trailer import parse_metadata, read_metadata, verify_file
from tilewright.artifact.vendor_libraries import make_known
from tilewright.artifact.weights import find_beside
from tilewright.errors import ArtifactError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.context import Binding, Calls, Context, OpenFile
from tilewright.runtime.model import CompiledModel, KernelTime, LibraryFunction
from tilewright.runtime.native_code import NativeCode, code_of
from tilewright.runtime.save_copy import Saved
from tilewright.runtime.tensors import NUMPY
from tilewright.runtime.timeline import RawCall, RawLaunch, RunTime, ThreadTime

_Derived = TypeVar("_Derived", bound="Library")


class _Native(CompiledModel):
    """A function of a native library. A call with tensors of known shapes takes a short way without
    checks.
    """

    library: Library
    index: int
    """The function's number at run time."""

    def _calls(self) -> Calls:
        return self.library._context().calls(self, self.index)

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> Any:
        """Run the model once: see `CompiledModel.__call__`. Shapes that an earlier call has checked are not
        checked again.
        """
        if self._keeps:
            with self._turn:
                return self._call(args, out, kwargs)
        return self._call(args, out, kwargs)

    def _call(self, args: tuple[Any, ...], out: object, kwargs: dict[str, Any]) -> Any:
        results = None
        if not kwargs and self._nested is None:
            results = self._calls().run_known(args, out)
        if results is None:
            results = self.library._run_on_device(self, args, kwargs, out)
        if results is None:
            return super().__call__(*args, out=out, **kwargs)
        if out is None and self._nested is not None:
            return self._nested.unflatten(results)
        return out if out is not None else results[0] if len(results) == 1 else tuple(results)

    def bind(self, /, *args: object, out: object = None, **kwargs: object) -> BoundCall:
        """Check and prepare a call for many runs; see `CompiledModel.bind`. With inputs on the device, `out`
        lies there, too.
        """
        call = self.library._bind_on_device(self, args, kwargs, out)
        return super().bind(*args, out=out, **kwargs) if call is None else call

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return list(self._calls().run(arrays, out))

    def _bound(
        self,
        inputs: tuple[Any, ...],
        out: object,
        arrays: list[np.ndarray],
        targets: list[np.ndarray],
        has_run: bool,
    ) -> BoundCall:
        context, calls = self.library._context(), self._calls()
        given, wanted = ([(array.dtype, array.shape) for array in tensors] for tensors in (arrays, targets))
        binding = Binding(calls, given, wanted)
        NUMPY.write_addresses(binding.addresses, (*arrays, *targets))
        run = partial(calls.run_bound, binding.pointer)
        call = BoundCall(inputs, out, run, context.check, (context, binding, arrays, targets))
        context.bound.add(call)
        return call

    def after_error(self, name: str, end: Callable[[], None]) -> None:
        """Have `end` called before the error of a run is raised: see `CompiledModel.after_error`."""
        self.library._context().after_error[name] = end

    def profile_raw(self, /, *args: object, **kwargs: object) -> list[KernelTime]:
        """Run once and measure every kernel; return launches and nanoseconds in the metadata's order."""
        names = self._kernel_names()
        nanoseconds, calls = (ctypes.c_uint64 * len(names))(), (ctypes.c_uint64 * len(names))()
        with self._profiled(args, kwargs) as (context, _, _):
            context.check(context.native.tw_profile_read(context.handle, nanoseconds, calls, len(names)))
        return [KernelTime(*row) for row in zip(names, calls, nanoseconds, strict=True)]

    def call_raw(self, /, *args: object, **kwargs: object) -> RawCall:
        """Run once and measure the call, each launch, and the threads' parts in it."""
        native = self.library._context().native
        if native.tw_profile_launches is None:
            return super().call_raw(*args, **kwargs)
        names = self._kernel_names()
        run = _RunTime()
        with self._profiled(args, kwargs) as (context, began, seconds):
            launches = _read_times(context, native.tw_profile_launches)
            if native.tw_profile_run is not None:
                context.check(native.tw_profile_run(context.handle, ctypes.byref(run)))
            threads = deque(
                [] if native.tw_profile_threads is None else _read_times(context, native.tw_profile_threads)
            )
        found = []
        for x in launches:
            own = []
            while threads and threads[0].end <= x.end:
                part = threads.popleft()
                own.append(ThreadTime(part.thread, part.begin, part.end))
            found.append(RawLaunch(names[x.kernel], x.begin, x.end, tuple(own)))
        measured = RunTime(run.begin, run.end, run.reads, run.clock) if run.end else None
        return RawCall(found, seconds, began, measured)

    def _kernel_names(self) -> list[str]:
        return [k["name"] if isinstance(k, dict) else str(k) for k in self.metadata.get("kernels", [])]

    @contextmanager
    def _profiled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[Context, int, float]]:
        """Run once with the profile on; yields the context, whose profile can then be read, the time when the
        profile was enabled, in nanoseconds of the monotonic clock, and the seconds of the call.
        """
        context = self.library._context()
        context.check(context.native.tw_profile_enable(context.handle, 1))
        began = monotonic_ns()  # the runtime's times count from the end of the function above
        try:
            start = perf_counter()
            self(*args, **kwargs)
            yield context, began, perf_counter() - start
        finally:
            context.native.tw_profile_enable(context.handle, 0)


def _read_times(context: Context, read: Any) -> list[_LaunchTime]:
    """All times of a profile that a function of `tilewright.h` reads."""
    count = ctypes.c_int64()
    context.check(read(context.handle, None, 0, ctypes.byref(count)))
    entries = (_LaunchTime * min(count.value, _MOST_LAUNCHES))()
    context.check(read(context.handle, entries, len(entries), ctypes.byref(count)))
    return list(entries)


_MOST_LAUNCHES = 1 << 20
"""``TW_MOST_LAUNCHES`` of `tilewright.h`."""


class _LaunchTime(ctypes.Structure):
    """``tw_launch_time`` of `tilewright.h`."""

    _fields_ = (
        ("kernel", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    )


class _RunTime(ctypes.Structure):
    """``tw_run_time`` of `tilewright.h`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in RunTime._fields)


class NativeFunction(_Native, LibraryFunction):
    """One function of a native library of several."""


class Library(_Native):
    """A compiled model in a shared library, as `tilewright.compile` and `tilewright.load` return it for
    native targets.

    A library keeps its code when the file is replaced or removed; `tilewright.load` of the same path then
    loads the new file.

    Args:
        path: The ``.so``, ``.dylib`` or ``.dll``.
        weights: The weights, where the file does not hold them: one array of bytes, aligned to 64, which the
            library keeps alive, or the path of a file. The default is the file that was saved with the
            library.
        num_threads: The most threads that a run uses; 0, or more than there are cores: all cores.
        pin_threads: Bind each worker thread to a core.
        check_weights: Compare the checksum of the file of weights.
        verify: Check the file's trailer before any of its code runs. Only the compiler, which has just
            written the file, leaves the check out.
        code: The code of this file, where it has been loaded.

    Raises:
        ArtifactError: The file is not an artifact, is damaged, is of another version, or is for another
            processor.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        weights: np.ndarray | str | Path | None = None,
        num_threads: int = 0,
        pin_threads: bool = False,
        check_weights: bool = False,
        verify: bool = True,
        code: NativeCode | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.check_weights = check_weights
        self.pin_threads = pin_threads
        self.num_threads = num_threads
        self._closed = False
        self._lock = threading.Lock()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._local = threading.local()
        self._shared = SimpleNamespace()
        """Shared by all threads, in place of `_local`, where the model keeps states."""
        if verify:
            verify_file(self.path)
            check_native(self.path)
        metadata_of_file = read_metadata(self.path) if verify else None
        self._native = code or code_of(self.path, (metadata_of_file or {}).get("prefix", PREFIX))
        self._fingerprint = self._native.of
        self._native.users.add(self)
        version = self._native.tw_abi_version()
        if version != ABI_VERSION:
            raise ArtifactError(
                f"{path}: its C interface is version {version}, this Tilewright supports version "
                f"{ABI_VERSION}: compile the model again"
            )
        metadata = parse_metadata(path, self._native.tw_metadata())
        for name in metadata.get("vendor_libraries", ()):
            make_known(name)
        self.library, self.index = self, 0
        self._given_weights = weights
        self._describe(metadata, str(path))
        if self not in self.functions.values():
            self.index = -1  # Number 0 belongs to another function, whose calls have other inputs.
        if verify and self._opens:
            self._context()  # reports missing CPU features and wrong weights now, not at the first call

    @cached_property
    def weights(self) -> np.ndarray | Path | None:
        """The weights that the library's file does not hold: in memory, as uint8 of shape (bytes), or the
        path of another file. None if the file holds them.

        Raises:
            ArtifactError: The artifact needs a file of weights beside it that is not there.
        """
        given = self._given_weights
        if isinstance(given, np.ndarray):
            return given.reshape(-1).view(np.uint8)
        return find_beside(self.path, self.metadata) if given is None else Path(given).absolute()

    @cached_property
    def weights_file(self) -> OpenFile | None:
        """The file of weights, open; None if the weights are in memory or in the library's file. All contexts
        map this one.

        Raises:
            ArtifactError: The file is missing or cannot be opened.
        """
        return OpenFile(self.weights) if isinstance(self.weights, Path) else None

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        return NativeFunction(self, name, int(self._native.tw_function_index(name.encode())), entry)

    def _context(self) -> Context:
        kept: Any = self._shared if self._keeps else self._local
        context = getattr(kept, "context", None)
        if context is None or self._closed:
            with self._lock:
                if self._closed:
                    self._refuse()
                context = getattr(kept, "context", None) if self._keeps else None
                if context is None:
                    context = kept.context = self._new_context()
                    self._contexts.add(context)
        return context

    def _run_on_device(
        self, function: _Native, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> Sequence[Any] | None:
        """Run on tensors in the memory of the device, where the library is for one; None if there are
        none.
        """
        return None

    def _bind_on_device(
        self, function: _Native, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> BoundCall | None:
        """As `_run_on_device`, for `bind`."""
        return None

    def _new_context(self) -> Context:
        return Context(
            self._native,
            self.weights,
            self.weights_file,
            num_threads=self.num_threads,
            pin_threads=self.pin_threads,
            check_weights=self.check_weights,
        )

    def _state_memory(self) -> Context:
        return self._context()

    def session(self) -> Library:
        """A library with the same code and weights and with states of its own, for independent calls such as
        another conversation.

        Raises:
            ArtifactError: The library has been closed.
        """
        if self._closed:
            self._refuse()
        return self._derived(self._with_same_code())

    def _derived(self, library: _Derived) -> _Derived:
        """`library` of the same code, with what it shares with this one."""
        library._parent, library.weights_file = self, self.weights_file
        library.report, library.origin = self.report, self.origin
        return library

    def _with_same_code(self) -> Library:
        """A library of the same code, weights and options."""
        return Library(
            self.path,
            weights=self.weights,
            num_threads=self.num_threads,
            pin_threads=self.pin_threads,
            verify=False,
            code=self._native,
        )

    _native: NativeCode
    """The functions of `tilewright.h`; absent when the library is closed."""
    _opens = True
    """Whether a new library makes its first context at once."""
    _parent: Library | None = None
    """The library that this is a session of; it owns the file."""

    def _refuse(self) -> NoReturn:
        raise ArtifactError(f"{self.path}: {self._why_closed}")

    _why_closed = "this library has been closed"

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Copy the artifact, with the C header beside it, and the file of its weights if there is one. See
        `CompiledModel.save`.
        """
        if self._parent is not None:
            return self._parent.save(path, weights=weights, prefix=prefix)
        file = None if self.weights_file is None else Path(self.weights_file.name)
        triple = self.metadata.get("target", {}).get("triple", "")
        suffixes = suffixes_of(triple)
        saved = Saved(self.path, self._fingerprint, file, suffixes, triple or "this machine", self.metadata)
        return saved.copy_to(Path(path), weights, prefix, self.origin)

    def close(self) -> None:
        """Free all contexts. No other thread may be in a call. The code is unmapped when no session uses
        it.
        """
        self._end()

    def abandon(self) -> None:
        """Refuse all calls from now on, since the library's file has been overwritten and its code in memory
        with it.
        """
        self._why_closed = "the file of this library was overwritten while it was loaded; load it again"
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            for context in list(self._contexts):
                for call in context.bound:
                    call.close(self._refuse)
                context.destroy()
            self._contexts.clear()
            self._local, self._shared = threading.local(), SimpleNamespace()
            self.__dict__.pop("_native", None)
            self.__dict__.pop("weights_file", None)

    def __repr__(self) -> str:
        signature = ", ".join(f"{s.name}: {s.dtype}[{', '.join(map(str, s.shape))}]" for s in self.inputs)
        return f"Library({str(self.path)!r}, {signature})"
