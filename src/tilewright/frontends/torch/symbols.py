"""Translation of torch's symbolic sizes (sympy expressions in ``meta['val'].shape``) to dimensions of the IR.

A `SymbolMap` is built from the shapes of the program's inputs, its range constraints and the user's `dims`;
it translates any ``SymInt`` of the program to a `Dim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import CompileError
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, Expr, free_symbols, prove_divisible, prove_eq, smax, smin
from ..dims import DimsArgument, DimTable, DimText, check_dims_argument, identifier, parse_dim

if TYPE_CHECKING:
    import sympy
    import torch

TorchSize: TypeAlias = "torch.SymInt | sympy.Expr | int"
"""A size as torch writes it; an integer also stands for a size that torch has no symbol for."""


class Untranslatable(Exception):
    """A symbolic size depends on data in an unknown way, or uses a function that the IR's expressions
    lack.
    """


class SymbolMap:
    """Translates sympy expressions of torch's symbols."""

    def __init__(self) -> None:
        self.symbols: dict[Any, Dim] = {}
        self._memo: dict[Any, Dim] = {}
        self.defined = 0
        self.run_time: set[Expr] = set()
        self.dimensions: set[str] = set()
        """The names of the symbols in the inputs' shapes."""

    def dim(self, size: torch.SymInt | int) -> Dim:
        """Return the dimension for a Python int or a ``SymInt``.

        Raises:
            Untranslatable: There is none.
        """
        if isinstance(size, int):
            return size
        return self.translate(size.node.expr)

    def shape(self, sizes: Sequence[Any]) -> tuple[Dim, ...]:
        return tuple(self.dim(s) for s in sizes)

    def translate(self, e: sympy.Expr) -> Dim:
        """Return the dimension for a sympy expression."""
        dim = self._memo.get(e)
        if dim is None:
            dim = self._memo[e] = self._translate(e)
        return dim

    def define(self, size: TorchSize, ranges: Mapping[Any, Any], most: Dim | None = None) -> Expr:
        """Return a new symbol for a size that the run computes. If `size` (a SymInt or sympy expression) is a
        symbol without a definition yet, it is defined as the new one.

        `most`, if it is a number, is an upper bound; torch's own bounds do not count what broadcasting adds.
        """
        from ...ir.symbolic import symbol

        e = getattr(getattr(size, "node", None), "expr", size)
        is_new_symbol = not isinstance(e, int) and e.is_Symbol and e not in self.symbols
        low, high = _bounds(e, ranges) if is_new_symbol else (0, None)
        if isinstance(most, int):
            high = most
        self.defined += 1
        name = f"{e if is_new_symbol else 'count'}_{self.defined}"
        while name in self.dimensions:
            name += "_"
        run_time_size = symbol(name, low, high)
        assert isinstance(run_time_size, Expr)
        self.run_time.add(run_time_size)
        if is_new_symbol:
            self.symbols[e] = run_time_size
        return run_time_size

    def rename(self, e: sympy.Expr, dim: Dim | None) -> None:
        """Define a torch symbol as another dimension from here on; None removes the definition."""
        self.symbols.pop(e, None)
        if dim is not None:
            self.symbols[e] = dim
        self._memo = {}

    def _translate(self, e: sympy.Expr) -> Dim:
        import sympy

        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            if e not in self.symbols:
                raise Untranslatable(f"the size {e} depends on data")
            return self.symbols[e]
        if isinstance(e, (sympy.Add, sympy.Mul)) and any(
            not a.is_integer for a in sympy.Add.make_args(sympy.expand(e))
        ):
            raise Untranslatable(f"the size {e} is not a whole number")
        if isinstance(e, (sympy.Add, sympy.Mul)):
            return self._polynomial(e)
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and int(e.exp) > 0:
            total: Dim = 1
            for _ in range(int(e.exp)):
                total = total * self.translate(e.base)
            return total
        name = type(e).__name__
        if name in ("Max", "Min"):
            values = [self.translate(a) for a in e.args]
            total = values[0]
            for v in values[1:]:
                total = smax(total, v) if name == "Max" else smin(total, v)
            return total
        if name in ("FloorDiv", "CleanDiv"):
            return self.translate(e.args[0]) // self.translate(e.args[1])
        if name in ("Mod", "PythonMod"):
            return self.translate(e.args[0]) % self.translate(e.args[1])
        if name == "CeilDiv":
            return -(-self.translate(e.args[0]) // self.translate(e.args[1]))
        if name in ("TruncToInt", "CeilToInt", "FloorToInt"):
            return self._rounded(name, e.args[0])
        raise Untranslatable(f"the size {e} uses {name}")

    def _polynomial(self, e: sympy.Expr) -> Dim:
        """Return a sum or product; rational coefficients share one exact division."""
        import sympy

        numerator, denominator = (
            sympy.fraction(sympy.together(e)) if e.has(sympy.Rational) else (e, sympy.Integer(1))
        )
        if denominator != 1:
            return self.translate(sympy.expand(numerator)) // self.translate(denominator)
        total: Dim = 0 if isinstance(e, sympy.Add) else 1
        for a in e.args:
            total = total + self.translate(a) if isinstance(e, sympy.Add) else total * self.translate(a)
        return total

    def _rounded(self, name: str, e: sympy.Expr) -> Dim:
        """Return a rounded quotient of integers, such as ``int(seq / 2)`` or ``ceil(seq * 0.5)``."""
        kind = type(e).__name__
        if kind in ("IntTrueDiv", "FloatTrueDiv"):
            a, b = (self.translate(_whole(x)) for x in e.args)
            return -(-a // b) if name == "CeilToInt" else a // b
        if kind == "ToFloat":
            return self.translate(e.args[0])
        raise Untranslatable(f"the size {name}({e}) is computed in floating point")


def _whole(e: sympy.Expr) -> Any:
    """Return the integer expression in a float one that is a whole number."""
    import sympy

    if type(e).__name__ == "ToFloat":
        return e.args[0]
    if e.is_Float and float(e).is_integer():
        return sympy.Integer(int(e))
    return e


def _bounds(e: sympy.Expr, ranges: Mapping[Any, Any]) -> tuple[int | None, int | None]:
    """Return torch's bounds of a symbol, None for a bound beyond 60 bits."""
    limits = ranges.get(e)
    if limits is None:
        return None, None
    low, high = (
        int(x) if x.is_Integer and abs(int(x)) < 1 << 60 else None for x in (limits.lower, limits.upper)
    )
    return low, high


def _limits(e: sympy.Expr, ranges: Mapping[Any, Any]) -> tuple[int | None, int | None]:
    """Return torch's bounds of a symbol, None if they only say that a size is not negative."""
    low, high = _bounds(e, ranges)
    return (low if low is not None and low >= 2 else None), high


def input_shapes(
    inputs: Sequence[tuple[str, Sequence[Any]]], ranges: Mapping[Any, Any], dims: DimsArgument | None
) -> tuple[SymbolMap, list[tuple[Dim, ...]]]:
    """Return the symbols of a program and the shapes of its tensor inputs.

    `inputs` are names and torch shapes (int or SymInt), `ranges` the program's range constraints. Dimensions
    that the user does not name are called ``<input>_<axis>``.

    Raises:
        CompileError: `dims` name a dimension that is fixed, or give two names to sizes that the model needs
            to be equal.
    """
    listing = [(name, [s if isinstance(s, int) else "?" for s in shape]) for name, shape in inputs]
    dynamic_axes = check_dims_argument(dims, listing)
    table = DimTable()
    texts: dict[tuple[str, int], tuple[DimText, str]] = {}
    for name, shape in inputs:
        for axis, text in dynamic_axes.get(name, {}).items():
            where = f"dims[{name!r}][{axis}]"
            dim = parse_dim(text, where)
            if isinstance(shape[axis], int):
                if dim.expression != str(shape[axis]):
                    raise CompileError(
                        f"{where} is {text!r}, but the model fixes that dimension to {shape[axis]}: the "
                        "exported program holds only for this size"
                    )
                continue
            table.add(dim, where)
            texts[name, axis] = dim, where
    table.check()
    symbols = SymbolMap()
    # Collect names and bounds first, so that every symbol is created once, with the bounds of all its places.
    placed: list[tuple[Any, DimText, str]] = []
    unnamed: dict[Any, str] = {}
    for name, shape in inputs:
        for axis, size in enumerate(shape):
            if isinstance(size, int):
                continue
            e = size.node.expr
            if (name, axis) in texts:
                dim, where = texts[name, axis]
            elif not any(e is p[0] for p in placed):
                label = unnamed.setdefault(e, identifier(f"{name}_{axis}", "d"))
                dim, where = DimText(label, None, None, (label,)), f"dimension {axis} of '{name}'"
            else:
                continue
            low, high = _limits(e, ranges)
            if e.is_Symbol and len(dim.names) == 1 and (low is not None or high is not None):
                table.add(DimText(dim.expression, low, high, dim.names), f"{where} (bounds found by torch)")
            placed.append((e, dim, where))
    # The user's name takes precedence over a generated one for the same torch symbol.
    placed.sort(key=lambda p: (p[1].expression in unnamed.values(), not p[0].is_Symbol))
    owners: dict[Any, str] = {}
    for e, dim, where in placed:
        wanted = table.resolve(dim)
        if e.is_Symbol:
            known = symbols.symbols.setdefault(e, wanted)
            owner = owners.setdefault(e, where)
            if not prove_eq(known, wanted) and dim.expression not in unnamed.values():
                raise CompileError(
                    f"the model needs '{known}' ({owner}) and '{wanted}' ({where}) to be equal; give both "
                    "dimensions one name"
                )
        else:
            _solve(symbols, e, wanted, dim, ranges)
    try:
        shapes = [symbols.shape(shape) for _, shape in inputs]
        symbols.dimensions = {s.name for shape in shapes for d in shape for s in free_symbols(d)}
        return symbols, shapes
    except Untranslatable as error:
        raise CompileError(f"the shape of an input cannot be translated: {error}") from None


def _solve(symbols: SymbolMap, e: sympy.Expr, wanted: Dim, dim: DimText, ranges: Mapping[Any, Any]) -> None:
    """Define the torch symbol in a derived dimension such as ``8*s0 + 1`` that the user calls `wanted`."""
    from ...ir.symbolic import symbol

    free = sorted(e.free_symbols, key=str)
    if len(free) != 1 or free[0] in symbols.symbols:
        return
    s = free[0]
    unknown = symbol("unknown")
    symbols.symbols[s] = unknown
    parts = linear_in(symbols.translate(e), unknown)
    del symbols.symbols[s]
    symbols._memo.clear()
    if parts is None or not isinstance(parts[0], int) or parts[0] == 0 or not isinstance(parts[1], int):
        return
    scale, offset = int(parts[0]), int(parts[1])
    rest = wanted - offset
    if prove_divisible(rest, scale):
        symbols.symbols[s] = rest // scale
        return
    # The user says 'seq', the model needs a multiple: a symbol for the quotient replaces it.
    low, high = _limits(s, ranges)
    # torch traces with quotients of at least 2 and records that bound, whether the model needs it or not.
    low = None if low == 2 else low
    if isinstance(wanted, Expr) and len(dim.names) == 1 and dim.expression == dim.names[0]:
        if wanted.upper is not None:
            limit = (wanted.upper - offset) // scale
            high = limit if high is None else min(high, limit)
        least = -((offset - wanted.lower) // scale) if wanted.lower is not None else 1
        low = max(least, 1 if low is None else low)
    symbols.symbols[s] = symbol(
        f"{dim.names[0]}_by_{scale}" if dim.names else str(s), 1 if low is None else low, high
    )
