"""Tiles keep the cores of the described machine equally busy: counted from schedules, without timing.

A launch divides its tasks as `runtime/c/pool.c` does, before threads take tasks from each other. Imbalance is
the work of the busiest thread over the average, less one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import loop, simd
from tilewright.driver.compile import Compilation, CompileOptions, import_model
from tilewright.ir import notes
from tilewright.ir.core import Operation
from tilewright.ir.substitution import substitute
from tilewright.ir.symbolic import Dim, Expr
from tilewright.ir.types import bf16
from tilewright.nn import functional as F
from tilewright.targets.llvm.rules.balance import Load, balanced, even_parts
from tilewright.targets.registry import resolve

CORES = (1, 2, 16, 64)
TARGETS = {
    "avx2": "cpu:x86-64-v3",
    "avx512": "cpu:x86-64-v4",
    "amx": "cpu:x86-64-v4+avx512bf16+amx-tile+amx-bf16",
}
PRODUCTS_PER_CYCLE = {"avx2": 16, "avx512": 32, "amx": 512}
MOST_IMBALANCE = 0.15
LONG = 500_000
"""Processor cycles, some 150 µs: where no task is longer, fewer than two for each thread will do, as a thread
that is held up delays the launch by no more than one task.
"""
SMALL = 20_000_000
"""Products of a kernel that may occupy a part of the cores: the classifier of 1000 classes has a few rows and
16 to 63 panels of columns, and neither is divided further.
"""

Model = Callable[..., Any]


def weights(*shape: int) -> tw.Tensor:
    return tw.Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 0.05)


@cache
def bert() -> Model:
    """A layer of BERT-base."""
    heads, d = 12, 768
    q, k, v, o = (weights(d, d) for _ in range(4))
    up, down, wide, bias = weights(d, 4 * d), weights(4 * d, d), weights(4 * d), weights(d)

    def layer(x: tw.Tensor) -> tw.Tensor:
        batch, length, _ = x.shape

        def split(t: tw.Tensor) -> tw.Tensor:
            return t.reshape(batch, length, heads, d // heads).transpose(0, 2, 1, 3)

        found = F.attention(split(x @ q), split(x @ k), split(x @ v)).transpose(0, 2, 1, 3)
        h = F.layer_norm(found.reshape(batch, length, d) @ o + bias + x, bias, bias)
        return F.layer_norm(F.gelu(h @ up + wide) @ down + bias + h, bias, bias)

    return layer


@cache
def resnet() -> Model:
    """ResNet-50 with two blocks in each stage: all its convolutions occur."""
    stem = (weights(64, 3, 7, 7), weights(64))
    blocks: list[Any] = []
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            shapes = [(width, channels, 1), (width, width, 3), (4 * width, width, 1)]
            shapes += [(4 * width, channels, 1)] * (block == 0)
            layers = [(weights(out, into, k, k), weights(out)) for out, into, k in shapes]
            blocks.append((layers, 2 if stage and not block else 1))
            channels = 4 * width
    classes = weights(2048, 1000)

    def network(x: tw.Tensor) -> tw.Tensor:
        x = F.max_pool(F.relu(F.conv(x, *stem, stride=2, padding=3)), 3, 2, 1)
        for (first, second, third, *shortcut), stride in blocks:
            y = F.relu(F.conv(F.relu(F.conv(x, *first)), *second, stride=stride, padding=1))
            x = F.relu(F.conv(y, *third) + (F.conv(x, *shortcut[0], stride=stride) if shortcut else x))
        return x.mean((2, 3)) @ classes

    return network


MODELS: dict[str, tuple[Callable[[], Model], tuple[int, ...]]] = {
    "bert, batch 1": (bert, (1, 128, 768)),
    "bert, batch 8": (bert, (8, 128, 768)),
    "resnet, batch 1": (resnet, (1, 3, 224, 224)),
    "resnet, batch 8": (resnet, (8, 3, 224, 224)),
}


@dataclass(frozen=True)
class Tasks:
    """The products in each iteration of a kernel's parallel loop, and the iterations that are not divided."""

    kernel: str
    products: tuple[int, ...]
    grain: int

    def busiest(self, threads: int) -> int:
        """The products of the thread that has most, as the pool divides the range."""
        grains = -(-len(self.products) // self.grain)
        share, extra = divmod(grains, min(grains, threads))
        ends = [0]
        for part in range(min(grains, threads)):
            ends.append(ends[-1] + share + (part < extra))
        return max(sum(self.products[a * self.grain : b * self.grain]) for a, b in pairwise(ends))

    def imbalance(self, threads: int) -> float:
        return self.busiest(threads) * threads / sum(self.products) - 1


def number(e: Dim, at: Mapping[Expr, int]) -> int:
    value = e if isinstance(e, int) else substitute(e, dict(at))
    assert isinstance(value, int)
    return value


def products(ops: Iterable[Operation], at: Mapping[Expr, int]) -> int:
    """The products of all `simd.brgemm` among some operations, where loop variables have the values `at`."""
    total = 0
    for op in ops:
        if isinstance(op, loop.For) and any(isinstance(x, simd.BatchReduceGemm) for x in op.walk()):
            total += sum(products(op.body.ops, {**at, op.iv: i}) for i in range(number(op.extent, at)))
        elif isinstance(op, simd.BatchReduceGemm):
            sizes = [number(e, at) for e in (op.m, op.n, op.k, op.lines, *op.reductions)]
            total += int(np.prod(sizes))
    return total


def tasks_of(model: str, isa: str, cores: int) -> Iterator[Tasks]:
    """The tasks of each product and each attention of a model, compiled for a machine."""
    make, shape = MODELS[model]
    module = import_model(make(), (np.zeros(shape, np.float32),), {}, None)
    options = CompileOptions(
        target=resolve(f"{TARGETS[isa]}+cores={cores}"), precision=bf16 if isa == "amx" else None
    )
    lowered = Compilation(options).lower_only(module)
    for kernel in lowered.module.functions(loop.Kernel):
        if lowered.kernels[kernel.sym_name].kind in ("contraction", "chain"):
            (outer,) = (
                op for op in kernel.body.ops if isinstance(op, loop.For) and op.kind == loop.LoopKind.PARALLEL
            )
            count = number(outer.extent, {})
            each = tuple(products(outer.body.ops, {outer.iv: i}) for i in range(count))
            yield Tasks(kernel.sym_name, each, number(notes.GRAIN.get(kernel, 1), {}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("isa", TARGETS)
def test_products_of_models(isa: str, model: str) -> None:
    """Code for a machine keeps its cores busy, and so do smaller numbers of threads."""
    found = 0
    for cores in CORES:
        for tasks in tasks_of(model, isa, cores):
            found += 1
            if sum(tasks.products) < SMALL:
                continue
            what = f"{tasks.kernel} for {cores} cores, {len(tasks.products)} tasks"
            cycles = max(tasks.products) / PRODUCTS_PER_CYCLE[isa]
            assert cores == 1 or len(tasks.products) >= 2 * cores or cycles <= LONG, what
            for threads in CORES[: CORES.index(cores) + 1]:
                assert tasks.imbalance(threads) <= MOST_IMBALANCE, f"{what}, {threads} threads"
    assert found >= 4 * len(CORES)


def test_tiles_of_a_product() -> None:
    """128 rows of 768 columns, in tiles of 64 columns: 24 tiles serve two cores, not sixteen."""

    def rows_for(cores: int) -> int:
        def load(rows: int) -> Load:
            return Load(-(-128 // rows) * 12, rows * 64 * 768 / 32, 128 * 768 * 768 / 32)

        return balanced(64, lambda: even_parts(128, 64, 3), load, cores)

    assert {cores: rows_for(cores) for cores in (1, 2, 16)} == {1: 64, 2: 64, 16: 32}
    assert rows_for(64) == 8


def test_the_busiest_thread() -> None:
    tasks = Tasks("", (3, 3, 3, 1), 1)
    assert [tasks.busiest(n) for n in (1, 2, 3, 4, 8)] == [10, 6, 6, 3, 3]
    assert tasks.imbalance(2) == pytest.approx(0.2)
    assert Tasks("", (3, 3, 3, 1), 2).busiest(4) == 6
