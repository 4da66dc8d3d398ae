"""Calibration: the model runs on sample inputs with tensors inside of it as further results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects.graph.base import tensor_type
from ..driver.compile import compile
from ..errors import CompileError, ShapeError
from ..ir.core import Module, Value
from ..runtime.model import CompiledModel
from .observers import Array, Statistics
from .prepare import main_function


@dataclass(frozen=True)
class Batch:
    """The inputs of one run: by position, by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, library: CompiledModel) -> Any:
        return library(*self.args, **self.kwargs)


def batches_of(calibration: object) -> list[Batch]:
    """The batches of calibration data: each an array, a sequence of arrays or a dictionary by name.

    Raises:
        CompileError: There are none, one has another form, or it has numbers that are not finite.
    """
    if isinstance(calibration, (np.ndarray, Mapping, str)) or not isinstance(calibration, Iterable):
        raise CompileError(
            f"calibration is {_described(calibration)}; give a list of batches: each an array, a tuple of "
            "arrays, or a dictionary of arrays by the names of the inputs"
        )
    batches = []
    for number, item in enumerate(calibration):
        if isinstance(item, Mapping):
            batch = Batch((), dict(item))
        elif isinstance(item, (tuple, list)):
            batch = Batch(tuple(item), {})
        else:
            batch = Batch((item,), {})
        for name, x in [*enumerate(batch.args), *batch.kwargs.items()]:
            _check_finite(x, f"batch {number} of the calibration data: input {name}")
        batches.append(batch)
    if not batches:
        raise CompileError("there is no calibration data: give at least one batch, better 100 samples")
    return batches


def _described(value: object) -> str:
    return f"one {type(value).__name__}" if value is not None else "None"


def _check_finite(x: object, where: str) -> None:
    try:
        array = np.asarray(x)
    except Exception as error:  # conversion by foreign types fails in many ways
        raise CompileError(f"{where} is no array: {error}") from error
    if array.dtype.kind == "O":
        raise CompileError(f"{where} is no array of numbers, but {_described(x)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinite numbers"
        raise CompileError(f"{where} has {what}")


class Runner:
    """A module compiled with some of its tensors as further results."""

    def __init__(self, module: Module, values: Sequence[Value], threads: int | None = None) -> None:
        self.values = list(dict.fromkeys(values))
        mapping: dict[Value, Value] = {}
        changed = module.clone(mapping)
        function = main_function(changed)
        end, own = function.body.terminator, len(function.outputs)
        operands = list(end.operands)
        end.set_operands([*operands[:own], *(mapping[v] for v in self.values), *operands[own:]])
        shown = tuple(f"observed_{k}" for k in range(len(self.values)))
        function.result_names = (*function.result_names[:own], *shown)
        if function.nested:
            inputs, outputs = function.nested
            function.nested = (inputs, (*outputs, *((name, own + k) for k, name in enumerate(shown))))
        self.library = compile(changed, threads=threads, cache=False)

    def outputs(self, batch: Batch) -> tuple[list[Array], dict[Value, Array]]:
        """The model's own outputs on a batch, and the tensors."""
        results = batch.run(self.library)
        results = results if isinstance(results, tuple) else (results,)
        own = len(results) - len(self.values)
        tensors = (np.asarray(x) for x in results[own:])
        return list(flat(results[:own])), dict(zip(self.values, tensors, strict=True))

    def close(self) -> None:
        self.library.close()


def flat(results: object) -> Iterator[Array]:
    """The arrays of a model's results."""
    if isinstance(results, (tuple, list)):
        for result in results:
            yield from flat(result)
    elif isinstance(results, Mapping):
        for result in results.values():
            yield from flat(result)
    elif results is not None:
        yield np.asarray(results)


def observe(
    runner: Runner, batches: Sequence[Batch], axes: Mapping[Value, int], histograms: bool
) -> dict[Value, Statistics]:
    """Statistics of the runner's tensors over the batches.

    Args:
        runner: The model with the tensors.
        batches: The calibration data.
        axes: The axis of the channels of each tensor; the last, where it has none.
        histograms: Whether histograms are made, by a second run of each batch.

    Raises:
        CompileError: A batch does not fit the model, or a tensor has numbers that are not finite.
    """
    seen = {v: Statistics() for v in runner.values}
    for number, batch in enumerate(batches):
        for value, x in _tensors(runner, batch, number).items():
            seen[value].add(x.astype(np.float32, copy=False), axes.get(value, -1))
    for value, one in seen.items():
        if not one.elements:
            raise CompileError(f"calibration saw no element of {_name(value)}: all its tensors are empty")
    if histograms:
        for number, batch in enumerate(batches):
            for value, x in _tensors(runner, batch, number).items():
                seen[value].add_counts(x)
    return seen


def _tensors(runner: Runner, batch: Batch, number: int) -> dict[Value, Array]:
    try:
        _, tensors = runner.outputs(batch)
    except (ShapeError, TypeError) as error:
        raise CompileError(f"batch {number} of the calibration data does not fit: {error}") from error
    for value, x in tensors.items():
        if not np.isfinite(x).all():
            raise CompileError(
                f"batch {number} of the calibration data: {_name(value)} has NaN or infinite numbers; "
                "library.inspect(...) of the compiled model shows where they begin"
            )
    return tensors


def _name(value: Value) -> str:
    op = value.defining_op
    if op is None:
        return f"the input '{value.hint}'" if value.hint else "an input"
    return f"the result of {op.location.name or op.name} ({tensor_type(value)})"


__all__ = ["Batch", "Runner", "batches_of", "flat", "observe"]
