"""`tilewright.jit`: a Python function over tensors, compiled anew for each kind of arguments and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler import Dims
    from .frontends.trace import Arguments, Traced
    from .runtime.model import CompiledModel


def jit(function: Callable[..., Any] | None = None, *, target: str = "cpu", dims: Dims | None = None, precision: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """`function` compiled: traced once for each signature, then run without Python. Also a decorator, with or without options.

    Arguments and results are tensors (arrays and torch tensors are taken too) in lists, tuples and dictionaries. The signature is
    their structure, types and sizes; numbers, strings and None belong to it with their value. `dims` names dynamic dimensions by parameter,
    with which one compiled function serves all sizes: ``{"x": {0: "batch<=8"}}``. Tensors that the function reads from
    around it are constants; a `tw.nn` module whose parameters have been replaced is traced again. The other options are those of
    `tilewright.compile`.

    Raises (when called):
        TraceError: the function needs a value that only a run has, as for ``if x > 0:``; the message says where and what to write.
        CompileError, ShapeError: as `tilewright.compile` and the compiled model.
    """
    if function is None:
        return functools.partial(jit, target=target, dims=dims, precision=precision, threads=threads)
    return Jitted(function, {"target": target, "precision": precision, "threads": threads}, dims)


class Jitted:
    """A function that compiles itself; `compiled` lists what has been compiled so far."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], dims: Dims | None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function, self.options, self.dims = function, options, dims
        self._kept: dict[Any, tuple[Traced, CompiledModel]] = {}

    @property
    def compiled(self) -> list[CompiledModel]:
        return [library for _, library in self._kept.values()]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        from .frontends.trace import Arguments
        from .frontends.trace.tensor import concrete
        from .frontends.trace.tracing import current
        from .frontends.trace.tree import unflatten

        if current() is not None:
            return self.function(*args, **kwargs)
        arguments = Arguments.of(self.function, args, kwargs)
        traced, library = self._compiled(arguments)
        found = library(*(x.numpy() for _, x in arguments.tensors))
        outputs = iter(map(concrete, found if isinstance(found, tuple) else (found,)))
        return unflatten(traced.structure, (next(outputs) if k is None else k[0] for k in traced.known))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _compiled(self, arguments: Arguments) -> tuple[Traced, CompiledModel]:
        from .compiler import compile
        from .errors import CompileError
        from .frontends.trace import trace_function

        key = self._signature(arguments)
        kept = self._kept.get(key)
        if kept is None or not all(module.holds(name, value) for module, name, value in kept[0].observed):
            traced = trace_function(self.function, arguments, self.dims)
            if states := traced.module.symbol("main").attributes["states"]:
                raise CompileError(
                    f"{self.function.__qualname__} changes state '{states[0][0]}': tw.jit keeps nothing from call to call; use tw.compile, whose library "
                    "has the states, or return the new value"
                )
            kept = self._kept[key] = traced, compile(traced.module, **self.options)
        return kept

    def _signature(self, arguments: Arguments) -> Any:
        from .frontends.trace import Tensor

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
                # Floats by their digits: -0.0 is another number than 0.0, and not-a-number equals itself.
                parts.append((type(x), repr(x) if isinstance(x, float) else x))
        return arguments.structure, tuple(parts)


__all__ = ["Jitted", "jit"]
