"""Cuts a graph into parts that are compiled and parts that only the interpreter runs, see
`dialects/interpreted.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...dialects import graph
from ...dialects.func import Func, Return
from ...dialects.interpreted import MOVE_STRINGS, Interpreted, is_string, needs_interpreter
from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.core import Block, Module, Operation, Value
from ...ir.run_time_symbols import defined_by, definers_of, definitions, symbols_of
from ...ir.symbolic import Expr, free_symbols
from ...ir.types import TensorType, boolean


@dataclass(frozen=True)
class Part:
    """A part of a graph as a module, whose function ``main`` takes the graph's values `inputs` and returns
    `outputs`.

    A compiled part has more arguments after these: for each of the symbols `sizes` a tensor of flags of that
    size (their values are not read), because all of its symbols must follow from its arguments. Its last
    results are the values (i64) of `defines`, symbols that it defines for other parts.
    """

    module: Module
    interpreted: bool
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    sizes: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()


def separate(module: Module) -> list[Part] | None:
    """The parts of a module in the order in which they run; None if all of it can be compiled.

    Raises:
        CompileError: an operator that does not take strings is given some; names it and its location.
    """
    functions = module.functions(Func)
    if len(functions) != 1 or functions[0].sym_name != "main":
        _refuse_strings(functions)
        return None
    block = module.symbol("main").body
    ops = [op for op in block.ops if not op.terminator]
    interpreted = {op for op in ops if needs_interpreter(op)}
    if not interpreted and not any(is_string(v) for v in (*block.args, *block.terminator.operands)):
        return None
    main = module.symbol("main")
    assert isinstance(main, Func)
    if main.updates:
        raise CompileError(
            f"the model changes '{main.updates[0]}' and has operators for strings, which run in Python: "
            "such a model cannot have state or change its inputs; return the new value as an output"
        )
    for op in (inner for outer in interpreted for inner in outer.walk()):
        known = isinstance(op, Interpreted) or type(op) in MOVE_STRINGS or op.terminator
        if not known and any(is_string(v) for v in (*op.operands, *op.results)):
            raise CompileError(f"'{op.name}' is not defined for strings (at {op.location})")
    level = _levels(block, ops, interpreted)
    return [
        _part(block, [op for op in ops if level.get(op) == k], interpreted=k % 2 == 0)
        for k in sorted(set(level.values()))
    ]


def _refuse_strings(functions: Iterable[Func]) -> None:
    for function in functions:
        for op in function.body.ops:
            if needs_interpreter(op) or any(is_string(v) for v in (*op.operands, *op.results)):
                raise CompileError(
                    f"'{op.name}' in function '{function.sym_name}' is for strings, which run in Python "
                    f"(at {op.location}): only a model that is one function, 'main', may hold it"
                )


def _is_free(op: Operation) -> bool:
    """Whether an operation depends on symbols alone; it is repeated in every part that uses it."""
    return isinstance(op, (graph.Constant, graph.Symbolic))


def _levels(block: Block, ops: Iterable[Operation], interpreted: set[Operation]) -> dict[Operation, int]:
    """The number of the part of each operation: the first one before which all its operands are computed.

    Interpreted parts have even numbers, compiled parts odd ones.
    """
    known = definitions(block)
    level: dict[Operation, int] = {}
    returned = {v.defining_op for v in block.terminator.operands}
    for op in ops:
        if _is_free(op) and op not in returned:
            continue
        makers = [v.defining_op for v in _captured([op]) if v.defining_op is not None]
        needed = [*makers, *(d for m in (op, *filter(_is_free, makers)) for d in definers_of(m, known))]
        least = max((level[m] for m in needed if m in level), default=0)
        level[op] = least + (least % 2 != (op not in interpreted))
    return level


def _captured(ops: Iterable[Operation]) -> list[Value]:
    """The values that operations, or operations inside them, use and that none of them produces."""
    used: dict[Value, None] = {}
    made: set[Value] = set()
    for op in ops:
        for inner in op.walk():
            used.update(dict.fromkeys(inner.operands))
            made.update(inner.results)
            made.update(a for region in inner.regions for b in region.blocks for a in b.args)
    return [v for v in used if v not in made]


def _part(block: Block, ops: list[Operation], interpreted: bool) -> Part:
    inside = set(ops)
    captured = _captured(ops)
    free = [v.defining_op for v in captured if v.defining_op is not None and _is_free(v.defining_op)]
    inputs = [v for v in captured if v.defining_op not in free]
    others = [op for op in block.ops if op not in inside]
    wanted = set(_captured(others))
    outputs = [r for op in ops for r in op.results if r in wanted]
    defined = {s for op in ops for s in defined_by(op)}
    symbols = [s for s in _mentioned(others) if s in defined]
    sizes = []
    if not interpreted:
        alone = {d for v in inputs for d in v.type.shape}
        shapes = {s: None for v in inputs for d in v.type.shape for s in free_symbols(d)}
        mentioned = {**shapes, **dict.fromkeys(_mentioned((*free, *ops)))}
        sizes = [s for s in mentioned if s not in defined and s not in alone]

    module = Module()
    func = module.body.append(Func(sym_name="main"))
    values: dict[Value, Value] = {v: func.body.add_arg(v.type) for v in inputs}
    for s in sizes:
        func.body.add_arg(TensorType(boolean, (s,)))
    builder = Builder(func.body)
    for op in (*free, *ops):
        builder.insert(op.clone(values))
    results = [values[v] for v in outputs]
    if not interpreted:
        results += [builder(graph.Symbolic(values=(s,))) for s in symbols]
    builder.insert(Return(results))
    func.attributes.update(
        arg_names=tuple(f"x{k}" for k in range(len(func.body.args))),
        result_names=tuple(f"y{k}" for k in range(len(results))),
    )
    return Part(
        module,
        interpreted,
        tuple(inputs),
        tuple(outputs),
        *(tuple(s.name for s in x) for x in (sizes, symbols)),
    )


def _mentioned(ops: Iterable[Operation]) -> Iterator[Expr]:
    return iter(dict.fromkeys(s for op in ops for s in symbols_of(op)))


__all__ = ["Part", "separate"]
