"""`precision="f16"` from a float32 graph to results: weights and factors have 16 bits, sums are float32, and
each instruction set uses its own conversions.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tests.devices import need
from tilewright.dialects import func, graph
from tilewright.errors import CompileError
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module, Value
from tilewright.ir.types import TensorType, f32
from tilewright.targets.cpu.isa import FORCED

pytestmark = pytest.mark.every_isa

RNG = np.random.default_rng(0)
WEIGHTS = [(RNG.standard_normal(s) / s[0] ** 0.5).astype(np.float32) for s in ((96, 256), (256, 40))]


def network(rows: int) -> Module:
    """Return a module of two layers with a ReLU between them."""
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(main)
    y: Value = main.body.add_arg(TensorType(f32, (rows, 96)), "x")
    g = Builder(main.body)
    for k, w in enumerate(WEIGHTS):
        y = g(graph.Matmul(y, g(graph.Constant(value=Constant(w)))))
        y = g(graph.Relu(y)) if k == 0 else y
    g.insert(func.Return([y]))
    return module


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.parametrize("rows", [1, 8, 50])
def test_values(rows: int, target: str) -> None:
    need(target)
    library = tw.compile(network(rows), target=target, precision="f16", threads=2)
    assert library.report.contractions == {"f16": 2}
    x = RNG.standard_normal((rows, 96)).astype(np.float32)
    wanted = np.maximum(x.astype(np.float64) @ WEIGHTS[0], 0) @ WEIGHTS[1]
    error = np.abs(library(x) - wanted).max() / np.abs(wanted).max()
    assert 1e-6 < error < 2e-3  # The error is that of 11 significant bits, and not of 8.


def test_sums_are_float32() -> None:
    """A sum of 4096 products of 0.9375 is exact. From 1024 on float16 represents integers only, so that a sum
    in it would be 4096, or stay at 2048.
    """
    x, w = np.full((1, 4096), 1.0, np.float32), np.full((4096, 16), 0.9375, np.float32)
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(main)
    g = Builder(main.body)
    a: Value = main.body.add_arg(TensorType(f32, x.shape), "x")
    g.insert(func.Return([g(graph.Matmul(a, g(graph.Constant(value=Constant(w)))))]))
    assert (tw.compile(module, precision="f16")(x) == 3840.0).all()


@pytest.mark.parametrize(
    "target,instruction",
    [
        ("cpu:x86-64-v3", r"vcvtph2ps\s+.*%ymm"),
        ("cpu:x86-64-v4", r"vcvtph2ps\s+.*%zmm"),
        ("aarch64-linux", r"fcvtl"),
    ],
)
def test_conversions_are_instructions(target: str, instruction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)  # The targets' own instructions, none of them emulated.
    text = tw.compile(network(4), target=target, precision="f16").ir("asm")
    assert re.search(instruction, text) and "__extendhfsf2" not in text and "__gnu_h2f" not in text


def test_code_for_another_machine_is_not_loaded_from_the_cache() -> None:
    first, again = (tw.compile(network(3), target="aarch64-linux", precision="f16") for _ in range(2))
    assert first.ir("asm") == again.ir("asm")


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "wasm32"])
def test_instruction_sets_without(target: str) -> None:
    with pytest.raises(CompileError, match="f16"):
        tw.compile(network(4), target=target, precision="f16")
