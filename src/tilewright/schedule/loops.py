"""Primitives on loops: split, fuse, reorder, tile, fission; parallel, vectorize, unroll, bind."""

from __future__ import annotations

from ..analysis.loop_nest import enclosing_loops, substitute_tree, substitute_tree_at
from ..dialects import loop
from ..ir import notes, symbolic_text
from ..ir.core import Block, Operation
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, ceildiv, free_symbols, prove_divisible, prove_eq, prove_le, smin, symbol
from .core import ScheduleCore, ScheduleError, only_child, primitive
from .legality import check_independent, check_joined, check_order


class LoopPrimitives(ScheduleCore):
    """Primitives on loops: splitting, fusing and reordering them, and how their iterations run."""

    @primitive
    def split(self, name: str, factor: int, guarded: bool = False) -> tuple[str, str]:
        """Split the loop `name` into an outer and an inner one of `factor` iterations (fewer in the last, if
        it does not divide the extent). With `guarded` the inner loop always has `factor` iterations, and a
        condition leaves out those beyond the end; it can then be bound to threads, and moved outside.

            for i in n:  body(i)
        becomes
            for i_o in ceil(n / factor):
                for i_i in min(factor, n - factor * i_o):  body(factor * i_o + i_i)
        or, guarded,
            for i_o in ceil(n / factor):
                for i_i in factor:
                    if factor * i_o + i_i < n:  body(factor * i_o + i_i)

        Returns the names of the outer and the inner loop.

        Raises:
            ScheduleError: There is no such loop, it is not serial, or `factor` is less than 1 or more than
                `LARGEST_FACTOR`.
        """
        f = self.loop(name)
        if f.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(f"split: loop {name!r} is already '{f.kind}'")
        n = f.extent
        _check_factor("split", f, "factor", factor)
        outer = symbol(self.fresh(f"{name}_o"), 0, ceildiv(n, factor) - 1)
        divides = prove_divisible(n, factor)
        inner_extent: Dim = factor if divides or guarded else smin(factor, n - outer * factor)
        inner = symbol(self.fresh(f"{name}_i"), 0, inner_extent - 1)
        inner_loop = _wrap(inner, f)
        if guarded and not divides:
            # Around the statements, so that the loops stay perfectly nested.
            for block in [op for op in inner_loop.walk() if isinstance(op, loop.Block)]:
                guard = loop.If(conditions=(n - 1 - (outer * factor + inner),), location=f.location)
                assert block.parent is not None
                block.parent.insert_before(block, guard)
                guard.body.append(block)
        outer_loop = loop.For(iv=outer, location=f.location)
        outer_loop.body.append(inner_loop)
        old = f.iv
        assert f.parent is not None
        f.parent.insert_before(f, outer_loop)
        f.erase()
        substitute_tree(inner_loop, {old: outer * factor + inner})
        return outer.name, inner.name

    def _nested_pair(self, primitive: str, outer: str, inner: str) -> tuple[loop.For, loop.For]:
        """Two serial loops, one of which contains the other and nothing else.

        Raises:
            ScheduleError: There is no such loop, the loops are not perfectly nested or not serial, or the
                inner extent depends on the outer loop. The message begins with the name of the `primitive`.
        """
        a, b = self.loop(outer), self.loop(inner)
        if only_child(a) is not b:
            raise ScheduleError(
                f"{primitive}: loop {inner!r} is not the only statement directly inside {outer!r}"
            )
        if isinstance(b.iv.upper, Expr) and a.iv in free_symbols(b.iv.upper):
            raise ScheduleError(f"{primitive}: the extent of {inner!r} depends on {outer!r}")
        if a.kind != loop.LoopKind.SERIAL or b.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(
                f"{primitive}: {outer!r} and {inner!r} must be serial, they are '{a.kind}' and '{b.kind}'"
            )
        return a, b

    @primitive
    def fuse(self, outer: str, inner: str) -> str:
        """Make one loop of two perfectly nested ones; return its name.

            for i in n:  for j in m:  body(i, j)
        becomes
            for f in n*m:  body(f // m, f % m)

        Raises:
            ScheduleError: There is no such loop, the loops are not perfectly nested or not serial, the inner
                extent depends on the outer loop, or a block reduces over one of them only.
        """
        a, b = self._nested_pair("fuse", outer, inner)
        for op in b.walk():
            if isinstance(op, loop.Block):
                # A loop of both kinds has a partial result for each iteration (rfactor).
                moving = [_used(f, op.bindings[: len(op.axes)]) for f in (a, b)]
                reducing = [
                    not m and _used(f, op.bindings[len(op.axes) :])
                    for f, m in zip((a, b), moving, strict=True)
                ]
                if (reducing[0] and moving[1]) or (reducing[1] and moving[0]):
                    raise ScheduleError(
                        f"fuse: of {outer!r} and {inner!r}, block {op.sym_name!r} reduces over one only"
                    )
        m = b.extent
        iv = symbol(
            self.fresh(f"{outer}_{inner}_f" if len(outer) + len(inner) < 40 else "fused"), 0, a.extent * m - 1
        )
        new = _wrap(iv, b)
        mapping = {a.iv: iv // m, b.iv: iv % m}
        assert a.parent is not None
        a.parent.insert_before(a, new)
        a.erase()
        substitute_tree(new, mapping)
        return iv.name

    @primitive
    def add_unit_loop(self, name: str) -> str:
        """Put a loop of one iteration directly around a block, for a tile that lacks a loop; return its name.

        Raises:
            ScheduleError: There is no such block.
        """
        block = self.block(name)
        around = enclosing_loops(block)
        if around and around[-1].kind == loop.LoopKind.VECTORIZE:
            raise ScheduleError(f"add_unit_loop: loop {around[-1].iv.name!r} around {name!r} is vectorized")
        iv = symbol(self.fresh(f"{name}_unit"), 0, 0)
        f = loop.For(iv=iv, location=block.location)
        assert block.parent is not None
        block.parent.insert_before(block, f)
        f.body.append(block)
        return iv.name

    @primitive
    def reorder(self, *names: str) -> None:
        """Put perfectly nested loops into the order of `names`, outermost first.

        Raises:
            ScheduleError: There is no such loop or it is named twice, the loops are not perfectly nested or
                not serial, or an extent depends on a loop that would move inside.
        """
        wanted = [self.loop(n) for n in names]
        if len(set(names)) != len(names):
            raise ScheduleError(f"reorder: a loop is named twice in {names}")
        top = min(wanted, key=lambda f: sum(1 for _ in _ancestors(f)))
        chain: list[loop.For] = []
        op: Operation | None = top
        left = set(wanted)
        while left:
            if not isinstance(op, loop.For):
                missing = ", ".join(f.iv.name for f in left)
                raise ScheduleError(
                    f"reorder: loops {missing} are not perfectly nested under {top.iv.name!r}"
                )
            chain.append(op)
            left.discard(op)
            op = only_child(op)
        order = iter(wanted)
        target = [next(order) if f in wanted else f for f in chain]
        seen: set[Expr] = set()
        own = {f.iv for f in chain}
        for f in target:
            depends = free_symbols(f.iv.upper) & own if isinstance(f.iv.upper, Expr) else frozenset()
            if not depends <= seen:
                raise ScheduleError(
                    f"reorder: the extent of {f.iv.name!r} depends on "
                    f"{next(iter(depends - seen)).name!r}, which must stay outside it"
                )
            seen.add(f.iv)
        if any(f.kind != loop.LoopKind.SERIAL for f in chain) and target != chain:
            bad = next(f for f in chain if f.kind != loop.LoopKind.SERIAL)
            raise ScheduleError(f"reorder: loop {bad.iv.name!r} is already '{bad.kind}'")
        check_order("reorder", chain, target)
        parent, anchor = chain[0].parent, chain[0].next
        assert parent is not None
        body = list(chain[-1].body.ops)
        for op in body:
            op.detach()
        for f in chain:
            f.detach()
        place = parent.insert_before(anchor, target[0])
        for f in target[1:]:
            place.body.append(f)
            place = f
        for op in body:
            place.body.append(op)

    @primitive
    def fuse_loops(self, first: str, second: str) -> None:
        """Run the body of the loop `second` inside `first`, an earlier neighbour of equal extent.

            for i in n:  a(i)
            for j in n:  b(j)
        becomes
            for i in n:  a(i); b(i)
        Refused if ``b(j)`` may depend on ``a(i)`` for an ``i > j``.

        Raises:
            ScheduleError: There is no such loop, the loops are not serial neighbours of equal extent, or the
                order of two conflicting accesses would change.
        """
        a, b = self.loop(first), self.loop(second)
        if a.parent is not b.parent or not prove_eq(a.extent, b.extent):
            raise ScheduleError(
                f"fuse_loops: {first!r} ({a.extent} iterations) and {second!r} ({b.extent}) "
                "are not neighbours of equal extent"
            )
        if a.kind != loop.LoopKind.SERIAL or b.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(
                f"fuse_loops: {first!r} and {second!r} must be serial, they are '{a.kind}' and '{b.kind}'"
            )
        between = a.next
        allocs: list[loop.Alloc] = []
        while between is not None and between is not b:
            if not isinstance(between, loop.Alloc):
                raise ScheduleError(f"fuse_loops: statements stand between {first!r} and {second!r}")
            allocs.append(between)
            between = between.next
        if between is None:
            raise ScheduleError(f"fuse_loops: {second!r} does not follow {first!r}")
        assert a.parent is not None
        check_joined("fuse_loops", a, b)
        for alloc in allocs:  # the fused body uses them
            a.parent.insert_before(a, alloc)
        for op in list(b.body.ops):
            a.body.append(op)
            if isinstance(op, loop.Block):
                op.bindings = tuple(substitute(e, {b.iv: a.iv}) for e in op.bindings)
            else:
                substitute_tree_at(op, {b.iv: a.iv})
            if isinstance(op, loop.Alloc):
                a.body.insert_before(a.body.first, op)
        b.erase()

    @primitive
    def tile(self, rows: str, columns: str, row_factor: int, column_factor: int) -> tuple[str, str, str, str]:
        """Split two nested loops and move the tile loops inside.

        Args:
            rows: The outer loop.
            columns: The loop directly inside it.
            row_factor: The iterations of a tile's loop over rows.
            column_factor: The iterations of a tile's loop over columns.

        Returns:
            The names (rows_o, columns_o, rows_i, columns_i), outermost first.

        Raises:
            ScheduleError: There is no such loop, the loops are not perfectly nested or not serial, the inner
                extent depends on the outer loop, or a factor is less than 1.
        """
        a, b = self._nested_pair("tile", rows, columns)
        _check_factor("tile", a, "row_factor", row_factor)
        _check_factor("tile", b, "column_factor", column_factor)
        check_order("tile", [a, b], [b, a])
        ro, ri = self.split(rows, row_factor)
        co, ci = self.split(columns, column_factor)
        self.reorder(ro, co, ri, ci)
        return ro, co, ri, ci

    @primitive
    def parallel(self, name: str) -> None:
        """Divide the iterations of `name`, an outermost loop, over worker threads.

        Refused if two iterations may touch one element of a buffer that one of them writes. A local buffer
        that only the loop uses is no obstacle: every iteration gets its own.

        Raises:
            ScheduleError: There is no such loop, it is not outermost or not serial, or its iterations depend
                on each other.
        """
        f = self.loop(name)
        if not isinstance(f.parent_op, loop.Kernel):
            raise ScheduleError(f"parallel: loop {name!r} is not outermost")
        check_independent("parallel", f)
        _set_kind(self, name, loop.LoopKind.PARALLEL)

    @primitive
    def grain(self, iterations: int | str) -> None:
        """Set how many iterations of the parallel loop are worth a thread: fewer are not divided further.

        Args:
            iterations: A number, or the text of an expression in the kernel's sizes: ``"max(1, 4096 // n)"``.

        Raises:
            ScheduleError: It is less than 1, or the text is no expression in the kernel's sizes.
        """
        value: Dim
        if isinstance(iterations, str):
            try:
                value = symbolic_text.parse(iterations, {d.name: d for d in self.kernel.dims})
            except ValueError as error:
                raise ScheduleError(f"grain: {error}") from None
        else:
            value = iterations
        if not prove_le(1, value):
            raise ScheduleError(f"grain: {iterations} iterations may be less than 1")
        notes.GRAIN.set(self.kernel, value)

    @primitive
    def vectorize(self, name: str, lanes: int = 0) -> None:
        """Run the iterations of a loop, of any extent, in vector lanes. A reduction keeps a partial result
        for each lane.

        Args:
            name: The loop.
            lanes: The number of lanes, a power of two; 0 means the target's vector width.

        Raises:
            ScheduleError: There is no such loop, it is not serial, a loop inside is vectorized already, its
                iterations depend on each other, or `lanes` is no power of two from 2 to 64. The end of the
                schedule raises it if a statement inside has no form for lanes: see `can_vectorize`.
        """
        f = self.loop(name)
        if lanes not in (0, 2, 4, 8, 16, 32, 64):
            raise ScheduleError(f"vectorize: lanes must be 0 or a power of two from 2 to 64, got {lanes}")
        if any(isinstance(op, loop.For) and op.kind == loop.LoopKind.VECTORIZE for op in f.walk()):
            raise ScheduleError(f"vectorize: a loop inside {name!r} is vectorized already")
        check_independent("vectorize", f, shared=True, lanes=True)
        _set_kind(self, name, loop.LoopKind.VECTORIZE, lanes)

    @primitive
    def unroll(self, name: str, factor: int = 0) -> None:
        """Unroll the loop `name` by `factor`; 0 unrolls a loop of constant extent completely.

        Raises:
            ScheduleError: There is no such loop, it is not serial, `factor` is negative, or it is 0 and the
                extent symbolic.
        """
        f = self.loop(name)
        if factor < 0:
            raise ScheduleError(f"unroll: factor must not be negative, got {factor}")
        if factor == 0 and not isinstance(f.extent, int):
            raise ScheduleError(f"unroll: the extent of {name!r} is symbolic ({f.extent}); give a factor")
        _set_kind(self, name, loop.LoopKind.UNROLL, factor)

    @primitive
    def fission(self, name: str) -> tuple[str, ...]:
        """Give each nest inside the loop `name` one of its own (loop fission), also in inner loops that hold
        several nests.

            for i in n:  {A(i); for t in m:  {B(i, t); C(i, t)}}
        becomes
            for i in n:  A(i)
            for t in m:  {for i_2 in n:  B(i_2, t); for i_3 in n:  C(i_3, t)}

        Refused if two iterations may touch one element of a buffer that one of them writes. Returns the names
        of the new loops.

        Raises:
            ScheduleError: There is no such loop, it is not serial, its iterations depend on each other, or an
                inner extent depends on it.
        """
        f = self.loop(name)
        if f.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(f"fission: loop {name!r} is already '{f.kind}'")
        check_independent("fission", f, shared=True)
        nests: list[Operation] = []
        names: list[str] = []

        def collect(block: Block) -> None:
            for op in block.ops:
                if not isinstance(op, (loop.For, loop.Block, loop.If)):
                    raise ScheduleError(f"fission: '{op.name}' stands inside {name!r}")
                if isinstance(op, loop.For) and sum(isinstance(b, loop.Block) for b in op.walk()) > 1:
                    if not isinstance(op.iv.upper, int) and f.iv in free_symbols(op.iv.upper):
                        raise ScheduleError(f"fission: the extent of {op.iv.name!r} depends on {name!r}")
                    collect(op.body)
                else:
                    nests.append(op)

        collect(f.body)
        for nest in nests:
            iv = f.iv if nest is nests[0] else symbol(self.fresh(name), 0, f.iv.upper)
            own = loop.For(iv=iv, location=f.location)
            assert nest.parent is not None
            nest.parent.insert_before(nest, own)
            own.body.append(nest)
            substitute_tree(own, {f.iv: iv})
            names.append(iv.name)
        assert f.parent is not None
        for op in list(f.body.ops):
            f.parent.insert_before(f, op)
        f.erase()
        return tuple(names)

    @primitive
    def bind(self, name: str, thread: str) -> None:
        """Bind the loop `name` to a GPU index: ``block.x`` .. ``block.z``, ``thread.x`` .. ``thread.z``.

        A `thread` loop of symbolic extent gets its upper bound as extent, and a condition around its body.

        Raises:
            ScheduleError: There is no such loop or thread axis, the loop has more iterations than the axis
                allows, may be empty or has no upper bound, or its iterations depend on each other.
        """
        if thread not in loop.LOOP_KINDS or "." not in thread:
            raise ScheduleError(f"bind: unknown thread axis {thread!r}")
        f = self.loop(name)
        limit = self.info.thread_limit(thread)
        if limit is not None and not prove_le(f.extent, limit):
            raise ScheduleError(
                f"bind: {name!r} has {f.extent} iterations, {thread} of this target "
                f"at most {limit}; split it first"
            )
        check_independent("bind", f)
        if thread.startswith("thread") and not isinstance(f.extent, int):
            from ..ir.symbolic import bounds

            limit = bounds(f.extent)[1]
            if limit is None:
                raise ScheduleError(
                    f"bind: the extent of {name!r} ({f.extent}) has no upper bound; split it first"
                )
            iv = symbol(self.fresh(f"{name}_t"), 0, limit - 1)
            guard = loop.If(conditions=(f.extent - 1 - iv,), location=f.location)
            for op in list(f.body.ops):
                guard.body.append(op)
            new = loop.For(iv=iv, location=f.location)
            new.body.append(guard)
            old = f.iv
            assert f.parent is not None
            f.parent.insert_before(f, new)
            f.erase()
            substitute_tree(new, {old: iv})
            f = new
        elif thread.startswith("thread") and not prove_le(1, f.extent):
            raise ScheduleError(f"bind: loop {name!r} may be empty")
        f.kind = thread


LARGEST_FACTOR = 1 << 31
"""The most iterations of a part of a loop. Places in larger parts may not fit into 64 bits."""


def _check_factor(primitive: str, f: loop.For, what: str, factor: int) -> None:
    """Raise unless a loop can be split into parts of `factor` iterations. They may exceed the loop's."""
    if not 1 <= factor <= LARGEST_FACTOR:
        nest = ", ".join(str(x.iv.name) for x in (*enclosing_loops(f), f))
        raise ScheduleError(
            f"{primitive}: in the nest ({nest}), {what} of loop {f.iv.name!r} with {f.extent} iterations "
            f"must be from 1 to {LARGEST_FACTOR}, got {factor}"
        )


def _wrap(iv: Expr, body_of: loop.For, kind: str = loop.LoopKind.SERIAL) -> loop.For:
    """Return a new loop that takes over the body of another."""
    new = loop.For(iv=iv, kind=kind, location=body_of.location)
    for op in list(body_of.body.ops):
        new.body.append(op)
    return new


def _used(f: loop.For, exprs: tuple[Dim, ...]) -> bool:
    return any(isinstance(e, Expr) and f.iv in free_symbols(e) for e in exprs)


def _ancestors(op: Operation) -> list[Operation]:
    ancestors = []
    parent = op.parent_op
    while parent is not None:
        ancestors.append(parent)
        parent = parent.parent_op
    return ancestors


def _set_kind(s: ScheduleCore, name: str, kind: str, step: int = 0) -> None:
    f = s.loop(name)
    if f.kind != loop.LoopKind.SERIAL:
        raise ScheduleError(f"{kind}: loop {name!r} is already '{f.kind}'")
    f.kind, f.step = kind, step
