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
}  # fmt: skip

PENDING: dict[str, tuple[str, ...]] = {
    "conv.py": ("Conv", "ConvTranspose"),
    "contract.py": ("GroupedMatMul",),
    "quantized.py": ("QuantizedMatMul", "DequantizedMatMul", "ScaledMatMul"),
    "scan.py": ("Scan",),
    "control_flow.py": ("If", "While", "BindSize", "AssumeShape"),
    "linalg.py": ("Cholesky", "TriangularSolve", "Lu", "HouseholderQr", "Reflect", "Eigh", "Svd"),
}
"""Operators whose rule, or a test case with floating-point operands, is missing: by file of
`dialects/graph`.
"""

__all__ = ["BY_NATURE", "PENDING"]
