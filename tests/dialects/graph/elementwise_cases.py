"""Cases of elementwise operators. The references are torch's functions in float64, or NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tilewright.dialects import graph
from tilewright.ir.constant import Constant
from tilewright.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u32

from .harness import Case, F, Fill, bools, integers, normal, positive, special, unit

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 3, "s": 0})
CASES: list[Case] = []


def torch64(function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function on float64 copies of NumPy arrays."""

    def run(sizes: Any, *xs: Any) -> Any:
        wide = [
            torch.from_numpy(np.array(x, np.float64 if x.dtype.kind not in "iub" else x.dtype)) for x in xs
        ]
        return function(*wide).numpy()

    return run


def unary(
    name: str,
    function: Callable[..., Any],
    fill: Fill = normal,
    dtypes: tuple[DType, ...] = (f32, f64, f16, bf16),
) -> None:
    cls = graph.OPERATORS[name]
    for dtype in dtypes:
        tolerance = {f16: 2e-3, bf16: 1e-2}.get(dtype, 2e-6)
        CASES.append(
            Case(
                name,
                (F("b", 3, "s", dtype=dtype, fill=fill),),
                lambda b, d, x: b(cls(x)),
                torch64(function),
                SIZES,
                tolerance,
                dtype.name,
            )
        )


for _name, _function, _fill in [
    ("Sqrt", torch.sqrt, positive),
    ("Rsqrt", torch.rsqrt, positive),
    ("Exp", torch.exp, normal),
    ("Exp2", torch.exp2, normal),
    ("Expm1", torch.expm1, normal),
    ("Log", torch.log, positive),
    ("Log2", torch.log2, positive),
    ("Log1p", torch.log1p, positive),
    ("Sin", torch.sin, normal),
    ("Cos", torch.cos, normal),
    ("Tan", torch.tan, unit),
    ("Asin", torch.asin, unit),
    ("Acos", torch.acos, unit),
    ("Atan", torch.atan, normal),
    ("Sinh", torch.sinh, normal),
    ("Cosh", torch.cosh, normal),
    ("Tanh", torch.tanh, normal),
    ("Asinh", torch.asinh, normal),
    ("Acosh", torch.acosh, lambda rng, shape: rng.random(shape) + 1.1),
    ("Atanh", torch.atanh, unit),
    ("Erf", torch.erf, lambda rng, shape: rng.standard_normal(shape) * 3),
    ("Sigmoid", torch.sigmoid, normal),
    ("Floor", torch.floor, normal),
    ("Ceil", torch.ceil, normal),
    ("Trunc", torch.trunc, normal),
    ("Round", torch.round, lambda rng, shape: rng.integers(-8, 8, shape) / 2),
    ("Reciprocal", torch.reciprocal, positive),
    ("Silu", torch.nn.functional.silu, normal),
    ("Mish", torch.nn.functional.mish, normal),
    ("Softsign", torch.nn.functional.softsign, normal),
    ("HardSwish", torch.nn.functional.hardswish, lambda rng, shape: rng.standard_normal(shape) * 4),
]:
    unary(_name, _function, _fill)
for _name in ("Exp", "Tanh", "Sigmoid", "Sqrt", "Log", "Erf", "Floor", "Sin"):
    _cls = graph.OPERATORS[_name]
    CASES.append(
        Case(
            _name,
            (F("b", 40, fill=special),),
            lambda b, d, x, cls=_cls: b(cls(x)),
            torch64(getattr(torch, _name.lower())),
            ({"b": 3},),
            1e-6,
            "special",
        )
    )
_numbers = (f32, f64, f16, i64, i32, i8)
unary("Neg", torch.neg, lambda rng, shape: rng.integers(-9, 9, shape), _numbers)
unary("Abs", torch.abs, lambda rng, shape: rng.integers(-9, 9, shape), _numbers)
unary("Sign", torch.sign, lambda rng, shape: rng.integers(-2, 3, shape), _numbers)
unary("Relu", torch.relu, lambda rng, shape: rng.integers(-9, 9, shape), _numbers)
unary("Relu", torch.relu, special, (f32,))
unary("Not", torch.bitwise_not, integers(-5, 5), (i64, i32, i8))
unary("Not", torch.logical_not, bools, (boolean,))
unary("Isnan", torch.isnan, special, (f32, f64, f16, bf16))
unary("Isinf", torch.isinf, special, (f32, f64, f16, bf16))
unary("Identity", lambda x: x, normal, (f32, i64))
unary("StopGradient", lambda x: x, normal, (f32, i64))


