"""WGSL, the language of WebGPU.

It has no types but bool, i32, u32 and f32. Elements of 8 and 16 bits are parts of the words of buffers; a
word is written by atomic operations, since several threads may write parts of it. In shared memory and in
arrays of a thread each element has 32 bits. Signed integers of 64 bits are narrowed to 32, which indices and
token ids of models survive.
Compilers may assume that there are neither NaN nor infinities; the prelude looks at bits.
"""

from __future__ import annotations

from dataclasses import replace

from ....ir.types import DType, bf16, boolean, f16, f32, i2, i4, i8, i16, i32, i64, u2, u4, u8, u16, u32
from ..dialect import Dialect, Storage
from ..minifloats import MINIFLOATS
from .glsl import BITWISE

_FLOATS: tuple[DType, ...] = (f16, bf16, *MINIFLOATS)

WGSL = Dialect(
    name="WGSL",
    comment="// WGSL by tilewright",
    types={"bool": "bool", "i32": "i32", "u32": "u32", "f32": "f32"},
    storage={
        boolean: Storage("i32", "({} != 0)", "select(0, 1, {})"),
        **{dtype: Storage("i32") for dtype in (i2, i4, i8, i16, i32, i64)},
        **{dtype: Storage("u32") for dtype in (u2, u4, u8, u16, u32)},
        **{dtype: Storage("f32", "{}", f"tw_round_{dtype.name}({{}})") for dtype in _FLOATS},
        f32: Storage("f32"),
    },
    packed={
        boolean: Storage("u32", "({} != 0u)", "select(0u, 1u, {})"),
        **{dtype: Storage("u32", "(i32({} << 24u) >> 24u)", "(u32({}) & 0xffu)") for dtype in (i2, i4, i8)},
        i16: Storage("u32", "(i32({} << 16u) >> 16u)", "(u32({}) & 0xffffu)"),
        **{dtype: Storage("u32") for dtype in (u2, u4, u8, u16)},
        **{t: Storage("u32", f"tw_f32_of_{t.name}({{}})", f"tw_{t.name}_of_f32({{}})") for t in _FLOATS},
    },
    words="atomic<u32>",
    word_load="atomicLoad(&{word})",
    words_store="atomicStore(&{word}, {bits});",
    word_store="atomicAnd(&{word}, ~{mask}); atomicOr(&{word}, {bits});",
    functions={
        **{f"{n}.f32": n for n in ("abs", "sqrt", "floor", "ceil", "trunc", "round")},
        **{f"{n}.{t}": n for n in ("min", "max") for t in ("i32", "u32")},
        "abs.i32": "abs",
        "sign.i32": "sign",
        "number_min.f32": "min",
        "number_max.f32": "max",
        "as_u32.f32": "bitcast<u32>",
        "as_i32.f32": "bitcast<i32>",
        "as_f32.u32": "bitcast<f32>",
        "as_f32.i32": "bitcast<f32>",
    },
    prelude={
        **BITWISE,
        # Infinity must not be a constant expression: the compiler refuses those that are not finite.
        "tw_infinity": "var<private> tw_infinity: u32 = 0x7f800000u;\n",
        "tw_inf_f32": "FN f32 tw_inf_f32() { return bitcast<f32>(tw_infinity); }\n",
        "tw_nan_f32": "FN f32 tw_nan_f32() { return bitcast<f32>(tw_infinity | 0x400000u); }\n",
        # Sizes and offsets are not negative, which a compiler cannot know.
        "tw_opaque_f32": """FN f32 tw_opaque_f32(f32 x) {
  return bitcast<f32>(bitcast<u32>(x) | (u32(tw_params[0].x) >> 31u));
}
""",
        "tw_f32_of_f16": "FN f32 tw_f32_of_f16(u32 h) { return unpack2x16float(h).x; }\n",
        "tw_place_8": "FN u32 tw_place_8(i32 at) { return (u32(at) & 3u) << 3u; }\n",
        "tw_place_16": "FN u32 tw_place_16(i32 at) { return (u32(at) & 1u) << 4u; }\n",
    },
    entry="main",
    signature=(
        "@compute @workgroup_size({threads})\nfn {entry}(@builtin(workgroup_id) tw_block: vec3u, "
        "@builtin(local_invocation_index) tw_thread: u32)"
    ),
    buffer="@group(0) @binding({number}) var<storage, {access}> {name}: array<{type}>;",
    # Not a storage buffer, of which a kernel may have few; elements of uniform arrays have 16 bytes.
    params="@group(0) @binding({number}) var<uniform> tw_params: array<vec4<i32>, 16>;",
    param="tw_params[{number} >> 2u][{number} & 3u]",
    dim="",
    block=("i32(tw_block.x)", "i32(tw_block.y)", "i32(tw_block.z)"),
    thread="i32(tw_thread)",
    barrier="workgroupBarrier();",
    global_barrier=" storageBarrier();",
    shared="var<workgroup> {name}: array<{type}, {size}>;",
    shared_at_top="module",
    const="let {name}: {type} = {value};",
    variable="var {name}: {type} = {value};",
    array="var {name}: array<{type}, {size}>;",
    unset="var {name}: {type};",
    function="fn {name}({parameters}) -> {result} {{",
    parameter="{name}: {type}",
    cast="{type}({value})",
    select="select({b}, {a}, {condition})",
    wraps=True,
    wide=False,
    explicit=True,
    vector="vec4<{type}>",
    fused=False,
    opaque=True,
    arrays=True,
    inline_literals=False,
    suffixes={"f32": "f", "u32": "u"},
)
"""WGSL; the entry point of each text is ``main``."""

WGSL_F16 = replace(
    WGSL,
    storage={
        **WGSL.storage,
        # A conversion by the language may round in either direction, so the number is rounded before.
        f16: Storage("f16", "f32({})", "f16(tw_round_f16({}))", "f16"),
    },
    packed={dtype: form for dtype, form in WGSL.packed.items() if dtype is not f16},
    features={"f16": "enable f16;"},
)
"""WGSL with elements of float16, which arithmetic converts to float32."""


def with_subgroups(dialect: Dialect) -> Dialect:
    """WGSL whose threads exchange values within subgroups.

    A subgroup has 4 to 128 threads, so shuffles join 4 and shared memory joins more. WGSL relates places in a
    subgroup to local indices in no way, so threads are numbered along their subgroups. Its analysis cannot
    know that both threads of an exchange meet a condition on these numbers, which the printer makes sure of.
    """
    return replace(
        dialect,
        head="enable subgroups;\nrequires subgroup_id;\ndiagnostic(off, subgroup_uniformity);",
        signature=(
            "@compute @workgroup_size({threads})\nfn {entry}(@builtin(workgroup_id) tw_block: vec3u, "
            "@builtin(subgroup_id) tw_subgroup: u32, @builtin(subgroup_size) tw_width: u32, "
            "@builtin(subgroup_invocation_id) tw_lane: u32)"
        ),
        thread="i32(tw_subgroup * tw_width + tw_lane)",
        shuffle="subgroupShuffleXor({value}, {distance}u)",
        shuffle_bits=32,
        shuffle_threads=4,
    )


__all__ = ["WGSL", "WGSL_F16", "with_subgroups"]
