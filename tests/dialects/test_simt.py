"""The simt dialect: statements that all threads of a block run together, as the interpreter runs them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dialects import loop
from tilewright.dialects.simt import AllReduce, Barrier, Exchange
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, IRError, Module
from tilewright.ir.interpreter import Frame
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType, f32


def reduction(threads: int, count: int, combiner: str) -> loop.Kernel:
    """A block program: each thread loads an element, groups of `count` combine theirs, each stores."""
    kernel = loop.Kernel(sym_name="reduction", num_outputs=1)
    x = kernel.body.add_arg(BufferType(f32, (threads,)))
    y = kernel.body.add_arg(BufferType(f32, (threads,)))
    body = Builder(kernel.body)
    part = body(loop.Alloc(buffer=BufferType(f32, (threads,), "register")))
    for number, (source, target) in enumerate(((x, part), (part, y))):
        t = symbol(f"t{number}", 0, threads - 1)
        nest = body.insert(loop.For(iv=t, kind=loop.LoopKind.THREAD_X))
        inside = Builder(nest.body)
        value = inside(loop.Load(source, (), None, indices=(t,)))
        inside.insert(loop.Store(value, target, (), indices=(t,)))
        if target is part:
            body.insert(AllReduce(part, combiner=combiner, count=count))
            body.insert(Barrier())
    return kernel


@pytest.mark.parametrize("count", [1, 4, 32, 64])
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_all_reduce_combines_groups_of_threads(count: int, combiner: str) -> None:
    kernel = reduction(64, count, combiner)
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    y = np.zeros(64, np.float32)
    Frame(Module(), {}, {}).run_block(kernel.body, [x, y])
    groups = x.reshape(-1, count)
    wanted = {"sum": groups.sum(1), "max": groups.max(1), "min": groups.min(1)}[combiner]
    np.testing.assert_allclose(y.reshape(-1, count), np.repeat(wanted[:, None], count, 1), rtol=1e-5)
    # All threads of a group hold the same bits.
    assert (y.reshape(-1, count) == y.reshape(-1, count)[:, :1]).all()


def test_block_programs_print_and_parse() -> None:
    module = Module()
    module.body.append(reduction(8, 4, "sum"))
    text = print_op(module)
    assert "simt.all_reduce" in text and "simt.barrier" in text
    assert print_op(parse(text)) == text


@pytest.mark.parametrize(("distance", "pair"), [(1, 1), (1, 2), (4, 1), (8, 4)])
def test_exchanges_swap_a_bit_of_threads_and_one_of_elements(distance: int, pair: int) -> None:
    threads, count = 32, 8
    sources = (0, 2, 4, 6, 1, 3, 5, 7)
    body = Builder(Block())
    x, y = (
        body(loop.Alloc(buffer=BufferType(f32, shape, "register")))
        for shape in ((threads, 2, 4), (threads, 8))
    )
    statement = Exchange(x, y, distance=distance, pair=pair, sources=sources)
    statement.verify()
    source = np.arange(threads * count, dtype=np.float32).reshape(threads, 2, 4)
    found = np.zeros((threads, count), np.float32)
    statement.interpret(Frame(Module(), {}, {}), source, found)
    for t in range(threads):
        for k in range(count):
            other = t - t // distance % 2 * distance + k // pair % 2 * distance
            number = k - k // pair % 2 * pair + t // distance % 2 * pair
            assert found[t, k] == source.reshape(threads, -1)[other, sources[number]]
    for wrong in ({"distance": 3}, {"distance": 32}, {"pair": 8}, {"sources": (0,) * 8}):
        given = {"distance": distance, "pair": pair, "sources": sources, **wrong}
        with pytest.raises(IRError):
            Exchange(x, y, **given).verify()


def test_groups_must_divide_the_threads() -> None:
    with pytest.raises(IRError, match="power of two"):
        _verified(reduction(12, 3, "sum"))
    with pytest.raises(IRError, match="whole groups"):
        _verified(reduction(12, 8, "sum"))


def _verified(kernel: loop.Kernel) -> None:
    for op in kernel.walk():
        op.verify()
