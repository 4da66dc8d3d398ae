"""Complex numbers for all front ends, as pairs of real tensors. The graph has no complex numbers; only the
module's inputs and outputs and the importers know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..dialects import graph as g
from ..dialects.func import Func
from ..ir.constant import Constant
from ..ir.core import Operation, Value
from ..ir.types import TensorType

Number: TypeAlias = complex | np.generic
"""A Python or NumPy number, real or complex."""


@dataclass(frozen=True)
class Complex:
    """Real and imaginary part: tensors of one shape and element type."""

    real: Value
    imaginary: Value

    @property
    def type(self) -> TensorType:
        """The type of each part."""
        return self.real.type


def each(function: Callable[..., Any], *values: object) -> Any:
    """Return `function` of values; if one is complex, of the real and then of the imaginary parts, with real
    values passed unchanged to both.
    """
    if not any(isinstance(v, Complex) for v in values):
        return function(*values)
    real = function(*(v.real if isinstance(v, Complex) else v for v in values))
    return Complex(real, function(*(v.imaginary if isinstance(v, Complex) else v for v in values)))


def part_names(name: str, is_complex: bool) -> list[str]:
    """Return the names of the tensors that represent a named value of a model."""
    return [f"{name}_real", f"{name}_imaginary"] if is_complex else [name]


def joined(parts: Sequence[Value]) -> Value | Complex:
    """Return the value of one tensor, or the complex number of two parts."""
    return Complex(*parts) if len(parts) == 2 else parts[0]


def flat(value: Value | Complex) -> tuple[Value, ...]:
    """Return the tensors of a value: the reverse of `joined`."""
    return (value.real, value.imaginary) if isinstance(value, Complex) else (value,)


def describe_border(
    func: Func, inputs: Sequence[tuple[str, Value | Complex]], outputs: Sequence[tuple[str, Value | Complex]]
) -> None:
    """Name the function's tensors, and record which of them callers see as complex numbers
    (`runtime.nested`).
    """
    (input_places, arg_names), (output_places, result_names) = _places(inputs), _places(outputs)
    func.attributes.update(arg_names=arg_names, result_names=result_names)
    if any(not isinstance(place, int) for _, place in (*input_places, *output_places)):
        func.attributes["nested"] = (input_places, output_places)


def _places(
    entries: Sequence[tuple[str, Value | Complex]],
) -> tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """Return the places of named values among the function's tensors, and the tensors' names."""
    places: list[tuple[str, Any]] = []
    names: list[str] = []
    for name, value in entries:
        pair = isinstance(value, Complex)
        places.append((name, ("complex", len(names), len(names) + 1) if pair else len(names)))
        names += part_names(name, pair)
    return tuple(places), tuple(names)


class ComplexMath:
    """Elementwise complex functions, built with `emit`, which inserts an operator and returns its result.

    A method has the name of the real graph operator.
    """

    def __init__(self, emit: Callable[[Operation], Value]) -> None:
        self.emit = emit

    # -- Of real tensors -------------------------------------------------------------------------------------

    def _f(self, name: str, a: Value, b: Value | float | None = None) -> Value:
        if b is None:
            return self.emit(g.elementwise.UNARY[name](a))
        return self.emit(g.elementwise.BINARY[name](a, b if isinstance(b, Value) else self._number(b, a)))

    def _number(self, x: npt.ArrayLike, like: Value) -> Value:
        return self.emit(g.Constant(value=Constant(np.asarray(x, like.type.dtype.numpy))))

    def _select(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        return self.emit(
            g.Select(condition, *(x if isinstance(x, Value) else self._number(x, like) for x in (a, b)))
        )

    def complex(self, x: Value | Complex) -> Complex:
        """Return a real tensor as a complex one."""
        return x if isinstance(x, Complex) else Complex(x, self._f("mul", x, 0.0))

    def number(self, value: Number, like: Complex) -> Complex:
        """Return a constant of rank 0."""
        return Complex(self._number(np.real(value), like.real), self._number(np.imag(value), like.real))

    # -- Arithmetic ------------------------------------------------------------------------------------------

    def neg(self, z: Complex) -> Complex:
        return Complex(self._f("neg", z.real), self._f("neg", z.imaginary))

    def conj(self, z: Complex) -> Complex:
        return Complex(z.real, self._f("neg", z.imaginary))

    def add(self, a: Complex, b: Complex) -> Complex:
        return Complex(self._f("add", a.real, b.real), self._f("add", a.imaginary, b.imaginary))

    def sub(self, a: Complex, b: Complex) -> Complex:
        return Complex(self._f("sub", a.real, b.real), self._f("sub", a.imaginary, b.imaginary))

    def mul(self, a: Complex, b: Complex) -> Complex:
        f = self._f
        real = f("sub", f("mul", a.real, b.real), f("mul", a.imaginary, b.imaginary))
        return Complex(real, f("add", f("mul", a.real, b.imaginary), f("mul", a.imaginary, b.real)))

    def div(self, a: Complex, b: Complex) -> Complex:
        """Return the quotient by Smith's algorithm (1962): it divides by the larger part of the divisor
        first, so that nothing overflows.
        """
        f = self._f
        wide = f("ge", f("abs", b.real), f("abs", b.imaginary))
        large, small = self._select(wide, b.real, b.imaginary), self._select(wide, b.imaginary, b.real)
        ratio = f("div", small, large)
        ratio = self._select(f("eq", small, 0.0), f("mul", small, 0.0), ratio)
        scale = f("add", large, f("mul", small, ratio))
        x, y = self._select(wide, a.real, a.imaginary), self._select(wide, a.imaginary, a.real)
        real = f("div", f("add", x, f("mul", y, ratio)), scale)
        other = f("div", f("sub", y, f("mul", x, ratio)), scale)
        return Complex(real, self._select(wide, other, f("neg", other)))

    def eq(self, a: Complex, b: Complex) -> Value:
        return self._f("and", self._f("eq", a.real, b.real), self._f("eq", a.imaginary, b.imaginary))

    def ne(self, a: Complex, b: Complex) -> Value:
        return self._f("or", self._f("ne", a.real, b.real), self._f("ne", a.imaginary, b.imaginary))

    def _later(self, a: Complex, b: Complex) -> Value:
        """Return where `a` is ordered after `b`: by real parts, equal ones by imaginary parts."""
        f = self._f
        tie = f("and", f("eq", a.real, b.real), f("gt", a.imaginary, b.imaginary))
        return f("or", f("gt", a.real, b.real), tie)

    def max(self, a: Complex, b: Complex) -> Complex:
        later = self._later(a, b)
        return each(lambda x, y: self._select(later, x, y), a, b)

    def min(self, a: Complex, b: Complex) -> Complex:
        later = self._later(a, b)
        return each(lambda x, y: self._select(later, y, x), a, b)

    def abs(self, z: Complex) -> Value:
        """Return the magnitude without intermediate overflow; infinite if a part is."""
        f = self._f
        x, y = f("abs", z.real), f("abs", z.imaginary)
        large, small = f("max", x, y), f("min", x, y)
        ratio = self._select(f("eq", large, small), 1.0, f("div", small, large))
        length = f("mul", large, f("sqrt", f("add", f("mul", ratio, ratio), 1.0)))
        length = self._select(f("eq", large, 0.0), 0.0, length)
        infinite = f("or", f("isinf", x), f("isinf", y))
        return self._select(infinite, float("inf"), length)

    def atan2(self, a: Complex, b: Complex) -> Complex:
        """Return ``-i log((b + i a) / sqrt(a^2 + b^2))``."""
        length = self.sqrt(self.add(self.mul(a, a), self.mul(b, b)))
        return self._turned(self.neg(self.log(self.div(self.add(b, self._turned(a)), length))))

    def angle(self, z: Complex) -> Value:
        return self._f("atan2", z.imaginary, z.real)

    def sign(self, z: Complex) -> Complex:
        length = self.abs(z)
        zero = self._f("eq", length, 0.0)
        return each(lambda part: self._select(zero, part, self._f("div", part, length)), z)

    def reciprocal(self, z: Complex) -> Complex:
        return self.div(self.number(1, z), z)

    # -- Exponentials and logarithms -------------------------------------------------------------------------

    def _polar(self, length: Value, angle: Value) -> Complex:
        """Return a number of a length and an angle; an infinite or zero length on the real axis stays
        there.
        """
        f = self._f
        flat = f("eq", angle, 0.0)
        return Complex(
            self._select(flat, length, f("mul", length, f("cos", angle))),
            self._select(flat, angle, f("mul", length, f("sin", angle))),
        )

    def exp(self, z: Complex) -> Complex:
        return self._polar(self._f("exp", z.real), z.imaginary)

    def expm1(self, z: Complex) -> Complex:
        f = self._f
        half = f("sin", f("mul", z.imaginary, 0.5))
        grown = f("expm1", z.real)
        real = f("sub", f("mul", grown, f("cos", z.imaginary)), f("mul", f("mul", half, half), 2.0))
        return Complex(real, f("mul", f("exp", z.real), f("sin", z.imaginary)))

    def log(self, z: Complex) -> Complex:
        """Return the logarithm. Near the unit circle, that of the length is computed as the one of ``1 +
        (length^2 - 1)``.
        """
        f = self._f
        x, y = f("abs", z.real), f("abs", z.imaginary)
        large, small = f("max", x, y), f("min", x, y)
        excess = f("add", f("mul", f("sub", large, 1.0), f("add", large, 1.0)), f("mul", small, small))
        near = f("and", f("gt", large, 0.5), f("lt", large, 2.0))
        return Complex(
            self._select(near, f("mul", f("log1p", excess), 0.5), f("log", self.abs(z))), self.angle(z)
        )

    def log1p(self, z: Complex) -> Complex:
        f = self._f
        excess = f("add", f("mul", z.real, f("add", z.real, 2.0)), f("mul", z.imaginary, z.imaginary))
        whole = Complex(f("add", z.real, 1.0), z.imaginary)
        small = f("lt", self.abs(z), 0.5)
        other = self.log(whole)
        return Complex(self._select(small, f("mul", f("log1p", excess), 0.5), other.real), other.imaginary)

    def pow(self, a: Complex, b: Complex) -> Complex:
        """Return ``exp(b log(a))``; 0 to any power but 0 is 0."""
        power = self.exp(self.mul(b, self.log(a)))
        origin, nothing = self.eq(a, self.number(0, a)), self.eq(b, self.number(0, b))
        real = self._select(nothing, 1.0, self._select(origin, 0.0, power.real))
        return Complex(real, self._select(self._f("or", origin, nothing), 0.0, power.imaginary))

    def sqrt(self, z: Complex) -> Complex:
        """Return the root with a real part that is not negative."""
        f = self._f
        half = f("sqrt", f("mul", f("add", self.abs(z), f("abs", z.real)), 0.5))
        other = f("div", f("abs", z.imaginary), f("mul", half, 2.0))
        other = self._select(f("eq", half, 0.0), 0.0, other)
        right = f("ge", z.real, 0.0)
        imaginary = self._select(right, other, half)
        below = f("lt", z.imaginary, 0.0)
        return Complex(self._select(right, half, other), self._select(below, f("neg", imaginary), imaginary))

    def rsqrt(self, z: Complex) -> Complex:
        return self.reciprocal(self.sqrt(z))

    def sigmoid(self, z: Complex) -> Complex:
        grown = self.exp(self.neg(z))
        return self.reciprocal(Complex(self._f("add", grown.real, 1.0), grown.imaginary))

    # -- Trigonometry ----------------------------------------------------------------------------------------

    def sinh(self, z: Complex) -> Complex:
        f = self._f
        real = f("mul", f("sinh", z.real), f("cos", z.imaginary))
        return Complex(real, f("mul", f("cosh", z.real), f("sin", z.imaginary)))

    def cosh(self, z: Complex) -> Complex:
        f = self._f
        real = f("mul", f("cosh", z.real), f("cos", z.imaginary))
        return Complex(real, f("mul", f("sinh", z.real), f("sin", z.imaginary)))

    def tanh(self, z: Complex) -> Complex:
        """Return the hyperbolic tangent (Kahan 1987, "Branch cuts for complex elementary functions"); 1 or -1
        for large real parts.
        """
        f = self._f
        tangent, grown = f("tan", z.imaginary), f("sinh", z.real)
        beta = f("add", f("mul", tangent, tangent), 1.0)
        rho = f("sqrt", f("add", f("mul", grown, grown), 1.0))
        scale = f("add", f("mul", f("mul", beta, grown), grown), 1.0)
        real = f("div", f("mul", f("mul", beta, rho), grown), scale)
        far = f("gt", f("abs", z.real), 20.0)
        return Complex(
            self._select(far, f("sign", z.real), real), self._select(far, 0.0, f("div", tangent, scale))
        )

    def _turned(self, z: Complex) -> Complex:
        """Return ``i z``."""
        return Complex(self._f("neg", z.imaginary), z.real)

    def sin(self, z: Complex) -> Complex:
        y = self.sinh(self._turned(z))
        return Complex(y.imaginary, self._f("neg", y.real))

    def cos(self, z: Complex) -> Complex:
        return self.cosh(self._turned(z))

    def tan(self, z: Complex) -> Complex:
        y = self.tanh(self._turned(z))
        return Complex(y.imaginary, self._f("neg", y.real))


__all__ = ["Complex", "ComplexMath", "describe_border", "each", "flat", "joined", "part_names"]
