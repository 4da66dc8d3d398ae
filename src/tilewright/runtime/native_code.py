"""`NativeCode`: the code of a shared library, mapped into this process while somebody uses it.

The system's loader knows libraries by name and by inode: a file that took another's place would be answered with the code of the first.
So no name is used twice, a file that is mapped already is known by its trailer, and what nobody uses any more is unmapped.
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


class User(Protocol):
    """A library that runs code."""

    def abandon(self) -> None:
        """Never run the code again: its file has been written over, so it lies in memory no longer."""


class NativeCode:
    """The functions of `tilewright.h` in one library, as attributes: ``code.tw_run_bound(binding)``.

    It is mapped as long as this object is: who keeps a function keeps this, too. `code_of` makes one.
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

    def __init__(self, path: Path, of: Fingerprint, file: Path, prefix: str) -> None:
        """`path` is what messages call it, `file` where its bytes are; its functions' names begin with `prefix`.

        Raises ArtifactError: the system cannot load it, or it does not export what `tilewright.h` declares.
        """
        self.path, self.of = path, of
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        try:
            library = ctypes.CDLL(_unused_name(file), mode=getattr(ctypes, "RTLD_LOCAL", 0))
        except OSError as error:
            raise ArtifactError(f"{path}: the system cannot load it: {error}") from error
        self.file = file
        weakref.finalize(self, _unmap, library._handle, file, of).atexit = False  # a process that ends needs none of it
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                address: Any = ctypes.cast(library[exported(name, prefix)], ctypes.c_void_p).value
            except AttributeError:
                raise ArtifactError(
                    f"{path}: not a Tilewright artifact: it does not export {exported(name, prefix)}"
                ) from None
            # The library's own function objects refer to themselves, so they would wait for the garbage collector.
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(address))


def written_over(file: Path, of: Fingerprint) -> bool:
    """Whether a file that is mapped has other contents now: then nothing of its code may run, not even what frees memory."""
    try:
        now = fingerprint(file)
    except OSError:
        return False  # it was removed, or replaced by something else, and is as it was for those who have it open
    return now.place == of.place and now != of


def _unmap(handle: int, file: Path, of: Fingerprint) -> None:
    if written_over(file, of):
        _lost.append(of)
        return
    unmap: Any = getattr(_ctypes, "dlclose", None) or _ctypes.FreeLibrary  # type: ignore[attr-defined]
    unmap(handle)


_lock = threading.RLock()  # collecting garbage may run anything
_mapped: weakref.WeakValueDictionary[tuple[int, int], NativeCode] = weakref.WeakValueDictionary()
"""By device and inode."""
_numbers = itertools.count(1)


def code_of(path: Path, prefix: str = PREFIX) -> NativeCode:
    """The code of the library at `path`, as the file is now.

    Raises ArtifactError: the file cannot be read, or the system cannot load it.
    """
    if struct.calcsize("P") != 8:
        raise ArtifactError(f"{path}: native artifacts need a 64-bit Python")
    with _lock:
        try:
            found = fingerprint(path)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
        known = _mapped.get(found.place)
        if known is not None and known.of != found:
            del known
            gc.collect()  # a library that is in use no more may be part of a cycle
            known = _mapped.get(found.place)
        if known is not None and known.of == found:
            return known
        if known is not None:
            warnings.warn(
                f"{path}: this file was written over while it was loaded, so the library loaded before is lost: close it first, or replace "
                "the file by renaming another, as save() does",
                RuntimeWarning,
                stacklevel=4,
            )
            _lost.append(known.of)
            for user in list(known.users):
                user.abandon()
        known_otherwise = any(of.place == found.place for of in _lost)
        code = _mapped[found.place] = (
            _from_copy(path, found, prefix) if known_otherwise else NativeCode(path, found, path, prefix)
        )
        return code


_lost: list[Fingerprint] = []
"""Files whose inodes the loader knows with other contents, for ever."""


def _from_copy(path: Path, found: Fingerprint, prefix: str) -> NativeCode:
    """Code of a file whose inode the loader knows with other contents."""
    handle, name = tempfile.mkstemp(prefix="tilewright-", suffix=path.suffix)
    os.close(handle)
    try:
        shutil.copyfile(path, name)
        return NativeCode(path, found, Path(name), prefix)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be copied to {name}: {error.strerror or error}") from error
    finally:
        if os.name == "posix":  # what is mapped stays; elsewhere a mapped file cannot be removed
            os.unlink(name)


def _unused_name(path: Path) -> str:
    """A name of the file that the loader has not heard of: it compares names letter by letter. Elements "." and empty ones count in binary."""
    whole = path.resolve()
    if os.name != "posix":
        return str(whole)  # Windows lets nobody replace a library that is loaded
    number = "".join("./" if digit == "1" else "/" for digit in f"{next(_numbers):b}")
    return f"{whole.parent}/{number}{whole.name}"


__all__ = ["NativeCode", "code_of"]
