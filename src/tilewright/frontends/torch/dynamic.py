"""Exports with dynamic sizes, for the largest ranges in which the model meets the same conditions.

torch solves the conditions on sizes that a model meets, for dimensions that have names. Its solver handles
few formulas with divisions; otherwise it suggests a multiple or a constant, or fails. For dimensions without
names torch records the conditions unsolved, and they are tested here on many sizes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...errors import CompileError
from ...ir.substitution import evaluate
from ...ir.symbolic import Dim, Expr, free_symbols

if TYPE_CHECKING:
    import torch

Sizes = Mapping[tuple[str, int], Dim]
"""The dynamic sizes, by name of input and axis."""

DynamicShapes = dict[str, Any]
"""The ``dynamic_shapes`` of ``torch.export.export``, by parameter of ``forward()``."""

Range = tuple[int | None, int | None]


def export_for(run: Callable[[DynamicShapes | None], Any], specs: DynamicShapes | None, sizes: Sizes) -> Any:
    """Return the result of `run` for torch's ``dynamic_shapes``: `specs`, or others that accept more sizes or
    that torch can handle.

    Raises:
        CompileError: A condition of the model fails for some of the sizes, and no bound on one dimension
            excludes them.
        Exception: Any other exception of `run`.
    """
    try:
        return run(specs)
    except Exception as error:
        if specs is None or not (_is_violation(error) or solver_failed(error)):
            raise
        first = error
    problem = None
    try:
        return _unnamed(run, specs, sizes, first)
    except _NoRange as no_range:
        problem = no_range
    except Exception as error:
        if not _is_violation(error):
            raise
    last: Exception = first
    for _ in range(3):
        refined = _suggested(last, specs)
        if refined is None:
            break
        try:
            return run(refined)
        except Exception as error:
            if not _is_violation(error):
                raise
            last, specs = error, refined
    if problem is not None:
        raise CompileError(
            f"the model does not behave the same for all sizes given in dims: {problem}; narrow the bounds"
        ) from None
    raise last


def _unnamed(
    run: Callable[[DynamicShapes | None], Any], specs: DynamicShapes, sizes: Sizes, first: Exception
) -> Any:
    """Export with conditions that torch only records.

    Raises:
        _NoRange: They do not reduce to a range for each dimension.
    """
    violated = re.search(r"Constraints violated \(([^)]*)\)", str(first))
    names = {n.strip() for n in violated[1].split(",")} if violated else None
    known: dict[str, Range] = {}
    for _ in range(3):
        program = run({key: _automatic(value, names, known) for key, value in specs.items()})
        narrower = _ranges(program._guards_code, sizes, known)
        if narrower == known:
            _admit_one(program, sizes, known)
            return program
        known = narrower
    raise _NoRange("no bounds were found that satisfy all of its conditions")


def _admit_one(program: torch.export.ExportedProgram, sizes: Sizes, ranges: Mapping[str, Range]) -> None:
    """Extend the ranges of dimensions to 1 where the conditions hold for it.

    torch traces with sizes of at least 2 and records 2 as the lower bound of dimensions without a name.
    """
    inputs = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    for (name, axis), size in sizes.items():
        symbols = free_symbols(size)
        shape = getattr(inputs.get(name), "shape", None)
        if shape is None or isinstance(shape[axis], int) or len(symbols) != 1:
            continue
        e, (s,) = shape[axis].node.expr, symbols
        noted = program.range_constraints.get(e)
        low = ranges.get(s.name, (None, None))[0]
        if size is s and (s.lower or 1) <= 1 and low is None and noted is not None and noted.lower == 2:
            program.range_constraints[e] = type(noted)(1, noted.upper)


def _automatic(spec: Any, names: set[str] | None, ranges: Mapping[str, Range]) -> Any:
    """Return `spec` with the dimensions called `names` (None: all) left to torch, within their bounds and
    `ranges`.
    """
    from torch.export import Dim as TorchDim

    if isinstance(spec, dict):
        return {key: _automatic(value, names, ranges) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return type(spec)(_automatic(value, names, ranges) for value in spec)
    root = getattr(spec, "root", spec)
    name = getattr(root, "__name__", None)
    if name is None or (names is not None and name not in names):
        return spec
    if root is not spec:
        return TorchDim.AUTO
    low, high = ranges.get(name, (None, None))
    return TorchDim.AUTO(
        min=spec.min if low is None else max(low, spec.min),
        max=spec.max if high is None else min(high, spec.max),
    )


def _suggested(error: Exception, specs: DynamicShapes) -> DynamicShapes | None:
    """Return the shapes that torch's message suggests (bounds, constants and multiples), None if none is
    usable.
    """
    from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

    # torch's parser fails on the advice that follows the fixes, and on sums.
    fixes = str(error).partition("Suggested fixes:")[2].strip().partition("\n\n")[0]
    if not fixes or re.search(r"= \d+\*\w+ [-+]", fixes):
        return None
    try:
        refined = refine_dynamic_shapes_from_suggested_fixes(f"Suggested fixes:\n{fixes}", specs)
    except Exception:  # The message is free text, of which torch's parser knows some forms.
        return None
    return None if refined == specs else refined


def _is_violation(error: Exception) -> bool:
    return "Constraints violated (" in str(error)


def solver_failed(error: Exception) -> bool:
    """Return whether torch failed in its own algebra of sizes; other example sizes may succeed."""
    if isinstance(error, CompileError) or type(error).__name__ == "GuardOnDataDependentSymNode":
        return False
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    file = "" if at is None else at.tb_frame.f_code.co_filename.replace("\\", "/")
    solver_files = ("/sympy/", "/torch/utils/_sympy/", "/torch/fx/experimental/symbolic_shapes.py")
    return isinstance(error, (NotImplementedError, AssertionError, RecursionError)) and any(
        part in file for part in solver_files
    )


# -- Conditions ----------------------------------------------------------------------------------------------


class _NoRange(Exception):
    """A condition that no range of one dimension meets. The message names the condition and sizes for which
    it fails.
    """


_SIZE = re.compile(r"L((?:\['\w+'\]|\[\d+\])+)\.size\(\)\[(\d+)\]")
_SMALL = 256
"""Number of sizes, from the smallest on, that are all tested before random ones. A larger value finds more
gaps and takes more time.
"""
_FUNCTIONS = {"__builtins__": {}, "max": max, "min": min, "IntInfinity": lambda: float("inf")}


@dataclass(frozen=True)
class _Condition:
    """A condition on sizes: `holds` takes a value for each symbol."""

    text: str
    symbols: tuple[Expr, ...]
    holds: Callable[[Mapping[str, int]], bool]

    @property
    def of_broadcasting(self) -> bool:
        """Whether the condition is that a size is not 1. Every export assumes sizes other than 1; the
        compiled code compares them with those that they are broadcast with.
        """
        return re.search(r"!= (1|max\(1, .*\))$", self.text) is not None


def _key_of(match: re.Match[str]) -> tuple[str, int]:
    return "_".join(re.findall(r"\w+", match[1])), int(match[2])


def _conditions(texts: Iterable[str], sizes: Sizes) -> Iterable[_Condition]:
    for text in dict.fromkeys(t.strip().rstrip(".") for t in texts):
        keys = [_key_of(m) for m in _SIZE.finditer(text)]
        if not keys or any(key not in sizes for key in keys):
            continue
        program = compile(_SIZE.sub(lambda m: f"sizes[{_key_of(m)!r}]", text), "<condition>", "eval")
        symbols = tuple(dict.fromkeys(s for key in keys for s in sorted(free_symbols(sizes[key]), key=str)))

        def holds(
            values: Mapping[str, int], program: CodeType = program, keys: Sequence[tuple[str, int]] = keys
        ) -> bool:
            try:
                return bool(
                    eval(program, {**_FUNCTIONS, "sizes": {k: int(evaluate(sizes[k], values)) for k in keys}})
                )
            except ArithmeticError:  # The formula has no value for sizes this small.
                return False

        yield _Condition(_SIZE.sub(lambda m: "{}.shape[{}]".format(*_key_of(m)), text), symbols, holds)


def _ranges(texts: Iterable[str], sizes: Sizes, known: Mapping[str, Range]) -> dict[str, Range]:
    """Return ranges of the symbols, within `known`, in which all conditions hold; unrestricted symbols are
    left out.

    Raises:
        _NoRange: There are none.
    """
    ranges = dict(known)
    for condition in _conditions(texts, sizes):
        if condition.of_broadcasting:
            continue
        if len(condition.symbols) == 1:
            (s,) = condition.symbols
            low, high = _range(condition, s, _bounds(s, ranges.get(s.name, (None, None))))
            if (low, high) != (None, None):
                before = ranges.get(s.name, (None, None))
                ranges[s.name] = (before[0] if low is None else low, before[1] if high is None else high)
        else:
            # A dimension of size 1 is broadcast against others.
            _try_together(
                condition, [(s, _bounds(s, ranges.get(s.name, (None, None)), 2)) for s in condition.symbols]
            )
    return ranges


def _bounds(s: Expr, known: Range, least: int = 1) -> tuple[int, int | None]:
    """Return the smallest (at least `least`) and the largest size of a symbol that the model is exported
    for.
    """
    low, high = known
    declared = 1 if s.lower is None else s.lower
    upper = s.upper if high is None else high if s.upper is None else min(high, s.upper)
    return max(least, declared, 0 if low is None else low), upper if isinstance(upper, int) else None


def _samples(low: int, high: int | None) -> list[int]:
    """Return sizes within bounds: all small ones, and some random ones."""
    top = low + 4096 if high is None else max(low, high)
    generator = random.Random(0)
    return sorted(
        {*range(low, min(low + _SMALL, top + 1)), *(generator.randint(low, top) for _ in range(_SMALL)), top}
    )


def _range(condition: _Condition, s: Expr, limits: tuple[int, int | None]) -> Range:
    """Return narrower limits for a condition on one symbol; None where a limit stays."""
    values = _samples(*limits)
    results = [condition.holds({s.name: v}) for v in values]
    if all(results):
        return None, None
    inside = [v for v, ok in zip(values, results, strict=True) if ok]
    outside = [v for v, ok in zip(values, results, strict=True) if not ok]
    if not inside or any(inside[0] < v < inside[-1] for v in outside):
        v = outside[0]
        raise _NoRange(f"it needs {condition.text}, which fails for {s.name} = {v}")
    low = (
        None
        if outside[0] > inside[0]
        else _edge(condition, s, max(v for v in outside if v < inside[0]), inside[0])
    )
    high = (
        None
        if outside[-1] < inside[-1]
        else _edge(condition, s, min(v for v in outside if v > inside[-1]), inside[-1])
    )
    if (limits[0] if low is None else low) == (limits[1] if high is None else high) != limits[0]:
        raise _NoRange(f"it needs {condition.text}, which holds only for {s.name} = {inside[0]}")
    return low, high


def _edge(condition: _Condition, s: Expr, fails: int, holds: int) -> int:
    """Return the last size, between `holds` and `fails`, for which a condition holds."""
    while abs(fails - holds) > 1:
        middle = (fails + holds) // 2
        fails, holds = (fails, middle) if condition.holds({s.name: middle}) else (middle, holds)
    return holds


def _try_together(condition: _Condition, limits: Sequence[tuple[Expr, tuple[int, int | None]]]) -> None:
    """Test a condition on several symbols.

    Raises:
        _NoRange: It fails for some sizes.
    """
    generator = random.Random(0)
    choices = [(s.name, _samples(low, high)) for s, (low, high) in limits]
    for k in range(1024):
        values = {
            n: samples[min(k, len(samples) - 1)] if k < 64 else generator.choice(samples)
            for n, samples in choices
        }
        if not condition.holds(values):
            example = ", ".join(f"{name} = {value}" for name, value in values.items())
            raise _NoRange(f"it needs {condition.text}, which fails for {example}")


__all__ = ["DynamicShapes", "export_for", "solver_failed"]
