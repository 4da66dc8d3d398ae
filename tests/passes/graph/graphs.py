"""Small graphs for tests of graph-level passes, and a check that a pass keeps what they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module, Value
from tilewright.ir.passes import CheckOptions, Pipeline
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import DType, TensorType, f32
from tilewright.ir.verifier import verify
from tilewright.passes.registry import bound_passes

BATCH, SEQ = symbol("batch", 1, 8), symbol("seq", 1, 40)
Spec = tuple[Any, ...] | tuple[tuple[Any, ...], DType]


def build(inputs: dict[str, Any], body: Callable[..., Value | list[Value]]) -> Module:
    """Return a module whose "main" takes tensors (shape, or (shape, dtype)) and returns the results of
    ``body(builder, *values)``.
    """
    module = Module()
    f = func.Func(sym_name="main", arg_names=tuple(inputs))
    module.body.append(f)
    args = []
    for name, spec in inputs.items():
        shape, dtype = spec if len(spec) == 2 and isinstance(spec[1], DType) else (spec, f32)
        args.append(f.body.add_arg(TensorType(dtype, shape), name))
    b = Builder(f.body)
    result = body(b, *args)
    results = result if isinstance(result, list) else [result]
    f.result_names = tuple(f"y{k}" for k in range(len(results)))
    b.insert(func.Return(results))
    verify(module)
    return module


def weight(b: Builder, *shape: int, seed: int = 0, positive: bool = False) -> Value:
    """Add a random float32 constant."""
    data = np.random.default_rng(seed + sum(shape)).standard_normal(shape) * 0.3
    return literal(b, (np.abs(data) + 0.1 if positive else data).astype(np.float32))


def literal(b: Builder, value: Any, dtype: Any = np.float32) -> Value:
    """Add a constant."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype)
    result: Value = b(graph.Constant(value=Constant(array)))
    return result


def graph_pipeline() -> Pipeline:
    """The passes of the graph level that run in the default context."""
    return Pipeline(bound_passes("graph"), "graph")


def run(module: Module, *passes: Callable[[Module], object], **options: Any) -> Counter[str]:
    """Run passes in check mode, which compares results before and after them on random inputs of several
    sizes. Returns the operators that are left.
    """
    Pipeline(list(passes)).run(module, verify_each=True, check=CheckOptions(**{"draws": 4, **options}))
    return operators(module)


def operators(module: Module) -> Counter[str]:
    """Return the number of graph operators by class name, without constants."""
    return Counter(
        type(op).__name__
        for op in module.walk()
        if isinstance(op, graph.GraphOp) and op.name != "graph.constant"
    )


def outputs(module: Module) -> Sequence[Value]:
    """Return the values that "main" returns."""
    found: Sequence[Value] = module.symbol("main").body.terminator.operands
    return found