def activation(
    name: str, function: Callable[..., Any], fill: Fill = normal, dtype: DType = f32, **attributes: Any
) -> None:
    cls = graph.OPERATORS[name]
    CASES.append(
        Case(
            name,
            (F("b", 3, "s", dtype=dtype, fill=fill),),
            lambda b, d, x: b(cls(x, **attributes)),
            torch64(function),
            SIZES,
            {f16: 2e-3}.get(dtype, 2e-6),
            "-".join(f"{k}={v}" for k, v in attributes.items()) + f"-{dtype.name}",
        )
    )


def _wide(rng: Any, shape: Any) -> Any:
    return rng.standard_normal(shape) * 8


_nn = torch.nn.functional
for _dtype in (f32, f16):
    activation("Gelu", _nn.gelu, dtype=_dtype)
    activation("Gelu", lambda x: _nn.gelu(x, approximate="tanh"), dtype=_dtype, approximate="tanh")
activation("Softplus", _nn.softplus, _wide)
activation("Softplus", lambda x: _nn.softplus(x, 2.0, 3.0), _wide, beta=2.0, threshold=3.0)
activation("Elu", lambda x: _nn.elu(x, 0.7), alpha=0.7)
activation("Elu", _nn.selu, alpha=1.6732632423543772, scale=1.0507009873554805)
activation("Celu", lambda x: _nn.celu(x, 0.7), alpha=0.7)
activation("LeakyRelu", lambda x: _nn.leaky_relu(x, 0.2), slope=0.2)
activation("LeakyRelu", lambda x: _nn.leaky_relu(x, 1.5), slope=1.5)
activation("HardSigmoid", _nn.hardsigmoid, _wide)
activation("HardSigmoid", lambda x: torch.clamp(0.2 * x + 0.5, 0, 1), _wide, alpha=0.2, beta=0.5)
activation("Clamp", lambda x: torch.clamp(x, -0.5, 0.25), special, minimum=-0.5, maximum=0.25)
activation("Clamp", lambda x: torch.clamp(x, min=-0.5), special, minimum=-0.5)
activation("Clamp", lambda x: torch.clamp(x, max=0.25), special, maximum=0.25)
activation("Clamp", lambda x: torch.clamp(x, 2, 5), integers(-9, 9), i64, minimum=2, maximum=5)
activation("Clamp", lambda x: torch.clamp(x, 0, 200), integers(0, 255), u8, minimum=-1, maximum=200)
activation("Clamp", lambda x: torch.clamp(x, -5, 127), integers(-99, 99), i8, minimum=-5, maximum=300)


# -- Two operands --------------------------------------------------------------------------------------------


def binary(
    name: str,
    function: Callable[..., Any],
    dtypes: tuple[DType, ...],
    left: Fill = normal,
    right: Fill | None = None,
    note: str = "",
) -> None:
    cls = graph.OPERATORS[name]
    right = right or left
    shapes = [(("b", 3, "s"), ("b", 3, "s")), (("b", 1, "s"), (3, 1)), ((), ("b", "s")), (("b", "s"), (1,))]
    for dtype in dtypes:
        tolerance = {f16: 2e-3, bf16: 1e-2}.get(dtype, 1e-6)
        for k, (a, c) in enumerate(shapes if dtype is dtypes[0] else shapes[1:2]):
            CASES.append(
                Case(
                    name,
                    (F(*a, dtype=dtype, fill=left), F(*c, dtype=dtype, fill=right)),
                    lambda b, d, x, y: b(cls(x, y)),
                    lambda sizes, x, y: function(x, y),
                    SIZES,
                    tolerance,
                    f"{dtype.name}-{k}{note}",
                )
            )


