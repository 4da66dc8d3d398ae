"""Random graphs from seeds: random operators, shapes, data types, broadcasting and dynamic dimensions.

A program grows one operator at a time, and the interpreter runs every new operator at once on several sets of
inputs. An operator is kept only if its results are well conditioned: finite, of moderate size, and nearly
unchanged when all arithmetic before it is disturbed by a few units in the last place. Therefore the results
of a correct compiler agree with the interpreter to a small tolerance, even those of discontinuous operators
(comparisons, rounding, argmax).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.dialects import func, graph
from tilewright.dialects.graph.base import tensor_type
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Block, IRError, Module, Operation, Region, Value
from tilewright.ir.interpreter import Frame
from tilewright.ir.run_time_symbols import defined_by
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, Expr, bounds, symbol
from tilewright.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8

G: Any = graph
Maker = Callable[["Generator"], Any]
"""A function that builds one random operator, or a few, and returns their values, or None if no value fits.
"""

ULP = {f64: 1e-6, f32: 1e-6, f16: 1e-3, bf16: 8e-3}
"""The relative disturbance of arithmetic results, a few times the rounding error. For float64 it is that of
functions which are accurate to float32.
"""
TOLERANCE = {f64: 1e-4, f32: 1e-4, f16: 2e-2, bf16: 1e-1}
"""The allowed error of a float output, relative to the sum of its own magnitude and the tensor's largest."""


def tolerance(precision: DType | None) -> dict[DType, float]:
    """`TOLERANCE` for a program compiled with a lower `precision`, where any float may come from a value
    rounded to that type.
    """
    return TOLERANCE if precision is None else {d: max(t, TOLERANCE[precision]) for d, t in TOLERANCE.items()}


CANCELLED = 1e-5
"""Elements smaller than this, relative to the tensor's largest, may be rounding errors of an exact zero."""
LARGEST_ELEMENTS = 20_000
LONGEST_PRODUCT = 256
LARGEST_VALUE = 1e4

EXACT = frozenset(
    "reshape transpose slice concat pad tile flip broadcast_to gather gather_elements scatter_elements "
    "select identity relu "
    "neg abs max min eq ne lt le gt ge and or xor not reduce_max reduce_min reduce_all reduce_any argmax "
    "argmin topk "
    "triangular max_pool sign isnan one_hot iota symbolic constant floor ceil round trunc".split()
)
"""Operators that do not round. Their results are as exact as their operands, so they are not disturbed."""


class Disagreement(Exception):
    """The interpreter's result differs from its type or from an independent reference."""


@dataclass
class Program:
    """A module with one function "main", several sets of inputs for it, and the steps that made it."""

    module: Module
    inputs: list[list[np.ndarray]]
    seed: int
    steps: list[str] = field(default_factory=list)

    @property
    def main(self) -> func.Func:
        found = self.module.symbol("main")
        assert isinstance(found, func.Func)
        return found


class _Run:
    """The values of everything built so far for one set of inputs: the true ones, and copies that are
    disturbed.
    """

    def __init__(
        self,
        module: Module,
        dims: dict[str, int],
        rng: np.random.Generator,
        precision: DType | None,
        copies: int = 2,
    ) -> None:
        self.module, self.dims, self.rng = module, dims, rng
        self.ulp = ULP if precision is None else {**ULP, f32: ULP[precision]}
        self.true: dict[Value, np.ndarray] = {}
        self.noisy: list[dict[Value, np.ndarray]] = [{} for _ in range(copies)]

    def give(self, value: Value, array: np.ndarray) -> None:
        """Set the data of an input."""
        for values in (self.true, *self.noisy):
            values[value] = array

    def evaluate(self, op: Operation, values: dict[Value, np.ndarray], disturb: bool) -> list[np.ndarray]:
        """The results of an operator. Run-time sizes come from the undisturbed values; if disturbed values
        give other sizes, the shapes of the results differ.
        """
        operands = {v: values[v] for v in op.operands}
        flush = values is self.noisy[0]
        if disturb:
            operands = {v: self._disturbed(a, v.type.dtype, flush) for v, a in operands.items()}
        frame = Frame(self.module, dict(self.dims), {**values, **operands} if op.regions else dict(operands))
        frame.run(op)
        if not disturb:
            self.dims.update((s.name, frame.dims[s.name]) for s in defined_by(op))
        results = [np.asarray(frame.values[r]) for r in op.results]
        if disturb:
            results = [
                self._disturbed(a, r.type.dtype, flush) for a, r in zip(results, op.results, strict=True)
            ]
        return results

    def _disturbed(self, array: np.ndarray, dtype: DType, flush: bool) -> np.ndarray:
        """The array with random relative errors. With `flush`, elements that may be the rounding error of a
        sum that cancels become 0, because they may be 0 in another order of the sum.
        """
        if dtype not in self.ulp:
            return array
        noise = 1.0 + self.ulp[dtype] * self.rng.uniform(-1, 1, array.shape)
        with np.errstate(all="ignore"):
            found = array.astype(np.float64) * noise
            if flush and array.size:
                found = np.where(np.abs(found) < CANCELLED * np.abs(found).max(), 0.0, found)
            return np.asarray(found.astype(array.dtype))


