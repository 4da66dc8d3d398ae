"""The host program of a WebGPU artifact as data: buffers, dispatches and copies, with sizes as formulas."""

from __future__ import annotations

from typing import Any

from ...dialects import func, host
from ...ir.core import Module, Value
from ...ir.symbolic import Dim
from ..gpu.dialect import DeviceKernel

RUN_TIME = (host.For, host.While, host.If, host.BindSize, host.Check)
"""Operations that a host program for WebGPU cannot express; `WebgpuTarget.refusals` reports them."""


def _formula(e: Dim) -> int | str:
    return e if isinstance(e, int) else str(e)


def host_program(module: Module, shaders: dict[str, DeviceKernel]) -> tuple[dict[str, Any], list[Any]]:
    """Return the program of a bufferized module and the constants it uses, in order.

    A reference to memory is ``["input", k]``, ``["output", k]``, ``["constant", k]`` or ``["slot", k]``.
    Intermediate buffers that are not alive at the same time share a slot, which is as large as the largest of
    them.
    """
    main = module.symbol("main")
    assert isinstance(main, func.Func)
    num_inputs = len(main.arg_names) - len(main.result_names)
    places: dict[Value, list[Any]] = {}
    for k, arg in enumerate(main.body.args):
        places[arg] = ["input", k] if k < num_inputs else ["output", k - num_inputs]
    last_use = _last_uses(main)
    constants: list[Any] = []
    slots: list[list[int | str]] = []
    free: list[int] = []
    steps: list[dict[str, Any]] = []
    for number, op in enumerate(main.body.ops):
        if isinstance(op, host.Constant):
            places[op.result] = ["constant", len(constants)]
            constants.append(op.value)
        elif isinstance(op, host.Alloc):
            slot = free.pop() if free else len(slots)
            if slot == len(slots):
                slots.append([])
            size = _formula(op.buffer.size)
            if size not in slots[slot]:
                slots[slot].append(size)
            places[op.result] = ["slot", slot]
        elif isinstance(op, host.View):
            places[op.result] = places[op.source]
        elif isinstance(op, host.Launch):
            shader = shaders[op.kernel]
            kernel = module.symbol(op.kernel)
            steps.append(
                {
                    "kernel": op.kernel,
                    "buffers": [places[v] for v in op.buffers],
                    "dims": [s.name for s in kernel.attributes["dims"]],
                    "grid": [_formula(e) for e in shader.grid],
                }
            )
        elif isinstance(op, host.Copy):
            steps.append(
                {"copy": [places[op.source], places[op.target]], "size": _formula(op.source.type.size)}
            )
        for value in last_use.get(number, ()):
            place = places.get(value)
            if place is not None and place[0] == "slot":
                free.append(place[1])
    return {"slots": slots, "steps": steps, "num_constants": len(constants)}, constants


def _last_uses(main: func.Func) -> dict[int, list[Value]]:
    """Return, for each operation by number, the allocations that it uses for the last time; a use of a view
    is one of its source.
    """
    root: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for number, op in enumerate(main.body.ops):
        for v in op.operands:
            if (r := root.get(v)) is not None:
                last[r] = number
        if isinstance(op, host.Alloc):
            root[op.result] = op.result
            last[op.result] = number
        elif isinstance(op, host.View) and op.source in root:
            root[op.result] = root[op.source]
    by_operation: dict[int, list[Value]] = {}
    for value, number in last.items():
        by_operation.setdefault(number, []).append(value)
    return by_operation
