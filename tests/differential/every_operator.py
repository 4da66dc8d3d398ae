"""Random programs over every graph operator. The operators' own test cases (`tests/dialects/graph`) say how
to use them.

A case says how to build its operator, which inputs it takes, and what an independent reference (NumPy or
torch) gives. Here the inputs are values of the program where they fit, including those with dynamic
dimensions, and else new inputs of the program. The interpreter's results are compared with the reference, and
the compiled results with the interpreter's. Every operator that has a case is generated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.dialects.graph.harness import Case, Input, bools, integers, normal, positive, special, unit
from tilewright.dialects import graph
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Block, IRError, Operation, Region, Value
from tilewright.ir.run_time_symbols import defined_by, mentions
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, Expr, bounds, symbol
from tilewright.ir.types import TensorType, boolean, f32, i64

from .generator import LARGEST_ELEMENTS, MAKERS, Disagreement, Generator, Maker, Program

G: Any = graph


@cache
def cases() -> dict[str, list[Case]]:
    """The test cases by operator."""
    from tests.dialects.graph.test_operators import CASES

    found: dict[str, list[Case]] = {}
    for case in CASES:
        found.setdefault(case.operator, []).append(case)
    return found


class _Use:
    """A use of a case in a program: its sizes as dimensions of the program, and its inputs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dims: dict[str, Dim] = {}
        self.values: list[Value] = []


