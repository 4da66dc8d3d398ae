"""The numbers that codes of 4 bits stand for in formats with a table."""

from __future__ import annotations

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Floats of 4 bits (OCP Microscaling Formats v1.0, 2023): MXFP4."""
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of GGUF's IQ4_NL and IQ4_XS."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution ("QLoRA", Dettmers et al. 2023, appendix E): bitsandbytes' NF4."""
FP4 = (
    0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
    -0.0, -0.005208333333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25,
)  # fmt: skip
"""bitsandbytes' FP4: floats with three bits of exponent, divided by the largest."""

TABLES: dict[str, tuple[float, ...]] = {"e2m1": E2M1, "iq4_nl": IQ4_NL, "nf4": NF4, "fp4": FP4}
"""The tables by the names that schemes have for them."""

__all__ = ["E2M1", "FP4", "IQ4_NL", "NF4", "TABLES"]
