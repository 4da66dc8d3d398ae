"""Tilewright in 500 lines, not counting blank ones: a compiler for small float32 models with static shapes.

    function -> graph -> tensor computations -> loop nests -> launches over one arena -> C -> native code

The comment at the head of each section names the modules of `src/tilewright` that do the same at full size.
Most names are the same there. `docs/internals/miniature.md` follows one function through all levels.
"""

from __future__ import annotations

import ctypes
import inspect
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int, ...]

# 1. Index expressions: ir/symbolic.py. Index maps, loop variables and addresses are written in one algebra.


@dataclass(frozen=True)
class Index:
    """``coefficient * symbol + ... + constant``. The real algebra has products, division, min and max too."""

    terms: tuple[tuple[str, int], ...] = ()  # (symbol, coefficient), sorted by symbol, no coefficient is 0
    constant: int = 0

    def __add__(self, other: Index) -> Index:
        terms = Counter(dict(self.terms))
        terms.update(dict(other.terms))
        return Index(tuple(sorted((s, c) for s, c in terms.items() if c)), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((s, c * factor) for s, c in self.terms if factor), self.constant * factor)

    def substitute(self, mapping: Mapping[str, Index]) -> Index:
        """The expression with symbols replaced by expressions. This operation composes two index maps."""
        return sum((mapping.get(s, symbol(s)) * c for s, c in self.terms), start=Index((), self.constant))

    def __str__(self) -> str:
        parts = [s if c == 1 else f"{c}*{s}" for s, c in self.terms]
        return " + ".join(parts + [str(self.constant)] * (self.constant != 0 or not parts))


def symbol(name: str) -> Index:
    return Index(((name, 1),))


def axes_of(rank: int) -> tuple[Index, ...]:
    return tuple(symbol(f"i{k}") for k in range(rank))


# 2. Operations and functions: ir/core.py, ir/interpreter.py. One core serves the graph and the tensor level.


def binary(function: str, swapped: bool = False) -> Callable[[Any, Any], Operation]:
    return lambda a, b: elementwise(*((b, a) if swapped else (a, b)), function=function)


class Operation:
    """A node of the IR and the tensor that it computes. Python's operators trace it (frontends/trace/)."""

    shape: Shape
    operands: tuple[Operation, ...] = ()
    reference: Callable[..., np.ndarray]  # from the operands' values, in NumPy

    def replace_operands(self, new: Mapping[Operation, Operation]) -> None:
        self.operands = tuple(new[x] for x in self.operands)

    def lower(self) -> Operation:
        """The operation that computes the same tensor at the tensor level."""
        return self

    def text(self, names: Mapping[Operation, str]) -> str:
        return f"graph.{type(self).__name__.lower()}"

    __array_ufunc__ = None  # so that ``array + operation`` calls `__radd__`
    __add__, __radd__ = binary("add"), binary("add", swapped=True)
    __sub__, __rsub__ = binary("sub"), binary("sub", swapped=True)
    __mul__, __rmul__ = binary("mul"), binary("mul", swapped=True)
    __truediv__, __rtruediv__ = binary("div"), binary("div", swapped=True)

    def __matmul__(self, other: Any) -> Operation:
        return matmul(self, other)


@dataclass(eq=False)
class Input(Operation):
    name: str
    shape: Shape


@dataclass(eq=False)
class Function:
    """A model at the graph or the tensor level."""

    inputs: list[Input]
    outputs: list[Operation]

    @property
    def operations(self) -> list[Operation]:
        """The operations that the outputs need, operands before users."""
        order: dict[Operation, None] = {}
        pending = self.outputs[::-1]
        while pending:
            missing = [x for x in pending[-1].operands if x not in order]
            pending.extend(reversed(missing))
            if not missing:
                order[pending.pop()] = None
        return list(order)

    def rewrite(self, rule: Callable[[Any], Operation]) -> None:
        """Replace each operation by ``rule(operation)``, operands first. It changes the function in place."""
        new: dict[Operation, Operation] = {}
        for op in self.operations:
            op.replace_operands(new)
            new[op] = rule(op)
        self.outputs = [new[x] for x in self.outputs]

    def __str__(self) -> str:
        names: dict[Operation, str] = {x: f"%{x.name}" for x in self.inputs}
        lines = [f"func.func @main ({', '.join(f'%{x.name}: {type_of(x)}' for x in self.inputs)}) {{"]
        for op in self.operations:
            if not isinstance(op, Input):
                names[op] = f"%{len(names) - len(self.inputs)}"
                lines.append(f"  {names[op]} = {op.text(names)} : {type_of(op)}")
        return "\n".join([*lines, f"  func.return {', '.join(names[x] for x in self.outputs)}", "}"])


