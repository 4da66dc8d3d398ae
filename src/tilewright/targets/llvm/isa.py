"""What schedules and the LLVM code generators need to know about an instruction set; the instances live in the targets' own folders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Isa:
    """One instruction set, as the code generators see it, and the machines that have it.

    `triple`, `cpu` and `features` (LLVM's spelling, ``+avx2``) select it in LLVM. A vector register has `vector_bits`, and there are
    `vector_registers` of them. `masked`: masked loads and stores cost no more than plain ones (AVX-512). `fma`: fused multiply-add
    is an instruction. `half`: conversions between f16 and f32 are instructions; `bf16`: that from f32 to bf16 is. `avx512`: tables of 16
    numbers are looked up in registers, and exponents, significands and reciprocals come by instructions. `nan_minmax`: the minimum and maximum
    instructions propagate NaN. `l2_bytes`: of the second-level cache that a core has to itself, for which schedules are made.
    `emulated`: names of features (``amx-int8``) that the machine lacks; `emulate` replaces their instructions by plain code.
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    masked: bool
    fma: bool
    half: bool = False
    bf16: bool = False
    avx512: bool = False
    nan_minmax: bool = False
    l2_bytes: int = 256 * 1024
    emulated: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether the instruction set has an extension, in LLVM's spelling (``avx512bf16``)."""
        return f"+{feature}" in self.features

    @property
    def machine_features(self) -> tuple[str, ...]:
        """What the processor must have: `features` less the emulated ones."""
        return tuple(f for f in self.features if f.lstrip("+") not in self.emulated)

    @property
    def tiles(self) -> bool:
        """Whether there are tile registers with products of bf16 (AMX)."""
        return self.has("amx-tile") and self.has("amx-bf16")

    @property
    def byte_tiles(self) -> bool:
        """Whether there are tile registers with products of 8-bit integers (AMX)."""
        return self.has("amx-tile") and self.has("amx-int8")

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` bits fill a vector register."""
        return self.vector_bits // bits
