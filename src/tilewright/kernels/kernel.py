"""`Kernel`: what a user holds of a kernel of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialects import func
from ..dialects.kernels import Apply, KernelDefinition, Scalar
from ..errors import KernelError
from ..frontends.trace.operands import apply_several, as_tensor, value_of
from ..frontends.trace.tensor import traced
from ..frontends.trace.tracing import Trace, tracing
from ..frontends.trace.tree import flatten
from ..ir.builder import Builder
from ..ir.core import Module
from ..ir.substitution import evaluate
from ..ir.types import TensorType
from ..targets.gpu.user_kernel import DeviceSource
from ..targets.gpu.user_source import GpuSource
from ..targets.llvm.c_kernels import CSource, header
from .loops.check import Inputs, check_program
from .loops.plain import run_plain

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel


class Kernel(KernelDefinition):
    """A kernel of the user's, which is called like a function.

    On `tilewright.Tensor`s it is an operator: recorded in functions that are traced, else computed at once by
    the reference. On torch tensors it is the operator `torch`. `c_kernel` and `kernel` make kernels.
    """

    @cached_property
    def _libraries(self) -> dict[tuple[str, tuple[Scalar, ...]], CompiledModel]:
        """The compiled kernel by target and the values of its numbers."""
        return {}

    def replaces(self, pattern: Callable[..., Any] | None) -> None:
        """Let `place` put this kernel in place of what `pattern` computes: a function on
        `tilewright.Tensor`s of the same arguments and results.
        """
        if pattern is not None:
            self.pattern = lambda types, numbers: _trace(self, pattern, types, numbers)

    def __repr__(self) -> str:
        ins = ", ".join(f"{p.name}: {p.spec}" for p in self.inputs)
        outs = ", ".join(f"{p.name}: {p.spec}" for p in self.outputs)
        return f"Kernel({self.name}({ins}) -> {outs})"

    def __call__(self, *tensors: Any, **scalars: Scalar) -> Any:
        """The outputs for inputs, one tensor or a tuple of several.

        Args:
            *tensors: The inputs in order: `tilewright.Tensor`s or arrays, or all torch tensors.
            **scalars: The numbers that differ from their defaults.

        Raises:
            ShapeError: The kernel does not take these inputs; the message names the input.
            TypeError: It has no number of a name.
        """
        numbers = self.numbers(scalars)
        torch = sys.modules.get("torch")
        if torch is not None and any(isinstance(x, torch.Tensor) for x in tensors):
            return self.torch(*tensors, *numbers)
        operands = [as_tensor(x) for x in tensors]
        if len(operands) != len(self.inputs):
            self.bind([x.type for x in operands])  # says what is expected
        results = apply_several(Apply, operands, kernel=self.name, digest=self.digest, scalars=numbers)
        return results[0] if len(results) == 1 else results

    def numbers(self, given: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
        """The values of all numbers in order: those of `given` by name, else the defaults.

        Raises:
            TypeError: The kernel has no number of a name, or a value is of another type.
        """
        for word, value in given.items():
            if word not in self.scalars:
                raise TypeError(
                    f"kernel {self.name!r} has no number {word!r}; it has {', '.join(self.scalars) or 'none'}"
                )
            if isinstance(self.scalars[word], int) and not isinstance(value, (int, np.integer)):
                raise TypeError(f"kernel {self.name!r}: {word!r} is a whole number, got {value!r}")
        return tuple(type(default)(given.get(n, default)) for n, default in self.scalars.items())

    @property
    def header(self) -> str:
        """The C header that declares the kernel's function.

        Raises:
            KernelError: The kernel has no C or C++ source.
        """
        source = next((i for i in self.implementations.values() if isinstance(i, CSource)), None)
        if source is None:
            raise KernelError(f"kernel {self.name!r} has no C or C++ source")
        return header(self, source.function)

    @cached_property
    def torch(self) -> Any:
        """The operator ``torch.ops.tilewright.<name>``, registered with `torch.library`, its importer and its
        rule of shapes.

        Its eager form runs the compiled kernel. ``kernel.torch.register_autograd`` gives it a gradient. A
        kernel that is defined after torch was imported is registered at once.
        """
        from .torch_operator import register

        return register(self, self.run, self.numbers)

    def announce(self) -> None:
        """Register the torch operator if torch has been imported."""
        if "torch" in sys.modules:
            _ = self.torch

    def library(self, **scalars: Scalar) -> CompiledModel:
        """The kernel alone, compiled for this machine: a function of its inputs, leading dimensions joined to
        one, for all sizes.

        Args:
            **scalars: The numbers that differ from their defaults.

        Raises:
            KernelError: The compiler refuses the source; the message is the compiler's.
        """
        return self._library("cpu", self.numbers(scalars))

    def _library(self, target: str, numbers: tuple[Scalar, ...]) -> CompiledModel:
        from ..driver.compile import compile

        if (target, numbers) not in self._libraries:
            module = Module()
            types = [TensorType(p.dtype, p.shape) for p in self.inputs]
            main = func.Func(
                sym_name="main",
                arg_names=tuple(p.name for p in self.inputs),
                result_names=tuple(p.name for p in self.outputs),
            )
            module.body.append(main)
            operands = [main.body.add_arg(t, p.name) for t, p in zip(types, self.inputs, strict=True)]
            b = Builder(main.body)
            apply = Apply(operands, kernel=self.name, digest=self.digest, scalars=numbers)
            b.insert(apply)
            b.insert(func.Return(list(apply.results)))
            self._libraries[target, numbers] = compile(module, target=target)
        return self._libraries[target, numbers]

    def run(self, arrays: Sequence[np.ndarray[Any, Any]], **scalars: Scalar) -> tuple[Any, ...]:
        """The outputs of the compiled kernel, of the shapes and element types of `outputs`; those of the
        reference if it has no code for this machine's processor.

        Args:
            arrays: The inputs, of the shapes and element types of `inputs`; ``"*n"`` may be any number of
                leading dimensions.
            **scalars: The numbers that differ from their defaults.

        Raises:
            ShapeError: The kernel does not take these arrays.
            KernelError: The compiler refuses the source; the message is the compiler's.
        """
        arrays = [np.ascontiguousarray(x).reshape(np.shape(x)) for x in arrays]
        binding = self.bind([as_tensor(x).type for x in arrays])
        shapes = [t.shape for t in self.result_types(binding)]
        flat = [
            x.reshape([evaluate(d, {}) for d in self.flat(p, binding)])
            for x, p in zip(arrays, self.inputs, strict=True)
        ]
        if self.program is None and self.pattern is None and self.implementation("cpu") is None:
            return self.compute(arrays, dict(zip(self.scalars, self.numbers(scalars), strict=True)))
        results = self.library(**scalars)(*flat)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return tuple(np.asarray(y).reshape(shape) for y, shape in zip(results, shapes, strict=True))

    def plain(self, *arrays: Any, **scalars: Scalar) -> Any:
        """The outputs that the function of a loop program computes when Python runs it, element by element:
        slow, but with `print` and a debugger.

        Args:
            *arrays: The inputs in order, as arrays.
            **scalars: The numbers that differ from their defaults.

        Raises:
            KernelError: The kernel is no loop program, or does what it must not.
        """
        if self.program is None:
            raise self.error("it is no loop program, so Python cannot run it")
        numbers = dict(zip(self.scalars, self.numbers(scalars), strict=True))
        results = run_plain(self, self.program.function, [np.asarray(x) for x in arrays], numbers)
        return results[0] if len(results) == 1 else results

    def place(self, module: Module) -> int:
        """Put this kernel in place of the subgraphs of `module`, a graph, that are equal to its pattern;
        return their number.

        A registered pass that calls it places the kernel in every model: ``register_pass(function,
        level="graph", before="recognize")``.

        Raises:
            KernelError: The kernel has no pattern.
        """
        from ..passes.graph.replace_subgraphs import replace_subgraphs

        if self.pattern is None:
            raise self.error("it has no pattern; define it with pattern=")
        return replace_subgraphs(module, [self])[self.name]

    def check(
        self,
        sizes: int | Sequence[Mapping[str, int]] = 8,
        *,
        seed: int = 0,
        rtol: float | None = None,
        atol: float | None = None,
        inputs: Inputs | None = None,
        target: str | None = None,
        **scalars: Scalar,
    ) -> None:
        """Compare the compiled kernel with the reference on random inputs, in this process.

        A source for GPUs runs in the simulator, whose checked mode finds accesses out of bounds, races and
        other faults; OpenCL C runs on a device. Each trial of a C or C++ source runs the whole range at once,
        then in several parts in another order, with memory behind the tensors that must not change and
        outputs that are NaN before. A loop program is also compared with `plain`.

        Args:
            sizes: The number of trials with sizes drawn from odd and even numbers (the first has all sizes
                1), or the sizes of each trial by name.
            seed: The seed of sizes and inputs. Floats are normal, integers small.
            rtol: The relative tolerance; None: by the outputs' element type.
            atol: The absolute tolerance; None: by the outputs' element type.
            inputs: For a loop program or a source for GPUs: a function of the sizes by name and a random
                generator that makes the inputs, such as indices in range; None: random ones.
            target: The target whose code is checked; None: this machine's processor, or the first target that
                the kernel has code for.
            **scalars: The numbers that differ from their defaults.

        Raises:
            KernelError: The kernel differs from the reference (the message shows the sizes, the first
                different element and both values), writes outside of its outputs, or does not compile.
        """
        from .check import check, check_on_device

        numbers = dict(zip(self.scalars, self.numbers(scalars), strict=True))
        chosen = target or ("cpu" if self.program is not None or self.implementation("cpu") else None)
        chosen = chosen or next(iter(self.implementations))
        code = self.implementation(chosen)
        if isinstance(code, DeviceSource) and not isinstance(code, GpuSource):
            raise self.error(f"check: nothing here runs its code for {chosen!r}; Triton's interpreter does")
        if isinstance(code, GpuSource):
            library = self._library(chosen, tuple(numbers.values()))
            check_on_device(self, library, sizes, seed, rtol, atol, numbers, inputs)
            return
        if chosen != "cpu":
            raise self.error(f"check: it has no source for the target {chosen!r}")
        if self.program is not None:
            check_program(
                self, lambda arrays: self.run(arrays, **scalars), sizes, seed, rtol, atol, numbers, inputs
            )
            return
        check(self, sizes, seed, rtol, atol, tuple(numbers.values()))


def _trace(
    kernel: Kernel,
    pattern: Callable[..., Any],
    types: Sequence[TensorType],
    numbers: Mapping[str, Scalar],
) -> Module:
    """A kernel's pattern as a module.

    Raises:
        KernelError: The pattern does not return the outputs of the description.
    """
    wanted = kernel.result_types(kernel.bind(types))
    module = Module()
    main = func.Func(sym_name="main", arg_names=tuple(p.name for p in kernel.inputs))
    module.body.append(main)
    arguments = [traced(main.body.add_arg(t, p.name)) for t, p in zip(types, kernel.inputs, strict=True)]
    with tracing(Trace(main)) as trace:
        results, _, _ = flatten(pattern(*arguments, **numbers))
        values = [value_of(as_tensor(x)) for x in results]
        trace.builder.insert(func.Return(values))
    main.result_names = tuple(p.name for p in kernel.outputs)[: len(values)]
    found = [v.type for v in values]
    if len(found) != len(wanted) or any(
        a.dtype is not b.dtype or a.rank != b.rank for a, b in zip(found, wanted, strict=True)
    ):
        raise kernel.error(
            f"its pattern returns {', '.join(map(str, found))}; the description says "
            f"{', '.join(map(str, wanted))}"
        )
    return module


__all__ = ["Kernel"]
