"""`NativeCode`: the code of a shared library, mapped into this process while a library uses it.

The system's loader identifies libraries by name and by inode. For a file that replaced another one it would
return the code of the first. Therefore no name is used twice, a mapped file is identified by its trailer, and
code without users is unmapped.
"""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import itertools
import os
import shutil
import struct
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tilewright.artifact.sources import PREFIX, exported
from tilewright.artifact.trailer import Fingerprint, fingerprint
from tilewright.errors import ArtifactError

_VOID, _COUNT = ctypes.c_void_p, ctypes.c_int32
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tw_abi_version": (_COUNT, []),
    "tw_create": (ctypes.c_int, [_VOID, _VOID]),
    "tw_destroy": (None, [_VOID]),
    "tw_binding_size": (ctypes.c_int64, []),
    "tw_function_index": (_COUNT, [ctypes.c_char_p]),
    "tw_function_bind": (ctypes.c_int, [_VOID, _COUNT, _VOID, _COUNT, _VOID, _COUNT, _VOID]),
    "tw_function_run": (ctypes.c_int, [_VOID, _COUNT, _VOID, _COUNT, _VOID, _COUNT]),
    "tw_run_bound": (ctypes.c_int, [_VOID]),
    "tw_state": (ctypes.c_int, [_VOID, _COUNT, _VOID]),
    "tw_reset": (ctypes.c_int, [_VOID]),
    "tw_metadata": (ctypes.c_char_p, []),
    "tw_last_error": (ctypes.c_char_p, []),
    "tw_profile_enable": (ctypes.c_int, [_VOID, ctypes.c_int]),
    "tw_profile_read": (ctypes.c_int, [_VOID, _VOID, _VOID, _COUNT]),
}
_LATER_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tw_profile_launches": (ctypes.c_int, [_VOID, _VOID, ctypes.c_int64, _VOID]),
    "tw_profile_threads": (ctypes.c_int, [_VOID, _VOID, ctypes.c_int64, _VOID]),
    "tw_profile_run": (ctypes.c_int, [_VOID, _VOID]),
}
"""Functions that libraries of earlier versions do not export."""
_DEVICE_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tw_create_on": (ctypes.c_int, [_VOID, _VOID, _VOID]),
    "tw_state_read": (ctypes.c_int, [_VOID, _COUNT, _VOID, ctypes.c_uint64]),
    "tw_state_write": (ctypes.c_int, [_VOID, _COUNT, _VOID, ctypes.c_uint64]),
    "tw_stream_wait": (ctypes.c_int, [_VOID, _VOID]),
    "tw_device_code": (_VOID, [_VOID]),
}
"""Functions of libraries for devices."""


class User(Protocol):
    """A library that uses the code."""

    def abandon(self) -> None:
        """Never run the code again: its file, and so its code in memory, has been overwritten."""


class NativeCode:
    """The functions of `tilewright.h` in one library, as attributes: ``code.tw_run_bound(binding)``.

    The library stays mapped as long as this object lives; an object that keeps a function has to keep this
    object, too. `code_of` makes one.
    """

    tw_abi_version: Any
    tw_create: Any
    tw_destroy: Any
    tw_binding_size: Any
    tw_function_index: Any
    tw_function_bind: Any
    tw_function_run: Any
    tw_run_bound: Any
    tw_state: Any
    tw_reset: Any
    tw_metadata: Any
    tw_last_error: Any
    tw_profile_enable: Any
    tw_profile_read: Any
    tw_profile_launches: Any = None
    tw_profile_threads: Any = None
    tw_profile_run: Any = None
    tw_create_on: Any
    tw_state_read: Any
    tw_state_write: Any
    tw_stream_wait: Any
    tw_device_code: Any

    def __init__(self, path: Path, of: Fingerprint, file: Path, prefix: str) -> None:
        """Map a library.

        Args:
            path: The path for messages.
            of: The fingerprint of the file.
            file: The path that its bytes are read from.
            prefix: The prefix of its functions' names.

        Raises:
            ArtifactError: The system cannot load it, or it does not export the functions that `tilewright.h`
                declares.
        """
        self.path, self.of = path, of
        self.explain: Callable[[str], str] = str
        """Adds what is known beside the runtime's message to that of an error: a simulated device does."""
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        try:
            library = ctypes.CDLL(_unused_name(file), mode=getattr(ctypes, "RTLD_LOCAL", 0))
        except OSError as error:
            raise ArtifactError(f"{path}: the system cannot load it: {error}") from error
        self.file = file
        weakref.finalize(
            self, _unmap, library._handle, file, of
        ).atexit = False  # a process that ends does not need it
        signatures = dict(_SIGNATURES)
        if hasattr(library, exported("tw_create_on", prefix)):
            signatures |= _DEVICE_SIGNATURES
        later = {n: s for n, s in _LATER_SIGNATURES.items() if hasattr(library, exported(n, prefix))}
        signatures |= later
        for name, (result, arguments) in signatures.items():
            try:
                address: Any = ctypes.cast(library[exported(name, prefix)], ctypes.c_void_p).value
            except AttributeError:
                raise ArtifactError(
                    f"{path}: not a Tilewright artifact: it does not export {exported(name, prefix)}"
                ) from None
            # The library's own function objects are in reference cycles and would wait for the garbage
            # collector.
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(address))


