"""`kernel`: a Python function of loops as an operator."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from ..artifact import disk_cache
from ..dialects import func
from ..dialects.kernels import KERNELS
from ..dialects.tensor_builder import TensorBuilder
from ..errors import KernelError
from ..ir.builder import Builder
from ..ir.core import Module
from ..ir.types import TensorSpec, TensorType
from .contents import contents
from .family import KernelFamily
from .kernel import Kernel
from .loops.generic import GenericSpec
from .loops.program import Program


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...


@overload
def kernel(
    *,
    name: str | None = None,
    types: Mapping[str, TensorSpec | GenericSpec] | None = None,
    outputs: Sequence[str] | None = None,
    reference: Callable[..., Any] | None = None,
    pattern: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    types: Mapping[str, TensorSpec | GenericSpec] | None = None,
    outputs: Sequence[str] | None = None,
    reference: Callable[..., Any] | None = None,
    pattern: Callable[..., Any] | None = None,
) -> Any:
    """Make a Python function of loops over elements an operator, for every target.

    The function's parameters are arrays, with types such as ``tw.f32["n", "d"]``, and numbers with defaults.
    It returns nothing: arrays whose elements it assigns are its outputs. Its source is read, not run;
    `Kernel.plain` runs it as Python. Where arrays have an `element_type`, the result is a `KernelFamily`.

    Args:
        function: The function, where `kernel` is a decorator without arguments.
        name: The name of the operator; None: the function's.
        types: Types of arrays by name, in place of annotations.
        outputs: The names of the outputs; None: the parameters whose elements the function assigns.
        reference: As of `c_kernel`; None: the program itself, as the interpreter runs it.
        pattern: As of `c_kernel`.

    Raises:
        KernelError: The function is no loop program; the message shows the line.
    """
    if function is None:
        return lambda f: _define(f, name, types, outputs, reference, pattern)
    return _define(function, name, types, outputs, reference, pattern)


def _define(
    function: Callable[..., Any],
    name: str | None,
    types: Mapping[str, TensorSpec | GenericSpec] | None,
    outputs: Sequence[str] | None,
    reference: Callable[..., Any] | None,
    pattern: Callable[..., Any] | None,
) -> Kernel | KernelFamily:
    word = name or function.__name__
    program = Program(function, word)
    given = types or {}
    elements = program.elements(given)
    if not elements:
        return _one(program, given, outputs, reference, pattern)
    kernels = []
    for dtypes in itertools.product(*(e.choices for e in elements)):
        own = f"{word}_{'_'.join(d.name for d in dtypes)}"
        program = Program(function, own, dict(zip(elements, dtypes, strict=True)))
        kernels.append(_one(program, given, outputs, reference, pattern))
    return KernelFamily(word, kernels)


def _one(
    program: Program,
    types: Mapping[str, TensorSpec | GenericSpec],
    outputs: Sequence[str] | None,
    reference: Callable[..., Any] | None,
    pattern: Callable[..., Any] | None,
) -> Kernel:
    word, function = program.name, program.function
    tensors, numbers = program.parameters(types)
    written = [n for n in (program.written() if outputs is None else outputs) if n in tensors]

    def run(*arrays: Any, **scalars: Any) -> Any:
        return program.interpret(made, arrays, scalars)

    described = repr(
        (word, [(n, s.dtype.name, s.sizes) for n, s in tensors.items()], written, list(numbers.items()))
    )
    digest = disk_cache.digest(
        described,
        "".join(program.source.lines),
        contents(inspect.unwrap(function)),
        contents(reference),
        contents(pattern),
    )
    try:
        made = Kernel(
            word,
            inputs={n: s for n, s in tensors.items() if n not in written},
            outputs={n: tensors[n] for n in tensors if n in written},
            scalars=numbers,
            reference=reference or run,
            implementations={},
            digest=digest,
            program=program,
        )
    except KernelError as error:
        text = str(error).partition(": ")[2]
        more = f"; it writes {', '.join(written)}, which are thus outputs" if written else ""
        more = more or "; assign elements of a parameter"
        raise program.source.error(program.source.tree, text + more) from None
    made.replaces(pattern)
    _try(made, program)
    KERNELS[digest] = made
    made.announce()
    return made


def _try(made: Kernel, program: Program) -> None:
    """Lower a program for symbolic sizes, so that its mistakes are told where it is defined."""
    main = func.Func(sym_name="main", arg_names=tuple(p.name for p in made.inputs))
    module = Module()
    module.body.append(main)
    t = TensorBuilder(Builder(main.body))
    inputs = [t.wrap(main.body.add_arg(TensorType(p.dtype, p.shape), p.name)) for p in made.inputs]
    program.lower(t, made, inputs, {s: s for s in made.symbols}, made.scalars)


__all__ = ["kernel"]