class EveryOperator(Generator):
    """Generates a program whose first operator is determined by the seed. As many consecutive seeds as there
    are operators use all of them.
    """

    def __init__(self, seed: int, max_steps: int) -> None:
        names = sorted(cases())
        makers = [*MAKERS, *_RUN_TIME * 4, *[("case", _any_case)] * len(MAKERS)]
        super().__init__(seed, max_steps, makers=makers, first=_case_of(names[seed % len(names)]))
        self.use: _Use | None = None

    def _grow(self, name: str, make: Maker) -> bool:
        inputs, symbols, self.use = len(self.function.body.args), len(self.symbols), None
        grown = super()._grow(name, make)
        if not grown:
            for arg in self.function.body.args[inputs:]:
                self.function.body.erase_arg(arg)
            self.function.arg_names = self.function.arg_names[:inputs]
            del self.symbols[symbols:]
        return grown

    def _finish(self) -> None:
        """Add inputs so that every symbol is the size of some input."""
        known = {d for arg in self.function.body.args for d in arg.type.shape}
        for s in self.symbols:
            if s not in known:
                self.add_input(
                    TensorType(f32, (s,)), [np.zeros(run.dims[s.name], np.float32) for run in self.runs]
                )
        super()._finish()

    def use_of(self, case: Case) -> Any:
        """Build a case with values of the program as inputs where some fit, and with new inputs otherwise."""
        self.use = use = _Use(case)
        count = len(case.inputs)
        chosen: list[Value | None] = [None] * count
        if self.values and self.chance(0.7):
            for k in self.rng.permutation(count)[: self.integer(1, count)] if count else ():
                chosen[int(k)] = self._fitting(case.inputs[int(k)], use.dims)
        self._bind(case, use.dims)
        for k, (value, wanted) in enumerate(zip(chosen, case.inputs, strict=True)):
            chosen[k] = (
                self._own_input(wanted, use.dims) if value is None else self._in_range(value, wanted.fill)
            )
        use.values = [v for v in chosen if v is not None]
        result = case.build(self.builder, dict(use.dims), *use.values)
        return tuple(result) if isinstance(result, (list, tuple)) else result

    def _fitting(self, wanted: Input, dims: dict[str, Dim]) -> Value | None:
        """A value of the program that can be used as the input `wanted`. Its sizes are entered into
        `dims`.
        """
        if not isinstance(wanted.fill, integers) and wanted.fill not in (
            normal,
            positive,
            unit,
            bools,
            special,
        ):
            return None
        if isinstance(wanted.fill, integers) and not wanted.dtype.is_integer:
            return None
        fitting = [(v, d) for v in self.values if (d := _matched(v.type, wanted, dims)) is not None]
        if not fitting:
            return None
        value, found = self.pick(fitting)
        dims.update(found)
        return value

    def _bind(self, case: Case, dims: dict[str, Dim]) -> None:
        """Choose sizes for the names that have none yet: numbers that the case lists, or new symbols with
        such values.
        """
        sizes = [self.pick(case.sizes) for _ in self.runs]
        for name in sorted({n for s in case.sizes for n in s} - set(dims)):
            if case.symbolic and self.chance(0.6):
                known = [s[name] for s in case.sizes]
                low, high = case.bounds.get(name, (min(1, *known), max(8, *known)))
                found = symbol(f"c{len(self.symbols)}", low, high)
                assert isinstance(found, Expr)
                self.symbols.append(found)
                dims[name] = found
                for run, chosen in zip(self.runs, sizes, strict=True):
                    run.dims[found.name] = chosen[name]
            else:
                dims[name] = sizes[0][name]

    def _own_input(self, wanted: Input, dims: Mapping[str, Dim]) -> Value:
        shape = tuple(_dim(d, dims) for d in wanted.shape)
        if mentions(shape, {s for op in self.function.body.ops for s in defined_by(op)}):
            raise IRError("an input's size is not for the run to compute")
        fill = normal if wanted.fill is special else wanted.fill
        arrays = []
        for run in self.runs:
            sizes = tuple(int(evaluate(d, run.dims)) for d in shape)
            if math.prod(sizes) > LARGEST_ELEMENTS:
                raise IRError("too large")
            arrays.append(np.asarray(fill(self.rng, sizes)).astype(wanted.dtype.numpy))
        return self.add_input(TensorType(wanted.dtype, shape), arrays)

    def _in_range(self, value: Value, fill: Any) -> Value:
        """`value`, transformed into the range of numbers that `fill` generates."""

        def number(x: float) -> Value:
            made: Value = self.builder(G.Constant(value=Constant(np.asarray(x, value.type.dtype.numpy))))
            return made

        b = self.builder
        if fill is positive:
            return b(G.Add(b(G.Abs(value)), number(0.1)))  # type: ignore[no-any-return]
        if fill is unit:
            return b(G.Mul(b(G.Tanh(value)), number(0.9)))  # type: ignore[no-any-return]
        if isinstance(fill, integers):
            return b(G.Add(b(G.Mod(value, number(fill.high - fill.low))), number(fill.low)))  # type: ignore[no-any-return]
        return value

    def _accept(self, op: Operation) -> bool:
        earlier = {s for o in self.function.body.ops if o is not op for s in defined_by(o)}
        return not earlier.intersection(defined_by(op)) and super()._accept(op)

    def confirm(self, result: Any) -> bool:
        """Compare the interpreter's results with the case's reference.

        Raises:
            Disagreement: they differ.
        """
        if self.use is None:
            return True
        case, results = self.use.case, result if isinstance(result, tuple) else (result,)
        for run in self.runs:
            sizes = {name: int(evaluate(d, run.dims)) for name, d in self.use.dims.items()}
            inputs = [run.true[v] for v in self.use.values]
            try:
                found = case.expected(sizes, *inputs)
            except (
                ArithmeticError,
                LookupError,
                ValueError,
                RuntimeError,
                TypeError,
            ):  # the reference does not support such inputs
                return False
            wanted = [np.asarray(x) for x in (found if isinstance(found, (list, tuple)) else (found,))]
            for value, want in zip(results, wanted, strict=True):
                got = run.true[value]
                if got.shape != want.shape or not _close(got, want, case.tolerance):
                    shapes = ", ".join(str(x.shape) for x in inputs)
                    raise Disagreement(
                        f"{case} with {sizes} on inputs of {shapes}: the interpreter and its reference differ"
                    )
        return True


