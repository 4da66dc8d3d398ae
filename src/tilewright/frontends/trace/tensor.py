"""`Tensor`: an array whose operators run at once, or, inside a function that is being traced, a value that a run will have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.core import Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorType
from .dtypes import dtype_of, is_weak, promote, promote_weak, weak_dtype
from .tracing import TraceError, build, current, run_at_once, user_location

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""All functions on tensors by name, NumPy's where NumPy has them; `Tensor`'s operators, methods and NumPy's protocols look here."""


def function(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its own name and `names`."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in (f.__name__, *names):
            if not name.startswith("_"):
                FUNCTIONS[name] = f
        return f

    return register


class Tensor:
    """A tensor with NumPy's operators, methods and broadcasting, that never changes.

    A *concrete* tensor holds an array: every operator runs at once. A *traced* one stands for a value in a function that `jit` or `compile`
    is tracing: operators become part of that function, and sizes in its `shape` may be symbolic. `Tensor(data)` copies an array, a
    torch tensor, or nested sequences of numbers (Python's floats become float32, its integers int64).
    """

    __slots__ = ("__weakref__", "_array", "_value")
    _array: Any
    _value: Value | None
    _lazy = False
    """Whether the elements are made when they are needed: traces take such a tensor as a value."""
    __array_priority__ = 1000

    def __init__(self, data: Any, dtype: Any = None) -> None:
        if isinstance(data, Tensor):
            source = data if dtype is None else data.astype(dtype)
            self._array, self._value = source._array, source._value
            return
        array = array_of(data, dtype)
        self._array, self._value = _frozen(array.copy() if array.flags.writeable else array), None

    # -- What it is --------------------------------------------------------------------------------------------------------------

    @property
    def is_traced(self) -> bool:
        """Whether the elements are known in a run only."""
        return self._value is not None

    @property
    def type(self) -> TensorType:
        if self._value is None:
            return TensorType(DType.of(self._array), self._array.shape)
        found = self._value.type
        assert isinstance(found, TensorType)
        return found

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: integers, in a traced tensor also symbolic expressions, which can be calculated with."""
        return self._array.shape if self._value is None else self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self._array.dtype if self._value is None else self.type.dtype.numpy
        return found

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        total: Dim = 1
        for n in self.shape:
            total = total * n
        return total

    @property
    def nbytes(self) -> Any:
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Tensor:
        return FUNCTIONS["transpose"](self)  # type: ignore[no-any-return]

    @property
    def mT(self) -> Tensor:
        return FUNCTIONS["matrix_transpose"](self)  # type: ignore[no-any-return]

    @property
    def at(self) -> Any:
        """Updated copies: ``x.at[index].set(y)``, ``.add(y)``, ``.multiply(y)``, ``.min(y)``, ``.max(y)``."""
        from .index import Places

        return Places(self)

    @property
    def _data(self) -> Any:
        """What a trace makes a constant of: the array, or a `Constant`."""
        return self._array

    # -- The way out -------------------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a read-only array that shares memory."""
        return self._known("an array")

    def item(self) -> Any:
        """The only element as a Python number."""
        return self._known("a Python number").item()

    def tolist(self) -> Any:
        return self._known("a list").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._known("an array"), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        # NumPy refuses to export what is read-only; a consumer that writes gets a copy of its own.
        return self._known("an array").copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._known("an array").__dlpack_device__()

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from . import numpy

        return numpy

    def __bool__(self) -> bool:
        return bool(
            self._known(
                "True or False",
                "use tw.where to choose elements, tw.cond to choose a computation, tw.while_loop to repeat one",
            )
        )

    def __int__(self) -> int:
        return int(self._known("a Python integer", _LOOPS))

    def __float__(self) -> float:
        return float(self._known("a Python float"))

    def __index__(self) -> int:
        return self._known("a Python integer", _LOOPS).__index__()

    def __complex__(self) -> complex:
        return complex(self._known("a Python number"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        if isinstance(self.shape[0], Expr):
            raise TraceError(
                f"the length of a tensor of shape {self.shape} is known in a run only; use x.shape[0], which can be calculated with (at {user_location('')})"
            )
        return self.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Tensor]:
        if self.shape and isinstance(self.shape[0], Expr):
            raise TraceError(
                f"the {self.shape[0]} rows of a tensor are known in a run only, so Python cannot go through them: use tw.scan (at {user_location('')})"
            )
        return iter([self[k] for k in range(len(self))])

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any())

    def __repr__(self) -> str:
        if self._value is not None:
            return f"Tensor(traced, shape=({', '.join(map(str, self.shape))}), dtype={self.dtype})"
        body = np.array2string(self._array, separator=", ", prefix="Tensor(")
        return f"Tensor({body}, dtype={self.dtype})"

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        return Tensor, (self._known("an array"),)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.shape else str(self)

    def _known(self, what: str, instead: str = "return it from the function, or compute with it as a tensor") -> Any:
        if self._value is not None:
            raise TraceError(
                f"{self!r} is computed in the run and cannot become {what} while the function is traced: {instead} (at {user_location('')})"
            )
        return self._array

    # -- Parts and NumPy's protocols -------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        from .index import take_index

        return take_index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("a tensor never changes: write x = x.at[index].set(value), or .add, .multiply, .min, .max")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from .protocols import call_ufunc

        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
        from .protocols import call_function

        return call_function(called, args, options)

    @staticmethod
    def implements(called: Callable[..., Any]) -> bool:
        """Whether a function of NumPy's takes tensors."""
        from .protocols import own_form

        return own_form(called) is not None

    if TYPE_CHECKING:  # operators and methods are attached below

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...


_LOOPS = "for a loop use tw.scan or tw.while_loop, as an index use it as it is: x[i]"


def _attach() -> None:
    operators = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
        "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod",
    }  # fmt: skip
    for name, called in operators.items():

        def forward(self: Tensor, other: Any, called: str = called) -> Any:
            return FUNCTIONS[called](self, other) if is_operand(other) else NotImplemented

        def backward(self: Tensor, other: Any, called: str = called) -> Any:
            return FUNCTIONS[called](other, self) if is_operand(other) else NotImplemented

        setattr(Tensor, f"__{name}__", forward)
        setattr(Tensor, f"__r{name}__", backward)
    comparisons = {
        "eq": "equal",
        "ne": "not_equal",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
    }
    for name, called in comparisons.items():

        def compare(self: Tensor, other: Any, called: str = called) -> Any:
            return FUNCTIONS[called](self, other) if is_operand(other) else NotImplemented

        setattr(Tensor, f"__{name}__", compare)
    for name, called in {"neg": "negative", "abs": "absolute", "invert": "invert", "pos": "positive"}.items():

        def unary(self: Tensor, called: str = called) -> Any:
            return FUNCTIONS[called](self)

        setattr(Tensor, f"__{name}__", unary)
    methods = (
        "all any argmax argmin argsort astype clip copy cumprod cumsum diagonal dot flatten max mean min nonzero prod ravel repeat "
        "round sort squeeze std sum swapaxes take trace var"
    )
    for name in methods.split():

        def method(self: Tensor, *args: Any, called: str = name, **options: Any) -> Any:
            return FUNCTIONS[called](self, *args, **options)

        setattr(Tensor, name, method)

    def round_(self: Tensor, decimals: int | None = None) -> Any:
        return FUNCTIONS["round"](self, decimals or 0)

    def reshape(self: Tensor, *shape: Any) -> Any:
        return FUNCTIONS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def transpose(self: Tensor, *axes: Any) -> Any:
        return FUNCTIONS["transpose"](self, (axes[0] if len(axes) == 1 else axes) or None)

    Tensor.__round__ = round_  # type: ignore[attr-defined]
    Tensor.reshape = reshape  # type: ignore[attr-defined]
    Tensor.transpose = transpose  # type: ignore[attr-defined]


