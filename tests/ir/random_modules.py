"""Random modules of the graph dialect, and their forms at the tensor and loop levels."""

from __future__ import annotations

import random

import numpy as np

from tilewright.dialects import func, graph, tensor
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, Module, Operation, Region, Value
from tilewright.ir.location import Location
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f32
from tilewright.lowering.tensor_to_loop import kernel_of_group
from tilewright.passes.tensor.lower_to_tensor import lower_to_tensor


def random_graph(seed: int, size: int = 12) -> Module:
    """A function of float32 tensors of shape (n, 4..8) with a symbol n, and with small and large weights."""
    r = random.Random(seed)
    data = np.random.default_rng(seed)
    n = symbol("n", 1, r.choice([8, 512]))
    width = r.choice([4, 6, 8])
    module = Module()
    f = func.Func(
        sym_name="main",
        arg_names=("x", "y"),
        result_names=("out", "mid0", "mid1"),
        location=Location("model", "m.py", 3),
    )
    module.body.append(f)
    values: list[Value] = [f.body.add_arg(TensorType(f32, (n, width)), name) for name in ("x", "y")]
    b = Builder(f.body)
    for k in range(size):
        b.location = Location(f"layer.{k}/op", "m.py", k) if r.random() < 0.7 else Location(f"layer.{k}")
        x = r.choice(values)
        columns = x.type.shape[-1]
        kind = r.randrange(7)
        new: Value
        if kind == 0:
            new = b(UNARY[r.choice(["tanh", "exp", "neg", "sqrt"])](x))
        elif kind == 1:
            other = r.choice([v for v in values if v.type is x.type])
            new = b(BINARY[r.choice(["add", "mul", "max"])](x, other))
        elif kind == 2:
            out = r.choice([4, 6, 8])
            w = b(
                graph.Constant(
                    value=Constant(data.standard_normal((columns, out)).astype(np.float32), f"w.{k}")
                )
            )
            new = b(graph.Matmul(x, w))
        elif kind == 3:
            new = b(graph.Softmax(x, axis=r.choice([-1, 0])))
        elif kind == 4:
            bias = b(graph.Constant(value=Constant(data.standard_normal(columns).astype(np.float32))))
            new = b(BINARY["add"](x, bias))
        elif kind == 5:
            fill = r.choice([0.0, 1.5, float("inf"), float("nan"), 1e-30])
            splat = b(graph.Constant(value=Constant(np.broadcast_to(np.float32(fill), (64, columns)))))
            new = b(graph.Concat((x, splat), axis=0)) if r.random() < 0.3 else x
        else:
            new = b(graph.Transpose(b(graph.Transpose(x, permutation=(1, 0))), permutation=(1, 0)))
        new.hint = r.choice([None, None, f"h{k}", "same.name", "0bad name"])
        values.append(new)
    b.insert(func.Return([values[-1], *r.sample(values, 2)]))
    return module


def random_tensor_module(seed: int) -> Module:
    return lower_to_tensor(random_graph(seed))


def random_kernel(seed: int) -> Operation:
    """An unscheduled kernel that contains all computations of a random graph."""
    module = random_tensor_module(seed)
    f = module.symbol("main")
    inputs = [*f.body.args, *(op.results[0] for op in f.body.ops if isinstance(op, graph.Constant))]
    group = tensor.Group.assemble(inputs, [], {"kind": "plain"}, [Region()])
    mapping: dict[Value, Value] = {v: group.body.add_arg(v.type, v.hint) for v in inputs}
    computed: list[Value] = []
    for op in f.body.ops:
        if isinstance(op, tensor.Compute):
            computed.append(group.body.append(op.clone(mapping)).results[0])
    if not computed:
        return random_kernel(seed + 1)
    # A kernel's arguments cannot be its outputs, so the outputs are the last computation and one from the
    # middle.
    group.body.append(tensor.Yield(dict.fromkeys((computed[-1], computed[len(computed) // 2]))))
    return kernel_of_group(tensor.Group(inputs, regions=[group.regions[0]]), f"kernel_{seed}")


def random_module(level: str, seed: int) -> Module:
    """A random module of the level ``graph``, ``tensor`` or ``loop``."""
    if level == "graph":
        return random_graph(seed)
    if level == "tensor":
        return random_tensor_module(seed)
    module = Module()
    module.body.append(random_kernel(seed))
    return module
