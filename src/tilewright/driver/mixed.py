"""Models of which the interpreter runs some parts, in Python, between the compiled parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..dialects.func import Func
from ..dialects.interpreted import needs_interpreter
from ..errors import ArtifactError, ShapeError, TilewrightError
from ..ir.core import Block, Module
from ..ir.interpreter import Frame
from ..passes.graph.split_interpreted import Part
from ..runtime.kernels import KernelDescription
from ..runtime.model import CompiledModel


class MixedModel(CompiledModel):
    """A model that runs its parts one after the other; `libraries` are those of the compiled parts. It cannot
    be saved.
    """

    def __init__(
        self,
        module: Module,
        parts: Sequence[Part],
        libraries: Sequence[CompiledModel],
        metadata: dict[str, Any],
    ) -> None:
        self._describe(metadata, "the model")
        main = module.symbol("main")
        assert isinstance(main, Func)
        self._module, self._main, self._parts, self.libraries = module, main, tuple(parts), tuple(libraries)

    @property
    def kernels(self) -> dict[str, KernelDescription]:
        """The kernels of the compiled parts, by name; names that several parts have end in the number of the
        part: ``add (part 2)``. A schedule for ``add`` is for all of them.
        """
        counts = Counter(name for library in self.libraries for name in library.kernels)
        return {
            name if counts[name] == 1 else f"{name} (part {number})": kernel
            for number, library in enumerate(self.libraries, start=1)
            for name, kernel in library.kernels.items()
        }

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        for array, spec, dtype in zip(arrays, self.inputs, self._dtypes, strict=True):
            if array.dtype != dtype or array.ndim != len(spec.shape):
                raise ShapeError(
                    f"input '{spec.name}': expected {spec.dtype} of {len(spec.shape)} dimensions, got "
                    f"{array.dtype} of {array.ndim}"
                )
        sizes = self.symbols_of([array.shape for array in arrays])
        values = dict(zip(self._main.inputs, arrays, strict=True))
        compiled = iter(self.libraries)
        for part in self._parts:
            given = [values[v] for v in part.inputs]
            if part.interpreted:
                results = _interpret(part.module.symbol("main").body, Frame(part.module, sizes, {}), given)
            else:
                outputs = next(compiled)(*given, *(np.empty(sizes[name], np.bool_) for name in part.sizes))
                results = list(outputs) if isinstance(outputs, tuple) else [outputs]
                sizes.update(zip(part.defines, map(int, results[len(part.outputs) :]), strict=True))
            values.update(zip(part.outputs, results, strict=False))
        return [values[v] for v in self._main.outputs]

    def _targets(self, out: object) -> NoReturn:
        raise ShapeError(f"'out' is not supported for this model: {_what_runs_in_python(self._module)}")

    def bind(self, /, *args: object, out: object = None, **kwargs: object) -> NoReturn:
        """Not supported. Raises ShapeError, with the operators that run in Python."""
        raise ShapeError(f"bind() is not supported for this model: {_what_runs_in_python(self._module)}")

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> NoReturn:
        """Not supported. Raises ArtifactError, with the operators that run in Python."""
        raise ArtifactError(
            f"{path}: this model cannot be saved, because {_what_runs_in_python(self._module)}. Call it in "
            "the process that compiled it, or move these operators out of the model"
        )

    def ir(self, level: str = "graph") -> str:
        """The model's text: "graph" of the whole model, any other level of its compiled parts."""
        if level == "graph":
            return str(self._module)
        return "\n".join(library.ir(level) for library in self.libraries)

    def close(self) -> None:
        for library in self.libraries:
            library.close()


def _interpret(block: Block, frame: Frame, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a block in the interpreter and return its results.

    Raises:
        TilewrightError: An operation fails on these values. The message names it and its place in the model.
    """
    frame.values.update(zip(block.args, given, strict=True))
    for op in block.ops:
        if op.terminator:
            break
        try:
            frame.run(op)
        except TilewrightError:
            raise
        except Exception as error:
            raise TilewrightError(f"'{op.name}' (at {op.location}): {error}") from error
    return [frame.values[v] for v in block.terminator.operands]


def run_in_python(module: Module) -> Iterator[str]:
    """The operators that only the interpreter runs, each with its number and places in the source model."""
    main = module.symbol("main")
    operations = [op for op in main.body.ops if needs_interpreter(op) and op.operands and not op.terminator]
    for name, count in Counter(op.name for op in operations).most_common():
        places = list(dict.fromkeys(str(op.location) for op in operations if op.name == name))
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"{name} ({count}x: {', '.join(places[:3])}{more})"


def _what_runs_in_python(module: Module) -> str:
    operators = "; ".join(run_in_python(module)) or "none, but strings are inputs or outputs"
    return f"these operators run in Python: {operators}"


__all__ = ["MixedModel", "run_in_python"]
