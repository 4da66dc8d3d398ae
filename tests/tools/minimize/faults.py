"""Mistakes to be found. The processes that try a model import this file (``--import
tests.tools.minimize/faults.py``); FAULT names the mistake.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from tilewright.dialects import graph as g
from tilewright.dialects.graph.elementwise import BINARY
from tilewright.ir.core import Module, Operation
from tilewright.passes import register_pass


def biased_products(module: Module) -> Iterator[Operation]:
    """Yield the additions to a product of matrices."""
    for op in list(module.walk()):
        if isinstance(op, BINARY["add"]) and any(isinstance(v.defining_op, g.Matmul) for v in op.operands):
            yield op


def drop_bias(module: Module) -> None:
    for op in biased_products(module):
        product = next(v for v in op.operands if isinstance(v.defining_op, g.Matmul))
        if product.type is op.results[0].type:
            op.replace_by(product)


def crash(module: Module) -> None:
    if any(biased_products(module)):
        os.kill(os.getpid(), signal.SIGSEGV)


def mistake(module: Module) -> None:
    for op in biased_products(module):
        raise AssertionError(f"no such case: {op.name}")


# The tests' own process imports this file too, and keeps its passes.
if (name := os.environ["FAULT"]) != "none" and "pytest" not in sys.modules:
    register_pass(globals()[name], level="graph", before="cse")