_floats = (f32, f64, f16, bf16)
_ints = (i64, i32, i8, u8)
small, nonzero = integers(-9, 10), (lambda rng, shape: rng.choice([-3, -2, -1, 1, 2, 5], shape))
binary("Add", lambda x, y: x + y, (*_floats, *_ints), lambda rng, shape: rng.integers(0, 9, shape))
binary("Sub", lambda x, y: x - y, (*_floats, i64, i32), small)
binary("Mul", lambda x, y: x * y, (*_floats, i64, i32), small)
binary("Div", lambda x, y: x / y, _floats, normal, positive)
binary("Div", lambda x, y: np.trunc(x.astype(np.float64) / y).astype(x.dtype), (i64, i32, i8), small, nonzero)
binary("Div", lambda x, y: x // y, (u8,), integers(0, 99), integers(1, 9))
binary(
    "Floordiv",
    lambda x, y: np.floor(x.astype(np.float64) / y).astype(x.dtype),
    (f32, f64, i64, i32),
    small,
    nonzero,
)
binary(
    "Mod",
    lambda x, y: x - np.floor(x.astype(np.float64) / y).astype(x.dtype) * y,
    (f32, i64, i32, i8),
    small,
    nonzero,
)
binary(
    "Rem",
    lambda x, y: x - np.trunc(x.astype(np.float64) / y).astype(x.dtype) * y,
    (f32, i64, i32, i8),
    small,
    nonzero,
)
binary("Atan2", lambda x, y: torch.atan2(torch.from_numpy(x), torch.from_numpy(y)).numpy(), (f32, f64))
binary(
    "Min",
    lambda x, y: torch.minimum(torch.from_numpy(x), torch.from_numpy(y)).numpy(),
    (f32, f64, i64, u8, boolean),
    small,
)
binary(
    "Max",
    lambda x, y: torch.maximum(torch.from_numpy(x), torch.from_numpy(y)).numpy(),
    (f32, f64, i64, u8, boolean),
    small,
)
binary(
    "Min",
    lambda x, y: torch.minimum(torch.from_numpy(x), torch.from_numpy(y)).numpy(),
    (f32,),
    special,
    note="-special",
)
binary(
    "Max",
    lambda x, y: torch.maximum(torch.from_numpy(x), torch.from_numpy(y)).numpy(),
    (f32,),
    special,
    note="-special",
)
for _name, _function in {"And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor}.items():
    binary(_name, _function, (i64, i32, u8), integers(0, 99))
    binary(_name, _function, (boolean,), bools)
binary("Shl", lambda x, y: x * 2**y, (i64, i32), integers(0, 99), integers(0, 5))
binary(
    "Shr", lambda x, y: np.floor(x / 2.0**y).astype(x.dtype), (i64, i32), integers(-99, 99), integers(0, 5)
)
for _name, _function in {
    "Eq": np.equal,
    "Ne": np.not_equal,
    "Lt": np.less,
    "Le": np.less_equal,
    "Gt": np.greater,
    "Ge": np.greater_equal,
}.items():
    binary(_name, _function, (f32, f16, bf16, i64, i32, u8), lambda rng, shape: rng.integers(0, 3, shape))
    binary(_name, _function, (f32,), special, note="-special")
binary("Eq", np.equal, (boolean,), bools)
binary(
    "Pow",
    lambda x, y: np.power(x.astype(np.float64), y.astype(np.float64)),
    (f32, f64, f16),
    positive,
    normal,
)
binary(
    "Pow",
    lambda x, y: np.power(x.astype(np.float64), y.astype(np.float64)),
    (f32,),
    normal,
    integers(-3, 4),
    "-whole",
)
binary(
    "Pow",
    lambda x, y: np.trunc(
        np.where(x == 0, np.where(y == 0, 1, 0), np.where(x == 0, 1.0, x) ** y.astype(np.float64))
    ).astype(x.dtype),
    (i64, i32),
    integers(-3, 4),
    integers(-3, 6),
    "-integer",
)
binary("Pow", lambda x, y: x.astype(np.int64) ** y, (u8,), integers(0, 3), integers(0, 5), "-unsigned")


def literal(value: Any, dtype: DType = f32) -> graph.Constant:  # type: ignore[name-defined]
    return graph.Constant(value=Constant(np.asarray(value, dtype.numpy)))


for _e, _fill in [
    (2, normal),
    (3, normal),
    (0.5, positive),
    (-0.5, positive),
    (-1, positive),
    (1, normal),
    (1.7, positive),
]:
    CASES.append(
        Case(
            "Pow",
            (F("b", 3, "s", fill=_fill),),
            lambda b, d, x, e=_e: b(graph.Pow(x, b(literal(e)))),
            lambda sizes, x, e=_e: x.astype(np.float64) ** e,
            SIZES,
            1e-5,
            f"constant {_e}",
        )
    )
CASES.append(
    Case(
        "Pow",
        (F("b", 1),),
        lambda b, d, x: b(graph.Pow(x, b(literal([[2, 2, 2]])))),
        lambda sizes, x: np.broadcast_to(x.astype(np.float64) ** 2, (len(x), 3)),
        ({"b": 4},),
        note="broadcasting constant",
    )
)

# -- The rest ------------------------------------------------------------------------------------------------

for _shapes in [
    (("b", "s"), ("b", "s"), ("b", "s")),
    (("b", 1), ("s",), (3, 1, 1)),
    ((), ("b", "s"), ("s",)),
]:
    CASES.append(
        Case(
            "Select",
            (F(*_shapes[0], dtype=boolean, fill=bools), F(*_shapes[1]), F(*_shapes[2])),
            lambda b, d, c, x, y: b(graph.Select(c, x, y)),
            lambda sizes, c, x, y: torch.where(*map(torch.from_numpy, (np.asarray(c), x, y))).numpy(),
            SIZES,
            note=str(len(_shapes[0])),
        )
    )


def _saturating(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.choice([0.0, -0.0, 1.5, -1.5, 200.7, -200.7, 1e12, -1e12, np.nan, np.inf, -np.inf], shape)


def _saturate(x: Any, dtype: Any) -> Any:
    info = np.iinfo(dtype)
    flat = [
        0 if np.isnan(v) else info.max if v >= info.max else info.min if v <= info.min else int(v)
        for v in x.reshape(-1)
    ]
    return np.array(flat, dtype).reshape(x.shape)


for _source, _target, _fill in [
    (f32, i32, special),
    (i16, bf16, integers(0, 999)),
    (i64, f64, normal),
    (boolean, i8, bools),
    (u8, boolean, integers(0, 2)),
]:
    CASES.append(
        Case(
            "Bitcast",
            (F("b", 3, "s", dtype=_source, fill=_fill),),
            lambda b, d, x, t=_target: b(graph.Bitcast(x, dtype=t)),
            lambda sizes, x, t=_target: np.ascontiguousarray(x).view(t.numpy).reshape(x.shape),
            SIZES,
            0.0,
            f"{_source.name}-{_target.name}",
        )
    )

for _source, _target, _fill, _cast in [
    (f32, f16, normal, lambda x: x.astype(np.float16)),
    (f32, f64, normal, lambda x: x.astype(np.float64)),
    (f32, bf16, normal, lambda x: torch.from_numpy(x).to(torch.bfloat16).float().numpy()),
    (bf16, f32, normal, lambda x: x.astype(np.float32)),
    (f16, bf16, normal, lambda x: torch.from_numpy(x).to(torch.bfloat16).float().numpy()),
    (f32, i32, _saturating, lambda x: _saturate(x, np.int32)),
    (f32, u8, _saturating, lambda x: _saturate(x, np.uint8)),
    (f32, i8, _saturating, lambda x: _saturate(x, np.int8)),
    (f64, i64, _saturating, lambda x: _saturate(x, np.int64)),
    (f32, i64, normal, lambda x: np.trunc(x).astype(np.int64)),
    (f32, boolean, special, lambda x: x != 0),
    (i64, boolean, integers(-1, 2), lambda x: x != 0),
    (boolean, f32, bools, lambda x: x.astype(np.float32)),
    (boolean, i64, bools, lambda x: x.astype(np.int64)),
    (i64, i32, integers(-99, 99), lambda x: x.astype(np.int32)),
    (i64, i8, integers(-999, 999), lambda x: x.astype(np.int8)),
    (i64, f32, integers(-99, 99), lambda x: x.astype(np.float32)),
    (u8, i32, integers(0, 256), lambda x: x.astype(np.int32)),
    (i64, i64, integers(0, 9), lambda x: x),
]:
    CASES.append(
        Case(
            "Cast",
            (F("b", 3, "s", dtype=_source, fill=_fill),),
            lambda b, d, x, target=_target: b(graph.Cast(x, dtype=target)),
            lambda sizes, x, cast=_cast: cast(x),
            SIZES,
            1e-6,
            f"{_source.name}-{_target.name}",
        )
    )

for _value in (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.float32(2.5),
    np.zeros((2, 0), np.int64),
    np.array([True, False]),
):
    CASES.append(
        Case(
            "Constant",
            (),
            lambda b, d, v=_value: b(graph.Constant(value=Constant(v))),
            lambda sizes, v=_value: v,
            note=str(np.shape(_value)),
        )
    )
for _shape in ((), (3,), (1, 3)):
    CASES.append(
        Case(
            "Symbolic",
            (F("b", "s"),),
            lambda b, d, x, shape=_shape: b(
                graph.Symbolic(values=(d["b"] * 2 + d["s"], 7, d["s"] // 2)[: 3 if shape else 1], shape=shape)
            ),
            lambda sizes, x, shape=_shape: np.array(
                (sizes["b"] * 2 + sizes["s"], 7, sizes["s"] // 2)[: 3 if shape else 1], np.int64
            ).reshape(shape),
            SIZES,
            note=str(_shape),
        )
    )


def _threefry(sizes: Any, key0: Any, key1: Any, counter0: Any, counter1: Any) -> Any:
    from jax.extend.random import threefry2x32_p

    return [np.asarray(w) for w in threefry2x32_p.bind(*np.broadcast_arrays(key0, key1, counter0, counter1))]


_WORD = integers(0, 1 << 32)
CASES.append(
    Case(
        "Threefry",
        tuple(F(*shape, dtype=u32, fill=_WORD) for shape in ((), (), ("b", 1), ("s",))),
        lambda b, d, *words: b.insert(graph.Threefry(*words)).results,
        _threefry,
        SIZES,
    )
)
