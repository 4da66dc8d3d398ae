"""The kernels of a model as the tuner sees them: the space of each, what it is called with, and how its
candidates are built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import link
from ..artifact.choices import Choice
from ..artifact.kinds import suffixes_of
from ..dialects import graph, loop, scalar, tensor
from ..driver.tuned import digest_of
from ..driver.tuning_database import KernelKey
from ..errors import TilewrightError
from ..ir import notes
from ..ir.core import Module, Value
from ..ir.substitution import evaluate
from ..ir.symbolic import Dim, bounds, free_symbols
from ..lowering.groups_to_kernels import group_bytes, group_flops, kernel_names
from ..lowering.kernel_forms import Form, forms, structure_of, unscheduled
from ..schedule.core import ScheduleError
from ..targets.base import KernelObjects, Target
from .harness import Argument, KernelDescription
from .measure import Built
from .space import Point, Space, Values

if TYPE_CHECKING:
    from ..driver.compile import Compilation

_PARTIAL = ("sqrt", "rsqrt", "log", "log1p", "log2", "pow", "acos", "asin", "acosh", "atanh", "reciprocal")
"""Functions that have no value for some numbers; their kernels get positive inputs."""
_LARGEST = 512
"""The size that stands for a symbol of which only bounds are known, unless they forbid it."""


@dataclass
class ModelKernel:
    """A distinct kernel of a model."""

    name: str
    launches: int
    key: KernelKey
    form: Form
    default: tuple[Choice, ...]
    """The knobs that its rule asks for."""
    arguments: tuple[Argument, ...]
    sizes: Mapping[str, int]
    terms: int
    """The most terms of a sum."""
    flops: float
    """Operations of one launch."""
    bytes: float
    """Bytes that one launch moves."""

    @property
    def has_knobs(self) -> bool:
        """Whether there is anything to choose."""
        return bool(self.default)

    def space(self) -> Space:
        """The points that the rule accepts. A rule that fails with choices refuses them."""

        def rule(values: Values) -> Sequence[Choice]:
            try:
                return self.form.choices(values)
            except ScheduleError:
                raise
            except Exception as error:
                raise ScheduleError(f"the rule fails: {type(error).__name__}: {error}") from error

        return Space(rule)


@dataclass(frozen=True)
class Untunable:
    """A kernel of a model that has no space."""

    name: str
    reason: str


def kernels_of(
    compilation: Compilation, key: Callable[[str], KernelKey], sizes: Mapping[str, int]
) -> tuple[list[ModelKernel], list[Untunable]]:
    """The kernels of a model, each distinct one once.

    Args:
        compilation: The model, compiled.
        key: Gives the key of a kernel's structure.
        sizes: Values of the model's dynamic dimensions, for which kernels are measured.
    """
    target = compilation.target
    module = compilation.grouped()
    names = kernel_names(module)
    launches: dict[str, int] = {}
    for name in names.values():
        launches[name] = launches.get(name, 0) + 1
    last = max((c.size for c in target.info.machine.caches), default=0)
    cold = _constant_bytes(module) > last
    found: dict[str, ModelKernel] = {}
    others: dict[str, Untunable] = {}
    for group, name in names.items():
        if name in found or name in others:
            continue
        if any(own.fits(name) for own in compilation.options.schedules):
            others[name] = Untunable(name, "it has a schedule of your own")
            continue
        if notes.OVERWRITES.present(group):
            others[name] = Untunable(name, "it changes its input in place")
            continue
        form, choices = _form(group, name, target)
        if form is None or not choices:
            others[name] = Untunable(name, "its schedule has no choices")
            continue
        kernel = unscheduled(group, "kernel")
        known = {d.name: sizes.get(d.name, _some_size(d)) for d in kernel.dims}
        try:
            number = {
                "flops": evaluate(group_flops(group), known),
                "bytes": evaluate(group_bytes(group), known),
            }
        except KeyError:  # symbols of its operands that the kernel does not read
            number = {"flops": 0, "bytes": 0}
        found[name] = ModelKernel(
            name,
            launches[name],
            key(structure_of(group)),
            form,
            choices,
            _arguments(kernel, group, known, cold),
            known,
            _terms(kernel, known),
            float(number["flops"]),
            float(number["bytes"]),
        )
    return list(found.values()), list(others.values())


def _form(group: tensor.Group, name: str, target: Target) -> tuple[Form | None, tuple[Choice, ...]]:
    """The form that the compiler takes by itself, and its knobs."""
    for form in forms(group, name, target.info, target.lowering.rules):
        try:
            return form, form.scheduled().choices
        except ScheduleError:
            continue
    return None, ()


def _constant_bytes(module: Module) -> int:
    return sum(op.value.nbytes for op in module.walk() if isinstance(op, graph.Constant))


def _some_size(dim: Dim) -> int:
    low, high = bounds(dim)
    return max(low or 1, min(_LARGEST, _LARGEST if high is None else high))


def _number(dim: Dim, sizes: Mapping[str, int]) -> int:
    missing = {s.name: sizes.get(s.name, _some_size(s)) for s in free_symbols(dim)}
    return dim if isinstance(dim, int) else int(evaluate(dim, missing))


def _arguments(
    kernel: loop.Kernel, group: tensor.Group, sizes: Mapping[str, int], cold: bool
) -> tuple[Argument, ...]:
    values = list(group.operands)
    inputs = len(kernel.body.args) - kernel.num_outputs
    partial = any(
        isinstance(op, (scalar.Unary, scalar.Binary)) and op.name.rpartition(".")[2] in _PARTIAL
        for op in kernel.walk()
    )
    shapes = [tuple(_number(d, sizes) for d in a.type.shape) for a in kernel.body.args]
    rows = min((max(shape) for shape in shapes if shape), default=1)
    arguments = []
    for number, (value, shape) in enumerate(zip(kernel.body.args, shapes, strict=True)):
        dtype = value.type.dtype
        low, high = (0.25, 1.0) if partial else (-1.0, 1.0)
        if not dtype.is_float:  # a small number where it may be an index
            byte = dtype.bits <= 8
            low, high = (
                (-127.0 if byte and dtype.name.startswith("i") else 0.0),
                127.0 if byte else rows - 1.0,
            )
        is_input = number < inputs
        arguments.append(
            Argument(
                f"operand {number}" if is_input else f"result {number - inputs}",
                dtype.name,
                shape,
                "input" if is_input else "output",
                low,
                max(low, min(high, 127.0)),
                cold and is_input and number < len(values) and _is_constant(values[number]),
            )
        )
    return tuple(arguments)


def _is_constant(value: Value) -> bool:
    """Whether a value is a weight, perhaps in another shape."""
    op = value.defining_op
    while op is not None and not isinstance(op, graph.Constant):
        if len(op.operands) != 1 or isinstance(op, tensor.Group):
            return False
        op = op.operands[0].defining_op
    return op is not None


def _terms(kernel: loop.Kernel, sizes: Mapping[str, int]) -> int:
    """The most terms of a sum: the product of a block's reduction axes."""
    counts = [1]
    for op in kernel.walk():
        if isinstance(op, loop.Block) and op.reduce_axes:
            counts.append(math.prod(_number(tensor.extent(a), sizes) for a in op.reduce_axes))
    return max(counts)


