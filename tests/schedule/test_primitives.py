"""Every schedule primitive keeps what a kernel computes, is replayed from its trace, and names wrong
arguments.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.analysis.loop_nest import walk_loops
from tilewright.dialects import loop
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.dialects.weight_form import WeightForm
from tilewright.ir.equality import first_difference
from tilewright.ir.parser import parse_op
from tilewright.ir.printer import print_op
from tilewright.ir.target_info import TargetInfo, ThreadAxis
from tilewright.ir.verifier import verify
from tilewright.schedule import PRIMITIVES, Schedule, ScheduleError, finalize, trace_from_json, trace_to_json
from tilewright.schedule.finalize import finished

from .kernels import KERNELS, inputs_of, kernel_from, run

SIZES = (1, 5, 12)
BYTES = WeightForm(8).attribute


def check(kernel: loop.Kernel, name: str, sizes: tuple[int, ...] = SIZES) -> None:
    """Check that the kernel is valid and computes the same in any order of its unordered loops."""
    verify(kernel)
    for n in sizes:
        expected = KERNELS[name][1](*inputs_of(kernel, n))
        for shuffle in (False, True):
            for actual, wanted in zip(run(kernel, n, shuffle), expected, strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5, err_msg=print_op(kernel))


def check_trace(schedule: Schedule, name: str) -> None:
    """Check that the trace survives JSON and makes an equal kernel, and that the kernel survives its text."""
    again = Schedule(KERNELS[name][0]())
    again.replay(trace_from_json(trace_to_json(schedule.trace)))
    assert first_difference(again.kernel, schedule.kernel) is None
    assert again.trace == schedule.trace
    assert len(schedule.show().splitlines()) == len(schedule.trace)
    for generic in (False, True):
        assert first_difference(parse_op(print_op(schedule.kernel, generic=generic)), schedule.kernel) is None


def rows_of_attention(s: Schedule) -> str:
    """Compute everything for a few rows at a time."""
    at, _ = s.split("b6_i0", 4)
    for name in ("b4", "b5", "b3", "b2", "b1", "b0"):
        s.compute_at(name, at)
    return at


def partial_results_of_threads(s: Schedule) -> str:
    """Let four threads share a row of the first reduction."""
    final = s.rfactor(s.split("b0_r0", 4, guarded=True)[1])
    s.compact()
    s.all_reduce(final)
    return final


def shared_reduction(s: Schedule) -> str:
    """Let four threads share a row of the first reduction, whose first values are stored before."""
    s.decompose_reduction("b0", "b0_i0")
    terms, lane = s.split("b0_r0", 4, guarded=True)
    s.reorder(lane, terms)
    return s.share_reduction("b0", lane)


def tiles_of_factors(s: Schedule) -> tuple[str, ...]:
    """Copy tiles of both factors in each step along the sum."""
    step, term = s.split("b0_r0", 4, guarded=True)
    row, inside = s.split("b0_i0", 3, guarded=True)
    s.reorder(row, step, inside, "b0_i1", term)
    other, _ = s.split("b1_i0", 3, guarded=True)
    s.fuse_loops(row, other)
    tiles = s.stage_factors("b0", step)
    s.compact()
    return tiles


def tile_of_a_read(s: Schedule) -> str:
    """Copy what four rows and four columns of a transposition read."""
    rows, row = s.split("b0_i1", 4, guarded=True)
    columns, column = s.split("b0_i2", 4, guarded=True)
    s.reorder("b0_i0", rows, columns, row, column)
    return s.stage_read("b0", 0, columns)


CASES: dict[str, tuple[str, Callable[[Schedule], Any]]] = {
    "split": ("matmul", lambda s: (s.split("b0_i0", 4), s.split("b0_i1", 3), s.split("b0_r0", 2))),
    "split by more than there is": ("matmul", lambda s: s.split("b0_i1", 16)),
    "split twice": ("matmul", lambda s: s.split(s.split("b0_i0", 8)[1], 3)),
    "fuse": ("transposed", lambda s: s.fuse("b0_i1", "b0_i2")),
    "fuse symbolic with symbolic": (
        "transposed",
        lambda s: s.split(s.fuse(s.fuse("b0_i0", "b0_i1"), "b0_i2"), 5),
    ),
    "add_unit_loop": ("scalar_sum", lambda s: (s.add_unit_loop("b1"), s.add_unit_loop("b0"))),
    "reorder": ("matmul", lambda s: s.reorder("b0_r0", "b0_i0")),
    "fuse_loops": (
        "softmax",
        lambda s: (
            s.fuse_loops("b0_i0", "b1_i0"),
            s.fuse_loops("b0_i0", "b2_i0"),
            s.fuse_loops("b0_i0", "b3_i0"),
        ),
    ),
    "tile": ("matmul", lambda s: s.tile("b0_i0", "b0_i1", 4, 3)),
    "parallel": ("matmul", lambda s: (s.compute_at("b0", "b1_i0"), s.parallel("b1_i0"))),
    "grain": (
        "matmul",
        lambda s: (s.fuse_loops("b0_i0", "b1_i0"), s.parallel("b0_i0"), s.grain("max(1, 64 // n)")),
    ),
    "vectorize": ("matmul", lambda s: (s.vectorize("b0_i1"), s.vectorize("b1_i1", 8))),
    "vectorize a reduction": ("softmax", lambda s: (s.vectorize("b0_r0"), s.vectorize("b2_r0"))),
    "unroll": ("matmul", lambda s: (s.unroll("b0_i1"), s.unroll("b0_i0", 2))),
    "bind": (
        "matmul",
        lambda s: (s.compute_at("b0", "b1_i0"), s.bind("b1_i0", "block.x"), s.bind("b1_i1", "thread.x")),
    ),
    "fission": ("decaying", lambda s: (s.split("column2", 16), s.fission("column2_i"))),
    "fission merged loops": (
        "softmax",
        lambda s: (
            s.fuse_loops("b0_i0", "b1_i0"),
            s.fuse_loops("b0_i0", "b2_i0"),
            s.fission(s.split("b0_i0", 2)[1]),
        ),
    ),
    "compute_at": ("stencil", lambda s: (s.compute_at("b1", "b2_i0"), s.compute_at("b0", "b2_i0"))),
    "compute_at of a tile with a border": (
        "stencil",
        lambda s: (s.split("b2_i0", 4), s.compute_at("b1", "b2_i0_o"), s.compute_at("b0", "b2_i0_o")),
    ),
    "compute_at of a reduction": ("matmul", lambda s: (s.split("b1_i0", 4), s.compute_at("b0", "b1_i0_o"))),
    "compute_inline": ("stencil", lambda s: (s.compute_inline("b0"), s.compute_inline("b1"))),
    "decompose_reduction": ("matmul", lambda s: s.decompose_reduction("b0", "b0_r0")),
    "decompose_reduction outside": ("matmul", lambda s: s.decompose_reduction("b0", "b0_i0")),
    "decompose_reduction of a split one": (
        "softmax",
        lambda s: (s.split("b2_r0", 4), s.decompose_reduction("b2", "b2_r0_o"), s.vectorize("b2_r0_i")),
    ),
    "rfactor": ("matmul", lambda s: s.rfactor(s.split("b0_r0", 2)[1])),
    "rfactor a whole reduction": ("softmax", lambda s: (s.rfactor("b0_r0"), s.rfactor("b2_r0"))),
    "cache_read": ("matmul", lambda s: (s.cache_read("b0", 0), s.cache_read("b0", 1, (1, 0)))),
    "cache_read placed": (
        "matmul",
        lambda s: (
            s.split("b0_i0", 4),
            s.compute_at(s.cache_read("b0", 0), "b0_i0_o"),
            s.compute_at(s.cache_read("b0", 1), "b0_i1"),
        ),
    ),
    "cache_write": ("matmul", lambda s: (s.cache_write("b1"), s.cache_write("b0"))),
    "cache_write placed": ("matmul", lambda s: s.compute_at("b0", s.loops(s.cache_write("b0"))[0])),
    "write_into": ("matmul", lambda s: s.write_into("b0", "b1")),
    "all_reduce": ("softmax", partial_results_of_threads),
    "stage_factors": ("matmul", tiles_of_factors),
    "stage_read": ("transposed", tile_of_a_read),
    "stage_read inside a reduction": ("matmul", lambda s: s.stage_read("b0", 1, "b0_i1")),
    "accumulate_apart": (
        "matmul",
        lambda s: (s.decompose_reduction("b0", "b0_r0"), s.accumulate_apart("b0", "b0_r0")),
    ),
    "accumulate_apart from zero": (
        "matmul",
        lambda s: (s.decompose_reduction("b0", "b0_r0"), s.accumulate_apart("b0", "b0_r0", from_zero=True)),
    ),
    "share_reduction": ("softmax", shared_reduction),
    "compact": (
        "softmax",
        lambda s: (s.fuse_loops("b0_i0", "b1_i0"), s.compact(), s.fuse_loops("b0_i0", "b2_i0")),
    ),
    "tensorize": ("matmul", lambda s: s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0", 8)),
    "call_library": ("matmul", lambda s: s.call_library("b0", "b0_i0", "b0_i1", "b0_r0", "acme", "sgemm")),
    "call_library for a tile": (
        "matmul",
        lambda s: (
            s.split("b0_i0", 3),
            s.split("b0_i1", 2),
            s.reorder("b0_i0_o", "b0_i1_o", "b0_i0_i", "b0_i1_i"),
            s.call_library("b0", "b0_i0_i", "b0_i1_i", "b0_r0", "acme", "sgemm"),
        ),
    ),
    "tensorize a tile": (
        "matmul",
        lambda s: (
            s.split("b0_i0", 4),
            s.write_into("b0", "b1"),
            s.tensorize("b0", "b0_i0_i", "b0_i1", (), "b0_r0", 8),
        ),
    ),
    "tensorize with an outer reduction": (
        "matmul",
        lambda s: (
            s.split("b0_r0", 2),
            s.reorder("b0_r0_o", "b0_i0", "b0_i1", "b0_r0_i"),
            s.decompose_reduction("b0", "b0_r0_o"),
            s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0_i", 8),
        ),
    ),
    "tensorize columns that share bytes": (
        "halves",
        lambda s: s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0", 4, True, halves=True),
    ),
    "tensorize a tile of columns that share bytes": (
        "halves",
        lambda s: (
            s.tile("b0_i0", "b0_i1", 3, 8),
            s.tensorize("b0", "b0_i0_i", "b0_i1_i", (), "b0_r0", 4, True, halves=True),
        ),
    ),
    "split_runs": ("grouped", lambda s: s.split_runs("b0", "b0_i0")),
    "split_runs of a tile": (
        "grouped",
        lambda s: (s.tile("b0_i0", "b0_i1", 4, 3), s.split_runs("b0", s.loops("b0")[2])),
    ),
    "split_runs, then a tile for each": (
        "grouped",
        lambda s: (
            s.split("b0_i0", 4),
            s.tensorize("b0", s.split_runs("b0", s.loops("b0")[1]), "b0_i1", (), "b0_r0", 8),
        ),
    ),
    "tensorize_quantized": (
        "quantized",
        lambda s: s.tensorize_quantized("b1", "b1_i0", "b1_i1", 2, 4, BYTES, 4),
    ),
    "tensorize_quantized a tile": (
        "quantized",
        lambda s: (
            s.split("b2_i0", 4),
            s.split("b2_i1", 8),
            s.reorder("b2_i0_o", "b2_i1_o", "b2_i0_i", "b2_i1_i"),
            s.compute_at("b1", "b2_i1_o"),
            s.write_into("b1", "b2"),
            s.tensorize_quantized("b1", *s.loops("b1")[2:4], 2, 4, BYTES, 4, True),
        ),
    ),
    "skip_masked": ("attention", lambda s: s.skip_masked("b3", rows_of_attention(s), 2)),
    "skip_masked to the column": ("attention", lambda s: s.skip_masked("b3", rows_of_attention(s), 1)),
    "online_softmax": ("attention", lambda s: s.online_softmax("b3", 4)),
    "online_softmax a tile": ("attention", lambda s: (rows_of_attention(s), s.online_softmax("b3", 3))),
    "online_softmax visible columns": (
        "attention",
        lambda s: (s.skip_masked("b3", rows_of_attention(s), 2), s.online_softmax("b3", 2)),
    ),
    "relax_accuracy": ("attention", lambda s: s.relax_accuracy("b3")),
    "unroll and jam": (
        "matmul",
        lambda s: (
            s.split("b0_i1", 4),
            s.reorder("b0_i0", "b0_i1_o", "b0_i1_i", "b0_r0"),
            s.unroll("b0_i1_i"),
        ),
    ),
    "merge parts": (
        "matmul",
        lambda s: (
            s.split("b0_i1", 4),
            s.split("b1_i1", 4),
            s.reorder("b0_i1_o", "b0_i0"),
            s.reorder("b1_i1_o", "b1_i0"),
            s.fuse_loops("b0_i1_o", "b1_i1_o"),
        ),
    ),
    "tensorize two reductions": (
        "matmul",
        lambda s: (s.split("b0_r0", 2), s.tensorize("b0", "b0_i0", "b0_i1", ("b0_r0_o",), "b0_r0_i", 8)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_meaning_stays(case: str) -> None:
    name, schedule_it = CASES[case]
    s = Schedule(KERNELS[name][0]())
    naive = print_op(s.kernel)
    schedule_it(s)
    assert print_op(s.kernel) != naive
    check(s.kernel, name)
    check_trace(s, name)
    finalize(s)
    assert not any(isinstance(op, loop.Block) for op in s.kernel.walk())
    check(s.kernel, name)
    assert first_difference(parse_op(print_op(s.kernel)), s.kernel) is None


OF_DEVICES = {
    "pipeline": "schedule/test_pipelining.py",
    "sort_rows": "targets/gpu/test_rule_of_sorting.py",
    "tensorize_atom": "targets/gpu/test_rule_of_atoms.py",
}
"""Primitives that refuse what no device is described for, and the tests of them."""


def test_every_primitive_has_a_case() -> None:
    for primitive in PRIMITIVES:
        if primitive in OF_DEVICES:
            assert (Path(__file__).parents[1] / OF_DEVICES[primitive]).exists()
            continue
        assert any(case.split()[0] == primitive for case in CASES), f"no case for '{primitive}'"


def test_rows_of_local_buffers_begin_on_cache_lines() -> None:
    """Rows of a local buffer are padded so that their distance is no multiple of 16 cache lines; a buffer of
    short rows is not padded.
    """

    def body(t: TensorBuilder, a: Any, b: Any) -> list[Any]:
        product = t.reduce("sum", (6, 500), (5,), lambda i, j, r: a[i, r] * b[r, j])
        return [t.compute((6, 500), lambda i, j: product[i, j] + 1.0)]

    def shape_of_local(tile: int) -> tuple[Any, ...]:
        s = Schedule(kernel_from([(6, 5), (5, 500)], body))
        at, _ = s.split("b1_i0", 3)
        columns, inner = s.split("b1_i1", tile)
        s.reorder(at, columns, "b1_i0_i", inner)
        s.compute_at("b0", columns)
        s.compact()
        (alloc,) = (op for op in s.kernel.walk() if isinstance(op, loop.Alloc))
        return alloc.buffer.shape  # type: ignore[no-any-return]

    assert shape_of_local(500) == (3, 512 + 16)
    assert shape_of_local(250) == (3, 256 + 16)
    assert shape_of_local(20) == (3, 32)
    assert shape_of_local(16) == (3, 16)
    assert shape_of_local(8) == (3, 8)


@pytest.mark.parametrize("name", KERNELS)
def test_naive_and_finalized_kernels_agree_with_numpy(name: str) -> None:
    kernel = KERNELS[name][0]()
    check(kernel, name)
    check(finalize(Schedule(kernel)), name)


# -- Random schedules ----------------------------------------------------------------------------------------


def random_arguments(r: random.Random, primitive: str, s: Schedule) -> tuple[Any, ...]:
    loops = [f.iv.name for f in walk_loops(s.kernel)] or ["none"]
    blocks = [b.sym_name for b in s.kernel.walk() if isinstance(b, loop.Block)] or ["none"]
    block = r.choice(blocks)
    nested = [
        (f.iv.name, f.body.first.iv.name) for f in walk_loops(s.kernel) if isinstance(f.body.first, loop.For)
    ]
    pair = r.choice(nested) if nested and r.random() < 0.8 else (r.choice(loops), r.choice(loops))
    around = s.loops(block) if block != "none" else []
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "split": lambda: (r.choice(loops), r.choice([1, 2, 3, 4, 16])),
        "fuse": lambda: pair,
        "add_unit_loop": lambda: (block,),
        "reorder": lambda: tuple(r.sample(around, min(len(around), 2))) or ("none",),
        "fuse_loops": lambda: (r.choice(loops), r.choice(loops)),
        "tile": lambda: (*pair, r.choice([2, 3]), r.choice([2, 4])),
        "parallel": lambda: (r.choice(loops),),
        "grain": lambda: (r.choice([1, 8, "n", "n - 3"]),),
        "vectorize": lambda: (r.choice(loops),),
        "unroll": lambda: (r.choice(loops), r.choice([0, 2])),
        "bind": lambda: (r.choice(loops), r.choice(["block.x", "thread.x"])),
        "fission": lambda: (r.choice(loops),),
        "compute_at": lambda: (block, r.choice(loops)),
        "compute_inline": lambda: (block,),
        "decompose_reduction": lambda: (block, r.choice(around or loops)),
        "rfactor": lambda: (r.choice(loops),),
        "all_reduce": lambda: (r.choice(blocks),),
        "stage_factors": lambda: (block, r.choice(around or loops)),
        "stage_read": lambda: (block, r.choice([0, 0, 1]), r.choice(around or loops)),
        "accumulate_apart": lambda: (block, r.choice(around or loops)),
        "share_reduction": lambda: (block, r.choice(around or loops)),
        "pipeline": lambda: (r.choice(loops), r.choice([1, 2])),
        "sort_rows": lambda: (),
        "tensorize_atom": lambda: (
            block,
            r.choice(["none", "m16n8k16_f32_bf16"]),
            r.choice(loops),
            *(around[-3:] if len(around) > 2 else (r.choice(loops),) * 3),
            (r.choice(loops),),
        ),
        "cache_read": lambda: (block, r.choice([0, 0, 1])),
        "cache_write": lambda: (block,),
        "write_into": lambda: (block, r.choice(blocks)),
        "compact": lambda: (),
        "skip_masked": lambda: (block, r.choice(loops), r.choice([1, 3])),
        "online_softmax": lambda: (block, r.choice([1, 2, 5])),
        "relax_accuracy": lambda: (block,),
        "split_runs": lambda: (block, r.choice(around or loops)),
        "tensorize_quantized": lambda: (block, *(around[:2] if r.random() < 0.7 else pair), 2, 4, BYTES, 4),
        "tensorize": lambda: (
            block,
            *(around[-3:-1] if len(around) > 2 else pair),
            (),
            around[-1] if around else "none",
            4,
        ),
        "call_library": lambda: (
            block,
            *(around[-3:-1] if len(around) > 2 else pair),
            around[-1] if around else "none",
            "acme",
            "sgemm",
        ),
    }
    return arguments[primitive]()


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules(seed: int) -> None:
    r = random.Random(seed)
    check_random_schedule(r, r.choice(list(KERNELS)))


def check_random_schedule(r: random.Random, name: str) -> None:
    """Any sequence of primitives keeps what the kernel computes, and a refused primitive changes nothing."""
    s = Schedule(KERNELS[name][0]())
    for _ in range(r.randrange(2, 12)):
        primitive = r.choice(list(PRIMITIVES))
        arguments = random_arguments(r, primitive, s)
        before, steps = print_op(s.kernel), len(s.trace)
        try:
            getattr(s, primitive)(*arguments)
        except ScheduleError as error:
            assert str(error)
            assert print_op(s.kernel) == before, f"{primitive}{arguments} raised and yet changed the kernel"
            assert len(s.trace) == steps
    check(s.kernel, name, (1, 5))
    check_trace(s, name)
    try:
        finalize(s)
    except ScheduleError as error:
        assert re.match("(parallel|bind): .* stands beside it|vectorize: .* cannot run in lanes", str(error))
        for f in walk_loops(s.kernel):
            if f.kind == "parallel" or "." in f.kind:
                f.kind = "serial"
        if not str(error).startswith("vectorize"):
            finished(s)
    check(s.kernel, name, (1, 5))


# -- Wrong arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        ("matmul", lambda s: s.split("b0_i9", 4), "no loop 'b0_i9' in kernel 'k'; loops: b0_i0, b0_i1"),
        (
            "matmul",
            lambda s: s.split("b0_i0", 0),
            "split: .* factor of loop 'b0_i0' with n iterations must be",
        ),
        ("matmul", lambda s: s.split("b0_i0", "4"), "split: factor must be int, got '4'"),
        ("matmul", lambda s: s.split("b0_i0", True), "split: factor must be int, got True"),
        ("matmul", lambda s: s.split("b0_i0"), "split: missing a required argument: 'factor'"),
        ("matmul", lambda s: s.split("b0_i0", 2, False, 3), "split: too many positional arguments"),
        ("matmul", lambda s: s.split(name="b0_i0", by=3), "split: missing a required argument: 'factor'"),
        (
            "matmul",
            lambda s: (s.parallel("b0_i0"), s.split("b0_i0", 2)),
            "split: loop 'b0_i0' is already 'parallel'",
        ),
        (
            "matmul",
            lambda s: s.fuse("b0_i0", "b0_r0"),
            "fuse: loop 'b0_r0' is not the only statement directly inside 'b0_i0'",
        ),
        (
            "matmul",
            lambda s: s.fuse(*s.split("b0_i0", 8)),
            "fuse: the extent of 'b0_i0_i' depends on 'b0_i0_o'",
        ),
        ("matmul", lambda s: s.reorder("b0_i0", "b0_i0"), "reorder: a loop is named twice"),
        (
            "matmul",
            lambda s: s.reorder("b0_i0", "b1_i0"),
            "reorder: loops b1_i0 are not perfectly nested under 'b0_i0'",
        ),
        (
            "matmul",
            lambda s: s.reorder(*s.split("b0_i0", 8)[::-1]),
            "reorder: the extent of 'b0_i0_i' depends on 'b0_i0_o', which must stay outside",
        ),
        ("matmul", lambda s: s.reorder(1, 2), r"reorder: names must be tuple\[str, ...\], got \(1, 2\)"),
        (
            "matmul",
            lambda s: s.tile("b0_i0", "b0_r0", 2, 2),
            "tile: loop 'b0_r0' is not the only statement directly inside 'b0_i0'",
        ),
        ("matmul", lambda s: s.tile("b0_i0", "b0_i1", 2, 0), "tile: .* column_factor of loop 'b0_i1' with 8"),
        (
            "matmul",
            lambda s: s.fuse_loops("b0_i0", "b1_i1"),
            "fuse_loops: 'b0_i0' .* are not neighbours of equal extent",
        ),
        ("matmul", lambda s: s.fuse_loops("b1_i0", "b0_i0"), "fuse_loops: 'b0_i0' does not follow 'b1_i0'"),
        (
            "stencil",
            lambda s: s.fuse_loops("b0_i0", "b1_i0"),
            r"fuse_loops: in the nest \(b0_i0\), iterations of 'b0_i0' and 'b1_i0' depend on each other",
        ),
        ("matmul", lambda s: s.grain("n - 3"), "grain: n - 3 iterations may be less than 1"),
        ("matmul", lambda s: s.grain("m"), r"grain: column 1: unknown symbol 'm' in 'm' \(known: n\)"),
        ("matmul", lambda s: s.parallel("b0_i1"), "parallel: loop 'b0_i1' is not outermost"),
        (
            "scalar_sum",
            lambda s: s.parallel("b0_r0"),
            r"parallel: in the nest \(b0_r0\), iterations of 'b0_r0' depend on each other",
        ),
        (
            "matmul",
            lambda s: (s.vectorize("b0_i1"), s.vectorize("b0_i0")),
            "vectorize: a loop inside 'b0_i0' is vectorized already",
        ),
        (
            "matmul",
            lambda s: s.vectorize("b0_i1", -4),
            "vectorize: lanes must be 0 or .* got -4",
        ),
        (
            "matmul",
            lambda s: s.vectorize("b0_i1", 6),
            "vectorize: lanes must be 0 or .* got 6",
        ),
        (
            "matmul",
            lambda s: s.unroll("b0_i0"),
            r"unroll: the extent of 'b0_i0' is symbolic \(n\); give a factor",
        ),
        ("matmul", lambda s: s.unroll("b0_i0", -1), "unroll: factor must not be negative, got -1"),
        ("matmul", lambda s: s.bind("b0_i0", "warp"), "bind: unknown thread axis 'warp'"),
        (
            "matmul",
            lambda s: s.bind("b0_r0", "thread.x"),
            r"bind: in the nest \(b0_i0, b0_i1, b0_r0\), iterations of 'b0_r0' depend",
        ),
        ("matmul", lambda s: s.compute_at("b9", "b0_i0"), "no block 'b9' in kernel 'k'; blocks: b0, b1"),
        (
            "matmul",
            lambda s: s.compute_at("b0", "b0_i0"),
            "compute_at: block 'b0' is already inside loop 'b0_i0'",
        ),
        (
            "matmul",
            lambda s: s.compute_at("b1", "b0_i0"),
            "compute_at: block 'b1' writes an output of the kernel",
        ),
        (
            "softmax",
            lambda s: s.compute_at("b1", "b2_i0"),
            "compute_at: block 'b1' is also read outside loop 'b2_i0'",
        ),
        (
            "matmul",
            lambda s: s.compute_inline("b0"),
            "compute_inline: block 'b0' is not one elementwise store",
        ),
        (
            "matmul",
            lambda s: s.decompose_reduction("b1", "b1_i0"),
            "decompose_reduction: block 'b1' is not a reduction",
        ),
        (
            "matmul",
            lambda s: s.decompose_reduction("b0", "b1_i0"),
            "decompose_reduction: loop 'b1_i0' is not around block 'b0'",
        ),
        (
            "transposed",
            lambda s: s.decompose_reduction("b1", "b1_r1"),
            "decompose_reduction: loop 'b1_r0' outside 'b1_r1' is part of the reduction",
        ),
        ("matmul", lambda s: s.rfactor("b0_i0"), "rfactor: block 'b0' does not reduce over loop 'b0_i0'"),
        (
            "softmax",
            lambda s: s.rfactor(s.split("b2_r0", 4)[1]),
            "rfactor: the extent of 'b2_r0_i' depends on another loop",
        ),
        (
            "matmul",
            lambda s: (s.decompose_reduction("b0", "b0_r0"), s.rfactor("b0_r0")),
            "rfactor: block 'b0' has its initial values already",
        ),
        (
            "matmul",
            lambda s: s.cache_read("b0", 2),
            "cache_read: block 'b0' reads 2 buffers; the argument 2 is out of range",
        ),
        (
            "matmul",
            lambda s: s.cache_read("b0", 0, (0, 0)),
            r"cache_read: order \(0, 0\) is not a permutation of 2 dimensions",
        ),
        ("matmul", lambda s: s.cache_read("b0", 0, "ab"), "cache_read: order must be tuple"),
        (
            "matmul",
            lambda s: (s.compute_at("b0", "b1_i0"), s.cache_read("b1", 0)),
            "cache_read: buffer 0 of block 'b1' is written in the same loop nest",
        ),
        (
            "matmul",
            lambda s: (s.compute_at("b0", "b1_i0"), s.cache_write("b0")),
            "cache_write: the result of block 'b0' is read in the same loop nest",
        ),
        (
            "matmul",
            lambda s: (s.decompose_reduction("b0", "b0_r0"), s.cache_write("b0")),
            "cache_write: the result of block 'b0' is also written by another statement",
        ),
        (
            "decaying",
            lambda s: s.vectorize("step"),
            "vectorize: .* iterations of 'step' depend on each other",
        ),
        (
            "matmul",
            lambda s: s.fission("b0_r0"),
            r"fission: in the nest \(b0_i0, b0_i1, b0_r0\), iterations of 'b0_r0' depend",
        ),
        (
            "matmul",
            lambda s: s.write_into("b1", "b0"),
            "write_into: block 'b1' does not write an intermediate buffer",
        ),
        ("softmax", lambda s: s.write_into("b0", "b1"), "write_into: .* differ"),
        (
            "stencil",
            lambda s: s.write_into("b0", "b1"),
            "write_into: block 'b1' does not read 'b0' exactly where it stores",
        ),
        (
            "matmul",
            lambda s: s.split_runs("b0", "b0_i0"),
            "split_runs: block 'b0' does not have exactly one index that it reads without a guard",
        ),
        (
            "grouped",
            lambda s: s.split_runs("b0", "b1_i0"),
            "split_runs: 'b1_i0' is not a serial loop around block 'b0'",
        ),
        (
            "grouped",
            lambda s: s.split_runs("b0", "b0_i1"),
            "split_runs: 'b0_i1' does not move the read in steps of one element",
        ),
        (
            "grouped",
            lambda s: (s.reorder("b0_r0", "b0_i0"), s.split_runs("b0", "b0_i0")),
            "split_runs: loop 'b0_r0' outside 'b0_i0' is part of the reduction of block 'b0'",
        ),
        (
            "grouped",
            lambda s: (
                s.tile("b0_i0", "b0_i1", 4, 3),
                s.split_runs("b0", "b0_i0_i"),
                s.decompose_reduction("b0", "b0_i0_o"),
            ),
            "decompose_reduction: data decide how many iterations of 'b0_i0_o' run where",
        ),
        (
            "matmul",
            lambda s: s.tensorize("b1", "b1_i0", "b1_i1", (), "b1_i1", 8),
            "tensorize: block 'b1' is not a sum",
        ),
        (
            "matmul",
            lambda s: s.tensorize("b0", "b0_i1", "b0_i0", (), "b0_r0", 8),
            "tensorize: columns 'b0_i0' are not contiguous",
        ),
        (
            "matmul",
            lambda s: s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0", 8, True, halves=True),
            "tensorize: block 'b0' is not a sum of products of a read and half a byte",
        ),
        (
            "halves",
            lambda s: s.tensorize("b0", "b0_i1", "b0_i0", (), "b0_r0", 4, True, halves=True),
            "tensorize: neighbouring columns 'b0_i0' of the right factor do not share bytes",
        ),
        (
            "matmul",
            lambda s: s.call_library("b0", "b0_i1", "b0_i0", "b0_r0", "acme", "sgemm"),
            "call_library: the left factor is not a row-major matrix",
        ),
        (
            "matmul",
            lambda s: s.tensorize("b0", "b0_i0", "b1_i1", (), "b0_r0", 8),
            "are not the innermost loops around 'b0'",
        ),
        (
            "residual",
            lambda s: (
                s.fuse("b0_i0", "b0_i1"),
                s.call_library("b0", "b0_i0_b0_i1_f", "b0_r0", "b0_r0", "acme", "sgemm"),
            ),
            "call_library: .* are not the innermost loops around 'b0'",
        ),
        (
            "matmul",
            lambda s: s.tensorize("b0", "b0_i0", "b0_i1", "b0_r0", "b0_r0", 8),
            r"tensorize: reductions must be tuple\[str, ...\]",
        ),
        (
            "matmul",
            lambda s: (
                s.split("b0_r0", 2),
                s.reorder("b0_r0_o", "b0_i0", "b0_i1", "b0_r0_i"),
                s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0_i", 8),
            ),
            "tensorize: block 'b0' also reduces over 'b0_r0_o' outside the tile",
        ),
    ],
)
def test_wrong_arguments_are_named(name: str, use: Callable[[Schedule], Any], message: str) -> None:
    s = Schedule(KERNELS[name][0]())
    with pytest.raises(ScheduleError, match=message):
        use(s)
    check(s.kernel, name, (5,))


def test_unknown_primitives() -> None:
    s = Schedule(KERNELS["matmul"][0]())
    with pytest.raises(AttributeError, match="has no attribute 'splitt'"):
        s.splitt("b0_i0", 2)
    with pytest.raises(ScheduleError, match="the trace uses an unknown primitive 'splitt'"):
        trace_from_json('[["splitt", ["b0_i0", 2], {}]]')


def test_a_trace_reads_as_a_program() -> None:
    s = Schedule(KERNELS["matmul"][0]())
    s.split("b0_i0", factor=4)
    s.parallel("b0_i0_o")
    assert s.show() == "split('b0_i0', factor=4)  -> ('b0_i0_o', 'b0_i0_i')\nparallel('b0_i0_o')"


def test_replaying_on_another_kernel_names_what_is_missing() -> None:
    s = Schedule(KERNELS["matmul"][0]())
    s.split("b0_i1", 4)
    with pytest.raises(ScheduleError, match="no loop 'b0_i1' in kernel 'k'.*; loops: b0_i0, b1_i0, b2_i0"):
        Schedule(KERNELS["stencil"][0]()).replay(s.trace)


# -- Threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        (
            "matmul",
            lambda s: s.parallel("b1_i0"),
            "parallel: loop 'b1_i0' is 'parallel', and the nest of loop 'b0_i0' stands beside it in",
        ),
        (
            "scalar_sum",
            lambda s: s.bind(s.add_unit_loop("b1"), "block.x"),
            "bind: loop 'b1_unit' is 'block.x', and the nest of loop 'b0_r0' stands beside it",
        ),
        (
            "scalar_sum",
            lambda s: s.parallel(s.add_unit_loop("b1")),
            "parallel: .* and the nest of loop 'b0_r0' stands beside it",
        ),
    ],
)
def test_threads_share_one_loop_around_everything(
    name: str, use: Callable[[Schedule], Any], message: str
) -> None:
    s = Schedule(KERNELS[name][0]())
    use(s)
    scheduled = print_op(s.kernel)
    with pytest.raises(ScheduleError, match=message):
        finalize(s)
    assert print_op(s.kernel) == scheduled


def test_loops_run_on_threads_that_the_target_has() -> None:
    info = TargetInfo(name="gpu", thread_axes=(ThreadAxis("block.x"), ThreadAxis("thread.x", 256)))
    s = Schedule(KERNELS["running"][0](), info)
    s.parallel("b0_i1")
    with pytest.raises(ScheduleError, match="'parallel'; the target gpu has block.x, thread.x"):
        finalize(s)


# -- Lanes ---------------------------------------------------------------------------------------------------


def split_columns(s: Schedule) -> str:
    return s.split("b0_i1", 3)[0]


def lanes_around_runs(s: Schedule) -> str:
    _, columns, rows, _ = s.tile("b0_i0", "b0_i1", 4, 3)
    s.split_runs("b0", rows)
    return columns


def lanes_around_a_tile(s: Schedule) -> str:
    outer, inner = s.split("b0_i0", 4)
    s.tensorize("b0", inner, "b0_i1", (), "b0_r0", 8)
    return outer


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("matmul", split_columns, r"the extent of loop 'b0_i1_i' .* differs between lanes"),
        ("grouped", lanes_around_runs, "'loop.runs' inside does not run in lanes"),
        ("matmul", lanes_around_a_tile, "'simd.brgemm' inside does not run in lanes"),
    ],
)
def test_a_loop_that_cannot_run_in_lanes_is_refused_at_the_end(
    name: str, make: Callable[[Schedule], str], reason: str
) -> None:
    s = Schedule(KERNELS[name][0]())
    f = make(s)
    before = print_op(s.kernel)
    assert not s.can_vectorize(f)
    assert print_op(s.kernel) == before
    s.vectorize(f)
    with pytest.raises(ScheduleError, match=f"vectorize: loop '{f}' .* cannot run in lanes: {reason}"):
        finalize(s)


def test_loops_that_can_run_in_lanes() -> None:
    s = Schedule(KERNELS["matmul"][0]())
    assert s.can_vectorize("b0_i1") and s.can_vectorize("b0_r0", 8) and not s.can_vectorize("b0_r0", 3)
    assert s.trace == []
    with pytest.raises(ScheduleError, match="no loop 'b9'"):
        s.can_vectorize("b9")


def test_a_target_without_vectors() -> None:
    s = Schedule(KERNELS["matmul"][0](), TargetInfo(name="gpu", vector_bits=0))
    assert not s.can_vectorize("b0_i1")
    s.vectorize("b0_i1")
    with pytest.raises(ScheduleError, match="'b0_i1' .* the target gpu has no vectors"):
        finalize(s)


# -- Outputs in the memory of inputs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        (
            "centered",
            lambda s: s.compute_at("b0", "b1_i1"),
            r"compute_at: .* the store to out0 .* in block 'b1' and the load of x0 .* in block 'b0' "
            r"\(out0 may be the memory of x0\) touch one element in the iterations \(b1_i0=0, b1_i1=0\) and "
            r"\(b1_i0=0, b1_i1=1, b0_r0_2=0\): element \[0, 0\]",
        ),
        ("flattened", lambda s: s.compute_at("b0", "b2_i0"), "compute_at: block 'b0' is also read outside"),
        (
            "flattened",
            lambda s: s.compute_inline("b0"),
            r"compute_inline: .* the load of x0 .* in block 'b2' \(out0 may be the memory of x0\) touch one",
        ),
        (
            "residual",
            lambda s: s.write_into("b0", "b1"),
            r"write_into: .* the accumulation into out0 .* and the load of x2 .* in block 'b1' \(out0",
        ),
    ],
)
def test_an_input_is_not_read_after_it_was_overwritten(
    name: str, use: Callable[[Schedule], Any], message: str
) -> None:
    s = Schedule(KERNELS[name][0]())
    with pytest.raises(ScheduleError, match=message):
        use(s)
    check(s.kernel, name)
    assert s.trace == []


def test_rows_are_overwritten_after_their_last_use() -> None:
    s = Schedule(KERNELS["centered"][0]())
    s.compute_at("b0", "b1_i0")
    s.parallel("b1_i0")
    s.vectorize("b1_i1")
    check(s.kernel, "centered")
    check(finalize(s), "centered")
    s = Schedule(KERNELS["residual"][0]())
    outer, _ = s.split("b1_i0", 4)
    s.compute_at("b0", outer)
    s.parallel(outer)
    check(finalize(s), "residual")


# -- Statements that touch many elements ---------------------------------------------------------------------


def parts_of_a_sum(s: Schedule) -> str:
    """Tiles that add to the same elements, in a loop over parts of the sum."""
    s.split("b0_r0", 2)
    s.reorder("b0_r0_o", "b0_i0", "b0_i1", "b0_r0_i")
    s.decompose_reduction("b0", "b0_r0_o")
    s.tensorize("b0", "b0_i0", "b0_i1", (), "b0_r0_i", 8)
    return "b0_r0_o"


def test_tiles_that_write_the_same_elements_stay_in_order() -> None:
    s = Schedule(KERNELS["matmul"][0]())
    f = parts_of_a_sum(s)
    message = (
        rf"in the nest \({f}\), iterations of '{f}' depend on each other: 'simd.brgemm' writing the buffer "
        r"of 'b0_init' from element 0 on in two iterations touch one element in the iterations \(b0_r0_o=0, "
        r"element_0=0, element_1=0\) and \(b0_r0_o=1, element_0=0, element_1=0\): element \[0, 0\], n = 3"
    )
    with pytest.raises(ScheduleError, match=f"parallel: {message}"):
        s.parallel(f)
    with pytest.raises(ScheduleError, match=f"fission: {message}"):
        s.fission(f)
    check(s.kernel, "matmul")


def test_tiles_beside_each_other_run_on_threads() -> None:
    """Also where they end with the buffer, and where a tile's rows are apart."""
    s = Schedule(KERNELS["matmul"][0]())
    s.split("b1_i0", 4)
    s.split("b1_i1", 3)
    s.reorder("b1_i0_o", "b1_i1_o", "b1_i0_i", "b1_i1_i")
    at = s.fuse("b1_i0_o", "b1_i1_o")
    s.compute_at("b0", at)
    s.write_into("b0", "b1")
    s.tensorize("b0", *s.loops("b0")[1:3], (), s.loops("b0")[3], 8)
    s.parallel(at)
    check(s.kernel, "matmul")
    check(finalize(s), "matmul")


def test_iterations_of_the_parallel_loops_of_finished_kernels_are_independent() -> None:
    """The check at the end of a schedule finds what a wrong rewrite, here planted, makes of a kernel."""
    s = Schedule(KERNELS["matmul"][0]())
    s.fuse_loops("b0_i0", "b1_i0")
    s.reorder("b0_r0", "b0_i1")
    s.parallel("b0_i0")
    (store,) = (op for op in s.kernel.walk() if isinstance(op, loop.Store) and op.buffer.hint == "out0")
    row, column = store.indices
    store.indices = (row // 2, column)
    with pytest.raises(
        ScheduleError,
        match=r"parallel loop 'b0_i0' of kernel 'k': .* the store to out0 at \[b0_i0 // 2, b1_i1\] in two "
        r"iterations touch one element in the iterations \(b0_i0=0, b1_i1=0\) and \(b0_i0=1, b1_i1=0\)",
    ):
        finalize(s)
