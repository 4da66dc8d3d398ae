"""Inputs and outputs of one FX graph of ``torch.compile``, as AOTAutograd passes it: flat lists of arguments
and of results.

Arguments are tensors (including parameters) and sizes. A symbol's value is read from a tensor's shape. A
symbol that is no tensor's dimension is passed as the shape ``(size, 0)`` of a tensor without elements. torch
draws random numbers, in the graph's order, and passes them.

Results that are arguments, sizes or None never reach the compiled library. torch makes views of the library's
results, so that they share memory and have the strides that AOTAutograd and later code expect.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects import graph as g
from ...errors import CompileError
from ...ir.core import Module, Value
from ...ir.symbolic import symbol
from ...ir.types import TensorType, u8
from ..complex import each
from .importer import Importer, location_of
from .memory_layout import (
    channels_last,
    contiguous_strides,
    images,
    is_view,
    layout_of,
    memory_order,
    root_of,
)
from .ops.random import noise_of
from .symbols import Untranslatable
from .tensors import dtype_of, is_known, part_dtype_of

if TYPE_CHECKING:
    import sympy
    import torch

Library = Callable[..., Any]
Evaluate = Callable[[list[Any], list[Any]], Any]
"""A function from torch's arguments and the library's results to a value of the graph."""

DRAWS = frozenset(
    name if name.startswith("prims.") else f"aten.{name}"
    for name in (
        *(
            "rand.default",
            "randn.default",
            "randint.default",
            "randint.low",
            "randperm.default",
            "prims.uniform.default",
        ),
        *("rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype"),
        *(
            "bernoulli.p",
            "normal.float_float",
            "normal_functional.default",
            "uniform.default",
            "exponential.default",
        ),
        "native_dropout.default",
    )
)
"""Operators whose random results depend only on sizes and numbers: they use at most the shape, strides and
element type of a tensor.
"""


class GraphImporter(Importer):
    """Imports a functional ``torch.fx.GraphModule`` whose nodes carry fake tensors.

    `run` returns its module, `bind` the function that torch calls.
    """

    otherwise = "leave options={'fallback': False} out: PyTorch then runs it between the compiled parts"

    def __init__(
        self,
        source: torch.fx.GraphModule,
        examples: Sequence[Any] | None = None,
        first_kept: int | None = None,
    ) -> None:
        """Prepare the import of a graph.

        Args:
            source: The graph.
            examples: Its arguments in the memory layouts that calls have; None: those of the nodes' fake
                tensors.
            first_kept: The number of the first result that only the backward graph reads, if there are any:
                their memory layout is free.
        """
        super().__init__()
        self.source = source
        placeholders = [n for n in source.graph.nodes if n.op == "placeholder"]
        self.positions = {n: k for k, n in enumerate(placeholders)}
        traced = [layout_of(n.meta["val"]) for n in placeholders]
        given = traced if examples is None else list(map(layout_of, examples))
        self.layouts = {n: x for n, x in zip(placeholders, given, strict=True) if x is not None}
        """The layouts of arguments that are not contiguous."""
        self.relaid = {k: n for k, n in enumerate(placeholders) if given[k] != traced[k]}
        """The arguments that have not the layout of their fake tensors, by position."""
        output = next(n for n in source.graph.nodes if n.op == "output")
        results = output.args[0]
        self.results: list[Any] = list(results) if isinstance(results, (list, tuple)) else [results]
        self.sizes: dict[Any, tuple[int, int | None]] = {}
        """The source of each torch symbol's value: an argument, and an axis if that is a tensor."""
        self.tensors: list[int] = []
        """Indices of the arguments that are passed to the library; `carried` are those of sizes, which
        follow.
        """
        self.carried: list[int] = []
        self.draws: list[Any] = []
        self.computed: list[Any] = []
        self.orders: dict[Any, tuple[int, ...]] = {}
        """The memory layout of each computed node: its dimensions from the outermost to the innermost."""
        self.first_kept = len(self.results) if first_kept is None else first_kept
        self.free = self._free()
        """The computed nodes that are returned in channels-last layout, whatever layout torch expects."""

    def run(self) -> Module | None:
        """Return the graph's module, None if it computes no tensor.

        Raises:
            UnsupportedOperatorError: Operators have no importer; `refused` are their nodes.
            CompileError: The graph has an argument or result of an unknown kind.
        """
        import torch

        placeholders = list(self.positions)
        tensors = [n for n in placeholders if isinstance(n.meta["val"], torch.Tensor)]
        for n in tensors:
            if n.meta["val"].device.type != "cpu":
                raise CompileError(
                    f"argument '{n.name}' is on the device {n.meta['val'].device}; only the CPU is "
                    "supported: move it by .cpu()"
                )
            for axis, size in enumerate(n.meta["val"].shape):
                self._symbol(size, n, axis)
        carried = [n for n in placeholders if self._symbol(n.meta["val"], n, None)]
        inputs: list[tuple[str, Any, TensorType]] = []
        try:
            tensors = [n for n in tensors if not _foreign(n)]
            for n in tensors:
                val = n.meta["val"]
                shape = list(val.shape)
                if n in self.layouts:
                    layout = self.layouts[n]
                    shape = list(layout.sizes) or [val.shape[d] for d in layout.order]
                dtype = part_dtype_of(val.dtype, n.name)
                inputs.append((n.name, n, TensorType(dtype, self.symbols.shape(shape))))
            for n in carried:
                inputs.append((n.name, None, TensorType(u8, (self.symbols.dim(n.meta["val"]), 0))))
        except Untranslatable as error:
            raise CompileError(f"the shape of an argument cannot be translated: {error}") from None
        self.tensors, self.carried = ([self.positions[n] for n in nodes] for nodes in (tensors, carried))
        for n in self.results:
            if hasattr(n, "meta") and isinstance(n.meta.get("val"), torch.Tensor):
                self._compute(n)
        for n in self.source.graph.nodes:
            foreign = (
                {t for x in (n, *n.all_input_nodes) for t in _foreign(x)}
                if n.op == "call_function" and n.target is not operator.getitem
                else ()
            )
            if foreign:
                self._problem(
                    n,
                    str(n.target),
                    location_of(n),
                    f"elements of type {', '.join(foreign)} are not supported",
                )
            elif n.op == "call_function" and str(n.target).startswith(("aten._assert_async", "aten._print")):
                self._problem(n, str(n.target), location_of(n), "it has an effect but no result")
            elif str(n.target) in DRAWS:
                self.draws.append(n)
                val, key = n.meta["val"], n
                if isinstance(val, tuple):  # A dropout's random part is its noise.
                    val, key = n.args[0].meta["val"], noise_of(n)
                inputs.append(
                    (n.name, key, TensorType(dtype_of(val.dtype, n.name), self.symbols.shape(val.shape)))
                )
        if not self.computed and not self.refused:
            return None
        if not inputs:  # A call with a torch tensor returns torch tensors, so there is at least one.
            inputs.append(("nothing", None, TensorType(u8, (0,))))
        return self.build(self.source, self.source.graph, inputs, [(n.name, n) for n in self.computed])

    def _compute(self, result: torch.fx.Node) -> None:
        """Add the tensor that a result is a view of to the library's results; if its memory is not dense, the
        result itself.
        """
        root = root_of(result)
        if root.op in ("placeholder", "get_attr"):
            return
        order = memory_order(root.meta["val"]) if hasattr(root.meta["val"], "stride") else None
        if root in self.free:
            order = channels_last(root.meta["val"].dim())
        if order is None:
            root, order = result, tuple(range(result.meta["val"].dim()))
        if root not in self.orders:
            self.computed.append(root)
            self.orders[root] = order

    def _free(self) -> set[Any]:
        roots = [root_of(n) if hasattr(n, "meta") else None for n in self.results]
        seen = set(roots[: self.first_kept])
        # Views of a result need the layout that torch expects.
        seen |= {root for n, root in zip(self.results, roots, strict=True) if n is not root}
        kept = set(roots[self.first_kept :]) - seen
        return kept & images(self.source.graph) if kept else kept

    def strides(self) -> list[tuple[int, ...] | None]:
        """Return the strides of each result in which they differ from those that torch expects."""
        return [
            contiguous_strides(n.meta["val"].shape, self.orders[n]) if n in self.free else None
            for n in self.results
        ]

    def restore(self, args: list[Any]) -> None:
        """Replace arguments by copies in the memory layouts of their fake tensors, which the operators of the
        graph are made for when torch runs them.
        """
        for position in self.relaid:
            args[position] = self._as_traced(position, args[position])

    def _as_traced(self, position: int, x: torch.Tensor) -> torch.Tensor:
        import torch

        val = self.relaid[position].meta["val"]
        return torch.empty_strided(tuple(val.shape), tuple(val.stride()), dtype=x.dtype).copy_(x)

    def _given(self, node: torch.fx.Node, value: Any) -> Any:
        layout = self.layouts.get(node)
        if layout is None:
            return value
        order = layout.order
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        shape = self.symbols.shape([node.meta["val"].shape[d] for d in order])

        def element(part: Value) -> Value:
            if layout.sizes:
                ends = tuple(map(sum, zip(layout.starts, layout.taken, strict=True)))
                steps = (1,) * len(ends)
                part = self.emit(g.Slice(part, starts=layout.starts, stops=ends, steps=steps))
                part = self.emit(g.Reshape(part, shape=shape))
            return self.emit(g.Transpose(part, permutation=back))

        return each(element, value)

    def _symbol(self, size: torch.SymInt | int, node: torch.fx.Node, axis: int | None) -> bool:
        """Define the symbol that `size` is, if it is new; return whether that made a dimension."""
        import torch

        if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol or size.node.expr in self.sizes:
            return False
        e = size.node.expr
        self.sizes[e] = self.positions[node], axis
        limits = size.node.shape_env.var_to_range.get(e)
        low, high = (
            int(x) if x.is_Integer and abs(int(x)) < 1 << 60 else None for x in (limits.lower, limits.upper)
        )
        if low is None or low < 0:
            if axis is None:
                return False  # A number that may be negative is no size.
            low = 0
        name = node.name if axis is None else f"{node.name}_{axis}"
        self.symbols.symbols[e] = symbol(name, low, high)
        return True

    def _result(self, node: torch.fx.Node) -> Any:
        value, order = super()._result(node), self.orders[node]
        if order == tuple(range(len(order))):
            return value
        return each(lambda part: self.emit(g.Transpose(part, permutation=order)), value)

    # -- Calls -----------------------------------------------------------------------------------------------

    def bind(self, library: Library | None) -> Callable[[list[Any]], list[Any]]:
        """Return the function from torch's list of arguments, which it empties, to the list of results."""
        import torch

        tensors, carried = self.tensors, self.carried
        layouts = {self.positions[n]: layout for n, layout in self.layouts.items()}
        draws = [self._call_of(n, drawn=True) for n in self.draws]
        finish = [self._evaluate(n) for n in self.results]
        inverse = [
            (k, sorted(range(len(order)), key=order.__getitem__))
            for k, order in enumerate(map(self.orders.__getitem__, self.computed))
        ]
        moved = [(k, p) for k, p in inverse if p != sorted(p)]
        plain, token = torch.Tensor, torch.empty(0)
        nothing = [] if tensors or carried or draws else [torch.empty(0, dtype=torch.uint8)]

        def call(args: list[Any]) -> list[Any]:
            computed: list[Any] = []
            if library is not None:
                inputs = []
                for position in tensors:
                    x = args[position]
                    if x is None:
                        x = token  # A token of effects, in a backward graph.
                    elif type(x) is not plain:
                        x = x.detach()  # A parameter; native code reads its memory.
                    if position in layouts:
                        x = layouts[position].dense(x)
                    inputs.append(x if x.is_contiguous() else x.contiguous())
                inputs += [draw(args, computed).contiguous() for draw in draws]
                inputs[len(tensors) : len(tensors)] = [
                    torch.empty((int(args[position]), 0), dtype=torch.uint8) for position in carried
                ]
                outputs = library(*inputs, *nothing)
                computed = list(outputs) if isinstance(outputs, tuple) else [outputs]
                for k, permutation in moved:
                    computed[k] = computed[k].permute(permutation)
            results = [f(args, computed) for f in finish]
            args.clear()
            return results

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _evaluate(self, a: torch.fx.node.Argument) -> Evaluate:
        """Return the function that computes a result, or an argument of a call that torch runs."""
        import torch

        if isinstance(a, (list, tuple)):
            parts = [self._evaluate(x) for x in a]
            return lambda args, computed: [part(args, computed) for part in parts]
        if not isinstance(a, torch.fx.Node):
            return lambda args, computed: a
        if a in self.positions:
            position = self.positions[a]
            if position in self.relaid:  # It is returned, or a view of it.
                return lambda args, computed: self._as_traced(position, args[position])
            return lambda args, computed: args[position]
        if a in self.orders:
            index = self.computed.index(a)
            return lambda args, computed: computed[index]
        if a.op == "get_attr":
            constant = self._attribute(self.source, a)[1]
            return lambda args, computed: constant
        val = a.meta.get("val")
        if isinstance(val, (int, float, bool, type(None))):
            return lambda args, computed: val
        if isinstance(val, torch.SymInt) and val.node.expr.free_symbols <= self.sizes.keys():
            return self._size(val.node.expr)
        if is_view(a):
            return self._call_of(a)
        raise CompileError(
            f"'{a.name}' is a {type(val).__name__} that cannot be computed from the arguments' sizes"
        )

    def _call_of(self, node: torch.fx.Node, drawn: bool = False) -> Evaluate:
        """Return a call that torch runs. For a random operator (`drawn`), tensor arguments only supply a
        memory layout.
        """
        import torch

        def argument(a: torch.fx.node.Argument) -> Evaluate:
            val = a.meta.get("val") if isinstance(a, torch.fx.Node) else None
            if not drawn or not isinstance(val, torch.Tensor):
                return self._evaluate(a)
            order = memory_order(val) or tuple(range(val.dim()))
            shape = [self._dim(val.shape[d]) for d in order]
            back = sorted(range(len(order)), key=order.__getitem__)
            return lambda args, computed: torch.empty(
                [s(args, computed) for s in shape], dtype=val.dtype
            ).permute(back)

        target = _dropout_noise if str(node.target) == "aten.native_dropout.default" else node.target
        parts = [argument(a) for a in node.args]
        named = {k: argument(v) for k, v in node.kwargs.items()}
        return lambda args, computed: target(
            *(p(args, computed) for p in parts), **{k: v(args, computed) for k, v in named.items()}
        )

    def _dim(self, size: torch.SymInt | int) -> Evaluate:
        if isinstance(size, int):
            return lambda args, computed: size
        if not size.node.expr.free_symbols <= self.sizes.keys():
            raise CompileError(f"the size {size} cannot be computed from the arguments' sizes")
        return self._size(size.node.expr)

    def _size(self, e: sympy.Expr) -> Evaluate:
        places = {s: self.sizes[s] for s in e.free_symbols}

        def value(args: list[Any], place: tuple[int, int | None]) -> int:
            position, axis = place
            return int(args[position]) if axis is None else int(args[position].shape[axis])

        if e.is_Symbol:
            return lambda args, computed: value(args, places[e])
        return lambda args, computed: int(
            e.xreplace({s: _integer(value(args, p)) for s, p in places.items()})
        )


def _dropout_noise(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Return the noise of an eager dropout of a tensor like `x`: 1 where an element stays. `x` is
    overwritten.
    """
    return x.bernoulli_(1 - p) if p < 1 and train is not False else x.zero_()


def _integer(value: int) -> Any:
    import sympy

    return sympy.Integer(value)


def _foreign(node: torch.fx.Node) -> list[str]:
    """Return the element types of a node's tensors that have no IR type."""
    import torch

    val = node.meta.get("val")
    dtypes = [
        x.dtype for x in (val if isinstance(val, (list, tuple)) else (val,)) if isinstance(x, torch.Tensor)
    ]
    return [
        str(t).removeprefix("torch.")
        for t in dtypes
        if not is_known(t) and t not in (torch.complex64, torch.complex128)
    ]


__all__ = ["GraphImporter"]