class Generator:
    """Generates one program. All choices depend on `seed`."""

    def __init__(
        self,
        seed: int,
        max_steps: int = 14,
        without: Collection[DType | str] = (),
        precision: DType | None = None,
        makers: Sequence[tuple[str, Maker]] = (),
        first: Maker | None = None,
    ) -> None:
        self.makers = makers or _MAKERS
        self.first = first
        self.precision, self.tolerance = precision, tolerance(precision)
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.without = frozenset(without)
        self.steps = int(self.rng.integers(2, max_steps + 1))
        self.module = Module()
        self.function = func.Func(sym_name="main")
        self.log: list[str] = []
        self.values: list[Value] = []
        self.dim_names: tuple[str, ...] = ("n", "m")

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """A random integer; `low` and `high` are included."""
        return int(self.rng.integers(low, high + 1))

    def value(self, *kinds: str, rank: int = 0) -> Value | None:
        """A value of the program with a data type of one of `kinds` and at least `rank` dimensions. Recent
        values are more likely.
        """
        fitting = [
            v for v in self.values if (not kinds or v.type.dtype.kind in kinds) and v.type.rank >= rank
        ]
        if not fitting:
            return None
        return self.pick(fitting[-4:] if self.chance(0.6) else fitting)

    def program(self) -> Program:
        """Generate the whole program."""
        dynamic = self.integer(0, 2)
        names = self.dim_names[:dynamic]
        self.symbols = [symbol(name, 1, self.integer(2, 12)) for name in names]
        types = [self._input_type() for _ in range(self.integer(1, 3))]
        # Every symbol must be the size of some input.
        used = {s for t in types for d in t.shape if isinstance(d, Expr) for s in self.symbols if d is s}
        types += [TensorType(f32, (s, self.integer(1, 5))) for s in self.symbols if s not in used]
        self.function = _function(types)
        self.module.body.append(self.function)
        self.builder = Builder(self.function.body)
        self.runs = [
            _Run(self.module, self._sizes(k), self.rng, precision=self.precision)
            for k in range(2 if dynamic or self.first else 1)
        ]
        for run in self.runs:
            for arg, t in zip(self.function.body.args, types, strict=True):
                run.give(arg, self._array(t, run.dims))
        self.values = list(self.function.body.args)
        made = tried = 0
        while self.first is not None and not made and tried < 24:
            tried += 1
            made += self._grow("first", self.first)
        while made < self.steps and tried < 40 * self.steps:
            tried += 1
            made += self._grow(*self.pick(self.makers))
        self._finish()
        inputs = [[run.true[arg] for arg in self.function.body.args] for run in self.runs]
        return Program(self.module, inputs, self.seed, self.log)

    def add_input(self, type_: TensorType, arrays: Sequence[np.ndarray]) -> Value:
        """Add an input with its data for each set of inputs."""
        arg = self.function.body.add_arg(type_)
        self.function.arg_names = (*self.function.arg_names, f"x{len(self.function.body.args) - 1}")
        for run, array in zip(self.runs, arrays, strict=True):
            run.give(arg, array)
        return arg

    def _grow(self, name: str, make: Maker) -> bool:
        if name in self.without:
            return False
        before = list(self.function.body.ops)
        try:
            result = make(self)
        except IRError:
            result = None
        except (
            TypeError,
            ValueError,
            ArithmeticError,
        ):  # a dimension may be 0, or may have no upper bound
            if self.first is None:
                raise
            result = None
        new = list(self.function.body.ops)[len(before) :]
        if result is None or not all(self._accept(op) for op in new) or not self.confirm(result):
            for op in reversed(new):
                op.erase()
            return False
        results = result if isinstance(result, tuple) else (result,)
        self.values += results
        self.log.append(f"{name}: {', '.join(str(r.type) for r in results)}")
        return True

    def confirm(self, result: Any) -> bool:
        """Whether the results of a maker fulfil a further condition; called after they are computed."""
        return True

    def _accept(self, op: Operation) -> bool:
        """Run an operator on all sets of inputs. Returns whether its results are well conditioned."""
        short = op.name.removeprefix("graph.")
        exact = (
            short in EXACT and self.precision is None
        )  # in lower precision any value may have been rounded
        for result in op.results if self.first is None else ():
            for d in result.type.shape:
                low, _ = bounds(d)
                if low is None or low < 1:
                    return False
        for run in self.runs:
            try:
                true = run.evaluate(op, run.true, False)
            except (
                ArithmeticError,
                LookupError,
                ValueError,
                IRError,
            ):  # not defined for such operands, such as the maximum of no elements
                if self.first is None:
                    raise
                return False
            if any(not _moderate(a) for a in true):
                return False
            if self.first is not None and not self._shaped(op, true, run):
                return False
            for values in run.noisy:
                try:
                    noisy = run.evaluate(op, values, not exact)
                except (ArithmeticError, LookupError, ValueError, IRError):
                    if self.first is None:
                        raise
                    return False
                for a, b, r in zip(true, noisy, op.results, strict=True):
                    if not agrees(b, a, r.type.dtype, 0.25, self.tolerance):
                        return False
                    values[r] = b
            run.true.update(zip(op.results, true, strict=True))
        return True

    def _shaped(self, op: Operation, arrays: Sequence[np.ndarray], run: _Run) -> bool:
        """Whether the results have the shapes of their types; False if the operator is not defined for such
        sizes.

        Raises:
            Disagreement: a shape differs from its type.
        """
        for r, a in zip(op.results, arrays, strict=True):
            shape = tuple(int(evaluate(d, run.dims)) for d in r.type.shape)
            if min(shape, default=0) < 0 or (
                a.shape != shape and not all(run.true[v].size for v in op.operands)
            ):
                return False  # such as a window wider than its input, or the last of no elements
            if a.shape != shape:
                raise Disagreement(f"{op.name}: the interpreter gives {a.shape}, the type says {shape}")
        return True

    def _finish(self) -> None:
        """Return the values without uses and, with a small probability, some that have uses."""
        made = [v for v in self.values if v.defining_op is not None] or self.values[:1]
        unused = [v for v in made if not v.uses][-4:]
        extra = [v for v in made if v.uses and self.chance(0.15)][:2]
        outputs = [*unused, *extra] or made[-1:]
        self.builder.insert(func.Return(outputs))
        self.function.result_names = tuple(f"y{k}" for k in range(len(outputs)))

    def dtype(self) -> DType:
        all_ = [f32] * 14 + [i64] * 3 + [i32] * 2 + [boolean] * 2 + [f64, f16, bf16, i8, u8]
        return self.pick([d for d in all_ if d not in self.without])

    def _dim(self) -> Dim:
        if self.symbols and self.chance(0.4):
            return self.pick(self.symbols)
        return self.pick([1, 2, 3, 4, 5, 7, 8, 8, 16, 17, 33])

    def _input_type(self) -> TensorType:
        rank = self.pick([0, 1, 2, 2, 3, 3, 4])
        while True:
            shape = tuple(self._dim() for _ in range(rank))
            if np.prod([bounds(d)[1] for d in shape], initial=1) <= LARGEST_ELEMENTS:
                return TensorType(self.dtype(), shape)

    def _sizes(self, index: int) -> dict[str, int]:
        sizes = {}
        for s in self.symbols:
            low, high = bounds(s)
            assert low is not None and high is not None
            sizes[s.name] = self.pick([low, high]) if index == 0 else self.integer(low, high)
        return sizes

    def _array(self, type_: TensorType, dims: dict[str, int]) -> np.ndarray:
        shape = tuple(int(evaluate(d, dims)) for d in type_.shape)
        return self.data(type_.dtype, shape)

    def data(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        """Random data: floats around zero, small integers, booleans."""
        if dtype.kind == "bool":
            return self.rng.random(shape) < 0.5
        if dtype.is_integer:
            return self.rng.integers(0 if dtype.kind == "uint" else -9, 10, shape).astype(dtype.numpy)
        return self.rng.standard_normal(shape).astype(dtype.numpy)

    def constant(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        result: Value = self.builder(G.Constant(value=Constant(self.data(dtype, shape), "w")))
        return result


def _function(types: Sequence[TensorType]) -> func.Func:
    from tilewright.ir.core import Block, Region

    names = tuple(f"x{k}" for k in range(len(types)))
    return func.Func(sym_name="main", arg_names=names, regions=[Region([Block(types)])])


def _moderate(array: np.ndarray) -> bool:
    if array.size > LARGEST_ELEMENTS:
        return False
    if array.dtype.kind in "iub":
        return (
            array.dtype.itemsize < 4
            or not array.size
            or abs(int(array.max())) + abs(int(array.min())) < 1 << 20
        )
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and (not wide.size or np.abs(wide).max() < LARGEST_VALUE))


def agrees(
    actual: np.ndarray,
    expected: np.ndarray,
    dtype: DType,
    share: float = 1.0,
    allowed: Mapping[DType, float] = TOLERANCE,
) -> bool:
    """Whether floats are equal within `share` of the tolerances `allowed`, and other values exactly."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if dtype not in allowed:
        return bool(np.array_equal(actual, expected))
    if not expected.size:
        return True
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    scale = max(float(np.abs(e).max()), 1e-3)
    limit = allowed[dtype] * share * (np.abs(e) + scale)
    return bool(np.isfinite(a).all() and (np.abs(a - e) <= limit).all())


_MAKERS: list[tuple[str, Maker]] = []


def _maker(weight: int) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        _MAKERS.extend([(function.__name__, function)] * weight)
        return function

    return register


_UNARY = (
    "neg abs sign exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan tanh asin acos atan sinh cosh asinh "
    "erf sigmoid "
    "floor ceil round trunc isnan"
).split()


@_maker(8)
def unary(g: Generator) -> Any:
    x = g.value("float")
    return None if x is None else g.builder(G.OPERATORS[_class(g.pick(_UNARY))](x))


@_maker(3)
def activation(g: Generator) -> Any:
    x = g.value("float")
    if x is None:
        return None
    name = g.pick(
        ["Relu", "Silu", "Gelu", "Softplus", "Elu", "Celu", "LeakyRelu", "HardSigmoid", "Reciprocal"]
    )
    options = {"approximate": g.pick(["none", "tanh"])} if name == "Gelu" else {}
    return g.builder(G.OPERATORS[name](x, **options))


@_maker(1)
def integer_unary(g: Generator) -> Any:
    x = g.value("int")
    return None if x is None else g.builder(G.OPERATORS[_class(g.pick(["neg", "abs", "sign", "relu"]))](x))


@_maker(1)
def logical_not(g: Generator) -> Any:
    x = g.value("bool")
    return None if x is None else g.builder(G.OPERATORS["Not"](x))


def _class(name: str) -> str:
    return name[0].upper() + name[1:]


def _partner(g: Generator, x: Value) -> Value:
    """A value with the data type of `x` that broadcasts with it: one of the program, or a constant."""
    dtype, shape = x.type.dtype, x.type.shape
    known = [v for v in g.values if v.type.dtype is dtype and _broadcasts(v.type.shape, shape)]
    if known and g.chance(0.7):
        return g.pick(known)
    tail = shape[g.integer(0, len(shape)) :] if shape else ()
    return g.constant(dtype, tuple(d if isinstance(d, int) and g.chance(0.7) else 1 for d in tail))


def _broadcasts(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return all(x == 1 or y == 1 or x == y for x, y in zip(a[::-1], b[::-1], strict=False))


@_maker(12)
def binary(g: Generator) -> Any:
    x = g.value("float", "int", "uint")
    if x is None:
        return None
    names = ["add", "sub", "mul", "min", "max"] * 2
    names += ["div", "pow", "mod", "atan2"] if x.type.dtype.is_float else ["floordiv", "mod"]
    y, name = _partner(g, x), g.pick(names)
    if name in ("div", "floordiv", "mod", "pow"):
        # Divisors and bases are kept away from zero, so that the results are well defined.
        one = g.builder(G.Constant(value=Constant(np.ones((), x.type.dtype.numpy))))
        if name == "pow":
            x = g.builder(G.OPERATORS["Add"](g.builder(G.OPERATORS["Abs"](x)), one))
        elif x.type.dtype.kind == "uint":
            y = g.builder(G.OPERATORS["Max"](y, one))
        else:
            y = g.builder(G.OPERATORS["Add"](g.builder(G.OPERATORS["Abs"](y)), one))
    pair = (y, x) if name not in ("div", "floordiv", "mod", "pow") and g.chance(0.3) else (x, y)
    return g.builder(G.OPERATORS[_class(name)](*pair))


@_maker(3)
def comparison(g: Generator) -> Any:
    x = g.value("float", "int", "uint")
    if x is None:
        return None
    return g.builder(G.OPERATORS[_class(g.pick(["eq", "ne", "lt", "le", "gt", "ge"]))](x, _partner(g, x)))


@_maker(1)
def logical(g: Generator) -> Any:
    x = g.value("bool")
    return (
        None if x is None else g.builder(G.OPERATORS[_class(g.pick(["and", "or", "xor"]))](x, _partner(g, x)))
    )


@_maker(3)
def select(g: Generator) -> Any:
    x = g.value()
    if x is None:
        return None
    y = _partner(g, x)
    conditions = [v for v in g.values if v.type.dtype is boolean and _broadcasts(v.type.shape, x.type.shape)]
    condition = g.pick(conditions) if conditions else g.constant(boolean, ())
    return g.builder(G.Select(condition, x, y))


@_maker(3)
def cast(g: Generator) -> Any:
    x = g.value()
    return None if x is None else g.builder(G.Cast(x, dtype=g.dtype()))


def _axes(g: Generator, rank: int) -> tuple[int, ...]:
    return tuple(sorted(int(a) for a in g.rng.choice(rank, g.integer(1, rank), replace=False)))


@_maker(6)
def reduction(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    names = ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"]
    if x.type.dtype.is_float:
        names += ["ReduceMean", "ReduceMean", "Variance", "LogSumExp"]
    name, axes = g.pick(names), _axes(g, x.type.rank)
    if name == "ReduceProd" and x.type.dtype.is_float:
        # An intermediate result of a long product may exceed the range of the type, depending on the order of
        # the factors, so two correct results may differ.
        if np.prod([bounds(x.type.shape[a])[1] for a in axes]) > LONGEST_PRODUCT:
            return None
    return g.builder(G.OPERATORS[name](x, axes=axes, keepdims=g.chance(0.5)))


@_maker(1)
def bool_reduction(g: Generator) -> Any:
    x = g.value("bool", rank=1)
    if x is None:
        return None
    return g.builder(
        G.OPERATORS[g.pick(["ReduceAll", "ReduceAny"])](x, axes=_axes(g, x.type.rank), keepdims=g.chance(0.5))
    )


@_maker(2)
def arg_reduction(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    axis = g.integer(0, x.type.rank - 1)
    return g.builder(
        G.OPERATORS[g.pick(["Argmax", "Argmin"])](x, axis=axis, keepdims=g.chance(0.5), last=g.chance(0.3))
    )


@_maker(2)
def topk(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    axis = g.integer(0, x.type.rank - 1)
    n = x.type.shape[axis]
    k = g.integer(1, min(n, 5)) if isinstance(n, int) else n
    return tuple(g.builder.insert(G.Topk(x, k=k, axis=axis, largest=g.chance(0.5))).results)


@_maker(2)
def prefix(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    options = {"axis": g.integer(0, x.type.rank - 1), "exclusive": g.chance(0.3), "reverse": g.chance(0.3)}
    return g.builder(G.OPERATORS[g.pick(["Cumsum", "Cumsum", "Cumprod"])](x, **options))


@_maker(2)
def scan(g: Generator) -> Any:
    """A loop over rows with a carried value, forward or backward. One of its products may not depend on the
    carried value.
    """
    x = g.value("float", rank=2)
    if x is None or not isinstance(x.type.shape[-1], int):
        return None
    row = TensorType(x.type.dtype, x.type.shape[1:])
    start = g.builder(G.ReduceMean(x, axes=(0,), keepdims=False))
    block = Block([row, row])
    b = Builder(block)
    width = x.type.shape[-1]
    weight = b(G.Constant(value=Constant(g.data(x.type.dtype, (width, width)))))
    inputs = b(G.Matmul(block.args[1], weight)) if g.chance(0.6) else block.args[1]
    kept = b(G.Matmul(block.args[0], weight)) if g.chance(0.6) else b(G.Neg(block.args[0]))
    new = b(G.Tanh(b(G.Add(inputs, kept))))
    slices = [new, b(G.Sigmoid(kept))][: g.integer(0, 2)]
    b.insert(Yield([new, *slices]))
    backward = tuple(g.chance(0.5) for _ in range(1 + len(slices)))
    op = G.Scan([start], [x], length=x.type.shape[0], backward=backward, regions=[Region([block])])
    g.builder.insert(op)
    return tuple(op.results)


@_maker(5)
def softmax_or_norm(g: Generator) -> Any:
    x = g.value("float", rank=1)
    if x is None:
        return None
    name = g.pick(["Softmax", "Softmax", "LogSoftmax", "LayerNorm", "LayerNorm", "RmsNorm"])
    if "Softmax" in name:
        return g.builder(G.OPERATORS[name](x, axis=g.integer(0, x.type.rank - 1)))
    n = x.type.shape[-1]
    shape = (n,) if isinstance(n, int) else (1,)
    scale = g.constant(x.type.dtype, shape)
    if name == "RmsNorm":
        return g.builder(G.RmsNorm(x, scale, axes=(-1,), epsilon=0.1))
    return g.builder(G.LayerNorm(x, scale, g.constant(x.type.dtype, shape), axes=(-1,), epsilon=0.1))


@_maker(8)
def matmul(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    dtype, k = x.type.dtype, x.type.shape[-1]
    fitting = [v for v in g.values if v.type.dtype is dtype and v.type.rank >= 2 and v.type.shape[-2] == k]
    if fitting and g.chance(0.6):
        return g.builder(G.Matmul(x, g.pick(fitting)))
    if isinstance(k, int):
        return g.builder(G.Matmul(x, g.constant(dtype, (k, g.pick([1, 3, 8, 16, 19, 32])))))
    if x.type.rank < 2:
        return None
    order = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
    return g.builder(G.Matmul(x, g.builder(G.Transpose(x, permutation=order))))


@_maker(2)
def einsum(g: Generator) -> Any:
    x = g.value("float", rank=2)
    if x is None:
        return None
    y = g.pick([v for v in g.values if v.type.dtype is x.type.dtype])
    letters = "abcdefgh"
    left = letters[: x.type.rank]
    sizes = dict(zip(left, x.type.shape, strict=True))
    right = ""
    for d in y.type.shape:
        same = [c for c, n in sizes.items() if n == d and c not in right]
        c = (
            g.pick(same)
            if same and g.chance(0.7)
            else letters[len(sizes)]
            if len(sizes) < len(letters)
            else ""
        )
        if not c:
            return None
        sizes.setdefault(c, d)
        right += c
    kept = [c for c in sizes if g.chance(0.6)]
    g.rng.shuffle(kept)
    return g.builder(G.Einsum((x, y), equation=f"{left},{right}->{''.join(kept)}"))


@_maker(4)
def convolution(g: Generator) -> Any:
    x = g.value("float", rank=3)
    if x is None or x.type.rank > 4:
        return None
    layout = g.pick(["channels_first", "channels_first", "channels_last"])
    spatial = x.type.rank - 2
    channels = x.type.shape[1 if layout == "channels_first" else -1]
    if not isinstance(channels, int):
        return None
    groups = g.pick([1, 1, 1, channels, *(d for d in (2, 4) if channels % d == 0)])
    outputs = groups * g.pick([1, 2, 3, 8])
    kernel = tuple(g.integer(1, 3) for _ in range(spatial))
    w = g.constant(x.type.dtype, (outputs, channels // groups, *kernel))
    bias = g.constant(x.type.dtype, (outputs,)) if g.chance(0.5) else None
    return g.builder(
        G.Conv(
            x,
            w,
            bias,
            strides=tuple(g.integer(1, 2) for _ in range(spatial)),
            padding=tuple((g.integer(0, 2), g.integer(0, 2)) for _ in range(spatial)),
            dilations=tuple(g.pick([1, 1, 2]) for _ in range(spatial)),
            groups=groups,
            layout=layout,
        )
    )


@_maker(2)
def pooling(g: Generator) -> Any:
    x = g.value("float", rank=3)
    if x is None or x.type.rank > 4:
        return None
    spatial = x.type.rank - 2
    kernel = tuple(g.integer(1, 3) for _ in range(spatial))
    options: dict[str, Any] = {
        "kernel": kernel,
        "strides": tuple(g.integer(1, 2) for _ in range(spatial)),
        "padding": tuple((g.integer(0, k // 2), g.integer(0, k // 2)) for k in kernel),
        "layout": g.pick(["channels_first", "channels_last"]),
    }
    return g.builder(G.MaxPool(x, **options) if g.chance(0.5) else G.AvgPool(x, **options))


@_maker(4)
def reshape(g: Generator) -> Any:
    x = g.value(rank=1)
    if x is None:
        return None
    shape = list(x.type.shape)
    for _ in range(g.integer(1, 2)):
        kind, at = g.integer(0, 2), g.integer(0, len(shape) - 1)
        if kind == 0 and len(shape) > 1:
            at = min(at, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif kind == 1 and isinstance(shape[at], int):
            factors = [f for f in range(1, shape[at] + 1) if shape[at] % f == 0]
            f = g.pick(factors)
            shape[at : at + 1] = [f, shape[at] // f]
        else:
            shape.insert(at, 1)
    return g.builder(G.Reshape(x, shape=tuple(shape)))


@_maker(4)
def transpose(g: Generator) -> Any:
    x = g.value(rank=2)
    if x is None:
        return None
    return g.builder(G.Transpose(x, permutation=tuple(int(p) for p in g.rng.permutation(x.type.rank))))


@_maker(4)
def slice_(g: Generator) -> Any:
    x = g.value(rank=1)
    if x is None:
        return None
    starts, stops, steps = [], [], []
    for n in x.type.shape:
        if isinstance(n, int) and g.chance(0.6):
            low = g.integer(0, n - 1)
            high = g.integer(low + 1, n)
            if g.chance(0.2):
                starts, stops, steps = [*starts, high - 1], [*stops, low - 1], [*steps, -g.integer(1, 2)]
            else:
                starts, stops, steps = [*starts, low], [*stops, high], [*steps, g.pick([1, 1, 2, 3])]
        elif g.chance(0.2):
            # Reverse a dynamic dimension, or take every second element of it.
            back = g.chance(0.5)
            starts, stops = [*starts, n - 1 if back else 0], [*stops, -1 if back else n]
            steps.append(-1 if back else 2)
        else:
            starts, stops, steps = [*starts, 0], [*stops, n], [*steps, 1]
    return g.builder(G.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)))


@_maker(3)
def concat(g: Generator) -> Any:
    x = g.value(rank=1)
    if x is None:
        return None
    axis = g.integer(0, x.type.rank - 1)
    rest = [*x.type.shape[:axis], *x.type.shape[axis + 1 :]]
    fitting = [
        v
        for v in g.values
        if v.type.dtype is x.type.dtype
        and v.type.rank == x.type.rank
        and [*v.type.shape[:axis], *v.type.shape[axis + 1 :]] == rest
    ]
    return g.builder(G.Concat([x, *(g.pick(fitting) for _ in range(g.integer(1, 2)))], axis=axis))


@_maker(2)
def pad(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None:
        return None
    mode = g.pick(["constant", "constant", "edge", "reflect", "wrap"])
    low, high = [], []
    for n in x.type.shape:
        least, _ = bounds(n)
        assert least is not None
        most = 2 if mode in ("constant", "edge") else min(2, least - 1)
        low.append(g.integer(0, max(most, 0)))
        high.append(g.integer(0, max(most, 0)))
    options = {"value": g.pick([0, 1, -2])} if mode == "constant" else {}
    return g.builder(G.Pad(x, low=tuple(low), high=tuple(high), mode=mode, **options))


@_maker(1)
def flip_or_tile(g: Generator) -> Any:
    x = g.value(rank=1)
    if x is None:
        return None
    if g.chance(0.5):
        return g.builder(G.Flip(x, axes=_axes(g, x.type.rank)))
    return g.builder(G.Tile(x, repeats=tuple(g.pick([1, 1, 2, 3]) for _ in range(x.type.rank))))


@_maker(2)
def broadcast(g: Generator) -> Any:
    x = g.value()
    if x is None:
        return None
    shape = [g.pick([d, 3, *g.symbols]) if d == 1 else d for d in x.type.shape]
    if g.chance(0.4):
        shape.insert(0, g.pick([1, 2, *g.symbols]))
    return g.builder(G.BroadcastTo(x, shape=tuple(shape)))


@_maker(3)
def gather(g: Generator) -> Any:
    x = g.value(rank=1)
    if x is None:
        return None
    indices = g.value("int")
    if indices is None or g.chance(0.4):
        indices = g.constant(g.pick([i32, i64]), tuple(g.integer(1, 4) for _ in range(g.integer(0, 2))))
    return g.builder(G.Gather(x, indices, axis=g.integer(0, x.type.rank - 1)))


@_maker(1)
def scatter(g: Generator) -> Any:
    x = g.value("float", "int", rank=1)
    if x is None or not all(isinstance(d, int) for d in x.type.shape):
        return None
    axis = g.integer(0, x.type.rank - 1)
    n = x.type.shape[axis]
    count = g.integer(1, min(n, 3))
    shape = (*x.type.shape[:axis], count, *x.type.shape[axis + 1 :])
    positions = g.rng.permutation(n)[:count].reshape([-1 if d == axis else 1 for d in range(x.type.rank)])
    indices = g.builder(G.Constant(value=Constant(np.broadcast_to(positions, shape).astype(np.int64).copy())))
    updates = g.constant(x.type.dtype, shape)
    combiner = g.pick([None, "sum", "max", "min"])
    return g.builder(G.ScatterElements(x, indices, updates, axis=axis, combiner=combiner))


@_maker(1)
def pattern(g: Generator) -> Any:
    """Data that depends on positions: iota, one-hot, triangles, sizes."""
    kind = g.integer(0, 3)
    if kind == 0:
        shape = tuple(g._dim() for _ in range(g.integer(1, 2)))
        return g.builder(
            G.Iota(
                shape=shape, axis=g.integer(0, len(shape) - 1), start=g.integer(-3, 3), step=g.integer(1, 3)
            )
        )
    if kind == 1 and (x := g.value("int")) is not None:
        return g.builder(G.OneHot(x, depth=g.integer(1, 6), axis=-1))
    if kind == 2 and (x := g.value("float", "int", rank=2)) is not None:
        return g.builder(G.Triangular(x, upper=g.chance(0.5), diagonal=g.integer(-1, 1)))
    if kind == 3 and g.symbols:
        return g.builder(G.Symbolic(values=(g.pick(g.symbols) + g.integer(0, 3),)))
    return None


MAKERS: Sequence[tuple[str, Maker]] = _MAKERS


def generate(
    seed: int, max_steps: int = 14, without: Collection[DType | str] = (), precision: DType | None = None
) -> Program:
    """The program of a seed, which is always the same. `without` lists data types and operators to leave out.
    With a `precision`, the program is well conditioned also when values are rounded to that type.
    """
    with np.errstate(all="ignore"):
        return Generator(seed, max_steps, without, precision).program()


__all__ = [
    "MAKERS",
    "Disagreement",
    "Generator",
    "Maker",
    "Program",
    "agrees",
    "generate",
    "tensor_type",
    "tolerance",
]
