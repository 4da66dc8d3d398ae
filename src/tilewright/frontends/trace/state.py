"""`State`: a tensor that calls of a compiled function read and change, and that lasts between calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.types import DType, TensorType
from .dtypes import DTypeLike, dtype_of
from .operands import as_tensor, value_of
from .tensor import Index, Tensor, TensorLike, concrete, traced
from .tracing import Trace, TraceError, current, user_location


class State:
    """A named tensor of fixed shape and element type whose elements can be replaced: a cache, a counter.

    `value` is the current content; assignment replaces it. ``state[index]`` reads elements, ``state[index] =
    x`` replaces them.

    In a function that is being traced, reads and replacements become part of the function. The compiled
    library holds its own tensor (`library.state[name]`), which starts with the content during tracing. A call
    that replaces some elements writes only these. Functions that are compiled into one library share states
    of the same name.

    Args:
        name: The name, which no argument of the function has.
        shape: The size of each dimension, or one number for a vector.
        dtype: The element type.
        value: The first content, an array of the shape; None is zeros.

    Raises:
        TypeError: There is no such element type.
        ValueError: `value` has another shape.
    """

    __slots__ = ("__weakref__", "_value", "name")

    def __init__(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        value: TensorLike | None = None,
    ) -> None:
        self.name = name
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        numpy_dtype = dtype_of(dtype).numpy
        if value is None:
            self._value: Tensor = concrete(np.broadcast_to(np.zeros((), numpy_dtype), sizes))
        else:
            self._value = Tensor(value, dtype)
        if self._value.shape != sizes:
            raise ValueError(f"state '{name}' is {list(sizes)}, its value {list(self._value.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._value.dtype

    @property
    def value(self) -> Tensor:
        """The current content as a tensor.

        Raises:
            TraceError: It is assigned inside a traced branch or loop.
            TypeError: The assigned value has another element type.
            ValueError: The assigned value has another shape.
        """
        trace = current()
        return self._value if trace is None else traced(self._traced(trace)[0])

    @value.setter
    def value(self, new: TensorLike) -> None:
        new = as_tensor(new)
        if new.dtype != self.dtype:
            raise TypeError(
                f"state '{self.name}' is {self.dtype}, got {new.dtype}: convert it, x.astype(state.dtype)"
            )
        if tuple(new.shape) != self.shape:
            raise ValueError(f"state '{self.name}' is {list(self.shape)}, got {list(new.shape)}")
        trace = current()
        if trace is None:
            self._value = new
            return
        if trace.is_inside:
            raise TraceError(
                f"state '{self.name}' is replaced inside a branch or a loop, which a run may skip or "
                "repeat: return the new value from it and assign "
                f"that after it (at {user_location('')})"
            )
        self._traced(trace)[0] = value_of(new)

    def keep(self, content: Tensor) -> None:
        """Replace the content by that of a function that has run outside of a trace.

        Args:
            content: A tensor of the state's shape and type.
        """
        self._value = content

    def __getitem__(self, index: Index) -> Tensor:
        return self.value[index]

    def __setitem__(self, index: Index, new: TensorLike) -> None:
        self.value = self.value.at[index].set(new)

    def _traced(self, trace: Trace) -> list[Value]:
        """Return the value at this point of a trace, in a list of one, which replacements change. The first
        use makes the state an argument of the function.
        """
        known = trace.states.get(self.name)
        if known is None:
            if self.name in trace.function.arg_names:
                raise TraceError(f"'{self.name}' is a state and an argument: give one of them another name")
            argument = trace.function.body.add_arg(
                TensorType(DType.of(self._value._array), self.shape), self.name
            )
            trace.function.arg_names = (*trace.function.arg_names, self.name)
            known = trace.states[self.name] = self, [argument]
            trace.begin_with(argument, self._value.numpy)
        if known[0] is not self:
            raise TraceError(f"two states are called '{self.name}': give one of them another name")
        return known[1]

    def __repr__(self) -> str:
        return f"State({self.name!r}, {self.dtype}{list(self.shape)})"


def close_states(trace: Trace) -> list[Value]:
    """Declare the states that a trace has used in its function; return their new values, the function's last
    results.
    """
    function = trace.function
    function.updates = tuple(trace.states)
    function.states = tuple(
        (name, Constant(state._value._array, name)) for name, (state, _) in trace.states.items()
    )
    return [held[0] for _, held in trace.states.values()]


__all__ = ["State", "close_states"]
