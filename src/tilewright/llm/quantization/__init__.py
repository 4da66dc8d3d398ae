"""Quantized weights: schemes by name, quantization and dequantization, activation-aware scaling."""

from .activation_aware import ActivationStatistics, Scaling, find_scaling
from .packing import pack_bits, unpack_bits
from .quantize import Quantized, dequantize, quantize
from .schemes import NONE, Scheme, scheme_names, scheme_of

__all__ = [
    "NONE",
    "ActivationStatistics",
    "Quantized",
    "Scaling",
    "Scheme",
    "dequantize",
    "find_scaling",
    "pack_bits",
    "quantize",
    "scheme_names",
    "scheme_of",
    "unpack_bits",
]
