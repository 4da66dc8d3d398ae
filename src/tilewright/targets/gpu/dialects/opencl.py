"""OpenCL C 1.2, with the extension for float64 where a kernel uses it."""

from __future__ import annotations

from ....ir.types import bf16, boolean, f16, f32, f64, i2, i4, i8, i16, i32, i64, u2, u4, u8, u16, u32, u64
from ..dialect import Dialect, Storage
from ..minifloats import stored_as
from .cuda import c_functions

OPENCL = Dialect(
    name="OpenCL C",
    comment="// OpenCL C by tilewright",
    types={
        "bool": "bool",
        "i32": "int",
        "u32": "uint",
        "i64": "long",
        "u64": "ulong",
        "f32": "float",
        "f64": "double",
    },
    storage={
        f16: Storage("ushort", "tw_f32_of_f16({})", "(ushort)tw_f16_of_f32({})"),
        bf16: Storage("ushort", "tw_f32_of_bf16({})", "(ushort)tw_bf16_of_f32({})"),
        **stored_as("uchar", store="(uchar){}"),
        boolean: Storage("uchar", "({} != 0)", "(uchar)({})"),
        **{dtype: Storage("char", "{}", "(char)({})") for dtype in (i2, i4, i8)},
        **{dtype: Storage("uchar", "{}", "(uchar)({})") for dtype in (u2, u4, u8)},
        i16: Storage("short", "{}", "(short)({})"),
        u16: Storage("ushort", "{}", "(ushort)({})"),
        i32: Storage("int"),
        u32: Storage("uint"),
        i64: Storage("long"),
        u64: Storage("ulong"),
        f32: Storage("float"),
        f64: Storage("double"),
    },
    functions={
        **c_functions(""),
        "as_u32.f32": "as_uint",
        "as_i32.f32": "as_int",
        "as_f32.u32": "as_float",
        "as_f32.i32": "as_float",
        "as_u64.f64": "as_ulong",
        "as_i64.f64": "as_long",
        "as_f64.u64": "as_double",
        "as_f64.i64": "as_double",
        "number_min.f32": "fmin",
        "number_max.f32": "fmax",
        "rough_exp.f32": "native_exp",
    },
    prelude={
        **{
            f"tw_{n}": f"typedef {kind} tw_{n};\n"
            for n, kind in ((4, "ushort2"), (8, "uint2"), (16, "uint4"))
        },
        "tw_inf_f32": "FN f32 tw_inf_f32() { return as_float(0x7f800000); }\n",
        "tw_nan_f32": "FN f32 tw_nan_f32() { return as_float(0x7fc00000); }\n",
        "tw_inf_f64": "FN f64 tw_inf_f64() { return as_double(0x7ff0000000000000L); }\n",
        "tw_nan_f64": "FN f64 tw_nan_f64() { return as_double(0x7ff8000000000000L); }\n",
        # The device converts halves in memory, whatever extensions it has.
        "tw_f32_of_f16": """FN f32 tw_f32_of_f16(u32 h) {
  ushort bits = (ushort)h;
  return vload_half(0, (const half*)&bits);
}
""",
        "tw_f16_of_f32": """FN u32 tw_f16_of_f32(f32 x) {
  ushort h;
  vstore_half_rte(x, 0, (half*)&h);
  return h;
}
""",
    },
    entry="tw_{name}",
    signature="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void {entry}({parameters})",
    function="static inline {result} {name}({parameters}) {{",
    buffer="__global {const}{type}* {restrict}{name}",
    pointer="__global {const}{type}* {restrict}",
    vectors=(
        "__global {const}{type}*",
        "{type}*",
        "{type} {name}[{size}] __attribute__((aligned(16)));",
    ),
    shared_vector="__local {const}{type}*",
    address="(size_t)({pointer})",
    dim="long {name}",
    block=("(int)get_group_id(0)", "(int)get_group_id(1)", "(int)get_group_id(2)"),
    thread="(int)get_local_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    shared="__local {type} {name}[{size}] __attribute__((aligned(16)));",
    suffixes={"f32": "f", "u32": "u", "i64": "L", "u64": "UL"},
    zeros=" = {0}",
    certain_barriers=True,
    unroll="#pragma unroll",
    restrict="restrict ",
    features={"f64": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"},
)
"""OpenCL C."""

__all__ = ["OPENCL"]
