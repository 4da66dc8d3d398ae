"""`tilewright.jit`: a Python function over tensors, compiled for each signature of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..frontends.dims import DimsArgument
    from ..frontends.trace import Arguments, Traced
    from ..runtime.model import CompiledModel


def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str = "cpu",
    dims: DimsArgument | None = None,
    precision: str | None = None,
    threads: int | None = None,
) -> Any:
    """Compile a function when it is called: it is traced once for each signature, then run without Python.
    Also a decorator, with or without options.

    Arguments and results are tensors, also arrays and torch tensors, in lists, tuples and dictionaries. The
    signature is their structure, data types and sizes; numbers, strings and None are part of it by value.
    Tensors that the function reads from outside are constants. A `tw.nn` module with replaced parameters is
    traced again.

    Args:
        function: The function; None in a decorator with options.
        target: As for `tilewright.compile`.
        dims: Names and bounds of dynamic dimensions by parameter, ``{"x": {0: "batch<=8"}}``. One compiled
            function then serves all sizes.
        precision: As for `tilewright.compile`.
        threads: As for `tilewright.compile`.

    Returns:
        A `Jitted`, called like the function.

    Raises:
        TraceError: When it is called: the function needs a value that only a run has, as in ``if x > 0:``.
            The message names the line and a remedy.
        CompileError: When it is called: as `tilewright.compile`.
        ShapeError: When it is called: as the compiled model.
    """
    if function is None:
        return functools.partial(jit, target=target, dims=dims, precision=precision, threads=threads)
    return Jitted(function, {"target": target, "precision": precision, "threads": threads}, dims)


class Jitted:
    """A function that is compiled when it is called.

    Args:
        function: The function, kept as `jitted_function`.
        options: The options of `tilewright.compile` by name.
        dims: Names and bounds of dynamic dimensions by parameter.
    """

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], dims: DimsArgument | None
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.jitted_function, self.options, self.dims = function, options, dims
        self._kept: dict[Any, tuple[Traced, CompiledModel]] = {}

    @property
    def compiled(self) -> list[CompiledModel]:
        """The libraries compiled so far, one for each signature."""
        return [library for _, library in self._kept.values()]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        from ..frontends.trace import Arguments
        from ..frontends.trace.tensor import concrete
        from ..frontends.trace.tracing import current
        from ..frontends.trace.tree import unflatten

        if current() is not None:
            return self.jitted_function(*args, **kwargs)
        arguments = Arguments.of(self.jitted_function, args, kwargs)
        traced, library = self._compiled(arguments)
        results = library(*(x.numpy() for _, x in arguments.tensors))
        outputs = iter(map(concrete, results if isinstance(results, tuple) else (results,)))
        return unflatten(traced.structure, (next(outputs) if k is None else k[0] for k in traced.known))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _compiled(self, arguments: Arguments) -> tuple[Traced, CompiledModel]:
        from ..errors import CompileError
        from ..frontends.trace import trace_function
        from .compile import compile

        key = self._signature(arguments)
        kept = self._kept.get(key)
        if kept is None or not all(module.holds(name, value) for module, name, value in kept[0].observed):
            traced = trace_function(self.jitted_function, arguments, self.dims)
            if states := traced.module.symbol("main").attributes["states"]:
                raise CompileError(
                    f"{self.jitted_function.__qualname__} changes state '{states[0][0]}': tw.jit keeps no "
                    "state between calls; use tw.compile, whose library has the states, or return the new "
                    "value"
                )
            kept = self._kept[key] = traced, compile(traced.module, **self.options)
        return kept

    def _signature(self, arguments: Arguments) -> Any:
        from ..frontends.trace import Tensor

        parts: list[Any] = []
        for name, x in zip(arguments.names, arguments.leaves, strict=True):
            if isinstance(x, Tensor):
                dynamic = (self.dims or {}).get(name, {})
                free = (
                    {d % x.ndim for d in dynamic if isinstance(d, int)}
                    if isinstance(dynamic, dict) and x.ndim
                    else range(x.ndim)
                )
                parts.append((x.dtype, tuple(None if d in free else n for d, n in enumerate(x.shape))))
            else:
                # Floats by their digits: -0.0 differs from 0.0, and not-a-number equals itself.
                parts.append((type(x), repr(x) if isinstance(x, float) else x))
        return arguments.structure, tuple(parts)


__all__ = ["Jitted", "jit"]
