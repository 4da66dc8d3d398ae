"""Loop kernels as LLVM IR text. `print_kernel` is the entry point.

`index_expr` prints index expressions, `scalars` arithmetic, `memory` loads and stores, `vectorize` vector
loops, `brgemm` contraction tiles, `mathlib` functions such as ``exp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ...analysis.loop_nest import interleaves
from ...dialects import kernels, loop, simd
from ...dialects.scalar import MULTI_INSTRUCTION, ScalarOp
from ...errors import InternalError
from ...ir import notes
from ...ir.core import Block, Operation, Value
from ...ir.symbolic import (
    Binary,
    Dim,
    Expr,
    Max,
    Min,
    Symbol,
    bounds,
    ceildiv,
    free_symbols,
    smax,
    smin,
    symbol,
)
from .argsort import order_function
from .brgemm import (
    brgemm_function,
    dequantize_function,
    elements_of_pairs,
    fused_epilogue,
    quantized_function,
)
from .brgemm.epilogue import Epilogue
from .c_kernels import scalar_argument, symbol_of
from .emitter import Emitter
from .index_expr import IndexCode
from .isa import Isa
from .memory import emit_accumulate, emit_load, emit_store
from .scalars import emit_scalar
from .values import Interleaving, KernelContext, UnrolledStep, Val, register
from .vectorize import emit_rest, emit_vector_loop, plan_lanes

UNROLLED_OPERATIONS = 64
"""Largest number of operations to which a loop with a known trip count is unrolled.

Unrolling simplifies guards and addresses; a larger value lengthens the code.
"""
ALIGNMENT = 64


@dataclass(frozen=True)
class KernelCode:
    """A kernel's code: ``define void @<symbol>(i64 %begin, i64 %end, ptr %buffers, ptr %dims, ptr
    %scratch)``.

    The function runs the iterations [begin, end) of `extent`; a thread should get at least `grain` of them.
    `helpers` are the definitions that the text needs, by name; kernels share equal ones. `scratch` is the
    size in bytes of the private memory, as an expression over the kernel's dims.
    """

    text: str
    symbol: str
    helpers: dict[str, str]
    extent: Dim
    grain: Dim
    scratch: Dim


def print_kernel(kernel: loop.Kernel, isa: Isa, symbol: str) -> KernelCode:
    """The LLVM IR of a finalized kernel (one without `loop.block`).

    Raises:
        InternalError: an operation has no code; the message names it and its place.
    """
    e = Emitter(isa.counter)
    g = KernelContext(e, IndexCode(e), isa)
    for d in kernel.dims:
        g.index.bind(d, _dim(d))
    for k, arg in enumerate(kernel.body.args):
        g.pointers[arg] = f"%buffer{k}"
    in_scratch, scratch = _place_allocs(g, kernel)
    main = _parallel_loop(kernel)
    if main is None:
        _emit_block(g, kernel.body)
        extent: Dim = next((op.range for op in kernel.body.ops if isinstance(op, kernels.Call)), 1)
    else:
        for op in kernel.body.ops:
            if op is not main:
                _emit(g, op)
        _range_loop(g, main)
        extent = main.extent
    body, wrapper = f"{symbol}.body", Emitter()
    arguments = ["i64 %begin", "i64 %end"]
    sizes = [wrapper.load("i64", wrapper.at("%dims", str(k), 8), 8) for k in range(len(kernel.dims))]
    arguments += [f"i64 {value}" for value in sizes]
    outer = IndexCode(wrapper)  # Its code follows the sizes that it uses.
    for d, value in zip(kernel.dims, sizes, strict=True):
        outer.bind(d, value)
    for k in range(len(kernel.body.args)):
        arguments.append(
            f"ptr {wrapper.load('ptr', wrapper.op(f'getelementptr ptr, ptr %buffers, i64 {k}'), 8)}"
        )
    for offset in in_scratch.values():
        arguments.append(f"ptr {outer.pointer('%scratch', offset, 1)}")
    wrapper.line(f"call void @{body}({', '.join(arguments)})")
    attributes = f'nounwind "prefer-vector-width"="{isa.vector_bits}"'
    text = (
        f"define internal void @{body}({', '.join(_parameters(kernel, list(in_scratch)))}) {attributes} "
        f"{{\n{e.text()}}}\n\n"
        f"define void @{symbol}(i64 %begin, i64 %end, ptr %buffers, ptr %dims, ptr %scratch) {attributes} "
        f"{{\n{wrapper.text()}}}\n"
    )
    return KernelCode(text, symbol, g.helpers, extent, notes.GRAIN.get(kernel, 1), scratch)


def _dim(d: Expr) -> str:
    """The parameter that holds a symbol's value; LLVM IR quotes names with non-ASCII letters."""
    name = f"dim.{d.name}"
    return f"%{name}" if name.isascii() else f'%"{name}"'


