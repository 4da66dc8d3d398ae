"""The description of an instruction set for the LLVM code generators. The instances are in the targets' own
folders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.target_info import UNKNOWN_MACHINE, Machine
from ...ir.types import DType, bf16


@dataclass(frozen=True)
class Isa:
    """One instruction set, and the machines that have it.

    Attributes:
        name: the name in messages and target names.
        triple: LLVM's target triple.
        cpu: LLVM's name of the processor.
        features: LLVM's feature flags (``+avx2``).
        vector_bits: width of a vector register in bits.
        vector_registers: number of vector registers.
        masked: masked loads and stores cost no more than plain ones (AVX-512).
        fma: fused multiply-add is an instruction.
        half: conversions between f16 and f32 are instructions.
        bf16: the conversion from f32 to bf16 is an instruction.
        avx512: tables of 16 numbers are looked up in registers; exponents, significands and approximate
            reciprocals are instructions.
        lane_factors: a lane of a vector can be the factor of a multiply-add or dot product of whole vectors
            (AArch64's "by element").
        rounding: rounding to the nearest integral float is an instruction.
        nan_minmax: minimum and maximum instructions propagate NaN.
        in_order: the machine's own compiler keeps the order of instructions, as WebAssembly's do.
        machine: cores, caches and memory that schedules are made for.
        stack_bytes: most bytes of a kernel's local buffers on the stack. A larger value needs threads with
            larger stacks; other buffers lie in the thread's memory.
        counter: the integer type in which loops count: that of addresses, where it is enough.
        integer_bits, integer_registers: width and number of the registers for vectors of integers of up to 32
            bits, where floats have others (Hexagon's HVX before V68); 0: both have the same.
        halves: weights whose values fit 4 bits share bytes (`simd.Panel`): memory is scarcer than time.
        sve_bits: the width in bits of the registers of AArch64's SVE, which code is made for: a multiple of
            128; 0: it uses NEON only.
        loads_anywhere: a word at an address that is no multiple of its size is loaded by one instruction.
        emulated: features (``amx-int8``) that the machine lacks; `emulate` replaces their instructions with
            plain code.
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
    lane_factors: bool = False
    rounding: bool = True
    nan_minmax: bool = False
    in_order: bool = False
    machine: Machine = UNKNOWN_MACHINE
    stack_bytes: int = 16 * 1024
    counter: str = "i64"
    integer_bits: int = 0
    integer_registers: int = 0
    halves: bool = False
    sve_bits: int = 0
    loads_anywhere: bool = True
    emulated: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether the instruction set has an extension, in LLVM's spelling (``avx512bf16``)."""
        return f"+{feature}" in self.features

    @property
    def machine_features(self) -> tuple[str, ...]:
        """The features that the processor must have: `features` without the emulated ones, and the width of
        SVE's registers, such as ``+sve256``, which only the runtime knows as a feature.
        """
        width = (f"+sve{self.sve_bits}",) if self.sve_bits else ()
        return (*self.compiler_features, *width)

    @property
    def compiler_features(self) -> tuple[str, ...]:
        """The features that LLVM may use: `features` without the emulated ones."""
        return tuple(f for f in self.features if f.lstrip("+") not in self.emulated)

    @property
    def narrow(self) -> Isa:
        """The instruction set with the registers in which bytes and bf16 are multiplied, where these are
        not those of floats: NEON's beside SVE's.
        """
        return (
            replace(self, vector_bits=128, masked=False, lane_factors=True, sve_bits=0)
            if self.sve_bits
            else self
        )

    @property
    def tiles(self) -> bool:
        """Whether there are tile registers and products of bf16 in them (AMX)."""
        return self.has("amx-tile") and self.has("amx-bf16")

    @property
    def byte_tiles(self) -> bool:
        """Whether there are tile registers and products of 8-bit integers in them (AMX)."""
        return self.has("amx-tile") and self.has("amx-int8")

    @property
    def two_steps(self) -> bool:
        """Whether a vector of half the width takes half the time: Zen 4 computes 512 bits in two steps. It
        is the only processor with BF16 and GFNI that has no AVX-VNNI.
        """
        return self.has("avx512bf16") and self.has("gfni") and not self.has("avxvnni")

    def for_type(self, dtype: DType) -> Isa:
        """Return the instruction set with the registers that hold vectors of a type as its only ones."""
        if not self.integer_bits:
            return self.narrow if dtype.bits <= 8 or (dtype is bf16 and self.has("bf16")) else self
        plain = replace(self, integer_bits=0, integer_registers=0)
        if dtype.is_float or dtype.bits > 32:
            return plain
        return replace(plain, vector_bits=self.integer_bits, vector_registers=self.integer_registers)

    def lanes(self, bits: int) -> int:
        """Return the number of elements of `bits` bits in a vector register."""
        return self.vector_bits // bits