def written_over(file: Path, of: Fingerprint) -> bool:
    """Whether a mapped file has been overwritten. Then none of its code may run, not even what frees
    memory.
    """
    try:
        now = fingerprint(file)
    except OSError:
        return False  # it was removed or replaced; whoever has it open still sees the old contents
    return now.place == of.place and now != of


def _unmap(handle: int, file: Path, of: Fingerprint) -> None:
    if written_over(file, of):
        _lost.append(of)
        return
    unmap: Any = getattr(_ctypes, "dlclose", None) or _ctypes.FreeLibrary  # type: ignore[attr-defined]
    unmap(handle)


_lock = threading.RLock()  # a collection of garbage may run any code
_mapped: weakref.WeakValueDictionary[tuple[int, int], NativeCode] = weakref.WeakValueDictionary()
"""Mapped code by device and inode."""
_numbers = itertools.count(1)


def code_of(path: Path, prefix: str = PREFIX) -> NativeCode:
    """The code of the library at `path`, as the file is now.

    Raises:
        ArtifactError: The file cannot be read, or the system cannot load it.
    """
    if struct.calcsize("P") != 8:
        raise ArtifactError(f"{path}: native artifacts need a 64-bit Python")
    with _lock:
        try:
            current = fingerprint(path)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
        known = _mapped.get(current.place)
        if known is not None and known.of != current:
            del known
            gc.collect()  # a library without users may be part of a reference cycle
            known = _mapped.get(current.place)
        if known is not None and known.of == current:
            return known
        if known is not None:
            warnings.warn(
                f"{path}: this file was overwritten while it was loaded, so the library loaded before "
                "cannot be used any more: close a library first, or replace its file by renaming another, "
                "as save() does",
                RuntimeWarning,
                stacklevel=4,
            )
            _lost.append(known.of)
            for user in list(known.users):
                user.abandon()
        known_otherwise = any(of.place == current.place for of in _lost)
        code = _mapped[current.place] = (
            _from_copy(path, current, prefix) if known_otherwise else NativeCode(path, current, path, prefix)
        )
        return code


_lost: list[Fingerprint] = []
"""Files whose inodes the loader has recorded with other contents. It never forgets them."""


def _from_copy(path: Path, of: Fingerprint, prefix: str) -> NativeCode:
    """Load the code of a file from a copy, since the loader has recorded its inode with other contents."""
    handle, name = tempfile.mkstemp(prefix="tilewright-", suffix=path.suffix)
    os.close(handle)
    try:
        shutil.copyfile(path, name)
        return NativeCode(path, of, Path(name), prefix)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be copied to {name}: {error.strerror or error}") from error
    finally:
        if os.name == "posix":  # mapped code stays; elsewhere a mapped file cannot be removed
            os.unlink(name)


def _unused_name(path: Path) -> str:
    """A name for the file that the loader has not seen. The loader compares names character by character, so
    "." and empty path elements, set by the bits of a counter, make new names.
    """
    whole = path.resolve()
    if os.name != "posix":
        return str(whole)  # Windows does not allow replacing a loaded library
    number = "".join("./" if digit == "1" else "/" for digit in f"{next(_numbers):b}")
    return f"{whole.parent}/{number}{whole.name}"


__all__ = ["NativeCode", "code_of"]
