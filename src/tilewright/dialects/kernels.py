"""Kernels of the user's as operators: their descriptions, and one operation for each level.

A `KernelDefinition` states a kernel once: its name, the element types and symbolic shapes of its inputs and
outputs, its meaning (a NumPy function), and an implementation for each family of targets or a loop program.
`kernel.apply` is the operator of the graph level. A loop program becomes tensor computations; other code is
`kernel.run`, a computation of the tensor level, then `kernel.call`, the call in a loop kernel. Each names the
definition by its digest, which the text of a module, and so the cache's keys, contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import KernelError, OutOfRangeError, ShapeError
from ..ir.core import Attr, Effect, IRError, Module, Operation, Value, VariadicOperand, operation
from ..ir.interpreter import Array, Frame
from ..ir.shape_solver import Define, ShapeSolver
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, free_symbols, prove_eq
from ..ir.types import DType, TensorSpec, TensorType, Type
from .elements import Elements, Statement
from .graph.base import GraphOp, tensor_type
from .tensor_builder import TensorBuilder, TensorRef

Scalar = bool | int | float
"""A number that a kernel takes beside its tensors."""
PatternTracer = Callable[[Sequence[TensorType], Mapping[str, Scalar]], Module]
"""Traces a kernel's pattern on inputs of given types with given numbers, to a module with a function
``main``.
"""


class Implementation(Protocol):
    """The code of a kernel for a family of targets. The target knows its own kinds of implementations."""

    @property
    def fingerprint(self) -> str:
        """A text that changes with the code; part of the kernel's digest."""


class LoopProgram(Protocol):
    """A kernel's code for every target: a program that becomes tensor computations."""

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function."""

    def lower(
        self,
        t: TensorBuilder,
        kernel: KernelDefinition,
        inputs: Sequence[TensorRef],
        sizes: Mapping[Expr, Dim],
        scalars: Mapping[str, Scalar],
        checks: bool = True,
    ) -> list[TensorRef]:
        """The outputs for inputs, leading dimensions joined to one.

        Args:
            t: Where they are built.
            kernel: The kernel.
            inputs: The inputs in order.
            sizes: The values of the kernel's symbols.
            scalars: The values of its numbers.
            checks: Whether indices from data are checked at run time.
        """


@dataclass(frozen=True)
class Parameter:
    """An input or output of a kernel."""

    name: str
    """Its name, an identifier."""
    spec: TensorSpec
    """Its type as declared."""
    shape: tuple[Dim, ...]
    """Its sizes in elements over the kernel's symbols, leading dimensions joined to one."""

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.spec.dtype


@dataclass(frozen=True)
class Binding:
    """The sizes of one use of a kernel."""

    sizes: dict[Expr, Any]
    """The value of each of its symbols, in order."""
    lead: tuple[Any, ...]
    """The sizes of the leading dimensions that ``"*n"`` stands for."""


