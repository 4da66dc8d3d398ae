"""Instructions that multiply groups of narrow numbers: one table for all instruction sets.

A *dot product* adds to each 32-bit lane the products of one group of A with the lane's group of B. A *block
product* adds to one register a block of ``rows x columns`` results, each the product of a whole group: Arm's
matrix multiplications have blocks of 2 x 2. A *long product* has one result in a register, as partial sums
that are added at the end: on Arm processors without dot products, the products of bytes have 16 bits, and
neighbours are added in 32 bits (``smull``, ``sadalp``). No such sum can overflow, so all of them are exact.

bfmmla: products of pairs are exact and their sums rounded once to float32, to odd or, with FEAT_EBF16, to
nearest even; denormal numbers count as zero. The results therefore differ from those of other instructions in
the last bits (Arm Architecture Reference Manual, "BFloat16 floating-point").
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.types import DType, bf16, i8, u8
from ..emitter import Emitter
from ..isa import Isa

_KINDS = {i8: "s", u8: "u", bf16: "b"}
_AARCH64, _ARMV7 = ("aarch64", "arm64"), ("armv7",)


@dataclass(frozen=True)
class Product:
    """A row of the table.

    Attributes:
        feature: the feature of processors that have the instruction; "": all of `processors` have it.
        operands: the types of A and B: "s" and "u" are bytes, "b" is bfloat16.
        name: LLVM's intrinsic; ``{bits}`` is the width of a vector.
        widths: the widths of vectors in bits.
        swapped: whether the instruction takes B before A.
        group: elements of a row of A that are multiplied at once.
        rows, columns: the block of results in one register; 0 for dot products.
        sums: the intrinsic that adds neighbouring products, of long products. ``padal`` in its name: it adds
            them to its first operand.
        processors: names of processors in LLVM's triples; empty: all that have the feature.
        register: the type of the intrinsic's operands and result, where these are not vectors.
    """

    feature: str
    operands: str
    name: str
    widths: tuple[int, ...] = (128,)
    swapped: bool = False
    group: int = 4
    rows: int = 0
    columns: int = 0
    sums: str = ""
    processors: tuple[str, ...] = ()
    register: str = ""


def _dots(feature: str, name: str, widths: tuple[int, ...], *operands: str) -> tuple[Product, ...]:
    """Dot products of which the intrinsic takes an unsigned operand before a signed one."""
    return tuple(Product(feature, o, name, widths, swapped=o == "su") for o in operands)


def _matrix(feature: str, operands: str, name: str, group: int = 8, swapped: bool = False) -> Product:
    return Product(feature, operands, f"aarch64.neon.{name}", (128,), swapped, group, 2, 2)


def _pair(operands: str, name: str) -> Product:
    """Dot products in a pair of Hexagon's registers, whose intrinsic takes a signed operand first."""
    swapped = operands == "us"
    return Product(
        "", operands, f"hexagon.M5.{name}", (64,), swapped, processors=("hexagon",), register="i64"
    )


def _wide(operands: str, name: str) -> Product:
    """Dot products in HVX's registers, whose intrinsic takes an unsigned operand before a signed one."""
    return Product(
        "hvx-length128b",
        operands,
        f"hexagon.V6.{name}.acc.128B",
        (1024,),
        operands == "su",
        register="<32 x i32>",
    )


def _long(operands: str, name: str, sums: str, processors: tuple[str, ...]) -> Product:
    return Product("neon", operands, name, (128,), False, 8, 1, 1, sums, processors)


PRODUCTS = (
    _matrix("i8mm", "ss", "smmla.v4i32.v16i8"),
    _matrix("i8mm", "uu", "ummla.v4i32.v16i8"),
    _matrix("i8mm", "us", "usmmla.v4i32.v16i8"),
    _matrix("i8mm", "su", "usmmla.v4i32.v16i8", swapped=True),
    _matrix("bf16", "bb", "bfmmla", 4),
    Product("avxvnniint8", "ss", "x86.avx2.vpdpbssd.{bits}", (128, 256)),
    Product("avxvnniint8", "uu", "x86.avx2.vpdpbuud.{bits}", (128, 256)),
    # The lane of a vector can be the last operand.
    Product("dotprod", "ss", "aarch64.neon.sdot.v4i32.v16i8", swapped=True),
    Product("dotprod", "uu", "aarch64.neon.udot.v4i32.v16i8", swapped=True),
    *_dots("i8mm", "aarch64.neon.usdot.v4i32.v16i8", (128,), "us", "su"),
    *_dots("avx512vnni", "x86.avx512.vpdpbusd.{bits}", (128, 256, 512), "us", "su", "ss"),
    *_dots("avxvnni", "x86.avx512.vpdpbusd.{bits}", (128, 256), "us", "su", "ss"),
    _long("ss", "aarch64.neon.smull.v8i16", "aarch64.neon.saddlp.v4i32.v8i16", _AARCH64),
    _long("uu", "aarch64.neon.umull.v8i16", "aarch64.neon.uaddlp.v4i32.v8i16", _AARCH64),
    _long("ss", "arm.neon.vmulls.v8i16", "arm.neon.vpadals.v4i32.v8i16", _ARMV7),
    _long("uu", "arm.neon.vmullu.v8i16", "arm.neon.vpadalu.v4i32.v8i16", _ARMV7),
    _wide("ss", "vrmpybv"),
    _wide("uu", "vrmpyubv"),
    _wide("us", "vrmpybusv"),
    _wide("su", "vrmpybusv"),
    _pair("uu", "vrmacbuu"),
    _pair("su", "vrmacbsu"),
    _pair("us", "vrmacbsu"),
)
"""All products, the preferred ones of an instruction set first."""


def _products(isa: Isa, a: DType, b: DType, bits: int) -> list[Product]:
    operands = _KINDS.get(a, "?") + _KINDS.get(b, "?")
    processor = isa.triple.partition("-")[0]
    return [
        x
        for x in PRODUCTS
        if x.operands == operands
        and bits in x.widths
        and (not x.feature or isa.has(x.feature))
        and (not x.processors or processor in x.processors)
    ]


def dot_product(isa: Isa, a: DType, b: DType, bits: int) -> Product | None:
    """The dot product of operands of these types in vectors of `bits` bits; None without one."""
    return next((x for x in _products(isa, a, b, bits) if not x.rows), None)


def block_product(isa: Isa, a: DType, b: DType) -> Product | None:
    """The block product or long product that multiplies operands of these types fastest; None if there is
    none, or dot products are faster.
    """
    found = _products(isa, a, b, isa.narrow.vector_bits)
    return found[0] if found and found[0].rows else None


def long_product(isa: Isa, a: DType, b: DType) -> Product | None:
    """The long product of operands of these types; None if another instruction multiplies them faster."""
    product = block_product(isa, a, b)
    return product if product is not None and product.sums else None


def add_neighbours(e: Emitter, product: Product, total: str, products: str) -> str:
    """`total`, ``<4 x i32>``, plus the sums of neighbouring products, ``<8 x i16>``, of a long product."""
    call = f"call <4 x i32> @llvm.{product.sums}"
    if "padal" in product.sums:
        return e.op(f"{call}(<4 x i32> {total}, <8 x i16> {products})")
    return e.op(f"add <4 x i32> {total}, {e.op(f'{call}(<8 x i16> {products})')}")


__all__ = ["Product", "add_neighbours", "block_product", "dot_product", "long_product"]
