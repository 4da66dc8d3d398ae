"""What `tilewright doctor` says of a model: is it supported, before machine code is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import CompileError, InternalError, TilewrightError, UnsupportedOperator, UnsupportedOperatorError
from .packages import missing

if TYPE_CHECKING:
    from .compiler import Dims
    from .ir.core import Module


@dataclass(frozen=True)
class Support:
    """The findings: all that is not supported with counts, places and workarounds, or the error that ended the examination.

    `module` is the imported model, None if it could not be imported; `kernels` is how many it becomes.
    """

    problems: tuple[UnsupportedOperator, ...] = ()
    error: TilewrightError | None = None
    module: Module | None = field(default=None, repr=False)
    kernels: int = 0
    interpreted: tuple[str, ...] = ()
    """What runs in Python beside what is compiled: operators with their places."""

    @property
    def ok(self) -> bool:
        """Whether the model will compile."""
        return self.error is None

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs after import."""
        from .dialects.func import entries

        functions = () if self.module is None else entries(self.module)
        return Counter(op.name for function in functions for op in function.body.ops if not op.terminator)


def examine(
    model: Any,
    args: Sequence[Any] | None = None,
    *,
    target: str = "cpu",
    precision: str | None = None,
    dims: Dims | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Support:
    """Whether `tilewright.compile` would take a model, with the same arguments: everything is done but machine code.

    Raises:
        CompileError: no such target or precision.
    """
    from .compiler import Compilation, import_model
    from .mixed import run_in_python
    from .precision import factor_type
    from .targets.base import resolve
    from .transforms.separate import separate

    chosen = resolve(target)
    factors = factor_type(precision, chosen)
    module: Module | None = None
    try:
        module = import_model(model, args, dict(kwargs or {}), dims)
        parts = separate(module)
        kernels = 0
        for part in [module] if parts is None else [p.module for p in parts if not p.interpreted]:
            lowered = Compilation(chosen, lambda stage: None, precision=factors).rehearse(part.clone())
            kernels += len(lowered.kernels)
    except UnsupportedOperatorError as error:
        return Support(error.operators, error, module)
    except TilewrightError as error:
        return Support((), error, module)
    except Exception as error:
        if isinstance(error, ImportError) and (absent := missing(error)) is not None:
            return Support((), CompileError(absent), module)
        internal = InternalError(f"{type(error).__name__}: {error}")
        internal.__cause__ = error
        return Support((), internal, module)
    return Support((), None, module, kernels, () if parts is None else tuple(run_in_python(module)))


__all__ = ["Support", "examine"]
