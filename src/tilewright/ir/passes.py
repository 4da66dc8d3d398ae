"""Pass pipelines: running passes in order, with timing, dumps, exclusion and checks.

A pass is a plain function that changes a module in place; its name is the function's name with ``-`` for
``_``. A pipeline is a list of passes and of named pipelines. In check mode the module is interpreted before
and after each pass on random inputs, and an error names the first pass that changes a result.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ..errors import InternalError
from .core import IRError, Module, Operation
from .origin import place_outside
from .printer import print_op
from .substitution import evaluate
from .symbolic import Dim, Expr, free_symbols
from .types import BufferType, TensorType
from .verifier import verify

if TYPE_CHECKING:
    import numpy as np

    Arrays = list[np.ndarray[Any, Any]]

Pass = Callable[[Module], object]
Names = Collection[str] | Literal["all"]


Watcher = Callable[[Module, str, str], None]
"""A function that is called with a module, a pass's name, and "before" or "after"."""

passes_observed: ContextVar[Watcher | None] = ContextVar("passes_observed", default=None)
"""A function that compilations call around each pass, unless they are given another one."""


@dataclass(frozen=True)
class CheckOptions:
    """Options of check mode, which runs the module before and after each pass.

    Symbolic dimensions are drawn within their bounds and at most `max_dim` (unless the lower bound is
    greater); the first of the `draws` uses every lower bound. Floats are standard normal. Integers lie in
    `ranges` (inclusive, by input name) or in `default_range`; give a range for inputs that are indices.
    Results are compared with `rtol` and `atol`, integers exactly. On a difference both modules are written to
    `dump_to` (default: a new temporary folder).
    """

    function: str | None = "main"
    """The function to check; None for every function of the module."""
    draws: int = 3
    """The number of draws of sizes and inputs."""
    seed: int = 0
    """The seed of the draws."""
    max_dim: int = 9
    """The largest drawn size of a symbolic dimension, in elements."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    default_range: tuple[int, int] = (0, 1)
    rtol: float = 1e-4
    atol: float = 1e-5
    dump_to: Path | None = None


def pass_name(step: Pass | Pipeline) -> str:
    """The name under which a pass, the function or pipeline `step`, is timed, dumped and disabled."""
    if isinstance(step, Pipeline):
        return step.name
    function: Any = step
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("_").replace("_", "-")


class Pipeline:
    """A list of passes. A pipeline inside a pipeline runs like one pass, and its passes are timed under its
    name.
    """

    def __init__(self, passes: Sequence[Pass | Pipeline], name: str = "pipeline") -> None:
        self.passes = list(passes)
        self.name = name

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    __repr__ = __str__

    def _lines(self, indent: str) -> Iterator[str]:
        for step in self.passes:
            yield indent + pass_name(step)
            if isinstance(step, Pipeline):
                yield from step._lines(indent + "  ")

    def names(self) -> list[str]:
        """Names of the passes, nested ones as ``pipeline/pass``."""
        names = []
        for step in self.passes:
            name = pass_name(step)
            names += [f"{name}/{inner}" for inner in step.names()] if isinstance(step, Pipeline) else [name]
        return names

    def run(
        self,
        module: Module,
        *,
        timing: dict[str, float] | None = None,
        dump_before: Names = (),
        dump_after: Names = (),
        dump_to: Path | TextIO | Watcher | None = None,
        disabled: Collection[str] = (),
        verify_each: bool = False,
        check: CheckOptions | Checker | None = None,
    ) -> Module:
        """Run the passes on `module` in place, and return it.

        Args:
            module: The module, which changes.
            timing: Receives the seconds of each pass by name (``pipeline/pass`` in a nested pipeline; see
                `timing_report`).
            dump_before: Names of passes before which the module's text is written, or "all".
            dump_after: Names of passes after which the module's text is written, or "all".
            dump_to: The place of the texts: a folder with one file each, or a stream. A function is called
                instead, with the module, the pass's name, and "before" or "after".
            disabled: Names of passes to skip.
            verify_each: Whether the module is verified after each pass.
            check: Options of check mode. A `Checker` reuses the results after the last pass of an earlier
                pipeline.

        Raises:
            InternalError: A pass leaves an invalid module (`verify_each`), or changes a result (`check`).
            ValueError: There is no place for the dumps, or no pass of a given name.
        """
        if (dump_before or dump_after) and dump_to is None:
            raise ValueError("dump_before and dump_after need dump_to, a folder or a stream")
        known = {part for name in self.names() for part in (name, name.rpartition("/")[2])}
        for wanted in (dump_before, dump_after):
            if wanted != "all" and (unknown := sorted(set(wanted) - known)):
                raise ValueError(
                    f"no pass is called {', '.join(unknown)}; the passes are {', '.join(self.names())}"
                )
        dump = _Dump(dump_before, dump_after, dump_to)
        checker = Checker(module, check) if isinstance(check, CheckOptions) else check
        self._run(module, "", timing, dump, frozenset(disabled), verify_each, checker)
        return module

    def _run(
        self,
        module: Module,
        prefix: str,
        timing: dict[str, float] | None,
        dump: _Dump,
        disabled: frozenset[str],
        verify_each: bool,
        checker: Checker | None,
    ) -> None:
        for step in self.passes:
            name = pass_name(step)
            full = prefix + name
            if name in disabled or full in disabled:
                continue
            if isinstance(step, Pipeline):
                step._run(module, f"{full}/", timing, dump, disabled, verify_each, checker)
                continue
            dump(module, name, "before")
            start = perf_counter()
            try:
                step(module)
            except Exception as error:
                error.add_note(f"in pass '{full}'")
                raise
            if timing is not None:
                timing[full] = timing.get(full, 0.0) + perf_counter() - start
            dump(module, name, "after")
            if verify_each or checker is not None:
                try:
                    verify(module)
                except IRError as error:
                    raise InternalError(
                        f"pass '{full}' produced an invalid module: {error}",
                        _culprits(full, step, [type(error.op)]),
                    ) from error
            if checker is not None:
                checker.after(module, full, step)


def timing_report(timing: Mapping[str, float]) -> str:
    """A table of the seconds and the share of the total per pass; passes of a nested pipeline are indented.

    Args:
        timing: The seconds by pass, as `Pipeline.run` fills them in.
    """
    total = sum(timing.values())
    sums: dict[str, float] = {}
    for name, seconds in timing.items():
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            key = "/".join(parts[:depth])
            sums[key] = sums.get(key, 0.0) + seconds
    rows = [("  " * name.count("/") + name.rpartition("/")[2], seconds) for name, seconds in sums.items()]
    width = max([len(label) for label, _ in rows] + [len("total")])
    lines = [
        f"{label:<{width}}  {s:9.4f} s  {s / total if total else 0:6.1%}"
        for label, s in [*rows, ("total", total)]
    ]
    return "\n".join(lines)


class _Dump:
    def __init__(self, before: Names, after: Names, to: Path | TextIO | Watcher | None) -> None:
        self.wanted = {"before": before, "after": after}
        self.to = to

    def __call__(self, module: Module, name: str, when: str) -> None:
        wanted = self.wanted[when]
        if self.to is None or not (wanted == "all" or name in wanted):
            return
        if not isinstance(self.to, Path) and callable(self.to):
            self.to(module, name, when)
            return
        text = print_op(module)
        if isinstance(self.to, Path):
            self.to.mkdir(parents=True, exist_ok=True)
            # Files are numbered across the pipelines that write to a folder.
            number = sum(1 for _ in self.to.glob("*.tw"))
            (self.to / f"{number:03}_{when}_{name}.tw").write_text(text + "\n")
        else:
            self.to.write(f"// ---- {when} {name}\n{text}\n")


# -- Checking ------------------------------------------------------------------------------------------------


class Checker:
    """The inputs of the checked functions, and the results before the next pass. `options` may change between
    passes.
    """

    def __init__(self, module: Module, options: CheckOptions) -> None:
        self.options = options
        one = options.function
        names = (
            [str(op.attributes["sym_name"]) for op in module.body.ops if op.name == "func.func"]
            if one is None
            else [one]
        )
        self.cases = [
            (n, draw) for n in names for draw in random_inputs(module, replace(options, function=n))
        ]
        self.results = [run_function(module, n, draw) for n, draw in self.cases]
        self.text = print_op(module)
        self.operations = set(map(type, module.walk()))
        self.culprits = ""

    def after(self, module: Module, name: str, step: Pass | None = None) -> None:
        """Compare the results of `module` with those before the pass `step`, which is called `name`.

        Raises:
            InternalError: A result differs.
        """
        import numpy as np

        self.culprits = _culprits(name, step, self.operations)

        options = self.options
        text = print_op(module)
        for k, ((function, draw), before) in enumerate(zip(self.cases, self.results, strict=True)):
            after = run_function(module, function, draw)
            labels = _result_names(module, function, len(before))
            if len(after) != len(before):
                self._fail(name, f"returns {len(after)} results instead of {len(before)}", draw, text)
            for label, x, y in zip(labels, before, after, strict=True):
                if x.shape != y.shape or x.dtype != y.dtype:
                    self._fail(
                        name,
                        f"changes output '{label}' from {x.dtype}{x.shape} to {y.dtype}{y.shape}",
                        draw,
                        text,
                    )
                wide = np.float64 if x.dtype.kind not in "biu" else x.dtype
                x, y = x.astype(wide), y.astype(wide)
                exact = x.dtype.kind in "biu"
                same = x == y if exact else np.isclose(y, x, options.rtol, options.atol, equal_nan=True)
                if not same.all():
                    with np.errstate(invalid="ignore"):
                        difference = np.abs(x.astype(np.float64) - y.astype(np.float64))
                    worst = float(np.nanmax(np.where(same, 0, difference)))
                    where = np.unravel_index(int(np.argmax(~same)), same.shape)
                    self._fail(
                        name,
                        f"changes output '{label}': {int((~same).sum())} of {same.size} elements differ, "
                        f"by up to {worst:.3g} "
                        f"(first at {tuple(map(int, where))}: {x[where]} before, {y[where]} after)",
                        draw,
                        text,
                    )
            self.results[k] = after
        self.text = text
        self.operations = set(map(type, module.walk()))

    def _fail(self, name: str, what: str, draw: Mapping[str, Any], text: str) -> None:
        folder = self.options.dump_to or Path(tempfile.mkdtemp(prefix="tilewright-check-"))
        folder.mkdir(parents=True, exist_ok=True)
        file = name.replace("/", "-")
        for when, content in (("before", self.text), ("after", text)):
            (folder / f"{when}_{file}.tw").write_text(content + "\n")
        shapes = ", ".join(f"{n}: {x.dtype}{x.shape}" for n, x in draw.items())
        raise InternalError(
            f"pass '{name}' {what}\n  inputs: {shapes}\n  the module before and after: {folder}",
            self.culprits,
        )


def _culprits(name: str, step: Pass | None, operations: Collection[type]) -> str:
    """The sentence that names what an error may come from: a pass that is defined outside of Tilewright, else
    the operators defined outside; "" if there are none.
    """
    if place := place_outside(step):
        return f"The pass '{name}' is defined in {place}, outside of Tilewright."
    outside = sorted(
        f"'{cls.name}' ({place})"
        for cls in operations
        if issubclass(cls, Operation) and (place := place_outside(cls))
    )
    if not outside:
        return ""
    return (
        f"The module has operators that are defined outside of Tilewright: {', '.join(outside)}. "
        "Compare their `lower` or `decompose` with their `reference` first."
    )


def random_inputs(module: Module, options: CheckOptions) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Inputs of a function of `module`: arrays by name, of its parameters' shapes and types, one set per
    draw.

    Args:
        module: The module at any level.
        options: The function and how its inputs are drawn.

    Raises:
        KeyError: There is no such function.
        ValueError: No sizes within the bounds make every dimension of every input non-negative.
    """
    import numpy as np

    args = _parameters(module, options.function or "main")
    symbols: dict[Expr, None] = {}
    for t in args.values():
        for d in t.shape:
            for s in sorted(free_symbols(d), key=lambda s: s.name) if not isinstance(d, int) else ():
                _with_bounds(s, symbols)
    random = np.random.default_rng(options.seed)
    draws = []
    for draw in range(max(options.draws, 1) if symbols else 1):
        shapes: dict[str, tuple[int, ...]] = {}
        for attempt in range(100):
            dims = _draw_dims(symbols, options.max_dim, None if draw == 0 and attempt == 0 else random)
            shapes = {n: tuple(int(evaluate(d, dims)) for d in t.shape) for n, t in args.items()}
            if all(n >= 0 for shape in shapes.values() for n in shape):
                break
        else:
            raise ValueError(f"no sizes up to {options.max_dim} fit the inputs; raise CheckOptions.max_dim")
        draws.append(
            {name: _random_array(name, t, shapes[name], random, options) for name, t in args.items()}
        )
    return draws


