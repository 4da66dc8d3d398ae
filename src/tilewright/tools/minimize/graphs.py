"""Smaller modules made from a module: some of its operations, with inputs for the values of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.func import Func, Return
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Module, Operation, Value
from ...ir.interpreter import Frame
from ...ir.shape_solver import ShapeSolver
from ...ir.substitution import substitute
from ...ir.symbolic import Expr, bounds, free_symbols
from ...ir.types import TensorType
from ...ir.verifier import verify
from .failure import Inputs

Values = dict[Value, Any]


@dataclass
class Case:
    """A module with the inputs that it fails on; without inputs for one that fails when it is compiled."""

    module: Module
    inputs: Inputs | None

    @property
    def main(self) -> Func:
        main = self.module.symbol("main")
        assert isinstance(main, Func)
        return main

    @property
    def operations(self) -> list[Operation]:
        """The operations that are counted and removed: all but constants and the return."""
        return [op for op in self.main.body.ops if not isinstance(op, (g.Constant, Return))]

    def values(self) -> tuple[Values, dict[str, int]]:
        """The interpreter's value of each result, and the sizes; empty without inputs."""
        if self.inputs is None:
            return {}, {}
        main = self.main
        arrays = list(self.inputs.values())
        solver = ShapeSolver([(n, a.type.shape) for n, a in zip(main.arg_names, main.body.args, strict=True)])
        dims = dict(solver.solve({n: x.shape for n, x in zip(main.arg_names, arrays, strict=True)}))
        frame = Frame(self.module, dict(dims), {})
        with np.errstate(all="ignore"):
            frame.run_block(main.body, arrays)
        return frame.values, dims


def keep(case: Case, values: Values, kept: Collection[Operation]) -> Case:
    """Keep these operations alone. Values that they use of others become inputs; values of theirs that others
    use become outputs.
    """
    chosen = set(kept)
    module = Module()
    main = module.body.append(Func(sym_name="main"))
    mapping: dict[Value, Value] = {}
    inputs: Inputs = {}
    names: list[str] = []
    for op in case.main.body.ops:
        if op not in chosen:
            continue
        for v in _captured(op):
            if v in mapping:
                continue
            producer = v.defining_op
            if isinstance(producer, g.Constant):
                main.body.append(producer.clone(mapping))
                continue
            name = _name(case, v, names)
            names.append(name)
            mapping[v] = main.body.add_arg(v.type, v.hint)
            if case.inputs is not None:
                inputs[name] = np.asarray(values[v])
        main.body.append(op.clone(mapping))
    ends = [
        r for op in kept for r in op.results if r.has_uses and not any(_top(u) in chosen for u in r.users)
    ]
    main.body.append(Return([mapping[r] for r in ends]))
    main.arg_names, main.result_names = tuple(names), tuple(f"output{k}" for k in range(len(ends)))
    return Case(module, None if case.inputs is None else inputs)


def _captured(op: Operation) -> Iterator[Value]:
    """Values from outside of an operation that it, or an operation inside it, uses."""
    own: set[Value] = {v for inner in op.walk() for v in inner.results}
    own |= {v for inner in op.walk() for r in inner.regions for b in r.blocks for v in b.args}
    return iter(dict.fromkeys(v for inner in op.walk() for v in inner.operands if v not in own))


def _top(op: Operation) -> Operation:
    """The operation of the function's own block that contains this one."""
    while not isinstance(op.parent_op, Func):
        above = op.parent_op
        assert above is not None
        op = above
    return op


def _name(case: Case, v: Value, taken: list[str]) -> str:
    main = case.main
    known = dict(zip(main.body.args, main.arg_names, strict=True))
    hint = "".join(c if c.isalnum() else "_" for c in v.hint or "")
    stem = known.get(v) or hint or "input"  # type: ignore[call-overload]
    name, n = stem, 1
    while name in taken:
        name, n = f"{stem}_{n}", n + 1
    return str(name)


def bypass(case: Case, index: int) -> Iterator[Case]:
    """Replace one operation by an operand of the same type."""
    op = case.operations[index]
    for k, v in enumerate(op.operands):
        if len(op.results) == 1 and v.type is op.result.type:
            copy = Case(case.module.clone(), case.inputs)
            twin = copy.operations[index]
            twin.replace_by(twin.operands[k])
            yield copy


