"""Emission of the expressions of a loop program as tensor computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ...dialects import tensor
from ...dialects.scalar import MATH_FUNCTIONS, combiner_identity
from ...dialects.tensor_builder import Scalar, TensorBuilder
from ...ir.builder import Builder
from ...ir.core import Value
from ...ir.location import Location
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, symbol
from ...ir.types import f32, i64
from .facts import Loop, inequalities
from .values import Node, Number, convert, literal, make, read, select

At = Mapping[Expr, Dim]
Guard = tuple[frozenset[Expr], Dim]
"""Loop variables, and an expression that is negative where an element that depends on them is not used."""


class Emitter:
    """Writes expressions into tensor computations at the insertion point of a builder."""

    def __init__(self, t: TensorBuilder) -> None:
        self.t = t
        self.known: dict[Node, Value] = {}
        """Tensors of expressions, whose loop variables are replaced by canonical ones."""

    @contextmanager
    def inside(self, builder: Builder) -> Iterator[None]:
        """Insert elsewhere for a while."""
        saved, self.t.builder, known = self.t.builder, builder, dict(self.known)
        try:
            yield
        finally:
            self.t.builder, self.known = saved, known

    @contextmanager
    def at(self, location: Location) -> Iterator[None]:
        """Give operations a location for a while."""
        with self.t.builder.at(location):
            yield

    # -- Bodies ----------------------------------------------------------------------------------------------

    def scalar(
        self, node: Node, at: At, guards: Sequence[Guard] = (), memo: dict[Node, Scalar] | None = None
    ) -> Scalar:
        """An expression in the body that is being built.

        Args:
            node: The expression.
            at: The values of loop variables.
            guards: Where elements are not used.
            memo: Expressions that the body has.
        """
        known: dict[Node, Scalar] = {} if memo is None else memo
        stack = [node]
        while stack:  # iterative: chains of local variables may be long
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            padded = _padded(top)
            if padded is not None:
                known[stack.pop()] = self._read(*padded, at, guards, ())
                continue
            missing = [a for a in top.args if a not in known]
            if missing:
                stack += missing
                continue
            known[stack.pop()] = self._one(top, at, guards, known)
        return known[node]

    def _one(self, node: Node, at: At, guards: Sequence[Guard], known: Mapping[Node, Scalar]) -> Scalar:
        args = [known[a] for a in node.args]
        if node.kind == "literal":
            return self.t.constant(node.data, node.dtype)
        if node.kind == "undefined":
            return self.t.constant(False if node.dtype.kind == "bool" else 0, node.dtype)
        if node.kind == "index":
            return self.t.index(substitute(node.data, at))
        if node.kind == "cast":
            return args[0].cast(node.dtype)
        if node.kind == "select":
            return args[0].select(args[1], args[2])
        if node.kind == "call":
            return args[0].apply(node.data, *args[1:])
        return self._read(node, False if node.dtype.kind == "bool" else 0, at, guards, args)

    def _read(
        self, node: Node, otherwise: Number, at: At, guards: Sequence[Guard], args: Sequence[Scalar]
    ) -> Scalar:
        source, plan, ends = node.data
        ref = self.t.wrap(source)
        dynamic = iter(args)
        index: list[Dim | Scalar] = [
            next(dynamic).cast(i64) if e is None else substitute(e, at) for e in plan
        ]
        guard: list[Dim | Scalar] = [e for symbols, e in guards if symbols & node.symbols]
        for d, upper in sorted(ends):
            place = index[d]
            if not upper:
                guard.append(place)
            elif isinstance(place, Scalar):
                guard.append(self.t.index(ref.shape[d] - 1) - place)
            else:
                guard.append(ref.shape[d] - 1 - place)
        return ref.at(*index, guard=guard, otherwise=otherwise)

    # -- Computations ----------------------------------------------------------------------------------------

    def compute(
        self,
        node: Node,
        shape: Sequence[Dim],
        places: Callable[..., At],
        guards: Callable[..., Sequence[Guard]] | None = None,
    ) -> Value:
        """A tensor of an expression.

        Args:
            node: The expression.
            shape: The shape of the tensor.
            places: The values of loop variables at an index.
            guards: Where elements are not used, at an index.
        """

        def body(*i: Dim) -> Scalar:
            return self.scalar(node, places(*i), guards(*i) if guards is not None else ())

        return self.t.compute(shape, body).value

    def hoisted(self, node: Node, loops: Sequence[Loop], functions: bool = False) -> Node:
        """`node` with costly parts as elements of tensors: those that do not depend on all of `loops` or that
        a tensor holds already, and with `functions` all elementary functions.
        """
        all_symbols = frozenset(loop.symbol for loop in loops)
        found: dict[Node, Node] = {}

        def visit(n: Node, used: frozenset[Expr]) -> Node:
            if n in found:
                return found[n]
            result = n
            if n.costly and n.reads and not n.undefined:
                apart = functions and n.kind == "call" and n.data in MATH_FUNCTIONS
                if apart or n.symbols & all_symbols < used or _canonical(n, _own(n, loops)) in self.known:
                    result = self.materialize(n, loops)
            if result is n and n.costly and n.args:
                result = make(n.kind, n.dtype, tuple(visit(a, used) for a in n.args), n.data)
            found[n] = result
            return result

        return visit(node, node.symbols & all_symbols) if node.costly else node

    def materialize(self, node: Node, loops: Sequence[Loop]) -> Node:
        """A tensor with the values of an expression for all iterations of those of `loops` that it depends
        on, and its element of this iteration.
        """
        own = _own(node, loops)
        key = _canonical(node, own)
        value = self.known.get(key)
        if value is not None:
            return read(value, node.dtype, tuple(loop.symbol for loop in own))
        parts = tuple(self.hoisted(a, own) for a in node.args)
        result = self.over(make(node.kind, node.dtype, parts, node.data), own)
        self.known[key] = result.data[0]
        return result

    def over(self, node: Node, loops: Sequence[Loop]) -> Node:
        """As `materialize`, over all of `loops`."""
        symbols = [loop.symbol for loop in loops]
        value = self.compute(
            node, [loop.extent for loop in loops], lambda *i: dict(zip(symbols, i, strict=True))
        )
        return read(value, node.dtype, tuple(symbols))

    def reduce(self, combiner: str, node: Node, outer: Sequence[Loop], loops: Sequence[Loop]) -> Node:
        """The combination of an expression over `loops`: a tensor over those of the `outer` loops that it
        depends on, and its element of this iteration.

        Elements outside of the bounds of a loop are left out.
        """
        own = [loop for loop in outer if loop.kind != "step"]
        own_symbols = {loop.symbol for loop in own}
        inner_symbols = {loop.symbol for loop in loops}
        identity = literal(combiner_identity(combiner, node.dtype), node.dtype)
        limits: list[Dim] = []
        used = set(node.symbols)
        for loop in loops:
            limit = loop.limit
            if free_symbols(limit) & inner_symbols:
                assert loop.bound is not None
                node, limit = select(loop.bound, node, identity), loop.extent
                used |= node.symbols
            used |= free_symbols(limit)
            limits.append(limit)
        own = [loop for loop in own if loop.symbol in used]
        symbols = [loop.symbol for loop in own]
        dtype = node.dtype
        regular = all(loop.bound is None for loop in loops)
        node = self.hoisted(_wide(node), [*own, *loops], functions=regular)

        def places(*i: Dim) -> At:
            return dict(zip([*symbols, *(loop.symbol for loop in loops)], i, strict=True))

        def limit_of(e: Dim) -> Dim | Callable[..., Dim]:
            if not free_symbols(e) & own_symbols:
                return e
            return lambda *i: substitute(e, dict(zip(symbols, i, strict=True)))

        result = self.t.reduce(
            combiner,
            [loop.extent for loop in own],
            [limit_of(e) for e in limits],
            lambda *i: self.scalar(node, places(*i)),
        )

        return convert(read(result.value, node.dtype, tuple(symbols)), dtype)

    def check(self, condition: Node, loops: Sequence[Loop], message: str) -> None:
        """End the run with a message about an index unless a condition holds in all iterations of `loops`."""
        own = [loop for loop in loops if loop.symbol in condition.symbols and loop.kind != "step"]
        symbols = [loop.symbol for loop in own]

        def body(*i: Dim) -> Scalar:
            return self.scalar(condition, dict(zip(symbols, i, strict=True)))

        extents = [loop.extent for loop in own]
        value = (self.t.reduce("and", (), extents, body) if own else self.t.compute((), body)).value
        self.t.builder.insert(tensor.Check(value, message=message, error="index"))


def _padded(node: Node) -> tuple[Node, Number] | None:
    """The element and the number of ``x[i] if inside else 0``, whose condition tells exactly that the index
    is inside; None for other expressions.
    """
    if node.kind != "select":
        return None
    condition, element, number = node.args
    if element.kind != "read" or element.args or number.kind != "literal":
        return None
    parts = inequalities(condition)
    source, plan, ends = element.data
    if parts is None or not ends:
        return None
    inside = [source.type.shape[d] - 1 - plan[d] if upper else plan[d] for d, upper in ends]
    if all(prove_le(0, e) or any(prove_eq(e, other) for other in inside) for e in parts):
        return element, number.data
    return None


def _own(node: Node, loops: Sequence[Loop]) -> list[Loop]:
    """The loops that an expression depends on, without those that carry values."""
    return [loop for loop in loops if loop.symbol in node.symbols and loop.kind != "step"]


def _canonical(node: Node, loops: Sequence[Loop]) -> Node:
    """An expression with the variables of `loops` replaced by ones that only tell their order."""
    names: dict[Expr, Dim] = {
        loop.symbol: symbol(f"c{k}", 0, loop.extent - 1) for k, loop in enumerate(loops)
    }
    done: dict[Node, Node] = {}

    def visit(n: Node) -> Node:
        if n not in done:
            data = n.data
            if n.kind == "index":
                data = substitute(data, names)
            elif n.kind == "read":
                plan = tuple(None if e is None else substitute(e, names) for e in data[1])
                data = (data[0], plan, data[2])
            done[n] = make(n.kind, n.dtype, tuple(map(visit, n.args)), data)
        return done[n]

    return visit(node)


def _wide(node: Node) -> Node:
    """A float of 16 bits or fewer as float32: sums of them are formed in float32."""

    if not node.dtype.is_float or node.dtype.bits > 16:
        return node
    if node.kind == "call" and node.data in ("mul", "add", "sub", "neg", "max", "min"):
        return make("call", f32, tuple(_wide(a) for a in node.args), node.data)
    return convert(node, f32)
