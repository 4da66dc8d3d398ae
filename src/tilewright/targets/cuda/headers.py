"""Headers for sources of the user's: small ones of this package, and the folder of NVIDIA's own.

NVRTC compiles without a C library. It knows the parts of one that kernels use (types, limits, functions), so
the headers here are short; NVIDIA's are needed for 16-bit floats and for libraries of templates.
"""

from __future__ import annotations

import re
from functools import cache

_INTEGERS = """#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define UINT32_MAX 4294967295u
#define INT64_MAX 9223372036854775807ll
#define INT64_MIN (-INT64_MAX - 1)
#define UINT64_MAX 18446744073709551615ull
"""
_FLOATS = """#pragma once
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-016
"""
_LIMITS = """#pragma once
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
"""
_ASSERT = """#pragma once
#ifndef assert
#define assert(condition) ((condition) ? (void)0 : __trap())
#endif
"""
HEADERS: dict[str, str] = {
    **dict.fromkeys(("stdint.h", "cstdint"), _INTEGERS),
    **dict.fromkeys(("float.h", "cfloat"), _FLOATS),
    **dict.fromkeys(("limits.h", "climits"), _LIMITS),
    **dict.fromkeys(("math.h", "cmath"), _MATH),
    **dict.fromkeys(("assert.h", "cassert"), _ASSERT),
    **dict.fromkeys(
        (
            *("stddef.h", "cstddef", "stdio.h", "cstdio", "stdlib.h", "cstdlib", "string.h", "cstring"),
            *("cuda.h", "cuda_runtime.h", "device_launch_parameters.h", "vector_types.h"),
            "vector_functions.h",
        ),
        "#pragma once\n",
    ),
}
"""Contents by name. NVRTC knows what the empty ones declare."""


def headers_of(text: str) -> tuple[dict[str, str], list[str]]:
    """The headers that a source needs: those of `HEADERS` that it includes, and options of NVRTC for
    NVIDIA's, if it includes others and they are installed. NVIDIA's headers include C headers, which then
    come from here, too.
    """
    included = re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", text, re.M)
    if all(name in HEADERS for name in included):
        return {name: HEADERS[name] for name in included}, []
    # NVIDIA's own headers of these names declare more.
    own = {n: t for n, t in HEADERS.items() if not n.startswith(("cuda", "vector", "device"))}
    return own, [f"-I{folder}" for folder in _folders()]


@cache
def _folders() -> tuple[str, ...]:
    """Folders of NVIDIA's headers that are installed."""
    from cuda import pathfinder

    folders = []
    for name in ("cudart", "cccl"):
        try:
            found = pathfinder.find_nvidia_header_directory(name)
        except (RuntimeError, OSError):
            found = None
        if found:
            folders.append(found)
    return tuple(folders)


__all__ = ["HEADERS", "headers_of"]
