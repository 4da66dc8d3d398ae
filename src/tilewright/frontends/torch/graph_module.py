"""The border of one FX graph of ``torch.compile``, as AOTAutograd hands it over: a flat list of arguments in, a flat list of results out.

Arguments are tensors (parameters among them) and sizes. A symbol's value is read off a tensor's shape; one that is no tensor's dimension comes in
as the shape ``(size, 0)`` of a tensor without elements. Random numbers are drawn by torch, in the graph's order, and passed in.

Results that are arguments, sizes or None never reach the compiled library; views are made by torch of what it computes, so that they share memory and
have the strides that AOTAutograd and later code count on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...dialects import graph as g
from ...errors import CompileError
from ...ir.core import Module
from ...ir.symbolic import symbol
from ...ir.types import TensorType, u8
from ..complex import each
from .importer import Importer, location_of
from .ops.random import noise_of
from .symbols import Untranslatable
from .tensors import dtype_of, is_known, part_dtype_of

Library = Callable[..., Any]
Evaluate = Callable[[list[Any], list[Any]], Any]
"""From torch's arguments and what the library computed to a value of the graph."""

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
        *("bernoulli.p", "normal.float_float", "normal_functional.default", "uniform.default", "exponential.default"),
        "native_dropout.default",
    )
)
"""Operators whose random results depend on sizes and numbers alone: of a tensor they take no more than its shape, strides and data type."""


class GraphImporter(Importer):
    """Imports a functional ``torch.fx.GraphModule`` whose nodes carry fake tensors.

    `run` gives its module, `bind` makes the function that torch calls.
    """

    otherwise = "leave options={'fallback': False} out: PyTorch then runs it between the compiled parts"

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source
        placeholders = [n for n in source.graph.nodes if n.op == "placeholder"]
        self.positions = {n: k for k, n in enumerate(placeholders)}
        output = next(n for n in source.graph.nodes if n.op == "output")
        found = output.args[0]
        self.results: list[Any] = list(found) if isinstance(found, (list, tuple)) else [found]
        self.sizes: dict[Any, tuple[int, int | None]] = {}
        """Where the value of each of torch's symbols is found: argument, and axis of a tensor."""
        self.tensors: list[int] = []
        """Arguments that are passed to the library, after them sizes that are no tensor's."""
        self.carried: list[int] = []
        self.draws: list[Any] = []
        self.computed: list[Any] = []
        self.orders: dict[Any, tuple[int, ...]] = {}
        """How each computed node lies in memory: its dimensions from the outermost to the innermost."""

    def run(self) -> Module | None:
        """The graph's module, None where it computes no tensor.

        Raises:
            UnsupportedOperatorError: lists every operator that has no importer; `refused` are their nodes.
            CompileError: the graph's border is none that we know.
        """
        import torch

        placeholders = list(self.positions)
        tensors = [n for n in placeholders if isinstance(n.meta["val"], torch.Tensor)]
        for n in tensors:
            if n.meta["val"].device.type != "cpu":
                raise CompileError(f"argument '{n.name}' lies on {n.meta['val'].device}; only the CPU is supported")
            for axis, size in enumerate(n.meta["val"].shape):
                self._symbol(size, n, axis)
        carried = [n for n in placeholders if self._symbol(n.meta["val"], n, None)]
        inputs: list[tuple[str, Any, TensorType]] = []
        try:
            tensors = [n for n in tensors if not _foreign(n)]
            for n in tensors:
                val = n.meta["val"]
                inputs.append((n.name, n, TensorType(part_dtype_of(val.dtype, n.name), self.symbols.shape(val.shape))))
            for n in carried:
                inputs.append((n.name, None, TensorType(u8, (self.symbols.dim(n.meta["val"]), 0))))
        except Untranslatable as error:
            raise CompileError(f"an argument's shape is not understood: {error}") from None
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
                self._problem(n, str(n.target), location_of(n), f"no support of elements of type {', '.join(foreign)}")
            elif n.op == "call_function" and str(n.target).startswith(("aten._assert_async", "aten._print")):
                self._problem(n, str(n.target), location_of(n), "it has an effect but no result")
            elif str(n.target) in DRAWS:
                self.draws.append(n)
                val, key = n.meta["val"], n
                if isinstance(val, tuple):  # of dropout the noise is drawn
                    val, key = n.args[0].meta["val"], noise_of(n)
                inputs.append((n.name, key, TensorType(dtype_of(val.dtype, n.name), self.symbols.shape(val.shape))))
        if not self.computed and not self.refused:
            return None
        if not inputs:  # what is called with a tensor of torch's gives tensors of torch's
            inputs.append(("nothing", None, TensorType(u8, (0,))))
        return self.build(self.source, self.source.graph, inputs, [(n.name, n) for n in self.computed])

    def _compute(self, result: Any) -> None:
        """Have the library compute what a result is a view of; what does not lie densely in memory, contiguously."""
        root = result
        while _is_view(root):
            root = root.args[0]
        if root.op in ("placeholder", "get_attr"):
            return
        order = memory_order(root.meta["val"]) if hasattr(root.meta["val"], "stride") else None
        if order is None:
            root, order = result, tuple(range(result.meta["val"].dim()))
        if root not in self.orders:
            self.computed.append(root)
            self.orders[root] = order

    def _symbol(self, size: Any, node: Any, axis: int | None) -> bool:
        """Take note of the symbol that `size` is, if it is a new one; whether a dimension was made for it."""
        import torch

        if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol or size.node.expr in self.sizes:
            return False
        e = size.node.expr
        self.sizes[e] = self.positions[node], axis
        limits = size.node.shape_env.var_to_range.get(e)
        low, high = (int(x) if x.is_Integer and abs(int(x)) < 1 << 60 else None for x in (limits.lower, limits.upper))
        if low is None or low < 0:
            if axis is None:
                return False  # a number that may be negative is no size
            low = 0
        name = node.name if axis is None else f"{node.name}_{axis}"
        self.symbols.symbols[e] = symbol(name, low, high)
        return True

    def _result(self, node: Any) -> Any:
        value, order = super()._result(node), self.orders[node]
        if order == tuple(range(len(order))):
            return value
        return each(lambda part: self.emit(g.Transpose(part, permutation=order)), value)

    # -- Calls -------------------------------------------------------------------------------------------------------------------

    def bind(self, library: Library | None) -> Callable[[list[Any]], list[Any]]:
        """The function from torch's list of arguments, which it empties, to the list of results."""
        import torch

        tensors, carried = self.tensors, self.carried
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
                given = []
                for position in tensors:
                    x = args[position]
                    if x is None:
                        x = token  # of effects, in a backward graph
                    elif type(x) is not plain:
                        x = x.detach()  # a parameter; native code reads it where it lies
                    given.append(x if x.is_contiguous() else x.contiguous())
                given += [draw(args, computed).contiguous() for draw in draws]
                given[len(tensors) : len(tensors)] = [
                    torch.empty((int(args[position]), 0), dtype=torch.uint8) for position in carried
                ]
                found = library(*given, *nothing)
                computed = list(found) if isinstance(found, tuple) else [found]
                for k, permutation in moved:
                    computed[k] = computed[k].permute(permutation)
            results = [f(args, computed) for f in finish]
            args.clear()
            return results

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _evaluate(self, a: Any) -> Evaluate:
        """What makes a result, or an argument of a call that torch runs."""
        import torch

        if isinstance(a, (list, tuple)):
            parts = [self._evaluate(x) for x in a]
            return lambda args, computed: [part(args, computed) for part in parts]
        if not isinstance(a, torch.fx.Node):
            return lambda args, computed: a
        if a in self.positions:
            position = self.positions[a]
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
        if _is_view(a):
            return self._call_of(a)
        raise CompileError(f"'{a.name}' is a {type(val).__name__} that the arguments' sizes do not tell")

    def _call_of(self, node: Any, drawn: bool = False) -> Evaluate:
        """A call that torch runs; of one that is `drawn`, tensors among the arguments stand for how they lie in memory."""
        import torch

        def argument(a: Any) -> Evaluate:
            val = a.meta.get("val") if isinstance(a, torch.fx.Node) else None
            if not drawn or not isinstance(val, torch.Tensor):
                return self._evaluate(a)
            order = memory_order(val) or tuple(range(val.dim()))
            shape = [self._dim(val.shape[d]) for d in order]
            back = sorted(range(len(order)), key=order.__getitem__)
            return lambda args, computed: torch.empty([s(args, computed) for s in shape], dtype=val.dtype).permute(back)

        target = _dropout_noise if str(node.target) == "aten.native_dropout.default" else node.target
        parts = [argument(a) for a in node.args]
        named = {k: argument(v) for k, v in node.kwargs.items()}
        return lambda args, computed: target(
            *(p(args, computed) for p in parts), **{k: v(args, computed) for k, v in named.items()}
        )

    def _dim(self, size: Any) -> Evaluate:
        if isinstance(size, int):
            return lambda args, computed: size
        if not size.node.expr.free_symbols <= self.sizes.keys():
            raise CompileError(f"the size {size} is not told by the arguments' sizes")
        return self._size(size.node.expr)

    def _size(self, e: Any) -> Evaluate:
        places = {s: self.sizes[s] for s in e.free_symbols}

        def value(args: list[Any], place: tuple[int, int | None]) -> int:
            position, axis = place
            return int(args[position]) if axis is None else int(args[position].shape[axis])

        if e.is_Symbol:
            return lambda args, computed: value(args, places[e])
        return lambda args, computed: int(e.xreplace({s: _integer(value(args, p)) for s, p in places.items()}))


