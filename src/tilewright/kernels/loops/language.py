"""The functions that loop programs are written with. They also run as plain Python, on NumPy's numbers."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import scalar
from ...errors import KernelError
from ...frontends.trace import where
from ...ir.types import DType
from .generic import ElementType, current


@dataclass(frozen=True)
class Primitive:
    """The meaning of a function in a loop program."""

    kind: str
    """``unary``, ``binary``, ``reduce``, ``position``, or the function's own name."""
    name: str
    """The scalar function or the combiner."""


PRIMITIVES: dict[Any, Primitive] = {}
"""The functions that loop programs may call on elements, with their meaning."""
_FLOAT_FUNCTIONS = (
    "sqrt rsqrt floor ceil trunc exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf sigmoid isnan isinf"
)
_SPELLED = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh"} | {
    "acosh": "arccosh",
    "atanh": "arctanh",
}


def axis(*limits: Any) -> range:
    """The numbers of ``range(*limits)``; the iterations of a loop over them are independent of each other.

    They run in any order, beside each other. Such a loop may add to a local variable or an element, as in
    ``total += x[i]``; ``range`` runs in order and may carry values from one iteration to the next.
    """
    return range(*limits)


def axes(*sizes: Any) -> Iterator[tuple[int, ...]]:
    """All tuples of indices below `sizes`, the last one changing fastest; a nest of `axis` loops."""
    return itertools.product(*map(range, sizes))


def _chosen(function: Callable[..., Any], combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(*values: Any) -> Any:
        if len(values) > 1:
            result = values[0]
            for value in values[1:]:
                result = combine(result, value)
            return result
        return function(list(values[0]))

    return run


def sum(values: Iterable[Any]) -> Any:
    """The sum of `values`, a generator, in any order."""
    return builtins.sum(values)


def prod(values: Iterable[Any]) -> Any:
    """The product of `values`, a generator, in any order."""
    return math.prod(values)


def max(*values: Any) -> Any:
    """The largest of `values`, a generator or several numbers; NaN if one of them is NaN."""
    return _chosen(np.max, np.maximum)(*values)


def min(*values: Any) -> Any:
    """The smallest of `values`, a generator or several numbers; NaN if one of them is NaN."""
    return _chosen(np.min, np.minimum)(*values)


def argmax(values: Iterable[Any]) -> Any:
    """The position (i64) of the largest of `values`, a generator over one axis; the first of equal ones."""
    return np.argmax(list(values))


def argmin(values: Iterable[Any]) -> Any:
    """The position (i64) of the smallest of `values`, a generator over one axis; the first of equal ones."""
    return np.argmin(list(values))


def any(values: Iterable[Any]) -> bool:
    """Whether one of `values`, a generator of conditions, holds."""
    return builtins.any(values)


def all(values: Iterable[Any]) -> bool:
    """Whether all of `values`, a generator of conditions, hold."""
    return builtins.all(values)


def cast(x: Any, dtype: DType | ElementType) -> Any:
    """The number `x` converted to the element type `dtype`: truncated and saturated from float to integer."""
    return scalar.cast_array(x, current(dtype))[()]


def claim(condition: Any) -> None:
    """Promise that `condition` holds, such as ``0 <= k`` and ``k < x.n`` of an index from data. It is not
    checked in compiled code.

    Raises:
        KernelError: In plain Python: it does not hold.
    """
    if not condition:
        raise KernelError("a condition that the kernel claims does not hold")


def array(dtype: DType | ElementType, *sizes: int) -> Any:
    """A local array of a kernel of element type `dtype` and `sizes`, without contents."""
    from .plain import View

    return View("array", np.zeros(sizes, current(dtype).numpy), {}, current(dtype), writable=True)


def _unary(name: str) -> Callable[[Any], Any]:
    function = scalar.UNARY[name].function

    def run(x: Any) -> Any:
        if not isinstance(x, (int, float, np.generic)):
            raise TypeError(f"tw.{name} is a function of a number in a kernel; tilewright.numpy has {name}")
        x = x if isinstance(x, np.generic) else np.float64(x)
        with np.errstate(all="ignore"):
            return np.asarray(function(x)).astype(bool if name.startswith("is") else x.dtype)[()]

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"The function {name} of a float `x`."
    return run


def _round(x: Any) -> Any:
    """A float rounded to the nearest whole number, halves to the even one."""
    return _unary("round")(x)


sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = _unary("trunc")
exp = _unary("exp")
exp2 = _unary("exp2")
expm1 = _unary("expm1")
log = _unary("log")
log2 = _unary("log2")
log1p = _unary("log1p")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
erf = _unary("erf")
sigmoid = _unary("sigmoid")
isnan = _unary("isnan")
isinf = _unary("isinf")
MATH: dict[str, Callable[..., Any]] = {name: globals()[name] for name in _FLOAT_FUNCTIONS.split()}
"""The functions of one float by name."""


def _fill() -> None:
    for name, function in MATH.items():
        PRIMITIVES[function] = Primitive("unary", name)
        for module in (math, np):
            for spelled in (name, _SPELLED.get(name, name)):
                if callable(other := getattr(module, spelled, None)):
                    PRIMITIVES[other] = Primitive("unary", name)
    unary = {
        "abs": (builtins.abs, np.abs, math.fabs),
        "round": (builtins.round, _round, np.round, np.rint),
        "sign": (np.sign,),
    }
    binary = {
        "pow": (builtins.pow, math.pow, np.power),
        "atan2": (math.atan2, np.arctan2),
        "max": (np.maximum,),
        "min": (np.minimum,),
    }
    reduce = {
        "sum": (builtins.sum, sum),
        "prod": (math.prod, prod),
        "max": (builtins.max, max),
        "min": (builtins.min, min),
        "or": (builtins.any, any),
        "and": (builtins.all, all),
    }
    for kind, table in (("unary", unary), ("binary", binary), ("reduce", reduce)):
        for name, functions in table.items():
            PRIMITIVES.update(dict.fromkeys(functions, Primitive(kind, name)))
    PRIMITIVES[argmax] = Primitive("position", "max")
    PRIMITIVES[argmin] = Primitive("position", "min")
    own: tuple[Any, ...] = (axis, axes, cast, claim, array, where, builtins.range)
    for function in own:
        PRIMITIVES[function] = Primitive(function.__name__, "")
    PRIMITIVES[builtins.float] = Primitive("convert", "float")
    PRIMITIVES[builtins.int] = Primitive("convert", "int")
    PRIMITIVES[builtins.bool] = Primitive("convert", "bool")


_fill()

__all__ = [
    "acos",
    "acosh",
    "all",
    "any",
    "argmax",
    "argmin",
    "array",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "axes",
    "axis",
    "cast",
    "ceil",
    "claim",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "max",
    "min",
    "prod",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "sum",
    "tan",
    "tanh",
    "trunc",
]