def branches(case: Case) -> Iterator[Callable[[], Case]]:
    """Replace one `graph.if` by one of its branches."""

    def inlined(index: int, side: int) -> Case:
        copy = Case(case.module.clone(), case.inputs)
        op = copy.operations[index]
        *body, last = op.regions[side].block.ops
        for inner in body:
            assert op.parent is not None
            op.parent.insert_before(op, inner)
        op.replace_by(list(last.operands))
        return tidy(copy)

    for index, op in enumerate(case.operations):
        if isinstance(op, g.If):
            yield from (partial(inlined, index, side) for side in range(len(op.regions)))


def tidy(case: Case) -> Case:
    """Remove everything without a use."""
    dce(case.module)
    main = case.main
    used = [a.has_uses for a in main.body.args]
    names = [n for n, u in zip(main.arg_names, used, strict=True) if u]
    for arg, u in zip(list(main.body.args), used, strict=True):
        if not u:
            main.body.erase_arg(arg)
    main.arg_names = tuple(names)
    return Case(case.module, None if case.inputs is None else {n: case.inputs[n] for n in names})


def small_sizes(case: Case) -> dict[str, int]:
    """Sizes for the inputs' symbols of a case without inputs: two where the bounds allow it."""
    symbols = {s for a in case.main.body.args for d in a.type.shape for s in free_symbols(d)}
    limits = {s.name: bounds(s) for s in symbols}
    return {n: max(low or 0, 2 if high is None else min(2, high)) for n, (low, high) in limits.items()}


def with_sizes(case: Case, dims: dict[str, int]) -> Case:
    """Replace the symbolic sizes of the inputs by numbers."""
    symbols = {s: dims[s.name] for a in case.main.body.args for d in a.type.shape for s in free_symbols(d)}

    def fixed(data: object) -> Any:
        return substitute(data, symbols) if isinstance(data, Expr) else data

    return _mapped(case, fixed, lambda array: array)


def with_size(case: Case, old: int, new: int) -> Iterator[Callable[[], Case]]:
    """Change dimensions of `old` elements to `new`; arrays keep their first elements. Candidates: the
    dimensions alone, with such numbers in attributes, and with all multiples.
    """

    def equal(n: object) -> Any:
        return new if type(n) is int and n == old else n

    def multiple(n: object) -> Any:
        return n // old * new if type(n) is int and n and n % old == 0 else n

    for size, attributes in ((equal, True), (equal, False), (multiple, True)):

        def cut(array: np.ndarray, size: Callable[[Any], Any] = size) -> np.ndarray:
            return array[tuple(slice(size(n)) for n in array.shape)]

        yield partial(_mapped, case, size, cut, attributes)


def _mapped(
    case: Case, f: Callable[[Any], Any], on_array: Callable[[np.ndarray], np.ndarray], attributes: bool = True
) -> Case:
    """Apply `f` to all sizes in types (and attributes) and `on_array` to constants and inputs.

    Raises:
        IRError: The result is not a valid module.
    """

    def on(data: object) -> Any:
        if isinstance(data, TensorType):
            return TensorType(data.dtype, tuple(map(f, data.shape)), data.layout)
        if isinstance(data, Constant):
            array = on_array(data.array)
            return data if array.shape == data.shape else Constant(np.asarray(array, order="C"), data.name)
        if isinstance(data, tuple):
            return tuple(map(on, data))
        return f(data) if isinstance(data, (int, Expr)) and not isinstance(data, bool) else data

    module = case.module.clone()
    for op in module.walk():
        if isinstance(op, g.Constant) or (attributes and not isinstance(op, (Module, Func))):
            op.attributes.update({k: on(v) for k, v in op.attributes.items() if k != "operand_segments"})
        for v in (*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)):
            v.type = on(v.type)
    verify(module)
    return Case(module, None if case.inputs is None else {n: on_array(x) for n, x in case.inputs.items()})


def with_constant(case: Case, index: int, array: np.ndarray) -> Case:
    """Replace the data of the constant of this number."""
    copy = Case(case.module.clone(), case.inputs)
    constants(copy)[index].value = Constant(array)
    return copy


def constants(case: Case) -> list[Any]:
    return [op for op in case.main.body.ops if isinstance(op, g.Constant)]


__all__ = [
    "branches",
    "small_sizes",
    "Case",
    "Values",
    "bypass",
    "constants",
    "keep",
    "tidy",
    "with_constant",
    "with_size",
    "with_sizes",
]
