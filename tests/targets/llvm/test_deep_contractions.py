"""Sums too long for the second-level cache are computed in blocks with the same results, in the result's tile
or next to an epilogue.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.devices import need

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.dialects.simd import Panel
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module, Value
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.target_info import CacheLevel, Machine, MatrixUnit, RegisterTile, TargetInfo
from tilewright.ir.types import DType, TensorType, bf16, f32, i32, u8
from tilewright.lowering.pipeline import LoweringOptions, lower
from tilewright.schedule import Schedule
from tilewright.schedule.rules import ScheduleRule
from tilewright.targets.llvm.rules import RULES

every_isa = pytest.mark.every_isa

RNG = np.random.default_rng(0)
ROWS = symbol("m", 1, 128)


def product(
    m: int, k: int, n: int, dtype: DType, epilogue: bool, rows: Dim = ROWS
) -> tuple[Module, np.ndarray, np.ndarray]:
    """Return a module of ``a @ w``, or of its tanh, by default with a symbolic number of rows, with the input
    and the result in float64.
    """
    a = (RNG.standard_normal((m, k)) / k**0.5).astype(dtype.numpy)
    w = RNG.standard_normal((k, n)).astype(dtype.numpy)
    module = Module()
    main = func.Func(sym_name="main", arg_names=("a",), result_names=("y",))
    module.body.append(main)
    x = main.body.add_arg(TensorType(dtype, (rows, k)), "a")
    g = Builder(main.body)
    y: Value = g(graph.Matmul(x, g(graph.Constant(value=Constant(w)))))
    g.insert(func.Return([g(graph.Tanh(y)) if epilogue else y]))
    wanted = a.astype(np.float64) @ w.astype(np.float64)
    return module, a, np.tanh(wanted) if epilogue else wanted


@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "tanh"])
@pytest.mark.parametrize(
    "dtype,k,blocks",
    [(f32, 4096, 8), (f32, 2051, 5), (f32, 500, 1), (bf16, 8192, 8), (bf16, 4099, 1)],
    ids=["f32", "f32 with a remainder", "short", "bf16", "bf16 with a remainder"],
)
def test_blocks(dtype: DType, k: int, blocks: int, epilogue: bool) -> None:
    module, a, wanted = product(70, k, 600, dtype, epilogue)
    # This target has 512 KiB of second-level cache.
    library = tw.compile(module, target="cpu:x86-64-v3", threads=2)
    found = re.findall(r"r0\w*_o in 0\.\.(\d+) ", library.ir("loop"))
    assert found == ([str(blocks - 1)] if blocks > 1 else [])
    tolerance = 1e-5 if dtype is f32 else 2e-2
    np.testing.assert_allclose(library(a).astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


@every_isa
def test_matrix_registers() -> None:
    """Results are right on this host too, whatever its tile and cache."""
    module, a, wanted = product(70, 40960, 70, bf16, False)
    np.testing.assert_allclose(tw.compile(module)(a).astype(np.float64), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tile,order,rows", [((32, 32), "i0_o i1_o", 128), ((6, 64), "i1_o i0_o", 66)])
def test_many_rows_and_columns(tile: tuple[int, int], order: str, rows: int) -> None:
    """With matrix registers, all columns are computed for as many rows as fit in the cache before the next
    rows.
    """
    module, a, wanted = product(512, 128, 128, bf16, False, rows=512)
    trace = scheduled(module, a, wanted, described(48 * 1024, tile))
    first = next(step for step in trace if step.startswith("reorder"))
    assert re.findall(r"i\d(?:_[oi])+", first)[: len(order.split())] == order.split()
    found = [int(n) for n in re.findall(r"split\('\w+_i0', (\d+)\)", "\n".join(trace))]
    assert found == [rows]


@pytest.mark.parametrize(
    "l2,tile", [(16 * 1024, [192, 32]), (128 * 1024, [64])], ids=["to memory", "in the cache"]
)
def test_results_of_matrix_registers(l2: int, tile: list[int]) -> None:
    """Results that go to memory are computed in long pieces of a few rows."""
    module, a, wanted = product(64, 256, 519, bf16, False, rows=64)
    trace = scheduled(module, a, wanted, described(l2, (32, 32)))
    assert [int(n) for n in re.findall(r"split\('\w+_i\d', (\d+)\)", "\n".join(trace))] == tile


@pytest.mark.parametrize(
    ("rows", "tile", "cache_resident"), [(512, (32, 32), True), (480, (32, 32), False), (512, (6, 64), False)]
)
def test_panels_of_many_rows_stay_near(rows: int, tile: tuple[int, int], cache_resident: bool) -> None:
    """With matrix registers, panels that many rows use are not prefetched."""
    module, a, wanted = product(rows, 64, 64, bf16, False, rows=rows)
    trace = scheduled(module, a, wanted, described(192 * 1024, tile))
    (step,) = (step for step in trace if step.startswith("tensorize"))
    assert ("True, tile=" in step) == cache_resident


def described(l2: int, tile: tuple[int, int]) -> TargetInfo:
    """Return a device with a second-level cache of `l2` bytes and a register tile for bf16. A tile of 32 rows
    stands for a matrix unit.
    """
    return TargetInfo(
        vector_bits=512,
        machine=Machine(2, (CacheLevel(2, l2),)),
        matrix_units=(MatrixUnit(16, 16, 32, bf16, f32),) if tile[0] == 32 else (),
        register_tiles=((f32, RegisterTile(6, 64)), (bf16, RegisterTile(*tile))),
    )


def scheduled(module: Module, a: np.ndarray, wanted: np.ndarray, info: TargetInfo) -> list[str]:
    """Check the result, and return the steps of the kernel's schedule for a machine."""
    steps: list[str] = []

    def recorded(rule: ScheduleRule) -> ScheduleRule:
        def schedule(s: Schedule, leading: int) -> None:
            rule(s, leading)
            steps.extend(map(str, s.trace))

        return schedule

    panel = Panel(info.register_tile(bf16).columns)
    rules = {kind: recorded(rule) for kind, rule in RULES.items()}
    lower(module, LoweringOptions(panel=lambda *_: panel, rules=rules, info=info), lambda step, m: step(m))
    found = np.zeros(wanted.shape, bf16.numpy)
    Interpreter(module).run("main", [a, found])
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-2, atol=2e-2)
    return steps


@pytest.mark.parametrize("target", [pytest.param("cpu", marks=every_isa), "cpu:x86-64-v4"])
@pytest.mark.parametrize("m,k,n", [(70, 40960, 70), (16, 8192, 32), (5, 8200, 20)])
def test_integers(m: int, k: int, n: int, target: str) -> None:
    """Sums of 8-bit integers are exact in blocks and in pieces."""
    need(target)
    a = RNG.integers(0, 256, (m, k)).astype(np.uint8)
    w = RNG.integers(-128, 128, (k, n)).astype(np.int8)
    module = Module()
    main = func.Func(sym_name="main", arg_names=("a",), result_names=("y",))
    module.body.append(main)
    g = Builder(main.body)
    x: Value = g(graph.Cast(main.body.add_arg(TensorType(u8, (m, k)), "a"), dtype=i32))
    g.insert(
        func.Return([g(graph.Matmul(x, g(graph.Cast(g(graph.Constant(value=Constant(w))), dtype=i32))))])
    )
    wanted = a.astype(np.int64) @ w
    np.testing.assert_array_equal(tw.compile(module, target=target, threads=2)(a), wanted)
