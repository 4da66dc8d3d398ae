"""`State`: a tensor that calls of a compiled function read and change, and that the next call finds as the last one left it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.types import DType, TensorType
from .dtypes import dtype_of
from .tensor import Tensor, as_tensor, concrete, traced, value_of
from .tracing import Trace, TraceError, current, user_location


class State:
    """A cache, a counter: a tensor with a name, of fixed shape and type, whose elements are replaced.

    `value` is what it holds, zeros at first or what it was made with; assigning replaces it. ``state[index]`` reads some elements,
    ``state[index] = x`` replaces them. In a function that is being traced both become part of it: the compiled library keeps a tensor of its own
    (`library.state[name]`), which begins with what the state held while tracing, and a call that replaces some elements writes just these. Functions that
    are compiled into one library share states by name.
    """

    __slots__ = ("__weakref__", "_value", "name")

    def __init__(self, name: str, shape: Any, dtype: Any = "float32", value: Any = None) -> None:
        """Raises ValueError: `value` is of another shape."""
        self.name = name
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        numpy_dtype = dtype_of(dtype).numpy
        if value is None:
            self._value = concrete(np.broadcast_to(np.zeros((), numpy_dtype), sizes))
        else:
            self._value = Tensor(value, dtype)
        if self._value.shape != sizes:
            raise ValueError(f"state '{name}' is {list(sizes)}, its value {list(self._value.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    @property
    def value(self) -> Tensor:
        trace = current()
        return self._value if trace is None else traced(self._traced(trace)[0])

    @value.setter
    def value(self, new: Any) -> None:
        """Raises TraceError: inside a branch or a loop's body; TypeError, ValueError: another type or shape."""
        new = as_tensor(new)
        if new.dtype != self.dtype:
            raise TypeError(f"state '{self.name}' is {self.dtype}, got {new.dtype}: convert it, x.astype(state.dtype)")
        if tuple(new.shape) != self.shape:
            raise ValueError(f"state '{self.name}' is {list(self.shape)}, got {list(new.shape)}")
        trace = current()
        if trace is None:
            self._value = new
            return
        if trace.is_inside:
            raise TraceError(
                f"state '{self.name}' is replaced inside a branch or a loop, which a run may skip or repeat: return the new value from it and assign "
                f"that after it (at {user_location('')})"
            )
        self._traced(trace)[0] = value_of(new)

    def __getitem__(self, index: Any) -> Tensor:
        return self.value[index]

    def __setitem__(self, index: Any, new: Any) -> None:
        self.value = self.value.at[index].set(new)

    def _traced(self, trace: Trace) -> list[Value]:
        """What the state holds at this point of a trace, in a list of one; the first use makes it an argument of the function."""
        known = trace.states.get(self.name)
        if known is None:
            if self.name in trace.function.arg_names:
                raise TraceError(f"'{self.name}' is a state and an argument: give one of them another name")
            argument = trace.function.body.add_arg(TensorType(DType.of(self._value._array), self.shape), self.name)
            trace.function.arg_names = (*trace.function.arg_names, self.name)
            known = trace.states[self.name] = self, [argument]
        if known[0] is not self:
            raise TraceError(f"two states are called '{self.name}': give one of them another name")
        return known[1]

    def __repr__(self) -> str:
        return f"State({self.name!r}, {self.dtype}{list(self.shape)})"


def close_states(trace: Trace) -> list[Value]:
    """Declare the states that a trace has used as its function's; returns their new values, the function's last results."""
    function = trace.function
    function.updates = tuple(trace.states)
    function.states = tuple((name, Constant(state._value._array, name)) for name, (state, _) in trace.states.items())
    return [held[0] for _, held in trace.states.values()]


__all__ = ["State", "close_states"]
