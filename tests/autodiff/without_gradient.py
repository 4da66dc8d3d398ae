"""Graph operators without a gradient, by the reason."""

from __future__ import annotations

BY_NATURE: dict[str, tuple[str, ...]] = {
    "there is no floating-point operand": (
        "Constant", "Symbolic", "Iota", "OneHot", "Threefry", "Xor", "And", "Or", "Not", "Shl", "Shr",
        "ReduceXor", "ReduceAll", "ReduceAny", "CheckIndex", "CheckDivisor", "Check",
    ),
    "the results are integers or booleans": (
        "Isnan", "Isinf", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Argmax", "Argmin", "MaxPoolIndices", "NonZero",
    ),
    "the derivative is 0 wherever there is one": ("Floor", "Ceil", "Trunc", "Round", "Sign", "Floordiv"),
    "bits are no numbers": ("Bitcast",),
    "it is what it is for": ("StopGradient",),
    "only the lowering of QuantizedMatMul makes it": ("DequantizedMatMul", "ScaledMatMul"),
}  # fmt: skip

PENDING: dict[str, tuple[str, ...]] = {
    "scan.py": ("Scan",),
    "control_flow.py": ("If", "While", "BindSize", "AssumeShape"),
    "linalg.py": ("Cholesky", "TriangularSolve", "Lu", "HouseholderQr", "Reflect", "Eigh", "Svd"),
}
"""Operators whose rule, or a test case with floating-point operands, is missing: by file of
`dialects/graph`.
"""

STRAIGHT_THROUGH = ("QuantizedMatMul",)
"""Operators whose gradient passes through roundings and is not the derivative: `test_quantized.py` compares
them.
"""

__all__ = ["STRAIGHT_THROUGH", "BY_NATURE", "PENDING"]