_attach()
# Comparison would have dropped it.
Tensor.__hash__ = object.__hash__  # type: ignore[assignment]


def is_operand(x: Any) -> bool:
    """Whether an operator of `Tensor` takes `x` on its other side."""
    return isinstance(x, (Tensor, np.ndarray, np.generic, list, tuple)) or is_weak(x)


def array_of(data: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """An array, torch tensor, number or nested sequence as an array, converted to `dtype`; without need nothing is copied."""
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        # NumPy has no bfloat16 of its own; the exact way leads through float32.
        if str(data.dtype) == "torch.bfloat16":
            dtype, data = dtype or "bfloat16", data.float()
        data = data.numpy()
    elif not isinstance(data, (np.ndarray, np.generic)) and hasattr(data, "__dlpack__"):
        data = np.from_dlpack(data)
    array = np.asarray(data)
    if dtype is None and not hasattr(data, "dtype") and array.dtype == np.float64:
        array = array.astype(np.float32)
    try:
        wanted = DType.of(array) if dtype is None else dtype_of(dtype)
    except ValueError:
        raise TypeError(f"a {type(data).__name__} with elements of {array.dtype} cannot be a tensor") from None
    from ...dialects.scalar import cast_array

    return array if array.dtype == wanted.numpy else cast_array(array, wanted)


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.view()
    array.flags.writeable = False
    return array


def concrete(array: Any, cls: type[Tensor] = Tensor) -> Any:
    """A tensor, of class `cls`, of an array that nobody else writes to: it shares the memory."""
    made = object.__new__(cls)
    made._array, made._value = _frozen(np.asarray(array)), None
    return made


def traced(value: Value) -> Tensor:
    """A tensor of an SSA value of the current trace."""
    made = object.__new__(Tensor)
    made._array, made._value = None, value
    return made


def value_of(x: Tensor) -> Value:
    """The value of a tensor in the current trace; an array becomes a constant.

    Raises:
        TraceError: the tensor belongs to a trace that has ended, or to a branch or loop body that has.
    """
    trace = current()
    if x._value is None and trace is not None:
        return trace.constant(x._data)
    if x._value is None or trace is None or not trace.visible(x._value):
        raise TraceError(
            f"{x!r} was kept from a function, branch or loop body whose tracing is over: return it from there instead (at {user_location('')})"
        )
    return x._value


def tensor(data: Any, dtype: Any = None) -> Tensor:
    """A tensor of an array, a torch tensor, a number, or nested sequences; see `Tensor`."""
    if isinstance(data, (list, tuple)) and _holds_tensors(data):
        return FUNCTIONS["stack"]([tensor(x, dtype) for x in data])  # type: ignore[no-any-return]
    if isinstance(data, Expr):
        return as_tensor(data, dtype)
    return Tensor(data, dtype)


def _holds_tensors(data: Any) -> bool:
    return any(isinstance(x, (Tensor, Expr)) or (isinstance(x, (list, tuple)) and _holds_tensors(x)) for x in data)


def as_tensor(x: Any, dtype: Any = None) -> Tensor:
    """`x` as a tensor, converted to `dtype`; a number takes `dtype` directly.

    Raises:
        OverflowError: a Python integer does not fit into `dtype`.
    """
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(x, Expr):
        from ...dialects import graph as g

        made = apply(g.Symbolic, values=(x,))
        return made if wanted is None else FUNCTIONS["astype"](made, wanted)  # type: ignore[no-any-return]
    if is_weak(x):
        kind = wanted or weak_dtype(x)
        return concrete(np.asarray(x, kind.numpy))
    found = x if isinstance(x, Tensor) else tensor(x)
    return found if wanted is None or found.type.dtype is wanted else FUNCTIONS["astype"](found, wanted)


def together(*inputs: Any, at_least: Callable[[DType], DType] | None = None) -> list[Tensor]:
    """Tensors and numbers in the type they meet in (see `dtypes`)."""
    inputs = tuple(x if is_weak(x) else as_tensor(x) for x in inputs)
    dtype: DType | None = None
    for x in inputs:
        if not is_weak(x):
            dtype = x.type.dtype if dtype is None else promote(dtype, x.type.dtype)
    for x in inputs:
        if is_weak(x):
            dtype = weak_dtype(x) if dtype is None else promote_weak(dtype, x)
    assert dtype is not None
    dtype = at_least(dtype) if at_least is not None else dtype
    return [as_tensor(x, dtype) for x in inputs]


def apply(cls: type, *operands: Any, **attributes: Any) -> Any:
    """The result(s) of a graph operator on tensors (None: absent; a sequence: variadic): at once when all is known, else traced."""
    flat = [t for x in operands for t in (x if isinstance(x, (list, tuple)) else (x,)) if t is not None]
    trace = current()
    if not any(t.is_traced or (trace is not None and t._lazy) for t in flat) and (
        trace is None or not _symbolic(attributes.values())
    ):
        arrays = [
            None if x is None else [t._array for t in x] if isinstance(x, (list, tuple)) else x._array for x in operands
        ]
        results = run_at_once(cls, arrays, attributes)
        return tuple(map(concrete, results)) if isinstance(results, tuple) else concrete(results)
    values = [
        None if x is None else [value_of(t) for t in x] if isinstance(x, (list, tuple)) else value_of(x)
        for x in operands
    ]
    assert trace is not None
    made = build(trace, cls, values, attributes)
    return tuple(map(traced, made)) if isinstance(made, tuple) else traced(made)


def _symbolic(values: Any) -> bool:
    return any(isinstance(v, Expr) or (isinstance(v, (tuple, list)) and _symbolic(v)) for v in values)


def shape_argument(shape: Any) -> tuple[Any, ...]:
    """A shape given as one size or several; tensors of one known integer count as sizes."""
    sizes: Sequence[Any] = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(n if isinstance(n, (int, Expr)) else n.__index__() for n in sizes)


__all__ = [
    "FUNCTIONS",
    "Tensor",
    "apply",
    "array_of",
    "as_tensor",
    "concrete",
    "function",
    "shape_argument",
    "tensor",
    "together",
    "traced",
    "value_of",
]
