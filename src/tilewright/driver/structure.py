"""Describes the structure of a compiled model for its artifact (`artifact.structure`): the operators of the
optimized graph, the steps of the host program with the operators that each computes, and the storages of the
arena.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ir.core import BlockArgument, Operation, Value
from ..ir.printer import attributes_text
from ..ir.symbolic import Dim

if TYPE_CHECKING:
    from ..dialects.func import Func
    from ..ir.core import Module
    from ..lowering.memory_plan import ArenaPlan, MemoryPlan

LONGEST = 160
"""Characters of an operator's attributes; longer ones are cut."""


def number_operators(graph: Module) -> None:
    """Number the operators of each function from 0, in their locations."""
    from ..dialects.func import Func

    for function in graph.functions(Func):
        for number, op in enumerate(_operators(function)):
            op.location = replace(op.location, operators=(number,))


def _operators(function: Func) -> list[Operation]:
    return [op for op in function.walk() if op is not function and not op.terminator]


def describe_structure(graph: Module, host_program: Module, plan: MemoryPlan) -> str:
    """The structure of a compiled model in text, which `artifact.structure.read_structure` reads.

    Args:
        graph: The optimized graph-level module, its operators numbered by `number_operators`.
        host_program: The host program that the graph was lowered to.
        plan: The memory plan of the host program.
    """
    from ..artifact.structure import pack_structure
    from ..dialects.func import entries

    programs = {f.sym_name: f for f in entries(host_program)}
    functions = {
        f.sym_name: {
            "operators": _describe_operators(f),
            **_describe_program(programs[f.sym_name], plan.functions[f.sym_name]),
        }
        for f in entries(graph)
    }
    return pack_structure(functions)


def _describe_operators(function: Func) -> list[dict[str, Any]]:
    operators = _operators(function)
    numbers = {op: number for number, op in enumerate(operators)}

    def number(value: Value) -> int | None:
        if not isinstance(value, BlockArgument):
            assert value.defining_op is not None
            return numbers[value.defining_op]
        around = value.block.parent_op
        return -1 - value.index if around is function else numbers.get(around) if around is not None else None

    return [
        {
            "name": op.name.removeprefix("graph."),
            "place": op.location.name,
            "source": _source(op),
            "operands": [k for v in op.operands if (k := number(v)) is not None],
            "types": [str(r.type) for r in op.results],
            "attributes": _attributes(op),
            "parent": numbers.get(op.parent_op) if op.parent_op is not None else None,
        }
        for op in operators
    ]


def _source(op: Operation) -> str:
    place = op.location.portable
    return f"{place.file}:{place.line}" if place.file else ""


def _attributes(op: Operation) -> str:
    from ..dialects.graph import Constant

    text = "" if isinstance(op, Constant) else attributes_text(op)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _describe_program(program: Func, plan: ArenaPlan) -> dict[str, Any]:
    from ..dialects import host
    from ..lowering.memory_plan import roots, steps_of

    home = {value: k for k, storage in enumerate(plan.storages) for value, _ in storage.contents}

    def storages(values: Any) -> list[int]:
        return sorted({home[r] for v in values for r in roots(v) if r in home})

    steps = []
    loops: dict[Operation, int] = {}
    for op in steps_of(program):
        step: dict[str, Any] = {"kind": op.name.removeprefix("host.")}
        if isinstance(op.parent_op, host.For | host.While):
            step["loop"] = loops.setdefault(op.parent_op, len(loops))
        if isinstance(op, host.Launch):
            step |= {
                "kernel": op.kernel,
                "operators": list(op.location.operators),
                "main": op.location.fused[0].operators[0] if op.location.fused else None,
                "reads": storages(op.inputs),
                "writes": storages(op.outputs),
            }
        elif isinstance(op, host.Copy):
            step |= {"reads": storages([op.source]), "writes": storages([op.target])}
        else:
            step["reads"] = storages(op.operands)
        steps.append(step)
    described = [
        {
            "offset": _size(s.offset),
            "bytes": _size(s.size),
            "first": s.first,
            "last": s.last,
            "buffers": [
                [value.hint or "", f"{t.dtype.label}[{', '.join(map(str, t.shape))}]"]
                for value, t in s.contents
            ],
        }
        for s in plan.storages
    ]
    return {"steps": steps, "storages": described}


def _size(d: Dim) -> int | str:
    return d if isinstance(d, int) else str(d)


__all__ = ["describe_structure", "number_operators"]