def type_of(op: Operation) -> str:
    return f"tensor<{'x'.join(map(str, (*op.shape, 'f32')))}>"


def interpret(function: Function, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run a function of either level in NumPy."""
    values: dict[Operation, np.ndarray] = dict(zip(function.inputs, arrays, strict=True))
    for op in function.operations:
        if op not in values:
            values[op] = op.reference(*(values[x] for x in op.operands))
    return [values[x] for x in function.outputs]


# 3. The tensor level: dialects/tensor.py, dialects/scalar.py. It says how each element is computed.

FUNCTIONS: dict[str, tuple[str, Any]] = {  # scalar functions: their C text, and their NumPy function
    "add": ("({} + {})", np.add),
    "sub": ("({} - {})", np.subtract),
    "mul": ("({} * {})", np.multiply),
    "div": ("({} / {})", np.divide),
    "max": ("maximum({}, {})", np.maximum),
    "exp": ("__builtin_expf({})", np.exp),
    "sqrt": ("__builtin_sqrtf({})", np.sqrt),
    "tanh": ("__builtin_tanhf({})", np.tanh),
}
HEAVY = {"div", "exp", "sqrt", "tanh"}  # functions that cost an order of magnitude more than a load
COMBINERS = {"sum": ("add", 0.0), "max": ("max", -math.inf)}  # reductions: their function, its identity


@dataclass(frozen=True)
class Literal:
    value: float


@dataclass(frozen=True)
class Read:
    source: Operation
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Apply:
    function: str
    arguments: tuple[Any, ...]


def element_of(x: Operation) -> Read:
    return Read(x, axes_of(len(x.shape)))


def visit(body: Any, read: Callable[[Read], Any], apply: Any = Apply, literal: Any = Literal) -> Any:
    """Walk a body, the formula of one element, from its leaves up. `apply` gets the arguments' results."""
    # The defaults rebuild the body with other reads. Other callbacks fold it: to text, a number, or an array.
    if isinstance(body, Apply):
        return apply(body.function, tuple(visit(x, read, apply, literal) for x in body.arguments))
    return read(body) if isinstance(body, Read) else literal(body.value)


def body_text(body: Any, names: Mapping[Operation, str]) -> str:
    def element(read: Read) -> str:
        return f"{names[read.source]}[{', '.join(map(str, read.indices))}]"

    return visit(body, element, lambda function, arguments: f"{function}({', '.join(arguments)})", str)


@dataclass(eq=False)
class Compute(Operation):
    """``result[i0, i1, ...] = combine over r0, r1, ... of body``: the only operation of the level.

    It is pull-style: the body says which elements of other tensors one element of the result needs.
    """

    shape: Shape  # the extents of the axes i0, i1, ...
    body: Any
    combiner: str | None = None  # a key of COMBINERS if there are reduction axes
    reduce_extents: Shape = ()  # the extents of the reduction axes r0, r1, ...

    def __post_init__(self) -> None:
        self.domain = {f"i{k}": n for k, n in enumerate(self.shape)}
        self.domain |= {f"r{k}": n for k, n in enumerate(self.reduce_extents)}
        self.points = math.prod(self.domain.values())

    @property
    def operands(self) -> tuple[Operation, ...]:
        sources: list[Operation] = []
        visit(self.body, lambda read: sources.append(read.source))
        return tuple(dict.fromkeys(sources))

    def replace_operands(self, new: Mapping[Operation, Operation]) -> None:
        self.body = visit(self.body, lambda read: Read(new[read.source], read.indices))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        """Evaluate the body on the whole domain at once: each axis is an array of its values."""
        tensors, extents = dict(zip(self.operands, arrays, strict=True)), tuple(self.domain.values())
        axes = dict(zip(self.domain, np.ogrid[tuple(slice(n) for n in extents)], strict=True))

        def element(read: Read) -> Any:
            places = [sum((axes[s] * c for s, c in i.terms), start=i.constant) for i in read.indices]
            return tensors[read.source][tuple(places)]

        values = visit(self.body, element, lambda f, x: FUNCTIONS[f][1](*x), np.float32)
        values, reduced = np.broadcast_to(values, extents), tuple(range(len(self.shape), len(extents)))
        return getattr(values, self.combiner)(axis=reduced) if self.combiner else values

    def text(self, names: Mapping[Operation, str]) -> str:
        axes, rank = [f"{axis} < {n}" for axis, n in self.domain.items()], len(self.shape)
        reduction = f" {self.combiner} [{', '.join(axes[rank:])}]" if self.combiner else ""
        return f"tensor.compute [{', '.join(axes[:rank])}]{reduction} {{ {body_text(self.body, names)} }}"


# 4. The graph level: dialects/graph/, frontends/trace/. An operator has a reference and a lowering.


@dataclass(eq=False)
class Constant(Operation):
    value: Any  # an array or a number

    def __post_init__(self) -> None:
        self.value = np.asarray(self.value, np.float32)
        self.shape = self.value.shape

    def reference(self) -> np.ndarray:
        return self.value

    def lower(self) -> Operation:
        """A single element becomes a literal, which fusion moves into its readers. Others are weights."""
        return Compute(self.shape, Literal(self.value.item())) if self.value.size == 1 else self


@dataclass(eq=False)
class GraphOp(Operation):
    numpy_function: Callable[..., np.ndarray]
    lowering: Callable[..., Compute]
    attributes: dict[str, Any]
    operands: tuple[Operation, ...]

    def __post_init__(self) -> None:
        self.shape = self.lower().shape  # lowered to learn the shape; `lower_to_tensor` repeats it

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return self.numpy_function(*arrays, **self.attributes)

    def lower(self) -> Compute:
        return self.lowering(*self.operands, **self.attributes)

    def text(self, names: Mapping[Operation, str]) -> str:
        text = f"graph.{self.lowering.__name__} {', '.join(names[x] for x in self.operands)}"
        notes = ", ".join(f"{name} = {value!r}" for name, value in self.attributes.items())
        return f"{text} {{{notes}}}" if notes else text


def operator(numpy_function: Callable[..., np.ndarray]) -> Callable[[Callable[..., Compute]], Any]:
    """Turn a lowering into the function that traces its operator. Operands may also be arrays or numbers."""

    def apply_operator(lowering: Callable[..., Compute], *operands: Any, **attributes: Any) -> GraphOp:
        values = [x if isinstance(x, Operation) else Constant(x) for x in operands]
        return GraphOp(numpy_function, lowering, attributes, tuple(values))

    return lambda lowering: partial(apply_operator, lowering)


@operator(lambda *arrays, function: FUNCTIONS[function][1](*arrays))
def elementwise(*operands: Operation, function: str) -> Compute:
    """Broadcasting is an index map: missing dimensions are left out, and those of size 1 are read at 0."""
    shape = np.broadcast_shapes(*(x.shape for x in operands))

    def element(x: Operation) -> Read:
        axes = axes_of(len(shape))[len(shape) - len(x.shape) :]
        return Read(x, tuple(Index() if n == 1 else axis for n, axis in zip(x.shape, axes, strict=True)))

    return Compute(shape, Apply(function, tuple(map(element, operands))))


@operator(np.matmul)
def matmul(a: Operation, b: Operation) -> Compute:
    if not a.shape or len(b.shape) != 2 or a.shape[-1] != b.shape[0]:
        raise ValueError(f"matmul: expected shapes (..., k) and (k, n), got {a.shape} and {b.shape}")
    (*rows, column), k = axes_of(len(a.shape)), symbol("r0")
    product = Apply("mul", (Read(a, (*rows, k)), Read(b, (k, column))))
    return Compute((*a.shape[:-1], b.shape[1]), product, "sum", b.shape[:1])


@operator(lambda x, combiner, axis: getattr(x, combiner)(axis, keepdims=True))
def reduce(x: Operation, combiner: str, axis: int) -> Compute:
    """The "sum" or "max" along an axis, which stays as a dimension of size 1."""
    indices = tuple(symbol("r0") if k == axis else i for k, i in enumerate(axes_of(len(x.shape))))
    return Compute((*x.shape[:axis], 1, *x.shape[axis + 1 :]), Read(x, indices), combiner, (x.shape[axis],))


@operator(np.transpose)
def transpose(x: Operation) -> Compute:
    return Compute(x.shape[::-1], Read(x, axes_of(len(x.shape))[::-1]))


exp, sqrt, tanh, maximum = (partial(elementwise, function=name) for name in ("exp", "sqrt", "tanh", "max"))

# 5. Passes: passes/graph/fold_constants.py, passes/tensor/lower_to_tensor.py, fuse_elementwise.py.

MAX_BODY = 60  # nodes that a body may have after fusion; a larger bound fuses more and needs more registers


def fold_constants(function: Function) -> None:
    """Replace each operator on constants by the constant that its reference computes."""

    def rule(op: Any) -> Operation:
        constant = op.operands and all(isinstance(x, Constant) for x in op.operands)
        return Constant(op.reference(*(x.value for x in op.operands))) if constant else op

    function.rewrite(rule)


def lower_to_tensor(function: Function) -> None:
    """Replace graph operators by computations. Each output gets one of its own, if necessary a copy."""
    function.rewrite(lambda op: op.lower())
    for k, x in enumerate(function.outputs):
        if not isinstance(x, Compute) or x in function.outputs[:k]:
            function.outputs[k] = Compute(x.shape, element_of(x))


def fuse_elementwise(function: Function) -> None:
    """Substitute elementwise producers into their consumers where that repeats no expensive work."""
    readers = Counter([*function.outputs, *(x for op in function.operations for x in op.operands)])

    def rule(op: Any) -> Operation:
        for producer in op.operands:
            if isinstance(producer, Compute) and is_worthwhile(op, producer, readers[producer]):
                body = substitute_producer(op.body, producer)
                if visit(body, lambda _: 1, lambda _, sizes: 1 + sum(sizes), lambda _: 1) <= MAX_BODY:
                    op.body = body
        return op

    function.rewrite(rule)


def is_worthwhile(consumer: Compute, producer: Compute, readers: int) -> bool:
    if producer.combiner is not None:
        return False  # a reduction is not a formula of one element
    if not isinstance(producer.body, Apply):
        return True  # it only moves elements, or is a literal
    once = consumer.points <= producer.points  # the consumer needs each element once
    heavy = visit(producer.body, lambda _: False, lambda f, x: f in HEAVY or any(x), lambda _: False)
    return once and readers == 1 if heavy else once or consumer.combiner is None


def substitute_producer(body: Any, producer: Compute) -> Any:
    """The body with each read ``producer[indices]`` replaced by the producer's formula at these indices."""

    def replace(read: Read) -> Any:
        at = {f"i{k}": index for k, index in enumerate(read.indices)}
        inner = visit(producer.body, lambda r: Read(r.source, tuple(i.substitute(at) for i in r.indices)))
        return inner if read.source is producer else read

    return visit(body, replace)


# 6. The loop level: dialects/loop.py, lowering/tensor_to_loop.py. It says in which order that happens.


@dataclass
class For:
    """A loop from 0 to ``min(extent, limit)``. The limit is an expression over outer loop variables."""

    name: str
    extent: int
    limit: Index | None = None
    kind: str = "serial"  # or "vectorize": the iterations run in vector lanes

    @property
    def end(self) -> str:
        return f"min({self.extent}, {self.limit})" if self.limit else str(self.extent)


@dataclass
class Block:
    """The unit of scheduling: a statement ``out[i0, i1, ...] = body`` over its own axes, inside loops."""

    name: str
    loops: list[For]  # outermost first
    bindings: dict[str, Index]  # the axes in terms of loop variables; primitives never change the body
    body: Any


@dataclass
class Kernel:
    """A function over buffers: the operands of a computation (a0, a1, ...), then its result (out)."""

    computation: Compute
    blocks: list[Block]

    def __post_init__(self) -> None:
        self.names = {x: f"a{k}" for k, x in enumerate(self.computation.operands)} | {self.computation: "out"}

    def lines(self, of_loop: Callable[[For], str], of_block: Callable[[Block], list[str]]) -> list[str]:
        """The nests as text, each line indented by its depth."""
        nests = ([*map(of_loop, block.loops), *of_block(block)] for block in self.blocks)
        return ["  " * depth + line for nest in nests for depth, line in enumerate(nest, 1)]

    def __str__(self) -> str:
        def of_loop(loop: For) -> str:
            kind = "" if loop.kind == "serial" else f" {{kind = {loop.kind!r}}}"
            return f"loop.for {loop.name} in {loop.end}{kind}"

        def of_block(block: Block) -> list[str]:
            bindings = ", ".join(f"{axis} = {index}" for axis, index in block.bindings.items())
            result, value = (body_text(x, self.names) for x in (element_of(self.computation), block.body))
            return [f"loop.block {block.name} ({bindings})", f"{result} = {value}"]

        arguments = ", ".join(f"{name}: {type_of(x)}" for x, name in self.names.items())
        return "\n".join([f"loop.kernel ({arguments})", *self.lines(of_loop, of_block)])


def kernel_of(computation: Compute) -> Kernel:
    """The unscheduled kernel, a loop for each axis. A reduction has two blocks: one stores the identity."""

    def block(name: str, domain: Mapping[str, int], body: Any) -> Block:
        loops = [For(f"{name}_{axis}", n) for axis, n in domain.items()]
        return Block(name, loops, {axis: symbol(f"{name}_{axis}") for axis in domain}, body)

    domain = computation.domain
    if computation.combiner is None:
        return Kernel(computation, [block("compute", domain, computation.body)])
    function, identity = COMBINERS[computation.combiner]
    outer = {axis: n for axis, n in domain.items() if axis.startswith("i")}
    update = Apply(function, (element_of(computation), computation.body))
    return Kernel(computation, [block("init", outer, Literal(identity)), block("update", domain, update)])


# 7. Schedules: schedule/, targets/llvm/rules/. Primitives change the order of computation, not the result.


class ScheduleError(Exception):
    """A primitive cannot be applied. The message names the primitive and the loop."""


@dataclass
class Schedule:
    """A kernel and the primitives applied to it. Loops are named by strings, so the trace is plain data."""

    kernel: Kernel
    trace: list[str] = field(default_factory=list)

    def find(self, name: str) -> tuple[Block, int]:
        for block in self.kernel.blocks:
            if name in (names := [loop.name for loop in block.loops]):
                return block, names.index(name)
        raise ScheduleError(f"no loop {name!r} in {self.kernel}")

    def split(self, name: str, factor: int) -> tuple[str, str]:
        """``for i in n`` -> ``for i_o in ceil(n / factor)``, ``for i_i in min(factor, n - factor * i_o)``."""
        block, position = self.find(name)
        loop, outer, inner = block.loops[position], f"{name}_o", f"{name}_i"
        if loop.kind != "serial" or loop.limit:
            raise ScheduleError(f"split: loop {name!r} is vectorized, or its end depends on another loop")
        start = symbol(outer) * factor
        limit = Index((), loop.extent) + start * -1 if loop.extent % factor else None
        block.loops[position] = For(outer, -(-loop.extent // factor))
        block.loops.insert(position + 1, For(inner, factor, limit))
        at = {name: start + symbol(inner)}
        block.bindings = {axis: index.substitute(at) for axis, index in block.bindings.items()}
        self.trace.append(f"split({name!r}, {factor})  -> {(outer, inner)}")
        return outer, inner

    def reorder(self, *names: str) -> None:
        """Put loops of one block into this order, outermost first, in the places that they have now."""
        block, _ = self.find(names[0])
        if {*names} - {loop.name for loop in block.loops} or len({*names}) < len(names):
            raise ScheduleError(f"reorder: {names} are not distinct loops of one block")
        order = iter(names)
        loops = [block.loops[self.find(next(order))[1]] if x.name in names else x for x in block.loops]
        for k, loop in enumerate(loops):
            if loop.limit and not {s for s, _ in loop.limit.terms} <= {outer.name for outer in loops[:k]}:
                raise ScheduleError(f"reorder: {loop.name!r} ends at {loop.end} and must stay inside")
        block.loops = loops
        self.trace.append(f"reorder{names}")

    def vectorize(self, name: str) -> None:
        """Run the iterations of an innermost loop in vector lanes."""
        block, position = self.find(name)
        reducing = [index for axis, index in block.bindings.items() if axis.startswith("r")]
        if position != len(block.loops) - 1 or name in {s for index in reducing for s, _ in index.terms}:
            raise ScheduleError(f"vectorize: loop {name!r} is not innermost, or runs over a reduction axis")
        block.loops[position].kind = "vectorize"
        self.trace.append(f"vectorize({name!r})")


LANES = 16  # elements of a tile of the last axis; in a larger tile more elements share an operand's load


def apply_rule(schedule: Schedule) -> None:
    """Split each block's last axis into tiles, move reductions between tiles and lanes, and vectorize."""
    computation = schedule.kernel.computation
    for block in schedule.kernel.blocks:
        if computation.shape and computation.shape[-1] > 1:
            outer, inner = schedule.split(f"{block.name}_i{len(computation.shape) - 1}", LANES)
            reductions = [f"{block.name}_{axis}" for axis in block.bindings if axis.startswith("r")]
            schedule.reorder(outer, *reductions, inner)
            schedule.vectorize(inner)


# 8. The host level: lowering/bufferize.py, lowering/memory_plan.py. Kernels are launched, buffers get places.


@dataclass
class MemoryPlan:
    """Places of the intermediates in one arena. Offsets and sizes are in elements."""

    offsets: dict[Operation, int]
    arena: int
    unplanned: int  # the sum of the intermediates' sizes


def plan_memory(computations: list[Compute], outputs: list[Operation]) -> MemoryPlan:
    """Give buffers that are alive at the same time disjoint places, and let the others share memory.

    The largest buffer is placed first, each in the lowest gap among those alive with it ("greedy by size":
    Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
    """
    first = {op: k for k, op in enumerate(computations)}
    last = {x: k for k, op in enumerate(computations) for x in op.operands}
    sizes = {op: math.prod(op.shape) for op in computations if op not in outputs}
    offsets: dict[Any, int] = {}
    for op in sorted(sizes, key=lambda op: -sizes[op]):
        alive = [x for x in offsets if first[x] <= last[op] and first[op] <= last[x]]
        offset = 0
        for start, end in sorted((offsets[x], offsets[x] + sizes[x]) for x in alive):
            if offset + sizes[op] <= start:
                break
            offset = max(offset, end)
        offsets[op] = offset
    arena = max((offsets[x] + sizes[x] for x in sizes), default=0)
    return MemoryPlan(offsets, arena, sum(sizes.values()))


@dataclass
class Program:
    """Kernels, and their launches with the places of the arguments. The code generator prints it."""

    kernels: dict[str, tuple[str, Kernel]]  # names and kernels, by the kernels' text
    launches: list[tuple[str, list[str]]]
    weights: list[np.ndarray]
    memory: MemoryPlan

    def __str__(self) -> str:
        launches = [f"host.launch @{name} ({', '.join(places)})" for name, places in self.launches]
        return "\n".join([f"host.arena {self.memory.arena}", *launches])


def bufferize(function: Function) -> Program:
    """Launch a kernel for each computation. Kernels of equal text are one kernel."""
    computations = [op for op in function.operations if isinstance(op, Compute)]
    weights = [op for op in function.operations if isinstance(op, Constant)]
    memory = plan_memory(computations, function.outputs)
    place = {op: f"arena + {offset}" for op, offset in memory.offsets.items()}
    for kind, values in (("inputs", function.inputs), ("weights", weights), ("outputs", function.outputs)):
        place |= {x: f"{kind}[{k}]" for k, x in enumerate(values)}
    program = Program({}, [], [np.ascontiguousarray(x.value) for x in weights], memory)
    for op in computations:
        kernel = kernel_of(op)
        apply_rule(Schedule(kernel))
        name, _ = program.kernels.setdefault(str(kernel), (f"k{len(program.kernels)}", kernel))
        program.launches.append((name, [place[x] for x in (*op.operands, op)]))
    return program


# 9. Code generation: targets/llvm/kernel.py, targets/llvm/host.py. The real compiler prints LLVM IR.

PRELUDE = """\
#define min(a, b) ((a) < (b) ? (a) : (b))
#define inf __builtin_inf()
#define nan __builtin_nan("")
static inline float maximum(float a, float b) { return a > b || a != a ? a : b; }
"""


def kernel_code(name: str, kernel: Kernel) -> str:
    """A C function. Bindings are substituted into the indices, and indices become row-major addresses."""

    def of_loop(loop: For) -> str:
        pragma = f'_Pragma("clang loop vectorize_width({LANES})") ' * (loop.kind == "vectorize")
        return f"{pragma}for (long {loop.name} = 0; {loop.name} < {loop.end}; {loop.name}++)"

    def of_block(block: Block) -> list[str]:
        def element(read: Read) -> str:
            address, stride = Index(), 1
            for index, n in zip(reversed(read.indices), reversed(read.source.shape), strict=True):
                address, stride = address + index.substitute(block.bindings) * stride, stride * n
            return f"{kernel.names[read.source]}[{address}]"

        value = visit(block.body, element, lambda f, x: FUNCTIONS[f][0].format(*x), "(float){}".format)
        return [f"{element(element_of(kernel.computation))} = {value};"]

    *inputs, output = kernel.names.values()
    parameters = ", ".join([*(f"const float *restrict {x}" for x in inputs), f"float *restrict {output}"])
    return "\n".join([f"static void {name}({parameters}) {{", *kernel.lines(of_loop, of_block), "}"])


def program_code(program: Program) -> str:
    head = "void run(float **inputs, float **outputs, float **weights, float *arena) {"
    launches = [f"  {name}({', '.join(places)});" for name, places in program.launches]
    return "\n".join([PRELUDE, *(kernel_code(*x) for x in program.kernels.values()), head, *launches, "}\n"])


# 10. The driver and the runtime: driver/compile.py, artifact/link.py, runtime/library.py.


def trace(model: Callable[..., Any], *examples: np.ndarray) -> Function:
    """Run a Python function on inputs of the examples' shapes. Its operators become the function's graph."""
    inputs = [Input(n, x.shape) for n, x in zip(inspect.signature(model).parameters, examples, strict=True)]
    outputs = model(*inputs)
    return Function(inputs, list(outputs) if isinstance(outputs, tuple) else [outputs])


class Library:
    """A compiled model: call it with arrays of the shapes that it was compiled for."""

    def __init__(self, function: Function, program: Program, ir: dict[str, str]) -> None:
        self.function, self.program, self.ir = function, program, ir
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder, "model.c"), Path(folder, "model.so")
            source.write_text(ir["c"])
            command = [sys.executable, "-m", "ziglang", "cc", "-O2", "-w", "-shared", "-fPIC"]
            subprocess.run([*command, "-fno-math-errno", "-o", str(binary), str(source), "-lm"], check=True)
            self.native = ctypes.CDLL(str(binary))

    def __call__(self, *arrays: np.ndarray) -> Any:
        inputs = [np.asarray(x, np.float32, order="C") for x in arrays]
        if (found := [x.shape for x in inputs]) != (shapes := [x.shape for x in self.function.inputs]):
            raise ValueError(f"compiled for inputs of shapes {shapes}, called with {found}")
        outputs = [np.empty(x.shape, np.float32) for x in self.function.outputs]
        arena = np.empty(self.program.memory.arena, np.float32)

        def pointers(values: Sequence[np.ndarray]) -> Any:
            return (ctypes.c_void_p * len(values))(*(x.ctypes.data for x in values))

        tables = map(pointers, (inputs, outputs, self.program.weights))
        self.native.run(*tables, ctypes.c_void_p(arena.ctypes.data))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


PASSES = (fold_constants, lower_to_tensor, fuse_elementwise)


def compile(model: Callable[..., Any], *examples: np.ndarray, passes: Any = PASSES) -> Library:
    """Compile a function of tensors for inputs of the examples' shapes."""
    function = trace(model, *examples)
    ir = {"graph": str(function)}
    for step in passes:
        step(function)
    program = bufferize(function)
    loops = "\n".join(f"@{name} {text}" for text, (name, _) in program.kernels.items())
    ir |= {"tensor": str(function), "loop": loops, "host": str(program), "c": program_code(program)}
    return Library(function, program, ir)
