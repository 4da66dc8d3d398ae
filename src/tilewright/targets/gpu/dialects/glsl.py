"""GLSL for Vulkan: compute shaders that become SPIR-V.

The language promises few correct bits of its mathematical functions, and none of `fma`; only its exact
functions are used. Conversions to float16 have no defined rounding, so the prelude rounds.
"""

from __future__ import annotations

from ....ir.types import (
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
)  # fmt: skip
from ..dialect import Dialect, Storage
from ..formulas import TWO_OVER_PI
from ..minifloats import stored_as
from .glsl_matrix import EXTENSIONS, FEATURE, MATRIX

_SIGNED: dict[DType, Storage] = {t: Storage("int8_t", "int({})", "int8_t({})") for t in (i2, i4, i8)}
_UNSIGNED: dict[DType, Storage] = {t: Storage("uint8_t", "uint({})", "uint8_t({})") for t in (u2, u4, u8)}

BITWISE = {
    "tw_isnan_f32": "FN bool tw_isnan_f32(f32 x) { return (@as_u32.f32(x) & 0x7fffffffu) > 0x7f800000u; }\n",
    "tw_copysign_f32": """FN f32 tw_copysign_f32(f32 x, f32 sign) {
  return @as_f32.u32((@as_u32.f32(x) & 0x7fffffffu) | (@as_u32.f32(sign) & 0x80000000u));
}
""",
}
"""Functions on the bits of floats, for languages whose compilers need not preserve NaN."""

GLSL = Dialect(
    name="GLSL",
    comment="#version 450",
    types={
        "bool": "bool",
        "i32": "int",
        "u32": "uint",
        "i64": "int64_t",
        "u64": "uint64_t",
        "f32": "float",
        "f64": "double",
    },
    storage={
        **_SIGNED,
        **_UNSIGNED,
        **stored_as("uint8_t", "uint({})", "uint8_t({})"),
        boolean: Storage("uint8_t", "(uint({}) != 0u)", "uint8_t({} ? 1u : 0u)"),
        f16: Storage("uint16_t", "tw_f32_of_f16(uint({}))", "uint16_t(tw_f16_of_f32({}))"),
        bf16: Storage("uint16_t", "tw_f32_of_bf16(uint({}))", "uint16_t(tw_bf16_of_f32({}))"),
        i16: Storage("int16_t", "int({})", "int16_t({})"),
        u16: Storage("uint16_t", "uint({})", "uint16_t({})"),
        i32: Storage("int"),
        u32: Storage("uint"),
        i64: Storage("int64_t"),
        u64: Storage("uint64_t"),
        f32: Storage("float"),
        f64: Storage("double"),
    },
    functions={
        **{f"{n}.{t}": n for n in ("abs", "sqrt", "floor", "ceil", "trunc") for t in ("f32", "f64")},
        "round.f32": "roundEven",
        "round.f64": "roundEven",
        "isnan.f64": "isnan",
        "number_min.f32": "min",
        "number_max.f32": "max",
        "as_u32.f32": "floatBitsToUint",
        "as_i32.f32": "floatBitsToInt",
        "as_f32.u32": "uintBitsToFloat",
        "as_f32.i32": "intBitsToFloat",
        "as_u64.f64": "doubleBitsToUint64",
        "as_i64.f64": "doubleBitsToInt64",
        "as_f64.u64": "uint64BitsToDouble",
        "as_f64.i64": "int64BitsToDouble",
    },
    prelude={
        **BITWISE,
        **MATRIX,
        "tw_inf_f32": "FN f32 tw_inf_f32() { return uintBitsToFloat(0x7f800000u); }\n",
        "tw_nan_f32": "FN f32 tw_nan_f32() { return uintBitsToFloat(0x7fc00000u); }\n",
        "tw_inf_f64": "FN f64 tw_inf_f64() { return int64BitsToDouble(0x7ff0000000000000L); }\n",
        "tw_nan_f64": "FN f64 tw_nan_f64() { return int64BitsToDouble(0x7ff8000000000000L); }\n",
        "tw_copysign_f64": """FN f64 tw_copysign_f64(f64 x, f64 sign) {
  i64 bits = @as_i64.f64(sign);
  f64 size = abs(x);
  return bits < i64(0) ? -size : size;
}
""",
        "tw_f32_of_f16": "FN f32 tw_f32_of_f16(u32 h) { return unpackHalf2x16(h).x; }\n",
        # Mesa 22's software driver compares converted numbers with constants wrongly, but not these.
        "tw_i64_of_i32": "FN i64 tw_i64_of_i32(i32 x) { return packInt2x32(ivec2(x, x >> 31)); }\n",
        "tw_two_over_pi": f"const f64 tw_two_over_pi[] = {{ {TWO_OVER_PI} }};\n",
    },
    entry="main",
    signature="layout(local_size_x = {threads}) in;\nvoid {entry}()",
    readonly="readonly ",
    buffer=(
        "layout(std430, binding = {number}) {const}{restrict}buffer Buffer{number} {{ {type} {name}[]; }};"
    ),
    # 128 bytes are the most that every device takes without a buffer.
    pushed=(16, "layout(push_constant, std430) uniform Params {{ uvec2 tw_params[{count}]; }};"),
    params="layout(std430, binding = {number}) readonly buffer Params {{ uvec2 tw_params[]; }};",
    param="int(tw_params[{number}].x)",
    wide_param="int64_t(packUint2x32(tw_params[{number}]))",
    dim="",
    block=("int(gl_WorkGroupID.x)", "int(gl_WorkGroupID.y)", "int(gl_WorkGroupID.z)"),
    thread="int(gl_LocalInvocationID.x)",
    barrier="memoryBarrierBuffer(); memoryBarrierShared(); barrier();",
    shared="shared {type} {name}[{size}];",
    shared_at_top="module",
    cast="{type}({value})",
    wraps=True,
    fused=False,
    exact="precise ",
    arrays=True,
    bound="uint({value})",
    suffixes={"f32": "f", "f64": "lf", "u32": "u", "i64": "L", "u64": "UL"},
    unroll="[[unroll]]",
    restrict="restrict ",
    features={FEATURE: EXTENSIONS},
    head="\n".join(
        f"#extension GL_EXT_{name} : enable"
        for name in (
            "shader_explicit_arithmetic_types",
            "shader_8bit_storage",
            "shader_16bit_storage",
            "control_flow_attributes",
        )
    ),
)
"""GLSL; the entry point of each text is ``main``."""

__all__ = ["BITWISE", "GLSL"]
