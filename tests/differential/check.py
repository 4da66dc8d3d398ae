"""Compares a compiled program with the interpreter, and narrows a failure down to one operator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.dialects import func
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.shape_solver import ShapeSolver
from tilewright.ir.substitution import evaluate
from tilewright.ir.types import DType, f64
from tilewright.ir.verifier import verify

from ..devices import running, sources_only
from . import every_operator
from .generator import Disagreement, Program, agrees, generate, tolerance

if TYPE_CHECKING:
    from tilewright.lowering.pipeline import LoweringOptions

Run = Callable[[Module, list[list[np.ndarray]]], list[list[np.ndarray]]]
"""A function that runs "main" of a module on each set of inputs, without changing the module."""


@dataclass(frozen=True)
class Failure:
    """A program with wrong results: its seed, the reason, and the smallest part of the program that fails."""

    seed: int
    reason: str
    program: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.reason}\n{self.program}"


def compiled_for(
    target: str, threads: int = 2, precision: DType | None = None, opt: str = "O2", checked: bool = True
) -> Run:
    """A `Run` that compiles for a target at a level of optimization, in the program's own precision or in a
    lower one. Where the device is simulated, it finds faults of the kernels if `checked`.
    """
    name = None if precision is None else precision.name
    import tilewright as tw

    def run(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        given: dict[str, Any] = {"threads": threads, "precision": name, "opt": opt, "cache": False}
        with sources_only(), tw.compile(module.clone(), target=target, **given) as library:
            runs = running(library, checked)
            results = [runs(*arrays) for arrays in inputs]
        return [list(r) if isinstance(r, tuple) else [r] for r in results]

    return run


def on_each(*runs: Run) -> Run:
    """A `Run` whose results are those of several others, so that each is compared with the interpreter."""
    return (
        runs[0] if len(runs) == 1 else lambda module, inputs: [y for run in runs for y in run(module, inputs)]
    )


def lowered_to_tensor(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run by lowering to the tensor level and interpreting the result, which needs no target."""
    from tilewright.passes.tensor.lower_to_tensor import lower_to_tensor

    lowered = module.clone()
    lower_to_tensor(lowered)
    return [Interpreter(lowered).run("main", arrays) for arrays in inputs]


