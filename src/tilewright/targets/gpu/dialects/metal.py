"""The Metal Shading Language, which has no float64."""

from __future__ import annotations

from dataclasses import replace

from ....ir.types import bf16, f16, f64, i64, u64
from ..dialect import Storage
from .cuda import CUDA, STORAGE
from .metal_matrix import MATRIX

_PRECISE = (
    "exp exp2 log log2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt pow atan2"
)
_PLAIN = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "copysign": "copysign", "fma": "fma"}
_OTHERS = {"abs": "fabs", "round": "rint", "rem": "fmod"}

METAL = replace(
    CUDA,
    name="the Metal Shading Language",
    comment="// Metal by tilewright",
    types={
        "bool": "bool",
        "i32": "int",
        "u32": "uint",
        "i64": "long",
        "u64": "ulong",
        "f32": "float",
    },
    storage={
        **{dtype: storage for dtype, storage in STORAGE.items() if dtype is not f64},
        i64: Storage("long"),
        u64: Storage("ulong"),
        f16: Storage("half", "(float)({})", "(half)({})"),
        bf16: Storage("ushort", "tw_f32_of_bf16({})", "(ushort)tw_bf16_of_f32({})"),
    },
    functions={
        **{f"{n}.f32": f"precise::{n}" for n in _PRECISE.split()},
        **{f"{n}.f32": c for n, c in {**_PLAIN, **_OTHERS}.items()},
        "as_u32.f32": "as_type<uint>",
        "as_i32.f32": "as_type<int>",
        "as_f32.u32": "as_type<float>",
        "as_f32.i32": "as_type<float>",
        "number_min.f32": "fmin",
        "number_max.f32": "fmax",
        "rough_exp.f32": "fast::exp",
    },
    prelude={
        **{
            f"tw_{n}": f"typedef {kind} tw_{n};\n"
            for n, kind in ((4, "ushort2"), (8, "uint2"), (16, "uint4"))
        },
        "tw_inf_f32": "FN f32 tw_inf_f32() { return as_type<float>(0x7f800000u); }\n",
        "tw_nan_f32": "FN f32 tw_nan_f32() { return as_type<float>(0x7fc00000u); }\n",
        "tw_isnan_f32": (
            "FN bool tw_isnan_f32(f32 x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }\n"
        ),
        "tw_f32_of_f16": "FN f32 tw_f32_of_f16(u32 h) { return (float)as_type<half>((ushort)h); }\n",
        "tw_f16_of_f32": "FN u32 tw_f16_of_f32(f32 x) { return (uint)as_type<ushort>((half)x); }\n",
        **MATRIX,
    },
    instructions=("", {}),
    signature="kernel void {entry}({parameters})",
    function="static inline {result} {name}({parameters}) {{",
    buffer="device {const}{type}* {restrict}{name} [[buffer({number})]]",
    pointer="device {const}{type}* {restrict}",
    offsets=True,
    vectors=("device {const}{type}*", "thread {type}*", "alignas(16) {type} {name}[{size}];"),
    matrix_word="thread uint*",
    shared_vector="threadgroup {const}{type}*",
    address="(ulong)({pointer})",
    params="constant long* tw_params [[buffer({number})]]",
    param="(int)tw_params[{number}]",
    wide_param="tw_params[{number}]",
    extra_parameters=(
        "uint3 tw_block [[threadgroup_position_in_grid]]",
        "uint tw_thread [[thread_index_in_threadgroup]]",
    ),
    block=("(int)tw_block.x", "(int)tw_block.y", "(int)tw_block.z"),
    thread="(int)tw_thread",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
    shared="threadgroup {type} {name}[{size}];",
    shared_block="",
    static_shared=None,
    suffixes={"f32": "f", "u32": "u", "i64": "l", "u64": "ul"},
    shuffle="simd_shuffle_xor({value}, (ushort){distance})",
    shuffle_bits=32,
    head="#include <metal_stdlib>\nusing namespace metal;",
)
"""Metal."""

__all__ = ["METAL"]