class Builder:
    """Compiles points of a kernel's space to libraries for the target, in a folder."""

    def __init__(
        self, kernel: ModelKernel, target: Target, folder: Path, threads: int, llvm_opt_level: int = 2
    ) -> None:
        """Libraries go to `folder`; kernels are called with `threads` threads."""
        self.kernel, self.target, self.folder = kernel, target, folder
        self._threads, self._llvm_opt_level = threads, llvm_opt_level

    def __call__(self, points: Sequence[Point]) -> list[Built | TilewrightError]:
        """Compile points; those that cannot be compiled give an error."""
        found: list[Built | TilewrightError | None] = [None] * len(points)
        kernels: list[loop.Kernel] = []
        digests: dict[int, str] = {}
        for number, point in enumerate(points):
            try:
                kernel = self.kernel.form.scheduled(point.overrides).kernel
                digests[number] = digest_of(self.target, kernel)
                kernels.append(kernel)
            except Exception as error:  # a rule's or the code generator's failure is the candidate's
                found[number] = _as_error(error)
        objects = self._objects(kernels)
        for (number, digest), made in zip(digests.items(), objects, strict=True):
            found[number] = (
                made if isinstance(made, TilewrightError) else self._linked(points[number], digest, made)
            )
        return [f for f in found if f is not None]

    def _objects(self, kernels: Sequence[loop.Kernel]) -> list[KernelObjects | TilewrightError]:
        if not kernels:
            return []
        try:
            return [*self.target.kernel_objects(kernels, self._llvm_opt_level)]
        except Exception as error:
            if len(kernels) == 1:
                return [_as_error(error)]
            return [one for kernel in kernels for one in self._objects([kernel])]

    def _linked(self, point: Point, digest: str, made: KernelObjects) -> Built | TilewrightError:
        kernel = self.kernel
        triple = kernel.key.triple
        suffix = suffixes_of(triple)[0]
        path = self.folder / f"{digest}{suffix}"
        try:
            if not path.exists():
                link.link_shared(made.objects, path, triple, [made.symbol])
            extent, grain, scratch = (
                _number(d, kernel.sizes) for d in (made.extent, made.grain, made.scratch)
            )
        except Exception as error:
            return _as_error(error)
        description = KernelDescription(
            made.symbol,
            kernel.arguments,
            extent,
            grain,
            tuple(kernel.sizes[name] for name in sorted(kernel.sizes)),
            scratch,
            self._threads,
            point.reorders_sums,
            kernel.terms,
        )
        return Built(path, description, digest)


def _as_error(error: Exception) -> TilewrightError:
    if isinstance(error, TilewrightError):
        return error
    return TilewrightError(f"{type(error).__name__}: {error}")


__all__ = ["Builder", "ModelKernel", "Untunable", "kernels_of"]
