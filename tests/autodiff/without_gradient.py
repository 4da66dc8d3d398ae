"""Graph operators without a gradient, by the reason."""

from __future__ import annotations

BY_NATURE: dict[str, tuple[str, ...]] = {
    "there is no floating-point operand": (
        "Constant", "Symbolic", "Iota", "OneHot", "Threefry", "Xor", "And", "Or", "Not", "Shl", "Shr",
        "ReduceXor", "ReduceAll", "ReduceAny", "CheckIndex", "CheckDivisor", "Check",
        "BindSize",
    ),
    "the results are integers or booleans": (
        "Isnan", "Isinf", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Argmax", "Argmin", "MaxPoolIndices", "NonZero",
        "Quantize",
    ),
    "the derivative is 0 wherever there is one": ("Floor", "Ceil", "Trunc", "Round", "Sign", "Floordiv"),
    "bits are no numbers": ("Bitcast",),
    "it is what it is for": ("StopGradient",),
    "only the lowering of QuantizedMatMul makes it": ("DequantizedMatMul", "ScaledMatMul"),
    "only a pass makes it, of a convolution": ("WinogradConv", "WinogradKernels"),
}  # fmt: skip

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "test_control_flow.py": ("If", "While", "AssumeShape"),
    "test_quantized.py": ("Dequantize",),
    "test_linalg.py": ("Cholesky", "TriangularSolve", "Lu", "Eigh", "Svd"),
}
"""Operators without test cases that are smooth and of floating-point numbers: by the file that tests their
gradients.
"""

STRAIGHT_THROUGH = ("QuantizedMatMul",)
"""Operators whose gradient passes through roundings and is not the derivative: `test_quantized.py` compares
them.
"""

__all__ = ["BY_NATURE", "ELSEWHERE", "STRAIGHT_THROUGH"]