def _parameters(kernel: loop.Kernel, scratch: list[str]) -> list[str]:
    """The parameters of the inner function. All pointers are `noalias` except outputs written in place of
    inputs.
    """
    shared: set[int] = set()
    inputs = len(kernel.body.args) - kernel.num_outputs
    pairs = notes.BUFFER_ALIASES.get(kernel, ())
    for output, source in pairs:
        shared |= {inputs + output, source}
    result = ["i64 %begin", "i64 %end", *(f"i64 {_dim(d)}" for d in kernel.dims)]
    written = {op.buffer for op in kernel.walk() if isinstance(op, (loop.Store, loop.Accumulate))}
    products = (simd.BatchReduceGemm, simd.QuantizedGemm, simd.ExternalGemm)
    written |= {op.c for op in kernel.walk() if isinstance(op, products)}
    written |= {op.y for op in kernel.walk() if isinstance(op, simd.Argsort)}
    written |= {v for op in kernel.walk() if isinstance(op, kernels.Call) for v in op.outputs}
    for k, arg in enumerate(kernel.body.args):
        alone = "" if k in shared else " noalias"
        result.append(f"ptr{alone}{'' if arg in written else ' readonly'} %buffer{k}")
    return [*result, *(f"ptr noalias align {ALIGNMENT} {name}" for name in scratch)]


def _parallel_loop(kernel: loop.Kernel) -> loop.For | None:
    """The loop whose iterations the kernel's range counts: the only loop at the top level."""
    work = [op for op in kernel.body.ops if not isinstance(op, (loop.Alloc, ScalarOp))]
    if (
        len(work) == 1
        and isinstance(work[0], loop.For)
        and work[0].kind == loop.LoopKind.PARALLEL
        and not work[0].inits
    ):
        return work[0]
    return None


# -- Local buffers -----------------------------------------------------------------------------------------


