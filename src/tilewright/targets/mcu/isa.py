"""The instruction sets of Arm's Cortex-M processors."""

from __future__ import annotations

from ...ir.target_info import CacheLevel, Machine
from ..llvm.isa import Isa

STACK_BYTES = 1024
"""Bytes of a kernel's local buffers on the stack; larger ones lie in static memory. A larger value saves
static memory and needs a larger stack.
"""


_FUSED = ("-slowfpvfmx", "-slowfpvmlx")
"""Products and sums are fused, as on other processors: results are the same, with fewer instructions."""
_FLOATS = ("+fp-armv8d16sp", "+dsp", *_FUSED)


def _cortex(
    name: str, triple: str, features: tuple[str, ...], vector_bits: int, registers: int, l1: int
) -> Isa:
    """A processor with `l1` KiB of fast memory."""
    machine = Machine(1, (CacheLevel(1, l1 << 10), CacheLevel(2, 256 << 10)))
    return Isa(
        name, triple, name, features, vector_bits, registers, masked=False, fma=True, machine=machine,
        stack_bytes=STACK_BYTES, counter="i32", halves=True,
    )  # fmt: skip


CORTEX_M = {
    isa.name: isa
    for isa in (
        _cortex("cortex-m4", "thumbv7em-unknown-none-eabihf", ("+vfp4d16sp", "+dsp", *_FUSED), 64, 12, 16),
        _cortex("cortex-m7", "thumbv7em-unknown-none-eabihf", (*_FLOATS, "-fp64"), 64, 12, 16),
        _cortex("cortex-m33", "thumbv8m.main-unknown-none-eabihf", _FLOATS, 64, 12, 16),
        _cortex(
            "cortex-m55", "thumbv8.1m.main-unknown-none-eabihf", ("+mve.fp", *_FLOATS, "-fp64"), 128, 8, 32
        ),
    )
}
"""Processors by name. A vector of 64 bits is two of the 32 registers of single floats. M55 has 8 vector
registers of 128 bits (MVE). M7 may have doubles; code for it does without.
"""

__all__ = ["CORTEX_M", "STACK_BYTES"]
