"""`tilewright.compare`: a compiled model beside its own framework, layer by layer, down to the operator where
the numbers part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...driver.compile import compile
from ...driver.frontend_registry import find_frontend
from ...driver.random_inputs import default_sizes, random_inputs
from ...errors import CompileError
from ..verify import compare as compare_arrays
from ..verify import tolerances
from .places import Array, InnerValues, Place, layers

if TYPE_CHECKING:
    from ...frontends.dims import DimsArgument
    from ...runtime.model import CompiledModel


@dataclass(frozen=True)
class ComparedValue:
    """One value of the compiled model beside the framework's.

    Attributes:
        layer: The layer that ends with it; for an operator inside of a layer the operator's name.
        place: The operator that computes it.
        shape: Its sizes.
        dtype: Its element type.
        max_abs: The largest absolute error.
        max_rel: That error over the value's largest magnitude.
        passed: Whether all elements are within the tolerance of the type.
        note: Another difference: of shapes, of types, of the places of NaNs.
    """

    layer: str
    place: Place
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class NonFinite:
    """The first operator, in the model's own framework, whose result has a NaN or an infinity.

    Attributes:
        place: The operator.
        nans: The number of elements that are no numbers.
        infinities: The number of infinite elements.
    """

    place: Place
    nans: int
    infinities: int


@dataclass(frozen=True)
class LayerComparison:
    """The result of `tilewright.compare`.

    Attributes:
        framework: The framework that ran the model.
        outputs: The outputs of the compiled model.
        layers: The last value of each layer, in order.
        operators: The values inside of the layer where the numbers part; empty if they do not.
        first: The first value that differs, or None.
        alone: Whether `first` was found by showing one value at a time. Values that are shown together are
            stored, which can change the kernels so that they are right.
        kernels: The kernels of the compiled model that compute `first`.
        first_nan: The first operator whose result has a NaN, or None.
        first_infinity: The first operator whose result has an infinity, or None.
    """

    framework: str
    outputs: tuple[ComparedValue, ...]
    layers: tuple[ComparedValue, ...]
    operators: tuple[ComparedValue, ...] = ()
    first: ComparedValue | None = None
    alone: bool = False
    kernels: tuple[str, ...] = ()
    first_nan: NonFinite | None = None
    first_infinity: NonFinite | None = None

    @property
    def passed(self) -> bool:
        """Whether all outputs and all layers agree."""
        return all(x.passed for x in (*self.outputs, *self.layers))

    def verdict(self) -> list[str]:
        """Lines of text: where the numbers part, and the first NaN and infinity."""
        lines = []
        if self.first is not None:
            error = self.first.note or f"max abs {self.first.max_abs:.2e}, max rel {self.first.max_rel:.2e}"
            lines.append(f"the numbers part at {self.first.place}: {error}")
            if self.kernels:
                lines.append(f"computed by the kernel {', '.join(self.kernels)}")
            if self.alone:
                lines.append(
                    "found by showing one value at a time: the kernel is right where others are, too"
                )
        elif not self.passed:
            lines.append(
                "outputs differ, and every value inside is right when it is shown: the fault is in a kernel "
                "that is made only without shown values, or in the memory that kernels share"
            )
        else:
            lines.append(f"all layers and outputs agree with {self.framework}")
        for what, found in (("NaN", self.first_nan), ("infinity", self.first_infinity)):
            if found is not None:
                counts = f"{found.nans} NaN, {found.infinities} infinite"
                lines.append(f"the first {what} in {self.framework}: {found.place}, {counts}")
        return lines


@dataclass
class _Run:
    """A model, the inputs, and what its framework computes of them."""

    values: InnerValues
    options: dict[str, Any]
    precision: str = ""
    inputs: dict[str, Array] = field(default_factory=dict)
    expected: dict[int, Array] = field(default_factory=dict)
    tolerance: tuple[float | None, float | None] = (None, None)

    def row(self, label: str, place: Place, actual: Array, expected: Array) -> ComparedValue:
        rtol, atol = tolerances(expected.dtype, self.precision)
        rtol, atol = (
            default if given is None else given
            for given, default in zip(self.tolerance, (rtol, atol), strict=True)
        )
        actual, expected = (x.view(x.real.dtype) if x.dtype.kind == "c" else x for x in (actual, expected))
        with np.errstate(all="ignore"):
            errors = compare_arrays(actual, expected, rtol, atol)
        return ComparedValue(label, place, tuple(expected.shape), expected.dtype.name, *errors)

    def shown(self, numbers: Sequence[int], labels: Sequence[str] = ()) -> list[ComparedValue]:
        """Compare the values of places, which one compiled model returns beside its results."""
        if not numbers:
            return []
        with compile(self.values.module(numbers), **self.options) as library:
            results = called(library, self.inputs)[-len(numbers) :]
            places = [self.values.places[k] for k in numbers]
            names = labels or [place.name for place in places]
            return [
                self.row(name, place, np.asarray(x), self.expected[k])
                for name, place, x, k in zip(names, places, results, numbers, strict=True)
            ]


def called(library: CompiledModel, inputs: Mapping[str, Array]) -> list[Any]:
    """The results of a call in a list. Inputs that the model changes are copies."""
    results = library(*(np.array(x) for x in inputs.values()))
    return list(results) if isinstance(results, tuple | list) else [results]


def compare(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dims: DimsArgument | None = None,
    inputs: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Callable[..., None] | None = None,
    **options: Any,
) -> LayerComparison:
    """Run a model in its own framework and compiled, and find the first operator where the numbers part.

    PyTorch runs its models' exported programs node by node, ONNX Runtime returns the results of all nodes,
    JAX runs the equations of a function one by one; the reference interpreter runs all other models. The
    last value of each layer becomes a result of a compiled model. In the first layer that differs all values
    do. Where none differs then, or only the outputs differ, one value at a time is shown, by halving.

    Args:
        model: As for `tilewright.compile`.
        args: As for `tilewright.compile`.
        kwargs: As for `tilewright.compile`.
        dims: As for `tilewright.compile`.
        inputs: Arrays by name, of the inputs' shapes; inputs without an array are random.
        sizes: The sizes of dynamic dimensions in random inputs; the default is the lower bound of each.
        seed: The seed of the random inputs.
        rtol: The relative tolerance; the default depends on the type of each value, and on the precision.
        atol: The absolute tolerance, as a share of a value's largest magnitude; the default as for `rtol`.
        progress: Called with the stage of work, the number of steps done and that of all.
        **options: Options of `tilewright.compile`: ``target``, ``precision``, ``threads``, ``opt``, ...

    Returns:
        Errors of the outputs, of each layer, and of the operators where the numbers part.

    Raises:
        CompileError: The model cannot be compiled or run in its framework, or it draws random numbers.
        ShapeError: An input or a size does not fit the model.
    """
    say = progress or (lambda *_: None)
    if isinstance(args, Mapping):
        kwargs = {**args, **(kwargs or {})}
        args = None
    say("reading the model")
    values = inner_values(model, args, kwargs, dims)
    with compile(values.module(()), **options) as library:
        if library.metadata.get("seed"):
            raise CompileError(
                "the model draws random numbers, which differ between frameworks: compare it without them, "
                "as after model.eval()"
            )
        given = dict(inputs or {})
        generated = random_inputs(library.metadata, default_sizes(library.metadata, sizes or {}), seed)
        run = _Run(values, options, library.metadata.get("precision", ""), {**generated, **given})
        run.tolerance = rtol, atol
        say("running the model in its framework")
        nonfinite: dict[str, NonFinite] = {}

        def visit(number: int, value: Array) -> None:
            run.expected[number] = value
            _note_nonfinite(values.places[number], value, nonfinite)

        expected = values.run({k: np.array(x) for k, x in run.inputs.items()}, visit)
        say("comparing outputs")
        results = called(library, run.inputs)
        if len(results) != len(expected):
            raise CompileError(
                f"the library has {len(results)} outputs, {values.framework} gives {len(expected)}"
            )
        outputs = tuple(
            run.row(spec.name, Place("", spec.name), np.asarray(a), e)
            for spec, a, e in zip(library.outputs, results, expected, strict=True)
        )
        metadata = library.metadata
    parts = [(name, begin, end) for name, begin, end in layers(values.places) if end in run.expected]
    say("comparing layers")
    ends = run.shown([end for *_, end in parts], [name for name, *_ in parts])
    found = LayerComparison(
        values.framework,
        outputs,
        tuple(ends),
        first_nan=nonfinite.get("nan"),
        first_infinity=nonfinite.get("inf"),
    )
    wrong = next((k for k, row in enumerate(ends) if not row.passed), None)
    if wrong is None and all(row.passed for row in outputs):
        return found
    begin = 0 if not wrong else parts[wrong - 1][2] + 1
    last = len(values.places) - 1 if wrong is None else parts[wrong][2]
    inside = [k for k in range(begin if wrong is not None else 0, last + 1) if k in run.expected]
    say("comparing operators")
    rows = run.shown(inside) if wrong is not None else []
    first = next((row for row in rows if not row.passed), None)
    alone = first is None
    if first is None:
        first = _by_halving(run, inside, say)
    kernels = () if first is None else computing(metadata, first.place)
    return replace(found, operators=tuple(rows), first=first, alone=alone, kernels=kernels)


def inner_values(
    model: object, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dims: DimsArgument | None
) -> InnerValues:
    """The values inside of a model of any kind, by its front end."""
    from .graph_values import GraphValues
    from .jax_values import JaxValues
    from .onnx_values import OnnxValues
    from .torch_values import TorchValues

    kinds: dict[str, Callable[..., InnerValues]] = {
        "onnx": OnnxValues,
        "torch": TorchValues,
        "torch.export": TorchValues,
        "jax.jit": JaxValues,
    }
    kind = kinds.get(find_frontend(model).name, GraphValues)
    return kind(Path(model) if isinstance(model, str) else model, args, kwargs, dims)


def _note_nonfinite(place: Place, value: Array, found: dict[str, NonFinite]) -> None:
    if value.dtype.kind in "iubO" or len(found) == 2:
        return
    wide = value.astype(np.float32) if value.dtype.itemsize < 4 else value
    nans, infinities = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    if nans:
        found.setdefault("nan", NonFinite(place, nans, infinities))
    if infinities:
        found.setdefault("inf", NonFinite(place, nans, infinities))


def _by_halving(run: _Run, numbers: Sequence[int], say: Callable[..., None]) -> ComparedValue | None:
    """The first of some places whose value differs when it is the only one that is shown; None if the last
    does not. It takes as many compilations as the number of places has binary digits.
    """
    if not numbers:
        return None
    (found,) = run.shown([numbers[-1]])
    if found.passed:
        return None
    low, high, steps = 0, len(numbers) - 1, 0
    while low < high:
        say("showing one value at a time", steps, steps + (high - low).bit_length())
        steps += 1
        middle = (low + high) // 2
        (row,) = run.shown([numbers[middle]])
        if row.passed:
            low = middle + 1
        else:
            found, high = row, middle
    return found


def computing(metadata: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    """The kernels whose locations have a place's name, with its line where several lines have the name."""
    named = [
        (kernel["name"], text)
        for kernel in metadata.get("kernels", ())
        for text in kernel.get("locations", ())
        if text.partition(" (")[0] == place.name
    ]
    line = place.source.rpartition("/")[2]
    exact = [name for name, text in named if line and line in text]
    return tuple(dict.fromkeys(exact or (name for name, _ in named)))


__all__ = ["ComparedValue", "LayerComparison", "NonFinite", "compare"]
