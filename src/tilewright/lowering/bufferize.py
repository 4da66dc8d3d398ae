"""From tensors to memory: a function of tensor groups becomes a host program that launches kernels on buffers.

Comes in: the function "main" over tensors, of constants, groups and reshapes only, and for each group the kernels that
compute it. Goes out: the function "main" whose arguments are the model's inputs followed by its outputs as buffers. Whatever
computes a result writes it where the caller wants it (destination passing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..dialects import func, graph, host, loop, tensor
from ..ir.builder import Builder
from ..ir.core import IRError, Module, Value
from ..ir.types import BufferType, TensorType


@dataclass(frozen=True)
class KernelCall:
    """One kernel of a group that takes several.

    `arguments` tells the kernel's buffers in its own order: the group's inputs count from 0, its results follow, and numbers
    after those are buffers that only the group's kernels share, typed as the kernels declare them.
    """

    kernel: str
    arguments: tuple[int, ...]


KernelsOf = Callable[[tensor.Group], Sequence[str | KernelCall]]
"""The kernels that compute a group, in order; a name alone takes the group's inputs, then its results."""


def bufferize(module: Module, kernels_of: KernelsOf) -> None:
    """Replace the tensor function "main" by its host program.

    Raises:
        IRError: the function holds an operation that is neither constant, group nor view, or a kernel is missing.
    """
    old = module.symbol("main")
    assert isinstance(old, func.Func)
    results = list(old.body.terminator.operands)
    names = tuple(old.result_names) or tuple(f"output{k}" for k in range(len(results)))
    inputs = tuple(old.arg_names) or tuple(f"input{k}" for k in range(len(old.body.args)))
    new = func.Func(sym_name="main", arg_names=(*inputs, *names), result_names=names, location=old.location)
    for key, value in old.attributes.items():
        new.attributes.setdefault(key, value)
    buffers: dict[Value, Value] = {a: new.body.add_arg(_buffer(a.type), a.hint) for a in old.body.args}
    targets = [new.body.add_arg(_buffer(v.type), name) for v, name in zip(results, names, strict=True)]

    builder = Builder(new.body, location=old.location)
    copied = _place_results(builder, results, targets, buffers)
    for op in old.body.ops:
        with builder.at(op.location):
            if op.terminator:
                break
            if isinstance(op, graph.Constant):
                buffers[op.result] = builder(host.Constant(value=op.value))
            elif isinstance(op, tensor.Reshape):
                if op.result not in buffers and op.result.has_uses:
                    buffers[op.result] = _view(builder, buffers[op.x], op.result.type)
            elif isinstance(op, tensor.Group):
                _launch_group(builder, module, op, kernels_of(op), buffers)
            else:
                raise IRError("stands between kernels, where only constants, groups and reshapes may", op)
    for index in copied:
        builder(host.Copy(buffers[results[index]], targets[index]))
    builder(func.Return(()))
    module.body.insert_before(old, new)
    old.drop_all()
    old.detach()
    host.check_launches(module)


def _buffer(type_: TensorType) -> BufferType:
    if type_.layout is not None:
        raise IRError(f"{type_} has a layout, which must have become a transposition before buffers are made")
    return BufferType(type_.dtype, type_.shape)


def _view(builder: Builder, buffer: Value, type_: TensorType) -> Value:
    """`buffer` with the shape of `type_`; views of views reach back to the memory itself."""
    if buffer.type.shape == type_.shape:
        return buffer
    op = buffer.defining_op
    if isinstance(op, host.View):
        return _view(builder, op.source, type_)
    view: Value = builder(host.View(buffer, shape=type_.shape))
    return view


def _place_results(
    builder: Builder, results: list[Value], targets: Sequence[Value], buffers: dict[Value, Value]
) -> list[int]:
    """Give values that groups compute, and that are returned, the caller's memory; returns the results left to copy."""
    copied = []
    for index, (value, target) in enumerate(zip(results, targets, strict=True)):
        chain = [value]
        while isinstance(op := chain[-1].defining_op, tensor.Reshape):
            chain.append(op.x)
        if isinstance(chain[-1].defining_op, tensor.Group) and chain[-1] not in buffers:
            for step in chain:
                buffers.setdefault(step, _view(builder, target, step.type))
        else:
            copied.append(index)
    return copied


def _launch_group(
    builder: Builder,
    module: Module,
    group: tensor.Group,
    calls: Sequence[str | KernelCall],
    buffers: dict[Value, Value],
) -> None:
    for result in group.results:
        if result not in buffers:
            buffers[result] = builder(host.Alloc(buffer=_buffer(result.type)))
    known = [buffers[v] for v in (*group.inputs, *group.results)]
    shared: dict[int, Value] = {}
    for call in calls:
        if isinstance(call, str):
            builder(host.Launch(known, kernel=call, num_outputs=len(group.results)))
            continue
        kernel = module.symbol(call.kernel)
        assert isinstance(kernel, loop.Kernel)
        arguments = []
        for number, parameter in zip(call.arguments, kernel.body.args, strict=True):
            if number < len(known):
                arguments.append(known[number])
                continue
            if number not in shared:
                type_ = BufferType(parameter.type.dtype, parameter.type.shape)
                shared[number] = builder(host.Alloc(buffer=type_))
            arguments.append(shared[number])
        builder(host.Launch(arguments, kernel=call.kernel, num_outputs=kernel.num_outputs))