def fused(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run by lowering to fused groups, as for the cpu target, and interpreting the tensor level."""
    from tilewright.lowering.pipeline import tensor_passes
    from tilewright.targets.registry import resolve

    lowered = module.clone()
    for step in tensor_passes(resolve("cpu").lowering):
        step(lowered)
    return [Interpreter(lowered).run("main", arrays) for arrays in inputs]


def scheduled(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run by lowering to the host program and the scheduled kernels of the cpu target, and interpreting
    them.
    """
    from tilewright.targets.registry import resolve

    return _scheduled(module, inputs, resolve("cpu").lowering)


def block_programs(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run by lowering to the host program and the block programs of GPUs, and interpreting them."""
    from tests.targets.gpu.simulated import target
    from tilewright.lowering.pipeline import LoweringOptions
    from tilewright.targets.gpu.rules import RULES

    return _scheduled(module, inputs, LoweringOptions(panel=None, rules=RULES, info=target()))


def _scheduled(
    module: Module, inputs: list[list[np.ndarray]], options: LoweringOptions
) -> list[list[np.ndarray]]:
    from tilewright.lowering.pipeline import lower

    lowered = lower(module.clone(), options, lambda step, m: step(m)).module
    main: Any = module.symbol("main")
    results = []
    for arrays in inputs:
        # A host program writes into tensors from its caller.
        types = [value.type for value in main.outputs]
        dims = ShapeSolver(
            [(n, a.type.shape) for n, a in zip(main.arg_names, main.inputs, strict=True)]
        ).solve({n: x.shape for n, x in zip(main.arg_names, arrays, strict=True)})
        outputs = [np.zeros([int(evaluate(d, dims)) for d in t.shape], t.dtype.numpy) for t in types]
        Interpreter(lowered).run("main", [*(x.copy() for x in arrays), *outputs], symbols=dims)
        results.append(outputs)
    return results


def in_precision(precision: DType) -> Run:
    """A `Run` that lowers the precision of contractions at the tensor level, as for the cpu target, and
    interprets the result.
    """
    from tilewright.lowering.pipeline import tensor_passes
    from tilewright.passes.registry import bound_passes
    from tilewright.targets.registry import resolve

    def run(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        lowered = module.clone()
        for step in bound_passes("graph"):
            step(lowered)
        for step in tensor_passes(resolve("cpu").lowering, precision):
            step(lowered)
            if step.__name__ == "lower_precision":
                break
        with np.errstate(all="ignore"):
            return [Interpreter(lowered).run("main", arrays) for arrays in inputs]

    return run


LEVELS: dict[str, Run] = {
    "tensor": lowered_to_tensor,
    "fused": fused,
    "loop": scheduled,
    "blocks": block_programs,
}
"""The levels that the interpreter can run, without a target."""


LACKING: dict[str, tuple[DType | str, ...]] = {
    "metal": (f64,),
    "webgpu": (f64,),
}
"""The data types and operators that a target does not support."""


def check(
    seed: int,
    run: Run,
    max_steps: int = 14,
    without: Collection[DType | str] = (),
    precision: DType | None = None,
) -> Failure | None:
    """Generate the program of `seed`, run it with `run` and on the interpreter, and compare every output.

    With a `precision`, which `run` must use, the results are compared with the float32 program to that type's
    tolerance, and with the interpreted program in that precision to a quarter of it. The latter cannot be
    exact, because a difference in the last bit before rounding may change the rounded factor.
    """
    return judge(generate(seed, max_steps, without, precision), run, precision)


def check_every_operator(seed: int, run: Run, max_steps: int = 10) -> Failure | None:
    """Check the program of `seed` over every graph operator."""
    try:
        return judge(every_operator.generate(seed, max_steps), run)
    except Disagreement as error:
        return Failure(seed, str(error), "")


def judge(program: Program, run: Run, precision: DType | None = None) -> Failure | None:
    """Run a program with `run` and on the interpreter, and compare every output."""
    verify(program.module)
    reason = _compare(program, run, precision)
    if reason is None:
        return None
    smallest, reason = _narrow(program, run, reason, precision)
    return Failure(program.seed, reason, _listing(smallest.main))


def _listing(main: func.Func) -> str:
    """A line for each operator, without the contents of constants."""
    names = {arg: f"%{name}" for arg, name in zip(main.body.args, main.arg_names, strict=True)}
    lines = [f"  {names[arg]}: {arg.type}" for arg in main.body.args]
    for op in main.body.ops:
        for result in op.results:
            names[result] = f"%{len(names)}"
        attributes = ", ".join(f"{k}={v}" for k, v in op.attributes.items())
        operands = ", ".join(names[v] for v in op.operands)
        results = ", ".join(f"{names[r]}: {r.type}" for r in op.results)
        lines.append(f"  {results}{' = ' if results else ''}{op.name}({operands}) {{{attributes}}}")
    return "\n".join(lines)


def _interpreted(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    with np.errstate(all="ignore"):
        return [Interpreter(module).run("main", arrays) for arrays in inputs]


def _compare(program: Program, run: Run, precision: DType | None) -> str | None:
    references = [(_interpreted, 1.0)]
    if precision is not None:
        references.append((in_precision(precision), 0.25))
    try:
        actual = run(program.module, program.inputs)
        wanted = [(reference(program.module, program.inputs), share) for reference, share in references]
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:2000]}"
    for results, share in wanted:
        ways = len(actual) // len(results)  # more than 1 if `run` runs each program in several ways
        for arrays, outputs, expected in zip(program.inputs * ways, actual, results * ways, strict=True):
            for k, (a, e, value) in enumerate(zip(outputs, expected, program.main.outputs, strict=True)):
                a, e = np.asarray(a), np.asarray(e)
                if not agrees(a, e, value.type.dtype, share, tolerance(precision)):
                    sizes = [x.shape for x in arrays]
                    return (
                        f"output {k} ({value.type}) differs for inputs of shapes {sizes}: {_difference(a, e)}"
                    )
    return None


def _difference(a: np.ndarray, e: np.ndarray) -> str:
    if a.shape != e.shape or a.dtype != e.dtype:
        return f"{a.dtype}{list(a.shape)}, expected {e.dtype}{list(e.shape)}"
    error = np.abs(a.astype(np.float64) - e.astype(np.float64))
    error = np.where(np.isnan(error), np.inf, error)
    at = np.unravel_index(int(error.argmax()), error.shape) if error.ndim else ()
    where = [int(i) for i in at]
    return (
        f"{int((error > 0).sum())} of {error.size} elements, the worst at {where}: {a[at]}, expected {e[at]}"
    )


def _narrow(program: Program, run: Run, reason: str, precision: DType | None) -> tuple[Program, str]:
    """A program that returns the first value that is wrong on its own, and the reason."""
    from tilewright.ir.cleanup import dce

    count = len([op for op in program.main.body.ops if op.results])
    for k in range(count):
        module = program.module.clone()
        main: Any = module.symbol("main")
        value = [op for op in main.body.ops if op.results][k].results[0]
        main.body.terminator.erase()
        main.body.append(func.Return([value]))
        main.result_names = ("y",)
        dce(module)
        candidate = Program(module, program.inputs, program.seed)
        found = _compare(candidate, run, precision)
        if found is not None:
            return candidate, found
    return program, reason
