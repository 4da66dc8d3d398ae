"""Whether a model is supported, examined without generating machine code, for `tilewright doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import (
    CompileError,
    InternalError,
    TilewrightError,
    UnsupportedOperator,
    UnsupportedOperatorError,
    missing_package,
)

if TYPE_CHECKING:
    from ..frontends.dims import DimsArgument
    from ..ir.core import Module


@dataclass(frozen=True)
class Support:
    """The result of `examine`: everything that is not supported with counts, places and workarounds, or the
    error that ended the examination.
    """

    problems: tuple[UnsupportedOperator, ...] = ()
    """The operators that are not supported."""
    error: TilewrightError | None = None
    """The error that ended the examination, or None."""
    module: Module | None = field(default=None, repr=False)
    """The imported model; None if it could not be imported."""
    kernels: int = 0
    """The number of kernels."""
    interpreted: tuple[str, ...] = ()
    """Operators that run in Python between the compiled parts, with their places."""

    @property
    def ok(self) -> bool:
        """Whether the model compiles."""
        return self.error is None

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs after import."""
        from ..dialects.func import entries

        functions = () if self.module is None else entries(self.module)
        return Counter(op.name for function in functions for op in function.body.ops if not op.terminator)


def examine(
    model: object,
    args: Sequence[Any] | None = None,
    *,
    target: str = "cpu",
    precision: str | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Support:
    """Examine whether `tilewright.compile` accepts a model, with the same arguments: it is imported,
    optimized and lowered.

    Args:
        model: As for `tilewright.compile`.
        args: As for `tilewright.compile`.
        target: As for `tilewright.compile`.
        precision: As for `tilewright.compile`.
        dims: As for `tilewright.compile`.
        kwargs: As for `tilewright.compile`.

    Returns:
        The findings; errors of the model are among them, not raised.

    Raises:
        CompileError: There is no such target or precision.
    """
    from ..driver.compile import Compilation
    from ..driver.frontend_registry import import_model
    from ..driver.mixed import run_in_python
    from ..driver.options import CompileOptions
    from ..driver.precision import operand_type
    from ..passes.graph.split_interpreted import separate
    from ..targets.registry import resolve

    chosen = resolve(target)
    options = CompileOptions(target=chosen, precision=operand_type(precision, chosen))
    module: Module | None = None
    try:
        module = import_model(model, args, dict(kwargs or {}), dims)
        parts = separate(module)
        kernels = 0
        for part in [module] if parts is None else [p.module for p in parts if not p.interpreted]:
            lowered = Compilation(options).lower_only(part.clone())
            kernels += len(lowered.kernels)
    except UnsupportedOperatorError as error:
        return Support(error.operators, error, module)
    except TilewrightError as error:
        return Support((), error, module)
    except Exception as error:
        if isinstance(error, ImportError) and (absent := missing_package(error)) is not None:
            return Support((), CompileError(absent), module)
        internal = InternalError(f"{type(error).__name__}: {error}")
        internal.__cause__ = error
        return Support((), internal, module)
    return Support((), None, module, kernels, () if parts is None else tuple(run_in_python(module)))


__all__ = ["Support", "examine"]