class KernelDefinition:
    """The description of a kernel.

    This is no dataclass: the fingerprint of the user's code contains the functions of every dataclass in this
    package's tables, but a kernel shapes only the models that use it.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
        scalars: Mapping[str, Scalar],
        reference: Callable[..., Any],
        implementations: Mapping[str, Implementation],
        split: str | None = None,
        grain: int | None = None,
        digest: str = "",
        program: LoopProgram | None = None,
    ) -> None:
        """Describe a kernel.

        Args:
            name: Its name, an identifier.
            inputs: Types of the inputs by name, in order.
            outputs: Types of the outputs by name, in order. One with the name of an input is its new value,
                which the code writes over the old one.
            scalars: Default values of its numbers by name, in order. The type of the default is theirs.
            reference: Its meaning: takes NumPy arrays and the numbers by name, and returns the outputs.
            implementations: Its code by family of targets (``cpu``).
            split: The size whose range [0, size) threads share; None: one thread runs it.
            grain: How many elements of that range are worth a thread; None: chosen by the bytes of each.
            digest: A digest of everything that shapes results, the code of the functions included.
            program: The loop program that computes it on every target; None: `implementations` do.

        Raises:
            KernelError: The description contradicts itself; the message says where.
        """
        self.name, self.reference, self.digest = name, reference, digest
        self.scalars, self.split, self.grain = dict(scalars), split, grain
        self.implementations = dict(implementations)
        self.program = program
        self.pattern: PatternTracer | None = None
        """Traces the composition of operators that this kernel may replace; None: none is known."""
        symbols: dict[str, Expr] = {}
        try:
            self.inputs = tuple(Parameter(n, spec, spec.shape(symbols)) for n, spec in inputs.items())
            known = set(symbols)
            self.outputs = tuple(Parameter(n, spec, spec.shape(symbols)) for n, spec in outputs.items())
            self._solver = ShapeSolver([(p.name, p.shape) for p in self.inputs])
        except ValueError as error:
            raise self.error(str(error)) from None
        if unknown := [n for n in symbols if n not in known]:
            raise self.error(f"no input has the size {unknown[0]!r}, which an output has")
        self.symbols = tuple(symbols.values())
        places = {p.name: number for number, p in enumerate(self.inputs)}
        self.in_place = {k: places[p.name] for k, p in enumerate(self.outputs) if p.name in places}
        """The number of the input that an output is the new value of, by the number of the output. Both have
        one name, and the code gets one pointer.
        """
        self._check(list(symbols))

    def _check(self, sizes: list[str]) -> None:
        if not self.outputs:
            raise self.error("it has no output")
        for k, number in self.in_place.items():
            if self.inputs[number].spec != self.outputs[k].spec:
                raise self.error(
                    f"the output {self.outputs[k].name!r} has the name of an input, so it is the input's new "
                    f"value, but the input is {self.inputs[number].spec} and the output is "
                    f"{self.outputs[k].spec}; give it this type or another name"
                )
            if self.program is not None:
                raise self.error(f"the output {self.outputs[k].name!r} has the name of an input")
        if self.split is not None and self.split not in sizes:
            raise self.error(f"split={self.split!r} is none of its sizes: {', '.join(sizes) or 'none'}")
        for p in self.outputs:
            if self.split is not None and not any(
                s.name == self.split for d in p.shape for s in free_symbols(d)
            ):
                raise self.error(
                    f"split={self.split!r}: the output {p.name!r} does not have this size, so several calls "
                    "would write the same elements; leave out split="
                )
        leads = {p.spec.lead for p in self.inputs if p.spec.lead is not None}
        if len(leads) > 1:
            raise self.error(
                f"its inputs have the leading dimensions {', '.join(sorted(leads))}; only one name may have "
                "a '*'"
            )
        for p in self.outputs:
            if p.spec.lead is not None and p.spec.lead not in leads:
                raise self.error(f"no input has the leading dimensions '*{p.spec.lead}' of {p.name!r}")
        for p in (*self.inputs, *self.outputs):
            if p.dtype.kind == "string":
                raise self.error(f"{p.name!r} is a tensor of strings, which no target has")

    def __reduce__(self) -> Any:
        """A copy is the kernel itself; pickles and fingerprints hold the digest."""
        return _by_digest, (self.name, self.digest)

    def error(self, text: str) -> KernelError:
        """An error of this `text` that names the kernel."""
        return KernelError(f"kernel {self.name!r}: {text}")

    def implementation(self, target: str) -> Implementation | None:
        """The code for the target called `target`, by its full name or its family; None where there is
        none.
        """
        return self.implementations.get(target) or self.implementations.get(target.partition(":")[0])

    @property
    def pointers(self) -> tuple[int, ...]:
        """The numbers of the buffers that the code gets, among inputs and outputs in order: all but inputs
        that it changes, whose values lie in the memory of their outputs.
        """
        changed = set(self.in_place.values())
        inputs = (k for k in range(len(self.inputs)) if k not in changed)
        return (*inputs, *range(len(self.inputs), len(self.inputs) + len(self.outputs)))

    # -- Sizes -----------------------------------------------------------------------------------------------

    def bind(self, types: Sequence[TensorType]) -> Binding:
        """The sizes of a use on inputs of these `types`, in order.

        Raises:
            ShapeError: The kernel does not take these inputs; the message names the input.
        """

        def value(e: Dim, sizes: Mapping[str, Any]) -> Dim:
            return substitute(e, {s: sizes[s.name] for s in free_symbols(e)})

        return self.solve([(t.dtype, t.shape) for t in types], value, prove_eq)

    def solve(
        self,
        types: Sequence[tuple[DType, Sequence[Any]]],
        evaluate: Callable[[Dim, Mapping[str, Any]], Any],
        equal: Callable[[Any, Any], bool],
    ) -> Binding:
        """As `bind`, for sizes of any kind.

        Args:
            types: Element type and shape of each input.
            evaluate: The value of an expression, from the values of the symbols by name.
            equal: Whether two sizes are known to be equal.

        Raises:
            ShapeError: As `bind`.
        """
        if len(types) != len(self.inputs):
            raise ShapeError(
                f"kernel {self.name!r} takes {len(self.inputs)} tensors "
                f"({', '.join(p.name for p in self.inputs)}), got {len(types)}"
            )
        lead: tuple[Any, ...] | None = None
        shapes = []
        for p, (dtype, shape) in zip(self.inputs, types, strict=True):
            given = tuple(shape)
            if p.spec.lead is not None:
                rest = len(p.shape) - 1
                own = given[: len(given) - rest] if len(given) >= rest else None
                if own is not None and lead is not None:
                    same = len(own) == len(lead) and all(map(equal, own, lead))
                    if not same:
                        raise self._wrong(p, dtype, given, f"'*{p.spec.lead}' is {_text(lead)} before")
                if own is not None:
                    lead, total = own, 1
                    for d in own:
                        total = total * d
                    given = (total, *given[len(own) :])
            if dtype is not p.dtype or len(given) != len(p.shape):
                raise self._wrong(p, dtype, tuple(shape))
            shapes.append(given)
        values: dict[str, Any] = {}
        for step in self._solver.steps:
            p, size = self.inputs[step.input], shapes[step.input][step.dim]
            if isinstance(step, Define):
                scale, offset = evaluate(step.coefficient, values), evaluate(step.offset, values)
                rest = size - offset
                value = rest if isinstance(scale, int) and scale == 1 else rest // scale
                values[step.symbol.name] = value
                wanted = scale * value + offset
            else:
                wanted = evaluate(step.expr, values)
            if not equal(wanted, size):
                dtype, shape = types[step.input]
                known = ", ".join(f"{n} = {v}" for n, v in values.items())
                raise self._wrong(p, dtype, tuple(shape), f"its size {step.dim} is {size}, with {known}")
        for output in self.outputs:
            sizes = [evaluate(d, values) for d in output.shape]
            if any(isinstance(n, int) and n < 0 for n in sizes):
                known = ", ".join(f"{n} = {v}" for n, v in values.items())
                raise ShapeError(
                    f"kernel {self.name!r}: the output {output.name!r}, {output.spec}, has a negative size "
                    f"with {known}"
                )
        return Binding({s: values[s.name] for s in self.symbols}, lead or ())

    def _wrong(self, p: Parameter, dtype: DType, shape: tuple[Any, ...], why: str = "") -> ShapeError:
        return ShapeError(
            f"kernel {self.name!r}: input {p.name!r} is {dtype.label} {_text(shape)}; {p.spec} is expected"
            + (f" ({why})" if why else "")
        )

    def result_shape(
        self, p: Parameter, binding: Binding, evaluate: Callable[[Dim, Mapping[str, Any]], Any]
    ) -> tuple[Any, ...]:
        """The shape of the output `p`, with its leading dimensions.

        Args:
            p: One of `outputs`.
            binding: The sizes of the use.
            evaluate: As of `solve`.
        """
        values = {s.name: v for s, v in binding.sizes.items()}
        own = p.shape[1:] if p.spec.lead is not None else p.shape
        lead = binding.lead if p.spec.lead is not None else ()
        return (*lead, *(evaluate(d, values) for d in own))

    def flat(self, p: Parameter, binding: Binding) -> tuple[Dim, ...]:
        """The shape of the parameter `p`, with leading dimensions joined to one, for the sizes of
        `binding`.
        """
        return tuple(substitute(d, binding.sizes) for d in p.shape)

    def result_types(self, binding: Binding) -> tuple[TensorType, ...]:
        """The types of the outputs for the sizes of `binding`."""

        def value(e: Dim, _: object) -> Dim:
            return substitute(e, binding.sizes)

        return tuple(TensorType(p.dtype, self.result_shape(p, binding, value)) for p in self.outputs)

    # -- Meaning ---------------------------------------------------------------------------------------------

    def compute(self, arrays: Sequence[Array], scalars: Mapping[str, Scalar]) -> tuple[Array, ...]:
        """The outputs of the reference, of the shapes and element types of `outputs`.

        Args:
            arrays: The inputs, of the shapes and element types of `inputs`.
            scalars: The values of all numbers by name.

        Raises:
            ShapeError: The kernel does not take these arrays.
            KernelError: The reference fails, or returns other shapes than the description has.
        """
        types = [TensorType(DType.of(x), x.shape) for x in arrays]
        wanted = self.result_types(self.bind(types))
        try:
            with np.errstate(all="ignore"):
                results = self.reference(*arrays, **scalars)
        except (OutOfRangeError, KernelError):
            raise
        except Exception as error:
            raise self.error(f"its reference raises {type(error).__name__}: {error}") from error
        results = results if isinstance(results, (tuple, list)) else (results,)
        shapes = [np.shape(y) for y in results]
        if shapes != [t.shape for t in wanted]:
            raise self.error(
                f"its reference returns the shapes {', '.join(map(_text, shapes))} for inputs of the shapes "
                f"{', '.join(_text(x.shape) for x in arrays)}; the description says "
                f"{', '.join(_text(t.shape) for t in wanted)}"
            )
        return tuple(
            np.ascontiguousarray(np.asarray(y).astype(t.dtype.numpy)).reshape(t.shape)
            for y, t in zip(results, wanted, strict=True)
        )


def _text(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


KERNELS: dict[str, KernelDefinition] = {}
"""All kernels that this process has defined, by digest."""


def _by_digest(name: str, digest: str) -> KernelDefinition:
    if digest not in KERNELS:
        raise KernelError(
            f"kernel {name!r} (digest {digest}) is not defined in this process: import the module that "
            "defines it"
        )
    return KERNELS[digest]


def definition_of(op: Apply | Run | Call) -> KernelDefinition:
    """The definition of the kernel that an operation names.

    Raises:
        IRError: This process has not defined it.
    """
    definition = KERNELS.get(op.digest)
    if definition is None:
        raise IRError(
            f"the kernel {op.kernel!r} (digest {op.digest}) is not defined in this process: import the "
            "module that defines it",
            op,
        )
    return definition


def scalars_of(op: Apply | Run | Call) -> dict[str, Scalar]:
    """The numbers of a use of a kernel by name."""
    return dict(zip(definition_of(op).scalars, op.scalars, strict=True))


@operation
class Apply(GraphOp):
    """A kernel of the user's on tensors; `scalars` are the values of its numbers in order, `checks` tells
    whether a loop program checks indices from data.
    """

    name = "kernel.apply"
    inputs: VariadicOperand
    kernel: Attr
    digest: Attr
    scalars: Attr = ()
    checks: Attr = True

    def infer_types(self) -> Sequence[Type]:
        definition = definition_of(self)
        if len(self.scalars) != len(definition.scalars):
            raise IRError(f"takes the numbers {', '.join(definition.scalars) or 'none'}", self)
        try:
            binding = definition.bind([tensor_type(v) for v in self.inputs])
        except ShapeError as error:
            raise IRError(str(error), self) from None
        return definition.result_types(binding)

    def reference(self, *inputs: Array) -> Any:
        results = definition_of(self).compute(inputs, scalars_of(self))
        return results[0] if len(results) == 1 else results

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        definition = definition_of(self)
        binding = definition.bind([tensor_type(v) for v in self.inputs])
        flat = [
            t.reshape(x, definition.flat(p, binding))
            for p, x in zip(definition.inputs, operands, strict=True)
        ]
        if definition.program is not None:
            results = definition.program.lower(
                t, definition, flat, binding.sizes, scalars_of(self), self.checks
            )
            return [t.reshape(y, r.type.shape) for y, r in zip(results, self.results, strict=True)]
        run = Run(
            [x.value for x in flat],
            kernel=self.kernel,
            digest=self.digest,
            scalars=self.scalars,
            sizes=tuple(binding.sizes.values()),
            result_types=[TensorType(p.dtype, definition.flat(p, binding)) for p in definition.outputs],
            location=self.location,
        )
        t.builder.insert(run)
        return [
            t.reshape(t.wrap(y), result.type.shape)
            for y, result in zip(run.results, self.results, strict=True)
        ]


@operation
class Run(Operation):
    """A kernel of the user's as a computation. `sizes` are the values of the kernel's symbols; leading
    dimensions of operands and results are joined to one.
    """

    name = "kernel.run"
    effects = Effect.PURE
    inputs: VariadicOperand
    kernel: Attr
    digest: Attr
    scalars: Attr = ()
    sizes: Attr = ()

    def interpret(self, env: Frame, *inputs: Array) -> Any:
        return definition_of(self).compute(inputs, scalars_of(self))


@operation
class Call(Statement):
    """The call of a kernel of the user's on buffers, inputs before its `num_outputs` outputs.

    `range` is the number of iterations that threads share. The reference stands for all of them, so the
    interpreter runs the call once.
    """

    name = "kernel.call"
    effects = Effect.READ | Effect.WRITE
    buffers: VariadicOperand
    kernel: Attr
    digest: Attr
    scalars: Attr = ()
    sizes: Attr = ()
    num_outputs: Attr = 1
    range: Attr = 1

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.buffers[: len(self.buffers) - self.num_outputs])

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.buffers[len(self.buffers) - self.num_outputs :])

    def infer_types(self) -> Sequence[Type]:
        return ()

    def touched(self) -> tuple[Elements, ...]:
        first = len(self.buffers) - self.num_outputs
        return tuple(self.box(v, 0, [(v.type.size, 1)], k >= first) for k, v in enumerate(self.buffers))

    def interpret(self, env: Frame, *buffers: Array) -> tuple[()]:
        count = len(buffers) - self.num_outputs
        results = definition_of(self).compute(buffers[:count], scalars_of(self))
        for target, result in zip(buffers[count:], results, strict=True):
            target[...] = result
        return ()


def kernels_in(module: Module) -> dict[str, KernelDefinition]:
    """The kernels of the user's that a module uses, by digest."""
    return {op.digest: definition_of(op) for op in module.walk() if isinstance(op, (Apply, Run, Call))}


__all__ = [
    "KERNELS",
    "Apply",
    "Binding",
    "Call",
    "Implementation",
    "LoopProgram",
    "KernelDefinition",
    "Parameter",
    "PatternTracer",
    "Run",
    "Scalar",
    "definition_of",
    "kernels_in",
    "scalars_of",
]
