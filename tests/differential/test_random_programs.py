"""Runs a few random programs at every level and on every target; `python -m tests.differential` runs many."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph
from tilewright.ir.types import DType

from . import conditions, corners, every_operator
from .__main__ import results
from .check import LACKING, LEVELS, Run, check, check_every_operator, compiled_for, judge
from .generator import agrees, generate

every_isa = pytest.mark.every_isa


@pytest.mark.parametrize("level, count, steps", [("tensor", 80, 14), ("fused", 80, 14), ("loop", 15, 6)])
def test_levels(level: str, count: int, steps: int) -> None:
    failures = [
        failure for seed in range(count) if (failure := check(seed, LEVELS[level], steps)) is not None
    ]
    assert not failures, "\n".join(map(str, failures))


def run_many(target: str, first: int, count: int, opt: str = "O2") -> None:
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    if target == "webgpu":
        wgpu = pytest.importorskip("wgpu")
        try:
            wgpu.gpu.request_adapter_sync()
        except Exception as error:
            pytest.skip(f"no WebGPU adapter (Debian: mesa-vulkan-drivers): {error}")
    run, without = compiled_for(target, opt=opt), LACKING.get(target, ())
    checks = (check(seed, run, without=without) for seed in range(first, first + count))
    failures = [failure for failure in checks if failure is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize(
    "target, count", [pytest.param("cpu", 25, marks=every_isa), ("wasm32", 6), ("webgpu", 6)]
)
def test_targets(target: str, count: int) -> None:
    run_many(target, 1000, count)


@pytest.mark.parametrize("opt", ["O0", "O1", "O3"])
def test_levels_of_optimization(opt: str) -> None:
    run_many("cpu", 1100, 6, opt)


@every_isa
@pytest.mark.parametrize("seed", [252, 282, 1620])
def test_groups_around_others(seed: int) -> None:
    """These programs once failed because a group enclosed an operation between its members (in the second
    program a loop), or combined computations over different points.
    """
    run_many("cpu", seed, 1)


@pytest.mark.parametrize(
    "level, seeds", [("fused", [*range(40), 83, 285]), pytest.param("cpu", range(40, 52), marks=every_isa)]
)
def test_small_tensors(level: str, seeds: Iterable[int]) -> None:
    run_small_tensors(LEVELS.get(level) or compiled_for(level), seeds)


def run_small_tensors(run: Run, seeds: Iterable[int]) -> None:
    failures = [failure for seed in seeds if (failure := judge(corners.generate(seed), run)) is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
def test_many_small_tensors() -> None:
    run_small_tensors(compiled_for("cpu"), range(1000))


@every_isa
@pytest.mark.parametrize("precision, count", [("bf16", 15), ("f16", 5)])
def test_precision(precision: str, count: int) -> None:
    run_in_precision(precision, 2000, count)


def run_in_precision(precision: str, first: int, count: int) -> None:
    dtype = DType.named(precision)
    run = compiled_for("cpu", precision=dtype)
    checks = (check(seed, run, precision=dtype) for seed in range(first, first + count))
    failures = [failure for failure in checks if failure is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.parametrize("precision, count", [("bf16", 500), ("f16", 100)])
def test_many_in_precision(precision: str, count: int) -> None:
    run_in_precision(precision, 0, count)


@pytest.mark.slow
@pytest.mark.parametrize("target, count", [("cpu", 1000), ("wasm32", 100), ("webgpu", 100)])
def test_many(target: str, count: int) -> None:
    run_many(target, 0, count)


def test_every_operator_comes_about() -> None:
    """As many consecutive seeds as there are operators use all operators, and the interpreter agrees with the
    operators' references.
    """
    names = sorted(every_operator.cases())
    programs = [every_operator.generate(seed) for seed in range(len(names))]
    used = {op.name for program in programs for op in program.module.walk()}
    # `graph.dequantized_matmul` is never kept, because disturbing its 16-bit operand changes its float32
    # result too much; nor is `graph.scaled_matmul`, whose scales are powers of two, unlike disturbed ones.
    # `graph.quantized_matmul`, which decomposes to them, is generated.
    inside = {"graph.dequantized_matmul", "graph.scaled_matmul"}
    assert {cls.name for cls in graph.OPERATORS.values()} - inside <= used


@pytest.mark.parametrize("level, count", [("tensor", 60), ("fused", 30)])
def test_every_operator_at_levels(level: str, count: int) -> None:
    checks = (check_every_operator(seed, LEVELS[level]) for seed in range(count))
    failures = [failure for failure in checks if failure is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("opt, first", [pytest.param("O2", 3000, marks=every_isa), ("O0", 3012)])
def test_every_operator_compiled(opt: str, first: int) -> None:
    run = compiled_for("cpu", opt=opt)
    failures = [f for seed in range(first, first + 12) if (f := check_every_operator(seed, run)) is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("first", [0, pytest.param(12, marks=every_isa)])
def test_edges_under_conditions(first: int) -> None:
    """Small tensors of every type with values at the limits give the interpreter's results under unusual
    names, replaced files, damaged caches, several threads and text form.
    """
    failures = [f for seed in range(first, first + 12) if (f := conditions.check(seed)) is not None]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("first", [0, pytest.param(10, marks=every_isa)])
def test_edges_of_torch(first: int) -> None:
    torch_programs = pytest.importorskip("tests.differential.torch_programs", reason="PyTorch is an extra")
    failures = [
        f for seed in range(first, first + 10) if (f := torch_programs.check_compiled(seed)) is not None
    ]
    assert not failures, "\n".join(failures)


def test_a_wrong_result_of_torch_is_reported() -> None:
    torch_programs = pytest.importorskip("tests.differential.torch_programs", reason="PyTorch is an extra")
    program = next(
        p for p in map(torch_programs.generate, range(100)) if p.function()(*p.arguments.values())[0].numel()
    )

    def wrong(*arguments: Any) -> Any:
        first, *rest = program.function()(*arguments)
        return (
            ~first if first.dtype.is_signed is False and str(first.dtype) == "torch.bool" else first + 1,
            *rest,
        )

    assert torch_programs.check(program, program.function()) is None
    assert "output 0" in torch_programs.check(program, wrong)


def test_every_condition_comes_about() -> None:
    drawn = [conditions.conditions_of(seed) for seed in range(40)]
    assert all(any(getattr(c, name) for c in drawn) for name in ("names", "by_text", "saved", "damaged"))
    assert any(c.threads > 1 for c in drawn)


def test_a_reference_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.Tanh, "reference", lambda self, x: x)
    names = sorted(every_operator.cases())
    seeds = range(names.index("Tanh"), 20 * len(names), len(names))
    failures = [f for seed in seeds if (f := check_every_operator(seed, LEVELS["tensor"])) is not None]
    assert any("the interpreter and its reference differ" in f.reason for f in failures)


def test_a_crash_is_reported_and_the_other_programs_run() -> None:
    def crashing(seed: int) -> None:
        if seed == 3:
            os.kill(os.getpid(), signal.SIGSEGV)

    found = dict(results(crashing, range(6), 1))
    assert found == {0: "", 1: "", 2: "", 3: "seed 3: crash: exit code -11", 4: "", 5: ""}


def test_generation_is_deterministic() -> None:
    for seed in (1, 2, 3):
        first, second = generate(seed), generate(seed)
        assert first.steps == second.steps
        for a, b in zip(first.inputs, second.inputs, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


def test_programs_vary() -> None:
    names = {op.name for seed in range(150) for op in generate(seed).main.body.ops}
    assert len(names) > 60


def test_a_wrong_compiler_is_caught_and_narrowed_down() -> None:
    """A "compiler" that computes maximum for minimum is found, and the reported program ends at that
    operator.
    """
    from tilewright.ir.interpreter import Interpreter

    def wrong(module, inputs):  # type: ignore[no-untyped-def]
        broken = module.clone()
        for op in list(broken.walk()):
            if isinstance(op, graph.Min):
                op.results[0].replace_by(_inserted_before(op, graph.Max(*op.operands)))
                op.erase()
        return [Interpreter(broken).run("main", arrays) for arrays in inputs]

    failures = [failure for seed in range(80) if (failure := check(seed, wrong)) is not None]
    assert failures
    assert all("graph.min" in failure.program.splitlines()[-2] for failure in failures)


def _inserted_before(anchor, op):  # type: ignore[no-untyped-def]
    from tilewright.ir.builder import Builder

    return Builder.before(anchor)(op)


def test_agreement() -> None:
    from tilewright.ir.types import f32, i64

    one = np.ones(3, np.float32)
    assert agrees(one * np.float32(1.00005), one, f32)
    assert not agrees(one * np.float32(1.001), one, f32)
    assert not agrees(one * np.float32(np.nan), one, f32)
    assert not agrees(np.array([1]), np.array([2]), i64)
    assert not agrees(one, one[:2], f32)
