"""The cost of decoding a token; with a machine's bandwidth and arithmetic it gives the lower bound of the
time.
"""

from __future__ import annotations

from typing import Any

from ..dialects import func, graph
from ..ir.constant import Constant
from ..ir.core import Module
from ..ir.types import DType
from .config import Config


def decode_work(module: Module, config: Config, precision: str | None) -> dict[str, Any]:
    """The bytes and operations of the matrix products of one decoded token, without attention.

    Returns ``weight_bytes``, the weights that are read, in `precision` if that is narrower than float32, and
    ``flops`` (a multiply-add counts as two). Stacked experts count as many as a token is routed to;
    embeddings count only if they are also the head. An encoder has neither.
    """
    decode = next((f for f in func.entries(module) if f.sym_name == "decode"), None)
    if decode is None:
        return {}
    narrow = DType.named(precision or "f32").bits

    def bits(constant: Constant) -> int:
        return min(narrow, 32) if constant.dtype.name == "f32" else constant.dtype.bits

    factors: dict[Constant, int] = {}  # with the bits of an element
    scales: set[Constant] = set()
    for op in decode.walk():
        for place, operand in enumerate(op.operands):
            source = operand.defining_op
            if not isinstance(source, graph.Constant) or len(source.value.shape) < 2:
                continue
            if not (isinstance(op, graph.Gather) and place == 0):
                stored = bits(source.value)
                if isinstance(op, graph.QuantizedMatMul):
                    if operand is not op.qvalues:
                        scales.add(source.value)
                        continue
                    stored = op.bits or stored
                factors[source.value] = stored
    experts = config.get("num_experts")
    share = config["num_experts_per_tok"] / experts if experts else 1

    def used(constant: Constant) -> float:
        stacked = len(constant.shape) == 3 and constant.shape[0] == experts
        return constant.size * (share if stacked else 1)

    sizes = {**{c: bits(c) for c in scales}, **factors}
    return {
        "weight_bytes": int(sum(used(c) * n for c, n in sizes.items()) / 8),
        "flops": int(sum(2 * used(c) for c in factors)),
    }


__all__ = ["decode_work"]