def _place_allocs(g: KernelContext, kernel: loop.Kernel) -> tuple[dict[str, Dim], Dim]:
    """Assign a pointer to every local buffer, and to the pairs of a product's rows: on the stack if small,
    else an offset in the scratch memory.

    Returns the offsets by pointer, and the size of the scratch memory in bytes.
    """
    stack = 0
    offsets: dict[str, Dim] = {}
    total: Dim = 0
    for op in kernel.walk():
        size: Dim
        if isinstance(op, loop.Alloc):
            size, shape = op.buffer.dtype.itemsize, tuple(op.buffer.shape)
        elif isinstance(op, simd.BatchReduceGemm) and (elements := elements_of_pairs(op, g.isa)) != 0:
            size, shape = op.a.type.dtype.itemsize, (elements,)
        else:
            continue
        limit: Dim | None = size
        for d in shape:
            size = size * d
            over = upper_bound(d, frozenset(kernel.dims))
            limit = None if limit is None or over is None else limit * over
        most = bounds(size)[1]
        if most is not None and stack + most <= g.isa.stack_bytes:
            stack += -(-most // ALIGNMENT) * ALIGNMENT
            _place(g, op, g.e.alloca(f"[{max(most, 1)} x i8]", ALIGNMENT))
            continue
        if limit is None:
            raise InternalError(
                f"kernel '{kernel.sym_name}': the size of a local buffer ({size} bytes) has no bound over "
                f"{kernel.dims}"
            )
        name = f"%scratch{len(offsets)}"
        _place(g, op, name)
        offsets[name] = total
        total = total + ceildiv(limit, ALIGNMENT) * ALIGNMENT
    return offsets, total


def _place(g: KernelContext, op: Operation, pointer: str) -> None:
    if isinstance(op, loop.Alloc):
        g.pointers[op.result] = pointer
    else:
        g.pairs[op] = pointer


def upper_bound(e: Dim, over: frozenset[Expr]) -> Dim | None:
    """An expression over the symbols `over` that is never less than `e`; None if none is known."""
    if isinstance(e, int) or free_symbols(e) <= over:
        return e
    most = bounds(e)[1]
    if most is not None and free_symbols(e).isdisjoint(over):
        return most
    total: Dim = 0
    for c, atoms in e.terms:
        lows = [bounds(a.expr)[0] for a in atoms]
        if len(atoms) > 1 and any(low is None or low < 0 for low in lows):
            return most
        term: Dim = c
        for atom, low in zip(atoms, lows, strict=True):
            own = free_symbols(atom.expr) <= over
            factor = atom.expr if own else _atom_bound(atom, over) if c > 0 else low
            if factor is None:
                return most
            term = term * factor
        total = total + term
    return total


def _atom_bound(atom: object, over: frozenset[Expr]) -> Dim | None:
    if isinstance(atom, Symbol):
        if atom.expr in over:
            return atom.expr
        return None if atom.upper is None else upper_bound(atom.upper, over)
    assert isinstance(atom, Binary)
    a, b = upper_bound(atom.a, over), upper_bound(atom.b, over)
    if isinstance(atom, Min):
        return smin(a, b) if a is not None and b is not None else a if a is not None else b
    if a is None or b is None:
        return None
    if isinstance(atom, Max):
        return smax(a, b)
    return bounds(atom.expr)[1]


# -- Operations --------------------------------------------------------------------------------------------


def _emit_block(g: KernelContext, block: Block) -> list[Val]:
    """Print a block's operations; returns the yielded values."""
    fused: Operation | None = None
    for op in block.ops:
        if isinstance(op, loop.Yield):
            return [g.values[v] for v in op.operands]
        if op is fused:
            continue
        if isinstance(op, simd.BatchReduceGemm):
            epilogue = fused_epilogue(op, op.next, g.isa, g.index.resolve)
            fused = op.next if epilogue is not None else None
            _emit_brgemm(g, op, epilogue)
        else:
            _emit(g, op)
    return []


def _emit(g: KernelContext, op: Operation) -> None:
    if isinstance(op, ScalarOp):
        special = g.running.get(op)
        g.values[op.result] = special() if special is not None else emit_scalar(g, op)
    elif isinstance(op, loop.Load):
        g.values[op.result] = emit_load(g, op)
    elif isinstance(op, loop.Store):
        emit_store(g, op)
    elif isinstance(op, loop.Accumulate):
        emit_accumulate(g, op)
    elif isinstance(op, loop.For):
        for result, value in zip(op.results, _emit_for(g, op), strict=True):
            g.values[result] = value
    elif isinstance(op, loop.If):
        _emit_if(g, op)
    elif isinstance(op, loop.Runs):
        _emit_runs(g, op)
    elif isinstance(op, simd.ExternalGemm):
        _emit_external(g, op)
    elif isinstance(op, simd.QuantizedGemm):
        _emit_quantized(g, op)
    elif isinstance(op, simd.Dequantize):
        _emit_dequantize(g, op)
    elif isinstance(op, simd.Argsort):
        _emit_order(g, op)
    elif isinstance(op, kernels.Call):
        _emit_call(g, op)
    elif not isinstance(op, loop.Alloc):
        raise InternalError(f"'{op.name}' has no LLVM code (at {op.location})")


def _emit_if(g: KernelContext, op: loop.If) -> None:
    flag, masks = g.index.conditions(op.conditions)
    saved = g.masks, g.conditional
    tile, g.tile = g.tile, None
    if flag is not None:
        with g.e.when(flag):
            g.masks, g.conditional = g.and_masks(g.masks, masks), g.conditional or masks is not None
            _emit_block(g, op.body)
    else:
        g.masks, g.conditional = g.and_masks(g.masks, masks), g.conditional or masks is not None
        _emit_block(g, op.body)
    g.masks, g.conditional = saved
    g.tile = tile


def _emit_runs(g: KernelContext, op: loop.Runs) -> None:
    """A loop over the elements whose body runs at each element that differs from its successor, or has
    none.
    """
    e, count = g.e, g.index.value(op.range[1])
    elements = g.index.pointer(g.pointers[op.index], op.range[0], 8)
    last = e.sub(count, "1")

    def element(i: str, carried: list[tuple[str, str]]) -> list[str]:
        begin = carried[0][1]
        value, end = e.load("i64", e.at(elements, i, 8), 8), e.add(i, "1")
        is_last = e.op(f"icmp eq i64 {i}, {last}")
        following = e.load("i64", e.at(elements, e.op(f"select i1 {is_last}, i64 {i}, i64 {end}"), 8), 8)
        ends = e.op(f"or i1 {is_last}, {e.op(f'icmp ne i64 {value}, {following}')}")
        with e.when(ends), g.index.level():
            for symbol_, number in ((op.first, begin), (op.length, e.sub(end, begin)), (op.value, value)):
                g.index.bind(symbol_, number)
            _emit_block(g, op.body)
        return [e.op(f"select i1 {ends}, i64 {end}, i64 {begin}")]

    e.loop("0", count, "1", [("i64", "0")], element)


def _emit_brgemm(g: KernelContext, op: simd.BatchReduceGemm, epilogue: Epilogue | None) -> None:
    """Call the function of a product, which also computes the epilogue that follows it, if there is one."""
    name, definitions, dims = brgemm_function(op, g.isa, epilogue)
    g.helpers.update(definitions)

    def pointer(buffer: Value, offset: Dim) -> str:
        return g.index.pointer(g.pointers[buffer], offset, buffer.type.dtype.itemsize)

    target = (op.c, op.c_offset) if epilogue is None else (epilogue.target.buffer, epilogue.target.offset)
    pointers = [pointer(*place) for place in ((op.a, op.a_offset), (op.b, op.b_offset), target)]
    pointers += [g.pairs[op]] if op in g.pairs else []
    pointers += [pointer(x.buffer, x.offset) for _, x in epilogue.reads] if epilogue is not None else []
    arguments = [*(f"ptr {p}" for p in pointers), *(f"i64 {g.index.value(d)}" for d in dims)]
    g.e.line(f"call void @{name}({', '.join(arguments)})")


def _emit_quantized(g: KernelContext, op: simd.QuantizedGemm) -> None:
    name, definitions, dims = quantized_function(op, g.isa)
    g.helpers.update(definitions)
    offsets = (op.a_offset, op.a_scales_offset, op.b_offset, op.c_offset, *op.part_offsets)
    pointers = [
        g.index.pointer(g.pointers[v], offset, v.type.dtype.itemsize)
        for v, offset in zip((op.a, op.a_scales, op.b, op.c, *op.parts), offsets, strict=True)
    ]
    if op.a_sums is not None:
        pointers.append(g.index.pointer(g.pointers[op.a_sums], op.a_sums_offset, 4))
    pointers += [g.pointers[op.memory]] if op.memory is not None else []
    arguments = [*(f"ptr {p}" for p in pointers), *(f"i64 {g.index.value(d)}" for d in dims)]
    g.e.line(f"call void @{name}({', '.join(arguments)})")


def _emit_external(g: KernelContext, op: simd.ExternalGemm) -> None:
    """Call the C function of a library; `libraries` describes its parameters."""
    g.helpers[op.symbol] = f"declare void @{op.symbol}(i64, i64, i64, ptr, i64, ptr, i64, ptr, i64)\n"
    arguments = [f"i64 {g.index.value(d)}" for d in (op.m, op.n, op.k)]
    for matrix, offset, stride in (
        (op.a, op.a_offset, op.lda),
        (op.b, op.b_offset, op.ldb),
        (op.c, op.c_offset, op.ldc),
    ):
        pointer = g.index.pointer(g.pointers[matrix], offset, matrix.type.dtype.itemsize)
        arguments += [f"ptr {pointer}", f"i64 {g.index.value(stride)}"]
    g.e.line(f"call void @{op.symbol}({', '.join(arguments)})")


def _emit_dequantize(g: KernelContext, op: simd.Dequantize) -> None:
    name, definitions = dequantize_function(op, g.isa)
    g.helpers.update(definitions)
    pointers = [
        g.index.pointer(g.pointers[v], offset, v.type.dtype.itemsize)
        for v, offset in zip((op.b, op.y, *op.parts), (op.b_offset, 0, *op.part_offsets), strict=True)
    ]
    g.e.line(f"call void @{name}({', '.join(f'ptr {p}' for p in pointers)})")


def _emit_order(g: KernelContext, op: simd.Argsort) -> None:
    name, definitions = order_function(op.x.type.dtype, op.largest, g.isa)
    g.helpers.update(definitions)
    x, y = (
        g.index.pointer(g.pointers[v], offset, v.type.dtype.itemsize)
        for v, offset in ((op.x, op.x_offset), (op.y, op.y_offset))
    )
    x_step, n, y_step, k = (g.index.value(d) for d in (op.x_step, op.n, op.y_step, op.k))
    memory = f"ptr {g.pointers[op.keys]}, ptr {g.pointers[op.places]}"
    g.e.line(f"call void @{name}(ptr {x}, i64 {x_step}, i64 {n}, ptr {y}, i64 {y_step}, i64 {k}, {memory})")


def _emit_call(g: KernelContext, op: kernels.Call) -> None:
    """Call the C function of a kernel of the user's; `c_kernels` describes its parameters."""
    definition = kernels.definition_of(op)
    arguments = ["i64 %begin", "i64 %end"] if definition.split is not None else []
    arguments += [f"i64 {g.index.value(size)}" for size in op.sizes]
    arguments += [f"ptr {g.pointers[op.buffers[number]]}" for number in definition.pointers]
    arguments += [scalar_argument(value) for value in op.scalars]
    symbol_ = symbol_of(definition)
    types = ", ".join(argument.split()[0] for argument in arguments)
    g.helpers[symbol_] = f"declare void @{symbol_}({types})\n"
    g.e.line(f"call void @{symbol_}({', '.join(arguments)})")


# -- Loops -------------------------------------------------------------------------------------------------


def _emit_for(g: KernelContext, f: loop.For) -> list[Val]:
    tile, g.tile = g.tile, None
    try:
        return _emit_loop(g, f)
    finally:
        g.tile = tile


def _emit_loop(g: KernelContext, f: loop.For) -> list[Val]:
    if "." in f.kind or f.kind == loop.LoopKind.PARALLEL:
        raise InternalError(
            f"loop '{f.iv.name}' is '{f.kind}': a CPU's threads share one loop around all statements of a "
            f"kernel (at {f.location})"
        )
    if f.kind == loop.LoopKind.VECTORIZE and g.lanes is None:
        plan = plan_lanes(g, f)
        if plan is not None:
            return emit_vector_loop(g, f, plan, _emit_block)
    if f.kind == loop.LoopKind.UNROLL:
        return _emit_unrolled(g, f)
    return _emit_serial(g, f)


def _range_loop(g: KernelContext, f: loop.For) -> None:
    def body(i: str, _: list[tuple[str, str]]) -> list[str]:
        with g.index.level():
            g.index.bind(f.iv, i)
            _emit_block(g, f.body)
        return []

    g.e.loop("%begin", "%end", "1", [], body)


def _current(g: KernelContext, f: loop.For, values: list[Val]) -> list[Val]:
    """The values to carry; in a vector loop always one per lane, since the body may make them vary."""
    if g.lanes is None:
        return values
    return [Val(v.dtype, g.spread(v), g.lanes.lanes) for v in values]


def _flat(values: list[Val]) -> list[tuple[str, str]]:
    return [(register(v.dtype, v.lanes), x) for v in values for x in v.parts]


def _regrouped(like: list[Val], flat: list[str]) -> list[Val]:
    result, at = [], 0
    for v in like:
        result.append(Val(v.dtype, flat[at : at + len(v.parts)], v.lanes))
        at += len(v.parts)
    return result


def _run_body(g: KernelContext, f: loop.For, values: list[Val]) -> list[Val]:
    for arg, value in zip(f.body.args, values, strict=True):
        g.values[arg] = value
    return _current(g, f, _emit_block(g, f.body))


def _emit_serial(g: KernelContext, f: loop.For) -> list[Val]:
    extent = g.index.resolve(f.extent)
    first = _current(g, f, [g.values[v] for v in f.inits])
    if isinstance(extent, int) and (extent <= 1 or _written_size(g, f) <= UNROLLED_OPERATIONS):
        return _emit_iterations(g, f, range(extent), first)
    if g.lanes is None:
        return emit_rest(g, f, "0", g.index.value(extent), first, _emit_block)

    def body(i: str, current: list[tuple[str, str]]) -> list[str]:
        with g.index.level():
            g.index.bind(f.iv, i)
            return [x for v in _run_body(g, f, _regrouped(first, [x for _, x in current])) for x in v.parts]

    return _regrouped(first, g.e.loop("0", g.index.value(extent), "1", _flat(first), body))


def _written_size(g: KernelContext, f: loop.For) -> int:
    """The number of operations of a loop if fully unrolled, nested loops included; a very large number if
    that is impossible.
    """
    extent = g.index.resolve(f.extent)
    if not isinstance(extent, int) or f.kind not in (loop.LoopKind.SERIAL, loop.LoopKind.UNROLL):
        return 1 << 20
    total = 0
    for op in f.body.ops:
        if isinstance(op, loop.For):
            total += _written_size(g, op)
        elif isinstance(op, (ScalarOp, loop.Load, loop.Store)):
            total += 1 if op.name not in MULTI_INSTRUCTION else UNROLLED_OPERATIONS
        elif not isinstance(op, loop.Yield):
            return 1 << 20
    return extent * total


def _emit_iterations(
    g: KernelContext, f: loop.For, iterations: range, values: list[Val], base: Dim = 0
) -> list[Val]:
    """Print the iterations ``base + k`` one after the other, without a loop."""
    for k in iterations:
        g.index.known[f.iv] = base + k
        if g.tile is not None:
            g.tile.k = k
        values = _run_body(g, f, values)
    g.index.known.pop(f.iv, None)
    return values


def _emit_unrolled(g: KernelContext, f: loop.For) -> list[Val]:
    extent = g.index.resolve(f.extent)
    if isinstance(extent, int) and (f.step == 0 or extent <= f.step):
        values = _current(g, f, [g.values[v] for v in f.inits])
        with _square(g, f, 0, max(extent, 0)), _interleaved(g, f, extent):
            return _emit_iterations(g, f, range(max(extent, 0)), values)
    if f.step <= 1:
        return _emit_serial(g, f)
    values = _current(g, f, [g.values[v] for v in f.inits])
    whole = extent // f.step

    def loop_of(count: Dim, step: int, start: Dim, values: list[Val]) -> list[Val]:
        iv = symbol(g.e.fresh("unrolled_"), 0, count - 1)

        def body(i: str, current: list[tuple[str, str]]) -> list[str]:
            with g.index.level():
                g.index.bind(iv, i)
                inside = _regrouped(values, [x for _, x in current])
                with _square(g, f, start + iv * step, step):
                    return [
                        x
                        for v in _emit_iterations(g, f, range(step), inside, start + iv * step)
                        for x in v.parts
                    ]

        return _regrouped(values, g.e.loop("0", g.index.value(count), "1", _flat(values), body))

    values = loop_of(whole, f.step, 0, values)
    rest = extent - whole * f.step
    if isinstance(rest, int):
        with _square(g, f, whole * f.step, rest):
            return _emit_iterations(g, f, range(rest), values, whole * f.step)
    if not values and _is_square(g, f) and g.isa.masked:
        _emit_some(g, f, whole * f.step, rest)
        return []
    return loop_of(rest, 1, whole * f.step, values)


def _is_square(g: KernelContext, f: loop.For) -> bool:
    return g.lanes is not None and g.lanes.parts == 1 and f.step == g.lanes.lanes


@contextmanager
def _square(g: KernelContext, f: loop.For, first: Dim, count: int) -> Iterator[None]:
    """Allow loads inside to use a square of elements: `count` iterations from `first` on, at most as many as
    lanes.
    """
    saved, g.tile = g.tile, None
    if _is_square(g, f) and (count == f.step or (g.isa.masked and 1 < count < f.step)):
        present = ", ".join(f"i1 {str(k < count).lower()}" for k in range(f.step))
        g.tile = UnrolledStep(f.iv, first, None if count == f.step else f"<{present}>")
    try:
        yield
    finally:
        g.tile = saved


@contextmanager
def _interleaved(g: KernelContext, f: loop.For, count: int) -> Iterator[None]:
    """Let stores of an unrolled loop be written together if its iterations fill the elements between those of
    a lane and the next.
    """
    saved, g.interleaving = g.interleaving, None
    lanes = g.lanes
    if lanes is not None and lanes.parts == 1 and count > 1 and f.step == 0:
        inside = [op for op in f.walk() if op is not f]
        stores = [op for op in inside if isinstance(op, loop.Store)]
        simple = not any(isinstance(op, loop.For | loop.If | loop.Accumulate) for op in inside)
        if simple and all(interleaves(op, lanes.iv, f.iv, count) for op in stores):
            g.interleaving = Interleaving(count, {op: [] for op in stores})
    try:
        yield
    finally:
        g.interleaving = saved


def _emit_some(g: KernelContext, f: loop.For, first: Dim, count: Dim) -> None:
    """Print the `count` iterations from `first` on, fewer than lanes.

    Each one is nested in the condition of the previous one, so that it can use the values loaded there.
    """
    n, number = g.index.value(count), f.step
    saved = g.tile
    with g.index.level(), ExitStack() as conditions:
        g.tile = UnrolledStep(f.iv, first, g.e.first_lanes(number, n))
        for k in range(number - 1):
            conditions.enter_context(g.e.when(g.e.op(f"icmp slt i64 {k}, {n}")))
            _emit_iterations(g, f, range(k, k + 1), [], first)
    g.tile = saved


__all__ = ["KernelCode", "print_kernel", "upper_bound"]
