"""A large function of the graph level, for tests and measurements of the speed of the IR."""

from __future__ import annotations

from tilewright.dialects import func, graph
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse, dce
from tilewright.ir.core import Module
from tilewright.ir.rewrite import apply_patterns
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f32


def build(count: int) -> Module:
    """A function of `count` operators on a tensor (n, 4) with a symbol n. One operator in five is a
    duplicate.
    """
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",))
    module.body.append(f)
    x = f.body.add_arg(TensorType(f32, (symbol("n", 1, 8), 4)), "x")
    b = Builder(f.body)
    y = x
    for _ in range(count // 5):
        a = b(BINARY["add"](y, x))
        y = b(BINARY["mul"](b(UNARY["tanh"](a)), b(UNARY["tanh"](a))))
        y = b(graph.Softmax(y, axis=-1))
    b.insert(func.Return([y]))
    return module


def simplify(module: Module) -> None:
    """Run folding, CSE and DCE once."""
    apply_patterns(module, [])
    cse(module)
    dce(module)
