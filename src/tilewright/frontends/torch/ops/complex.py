"""Calls with complex operands or results, which are pairs of real tensors here (`frontends.complex`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean
from ...complex import Complex, ComplexMath, each
from ...fourier import Fourier, Signal
from ...unsupported import Unsupported
from ..importer import Node, Number
from ..registry import Importer, complex_importer, importer, importers_in
from . import contract, create, index, pointwise, reduce, scatter, shape
from .create import filled

ComplexOperand: TypeAlias = Complex | Value | complex
"""A real or complex tensor, or a number."""


def pair(n: Node, x: ComplexOperand) -> Complex:
    """Return a tensor or number as complex numbers. Their parts have the element type of the result's parts
    if that is complex, else the type of `x`.
    """
    if not isinstance(x, (Value, Complex)):
        number = complex(x)
        return Complex(n.scalar(number.real, n.result_dtype()), n.scalar(number.imag, n.result_dtype()))
    dtype = n.result_dtype() if _gives_complex(n) else x.type.dtype
    if isinstance(x, Complex):
        return Complex(n.cast(x.real, dtype), n.cast(x.imaginary, dtype))
    return Complex(n.cast(x, dtype), n.broadcast(n.constant(0, dtype), x.type.shape))


def _gives_complex(n: Node) -> bool:
    return any(v.dtype.is_complex for v in (n.meta if isinstance(n.meta, (list, tuple)) else (n.meta,)))


# -- Operators on each part alone: movements of elements, and sums -------------------------------------------

_STRUCTURE = (
    "alias clone contiguous detach detach_ lift_fresh lift_fresh_copy positive neg view view_copy reshape "
    "_reshape_copy _unsafe_view view_as reshape_as "
    "flatten unflatten squeeze unsqueeze expand expand_copy expand_as broadcast_to permute transpose "
    "swapaxes swapdims t numpy_T mT movedim slice narrow "
    "select split split_with_sizes tensor_split chunk unbind flip roll repeat tile repeat_interleave "
    "diagonal diagonal_copy as_strided as_strided_copy "
    "index_select gather take_along_dim index _unsafe_index masked_select unfold unfold_copy tril triu sum "
    "mean cumsum pixel_shuffle pixel_unshuffle "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d embedding diff"
).split()
_DATA = {
    "select_scatter": (0, 1),
    "slice_scatter": (0, 1),
    "diagonal_scatter": (0, 1),
    "as_strided_scatter": (0, 1),
    "index_put": (0, 2),
    "_unsafe_index_put": (0, 2),
    "masked_scatter": (0, 2),
    "scatter_add": (0, 3),
    "cat": (0,),
    "concat": (0,),
    "stack": (0,),
    "copy": (0, 1),
}
"""Arguments that become complex if they are real; others (indices, masks) are passed unchanged to the calls
for both parts.
"""


def _register(name: str, function: Importer, data: tuple[int, ...]) -> None:
    @complex_importer(name)
    def by_parts(n: Node, *args: Any, **kwargs: object) -> Any:
        def as_pair(x: ComplexOperand) -> Any:
            return [pair(n, e) for e in x] if isinstance(x, list) else pair(n, x)

        def part(x: ComplexOperand, which: str) -> Any:
            if isinstance(x, list):
                return [part(e, which) for e in x]
            return getattr(x, which) if isinstance(x, Complex) else x

        if not _gives_complex(n):
            raise Unsupported("of complex numbers")
        whole = [as_pair(a) if k in data else a for k, a in enumerate(args)]
        results = [function(n, *(part(a, which) for a in whole), **kwargs) for which in ("real", "imaginary")]
        if isinstance(results[0], Value):
            return Complex(*results)
        return [Complex(*parts) for parts in zip(*results, strict=True)]


for _module in (create, index, pointwise, reduce, scatter, shape):
    for _name, _function in importers_in(_module.__name__).items():
        _packet = _name.split(".")[1]
        if _packet in _STRUCTURE or _packet in _DATA:
            _register(_name, _function, _DATA.get(_packet, ()))


@complex_importer("aten.constant_pad_nd.default", "aten.pad.default")
def pad(n: Node, x: ComplexOperand, amounts: Sequence[Dim], *rest: object) -> Any:
    if any(isinstance(r, complex) or (isinstance(r, (int, float)) and r != 0) for r in rest):
        raise Unsupported("of complex numbers with a value that is not 0")
    function: Importer = shape.constant_pad if n.fx.target._opname == "constant_pad_nd" else shape.pad
    return each(lambda part: function(n, part, amounts, *rest), x)


# -- Conversions between real and complex numbers ------------------------------------------------------------


def _both_tables(*names: str) -> Any:
    """Register importers of operators that are defined by complex numbers and that torch must not
    decompose.
    """
    return lambda function: importer(*names)(complex_importer(*names)(function))


@_both_tables("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(n: Node, x: Value) -> Complex:
    dims = x.type.shape[:-1]

    def part(k: int) -> Value:
        starts, stops = (0,) * len(dims) + (k,), (*dims, k + 1)
        elements = n.emit(g.Slice(x, starts=starts, stops=stops, steps=(1,) * len(stops)))
        return n.reshape(elements, dims)

    return Complex(part(0), part(1))


@_both_tables("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(n: Node, z: Complex) -> Value:
    parts = [n.reshape(part, (*part.type.shape, 1)) for part in (z.real, z.imaginary)]
    return n.emit(g.Concat(parts, axis=z.type.rank))


@_both_tables("aten.complex.default")
def complex_(n: Node, real: Value, imaginary: Value) -> Complex:
    size = n.result_shape()
    return Complex(*(n.broadcast(n.cast(p, n.result_dtype()), size) for p in (real, imaginary)))


@_both_tables("aten.polar.default")
def polar(n: Node, length: Value, angle: Value) -> Complex:
    return Complex(*(n.binary("mul", length, n.unary(wave, angle)) for wave in ("cos", "sin")))


@complex_importer("aten.real.default")
def real(_: Node, z: Complex) -> Value:
    return z.real


@complex_importer("aten.imag.default")
def imag(_: Node, z: Complex) -> Value:
    return z.imaginary


@complex_importer("aten.resolve_conj.default", "aten.resolve_neg.default")
def resolved(_: Node, z: ComplexOperand) -> Any:
    return z


@complex_importer(
    "aten._conj.default", "aten.conj.default", "aten._conj_physical.default", "aten.conj_physical.default"
)
def conj(n: Node, z: ComplexOperand) -> Any:
    return ComplexMath(n.emit).conj(pair(n, z))


@complex_importer(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.type_as.default",
    "prims.convert_element_type.default",
)
def convert(n: Node, x: Value | Complex, *_: object, **__: object) -> Any:
    if _gives_complex(n):
        return pair(n, x)
    assert isinstance(x, Complex)
    return n.cast(x.real, n.result_dtype())  # torch drops imaginary parts, too.


@complex_importer(
    "aten.full.default",
    "aten.full_like.default",
    "aten.new_full.default",
    "aten.fill.Scalar",
    "aten.fill.Tensor",
    "aten.scalar_tensor.default",
)
def full(n: Node, *args: Any, **_: object) -> Complex:
    position = {"new_full": 2, "scalar_tensor": 0}.get(n.fx.target._opname, 1)
    value = pair(n, args[position])
    return Complex(*(n.broadcast(part, n.result_shape()) for part in (value.real, value.imaginary)))


@complex_importer(
    "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.empty.memory_format"
)
@complex_importer("aten.empty_like.default", "aten.new_empty.default", "aten.empty_permuted.default")
def zeros(n: Node, *_: object, **__: object) -> Complex:
    return Complex(filled(n, 0), filled(n, 0))


@complex_importer("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(n: Node, *_: object, **__: object) -> Complex:
    return Complex(filled(n, 1), filled(n, 0))


# -- Elementwise ---------------------------------------------------------------------------------------------

_UNARY = "exp expm1 log log1p sqrt rsqrt sin cos tan sinh cosh tanh sigmoid reciprocal".split()


def _unary(name: str, function: str) -> None:
    @complex_importer(f"aten.{name}.default")
    def unary(n: Node, z: ComplexOperand) -> Any:
        return getattr(ComplexMath(n.emit), function)(pair(n, z))


for _name in _UNARY:
    _unary(_name, _name)


@complex_importer("aten.sgn.default")
def sgn(n: Node, z: ComplexOperand) -> Complex:
    """Return the sign ``z / |z|``, 0 for zeros of any sign."""
    z = pair(n, z)
    math = ComplexMath(n.emit)
    zero = n.binary("eq", math.abs(z), n.constant(0.0, z.real.type.dtype))
    return each(lambda x: n.emit(g.Select(zero, n.constant(0.0, x.type.dtype), x)), math.sign(z))


@complex_importer("aten.abs.default")
def abs_(n: Node, z: Complex) -> Value:
    return ComplexMath(n.emit).abs(z)


@complex_importer("aten.angle.default")
def angle(n: Node, z: Complex) -> Value:
    return ComplexMath(n.emit).angle(z)


@complex_importer("aten.square.default")
def square(n: Node, z: Complex) -> Complex:
    return ComplexMath(n.emit).mul(z, z)


def _either(n: Node, name: str, z: Complex) -> Value:
    return n.binary("or", n.unary(name, z.real), n.unary(name, z.imaginary))


@complex_importer("aten.isnan.default")
def isnan(n: Node, z: Complex) -> Value:
    return _either(n, "isnan", z)


@complex_importer("aten.isinf.default")
def isinf(n: Node, z: Complex) -> Value:
    return _either(n, "isinf", z)


@complex_importer("aten.isfinite.default")
def isfinite(n: Node, z: Complex) -> Value:
    return n.unary("not", n.binary("or", isnan(n, z), isinf(n, z)))


def _scaled(n: Node, b: ComplexOperand, alpha: complex) -> Complex:
    return pair(n, b) if alpha == 1 else ComplexMath(n.emit).mul(pair(n, b), pair(n, alpha))


@complex_importer("aten.add.Tensor", "aten.add.Scalar")
def add(n: Node, a: ComplexOperand, b: ComplexOperand, alpha: complex = 1) -> Complex:
    return ComplexMath(n.emit).add(pair(n, a), _scaled(n, b, alpha))


@complex_importer("aten.sub.Tensor", "aten.sub.Scalar")
def sub(n: Node, a: ComplexOperand, b: ComplexOperand, alpha: complex = 1) -> Complex:
    return ComplexMath(n.emit).sub(pair(n, a), _scaled(n, b, alpha))


@complex_importer("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(n: Node, a: ComplexOperand, b: ComplexOperand, alpha: complex = 1) -> Complex:
    return sub(n, b, a, alpha)


@complex_importer("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar")
def mul(n: Node, a: ComplexOperand, b: ComplexOperand) -> Complex:
    real = next((x for x in (a, b) if isinstance(x, (Value, int, float))), None)
    if real is not None and n.result_dtype().is_float and isinstance(b if real is a else a, Complex):
        factor = n.as_tensor(real, n.result_dtype())
        return each(lambda part: n.binary("mul", part, factor), pair(n, b if real is a else a))
    return ComplexMath(n.emit).mul(pair(n, a), pair(n, b))


@complex_importer("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(n: Node, a: ComplexOperand, b: ComplexOperand) -> Complex:
    if isinstance(b, (Value, int, float)):
        divisor = n.as_tensor(b, n.result_dtype())
        return each(lambda part: n.binary("div", part, divisor), pair(n, a))
    return ComplexMath(n.emit).div(pair(n, a), pair(n, b))


@complex_importer("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def pow_(n: Node, a: ComplexOperand, b: ComplexOperand) -> Complex:
    functions = ComplexMath(n.emit)
    a = pair(n, a)
    if isinstance(b, int) and 1 <= b <= 8:
        result = a
        for _ in range(b - 1):
            result = functions.mul(result, a)
        return result
    return functions.pow(a, pair(n, b))


@complex_importer("aten.eq.Tensor", "aten.eq.Scalar", "aten.ne.Tensor", "aten.ne.Scalar")
def compare(n: Node, a: ComplexOperand, b: ComplexOperand) -> Value:
    like = a if isinstance(a, Complex) else b
    assert isinstance(like, Complex)
    x, y = (
        v
        if isinstance(v, Complex)
        else Complex(
            n.as_tensor(complex(v).real if not isinstance(v, Value) else v, like.type.dtype),
            n.constant(0 if isinstance(v, Value) else complex(v).imag, like.type.dtype),
        )
        for v in (a, b)
    )
    both = ComplexMath(n.emit)
    result: Value = both.eq(x, y) if n.fx.target._opname == "eq" else both.ne(x, y)
    return result


@complex_importer("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def where(n: Node, condition: Value, a: ComplexOperand, b: ComplexOperand) -> Any:
    condition = n.cast(condition, boolean)
    return each(lambda x, y: n.emit(g.Select(condition, x, y)), pair(n, a), pair(n, b))


@complex_importer("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(n: Node, x: ComplexOperand, mask: Value, value: complex) -> Any:
    return where(n, mask, value, x)


# -- Products of matrices ------------------------------------------------------------------------------------


def _product(n: Node, function: Callable[[Value, Value], Value], a: ComplexOperand, b: ComplexOperand) -> Any:
    """Return a function that is linear in both factors: one or two real products if a factor is real, four
    otherwise.
    """
    if not isinstance(a, Complex) or not isinstance(b, Complex):
        return each(function, a, b)
    (rr, ri), (ir, ii) = ([function(x, y) for y in (b.real, b.imaginary)] for x in (a.real, a.imaginary))
    return Complex(n.binary("sub", rr, ii), n.binary("add", ri, ir))


@complex_importer(
    "aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default"
)
def matmul(n: Node, a: ComplexOperand, b: ComplexOperand) -> Any:
    return _product(n, lambda x, y: n.emit(g.Matmul(x, y)), a, b)


@complex_importer("aten.outer.default")
def outer(n: Node, a: ComplexOperand, b: ComplexOperand) -> Any:
    return _product(n, lambda x, y: contract.outer(n, x, y), a, b)


@complex_importer("aten.linear.default")
def linear(n: Node, x: ComplexOperand, weight: ComplexOperand, bias: ComplexOperand | None = None) -> Any:
    y = _product(n, lambda a, b: contract.linear(n, a, b), x, weight)
    return y if bias is None else add(n, y, bias)


@complex_importer("aten.einsum.default")
def einsum(n: Node, equation: str, operands: list[Any], **_: object) -> Any:
    if len(operands) > 2:
        raise Unsupported("of more than two operands with complex numbers; write it as several")
    if len(operands) == 1:
        return each(lambda x: contract.einsum(n, equation, [x]), operands[0])
    return _product(n, lambda x, y: contract.einsum(n, equation, [x, y]), *operands)


@complex_importer("aten.vdot.default")
def vdot(n: Node, a: Complex, b: Complex) -> Any:
    return matmul(n, ComplexMath(n.emit).conj(a), b)


@complex_importer("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def addmm(
    n: Node, c: ComplexOperand, a: ComplexOperand, b: ComplexOperand, beta: complex = 1, alpha: Number = 1
) -> Complex:
    product = pair(n, matmul(n, a, b))
    product = product if alpha == 1 else mul(n, product, alpha)
    return ComplexMath(n.emit).add(product, pair(n, c) if beta == 1 else mul(n, pair(n, c), beta))


# -- Fourier transforms --------------------------------------------------------------------------------------


def _normalized(n: Node, value: Value | Complex, lengths: list[Any], normalization: int) -> Any:
    """Scale by torch's modes: 0 leaves sums unchanged, 1 divides by the square root of the number of
    elements, 2 by that number.
    """
    if normalization == 0:
        return value
    if not all(isinstance(length, int) for length in lengths):
        raise Unsupported("a scaled Fourier transform along a dynamic dimension")
    count = math.prod(lengths)
    scale = n.constant(1 / (math.sqrt(count) if normalization == 1 else count), n.result_dtype())
    return each(lambda part: n.binary("mul", part, scale), value)


def _transformed(
    n: Node, x: Value | Complex, dims: list[int], sign: int, count: Dim | None = None
) -> Complex:
    """Return the transform along dimensions, with `count` frequencies in the last of them."""
    fourier = Fourier(n.emit)
    signal: Signal = (x.real, x.imaginary) if isinstance(x, Complex) else (x, None)
    for d in reversed(dims):
        axis = d % x.type.rank
        length = signal[0].type.shape[axis]
        wanted = count if count is not None and d == dims[-1] else length

        def frequencies(rows: Signal, length: Dim = length, wanted: Dim = wanted) -> Signal:
            return fourier.transform(rows, length, sign, wanted)

        signal = fourier.along(signal, axis, frequencies)
    assert signal[1] is not None
    return Complex(signal[0], signal[1])


@_both_tables("aten._fft_r2c.default")
def fft_r2c(n: Node, x: Value, dims: list[int], normalization: int, onesided: bool) -> Any:
    x = n.cast(x, n.result_dtype())
    lengths = [x.type.shape[d] for d in dims]
    count = lengths[-1] // 2 + 1 if onesided else lengths[-1]
    return _normalized(n, _transformed(n, x, dims, -1, count), lengths, normalization)


@_both_tables("aten._fft_c2c.default")
def fft_c2c(n: Node, z: Complex, dims: list[int], normalization: int, forward: bool) -> Any:
    if not dims:
        return z
    lengths = [z.type.shape[d] for d in dims]
    return _normalized(n, _transformed(n, z, dims, -1 if forward else 1), lengths, normalization)


@_both_tables("aten._fft_c2r.default")
def fft_c2r(n: Node, z: Complex, dims: list[int], normalization: int, size: Dim) -> Any:
    lengths = [*(z.type.shape[d] for d in dims[:-1]), size]
    if len(dims) > 1:
        z = _transformed(n, z, dims[:-1], 1)
    fourier, axis = Fourier(n.emit), dims[-1] % z.type.rank
    y = fourier.along((z.real, z.imaginary), axis, lambda rows: (fourier.real_inverse(rows, size), None))[0]
    # The inverse transform already divides by the length.
    scale = n.scalar(size, n.result_dtype())
    return _normalized(n, n.binary("mul", y, scale), lengths, normalization)
