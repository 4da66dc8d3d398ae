"""Compiling and linking for Android and iOS without their development kits, from what comes with zig.

zig has neither headers nor libraries of bionic, Android's C library. musl's headers serve in their place: the
runtime uses only what both libraries and the kernel's interface have in common, and `__ANDROID__` selects the
few lines that differ. iOS has macOS's headers. Libraries are linked with stubs, which give the names of the
system's libraries and of the functions that these have; a function that they lack is an error of the linker.

Sources: bionic's ``libc.map.txt``, ``libm.map.txt`` and ``libdl.map.txt`` (functions without a version are in
Android 5.0, API level 21); Apple's text-based stubs, version 4 (LLVM's TextAPI); page sizes:
https://developer.android.com/guide/practices/page-sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.artifact.systems import System

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim "
    "floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint "
    "lround modf nearbyint nextafter pow remainder rint round scalbn sin sinh sqrt tan tanh tgamma trunc"
).split()
_FLOATS = [f"{name}{suffix}" for name in _MATH for suffix in ("", "f")]
_BOTH = (
    "abort aligned_alloc atoi atol bsearch calloc clock_gettime close exit fclose fopen fprintf fread free "
    "fseek ftell fwrite getenv getpid madvise malloc memchr memcmp memcpy memmove memset mmap mprotect "
    "munmap open posix_memalign printf pthread_cond_broadcast pthread_cond_destroy pthread_cond_init "
    "pthread_cond_wait pthread_create pthread_getspecific pthread_join pthread_key_create pthread_key_delete "
    "pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock pthread_once "
    "pthread_self pthread_setspecific pthread_sigmask puts qsort read realloc sched_yield sigfillset "
    "snprintf strchr strcmp strcpy strerror strlen strncmp strncpy strrchr strstr strtol strtoll strtoul "
    "strtoull sysconf vsnprintf write"
).split()
_DYNAMIC = ["dlclose", "dlerror", "dlopen", "dlsym"]

ANDROID = {
    "libc.so": [
        *_BOTH, "__errno", "__sched_cpucount", "fstat", "getauxval", "gettid", "mmap64",
        "sched_getaffinity", "sched_getcpu", "sched_setaffinity", "syscall",
    ],
    "libm.so": _FLOATS,
    "libdl.so": _DYNAMIC,
}  # fmt: skip
"""Functions of Android's libraries since API level 21, of those that models and their runtime may use."""

IOS = [
    *_BOTH, *_FLOATS, *_DYNAMIC, "__error", "__bzero", "bzero", "fstat", "memset_pattern16",
    "_tlv_bootstrap",
    "dyld_stub_binder", "sysctlbyname",
]  # fmt: skip
"""Functions of libSystem, which is all of C's library on Apple's systems."""

ANDROID_OPTIONS = ("-nostdlib", "-lcompiler_rt", "-Wl,-z,max-page-size=16384", "-Wl,-z,defs")
"""Android 15 may have pages of 16 KiB."""


def include_options(system: System, zig: str, processor: str) -> list[str]:
    """The compiler's options for the folders of headers, below the folder of the program `zig`."""
    base = Path(zig).parent / "lib" / "libc" / "include"
    if system.format == "Mach-O":
        return ["-isystem", str(base / "any-darwin-any")]
    kernel = {"x86_64": "x86"}.get(processor, processor)
    names = (f"{processor}-linux-musl", "generic-musl", f"{kernel}-linux-any", "any-linux-any")
    return ["-nostdlibinc", *(option for name in names for option in ("-isystem", str(base / name)))]


def c_source(functions: Sequence[str]) -> str:
    """The C source of a library that has functions of these names, which do nothing."""
    return "".join(f"void {name}(void) {{}}\n" for name in functions)


def text_stub(system: System) -> str:
    """The text-based stub of libSystem for iOS, or its simulator."""
    target = f"arm64-{system.name}"
    symbols = ", ".join(f"_{name}" if name != "dyld_stub_binder" else name for name in sorted(IOS))
    return (
        "--- !tapi-tbd\n"
        "tbd-version: 4\n"
        f"targets: [ {target} ]\n"
        "install-name: '/usr/lib/libSystem.B.dylib'\n"
        "exports:\n"
        f"  - targets: [ {target} ]\n"
        f"    symbols: [ {symbols} ]\n"
        "...\n"
    )


def library_folder(system: System, zig: str, folder: Path) -> Path:
    """Make `folder` a copy, by links, of the folder of zig's libraries, with the stub for `system` in place
    of macOS's libSystem, which zig links with on all of Apple's systems.
    """
    changed = Path("libc", "darwin", "libSystem.tbd")
    original = Path(zig).parent / "lib"
    for k in range(len(changed.parts)):
        inner = Path(*changed.parts[:k])
        (folder / inner).mkdir(parents=True)
        for entry in (original / inner).iterdir():
            if entry.name != changed.parts[k]:
                (folder / inner / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())
    (folder / changed).write_text(text_stub(system))
    return folder


__all__ = ["ANDROID", "ANDROID_OPTIONS", "IOS", "c_source", "include_options", "library_folder", "text_stub"]