def _dropout_noise(x: Any, p: float, train: bool | None) -> Any:
    """What an eager dropout of a tensor like `x` draws: 1 where an element stays. `x` is overwritten."""
    return x.bernoulli_(1 - p) if p < 1 and train is not False else x.zero_()


def _integer(value: int) -> Any:
    import sympy

    return sympy.Integer(value)


def _foreign(node: Any) -> list[str]:
    """Element types of a node's tensors that we have no name for."""
    import torch

    val = node.meta.get("val")
    found = [x.dtype for x in (val if isinstance(val, (list, tuple)) else (val,)) if isinstance(x, torch.Tensor)]
    return [
        str(t).removeprefix("torch.") for t in found if not is_known(t) and t not in (torch.complex64, torch.complex128)
    ]


def _is_view(node: Any) -> bool:
    """Whether a node's value shares the memory of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return bool(getattr(node.target, "is_view", False))


def memory_order(val: Any) -> tuple[int, ...] | None:
    """The dimensions of a fake tensor from outermost to innermost in memory, None where it does not lie there densely."""
    import sympy

    def expression(x: Any) -> Any:
        return sympy.Integer(x) if isinstance(x, int) else x.node.expr

    def hint(x: Any) -> int:
        return x if isinstance(x, int) else int(x.node.hint or 0) if x.node.has_hint() else 0

    strides = val.stride()
    order = tuple(sorted(range(val.dim()), key=lambda d: (-hint(strides[d]), d)))
    dense = sympy.Integer(1)
    for d in reversed(order):
        size = expression(val.shape[d])
        if size == 1:
            continue
        if sympy.expand(expression(strides[d]) - dense) != 0:
            return None
        dense = dense * size
    return order


__all__ = ["GraphImporter", "memory_order"]