def _close(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    if got.dtype.kind in "iub":
        return bool(np.array_equal(got, want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    scale = max(1.0, float(np.abs(b).max())) if b.size else 1.0
    return bool(np.allclose(a, b, rtol=4 * tolerance, atol=4 * tolerance * scale, equal_nan=True))


def _matched(type_: TensorType, wanted: Input, known: Mapping[str, Dim]) -> dict[str, Dim] | None:
    """The sizes of names for which an input `wanted` has type `type_`, or None if there are none."""
    if type_.dtype is not wanted.dtype or type_.rank != len(wanted.shape):
        return None
    found: dict[str, Dim] = {}
    for have, want in zip(type_.shape, wanted.shape, strict=True):
        if isinstance(want, str) and want.isidentifier():
            if {**known, **found}.setdefault(want, have) != have:
                return None
            found[want] = have
        elif want != have:
            return None
    return found


def _dim(d: int | str, values: Mapping[str, Dim]) -> Any:
    return d if isinstance(d, int) else eval(d, {}, dict(values))


def _any_case(g: Generator) -> Any:
    return _case_of(g.pick(sorted(cases())))(g)


def _case_of(operator: str) -> Maker:
    """A function that builds one of an operator's cases."""

    def make(g: Generator) -> Any:
        assert isinstance(g, EveryOperator)
        return g.use_of(g.pick(cases()[operator]))

    return make


# -- What the run decides ------------------------------------------------------------------------------------


def kept_rows(g: Generator) -> Any:
    """The rows of a tensor at which a flag is true; their number is a run-time size."""
    value = g.value(rank=1)
    if value is None:
        return None
    flags = [v for v in g.values if v.type.dtype is boolean and v.type.shape == value.type.shape[:1]]
    if flags and g.chance(0.5):
        flag = g.pick(flags)
    else:
        x = value if value.type.dtype.is_float else g.builder(G.Cast(value, dtype=f32))
        if value.type.rank > 1:
            x = g.builder(G.ReduceMean(x, axes=tuple(range(1, value.type.rank)), keepdims=False))
        limit = g.builder(
            G.Constant(value=Constant(np.asarray(g.pick([-0.5, 0.1, 0.7]), x.type.dtype.numpy)))
        )
        flag = g.builder(G.Gt(x, limit))
    count = symbol(f"kept{len(list(g.function.body.ops))}", 0, bounds(flag.type.shape[0])[1])
    found = g.builder(G.NonZero(flag, count=count))
    places = g.builder(G.Reshape(found, shape=(count,)))
    return g.builder(G.Gather(value, places, axis=0))


def branch(g: Generator) -> Any:
    """A branch between two elementwise computations."""
    x = g.value("float")
    if x is None:
        return None
    flags = [v for v in g.values if v.type.dtype is boolean]
    flag = g.pick(flags) if flags else g.constant(boolean, ())
    if flag.type.rank:
        kind = g.pick(["ReduceAll", "ReduceAny"])
        flag = g.builder(G.OPERATORS[kind](flag, axes=tuple(range(flag.type.rank)), keepdims=False))
    blocks = [Block([]), Block([])]
    for block in blocks:
        inside = Builder(block)
        y = x
        for _ in range(g.integer(0, 3)):
            y = inside(G.OPERATORS[g.pick(["Neg", "Abs", "Sin", "Tanh", "Sigmoid", "Relu"])](y))
        inside.insert(Yield([y]))
    op = G.If(flag, regions=[Region([block]) for block in blocks])
    g.builder.insert(op)
    return op.results[0]


def repeated(g: Generator) -> Any:
    """A loop that ends by a condition or a count, with a carried value and a stacked one."""
    x = g.value("float", rank=1)
    if x is None:
        return None
    block = Block([TensorType(i64, ()), x.type])
    inside = Builder(block)
    y = inside(G.Tanh(inside(G.Add(block.args[1], inside(G.Sin(x))))))
    axes = tuple(range(x.type.rank))
    total = inside(G.ReduceMean(y, axes=axes, keepdims=False))
    zero = inside(G.Constant(value=Constant(np.zeros((), x.type.dtype.numpy))))
    inside.insert(Yield([inside(G.Gt(total, zero)), y, total]))
    start = g.builder(G.Constant(value=Constant(np.array(g.chance(0.9)))))
    limit = g.builder(G.Constant(value=Constant(np.array(g.integer(0, 4)))))
    count = symbol(f"steps{len(list(g.function.body.ops))}", 0, 4)
    op = G.While(start, limit, [x], count=count, regions=[Region([block])])
    g.builder.insert(op)
    return tuple(op.results)


_RUN_TIME: Sequence[tuple[str, Maker]] = [
    ("kept_rows", kept_rows),
    ("branch", branch),
    ("repeated", repeated),
]


def generate(seed: int, max_steps: int = 10) -> Program:
    """The program of a seed.

    Raises:
        Disagreement: the interpreter and an independent reference differ.
    """
    with np.errstate(all="ignore"):
        return EveryOperator(seed, max_steps).program()
