"""The rule of elementwise computations: threads, neighbouring elements, tiles of transpositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.targets.gpu.simulated import Program, blocks, checked, count, spaces, threads

import tilewright as tw
from tilewright.dialects import loop, simt
from tilewright.ir.target_info import Gpu
from tilewright.schedule.kernel_schedule import pin

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def vectorized(kernel: loop.Kernel) -> list[Any]:
    return [op.extent for op in kernel.walk() if isinstance(op, loop.For) and op.kind == "vectorize"]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one element": (lambda x: tnp.exp(x), (drawn(),)),
    "odd": (lambda x, y: tnp.exp(x) + y, (drawn(7, 33), drawn(7, 33))),
    "broadcast": (lambda x, y: x * y, (drawn(5, 3, 7), drawn(3, 1))),
    "axes of one": (lambda x, y: x + y, (drawn(1, 9, 1), drawn(1, 9, 1))),
    "two results": (lambda x: (tnp.sin(x), tnp.sin(x) * x), (drawn(7, 33),)),
    "gather": (lambda x, i: x[i] * 2.0, (drawn(9, 70), np.array([1, 1, 4]))),
    "looked up columns": (lambda x, i: x[:, i], (drawn(9, 70), np.array([1, 1, 4]))),
    "padded": (lambda x: tnp.pad(x, ((1, 2), (3, 0))) + 1.0, (drawn(5, 9),)),
    "concatenation": (lambda x, y: tnp.concatenate([x, y * 2], 1), (drawn(70, 7), drawn(70, 3))),
    "reversed": (lambda x: tnp.flip(x, -1), (drawn(4, 64),)),
    "integers": (lambda x: x // 3 + x % 5, (DRAW.integers(-9, 9, (6, 11)),)),
    "narrow": (lambda x: x.astype("float16") * 2, (drawn(4, 64),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function, inputs = PROGRAMS[name]
    checked(function, *inputs, rtol=1e-3 if name == "narrow" else 1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (17, 4), (3, 130)])
def test_unknown_sizes(shape: tuple[int, int]) -> None:
    program = Program(
        lambda x, y: tnp.tanh(x) + y, (drawn(3, 130), drawn(130)), dims={"x": {0: "n", 1: "m"}, "y": {0: "m"}}
    )
    program.check(drawn(*shape), drawn(shape[1]))
    (kernel,) = program.kernels
    assert threads(kernel) == 256
    assert count(kernel, loop.If) == 1  # beyond the last element


def test_no_elements() -> None:
    program = Program(lambda x: tnp.exp(x) + 1.0, (drawn(3, 5),), dims={"x": {0: "0<=n<=9"}})
    program.check(drawn(0, 5))
    program.check(drawn(9, 5))
    checked(lambda x: tnp.exp(x), drawn(0, 5))


@pytest.mark.parametrize(("columns", "elements"), [(512, 4), (510, 2), (511, 1)])
def test_neighbouring_elements(columns: int, elements: int) -> None:
    """As many as divide the columns; a thread's first element is then aligned."""
    program = checked(lambda x, y: x * y, drawn(4, columns), drawn(columns))
    (kernel,) = program.kernels
    assert vectorized(kernel) == ([elements] if elements > 1 else [])


def test_small_kernels_use_many_multiprocessors() -> None:
    program = Program(lambda x: tnp.exp(x), (drawn(64, 64),), gpu=Gpu(max_threads=1024, multiprocessors=128))
    (kernel,) = program.kernels
    assert (vectorized(kernel), threads(kernel), blocks(kernel)) == ([], 32, 128)


def test_knobs() -> None:
    x = drawn(8, 512)
    program = Program(lambda x: tnp.exp(x), (x,), schedules=[pin("exp", threads=64, elements=2)])
    program.check(x)
    (kernel,) = program.kernels
    assert (vectorized(kernel), threads(kernel)) == ([2], 64)


@pytest.mark.parametrize("shape", [(32, 32), (70, 33), (17, 100)])
def test_transpositions_go_through_shared_memory(shape: tuple[int, int]) -> None:
    program = checked(lambda x: tnp.exp(x.T), drawn(*shape))
    (kernel,) = program.kernels
    assert spaces(kernel) == ["shared"]
    assert count(kernel, simt.Barrier) == 1
    (tile,) = (op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc))
    assert tile.shape == (32, 33)  # columns lie in different banks


def test_transpositions_of_inner_axes_and_unknown_sizes() -> None:
    program = Program(lambda x: x.transpose(0, 2, 1) * 2.0, (drawn(2, 40, 37),), dims={"x": {1: "n"}})
    for n in (40, 1, 33):
        program.check(drawn(2, n, 37))
    assert spaces(program.kernels[0]) == ["shared"]


def test_short_axes_are_not_transposed_in_tiles() -> None:
    program = checked(lambda x: tnp.exp(x.T), drawn(200, 3))
    assert spaces(program.kernels[0]) == []


def test_transpositions_whose_tile_needs_most_of_the_argument_read_it_directly() -> None:
    """The argument is contiguous along an axis of the result that is fused from an inner and an outer axis of
    the argument.
    """
    program = Program(
        lambda x: x.transpose(2, 3, 0, 1) * 2.0, (drawn(8, 2, 2, 40),), dims={"x": {3: "n<=200"}}
    )
    for n in (40, 1, 33):
        program.check(drawn(8, 2, 2, n))
    (kernel,) = program.kernels
    assert spaces(kernel) == []


def test_a_result_in_place_and_its_mirror_image_share_a_row() -> None:
    """Both results may be in the memory of the argument, but not at once: the second reads the first."""
    program = Program(
        lambda x: (y := tw.nn.functional.log_softmax(x, -1), y[:, ::-1]),
        (drawn(3, 70),),
        dims={"x": {0: "n"}},
    )
    for n in (3, 1, 9):
        program.check(drawn(n, 70))
    assert any(op.kind == "thread.x" for k in program.kernels for op in k.walk() if isinstance(op, loop.For))
