"""Solve symbolic dimensions from the shapes of run-time inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .substitution import evaluate, linear_in
from .symbolic import Dim, Expr, bounds, free_symbols


class ShapeMismatch(ValueError):
    """An input's shape contradicts its declaration, another input, or a bound."""


@dataclass(frozen=True)
class Define:
    """``symbol = (shape[input][dim] - offset) / coefficient``; both may use symbols defined before."""

    symbol: Expr
    input: int
    dim: int
    expr: Dim
    coefficient: Dim
    offset: Dim


@dataclass(frozen=True)
class Check:
    """``shape[input][dim] == expr``."""

    input: int
    dim: int
    expr: Dim


class ShapeSolver:
    """A plan that computes every symbol of the declared input shapes and checks all other dimensions.

    `inputs` are pairs (name, shape). `steps` is the plan as data, from which native code can be generated.
    With `partial`, symbols that no input determines are left out of `symbols`.

    Raises:
        ValueError: no input determines some symbol.
    """

    def __init__(self, inputs: Sequence[tuple[str, Sequence[Dim]]], partial: bool = False) -> None:
        self.inputs = [(name, tuple(shape)) for name, shape in inputs]
        self.steps: list[Define | Check] = []
        known: set[Expr] = set()
        pending = [(k, d, e) for k, (_, shape) in enumerate(self.inputs) for d, e in enumerate(shape)]
        progress = True
        while pending and progress:
            progress = False
            left = []
            for k, d, e in pending:
                unknown = [] if isinstance(e, int) else sorted(free_symbols(e) - known, key=lambda s: s.name)
                if not unknown:
                    self.steps.append(Check(k, d, e))
                    progress = True
                    continue
                parts = linear_in(e, unknown[0]) if len(unknown) == 1 else None
                if parts is None or (isinstance(parts[0], int) and parts[0] == 0):
                    left.append((k, d, e))
                    continue
                self.steps.append(Define(unknown[0], k, d, e, parts[0], parts[1]))
                known.add(unknown[0])
                progress = True
            pending = left
        if pending and not partial:
            names = sorted(
                {s.name for _, _, e in pending if isinstance(e, Expr) for s in free_symbols(e) - known}
            )
            raise ValueError(
                f"no input determines {', '.join(names)}: each symbolic dimension must appear alone "
                "(times a constant, plus a constant) in some input"
            )
        self.symbols = known

    def _where(self, k: int, d: int) -> str:
        return f"dimension {d} of '{self.inputs[k][0]}'"

    def solve(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Values of all symbols.

        Raises:
            ShapeMismatch: names the input, the dimension, its actual and its expected size.
        """
        actual = []
        for name, shape in self.inputs:
            if name not in shapes:
                raise ShapeMismatch(f"input '{name}' is missing")
            sizes = tuple(shapes[name])
            if len(sizes) != len(shape):
                raise ShapeMismatch(
                    f"input '{name}' has {len(sizes)} dimensions {sizes}, "
                    f"expected {len(shape)} ({', '.join(map(str, shape))})"
                )
            actual.append(sizes)
        values: dict[str, int] = {}
        origin: dict[str, tuple[int, int]] = {}
        for step in self.steps:
            size = int(actual[step.input][step.dim])
            what = f"input '{self.inputs[step.input][0]}' has size {size} in dimension {step.dim}"
            if isinstance(step, Define):
                s = step.symbol
                coefficient, offset = evaluate(step.coefficient, values), evaluate(step.offset, values)
                value, rest = divmod(size - offset, coefficient) if coefficient else (0, 1)
                if rest:
                    raise ShapeMismatch(f"{what}, which is not {step.expr} for any whole '{s.name}'")
                low, high = bounds(s)
                if (low is not None and value < low) or (high is not None and value > high):
                    limit = (
                        f"at least {low}"
                        if high is None
                        else f"at most {high}"
                        if low is None
                        else f"between {low} and {high}"
                    )
                    raise ShapeMismatch(f"{what}: '{s.name}' must be {limit}")
                if value % s.multiple_of:
                    raise ShapeMismatch(f"{what}: '{s.name}' must be a multiple of {s.multiple_of}")
                values[s.name] = value
                origin[s.name] = (step.input, step.dim)
            else:
                wanted = evaluate(step.expr, values)
                if wanted != size:
                    if isinstance(step.expr, int):
                        raise ShapeMismatch(f"{what}, expected {wanted}")
                    text = str(step.expr)
                    source = next(iter(sorted(free_symbols(step.expr), key=lambda s: s.name))).name
                    raise ShapeMismatch(
                        f"{what}, but '{text}' is {wanted} from {self._where(*origin[source])}"
                    )
        return values
