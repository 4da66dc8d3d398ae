"""Runs the host program of a WebGPU artifact; `targets.webgpu.program` describes its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import DivisionError, OutOfRangeError, TilewrightError
from tilewright.runtime.expressions import evaluate
from tilewright.runtime.webgpu_device import Device, Place

_ERRORS: dict[str, type[TilewrightError]] = {
    "program": TilewrightError,
    "index": OutOfRangeError,
    "division": DivisionError,
}
_UNBOUNDED = 2**31 - 1


class Run:
    """One run of a function."""

    def __init__(
        self,
        device: Device,
        weight: Callable[[int], Place],
        memory: dict[Any, Place],
        name: str,
        function: Mapping[str, Any],
        symbols: dict[str, int],
    ) -> None:
        """Prepare the planned buffers.

        Args:
            device: The device.
            weight: Returns the place of a weight by its number.
            memory: The buffers that the library keeps between runs.
            name: The function's name.
            function: Its entry in the program.
            symbols: The sizes that follow from the inputs; the run adds those that it computes.
        """
        self.device, self.weight, self.memory, self.name, self.symbols = device, weight, memory, name, symbols
        self.places: dict[int, Place] = {}
        self.late: dict[int, Place] = {}
        """The outputs whose sizes the run has computed."""
        for number, sizes in enumerate(function["buffers"]):
            self.keep(("planned", number), max(map(self.value, sizes)))

    def value(self, formula: int | str) -> int:
        return evaluate(formula, self.symbols)

    def values(self, formulas: Sequence[int | str]) -> list[int]:
        return [evaluate(f, self.symbols) for f in formulas]

    def keep(self, key: Any, size: int, content: bool = False) -> Place:
        """The buffer `key` of the library, with room for so many bytes."""
        place = self.memory[key] = self.device.at_least(self.memory.get(key), size, content)
        return place

    def read(self, number: int) -> int:
        """The number in a buffer, after all commands so far."""
        return int(self.device.read(self.places[number], (), np.dtype(np.int32)))

    def holds(self, number: int) -> bool:
        """The condition in a buffer, after all commands so far."""
        return bool(self.device.read(self.places[number], (), np.dtype(np.bool_)))

    def steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        for step in steps:
            _ACTIONS[next(iter(step))](self, step)

    # -- Steps -----------------------------------------------------------------------------------------------

    def constant(self, step: Mapping[str, Any]) -> None:
        self.places[step["to"]] = self.weight(step["constant"])

    def alloc(self, step: Mapping[str, Any]) -> None:
        self.places[step["to"]] = self.memory["planned", step["alloc"]]

    def block(self, step: Mapping[str, Any]) -> None:
        key = ("block", self.name, step["block"])
        self.places[step["to"]] = self.keep(key, self.value(step["size"]), bool(step["keep"]))

    def view(self, step: Mapping[str, Any]) -> None:
        source = self.places[step["view"]]
        if "sizes" in step:
            wanted, actual = self.values(step["sizes"])
            if wanted != actual:
                raise TilewrightError(
                    f"a shape that the run computed has {wanted} elements, its tensor has {actual}"
                )
        self.places[step["to"]] = Place(source.buffer, source.offset + self.value(step["offset"]))

    def launch(self, step: Mapping[str, Any]) -> None:
        self.device.dispatch(
            step["kernel"],
            [self.places[b] for b in step["buffers"]],
            self.values(step["sizes"]),
            [self.symbols[s] for s in step["dims"]],
            self.values(step["grid"]),
        )

    def copy(self, step: Mapping[str, Any]) -> None:
        source, target = step["copy"]
        size = self.value(step["size"])
        if "late" in step:
            self.places[target] = self.keep(("output", self.name, step["late"]), size)
        self.device.copy(self.places[source], self.places[target], size)

    def counted(self, step: Mapping[str, Any]) -> None:
        carried = [self.places[b] for b in step["initial"]]
        for k in range(self.value(step["count"])):
            carried = self.round(step, step["for"], k, carried)
        self.places.update(zip(step["results"], carried, strict=True))

    def round(self, step: Mapping[str, Any], symbol: str, k: int, carried: list[Place]) -> list[Place]:
        """Run the steps of a loop once; returns the buffers that they yield."""
        self.symbols[symbol] = k
        self.places.update(zip(step["args"], carried, strict=True))
        self.steps(step["steps"])
        return [self.places[b] for b in step["yield"]]

    def conditional(self, step: Mapping[str, Any]) -> None:
        limit = _UNBOUNDED if step["limit"] is None else self.read(step["limit"])
        carried, condition, done = [self.places[b] for b in step["initial"]], step["condition"], 0
        while done < limit and self.holds(condition):
            _, *carried = self.round(step, step["while"], done, carried)
            condition, done = step["yield"][0], done + 1
        self.places.update(zip(step["results"], carried, strict=True))
        self.symbols[step["steps_done"]] = done

    def branch(self, step: Mapping[str, Any]) -> None:
        self.steps(step["then"] if self.holds(step["if"]) else step["else"])

    def check(self, step: Mapping[str, Any]) -> None:
        if not self.holds(step["check"]):
            raise _ERRORS[step["error"]](step["message"])

    def bind(self, step: Mapping[str, Any]) -> None:
        value, (low, high) = self.read(step["from"]), step["bounds"]
        if low is not None and value < low:
            raise TilewrightError(f"a size computed at {step['place']} is less than {low}")
        if high is not None and value > high:
            raise TilewrightError(f"a size computed at {step['place']} is more than {high}")
        self.symbols[step["bind"]] = value


_ACTIONS: dict[str, Callable[[Run, Mapping[str, Any]], None]] = {
    "constant": Run.constant,
    "alloc": Run.alloc,
    "block": Run.block,
    "view": Run.view,
    "kernel": Run.launch,
    "copy": Run.copy,
    "for": Run.counted,
    "while": Run.conditional,
    "if": Run.branch,
    "check": Run.check,
    "bind": Run.bind,
}

_NUMBERS = {
    "constant": ("to",),
    "alloc": ("to",),
    "block": ("to",),
    "view": ("view", "to"),
    "if": ("if",),
    "check": ("check",),
    "bind": ("from",),
}
"""The keys of a step that are numbers of buffers."""


def check_program(program: Mapping[str, Any], kernels: Mapping[str, str], weights: int) -> None:
    """Check a program from a file.

    Raises:
        KeyError, IndexError, TypeError or ValueError: The program has not the form that
            `targets.webgpu.program` describes.
    """
    for state in program["states"]:
        if state["first"] is not None:
            range(weights)[state["first"]]
    if set(program["kernels"]) != set(kernels):
        raise KeyError("the kernels of the program are not those of the archive")
    for name, kernel in program["kernels"].items():
        if {int(b) for b in kernel["bindings"]} != {*range(len(kernel["written"]))}:
            raise ValueError(f"kernel {name!r} has other bindings")
    for function in program["functions"].values():
        known = {int(b) for b in (*function["inputs"], *function["outputs"])}
        known |= {int(b) for b, state in function["states"] if program["states"][state]}
        buffers = len([[*sizes] for sizes in function["buffers"]])
        _check_steps(function["steps"], known, program, weights, buffers)


def _check_steps(
    steps: Sequence[Mapping[str, Any]],
    known: set[int],
    program: Mapping[str, Any],
    weights: int,
    buffers: int,
) -> None:
    def uses(numbers: Sequence[int]) -> None:
        for number in numbers:
            if number not in known:
                raise KeyError(f"no buffer {number!r}")

    for step in steps:
        kind = next(iter(step))
        _ACTIONS[kind]
        if kind == "constant":
            range(weights)[step["constant"]]
        if kind == "alloc":
            range(buffers)[step["alloc"]]
        if kind == "kernel":
            kernel = program["kernels"][step["kernel"]]
            if {len(kernel["bindings"]), len(kernel["bytes"])} != {len(step["buffers"])}:
                raise ValueError(f"kernel {step['kernel']!r} has other buffers")
            uses(step["buffers"])
            [*step["grid"]], [*step["dims"]], [*step["sizes"]]
        if kind == "copy":
            source, _ = step["copy"]
            uses([source])
            str(step["size"])
        if kind in ("for", "while"):
            uses(step["initial"])
            known.update(step["args"])
            _check_steps(step["steps"], known, program, weights, buffers)
            uses(step["yield"])
            known.update(step["results"])
        for branch in ("then", "else") if kind == "if" else ():
            _check_steps(step[branch], known, program, weights, buffers)
        for key in _NUMBERS.get(kind, ()):
            if key == "to":
                known.add(int(step[key]))
            else:
                uses([step[key]])


__all__ = ["Run", "check_program"]
