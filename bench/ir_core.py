"""Time of the IR core on many graph-level operations: ``python bench/ir_core.py [operations]`` prints a table.

Best of five runs, garbage collection as it comes; one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tilewright.dialects import func, graph
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse, dce
from tilewright.ir.core import Module
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.rewrite import apply_patterns
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f32
from tilewright.ir.verifier import verify


def build(count: int) -> Module:
    """A function of `count` operators on a tensor (n, 4), n symbolic; every fifth one is a duplicate."""
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
    b(func.Return([y]))
    return module


def simplify(module: Module) -> None:
    """One folding, CSE and DCE pass."""
    apply_patterns(module, [])
    cse(module)
    dce(module)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    steps: list[tuple[str, Callable[[], Any], Callable[[Any], object]]] = [
        ("build", lambda: count, build),
        ("verify", lambda: build(count), verify),
        ("clone", lambda: build(count), Module.clone),
        ("fold + CSE + DCE", lambda: build(count), simplify),
        ("print", lambda: build(count), print_op),
        ("print generic", lambda: build(count), lambda m: print_op(m, generic=True)),
        ("parse", lambda: print_op(build(count)), parse),
        ("parse generic", lambda: print_op(build(count), generic=True), parse),
    ]
    print(f"{count} operations\n{'step':<18} {'ms':>8} {'us/op':>8}")
    for name, prepare, work in steps:
        seconds = []
        for _ in range(5):
            data = prepare()
            start = perf_counter()
            work(data)
            seconds.append(perf_counter() - start)
        best = min(seconds)
        print(f"{name:<18} {best * 1e3:8.1f} {best / count * 1e6:8.2f}")


if __name__ == "__main__":
    main()
