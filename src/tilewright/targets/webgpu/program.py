"""The host programs of a WebGPU artifact as data: buffers, dispatches, copies, loops and branches, with sizes
as formulas. `runtime.webgpu_program` runs them.

Sizes are bytes on the device, where 64-bit integers take 4. Conditions are one byte, other numbers that a run
reads 4. Each buffer of a function has a number. A step is a dictionary whose first key tells what it does:

- ``{"constant": n, "to": b}``: `b` is the weight `n`.
- ``{"alloc": k, "to": b}``: `b` is the planned buffer `k`.
- ``{"block": k, "to": b, "size": bytes, "keep": 0}``: `b` is a buffer of a size that the run computes.
  With ``"keep": 1`` its content stays when it grows.
- ``{"view": a, "to": b, "offset": bytes}``: `b` begins inside of `a`. The two ``"sizes"`` must be equal.
- ``{"kernel": name, "buffers": [...], "sizes": [...], "dims": [...], "grid": [x, y, z]}``: a dispatch.
  ``"sizes"`` are the bytes of the buffers, ``"dims"`` the symbols that the kernel takes.
- ``{"copy": [a, b], "size": bytes}``: a copy. With ``"late": k``, `b` is the output `k`, of this size.
- ``{"for": symbol, "count": n, "initial": [...], "args": [...], "steps": [...], "yield": [...],
  "results": [...]}``: a loop that hands buffers from step to step.
- ``{"while": symbol, "condition": b, "limit": b, "steps_done": symbol, ...}``: the same with a condition; the
  first buffer that a step yields is the next one.
- ``{"if": b, "then": [...], "else": [...]}``: a branch.
- ``{"check": b, "message": text, "error": kind}``: ends the run if `b` is 0.
- ``{"bind": symbol, "from": b, "bounds": [low, high], "place": text}``: the symbol is the number in `b`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...dialects import func, host, loop
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Block, Module, Operation, Value
from ...ir.run_time_symbols import defined_inside, mentions
from ...ir.symbolic import Dim, bounds
from ...ir.types import DType
from ...lowering.memory_plan import MemoryPlan
from ..gpu.dialect import DeviceKernel

Step = dict[str, Any]


def host_program(module: Module, shaders: Mapping[str, DeviceKernel], plan: MemoryPlan) -> dict[str, Any]:
    """Return the program of a bufferized module whose memory is planned.

    Returns:
        ``"functions"`` by name, each with the numbers of the buffers of its ``"inputs"``, ``"states"`` and
        ``"outputs"``, its planned ``"buffers"`` (formulas of their bytes, of which the largest counts) and
        its ``"steps"``; the ``"states"`` with their bytes and the weight that they begin with; and for each
        of the ``"kernels"`` the ``"bytes"`` of an element of each buffer, the numbers of the buffers'
        ``"bindings"``, and which bindings are ``"written"``. The weights are those of `plan` in order.
    """
    functions = func.entries(module)
    weights = {offset: number for number, (offset, _) in enumerate(plan.weights)}
    first: dict[str, int | None] = {}
    for function in functions:
        for (name, _), offset in zip(function.states, notes.STATE_OFFSETS.of(function), strict=True):
            first[name] = weights.get(offset)
    states = [
        {"bytes": _formula(_bytes(type_)), "first": first[name]}
        for name, (type_, _) in func.shared_states(functions).items()
    ]
    numbers = {name: number for number, name in enumerate(first)}
    return {
        "functions": {f.sym_name: _Writer(shaders, weights, numbers).function(f) for f in functions},
        "states": states,
        "kernels": {
            kernel.sym_name: {
                "bytes": [element_bytes(arg.type.dtype) for arg in kernel.body.args],
                "bindings": [*shaders[kernel.sym_name].bindings],
                "written": [int(w) for w in shaders[kernel.sym_name].written],
            }
            for kernel in module.functions(loop.Kernel)
        },
    }


def _size(type_: Any) -> Dim:
    size: Dim = 1
    for d in type_.shape:
        size = size * d
    return size


def element_bytes(dtype: DType) -> int:
    """The bytes of an element on the device."""
    return min(dtype.itemsize, 4)


def _bytes(type_: Any) -> Dim:
    return _size(type_) * element_bytes(type_.dtype)


def _formula(e: Dim) -> int | str:
    return e if isinstance(e, int) else str(e)


class _Writer:
    """Writes the program of one function."""

    def __init__(
        self,
        shaders: Mapping[str, DeviceKernel],
        weights: Mapping[int, int],
        states: Mapping[str, int],
    ) -> None:
        self.shaders, self.weights, self.states = shaders, weights, states
        self.numbers: dict[Value, int] = {}
        self.planned: dict[str, int] = {}
        """The planned buffers by their offsets in the arena. Buffers of one offset are never alive at the
        same time.
        """
        self.sizes: list[list[int | str]] = []
        self.late: dict[Value, int] = {}

    def function(self, main: func.Func) -> dict[str, Any]:
        count = len(main.arg_names) - len(main.result_names)
        kept = dict(main.states)
        outputs = main.body.args[count:]
        computed = defined_inside(main)
        self.late = {a: k for k, a in enumerate(outputs) if mentions(a.type.shape, computed)}
        arguments = list(zip(main.arg_names[:count], main.body.args[:count], strict=True))
        return {
            "inputs": [self.number(a) for n, a in arguments if n not in kept],
            "states": [[self.number(a), self.states[n]] for n, a in arguments if n in kept],
            "outputs": [self.number(a) for a in outputs],
            "steps": self.block(main.body),
            "buffers": self.sizes,
        }

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def all(self, values: Sequence[Value]) -> list[int]:
        return [self.number(v) for v in values]

    def block(self, block: Block) -> list[Step]:
        return [step for op in block.ops if (step := self.step(op)) is not None]

    def step(self, op: Operation) -> Step | None:
        if isinstance(op, host.Constant):
            return {"constant": self.weights[op.offset], "to": self.number(op.result)}
        if isinstance(op, host.Alloc):
            return self.alloc(op)
        if isinstance(op, host.View):
            view: Step = {"view": self.number(op.source), "to": self.number(op.result)}
            view["offset"] = _formula(op.offset * element_bytes(op.result.type.dtype))
            if op.checked:
                view["sizes"] = [_formula(_size(v.type)) for v in (op.result, op.source)]
            return view
        if isinstance(op, host.Launch):
            shader = self.shaders[op.kernel]
            return {
                "kernel": op.kernel,
                "buffers": self.all(op.buffers),
                "sizes": [_formula(_bytes(v.type)) for v in op.buffers],
                "dims": list(shader.dims),
                "grid": [_formula(e) for e in shader.grid],
            }
        if isinstance(op, host.Copy):
            size = _formula(_bytes(op.source.type))
            copy: Step = {"copy": self.all([op.source, op.target]), "size": size}
            return copy | ({"late": self.late[op.target]} if op.target in self.late else {})
        return self.control(op)

    def alloc(self, op: host.Alloc) -> Step:
        size = _formula(_bytes(op.buffer))
        if op.slot is not None:
            return {"block": op.slot, "to": self.number(op.result), "size": size, "keep": int(op.keep)}
        place = self.planned.setdefault(str(op.offset), len(self.planned))
        if place == len(self.sizes):
            self.sizes.append([])
        if size not in self.sizes[place]:
            self.sizes[place].append(size)
        return {"alloc": place, "to": self.number(op.result)}

    def control(self, op: Operation) -> Step | None:
        if isinstance(op, host.For | host.While):
            carried = {
                "initial": self.all(op.initial),
                "args": self.all(op.body.args),
                "steps": self.block(op.body),
                "yield": self.all(op.body.terminator.operands),
                "results": self.all(op.results),
            }
            if isinstance(op, host.For):
                return {"for": op.step.name, "count": _formula(op.step.upper + 1), **carried}
            limit = None if op.limit is None else self.number(op.limit)
            condition = self.number(op.condition)
            return {
                "while": op.step.name,
                "condition": condition,
                "limit": limit,
                "steps_done": op.count.name,
                **carried,
            }
        if isinstance(op, host.If):
            then, otherwise = (self.block(region.block) for region in op.regions)
            return {"if": self.number(op.condition), "then": then, "else": otherwise}
        if isinstance(op, host.Check):
            return {"check": self.number(op.condition), "message": op.message, "error": op.error}
        if isinstance(op, host.BindSize):
            return {
                "bind": op.symbol.name,
                "from": self.number(op.count),
                "bounds": list(bounds(op.symbol)),
                "place": str(op.location.portable),
            }
        if op.terminator:
            return None
        raise CompileError(f"a host program for WebGPU cannot express '{op.name}'")


__all__ = ["element_bytes", "host_program"]