def _with_bounds(s: Expr, symbols: dict[Expr, None]) -> None:
    """Add a symbol after the symbols in its bounds."""
    if isinstance(s.upper, Expr):
        for other in sorted(free_symbols(s.upper), key=lambda s: s.name):
            _with_bounds(other, symbols)
    symbols[s] = None


def _draw_dims(symbols: Collection[Expr], max_dim: int, random: np.random.Generator | None) -> dict[str, int]:
    """Values of symbols within their bounds: the lower bounds when `random` is None."""
    dims: dict[str, int] = {}
    for s in symbols:
        step = s.multiple_of
        low = -(-(s.lower if s.lower is not None else 0) // step) * step
        upper: Dim | None = s.upper
        high = max_dim if upper is None else min(max_dim, int(evaluate(upper, dims)))
        count = max((high - low) // step, 0)
        dims[s.name] = low + step * (0 if random is None else int(random.integers(0, count + 1)))
    return dims


def _random_array(
    name: str,
    t: TensorType | BufferType,
    shape: tuple[int, ...],
    random: np.random.Generator,
    options: CheckOptions,
) -> np.ndarray[Any, Any]:
    if t.dtype.is_float:
        return random.standard_normal(shape).astype(t.dtype.numpy)
    low, high = options.ranges.get(name, options.default_range)
    return random.integers(low, high, shape, endpoint=True).astype(t.dtype.numpy)


def _parameters(module: Module, function: str) -> dict[str, TensorType | BufferType]:
    """Types of the inputs by name; the trailing parameters of a host function are its outputs."""
    func = module.symbol(function)
    types = [a.type for a in func.body.args]
    names = list(func.attributes.get("arg_names") or [f"input{k}" for k in range(len(types))])
    outputs = len(func.attributes.get("result_names") or ()) if _is_host(types) else 0
    kept = len(types) - outputs
    return dict(zip(names[:kept], types[:kept], strict=True))


def _is_host(types: Sequence[Any]) -> bool:
    return bool(types) and isinstance(types[-1], BufferType)


def _result_names(module: Module, function: str, count: int) -> list[str]:
    attributes = module.symbol(function).attributes
    names = [*attributes.get("result_names", ()), *attributes.get("updates", ())]
    return names if len(names) == count else [f"output{k}" for k in range(count)]


def run_function(module: Module, function: str, inputs: Mapping[str, Any]) -> Arrays:
    """The results of a function in the interpreter, at any level.

    A host function gets its output buffers as parameters.

    Args:
        module: The module.
        function: The function's name.
        inputs: Arrays in the order of the function's parameters, of their shapes and types.

    Raises:
        KeyError: There is no such function.
    """
    import numpy as np

    from .interpreter import Interpreter
    from .shape_solver import ShapeSolver

    func = module.symbol(function)
    types = [a.type for a in func.body.args]
    arrays = [np.array(x) for x in inputs.values()]
    if not _is_host(types):
        return [np.asarray(x) for x in Interpreter(module).run(function, arrays)]
    outputs = types[len(arrays) :]
    solver = ShapeSolver([(n, t.shape) for n, t in zip(inputs, types, strict=False)])
    dims: dict[str, Any] = dict(solver.solve({n: x.shape for n, x in inputs.items()}))
    results = [np.zeros(tuple(int(evaluate(d, dims)) for d in t.shape), t.dtype.numpy) for t in outputs]
    Interpreter(module).run(function, [*arrays, *results], dims)
    changed = dict(zip(inputs, arrays, strict=True))
    return [*results, *(changed[name] for name in func.attributes.get("updates", ()))]


__all__ = [
    "CheckOptions",
    "Pass",
    "Pipeline",
    "Watcher",
    "passes_observed",
    "pass_name",
    "random_inputs",
    "run_function",
    "timing_report",
]
