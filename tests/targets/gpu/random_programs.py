"""Random block programs whose threads exchange values in loops and under conditions.

Sizes are known when a program runs, so a loop may have no iteration. Values are integers, which all devices
compute alike.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tilewright.dialects import loop, scalar, simt
from tilewright.dialects.scalar import BINARY
from tilewright.ir.builder import Builder
from tilewright.ir.core import Value
from tilewright.ir.symbolic import Dim, Expr, symbol
from tilewright.ir.types import BufferType, i32, i64

from .programs import Array, nest, new_kernel

THREADS, VALUES, BLOCKS = 32, 3, 2
N, M = symbol("n", 0, None), symbol("m", 0, 4096)
Index = Expr


class _Random:
    """Builds one program, a statement after another."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        buffers = [BufferType(i32, (512,)), BufferType(i64, (6,)), BufferType(i32, (BLOCKS, THREADS, VALUES))]
        self.kernel, (self.x, self.ids, self.y) = new_kernel(buffers, 1, [N, M])
        self.count = 0
        body, self.block = nest(Builder(self.kernel.body), "block", BLOCKS, "block.x")
        self.part = body(loop.Alloc(buffer=BufferType(i32, (THREADS, VALUES), "register")))
        self.tile = body(loop.Alloc(buffer=BufferType(i32, (THREADS,), "shared")))
        start, t = self.threads(body, THREADS)
        zero = start(scalar.Constant(value=0, dtype=i32))
        start.insert(loop.Store(zero, self.tile, (), indices=(t,)))
        for k in range(VALUES):
            value = start(loop.Load(self.x, (), None, indices=(t * VALUES + k + self.block,)))
            start.insert(loop.Store(value, self.part, (), indices=(t, k)))
        self.statements(body, (), 2, 3)
        end, t = self.threads(body, THREADS)
        for k in range(VALUES):
            value = end(loop.Load(self.part, (), None, indices=(t, k)))
            end.insert(loop.Store(value, self.y, (), indices=(self.block, t, k)))

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def threads(self, b: Builder, count: int) -> tuple[Builder, Expr]:
        return nest(b, self.fresh("t"), count, "thread.x")

    def statements(self, b: Builder, loops: tuple[Index, ...], depth: int, most: int) -> None:
        for _ in range(self.random.randint(2 if not loops else 1, most)):
            kinds = [self.exchange, self.exchange, self.calculate, self.reduce, self.sort]
            if depth:
                kinds += [self.repeat, self.repeat, self.repeat, self.condition, self.runs]
            self.random.choice(kinds)(b, loops, depth)

    def extent(self, loops: tuple[Index, ...]) -> Dim:
        """A number of iterations, which is known to be 1 at least only in a few cases."""
        choices: list[Dim] = [N, M, N, M, N + 1, 2]
        choices += [i for i in loops] + [N - 1 - i for i in loops if i.upper == N - 1]
        return self.random.choice(choices)

    def number(self, loops: tuple[Index, ...]) -> Dim:
        return sum((i * self.random.randint(0, 3) for i in loops), self.random.randint(0, 5))

    def update(self, b: Builder, t: Expr, value: Value) -> None:
        """Combine a value with one of the thread's."""
        k = self.random.randrange(VALUES)
        old = b(loop.Load(self.part, (), None, indices=(t, k)))
        scaled = b(BINARY["mul"](old, b(scalar.Constant(value=self.random.choice((1, 3, -5)), dtype=i32))))
        name = self.random.choice(("add", "add", "sub", "max"))
        b.insert(loop.Store(b(BINARY[name](scaled, value)), self.part, (), indices=(t, k)))

    def exchange(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        if self.random.random() < 0.5:
            self.calculate(b, loops, depth)
        b.insert(simt.Barrier())
        write, t = self.threads(b, self.random.choice((THREADS, THREADS, 20)))
        own = write(loop.Load(self.part, (), None, indices=(t, self.random.randrange(VALUES))))
        write.insert(loop.Store(own, self.tile, (), indices=(t,)))
        b.insert(simt.Barrier())
        read, u = self.threads(b, self.random.choice((THREADS, THREADS, 12)))
        place = (u * self.random.choice((1, 3, 7)) + self.number(loops)) % THREADS
        self.update(read, u, read(loop.Load(self.tile, (), None, indices=(place,))))

    def calculate(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        inside, t = self.threads(b, self.random.choice((THREADS, THREADS, 17)))
        if self.random.random() < 0.4:
            condition = self.random.choice((15 - t, t % 3 - 1, N - 1))
            inside = Builder(inside.insert(loop.If(conditions=(condition,))).body)
        place: Dim = t + self.number(loops)
        if self.random.random() < 0.5:
            inside, k = nest(inside, self.fresh("k"), self.extent(loops))
            place = place + k * 5
        self.update(inside, t, inside(loop.Load(self.x, (), None, indices=(place % 512,))))

    def reduce(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        sums = b(loop.Alloc(buffer=BufferType(i32, (THREADS,), "register")))
        before, t = self.threads(b, THREADS)
        value = before(loop.Load(self.part, (), None, indices=(t, 1)))
        before.insert(loop.Store(value, sums, (), indices=(t,)))
        combiner = self.random.choice(("sum", "max"))
        b.insert(simt.AllReduce(sums, combiner=combiner, count=self.random.choice((4, THREADS))))
        after, u = self.threads(b, THREADS)
        self.update(after, u, after(loop.Load(sums, (), None, indices=(u,))))

    def sort(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        keys, places = (b(loop.Alloc(buffer=BufferType(i32, (16,), "shared"))) for _ in range(2))
        before, t = self.threads(b, 16)
        value = before(loop.Load(self.part, (), None, indices=(t, 0)))
        before.insert(loop.Store(value, keys, (), indices=(t,)))
        place = before(scalar.Cast(before(scalar.Index(expr=t)), dtype=i32))
        before.insert(loop.Store(place, places, (), indices=(t,)))
        b.insert(simt.Argsort(keys, places, largest=self.random.random() < 0.5))
        after, u = self.threads(b, THREADS)
        self.update(after, u, after(loop.Load(places, (), None, indices=(u % 16,))))
        b.insert(simt.Barrier())

    def repeat(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        inside, i = nest(b, self.fresh("i"), self.extent(loops))
        self.statements(inside, (*loops, i), depth - 1, 3)

    def condition(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        tested = self.random.choice((N - 2, M - 1, self.block - 1, *(i - 1 for i in loops)))
        inside = Builder(b.insert(loop.If(conditions=(tested,))).body)
        self.statements(inside, loops, depth - 1, 2)

    def runs(self, b: Builder, loops: tuple[Index, ...], depth: int) -> None:
        names = [self.fresh(x) for x in ("first", "length", "value")]
        first, length, value = (symbol(x, 0, top) for x, top in zip(names, (5, 6, 9), strict=True))
        most = self.random.choice((M % 4, 5))
        runs = b.insert(loop.Runs(self.ids, first=first, length=length, value=value, range=(1, most)))
        self.statements(Builder(runs.body), (*loops, first, value), depth - 1, 2)


def random_program(seed: int) -> tuple[loop.Kernel, list[Array]]:
    """Return a random kernel of the sizes ``n`` and ``m``, and its buffers."""
    rng = np.random.default_rng(seed)
    ids = np.array([7, 2, 2, 5, 5, 0])
    arrays = [rng.integers(-100, 100, 512, np.int32), ids, np.zeros((BLOCKS, THREADS, VALUES), np.int32)]
    return _Random(seed).kernel, arrays


__all__ = ["random_program"]
